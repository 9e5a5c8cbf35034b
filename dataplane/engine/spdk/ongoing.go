// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK finishes what a process has begun, also when that process is killed. Hosts of the volume must wait as long, so
// each change of a volume is on record before it begins, and the next process asks whether it has ended. The records
// are beside the target's socket, on a memory filesystem: they mean nothing after a reboot.

const (
	// askOngoingEvery so often whether a change that is on record has ended. SPDK logs each of these questions.
	askOngoingEvery = 200 * time.Millisecond
	// growthPatience with a volume that grows, whose end SPDK does not show.
	growthPatience = 20 * time.Second
	// recallPatience with all that is on record, for which all calls wait.
	recallPatience = time.Second
)

// ongoing change of a volume, as the next process has to know it.
type ongoing struct {
	// Lvol, of the same lvstore, that SPDK makes or deletes: while it does, the name is taken, and has no bdev. Empty
	// for a volume that grows.
	Lvol string `json:"lvol,omitempty"`
	// Patience that hosts have with it; 0 for as long as it takes.
	Patience time.Duration `json:"patience,omitempty"`
	// Lvstore of the volume, and the NQN of its subsystem, if its hosts wait.
	Lvstore string `json:"lvstore"`
	NQN     string `json:"nqn,omitempty"`
	// Target that does it: what ended with another one, nobody waits for.
	Target string `json:"target"`
}

// snapshotting makes a snapshot of that name.
func snapshotting(name string) ongoing { return ongoing{Lvol: name} }

// merging deletes a snapshot. SPDK does not show when it has merged it, and goes on with clearing it.
func merging(l *lvol) ongoing { return ongoing{Lvol: l.name, Patience: mergePatience} }

func growing() ongoing { return ongoing{Patience: growthPatience} }

// ongoingRecords say what SPDK changes, by the aliases of volumes.
func (e *Engine) ongoingRecords() records {
	return records{e.path(filepath.Dir(e.config.Socket), "changing")}
}

// recordChange of a volume that is about to begin. nqn is that of the subsystem whose hosts wait; empty for none.
func (s *session) recordChange(l *lvol, o ongoing, nqn string) error {
	target, err := s.target()
	if err != nil {
		return err
	}
	o.Lvstore, o.NQN, o.Target = l.pool.lvstore, nqn, target
	return s.ongoingRecords().write(l.alias(), o)
}

// target that is there now: each makes its socket itself.
func (e *Engine) target() (string, error) {
	info, err := os.Stat(e.path(e.config.Socket))
	if err != nil {
		return "", err
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, " ", info.ModTime().UnixNano()), nil
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
	target, err := s.target()
	if err != nil {
		return err
	}
	aliases, err := s.ongoingRecords().of()
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(s.ctx, recallPatience)
	defer cancel()
	for _, alias := range aliases {
		var o ongoing
		if err := s.ongoingRecords().read(alias, &o); err != nil || o.Target != target {
			continue // a process that ended while it wrote this, had not begun
		}
		change := s.ask(s.life.changing, alias, func(beyond *session) error { return beyond.outlive(alias, o) })
		if o.NQN != "" {
			s.ask(s.life.waking, o.NQN, func(beyond *session) error {
				<-change.done
				if change.err != nil {
					return change.err
				}
				return beyond.wakeOne(o.NQN)
			})
		}
		if o.Lvol != "" {
			_ = change.wait(patience)
		}
	}
	s.life.recalled = true
	return nil
}

// outlive a change that another process began. It fails only where the connection is lost before.
func (s *session) outlive(alias string, o ongoing) error {
	var patience <-chan time.Time
	if o.Patience > 0 {
		patience = time.After(o.Patience)
	}
	again := time.NewTicker(askOngoingEvery)
	defer again.Stop()
	for {
		ended, err := s.hasEnded(o)
		if err != nil {
			return err
		}
		if ended {
			return s.ongoingRecords().remove(alias)
		}
		select {
		case <-again.C:
		case <-patience:
			return s.ongoingRecords().remove(alias)
		case <-s.conn.Lost():
			return fmt.Errorf("%w: SPDK may still change %s", engine.ErrUnavailable, alias)
		}
	}
}

// hasEnded says whether SPDK has made or deleted an lvol, or failed to. It asks for another one of that name that has
// no room in the lvstore: SPDK refuses it because of the name, also while it has no bdev, or because of its size.
func (s *session) hasEnded(o ongoing) (bool, error) {
	if o.Lvol == "" {
		return false, nil
	}
	lvstores, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolGetLvstores{Name: o.Lvstore})
	if err == nil && len(lvstores) == 1 {
		is := lvstores[0]
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolCreate{
			LvstoreName: o.Lvstore, Name: o.Lvol, SizeMiB: (is.TotalClusters+1)*is.ClusterBytes/mib + 1,
		})
	}
	if errors.Is(err, spdkrpc.ErrExists) {
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevGetBdevs{Name: o.Lvstore + "/" + o.Lvol})
		if errors.Is(err, spdkrpc.ErrNotFound) {
			return false, nil
		}
	}
	var unanswered *spdkrpc.UnansweredError
	if errors.As(err, &unanswered) {
		return false, mapError(err)
	}
	return true, nil
}
