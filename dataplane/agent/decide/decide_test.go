// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// says are the conditions expected of one object, by type.
type says map[string]string

type decideCase struct {
	name    string
	given   func(*Observed)
	does    []string
	volumes map[string]says // by name; only the conditions given are compared
	snaps   map[string]says
	node    says
	release []string
	also    func(*WithT, Decision)
}

func (c decideCase) run(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		g := NewWithT(t)
		s := quietNode()
		c.given(&s)
		d := Decide(s)
		if len(c.does) == 0 {
			g.Expect(written(d.Operations)).To(BeEmpty())
		} else {
			g.Expect(written(d.Operations)).To(Equal(c.does))
		}
		g.Expect(append(append([]string{}, d.ReleaseVolumes...), d.ReleaseSnapshots...)).To(HaveExactElements(c.release))
		for name, want := range c.volumes {
			for condition, v := range want {
				g.Expect(said(d.Volumes[name].Conditions)).To(HaveKeyWithValue(condition, v), name)
			}
		}
		for name, want := range c.snaps {
			for condition, v := range want {
				g.Expect(said(d.Snapshots[name].Conditions)).To(HaveKeyWithValue(condition, v), name)
			}
		}
		for condition, v := range c.node {
			g.Expect(said(d.Node.Conditions)).To(HaveKeyWithValue(condition, v))
		}
		if c.also != nil {
			c.also(g, d)
		}
	})
}

func holds(volumes ...engine.Volume) func(*Observed) {
	return func(s *Observed) { s.Target.State.Volumes = append(s.Target.State.Volumes, volumes...) }
}

// rebooted: no pool, no export, no portal.
func rebooted(s *Observed) { s.Target.State = engine.State{} }

func brokenA(s *Observed) {
	s.Target.State.Pools[0] = engine.Pool{Device: "a", Path: "/dev/nvme0n1", Err: errors.New("input/output error")}
	s.Attempts[attempt{VerbOpenPool, "a"}] = errors.New("input/output error")
}

func TestDecideCreates(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "on the pool with the most room by promised size, each in turn",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofSize("60Gi")), testVolume(2, ofSize("40Gi")), testVolume(3, ofSize("30Gi"))}
			},
			does:    []string{"CreateVolumes 1 on a", "CreateVolumes 2 on b", "CreateVolumes 3 on a"},
			volumes: map[string]says{"v1": {"Created": "False/Pending", "Exported": "False/Pending", "Ready": "False/Pending", "Degraded": "False/AsExpected"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v2"].Device).To(Equal("b"), "the pool is in the status before the volume is made")
			},
		},
		{
			name: "promised, not written, bytes are what counts",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a")), testVolume(2, ofSize("95Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v2": {"Created": "False/NoSpace", "Ready": "False/NoSpace"}},
		},
		{
			name: "beyond a pool's size as far as the plan allows, but none that is larger than its pool",
			given: func(s *Observed) {
				s.Node.Spec.Plan.OverProvisioningPercent = 200
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a")), testVolume(2, ofSize("95Gi")), testVolume(3, ofSize("101Gi")), testVolume(4, ofSize("94Gi")), testVolume(5, ofSize("45Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"CreateVolumes 2 on a", "CreateVolumes 4 on a", "CreateVolumes 5 on b"},
			volumes: map[string]says{"v2": {"Created": "False/Pending"}, "v3": {"Created": "False/NoSpace"}},
		},
		{
			name: "no more volumes than the target has subsystems for, one of which is kept free",
			given: func(s *Observed) {
				s.Node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{MaxSubsystems: 3}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a")), testVolume(2, ofSize("1Gi")), testVolume(3, ofSize("1Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"CreateVolumes 2 on a"},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected"}, "v2": {"Created": "False/Pending"}, "v3": {"Created": "False/NoSpace"}},
		},
		{
			name: "a volume that cannot be read has its place among them",
			given: func(s *Observed) {
				brokenA(s)
				s.Node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{MaxSubsystems: 2}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a")), testVolume(2, ofSize("1Gi"))}
			},
			volumes: map[string]says{"v2": {"Created": "False/NoSpace"}},
		},
		{
			name: "and no volume grows beyond its pool",
			given: func(s *Observed) {
				s.Node.Spec.Plan.OverProvisioningPercent = 200
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("101Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Degraded": "True/NoSpace", "Ready": "True/AsExpected"}},
		},
		{
			name: "nothing when less may be promised than is, and all of that is served",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("60Gi")), testVolume(2, isCreatedOn("a"), ofSize("60Gi")), testVolume(3, ofSize("51Gi"))}
				one, two := engineVolume(1, "a"), engineVolume(2, "a")
				one.SizeBytes, two.SizeBytes = 60*gib+overhead, 60*gib+overhead
				holds(one, two)(s)
				s.Target.State.Exports = []engine.Export{exported(1), exported(2)}
			},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected", "Degraded": "False/AsExpected"}, "v3": {"Created": "False/NoSpace"}},
		},
		{
			name: "not when no pool is ready",
			given: func(s *Observed) {
				rebooted(s)
				s.Node.Spec.Plan.Drives = nil
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does:    []string{"OpenPortals TCP 10.0.0.1 4420"},
			volumes: map[string]says{"v1": {"Created": "False/NodeNotReady"}},
			node:    says{"PoolReady": "False/NoDevice", "Ready": "False/NoDevice"},
		},
		{
			name:    "elsewhere while one drive is dead, if it was never asked for there",
			given:   func(s *Observed) { brokenA(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)} },
			does:    []string{"CreateVolumes 1 on b"},
			volumes: map[string]says{"v1": {"Created": "False/Pending"}},
		},
		{
			name: "not while one drive is dead that may hold it: a backup brought it back without its status, but with its host",
			given: func(s *Observed) {
				brokenA(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, withHosts(hostA))}
			},
			volumes: map[string]says{"v1": {"Created": "Unknown/PoolFailed", "Degraded": "True/PoolFailed", "Exported": "False/PoolFailed"}},
		},
		{
			name: "elsewhere when a pool is nearly full, though little of it was promised",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = 4 * gib
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does:    []string{"CreateVolumes 1 on b"},
			volumes: map[string]says{"v1": {"Created": "False/Pending"}},
			node:    says{"PoolReady": "False/PoolNearlyFull", "Ready": "True/AsExpected"},
		},
		{
			name: "not there again before there is room to speak of",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = 6 * gib
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "a", Reason: v1alpha1.ReasonPoolNearlyFull}}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does: []string{"CreateVolumes 1 on b"},
			node: says{"PoolReady": "False/PoolNearlyFull"},
		},
		{
			name: "elsewhere when a pool is full of which more is promised, which says so",
			given: func(s *Observed) {
				overPromised(s)
				s.Target.State.Pools[0].FreeBytes = 16 << 20
			},
			does: []string{"CreateVolumes 3 on b"},
			node: says{"PoolReady": "False/PoolFull", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionPoolReady)
				g.Expect(c.Message).To(ContainSubstring("fstrim"))
			},
		},
		{
			name: "and advises no discards with SPDK, whose hosts cannot",
			given: func(s *Observed) {
				overPromised(s)
				s.Node.Spec.Plan.Engine = v1alpha1.EngineSPDK
				s.Target.State.Pools[0].FreeBytes = 16 << 20
			},
			does: []string{"CreateVolumes 3 on b"},
			node: says{"PoolReady": "False/PoolFull"},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionPoolReady)
				g.Expect(c.Message).To(And(ContainSubstring("delete volumes or snapshots"), Not(ContainSubstring("fstrim"))))
			},
		},
		{
			name: "not there again when a pool that was full has little more",
			given: func(s *Observed) {
				overPromised(s)
				s.Target.State.Pools[0].FreeBytes = gib / 2
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "a", Reason: v1alpha1.ReasonPoolFull}}
			},
			does: []string{"CreateVolumes 3 on b"},
			node: says{"PoolReady": "False/PoolFull"},
		},
		{
			name: "elsewhere when all of a pool is written, of which no more is promised: no write fails",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = 0
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(3)}
			},
			does: []string{"CreateVolumes 3 on b"},
			node: says{"PoolReady": "False/PoolNearlyFull"},
		},
		{
			name: "nor when it is nearly full only",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = 6 * gib
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "a", Reason: v1alpha1.ReasonPoolFull}}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does: []string{"CreateVolumes 1 on b"},
			node: says{"PoolReady": "False/PoolNearlyFull"},
		},
		{
			name: "there with as little free, if it was not nearly full before",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = 6 * gib
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does: []string{"CreateVolumes 1 on a"},
			node: says{"PoolReady": "True/AsExpected"},
		},
		{
			name: "and no volume grows in a pool that is nearly full",
			given: func(s *Observed) {
				s.Target.State.Pools[0].FreeBytes = gib
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("20Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Degraded": "True/NoSpace", "Ready": "True/AsExpected"}},
		},
		{
			name:    "not elsewhere when it may be on the dead drive",
			given:   func(s *Observed) { brokenA(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, recordedOn("a"))} },
			volumes: map[string]says{"v1": {"Created": "Unknown/PoolFailed", "Ready": "False/PoolFailed"}},
		},
		{
			name:  "again where it was recorded but is known not to be",
			given: func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, recordedOn("b"))} },
			does:  []string{"CreateVolumes 1 on b"},
		},
		{
			name: "nothing twice in one reconciliation",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
				s.Attempts[attempt{VerbCreateVolume, uuid(1)}] = nil
			},
			volumes: map[string]says{"v1": {"Created": "False/Pending"}},
		},
		{
			name: "and says why the engine could not",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1), testVolume(2)}
				s.Attempts[attempt{VerbCreateVolume, uuid(1)}] = engine.ErrNoSpace
				s.Attempts[attempt{VerbCreateVolume, uuid(2)}] = errors.New("no luck")
			},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}, "v2": {"Created": "False/CreateFailed", "Ready": "False/CreateFailed"}},
		},
		{
			name:    "a volume that the engine has without a status is taken as it is",
			given:   func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}; holds(engineVolume(1, "b"))(s) },
			does:    []string{"Export v1 to 0"},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Exported": "False/Pending"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Device).To(Equal("b")) },
		},
		{
			name:  "sizes in whole mebibytes, with a header",
			given: func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofSize("1048577"))} },
			does:  []string{"CreateVolumes 1 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(int64(2<<20 + overhead)))
			},
		},
	} {
		c.run(t)
	}
}

func TestDecideSources(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "a chain is made link by link",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1), testVolume(3, fromSnapshot("s2"))}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1")}
			},
			does:    []string{"CreateVolumes 1 on a"},
			volumes: map[string]says{"v3": {"Created": "False/SourceNotReady", "Ready": "False/SourceNotReady"}},
			snaps:   map[string]says{"s2": {"Created": "False/SourceNotReady", "Ready": "False/SourceNotReady"}},
		},
		{
			name: "the snapshot once its volume is there, the clone of a volume beside it in its pool",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("b")), testVolume(3, fromSnapshot("s2")), testVolume(4, fromVolume("v1"))}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1")}
				holds(engineVolume(1, "b"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"CreateSnapshots 2 of 1", "CreateVolumes 4 on b from 1"},
			volumes: map[string]says{"v3": {"Created": "False/SourceNotReady"}},
			snaps:   map[string]says{"s2": {"Created": "False/Pending"}},
		},
		{
			name: "the clone of a snapshot that is there",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(3, fromSnapshot("s2"))}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "gone", snapshotCreated)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "b", SizeBytes: 10*gib + overhead, AllocatedBytes: 1, CreatedAt: now}}
			},
			does:  []string{"CreateVolumes 3 on b from 2"},
			snaps: map[string]says{"s2": {"Created": "True/AsExpected", "Ready": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Snapshots["s2"].Ready).To(BeTrue())
				g.Expect(d.Snapshots["s2"].CreatedAt.Time).To(BeTemporally("==", now))
				g.Expect(d.Snapshots["s2"].Allocated.Value()).To(Equal(int64(1 << 20)))
				g.Expect(d.Snapshots["s2"].Size.Value()).To(Equal(int64(10*gib)), "of its data")
			},
		},
		{
			name: "no snapshot for which, once its volume is overwritten, there would be no room",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("b"), ofSize("40Gi"))}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1"), testSnapshot(3, "v1")}
				holds(engine.Volume{ID: id(1), Pool: "b", SizeBytes: 40*gib + overhead, AllocatedBytes: 6 * gib})(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:  []string{"CreateSnapshots 2 of 1"},
			snaps: map[string]says{"s2": {"Created": "False/Pending"}, "s3": {"Created": "False/NoSpace"}},
		},
		{
			name: "snapshots count as promised",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, fromSnapshot("s2"), ofSize("20Gi")), testVolume(3, fromSnapshot("s2"), ofSize("20Gi"))}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "gone", snapshotCreated)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "b", SizeBytes: 20*gib + overhead, AllocatedBytes: 20 * gib, CreatedAt: now}}
			},
			does:    []string{"CreateVolumes 1 on b from 2"},
			volumes: map[string]says{"v3": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Snapshots["s2"].Device).To(Equal("b"))
				g.Expect(d.Node.Capacity.Allocated.Value()).To(Equal(int64(60*gib + 2*overhead)))
			},
		},
		{
			name: "not when the source's pool has no room",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("b")), testVolume(2, fromVolume("v1"), ofSize("45Gi"))}
				holds(engineVolume(1, "b"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v2": {"Created": "False/NoSpace"}},
		},
		{
			name: "not without an object of the source on this node",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(2, fromVolume("elsewhere")), testVolume(3, fromSnapshot("elsewhere"))}
			},
			volumes: map[string]says{"v2": {"Created": "False/SourceNotReady"}, "v3": {"Created": "False/SourceNotReady"}},
		},
		{
			name: "a source is not deleted before what waits for it is made",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting), testVolume(2, fromVolume("v1"))}
				holds(engineVolume(1, "a"))(s)
			},
			does:    []string{"CreateVolumes 2 on a from 1"},
			volumes: map[string]says{"v1": {"Ready": "False/Deleting", "Created": "True/AsExpected"}},
		},
		{
			name: "a snapshot is deleted, and released when it is gone",
			given: func(s *Observed) {
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated, snapshotDeleting), testSnapshot(3, "v1", snapshotCreated, snapshotDeleting)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a"}}
			},
			does:    []string{"DeleteSnapshots 2"},
			release: []string{"s3"},
			snaps:   map[string]says{"s2": {"Ready": "False/Deleting"}},
		},
		{
			name: "one that the engine cannot delete yet says which volumes depend on it",
			given: func(s *Observed) {
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated, snapshotDeleting)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a"}}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(3, isCreatedOn("a"), fromSnapshot("s2")), testVolume(4, isCreatedOn("a"), fromSnapshot("s2")), testVolume(5, isCreatedOn("a"))}
				holds(engineVolume(3, "a"), engineVolume(4, "a"), engineVolume(5, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(3), exported(4), exported(5)}
				s.Attempts[attempt{VerbDeleteSnapshot, uuid(2)}] = engine.ErrBusy
			},
			snaps:   map[string]says{"s2": {"Ready": "False/Deleting"}},
			volumes: map[string]says{"v3": {"Ready": "True/AsExpected"}},
			node:    says{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Snapshots["s2"].Conditions, v1alpha1.ConditionReady).Message).To(HaveSuffix("while NvmfReplicas depend on it: v3, v4"))
			},
		},
		{
			name: "a snapshot is not released while its pool is unreadable",
			given: func(s *Observed) {
				brokenA(s)
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotDeleting)}
			},
			snaps: map[string]says{"s2": {"Ready": "False/Deleting"}},
		},
		{
			name: "a snapshot that is lost is never made again",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated)}
			},
			snaps: map[string]says{"s2": {"Created": "True/AsExpected", "Ready": "False/VolumeLost"}},
		},
	} {
		c.run(t)
	}
}

func TestDecideServes(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "nothing to do",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), reportedHost(hostA, true)), exported(1, hostA))
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Exported": "True/AsExpected", "Ready": "True/AsExpected", "Degraded": "False/AsExpected"}},
			node:    says{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected", "PortalsReady": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				v := d.Volumes["v1"]
				g.Expect(v.NQN).To(Equal(subsystem(1)))
				g.Expect(v.NSID).To(Equal(int32(1)))
				g.Expect(v.NGUID).To(Equal("00000000000040008000000000000001"))
				g.Expect(v.Portals).To(Equal([]v1alpha1.Portal{tcp}))
				g.Expect(v.Size.Value()).To(Equal(int64(10 * gib)))
				g.Expect(d.Node.Capacity.Total.Value()).To(Equal(int64(150 * gib)))
				g.Expect(d.Node.Capacity.Allocated.Value()).To(Equal(int64(10*gib + overhead)))
				g.Expect(d.Node.Capacity.Free.Value()).To(Equal(int64(140*gib - overhead)))
				g.Expect(d.Node.Engine.Version).To(Equal("6.12.0"))
				g.Expect(d.Node.Portals).To(Equal([]v1alpha1.Portal{tcp}))
			},
		},
		{
			name: "a host more",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA, hostB)), exported(1, hostA))
			},
			does:    []string{"Export v1 to 2"},
			volumes: map[string]says{"v1": {"Exported": "False/Pending"}},
		},
		{
			name: "attached again, while the former attachment is exported still",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostB), reportedHost(hostA, true)), former(1, hostA))
			},
			does:    []string{"Unexport v1:former", "Export v1 to 1"},
			volumes: map[string]says{"v1": {"Exported": "False/Pending", "Ready": "False/Pending"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Hosts).To(HaveLen(1)) },
		},
		{
			name: "not served before the former attachment's export is gone",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostB)), exported(1, hostB))
				s.Target.State.Exports = append(s.Target.State.Exports, former(1, hostA))
				s.Attempts[attempt{VerbUnexport, former(1).NQN}] = engine.ErrBusy
				s.Attempts[attempt{VerbExport, subsystem(1)}] = nil
			},
			volumes: map[string]says{"v1": {"Exported": "False/ExportFailed"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Hosts).To(HaveLen(2))
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, "Exported").Message).To(ContainSubstring("of an earlier attachment"))
			},
		},
		{
			name: "a lost volume does not keep a former attachment",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				s.Target.State.Exports = []engine.Export{former(1, hostA)}
			},
			does:    []string{"Unexport v1:former"},
			volumes: map[string]says{"v1": {"Degraded": "True/VolumeLost"}},
		},
		{
			name: "not deleted while a former attachment is exported",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), isDeleting), former(1, hostA))
			},
			does:    []string{"Unexport v1:former"},
			volumes: map[string]says{"v1": {"Ready": "False/Deleting"}},
		},
		{
			name: "a host less stays reported until the engine let go of it",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), reportedHost(hostA, false)), exported(1, hostA))
				s.Attempts[attempt{VerbExport, subsystem(1)}] = engine.ErrBusy
			},
			volumes: map[string]says{"v1": {"Exported": "False/ExportFailed", "Ready": "False/ExportFailed"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Hosts).To(HaveLen(1)) },
		},
		{
			name: "an export that misses an open portal",
			given: func(s *Observed) {
				e := exported(1, hostA)
				e.Portals = nil
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA)), e)
			},
			does: []string{"Export v1 to 1"},
		},
		{
			name: "a limit of connections to come is asked for, and nobody is unserved meanwhile",
			given: func(s *Observed) {
				e := exported(1, hostA)
				e.MaxIOQueues = 4
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), reportedHost(hostA, true)), e)
			},
			does:    []string{"Export v1 to 1"},
			volumes: map[string]says{"v1": {"Exported": "True/AsExpected", "Ready": "True/AsExpected"}},
		},
		{
			name: "once in a reconciliation, whatever comes of it",
			given: func(s *Observed) {
				e := exported(1, hostA)
				e.MaxIOQueues = 4
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), reportedHost(hostA, true)), e)
				s.Attempts[attempt{VerbExport, subsystem(1)}] = engine.ErrRestartNeeded
			},
			volumes: map[string]says{"v1": {"Exported": "True/AsExpected", "Ready": "True/AsExpected"}},
		},
		{
			name: "not of an engine that keeps no such limit for each export",
			given: func(s *Observed) {
				e := exported(1, hostA)
				e.MaxIOQueues = 0
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA)), e)
			},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected"}},
		},
		{
			name: "nor when it may be what the target has to be restarted for",
			given: func(s *Observed) {
				e := exported(1, hostA)
				e.MaxIOQueues = 4
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA)), e)
				s.Target.RestartNeeded = []string{"4 I/O queues"}
			},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected"}},
			node:    says{"RestartNeeded": "True/SettingsDiffer"},
		},
		{
			name: "no portal of its transport",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), overRDMA), exported(1, hostA))
			},
			volumes: map[string]says{"v1": {"Exported": "False/PortalFailed"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Portals).To(BeEmpty()) },
		},
		{
			name: "over both transports, through all portals",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals = append(s.Node.Spec.Plan.Portals, planned(rdma), planned(tcp2))
				s.Target.State.Portals = append(s.Target.State.Portals, openedPortal(rdma), openedPortal(tcp2))
				e := exported(1, hostA)
				e.Portals = []v1alpha1.Portal{tcp, tcp2, rdma}
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), overBoth), e)
			},
			volumes: map[string]says{"v1": {"Exported": "True/AsExpected", "Ready": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Portals).To(Equal([]v1alpha1.Portal{rdma, tcp, tcp2}))
			},
		},
		{
			name: "over both transports, one of which cannot be opened: hosts are told of it all the same",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals = append(s.Node.Spec.Plan.Portals, planned(rdma))
				s.Attempts[attempt{VerbOpenPortal, PortalKey(rdma)}] = errors.New("no device")
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), overBoth), exported(1, hostA))
			},
			volumes: map[string]says{"v1": {"Exported": "True/AsExpected", "Ready": "True/AsExpected"}},
			node:    says{"PortalsReady": "False/PortalFailed", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Portals).To(Equal([]v1alpha1.Portal{rdma, tcp}))
				g.Expect(d.Node.Portals).To(Equal([]v1alpha1.Portal{tcp}))
			},
		},
		{
			name: "over both transports, none of them open",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals = append(s.Node.Spec.Plan.Portals, planned(rdma))
				s.Target.State.Portals = nil
				for _, p := range []v1alpha1.Portal{tcp, rdma} {
					s.Attempts[attempt{VerbOpenPortal, PortalKey(p)}] = errors.New("no address")
				}
				e := exported(1, hostA)
				e.Portals = nil
				there(s, testVolume(1, isCreatedOn("a"), withHosts(hostA), overBoth), e)
			},
			volumes: map[string]says{"v1": {"Exported": "False/PortalFailed"}},
			node:    says{"Ready": "False/PortalFailed"},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionExported)
				g.Expect(c.Message).To(Equal("no RDMA or TCP portal of this node is open"))
			},
		},
		{
			name:  "growth",
			given: func(s *Observed) { there(s, testVolume(1, isCreatedOn("a"), ofSize("20Gi")), exported(1)) },
			does:  []string{"GrowVolumes 1 to 20Gi"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Size.Value()).To(Equal(int64(10*gib)), "what is served, not what is asked for")
			},
		},
		{
			name:    "growth without room",
			given:   func(s *Observed) { there(s, testVolume(1, isCreatedOn("a"), ofSize("200Gi")), exported(1)) },
			volumes: map[string]says{"v1": {"Degraded": "True/NoSpace", "Ready": "True/AsExpected"}},
		},
		{
			name:    "no shrinking",
			given:   func(s *Observed) { there(s, testVolume(1, isCreatedOn("a"), ofSize("5Gi")), exported(1)) },
			volumes: map[string]says{"v1": {"Degraded": "True/ShrinkRefused", "Ready": "True/AsExpected"}},
		},
		{
			name: "lost",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Degraded": "True/VolumeLost", "Ready": "False/VolumeLost", "Exported": "False/VolumeLost"}},
		},
		{
			name:    "lost even when another drive is dead: a volume never moves",
			given:   func(s *Observed) { brokenA(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("b"))} },
			volumes: map[string]says{"v1": {"Degraded": "True/VolumeLost"}},
			node:    says{"PoolReady": "False/PoolFailed", "Ready": "True/AsExpected"},
		},
		{
			name: "unknown while its pool cannot be read",
			given: func(s *Observed) {
				brokenA(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
				s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Degraded": "True/PoolFailed", "Exported": "Unknown/PoolFailed", "Ready": "False/PoolFailed"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Hosts).To(HaveLen(1)) },
		},
		{
			name: "the last host of a volume on a dead drive is shut out without the volume",
			given: func(s *Observed) {
				brokenA(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			},
			does: []string{"Unexport v1"},
		},
		{
			name: "of two copies, the one that the status names",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("b"))}
				holds(engineVolume(1, "a"), engineVolume(1, "b"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			also: func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Device).To(Equal("b")) },
		},
		{
			name: "figures stay between refreshes",
			given: func(s *Observed) {
				s.Refresh = false
				there(s, testVolume(1, isCreatedOn("a"), func(v *v1alpha1.NvmfReplica) { v.Status.Allocated = resource.NewQuantity(1<<20, resource.BinarySI) }), exported(1))
				s.Target.State.Volumes[0].AllocatedBytes = 5 << 20
			},
			also: func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Allocated.Value()).To(Equal(int64(1 << 20))) },
		},
		{
			name: "figures are brought up to date with a refresh",
			given: func(s *Observed) {
				there(s, testVolume(1, isCreatedOn("a"), func(v *v1alpha1.NvmfReplica) { v.Status.Allocated = resource.NewQuantity(1<<20, resource.BinarySI) }), exported(1))
				s.Target.State.Volumes[0].AllocatedBytes = gib - 1
			},
			also: func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].Allocated.Value()).To(Equal(int64(gib))) },
		},
	} {
		c.run(t)
	}
}

func TestDecideDeletes(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "not while hosts are listed",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA), isDeleting)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			},
			volumes: map[string]says{"v1": {"Ready": "False/HostsStillAdmitted", "Created": "True/AsExpected", "Exported": "True/AsExpected"}},
		},
		{
			name: "first unexported",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"Unexport v1"},
			volumes: map[string]says{"v1": {"Ready": "False/Deleting"}},
		},
		{
			name: "not deleted while the engine still lists the export",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
				s.Attempts[attempt{VerbUnexport, subsystem(1)}] = nil
			},
		},
		{
			name: "then deleted",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
				holds(engineVolume(1, "a"))(s)
			},
			does: []string{"DeleteVolumes 1"},
		},
		{
			name:    "released when the engine does not list it any more",
			given:   func(s *Observed) { s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)} },
			release: []string{"v1"},
		},
		{
			name:    "released when it never was",
			given:   func(s *Observed) { brokenA(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isDeleting)} },
			release: []string{"v1"},
		},
		{
			name: "not released while its pool cannot be read",
			given: func(s *Observed) {
				brokenA(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
			},
			volumes: map[string]says{"v1": {"Ready": "False/Deleting"}},
		},
		{
			name: "not released when the engine does not answer",
			given: func(s *Observed) {
				s.Target = Target{Err: engine.ErrUnavailable, Reason: v1alpha1.ReasonEngineNotAnswering}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting), testVolume(2)}
			},
			volumes: map[string]says{"v2": {"Created": "Unknown/EngineNotAnswering", "Exported": "Unknown/EngineNotAnswering", "Degraded": "Unknown/EngineNotAnswering", "Ready": "False/EngineNotAnswering"}},
			node:    says{"Ready": "False/EngineNotAnswering", "PoolReady": "Unknown/EngineNotAnswering", "PortalsReady": "Unknown/EngineNotAnswering"},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes).NotTo(HaveKey("v1"), "what was last seen stays") },
		},
		{
			name: "nothing when the target cannot keep the plan, and what is known of it is said",
			given: func(s *Observed) {
				s.Target = Target{
					Info: engine.Info{Type: v1alpha1.EngineSPDK, Version: "26.05", Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, InterruptMode: true},
					Err:  engine.ErrUnsupported, Reason: v1alpha1.ReasonPlanUnsupported,
				}
				s.Node.Generation++
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
			},
			node: says{"Ready": "False/PlanUnsupported", "PoolReady": "Unknown/PlanUnsupported", "PortalsReady": "Unknown/PlanUnsupported", "RestartNeeded": "Unknown/PlanUnsupported"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes).NotTo(HaveKey("v1"), "what was last seen stays")
				g.Expect(d.Node.ObservedGeneration).To(Equal(int64(3)), "the plan was not acted on")
				g.Expect(d.Node.Engine).To(Equal(&v1alpha1.EngineStatus{
					Type: v1alpha1.EngineSPDK, Version: "26.05", Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, InterruptMode: true}))
			},
		},
		{
			name: "nothing without a plan",
			given: func(s *Observed) {
				s.Node.Spec = v1alpha1.NvmfNodeSpec{}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), isDeleting)}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1), exported(9)}
			},
			node: says{"Ready": "False/NotClaimed", "PoolReady": "False/NotClaimed", "PortalsReady": "False/NotClaimed"},
			also: func(g *WithT, d Decision) { g.Expect(d.Node.Inventory).NotTo(BeNil()) },
		},
		{
			name: "what has no object stays, but for subsystems that admit nobody",
			given: func(s *Observed) {
				holds(engineVolume(7, "a"))(s)
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(8), Pool: "a"}}
				s.Target.State.Exports = []engine.Export{exported(7, hostA), exported(9), {NQN: "nqn.2014-08.org.example:other"}}
			},
			does: []string{"Unexport v9"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Orphans).To(Equal(Orphans{Volumes: []engine.ID{id(7)}, Snapshots: []engine.ID{id(8)}, Exports: []string{subsystem(7)}}))
			},
		},
	} {
		c.run(t)
	}
}

// overPromised: volumes 1 and 2 are promised more than pool a has, and volume 3 has no place yet.
func overPromised(s *Observed) {
	s.Node.Spec.Plan.OverProvisioningPercent = 200
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("60Gi")), testVolume(2, isCreatedOn("a"), ofSize("60Gi")), testVolume(3)}
	one, two := engineVolume(1, "a"), engineVolume(2, "a")
	one.SizeBytes, two.SizeBytes = 60*gib+overhead, 60*gib+overhead
	holds(one, two)(s)
	s.Target.State.Exports = []engine.Export{exported(1), exported(2)}
}
