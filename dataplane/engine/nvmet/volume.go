// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// change the files of the pools, item by item. do gives the pools in which the item's answer
// must survive a loss of power: also when there was nothing to do, because
// a process that did it may have been killed before it synced. Each is
// synced once, at the end: XFS logs changes in order, so what has its name is whole.
func change[T any](ctx context.Context, e *Engine, items []T, do func(context.Context, *store, T) ([]*pool, error)) []error {
	end, err := e.begin(ctx)
	defer end()
	var s *store
	if err == nil {
		s, err = e.scan()
	}
	patience, cancel := context.WithTimeout(ctx, e.copyPatience)
	defer cancel()
	errs := make([]error, len(items))
	touched := make([][]*pool, len(items))
	for i, item := range items {
		switch {
		case err != nil:
			errs[i] = err
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
		default:
			touched[i], errs[i] = do(patience, s, item)
		}
	}
	synced := map[*pool]error{}
	for i, pools := range touched {
		for _, p := range pools {
			if _, done := synced[p]; !done {
				synced[p] = mapErrno(syncFilesystem(p.dir))
			}
			errs[i] = errors.Join(errs[i], synced[p])
		}
	}
	return errs
}

// CreateVolumes implements engine.Engine.
func (e *Engine) CreateVolumes(ctx context.Context, volumes []engine.VolumeSpec) []error {
	return change(ctx, e, volumes, e.createVolume)
}

func (e *Engine) createVolume(patience context.Context, s *store, want engine.VolumeSpec) ([]*pool, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	if found := s.volumes[want.ID]; len(found) > 0 {
		if is := found[0].sizeBytes; is != want.SizeBytes {
			return nil, fmt.Errorf("volume %s has %d bytes, not %d: %w", want.ID, is, want.SizeBytes, engine.ErrExists)
		}
		return []*pool{found[0].pool}, nil
	}
	var source *file
	if want.Source != (engine.Source{}) {
		found, err := s.source(want.Source)
		if err != nil {
			return nil, fmt.Errorf("source of volume %s: %w", want.ID, err)
		}
		source = &found
		if want.Pool == "" {
			want.Pool = found.pool.Device
		}
	}
	p, err := s.pool(want.Pool)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", want.ID, err)
	}
	switch {
	case source != nil && source.pool != p:
		return nil, fmt.Errorf("%w: volume %s in pool %s cannot share data with its source in pool %s", engine.ErrInvalid, want.ID, p.Device, source.pool.Device)
	case source != nil && want.SizeBytes < source.sizeBytes:
		return nil, fmt.Errorf("%w: volume %s of %d bytes is smaller than its source of %d", engine.ErrInvalid, want.ID, want.SizeBytes, source.sizeBytes)
	case want.SizeBytes > p.TotalBytes:
		return nil, fmt.Errorf("volume %s of %d bytes in pool %s of %d: %w", want.ID, want.SizeBytes, p.Device, p.TotalBytes, engine.ErrNoSpace)
	}
	made, err := e.makeFile(patience, p, volumesFolder, want.ID, source, want.SizeBytes, 0o600)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", want.ID, err)
	}
	s.volumes[want.ID] = []file{made}
	return []*pool{p}, nil
}

func (s *store) source(source engine.Source) (file, error) {
	if source.Snapshot != "" {
		return s.find(s.snapshots, source.Snapshot)
	}
	return s.find(s.volumes, source.Volume)
}

// CreateSnapshots implements engine.Engine.
func (e *Engine) CreateSnapshots(ctx context.Context, snapshots []engine.SnapshotSpec) []error {
	return change(ctx, e, snapshots, func(patience context.Context, s *store, want engine.SnapshotSpec) ([]*pool, error) {
		if err := want.Validate(); err != nil {
			return nil, err
		}
		if found := s.snapshots[want.ID]; len(found) > 0 {
			return []*pool{found[0].pool}, nil
		}
		source, err := s.find(s.volumes, want.Volume)
		if err != nil {
			return nil, fmt.Errorf("volume of snapshot %s: %w", want.ID, err)
		}
		made, err := e.makeFile(patience, source.pool, snapshotsFolder, want.ID, &source, source.sizeBytes, 0o400)
		if err != nil {
			return nil, fmt.Errorf("snapshot %s: %w", want.ID, err)
		}
		s.snapshots[want.ID] = []file{made}
		return []*pool{source.pool}, nil
	})
}

// makeFile makes a sparse file, or one that shares its source's extents, for which it waits until patience ends. It
// gets its name only once it is whole, so a process that is killed leaves nothing.
func (e *Engine) makeFile(
	patience context.Context, p *pool, folder string, id engine.ID, source *file, sizeBytes int64, mode os.FileMode,
) (file, error) {
	dir := filepath.Join(p.dir, folder)
	makeIt := func() (*os.File, error) {
		f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, mode)
		if err != nil {
			return nil, err
		}
		if source != nil {
			err = e.share(f, source.path)
		}
		if err == nil {
			err = f.Truncate(sizeBytes)
		}
		if err == nil && folder == volumesFolder {
			// Also done before a namespace is made, but there each file would have to be synced by itself.
			_, err = device.SetSynchronous(f)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	made := file{pool: p, path: filepath.Join(dir, string(id)), sizeBytes: sizeBytes}
	var f *os.File
	var err error
	if source == nil {
		f, err = makeIt()
	} else {
		f, err = e.copyExtents(patience, made.path, *source, sizeBytes, makeIt)
	}
	if err != nil {
		return file{}, mapErrno(err)
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, made.path, unix.AT_SYMLINK_FOLLOW)
	return made, mapErrno(errors.Join(err, f.Close()))
}

// GrowVolumes implements engine.Engine.
func (e *Engine) GrowVolumes(ctx context.Context, sizes []engine.VolumeSize) []error {
	return change(ctx, e, sizes, func(_ context.Context, s *store, want engine.VolumeSize) ([]*pool, error) {
		if err := want.Validate(); err != nil {
			return nil, err
		}
		is, err := s.find(s.volumes, want.ID)
		if err == nil {
			err = e.uncopied(is.path)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("volume %w", err)
		case want.SizeBytes < is.sizeBytes:
			return nil, fmt.Errorf("volume %s from %d to %d bytes: %w", want.ID, is.sizeBytes, want.SizeBytes, engine.ErrShrink)
		case want.SizeBytes > is.sizeBytes && want.SizeBytes > is.pool.TotalBytes:
			return nil, fmt.Errorf("volume %s to %d bytes in pool %s of %d: %w", want.ID, want.SizeBytes, is.pool.Device, is.pool.TotalBytes, engine.ErrNoSpace)
		case want.SizeBytes > is.sizeBytes:
			if err := os.Truncate(is.path, want.SizeBytes); err != nil {
				return nil, fmt.Errorf("volume %s: %w", want.ID, mapErrno(err))
			}
		}
		// Also when it had the size already: the process may have been killed in between.
		return []*pool{is.pool}, e.revalidate(is.path)
	})
}

// DeleteVolumes implements engine.Engine.
func (e *Engine) DeleteVolumes(ctx context.Context, ids []engine.ID) []error {
	var exported map[engine.ID]string
	return change(ctx, e, ids, func(_ context.Context, s *store, id engine.ID) ([]*pool, error) {
		if err := id.Validate(); err != nil {
			return nil, err
		}
		if exported == nil {
			var err error
			if exported, err = e.exportedVolumes(); err != nil {
				return nil, err
			}
		}
		if nqn := exported[id]; nqn != "" {
			return nil, fmt.Errorf("volume %s is exported as %s: %w", id, nqn, engine.ErrInUse)
		}
		return e.remove(s, s.volumes, id)
	})
}

// DeleteSnapshots implements engine.Engine.
func (e *Engine) DeleteSnapshots(ctx context.Context, ids []engine.ID) []error {
	return change(ctx, e, ids, func(_ context.Context, s *store, id engine.ID) ([]*pool, error) {
		if err := id.Validate(); err != nil {
			return nil, err
		}
		return e.remove(s, s.snapshots, id)
	})
}

// remove a file wherever it is. It fails when a pool cannot be read where it may be.
func (e *Engine) remove(s *store, in map[engine.ID][]file, id engine.ID) ([]*pool, error) {
	for _, f := range in[id] {
		if err := e.uncopied(f.path); err != nil {
			return nil, fmt.Errorf("%s: %w: %v", id, engine.ErrInUse, err) //nolint:errorlint // busy would say that clones depend on it
		}
		if err := os.Remove(f.path); err != nil {
			return nil, err
		}
		// Afterwards: what is there has its note.
		if err := removeNote(f.pool.dir, id); err != nil {
			return nil, err
		}
	}
	delete(in, id)
	if _, err := s.find(in, id); !errors.Is(err, engine.ErrNotFound) {
		return nil, err
	}
	return s.pools, nil
}

// SetQoS implements engine.Engine. The kernel's target has no limits of its own, and those of cgroups do not
// reach its I/O, which kernel threads do.
func (e *Engine) SetQoS(_ context.Context, limits []engine.VolumeQoS) []error {
	errs := make([]error, len(limits))
	for i, want := range limits {
		if errs[i] = want.Validate(); errs[i] == nil && want.QoS != (engine.QoS{}) {
			errs[i] = fmt.Errorf("%w: volume %s: the kernel's target does not support IOPS and bandwidth limits; use engine SPDK", engine.ErrUnsupported, want.ID)
		}
	}
	return errs
}
