// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// orphaned replica of a volume of claim databases/NAME, as its description says that has these members.
func orphaned(name, uuid string, members ...v1alpha1.VolumeMember) v1alpha1.Orphan {
	size := resource.MustParse("100Gi")
	return v1alpha1.Orphan{
		UUID: uuid, Kind: v1alpha1.OrphanReplica, Name: name + "-0", Device: "eui", Size: size,
		Description: &v1alpha1.OrphanDescription{
			Volume: name, VolumeUUID: "u-" + name, VolumeUID: "uid", VolumeGeneration: 7, Target: "fast", Size: &size, Used: true,
			VolumeDescription: v1alpha1.VolumeDescription{
				Replicas: int32(max(1, len(members))), Mirrored: len(members) > 1, Members: members,
				PersistentVolume: &v1alpha1.PersistentVolumeDescription{
					Name: "pv-" + name, ClaimNamespace: "databases", ClaimName: name, StorageClass: "gold", ReclaimPolicy: "Delete",
					AccessModes: []string{"ReadWriteOnce"}, VolumeMode: "Filesystem", FSType: "xfs",
				},
			},
		},
	}
}

// twoMembers of a volume, on nodes a and b.
func twoMembers(name string) []v1alpha1.VolumeMember {
	return []v1alpha1.VolumeMember{{Name: name + "-0", UUID: "r0-" + name, Node: "a"}, {Name: name + "-1", UUID: "r1-" + name, Node: "b"}}
}

// legsOf a volume with two replicas, on nodes a and b.
func legsOf(name string) (a, b v1alpha1.Orphan) {
	a, b = orphaned(name, "r0-"+name, twoMembers(name)...), orphaned(name, "r1-"+name, twoMembers(name)...)
	b.Name = name + "-1"
	return a, b
}

// newLostRig has orphans on nodes, whose agents are alive and have applied their plans.
func newLostRig(t *testing.T, orphans map[string][]v1alpha1.Orphan, objects ...client.Object) *rig {
	t.Helper()
	r := newRig(t, objects...)
	for _, node := range []string{"a", "b", "c", "d"} {
		r.change(node, func(n *v1alpha1.NvmfNode) {
			n.Generation, n.Status.ObservedGeneration = 2, 2
			meta.SetStatusCondition(&n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionTrue, v1alpha1.ReasonAsExpected))
		})
	}
	for node, list := range orphans {
		r.change(node, func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = list, int32(len(list)) })
	}
	return r
}

func (r *rig) lost(o recoverOptions, args ...string) error {
	r.out.Reset()
	o.lost = true
	return recoverLost(r.ctx, r.watcher(), &r.stderr, "databases", args, o)
}

// leavesOut recovers all but these.
func (r *rig) leavesOut(o recoverOptions, left string) {
	r.t.Helper()
	o.all = true
	var exit *ExitError
	if err := r.lost(o); !errors.As(err, &exit) || exit.Code != CodeUnwell {
		r.t.Errorf("got %v, want exit code %d", err, CodeUnwell)
	}
	if o.output.forPeople() {
		r.said("left out, for the reasons above: " + left)
	}
}

func (r *rig) absent(o client.Object, name string) {
	r.t.Helper()
	o.SetName(name)
	if err := r.api.Get(r.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		r.t.Errorf("%T %s: %v", o, name, err)
	}
}

func TestRecoverOfALostVolume(t *testing.T) {
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data", v1alpha1.VolumeMember{Name: "data-0", UUID: "u-data", Node: "old-name"})}})
	r.do(r.lost(recoverOptions{}))
	r.said("databases/data", "nv/data", "100Gi", "gold", "a", "yes")
	r.absent(&v1alpha1.NvmfVolume{}, "data")
	r.do(r.lost(recoverOptions{all: true, claims: true}))
	r.said("NvmfVolume data created", "PersistentVolume pv-data created", "PersistentVolumeClaim databases/data created")

	v := r.volume("data")
	if !v.Spec.Used || v.Spec.UUID != "u-data" || v.Spec.Target != "fast" || len(v.Spec.Members) != 1 || v.Spec.Members[0] != (v1alpha1.VolumeMember{Name: "data-0", UUID: "u-data", Node: "a"}) ||
		v.Spec.Mirrored || v.Spec.Recovery != nil || len(v.Spec.Attachments) > 0 || v.Annotations[v1alpha1.PVCNameKey] != "data" || v.Spec.PersistentVolume == nil {
		t.Errorf("got %+v", v.Spec)
	}
	pv := &corev1.PersistentVolume{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv))
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != "databases" || ref.Name != "data" || ref.UID != "" || pv.Spec.CSI.VolumeHandle != "data" || pv.Spec.CSI.FSType != "xfs" ||
		pv.Spec.StorageClassName != "gold" || pv.Spec.Capacity.Storage().String() != "100Gi" || pv.Annotations[provisionedBy] != v1alpha1.DriverName {
		t.Errorf("got %+v", pv)
	}
	// By the last of these, the CSI controller knows it as one that Kubernetes attaches.
	if want := map[string]string{"uuid": "u-data", "target": "fast", "storage.kubernetes.io/csiProvisionerIdentity": v1alpha1.DriverName}; !maps.Equal(pv.Spec.CSI.VolumeAttributes, want) {
		t.Errorf("its attributes are %v, want %v", pv.Spec.CSI.VolumeAttributes, want)
	}
	claim := &corev1.PersistentVolumeClaim{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Namespace: "databases", Name: "data"}, claim))
	if claim.Spec.VolumeName != "pv-data" || *claim.Spec.StorageClassName != "gold" {
		t.Errorf("got %+v", claim.Spec)
	}
}

func TestRecoverOfLostReplicas(t *testing.T) {
	a, b := legsOf("data")
	for name, c := range map[string]struct {
		orphans map[string][]v1alpha1.Orphan
		members int
		says    []string
	}{
		"all of them": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {b}}, 2, []string{"yes"}},
		"one is not found": {map[string][]v1alpha1.Orphan{"a": {a}}, 2, []string{"in doubt",
			"replica data-1 was not found on node b; it may have later data than the others"}},
		"one is on a node that is no storage node yet": {map[string][]v1alpha1.Orphan{"a": {func() v1alpha1.Orphan {
			early := *a.DeepCopy()
			early.Description.Members[1].Node = "later"
			return early
		}()}}, 2, []string{"in doubt", "replica data-1 was on node later, which is not a storage node of this cluster yet; it may have later data than the others"}},
		"one has no description": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {{UUID: "r1-data", Kind: v1alpha1.OrphanReplica, Device: "eui", Undescribed: "is damaged"}}}, 2,
			[]string{"in doubt", "r1-data (node b, device eui): is damaged"}},
		"one says what was so earlier": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {func() v1alpha1.Orphan {
			old := *b.DeepCopy()
			old.Description.VolumeGeneration, old.Description.Members = 3, old.Description.Members[1:]
			return old
		}()}}, 2, []string{"in doubt", "node b, device eui describes the volume as it was earlier (generation 3, not 7, which is on node a, device eui)"}},
		"one was moved since": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {b}, "c": {func() v1alpha1.Orphan {
			former := *b.DeepCopy()
			former.UUID, former.Name = "r2-data", "data-2"
			former.Description.VolumeGeneration, former.Description.Members = 3, nil
			return former
		}()}}, 3, []string{"in doubt", "replica data-2 (node c, device eui) is not in the newest description"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLostRig(t, c.orphans)
			r.do(r.lost(recoverOptions{}, "data"))
			r.said(append(c.says, "NvmfVolume data created", "PersistentVolume pv-data created")...)
			v := r.volume("data")
			if !v.Spec.Mirrored || v.Spec.Recovery == nil || v.Spec.Recovery.AcceptLossUntil != nil || v.Spec.Replicas != 2 || len(v.Spec.Members) != c.members || !v.Spec.Used ||
				v.Annotations[v1alpha1.LastReplicaKey] != strconv.Itoa(c.members-1) {
				t.Errorf("got %+v", v.Spec)
			}
			r.absent(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases"}}, "data")
		})
	}
}

// A replica that comes back while the record of its volume waits to be recovered is added to it, unless that is unsafe.
func TestRecoverOfALostReplica(t *testing.T) {
	a, b := legsOf("data")
	a.Description.Members, b.Description.Members = a.Description.Members[:1], b.Description.Members[1:]
	later := *b.DeepCopy()
	later.Description.VolumeGeneration = 9
	for name, c := range map[string]struct {
		change func(*v1alpha1.NvmfVolume)
		on     string
		says   string
	}{
		"it waits":           {func(*v1alpha1.NvmfVolume) {}, "b", ""},
		"it is attached":     {func(v *v1alpha1.NvmfVolume) { v.Spec.Attachments = []v1alpha1.VolumeHost{{Node: "worker"}} }, "b", "or is attached"},
		"it waits no more":   {func(v *v1alpha1.NvmfVolume) { v.Spec.Recovery = nil }, "b", "does not wait for the recovery"},
		"a loss is accepted": {func(v *v1alpha1.NvmfVolume) { v.Spec.Recovery.AcceptLossUntil = &metav1.Time{Time: noon} }, "b", "does not wait for the recovery"},
		"of another target":  {func(*v1alpha1.NvmfVolume) {}, "d", "cannot be added: it is of another NvmfTarget"},
		"it is listed elsewhere": {func(v *v1alpha1.NvmfVolume) {
			v.Spec.Members = append(v.Spec.Members, v1alpha1.VolumeMember{Name: "data-1", UUID: "r1-data", Node: "a2"})
		}, "b", "is listed by its NvmfVolume on node a2: the drive was moved; put it back into node a2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {a}})
			r.do(r.lost(recoverOptions{}, "data"))
			v := r.volume("data")
			v.Spec.Mirrored, v.Spec.Recovery = true, &v1alpha1.VolumeRecovery{ID: "first", Attachments: v1alpha1.RecoveryWaits}
			c.change(v)
			r.do(r.api.Update(r.ctx, v))
			before := v.Spec.DeepCopy()
			r.change("a", func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = nil, 0 })
			r.change(c.on, func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = []v1alpha1.Orphan{later}, 1 })
			r.leavesOut(recoverOptions{}, "nv/data ("+map[bool]string{true: "only by name", false: "refused"}[c.says == ""])
			err := r.lost(recoverOptions{}, "nv/data")
			v = r.volume("data")
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !equality.Semantic.DeepEqual(*before, v.Spec) {
					t.Errorf("got %v, %+v", err, v.Spec)
				}
				return
			}
			r.do(err)
			r.said("do not accept a loss before it is added", "replica data-1 on node b added to NvmfVolume data")
			if len(v.Spec.Members) != 2 || v.Spec.Members[1] != (v1alpha1.VolumeMember{Name: "data-1", UUID: "r1-data", Node: "b"}) || v.Spec.Recovery.ID == "first" {
				t.Errorf("got %+v", v.Spec)
			}
		})
	}
}

// What nobody can decide is refused, or has to be named, with the reason.
func TestLostAndInDoubt(t *testing.T) {
	a, b := legsOf("data")
	one := orphaned("data", "u-data")
	changed := func(o v1alpha1.Orphan, change func(*v1alpha1.Orphan)) v1alpha1.Orphan {
		o = *o.DeepCopy()
		change(&o)
		return o
	}
	existing := func(uuid string) *v1alpha1.NvmfVolume {
		return &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1alpha1.NvmfVolumeSpec{UUID: uuid}}
	}
	for name, c := range map[string]struct {
		orphans map[string][]v1alpha1.Orphan
		objects []client.Object
		says    string
		byName  bool
	}{
		"the same replica on two nodes": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {a}}, nil, "replica r0-data is on two drives: node a, device eui, and node b, device eui", false},
		"the same replica on two drives of a node": {map[string][]v1alpha1.Orphan{"a": {changed(one, func(o *v1alpha1.Orphan) { o.OtherDevices = []string{"eui2"} })}}, nil,
			"replica u-data is on several drives of node a: eui, eui2", false},
		"two that were never mirrored": {map[string][]v1alpha1.Orphan{"a": {one}, "b": {changed(one, func(o *v1alpha1.Orphan) { o.UUID = "other" })}}, nil, "it has several replicas, but never had a mirror", false},
		"two descriptions of nobody knows when": {map[string][]v1alpha1.Orphan{"a": {a}, "b": {changed(b, func(o *v1alpha1.Orphan) {
			o.Description.VolumeUID, o.Description.Replicas = "another", 1
		})}}, nil, "describe it differently, and it is not known which is newer", false},
		"a volume of the same name":     {map[string][]v1alpha1.Orphan{"a": {one}}, []client.Object{existing("other")}, "NvmfVolume data exists and has another UUID, other", false},
		"its volume, without a replica": {map[string][]v1alpha1.Orphan{"a": {one}}, []client.Object{existing("u-data")}, "replica data-0 (node a, device eui) is not listed by its NvmfVolume, which does not wait", false},
		"two clusters' volumes of a name": {map[string][]v1alpha1.Orphan{"a": {one}, "b": {changed(one, func(o *v1alpha1.Orphan) {
			o.UUID, o.Description.VolumeUUID = "other", "other"
		})}}, nil, "another lost volume has the same name, and UUID other", false},
		"nodes of two targets": {map[string][]v1alpha1.Orphan{"a": {a}, "d": {b}}, nil, "nodes a and d have it and are of different NvmfTargets", false},
		"a PersistentVolume of that name": {map[string][]v1alpha1.Orphan{"a": {one}}, []client.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "other"}}}}},
			"PersistentVolume pv-data exists and is of volume other", false},
		"its claim has another volume": {map[string][]v1alpha1.Orphan{"a": {one}}, []client.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-new"},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "databases", Name: "data"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "new"}}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}}, "claim databases/data is bound to volume nv/new, which may have later data", true},
		"its claim is bound": {map[string][]v1alpha1.Orphan{"a": {one}}, []client.Object{&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "elsewhere"}}}, "claim databases/data exists and is bound to PersistentVolume elsewhere", true},
		"never used": {map[string][]v1alpha1.Orphan{"a": {changed(one, func(o *v1alpha1.Orphan) { o.Description.Used = false })}}, nil, "it was never attached and is no copy", true},
		"two volumes of a claim": {map[string][]v1alpha1.Orphan{"a": {one, changed(one, func(o *v1alpha1.Orphan) {
			o.UUID, o.Description.VolumeUUID, o.Description.Volume, o.Description.PersistentVolume.Name = "other", "other", "data-2", "pv-2"
		})}}, nil, "volume nv/data-2 was of the same claim", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLostRig(t, c.orphans, c.objects...)
			r.leavesOut(recoverOptions{}, "nv/data ("+map[bool]string{true: "only by name", false: "refused"}[c.byName])
			r.said(c.says)
			if strings.Contains(r.out.String(), "created") {
				t.Errorf("it was recovered: %s", r.out.String())
			}
			if err := r.lost(recoverOptions{}, "nv/data"); (err == nil) != c.byName {
				t.Errorf("by name: %v", err)
			}
		})
	}
}

// While nodes may have more than they list, all is not taken unless that is wanted: it may be older than the rest.
func TestRecoverOfAllThatIsNotAll(t *testing.T) {
	alive := func(s metav1.ConditionStatus) func(*v1alpha1.NvmfNode) {
		return func(n *v1alpha1.NvmfNode) {
			meta.SetStatusCondition(&n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, s, v1alpha1.ReasonAgentSilent))
		}
	}
	for name, c := range map[string]struct {
		says   string
		change func(*v1alpha1.NvmfNode)
	}{
		"no room":  {"node b has 1 more that it has no room to list", func(n *v1alpha1.NvmfNode) { n.Status.OrphanCount = 1 }},
		"silent":   {"the agent of node b does not answer", alive(metav1.ConditionFalse)},
		"no lease": {"it is not known whether the agent of node b runs", alive(metav1.ConditionUnknown)},
		"not judged yet": {"it is not known whether the agent of node b runs", func(n *v1alpha1.NvmfNode) {
			meta.RemoveStatusCondition(&n.Status.Conditions, v1alpha1.ConditionAgentAlive)
		}},
		"an earlier plan": {"the agent of node b has not applied its plan yet", func(n *v1alpha1.NvmfNode) { n.Status.ObservedGeneration = n.Generation - 1 }},
		"no pool yet":     {"node b lists no pool yet", func(n *v1alpha1.NvmfNode) { n.Status.Pools = nil }},
		"a pool cannot be read": {"node b, device eui.b: the pool cannot be read (PoolFailed)", func(n *v1alpha1.NvmfNode) {
			p := &n.Status.Pools[0]
			p.Ready, p.Reason, p.Promised = false, "PoolFailed", nil
		}},
		"a drive of no target": {"node b, drive eui.left has a pool that is not open", func(n *v1alpha1.NvmfNode) {
			n.Status.Inventory = &v1alpha1.Inventory{Drives: []v1alpha1.Drive{{ID: "eui.blank", Content: v1alpha1.ContentBlank}, {ID: "eui.left", Content: v1alpha1.ContentWeft}}}
		}},
		"a drive of no target, as a target selects it": {"node b, drive nvme-ACME_1 has a pool that is not open", func(n *v1alpha1.NvmfNode) {
			n.Status.Inventory = &v1alpha1.Inventory{Drives: []v1alpha1.Drive{{ID: "eui.left", ByID: []string{"nvme-eui.left", "nvme-ACME_1"}, Content: v1alpha1.ContentWeft}}}
		}},
		"not read": {"node b has 1 whose descriptions it did not read yet", func(n *v1alpha1.NvmfNode) {
			n.Status.Orphans, n.Status.OrphanCount = []v1alpha1.Orphan{{UUID: "u", Kind: v1alpha1.OrphanReplica, Undescribed: v1alpha1.UndescribedNotRead + ": input/output error"}}, 1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data")}})
			r.change("b", c.change)
			if err := r.lost(recoverOptions{all: true}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			r.absent(&v1alpha1.NvmfVolume{}, "data")
			if all := (recoverOptions{all: true, incomplete: true}); name == "not read" {
				r.leavesOut(all, "u on node b (unknown)")
			} else {
				r.do(r.lost(all))
			}
			r.said(c.says, "NvmfVolume data created")
		})
	}
}

// A pool that is no longer planned is open: what it holds is listed.
func TestRecoverOfAllBesideAPoolThatIsNotPlanned(t *testing.T) {
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data")}})
	r.change("b", func(n *v1alpha1.NvmfNode) {
		p := &n.Status.Pools[0]
		p.Ready, p.Reason, p.Promised = false, v1alpha1.ReasonNotClaimed, resource.NewQuantity(0, resource.BinarySI)
	})
	r.do(r.lost(recoverOptions{all: true}))
	r.said("NvmfVolume data created")
}

// An object of the same name that is another one is no success, and a PersistentVolume without a claim is anybody's.
func TestRecoverBesideOtherObjects(t *testing.T) {
	one := orphaned("data", "u-data")
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {one}}, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}})
	if err := r.lost(recoverOptions{}, "data"); err == nil {
		t.Error("another PersistentVolume is taken for the volume's")
	}
	r.said("PersistentVolume pv-data: exists and is another one")

	r = newLostRig(t, map[string][]v1alpha1.Orphan{"a": {one}}, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "elsewhere"}})
	if err := r.lost(recoverOptions{claims: true}, "nv/data"); err == nil {
		t.Error("a claim of another PersistentVolume is taken for the volume's")
	}
	r.said("kubectl patch pv pv-data", `"persistentVolumeReclaimPolicy":"Delete"`, `its volumeName is "elsewhere", not "pv-data"`)
	pv := &corev1.PersistentVolume{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv))
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("got %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}

	one.Description.PersistentVolume.ClaimName, one.Description.PersistentVolume.ClaimNamespace = "", ""
	r = newLostRig(t, map[string][]v1alpha1.Orphan{"a": {one}})
	r.do(r.lost(recoverOptions{all: true}))
	r.said("NvmfVolume data created", "any claim could be bound to it")
	r.absent(&corev1.PersistentVolume{}, "pv-data")
}

// A claim that survived was bound once: Kubernetes binds it to a PersistentVolume with its UID only.
func TestRecoverForAClaimThatSurvived(t *testing.T) {
	survivor := func(pv string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: "data", UID: "of-the-claim", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}}
	}
	reserved := func(uid types.UID) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "databases", Name: "data", UID: uid},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "data"}},
		}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
	}
	for name, c := range map[string]struct {
		objects []client.Object
		uid     types.UID
		says    string
		fails   bool
	}{
		"no PersistentVolume":     {[]client.Object{survivor("pv-data")}, "of-the-claim", "PersistentVolume pv-data created", false},
		"one without a UID":       {[]client.Object{survivor("pv-data"), reserved("")}, "of-the-claim", "PersistentVolume pv-data reserved for PersistentVolumeClaim databases/data", false},
		"one for it":              {[]client.Object{survivor("pv-data"), reserved("of-the-claim")}, "of-the-claim", "PersistentVolume pv-data exists, and stays as it is", false},
		"one for another claim":   {[]client.Object{survivor("pv-data"), reserved("former")}, "former", `kubectl patch pv pv-data -p '{"spec":{"claimRef":{"namespace":"databases","name":"data","uid":"of-the-claim"}}}'`, true},
		"the claim names another": {[]client.Object{survivor("elsewhere")}, "", `kubectl patch pv pv-data -p '{"spec":{"claimRef":{"namespace":"databases","name":"NAME"}}}'`, false},
		"no claim":                {[]client.Object{reserved("")}, "", "PersistentVolume pv-data exists, and stays as it is", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data")}}, c.objects...)
			pv := &corev1.PersistentVolume{}
			before := r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv)
			had := pv.DeepCopy()
			if err := r.lost(recoverOptions{dryRun: true}, "nv/data"); (err != nil) != c.fails {
				t.Errorf("dry run: %v", err)
			}
			if after := r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv); apierrors.IsNotFound(after) != apierrors.IsNotFound(before) || pv.ResourceVersion != had.ResourceVersion {
				t.Errorf("a dry run wrote %+v", pv)
			}
			if err := r.lost(recoverOptions{}, "nv/data"); (err != nil) != c.fails {
				t.Errorf("got %v", err)
			}
			r.said(c.says)
			r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv))
			if pv.Spec.ClaimRef.UID != c.uid {
				t.Errorf("it is reserved for UID %q, want %q", pv.Spec.ClaimRef.UID, c.uid)
			}
		})
	}
}

// What programs read is one document, whatever fails.
func TestRecoverLostForPrograms(t *testing.T) {
	foreign := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}}
	for _, format := range []string{outputJSON, outputYAML} {
		r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data")}}, foreign.DeepCopy())
		r.leavesOut(recoverOptions{output: output{format: format}}, "")
		var got lostReport
		r.do(yaml.UnmarshalStrict(r.out.Bytes(), &got))
		if len(got.Volumes) != 1 || got.Volumes[0].Name != "data" {
			t.Errorf("%s: got %+v", format, got)
		}
		if !strings.Contains(r.stderr.String(), "PersistentVolume pv-data: exists and is another one") {
			t.Errorf("%s: stderr is %q", format, r.stderr.String())
		}
	}
	// Nothing fails, but a volume is left out.
	unused := orphaned("data", "u-data")
	unused.Description.Used = false
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {unused}})
	r.leavesOut(recoverOptions{output: output{format: outputJSON}}, "")
	r.do(json.Unmarshal(r.out.Bytes(), &lostReport{}))
}

// Of what has no description, it is said that nothing is known, and why.
func TestUnknownData(t *testing.T) {
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {{UUID: "u-1", Kind: v1alpha1.OrphanReplica, Device: "eui.a", Size: resource.MustParse("1Gi"), Undescribed: "no description was stored with the data"}}})
	r.change("a", func(n *v1alpha1.NvmfNode) { n.Status.OrphanCount = 600 })
	r.do(r.lost(recoverOptions{}))
	r.said("NvmfReplica", "u-1", "1Gi", "eui.a", "no description was stored with the data", "node a has 599 more that it has no room to list")
	r.do(r.lost(recoverOptions{output: output{format: outputJSON}}))
	var got lostReport
	r.do(json.Unmarshal(r.out.Bytes(), &got))
	if len(got.Unknown) != 1 || got.Unlisted["a"] != 599 {
		t.Errorf("got %+v", got)
	}
	if err := r.lost(recoverOptions{}, "nothing"); err == nil || !strings.Contains(err.Error(), "no lost volume is nothing (namespace databases)") {
		t.Errorf("got %v", err)
	}
}

// orphanedSnapshot of volume data.
func orphanedSnapshot() v1alpha1.Orphan {
	return v1alpha1.Orphan{UUID: "u-s", Kind: v1alpha1.OrphanSnapshot, Name: "snap", Replica: "data-0", Device: "eui", Size: resource.MustParse("100Gi"), Description: &v1alpha1.OrphanDescription{
		Volume: "data", VolumeDescription: v1alpha1.VolumeDescription{Encryption: v1alpha1.EncryptionLUKS2, Trailer: true}}}
}

// A snapshot names its volume: where that can be either of two, it would show up as the wrong one's.
func TestLostSnapshotOfATakenName(t *testing.T) {
	one, other := orphaned("data", "u-data"), orphaned("data", "other")
	other.Description.VolumeUUID = "other"
	for says, c := range map[string]struct {
		orphans map[string][]v1alpha1.Orphan
		objects []client.Object
	}{
		"it is of volume data, whose name is taken: NvmfVolume data exists and has another UUID, live": {map[string][]v1alpha1.Orphan{"a": {one, orphanedSnapshot()}},
			[]client.Object{&v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1alpha1.NvmfVolumeSpec{UUID: "live"}}}},
		"it is of volume data, whose name is taken: another lost volume has the same name": {map[string][]v1alpha1.Orphan{"a": {one, orphanedSnapshot()}, "b": {other}}, nil},
	} {
		r := newLostRig(t, c.orphans, c.objects...)
		r.leavesOut(recoverOptions{}, "nv/data (refused), snapshot snap (refused)")
		r.said("snapshot snap: " + says)
		r.absent(&v1alpha1.NvmfSnapshot{}, "snap")
	}
}

func TestRecoverOfLostSnapshots(t *testing.T) {
	snap := orphanedSnapshot()
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("data", "u-data"), snap}, "b": {snap}})
	r.leavesOut(recoverOptions{}, "snapshot snap (refused)")
	r.said("snapshot snap: it is on several drives", "NvmfVolume data created")
	r.absent(&v1alpha1.NvmfSnapshot{}, "snap")
	r.change("b", func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = nil, 0 })
	r.do(r.lost(recoverOptions{all: true}))
	r.said("NvmfSnapshot snap created", "snapshotHandle snap")
	s := &v1alpha1.NvmfSnapshot{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "snap"}, s))
	if !s.Spec.Taken || s.Spec.UUID != "u-s" || s.Spec.Volume != "data" || s.Spec.Replica != "data-0" || s.Spec.Node != "a" || s.Spec.Encryption != v1alpha1.EncryptionLUKS2 || !s.Spec.Trailer {
		t.Errorf("got %+v", s.Spec)
	}
	// Its node does not know of the NvmfSnapshot yet. Another node has a copy.
	r.do(r.lost(recoverOptions{all: true}))
	r.said("no volumes or snapshots without objects were found")
	r.change("b", func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = []v1alpha1.Orphan{snap}, 1 })
	r.leavesOut(recoverOptions{}, "snapshot snap (refused)")
	r.said("NvmfSnapshot snap exists")
}

// What was interrupted, or asked for later, goes on where it was.
func TestRecoverOfALostVolumeGoesOn(t *testing.T) {
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {func() v1alpha1.Orphan {
		o := orphaned("data", "u-data")
		o.Description.Trailer = true
		o.Description.Encryption, o.Description.PersistentVolume.StageSecret = v1alpha1.EncryptionLUKS2, &v1alpha1.DescribedSecret{Namespace: "keys", Name: "key"}
		return o
	}()}})
	r.do(r.lost(recoverOptions{all: true, dryRun: true}))
	r.said("its node gets Secret keys/key", "NvmfVolume data created (dry run)")
	r.absent(&v1alpha1.NvmfVolume{}, "data")
	r.do(r.lost(recoverOptions{all: true}))
	r.change("a", func(n *v1alpha1.NvmfNode) { n.Status.Orphans, n.Status.OrphanCount = nil, 0 })
	pv := &corev1.PersistentVolume{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv))
	if size := pv.Spec.Capacity[corev1.ResourceStorage]; size.Value() != 100<<30-v1alpha1.LUKSHeaderBytes || pv.Spec.CSI.NodeStageSecretRef.Name != "key" {
		t.Errorf("got %+v", pv.Spec)
	}
	r.do(r.api.Delete(r.ctx, pv))
	r.do(r.lost(recoverOptions{all: true, claims: true}))
	r.said("its PersistentVolume", "PersistentVolume pv-data created", "PersistentVolumeClaim databases/data created")
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "pv-data"}, pv))
	r.do(r.api.Delete(r.ctx, pv))
	v := r.volume("data")
	if !v.Spec.Trailer {
		t.Error("the volume has no trailer any more")
	}
	delete(v.Annotations, recoveredKey)
	r.do(r.api.Update(r.ctx, v))
	r.leavesOut(recoverOptions{}, "nv/data (only by name)")
	r.said("by name", "may have been deleted on purpose")
	r.absent(&corev1.PersistentVolume{}, "pv-data")
}

func TestLostIsRefusedWithOtherFlags(t *testing.T) {
	for name, args := range map[string][]string{
		"all, and one": {"--lost", "--all", "data"}, "claims alone": {"--claims", "data"}, "a permission to lose": {"--lost", "--all", "--current", "a"}, "two": {"--lost", "a", "b"}, "incomplete, by name": {"--lost", "--incomplete", "a"},
	} {
		cmd := Command("test")
		cmd.SetArgs(append([]string{"recover"}, args...))
		if err := cmd.Execute(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
