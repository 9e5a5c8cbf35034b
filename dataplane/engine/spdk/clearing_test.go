// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// nameIn the parameters of a call.
func nameIn(params json.RawMessage) string {
	var p struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return err.Error()
	}
	return p.Name
}

// notTheMark of a pool whose free space may not be clean, which goes when all is cleared.
func notTheMark(params json.RawMessage) bool { return !strings.HasSuffix(nameIn(params), "/soiled") }

// TestDeletionHoldsUpNobody: while what was deleted is cleared, and however long that takes, other calls go on.
func TestDeletionHoldsUpNobody(t *testing.T) {
	r, fake := newFakeRig(t)
	id, other := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)
	snapshot := r.snap(id)
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Match: notTheMark, Times: -1, Delay: time.Hour})
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	giveUp := r.beginsToClear()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).Should(BeNumerically(">", 0))
	r.Expect(r.state()).To(And(HaveField("Snapshots", BeEmpty()), HaveField("Volumes", ConsistOf(HaveField("ID", other)))))
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(other), r.exportOf(r.create(engine.Source{}, 16*mib))}))
	giveUp()
}

// TestPoolsAreClearedBesideEachOther: what is cleared on one drive may take hours, or never end. Another drive is
// cleared meanwhile, serves hosts that wait for its free space, and is marked as clean.
func TestPoolsAreClearedBesideEachOther(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	for name, slow := range map[string]struct {
		down func(fake *spdktest.Target, drive spdktest.Drive, volume string)
		// at this call it does not go on.
		at string
	}{
		"its deletion does not end": {func(fake *spdktest.Target, _ spdktest.Drive, volume string) {
			fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Match: func(params json.RawMessage) bool { return nameIn(params) == volume }, Times: -1, Delay: time.Hour})
		}, "bdev_lvol_delete"},
		"its drive answers nothing": {func(fake *spdktest.Target, drive spdktest.Drive, _ string) { fake.Mute(drive.Address) }, "bdev_lvol_create"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			devices := m.twoDrives(t)
			r := rigOf(t, m)
			r.done(r.engine.OpenPools(r.ctx, devices))
			r.clear()
			stuck, gone, served := newID(), newID(), newID()
			r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{
				{ID: stuck, Pool: devices[0].ID, SizeBytes: 16 * mib}, {ID: gone, Pool: devices[1].ID, SizeBytes: 16 * mib}, {ID: served, Pool: devices[1].ID, SizeBytes: 16 * mib},
			}))
			lvstore := r.lvstoreOf(served)
			r.soil(served)
			r.reopened()
			r.done(r.engine.OpenPools(r.ctx, devices))
			export := []engine.Export{r.exportOf(served)}
			r.Expect(r.engine.Export(r.ctx, export)[0]).To(MatchError(engine.ErrBusy))
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{stuck, gone}))
			slow.down(r.fake(), m.fake.Drives[0], r.lvols()["x-"+string(stuck)].UUID)

			before := r.fake().Calls()[slow.at]
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := r.engine.Clear(ctx, devices[0].ID)
				ended <- err
			}()
			r.Eventually(func() int { return r.fake().Calls()[slow.at] }).Should(BeNumerically(">", before))

			_, err := r.engine.Clear(r.ctx, devices[1].ID)
			r.Expect(err).NotTo(HaveOccurred())
			r.done(r.engine.Export(r.ctx, export))
			r.Expect(r.state().Pools).To(ContainElement(And(HaveField("Device", devices[1].ID), HaveField("ClearingBytes", BeZero()))))
			r.Expect(r.marks(lvstore)).To(ConsistOf("clean"))
			r.Expect(ended).NotTo(Receive())
			cancel()
			r.Expect(<-ended).To(MatchError(context.Canceled))
		})
	}
}

// TestClearedAfterARestart of the target, whatever it was about.
func TestClearedAfterARestart(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 16*mib)
	snapshot := r.snap(id)
	clone := r.create(engine.Source{Snapshot: snapshot}, 16*mib)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id, id, clone}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot, snapshot}))
	r.restarted()
	r.Expect(r.state()).To(And(HaveField("Snapshots", BeEmpty()), HaveField("Volumes", BeEmpty())))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	cleared, err := r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(cleared).To(BeFalse())
}

// TestSameIDAgain: what has the ID of something that was deleted waits until that is cleared.
func TestSameIDAgain(t *testing.T) {
	r := newRig(t)
	source := r.create(engine.Source{}, 16*mib)
	id, snapshot := r.create(engine.Source{Volume: source}, 16*mib), r.snap(source)
	volumes := []engine.VolumeSpec{{ID: id, SizeBytes: 16 * mib, Source: engine.Source{Volume: source}}}
	snapshots := []engine.SnapshotSpec{{ID: snapshot, Volume: source}}
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.Expect(r.engine.CreateVolumes(r.ctx, volumes)[0]).To(MatchError(engine.ErrBusy))
	r.Expect(r.engine.CreateSnapshots(r.ctx, snapshots)[0]).To(MatchError(engine.ErrBusy))
	r.clear()
	r.done(r.engine.CreateVolumes(r.ctx, volumes))
	r.done(r.engine.CreateSnapshots(r.ctx, snapshots))
	r.Expect(r.state()).To(And(HaveField("Snapshots", HaveLen(1)), HaveField("Volumes", HaveLen(2))))
}

// TestDeletedVolumesGoBeforeTheirSnapshots, which would only be merged into them, and none is made smaller (see
// Clear).
func TestDeletedVolumesGoBeforeTheirSnapshots(t *testing.T) {
	r, fake := newFakeRig(t)
	source := r.create(engine.Source{}, 400*mib)
	check(t, fake.Write(r.lvols()[string(source)].Alias, 0, 10))
	clone := r.create(engine.Source{Volume: source}, 400*mib)
	check(t, fake.Write(r.lvols()[string(clone)].Alias, 0, 70))
	between := r.lvols()["c-"+string(clone)].UUID
	lvstore := r.lvstoreOf(clone)
	deleted := deletions(fake)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{clone, source}))
	r.Expect(r.state().Pools[0].ClearingBytes).To(BeEquivalentTo(80 * engine.SizeUnit))
	r.clear()
	r.Expect(r.state().Pools[0].ClearingBytes).To(BeZero())
	r.Expect(fake.Calls()).NotTo(HaveKey("bdev_lvol_resize"))
	r.Expect(*deleted).To(HaveLen(3))
	r.Expect((*deleted)[2]).To(Equal(between))
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(fake.Dirty(lvstore)).To(BeZero())
}

// deletions that the fake is asked for from now on, but for those of marks, in order.
func deletions(fake *spdktest.Target) *[]string {
	deleted := &[]string{}
	watch(fake, "bdev_lvol_delete", func(params json.RawMessage) {
		if notTheMark(params) {
			*deleted = append(*deleted, nameIn(params))
		}
	})
	return deleted
}

// watch the calls of a method, which go on as they would.
func watch(fake *spdktest.Target, method string, see func(params json.RawMessage)) {
	fake.Inject(spdktest.Fault{Method: method, Times: -1, Match: func(params json.RawMessage) bool {
		see(params)
		return false
	}})
}

// TestMergesThatWereCutOffAreEndedFirst: a target that was killed while it merged a snapshot may have clusters in the
// maps of both. If the volume goes first, they can be another's when the snapshot is cleared.
func TestMergesThatWereCutOffAreEndedFirst(t *testing.T) {
	r, fake := newFakeRig(t)
	volume := r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(volume)].Alias, 0, 4))
	snapshot := r.snap(volume)
	r.soil(volume)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.reopened()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
	var base string
	for _, l := range r.lvols() {
		if l.IsSnapshot {
			base = l.UUID
		}
	}
	last := r.lvols()["x-"+string(volume)].UUID
	deleted := deletions(r.fake())
	r.clear()
	r.Expect(*deleted).To(ContainElements(base, last))
	r.Expect(slices.Index(*deleted, base)).To(BeNumerically("<", slices.Index(*deleted, last)))
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(r.clean()).To(BeTrue())
}

// merging is a rig with a volume into which a deleted snapshot is to be merged.
func merging(t *testing.T) (*rig, *spdktest.Target, engine.ID) {
	r, fake := newFakeRig(t)
	volume := r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(volume)].Alias, 0, 4))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{r.snap(volume)}))
	return r, fake, volume
}

// failedMerge is SPDK's answer to the deletion of a snapshot, before or after it did anything.
func failedMerge(when spdktest.When) spdktest.Fault {
	return spdktest.Fault{Method: "bdev_lvol_delete", When: when, Match: notTheMark, Error: &spdktest.AnswerError{Code: -5, Message: "Input/output error"}}
}

// merges are the files about merges of which it is not known that SPDK has finished them.
func (r *rig) merges() []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "state/spdk/merges/*"))
	check(r.t, err)
	return files
}

// fails to merge: the deletion of the snapshot, as SPDK answers it before or after it did anything.
func (r *rig) failsToMerge(fake *spdktest.Target, when spdktest.When) {
	r.t.Helper()
	fake.Inject(failedMerge(when))
	_, err := r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).To(MatchError(ContainSubstring("Input/output error")))
	r.Expect(r.merges()).To(HaveLen(1))
}

// deletesNothing expects that all lvols stay, and that the reason is said, if there is something to delete.
func (r *rig) deletesNothing() {
	r.t.Helper()
	// Free clusters are held until they are cleared.
	kept := func() []string {
		names := slices.Sorted(maps.Keys(r.lvols()))
		return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "f-") || name == "soiled" })
	}
	before := kept()
	for range 2 {
		r.state()
		_, err := r.engine.Clear(r.ctx, r.device.ID)
		r.Expect(err).To(Or(BeNil(), MatchError(ContainSubstring("nothing is deleted"))))
	}
	r.Expect(kept()).To(Equal(before))
	r.Expect(r.clean()).To(BeFalse())
	r.Expect(r.state().Pools).To(HaveExactElements(HaveField("KeepsDeleted", MatchError(ContainSubstring("nothing is deleted")))))
}

// TestNothingIsDeletedAfterAMergeThatFailed, by the process that saw it and by the next one: SPDK may have given the
// volume what the snapshot still has, which it does not list until the target's next start.
func TestNothingIsDeletedAfterAMergeThatFailed(t *testing.T) {
	for who, then := range map[string]func(*rig){"this process": func(*rig) {}, "the process after it": (*rig).killed} {
		t.Run(who, func(t *testing.T) {
			r, fake, volume := merging(t)
			other := r.create(engine.Source{}, 4*mib)
			r.failsToMerge(fake, spdktest.After)
			then(r)
			r.deletesNothing()
			// What SPDK wrote of the volume would be a state that nothing can be restored from.
			same := HaveExactElements(MatchError(ContainSubstring("nothing is deleted")))
			r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume})).To(same)
			r.Expect(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: 32 * mib}})).To(same)
			r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: volume}})).To(same)
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{other}))
			r.deletesNothing()
			r.reopened()
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
			r.clear()
			r.Expect(r.lvols()).To(BeEmpty())
			r.Expect(r.clean()).To(BeTrue())
			r.Expect(r.merges()).To(BeEmpty())
			r.Expect(r.state().Pools).To(HaveExactElements(HaveField("KeepsDeleted", BeNil())))
		})
	}
}

// TestMergeThatNeverBeganIsDoneAgain: SPDK lists the snapshot, and the volume is based on it.
func TestMergeThatNeverBeganIsDoneAgain(t *testing.T) {
	for who, then := range map[string]func(*rig){"this process": func(*rig) {}, "the process after it": (*rig).killed} {
		t.Run(who, func(t *testing.T) {
			r, fake, volume := merging(t)
			r.failsToMerge(fake, spdktest.Before)
			then(r)
			r.clear()
			r.Expect(r.merges()).To(BeEmpty())
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
			r.clear()
			r.Expect(r.lvols()).To(BeEmpty())
			r.restarted()
			r.Expect(r.clean()).To(BeTrue())
		})
	}
}

// TestRecordOfAMergeThatWasNotWrittenWhole is none.
func TestRecordOfAMergeThatWasNotWrittenWhole(t *testing.T) {
	r, _, volume := merging(t)
	dir := filepath.Join(r.dir, "state/spdk/merges")
	check(t, os.MkdirAll(dir, 0o700))
	check(t, os.WriteFile(filepath.Join(dir, r.lvstoreOf(volume)+"%2Fs-1.new"), []byte(`{"in`), 0o600))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
	r.clear()
	r.Expect(r.lvols()).NotTo(HaveKey("x-" + string(volume)))
}

// TestNothingIsDeletedWhereAVolumeLostItsSnapshot: SPDK has written that the volume is based on nothing, and the
// snapshot still has what the volume needs.
func TestNothingIsDeletedWhereAVolumeLostItsSnapshot(t *testing.T) {
	r, fake, volume := merging(t)
	r.failsToMerge(fake, spdktest.Before)
	check(t, errorOf(spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolDecoupleParent{Name: r.lvols()[string(volume)].Alias})))
	for range 2 {
		r.reopened()
		r.deletesNothing()
	}
	clone := engine.VolumeSpec{ID: newID(), SizeBytes: 16 * mib, Source: engine.Source{Volume: volume}}
	r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{clone})).To(HaveExactElements(MatchError(ContainSubstring("nothing is deleted"))))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
	r.deletesNothing()
	r.killed()
	r.deletesNothing()
}

// TestMergesOnEachRelease: how I/O errors are asked for depends on it.
func TestMergesOnEachRelease(t *testing.T) {
	for _, version := range []string{"25.05", "26.01", "26.05"} {
		t.Run(version, func(t *testing.T) {
			r := rigOf(t, onFake(t, version))
			volume := r.create(engine.Source{}, 16*mib)
			check(t, r.fake().Write(r.lvols()[string(volume)].Alias, 0, 4))
			r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{r.snap(volume)}))
			r.clear()
			r.Expect(r.lvols()).To(HaveLen(1))
			r.Expect(r.clean()).To(BeTrue())
			r.state()
			r.Expect(r.statistics(volume).Pools).To(HaveLen(1))
		})
	}
}

// TestMergeThatCannotBeRecorded is not begun, and holds up nothing else.
func TestMergeThatCannotBeRecorded(t *testing.T) {
	r, _, volume := merging(t)
	other := r.create(engine.Source{}, 4*mib)
	folder := filepath.Join(r.dir, "state/spdk/merges")
	check(t, os.MkdirAll(folder, 0o700))
	check(t, os.Mkdir(filepath.Join(folder, url.PathEscape(r.lvstoreOf(volume)+"/"+r.snapshotOf(volume))+".new"), 0o700))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{other}))
	snapshot := r.snapshotOf(volume)
	_, err := r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).To(HaveOccurred())
	r.Expect(r.lvols()).To(And(HaveKey(snapshot), HaveKey(string(volume)), Not(HaveKey("x-"+string(other)))))
	check(t, os.RemoveAll(folder))
	r.clear()
	r.Expect(r.lvols()).To(HaveLen(1))
	r.Expect(r.merges()).To(BeEmpty())
	r.Expect(r.clean()).To(BeTrue())
}

// TestMergeWithoutMetadataPages is not begun: SPDK may answer that it has merged what it did not write. Volumes of a
// TiB and more need free ones.
func TestMergeWithoutMetadataPages(t *testing.T) {
	r, fake, volume := merging(t)
	small := r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(small)].Alias, 0, 4))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{r.snap(small)}))
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolResize{Name: r.lvols()[string(volume)].UUID, SizeMiB: 1 << 20})
	check(t, err) // the engine gives a volume no more than its pool could hold
	var others []engine.VolumeSpec
	for range 110 {
		others = append(others, engine.VolumeSpec{ID: newID(), Pool: r.device.ID, SizeBytes: 4 * mib})
	}
	r.done(r.engine.CreateVolumes(r.ctx, others))
	snapshot := r.snapshotOf(volume)
	r.clear()
	r.Expect(r.state().Pools[0].KeepsDeleted).To(MatchError(And(ContainSubstring("metadata pages"), ContainSubstring("delete volumes"))))
	r.Expect(r.lvols()).To(HaveKey(snapshot))
	r.Expect(r.snapshotOf(small)).To(BeEmpty(), "it needs no free pages, and is not held up")
	r.Expect(r.merges()).To(BeEmpty())

	var deleted []engine.ID
	for _, o := range others[:60] {
		deleted = append(deleted, o.ID)
	}
	r.done(r.engine.DeleteVolumes(r.ctx, deleted))
	r.Eventually(r.clearNow).WithTimeout(time.Minute).Should(Succeed(), "volumes go after snapshots")
	r.Expect(r.lvols()).To(HaveLen(52))
	r.Expect(r.merges()).To(BeEmpty())
	r.Expect(r.state().Pools[0].KeepsDeleted).To(Succeed())
}

// snapshotOf a volume that has one, by its name in the pool.
func (r *rig) snapshotOf(volume engine.ID) string {
	r.t.Helper()
	bdevs, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevGetBdevs{Name: r.lvols()[string(volume)].UUID})
	check(r.t, err)
	return bdevs[0].Driver.Lvol.Base
}

// TestMergeThatGoesOnAfterAnUpgrade is judged when it has ended, though nothing else is deleted.
func TestMergeThatGoesOnAfterAnUpgrade(t *testing.T) {
	r, fake, volume := merging(t)
	goOn := fake.HoldClearing(r.lvstoreOf(volume))
	stop := r.asksToDelete(fake)
	r.Expect(r.merges()).To(HaveLen(1))
	stop()
	r.killed()
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
	looks := func() ([]string, error) {
		kept := r.state().Pools[0].KeepsDeleted
		_, err := r.engine.Clear(r.ctx, r.device.ID)
		return r.merges(), errors.Join(kept, err)
	}
	r.Consistently(looks).WithTimeout(time.Second).Should(HaveLen(1))
	goOn()
	r.Eventually(looks).WithTimeout(time.Minute).Should(BeEmpty())
	r.done(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: 32 * mib}}))
}

// TestMergeThatFailsTheSecondTime: what was said of the first time is no permission.
func TestMergeThatFailsTheSecondTime(t *testing.T) {
	r, fake, volume := merging(t)
	r.failsToMerge(fake, spdktest.Before)
	fake.Inject(failedMerge(spdktest.After))
	_, err := r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).To(Succeed(), "there is nothing that it knows of")
	r.state()
	_, err = r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).To(MatchError(ContainSubstring("Input/output error")))
	r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume})).To(HaveExactElements(MatchError(ContainSubstring("nothing is deleted"))))
}

// TestDriveThatFailsWhileSPDKMerges: SPDK 26.05 answers that it has merged the snapshot even if it could not write a
// page of extents.
func TestDriveThatFailsWhileSPDKMerges(t *testing.T) {
	for who, then := range map[string]func(*rig){"this process": func(*rig) {}, "the process after it": (*rig).killed} {
		t.Run(who, func(t *testing.T) {
			r, fake, volume := merging(t)
			other := r.create(engine.Source{}, 4*mib)
			goOn := fake.HoldClearing(r.lvstoreOf(volume))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = r.engine.Clear(r.ctx, r.device.ID)
			}()
			r.Eventually(r.merges).WithTimeout(time.Minute).Should(HaveLen(1))
			fake.FailIO(r.lvstoreOf(volume))
			goOn()
			<-ended
			then(r)
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{other}))
			r.deletesNothing()
			r.Expect(r.merges()).To(HaveLen(1))
			r.restarted() // once a person has copied what the volume has
			r.Expect(r.lvols()).To(HaveLen(1))
			r.Expect(r.merges()).To(BeEmpty())
		})
	}
}

// TestMergeIntoASnapshotThatNobodyWaitsFor: the process is told to end, and SPDK fails. The next one knows.
func TestMergeIntoASnapshotThatNobodyWaitsFor(t *testing.T) {
	for outcome, fails := range map[string]bool{"succeeds": false, "fails": true} {
		t.Run(outcome, func(t *testing.T) {
			r, fake := newFakeRig(t)
			volume := r.create(engine.Source{}, 16*mib)
			check(t, fake.Write(r.lvols()[string(volume)].Alias, 0, 4))
			below := r.snap(volume)
			check(t, fake.Write(r.lvols()[string(volume)].Alias, 0, 2))
			above := r.snap(volume)
			r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{below}))
			if fails {
				fake.Inject(failedMerge(spdktest.After))
			}
			lvstore := r.lvstoreOf(volume)
			goOn := fake.HoldClearing(lvstore)
			stop := r.asksToDelete(fake)
			r.Expect(r.merges()).To(HaveLen(1))
			stop()
			r.killed()
			r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
			if fails {
				fake.FailIO(lvstore)
			}
			goOn()
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}))
			r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{above}))
			if fails {
				r.deletesNothing()
				return
			}
			r.Eventually(func() []string {
				r.state()
				_, _ = r.engine.Clear(r.ctx, r.device.ID) // it fails as long as SPDK deletes the first one
				return slices.Sorted(maps.Keys(r.lvols()))
			}).WithTimeout(time.Minute).Should(Or(BeEmpty(), HaveEach(HavePrefix("d-"))), "a mark may stay until the target's next start")
			r.Expect(r.merges()).To(BeEmpty())
		})
	}
}

// TestSnapshotThatIsLeftOutAfterAMergeThatFailed: SPDK cannot open the snapshot when it starts again, so it lists the
// snapshot no more, as if the merge had succeeded.
func TestSnapshotThatIsLeftOutAfterAMergeThatFailed(t *testing.T) {
	r, fake, _ := merging(t)
	other := r.create(engine.Source{}, 4*mib)
	r.failsToMerge(fake, spdktest.Before)
	snapshot := ""
	for name, l := range r.lvols() {
		if l.IsSnapshot {
			snapshot = name
		}
	}
	r.relaunched()
	r.target.(*spdktest.Target).FailOpen(snapshot)
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
	r.Expect(r.lvols()).NotTo(HaveKey(snapshot))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{other}))
	r.deletesNothing()
	r.Expect(r.merges()).To(HaveLen(1))
	r.restarted()
	r.Expect(r.lvols()).To(HaveLen(1))
	r.Expect(r.merges()).To(BeEmpty())
}

// TestNothingIsClearedAfterAMergeThatFailed, in the same call.
func TestNothingIsClearedAfterAMergeThatFailed(t *testing.T) {
	r, fake, _ := merging(t)
	other := r.create(engine.Source{}, 4*mib)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{other}))
	r.failsToMerge(fake, spdktest.After)
	r.Expect(r.lvols()).To(HaveKey("x-" + string(other)))
}

// TestMergesInAFormerPool say nothing of the one that is made in its place.
func TestMergesInAFormerPool(t *testing.T) {
	m := newMachine(t)
	device := m.file(enginetest.PoolBytes)
	sum := sha256.Sum256([]byte(device.ID))
	lvstore := "weft-" + hex.EncodeToString(sum[:16])
	folder := filepath.Join(m.dir, "state/spdk/merges")
	check(t, os.MkdirAll(folder, 0o700))
	check(t, os.WriteFile(filepath.Join(folder, lvstore+"%2Fs-1"), []byte(`{"failed":true}`), 0o600))
	r := rigOn(t, m, device)
	r.Expect(r.lvstoreOf(r.create(engine.Source{}, 4*mib))).To(Equal(lvstore))
	r.Expect(r.merges()).To(BeEmpty())
}

// TestMergeThatNobodyWaitsFor: the process is told to end while SPDK clears what the snapshot had. The next one
// clears the volume, unless SPDK has failed.
func TestMergeThatNobodyWaitsFor(t *testing.T) {
	for outcome, fails := range map[string]bool{"succeeds": false, "fails": true} {
		t.Run(outcome, func(t *testing.T) {
			r, fake, volume := merging(t)
			if fails {
				fake.Inject(failedMerge(spdktest.After))
			}
			r.clearedSlowly(fake, volume)()
			if fails {
				said := func() (string, error) {
					record, err := os.ReadFile(r.merges()[0])
					return string(record), err
				}
				r.Eventually(said).WithTimeout(time.Minute).Should(ContainSubstring(`"failed":true`))
			}
			r.killed()
			r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
			deletion := func() []error { return r.engine.DeleteVolumes(r.ctx, []engine.ID{volume}) }
			if fails {
				r.Eventually(deletion).WithTimeout(time.Minute).Should(HaveExactElements(MatchError(ContainSubstring("nothing is deleted"))))
				r.deletesNothing()
				return
			}
			r.Eventually(deletion).WithTimeout(time.Minute).Should(HaveEach(BeNil()))
			r.clear()
			r.Expect(r.lvols()).NotTo(HaveKey("x-" + string(volume)))
		})
	}
}

// TestCloneIsNotTakenUpAgainAfterACutOffMerge: what an interrupted call left may share clusters with the source. In a
// pool that has been clean since, it does not.
func TestCloneIsNotTakenUpAgainAfterACutOffMerge(t *testing.T) {
	r, fake := newFakeRig(t)
	source := r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(source)].Alias, 0, 4))
	interrupted := func() []engine.VolumeSpec {
		clone := engine.VolumeSpec{ID: newID(), SizeBytes: 16 * mib, Source: engine.Source{Volume: source}}
		r.fake().Inject(spdktest.Fault{Method: "bdev_lvol_set_parent", Error: &spdktest.AnswerError{Code: -5, Message: "Input/output error"}})
		r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{clone})[0]).To(HaveOccurred())
		r.soil(source)
		r.Expect(r.lvols()).To(HaveKey("c-" + string(clone.ID)))
		return []engine.VolumeSpec{clone}
	}
	clone := interrupted()
	r.reopened()
	r.Expect(r.engine.CreateVolumes(r.ctx, clone)).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.clear()
	r.Expect(r.clean()).To(BeTrue())
	r.Expect(r.lvols()).NotTo(HaveKey("c-" + string(clone[0].ID)))
	r.done(r.engine.CreateVolumes(r.ctx, clone))

	r.state()
	r.done(r.engine.CreateVolumes(r.ctx, interrupted()))
}

// noPages for another name: SPDK has changed the alias before it finds out. The fake has changed the name, too.
func noPages(fake *spdktest.Target) {
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_rename", When: spdktest.After, Error: &spdktest.AnswerError{Code: -12, Message: "Cannot allocate memory"}})
}

// TestVolumeThatCannotBeRenamed, because that takes metadata pages, is deleted as it is. That holds up nobody, and is
// not said to be done before it is.
func TestVolumeThatCannotBeRenamed(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 400*mib)
	bdev := r.lvols()[string(id)].UUID
	noPages(fake)
	slow := fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Match: func(params json.RawMessage) bool { return nameIn(params) == bdev }, Times: -1, When: spdktest.After, Delay: time.Hour})
	leaving := func() {
		t.Helper()
		r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{id})).To(HaveExactElements(MatchError(engine.ErrBusy)))
		r.Expect(r.state().Volumes).To(HaveExactElements(And(HaveField("ID", id), HaveField("SizeBytes", int64(400*mib)))))
		r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{{ID: id, Pool: r.device.ID, SizeBytes: 16 * mib}})).To(HaveExactElements(MatchError(engine.ErrBusy)))
		r.Expect(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)})).To(HaveExactElements(MatchError(engine.ErrNotFound)))
	}
	leaving()
	r.Expect(r.lvols()).To(HaveKey(string(id)), "for another process")
	giveUp := r.beginsToClear()
	r.Eventually(r.lvols).Should(BeEmpty(), "SPDK lists it no more")
	leaving()
	giveUp()
	leaving()
	slow()

	r.reopened()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.Expect(r.state().Volumes).To(BeEmpty())
}

// TestRenamingThatFailsOtherwise may be seen, and not be on the drive: the volume stays in sight until SPDK has
// deleted it.
func TestRenamingThatFailsOtherwise(t *testing.T) {
	for name, fault := range map[string]spdktest.Fault{
		"the drive fails":     {Error: &spdktest.AnswerError{Code: -5, Message: "Input/output error"}},
		"the drive is silent": {Delay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := newFakeRig(t)
			id := r.create(engine.Source{}, 400*mib)
			fault.Method, fault.When = "bdev_lvol_rename", spdktest.After
			fake.Inject(fault)
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			deleted := make(chan []error)
			go func() { deleted <- r.engine.DeleteVolumes(ctx, []engine.ID{id}) }()
			if fault.Delay > 0 {
				r.Eventually(func() int { return fake.Calls()["bdev_lvol_rename"] }).Should(Equal(1))
				cancel()
			}
			r.Expect(<-deleted).To(HaveExactElements(MatchError(engine.ErrBusy)))
			r.Expect(r.state().Volumes).To(HaveExactElements(HaveField("ID", id)))
			r.Expect(r.lvols()).To(HaveKey(string(id)), "for another process")
			r.clear()
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
			r.Expect(r.lvols()).To(BeEmpty())
		})
	}
}

// TestCondemnedVolumeComesBack to a process or a target that does not know of it, is deleted again, and goes.
func TestCondemnedVolumeComesBack(t *testing.T) {
	for name, again := range map[string]func(r *rig){
		"another process": func(r *rig) { r.engine = r.machine.engine(r.t) },
		"another life":    (*rig).reopened,
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := newFakeRig(t)
			id := r.create(engine.Source{}, 400*mib)
			noPages(fake)
			r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{id})).To(HaveExactElements(MatchError(engine.ErrBusy)))
			again(r)
			r.Expect(r.state().Volumes).To(HaveLen(1))
			noPages(r.fake())
			r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{id})).To(HaveExactElements(MatchError(engine.ErrBusy)))
			r.clear()
			r.Expect(r.state().Volumes).To(BeEmpty())
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
			r.Expect(r.lvols()).To(BeEmpty())
			r.Expect(r.clean()).To(BeTrue())
		})
	}
}

// TestSnapshotThatCannotBeMarked goes when SPDK has deleted it, and not before.
func TestSnapshotThatCannotBeMarked(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 16*mib)
	snapshot := r.snap(id)
	full := fake.Inject(spdktest.Fault{Method: "bdev_lvol_create", Times: -1, Error: &spdktest.AnswerError{Code: -12, Message: "Cannot allocate memory"}})
	r.Expect(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot})).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.Expect(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot})).To(HaveExactElements(MatchError(ContainSubstring("deleted as it is"))))
	r.Expect(r.state().Snapshots).To(HaveExactElements(HaveField("ID", snapshot)))
	r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: snapshot, Volume: id}})).To(HaveExactElements(MatchError(engine.ErrBusy)))
	_, err := r.engine.Clear(r.ctx, r.device.ID)
	r.Expect(err).To(MatchError(engine.ErrBusy), "there is no page for the mark of a clean pool either")
	full()
	r.Expect(r.state().Snapshots).To(BeEmpty())
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.clear()
	r.Expect(r.lvols()).To(HaveLen(1))
	r.Expect(r.clean()).To(BeTrue())
}

// beginsToClear what does not end until it is given up.
func (r *rig) beginsToClear() (giveUp func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	r.t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		_, err := r.engine.Clear(ctx, r.device.ID)
		ended <- err
	}()
	return func() {
		r.t.Helper()
		cancel()
		r.Expect(<-ended).To(MatchError(context.Canceled))
	}
}

// asksToDelete begins to clear, and returns when the target was asked to delete an lvol.
func (r *rig) asksToDelete(fake *spdktest.Target) (giveUp func()) {
	r.t.Helper()
	before := fake.Calls()["bdev_lvol_delete"]
	giveUp = r.beginsToClear()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).WithTimeout(time.Minute).Should(Equal(before + 1))
	return giveUp
}

// clearedSlowly begins to clear a volume's pool, and what is deleted is not cleared until that is given up.
func (r *rig) clearedSlowly(fake *spdktest.Target, volume engine.ID) (giveUp func()) {
	r.t.Helper()
	goOn := fake.HoldClearing(r.lvstoreOf(volume))
	stop := r.asksToDelete(fake)
	return func() {
		r.t.Helper()
		stop()
		goOn()
	}
}

// TestHostsAreHeldUpByTheMergeAlone, and not by the clearing after it, which may take hours: their volume gets limits
// and portals meanwhile.
func TestHostsAreHeldUpByTheMergeAlone(t *testing.T) {
	r, fake := newFakeRig(t)
	volume, x := r.attached(fake)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{r.snap(volume)}))
	giveUp := r.clearedSlowly(fake, volume)
	defer giveUp()
	other := r.portals()[0]
	other.Port++
	limits := []engine.VolumeQoS{{ID: volume, QoS: engine.QoS{MiBps: 1}}}
	r.Eventually(func() []error { return r.engine.SetQoS(r.ctx, limits) }).WithTimeout(time.Minute).Should(HaveEach(BeNil()))
	r.done(r.engine.OpenPortals(r.ctx, []engine.Portal{other}))
	r.Expect(r.portalsOf(x)).To(ContainElement(other.Portal))
	r.Expect(fake.Inaccessible()).To(BeEmpty())
}

// TestNeighboursOfADeletedSnapshotWait: a deletion that meets an operation on the clone is refused by SPDK, which
// then forgets the snapshot until its next start.
func TestNeighboursOfADeletedSnapshotWait(t *testing.T) {
	r, fake := newFakeRig(t)
	id, other := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(id)].Alias, 0, 4))
	snapshot := r.snap(id)
	check(t, fake.Write(r.lvols()[string(id)].Alias, 0, 4))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.Expect(r.state().Pools[0].ClearingBytes).To(BeEquivalentTo(16*mib), "what the volume has of its own is not counted")
	end := r.clearedSlowly(fake, id)
	r.Expect(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: id}})[0]).To(MatchError(engine.ErrBusy))
	r.Expect(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: id, SizeBytes: 20 * mib}})[0]).To(MatchError(engine.ErrBusy))
	copied := engine.VolumeSpec{ID: newID(), SizeBytes: 16 * mib, Source: engine.Source{Volume: id}}
	r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{copied})[0]).To(MatchError(engine.ErrBusy))
	r.Expect(r.engine.DeleteVolumes(r.ctx, []engine.ID{id})[0]).To(MatchError(engine.ErrBusy))
	r.Eventually(func() error { return r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)})[0] }).WithTimeout(time.Minute).Should(Succeed(), "the rest is only cleared")
	r.snap(other)
	end()
	r.Expect(r.state().Snapshots).To(HaveLen(1), "the mark stays while its snapshot may come back")

	r.restarted()
	r.clear()
	r.snap(id)
	r.Expect(r.state().Snapshots).To(HaveLen(2))
}
