// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// NodePublishVolume shows a staged volume at the target path: a directory with its filesystem, or a file that is
// its block device.
func (s *Service) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return call(ctx, &s.calls, "publishing", r.GetVolumeId(), func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
		err := required(field{"staging_target_path", r.GetStagingTargetPath()}, field{"target_path", r.GetTargetPath()})
		if err != nil {
			return nil, err
		}
		use, err := parseUsage(r.GetVolumeCapability())
		if err != nil {
			return nil, err
		}
		use.readOnly = use.readOnly || r.GetReadonly()
		at, err := decode(r.GetVolumeId(), r.GetPublishContext())
		if err != nil {
			return nil, err
		}
		// Looked up again, by what it is: since it was staged its name may have changed.
		ns, err := s.Initiator.FindNamespace(fabrics.ID{NQN: at.NQN, NGUID: at.NGUID})
		if errors.Is(err, fabrics.ErrNotFound) {
			return nil, fmt.Errorf("%w: it is not connected", errNotStaged)
		}
		if err != nil {
			return nil, err
		}
		if err := ns.Fits(at.SizeBytes); err != nil {
			return nil, err
		}
		if err := s.publish(ctx, r.GetStagingTargetPath(), r.GetTargetPath(), ns, use); err != nil {
			return nil, err
		}
		return &csi.NodePublishVolumeResponse{}, nil
	})
}

func (s *Service) publish(ctx context.Context, staging, target string, ns fabrics.Namespace, use usage) error {
	staged := staging
	if use.block {
		staged = filepath.Join(staging, blockMark)
	}
	from, mounted, err := s.Filesystems.At(staged)
	if err != nil {
		return err
	}
	if !mounted || !holds(from, ns) {
		return fmt.Errorf("%w: %s does not show it (staged with another volume mode, or its device was lost: stage it again)", errNotStaged, staged)
	}
	if use.single {
		if err := s.alone(ns, staged, target); err != nil {
			return err
		}
	}
	m, published, err := s.clear(ctx, target, ns)
	if err != nil {
		return err
	}
	if published && ((m.Node != "") != use.block || m.ReadOnly != use.readOnly) {
		return fmt.Errorf("%w: %s is published with block %t, read-only %t", errIncompatible, target, m.Node != "", m.ReadOnly)
	}
	switch {
	case published:
		return nil
	case use.block:
		return s.publishDevice(ctx, from, target, ns, use.readOnly)
	default:
		if err := s.Initiator.Confirm(ns); err != nil {
			return err
		}
		return s.Filesystems.BindDirectory(staging, target, use.readOnly)
	}
}

// publishDevice of a staged volume. The kernel's read-only flag is the device's, and so the same for all that it is
// published to: it is set unless one of them may write. Then those that may not depend on who gives the device to a
// container, as the kubelet does without w.
func (s *Service) publishDevice(ctx context.Context, staged filesystem.Mount, target string, ns fabrics.Namespace, readOnly bool) error {
	all, err := s.Filesystems.Shown(ns.Device, ns.Name)
	if err != nil {
		return err
	}
	written := slices.ContainsFunc(all, func(m filesystem.Mount) bool { return m.Path != staged.Path && !m.ReadOnly })
	device, err := s.open(ctx, ns, staged.ReadOnly || readOnly && !written)
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // nothing was written through it
	if err := s.Filesystems.BindDevice(ns.Path, target, readOnly); err != nil {
		return err
	}
	return s.verify(target, ns)
}

// alone fails when a volume for a single writer is shown anywhere but where it is staged and at the target.
func (s *Service) alone(ns fabrics.Namespace, staged, target string) error {
	paths, err := s.Filesystems.MountsOf(ns.Device, ns.Name)
	if err != nil {
		return err
	}
	expected := map[string]bool{}
	for _, p := range []string{staged, target} {
		m, mounted, err := s.Filesystems.At(p)
		if err != nil {
			return err
		}
		if mounted {
			expected[m.Path] = true
		}
	}
	for _, p := range paths {
		if !expected[p] {
			return fmt.Errorf("%w: at %s, and its access mode allows one", errPublished, p)
		}
	}
	return nil
}

// NodeUnpublishVolume takes a volume away from the target path, and the path with it.
func (s *Service) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return call(ctx, &s.calls, "unpublishing", r.GetVolumeId(), func(context.Context) (*csi.NodeUnpublishVolumeResponse, error) {
		if err := required(field{"target_path", r.GetTargetPath()}); err != nil {
			return nil, err
		}
		if err := s.Filesystems.Remove(r.GetTargetPath()); err != nil {
			return nil, err
		}
		return &csi.NodeUnpublishVolumeResponse{}, nil
	})
}
