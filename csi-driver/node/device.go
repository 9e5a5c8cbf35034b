// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// device of a volume on this host: what pods see, and the namespace below, in which a header comes before the data.
type device struct {
	mapper.Device
	ns fabrics.Namespace
}

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
		d.ns, err = s.Initiator.NamespaceByDevice(top.Lower.Number)
	}
	if err != nil {
		return d, fmt.Errorf("what is mounted at %s: %w", m.Path, err)
	}
	return d, nil
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

// over finds the device that was made of a namespace for an attachment. It is false when there is none.
func (s *Service) over(ns fabrics.Namespace, attachment string) (device, bool, error) {
	all, err := s.Mapper.Over(ns.Name)
	i := slices.IndexFunc(all, func(d mapper.Device) bool { return d.Attachment == attachment && d.Lower == lower(ns) })
	if err != nil || i < 0 {
		return device{}, false, err
	}
	return device{all[i], ns}, true, nil
}

// lower is a namespace as what a device is made of.
func lower(ns fabrics.Namespace) mapper.Lower {
	return mapper.Lower{Name: ns.Name, Number: ns.Device}
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

func (s *Service) openNamespace(ctx context.Context, ns fabrics.Namespace) (io.Closer, error) {
	defer doing.Begin(ctx, "opening "+ns.Path)()
	return s.Initiator.Open(ns)
}

// confirm that a device is still made of its namespace, and that of the namespace's size.
func (s *Service) confirm(d device) error {
	if err := s.Initiator.Confirm(d.ns); err != nil {
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
func (s *Service) current(ctx context.Context, ns fabrics.Namespace, at attached) (device, bool, error) {
	all, err := s.Mapper.Of(at.UUID)
	if err != nil {
		return device{}, false, err
	}
	var found device
	for _, d := range all {
		if found.Name == "" && d.Attachment == at.Attachment && d.Lower == lower(ns) {
			found = device{d, ns}
			continue
		}
		logr.FromContextOrDiscard(ctx).Info("Removing the rest of a device", "device", d.Name, "attachment", d.Attachment)
		if err := s.Mapper.Discard(ctx, d); err != nil {
			return device{}, false, fmt.Errorf("%w: its device %s: %w", fabrics.ErrPast, d.Name, err)
		}
	}
	return found, found.Name != "", nil
}

// build a volume's device of its namespace, from behind the header on.
func (s *Service) build(ctx context.Context, ns fabrics.Namespace, at attached) (device, error) {
	opened, err := s.openNamespace(ctx, ns)
	if err != nil {
		return device{}, err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	d, err := s.Mapper.Build(ctx, mapper.Spec{
		Volume: at.UUID, Attachment: at.Attachment, Lower: lower(ns),
		OffsetBytes: v1alpha1.HeaderBytes, SizeBytes: v1alpha1.WithoutHeader(ns.SizeBytes),
	})
	return device{d, ns}, err
}

// fit makes a device as large as its namespace, less the header.
func (s *Service) fit(ctx context.Context, d device) (device, error) {
	var err error
	d.Device, err = s.Mapper.Grow(ctx, d.Device, v1alpha1.HeaderBytes, v1alpha1.WithoutHeader(d.ns.SizeBytes))
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
