// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/internal/header"
	"github.com/weft-storage/weft/internal/text"
)

// A node that holds a mirror as a mover keeps it as for a volume that is staged, but nothing is built over it and
// nothing mounted: it copies what members lack. What it was started with is recorded as for a staged volume, so that it
// is found again after a restart.

// followMover does what the mirror's record asks of this node as a mover: starts the mirror, or stops it, or takes away
// what is left when another holds it, or nobody does. It waits for the stop, but not for the start. Call it again after
// an error, and with each change of the record.
func (s *Service) followMover(ctx context.Context, volume string) error {
	if mine, record, err := s.movement(ctx, volume); err != nil || !mine && !s.moves(record) {
		return err
	}
	_, err := call(ctx, s, "copying to the replicas", volume, func(ctx context.Context) (*struct{}, error) {
		err := s.followMoverNow(ctx, volume)
		if err != nil {
			err = errors.Join(err, s.tellMoverWaits(ctx, volume, err))
		}
		return nil, err
	})
	return err
}

// followMovers follows, after a restart, those of which this node has something: nobody tells of a mirror that another
// attachment has got meanwhile, or that is gone. It returns when that is done, or the context ends.
func (s *Service) followMovers(ctx context.Context, volumes []string) {
	var all sync.WaitGroup
	for _, volume := range volumes {
		if at, err := s.records().get(volume); err != nil || !at.Mover {
			continue
		}
		all.Go(func() {
			_ = wait.PollUntilContextCancel(ctx, mirrorRetry, true, func(ctx context.Context) (bool, error) {
				err := s.followMover(ctx, volume)
				if err != nil {
					logr.FromContextOrDiscard(ctx).Error(err, "Cannot follow the mirror yet", "volume", volume)
				}
				return err == nil, nil
			})
		})
	}
	all.Wait()
}

// tellMoverWaits lets the CSI controller know why this node does not copy yet.
func (s *Service) tellMoverWaits(ctx context.Context, volume string, why error) error {
	is, err := s.readMirror(ctx, volume)
	if err != nil || !s.moves(is.Spec) || is.Spec.Mover == v1alpha1.MoverStop {
		return client.IgnoreNotFound(err)
	}
	waiting := text.Clip(why.Error(), text.MaxEventNote)
	if is.Spec.MoverWaiting == waiting {
		return nil
	}
	is.Spec.MoverWaiting = waiting
	return s.MirrorRecords.Update(ctx, is, client.FieldOwner(fieldManager))
}

// moves tells whether this node is to be a mirror's mover.
func (s *Service) moves(record mirror.Record) bool {
	return record.HolderNode == s.NodeName && slices.Contains([]v1alpha1.MoverState{v1alpha1.MoverCopy, v1alpha1.MoverStop, v1alpha1.MoverRead}, record.Mover)
}

// movement tells whether this node has something of a mover, and gives the mirror's record. One without an object says
// nothing.
func (s *Service) movement(ctx context.Context, volume string) (mine bool, record mirror.Record, err error) {
	at, err := s.records().get(volume)
	if err != nil && !unrecorded(err) {
		return false, record, err
	}
	mine = err == nil && at.Mover
	record, err = (&mirrorRecords{Service: s, volume: volume, uuid: at.UUID, mover: mine}).live(ctx)
	if gone(err) {
		return false, mirror.Record{}, nil // as any keeper, it is left alone
	}
	return mine, record, err
}

func (s *Service) readMirror(ctx context.Context, volume string) (*v1alpha1.NvmfMirror, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var is v1alpha1.NvmfMirror
	if err := s.MirrorRecords.Get(ctx, client.ObjectKey{Name: volume}, &is); err != nil {
		return nil, fmt.Errorf("%w: NvmfMirror %s: %w", errUnread, volume, err)
	}
	return &is, nil
}

func (s *Service) followMoverNow(ctx context.Context, volume string) error {
	mine, record, err := s.movement(ctx, volume)
	if err != nil || !mine && !s.moves(record) {
		return err
	}
	at, err := s.records().get(volume)
	if err != nil && !unrecorded(err) {
		return err
	}
	switch {
	case err == nil && !mine:
		return fmt.Errorf("%w: it is still staged here for an earlier attachment; unstage it", errIncompatible)
	case mine && record.Holder == at.Attachment && record.Mover == v1alpha1.MoverRead && s.mirrors.of(volume) == nil:
		return s.readForRecovery(ctx, volume, record.Holder) // which was cut off
	case mine && (record.Holder != at.Attachment || record.Mover != v1alpha1.MoverCopy):
		if err := s.stopMover(ctx, volume); err != nil || record.Holder != at.Attachment {
			return err // another mover of this node begins when this is called again
		}
		if record.Mover == v1alpha1.MoverRead {
			return s.readForRecovery(ctx, volume, record.Holder)
		}
		return s.moverStopped(ctx, volume, at.Attachment)
	case !mine && record.Mover == v1alpha1.MoverStop:
		return s.moverStopped(ctx, volume, record.Holder) // it never began
	case record.Mover == v1alpha1.MoverRead:
		return s.readForRecovery(ctx, volume, record.Holder)
	}
	return s.startMover(ctx, volume, record.Holder)
}

// moverStaging is what a mover of this node needs of a volume, once this node has left what it held of it before.
func (s *Service) moverStaging(ctx context.Context, volume, attachment string) (staging, error) {
	at, err := s.attached(ctx, volume, attachment)
	if err != nil {
		return staging{}, err
	}
	at.Mover = true
	st := staging{Service: s, volume: volume, at: at}
	if err := st.mine(ctx); err != nil {
		return staging{}, err
	}
	if !at.Mirrored {
		return staging{}, fmt.Errorf("%w: NvmfMirror %s names this attachment as the holder, but the NvmfVolume is not mirrored", errNotServed, volume)
	}
	return st, st.leaveFormer(ctx)
}

// startMover connects to the replicas of a mirror, and starts it. The keeper goes on by itself.
func (s *Service) startMover(ctx context.Context, volume, attachment string) error {
	if m := s.mirrors.of(volume); m != nil && m.attachment == attachment && m.seen().Phase != keeper.Stopped {
		m.set(ctx, keeper.Start)
		return nil
	}
	st, err := s.moverStaging(ctx, volume, attachment)
	if err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Starting the mirror to copy what its replicas lack")
	if err := s.records().put(volume, st.at); err != nil {
		return fmt.Errorf("record how the volume is copied: %w", err)
	}
	m, err := st.keep(ctx)
	if err != nil {
		return err
	}
	m.headers.mayBegin(st.copiedHeader)
	m.set(ctx, keeper.Start)
	return nil
}

// stopMover stops a mover's mirror, or leaves it if this node does not hold it any more, and returns when nothing of it
// is left.
func (s *Service) stopMover(ctx context.Context, volume string) error {
	is, err := s.identify(ctx, volume)
	if err != nil {
		return err
	}
	kept, err := s.unstaged(ctx, volume, is)
	if err != nil {
		return err
	}
	if kept != nil {
		if err := s.stopMirror(ctx, kept); err != nil {
			return fmt.Errorf("%w: %w", fabrics.ErrPast, err)
		}
	}
	return s.records().remove(volume)
}

// moverStopped tells the CSI controller that nothing of the mirror is left here.
func (s *Service) moverStopped(ctx context.Context, volume, attachment string) error {
	is, err := s.readMirror(ctx, volume)
	if err != nil || is.Spec.Holder != attachment || is.Spec.Mover != v1alpha1.MoverStop {
		return err
	}
	is.Spec.Mover = v1alpha1.MoverStopped
	return s.MirrorRecords.Update(ctx, is, client.FieldOwner(fieldManager))
}

// leaveToMover tells whether a volume that is to be unstaged is kept by a mover, and not staged: there is nothing to do
// then. It fails if the path shows something all the same.
func (s *Service) leaveToMover(volume, path string) (bool, error) {
	at, err := s.records().get(volume)
	if unrecorded(err) {
		return false, nil
	}
	if err != nil || !at.Mover {
		return false, err
	}
	for _, p := range []string{path, filepath.Join(path, blockMark)} {
		m, mounted, err := s.Filesystems.At(p)
		if err != nil {
			return false, err
		}
		if mounted {
			return false, fmt.Errorf("%w: %s is mounted, but the volume is not staged here", errIncompatible, m.Path)
		}
	}
	return true, nil
}

// copiedHeader is firstHeader for a mover: only data that came with the header of another volume is there without one
// of the volume's. A mover formats nothing.
func (st staging) copiedHeader(ctx context.Context, name string, found header.Header) (header.Record, error) {
	if found.None() {
		return header.Record{}, fmt.Errorf("%w: %s has none, and nothing was written to the volume that could be copied", header.ErrUnusable, name)
	}
	return st.firstHeader(ctx, name, found)
}
