// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// work from nothing to exports, with deletions in between; another process can do it again at any point.
type work struct {
	*machine
	device                engine.Device
	source, clone, copied engine.ID
	snapshot              engine.ID
	// lone volume is deleted, and restored from its snapshot.
	lone, loneSnapshot, restored engine.ID
}

func (w *work) do(t *testing.T) error {
	ctx, e := t.Context(), w.engine(t)
	one := func(errs []error) error { return errors.Join(errs...) }
	volume := func(id engine.ID, size int64, source engine.Source) engine.VolumeSpec {
		return engine.VolumeSpec{ID: id, Pool: w.device.ID, SizeBytes: size, Source: source}
	}
	r := &rig{}
	clearAll := func() error { return enginetest.Clear(ctx, e) }
	first, second := r.exportOf(w.source), r.exportOf(w.clone)
	first.Hosts = []string{"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"}
	second.Hosts = first.Hosts
	portals := w.portals()
	for _, step := range []func() error{
		func() error { return e.Start(ctx, w.plan) },
		func() error { return one(e.OpenPools(ctx, []engine.Device{w.device})) },
		clearAll, // what may not be clean, and is held
		func() error {
			return one(e.CreateVolumes(ctx, []engine.VolumeSpec{volume(w.source, 4*mib, engine.Source{})}))
		},
		func() error { return one(e.Export(ctx, []engine.Export{first})) },
		func() error {
			return one(e.CreateSnapshots(ctx, []engine.SnapshotSpec{{ID: w.snapshot, Volume: w.source}}))
		},
		func() error {
			return one(e.CreateVolumes(ctx, []engine.VolumeSpec{
				volume(w.clone, 8*mib, engine.Source{Snapshot: w.snapshot}),
				volume(w.copied, 12*mib, engine.Source{Volume: w.source}),
			}))
		},
		clearAll, // what is left of one that an earlier process deleted
		func() error {
			return one(e.CreateVolumes(ctx, []engine.VolumeSpec{volume(w.lone, 4*mib, engine.Source{})}))
		},
		func() error {
			return one(e.CreateSnapshots(ctx, []engine.SnapshotSpec{{ID: w.loneSnapshot, Volume: w.lone}}))
		},
		func() error { return one(e.DeleteVolumes(ctx, []engine.ID{w.lone})) },
		clearAll,
		func() error {
			return one(e.CreateVolumes(ctx, []engine.VolumeSpec{volume(w.restored, 4*mib, engine.Source{Snapshot: w.loneSnapshot})}))
		},
		func() error { return one(e.OpenPortals(ctx, portals)) },
		func() error { return one(e.Export(ctx, []engine.Export{first, second})) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// TestInterruptedAnywhere: whichever call the target dies at, or the connection is lost, before
// or after it was carried out, the next process brings it all to the same end. A short run interrupts one call of
// three, each time others.
func TestInterruptedAnywhere(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	step := 1
	if testing.Short() {
		step = 3
	}
	for name, fault := range map[string]spdktest.Fault{
		"the target dies before a call":                 {Do: spdktest.Die},
		"the target dies after a call":                  {Do: spdktest.Die, When: spdktest.After},
		"the connection is lost before a call":          {Do: spdktest.DropConnection},
		"the connection is lost after a call was heard": {Do: spdktest.DropConnection, When: spdktest.After},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			first := rand.IntN(step)
			at := first
			for interrupted(t, m, fault, at) {
				at += step
			}
			t.Logf("interrupted at %d calls: %d, and each %d after it", (at-first)/step, first, step)
		})
	}
}

// interrupted at one call; false when there are fewer.
func interrupted(t *testing.T, m *machine, fault spdktest.Fault, at int) bool {
	t.Helper()
	g := NewWithT(t)
	m.kill()
	m.launch(t)
	w := &work{machine: m, device: m.file(enginetest.PoolBytes), source: newID(), clone: newID(), copied: newID(), snapshot: newID(), lone: newID(), loneSnapshot: newID(), restored: newID()}
	var calls atomic.Int64
	fault.Skip, fault.Match = at, func(json.RawMessage) bool { calls.Add(1); return true }
	m.target.(*spdktest.Target).Inject(fault)
	err := w.do(t)
	if calls.Load() <= int64(at) {
		check(t, err)
		return false
	}
	// Hosts that are being woken when their snapshot is made already, the next call wakes.
	g.Expect(err).To(Or(BeNil(), MatchError(engine.ErrUnavailable)), "call %d", at)
	if fault.Do == spdktest.Die {
		<-m.target.(*spdktest.Target).Done()
		m.launch(t)
	}
	g.Expect(w.do(t)).To(Succeed(), fmt.Sprint("after an interruption at call ", at))

	state, err := m.engine(t).Gather(t.Context())
	check(t, err)
	g.Expect(state.Volumes).To(ConsistOf(
		And(HaveField("ID", w.source), HaveField("SizeBytes", int64(4*mib))),
		And(HaveField("ID", w.clone), HaveField("SizeBytes", int64(8*mib))),
		And(HaveField("ID", w.copied), HaveField("SizeBytes", int64(12*mib))),
		And(HaveField("ID", w.restored), HaveField("SizeBytes", int64(4*mib))),
	), "call %d", at)
	g.Expect(state.Snapshots).To(ConsistOf(HaveField("ID", w.snapshot), HaveField("ID", w.loneSnapshot)))
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	defer client.Close()
	r := &rig{machine: m, WithT: g, t: t, ctx: t.Context(), client: client}
	r.onlyWholeClones(w.clone, w.copied, w.restored)
	g.Expect(state.Exports).To(HaveLen(2))
	for _, x := range state.Exports {
		g.Expect(x.Namespaces).To(HaveLen(1))
		g.Expect(x.Portals).To(HaveLen(len(w.portals())))
	}
	g.Expect(state.Portals).To(HaveLen(len(w.portals())))
	return true
}
