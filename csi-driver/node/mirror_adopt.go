// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// adoptMirror takes over the mirror that a volume got after it was staged, so that it can have another replica: the
// mirror is made over the only replica, and put under the volume's device, which users go on to write to. A volume for
// which there is nothing to do is left alone. Call it again after an error: what is half done is found in the kernel.
func (s *Service) adoptMirror(ctx context.Context, volume string) error {
	if todo, err := s.adoptable(volume); err != nil || !todo {
		return err
	}
	_, err := call(ctx, s, "putting the mirror under", volume, func(ctx context.Context) (*struct{}, error) {
		return nil, s.adoptStaged(ctx, volume)
	})
	return err
}

// adoptable tells whether a volume was staged without a mirror, or its device is still made of a replica.
func (s *Service) adoptable(volume string) (bool, error) {
	at, err := s.records().get(volume)
	if unrecorded(err) {
		return false, nil
	}
	if err != nil || !at.Mirrored {
		return err == nil, err
	}
	return s.bypassed(at)
}

// bypassed tells whether the device of a staged volume is made of a replica, and not of a mirror.
func (s *Service) bypassed(at attached) (bool, error) {
	return (&mirrorTop{Service: s, uuid: at.UUID, of: func(attachment string) bool { return attachment == at.Attachment }}).Bypasses()
}

// adoptStaged looks again: the volume may have been unstaged, or staged for another attachment, meanwhile.
func (s *Service) adoptStaged(ctx context.Context, volume string) error {
	was, err := s.records().get(volume)
	if unrecorded(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if staged, err := s.bypassed(was); err != nil || !staged {
		return err // staging it reads what it is by then
	}
	now, err := s.attached(ctx, volume, was.Attachment)
	if errors.Is(err, errNotAttached) {
		return nil // what is staged is given up
	}
	if err != nil {
		return err
	}
	record, err := (&mirrorRecords{Service: s, volume: volume, uuid: now.UUID}).live(ctx)
	if gone(err) && !now.Mirrored {
		return nil
	}
	if err != nil || record.Holder != now.Attachment {
		return err
	}
	if err := adoptableNow(volume, was, now); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Putting a mirror under the volume's device")
	now.Staging = was.Staging
	if err := s.records().put(volume, now); err != nil {
		return fmt.Errorf("record how the volume is staged: %w", err)
	}
	_, err = staging{Service: s, volume: volume, path: now.Staging, at: now}.startMirror(ctx, nil)
	return err
}

// adoptableNow fails unless what is staged is what the mirror begins with, connected as the agent admits it: a mirror
// takes away what is connected otherwise.
func adoptableNow(volume string, was, now attached) error {
	if now.UUID != was.UUID {
		return fmt.Errorf("%w: volume %s has UUID %s, and %s is staged", errMismatch, volume, now.UUID, was.UUID)
	}
	if !now.Mirrored {
		return fmt.Errorf("%w: NvmfMirror %s names this attachment as the holder, but the NvmfVolume is not mirrored yet", errNotServed, volume)
	}
	if was.Mirrored {
		return nil
	}
	i := slices.IndexFunc(now.Replicas, func(r replica) bool { return r.NGUID == was.only().NGUID })
	if i < 0 || now.Replicas[i].Former != "" || v1alpha1.HostNQN(now.Replicas[i].Identity) != was.host(was.only()) {
		return fmt.Errorf("%w: its node does not say that this one is admitted to %s", errNotServed, was.only().Name)
	}
	return nil
}

// putUnder puts a mirror under a device of the attachment that is made of a replica. What the device's users write
// waits until what is on its way to the replica has ended, and then goes through the mirror.
func (st staging) putUnder(ctx context.Context, m *mirrored, b base) error {
	all, err := st.Mapper.Of(st.at.UUID)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Attachment != st.at.Attachment || d.Lost() || d.Lower == b.lower() {
			continue
		}
		if b.dataBytes() < d.DataBytes() {
			// The volume has grown since an earlier try. Until the mirror is under the device, it has one member.
			if b, err = m.grow(ctx, b, mirror.InSync(m.seen().Record), d.DataBytes()+b.trailerBytes); err != nil {
				return err
			}
		}
		spec := mapper.Spec{Owner: d.Owner, Attachment: d.Attachment, Lower: b.lower(), OffsetBytes: b.offsetBytes(), SizeBytes: b.dataBytes()}
		if _, err := st.Mapper.Exchange(ctx, d, spec); err != nil {
			return fmt.Errorf("put the mirror under %s: %w", d.Path, err)
		}
		m.notify(ctx)
	}
	return nil
}
