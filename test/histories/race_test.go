// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/equality"

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

// race calls that contradict each other, as late ones and those of two processes of a sidecar do. Whatever comes of
// that, a last word settles it.
func (w *world) race(free *volume) {
	which := w.rng.IntN(7)
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
	case which == 4:
		w.snapAndDelete(free)
	case which == 5:
		w.publishLate(free)
	default:
		w.modifyLate(free)
	}
}

// late makes a call on another process of the CSI controller, which stalls between its writes of the volume and of the
// replica; meanwhile others happen. Then it goes on, with what it knew of the volume, and ends. It answers what the
// call was answered.
func (w *world) late(v *volume, c call, meanwhile func()) (err error) {
	other := w.newController()
	s := &stall{replica: v.replica(), reached: make(chan struct{}), resume: make(chan struct{})}
	other.mu.Lock()
	other.stall = s
	other.mu.Unlock()
	w.tell("  %s, on another process, which stalls", c.name)
	w.tally.calls.Add(1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = w.attempt(c, other)
	}()
	select {
	case <-s.reached:
	case <-ended: // it had nothing to write
	}
	meanwhile()
	close(s.resume)
	<-ended
	w.tell("    answered late: %v", err)
	other.kill()
	w.ended(other)
	return err
}

// publishLate to one host, which is unpublished and published to the other before the first publication has reached the
// replica. The first host is never admitted again.
func (w *world) publishLate(v *volume) {
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	first := w.publication(v, h)
	err := w.late(v, first, func() {
		w.must(w.make(w.unpublication(v, h)))
		w.attach(v, w.other(h))
		if v.attached() {
			w.write(v)
		}
	})
	if err == nil {
		w.Fatalf("%s succeeds after it was undone", first.name)
	}
	w.checkHosts(v)
	w.read(v)
}

// modifyLate to limits that others have overtaken.
func (w *world) modifyLate(v *volume) {
	if err := w.late(v, w.modification(v, w.anyLimits()), func() { w.modify(v) }); err != nil && !repeats(status.Code(err)) {
		w.Fatalf("modify %s late: %v", v.id, err)
	}
	w.checkHosts(v)
	w.attach(v, w.hosts[w.rng.IntN(len(w.hosts))]) // has the last limits
}

// checkHosts that a replica lists: those of its volume.
func (w *world) checkHosts(v *volume) {
	w.Helper()
	if listed, want := w.copyOf(v.id).Spec.Hosts, w.object(v.id).Spec.Attachments; !equality.Semantic.DeepEqual(listed, want) {
		w.Fatalf("replica %s lists hosts %+v, and its volume has attachments %+v", v.replica(), listed, want)
	}
}

// createOnBoth processes of the controller makes one volume.
func (w *world) createOnBoth(v *volume) {
	other := w.newController()
	defer func() {
		other.kill()
		w.ended(other)
	}()
	there := w.creation(v, v.size, nil)
	there.on = func() process { return other }
	w.together(w.creation(v, v.size, nil), there)
	w.must(w.make(w.creation(v, v.size, nil)))
	if err := w.attempt(there, other); err != nil {
		w.Fatalf("the other process: %v", err)
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
