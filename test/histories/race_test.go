// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/csi-driver/controller"
)

// together makes calls at once, each a single time, and answers what each was answered.
func (w *world) together(calls ...call) []error {
	errs := make([]error, len(calls))
	processes := make([]process, len(calls))
	for i, c := range calls {
		w.tell("  at once: %s", c.name)
		w.tally.calls.Add(1)
		processes[i] = c.on()
	}
	var wait sync.WaitGroup
	for i, c := range calls {
		wait.Go(func() { errs[i] = w.attempt(c, processes[i]) })
	}
	wait.Wait()
	w.tell("    answered %v", errs)
	return errs
}

// race calls that contradict each other, as late ones and those of two replicas of a sidecar do. Whatever comes of
// that, a last word settles it.
func (w *world) race(free *volume) {
	which := w.rng.IntN(5)
	v := w.newVolume(smallest, w.anyUse(), nil)
	switch {
	case which == 0:
		w.together(w.creation(v, v.size, nil), w.deletion(v))
		w.delete(v)
	case which == 1 && len(w.volumes) < most:
		w.createOnBoth(v)
	case free == nil:
	case which == 2:
		w.publishToBoth(free)
	case which == 3:
		w.together(w.modification(free, w.anyLimits()), w.modification(free, w.anyLimits()))
		w.modify(free)
	default:
		w.snapAndDelete(free)
	}
}

// createOnBoth replicas of the controller makes one volume.
func (w *world) createOnBoth(v *volume) {
	replica := w.newController()
	defer func() {
		replica.kill()
		w.ended(replica)
	}()
	there := w.creation(v, v.size, nil)
	there.on = func() process { return replica }
	w.together(w.creation(v, v.size, nil), there)
	w.must(w.make(w.creation(v, v.size, nil)))
	if err := w.attempt(there, replica); err != nil {
		w.Fatalf("the other replica: %v", err)
	}
	v.uuid = w.object(v.id).Spec.UUID
	w.volumes = append(w.volumes, v)
}

// publishToBoth hosts at once: one of them gets the volume at most, unless they share it.
func (w *world) publishToBoth(v *volume) {
	errs := w.together(w.publication(v, w.hosts[0]), w.publication(v, w.hosts[1]))
	if errs[0] == nil && errs[1] == nil && !v.shared {
		w.Fatalf("volume %s was published to both hosts", v.id)
	}
	for i, err := range errs {
		if c := status.Code(err); err != nil && (v.shared || c != codes.FailedPrecondition) && !repeats(c) {
			w.Fatalf("publishing %s to %s: %v", v.id, w.hosts[i].name, err)
		}
	}
	for _, h := range w.hosts {
		w.must(w.make(w.unpublication(v, h)))
	}
}

// snapAndDelete the snapshot at once; then it is deleted.
func (w *world) snapAndDelete(v *volume) {
	s := &snapshot{id: fmt.Sprintf("%s-s%d", w.target, w.made)}
	w.together(
		w.onController("CreateSnapshot "+s.id, func(ctx context.Context, c *controller.Service) error {
			_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: s.id, SourceVolumeId: v.id})
			return err
		}),
		w.onController("DeleteSnapshot "+s.id, func(ctx context.Context, c *controller.Service) error {
			_, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.id})
			return err
		}),
	)
	w.deleteSnapshot(s)
}
