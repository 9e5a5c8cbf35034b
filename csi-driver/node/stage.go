// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
	"github.com/weft-storage/weft/internal/header"
)

// blockMark is the file of a staging path at which a raw block volume's device node is bound. It
// is the kernel's record that the volume is staged. Publishing does not go
// through it: a device that was lost and came back has another name.
const blockMark = "device"

// NodeStageVolume connects a volume as its objects say now, checks that it is the one, and mounts it at the staging
// path. A staged volume whose connection the kernel gave up is connected again.
func (s *Service) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return call(ctx, s, "staging", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
		if err := required(field{"staging_target_path", r.GetStagingTargetPath()}); err != nil {
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
		if err := s.stage(ctx, r.GetVolumeId(), attachment, r.GetStagingTargetPath(), use, r.GetSecrets()); err != nil {
			return nil, err
		}
		return &csi.NodeStageVolumeResponse{}, nil
	})
}

// stage a volume for an attachment, at a path, with the Secret that has the keys of an encrypted one. What it did is
// undone when it fails for good.
func (s *Service) stage(ctx context.Context, volume, attachment, path string, use usage, secrets map[string]string) error {
	if err := publishcontext.CheckMountOptions(use.mountFlags); err != nil {
		return invalid("%v", err)
	}
	at, err := s.attached(ctx, volume, attachment)
	if err != nil {
		return err
	}
	if len(secrets) > 0 && !at.encrypted() {
		// An encrypted volume whose object was created again without that would be formatted as it is, if it has no
		// header yet.
		return fmt.Errorf("%w: NvmfVolume %s is not encrypted, and its PersistentVolume names a Secret to stage or publish it; if the NvmfVolume was created again, delete it, "+
			"and create it with the spec.encryption that it had; else remove the Secret from the PersistentVolume", errIncompatible, volume)
	}
	if err := use.allowedBy(at.access); err != nil {
		return fmt.Errorf("volume %s: %w", volume, err)
	}
	at.Staging = path
	if err := (staging{Service: s, volume: volume, path: path, use: use, at: at, secrets: secrets}).run(ctx); err != nil {
		return s.undo(ctx, volume, at, err)
	}
	return nil
}

// staging of a volume, once.
type staging struct {
	*Service
	volume, path string
	use          usage
	at           attached
	// secrets have the keys of an encrypted volume.
	secrets map[string]string
}

func (st staging) run(ctx context.Context) error {
	if err := st.mine(ctx); err != nil {
		return err
	}
	if err := st.onlyHere(); err != nil {
		return err
	}
	if err := st.leaveFormer(ctx); err != nil {
		return err
	}
	if err := st.records().put(st.volume, st.at); err != nil {
		return fmt.Errorf("record how the volume is staged: %w", err)
	}
	b, err := st.connect(ctx)
	if err != nil {
		return err
	}
	d, built, err := st.current(ctx, b, st.at)
	if err != nil {
		return err
	}
	if st.use.block {
		return st.block(ctx, b, d, built)
	}
	return st.filesystem(ctx, b, d, built)
}

// connect the volume's replicas, and start the mirror over them if it has one.
func (st staging) connect(ctx context.Context) (base, error) {
	if st.at.Mirrored {
		return st.startMirror(ctx, st.firstHeader)
	}
	if _, err := st.mirrorOf(st.at.UUID); !errors.Is(err, fabrics.ErrNotFound) {
		return base{}, cmp.Or(err, fmt.Errorf("%w: this node has a mirror of it, but NvmfVolume %s is not mirrored; the API server may have been restored to an earlier state", errMismatch, st.volume))
	}
	c, err := st.connection(st.at, st.at.only())
	if err != nil {
		return base{}, err
	}
	if err := st.Initiator.Connect(ctx, c); err != nil {
		return base{}, err
	}
	// Identity and size come before anything that touches the device.
	ns, err := st.Initiator.WaitNamespace(ctx, st.at.only().id(), st.at.served(st.at.SizeBytes))
	return base{ns: ns, trailerBytes: st.at.TrailerBytes}, err
}

// mine fails when the volume is attached to another Node of this name: this machine was registered again, or has taken
// over the name of one that may still be running and use the attachment.
func (st staging) mine(ctx context.Context) error {
	uid, err := st.NodeUID(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknownNode, err)
	}
	if uid != st.at.nodeUID {
		return fmt.Errorf("%w: it was attached to Node %s with UID %s, but this Node has UID %s; delete the pod so that it is attached again", errNotAttached, st.NodeName, st.at.nodeUID, uid)
	}
	return nil
}

// onlyHere fails when the volume is staged at another path: whoever unstages it names one.
func (st staging) onlyHere() error {
	was, err := st.records().get(st.volume)
	if unrecorded(err) {
		return nil
	}
	if err != nil || was.Staging == "" || was.Staging == st.path {
		return err
	}
	for _, path := range []string{was.Staging, filepath.Join(was.Staging, blockMark)} {
		m, mounted, err := st.Filesystems.At(path)
		if err != nil {
			return err
		}
		if !mounted {
			continue
		}
		if _, err := st.deviceOf(was.identity(), m); err == nil {
			return fmt.Errorf("%w: it is staged at %s; unstage it there before staging it at %s", errIncompatible, was.Staging, st.path)
		}
	}
	return nil
}

// leaveFormer waits until nothing is left of a mirror of an earlier attachment. It takes away the connections of
// replicas that an earlier attachment was staged with and that are no longer members: Connect clears the past of
// members alone, and the record that names these is about to be replaced. It fails with fabrics.ErrPast when all that
// is not gone before the context ends.
func (st staging) leaveFormer(ctx context.Context) error {
	if err := st.formerStopped(ctx); err != nil {
		return err
	}
	was, err := st.records().get(st.volume)
	if unrecorded(err) {
		return nil
	}
	if err != nil {
		return err
	}
	nqns, err := st.Initiator.Subsystems()
	if err != nil {
		return err
	}
	former := was.identity()
	for _, r := range st.at.Replicas {
		delete(former.replicas, r.Name)
	}
	for _, id := range former.subsystems(nqns) {
		if was.Attachment == st.at.Attachment {
			return fmt.Errorf("%w: it was staged with %s, which is not a member any more; delete the pod so that the volume is staged again", errIncompatible, id.NQN)
		}
		logr.FromContextOrDiscard(ctx).Info("Disconnecting a replica that is not a member any more", "nqn", id.NQN)
		err := st.Initiator.GiveUp(ctx, id.NQN, func(fabrics.Controller) bool { return true })
		if err == nil {
			err = st.Initiator.Disconnect(ctx, id) // with what was still being connected
		}
		if err != nil {
			return fmt.Errorf("%w: %w", fabrics.ErrPast, err)
		}
	}
	return nil
}

func (st staging) block(ctx context.Context, b base, d device, built bool) error {
	if err := st.notShownAt(st.path); err != nil {
		return err
	}
	mark := filepath.Join(st.path, blockMark)
	m, staged, err := st.clear(ctx, mark, d)
	if err != nil {
		return err
	}
	if staged && m.ReadOnly != st.use.readOnly {
		return fmt.Errorf("%w: %s has read-only %t", errIncompatible, m.Path, m.ReadOnly)
	}
	if staged {
		_, err := st.fit(ctx, d)
		return err
	}
	h, err := st.readHeader(ctx, b)
	if err != nil {
		return err
	}
	// An encrypted volume may hold data once its device is made, and that once its LUKS header is.
	if st.at.encrypted() {
		if d, err = st.ready(ctx, b, d, built, h); err == nil {
			err = h.end(ctx, header.Block)
		}
	} else if err = h.beginBlock(ctx); err == nil {
		d, err = st.ready(ctx, b, d, built, h)
	}
	if err != nil {
		return err
	}
	opened, err := st.open(ctx, d, st.use.readOnly)
	if err != nil {
		return err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	if err := st.Filesystems.BindDevice(ctx, d.Path, mark, st.use.readOnly); err != nil {
		return err
	}
	return st.verify(ctx, mark, d)
}

func (st staging) filesystem(ctx context.Context, b base, d device, built bool) error {
	m, staged, err := st.clear(ctx, st.path, d)
	if err != nil {
		return err
	}
	if staged && (m.Type != st.use.fsType || m.ReadOnly != st.use.readOnly) {
		return fmt.Errorf("%w: %s has %s, read-only %t", errIncompatible, m.Path, m.Type, m.ReadOnly)
	}
	if !staged {
		if err := st.notShownAt(filepath.Join(st.path, blockMark)); err != nil {
			return err
		}
		h, err := st.readHeader(ctx, b)
		if err != nil {
			return err
		}
		if d, err = st.ready(ctx, b, d, built, h); err != nil {
			return err
		}
		if err := st.mount(ctx, d, h); err != nil {
			return err
		}
	}
	if st.use.readOnly {
		return nil
	}
	// A volume made from a smaller one, or grown while it was not attached.
	if d, err = st.fit(ctx, d); err == nil {
		err = st.Filesystems.Grow(ctx, d.Path, st.path)
	}
	switch {
	case err != nil && staged:
		return fmt.Errorf("%w; mount %w: an earlier call made it", err, errUncertain)
	case err != nil:
		return st.takeBack(ctx, st.path, err)
	}
	return nil
}

// notShownAt fails when the path at which the other volume mode is staged shows something.
func (st staging) notShownAt(path string) error {
	m, mounted, err := st.Filesystems.At(path)
	if err == nil && mounted {
		err = fmt.Errorf("%w: %s is staged with another volume mode", errIncompatible, m.Path)
	}
	return err
}

// ready is the volume's device, as large as it should be.
func (st staging) ready(ctx context.Context, b base, d device, built bool, h *heading) (device, error) {
	switch {
	case built:
		return st.fit(ctx, d)
	case st.at.encrypted():
		return st.unlock(ctx, b, h)
	}
	return st.buildSpec(ctx, b, mapper.Spec{Owner: mapper.Owner{Volume: st.at.UUID}})
}

// mount a device that may have to be formatted. It is addressed by its name, which is the volume's own for as long as
// the device is open.
func (st staging) mount(ctx context.Context, d device, h *heading) error {
	opened, err := st.open(ctx, d, st.use.readOnly)
	if err != nil {
		return err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	err = st.Filesystems.Prepare(ctx, filesystem.Request{
		Device: d.Path, SizeBytes: d.SizeBytes, Type: st.use.fsType, ReadOnly: st.use.readOnly, Fence: h.fence(),
		Begin: func(ctx context.Context) error { return h.set(ctx, header.Formatting, st.use.fsType) },
	})
	if err != nil {
		return err
	}
	// mkfs has flushed what it wrote: a stage that is cut off here leaves a filesystem, which the next one finds.
	if err := h.end(ctx, st.use.fsType); err != nil {
		return err
	}
	options := st.use.mountFlags
	if st.use.readOnly {
		options = append([]string{"ro"}, options...)
	}
	if err := st.Filesystems.Mount(ctx, d.Path, st.path, st.use.fsType, options); err != nil {
		if st.use.readOnly {
			err = fmt.Errorf("%w (a filesystem that was not unmounted cleanly cannot be mounted read-only: mount a ReadWriteOnce copy of the source once, and copy that)", err)
		}
		return err
	}
	return st.verify(ctx, st.path, d)
}

// clear tells whether a path shows the device. What it shows of one that is gone, or has lost its namespace, is
// unmounted.
func (s *Service) clear(ctx context.Context, path string, d device) (filesystem.Mount, bool, error) {
	m, mounted, err := s.Filesystems.At(path)
	if err != nil || !mounted {
		return m, false, err
	}
	if holds(m, d) {
		return m, true, nil
	}
	_, err = s.device(m)
	if !errors.Is(err, fabrics.ErrNotFound) {
		return m, false, fmt.Errorf("%w: %s does not show it", errOtherVolume, path)
	}
	logr.FromContextOrDiscard(ctx).Info("Unmounting the rest of a device that is gone", "path", path)
	return m, false, s.Filesystems.Unmount(ctx, path)
}

// undo takes down and disconnects a volume whose staging failed for good: the kubelet takes such an
// error as "nothing was done" and will not unstage. A volume that was staged before stays: it is in use.
func (s *Service) undo(ctx context.Context, volume string, at attached, cause error) error {
	if uncertain(cause) {
		return cause
	}
	err := s.takeDown(ctx, at.UUID)
	if m := s.mirrors.of(volume); m != nil && err == nil {
		err = s.stopMirror(ctx, m)
	}
	for _, r := range at.connected() {
		if err == nil {
			err = s.Initiator.Disconnect(ctx, r.id())
		}
	}
	var inUse *fabrics.InUseError
	var used *usedError
	if err == nil || errors.As(err, &inUse) || errors.As(err, &used) {
		return cause
	}
	return fmt.Errorf("%w; connection %w: %w", cause, errUncertain, err)
}

// NodeUnstageVolume unmounts a volume, takes down what was built for it, and answers success only when its last
// connection is gone. If its attachment was revoked, its connections go first, so that the unmount does not wait for
// them.
func (s *Service) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return call(ctx, s, "unstaging", r.GetVolumeId(), func(ctx context.Context) (*csi.NodeUnstageVolumeResponse, error) {
		if err := required(field{"staging_target_path", r.GetStagingTargetPath()}); err != nil {
			return nil, err
		}
		if mover, err := s.leaveToMover(r.GetVolumeId(), r.GetStagingTargetPath()); err != nil || mover {
			return &csi.NodeUnstageVolumeResponse{}, err
		}
		if err := s.unstage(ctx, r.GetVolumeId(), r.GetStagingTargetPath()); err != nil {
			return nil, err
		}
		return &csi.NodeUnstageVolumeResponse{}, s.records().remove(r.GetVolumeId())
	})
}

func (s *Service) unstage(ctx context.Context, volumeID, path string) error {
	is, err := s.identify(ctx, volumeID)
	if err != nil {
		return err
	}
	nqns, err := s.Initiator.Subsystems()
	if err != nil {
		return err
	}
	kept, err := s.unstaged(ctx, volumeID, is)
	if err == nil && kept != nil {
		err = kept.leaving(ctx)
	} else if err == nil {
		err = s.giveUpRevoked(ctx, volumeID, is, nqns)
	}
	if err != nil {
		return err
	}
	mark := filepath.Join(path, blockMark)
	built := []string{is.uuid}
	// The mark last: a filesystem that is mounted over it may have failed, and then nothing below it can be looked at.
	for _, p := range []string{path, mark} {
		shown, err := s.unmountStaged(ctx, p, is)
		if err != nil {
			return err
		}
		built = append(built, shown)
	}
	// Only now: under a mount, this would be the user's file.
	if err := s.Filesystems.Remove(ctx, mark); err != nil {
		return err
	}
	if nqns, err = s.Initiator.Subsystems(); err != nil {
		return err
	}
	slices.Sort(built)
	for _, uuid := range slices.Compact(built) {
		if err := s.takeDown(ctx, uuid); err != nil {
			return err
		}
	}
	if kept != nil {
		if err := s.stopMirror(ctx, kept); err != nil {
			return err
		}
	}
	for _, id := range is.subsystems(nqns) {
		if err := s.Initiator.Disconnect(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// unmountStaged unmounts what a path shows of a volume, and gives the volume's UUID, if its device is there.
func (s *Service) unmountStaged(ctx context.Context, path string, is identity) (string, error) {
	m, mounted, err := s.Filesystems.At(path)
	if err != nil || !mounted {
		return "", err
	}
	d, err := s.deviceOf(is, m)
	if err != nil && !errors.Is(err, fabrics.ErrNotFound) {
		return "", err
	}
	return d.Volume, s.Filesystems.Unmount(ctx, path)
}
