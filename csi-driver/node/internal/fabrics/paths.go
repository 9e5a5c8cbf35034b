// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
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

// Lost are the portals of a connection that have no controller although the subsystem is connected, so that Connect
// would add a path. There are none without the kernel's multipath, where a second controller would be a second block
// device, and none when nothing is left of the connection: its device is gone, and only staging the volume anew helps.
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

// Former are the controllers of a connection's subsystem that lead to none of its portals, once I/O does not need them:
// while a path to one of its portals is live.
func (h *Host) Former(c Connection) ([]Controller, error) {
	controllers, err := h.Controllers(c.NQN)
	if err != nil {
		return nil, err
	}
	listed := func(is Controller) bool { return slices.ContainsFunc(c.Portals, is.reaches) }
	if !slices.ContainsFunc(controllers, func(is Controller) bool { return is.Live() && listed(is) }) {
		return nil, nil
	}
	return slices.DeleteFunc(controllers, func(is Controller) bool { return listed(is) || is.going() }), nil
}

// bySilence parts portals into those that may answer and those that did not lately, each in their order.
func (h *Host) bySilence(portals []v1alpha1.Portal) (answering, silent []v1alpha1.Portal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range portals {
		if since, ok := h.silent[p]; ok && h.Clock.Since(since) < silence {
			silent = append(silent, p)
		} else {
			answering = append(answering, p)
		}
	}
	return answering, silent
}

// heard remembers what came of a connection to a portal.
func (h *Host) heard(p v1alpha1.Portal, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrUnsupported) {
		h.silent[p] = h.Clock.Now()
	} else {
		delete(h.silent, p)
	}
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
