// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
)

var _ engine.BlockLister = (*Engine)(nil)

// ListBlocks implements engine.BlockLister: it compares where XFS has the blocks of both files. Nothing writes to a
// snapshot, and while its file is open its blocks are nobody else's. So blocks at the same place are the same data.
func (e *Engine) ListBlocks(ctx context.Context, of engine.Blocks, found func(engine.Range) error) (err error) {
	if err := of.Validate(); err != nil {
		return err
	}
	pool, err := e.mountedPool(of.Pool, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	open := func(id engine.ID) (*os.File, error) {
		f, err := openFile(pool, filepath.Join(snapshotsFolder, string(id)))
		if isMissing(err) {
			err = engine.ErrNotFound
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot %s in pool %s: %w", id, of.Pool, err)
		}
		return f, nil
	}
	snapshot, err := open(of.Snapshot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	from := zeros
	if of.Base != "" {
		base, err := open(of.Base)
		if err != nil {
			return err
		}
		defer func() { _ = base.Close() }() // it was only read
		from = extentsOf(base)
	}
	return differences(pieces(ctx, extentsOf(snapshot), of.Within), pieces(ctx, from, of.Within), found)
}

// extent of a file: its bytes lie on the drive from physical on, if it has no flags.
type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// lister of a file's extents answers the first ones in a range, in order; none when there are no more.
type lister func(within engine.Range) ([]extent, error)

// zeros are a file without extents.
func zeros(engine.Range) ([]extent, error) { return nil, nil }

// From linux's include/uapi/linux/fiemap.h and fs.h.
const (
	fiemapIoctl = 3<<30 | 32<<16 | 'f'<<8 | 11 // FS_IOC_FIEMAP, _IOWR('f', 11, struct fiemap)
	fiemapSync  = 1

	extentLast      = 0x1
	extentUnwritten = 0x800
	extentMerged    = 0x1000
	extentShared    = 0x2000
)

// fiemap is the kernel's struct, with room for some extents.
type fiemap struct {
	start, length        uint64
	flags, mapped, count uint32
	_                    uint32
	extents              [512]extent
}

// extentsOf a file, as the kernel has them.
func extentsOf(f *os.File) lister {
	var m fiemap
	return func(within engine.Range) ([]extent, error) {
		m.start, m.length, m.flags, m.count, m.mapped = uint64(within.Offset), uint64(within.Bytes), fiemapSync, uint32(len(m.extents)), 0
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemapIoctl, uintptr(unsafe.Pointer(&m))) //nolint:gosec // an ioctl takes an address
		if errno != 0 {
			return nil, fmt.Errorf("list the extents of %s: %w", f.Name(), errno)
		}
		return m.extents[:m.mapped], nil
	}
}

// Places of a piece that is not on the drive, or is nobody knows where.
const (
	nowhere  = -1
	anywhere = -2
)

// piece of a file, and where it begins on the drive. What is nowhere reads as zeros.
type piece struct {
	engine.Range
	place int64
}

// placeOf an extent. What is written, or is to be written, in a way that this does not know may be anything.
func (x extent) place() int64 {
	switch flags := x.flags &^ (extentLast | extentMerged | extentShared); flags {
	case 0:
		return int64(x.physical)
	case extentUnwritten:
		return nowhere
	default:
		return anywhere
	}
}

// placeAt an offset in the piece.
func (p piece) placeAt(at int64) int64 {
	if p.place < 0 {
		return p.place
	}
	return p.place + at - p.Offset
}

// pieces that a range of a file consists of.
func pieces(ctx context.Context, list lister, within engine.Range) iter.Seq2[piece, error] {
	return func(yield func(piece, error) bool) {
		at, end := within.Offset, within.End()
		upTo := func(to, place int64) bool {
			is := piece{engine.Range{Offset: at, Bytes: to - at}, place}
			at = max(at, to)
			return is.Bytes <= 0 || yield(is, nil)
		}
		for at < end {
			extents, err := list(engine.Range{Offset: at, Bytes: end - at})
			if err = errors.Join(err, ctx.Err()); err != nil {
				yield(piece{}, err)
				return
			}
			before := at
			for _, x := range extents {
				begins, place := int64(x.logical), x.place()
				if place >= 0 {
					place += max(0, at-begins)
				}
				if !upTo(min(begins, end), nowhere) || !upTo(min(begins+int64(x.length), end), place) {
					return
				}
			}
			if at == before && len(extents) > 0 {
				yield(piece{}, fmt.Errorf("the kernel lists extents from %d on that are not there", at))
				return
			}
			if at == before && !upTo(end, nowhere) {
				return
			}
		}
	}
}

// differences of two files, whose pieces are of the same range, joined where they touch.
func differences(snapshot, base iter.Seq2[piece, error], found func(engine.Range) error) error {
	next, stop := iter.Pull2(base)
	defer stop()
	var other piece
	var differs engine.Range
	for is, err := range snapshot {
		if err != nil {
			return err
		}
		for at := is.Offset; at < is.End(); {
			if at >= other.End() {
				if other, err, _ = next(); err != nil {
					return err
				}
			}
			to := min(is.End(), other.End())
			switch {
			case is.placeAt(at) == other.placeAt(at) && is.place != anywhere:
			case differs.End() == at:
				differs.Bytes += to - at
			default:
				if differs.Bytes > 0 {
					if err := found(differs); err != nil {
						return err
					}
				}
				differs = engine.Range{Offset: at, Bytes: to - at}
			}
			at = to
		}
	}
	if differs.Bytes > 0 {
		return found(differs)
	}
	return nil
}
