// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// lists are the calls that stop I/O for as long as the target has volumes, unless they name one.
func (r *rig) lists(do func()) map[string]int {
	before, lists := r.fake().Calls(), map[string]int{}
	do()
	for method, n := range r.fake().Calls() {
		switch method {
		case "bdev_get_bdevs", "bdev_lvol_get_lvols", "nvmf_get_subsystems":
			if n -= before[method]; n > 0 {
				lists[method] = n
			}
		}
	}
	return lists
}

func (r *rig) glimpse() engine.State {
	r.t.Helper()
	state, err := r.engine.Glance(r.ctx)
	r.Expect(err).NotTo(HaveOccurred())
	return state
}

// withClock is a rig whose engine goes by a clock that only goes on when it is told to.
func withClock(t *testing.T) (r *rig, goOn func(time.Duration)) {
	t.Helper()
	r, _ = newFakeRig(t)
	now := time.Now()
	e, err := spdk.New(spdk.Config{Socket: r.socket(), StateDir: filepath.Join(r.dir, "state"), Now: func() time.Time { return now }})
	check(t, err)
	t.Cleanup(e.Close)
	r.engine = e
	return r, func(d time.Duration) { now = now.Add(d) }
}

// TestGlanceAsksForWhatChanged: with hosts, of nothing but their volumes.
func TestGlanceAsksForWhatChanged(t *testing.T) {
	r, goOn := withClock(t)
	exports := make([]engine.Export, 3)
	for i := range exports {
		exports[i] = r.exportOf(r.create(engine.Source{}, 4*mib))
		r.create(engine.Source{}, 4*mib)
	}
	r.done(r.engine.Export(r.ctx, exports))
	all := map[string]int{"bdev_get_bdevs": 1, "nvmf_get_subsystems": 1}
	nothing := map[string]int{"bdev_get_bdevs": 1} // whether the drive is there
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(all), "volumes were made")
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(nothing))

	for i := range exports {
		exports[i].Hosts = r.exportOf(newID()).Hosts
	}
	r.done(r.engine.Export(r.ctx, exports))
	r.Expect(r.lists(func() { r.Expect(r.glimpse().Exports[0].Hosts).To(HaveLen(1)) })).
		To(Equal(map[string]int{"bdev_get_bdevs": 1 + 3, "nvmf_get_subsystems": 3}), "each by its name")
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(nothing))

	goOn(30 * time.Second)
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(all), "calls of another process may have been late")
	goOn(30 * time.Second)
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(map[string]int{"bdev_get_bdevs": 1, "bdev_lvol_get_lvols": 1}), "what was written")
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(nothing))
	goOn(engine.GlanceAge)
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(all), "it is old")
	r.snap(exports[0].Namespaces[0].Volume)
	r.Expect(r.lists(func() { r.glimpse() })).To(Equal(all), "a snapshot changes more than it names")
	r.Expect(r.lists(func() { check(t, errorOf(r.engine.Gather(r.ctx))) })).To(Equal(all), "that was asked for")
}

// TestCreationAsksForNothingElse than the new volume, unless it has a source.
func TestCreationAsksForNothingElse(t *testing.T) {
	r, _ := withClock(t)
	source := r.create(engine.Source{}, 4*mib)
	for range 3 {
		r.create(engine.Source{}, 4*mib)
	}
	r.glimpse()
	names := map[string]int{"bdev_get_bdevs": 1, "bdev_lvol_get_lvols": 1} // and whether the drive is there
	var id engine.ID
	r.Expect(r.lists(func() { id = r.create(engine.Source{}, 4*mib) })).To(Equal(names))
	r.Expect(r.lists(func() {
		r.Expect(r.glimpse().Volumes).To(ContainElement(engine.Volume{ID: id, Pool: r.device.ID, SizeBytes: 4 * mib}))
	})).To(Equal(map[string]int{"bdev_get_bdevs": 1 + 1}))

	again := engine.VolumeSpec{ID: id, Pool: r.device.ID, SizeBytes: 4 * mib}
	r.Expect(r.lists(func() { r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{again})) })).To(Equal(names), "it is there")
	again.SizeBytes = 8 * mib
	r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{again})).To(HaveExactElements(MatchError(engine.ErrExists)))

	var clone engine.ID
	r.Expect(r.lists(func() { clone = r.create(engine.Source{Volume: source}, 4*mib) })["bdev_get_bdevs"]).To(BeNumerically(">=", 1))
	r.Expect(r.lists(func() {
		r.Expect(r.glimpse().Volumes).To(ContainElement(HaveField("ID", clone)))
	})).To(Equal(map[string]int{"bdev_get_bdevs": 1, "nvmf_get_subsystems": 1}), "a clone changes more than it names")
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{clone}))
	r.Expect(r.lists(func() { r.create(engine.Source{}, 4*mib) })).To(Equal(map[string]int{"bdev_get_bdevs": 1}), "a deletion does, too")
}

// TestCreationSeesWhatWasAskedForBefore by another process, and is done since the last look: otherwise two pools would
// have the volume.
func TestCreationSeesWhatWasAskedForBefore(t *testing.T) {
	r, goOn := withClock(t)
	other := r.file(enginetest.PoolBytes)
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device, other}))
	lvstore := r.lvstoreOf(r.create(engine.Source{}, 4*mib))
	r.glimpse()
	goOn(31 * time.Second) // calls of another process are no longer reckoned with
	r.glimpse()
	for _, pool := range []string{other.ID, r.device.ID} {
		late := engine.VolumeSpec{ID: newID(), Pool: pool, SizeBytes: 4 * mib}
		check(t, errorOf(spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolCreate{
			LvstoreName: lvstore, Name: string(late.ID), SizeMiB: 4, Thin: true, Clear: spdkrpc.ClearWriteZeroes,
		})))
		r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{late}))
		r.Expect(r.state().Volumes).To(ContainElement(HaveField("ID", late.ID)))
		r.glimpse()
	}
	r.Expect(r.state().Volumes).To(HaveEach(HaveField("Pool", r.device.ID)))
}

// TestWhatIsWrittenIsNotCleared: in a pool that is not clean, all that nobody has counts as being cleared.
func TestWhatIsWrittenIsNotCleared(t *testing.T) {
	r, goOn := withClock(t)
	id := r.create(engine.Source{}, 64*mib)
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
	r.soil(id)
	r.killed()
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
	r.glimpse()
	r.glimpse()
	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 0, 10))
	goOn(time.Second)
	r.Expect(r.glimpse().Pools[0].ClearingBytes).To(BeZero())
}

// TestGlanceKnowsWhatAHostHasWritten once the host is gone: whether a volume is blank hangs on it.
func TestGlanceKnowsWhatAHostHasWritten(t *testing.T) {
	r, goOn := withClock(t)
	id := r.create(engine.Source{}, 16*mib)
	x := r.exportOf(id)
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	written := func() int64 { return r.glimpse().Volumes[0].AllocatedBytes }
	r.Expect(written()).To(BeZero())

	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 0, 1))
	x.Hosts = nil
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	one := written()
	r.Expect(one).To(BeNumerically(">", 0), "the host is gone")

	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 1, 1))
	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	r.Expect(written()).To(Equal(2*one), "its subsystem is gone")

	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 2, 1))
	goOn(30 * time.Second)
	r.Expect(written()).To(Equal(3*one), "half a minute is over")
}

// TestGlanceKnowsWhatALingeringHostHasWritten: one that SPDK still disconnects may write until it is gone.
func TestGlanceKnowsWhatALingeringHostHasWritten(t *testing.T) {
	r, _ := newFakeRig(t)
	id := r.create(engine.Source{}, 16*mib)
	x := r.exportOf(id)
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	conn, err := r.fake().Connect(x.NQN, x.Hosts[0], 1)
	check(t, err)
	release := conn.Hold()
	without := x
	without.Hosts = nil
	brief, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	r.Expect(errors.Join(r.engine.Export(brief, []engine.Export{without})...)).To(HaveOccurred(), "it cannot be said that it is gone")
	r.Expect(r.glimpse().Volumes[0].AllocatedBytes).To(BeZero())
	r.Expect(r.glimpse().Exports[0].Hosts).To(Equal(x.Hosts), "it counts as admitted")

	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 0, 1))
	release()
	r.done(r.engine.Export(r.ctx, []engine.Export{without}))
	state := r.glimpse()
	r.Expect(state.Exports[0].Hosts).To(BeEmpty())
	r.Expect(state.Volumes[0].AllocatedBytes).To(BeNumerically(">", 0))
}

// TestGlanceSeesALostPool although nobody has called anything.
func TestGlanceSeesALostPool(t *testing.T) {
	r, _ := newFakeRig(t)
	r.create(engine.Source{}, 4*mib)
	r.Expect(r.glimpse().Volumes).To(HaveLen(1))
	r.Lose(t, r.device)
	r.Expect(r.glimpse().Pools).To(HaveExactElements(HaveField("Err", MatchError(engine.ErrUnavailable))))
	state, err := enginetest.Look(r.ctx, t, r.engine, r.engine)
	check(t, err)
	r.Expect(state.Volumes).To(BeEmpty())
}
