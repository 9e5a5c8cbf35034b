// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"

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
		// It may have been unstaged, or staged for another attachment, meanwhile.
		if todo, err := s.adoptable(volume); err != nil || !todo {
			return nil, err
		}
		return nil, s.adoptStaged(ctx, volume)
	})
	return err
}

// adoptable tells whether the device of a staged volume is made of a replica, and not of a mirror.
func (s *Service) adoptable(volume string) (bool, error) {
	at, err := s.records().get(volume)
	if unrecorded(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return (&mirrorTop{Service: s, uuid: at.UUID, of: func(attachment string) bool { return attachment == at.Attachment }}).Bypasses()
}

func (s *Service) adoptStaged(ctx context.Context, volume string) error {
	was, err := s.records().get(volume)
	if err != nil {
		return err
	}
	now, err := s.attached(ctx, volume, was.Attachment)
	if errors.Is(err, errNotAttached) || err == nil && !now.Mirrored {
		return nil // what is staged is given up, or stays as it is
	}
	if err != nil {
		return err
	}
	record, err := (&mirrorRecords{Service: s, volume: volume, uuid: now.UUID}).live(ctx)
	if err != nil || record.Holder != now.Attachment {
		return err
	}
	if now.UUID != was.UUID {
		return fmt.Errorf("%w: volume %s has UUID %s, and %s is staged", errMismatch, volume, now.UUID, was.UUID)
	}
	logr.FromContextOrDiscard(ctx).Info("Putting a mirror under the volume's device", "volume", volume)
	now.Staging = was.Staging
	if err := s.records().put(volume, now); err != nil {
		return fmt.Errorf("record how the volume is staged: %w", err)
	}
	_, err = staging{Service: s, volume: volume, path: now.Staging, at: now}.startMirror(ctx, nil)
	return err
}

// putUnder puts a mirror under a device of the attachment that is made of a replica. What the device's users write
// waits until what is on its way to the replica has ended, and then goes through the mirror.
func (st staging) putUnder(ctx context.Context, b base) error {
	all, err := st.Mapper.Of(st.at.UUID)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Attachment != st.at.Attachment || d.Lost() || d.Lower == b.lower() {
			continue
		}
		spec := mapper.Spec{Owner: d.Owner, Attachment: d.Attachment, Lower: b.lower(), OffsetBytes: b.offsetBytes(), SizeBytes: b.dataBytes()}
		if _, err := st.Mapper.Exchange(ctx, d, spec); err != nil {
			return fmt.Errorf("put the mirror under %s: %w", d.Path, err)
		}
		if m := st.mirrors.of(st.volume); m != nil {
			m.notify(ctx)
		}
	}
	return nil
}
