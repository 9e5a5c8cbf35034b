// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// pieces is an array that the kernel takes down as Linux does: its members leave sysfs one after the other, and a step
// may look in between.
type pieces struct {
	kernelArray
	look func()
}

func (p pieces) Stop(ctx context.Context) error {
	left := *p.n.array
	if err := p.kernelArray.Stop(ctx); err != nil {
		return err
	}
	left.members = maps.Clone(left.members)
	for _, name := range sorted(left.members) {
		delete(left.members, name)
		p.n.array = &left
		p.look()
	}
	p.n.array = nil
	return nil
}

// Members that leave an array because it is stopped are not lost.
func TestAnArrayThatEndsPieceByPieceLosesNoMember(t *testing.T) {
	w := newWorld(1, faults{})
	w.calm = true
	for w.api.mirror.Holder == "" {
		w.now = w.now.Add(time.Second)
		w.controller()
		for _, name := range sorted(w.targets) {
			w.targets[name].agent()
		}
	}
	n := w.nodes["n1"]
	n.attachment = w.api.wish
	n.keep()
	looks := 0
	n.plugin.Array = pieces{kernelArray{n}, func() {
		looks++
		n.plugin.Step(t.Context())
	}}
	until := func(phase Phase) {
		t.Helper()
		for range 1000 {
			w.now = w.now.Add(100 * time.Millisecond)
			status := n.plugin.Step(t.Context())
			tasks := n.tasks
			n.tasks = nil
			for _, do := range tasks {
				do()
			}
			for range 100 {
				w.traffic()
			}
			if status.Phase == phase {
				return
			}
		}
		t.Fatalf("never in phase %d: %s", phase, mirror.String(w.api.mirror.Record))
	}
	until(Running)
	n.plugin.Mode = Stop
	until(Stopped)
	if r := w.api.mirror.Record; looks == 0 || r.Dirty || !mirror.Whole(r) {
		t.Errorf("stopped, after %d looks, with the record %s", looks, mirror.String(r))
	}
}
