// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/dataplane/engine"
)

// CreateVolumes implements engine.Engine.
func (e *Engine) CreateVolumes(ctx context.Context, volumes []engine.VolumeSpec) []error {
	return each(ctx, e, CreateVolumes, volumes, func(v engine.VolumeSpec) string { return string(v.ID) }, e.createVolume)
}

func (e *Engine) createVolume(want engine.VolumeSpec) error {
	if err := want.Validate(); err != nil {
		return err
	}
	if _, found, err := e.find(want.ID, volumesOf); err == nil {
		if found.sizeBytes != want.SizeBytes {
			return fmt.Errorf("volume %s has %d bytes, not %d: %w", want.ID, found.sizeBytes, want.SizeBytes, engine.ErrExists)
		}
		return nil
	}
	source, sourcePool, err := e.source(want.Source)
	if err != nil {
		return fmt.Errorf("source of volume %s: %w", want.ID, err)
	}
	in := sourcePool
	if want.Pool != "" {
		if in = e.pools[want.Pool]; in == nil {
			return fmt.Errorf("pool %s of volume %s: %w", want.Pool, want.ID, engine.ErrNotFound)
		}
	}
	if err := in.readable(); err != nil {
		return err
	}
	switch {
	case sourcePool != nil && in != sourcePool:
		return fmt.Errorf("%w: volume %s in pool %s cannot share data with its source in pool %s", engine.ErrInvalid, want.ID, in.id, sourcePool.id)
	case want.SizeBytes < source.sizeBytes:
		return fmt.Errorf("%w: volume %s of %d bytes is smaller than its source of %d", engine.ErrInvalid, want.ID, want.SizeBytes, source.sizeBytes)
	case want.SizeBytes > in.device.SizeBytes:
		return fmt.Errorf("volume %s of %d bytes in pool %s of %d: %w", want.ID, want.SizeBytes, in.id, in.device.SizeBytes, engine.ErrNoSpace)
	case in.device.free() <= 0:
		return fmt.Errorf("volume %s in pool %s: %w", want.ID, in.id, engine.ErrNoSpace)
	}
	in.device.volumes[want.ID] = source.clone(want.SizeBytes, e.now())
	return nil
}

// source of a volume; empty data and no pool for a blank one.
func (e *Engine) source(s engine.Source) (*data, *pool, error) {
	switch {
	case s.Snapshot != "":
		p, d, err := e.find(s.Snapshot, snapshotsOf)
		return d, p, err
	case s.Volume != "":
		p, d, err := e.find(s.Volume, volumesOf)
		return d, p, err
	}
	return &data{blocks: map[int64]*block{}}, nil, nil
}

// GrowVolumes implements engine.Engine.
func (e *Engine) GrowVolumes(ctx context.Context, sizes []engine.VolumeSize) []error {
	return each(ctx, e, GrowVolumes, sizes, func(v engine.VolumeSize) string { return string(v.ID) }, func(want engine.VolumeSize) error {
		if err := want.Validate(); err != nil {
			return err
		}
		p, v, err := e.find(want.ID, volumesOf)
		switch {
		case err != nil:
			return fmt.Errorf("volume %w", err)
		case want.SizeBytes < v.sizeBytes:
			return fmt.Errorf("volume %s from %d to %d bytes: %w", want.ID, v.sizeBytes, want.SizeBytes, engine.ErrShrink)
		case want.SizeBytes > p.device.SizeBytes:
			return fmt.Errorf("volume %s to %d bytes in pool %s of %d: %w", want.ID, want.SizeBytes, p.id, p.device.SizeBytes, engine.ErrNoSpace)
		}
		v.sizeBytes = want.SizeBytes
		return nil
	})
}

// SetQoS implements engine.Engine. As SPDK it changes limits only of a volume that is exported.
func (e *Engine) SetQoS(ctx context.Context, limits []engine.VolumeQoS) []error {
	return each(ctx, e, SetQoS, limits, func(v engine.VolumeQoS) string { return string(v.ID) }, func(want engine.VolumeQoS) error {
		if err := want.Validate(); err != nil {
			return err
		}
		_, v, err := e.find(want.ID, volumesOf)
		switch {
		case err != nil:
			return fmt.Errorf("volume %w", err)
		case v.qos != want.QoS && v.qos != (engine.QoS{}) && !e.exported(want.ID):
			return fmt.Errorf("limits of volume %s, which is not exported: %w", want.ID, engine.ErrBusy)
		}
		v.qos = want.QoS
		return nil
	})
}

func (e *Engine) exported(id engine.ID) bool {
	for _, x := range e.exports {
		if slices.ContainsFunc(x.Namespaces, func(ns engine.Namespace) bool { return ns.Volume == id }) {
			return true
		}
	}
	return false
}

// DeleteVolumes implements engine.Engine.
func (e *Engine) DeleteVolumes(ctx context.Context, ids []engine.ID) []error {
	return each(ctx, e, DeleteVolumes, ids, func(id engine.ID) string { return string(id) }, func(id engine.ID) error {
		if err := id.Validate(); err != nil {
			return err
		}
		for _, x := range e.exports {
			for _, ns := range x.Namespaces {
				if ns.Volume == id {
					return fmt.Errorf("volume %s is namespace %d of %s: %w", id, ns.NSID, x.NQN, engine.ErrInUse)
				}
			}
		}
		p, _, err := e.find(id, volumesOf)
		if err != nil {
			return unlessNotFound(err)
		}
		delete(p.device.volumes, id)
		delete(p.device.notes, id)
		return nil
	})
}

func unlessNotFound(err error) error {
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	return err
}

// CreateSnapshots implements engine.Engine.
func (e *Engine) CreateSnapshots(ctx context.Context, snapshots []engine.SnapshotSpec) []error {
	return each(ctx, e, CreateSnapshots, snapshots, func(s engine.SnapshotSpec) string { return string(s.ID) }, func(want engine.SnapshotSpec) error {
		if err := want.Validate(); err != nil {
			return err
		}
		if _, _, err := e.find(want.ID, snapshotsOf); err == nil {
			return nil
		}
		p, v, err := e.find(want.Volume, volumesOf)
		if err != nil {
			return fmt.Errorf("volume of snapshot %s: %w", want.ID, err)
		}
		p.device.snapshots[want.ID] = v.clone(v.sizeBytes, e.now())
		return nil
	})
}

// DeleteSnapshots implements engine.Engine.
func (e *Engine) DeleteSnapshots(ctx context.Context, ids []engine.ID) []error {
	return each(ctx, e, DeleteSnapshots, ids, func(id engine.ID) string { return string(id) }, func(id engine.ID) error {
		if err := id.Validate(); err != nil {
			return err
		}
		p, _, err := e.find(id, snapshotsOf)
		if err != nil {
			return unlessNotFound(err)
		}
		delete(p.device.snapshots, id)
		delete(p.device.notes, id)
		return nil
	})
}
