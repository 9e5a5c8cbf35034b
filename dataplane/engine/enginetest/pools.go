// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Device of the machine that the engine runs on.
type Device struct {
	// Path of the block device.
	Path string
	// SizeBytes of it.
	SizeBytes int64
	// Content of it. Default: Blank.
	Content v1alpha1.DriveContent
	// Signature found on a Foreign device. Default: "ext4 filesystem".
	Signature string
}

type disk struct {
	Device
	err       error
	volumes   map[engine.ID]*data
	snapshots map[engine.ID]*data
	notes     map[engine.ID][]byte
}

type data struct {
	sizeBytes int64
	qos       engine.QoS
	createdAt time.Time
	// blocks by number; shared between a source and its snapshots and clones, and never changed once shared: a write
	// puts another in its place.
	blocks map[int64]*block
}

type block [BlockBytes]byte

func (d *data) allocated() int64 { return int64(len(d.blocks)) * BlockBytes }

func (d *data) clone(sizeBytes int64, now time.Time) *data {
	return &data{sizeBytes: sizeBytes, createdAt: now, blocks: maps.Clone(d.blocks)}
}

type pool struct {
	id     string
	device *disk
	open   bool
}

func (p *pool) readable() error {
	if !p.open {
		return fmt.Errorf("pool %s is not open: %w", p.id, engine.ErrUnavailable)
	}
	return p.device.err
}

func (d *disk) free() int64 {
	used := map[*block]bool{}
	for _, all := range []map[engine.ID]*data{d.volumes, d.snapshots} {
		for _, v := range all {
			for _, b := range v.blocks {
				used[b] = true
			}
		}
	}
	return d.SizeBytes - int64(len(used))*BlockBytes
}

func newDisk(d Device) *disk {
	return &disk{Device: d, volumes: map[engine.ID]*data{}, snapshots: map[engine.ID]*data{}, notes: map[engine.ID][]byte{}}
}

// AddDevice puts a device into the machine, or replaces the one with the same path.
func (e *Engine) AddDevice(d Device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.Content == "" {
		d.Content = v1alpha1.ContentBlank
	}
	if d.Content == v1alpha1.ContentForeign && d.Signature == "" {
		d.Signature = "ext4 filesystem"
	}
	e.devices[d.Path] = newDisk(d)
}

// Content of a device; false when there is none with this path.
func (e *Engine) Content(path string) (v1alpha1.DriveContent, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, ok := e.devices[path]
	if !ok {
		return "", false
	}
	return d.Content, true
}

// BreakDevice makes a device unreadable with this error, until err is nil again.
func (e *Engine) BreakDevice(path string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.devices[path].err = err
}

// Lose a volume or snapshot behind the engine's back.
func (e *Engine) Lose(id engine.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		delete(d.volumes, id)
		delete(d.snapshots, id)
	}
}

// MarkWritten makes a volume's first bytes written, rounded up to 4 KiB, so that
// its AllocatedBytes is at least that. It fails with engine.ErrNotFound, or engine.ErrNoSpace when the pool or the
// volume is too small.
func (e *Engine) MarkWritten(id engine.ID, bytes int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, v, err := e.find(id, volumesOf)
	if err != nil {
		return err
	}
	for at := int64(0); at < bytes; at += BlockBytes {
		if v.blocks[at/BlockBytes] != nil {
			continue
		}
		if at >= v.sizeBytes {
			return fmt.Errorf("volume %s has only %d bytes: %w", id, v.sizeBytes, engine.ErrNoSpace)
		}
		v.blocks[at/BlockBytes] = &block{}
	}
	return nil
}

// OpenPools implements engine.Engine.
func (e *Engine) OpenPools(ctx context.Context, devices []engine.Device) []error {
	return each(ctx, e, OpenPools, devices, func(d engine.Device) string { return d.ID }, e.openPool)
}

func (e *Engine) openPool(want engine.Device) error {
	if err := want.Validate(); err != nil {
		return err
	}
	d := e.devices[want.Path]
	if d == nil && want.FileBytes > 0 {
		d = newDisk(Device{Path: want.Path, Content: v1alpha1.ContentBlank})
		e.devices[want.Path] = d
	}
	switch {
	case d == nil:
		return fmt.Errorf("device %s: %s: %w", want.ID, want.Path, engine.ErrNotFound)
	case d.err != nil:
		return fmt.Errorf("device %s: %w", want.ID, d.err)
	case d.Content == v1alpha1.ContentForeign:
		return &device.ForeignSignatureError{Device: want.Path, Signature: d.Signature}
	case d.Content == v1alpha1.ContentBlank && e.pools[want.ID] != nil:
		return fmt.Errorf("device %s: %s reads as blank and was a pool: %w", want.ID, want.Path, engine.ErrNotFound)
	}
	for _, other := range e.pools {
		if other.device == d && other.id != want.ID && other.open {
			return fmt.Errorf("device %s is open as %s: %w", want.ID, other.id, engine.ErrInUse)
		}
	}
	if p := e.pools[want.ID]; p != nil && p.open && p.device != d {
		return fmt.Errorf("device %s is open from %s: %w", want.ID, p.device.Path, engine.ErrInUse)
	}
	d.Content = v1alpha1.ContentWeft
	d.SizeBytes = max(d.SizeBytes, want.FileBytes)
	e.pools[want.ID] = &pool{id: want.ID, device: d, open: true}
	return nil
}

// ForgetPools implements engine.Engine.
func (e *Engine) ForgetPools(ctx context.Context, devices []string) []error {
	return each(ctx, e, ForgetPools, devices, func(id string) string { return id }, func(id string) error {
		if p := e.pools[id]; p != nil && p.readable() == nil {
			return fmt.Errorf("pool %s can be read: %w", id, engine.ErrInUse)
		}
		delete(e.pools, id)
		return nil
	})
}

func volumesOf(d *disk) map[engine.ID]*data   { return d.volumes }
func snapshotsOf(d *disk) map[engine.ID]*data { return d.snapshots }

// find something in the open pools. When it is in none, and one cannot be
// read, nobody knows whether it is there.
func (e *Engine) find(id engine.ID, in func(*disk) map[engine.ID]*data) (*pool, *data, error) {
	var unknown []error
	for _, name := range slices.Sorted(maps.Keys(e.pools)) {
		p := e.pools[name]
		if err := p.readable(); err != nil {
			unknown = append(unknown, err)
			continue
		}
		if found := in(p.device)[id]; found != nil {
			return p, found, nil
		}
	}
	if len(unknown) > 0 {
		return nil, nil, fmt.Errorf("%s may be in a pool that cannot be read: %w", id, errors.Join(unknown...))
	}
	return nil, nil, fmt.Errorf("%s: %w", id, engine.ErrNotFound)
}
