// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// orphan number n, a volume of testVolume in pool a.
func orphan(n int, name string) v1alpha1.Orphan {
	return v1alpha1.Orphan{UUID: uuid(n), Kind: v1alpha1.OrphanReplica, Name: name, Device: "a", Size: resource.MustParse("10Gi"), Allocated: new(resource.MustParse("0"))}
}

func listed(orphans ...v1alpha1.Orphan) func(*Observed) {
	return func(s *Observed) { s.Node.Status.Orphans = orphans }
}

// lists compares orphans as kind, number, name and pool.
func lists(want ...string) func(*WithT, Decision) {
	return func(g *WithT, d Decision) {
		g.THelper()
		var got []string
		for _, o := range d.Node.Orphans {
			got = append(got, fmt.Sprintf("%s %s %q on %s", o.Kind, short(engine.ID(o.UUID)), o.Name, o.Device))
		}
		g.Expect(got).To(HaveExactElements(want))
	}
}

func isUsed(v *v1alpha1.NvmfReplica) { v.Spec.Used = true }

func isTaken(s *v1alpha1.NvmfSnapshot) { s.Spec.Taken = true }

func TestDecideKeepsWhatWasNotMarked(t *testing.T) {
	const kept = "False/DeletionNotMarked"
	for _, c := range []decideCase{
		{
			name: "while hosts are listed it is served",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA), deletedByHand)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"Export v1 to 1"},
			volumes: map[string]says{"v1": {"Ready": kept, "Created": "True/AsExpected"}},
			also:    lists(),
		},
		{
			name: "then it is unexported",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), deletedByHand)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"Unexport v1"},
		},
		{
			name: "then the node's status lists it, before its object is let go",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), deletedByHand)}
				holds(engineVolume(1, "a"))(s)
			},
			volumes: map[string]says{"v1": {"Ready": kept, "Created": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				lists(`NvmfReplica 1 "v1" on a`)(g, d)
				g.Expect(d.Unrecorded).To(BeTrue())
				g.Expect(d.Orphans.Count()).To(BeZero(), "it has an object still")
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionReady).Message).To(HaveSuffix(
					"if NvmfVolume volume-of-v1 is gone too, create that with uuid %[1]s, used: true and the member v1 (uuid %[1]s, node %[2]s)", uuid(1), nodeName))
			},
		},
		{
			name: "then the object is let go",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), deletedByHand)}
				holds(engineVolume(1, "a"))(s)
				listed(orphan(1, "v1"))(s)
			},
			release: []string{"v1"},
			also:    lists(`NvmfReplica 1 "v1" on a`),
		},
		{
			name:  "and what has no object any more stays listed by its name",
			given: func(s *Observed) { holds(engineVolume(1, "a"))(s); listed(orphan(1, "v1"))(s) },
			also: func(g *WithT, d Decision) {
				lists(`NvmfReplica 1 "v1" on a`)(g, d)
				g.Expect(d.Orphans.Volumes).To(HaveExactElements(id(1)))
				g.Expect(d.Unrecorded).To(BeFalse())
			},
		},
		{
			name: "a mark of another object is none",
			given: func(s *Observed) {
				v := testVolume(1, isCreatedOn("a"), isDeleting)
				v.UID = "restored"
				onRecord(s, Record{UID: uid(1), Gone: true})
				s.Volumes = []*v1alpha1.NvmfReplica{v}
				holds(engineVolume(1, "a"))(s)
			},
			volumes: map[string]says{"v1": {"Ready": kept}},
		},
		{
			name: "a mark of an object without a UID is none",
			given: func(s *Observed) {
				v := testVolume(1, isCreatedOn("a"), isDeleting)
				v.UID, v.Spec.DeletionMark = "", ""
				onRecord(s, Record{UID: uid(1), Gone: true})
				s.Volumes = []*v1alpha1.NvmfReplica{v}
				holds(engineVolume(1, "a"))(s)
			},
			volumes: map[string]says{"v1": {"Ready": kept}},
		},
		{
			name: "snapshots alike",
			given: func(s *Observed) {
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated, snapshotDeletedByHand), testSnapshot(3, "v1", snapshotCreated, snapshotDeletedByHand)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a"}, {ID: id(3), Pool: "a"}}
				listed(v1alpha1.Orphan{UUID: uuid(3), Kind: v1alpha1.OrphanSnapshot, Name: "s3", Replica: "v1", Device: "a"})(s)
			},
			release: []string{"s3"},
			snaps:   map[string]says{"s2": {"Ready": kept, "Created": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				lists(`NvmfSnapshot 3 "s3" on a`, `NvmfSnapshot 2 "s2" on a`)(g, d)
				g.Expect(d.Node.Orphans[1].Replica).To(Equal("v1"))
				g.Expect(meta.FindStatusCondition(d.Snapshots["s2"].Conditions, v1alpha1.ConditionReady).Message).To(HaveSuffix("create an NvmfSnapshot with this name and uuid %s", uuid(2)))
			},
		},
		{
			name: "nothing is let go while its pool cannot be read",
			given: func(s *Observed) {
				brokenA(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), deletedByHand)}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated, snapshotDeletedByHand)}
			},
			volumes: map[string]says{"v1": {"Ready": "False/Deleting"}},
			snaps:   map[string]says{"s2": {"Ready": "False/Deleting"}},
		},
		{
			name:  "and what is listed stays so",
			given: func(s *Observed) { brokenA(s); listed(orphan(1, "v1"))(s) },
			also:  lists(`NvmfReplica 1 "v1" on a`),
		},
		{
			name:  "what is gone from a pool that was read is not",
			given: listed(orphan(1, "v1")),
			also:  lists(),
		},
		{
			name:    "what was never made leaves nothing",
			given:   func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, deletedByHand)} },
			release: []string{"v1"},
			also:    lists(),
		},
		{
			name: "a subsystem whose object vanished tells the name before it goes",
			given: func(s *Observed) {
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			also: func(g *WithT, d Decision) {
				lists(`NvmfReplica 1 "v1" on a`)(g, d)
				g.Expect(d.Unrecorded).To(BeTrue())
			},
		},
		{
			name: "and goes when that is recorded",
			given: func(s *Observed) {
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
				listed(orphan(1, "v1"))(s)
			},
			does: []string{"Unexport v1"},
		},
		{
			name: "with a list that is full nothing waits",
			given: func(s *Observed) {
				holds(engineVolume(1, "a"))(s)
				for n := range v1alpha1.MaxOrphans {
					holds(engineVolume(n+2, "b"))(s)
					s.Node.Status.Orphans = append(s.Node.Status.Orphans, orphan(n+2, ""))
				}
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"Unexport v1"},
			also: func(g *WithT, d Decision) { g.Expect(d.Node.Orphans).To(HaveLen(v1alpha1.MaxOrphans)) },
		},
		{
			name: "one that the list has no room for is counted, whatever fills the list",
			given: func(s *Observed) {
				brokenA(s)
				holds(engineVolume(1, "b"))(s)
				for n := range v1alpha1.MaxOrphans {
					s.Node.Status.Orphans = append(s.Node.Status.Orphans, orphan(n+2, ""))
				}
			},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Orphans).To(HaveLen(v1alpha1.MaxOrphans))
				g.Expect(d.Node.OrphanCount).To(BeEquivalentTo(v1alpha1.MaxOrphans + 1))
			},
		},
		{
			name: "its room stays promised",
			given: func(s *Observed) {
				holds(engineVolume(1, "a"))(s)
				listed(orphan(1, "v1"))(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(2, ofSize("95Gi"))}
			},
			volumes: map[string]says{"v2": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(10*gib + overhead)))
			},
		},
		{
			name:  "without a plan the list stays",
			given: func(s *Observed) { s.Node.Spec = v1alpha1.NvmfNodeSpec{}; listed(orphan(1, "v1"))(s) },
			also:  lists(`NvmfReplica 1 "v1" on a`),
		},
	} {
		c.run(t)
	}
}

func TestDecideTakesBack(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "by uuid, never as blank, whatever is allocated",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isUsed)}
				holds(engineVolume(1, "a"))(s)
				listed(orphan(1, "v1"))(s)
			},
			does:    []string{"Export v1 to 0"},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				lists()(g, d)
				g.Expect(d.Volumes["v1"].Written).To(BeTrue())
				g.Expect(d.Volumes["v1"].Device).To(Equal("a"))
			},
		},
		{
			name:    "not on a node that does not hold it",
			given:   func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isUsed)} },
			volumes: map[string]says{"v1": {"Created": "False/VolumeLost", "Ready": "False/VolumeLost", "Degraded": "True/VolumeLost"}},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionCreated).Message).To(ContainSubstring("check node and uuid of this member in NvmfVolume volume-of-v1"))
			},
		},
		{
			name:    "and waits while a pool cannot be read",
			given:   func(s *Observed) { brokenA(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isUsed)} },
			volumes: map[string]says{"v1": {"Created": "Unknown/PoolFailed", "Ready": "False/PoolFailed"}},
		},
		{
			name: "a snapshot is not taken again, later",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", isTaken)}
			},
			snaps: map[string]says{"s2": {"Created": "False/VolumeLost", "Ready": "False/VolumeLost"}},
		},
		{
			name: "one that is there is taken back",
			given: func(s *Observed) {
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a"}}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", isTaken)}
			},
			snaps: map[string]says{"s2": {"Created": "True/AsExpected", "Ready": "True/AsExpected"}},
		},
		{
			name: "not while a subsystem of another name admits hosts to it",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isUsed, withHosts(hostB))}
				holds(engineVolume(1, "a"))(s)
				stray := exported(1, hostA)
				stray.NQN = v1alpha1.SubsystemNQN("before", uuid(1))
				s.Target.State.Exports = []engine.Export{stray}
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Exported": "False/ExportFailed", "Ready": "False/ExportFailed"}},
		},
		{
			name: "of two objects with one uuid, the first to hold the data serves it",
			given: func(s *Observed) {
				other := testVolume(2, func(v *v1alpha1.NvmfReplica) { v.Name, v.Spec.UUID = "another", uuid(1) })
				s.Volumes = []*v1alpha1.NvmfReplica{other, testVolume(1, isCreatedOn("a"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected"}, "another": {"Created": "False/UUIDInUse", "Exported": "False/UUIDInUse", "Ready": "False/UUIDInUse"}},
		},
		{
			name: "and the other's deletion, marked, deletes nothing",
			given: func(s *Observed) {
				other := testVolume(2, isDeleting, func(v *v1alpha1.NvmfReplica) { v.Name, v.Spec.UUID = "another", uuid(1) })
				s.Volumes = []*v1alpha1.NvmfReplica{other, testVolume(1, isCreatedOn("a"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			release: []string{"another"},
		},
		{
			name: "of two that nobody took yet, the older",
			given: func(s *Observed) {
				newer := testVolume(2, func(v *v1alpha1.NvmfReplica) {
					v.Name, v.Spec.UUID, v.CreationTimestamp = "another", uuid(1), metav1.NewTime(now)
				})
				older := testVolume(1, func(v *v1alpha1.NvmfReplica) { v.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) })
				s.Volumes = []*v1alpha1.NvmfReplica{newer, older}
			},
			does:    []string{"CreateVolumes 1 on a"},
			volumes: map[string]says{"another": {"Created": "False/UUIDInUse"}},
		},
		{
			name: "snapshots alike",
			given: func(s *Observed) {
				other := testSnapshot(3, "v1", snapshotDeleting, func(s *v1alpha1.NvmfSnapshot) { s.Spec.UUID = uuid(2) })
				first := testSnapshot(2, "v1", snapshotCreated, func(s *v1alpha1.NvmfSnapshot) { s.Status.Device = "a" })
				s.Snapshots = []*v1alpha1.NvmfSnapshot{first, other}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a"}}
			},
			release: []string{"s3"},
			snaps:   map[string]says{"s2": {"Ready": "True/AsExpected"}},
		},
	} {
		c.run(t)
	}
}
