// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A host that was cut off keeps the controllers of an attachment that has ended, with what was written to them and has
// not reached the target. The target does not admit that attachment again, but the kernel goes on trying, and as long
// as it has such a controller it may have the volume's old block device. So everything of a volume's past goes before
// the volume is connected again.

// ErrPast says that this machine still has controllers of an attachment of the volume that has ended.
var ErrPast = errors.New("an earlier attachment of the volume is not gone from this host yet")

// ours tells whether a controller is one that weft made on this machine.
func (h *Host) ours(c Controller) bool {
	_, ofWeft := v1alpha1.ReplicaOfSubsystem(c.NQN)
	_, ofAttachment := v1alpha1.AttachmentOfHost(c.HostNQN)
	return ofWeft && ofAttachment
}

// Subsystems are the NQNs of the subsystems that this machine has controllers of, in whatever state, or is making one
// of, by the name of the replica that they serve; sorted. Only weft's are among them.
func (h *Host) Subsystems() (map[string][]string, error) {
	// A controller that is being made is not in sysfs. Asked for first, it is found in one place or the other.
	all := h.flights.nqns()
	class := h.sys("class/nvme-subsystem")
	names, err := children(subsystemName, class)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		nqn, err := attribute(class, name, "subsysnqn")
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, nqn)
	}
	slices.Sort(all)
	nqns := map[string][]string{}
	for _, nqn := range slices.Compact(all) {
		if volume, ours := v1alpha1.ReplicaOfSubsystem(nqn); ours {
			nqns[volume] = append(nqns[volume], nqn)
		}
	}
	return nqns, nil
}

// past lists the controllers of a connection's volume that were made for another attachment, by subsystem.
func (h *Host) past(c Connection) (map[string][]Controller, error) {
	volume, ours := v1alpha1.ReplicaOfSubsystem(c.NQN)
	if !ours {
		return nil, fmt.Errorf("%w: %s is not a subsystem of weft's", ErrInvalid, c.NQN)
	}
	nqns, err := h.Subsystems()
	if err != nil {
		return nil, err
	}
	past := map[string][]Controller{}
	for _, nqn := range nqns[volume] {
		controllers, err := h.Controllers(nqn)
		if err != nil {
			return nil, err
		}
		if controllers = slices.DeleteFunc(controllers, c.owns); len(controllers) > 0 {
			past[nqn] = controllers
		}
	}
	return past, nil
}

// owns tells whether a controller was made for this attachment.
func (c Connection) owns(is Controller) bool { return is.NQN == c.NQN && c.isHost(is.HostNQN) }

// isHost tells whether a host NQN is one of the attachment's.
func (c Connection) isHost(nqn string) bool {
	return nqn == c.HostNQN || c.Beside != "" && nqn == c.Beside
}

// clearPast deletes the controllers of a volume's earlier attachments, whoever uses them: their target has shut them
// out, and what is read through them is out of date. It returns when they are gone, and with them their block devices.
// It tells whether there were any, and fails with ErrPast when they are not gone before the context ends.
func (h *Host) clearPast(ctx context.Context, c Connection) (bool, error) {
	volume, _ := v1alpha1.ReplicaOfSubsystem(c.NQN)
	// What is still being connected would appear afterwards.
	err := h.flights.wait(ctx, func(key flightKey) bool {
		of, _ := v1alpha1.ReplicaOfSubsystem(key.nqn)
		return of == volume && (key.nqn != c.NQN || !c.isHost(key.host))
	})
	if err != nil {
		return false, fmt.Errorf("%w: it is still being connected: %w", ErrPast, err)
	}
	past, err := h.past(c)
	if err != nil {
		return false, fmt.Errorf("look for earlier attachments of %s: %w", c.NQN, err)
	}
	for nqn, controllers := range past {
		logr.FromContextOrDiscard(ctx).Info("Disconnecting an attachment that has ended", "nqn", nqn, "host", controllers[0].HostNQN)
		if err := h.remove(ctx, nqn, func(is Controller) bool { return !c.owns(is) }); err != nil {
			return false, fmt.Errorf("%w: %w", ErrPast, err)
		}
	}
	return len(past) > 0, nil
}

// confirmAlone fails with ErrPast when a controller of another attachment of the volume has appeared: one that was
// being made by a process that was killed, say.
func (h *Host) confirmAlone(c Connection) error {
	past, err := h.past(c)
	for _, controllers := range past {
		return fmt.Errorf("%w: %s was connected as %s", ErrPast, controllers[0], controllers[0].HostNQN)
	}
	return err
}
