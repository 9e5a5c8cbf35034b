// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// changingRecords are the names of files about what SPDK changes.
func (r *rig) changingRecords() []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(filepath.Dir(r.socket()), "changing"))
	if !os.IsNotExist(err) {
		check(r.t, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// killed agent, and the next one.
func (r *rig) killed() {
	r.engine.Close()
	r.engine = r.machine.engine(r.t)
}

// TestNextProcessWaitsForASnapshot that SPDK still takes, whose process was killed: it neither wakes the hosts of the
// volume, nor gives it to new ones. A host that wrote then would take the pool with it.
func TestNextProcessWaitsForASnapshot(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	unused := r.create(engine.Source{}, 8*mib)
	goOn := fake.Hang(r.lvstoreOf(used))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	snapshots := []engine.SnapshotSpec{{ID: newID(), Volume: used}, {ID: newID(), Volume: unused}}
	r.Expect(r.engine.CreateSnapshots(brief, snapshots)).To(HaveEach(MatchError(context.DeadlineExceeded)))
	r.Expect(r.changingRecords()).To(HaveLen(2))
	late := r.exportOf(unused)
	for range 2 { // and the one after it
		r.killed()
		r.Expect(r.engine.Export(r.ctx, []engine.Export{late})).To(HaveExactElements(MatchError(engine.ErrBusy)), "before it looks at anything")
		r.state()
		r.Consistently(fake.Inaccessible).WithTimeout(time.Second).Should(ConsistOf(x.NQN))
	}
	goOn()
	r.Eventually(fake.Inaccessible).WithTimeout(time.Minute).Should(BeEmpty())
	r.Eventually(func() []error { return r.engine.Export(r.ctx, []engine.Export{late}) }).WithTimeout(time.Minute).Should(HaveEach(BeNil()))
	r.Expect(r.changingRecords()).To(BeEmpty())
	r.reopened()
	r.Expect(r.state().Snapshots).To(HaveLen(2))
}

// TestNextProcessWaitsForAGrowth a while, because SPDK does not show its end.
func TestNextProcessWaitsForAGrowth(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	goOn := fake.Hang(r.lvstoreOf(used))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	grown := []engine.VolumeSize{{ID: used, SizeBytes: 16 * mib}}
	r.Expect(r.engine.GrowVolumes(brief, grown)).To(HaveEach(MatchError(context.DeadlineExceeded)))
	r.killed()
	r.state()
	goOn()
	r.Consistently(fake.Inaccessible).WithTimeout(time.Second).Should(ConsistOf(x.NQN))
	r.Expect(r.changingRecords()).To(HaveLen(1))
}

// TestNextProcessWaitsForAMerge as long as the one that began it would have.
func TestNextProcessWaitsForAMerge(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	snapshot := r.snap(used)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.soil(used) // so that nothing is written before the merge
	goOn := fake.Hang(r.lvstoreOf(used))
	defer goOn()
	cleared := make(chan error, 1)
	go func() { cleared <- r.clearNow() }()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).Should(Equal(1))
	r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN))
	r.Expect(r.changingRecords()).To(HaveLen(1))
	asked := fake.Calls()["bdev_lvol_create"]
	r.killed()
	r.Expect(<-cleared).To(MatchError(engine.ErrUnavailable))
	r.state()
	r.Eventually(fake.Inaccessible).WithTimeout(time.Minute).Should(BeEmpty())
	r.Expect(fake.Calls()["bdev_lvol_create"]).To(BeNumerically(">", asked+1), "it asks more than once")
	r.Expect(r.changingRecords()).To(BeEmpty())
}

// TestChangesThatEndedLeaveNoRecord, whether or not SPDK did what it was asked for.
func TestChangesThatEndedLeaveNoRecord(t *testing.T) {
	r, fake := newFakeRig(t)
	used, _ := r.attached(fake)
	unused := r.create(engine.Source{}, 8*mib)
	snapshot := r.snap(used)
	r.snap(unused)
	r.create(engine.Source{Volume: used}, 8*mib)
	r.done(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: used, SizeBytes: 16 * mib}, {ID: unused, SizeBytes: 16 * mib}}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.clear()
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_snapshot", Error: &spdktest.AnswerError{Code: -12, Message: "Cannot allocate memory"}})
	r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: used}})).To(HaveEach(HaveOccurred()))
	r.Expect(r.changingRecords()).To(BeEmpty())
}

// TestNameOfWhatSPDKMakesOrDeletesIsTaken until it is done, which is how the end of a change is seen.
func TestNameOfWhatSPDKMakesOrDeletesIsTaken(t *testing.T) {
	r := newRig(t)
	volume := r.create(engine.Source{}, 8*mib)
	alias, lvstore := r.lvols()[string(volume)].Alias, r.lvstoreOf(volume)
	conn, err := r.client.Connect(r.ctx)
	check(t, err)
	is, err := spdkrpc.Call(r.ctx, conn, spdkrpc.BdevLvolGetLvstores{Name: lvstore})
	check(t, err)
	asked := spdkrpc.BdevLvolCreate{LvstoreName: lvstore, Name: "made", SizeMiB: (is[0].TotalClusters+1)*is[0].ClusterBytes/mib + 1}
	ask := func() error { _, err := spdkrpc.Call(r.ctx, conn, asked); return err }
	bdev := spdkrpc.BdevGetBdevs{Name: lvstore + "/made"}
	r.Expect(ask()).To(MatchError(spdkrpc.ErrNoSpace))

	made := spdkrpc.Start(r.ctx, conn, spdkrpc.BdevLvolSnapshot{Volume: alias, Name: "made"})
	meanwhile, there := spdkrpc.Start(r.ctx, conn, asked), spdkrpc.Start(r.ctx, conn, bdev)
	_, err = meanwhile.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrExists))
	_, err = there.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrNotFound))
	_, err = made.Wait()
	check(t, err)
	r.Expect(ask()).To(MatchError(spdkrpc.ErrExists))
	_, err = spdkrpc.Call(r.ctx, conn, bdev)
	check(t, err)

	deleted := spdkrpc.Start(r.ctx, conn, spdkrpc.BdevLvolDelete{Name: lvstore + "/made"})
	meanwhile, there = spdkrpc.Start(r.ctx, conn, asked), spdkrpc.Start(r.ctx, conn, bdev)
	_, err = meanwhile.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrExists))
	_, err = there.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrNotFound))
	_, err = deleted.Wait()
	check(t, err)
	r.Expect(ask()).To(MatchError(spdkrpc.ErrNoSpace))
}
