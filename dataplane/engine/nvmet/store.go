// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	volumesFolder   = "volumes"
	snapshotsFolder = "snapshots"
	notesFolder     = "notes"
)

// store is what the pools hold at one moment.
type store struct {
	pools     []*pool
	volumes   map[engine.ID][]file
	snapshots map[engine.ID][]file
}

// pool that was opened once, whether it can be read now or not.
type pool struct {
	engine.Pool
	dir string
}

// file that is a volume or a snapshot.
type file struct {
	pool           *pool
	path           string
	sizeBytes      int64
	allocatedBytes int64
	modified       time.Time
}

// scan the pools. One that cannot be read has its Err.
func (h *host) scan() (*store, error) {
	s := &store{volumes: map[engine.ID][]file{}, snapshots: map[engine.ID][]file{}}
	dirs, err := names(h.poolsDir())
	if isMissing(err) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	mounts, err := h.mounts()
	if err != nil {
		return nil, err
	}
	all := make([]string, len(dirs))
	for i, name := range dirs {
		all[i] = filepath.Join(h.poolsDir(), name)
	}
	h.inherit(mounts, all)
	for i, name := range dirs {
		id, err := url.PathUnescape(name)
		if err != nil {
			continue // not a name that poolDir makes
		}
		p := &pool{Pool: engine.Pool{Device: id}, dir: all[i]}
		s.pools = append(s.pools, p)
		p.Err = h.readPool(s, p, mounts)
	}
	return s, nil
}

// blockBytes of a namespace that is a file: the kernel takes the block size of its filesystem, and at most 4096 bytes
// (nvmet_file_ns_enable). That of XFS, as pools are made, is 4096 bytes.
const blockBytes = 4096

func (h *host) readPool(s *store, p *pool, mounts []mount.MountInfo) error {
	m := mountedOn(mounts, p.dir)
	if m == nil {
		return fmt.Errorf("%w: pool %s is not mounted on %s; if its drive is permanently lost, use kubectl weft drop", engine.ErrUnavailable, p.Device, p.dir)
	}
	p.Path = h.poolPath(p.Device, m)
	// XFS answers from memory until it misses its drive.
	if _, err := os.Stat(h.path("sys/dev/block", fmt.Sprintf("%d:%d", m.Major, m.Minor))); err != nil {
		return fmt.Errorf("%w: the drive of pool %s is missing: %w", engine.ErrUnavailable, p.Device, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.dir, &st); err != nil {
		return fmt.Errorf("%w: pool %s: %w", engine.ErrUnavailable, p.Device, err)
	}
	p.TotalBytes = v1alpha1.FillableXFS(int64(st.Blocks) * st.Bsize)
	p.BlockBytes = blockBytes
	p.FreeBytes = min(int64(st.Bavail)*st.Bsize, p.TotalBytes)
	if err := h.synced(p.dir, m); err != nil {
		return fmt.Errorf("%w: pool %s: %w", engine.ErrUnavailable, p.Device, err)
	}
	volumes, err := readFiles(p, volumesFolder)
	if err != nil {
		return fmt.Errorf("%w: volumes of pool %s: %w", engine.ErrUnavailable, p.Device, err)
	}
	snapshots, err := readFiles(p, snapshotsFolder)
	if err != nil {
		return fmt.Errorf("%w: snapshots of pool %s: %w", engine.ErrUnavailable, p.Device, err)
	}
	for id, f := range volumes {
		s.volumes[id] = append(s.volumes[id], f)
	}
	for id, f := range snapshots {
		s.snapshots[id] = append(s.snapshots[id], f)
	}
	return nil
}

func readFiles(p *pool, folder string) (map[engine.ID]file, error) {
	all, err := names(filepath.Join(p.dir, folder))
	if err != nil {
		return nil, err
	}
	files := make(map[engine.ID]file, len(all))
	for _, name := range all {
		id := engine.ID(name)
		if id.Validate() != nil {
			continue // not ours
		}
		path := filepath.Join(p.dir, folder, name)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil, err
		}
		files[id] = file{
			pool: p, path: path, sizeBytes: st.Size,
			// st_blocks counts 512 bytes whatever the filesystem's block is (stat(2)).
			allocatedBytes: st.Blocks * 512,
			modified:       time.Unix(st.Mtim.Unix()),
		}
	}
	return files, nil
}

// state of the pools and what they hold, in order.
func (s *store) state() engine.State {
	var state engine.State
	for _, p := range s.pools {
		state.Pools = append(state.Pools, p.Pool)
	}
	for _, id := range sortedKeys(s.volumes) {
		for _, f := range s.volumes[id] {
			state.Volumes = append(state.Volumes, engine.Volume{ID: id, Pool: f.pool.Device, SizeBytes: f.sizeBytes, AllocatedBytes: f.allocatedBytes})
		}
	}
	for _, id := range sortedKeys(s.snapshots) {
		for _, f := range s.snapshots[id] {
			state.Snapshots = append(state.Snapshots, engine.Snapshot{ID: id, Pool: f.pool.Device, SizeBytes: f.sizeBytes, AllocatedBytes: f.allocatedBytes, CreatedAt: f.modified})
		}
	}
	return state
}

// find the one file of that ID. When there is none, and a pool cannot be read,
// nobody knows: that is engine.ErrUnavailable, not engine.ErrNotFound.
func (s *store) find(in map[engine.ID][]file, id engine.ID) (file, error) {
	switch found := in[id]; len(found) {
	case 0:
		var unknown []error
		for _, p := range s.pools {
			if p.Err != nil {
				unknown = append(unknown, p.Err)
			}
		}
		if len(unknown) > 0 {
			return file{}, fmt.Errorf("%s may be in a pool that cannot be read: %w", id, errors.Join(unknown...))
		}
		return file{}, fmt.Errorf("%s: %w", id, engine.ErrNotFound)
	case 1:
		return found[0], nil
	default:
		return file{}, fmt.Errorf("%s is in two pools, as %s and %s: %w", id, found[0].path, found[1].path, engine.ErrExists)
	}
}

// pool by its device, readable.
func (s *store) pool(device string) (*pool, error) {
	for _, p := range s.pools {
		if p.Device == device {
			return p, p.Err
		}
	}
	return nil, fmt.Errorf("pool %s: %w", device, engine.ErrNotFound)
}
