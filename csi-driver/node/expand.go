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
)

// NodeExpandVolume waits until this host sees a volume's new size, asking the kernel to look if need be, and
// grows its filesystem. The target has grown before.
func (s *Service) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return call(ctx, &s.calls, "expanding", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeExpandVolumeResponse, error) {
		if err := required(field{"volume_path", r.GetVolumePath()}); err != nil {
			return nil, err
		}
		places := []string{r.GetVolumePath()}
		if staging := r.GetStagingTargetPath(); staging != "" {
			places = append(places, staging, filepath.Join(staging, blockMark))
		}
		m, ns, err := s.shown(r.GetVolumeId(), places...)
		if err != nil {
			return nil, err
		}
		ns, err = s.Initiator.WaitNamespace(ctx, ns.ID, r.GetCapacityRange().GetRequiredBytes())
		if err != nil {
			return nil, err
		}
		if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && ns.SizeBytes > limit {
			return nil, invalid("capacity_range: the volume has %d bytes, more than the limit of %d", ns.SizeBytes, limit)
		}
		if m.Node == "" && !m.ReadOnly {
			if err := s.Filesystems.Grow(ctx, ns.Path, m.Path); err != nil {
				return nil, err
			}
		}
		return &csi.NodeExpandVolumeResponse{CapacityBytes: ns.SizeBytes}, nil
	})
}

// shown finds the volume at the first of the places that shows anything. It fails with errUnknown when none does.
func (s *Service) shown(volumeID string, places ...string) (filesystem.Mount, fabrics.Namespace, error) {
	for _, place := range places {
		m, mounted, err := s.Filesystems.At(place)
		if err != nil {
			return m, fabrics.Namespace{}, err
		}
		if !mounted {
			continue
		}
		ns, err := s.deviceOf(volumeID, m)
		if errors.Is(err, fabrics.ErrNotNVMe) || errors.Is(err, errOtherVolume) {
			return m, ns, fmt.Errorf("%w: %s is not of volume %s", errUnknown, place, volumeID)
		}
		return m, ns, err
	}
	return filesystem.Mount{}, fabrics.Namespace{}, fmt.Errorf("%w: nothing of volume %s at %v", errUnknown, volumeID, places)
}
