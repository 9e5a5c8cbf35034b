// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// blockMark is the file of a staging path at which a raw block volume's device node is bound. It
// is the kernel's record that the volume is staged. Publishing does not go
// through it: a device that was lost and came back has another name.
const blockMark = "device"

// NodeStageVolume connects a volume, checks that it is the one, and mounts it at the staging path. A
// staged volume whose connection the kernel gave up is connected again.
func (s *Service) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return call(ctx, &s.calls, "staging", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
		if err := required(field{"staging_target_path", r.GetStagingTargetPath()}); err != nil {
			return nil, err
		}
		use, err := parseUsage(r.GetVolumeCapability())
		if err != nil {
			return nil, err
		}
		if err := publishcontext.CheckMountOptions(use.mountFlags); err != nil {
			return nil, invalid("%v", err)
		}
		at, err := decode(r.GetVolumeId(), r.GetPublishContext())
		if err != nil {
			return nil, err
		}
		st := stage{Service: s, volume: r.GetVolumeId(), path: r.GetStagingTargetPath(), use: use, at: at}
		if err := st.run(ctx); err != nil {
			return nil, s.undo(ctx, at, err)
		}
		return &csi.NodeStageVolumeResponse{}, nil
	})
}

// stage is one staging of a volume.
type stage struct {
	*Service
	volume, path string
	use          usage
	at           publishcontext.Context
}

func (st stage) run(ctx context.Context) error {
	if err := st.unobstructed(); err != nil {
		return err
	}
	if err := st.records().put(st.volume, st.at); err != nil {
		return fmt.Errorf("write down what the volume is staged with: %w", err)
	}
	if err := st.Initiator.Connect(ctx, connection(st.at)); err != nil {
		return err
	}
	// Identity and size come before anything that touches the device.
	ns, err := st.Initiator.WaitNamespace(ctx, fabrics.ID{NQN: st.at.NQN, NGUID: st.at.NGUID}, st.at.SizeBytes)
	if err != nil {
		return err
	}
	if st.use.block {
		return st.block(ctx, ns)
	}
	return st.filesystem(ctx, ns)
}

// unobstructed fails at once when a new connection would wait behind what the kernel does not finish. A volume
// that is connected is not held up.
func (st stage) unobstructed() error {
	obstacle := st.Obstacle.Check()
	if obstacle == nil {
		return nil
	}
	connected, err := st.Initiator.Connected(st.at.NQN)
	if err != nil || connected {
		return err
	}
	return obstacle
}

func (st stage) block(ctx context.Context, ns fabrics.Namespace) error {
	mark := filepath.Join(st.path, blockMark)
	m, staged, err := st.clear(ctx, mark, ns)
	if err != nil {
		return err
	}
	if staged && m.ReadOnly != st.use.readOnly {
		return fmt.Errorf("%w: %s has read-only %t", errIncompatible, m.Path, m.ReadOnly)
	}
	if staged {
		return nil
	}
	device, err := st.open(ctx, ns, st.use.readOnly)
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // nothing was written through it
	if err := st.Filesystems.BindDevice(ns.Path, mark, st.use.readOnly); err != nil {
		return err
	}
	return st.verify(mark, ns)
}

func (st stage) filesystem(ctx context.Context, ns fabrics.Namespace) error {
	m, staged, err := st.clear(ctx, st.path, ns)
	if err != nil {
		return err
	}
	if staged && (m.Type != st.use.fsType || m.ReadOnly != st.use.readOnly) {
		return fmt.Errorf("%w: %s has %s, read-only %t", errIncompatible, m.Path, m.Type, m.ReadOnly)
	}
	if staged {
		err = st.records().useUp(st.volume, st.at) // another attachment may have mounted it
	} else {
		err = st.mount(ctx, ns)
	}
	if err != nil || st.use.readOnly {
		return err
	}
	// A volume made from a smaller one, or grown while it was not attached.
	if err := st.Filesystems.Grow(ctx, ns.Path, st.path); err != nil {
		if staged {
			return fmt.Errorf("%w; mount %w: an earlier call made it", err, errUncertain)
		}
		return st.takeBack(st.path, err)
	}
	return nil
}

// mount a device that may have to be formatted. It is addressed by its name, which is the volume's own for as long as
// the device is open.
func (st stage) mount(ctx context.Context, ns fabrics.Namespace) error {
	device, err := st.open(ctx, ns, st.use.readOnly)
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // nothing was written through it
	fence := filesystem.Fence{Blank: st.at.Blank, AllowFormat: st.at.AllowFormat, Volume: st.volume}
	if st.at.MayFormat() {
		if fence.UsedUp, err = st.records().usedUp(st.volume, st.at); err != nil {
			return err
		}
	}
	err = st.Filesystems.Prepare(ctx, filesystem.Request{
		Device: ns.Path, SizeBytes: ns.SizeBytes, Type: st.use.fsType, ReadOnly: st.use.readOnly, Fence: fence,
	})
	if err != nil {
		return err
	}
	// mkfs has flushed what it wrote: a stage that is cut off here leaves a filesystem, which the next one finds.
	if err := st.records().useUp(st.volume, st.at); err != nil {
		return err
	}
	options := st.use.mountFlags
	if st.use.readOnly {
		options = append([]string{"ro"}, options...)
	}
	if err := st.Filesystems.Mount(ns.Path, st.path, st.use.fsType, options); err != nil {
		if st.use.readOnly {
			err = fmt.Errorf("%w (a filesystem that was not unmounted cleanly cannot be mounted read-only: mount a ReadWriteOnce copy of the source once, and copy that)", err)
		}
		return err
	}
	return st.verify(st.path, ns)
}

// clear tells whether a path shows the namespace. What it shows of a device that is gone is unmounted.
func (s *Service) clear(ctx context.Context, path string, ns fabrics.Namespace) (filesystem.Mount, bool, error) {
	m, mounted, err := s.Filesystems.At(path)
	if err != nil || !mounted {
		return m, false, err
	}
	if holds(m, ns) {
		return m, true, nil
	}
	_, err = s.device(m)
	if !errors.Is(err, fabrics.ErrNotFound) {
		return m, false, fmt.Errorf("%w: %s is not %s", errOtherVolume, path, ns.Path)
	}
	logr.FromContextOrDiscard(ctx).Info("Unmounting what is left of a device that is gone", "path", path)
	return m, false, s.Filesystems.Unmount(path)
}

// undo disconnects a volume whose staging failed for good: the kubelet takes such an
// error as "nothing was done" and will not unstage. A volume that was staged before stays: it is in use.
func (s *Service) undo(ctx context.Context, at publishcontext.Context, cause error) error {
	if uncertain(cause) {
		return cause
	}
	err := s.Initiator.Disconnect(ctx, fabrics.ID{NQN: at.NQN, NGUID: at.NGUID})
	var inUse *fabrics.InUseError
	if err == nil || errors.As(err, &inUse) {
		return cause
	}
	return fmt.Errorf("%w; connection %w: %w", cause, errUncertain, err)
}

// NodeUnstageVolume unmounts a volume, and answers success only when its last connection is gone.
func (s *Service) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return call(ctx, &s.calls, "unstaging", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeUnstageVolumeResponse, error) {
		path := r.GetStagingTargetPath()
		if err := required(field{"staging_target_path", path}); err != nil {
			return nil, err
		}
		id := fabrics.ID{NQN: v1alpha1.SubsystemNQN(r.GetVolumeId())}
		mark := filepath.Join(path, blockMark)
		// The mark last: a filesystem that is mounted over it may have failed, and then nothing below it can be looked
		// at.
		for _, p := range []string{path, mark} {
			nguid, err := s.unmountStaged(p, r.GetVolumeId())
			if err != nil {
				return nil, err
			}
			if nguid != "" {
				id.NGUID = nguid
			}
		}
		// Only now: under a mount, this would be the user's file.
		if err := s.Filesystems.Remove(mark); err != nil {
			return nil, err
		}
		if err := s.Initiator.Disconnect(ctx, id); err != nil {
			return nil, err
		}
		return &csi.NodeUnstageVolumeResponse{}, s.records().remove(r.GetVolumeId())
	})
}

// unmountStaged unmounts what a path shows of a volume, and gives its NGUID, if the device is still there.
func (s *Service) unmountStaged(path, volumeID string) (string, error) {
	m, mounted, err := s.Filesystems.At(path)
	if err != nil || !mounted {
		return "", err
	}
	ns, err := s.deviceOf(volumeID, m)
	if err != nil && !errors.Is(err, fabrics.ErrNotFound) {
		return "", err
	}
	return ns.NGUID, s.Filesystems.Unmount(path)
}
