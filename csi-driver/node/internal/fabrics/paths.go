// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"cmp"
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

// ControllersOf a host among others.
func ControllersOf(host string, controllers []Controller) []Controller {
	return slices.DeleteFunc(slices.Clone(controllers), func(c Controller) bool { return c.HostNQN != host })
}

// Lost are the portals of a connection that have no controller of its host although the subsystem is connected, so that
// Connect would add a path. There are none without the kernel's multipath, where a second controller would be a second
// block device, and none when nothing is left of the connection: its device is gone, and only staging the volume
// again helps.
func (h *Host) Lost(c Connection) ([]v1alpha1.Portal, error) {
	controllers, err := h.Controllers(c.NQN)
	if err != nil {
		return nil, err
	}
	lost := Unreached(c.Portals, ControllersOf(c.HostNQN, controllers))
	left := slices.DeleteFunc(controllers, func(is Controller) bool { return !c.owns(is) })
	if len(lost) == 0 || !connected(left) {
		return nil, nil
	}
	multipath, err := h.multipath()
	if err != nil || !multipath {
		return nil, err
	}
	return lost, nil
}

// Former are the controllers of a connection's subsystem that lead to none of its portals, once I/O of a namespace does
// not need them: while it has a path to one of its portals.
func (h *Host) Former(c Connection, id ID) ([]Controller, error) {
	controllers, err := h.Controllers(c.NQN)
	if err != nil {
		return nil, err
	}
	listed := func(is Controller) bool { return slices.ContainsFunc(c.Portals, is.reaches) }
	former := slices.DeleteFunc(slices.Clone(controllers), func(is Controller) bool { return listed(is) || is.going() })
	if len(former) == 0 {
		return nil, nil
	}
	for _, is := range controllers {
		if !is.Live() || !listed(is) {
			continue
		}
		if path, err := h.isPath(is, id.NGUID); err != nil || path {
			return former, err
		}
	}
	return nil, nil
}

// ErrNoMultipath says that the kernel does not join several controllers of a subsystem (nvme_core.multipath=N).
var ErrNoMultipath = errors.New("nvme_core.multipath is off")

// Carries tells whether a namespace's I/O can go on through the controllers of the connection's host alone: it has a
// path through one of them, and one through each portal to which another host has a live one. It fails with
// ErrNoMultipath where each controller has a block device of its own.
func (h *Host) Carries(c Connection, id ID) (bool, error) {
	if multipath, err := h.multipath(); err != nil || !multipath {
		return false, cmp.Or(err, ErrNoMultipath)
	}
	controllers, err := h.Controllers(c.NQN)
	if err != nil {
		return false, err
	}
	var own []Controller
	for _, is := range controllers {
		if is.HostNQN != c.HostNQN || !is.Live() {
			continue
		}
		path, err := h.isPath(is, id.NGUID)
		if err != nil {
			return false, err
		}
		if path {
			own = append(own, is)
		}
	}
	missed := func(other Controller) bool {
		return other.HostNQN != c.HostNQN && other.Live() && !slices.ContainsFunc(own, func(is Controller) bool {
			return is.Transport == other.Transport && is.Port == other.Port && sameAddress(is.Address, other.Address)
		})
	}
	return len(own) > 0 && !slices.ContainsFunc(controllers, missed), nil
}

// isPath tells whether the kernel has found a namespace through a controller, and sends I/O there: it does so some time
// after the controller is live. The last path that is found keeps the block device.
func (h *Host) isPath(c Controller, nguid string) (bool, error) {
	name, err := h.carrier(c, nguid)
	if err != nil || !pathName.MatchString(name) {
		return false, err
	}
	state, err := attribute(c.dir, name, "ana_state")
	if errors.Is(err, errGone) {
		return true, nil // its target has no ANA
	}
	return state == "optimized" || state == "non-optimized", err
}

// Left tells whether this machine has nothing of a subsystem as a host any more, and is not connecting to it.
func (h *Host) Left(nqn, host string) (bool, error) {
	// A controller that is being made is not in sysfs. Asked for first, it is found in one place or the other.
	if h.flights.any(func(key flightKey) bool { return key.nqn == nqn && key.host == host }) {
		return false, nil
	}
	controllers, err := h.Controllers(nqn)
	return err == nil && !slices.ContainsFunc(controllers, func(c Controller) bool { return c.HostNQN == host }), err
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
