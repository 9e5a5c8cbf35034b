// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK finishes what a process has begun, also when that process is killed. Hosts of the volume must wait as long, so
// each change of a volume is on record before it begins, and the next process asks whether it has ended. The records
// are beside the target's socket, on a memory filesystem: they mean nothing after a reboot.
//
// SPDK 26.05 shows the end of a change by what it lists, once all is written:
//
//   - The name of a snapshot that it makes is taken at once, and has a bdev at the end.
//   - The bdev of a volume that grows has its new size. Of a growth that failed it has not.
//   - A volume into which a snapshot is merged is based on something else, or on nothing. That shows before the last
//     write of the volume's metadata.
//   - Whatever closes a volume waits until its metadata are written, as far as that has begun: so does a clone of it,
//     which SPDK refuses because it is no snapshot.
const (
	// askOngoingAfter so long whether a change has ended, then after twice that, up to askOngoingEvery: SPDK logs it.
	askOngoingAfter = 20 * time.Millisecond
	askOngoingEvery = 5 * time.Second
	// growthPatience with a growth, from when it is recorded, until SPDK has begun to write it, or never will.
	growthPatience = 5 * time.Second
	// recallPatience with all that is on record, for which all calls wait.
	recallPatience = time.Second
)

// ongoing change of a volume, as the next process has to know it. One of the first three is set.
type ongoing struct {
	// Makes a snapshot of that name.
	Makes string `json:"makes,omitempty"`
	// Merges the deleted snapshot of that name into the volume.
	Merges string `json:"merges,omitempty"`
	// GrowsTo so many bytes.
	GrowsTo int64 `json:"growsTo,omitempty"`
	// Until when a growth may not have begun, by the time since the node has started.
	Until time.Duration `json:"until,omitempty"`
	// NQN of the volume's subsystem, if its hosts wait.
	NQN string `json:"nqn,omitempty"`
	// Target that does it: what ended with another one, nobody waits for.
	Target string `json:"target"`
}

func growing(sizeBytes int64) ongoing {
	return ongoing{GrowsTo: sizeBytes, Until: sinceBoot() + growthPatience}
}

// sinceBoot is the time since the node has started, which nobody sets.
func sinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // which Linux has had since 2.6.39
	return time.Duration(now.Nano())
}

// ongoingRecords say what SPDK changes, by the aliases of volumes.
func (e *Engine) ongoingRecords() records { return e.besideSocket("changing") }

// target that is there now: each makes its socket itself.
func (e *Engine) target() (string, error) {
	info, err := os.Stat(e.path(e.config.Socket))
	if err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, " ", info.ModTime().UnixNano()), nil
}

// recordChange of a volume that is about to begin. nqn is that of the subsystem whose hosts wait; empty for none.
func (s *session) recordChange(l *lvol, o ongoing, nqn string) error {
	target, err := s.target()
	if err == nil {
		o.NQN, o.Target = nqn, target
		err = s.ongoingRecords().write(l.alias(), o)
	}
	if err != nil {
		return fmt.Errorf("record a change of volume %s: %w", l.id, err)
	}
	return nil
}

// changed says that SPDK has answered, and removes the record; not where the connection was lost instead.
func (s *session) changed(l *lvol) error {
	select {
	case <-s.conn.Lost():
		return nil
	default:
		return s.ongoingRecords().remove(l.alias())
	}
}

// recall what processes before this one had SPDK change, and have its hosts and exports wait for it. It waits a moment
// for what has ended. The caller holds mu.
func (s *session) recall() error {
	if s.life.recalled {
		return nil
	}
	all, err := s.recorded()
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(s.ctx, recallPatience)
	defer cancel()
	for alias, o := range all {
		change := s.ask(s.life.changing, alias, func(beyond *session) error { return beyond.outlive(alias, o) })
		last := change
		if o.NQN != "" {
			last = s.ask(s.life.waking, o.NQN, func(beyond *session) error {
				<-change.done
				if change.err != nil {
					return change.err
				}
				return beyond.wakeOne(o.NQN)
			})
		}
		_ = last.wait(patience)
	}
	s.life.recalled = true
	return nil
}

// isRecalled fails with engine.ErrBusy while it is unknown what SPDK changes. The caller holds mu.
func (e *Engine) isRecalled() error {
	if !e.life.recalled {
		return fmt.Errorf("%w: it is unknown what SPDK still changes", engine.ErrBusy)
	}
	return nil
}

// recorded changes that the target may still carry out, by the aliases of volumes. The records of others are removed.
func (s *session) recorded() (map[string]ongoing, error) {
	target, err := s.target()
	if err != nil {
		return nil, err
	}
	aliases, err := s.ongoingRecords().of()
	if err != nil {
		return nil, err
	}
	all := map[string]ongoing{}
	for _, alias := range aliases {
		var o ongoing
		var unread *fs.PathError
		err := s.ongoingRecords().read(alias, &o)
		switch {
		case errors.As(err, &unread):
			return nil, err
		case err != nil || o.Target != target: // one that was not written whole had not begun
			if err := s.ongoingRecords().remove(alias); err != nil {
				return nil, err
			}
		default:
			all[alias] = o
		}
	}
	return all, nil
}

// outlive a change that another process began. It fails only where the connection is lost before.
func (s *session) outlive(alias string, o ongoing) error {
	if err := s.askUntil(func() (bool, error) { return s.hasEnded(alias, o) }); err != nil {
		return fmt.Errorf("SPDK may still change %s: %w", alias, err)
	}
	return s.ongoingRecords().remove(alias)
}

// askUntil something has ended. While SPDK does not say, it has not. It fails only where the session's context ends, or
// the connection is lost.
func (s *session) askUntil(ended func() (bool, error)) error {
	for pause := askOngoingAfter; ; pause = min(2*pause, askOngoingEvery) {
		if is, err := ended(); is && err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-s.conn.Lost():
			return engine.ErrUnavailable
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (s *session) hasEnded(alias string, o ongoing) (bool, error) {
	lvstore, _, _ := strings.Cut(alias, "/")
	switch {
	case o.Makes != "":
		if refused, err := s.refused(alias, o.Makes); err != nil || refused {
			return refused, err
		}
		return s.has(lvstore + "/" + o.Makes)
	case o.Merges != "":
		if there, err := s.has(lvstore + "/" + o.Merges); err != nil || there { // SPDK has refused to delete it
			return there, err
		}
		return s.merged(alias, o.Merges)
	}
	is, err := s.bdevsNamed([]string{alias})
	switch {
	case err != nil:
		return false, err
	case len(is) > 0 && int64(is[0].Blocks*is[0].BlockBytes) >= o.GrowsTo:
		return true, nil
	case sinceBoot() < o.Until:
		return false, nil
	}
	return s.refusedAny(alias)
}

// merged says whether SPDK has merged a snapshot that it deletes into a volume, and writes nothing of that volume's map
// any more.
func (s *session) merged(alias, snapshot string) (bool, error) {
	is, err := s.bdevsNamed([]string{alias})
	if err != nil || len(is) > 0 && is[0].Driver.Lvol != nil && is[0].Driver.Lvol.Base == snapshot {
		return false, err
	}
	return s.refusedAny(alias)
}

// refusedAny clone of a volume, by a name that no lvol has.
func (s *session) refusedAny(alias string) (bool, error) {
	_, name, _ := strings.Cut(alias, "/")
	return s.refused(alias, "refused-"+name)
}

// refused says whether SPDK refuses to make a clone of a volume because it is no snapshot, or not there. The answer
// takes until the volume's metadata are written. False: the name is taken, or SPDK cannot tell now.
func (s *session) refused(alias, name string) (bool, error) {
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolClone{Snapshot: alias, Name: name})
	var unanswered *spdkrpc.UnansweredError
	if errors.As(err, &unanswered) {
		return false, mapError(err)
	}
	return errors.Is(err, spdkrpc.ErrInvalid) || errors.Is(err, spdkrpc.ErrNotFound), nil
}

// has says whether there is a bdev of a name.
func (s *session) has(bdev string) (bool, error) {
	is, err := s.bdevsNamed([]string{bdev})
	return len(is) > 0, err
}
