// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// NodeExpandVolume waits until this host sees a volume's new size, asking the kernel to look if need be, and grows what
// is above, its filesystem last. The target has grown before.
func (s *Service) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return call(ctx, s, "expanding", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeExpandVolumeResponse, error) {
		if err := required(field{"volume_path", r.GetVolumePath()}); err != nil {
			return nil, err
		}
		places := []string{r.GetVolumePath()}
		if staging := r.GetStagingTargetPath(); staging != "" {
			places = append(places, staging, filepath.Join(staging, blockMark))
		}
		m, d, err := s.shown(ctx, r.GetVolumeId(), places...)
		if err != nil {
			return nil, err
		}
		if d.base, err = s.expandBase(ctx, r.GetVolumeId(), d.base, r.GetCapacityRange().GetRequiredBytes()+d.HiddenBytes()); err != nil {
			return nil, err
		}
		size := d.dataBytes() - d.HiddenBytes()
		if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && size > limit {
			return nil, invalid("capacity_range: the volume has %d bytes, which is more than the limit of %d", size, limit)
		}
		if d, err = s.fit(ctx, d); err != nil {
			return nil, err
		}
		if m.Node == "" && !m.ReadOnly {
			if err := s.Filesystems.Grow(ctx, d.Path, m.Path); err != nil {
				return nil, err
			}
		}
		return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
	})
}

// expandBase waits until what a device is made of has a size, or makes it have that.
func (s *Service) expandBase(ctx context.Context, volume string, b base, dataBytes int64) (base, error) {
	if b.mirrored() {
		return s.expandMirror(ctx, volume, b, dataBytes)
	}
	ns, err := s.Initiator.WaitNamespace(ctx, b.ns.ID, b.served(dataBytes))
	return base{ns: ns, trailerBytes: b.trailerBytes}, err
}

// shown finds the volume at the first of the places that shows anything. It fails with errUnknown when none does.
func (s *Service) shown(ctx context.Context, volumeID string, places ...string) (filesystem.Mount, device, error) {
	is, err := s.identify(ctx, volumeID)
	if err != nil {
		return filesystem.Mount{}, device{}, err
	}
	for _, place := range places {
		m, mounted, err := s.Filesystems.At(place)
		if err != nil {
			return m, device{}, err
		}
		if !mounted {
			continue
		}
		d, err := s.deviceOf(is, m)
		d.trailerBytes = is.trailerBytes
		if otherwise(err) {
			return m, d, fmt.Errorf("%w: %s is not of volume %s", errUnknown, place, volumeID)
		}
		return m, d, err
	}
	return filesystem.Mount{}, device{}, fmt.Errorf("%w: nothing of volume %s at %v", errUnknown, volumeID, places)
}

// otherwise tells whether deviceOf failed because a mount shows something else.
func otherwise(err error) bool {
	return errors.Is(err, fabrics.ErrNotNVMe) || errors.Is(err, mapper.ErrForeign) || errors.Is(err, errOtherVolume)
}
