// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/internal/tracing"
)

// FindNamespace finds a volume's block device, by both its names. It fails with ErrNotFound when the host has none now.
func (h *Host) FindNamespace(id ID) (Namespace, error) {
	all, err := h.Namespaces(id.NQN)
	if err != nil {
		return Namespace{}, err
	}
	for _, ns := range all {
		if ns.NGUID == id.NGUID {
			return ns, nil
		}
	}
	return Namespace{}, fmt.Errorf("namespace %s of %s: %w", id.NGUID, id.NQN, ErrNotFound)
}

// Open keeps a namespace's block device open, so that the kernel gives its name and its number to no other until it is
// closed, and then confirms that it is still this namespace that has them: the device may have been lost, and what came
// back may have swapped names with another. It fails as Confirm does.
func (h *Host) Open(ns Namespace) (io.Closer, error) {
	f, err := h.Kernel.Open(ns.Path)
	if err != nil {
		return nil, openError(ns, err)
	}
	if err := h.Confirm(ns); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadStart reads what a namespace begins with, from the target and not from this machine's cache. It fails as Open
// does.
func (h *Host) ReadStart(ctx context.Context, ns Namespace, length int) ([]byte, error) {
	start := make([]byte, length)
	err := h.directly(ctx, "reading ", ns, false, func(d DirectDevice) error {
		_, err := d.ReadAt(start, 0)
		return err
	})
	return start, err
}

// WriteStart writes a block near a namespace's start, durably, and reads it back. It fails as Open does, and then may
// have written.
func (h *Host) WriteStart(ctx context.Context, ns Namespace, offset int64, block []byte) error {
	return h.directly(ctx, "writing ", ns, true, func(d DirectDevice) error {
		if _, err := d.WriteAt(block, offset); err != nil {
			return err
		}
		is := make([]byte, len(block))
		if _, err := d.ReadAt(is, offset); err != nil {
			return err
		}
		if !bytes.Equal(is, block) {
			return fmt.Errorf("%s (%s): data at %d differs from what was written", ns.Path, ns.NQN, offset)
		}
		return nil
	})
}

// directly does something with a namespace's block device, once it is confirmed that it is open.
func (h *Host) directly(ctx context.Context, what string, ns Namespace, write bool, do func(DirectDevice) error) error {
	end := doing.Begin(ctx, "opening "+ns.Path)
	d, err := h.Kernel.OpenDirect(ns.Path, write)
	end()
	if err != nil {
		return openError(ns, err)
	}
	defer doing.Begin(ctx, what+ns.Path)()
	err = h.Confirm(ns)
	if err == nil {
		err = do(d)
	}
	return errors.Join(err, d.Close())
}

// openError of a namespace's device.
func openError(ns Namespace, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENXIO) {
		return fmt.Errorf("open %s: %w: %w", ns.Path, ErrNotFound, err)
	}
	return err
}

// Confirm that a namespace has the name and the number that it was found with, and at least the size. It fails with
// ErrNotFound when it has other names, or none, and with ErrShrunk when it is smaller.
func (h *Host) Confirm(ns Namespace) error {
	now, err := h.FindNamespace(ns.ID)
	if err != nil {
		return err
	}
	if now.Name != ns.Name || now.Device != ns.Device {
		return fmt.Errorf("namespace %s of %s was %s (%s), and is %s (%s) now: %w", ns.NGUID, ns.NQN, ns.Name, ns.Device, now.Name, now.Device, ErrNotFound)
	}
	return now.Fits(ns.SizeBytes)
}

// Fits fails with ErrShrunk when the device has less than minBytes: a volume only ever grows.
func (n Namespace) Fits(minBytes int64) error {
	if n.SizeBytes < minBytes {
		return fmt.Errorf("%s (%s) has %d bytes, and %d were expected: %w", n.Path, n.NQN, n.SizeBytes, minBytes, ErrShrunk)
	}
	return nil
}

// WaitNamespace waits until a volume can be used: a path of it is live, its
// device node is there, and it has at least minBytes; a size that is too small is asked for again, once. It
// fails with a *NotReadyError that says what is missing: when the context ends, and at once when nothing is connected.
func (h *Host) WaitNamespace(ctx context.Context, id ID, minBytes int64) (_ Namespace, err error) {
	ctx, span := tracing.Start(ctx, "wait for namespace", tracing.NQNKey.String(id.NQN))
	defer func() { tracing.End(span, err) }()
	var found Namespace
	lacks, rescanned := "", false
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		ns, missing, err := h.look(id)
		if err != nil {
			return false, err
		}
		if missing == "" && ns.SizeBytes < minBytes {
			missing = fmt.Sprintf("%s has %d bytes, and %d were expected", ns.Path, ns.SizeBytes, minBytes)
			if !rescanned {
				rescanned = true
				if err := h.rescan(id.NQN); err != nil {
					return false, err
				}
			}
		}
		found, lacks = ns, missing
		return missing == "", nil
	})
	if err != nil {
		if lacks == "" || !errors.Is(err, ctx.Err()) {
			return Namespace{}, fmt.Errorf("wait for namespace %s of %s: %w", id.NGUID, id.NQN, err)
		}
		return Namespace{}, &NotReadyError{ID: id, Lacks: lacks, Err: err}
	}
	return found, nil
}

// look finds the namespace, or says what is missing.
func (h *Host) look(id ID) (Namespace, string, error) {
	controllers, err := h.Controllers(id.NQN)
	if err != nil {
		return Namespace{}, "", err
	}
	live, left := false, false
	states := make([]string, len(controllers))
	for i, c := range controllers {
		live, left = live || c.Live(), left || !c.going()
		states[i] = c.String()
	}
	if !left {
		return Namespace{}, "", &NotReadyError{ID: id, Lacks: "no connection", Err: ErrNotFound}
	}
	if !live {
		return Namespace{}, "no path is live: " + strings.Join(states, ", "), nil
	}
	all, err := h.Namespaces(id.NQN)
	if err != nil {
		return Namespace{}, "", err
	}
	others := make([]string, 0, len(all))
	for _, ns := range all {
		if ns.NGUID != id.NGUID {
			others = append(others, ns.NGUID)
			continue
		}
		if _, err := os.Stat(ns.Path); errors.Is(err, fs.ErrNotExist) {
			return Namespace{}, ns.Path + " does not exist", nil
		} else if err != nil {
			return Namespace{}, "", err
		}
		return ns, "", nil
	}
	if len(others) > 0 {
		return Namespace{}, "the subsystem serves other namespaces: " + strings.Join(others, ", "), nil
	}
	return Namespace{}, "the subsystem serves no namespace", nil
}

// rescan asks the kernel to look at a subsystem's namespaces again, through every live path. It returns before the
// kernel has.
func (h *Host) rescan(nqn string) error {
	controllers, err := h.Controllers(nqn)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if !c.Live() {
			continue
		}
		err := h.Kernel.Rescan(c.dir)
		if err != nil && !isGone(err) {
			return fmt.Errorf("rescan %s: %w", c.Name, err)
		}
	}
	return nil
}

// isGone tells whether a write failed because its device is not there any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
