// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/internal/tracing"
)

// Disconnect takes this machine's controllers of a subsystem away, and returns when they are gone from sysfs. Nothing
// connected is no error. With another namespace of the subsystem still in use, they serve that and stay, and that is no
// error either.
//
// It fails with an *InUseError when the volume itself is in use; with NGUID empty (not
// known) that is any namespace of the subsystem. It fails with a *StuckError naming the controllers when the context
// ends first. One that the kernel cannot finish with never holds up other subsystems.
func (h *Host) Disconnect(ctx context.Context, id ID) (err error) {
	ctx, span := tracing.Start(ctx, "disconnect", tracing.NQNKey.String(id.NQN))
	defer func() { tracing.End(span, err) }()
	if err := h.Settled(ctx, id.NQN); err != nil {
		return fmt.Errorf("disconnect %s: a connection is still being made: %w", id.NQN, err)
	}
	switch used, err := h.inUse(ctx, id.NQN); {
	case err != nil:
		return err
	case used == nil:
		return h.remove(ctx, id.NQN, func(Controller) bool { return true })
	case id.NGUID == "" || used.NGUID == id.NGUID:
		return used
	default:
		logr.FromContextOrDiscard(ctx).Info("Keeping the connection: it serves another volume", "nqn", id.NQN, "device", used.Name)
		return nil
	}
}

// GiveUp takes those of this host's controllers of a subsystem away that are named, though a volume is in use through
// them, and returns when they are gone. What waits for I/O through them fails. It fails with a *StuckError when the
// context ends first.
func (h *Host) GiveUp(ctx context.Context, nqn string, those func(Controller) bool) error {
	return h.remove(ctx, nqn, those)
}

// Settled waits until no connection to a subsystem is being made. The kernel may still make one of which a caller did
// not wait for the end.
func (h *Host) Settled(ctx context.Context, nqn string) error {
	return h.flights.wait(ctx, func(key flightKey) bool { return key.nqn == nqn })
}

// inUse gives the first namespace of a subsystem that is used, and by whom; nil when none is.
func (h *Host) inUse(ctx context.Context, nqn string) (*InUseError, error) {
	namespaces, err := h.Namespaces(nqn)
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		users, err := h.users(ctx, ns)
		if err != nil {
			return nil, fmt.Errorf("find out who uses %s: %w", ns.Path, err)
		}
		if len(users) > 0 {
			return &InUseError{Namespace: ns, Users: users}, nil
		}
	}
	return nil, nil
}

// users lists what uses a namespace's block device.
func (h *Host) users(ctx context.Context, ns Namespace) ([]string, error) {
	return h.Users(ctx, ns.Device, ns.Name)
}

// Users of a block device, by its number and its name. A path that is only open, by a pod that writes to a raw device,
// shows as the mount by which the pod has it. A device that weft itself made of it uses it if somebody uses that.
func (h *Host) Users(ctx context.Context, device, name string) ([]string, error) {
	users, err := h.MountsOf(device, name)
	if err != nil {
		return nil, err
	}
	holders, err := os.ReadDir(h.sys("class/block", name, "holders"))
	if err != nil && !isGone(err) {
		return nil, err
	}
	own := false
	devices := mapper.Host{Root: h.Root}
	for _, holder := range holders {
		d, err := devices.Find(holder.Name())
		switch {
		case errors.Is(err, mapper.ErrNotFound): // it was removed meanwhile
		case errors.Is(err, mapper.ErrForeign):
			users = append(users, "block device "+holder.Name())
		case err != nil:
			return nil, err
		default:
			above, err := h.Users(ctx, d.Number, d.Name)
			if err != nil {
				return nil, err
			}
			own, users = true, append(users, above...)
		}
	}
	if len(users) > 0 || own {
		return users, nil
	}
	path := h.dev(name)
	defer doing.Begin(ctx, "opening "+path)()
	claimed, err := h.Kernel.Claimed(path)
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
	var asked sync.Map // controllers that the kernel is asked to delete, by name
	failed := make(chan error, 1)
	var left []Controller
	look := func() error {
		controllers, err := h.Controllers(nqn)
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
			if strings.HasPrefix(c.State, "deleting") {
				continue
			}
			if _, before := asked.LoadOrStore(c.Name, true); before {
				continue
			}
			logr.FromContextOrDiscard(ctx).Info("Disconnecting", "nqn", nqn, "controller", c.Name)
			ended := h.delete(c)
			go func() {
				if err := ended(ctx); err != nil {
					select {
					case failed <- err:
					default: // one error is enough
					}
				}
				asked.Delete(c.Name) // what has the name now may be a later one
			}()
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

// delete asks the kernel to delete a controller, and returns what waits for the end of that, which may never come.
// There is one deletion for each controller, however often it is asked for. The controller is opened before this
// returns, so one that gets its name later is not deleted, even if it is of the same host and subsystem.
func (h *Host) delete(c Controller) (ended func(context.Context) error) {
	failed := func(err error) error {
		if err != nil && !isGone(err) {
			return fmt.Errorf("delete %s: %w", c.Name, err)
		}
		return nil
	}
	ours, err := own.Open(c.dir, c.NQN, c.HostNQN)
	if err != nil {
		return func(context.Context) error { return failed(err) }
	}
	fl, joined := h.deletions.begin(flightKey{nqn: c.NQN, controller: c.Name}, func() error {
		return errors.Join(h.Kernel.Delete(ours), ours.Close())
	})
	if joined {
		err = ours.Close()
	}
	return func(ctx context.Context) error {
		if fl.wait(ctx) == nil {
			return failed(errors.Join(fl.err, err))
		}
		return nil // the caller has given up, and says so
	}
}

// Deletions of controllers that the kernel has not finished: the oldest of each subsystem, by its NQN.
func (h *Host) Deletions() map[string]doing.Step {
	h.deletions.mu.Lock()
	defer h.deletions.mu.Unlock()
	oldest := map[string]doing.Step{}
	for key, fl := range h.deletions.pending {
		if was, ok := oldest[key.nqn]; !ok || fl.begun.Before(was.Since) {
			oldest[key.nqn] = doing.Step{What: "deleting " + key.controller, Since: fl.begun}
		}
	}
	return oldest
}
