// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// writer of single blocks at random places of a volume, each of which may be the first of its cluster.
type writer struct {
	host *enginetest.WireHost
	// last value that was acknowledged at each place.
	last map[int64]byte
	// writes that were.
	writes atomic.Int64
}

// writeUntil it is to stop. A host has the memory of what it wrote: it goes on with the next value of each place.
func (w *writer) writeUntil(stop *atomic.Bool) error {
	block := make([]byte, enginetest.BlockBytes)
	for value := byte(1); !stop.Load(); value++ {
		block[0] = value
		var places []int64
		chosen := map[int64]bool{}
		for range 16 {
			at := rand.Int64N(w.host.SizeBytes()/enginetest.BlockBytes) * enginetest.BlockBytes
			if !chosen[at] {
				chosen[at] = true
				places = append(places, at)
			}
		}
		for left := places; len(left) > 0; {
			errs, err := w.host.WriteEach(block, left)
			if err != nil {
				return err
			}
			var again []int64
			for i, at := range left {
				switch {
				case errs[i] == nil:
					w.last[at] = value
					w.writes.Add(1)
				case enginetest.IsInaccessible(errs[i]):
					again = append(again, at)
				default:
					return errs[i]
				}
			}
			left = again
		}
	}
	return nil
}

// TestSnapshotsUnderWrites: while a host writes to a volume of a real target, it is snapshotted, cloned and grown, and
// its last snapshot is deleted. After
// the target's next start the pool is there, and the host has all that was acknowledged.
func TestSnapshotsUnderWrites(t *testing.T) {
	spdktest.RealTarget(t)
	m := newMachine(t)
	m.interrupts()
	r := rigOn(t, m, m.file(2<<30))
	volume, size := r.create(engine.Source{}, 64*mib), int64(64*mib)
	host, _, err := r.serve(volume)
	check(t, err)
	w := &writer{host: host, last: map[int64]byte{}}
	var stop atomic.Bool
	var failed error
	var writing sync.WaitGroup
	writing.Go(func() { failed = w.writeUntil(&stop) })
	for range 4 {
		merged := newID()
		for _, change := range []func() []error{
			func() []error {
				return r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: volume}})
			},
			func() []error {
				return r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: merged, Volume: volume}})
			},
			func() []error {
				return append(r.engine.DeleteSnapshots(r.ctx, []engine.ID{merged}), r.clearNow())
			},
			func() []error {
				return r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{{ID: newID(), Pool: r.device.ID, SizeBytes: size, Source: engine.Source{Volume: volume}}})
			},
			func() []error {
				size += 4 * mib
				return r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: size}})
			},
		} {
			before := w.writes.Load()
			r.Eventually(w.writes.Load).WithTimeout(time.Minute).Should(BeNumerically(">", before+32))
			r.done(change())
		}
	}
	stop.Store(true)
	writing.Wait()
	r.Expect(failed).NotTo(HaveOccurred())
	host.Close()

	r.restarted()
	r.done(r.engine.OpenPortals(r.ctx, r.portals()))
	r.use(volume, func(host *enginetest.WireHost) {
		block := make([]byte, enginetest.BlockBytes)
		for at, value := range w.last {
			_, err := host.ReadAt(block, at)
			check(t, err)
			r.Expect(block[0]).To(Equal(value), "at %d", at)
		}
	})
	t.Logf("%d writes", w.writes.Load())
}

// attached volume, to a host of the fake.
func (r *rig) attached(fake *spdktest.Target) (engine.ID, engine.Export) {
	r.t.Helper()
	id := r.create(engine.Source{}, 8*mib)
	x := r.exportOf(id)
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	_, err := fake.Connect(x.NQN, x.Hosts[0], 1)
	check(r.t, err)
	return id, x
}

// TestQuietWhileSnapshotted: on the fake, a volume whose host may write while it is snapshotted takes the whole pool
// with it. Hosts of other volumes never wait, and no host does afterwards.
func TestQuietWhileSnapshotted(t *testing.T) {
	r, fake := newFakeRig(t)
	used, _ := r.attached(fake)
	unused := r.create(engine.Source{}, 8*mib)
	before := fake.Calls()["nvmf_subsystem_listener_set_ana_state"]
	r.snap(unused)
	r.Expect(fake.Calls()["nvmf_subsystem_listener_set_ana_state"]).To(Equal(before))
	r.create(engine.Source{Volume: used}, 8*mib)
	r.done(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: used, SizeBytes: 16 * mib}}))
	snapshot := r.snap(used)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	before = fake.Calls()["nvmf_subsystem_set_ns_ana_group"]
	r.clear()
	r.Expect(fake.Calls()["nvmf_subsystem_set_ns_ana_group"]).To(Equal(before + 1))
	r.Expect(fake.Inaccessible()).To(BeEmpty())
	r.reopened()
	r.Expect(r.state().Volumes).To(HaveLen(3))
}

// TestHostsThatWaitAreWoken also where the process that had them wait is gone, or I/O that is under way does not end.
func TestHostsThatWaitAreWoken(t *testing.T) {
	r, fake := newFakeRig(t)
	volume, x := r.attached(fake)
	release, err := fake.HoldIO(r.lvols()[string(volume)].Alias)
	check(t, err)
	r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: volume}})).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.state()
	release()
	r.Eventually(func() []string { r.state(); return fake.Inaccessible() }).WithTimeout(time.Minute).Should(BeEmpty())
	record := r.quietRecord(x.NQN)
	r.Eventually(record).WithTimeout(time.Minute).ShouldNot(BeAnExistingFile(), "which is removed last")

	for _, portal := range r.portals() {
		_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfSubsystemListenerSetAnaState{NQN: x.NQN, State: spdkrpc.ANAInaccessible,
			Address: spdkrpc.Address{Transport: string(portal.Transport), Family: spdkrpc.FamilyIPv4, Address: portal.Address, Port: strconv.Itoa(int(portal.Port))}})
		check(t, err)
	}
	check(t, os.WriteFile(record, nil, 0o600))
	r.Expect(fake.Inaccessible()).NotTo(BeEmpty())
	r.engine = r.machine.engine(t)
	r.state()
	r.Expect(fake.Inaccessible()).To(BeEmpty())
	r.Expect(record).NotTo(BeAnExistingFile())
}

// quietRecord of a subsystem whose hosts are kept waiting.
func (r *rig) quietRecord(nqn string) string {
	return filepath.Join(r.dir, "state", "spdk", "quiet", nqn)
}

// TestHostsWaitAsLongAsSPDKWorks, which goes on when the time of the call has ended: a host that writes then would take
// the pool with it.
func TestHostsWaitAsLongAsSPDKWorks(t *testing.T) {
	r, fake := newFakeRig(t)
	volume, x := r.attached(fake)
	goOn := fake.Hang(r.lvstoreOf(volume))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	snapshot := []engine.SnapshotSpec{{ID: newID(), Volume: volume}}
	r.Expect(r.engine.CreateSnapshots(brief, snapshot)).To(HaveExactElements(MatchError(context.DeadlineExceeded)))
	r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN))
	r.Expect(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: 16 * mib}})).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.state()
	r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN), "nobody else wakes them")
	goOn()
	r.Eventually(fake.Inaccessible).WithTimeout(time.Minute).Should(BeEmpty())
	r.done(r.engine.CreateSnapshots(r.ctx, snapshot))
	r.reopened()
	r.Expect(r.state().Snapshots).To(HaveLen(1))
}

// TestWatchEndsOnceSPDKIsDone: whoever comes after a process that was told to end would wake the hosts at once.
func TestWatchEndsOnceSPDKIsDone(t *testing.T) {
	r, fake := newFakeRig(t)
	volume, x := r.attached(fake)
	ctx, end := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.engine.Watch(ctx, func() {})
	}()
	goOn := fake.Hang(r.lvstoreOf(volume))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	r.Expect(r.engine.CreateSnapshots(brief, []engine.SnapshotSpec{{ID: newID(), Volume: volume}})).To(HaveExactElements(MatchError(context.DeadlineExceeded)))
	end()
	r.Consistently(ended).WithTimeout(time.Second).ShouldNot(BeClosed())
	r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN))
	goOn()
	r.Eventually(ended).WithTimeout(time.Minute).Should(BeClosed())
	r.Expect(fake.Inaccessible()).To(BeEmpty())
}

// TestNobodyComesWhileSPDKWorks on a volume: neither a host of one that had none, nor by another portal.
func TestNobodyComesWhileSPDKWorks(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	unused := r.create(engine.Source{}, 8*mib)
	other := r.portals()[0]
	other.Port++
	goOn := fake.Hang(r.lvstoreOf(used))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	snapshots := []engine.SnapshotSpec{{ID: newID(), Volume: used}, {ID: newID(), Volume: unused}}
	r.Expect(r.engine.CreateSnapshots(brief, snapshots)).To(HaveEach(MatchError(context.DeadlineExceeded)))
	late := r.exportOf(unused)
	r.Expect(r.engine.Export(r.ctx, []engine.Export{late, x})).To(HaveExactElements(MatchError(engine.ErrBusy), BeNil()))
	r.done(r.engine.OpenPortals(r.ctx, []engine.Portal{other}))
	r.Expect(r.portalsOf(x)).NotTo(ContainElement(other.Portal))
	r.Expect(r.engine.Export(r.ctx, []engine.Export{x})).To(HaveExactElements(MatchError(engine.ErrBusy)), "it would get the portal")
	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	again := x
	again.NQN += "-2"
	r.Expect(r.engine.Export(r.ctx, []engine.Export{again})).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{used, unused})).To(HaveEach(MatchError(engine.ErrBusy)))
	goOn()
	exports := []engine.Export{late, again}
	r.Eventually(func() []error { return r.engine.Export(r.ctx, exports) }).WithTimeout(time.Minute).Should(HaveEach(BeNil()))
	r.Expect(r.portalsOf(again)).To(ContainElement(other.Portal))
	r.done(r.engine.CreateSnapshots(r.ctx, snapshots))
	r.Expect(r.state().Snapshots).To(HaveLen(2))
}

// portalsOf an export.
func (r *rig) portalsOf(x engine.Export) []v1alpha1.Portal {
	r.t.Helper()
	for _, is := range r.state().Exports {
		if is.NQN == x.NQN {
			return is.Portals
		}
	}
	return nil
}

// TestLimitsAreLiftedWhileHostsWait, so that what waits for them ends, and hold again before hosts go on; also where
// the process that lifted them is gone.
func TestLimitsAreLiftedWhileHostsWait(t *testing.T) {
	r, fake := newFakeRig(t)
	volume, x := r.attached(fake)
	qos := engine.QoS{MiBps: 1}
	limits := func(to engine.QoS) { r.done(r.engine.SetQoS(r.ctx, []engine.VolumeQoS{{ID: volume, QoS: to}})) }
	limits(qos)
	var calls []string
	for _, method := range []string{"bdev_set_qos_limit", "nvmf_subsystem_set_ns_ana_group", "bdev_lvol_snapshot", "nvmf_subsystem_listener_set_ana_state"} {
		watch(fake, method, func(json.RawMessage) { calls = append(calls, method) })
	}
	var record []byte
	watch(fake, "bdev_lvol_snapshot", func(json.RawMessage) {
		var err error
		record, err = os.ReadFile(r.quietRecord(x.NQN))
		check(t, err)
	})
	r.snap(volume)
	calls = slices.Compact(calls) // a call for each listener
	r.Expect(calls).To(Equal([]string{
		"nvmf_subsystem_listener_set_ana_state", "bdev_set_qos_limit", "nvmf_subsystem_set_ns_ana_group",
		"bdev_lvol_snapshot", "bdev_set_qos_limit", "nvmf_subsystem_listener_set_ana_state",
	}))
	r.Expect(r.state().Volumes).To(ConsistOf(HaveField("QoS", qos)))

	limits(engine.QoS{})
	check(t, os.WriteFile(r.quietRecord(x.NQN), record, 0o600))
	calls = nil
	r.engine = r.machine.engine(t)
	r.Expect(r.state().Volumes).To(ConsistOf(HaveField("QoS", qos)))
	r.Expect(slices.Compact(calls)).To(Equal([]string{"bdev_set_qos_limit", "nvmf_subsystem_listener_set_ana_state"}))
}
