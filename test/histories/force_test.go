// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"errors"
	"slices"
	"syscall"

	"github.com/weft-storage/weft/dataplane/engine"
)

// takeAway a volume from a host that still has it mounted, as when the node is given up for lost; another host gets it,
// or has it. From the moment that is answered the first cannot write. When it comes back, the kubelet there takes down
// what is left.
func (w *world) takeAway(v *volume) {
	lost := v.hosts[0]
	device, err := lost.mounter.DeviceAt(lost.mounted(v))
	w.must(err)
	w.must(w.make(w.unpublication(v, lost)))
	v.leave(lost)
	if err := lost.writeDevice(device, firstData, 1<<32); !errors.Is(err, syscall.EIO) {
		w.Fatalf("a host that was shut out writes: %v", err)
	}
	w.must(lost.hangUp())
	if other := w.other(lost); v.takes(other) {
		w.attach(v, other)
	}
	w.unmount(v, lost)
	w.read(v)
}

// hangUp drops the connections that the target ended and takes no more: the kernel gives up such a one.
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
		if err != nil {
			return err
		}
		i := slices.IndexFunc(state.Exports, func(x engine.Export) bool { return x.NQN == nqn })
		if i >= 0 && slices.Contains(state.Exports[i].Hosts, h.nqn()) {
			continue
		}
		if err := h.kernel.Drop(name); err != nil {
			return err
		}
	}
	return nil
}
