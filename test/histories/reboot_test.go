// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// boot a host: its kernel has no connections, devices and mounts. What is in the host's folder stays, and so do
// attachments.
func (h *host) boot() (err error) {
	if h.life != nil {
		h.life.kill()
		if err := h.ended(); err != nil {
			return err
		}
	}
	h.boots++
	if h.kernel, err = nodetest.NewKernel(filepath.Join(h.dir, fmt.Sprint("boot", h.boots))); err != nil {
		return err
	}
	h.mounter, err = nodetest.NewMounter(h.kernel)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.served, h.name)
	return err
}

// reboot a host, in the middle of staging one more volume when there is one. Of its volumes some are mounted again with
// what the controller told before, some have lost their pods, which the kubelet cleans up after, and some have gone
// elsewhere meanwhile.
func (w *world) reboot(h *host, more *volume) {
	w.tally.reboots.Add(1)
	if more != nil {
		w.stagePart(more, h)
	}
	w.tell("  %s reboots", h.name)
	w.must(h.boot())
	for _, v := range w.volumes {
		fate := w.rng.IntN(8)
		switch {
		case !slices.Contains(v.hosts, h):
		case v == more || fate < 4:
			if v != more && fate < 2 && !v.block {
				w.refuseDamaged(v, h)
			}
			w.mount(v, h)
		case fate < 6:
			w.detach(v, h)
		default:
			w.must(w.make(w.unpublication(v, h)))
			v.leave(h)
		}
	}
}

// stagePart of a volume: the process is killed at it.
func (w *world) stagePart(v *volume, h *host) {
	crossings, after := 1+w.rng.IntN(6), w.rng.IntN(2) == 0
	v.hosts = append(v.hosts, h)
	w.must(w.make(w.publication(v, h)))
	c, p := h.stagingCall(v), h.process()
	p.light(crossings, after, nil)
	w.tell("  %s, and the host ends at it: %v", c.name, w.attempt(c, p))
}

// refuseDamaged: a filesystem whose superblock is lost is not made anew, though the volume may have been blank when it
// was attached. An administrator repairs it.
func (w *world) refuseDamaged(v *volume, h *host) {
	w.tell("  the superblock of %s is lost", v.id)
	write := func(word uint64) {
		w.await("the target to write", func() bool { return w.writeWord(v.uuid, superblock, word) == nil })
	}
	write(0)
	if err := w.make(h.stagingCall(v, codes.FailedPrecondition)); status.Code(err) != codes.FailedPrecondition {
		w.Fatalf("staging %s without a superblock: %v", v.id, err)
	}
	write(ext4Magic)
}

// mend paths as the node plugin does now and then, which also forgets what a host was told of volumes that have gone
// elsewhere.
func (h *host) mend() error {
	c := h.onNode("mending paths", func(ctx context.Context, s *node.Service) error { return s.MendPaths(ctx) })
	return h.attempt(c, c.on())
}
