// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

func filePool(s *Observed) {
	s.Node.Spec.Plan.Drives = nil
	s.Node.Spec.Plan.File = &v1alpha1.DeviceFile{Path: "/var/lib/weft/pool.img", Size: resource.MustParse("20Gi")}
	s.Target.State.Pools = []engine.Pool{{Device: "/var/lib/weft/pool.img", Path: "/var/lib/weft/pool.img", TotalBytes: 19 * gib, FreeBytes: 19 * gib}}
}

func TestDecidePools(t *testing.T) {
	for _, c := range []decideCase{
		{
			name:  "after a reboot, pools come before anything else",
			given: func(s *Observed) { rebooted(s); s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))} },
			does:  []string{"OpenPools a /dev/nvme0n1", "OpenPools b /dev/nvme1n1"},
			node:  says{"Ready": "False/Pending", "PoolReady": "False/Pending", "PortalsReady": "False/Pending"},
		},
		{
			name: "drives go by their id, whatever their name is today",
			given: func(s *Observed) {
				rebooted(s)
				s.Inventory.Drives[0].Name, s.Inventory.Drives[1].Name = "nvme1n1", "nvme0n1"
			},
			does: []string{"OpenPools a /dev/nvme1n1", "OpenPools b /dev/nvme0n1"},
		},
		{
			name: "a drive that the target drives itself goes by its PCI address, whether the kernel knows it or not",
			given: func(s *Observed) {
				rebooted(s)
				s.Node.Spec.Plan.Drives = []v1alpha1.PlannedDrive{{ID: "a", PCIAddress: "0000:5e:00.0"}, {ID: "c", PCIAddress: "0000:5f:00.0"}}
			},
			does: []string{"OpenPools a 0000:5e:00.0", "OpenPools c 0000:5f:00.0"},
			node: says{"PoolReady": "False/Pending"},
		},
		{
			name: "without an inventory, too",
			given: func(s *Observed) {
				rebooted(s)
				s.Inventory = nil
				s.Node.Spec.Plan.Drives = []v1alpha1.PlannedDrive{{ID: "a", PCIAddress: "0000:5e:00.0"}}
			},
			does: []string{"OpenPools a 0000:5e:00.0"},
		},
		{
			name:  "one that cannot be read is tried again",
			given: func(s *Observed) { brokenA(s); delete(s.Attempts, attempt{VerbOpenPool, "a"}) },
			does:  []string{"OpenPools a /dev/nvme0n1"},
			node:  says{"Ready": "True/AsExpected", "PoolReady": "False/PoolFailed"},
		},
		{
			name:  "what is being cleared is not to be had yet",
			given: func(s *Observed) { s.Target.State.Pools[0].ClearingBytes = 30 * gib },
			node:  says{"PoolReady": "True/AsExpected", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				a, b := d.Node.Pools[0], d.Node.Pools[1]
				g.Expect(a.Clearing.Value()).To(BeEquivalentTo(30 * gib))
				g.Expect(a.Promised.Value()).To(BeEquivalentTo(30 * gib))
				g.Expect(b.Clearing).To(BeNil())
				g.Expect(d.Node.Capacity.Free.Value()).To(Equal(a.Total.Value() + b.Total.Value() - 30*gib))
			},
		},
		{
			name: "a pool that may lose acknowledged writes serves, and it is said",
			given: func(s *Observed) {
				s.Target.State.Pools[0].NotDurable = errors.New("no answer")
				s.Target.State.Pools[1].NotDurable = fmt.Errorf("%w: the cache cannot be turned off", device.ErrVolatile)
			},
			node: says{"WritesDurable": "False/VolatileWriteCache", "PoolReady": "True/AsExpected", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionWritesDurable)
				g.Expect(c.Message).To(And(ContainSubstring("pool b: acknowledged writes that were not flushed are lost"), ContainSubstring("pool a: no answer")))
			},
		},
		{
			name:  "one of which it is not known is not called durable",
			given: func(s *Observed) { s.Target.State.Pools[0].NotDurable = errors.New("no answer") },
			node:  says{"WritesDurable": "Unknown/WriteCacheUnknown", "Ready": "True/AsExpected"},
		},
		{
			name:  "a pool that cannot be read acknowledges nothing",
			given: func(s *Observed) { brokenA(s); s.Target.State.Pools[0].NotDurable = errors.New("no answer") },
			node:  says{"WritesDurable": "True/AsExpected"},
		},
		{
			name: "another drive where SPDK's own was",
			given: func(s *Observed) {
				s.Target.State.Pools = openPools()[1:]
				s.Node.Spec.Plan.Drives = []v1alpha1.PlannedDrive{{ID: "a", PCIAddress: "0000:5e:00.0"}, {ID: "b", PCIAddress: "0000:5f:00.0"}}
				s.Inventory.Drives = []v1alpha1.Drive{{ID: "new", Name: "nvme0n1", PCIAddress: "0000:5e:00.0"}}
			},
			node: says{"PoolReady": "False/DeviceSwapped", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].Message).To(ContainSubstring("0000:5e:00.0 is drive new instead of"))
			},
		},
		{
			name: "SPDK's own drive without an address is not opened through the kernel",
			given: func(s *Observed) {
				s.Target.State.Pools = openPools()[1:]
				s.Node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{Driver: v1alpha1.DriverVFIO}
			},
			node: says{"PoolReady": "False/DeviceMissing", "Ready": "True/AsExpected"},
		},
		{
			name: "a foreign signature is named",
			given: func(s *Observed) {
				s.Target.State.Pools = openPools()[1:]
				s.Attempts[attempt{VerbOpenPool, "a"}] = &device.ForeignSignatureError{Device: "/dev/nvme0n1", Signature: "ext4 filesystem"}
			},
			node: says{"PoolReady": "False/ForeignSignature", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionPoolReady)
				g.Expect(c.Message).To(And(ContainSubstring("/dev/nvme0n1"), ContainSubstring("ext4 filesystem")))
				g.Expect(d.Node.Pools[0].Ready).To(BeFalse())
				g.Expect(d.Node.Pools[0].Reason).To(Equal("ForeignSignature"))
				g.Expect(d.Node.Capacity.Total.Value()).To(Equal(int64(50 * gib)))
			},
		},
		{
			name: "another drive in the place of a planned one is named, and the other pools serve",
			given: func(s *Observed) {
				s.Target.State.Pools = openPools()[1:]
				s.Attempts[attempt{VerbOpenPool, "a"}] = fmt.Errorf("device a: %w", &device.SwappedError{Where: "/dev/nvme0n1", Planned: "a", Found: "z"})
			},
			node: says{"PoolReady": "False/DeviceSwapped", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].Message).To(ContainSubstring("/dev/nvme0n1 is drive z instead of"))
			},
		},
		{
			name:  "a drive that is not there",
			given: func(s *Observed) { s.Target.State.Pools = openPools()[:1]; s.Inventory.Drives = s.Inventory.Drives[:1] },
			node:  says{"PoolReady": "False/DeviceMissing", "Ready": "True/AsExpected"},
		},
		{
			name: "no inventory yet",
			given: func(s *Observed) {
				rebooted(s)
				s.Inventory = nil
				s.Target.State.Portals = []engine.Portal{openedPortal(tcp)}
			},
			node: says{"PoolReady": "False/NoInventory", "Ready": "False/NoInventory"},
		},
		{
			name:  "a file that is open is left alone",
			given: filePool,
			node:  says{"PoolReady": "True/AsExpected"},
		},
		{
			name: "and one that is nearly full is not opened again and again",
			given: func(s *Observed) {
				filePool(s)
				s.Target.State.Pools[0].FreeBytes = 0
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "/var/lib/weft/pool.img", Reason: v1alpha1.ReasonPoolNearlyFull}}
			},
			node: says{"PoolReady": "False/PoolNearlyFull"},
		},
		{
			name: "nor is one that was full",
			given: func(s *Observed) {
				filePool(s)
				s.Target.State.Pools[0].FreeBytes = 0
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "/var/lib/weft/pool.img", Reason: v1alpha1.ReasonPoolFull}}
			},
			node: says{"PoolReady": "False/PoolNearlyFull"},
		},
		{
			name: "nor one whose filesystem is too small, and it says so",
			given: func(s *Observed) {
				filePool(s)
				s.Target.State.Pools[0].MissingBytes = s.Target.State.Pools[0].TotalBytes
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "/var/lib/weft/pool.img", Ready: true, Reason: v1alpha1.ReasonFilesystemTooSmall}}
			},
			node: says{"PoolReady": "False/FilesystemTooSmall", "Ready": "True/AsExpected"},
		},
		{
			name: "one from which nothing is deleted serves",
			given: func(s *Observed) {
				filePool(s)
				s.Target.State.Pools[0].KeepsDeleted = errors.New("nothing is deleted")
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "/var/lib/weft/pool.img", Ready: true, Reason: v1alpha1.ReasonDeletedDataKept}}
			},
			node: says{"PoolReady": "False/DeletedDataKept", "Ready": "True/AsExpected"},
		},
		{
			name:  "a file is asked for with each new plan, for it may have to grow",
			given: func(s *Observed) { filePool(s); s.Node.Generation++ },
			does:  []string{"OpenPools /var/lib/weft/pool.img /var/lib/weft/pool.img"},
		},
		{
			name: "a file that could not grow is ready, says so, and is asked for again",
			given: func(s *Observed) {
				filePool(s)
				s.Node.Generation++
				s.Attempts[attempt{VerbOpenPool, "/var/lib/weft/pool.img"}] = errors.New("no space left on device")
			},
			node: says{"PoolReady": "False/PoolFailed", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].Ready).To(BeTrue())
				s := quietNode()
				filePool(&s)
				s.Node.Status.Pools = d.Node.Pools
				g.Expect(written(Decide(s).Operations)).To(HaveLen(1))
			},
		},
		{
			name: "a pool that is no longer planned takes no new volumes",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Drives = s.Node.Spec.Plan.Drives[1:]
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
			},
			does: []string{"CreateVolumes 1 on b"},
			node: says{"PoolReady": "True/AsExpected"},
			also: func(g *WithT, d Decision) { g.Expect(d.Node.Capacity.Total.Value()).To(Equal(int64(50 * gib))) },
		},
		{
			name: "a pool of which more is promised than may be takes nothing from the others",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("120Gi"))}
				v := engineVolume(1, "a")
				v.SizeBytes = 120*gib + overhead
				holds(v)(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Capacity.Allocated.Value()).To(Equal(int64(120*gib + overhead)))
				g.Expect(d.Node.Capacity.Free.Value()).To(Equal(int64(50 * gib)))
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(120*gib + overhead)))
				g.Expect(d.Node.Pools[1].Promised.Value()).To(BeZero())
			},
		},
		{
			name: "what may be promised counts, and of a nearly full pool nothing does",
			given: func(s *Observed) {
				s.Node.Spec.Plan.OverProvisioningPercent = 250
				s.Target.State.Pools[1].FreeBytes = gib
			},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Capacity.Total.Value()).To(Equal(int64(150 * gib)))
				g.Expect(d.Node.Capacity.Free.Value()).To(Equal(int64(250 * gib)))
			},
		},
	} {
		c.run(t)
	}
}

func TestDecidePortals(t *testing.T) {
	reopening := func(s *Observed, hosts ...string) {
		s.Target.State.Portals = nil
		s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hosts...))}
		holds(engineVolume(1, "a"))(s)
	}
	for _, c := range []decideCase{
		{
			name:  "exports come a round before the first portal",
			given: func(s *Observed) { reopening(s, hostA) },
			does:  []string{"Export v1 to 1"},
			node:  says{"PortalsReady": "False/Pending", "Ready": "False/Pending"},
		},
		{
			name: "then the portal opens",
			given: func(s *Observed) {
				reopening(s, hostA)
				e := exported(1, hostA)
				e.Portals = nil
				s.Target.State.Exports = []engine.Export{e}
			},
			does: []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name: "an export that failed holds the portal while the agent settles",
			given: func(s *Observed) {
				reopening(s, hostA)
				s.Attempts[attempt{VerbExport, subsystem(1)}] = engine.ErrBusy
				s.Settling = true
			},
			node: says{"PortalsReady": "False/Pending"},
			also: func(g *WithT, d Decision) { g.Expect(d.PortalsHeld).To(Equal([]string{"v1"})) },
		},
		{
			name: "and afterwards the others are served without it",
			given: func(s *Observed) {
				reopening(s, hostA)
				s.Attempts[attempt{VerbExport, subsystem(1)}] = engine.ErrBusy
			},
			does: []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name: "a drive that may yet appear is waited for",
			given: func(s *Observed) {
				reopening(s, hostA)
				s.Target.State.Pools = openPools()[1:]
				s.Target.State.Volumes = nil
				s.Inventory.Drives = s.Inventory.Drives[1:]
				s.Settling = true
			},
			also: func(g *WithT, d Decision) { g.Expect(d.PortalsHeld).To(Equal([]string{"v1"})) },
		},
		{
			name: "one with a foreign signature is not",
			given: func(s *Observed) {
				reopening(s, hostA)
				s.Target.State.Pools = openPools()[1:]
				s.Target.State.Volumes = nil
				s.Attempts[attempt{VerbOpenPool, "a"}] = &device.ForeignSignatureError{Device: "/dev/nvme0n1", Signature: "xfs filesystem"}
				s.Settling = true
			},
			does: []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name:  "nor is a volume that is lost",
			given: func(s *Observed) { reopening(s, hostA); s.Target.State.Volumes = nil; s.Settling = true },
			does:  []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name: "nor is one on a drive that nobody will open",
			given: func(s *Observed) {
				reopening(s, hostA)
				s.Volumes[0].Status.Device = "gone"
				s.Target.State.Volumes = nil
				s.Settling = true
			},
			does: []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name: "nor one without hosts",
			given: func(s *Observed) {
				reopening(s)
				s.Attempts[attempt{VerbExport, subsystem(1)}] = engine.ErrBusy
				s.Settling = true
			},
			does: []string{"OpenPortals TCP 10.0.0.1 4420"},
		},
		{
			name: "one that failed does not make the node unready while another is open",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals = append(s.Node.Spec.Plan.Portals, planned(rdma))
				s.Attempts[attempt{VerbOpenPortal, PortalKey(rdma)}] = errors.New("no such device")
			},
			node: says{"PortalsReady": "False/PortalFailed", "Ready": "True/AsExpected"},
		},
		{
			name: "no longer planned, but in use",
			given: func(s *Observed) {
				s.Target.State.Portals = append(s.Target.State.Portals, openedPortal(tcp2))
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
				holds(engineVolume(1, "a"))(s)
				e := exported(1, hostA)
				e.Portals = append(e.Portals, tcp2)
				s.Target.State.Exports = []engine.Export{e}
			},
			node: says{"PortalsReady": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionPortalsReady).Message).To(ContainSubstring("4421 is no longer planned"))
			},
		},
		{
			name:  "no longer planned, and no host on the node",
			given: func(s *Observed) { s.Target.State.Portals = append(s.Target.State.Portals, openedPortal(tcp2)) },
			does:  []string{"ClosePortals TCP 10.0.0.1 4421"},
		},
		{
			name: "other settings, and hosts that may use it",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals[0].QueueDepth = 256
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			},
			node: says{"PortalsReady": "False/PortalFailed", "Ready": "True/AsExpected"},
		},
		{
			name: "other settings, when the target has to be restarted: closing would not help",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Engine = v1alpha1.EngineSPDK
				s.Node.Spec.Plan.Portals[0].QueueDepth = 256
				s.Target.RestartNeeded = []string{"queue depth of TCP is 128, but should be 256"}
			},
			node: says{"PortalsReady": "True/AsExpected", "RestartNeeded": "True/SettingsDiffer", "Ready": "True/AsExpected"},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionRestartNeeded).Message).To(ContainSubstring("queue depth of TCP is 128, but should be 256"))
				g.Expect(meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionPortalsReady).Message).To(ContainSubstring("until the target is restarted"))
			},
		},
		{
			name:  "other settings, and no host on the node",
			given: func(s *Observed) { s.Node.Spec.Plan.Portals[0].QueueDepth = 256 },
			does:  []string{"ClosePortals TCP 10.0.0.1 4420"},
		},
		{
			name: "other settings of a kernel's portal, when its modules have others too: closing helps the portal",
			given: func(s *Observed) {
				s.Node.Spec.Plan.Portals[0].QueueDepth = 256
				s.Target.RestartNeeded = []string{"module nvmet_rdma's use_srq is N, but should be Y"}
			},
			does: []string{"ClosePortals TCP 10.0.0.1 4420"},
		},
		{
			name:  "a kernel that limits no queue",
			given: func(s *Observed) { s.Target.State.Portals[0].QueueDepth = 0 },
			node:  says{"PortalsReady": "True/AsExpected", "Ready": "True/AsExpected"},
		},
	} {
		c.run(t)
	}
}

func TestBlank(t *testing.T) {
	for _, c := range []struct {
		name   string
		volume *v1alpha1.NvmfReplica
		wrote  int64
		hosts  []string // admitted by the engine
		blank  map[string]bool
	}{
		{"never written", testVolume(1, isCreatedOn("a"), withHosts(hostA)), 0, []string{hostA}, map[string]bool{hostA: true}},
		{"written", testVolume(1, isCreatedOn("a"), withHosts(hostA)), 1, []string{hostA}, map[string]bool{hostA: false}},
		{"a clone of nothing", testVolume(1, isCreatedOn("a"), withHosts(hostA), fromVolume("v9")), 0, []string{hostA}, map[string]bool{hostA: true}},
		{"a clone of data", testVolume(1, isCreatedOn("a"), withHosts(hostA), fromVolume("v9")), 1, []string{hostA}, map[string]bool{hostA: false}},
		{"written once, and empty now", testVolume(1, isCreatedOn("a"), withHosts(hostA), wasWritten), 0, []string{hostA}, map[string]bool{hostA: false}},
		{"a clone of what was written once, and is empty now", testVolume(1, isCreatedOn("a"), withHosts(hostA), fromVolume("v9"), wasWritten), 0, []string{hostA}, map[string]bool{hostA: false}},
		{"two at once", testVolume(1, isCreatedOn("a"), withHosts(hostA, hostB)), 0, []string{hostA, hostB}, map[string]bool{hostA: false, hostB: false}},
		{"another is to come", testVolume(1, isCreatedOn("a"), withHosts(hostA, hostB)), 0, []string{hostA}, map[string]bool{hostA: false}},
		{"kept after the first write", testVolume(1, isCreatedOn("a"), withHosts(hostA), reportedHost(hostA, true)), 1, []string{hostA}, map[string]bool{hostA: true}},
		{"a second host", testVolume(1, isCreatedOn("a"), withHosts(hostA, hostB), reportedHost(hostA, true)), 0, []string{hostA, hostB}, map[string]bool{hostA: true, hostB: false}},
		{"moved before the first write", testVolume(1, isCreatedOn("a"), withHosts(hostB), reportedHost(hostA, true)), 0, []string{hostB}, map[string]bool{hostB: true}},
		{"moved after the first write", testVolume(1, isCreatedOn("a"), withHosts(hostB), reportedHost(hostA, true)), 1, []string{hostB}, map[string]bool{hostB: false}},
		{"not admitted", testVolume(1, isCreatedOn("a"), withHosts(hostA)), 0, nil, map[string]bool{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			s.Volumes = []*v1alpha1.NvmfReplica{c.volume}
			holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 10*gib + overhead, AllocatedBytes: c.wrote})(&s)
			s.Target.State.Exports = []engine.Export{exported(1, c.hosts...)}
			blank := map[string]bool{}
			for _, h := range Decide(s).Volumes["v1"].Hosts {
				blank[h.NQN] = h.Blank
			}
			g.Expect(blank).To(Equal(c.blank))
		})
	}
}

// TestWritten stays known, and goes over to copies before the engine is asked to make them.
func TestWritten(t *testing.T) {
	for _, c := range []struct {
		name     string
		source   *v1alpha1.NvmfReplica
		holds    int64
		snapshot int64
		written  bool // the source, and a copy of it
		restored bool // a copy of its snapshot
	}{
		{name: "never written", source: testVolume(1, isCreatedOn("a"))},
		{name: "written", source: testVolume(1, isCreatedOn("a")), holds: 1, written: true},
		{name: "written once, and empty now", source: testVolume(1, isCreatedOn("a"), wasWritten), written: true},
		{name: "a snapshot of data", source: testVolume(1, isCreatedOn("a"), wasWritten), holds: 1, snapshot: 1, written: true, restored: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			s.Volumes = []*v1alpha1.NvmfReplica{c.source, testVolume(3, fromVolume("v1")), testVolume(4, fromSnapshot("s2"))}
			s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "v1", snapshotCreated)}
			s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a", SizeBytes: 10*gib + overhead, AllocatedBytes: c.snapshot}}
			holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 10*gib + overhead, AllocatedBytes: c.holds})(&s)
			d := Decide(s)
			g.Expect(d.Operations.CreateVolumes).To(HaveLen(2))
			g.Expect(d.Volumes["v1"].Written).To(Equal(c.written), "itself")
			g.Expect(d.Volumes["v3"].Written).To(Equal(c.written), "a copy")
			g.Expect(d.Volumes["v4"].Written).To(Equal(c.restored), "a copy of its snapshot")
		})
	}
}

// TestDecideIsTotal gives it whatever may come, and states what holds of every decision.
func TestDecideIsTotal(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := randomNode(random)
		g := NewWithT(t)
		d := Decide(s)
		for _, c := range d.Node.Conditions {
			g.Expect(c.Reason).NotTo(BeEmpty(), "seed %d: %s", seed, c.Type)
		}
		g.Expect(d.Node.Conditions).To(HaveLen(7), "seed %d", seed)
		for _, v := range s.Volumes {
			status, ok := d.Volumes[v.Name]
			if !ok {
				continue
			}
			g.Expect(status.Conditions).To(HaveLen(5), "seed %d: %s", seed, v.Name)
			for _, c := range status.Conditions {
				g.Expect(c.Reason).NotTo(BeEmpty(), "seed %d: %s %s", seed, v.Name, c.Type)
			}
			if meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionCreated) {
				g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionCreated)).To(BeTrue(), "seed %d: %s: once created, always created", seed, v.Name)
			}
		}
		expectSafe(g, s, d)
		g.Expect(Decide(s)).To(Equal(d), "seed %d: pure", seed)
	}
}

// expectSafe states what no decision may do.
func expectSafe(g *WithT, s Observed, d Decision) {
	objects := map[engine.ID]*v1alpha1.NvmfReplica{}
	for _, v := range s.Volumes {
		objects[engine.ID(v.Spec.UUID)] = v
	}
	exportedIDs := map[engine.ID]bool{}
	for _, e := range s.Target.State.Exports {
		for _, ns := range e.Namespaces {
			exportedIDs[ns.Volume] = true
		}
	}
	for _, i := range d.Operations.DeleteVolumes {
		g.Expect(objects[i]).NotTo(BeNil(), "an orphan is never deleted")
		g.Expect(objects[i].DeletionTimestamp).NotTo(BeNil())
		g.Expect(objects[i].Spec.Hosts).To(BeEmpty())
		g.Expect(exportedIDs[i]).To(BeFalse(), "never delete one that is exported")
	}
	for _, v := range d.Operations.CreateVolumes {
		g.Expect(meta.IsStatusConditionTrue(objects[v.ID].Status.Conditions, v1alpha1.ConditionCreated)).To(BeFalse(), "once created, never made again")
		g.Expect(d.Volumes[objects[v.ID].Name].Device).To(Equal(v.Pool), "its pool is written down first")
	}
	if len(d.Operations.OpenPortals) > 0 {
		others := d.Operations
		others.OpenPortals, others.ClosePortals = nil, nil
		g.Expect(others.Empty()).To(BeTrue(), "portals open alone")
	}
	for _, e := range s.Target.State.Exports {
		if len(e.Hosts) > 0 {
			g.Expect(d.Operations.ClosePortals).To(BeEmpty(), "no portal closes while a host is admitted")
		}
	}
}

func randomNode(random *rand.Rand) Observed {
	s := quietNode()
	maybe := func() bool { return random.IntN(2) == 0 }
	rarely := func() bool { return random.IntN(8) == 0 }
	s.Settling, s.Refresh = maybe(), maybe()
	if rarely() {
		s.Inventory = nil
	}
	if rarely() {
		s.Node.Spec = v1alpha1.NvmfNodeSpec{}
	}
	if rarely() {
		s.Target.Err, s.Target.Reason = errors.New("no answer"), v1alpha1.ReasonEngineNotAnswering
	}
	state := &s.Target.State
	for i := range state.Pools {
		if rarely() {
			state.Pools[i].Err = errors.New("input/output error")
		}
	}
	state.Pools = state.Pools[:random.IntN(3)]
	state.Portals = state.Portals[:random.IntN(2)]
	if rarely() {
		state.Portals = append(state.Portals, openedPortal(tcp2))
	}
	for n := 1; n <= 8; n++ {
		var changes []func(*v1alpha1.NvmfReplica)
		for _, c := range []func(*v1alpha1.NvmfReplica){
			isCreatedOn("a"), recordedOn("b"), recordedOn("gone"), withHosts(hostA), withHosts(hostB), isDeleting,
			fromVolume("v1"), fromSnapshot("s9"), ofSize("60Gi"), ofSize("1Gi"), overRDMA, reportedHost(hostA, true),
		} {
			if random.IntN(4) == 0 {
				changes = append(changes, c)
			}
		}
		if maybe() {
			s.Volumes = append(s.Volumes, testVolume(n, changes...))
		}
		if maybe() {
			state.Volumes = append(state.Volumes, engineVolume(n, []string{"a", "b"}[random.IntN(2)]))
		}
		if maybe() {
			state.Exports = append(state.Exports, exported(n, [][]string{nil, {hostA}, {hostA, hostB}}[random.IntN(3)]...))
		}
	}
	for n := 9; n <= 12; n++ {
		if maybe() {
			snap := testSnapshot(n, []string{"v1", "v2", "gone"}[random.IntN(3)])
			for _, c := range []func(*v1alpha1.NvmfSnapshot){snapshotCreated, snapshotDeleting} {
				if maybe() {
					c(snap)
				}
			}
			s.Snapshots = append(s.Snapshots, snap)
		}
		if maybe() {
			state.Snapshots = append(state.Snapshots, engine.Snapshot{ID: id(n), Pool: "a", SizeBytes: gib})
		}
	}
	for _, a := range []attempt{
		{VerbOpenPool, "a"}, {VerbOpenPool, "b"}, {VerbCreateVolume, uuid(1)}, {VerbExport, subsystem(2)},
		{VerbUnexport, subsystem(3)}, {VerbDeleteVolume, uuid(4)}, {VerbGrowVolume, uuid(5)}, {VerbOpenPortal, PortalKey(tcp)},
	} {
		if rarely() {
			s.Attempts[a] = []error{nil, engine.ErrNoSpace, engine.ErrNotFound, engine.ErrBusy}[random.IntN(4)]
		}
	}
	return s
}

func TestConditionsKeepTheirTime(t *testing.T) {
	g := NewWithT(t)
	before := []metav1.Condition{
		{Type: "AgentAlive", Status: "True", Reason: "AsExpected"},
		{Type: "Ready", Status: "True", Reason: "AsExpected", LastTransitionTime: metav1.NewTime(now.Add(-1))},
	}
	after := Conditions(before, 4, now, typed("Ready", yesBecause("Pending", "other words")), typed("Degraded", quiet()))
	g.Expect(after).To(HaveLen(2), "other writers' conditions are theirs")
	g.Expect(meta.FindStatusCondition(after, "Ready").LastTransitionTime).To(Equal(before[1].LastTransitionTime))
	g.Expect(meta.FindStatusCondition(after, "Ready").Reason).To(Equal("Pending"))
	g.Expect(meta.FindStatusCondition(after, "Degraded").LastTransitionTime.Time).To(BeTemporally("==", now))
}

func TestConditionsCutNoCharacter(t *testing.T) {
	g := NewWithT(t)
	for extra := range 2 { // two bytes a character: with one of them the bound is inside one
		message := strings.Repeat("x", extra) + strings.Repeat("ä", MaxMessageBytes)
		is := Conditions(nil, 1, now, typed("Ready", no("PoolFailed", "%s", message)))[0].Message
		g.Expect(utf8.ValidString(is)).To(BeTrue())
		g.Expect(len(is)).To(BeNumerically("<=", MaxMessageBytes))
		g.Expect(is).To(HaveSuffix("ä..."))
	}
}
