// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "the message of " + reason, LastTransitionTime: metav1.NewTime(noon.Add(-3 * time.Hour))}
}

// small is a cluster in which all is well: target fast on nodes a and b, three volumes, and node c without a target.
func small() *status {
	s := &status{now: noon}
	ok := func(kinds ...string) (all []metav1.Condition) {
		for _, k := range kinds {
			all = append(all, condition(k, metav1.ConditionTrue, v1alpha1.ReasonAsExpected))
		}
		return all
	}
	target := v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Spec: v1alpha1.NvmfTargetSpec{Engine: v1alpha1.EngineSPDK}}
	target.Status.Nodes = v1alpha1.NodeCounts{Matching: 2, Capable: 2, Ready: 2}
	target.Status.Rollout = v1alpha1.RolloutStatus{Updated: 2}
	target.Status.Capacity = v1alpha1.Capacity{Total: new(resource.MustParse("2Ti")), Allocated: new(resource.MustParse("512Gi")), Free: new(resource.MustParse("1536Gi"))}
	target.Status.Conditions = append(ok(v1alpha1.ConditionReady),
		condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonPending),
		condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected))
	s.targets = append(s.targets, target)
	for i, name := range []string{"a", "b", "c"} {
		n := v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = ok(v1alpha1.ConditionAgentAlive)
		if name != "c" {
			n.Spec.Target, n.Spec.Plan = "fast", &v1alpha1.Plan{Choices: []v1alpha1.Choice{{Setting: "coreMask", Value: "0xf0", Source: v1alpha1.SourceGiven, Why: "four cores"}}}
			n.Status.Engine = &v1alpha1.EngineStatus{Type: v1alpha1.EngineSPDK, Version: "26.05", Settings: []v1alpha1.EngineSetting{
				{Setting: "coreMask", Value: "0xf0"}, {Setting: "largeBuffers", Value: "512", Planned: "1024"}}}
			n.Status.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: fmt.Sprintf("10.0.0.%d", i+1), Port: 4420}}
			n.Status.Attachments, n.Status.Volumes = &v1alpha1.Places{Used: 5, Possible: new(int64(128))}, &v1alpha1.Places{Used: 2, Possible: new(int64(4096))}
			n.Status.Pools = []v1alpha1.PoolStatus{{Device: "eui." + name, Path: "/dev/nvme0n1", Ready: true, Total: new(resource.MustParse("1Ti")), Free: new(resource.MustParse("768Gi")), Promised: new(resource.MustParse("256Gi"))}}
			n.Status.Capacity.Free = new(resource.MustParse("768Gi"))
			n.Status.Conditions = append(n.Status.Conditions, ok(v1alpha1.ConditionReady, v1alpha1.ConditionPoolReady, v1alpha1.ConditionPortalsReady)...)
			n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionRestartNeeded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected))
		} else {
			n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotClaimed))
		}
		s.nodes = append(s.nodes, n)
	}
	for i, node := range []string{"a", "a", "b"} {
		s.add(fmt.Sprintf("pvc-%d", i), node, ok(v1alpha1.ConditionReady, v1alpha1.ConditionCreated))
	}
	return s
}

// add a volume of target fast, created an hour ago, with one replica in these conditions.
func (s *status) add(name, node string, conditions []metav1.Condition) {
	v := v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}, Spec: v1alpha1.NvmfVolumeSpec{
		Target: "fast", Members: []v1alpha1.VolumeMember{{Name: name + "-0", Node: node}},
	}}
	r := v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: name + "-0"}, Spec: v1alpha1.NvmfReplicaSpec{
		Volume: v1alpha1.ReplicaOf{Name: name}, Target: "fast", Node: node,
	}}
	r.Status.Conditions = conditions
	s.volumes, s.replicas = append(s.volumes, v), append(s.replicas, r)
}

func TestSize(t *testing.T) {
	for q, want := range map[string]string{"802848Ki": "784.0Mi", "300Mi": "300Mi", "1536Mi": "1.5Gi", "4Ki": "4Ki", "0": "0"} {
		if got := size(new(resource.MustParse(q))); got != want {
			t.Errorf("%s: got %s, want %s", q, got, want)
		}
	}
}

var spaces = regexp.MustCompile(` +`)

func TestStatus(t *testing.T) {
	set := func(conditions []metav1.Condition, c metav1.Condition) {
		for i := range conditions {
			if conditions[i].Type == c.Type {
				conditions[i] = c
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*status)
		about  string
		unwell bool
		want   []string
		not    string
	}{
		"all is well": {
			want: []string{"fast SPDK True 2 of 2 2 of 2 3 2048.0Gi 512.0Gi 1536.0Gi", "a fast True alive SPDK 26.05 2 of 4096 5 of 128 1 of 1 768.0Gi TCP 10.0.0.1:4420",
				"c - - alive - 0 - 0 of 0 - -", "No problems found."}, not: "Problems:"},
		"over-provisioned": {
			change: func(s *status) {
				s.targets[0].Spec.OverProvisioningPercent, s.nodes[0].Spec.Plan.OverProvisioningPercent = 300, 300
			},
			want: []string{"512.0Gi (up to 300 %) 1536.0Gi"}},
		"nothing yet": {
			change: func(s *status) { *s = status{now: noon} }, want: []string{"No NvmfTargets found.", "No nodes found.", "No problems found."}},
		"degraded": {
			change: func(s *status) {
				set(s.targets[0].Status.Conditions, condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNodesNotReady))
			},
			unwell: true, want: []string{"- NvmfTarget fast: Degraded is True: NodesNotReady: the message of NodesNotReady"}, not: "Progressing"},
		"nodes that cannot authenticate": {
			change: func(s *status) {
				s.targets[0].Status.Conditions = append(s.targets[0].Status.Conditions, condition(v1alpha1.ConditionAuthenticationReady, metav1.ConditionFalse, v1alpha1.ReasonNodesCannotAuthenticate))
			},
			unwell: true, want: []string{"- NvmfTarget fast: AuthenticationReady is False: NodesCannotAuthenticate: the message of NodesCannotAuthenticate"}},
		"cordoned": {
			change: func(s *status) {
				s.nodes[0].Spec.Unschedulable = true
				s.nodes[0].Spec.UnschedulableDrives = []string{"eui.1", "eui.gone"}
				s.nodes[0].Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "eui.gone"}}
				s.nodes[1].Status.Conditions = append(s.nodes[1].Status.Conditions, condition(v1alpha1.ConditionSchedulable, metav1.ConditionFalse, v1alpha1.ReasonKubernetesNodeCordoned))
			},
			want: []string{"Nodes and drives that get no new volumes:\n- NvmfNode a: Cordoned: it is cordoned; to place volumes on it again, run: kubectl weft uncordon a\n" +
				"- drive eui.1 of NvmfNode a: it is being retired; to place volumes on it again, run: kubectl weft retire a eui.1 --undo\n" +
				"- NvmfNode b: KubernetesNodeCordoned: its Kubernetes Node is cordoned; to place volumes on it again, run: kubectl uncordon b", "No problems found."}},
		"the only replica of a volume": {
			change: func(s *status) {
				s.nodes[0].Status.Conditions = append(s.nodes[0].Status.Conditions, condition(v1alpha1.ConditionEvictable, metav1.ConditionFalse, v1alpha1.ReasonOnlyReplica))
			},
			about: "a", want: []string{"Evictable False OnlyReplica", "No problems found."}},
		"classes of a target": {
			change: func(s *status) {
				s.nodes[0].Status.Pools[0].DeviceClass = "tlc"
				s.nodes[1].Status.Pools = append(s.nodes[1].Status.Pools, v1alpha1.PoolStatus{Device: "eui.q", DeviceClass: "tlc", Message: "gone", Total: new(resource.MustParse("1Ti"))})
			},
			about: "fast", want: []string{"CLASS POOLS READY TOTAL PROMISED\n- 1 of 1 1024.0Gi 256.0Gi\ntlc 1 of 2 1024.0Gi 256.0Gi"}},
		"classes of a node": {
			change: func(s *status) {
				s.nodes[0].Status.Pools[0].DeviceClass = "tlc"
				s.nodes[0].Spec.Plan.Drives = []v1alpha1.PlannedDrive{{ID: "eui.a", Serial: "S1", DeviceClass: "tlc"}}
			},
			about: "a", want: []string{"POOL CLASS PATH READY", "eui.a tlc /dev/nvme0n1 yes", "drive eui.a class tlc, serial S1"}},
		"no classes": {about: "a", want: []string{"POOL PATH READY"}, not: "CLASS"},
		"a restart is needed": {
			change: func(s *status) {
				set(s.nodes[1].Status.Conditions, condition(v1alpha1.ConditionRestartNeeded, metav1.ConditionTrue, v1alpha1.ReasonSettingsDiffer))
			},
			unwell: true, want: []string{"- NvmfNode b: RestartNeeded is True: SettingsDiffer"}},
		"a condition of a later version": {
			change: func(s *status) {
				s.nodes[0].Status.Conditions = append(s.nodes[0].Status.Conditions, condition("SomethingGood", metav1.ConditionFalse, "NotSoGood"))
			},
			unwell: true, want: []string{"- NvmfNode a: SomethingGood is False: NotSoGood"}},
		"a rollout": {
			change: func(s *status) {
				s.targets[0].Status.Rollout = v1alpha1.RolloutStatus{Updated: 1, Outdated: 1}
				s.targets[0].Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Paused: true}
				s.nodes[1].Status.Conditions = append(s.nodes[1].Status.Conditions, condition(v1alpha1.ConditionUpdated, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused))
			},
			want: []string{"2 of 2 1 of 2 (paused) 3", "NvmfTarget fast: Pending: the message of Pending", "Nodes that are not updated yet:\n- NvmfNode b: RolloutPaused: the message of RolloutPaused", "No problems found."}},
		"an image is being pulled": {
			change: func(s *status) {
				s.nodes[1].Status.Conditions = append(s.nodes[1].Status.Conditions, condition(v1alpha1.ConditionTargetImageReady, metav1.ConditionUnknown, v1alpha1.ReasonPending))
			},
			want: []string{"No problems found."}},
		"an image cannot be pulled": {
			change: func(s *status) {
				s.nodes[1].Status.Conditions = append(s.nodes[1].Status.Conditions, condition(v1alpha1.ConditionTargetImageReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed))
			},
			unwell: true, want: []string{"- NvmfNode b: TargetImageReady is False: ImagePullFailed"}},
		"a silent agent": {
			change: func(s *status) {
				set(s.nodes[0].Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent))
				set(s.nodes[0].Status.Conditions, condition(v1alpha1.ConditionPoolReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed))
			},
			unwell: true, want: []string{"a fast True silent", "- NvmfNode a: AgentAlive is False: AgentSilent"}, not: "NvmfNode a: PoolReady"},
		"a drive is missing": {
			change: func(s *status) {
				s.nodes[0].Status.Pools = append(s.nodes[0].Status.Pools, v1alpha1.PoolStatus{Device: "eui.x", Reason: v1alpha1.ReasonDeviceMissing, Message: "pull it out no more"})
			},
			unwell: true, want: []string{"1 of 2", "- NvmfNode a, pool eui.x: DeviceMissing: pull it out no more"}},
		"data without an object": {
			change: func(s *status) {
				for i := range 12 {
					s.nodes[0].Status.Orphans = append(s.nodes[0].Status.Orphans, v1alpha1.Orphan{UUID: fmt.Sprintf("uuid-%d", i), Kind: v1alpha1.OrphanSnapshot, Device: "eui.a", Size: resource.MustParse("2Gi")})
				}
				s.nodes[0].Status.Orphans[0].Kind, s.nodes[0].Status.Orphans[0].Name = v1alpha1.OrphanReplica, "pvc-9"
			},
			unwell: true, want: []string{"- NvmfNode a stores an orphaned NvmfReplica: name pvc-9, uuid uuid-0, 2.0Gi in pool eui.a;",
				"orphaned NvmfSnapshot: name unknown, uuid uuid-9,", "- and 2 more orphans"}, not: "uuid-10"},
		"many volumes": {
			change: func(s *status) {
				for i := range 25 {
					s.add(fmt.Sprintf("bad-%02d", i), "a", []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoSpace)})
				}
			},
			unwell: true, want: []string{"- NvmfVolume bad-09, NvmfReplica bad-09-0: Ready is False: NoSpace", "- and 15 more volumes"}, not: "bad-10"},
		"a volume without its replica": {
			change: func(s *status) { s.replicas = s.replicas[1:] },
			unwell: true, want: []string{"- NvmfVolume pvc-0: its NvmfReplica pvc-0-0 on node a does not exist"}},
		"a node's volume without its replica": {
			about: "a", change: func(s *status) { s.replicas = s.replicas[:1] },
			unwell: true, want: []string{"- NvmfVolume pvc-1: its NvmfReplica pvc-1-0 on node a does not exist"}, not: "pvc-2"},
		"a volume that is just being created": {
			change: func(s *status) {
				s.volumes[0].CreationTimestamp = metav1.NewTime(noon.Add(-time.Second))
				s.replicas = s.replicas[1:]
			},
			want: []string{"No problems found."}},
		"a volume that is being deleted, after its replica": {
			change: func(s *status) {
				s.volumes[0].DeletionTimestamp, s.volumes[0].UID = new(metav1.NewTime(noon)), "u"
				s.volumes[0].Mark()
				s.replicas = s.replicas[1:]
			},
			want: []string{"No problems found."}},
		"a volume that was deleted by mistake": {
			about: "a",
			change: func(s *status) {
				for i := range s.volumes { // the last one is on another node
					s.volumes[i].DeletionTimestamp, s.volumes[i].UID = new(metav1.NewTime(noon)), "u"
				}
				s.volumes[1].Mark()
			},
			unwell: true, want: []string{"- NvmfVolume pvc-0: DeletionNotMarked: it was deleted without a deletion mark"}, not: "NvmfVolume pvc-1"},
		"a replica that is behind": {
			about: "a",
			change: func(s *status) {
				since := metav1.NewTime(noon.Add(-3 * time.Minute))
				s.volumes[0].Spec.Size = resource.MustParse("4Gi")
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberReturning, Reason: "Bitmap", Since: &since, CopiedBytes: 1 << 30},
					{Replica: "pvc-1-0", State: v1alpha1.MemberInSync},
				}}}}
			},
			unwell: true, want: []string{"- NvmfVolume pvc-0: its replica pvc-0-0 on node a is Returning for 3m (Bitmap); 25 % copied (6.0 MB/s, 9m left)"}, not: "pvc-1-0"},
		"a replica that is to be filled": {
			change: func(s *status) {
				since := metav1.NewTime(noon.Add(-3 * time.Minute))
				s.volumes[0].Spec.Size = resource.MustParse("4Gi")
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberFilling, Reason: "New", Since: &since}}}}}
			},
			unwell: true, want: []string{"is Filling for 3m (New); 0 % copied\n"}},
		"volumes that wait for other replicas": {
			about: "a",
			change: func(s *status) {
				s.volumes[0].Spec.Replicas, s.volumes[0].Spec.Waiting = 2, "no node has room"
				s.volumes[2].Spec.Waiting = "of another node"
			},
			want: []string{"wait for a replica:\nVOLUME REPLICAS REQUESTED WAITING\nnv/pvc-0 1 2 no node has room\n", "No problems found."}, not: "of another node"},
		"keys that are older than they should be": {
			about: "a",
			change: func(s *status) {
				created := func(i int, node string, age time.Duration) {
					s.replicas[i].Spec.Hosts = []v1alpha1.VolumeHost{{Node: node, SealedKeys: "x", KeysCreated: new(metav1.NewTime(noon.Add(-age)))}}
				}
				s.targets[0].Spec.Security = &v1alpha1.Security{KeyLifetimeHours: 24}
				created(0, "user-1", 72*time.Hour)
				created(1, "user-2", 25*time.Hour+time.Second)
				created(2, "user-3", 72*time.Hour) // stored on b
			},
			want: []string{"older than security.keyLifetimeHours:\n- NvmfVolume pvc-0 on node user-1: 3d old; to see what their rotation waits for, run: kubectl weft rotate nv/pvc-0 --dry-run\n" +
				"- NvmfVolume pvc-1 on node user-2: 25h old; to see what their rotation waits for, run: kubectl weft rotate nv/pvc-1 --dry-run\n", "No problems found."}, not: "user-3"},
		"keys that are about to be replaced": {
			change: func(s *status) {
				s.replicas[0].Spec.Hosts = []v1alpha1.VolumeHost{{Node: "user-1", SealedKeys: "x", KeysCreated: new(metav1.NewTime(noon.Add(-v1alpha1.DefaultKeyLifetimeHours*time.Hour - time.Minute)))}}
				of := func(nqn string) v1alpha1.VolumeHost {
					return v1alpha1.VolumeHost{NQN: nqn, Attachment: "u", SealedKeys: "x", KeysCreated: new(metav1.NewTime(noon.AddDate(-1, 0, 0)))}
				}
				s.replicas[1].Spec.Hosts = []v1alpha1.VolumeHost{of("a"), of("b")}
			},
			want: []string{"No problems found."}, not: "older"},
		"a replica that moves": {
			change: func(s *status) {
				since := metav1.NewTime(noon.Add(-3 * time.Minute))
				v := &s.volumes[0]
				v.Annotations = map[string]string{"weft.storage/pvc-namespace": "databases", "weft.storage/pvc-name": "data"}
				v.Spec.Size = resource.MustParse("10Gi")
				v.Spec.Members = append(v.Spec.Members, v1alpha1.VolumeMember{Name: "pvc-0-1", Node: "b"})
				v.Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-0", Replacement: "pvc-0-1"}
				s.replicas = append(s.replicas, v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0-1"}, Spec: v1alpha1.NvmfReplicaSpec{Volume: v1alpha1.ReplicaOf{Name: "pvc-0"}, Node: "b"}})
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberInSync},
					{Replica: "pvc-0-1", State: v1alpha1.MemberFilling, Since: &since, CopiedBytes: 4 << 30},
				}}}}
				s.volumes[1].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-1-0", Waiting: "no node has room"}
			},
			want: []string{"Moves:\nVOLUME FROM TO STATE COPIED RATE LEFT WAITING\ndatabases/data a b Filling 40 % 23.9 MB/s 4m30s -\nnv/pvc-1 a - Requested - - - no node has room\n", "No problems found."}},
		"a new replica that does not answer": {
			change: func(s *status) {
				since := metav1.NewTime(noon.Add(-3 * time.Minute))
				s.volumes[0].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-9", Replacement: "pvc-0-0"}
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberOut, Reason: "Lost", Since: &since}}}}}
			},
			unwell: true, want: []string{"nv/pvc-0 - a Out for 3m - - - Lost", "is Out for 3m (Lost)"}},
		"a lost replica, and another is in sync": {
			change: func(s *status) {
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberOut, Reason: "Lost"}, {Replica: "pvc-0-1", State: v1alpha1.MemberInSync}}}}}
			},
			unwell: true, want: []string{"is Out (Lost); the volume is used without it, and it returns by itself"}},
		"a refused replica, and another is in sync": {
			change: func(s *status) {
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberOut, Foreign: true}, {Replica: "pvc-0-1", State: v1alpha1.MemberInSync}}}}}
			},
			unwell: true, want: []string{"node a is Out ()"}, not: "returns by itself"},
		"a lost replica that is replaced": {
			change: func(s *status) {
				s.volumes[0].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-0", Reason: v1alpha1.MoveReplicaLost}
			},
			want: []string{"nv/pvc-0 a (lost) - Requested - - - -", "No problems found."}},
		"a replica that moves elsewhere": {
			about: "b", change: func(s *status) { s.volumes[0].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-0", Node: "c"} }, not: "Moves:",
			want: []string{"No problems found."}},
		"a replica that was moved away": {
			change: func(s *status) {
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberOut, Retired: true}}}}}
			},
			want: []string{"No problems found."}},
		"a new replica that is lost": {
			change: func(s *status) {
				s.volumes[0].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-9", Replacement: "pvc-0-0"}
				s.mirrors = []v1alpha1.NvmfMirror{{ObjectMeta: metav1.ObjectMeta{Name: "pvc-0"}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
					{Replica: "pvc-0-0", State: v1alpha1.MemberOut, Reason: "Lost"}}}}}
			},
			unwell: true, want: []string{"nv/pvc-0 - a Out - - - Lost", "- NvmfVolume pvc-0: its replica pvc-0-0 on node a is Out (Lost)"}},
		"a replica without its volume": {
			change: func(s *status) {
				s.volumes = s.volumes[1:]
				set(s.replicas[0].Status.Conditions, condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoSpace))
			},
			unwell: true, want: []string{"2 of 2 2 of 2 2", "- NvmfVolume pvc-0 does not exist, but its NvmfReplica pvc-0-0 on node a has its data; ",
				"- NvmfVolume pvc-0, NvmfReplica pvc-0-0: Ready is False: NoSpace"}},
		"about a target": {
			about: "fast",
			change: func(s *status) {
				s.targets[0].Status.NotCapable = []v1alpha1.NotCapableNode{{Node: "d", Reason: v1alpha1.ReasonNoDevice, Message: "no drive is blank"}}
				set(s.nodes[2].Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent))
			},
			want: []string{"Node d cannot serve this target: NoDevice: no drive is blank", "Ready True AsExpected 3h the message of AsExpected", "b fast True", "No problems found."}, not: "\nc "},
		"about a node": {
			about: "a", want: []string{"eui.a /dev/nvme0n1 yes 1024.0Gi 768.0Gi 256.0Gi", "PoolReady True AsExpected 3h", "coreMask 0xf0 Given four cores",
				"coreMask 0xf0 same", "largeBuffers 512 1024", "No problems found."}, not: "\nb "},
		"a drive whose cache is not known": {about: "a", want: []string{"256.0Gi - - \n"}},
		"a drive with a volatile cache": {
			about: "a",
			change: func(s *status) {
				s.nodes[0].Status.Inventory = &v1alpha1.Inventory{Drives: []v1alpha1.Drive{{ID: "eui.b"}, {ID: "eui.a", WriteCache: v1alpha1.WriteCacheBack}}}
			},
			want: []string{"PROMISED CLEARING DRIVE'S CACHE PROBLEM", "256.0Gi - WriteBack \n"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := small()
			if c.change != nil {
				c.change(s)
			}
			var out bytes.Buffer
			printed := &table{out: &out}
			if c.about == "" {
				s.overview(printed)
			} else if !s.about(printed, c.about) {
				t.Fatalf("there is no %s", c.about)
			}
			got := spaces.ReplaceAllString(out.String(), " ")
			if s.unwell != c.unwell || printed.err != nil {
				t.Errorf("unwell %v, %v; want %v", s.unwell, printed.err, c.unwell)
			}
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("want %q in:\n%s", w, out.String())
				}
			}
			if c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("do not want %q in:\n%s", c.not, out.String())
			}
		})
	}
	if small().about(&table{out: &bytes.Buffer{}}, "nobody") {
		t.Error("nobody is there")
	}
}
