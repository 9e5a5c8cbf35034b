// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"errors"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
)

// queuedWrite waits in a host's kernel for a path of its device, as long as the device is there.
type queuedWrite struct {
	// number of the device.
	number        string
	volume        string
	cluster, word uint64
}

// staleWord was written by a host that was cut off, before its volume was taken from it. No volume ever reads so.
const staleWord = 1 << 32

// deliver what was queued to the devices that have a path which the target admits, for the kernel has connected that
// again, and drop what was queued to those that are gone.
// What arrives is found when the volume is read.
func (h *host) deliver(state engine.State) {
	h.queue.Lock()
	defer h.queue.Unlock()
	h.queued = slices.DeleteFunc(h.queued, func(q queuedWrite) bool {
		if len(h.kernel.Paths(q.number)) == 0 {
			return true
		}
		admitted := h.admitted(state, q.number)
		if len(admitted) == 0 {
			return false
		}
		for _, p := range admitted {
			if err := h.kernel.SetState(p.Controller, "live"); err != nil {
				h.Error(err)
			}
		}
		h.tell("    a write from before it was cut off leaves %s", h.name)
		return h.writeWord(q.volume, q.cluster, q.word) == nil
	})
}

// takeAway a volume from a host that still has it mounted, as when the node is given up for lost; another host gets it,
// or has it. From the moment that is answered the first cannot write. When it comes back, either the target tells its
// kernel not to try again, as nvmet does, or the kernel goes on trying, as with SPDK, with the writes that wait. Then
// the kubelet there takes down what is left, or the volume comes back to it before it has: it is staged again, or not.
func (w *world) takeAway(v *volume) {
	lost := v.hosts[0]
	givesUp, comesBack := w.rng.IntN(2) == 0, w.rng.IntN(2) == 0
	device, err := lost.mounter.DeviceAt(lost.mounted(v))
	w.must(err)
	if !givesUp {
		w.must(lost.cutOff(device))
	}
	w.must(w.make(w.unpublication(v, lost)))
	v.leave(lost)
	if givesUp {
		if err := lost.writeDevice(device, firstData, staleWord); !errors.Is(err, syscall.EIO) {
			w.Fatalf("a host that was shut out writes: %v", err)
		}
		w.must(lost.hangUp())
	}
	if other := w.other(lost); v.takes(other) {
		w.attach(v, other)
		w.write(v)
		if comesBack && !v.shared {
			w.detach(v, other)
		}
	}
	if comesBack && v.takes(lost) {
		w.tell("  %s is attached to %s again", v.id, lost.name)
		if w.rng.IntN(2) == 0 {
			w.attach(v, lost)
		} else {
			w.attachStaged(v, lost)
		}
	} else {
		w.unmount(v, lost)
	}
	w.must(lost.look())
	w.read(v)
}

// cutOff a host from its target, while a pod writes to a device.
func (h *host) cutOff(device string) error {
	volume, err := h.volumeOf(device)
	if err != nil {
		return err
	}
	h.tell("  %s is cut off, with a write to %s on its way", h.name, volume)
	number := h.kernel.Number(filepath.Base(device))
	h.queue.Lock()
	defer h.queue.Unlock()
	h.queued = append(h.queued, queuedWrite{number: number, volume: volume, cluster: firstData, word: staleWord})
	return h.each(number, func(p nodetest.Path) error { return h.kernel.SetState(p.Controller, "connecting") })
}

// hangUp the connections of this host that the target ended and takes no more: the kernel gives up such a one.
func (h *host) hangUp() error {
	var state engine.State
	if err := h.until("the target to answer", func() (bool, error) {
		var answers bool
		state, answers = h.serving()
		return answers && len(state.Portals) > 0, nil // until then the kernel tries on
	}); err != nil {
		return err
	}
	for _, name := range h.kernel.Controllers() {
		nqn, err := h.attribute(name, "subsysnqn")
		hostNQN, err2 := h.attribute(name, "hostnqn")
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if admits(state, nodetest.Path{NQN: nqn, HostNQN: hostNQN}) {
			continue
		}
		if err := h.kernel.Drop(name); err != nil {
			return err
		}
	}
	return nil
}

// each path of the device with a number.
func (h *host) each(number string, do func(nodetest.Path) error) error {
	var errs []error
	for _, p := range h.kernel.Paths(number) {
		errs = append(errs, do(p))
	}
	return errors.Join(errs...)
}
