// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"net"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Unreached are the portals to which none of the controllers leads; one that is going away does not count.
func Unreached(portals []v1alpha1.Portal, controllers []Controller) []v1alpha1.Portal {
	return slices.DeleteFunc(slices.Clone(portals), func(p v1alpha1.Portal) bool {
		return slices.ContainsFunc(controllers, func(c Controller) bool { return c.reaches(p) && !c.going() })
	})
}

// Lost are the portals of a connection that have no controller although the subsystem is connected, so that Connect would
// add a path. There are none without the kernel's multipath, where a second controller would be a second block device, and none when
// nothing is left of the connection: its device is gone, and only staging the volume anew helps.
func (h *Host) Lost(c Connection) ([]v1alpha1.Portal, error) {
	controllers, err := h.Controllers(c.NQN)
	if err != nil {
		return nil, err
	}
	lost := Unreached(c.Portals, controllers)
	if len(lost) == 0 || !connected(controllers) {
		return nil, nil
	}
	multipath, err := h.multipath()
	if err != nil || !multipath {
		return nil, err
	}
	return lost, nil
}

func connected(controllers []Controller) bool {
	return slices.ContainsFunc(controllers, func(c Controller) bool { return !c.going() })
}

// Answers fails when nothing answers at a portal. Over RDMA that is not asked, since only the kernel can.
func (h *Host) Answers(ctx context.Context, p v1alpha1.Portal) error {
	if p.Transport != v1alpha1.TransportTCP {
		return nil
	}
	return h.Reachable(ctx, net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port))))
}
