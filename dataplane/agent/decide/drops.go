// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// decideDrops gives up the drives that a person named, once it is known that they cannot be had: never one that can be
// read, nor while that is not known. What was dropped stays dropped until it is named no more.
func (d *decider) decideDrops() {
	for _, wish := range d.Node.Spec.DroppedDrives {
		s := v1alpha1.DroppedDriveStatus{ID: wish.ID, Dropped: d.Node.Dropped(wish.ID)}
		p := d.poolOf(wish.ID)
		refused := d.Attempts.err(VerbForgetPool, wish.ID)
		switch {
		case p.readable():
			s.Dropped = false
			s.Message = "its pool can still be read; delete its volumes and remove the drive first, or remove the drive from spec.droppedDrives (kubectl weft drop --undo)"
		case p == nil, p.held == nil && (s.Dropped || d.outOfReach(p)):
			s.Dropped = true
			s.Message = d.whatIsThere(wish.ID)
		case !s.Dropped && !d.outOfReach(p):
			_, why := d.judgePool(p)
			s.Message = "it is unknown whether it can be read: " + why
		case refused != nil:
			s.Message = "it cannot be dropped yet: " + refused.Error()
		case !d.Attempts.Tried(VerbForgetPool, wish.ID):
			d.decision.Operations.ForgetPools = append(d.decision.Operations.ForgetPools, wish.ID)
		}
		s.Message = text.Clip(s.Message, MaxMessageBytes)
		d.drops = append(d.drops, s)
	}
	// The operator takes them out of the plan.
	d.pools = slices.DeleteFunc(d.pools, func(p *pool) bool { return p.held == nil && d.dropped(p.device.ID) })
}

// outOfReach: the drive of a pool that cannot be read was looked for and is not there, or was tried and does not serve.
// What passes by itself is not meant.
func (d *decider) outOfReach(p *pool) bool {
	if !p.located() {
		return d.Inventory != nil
	}
	err := d.Attempts.err(VerbOpenPool, p.device.ID)
	for _, passing := range []error{engine.ErrBusy, engine.ErrUnavailable, engine.ErrInUse, engine.ErrInvalid, engine.ErrUnsupported, device.ErrInUse, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, passing) {
			return false
		}
	}
	return err != nil
}

// whatIsThere says what to do with a drive that was dropped and is in the node, or is back; empty when it is not.
func (d *decider) whatIsThere(id string) string {
	found := d.driveOf(id)
	if found == nil {
		return ""
	}
	holds := "blank"
	if found.Content != v1alpha1.ContentBlank {
		holds = fmt.Sprintf("not blank (%s, %s)", found.Content, found.ContentDetail)
	}
	return fmt.Sprintf("the drive is present as /dev/%s, %s, but is not used: to serve it again with its volumes, remove it from spec.droppedDrives (kubectl weft drop --undo); "+
		"to use it as a new drive, erase it first (blkdiscard -f /dev/%s)", found.Name, holds, found.Name)
}

// dropped says whether a device was given up: what it held is known to be lost.
func (d *decider) dropped(device string) bool {
	return slices.ContainsFunc(d.drops, func(s v1alpha1.DroppedDriveStatus) bool { return s.ID == device && s.Dropped })
}

// known says whether it is known what a device holds: it was read, or given up.
func (d *decider) known(device string) bool { return d.poolOf(device).readable() || d.dropped(device) }
