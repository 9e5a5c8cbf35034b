// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Disconnect takes this machine's controllers of a subsystem away, also those of a former host, and returns when they
// are gone from sysfs. Nothing connected is no error. With another namespace of the subsystem still in use, they serve
// that and stay, and that is no error either.
//
// It fails with an *InUseError when the volume itself is in use; with NGUID empty (not
// known) that is any namespace of the subsystem. It fails with a *StuckError naming the controllers when the context
// ends first. One that the kernel cannot finish with never holds up other subsystems.
func (h *Host) Disconnect(ctx context.Context, id ID) error {
	if err := h.flights.wait(ctx, id.NQN); err != nil {
		return fmt.Errorf("disconnect %s: a connection is still being made: %w", id.NQN, err)
	}
	switch used, err := h.inUse(id.NQN); {
	case err != nil:
		return err
	case used == nil:
		return h.remove(ctx, id.NQN, func(Controller) bool { return true })
	case id.NGUID == "" || used.NGUID == id.NGUID:
		return used
	default:
		logr.FromContextOrDiscard(ctx).Info("Connection stays: it serves another volume", "nqn", id.NQN, "device", used.Name)
		return nil
	}
}

// inUse gives the first namespace of a subsystem that is used, and by whom; nil when none is.
func (h *Host) inUse(nqn string) (*InUseError, error) {
	namespaces, err := h.Namespaces(nqn)
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		users, err := h.users(ns)
		if err != nil {
			return nil, fmt.Errorf("find out who uses %s: %w", ns.Path, err)
		}
		if len(users) > 0 {
			return &InUseError{Namespace: ns, Users: users}, nil
		}
	}
	return nil, nil
}

// users lists what holds a namespace's block device. A path that is only open, by a pod
// that writes to a raw device, shows as the mount by which the pod has it.
func (h *Host) users(ns Namespace) ([]string, error) {
	users, err := h.MountsOf(ns)
	if err != nil {
		return nil, err
	}
	holders, err := os.ReadDir(h.sys("class/block", ns.Name, "holders"))
	if err != nil && !isGone(err) {
		return nil, err
	}
	for _, holder := range holders {
		users = append(users, "block device "+holder.Name())
	}
	if len(users) > 0 {
		return users, nil
	}
	claimed, err := h.Kernel.Claimed(ns.Path)
	if err != nil && !isGone(err) && !errors.Is(err, syscall.ENXIO) {
		return nil, err
	}
	if claimed {
		users = append(users, "a mount in another mount namespace, or swap")
	}
	return users, nil
}

// remove deletes those controllers of a subsystem and waits.
func (h *Host) remove(ctx context.Context, nqn string, those func(Controller) bool) error {
	asked := map[string]bool{}
	failed := make(chan error, 1)
	var left []Controller
	look := func() error {
		controllers, err := h.allControllers(nqn)
		if err == nil {
			left = slices.DeleteFunc(controllers, func(c Controller) bool { return !those(c) })
		}
		return err
	}
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-failed:
			return false, err
		default:
		}
		if err := look(); err != nil {
			return false, err
		}
		for _, c := range left {
			if !asked[c.Name] && !strings.HasPrefix(c.State, "deleting") {
				asked[c.Name] = true
				logr.FromContextOrDiscard(ctx).Info("Disconnecting", "nqn", nqn, "controller", c.Name)
				go h.delete(c, failed)
			}
		}
		return len(left) == 0, nil
	})
	if ctx.Err() != nil {
		// It was looked at some time ago.
		if err := look(); err != nil || len(left) == 0 {
			return err
		}
	}
	if err != nil && len(left) > 0 {
		return &StuckError{NQN: nqn, Controllers: left, Err: err}
	}
	return err
}

// delete asks the kernel to delete a controller. The write returns when it is done, which may be never: it has a
// goroutine of its own.
func (h *Host) delete(c Controller, failed chan<- error) {
	err := h.Kernel.WriteAttribute(c.dir+"/delete_controller", "1")
	if err == nil || isGone(err) {
		return
	}
	select {
	case failed <- fmt.Errorf("delete %s: %w", c.Name, err):
	default: // one error is enough
	}
}
