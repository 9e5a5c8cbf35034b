// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// changing is the folder of records about what SPDK changes.
func (r *rig) changing() string { return filepath.Join(filepath.Dir(r.socket()), "changing") }

// changingRecords are the names of files about what SPDK changes.
func (r *rig) changingRecords() []string {
	r.t.Helper()
	entries, err := os.ReadDir(r.changing())
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

// TestNextProcessWaitsForAGrowth until the volume has its size.
func TestNextProcessWaitsForAGrowth(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	goOn := r.beganToGrow(fake, used)
	r.killed()
	r.state()
	r.Consistently(fake.Inaccessible).WithTimeout(6*time.Second).Should(ConsistOf(x.NQN), "also when SPDK must have begun")
	goOn()
	r.Eventually(fake.Inaccessible).WithTimeout(time.Minute).Should(BeEmpty())
	r.Expect(r.changingRecords()).To(BeEmpty())
	r.Expect(r.state().Volumes).To(ConsistOf(HaveField("SizeBytes", int64(16*mib))))
}

// beganToGrow a volume, and SPDK does not end that until it may go on.
func (r *rig) beganToGrow(fake *spdktest.Target, volume engine.ID) (goOn func()) {
	r.t.Helper()
	goOn = fake.Hang(r.lvstoreOf(volume))
	brief, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	grown := []engine.VolumeSize{{ID: volume, SizeBytes: 16 * mib}}
	r.Expect(r.engine.GrowVolumes(brief, grown)).To(HaveEach(MatchError(context.DeadlineExceeded)))
	return goOn
}

// TestNextProcessDoesNotWaitForAGrowthThatNeverBegan, or was refused: its process was killed before.
func TestNextProcessDoesNotWaitForAGrowthThatNeverBegan(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	goOn := r.beganToGrow(fake, used)
	dir := r.changing()
	name := r.changingRecords()[0]
	record, err := os.ReadFile(filepath.Join(dir, name))
	check(t, err)
	goOn()
	r.Eventually(r.changingRecords).WithTimeout(time.Minute).Should(BeEmpty(), "which it removes last")
	var o map[string]any
	check(t, json.Unmarshal(record, &o))
	o["growsTo"] = 1 << 40
	record, err = json.Marshal(o)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, name), record, 0o600))
	check(t, os.WriteFile(r.quietRecord(x.NQN), nil, 0o600))
	r.killed()
	r.state()
	r.Eventually(r.quietRecord(x.NQN)).WithTimeout(time.Minute).ShouldNot(BeAnExistingFile(), "once it has woken the hosts")
	r.Expect(r.changingRecords()).To(BeEmpty())
}

// TestNextProcessWaitsForAMerge, and not for the clearing after it.
func TestNextProcessWaitsForAMerge(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	snapshot := r.snap(used)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.soil(used) // so that nothing is written before the merge
	lvstore := r.lvstoreOf(used)
	cleared, goOn := fake.HoldClearing(lvstore), fake.Hang(lvstore)
	defer cleared()
	ended := make(chan error, 1)
	go func() { ended <- r.clearNow() }()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).Should(Equal(1))
	r.killed()
	r.Expect(<-ended).To(MatchError(engine.ErrUnavailable))
	r.state()
	r.Consistently(fake.Inaccessible).WithTimeout(time.Second).Should(ConsistOf(x.NQN))
	goOn()
	r.Eventually(fake.Inaccessible).WithTimeout(time.Minute).Should(BeEmpty())
	r.Expect(r.changingRecords()).To(BeEmpty())
}

// TestHostsWaitAsLongAsSPDKMerges a deleted snapshot on a drive that is slow.
func TestHostsWaitAsLongAsSPDKMerges(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{r.snap(used)}))
	r.soil(used)
	goOn := fake.Hang(r.lvstoreOf(used))
	ended := make(chan error, 1)
	go func() { ended <- r.clearNow() }()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).Should(Equal(1))
	other := r.portals()[0]
	other.Port++
	r.done(r.engine.OpenPortals(r.ctx, []engine.Portal{other}))
	r.Expect(r.engine.Export(r.ctx, []engine.Export{x})).To(HaveExactElements(MatchError(engine.ErrBusy)), "it would get the portal")
	r.Consistently(fake.Inaccessible).WithTimeout(2 * time.Second).Should(ConsistOf(x.NQN))
	goOn()
	check(t, <-ended)
	r.Expect(fake.Inaccessible()).To(BeEmpty())
}

// TestCallsThatComeTooLateChangeNothing: the time of a call is often over when it gets its turn on a slow drive. What
// SPDK changes then is known all the same, to whatever comes next and to the end of Watch.
func TestCallsThatComeTooLateChangeNothing(t *testing.T) {
	r, fake := newFakeRig(t)
	used, x := r.attached(fake)
	watching, stop := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.engine.Watch(watching, func() {})
	}()
	goOn := r.beganToGrow(fake, used)
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	for range 20 {
		_, err := r.engine.Gather(over)
		r.Expect(err).To(MatchError(context.Canceled))
	}
	r.state()
	r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: used}})).To(HaveEach(MatchError(engine.ErrBusy)))
	stop()
	r.Consistently(ended).WithTimeout(time.Second).ShouldNot(BeClosed())
	r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN))
	goOn()
	r.Eventually(ended).WithTimeout(time.Minute).Should(BeClosed())
	r.Expect(fake.Inaccessible()).To(BeEmpty())
}

// TestHostsWaitWhileRecordsCannotBeRead: what SPDK changes is unknown then, and not nothing.
func TestHostsWaitWhileRecordsCannotBeRead(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, dir string){
		"all of them": func(r *rig, dir string) {
			check(r.t, os.Rename(dir, dir+"-away"))
			check(r.t, os.WriteFile(dir, nil, 0o600))
		},
		"one of them": func(r *rig, dir string) {
			record := filepath.Join(dir, r.changingRecords()[0])
			check(r.t, os.Remove(record))
			check(r.t, os.Mkdir(record, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := newFakeRig(t)
			used, x := r.attached(fake)
			other := r.exportOf(r.create(engine.Source{}, 8*mib))
			goOn := r.beganToGrow(fake, used)
			defer goOn()
			spoil(r, r.changing())
			r.killed()
			r.state()
			r.Expect(fake.Inaccessible()).To(ConsistOf(x.NQN))
			r.Expect(r.engine.Export(r.ctx, []engine.Export{other})).To(HaveEach(MatchError(engine.ErrBusy)))
			portal := r.portals()[0]
			portal.Port++
			r.engine.OpenPortals(r.ctx, []engine.Portal{portal})
			r.Expect(r.portalsOf(x)).NotTo(ContainElement(portal.Portal), "whoever connects there does not wait")
		})
	}
}

// TestRecordsThatMeanNothingAreRemoved: of another target, or of a process that ended while it wrote them.
func TestRecordsThatMeanNothingAreRemoved(t *testing.T) {
	r, fake := newFakeRig(t)
	used, _ := r.attached(fake)
	dir := r.changing()
	check(t, os.MkdirAll(dir, 0o700))
	for name, content := range map[string]string{"a": "", "b": `{"makes":`, "c": `{"growsTo":1099511627776,"until":9223372036854775807,"target":"1 2"}`} {
		check(t, os.WriteFile(filepath.Join(dir, r.lvstoreOf(used)+"%2F"+name), []byte(content), 0o600))
	}
	r.killed()
	r.state()
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

// TestChangesShowTheirEnd, on a real target as on the fake: see ongoing.go.
func TestChangesShowTheirEnd(t *testing.T) {
	r := newRig(t)
	volume := r.create(engine.Source{}, 8*mib)
	alias, lvstore := r.lvols()[string(volume)].Alias, r.lvstoreOf(volume)
	conn, err := r.client.Connect(r.ctx)
	check(t, err)
	lvstores := func() []spdkrpc.Lvstore {
		all, err := spdkrpc.Call(r.ctx, conn, spdkrpc.BdevLvolGetLvstores{Name: lvstore})
		check(t, err)
		return all
	}
	clone := spdkrpc.BdevLvolClone{Snapshot: alias, Name: "made"}
	volumeNow, made := spdkrpc.BdevGetBdevs{Name: alias}, spdkrpc.BdevGetBdevs{Name: lvstore + "/made"}
	refused := func() error { _, err := spdkrpc.Call(r.ctx, conn, clone); return err }
	before := lvstores()
	r.Expect(refused()).To(MatchError(spdkrpc.ErrInvalid))
	r.Expect(lvstores()).To(Equal(before))
	r.Expect(r.lvols()).To(HaveLen(1))

	snapshot := spdkrpc.Start(r.ctx, conn, spdkrpc.BdevLvolSnapshot{Volume: alias, Name: "made"})
	meanwhile, there := spdkrpc.Start(r.ctx, conn, clone), spdkrpc.Start(r.ctx, conn, made)
	_, err = meanwhile.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrExists))
	_, err = there.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrNotFound))
	_, err = snapshot.Wait()
	check(t, err)
	r.Expect(refused()).To(MatchError(spdkrpc.ErrExists))
	is, err := spdkrpc.Call(r.ctx, conn, volumeNow)
	check(t, err)
	r.Expect(is).To(ConsistOf(HaveField("Driver.Lvol.Base", "made")))

	grown := spdkrpc.Start(r.ctx, conn, spdkrpc.BdevLvolResize{Name: alias, SizeMiB: 16})
	small := spdkrpc.Start(r.ctx, conn, volumeNow)
	is, err = small.Wait()
	check(t, err)
	r.Expect(is[0].Blocks * is[0].BlockBytes).To(BeEquivalentTo(8 * mib))
	_, err = grown.Wait()
	check(t, err)
	is, err = spdkrpc.Call(r.ctx, conn, volumeNow)
	check(t, err)
	r.Expect(is[0].Blocks * is[0].BlockBytes).To(BeEquivalentTo(16 * mib))

	deleted := spdkrpc.Start(r.ctx, conn, spdkrpc.BdevLvolDelete{Name: lvstore + "/made"})
	based, there := spdkrpc.Start(r.ctx, conn, volumeNow), spdkrpc.Start(r.ctx, conn, made)
	is, err = based.Wait()
	check(t, err)
	r.Expect(is).To(ConsistOf(HaveField("Driver.Lvol.Base", "made")))
	_, err = there.Wait()
	r.Expect(err).To(MatchError(spdkrpc.ErrNotFound))
	_, err = deleted.Wait()
	check(t, err)
	is, err = spdkrpc.Call(r.ctx, conn, volumeNow)
	check(t, err)
	r.Expect(is).To(ConsistOf(HaveField("Driver.Lvol.Base", BeEmpty())))
	r.Expect(refused()).To(MatchError(spdkrpc.ErrInvalid))
}
