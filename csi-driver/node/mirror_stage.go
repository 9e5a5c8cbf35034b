// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/internal/header"
	"github.com/weft-storage/weft/internal/tracing"
)

// nobody holds a mirror: a keeper for this attachment takes away what is left of one.
const nobody = "00000000-0000-0000-0000-000000000000"

// startMirror starts the volume's mirror, and returns when its device may be used: it is made of the replicas that the
// record says are in sync, and these are equal. Begin tells what the first headers say; nil allows none.
func (st staging) startMirror(ctx context.Context, begin beginHeader) (_ base, err error) {
	ctx, span := tracing.Start(ctx, "start mirror")
	defer func() { tracing.End(span, err) }()
	m, err := st.keep(ctx)
	if err != nil {
		return base{}, err
	}
	m.headers.mayBegin(begin)
	defer m.headers.mayBegin(nil)
	m.set(ctx, keeper.Start)
	err = m.wait(ctx, func(s keeper.Status) (bool, error) {
		switch {
		case s.Phase == keeper.Leaving || s.Phase == keeper.Stopped:
			return false, fmt.Errorf("%w: another attachment, or none, holds NvmfMirror %s; delete the pod so that the volume is attached again", errNotAttached, st.volume)
		case s.Phase == keeper.Running && s.Record.Holder == st.at.Attachment:
			return true, nil
		case refused(s.Err):
			return false, st.decidedByAPerson(s.Err)
		}
		return false, nil
	})
	if err != nil {
		return base{}, err
	}
	b, err := st.stagedBase(st.at)
	if err != nil {
		return base{}, err
	}
	return b, st.putUnder(ctx, m, b)
}

// refused tells whether a mirror waits for a person, so that nothing is won by waiting longer.
func refused(err error) bool {
	var format *filesystem.RefusedError
	return errors.As(err, &format) || errors.Is(err, keeper.ErrPast) || errors.Is(err, mirror.ErrNeedsPerson) || errors.Is(err, header.ErrUnusable) || errors.Is(err, errOtherHeader) ||
		errors.Is(err, errEncryption)
}

// decidedByAPerson adds to an error what a person can do about it.
func (st staging) decidedByAPerson(err error) error {
	if errors.Is(err, keeper.ErrPast) || errors.Is(err, mirror.ErrNeedsPerson) {
		return fmt.Errorf("%w%s", err, recoverHint(st.volume))
	}
	return err
}

// keep gives what keeps the volume's mirror for the attachment, after everything of an earlier one is gone.
func (st staging) keep(ctx context.Context) (*mirrored, error) {
	if err := st.formerStopped(ctx); err != nil {
		return nil, err
	}
	if m := st.mirrors.of(st.volume); m != nil {
		return m, nil
	}
	past, err := st.past(ctx)
	if err != nil {
		return nil, err
	}
	if past {
		if err := st.clearMirror(ctx, st.volume, st.at); err != nil {
			return nil, fmt.Errorf("%w: %w", fabrics.ErrPast, err)
		}
	}
	return st.mirror(ctx, st.volume, st.at), nil
}

// formerStopped waits until nothing is left of a mirror that is kept here for another attachment, or to be taken away:
// what it still deletes must not be what this attachment makes. It fails with fabrics.ErrPast when the context ends
// before.
func (st staging) formerStopped(ctx context.Context) error {
	m := st.mirrors.of(st.volume)
	if m == nil || m.attachment == st.at.Attachment && m.seen().Phase != keeper.Stopped {
		return nil
	}
	if err := m.stopped(ctx); err != nil {
		return fmt.Errorf("%w: %w", fabrics.ErrPast, err)
	}
	m.forget()
	return nil
}

// past tells whether this machine has anything of the volume that is not of this attachment: a device, or a connection
// to a replica under an identity that is not listed for it, nor the one that the record has.
func (st staging) past(ctx context.Context) (bool, error) {
	tops, err := st.Mapper.Of(st.at.UUID)
	if err != nil {
		return false, err
	}
	for _, d := range tops {
		if d.Attachment != st.at.Attachment && !d.Lost() {
			return true, nil
		}
	}
	record, err := (&mirrorRecords{Service: st.Service, volume: st.volume, uuid: st.at.UUID}).live(ctx)
	if err != nil {
		return false, err
	}
	all, err := (&mirrorSlices{Service: st.Service, names: newReplicaNames(st.at)}).controllers()
	if err != nil {
		return false, err
	}
	for name, controllers := range all {
		i := slices.IndexFunc(st.at.Replicas, func(r replica) bool { return r.Name == name })
		m, _ := mirror.Get(record, name)
		if slices.ContainsFunc(controllers, func(c fabrics.Controller) bool {
			leg := v1alpha1.SessionOfSubsystem(c.NQN)
			held := record.Holder == st.at.Attachment && leg == m.Identity
			return !held && leg != st.at.Attachment && leg != st.at.Replicas[i].leg()
		}) {
			return true, nil
		}
	}
	return false, nil
}

// clearMirror takes away what is left of a volume's mirror and its connections, as a keeper does that holds it no
// more.
func (s *Service) clearMirror(ctx context.Context, volume string, at attached) error {
	logr.FromContextOrDiscard(ctx).Info("Removing the rest of a mirror", "volume", volume)
	at.Attachment = nobody
	m := s.mirror(ctx, volume, at)
	if err := m.stopped(ctx); err != nil {
		return err // it goes on, and formerStopped waits for it
	}
	m.forget()
	return nil
}

// firstHeader is what the header of a replica in sync says of the data before anything is formatted. One that is there
// came with the data of another volume, which the volume was made from. Where there is none, the target says that
// nothing was written, and what would be formatted reads as zeroes; or an administrator gave up what it holds.
func (st staging) firstHeader(ctx context.Context, name string, found header.Header) (header.Record, error) {
	if !found.None() {
		if err := cmp.Or(st.storedAsAsked(found), st.madeFrom(ctx, found.Volume)); err != nil {
			return header.Record{}, err
		}
		next := found.Record
		next.Volume, next.Mirror, next.FormatUsedBy = st.at.UUID, "", ""
		return next, nil
	}
	i := slices.IndexFunc(st.at.Replicas, func(r replica) bool { return r.Name == name })
	if i < 0 {
		return header.Record{}, fmt.Errorf("%w: %s is not a replica of the volume", errMismatch, name)
	}
	f := filesystem.Fence{Blank: st.at.Replicas[i].blank, AllowFormat: st.at.allowFormat, Volume: st.volume}
	if err := (filesystem.Request{Device: name, ReadOnly: st.use.readOnly, Fence: f}).MayBegin(); err != nil {
		return header.Record{}, err
	}
	if !st.at.allowFormat {
		if err := st.zeroes(ctx, name); err != nil {
			return header.Record{}, err
		}
	}
	next := header.Record{Volume: st.at.UUID, State: header.Formatting, Type: st.use.fsType, Encryption: string(st.at.Encryption)}
	if st.use.block {
		next.Type = header.Block
	}
	return next, nil
}

// zeroes fails unless a replica begins with zeroes: its header, what is kept for the mirror, and the first of the data.
func (st staging) zeroes(ctx context.Context, name string) error {
	ns, _, err := (&mirrorSlices{Service: st.Service, names: newReplicaNames(st.at)}).namespace(name)
	if err != nil {
		return err
	}
	start, err := st.Initiator.ReadStart(ctx, ns, header.Bytes)
	if err == nil && !bytes.Equal(start, make([]byte, len(start))) {
		err = fmt.Errorf("%w: %s is said to be blank, and does not read as zeros", header.ErrUnusable, name)
	}
	return err
}

// mirrorHeader is the volume's header, on all replicas in sync.
func (st staging) mirrorHeader() (headed, error) {
	m := st.mirrors.of(st.volume)
	if m == nil {
		return nil, fmt.Errorf("%w: its mirror is not kept", errNotStaged)
	}
	return mirrorHeader{m.headers, m.records}, nil
}

// leaving waits for a mirror that this node does not hold any more until its users are killed, and it is gone: an
// unmount fails then, and does not wait. Where the record cannot be read, nothing is known.
func (m *mirrored) leaving(ctx context.Context) error {
	v, err := m.records.live(ctx)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "Unknown whether this node still holds the mirror", "volume", m.volume)
		return nil
	}
	if v.Holder == m.attachment {
		return nil
	}
	m.notify(ctx)
	return m.stopped(ctx)
}

// stopMirror stops a mirror whose device is gone, and takes its connections away.
func (s *Service) stopMirror(ctx context.Context, m *mirrored) error {
	m.set(ctx, keeper.Stop)
	err := m.wait(ctx, func(s keeper.Status) (bool, error) {
		if errors.Is(s.Err, keeper.ErrPast) {
			// What runs is not stopped before a person has recovered the record.
			return false, fmt.Errorf("%w%s --detach", s.Err, recoverHint(m.volume))
		}
		return s.Phase == keeper.Stopped, nil
	})
	if err != nil {
		return err
	}
	for name := range m.replicas.all() {
		if err := m.legs.drop(ctx, name); err != nil {
			return err
		}
	}
	m.forget()
	return nil
}

// unstaged gives what keeps a volume's mirror that is to be unstaged; nil for a volume that has none here. After a
// restart, it is made from the record, or from what the kernel has.
func (s *Service) unstaged(ctx context.Context, volume string, is identity) (*mirrored, error) {
	if m := s.mirrors.of(volume); m != nil {
		return m, nil
	}
	switch at, err := s.records().get(volume); {
	case err == nil && at.Mirrored:
		return s.mirror(ctx, volume, at), nil
	case err != nil && !unrecorded(err):
		return nil, err
	case err == nil || is.uuid == "":
		return nil, nil
	}
	if _, err := s.mirrorOf(is.uuid); errors.Is(err, fabrics.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	at := attached{UUID: is.uuid, Attachment: nobody, Mirrored: true}
	for name, nguid := range is.replicas {
		at.Replicas = append(at.Replicas, replica{Name: name, NGUID: nguid})
	}
	return s.mirror(ctx, volume, at), nil
}

// TakeUpMirrors keeps, after a restart, the mirrors of all volumes that are staged, and removes those whose making was
// cut off. Nothing else of the service may be called before it returns: a call makes a keeper of its own.
func (s *Service) TakeUpMirrors(ctx context.Context) error {
	if err := s.Mirrors.Clean(ctx); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot remove mirrors whose making was cut off")
	}
	volumes, err := s.records().volumes()
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil || !at.Mirrored {
			continue
		}
		if here, err := s.connected(volume, at); err == nil && !here {
			if _, err := s.mirrorOf(at.UUID); errors.Is(err, fabrics.ErrNotFound) {
				continue // this machine was restarted
			}
		}
		s.mirror(ctx, volume, at)
	}
	return nil
}

// KeepMirrors tells the mirrors of what happens to their controllers, and follows the movers of before a restart, until
// the context ends.
func (s *Service) KeepMirrors(ctx context.Context) error {
	volumes, err := s.records().volumes()
	if err != nil {
		return err
	}
	var movers sync.WaitGroup
	movers.Go(func() { s.followMovers(ctx, volumes) })
	s.tellOfControllers(ctx)
	movers.Wait()
	return nil
}

// LeaveMirrors ends all keepers as the end of the process does: it waits for what the kernel still does for them, and
// leaves what the kernel has as it is.
func (s *Service) LeaveMirrors() {
	for _, m := range s.mirrors.list() {
		m.cancel()
		<-m.ended
		m.tasks.Wait()
		s.mirrors.remove(m)
	}
}
