// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"os"
	"path/filepath"
	"strings"
)

// transports of a volume, as its StorageClass says them.
func (v *volume) transports() string {
	if v.both {
		return "RDMA,TCP"
	}
	return "TCP"
}

// turnRDMA off or on for a host. While it is off, the kernel tries to connect what was connected; when it is given up,
// that is gone, and comes back by the node plugin only.
func (h *host) turnRDMA(off, givenUp bool) error {
	if off == h.noRDMA {
		return nil
	}
	h.tell("  %s has no way over RDMA: %t, and gives it up: %t", h.name, off, off && givenUp)
	h.noRDMA = off
	for _, name := range h.kernel.Controllers() {
		transport, err := h.attribute(name, "transport")
		switch {
		case err != nil:
			return err
		case transport != "rdma":
		case off && givenUp:
			err = h.kernel.Drop(name)
		case off:
			err = h.kernel.SetState(name, "connecting")
		default:
			err = h.kernel.SetState(name, "live")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// attribute of a controller.
func (h *host) attribute(controller, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(h.kernel.Root, "sys/class/nvme", controller, name))
	return strings.TrimSpace(string(text)), err
}
