// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// UUIDs of the volume in these tests.
const (
	ofVolume     = "11111111-1111-4111-8111-111111111111"
	ofSession    = "22222222-2222-4222-8222-222222222222"
	ofReplica    = "33333333-3333-4333-8333-33333333333"
	ofAttachment = "44444444-4444-4444-8444-444444444444"
	ofHost       = "55555555-5555-4555-8555-55555555555"
)

// used is a mirrored volume that a pod uses, and all the objects around it. In each, all is well.
type used struct {
	v        *v1alpha1.NvmfVolume
	claim    *corev1.PersistentVolumeClaim
	pv       *corev1.PersistentVolume
	replicas []*v1alpha1.NvmfReplica
	mirror   *v1alpha1.NvmfMirror
	attached *storagev1.VolumeAttachment
	pod      *corev1.Pod
	worker   *corev1.Node
	others   []client.Object
}

func newUsed() *used {
	v, objects := volume("data", "a", "b")
	u := &used{v: v}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			u.claim = o
		case *corev1.PersistentVolume:
			u.pv = o
		case *v1alpha1.NvmfReplica:
			u.replicas = append(u.replicas, o)
		}
	}
	v.UID, v.Spec.UUID, v.Spec.Session, v.Spec.Mirrored = "uid-v", ofVolume, ofSession, true
	v.Spec.Connection.Transports = []v1alpha1.TransportType{v1alpha1.TransportTCP}
	v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(ofAttachment), Node: "worker", NodeUID: "uid-worker", VolumeAttachment: "uid-va", Access: v1alpha1.AccessExclusive}}
	u.claim.UID, u.claim.Status.Phase, u.claim.Spec.StorageClassName = "uid-claim", corev1.ClaimBound, new("weft-fast")
	u.claim.Spec.AccessModes, u.claim.Spec.VolumeMode = u.pv.Spec.AccessModes, new(corev1.PersistentVolumeFilesystem)
	u.claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}
	u.pv.UID, u.pv.Spec.PersistentVolumeReclaimPolicy, u.pv.Spec.CSI.FSType = "uid-pv", corev1.PersistentVolumeReclaimDelete, "ext4"
	u.mirror = &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: v1alpha1.NvmfMirrorSpec{HolderNode: "worker"}}
	for i, r := range u.replicas {
		digit := string(rune('0' + i))
		host := v1alpha1.HostNQN(ofHost + digit)
		r.UID, r.Spec.UUID, r.Spec.SubsystemNQN = types.UID("uid-r"+digit), ofReplica+digit, v1alpha1.SubsystemNQN(r.Name, ofSession)
		v.Spec.Members[i].UUID, r.Spec.Connection = r.Spec.UUID, v.Spec.Connection
		r.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: host, Attachment: ofAttachment, Node: "worker"}}
		r.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: host}}
		r.Status.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "10.0.0." + digit, Port: 4420}}
		r.Status.NSID, r.Status.NGUID, r.Status.Allocated = 1, strings.ReplaceAll(r.Spec.UUID, "-", ""), new(resource.MustParse("40Gi"))
		r.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected)}
		u.mirror.Spec.Members = append(u.mirror.Spec.Members, v1alpha1.MirrorMember{Replica: r.Name, State: v1alpha1.MemberInSync})
	}
	u.attached = &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1", UID: "uid-va"}, Spec: storagev1.VolumeAttachmentSpec{
		NodeName: "worker", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &u.pv.Name}}, Status: storagev1.VolumeAttachmentStatus{Attached: true}}
	u.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: "db-0", UID: "uid-pod"}, Spec: corev1.PodSpec{NodeName: "worker", Volumes: []corev1.Volume{{
		Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: u.claim.Name}}}}}}
	u.pod.Status.Phase, u.pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, name := range []string{"a", "b", "c", "worker"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if u.others = append(u.others, node); name == "worker" {
			u.worker = node
		}
	}
	u.others = append(u.others, classNamed("weft-fast", v1alpha1.DriverName))
	u.tell("uid-v", "NvmfVolume", v.Name, v1alpha1.ReasonReplicaInSync, 2*time.Minute)
	u.tell("uid-other", "NvmfVolume", "other", v1alpha1.ReasonReplicaLost, time.Minute)
	return u
}

// tell an Event so long ago.
func (u *used) tell(about types.UID, kind, name, reason string, ago time.Duration) {
	u.others = append(u.others, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "databases", Name: name + "." + reason},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: about},
		Type:           corev1.EventTypeNormal, Reason: reason, Message: "what\nhappened", Count: 3, LastTimestamp: metav1.NewTime(noon.Add(-ago)),
	})
}

// warn with an Event a minute ago.
func (u *used) warn(about types.UID, kind, name, reason, message string) {
	u.others = append(u.others, warning(client.ObjectKey{Namespace: "databases", Name: name}, about, kind, reason, message))
}

// unbind the claim: its volume was not made.
func (u *used) unbind() {
	u.claim.Status.Phase, u.claim.Spec.VolumeName = corev1.ClaimPending, ""
	u.pv, u.v, u.attached, u.replicas, u.mirror = nil, nil, nil, nil, nil
}

// objects that exist.
func (u *used) objects() []client.Object {
	all := u.others
	for _, r := range u.replicas {
		all = append(all, r)
	}
	if u.v != nil {
		all = append(all, u.v)
	}
	if u.claim != nil {
		all = append(all, u.claim)
	}
	if u.pv != nil {
		all = append(all, u.pv)
	}
	if u.mirror != nil {
		all = append(all, u.mirror)
	}
	if u.attached != nil {
		all = append(all, u.attached)
	}
	if u.pod != nil {
		all = append(all, u.pod)
	}
	return all
}

// golden compares a text with a file of testdata, of which WEFT_UPDATE_GOLDEN=1 makes the text.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("WEFT_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; WEFT_UPDATE_GOLDEN=1 writes it anew. Got:\n%s", file, got)
	}
}

// shown in a format is the report of what an argument names, with the exit code.
func shown(t *testing.T, api client.Reader, format, namespace, arg string) (string, int, error) {
	t.Helper()
	c, err := follow(t.Context(), api, noon, namespace, arg)
	if err != nil {
		return "", CodeError, err
	}
	c.readDevices(t.Context(), pluginsOf("worker").ask)
	var out bytes.Buffer
	err = c.report().show(&out, &output{format: format})
	return out.String(), exitCode(err), nil
}

// plugins serve metrics by their nodes. What they serve is a text, or why they do not.
type plugins map[string]any

// pluginsOf nodes that have the volume as /dev/dm-3.
func pluginsOf(nodes ...string) plugins {
	p := plugins{}
	for _, node := range nodes {
		p[node] = `weft_volume_info{volume="v-other",device="dm-2"} 1
weft_volume_info{volume="v-data",device="dm-3"} 1
weft_node_unread_volumes 0
`
	}
	return p
}

func (p plugins) ask(_ context.Context, of []exporter) (answers, error) {
	got := answers{map[exporter]*reading{}, map[exporter]error{}}
	for _, e := range of {
		switch served := p[e.node].(type) {
		case string:
			families, err := parsed(strings.NewReader(served), maxMetricsBytes)
			if err != nil {
				return got, err
			}
			got.readings[e] = &reading{families: families}
		case error:
			got.failures[e] = served
		default:
			return got, fmt.Errorf("the %s was asked", e)
		}
	}
	return got, nil
}

// The device of a node is what its node plugin calls it. What cannot be known is never shown as none.
func TestVolumeNamesTheDevice(t *testing.T) {
	const unknown = "Unknown: the device on node worker: "
	for name, c := range map[string]struct {
		change func(*used)
		served any
		// want in the output, without repeated spaces, and the fields in JSON.
		want         string
		device, fail string
	}{
		"attached":               {served: pluginsOf("worker")["worker"], want: "csi-1 /dev/dm-3\n", device: "/dev/dm-3"},
		"not staged":             {served: "weft_node_unread_volumes 0\n", want: "csi-1 none\n"},
		"another cannot be read": {served: `weft_volume_info{volume="v-data",device="dm-3"} 1` + "\nweft_node_unread_volumes 1\n", want: "csi-1 /dev/dm-3\n", device: "/dev/dm-3"},
		"cannot be read":         {served: "weft_node_unread_volumes 1\n", want: "csi-1 unknown\n", fail: "the node plugin cannot read all of its volumes; its log says why"},
		"no answer":              {served: errors.New("no pod of it"), want: unknown + "no pod of it. To find it there, run: grep -lE 'WEFT-(CRYPT-)?" + ofVolume + "-' /sys/block/dm-*/dm/uuid\n", fail: "no pod of it"},
		"no pods can be listed":  {want: "csi-1 unknown\n", fail: "the node plugin of node worker was asked"},
		"a node that is not Ready": {change: func(u *used) { u.worker.Status.Conditions[0].Status = corev1.ConditionUnknown },
			want: "csi-1 unknown\n", fail: "the Kubernetes Node is not Ready"},
		"a node that is gone": {change: func(u *used) {
			u.others = slices.DeleteFunc(u.others, func(o client.Object) bool { return o == client.Object(u.worker) })
		}, want: "csi-1 unknown\n", fail: "the Kubernetes Node does not exist, or could not be read"},
		"keys that are rotated": {change: func(u *used) {
			again := u.v.Spec.Attachments[0]
			again.NQN = v1alpha1.HostNQN(ofHost + "9")
			u.v.Spec.Attachments = append(u.v.Spec.Attachments, again)
		}, served: pluginsOf("worker")["worker"], want: "csi-1 /dev/dm-3\nworker pod Exclusive csi-1 /dev/dm-3\n", device: "/dev/dm-3"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUsed()
			if c.change != nil {
				c.change(u)
			}
			of, err := follow(t.Context(), newRig(t, u.objects()...).api, noon, "databases", "data")
			if err != nil {
				t.Fatal(err)
			}
			of.readDevices(t.Context(), plugins{"worker": c.served}.ask)
			r := of.report()
			var out bytes.Buffer
			r.print(newTable(&out), false)
			if got := spaces.ReplaceAllString(out.String(), " "); !strings.Contains(got, c.want) {
				t.Errorf("want %q in:\n%s", c.want, got)
			}
			if is := r.Attachments[0]; is.Device != c.device || is.DeviceUnknown != c.fail {
				t.Errorf("got %+v", is)
			}
		})
	}
}

func TestVolumeShowsTheWholeChain(t *testing.T) {
	r := newRig(t, newUsed().objects()...)
	for _, format := range []string{outputTable, outputWide} {
		out, code, err := shown(t, r.api, format, "databases", "data")
		if err != nil || code != 0 {
			t.Errorf("exit code %d, %v; all is well", code, err)
		}
		golden(t, "volume-"+format+".txt", out)
	}
	var fromJSON, fromYAML VolumeReport
	out, _, err := shown(t, r.api, outputJSON, "databases", "data")
	if err := errors.Join(err, json.Unmarshal([]byte(out), &fromJSON)); err != nil {
		t.Fatal(err)
	}
	out, _, err = shown(t, r.api, outputYAML, "databases", "data")
	if err := errors.Join(err, yaml.Unmarshal([]byte(out), &fromYAML)); err != nil {
		t.Fatal(err)
	}
	for _, got := range []VolumeReport{fromJSON, fromYAML} {
		if got.NvmfVolume == nil || got.NvmfVolume.UUID != ofVolume || len(got.Replicas) != 2 || !got.Replicas[1].Hosts[0].Admitted || len(got.Events) != 1 || got.Problems == nil || got.Attachments[0].Device != "/dev/dm-3" {
			t.Errorf("got %+v", got)
		}
	}
}

// Whatever a person has of a volume leads to it.
func TestVolumeIsFound(t *testing.T) {
	u := newUsed()
	_, others := volume("other", "c")
	r := newRig(t, append(u.objects(), others...)...)
	for _, arg := range []string{
		"data", "pvc/data", "databases/data", "pv-data", "pv/pv-data", "v-data", "nv/v-data", "v-data-1", "nr/v-data-0",
		u.replicas[0].Spec.SubsystemNQN, v1alpha1.HostNQN(ofAttachment), v1alpha1.HostNQN(ofHost + "1"),
		ofVolume, strings.ToUpper(u.replicas[1].Status.NGUID), "/dev/disk/by-id/nvme-uuid." + ofReplica + "0", "WEFT-" + ofVolume + "-" + ofAttachment,
	} {
		out, code, err := shown(t, r.api, outputTable, "databases", arg)
		if err != nil || code != 0 || !strings.Contains(out, "databases/data") {
			t.Errorf("%s: exit code %d, %v:\n%s", arg, code, err, out)
		}
	}
	past := v1alpha1.SubsystemNQN("v-data-1", ofAttachment)
	if out, _, err := shown(t, r.api, outputTable, "default", past); err != nil || !strings.Contains(out, "not the current one of NvmfReplica v-data-1") || !strings.Contains(out, "databases/data") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestVolumeIsNotFound(t *testing.T) {
	u := newUsed()
	foreign := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}}
	two, more := volume("two", "c")
	two.Spec.Session = ofSession
	r := newRig(t, append(append(u.objects(), foreign, two), more[1:]...)...)
	node := storageNode("a")
	r.do(r.api.Get(r.ctx, client.ObjectKeyFromObject(node), node))
	node.Status.Orphans = []v1alpha1.Orphan{{Kind: v1alpha1.OrphanReplica, Name: "gone-0", Device: "eui.a"}}
	node.Status.Inventory = &v1alpha1.Inventory{Drives: []v1alpha1.Drive{{ID: "eui.a", Name: "nvme0n1"}}}
	r.do(r.api.Update(r.ctx, node))
	for arg, want := range map[string]string{
		"nobody":                               "neither a PersistentVolumeClaim in namespace databases nor",
		"pvc/nobody":                           "PersistentVolumeClaim nobody not found in namespace databases",
		"pv/nobody":                            "PersistentVolume nobody not found",
		"pv/nfs":                               "not a volume of weft",
		"nv/nobody":                            "NvmfVolume nobody not found",
		"nr/nobody":                            "NvmfReplica nobody not found",
		v1alpha1.SubsystemNQN("gone-0", "x"):   "node a still stores the data in pool eui.a; see docs/tasks/recover-a-deleted-volume.md",
		v1alpha1.HostNQN(ofReplica + "9"):      "this may be an earlier one",
		"/dev/nvme0n1":                         "cat /sys/block/nvme0n1/device/subsysnqn. As a drive that stores volumes, nvme0n1 is known on a",
		"/dev/dm-4":                            "cat /sys/block/dm-4/dm/uuid",
		"99999999-9999-4999-8999-99999999999a": "no volume, replica or attachment has the UUID",
		ofSession:                              "is of several volumes: v-data, v-two",
	} {
		if _, code, err := shown(t, r.api, outputTable, "databases", arg); code != CodeError || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want %q", arg, err, want)
		}
	}
}

func TestVolumeTellsWhatIsWrong(t *testing.T) {
	amiss := func(kind, reason string) []metav1.Condition {
		return []metav1.Condition{condition(kind, metav1.ConditionFalse, reason)}
	}
	for name, c := range map[string]struct {
		change func(*used)
		// want in the output, without repeated spaces; not is not in it.
		want []string
		not  string
		well bool
	}{
		"a claim that is not bound": {
			change: func(u *used) {
				u.claim.Status.Phase, u.claim.Spec.VolumeName, u.pv, u.v, u.attached = corev1.ClaimPending, "", nil, nil, nil
				u.replicas, u.mirror = nil, nil
				u.tell("uid-claim", "PersistentVolumeClaim", "data", "ProvisioningFailed", time.Minute)
			},
			want: []string{"NvmfVolume: none", "- claim databases/data is not bound to a volume yet: what happened; see docs/troubleshooting/claim-pending.md",
				"60s (x3) Normal ProvisioningFailed PersistentVolumeClaim/data what happened"}},
		"a claim that is not bound, of a volume that is being created": {
			change: func(u *used) {
				u.claim.Status.Phase, u.claim.Spec.VolumeName, u.pv, u.attached, u.v.Spec.Attachments = corev1.ClaimPending, "", nil, nil, nil
				u.v.Annotations = map[string]string{v1alpha1.PVCNamespaceKey: "databases", v1alpha1.PVCNameKey: "data"}
			},
			want: []string{"NvmfVolume: v-data 100Gi", "is not bound to a volume yet"}},
		"a claim without a class": {
			change: func(u *used) { u.unbind(); u.claim.Spec.StorageClassName = nil },
			want:   []string{"- claim databases/data is not bound to a volume yet: it names no StorageClass, and the cluster has no default one; StorageClasses of weft: weft-fast; see"}},
		"a claim of a class that does not exist": {
			change: func(u *used) { u.unbind(); u.claim.Spec.StorageClassName = new("weft-fats") },
			want:   []string{"is not bound to a volume yet: StorageClass weft-fats does not exist; StorageClasses of weft: weft-fast; see"}},
		"a claim that Velero restores": {
			change: func(u *used) {
				u.unbind()
				u.claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{restoredByVelero: "databases.data.x"}}
				u.warn("uid-claim", "PersistentVolumeClaim", "data", "ProvisioningFailed", "claim Selector is not supported")
			},
			want: []string{"- claim databases/data is not bound to a volume yet: Velero fills a volume for it (kubectl get datadownloads -A); see"}},
		"a claim that the driver refuses": {
			change: func(u *used) {
				u.unbind()
				u.warn("uid-claim", "PersistentVolumeClaim", "data", "ProvisioningFailed", `infeasible error. rpc error: code = InvalidArgument desc = StorageClass parameters: `+strings.Repeat("wrong, ", 40)+"all of it")
				u.warn("uid-pod", "Pod", "db-0", "MissingClusterDNS", "no DNS")
				u.tell("uid-claim", "PersistentVolumeClaim", "data", "ExternalProvisioning", time.Second)
			},
			want: []string{"not bound to a volume yet: infeasible error. StorageClass parameters: wrong,",
				"MESSAGE\n60s Warning ProvisioningFailed PersistentVolumeClaim/data infeasible error. StorageClass parameters: " + strings.Repeat("wrong, ", 40) + "all of it\n1s (x3) Normal"},
			not: "MissingClusterDNS"},
		"a pod whose image cannot be pulled": {
			change: func(u *used) {
				u.pod.Status.Phase, u.pod.Status.Conditions = corev1.PodPending, nil
				u.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image \"busybox:1.37\""}}}}
			},
			want: []string{"- pod databases/db-0 waits: the image of container app cannot be pulled (this is not a problem of the volume): Back-off pulling image \"busybox:1.37\"\n"}, not: pagePod},
		"a PersistentVolume that is gone": {
			change: func(u *used) { u.pv, u.v, u.attached, u.replicas = nil, nil, nil, nil },
			want:   []string{"- the PersistentVolume pv-data of claim databases/data does not exist; see docs/tasks/recover-a-deleted-volume.md"}},
		"an NvmfVolume that is gone": {
			change: func(u *used) { u.v, u.replicas, u.mirror = nil, nil, nil },
			want:   []string{"- NvmfVolume v-data of PersistentVolume pv-data does not exist"}},
		"a volume that was deleted by mistake": {
			change: func(u *used) { u.v.DeletionTimestamp, u.v.Finalizers = new(metav1.NewTime(noon)), []string{"x"} },
			want:   []string{"- NvmfVolume v-data was deleted without a deletion mark"}},
		"a replica that is gone": {
			change: func(u *used) { u.replicas = u.replicas[:1] },
			want:   []string{"v-data-1 b unknown unknown - Unknown InSync -", "- replica v-data-1 on node b does not exist; see docs/troubleshooting/volume-lost.md"}},
		"a replica that is not ready": {
			change: func(u *used) {
				u.replicas[0].Status.Conditions = amiss(v1alpha1.ConditionReady, v1alpha1.ReasonPoolFull)
			},
			want: []string{"False (PoolFull)", "- replica v-data-0 on node a: Ready is False: PoolFull: the message of PoolFull; see docs/troubleshooting/pool-full.md"}},
		"a replica that lacks data": {
			change: func(u *used) {
				m := &u.mirror.Spec.Members[1]
				m.State, m.Reason, m.CopiedBytes, m.Since = v1alpha1.MemberReturning, "Bitmap", 25<<30, new(metav1.NewTime(noon.Add(-100*time.Second)))
			},
			want: []string{"Returning for 100s, Bitmap, 25 % copied (268.4 MB/s, 5m left)", "- replica v-data-1 on node b is Returning for 100s"}},
		"a replica that the mirror does not list": {
			change: func(u *used) { u.mirror.Spec.Members = u.mirror.Spec.Members[:1] },
			want:   []string{"Unknown the NvmfMirror does not list it"}, well: true},
		"a volume with one replica": {
			change: func(u *used) {
				u.v.Spec.Mirrored, u.v.Spec.Members, u.v.Spec.Replicas, u.replicas, u.mirror = false, u.v.Spec.Members[:1], 1, u.replicas[:1], nil
			},
			want: []string{"replicas: 1\n", "True Only -"}, well: true},
		"a host that is not admitted": {
			change: func(u *used) {
				u.replicas[1].Status.Hosts = nil
				u.replicas[1].Status.Conditions = append(u.replicas[1].Status.Conditions, amiss(v1alpha1.ConditionExported, v1alpha1.ReasonKeysUnreadable)...)
			},
			want: []string{"worker no", "- node worker is not admitted to replica v-data-1 on node b: KeysUnreadable: the message of KeysUnreadable; see docs/troubleshooting/io-hangs.md"}},
		"a host that is dismissed, and still admitted": {
			change: func(u *used) {
				u.replicas[1].Status.Hosts = append(u.replicas[1].Status.Hosts, v1alpha1.AdmittedHost{NQN: "nqn.2014-08.org.nvmexpress:uuid:past"})
			},
			want: []string{"uuid:past unknown yes"}, well: true},
		"a pool with a problem, and a silent agent": {
			change: func(u *used) { u.replicas[0].Status.Device = "eui.broken" },
			want: []string{"- pool eui.broken of node a, which stores replica v-data-0: PoolFailed: dead; see docs/troubleshooting/target-not-ready.md",
				"- storage node a: AgentAlive is False: AgentSilent: the message of AgentSilent; see docs/troubleshooting/target-not-ready.md, AgentSilent"}},
		"a node that is stuck": {
			change: func(u *used) {
				u.worker.Status.Conditions = append(u.worker.Status.Conditions, corev1.NodeCondition{Type: v1alpha1.ConditionInitiatorStuck, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonConnectStuck, Message: "stuck"})
			},
			want: []string{"- node worker: WeftInitiatorStuck: stuck; see docs/troubleshooting/node-stuck.md"}},
		"a node that is not ready, and another machine": {
			change: func(u *used) {
				u.worker.UID = "uid-new"
				u.worker.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped"}
			},
			want: []string{"- node worker: the Kubernetes Node is not Ready: NodeStatusUnknown: Kubelet stopped; see docs/tasks/recover-from-a-lost-node.md", "- node worker is another machine"}},
		"a VolumeAttachment that fails": {
			change: func(u *used) {
				u.attached.Status.Attached, u.attached.Status.AttachError = false, &storagev1.VolumeError{Message: "no room"}
			},
			want: []string{"- attaching to node worker fails: no room; see docs/troubleshooting/pod-not-starting.md"}},
		"a VolumeAttachment that is gone": {
			change: func(u *used) { u.attached = nil },
			want:   []string{"worker pod Exclusive - /dev/dm-3", "- the VolumeAttachment of node worker is gone, and the volume is still attached"}},
		"a pod that waits": {
			change: func(u *used) {
				u.pod.Status.Phase, u.pod.Status.Conditions = corev1.PodPending, nil
				u.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
			},
			want: []string{"databases/db-0 worker Pending no ContainerCreating", "- pod databases/db-0 waits: ContainerCreating; see docs/troubleshooting/pod-not-starting.md"}},
		"a volume that waits for a replica, and moves": {
			change: func(u *used) {
				u.v.Spec.Waiting, u.v.Spec.Move = "no node has room", &v1alpha1.VolumeMove{Replica: "v-data-0", Node: "c", Waiting: "node c is cordoned"}
			},
			want: []string{"Move: databases/data: a to c: Requested; waiting: node c is cordoned", "- the volume has 2 of 2 replicas, and waits: no node has room",
				"- the move of replica v-data-0 waits: node c is cordoned; see docs/tasks/move-a-volume.md"}},
		"a claim that was deleted, of a volume that was kept": {
			change: func(u *used) { u.claim, u.pod, u.pv.Status.Phase = nil, nil, corev1.VolumeReleased },
			want:   []string{"Claim: databases/data does not exist", "- claim databases/data was deleted, and its volume was kept; see docs/tasks/reuse-a-volume.md"}},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUsed()
			c.change(u)
			r := newRig(t, u.objects()...)
			if strings.Contains(name, "silent agent") {
				r.breakNode("a")
			}
			arg := "nv/v-data"
			if u.v == nil {
				arg = "data"
			}
			out, code, err := shown(t, r.api, outputTable, "databases", arg)
			if want := map[bool]int{true: 0, false: CodeUnwell}[c.well]; err != nil || code != want {
				t.Errorf("exit code %d, %v; want %d", code, err, want)
			}
			for _, w := range c.want {
				if !strings.Contains(spaces.ReplaceAllString(out, " "), w) {
					t.Errorf("want %q in:\n%s", w, out)
				}
			}
			if c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("do not want %q in:\n%s", c.not, out)
			}
		})
	}
}

// breakNode lets its agent go silent and its pool fail.
func (r *rig) breakNode(name string) {
	n := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, n))
	n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent))
	n.Status.Pools = append(n.Status.Pools, v1alpha1.PoolStatus{Device: "eui.broken", Reason: v1alpha1.ReasonPoolFailed, Message: "dead"})
	r.do(r.api.Update(r.ctx, n))
}

// forbids reading some kinds.
type forbids struct {
	client.Reader
	kinds []string
}

func (f forbids) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	for _, kind := range f.kinds {
		if strings.HasSuffix(fmt.Sprintf("%T", list), kind+"List") {
			return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "", errors.New("you may not"))
		}
	}
	return f.Reader.List(ctx, list, options...)
}

// What may not be read is unknown: it is neither an error nor a problem.
func TestVolumeWithoutSomeRights(t *testing.T) {
	u := newUsed()
	u.attached = nil
	r := newRig(t, u.objects()...)
	out, code, err := shown(t, forbids{r.api, []string{"Pod", "Event", "VolumeAttachment"}}, outputTable, "databases", "data")
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, w := range []string{"Unknown, because it could not be read: pods", "could not be read: Events", "could not be read: VolumeAttachments", "Pods: unknown"} {
		if !strings.Contains(out, w) {
			t.Errorf("want %q in:\n%s", w, out)
		}
	}
}

// The pages that problems refer to exist.
func TestAdvicePagesExist(t *testing.T) {
	pages := []string{pageReasons, pageTerminating, pagePending, pagePod, pageLostNode, pageMove, pageReplicas, pageIOHangs, pageOrphans, pageNotFormatted}
	for _, page := range adviceByReason {
		page, _, _ = strings.Cut(page, ",")
		pages = append(pages, page)
	}
	slices.Sort(pages)
	for _, page := range slices.Compact(pages) {
		if _, err := os.Stat(filepath.Join("../../..", page)); err != nil {
			t.Error(err)
		}
	}
	if advice("Other") != "see "+pageReasons {
		t.Errorf("got %q", advice("Other"))
	}
}
