// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// device of a volume on this host: what pods see, and what that is made of.
type device struct {
	mapper.Device
	base
}

// base of a volume's device: the namespace of its only replica, or the mirror over its replicas.
type base struct {
	ns    fabrics.Namespace
	array md.Array
	// trailerBytes at the end of either, behind the data.
	trailerBytes int64
}

func (b base) mirrored() bool { return b.array.Name != "" }

// lower is the base as what a device is made of.
func (b base) lower() mapper.Lower {
	if b.mirrored() {
		return mapper.Lower{Name: b.array.Name, Number: b.array.Number}
	}
	return mapper.Lower{Name: b.ns.Name, Number: b.ns.Device}
}

// offsetBytes in the base where the data begin: in a namespace behind the header, in a mirror behind what it keeps
// clear.
func (b base) offsetBytes() int64 {
	if b.mirrored() {
		return md.FrontBytes
	}
	return v1alpha1.HeaderBytes
}

// dataBytes of the volume.
func (b base) dataBytes() int64 {
	bytes := b.ns.SizeBytes - v1alpha1.HeaderBytes
	if b.mirrored() {
		bytes = b.array.DataBytes
	}
	return max(0, bytes-b.trailerBytes)
}

// served is what the volume's targets serve for so many bytes of its data.
func (b base) served(dataBytes int64) int64 { return v1alpha1.HeaderBytes + dataBytes + b.trailerBytes }

// holds tells whether a mount shows a device: its filesystem, or its device node.
func holds(m filesystem.Mount, d device) bool {
	if m.Node != "" {
		return m.Node == d.Name && !m.NodeGone
	}
	return m.Device == d.Number
}

// device finds the volume's device that a mount shows. It fails with fabrics.ErrNotFound when that is gone, or has lost
// its namespace, and with mapper.ErrForeign or fabrics.ErrNotNVMe when it is no volume's.
func (s *Service) device(m filesystem.Mount) (device, error) {
	name := m.Device
	if m.Node != "" {
		name = m.Node
	}
	if m.NodeGone {
		return device{}, fmt.Errorf("device %s, bound at %s: %w", m.Node, m.Path, fabrics.ErrNotFound)
	}
	top, err := s.Mapper.Find(name)
	if errors.Is(err, mapper.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fabrics.ErrNotFound, err)
	}
	if err == nil && top.Lost() {
		err = fmt.Errorf("%s (%s) has lost what it was made of: %w", top.Name, top.Label, fabrics.ErrNotFound)
	}
	d := device{Device: top}
	if err == nil {
		d.base, err = s.baseOf(top)
	}
	if err != nil {
		return d, fmt.Errorf("what is mounted at %s: %w", m.Path, err)
	}
	return d, nil
}

// baseOf a volume's device. It fails as device does.
func (s *Service) baseOf(top mapper.Device) (base, error) {
	if !strings.HasPrefix(top.Lower.Name, "md") {
		ns, err := s.Initiator.NamespaceByDevice(top.Lower.Number)
		return base{ns: ns}, err
	}
	b, err := s.mirrorOf(top.Volume)
	if err == nil && b.lower() != top.Lower {
		err = fmt.Errorf("%s is made of %s (%s), and the volume's mirror is %s: %w", top.Name, top.Lower.Name, top.Lower.Number, b.array.Name, fabrics.ErrNotFound)
	}
	return b, err
}

// mirrorOf a volume, by its UUID. It fails with fabrics.ErrNotFound when it has none here.
func (s *Service) mirrorOf(volume string) (base, error) {
	a, err := s.Mirrors.Of(volume)
	if errors.Is(err, md.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fabrics.ErrNotFound, err)
	}
	return base{array: a}, err
}

// arrayOf a volume's mirror, by the volume's UUID, and its state. It fails with md.ErrNotFound when it has none here.
func (s *Service) arrayOf(volume string) (md.Array, md.State, error) {
	array, err := s.Mirrors.Of(volume)
	if err != nil {
		return array, md.State{}, err
	}
	state, err := s.Mirrors.State(array)
	return array, state, err
}

// deviceOf is device, and fails with errOtherVolume when what is shown is not of the volume.
func (s *Service) deviceOf(is identity, m filesystem.Mount) (device, error) {
	d, err := s.device(m)
	if err == nil && d.Volume != is.uuid {
		owners, _ := s.records().owners() // without the folder, its UUID has to do
		replica, _ := v1alpha1.ReplicaOfSubsystem(d.ns.NQN)
		err = fmt.Errorf("%w: %s shows volume %s", errOtherVolume, m.Path, cmp.Or(owners[replica], d.Volume))
	}
	return d, err
}

// over finds the device of a kind that was made of a base for an attachment. It is false when there is none.
func (s *Service) over(b base, attachment string, kind mapper.Kind) (device, bool, error) {
	all, err := s.Mapper.Over(b.lower().Name)
	i := slices.IndexFunc(all, func(d mapper.Device) bool {
		return d.Attachment == attachment && d.Lower == b.lower() && d.Kind == kind
	})
	if err != nil || i < 0 {
		return device{}, false, err
	}
	return device{all[i], b}, true, nil
}

// open keeps a volume's device, and with it its number, until it is closed, and says whether the kernel takes writes to
// it.
func (s *Service) open(ctx context.Context, d device, readOnly bool) (io.Closer, error) {
	opened, err := s.openDevice(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := s.Filesystems.SetReadOnly(ctx, d.Path, readOnly); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return opened, nil
}

func (s *Service) openDevice(ctx context.Context, d device) (io.Closer, error) {
	defer doing.Begin(ctx, "opening "+d.Path)()
	opened, err := s.Mapper.Open(d.Device)
	if err != nil {
		return nil, err
	}
	if err := s.confirm(d); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return opened, nil
}

// openBase keeps a base, and with it its number, until it is closed. A mirror is stopped by this process alone, when
// nothing is made of it.
func (s *Service) openBase(ctx context.Context, b base) (io.Closer, error) {
	if b.mirrored() {
		return io.NopCloser(nil), nil
	}
	defer doing.Begin(ctx, "opening "+b.ns.Path)()
	return s.Initiator.Open(b.ns)
}

// confirm that a device is still made of its base, and that of the base's size.
func (s *Service) confirm(d device) error {
	var err error
	if d.mirrored() {
		var now base
		if now, err = s.mirrorOf(d.Volume); err == nil && now.lower() != d.lower() {
			err = fmt.Errorf("the mirror of volume %s was %s, and is %s now: %w", d.Volume, d.array.Name, now.array.Name, fabrics.ErrNotFound)
		}
	} else {
		err = s.Initiator.Confirm(d.ns)
	}
	if err != nil {
		return err
	}
	return s.Mapper.Confirm(d.Device)
}

// verify looks once more at what was just mounted or bound by the device's name: that the path shows it, and that it is
// still made of its namespace. From here on the mount keeps it. What shows another is taken away again.
func (s *Service) verify(ctx context.Context, path string, d device) error {
	m, mounted, err := s.Filesystems.At(path)
	if err == nil && (!mounted || !holds(m, d)) {
		err = fmt.Errorf("%s does not show %s (%s): %w", path, d.Name, d.Number, fabrics.ErrNotFound)
	}
	if err == nil {
		err = s.confirm(d)
	}
	if err != nil {
		return s.takeBack(ctx, path, err)
	}
	return nil
}

// takeBack what a call mounted before it failed.
func (s *Service) takeBack(ctx context.Context, path string, cause error) error {
	if err := s.Filesystems.Unmount(ctx, path); err != nil {
		return fmt.Errorf("%w; mount %w: %w", cause, errUncertain, err)
	}
	return cause
}

// current finds the volume's device for an attachment, if it was made already, and discards what there is of earlier
// attachments, or has lost its namespace: whoever uses that gets errors. Call it when their controllers are gone: what
// was on its way through them has failed then.
func (s *Service) current(ctx context.Context, b base, at attached) (device, bool, error) {
	all, err := s.Mapper.Of(at.UUID)
	if err != nil {
		return device{}, false, err
	}
	var found device
	for _, d := range all {
		if found.Name == "" && d.Attachment == at.Attachment && d.Lower == b.lower() && d.Kind == at.kind() {
			found = device{d, b}
			continue
		}
		logr.FromContextOrDiscard(ctx).Info("Removing the rest of a device", "device", d.Name, "attachment", d.Attachment)
		if err := s.Mapper.Discard(ctx, d); err != nil {
			return device{}, false, fmt.Errorf("%w: its device %s: %w", fabrics.ErrPast, d.Name, err)
		}
	}
	return found, found.Name != "", nil
}

// buildSpec makes a device of the volume of its base: one with the owner of a spec, and the cipher.
func (st staging) buildSpec(ctx context.Context, b base, spec mapper.Spec) (device, error) {
	opened, err := st.openBase(ctx, b)
	if err != nil {
		return device{}, err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	spec.Attachment, spec.Lower, spec.OffsetBytes, spec.SizeBytes = st.at.Attachment, b.lower(), b.offsetBytes(), b.dataBytes()
	d, err := st.Mapper.Build(ctx, spec)
	return device{d, b}, err
}

// fit makes a device as large as its base has data.
func (s *Service) fit(ctx context.Context, d device) (device, error) {
	var err error
	d.Device, err = s.Mapper.Grow(ctx, d.Device, d.offsetBytes(), d.dataBytes())
	return d, err
}

// takeDown what was built for a volume, by its UUID. One that has lost its namespace goes with its last user; another
// that is used stays, with a *usedError.
func (s *Service) takeDown(ctx context.Context, volume string) error {
	if volume == "" {
		return nil
	}
	all, err := s.Mapper.Of(volume)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Lost() {
			if err := s.Mapper.Discard(ctx, d); err != nil {
				return err
			}
			continue
		}
		users, err := s.Initiator.Users(ctx, d.Number, d.Name)
		if err != nil {
			return fmt.Errorf("find out who uses %s: %w", d.Path, err)
		}
		if len(users) > 0 {
			return &usedError{device: d, users: users}
		}
		if err := s.Mapper.Remove(ctx, d); err != nil {
			return err
		}
	}
	return nil
}
