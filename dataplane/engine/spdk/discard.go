// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// Whether hosts may discard is a transport's from its first day, and cannot be read back. So a target that lets them
// has an anchor that says so, in its limit of discards, made before the first transport. In such a target each
// subsystem has the limit that its pool asks for.
const (
	// letsDiscard is the anchor's limit, in blocks.
	letsDiscard = 1
	// freesNothing is the limit of subsystems whose hosts may not discard: SPDK cuts longer discards off, and frees
	// whole clusters only. Hosts see that they may discard a block at a time.
	freesNothing = 1
	// discardBytes are the most that a host may discard with one command. A cluster takes a write of metadata and a
	// command to the drive, so that what a host has under way at once stays within its timeout of 30 s.
	discardBytes = 256 << 20
)

// canDiscard says whether hosts can be let to discard for each subsystem, which must tell its limit.
func (d dialect) canDiscard() bool { return !d.cannotMask && !d.discardKiB }

// discards says whether the target lets hosts discard where a subsystem does.
func (n *network) discards() bool { return n.subsystems[anchorNQN].MaxDiscardBlocks == letsDiscard }

// discardLimit of an export's subsystem in a target that lets hosts discard, in blocks.
func discardLimit(x engine.Export, pools []*pool) uint32 {
	limit := uint32(freesNothing)
	for _, p := range pools {
		// A file or a block device of the kernel is not told what is deallocated: whatever is asked for, not there.
		if !x.Discard || p.blockBytes <= 0 || filepath.IsAbs(p.Path) {
			return freesNothing
		}
		limit = max(limit, uint32(discardBytes/p.blockBytes))
	}
	return limit
}

// letFree clusters of pools by hosts that discard: before the first of them may, the pool is soiled. What it discards
// reads as zeroes, and a drive may forget that with a loss of power: then a mark that says it is clean would be wrong.
func (s *session) letFree(pools []*pool) error {
	var whole *store // of these pools only some lvols were read, maybe without their marks
	for _, some := range pools {
		t := s.life.trust[some.Device]
		if t == nil || t.fleeting {
			continue
		}
		if whole == nil {
			var err error
			if whole, err = s.readStore(); err != nil {
				return err
			}
		}
		p, err := whole.pool(some.Device)
		if err == nil {
			err = s.soil(p)
		}
		if err != nil {
			return err
		}
		t.fleeting = true
	}
	return nil
}

// clearBy says how the free clusters of a pool are cleared: by writing zeroes, which lasts. Where hosts may discard
// that would be for this life of the target only, and is done again in the next one; so there a drive that promises
// zeroes deallocates them, in seconds. What is not known is not promised.
func (s *session) clearBy(p *pool) spdkrpc.ClearMethod {
	is := &settings{}
	if err := s.readDiscards(is, false); err != nil || !is.discards {
		return spdkrpc.ClearWriteZeroes
	}
	if s.askDeallocated([]*pool{p}); p.Deallocated != v1alpha1.DeallocatedZeroes {
		return spdkrpc.ClearWriteZeroes
	}
	return spdkrpc.ClearUnmap
}

// readDiscards says whether the target's anchor lets hosts discard, and whether there is one. It is asked for once
// after there are transports: then it does not change.
func (s *session) readDiscards(is *settings, settled bool) error {
	if s.life.discards != nil {
		is.discards, is.anchored = *s.life.discards, true
		return nil
	}
	found, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{NQN: anchorNQN})
	if err != nil && !errors.Is(err, spdkrpc.ErrNotFound) {
		return mapError(err)
	}
	is.anchored = len(found) == 1
	is.discards = is.anchored && found[0].MaxDiscardBlocks == letsDiscard
	if settled {
		s.life.discards = new(is.discards)
	}
	return nil
}

// letDiscard in a target that has no transport yet. One with an anchor stays as that says.
func (s *session) letDiscard(is *settings, want settings) error {
	if !want.discards || is.anchored || len(is.transports) > 0 {
		return nil
	}
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfCreateSubsystem{
		NQN: anchorNQN, Serial: "anchor", Model: "weft", MaxDiscardBlocks: new(uint32(letsDiscard)),
	})
	if err != nil {
		return mapError(err)
	}
	is.anchored, is.discards = true, true
	return nil
}

// askDeallocated of the drives that the target drives itself. What the kernel's block devices and files are asked to
// deallocate SPDK does not pass on, and so frees as it is.
func (s *session) askDeallocated(pools []*pool) {
	var all sync.WaitGroup
	for _, p := range pools {
		if p.Err != nil {
			continue
		}
		if p.Deallocated = v1alpha1.DeallocatedUndefined; len(p.base.Driver.NVMe) > 0 {
			all.Go(func() { p.Deallocated, _ = device.ReadDeallocated(s.admin(bdevName(p.Device)), 1) }) // else not known
		}
	}
	all.Wait()
}
