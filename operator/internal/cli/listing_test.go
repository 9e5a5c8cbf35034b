// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// stocked is a cluster whose drives are in all states, with volumes and snapshots on some.
func stocked(t *testing.T) *rig {
	t.Helper()
	var objects []client.Object
	for _, of := range []struct {
		name string
		on   []string
	}{{"data", []string{"a", "b"}}, {"logs", []string{"a"}}, {"web", []string{"a"}}, {"wal", []string{"a"}}} {
		_, more := volume(of.name, of.on...)
		objects = append(objects, more...)
	}
	objects = append(objects, replicaOf(&v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "v-gone"}}, v1alpha1.VolumeMember{Name: "v-gone-0", Node: "b"}))
	for i, name := range []string{"snap-2", "snap-1"} {
		s := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfSnapshotSpec{Volume: "v-data", Replica: "v-data-0", Node: "a"}}
		s.Status = v1alpha1.NvmfSnapshotStatus{Device: "eui.a", Ready: true, Size: new(resource.MustParse("100Gi")), Allocated: new(resource.MustParse("5Gi")), CreatedAt: new(metav1.NewTime(noon.Add(-time.Duration(i+1) * time.Hour)))}
		objects = append(objects, s)
	}
	orphaned := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-3"}, Spec: v1alpha1.NvmfSnapshotSpec{Volume: "v-deleted", Replica: "v-deleted-0", Node: "b"}}
	orphaned.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonVolumeLost)}
	objects = append(objects, orphaned, snapshotContent("content-1", v1alpha1.DriverName, "snap-1"), snapshotContent("content-2", "csi.other", "snap-2"))
	r := newRig(t, objects...)
	r.change("a", func(n *v1alpha1.NvmfNode) {
		n.Spec.Plan.OverProvisioningPercent = 200
		n.Spec.UnschedulableDrives = []string{"eui.a"}
		p := &n.Status.Pools[0]
		p.Path, p.DeviceClass, p.Free, p.Promised, p.Clearing = "/dev/nvme0n1", "tlc", new(resource.MustParse("512Gi")), new(resource.MustParse("1536Gi")), new(resource.MustParse("20Gi"))
		n.Status.Inventory = &v1alpha1.Inventory{Drives: []v1alpha1.Drive{
			{ID: "eui.a", Name: "nvme0n1", Model: "PM9A3", Serial: "S1", SizeBytes: 1 << 40, Content: v1alpha1.ContentWeft, WriteCache: v1alpha1.WriteCacheThrough},
			{ID: "eui.spare", Name: "nvme7n1", Model: "PM9A3", SizeBytes: 1 << 40, Content: v1alpha1.ContentForeign, ContentDetail: "ext4 filesystem"},
		}}
	})
	r.change("b", func(n *v1alpha1.NvmfNode) {
		n.Status.Pools[0].Ready, n.Status.Pools[0].Reason, n.Status.Pools[0].Message = false, v1alpha1.ReasonDeviceMissing, "it is not there"
		n.Status.Pools[0].Total, n.Status.Pools[0].Promised = nil, nil
	})
	r.change("c", func(n *v1alpha1.NvmfNode) {
		n.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "eui.c2"}}
		n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent))
	})
	r.change("d", func(n *v1alpha1.NvmfNode) {
		n.Spec.Plan = &v1alpha1.Plan{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/pool.img"}}
		n.Status.Pools[0].Device = "/var/lib/weft/pool.img"
	})
	return r
}

func snapshotContent(name, driver, handle string) client.Object {
	c := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"driver": driver, "volumeSnapshotRef": map[string]any{"namespace": "databases", "name": "nightly"}},
		"status": map[string]any{"snapshotHandle": handle},
	}}
	c.SetGroupVersionKind(snapshotContents)
	c.SetName(name)
	return c
}

// change an NvmfNode.
func (r *rig) change(name string, change func(*v1alpha1.NvmfNode)) {
	r.t.Helper()
	n := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, n))
	change(n)
	r.do(r.api.Update(r.ctx, n))
}

// listed in a format, of these nodes.
func (r *rig) listed(kind, format, order string, nodes ...string) string {
	r.t.Helper()
	f, err := lookAtNodes(r.ctx, r.api, noon, nodes)
	r.do(err)
	var out bytes.Buffer
	o := &output{format: format}
	switch kind {
	case "pools":
		r.do(f.listPools(nodes, order).show(&out, o))
	case "volumes":
		r.do(f.listVolumes(nodes).show(&out, o))
	case "drives":
		r.do(f.listDrives(nodes).show(&out, o))
	default:
		r.do(f.listSnapshots(nodes, readContents(r.ctx, r.api)).show(&out, o))
	}
	return out.String()
}

func TestListings(t *testing.T) {
	r := stocked(t)
	for _, kind := range []string{"pools", "drives", "snapshots"} {
		golden(t, kind+"-table.txt", r.listed(kind, outputTable, sortByName))
		golden(t, kind+"-wide.txt", r.listed(kind, outputWide, sortByName))
		var fromJSON, fromYAML map[string][]map[string]any
		if err := errors.Join(json.Unmarshal([]byte(r.listed(kind, outputJSON, sortByName, "a")), &fromJSON), yaml.Unmarshal([]byte(r.listed(kind, outputYAML, sortByName, "a")), &fromYAML)); err != nil {
			t.Fatal(err)
		}
		for _, got := range []map[string][]map[string]any{fromJSON, fromYAML} {
			if len(got[kind]) == 0 || slices.ContainsFunc(got[kind], func(item map[string]any) bool { return item["node"] != "a" }) {
				t.Errorf("%s of node a: %v", kind, got)
			}
		}
	}
	byUse := r.listed("pools", outputTable, sortByUsed)
	if lines := strings.Split(byUse, "\n"); !strings.HasPrefix(lines[1], "a ") || !strings.HasPrefix(lines[4], "b ") {
		t.Errorf("the fullest is not the first, or the unknown not the last:\n%s", byUse)
	}
	if got := r.listed("snapshots", outputTable, "", "c"); got != "No snapshots found.\n" {
		t.Errorf("got %q", got)
	}
	if got := strings.Join(strings.Fields(r.listed("snapshots", outputJSON, "", "c")), ""); got != `{"snapshots":[]}` {
		t.Errorf("got %q", got)
	}
	if _, err := lookAtNodes(r.ctx, r.api, noon, []string{"a", "z"}); err == nil || !strings.Contains(err.Error(), "NvmfNode z not found; existing nodes: a, b, c, d") {
		t.Errorf("got %v", err)
	}
}

// The state of a volume is that of its status. The problem is that of its replicas, their agents, or its mirror's
// record.
func TestVolumeList(t *testing.T) {
	u := newUsed()
	u.v.Status = v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeDegraded, Reason: v1alpha1.ReasonReplicaLost}
	ready := []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected)}
	objects := u.objects()
	for _, of := range []struct {
		name, node string
		state      v1alpha1.VolumeState
		change     func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfReplica)
	}{
		{"deleting", "a", v1alpha1.VolumeDeleting, func(v *v1alpha1.NvmfVolume, _ *v1alpha1.NvmfReplica) {
			v.DeletionTimestamp, v.Finalizers = new(metav1.NewTime(noon)), []string{"x"}
		}},
		{"full", "a", v1alpha1.VolumeUnavailable, func(_ *v1alpha1.NvmfVolume, r *v1alpha1.NvmfReplica) {
			r.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFull)}
		}},
		{"new", "a", "", func(_ *v1alpha1.NvmfVolume, r *v1alpha1.NvmfReplica) { r.Status.Conditions = nil }},
		{"silent", "c", v1alpha1.VolumeUnknown, func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfReplica) {}},
		{"lost", "b", v1alpha1.VolumeLost, func(_ *v1alpha1.NvmfVolume, r *v1alpha1.NvmfReplica) { r.Name = "another" }},
		{"more", "a", v1alpha1.VolumeDegraded, func(v *v1alpha1.NvmfVolume, _ *v1alpha1.NvmfReplica) {
			v.Spec.Replicas, v.Spec.Waiting, v.Spec.Attachments[0].Mover = 2, "no node has room", true
		}},
		{"nearly-full", "b", v1alpha1.VolumeDegraded, func(v *v1alpha1.NvmfVolume, _ *v1alpha1.NvmfReplica) {
			v.Status.Reason = v1alpha1.ReasonPoolNearlyFull
		}},
		{"well", "b", v1alpha1.VolumeReady, func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfReplica) {}},
	} {
		v, more := volume(of.name, of.node)
		replica := more[3].(*v1alpha1.NvmfReplica)
		replica.Status.Conditions = ready
		v.Status.State = of.state
		of.change(v, replica)
		objects = append(objects, more...)
	}
	u.mirror.Spec.Members[1].State = v1alpha1.MemberOut
	r := newRig(t, objects...)
	r.breakNode("c")
	golden(t, "volumes-table.txt", r.listed("volumes", outputTable, ""))
	golden(t, "volumes-wide.txt", r.listed("volumes", outputWide, "", "b"))
}

// Without -n, listings have all namespaces, and what has no claim.
func TestListingsOfANamespace(t *testing.T) {
	volumes := listing[VolumeRow]{kind: "volumes", items: []VolumeRow{{Claim: "databases/data", Volume: "v1"}, {Claim: "backups/data", Volume: "v2"}, {Claim: "nv/v3", Volume: "v3"}, {Claim: "nv/data", Volume: "v4"}}}
	snapshots := listing[SnapshotReport]{kind: "snapshots", items: []SnapshotReport{{Name: "s1", Claim: "databases/data"}, {Name: "s2", VolumeSnapshot: "backups/nightly"}, {Name: "s3", Claim: "nv/v3", Volume: "v3"},
		{Name: "s4", Claim: "databases/logs", VolumeSnapshot: "backups/imported"}}}
	for namespace, want := range map[string]string{
		"": "v1 v2 v3 v4 s1 s2 s3 s4", "databases": "v1 s1 s4", "backups": "v2 s2 s4", "nv": "v4", "data": "",
	} {
		v, s := volumes, snapshots
		v.items, s.items = slices.Clone(v.items), slices.Clone(s.items)
		v, s = v.in(namespace, VolumeRow.in), s.in(namespace, SnapshotReport.in)
		var got []string
		for _, item := range v.items {
			got = append(got, item.Volume)
		}
		for _, item := range s.items {
			got = append(got, item.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("namespace %q: %v", namespace, got)
		}
		var out bytes.Buffer
		if len(v.items) > 0 {
			continue
		}
		if err := v.show(&out, &output{format: outputTable}); err != nil || out.String() != "No volumes found in namespace data.\n" {
			t.Errorf("%v: %q", err, out.String())
		}
	}
}

func TestListingFlags(t *testing.T) {
	for want, calls := range map[string][]string{
		"table, wide, json or yaml": {"pools", "drives", "snapshots", "volumes", "volume x", "check", "check-image", "status", "plan -f -", "recover x", "top nodes"},
		"text, json or yaml":        {"move x", "rotate x", "drain a", "retire a b", "rebalance fast", "cordon a", "uncordon a", "drop a b", "delete volume x"},
	} {
		for _, call := range calls {
			cmd := Command("test")
			cmd.SetArgs(append(strings.Fields(call), "-o", "csv"))
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `--output is "csv"; must be `+want) {
				t.Errorf("%s: got %v", call, err)
			}
		}
	}
}

// The report for programs has what the tables have, and ends with the same exit code.
func TestStatusReport(t *testing.T) {
	well := func(s *status, format string, args ...string) (got StatusReport, code int) {
		t.Helper()
		var out bytes.Buffer
		code = exitCode(s.show(&out, &output{format: format}, args))
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil { // JSON is YAML
			t.Fatal(err)
		}
		return got, code
	}
	for _, format := range []string{outputJSON, outputYAML} {
		got, code := well(small(), format)
		if code != 0 || len(got.Targets) != 1 || got.Targets[0].Volumes != 3 || len(got.Nodes) != 3 || got.Nodes[0].Replicas != 2 || got.Nodes[0].PoolsReady != 1 || got.Problems == nil {
			t.Errorf("exit code %d, got %+v", code, got)
		}
	}
	s := small()
	unwell := func(format, about string) (StatusReport, int) {
		s.unwell = false
		return well(s, format, about)
	}
	s.volumes[0].Annotations = map[string]string{v1alpha1.PVCNamespaceKey: "databases", v1alpha1.PVCNameKey: "data"}
	s.volumes[0].Spec.Move = &v1alpha1.VolumeMove{Replica: "pvc-0-0", Node: "b"}
	s.replicas[0].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFull)}
	got, code := unwell(outputJSON, "a")
	if code != CodeUnwell || len(got.Nodes) != 1 || len(got.Moves) != 1 || got.Moves[0].Volume != "databases/data" || got.Moves[0].CopiedPercent != nil {
		t.Errorf("exit code %d, got %+v", code, got)
	}
	if want := "claim databases/data (NvmfVolume pvc-0), NvmfReplica pvc-0-0: Ready is False: PoolFull: the message of PoolFull"; !slices.Contains(got.Problems, want) {
		t.Errorf("problems are told by claim; want %q in %q", want, got.Problems)
	}
	if got, code := unwell(outputJSON, "b"); code != 0 || len(got.Moves) != 1 {
		t.Errorf("exit code %d, got %+v", code, got)
	}
	if got, code := unwell(outputYAML, "fast"); code != CodeUnwell || len(got.Nodes) != 2 || len(got.Targets) != 1 {
		t.Errorf("exit code %d, got %+v", code, got)
	}
	if err := s.show(&bytes.Buffer{}, &output{format: outputTable}, []string{"nobody"}); err == nil || !strings.Contains(err.Error(), "existing objects: fast, a, b, c") {
		t.Errorf("got %v", err)
	}
}

// The wide table has what people ask for next, and says what is not known.
func TestStatusWide(t *testing.T) {
	s := small()
	s.targets[0].Spec.Transports = []v1alpha1.Transport{{Type: v1alpha1.TransportTCP}, {Type: v1alpha1.TransportRDMA}}
	s.nodes[0].Status.AgentVersion, s.nodes[0].Status.Inventory = "0.2.0", &v1alpha1.Inventory{KernelVersion: "6.12.41"}
	for format, want := range map[string]bool{outputWide: true, outputTable: false} {
		var out bytes.Buffer
		if err := s.show(&out, &output{format: format}, nil); err != nil {
			t.Fatal(err)
		}
		got := spaces.ReplaceAllString(out.String(), " ")
		for _, line := range []string{"PROMISED FREE TRANSPORTS AUTHENTICATION\n", "512.0Gi 1536.0Gi TCP, RDMA Preferred\n", "FREE PORTALS WEFT KERNEL\n", "TCP 10.0.0.1:4420 0.2.0 6.12.41\n", "TCP 10.0.0.2:4420 unknown unknown\n"} {
			if strings.Contains(got, line) != want {
				t.Errorf("%s: is %q in it? Want %v:\n%s", format, line, want, got)
			}
		}
	}
}

func TestCheckReport(t *testing.T) {
	s := &survey{nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KernelVersion: "4.18.0", KubeletVersion: "v1.36.0", Architecture: "amd64"}}}}, unread: []string{"namespaces"}}
	var out bytes.Buffer
	code := exitCode(s.show(&out, &output{format: outputJSON}))
	var got CheckReport
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if code != CodeUnwell || len(got.Nodes) != 1 || got.Nodes[0].Kernel != "4.18.0" || len(got.NotLookedAt) != 1 ||
		!slices.ContainsFunc(got.Findings, func(f CheckFinding) bool { return f.Wrong && f.Node == "old" && f.Page == platformsPages+kernelPage }) {
		t.Errorf("exit code %d, got %+v", code, got)
	}
}
