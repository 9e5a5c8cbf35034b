// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// condemned are volumes and snapshots, by SPDK's names of their bdevs, that are to be deleted and could get neither
// another name nor a mark: that takes metadata pages, and a write to the drive. Clear deletes them as they are.
//
// Only this process knows of it. So they are listed, and their deletion fails with engine.ErrBusy, until SPDK has
// deleted them: it lists no lvol that it is deleting. A process that starts before SPDK was asked, and another life of
// the target, find them as they were, and are asked to delete them again. One that starts while SPDK deletes finds
// none: should the target end before SPDK wrote that, what was deleted comes back as an orphan, which nobody serves.
// What SPDK refuses to delete it forgets until its next start; until then nobody can tell whether it is there.
type condemned map[string]*removal

// removal of one of them.
type removal struct {
	// lvol as it was listed last.
	lvol *lvol
	// because SPDK did not rename or mark it.
	because error
	// err is why SPDK did not delete it.
	err error
}

// unnameTimeout is how long SPDK may take to give names back, which all other calls of the engine wait for.
const unnameTimeout = 2 * time.Second

// condemn an lvol that nothing exports, and say so.
func (s *session) condemn(l *lvol, because error) error {
	s.life.condemned[l.bdev] = &removal{lvol: l, because: because}
	s.mayClear(l.pool)
	return s.life.condemned.refusal(l.id)
}

// unname lvols whose renaming failed: SPDK changes the alias first, and not back when the rest of it fails. Going back
// to the name that the lvol has takes no metadata page. Where SPDK had changed nothing it says that the name exists.
// The caller's time may have ended with the renaming.
func (s *session) unname(items []int, found []*lvol) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), unnameTimeout)
	defer cancel()
	own := s.under(ctx)
	call(own, items, make([]error, len(found)), func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolRename{Name: found[i].bdev, NewName: found[i].name}
	})
}

// refusal of what concerns a volume or snapshot that is condemned; nil when it is not.
func (c condemned) refusal(id engine.ID) error {
	for _, r := range c {
		switch {
		case r.lvol.id != id:
		case r.err != nil:
			return fmt.Errorf("%w: SPDK did not delete %s, and may have it again after its next start: %w", engine.ErrBusy, id, mapError(r.err))
		default:
			return fmt.Errorf("%w: %s is deleted as it is, because pool %s did not rename or mark it: %w", engine.ErrBusy, id, r.lvol.pool.Device, r.because)
		}
	}
	return nil
}

// see an lvol, and answer whether it is condemned.
func (c condemned) see(l *lvol) bool {
	r := c[l.bdev]
	if r != nil && l.sizeBytes > 0 { // what is listed by name only has none
		r.lvol = l
	}
	return r != nil
}

// tried to delete an lvol, which may be condemned.
func (c condemned) tried(l *lvol, err error) {
	if r := c[l.bdev]; r != nil && err != nil {
		r.err = err
		return
	}
	delete(c, l.bdev)
}

// forget what was in a pool.
func (c condemned) forget(device string) {
	for bdev, r := range c {
		if r.lvol.pool.Device == device {
			delete(c, bdev)
		}
	}
}

// addTo the state what is condemned in pools that can be read.
func (c condemned) addTo(state *engine.State, st *store) {
	for _, r := range c {
		l := r.lvol
		if _, err := st.pool(l.pool.Device); err != nil {
			continue
		}
		if l.kind == snapshotLvol {
			state.Snapshots = append(state.Snapshots, l.snapshot())
			continue
		}
		state.Volumes = append(state.Volumes, l.volume())
	}
}
