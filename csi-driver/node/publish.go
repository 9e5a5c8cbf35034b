// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// NodePublishVolume shows a volume at the target path: a directory with its filesystem, or a file that is its block
// device. It stages the volume first if it is not staged for this attachment: when a pod comes back before the kubelet
// has unstaged the volume, the attachment is another or the device was lost, and the kubelet does not stage again.
func (s *Service) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return call(ctx, s, "publishing", r.GetVolumeId(), func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
		err := required(field{"staging_target_path", r.GetStagingTargetPath()}, field{"target_path", r.GetTargetPath()})
		if err != nil {
			return nil, err
		}
		use, err := parseUsage(r.GetVolumeCapability())
		if err != nil {
			return nil, err
		}
		attachment, err := decode(r.GetPublishContext())
		if err != nil {
			return nil, err
		}
		err = s.publishStaged(ctx, r, attachment, use)
		if errors.Is(err, errNotStaged) {
			logr.FromContextOrDiscard(ctx).Info("Staging the volume before it is published", "reason", err.Error())
			if err := s.stage(ctx, r.GetVolumeId(), attachment, r.GetStagingTargetPath(), use, r.GetSecrets()); err != nil {
				return nil, err
			}
			err = s.publishStaged(ctx, r, attachment, use)
		}
		if err != nil {
			return nil, err
		}
		return &csi.NodePublishVolumeResponse{}, nil
	})
}

// publishStaged publishes a volume that is staged. It fails with errNotStaged, and has changed nothing, when the volume
// is not, or not for this attachment: what an earlier one mounted is out of date.
func (s *Service) publishStaged(ctx context.Context, r *csi.NodePublishVolumeRequest, attachment string, use usage) error {
	at, err := s.stagedFor(r.GetVolumeId(), attachment)
	if err != nil {
		return err
	}
	b, err := s.stagedBase(at)
	if errors.Is(err, fabrics.ErrNotFound) {
		return fmt.Errorf("%w: it is not connected", errNotStaged)
	}
	if err != nil {
		return err
	}
	d, built, err := s.over(b, attachment, at.kind())
	if err != nil {
		return err
	}
	if !built {
		return fmt.Errorf("%w: nothing is built on %s", errNotStaged, b.lower().Name)
	}
	use.readOnly = use.readOnly || r.GetReadonly()
	return s.publish(ctx, r.GetStagingTargetPath(), r.GetTargetPath(), d, use)
}

// stagedBase looks up again, by what it is, what a staged volume's device is made of: its name may have changed since.
func (s *Service) stagedBase(at attached) (base, error) {
	if at.Mirrored {
		b, err := s.mirrorOf(at.UUID)
		b.trailerBytes = at.TrailerBytes
		return b, err
	}
	ns, err := s.Initiator.FindNamespace(at.only().id())
	if err == nil {
		err = ns.Fits(at.served(at.SizeBytes))
	}
	return base{ns: ns, trailerBytes: at.TrailerBytes}, err
}

// stagedFor gives what a volume was staged with. It fails with errNotStaged unless that was for this attachment.
func (s *Service) stagedFor(volume, attachment string) (attached, error) {
	staged, err := s.records().get(volume)
	if unrecorded(err) {
		return staged, fmt.Errorf("%w: the attachment that it was staged for is unknown: %w", errNotStaged, err)
	}
	if err == nil && staged.Attachment != attachment {
		err = fmt.Errorf("%w: it was staged for attachment %s, but is published for %s", errNotStaged, staged.Attachment, attachment)
	}
	return staged, err
}

func (s *Service) publish(ctx context.Context, staging, target string, d device, use usage) error {
	staged := staging
	if use.block {
		staged = filepath.Join(staging, blockMark)
	}
	from, mounted, err := s.Filesystems.At(staged)
	if err != nil {
		return err
	}
	if !mounted || !holds(from, d) {
		return fmt.Errorf("%w: %s does not show it", errNotStaged, staged)
	}
	m, published, err := s.clear(ctx, target, d)
	if err != nil {
		return err
	}
	if published && ((m.Node != "") != use.block || m.ReadOnly != use.readOnly) {
		return fmt.Errorf("%w: %s is published with block %t, read-only %t", errIncompatible, target, m.Node != "", m.ReadOnly)
	}
	// What is published already is not given to anybody now. The kubelet has mounts of it of its own, such as subPaths.
	if use.single && !published {
		if err := s.alone(d, staged, target); err != nil {
			return err
		}
	}
	switch {
	case use.block:
		return s.publishDevice(ctx, from, target, d, use.readOnly, published)
	case published:
		return nil
	default:
		if err := s.confirm(d); err != nil {
			return err
		}
		return s.Filesystems.BindDirectory(ctx, staging, target, use.readOnly)
	}
}

// publishDevice of a staged volume. The kernel's read-only flag is the device's, and so the same for all that it is
// published to: it is set unless one of them may write, also again for one that is published. Then those that may not
// depend on who gives the device to a container, as the kubelet does without w.
func (s *Service) publishDevice(ctx context.Context, staged filesystem.Mount, target string, d device, readOnly, published bool) error {
	all, err := s.Filesystems.Shown(d.Number, d.Name)
	if err != nil {
		return err
	}
	written := slices.ContainsFunc(all, func(m filesystem.Mount) bool { return m.Path != staged.Path && !m.ReadOnly })
	opened, err := s.open(ctx, d, staged.ReadOnly || readOnly && !written)
	if err != nil {
		return err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	if published {
		return nil
	}
	if err := s.Filesystems.BindDevice(ctx, d.Path, target, readOnly); err != nil {
		return err
	}
	return s.verify(ctx, target, d)
}

// alone fails when a volume for a single writer is shown anywhere but where it is staged and at the target.
func (s *Service) alone(d device, staged, target string) error {
	paths, err := s.Filesystems.MountsOf(d.Number, d.Name)
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
			return fmt.Errorf("%w: at %s, and its access mode allows only one", errPublished, p)
		}
	}
	return nil
}

// NodeUnpublishVolume takes a volume away from the target path, and the path with it.
func (s *Service) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return call(ctx, s, "unpublishing", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeUnpublishVolumeResponse, error) {
		if err := required(field{"target_path", r.GetTargetPath()}); err != nil {
			return nil, err
		}
		if err := s.Filesystems.Remove(ctx, r.GetTargetPath()); err != nil {
			return nil, err
		}
		return &csi.NodeUnpublishVolumeResponse{}, nil
	})
}
