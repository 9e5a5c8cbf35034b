// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	// blockBytes of volumes, where the device allows it: what hosts use best.
	blockBytes = 4096
	// metadataPages of an lvstore at least, see metadata.go. After a crash SPDK reads them all, 5,000 to 20,000 a
	// second, before anything on the device is served: 1 to 3 s, and up to 60 % more on a device of 4 TiB, which has up
	// to 26,869 of them.
	metadataPages = 16384
	// minPoolBytes holds an lvstore's metadata and a volume.
	minPoolBytes = 64 << 20
)

// opening of a pool: what is known of its device.
type opening struct {
	engine.Device
	// attached: its base bdev is there already.
	attached *pool
	// blank devices become pools.
	blank bool
	// content of a drive that only the target sees, as weft-launch recorded it.
	content v1alpha1.DriveContent
	// zeroed: the kernel has deallocated all of a blank device, which reads as zeroes.
	zeroed bool
	// grown: its file was made larger.
	grown bool
	// blockBytes to ask for; 0 leaves it to SPDK.
	blockBytes uint32
	lvstore    string
	// metadata pages of a new lvstore, in percent of its clusters.
	metadata uint32
}

// OpenPools implements engine.Engine.
func (e *Engine) OpenPools(ctx context.Context, devices []engine.Device) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(devices), err)
	}
	st, err := s.readPools(devices)
	if err != nil {
		return failAll(len(devices), err)
	}
	if err := s.uncacheOpened(st, s.uncached.add); err != nil {
		return failAll(len(devices), err)
	}
	if st, err = s.examined(st, devices); err != nil {
		return failAll(len(devices), err)
	}
	errs := make([]error, len(devices))
	open := make([]*opening, len(devices))
	for i, d := range devices {
		open[i], errs[i] = s.prepare(st, d)
	}
	s.blank(ctx, open, errs)
	var attach, unopened, grow []int
	for i := range devices {
		switch {
		case errs[i] != nil:
		case open[i].attached == nil:
			attach = append(attach, i)
			unopened = append(unopened, i)
		case open[i].attached.Err != nil:
			unopened = append(unopened, i)
		}
		if errs[i] == nil && open[i].grown {
			grow = append(grow, i)
		}
	}
	for _, i := range attach {
		s.unlearn(open[i].ID)
		s.life.fresh[open[i].ID] = true
		delete(s.life.checks, open[i].ID)
		s.life.examined = false
	}
	s.attach(open, attach, errs)
	if len(unopened) > 0 {
		if st, err = s.readPools(devices); err == nil {
			err = s.examine(st, open, unopened, errs) //nolint:contextcheck // what a dead drive owes outlives the call
		}
		if err != nil {
			return failAll(len(devices), err)
		}
	}
	call(s, grow, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevAioRescan{Name: bdevName(open[i].ID)}
	})
	if len(unopened)+len(grow) > 0 {
		if st, err = s.readPools(devices); err != nil {
			return failAll(len(devices), err)
		}
		s.makeDurable(newlyOpened(st, open, errs)) //nolint:contextcheck // what a dead drive owes outlives the call; Gather tells whether it could be had
	}
	s.makeLvstores(st, open, errs)
	s.growLvstores(open, errs)
	if err := s.lookAtOpened(open, errs); err != nil {
		return failAll(len(devices), err)
	}
	for i, o := range open {
		if errs[i] == nil {
			errs[i] = e.record(o.ID, o.where())
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("device %s: %w", devices[i].ID, errs[i])
		}
	}
	return errs
}

// newlyOpened are pools that are open now, and blank devices that will be.
func newlyOpened(st *store, open []*opening, errs []error) []*pool {
	var pools []*pool
	for i, o := range open {
		if errs[i] != nil {
			continue
		}
		if p := st.recorded(o.ID); p.Err == nil || o.blank {
			pools = append(pools, p)
		}
	}
	return pools
}

// readPools of some devices, without what is in them.
func (s *session) readPools(devices []engine.Device) (*store, error) {
	lvstores := spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevLvolGetLvstores{})
	bases := make([]*spdkrpc.Pending[[]spdkrpc.Bdev], len(devices))
	for i, d := range devices {
		bases[i] = spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevGetBdevs{Name: (&opening{Device: d}).base()})
	}
	st := &store{strangers: map[string]string{}}
	found, err := lvstores.Wait()
	if err != nil {
		return nil, mapError(err)
	}
	for _, l := range found {
		if st.readable(l) == nil {
			st.strangers[l.BaseBdev] = l.Name
		}
	}
	for _, pending := range bases {
		bdevs, err := pending.Wait()
		if err != nil && !errors.Is(err, spdkrpc.ErrNotFound) {
			return nil, mapError(err)
		}
		for _, b := range bdevs {
			if device, path, ok := parseBase(b); ok {
				p := st.recorded(device)
				p.Path, p.base = path, b
			}
		}
	}
	return st, nil
}

// where the device is: its path or PCI address.
func (o *opening) where() string {
	if o.PCIAddress != "" {
		return o.PCIAddress
	}
	return o.Path
}

// base bdev's name.
func (o *opening) base() string {
	if o.PCIAddress != "" {
		return bdevName(o.ID) + firstNamespace
	}
	return bdevName(o.ID)
}

// prepare what the node itself can say and do, and look at what the target has.
func (s *session) prepare(st *store, d engine.Device) (*opening, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	o := &opening{Device: d, lvstore: lvstoreName(d.ID)}
	for _, p := range st.pools {
		if p.Device == d.ID && p.base.Name != "" {
			o.attached = p
		}
	}
	if o.attached != nil && o.attached.Path != o.where() {
		return nil, fmt.Errorf("it is open from %s, not %s: %w", o.attached.Path, o.where(), engine.ErrInUse)
	}
	var err error
	if d.PCIAddress != "" {
		err = s.prepareDrive(o)
	} else {
		err = s.prepareKernel(o)
	}
	if err == nil && o.blank && (o.attached == nil || o.attached.Err != nil) {
		err = s.checkNew(o)
	}
	return o, err
}

// checkNew refuses a device that reads as blank and was a pool of this node: what is left of one whose beginning was
// overwritten can be saved until a new pool is made there.
func (s *session) checkNew(o *opening) error {
	switch _, err := os.Lstat(s.recordOf(o.ID)); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s reads as blank, but was a pool, and its volumes may be recoverable; to start with an empty pool, remove %s: %w", o.where(), s.recordOf(o.ID), engine.ErrNotFound)
}

// prepareDrive that the kernel does not see any more: what was on it then is all that is known.
func (s *session) prepareDrive(o *opening) error {
	refusals, err := device.ReadRefusals(s.path(s.config.Socket))
	if err != nil {
		return err
	}
	if refused := refusals[o.ID]; refused != nil && o.attached == nil {
		return refused
	}
	records, err := device.ReadRecords(s.path(s.config.Socket))
	if err != nil {
		return err
	}
	// A record speaks of the drive that was there then. One of an earlier release does not say which, and is never
	// taken to say that this one is blank.
	record := records[o.PCIAddress]
	if record.ID == o.ID || record.ID == "" && record.Content == v1alpha1.ContentWeft {
		o.content = record.Content
	}
	o.blank = o.content == v1alpha1.ContentBlank
	return nil
}

// prepareKernel looks at a block device of the kernel, or a file.
func (s *session) prepareKernel(o *opening) error {
	path := s.path(o.Path)
	info, err := os.Stat(path)
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case missing && o.FileBytes > 0:
		if o.attached == nil {
			if _, known := os.Lstat(s.recordOf(o.ID)); known == nil {
				return fmt.Errorf("pool file %s and its volumes are missing; to start with an empty pool, remove %s: %w", o.Path, s.recordOf(o.ID), engine.ErrNotFound)
			}
		}
	case missing:
		return fmt.Errorf("%s: %w", o.Path, engine.ErrNotFound)
	case err != nil:
		return err
	case o.FileBytes > 0 && !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a file", engine.ErrInvalid, o.Path)
	case o.FileBytes == 0 && !isBlockDevice(info):
		return fmt.Errorf("%w: %s is not a block device; a file needs a size", engine.ErrInvalid, o.Path)
	}
	if o.FileBytes > 0 {
		err = s.prepareFile(o)
	} else {
		err = s.checkDrive(o)
	}
	if err != nil {
		return err
	}
	if o.attached != nil && o.attached.Err == nil {
		return nil
	}
	if o.FileBytes == 0 {
		if err := errors.Join(s.checkBlanked(o), s.checkUnused(o.Path, info)); err != nil {
			return err
		}
	}
	if err := s.probe(o); err != nil || o.FileBytes > 0 {
		return err
	}
	return s.prepareNowait(o, info)
}

// prepareFile of a pool, as large as it shall be.
func (s *session) prepareFile(o *opening) error {
	if o.FileBytes < minPoolBytes || o.FileBytes%blockBytes != 0 {
		return fmt.Errorf("%w: pool file %s of %d bytes; must be a multiple of %d, at least %d", engine.ErrInvalid, o.Path, o.FileBytes, blockBytes, minPoolBytes)
	}
	if _, _, err := device.SizeFile(s.path(o.Path), o.FileBytes); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) {
			return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
		}
		return err
	}
	info, err := os.Stat(s.path(o.Path))
	if err != nil {
		return err
	}
	o.blockBytes = blockBytes
	if a := o.attached; a != nil {
		o.grown = info.Size() > int64(a.base.Blocks*a.base.BlockBytes)
	}
	return nil
}

func (s *session) checkUnused(path string, info os.FileInfo) error {
	mounts, err := mount.ParseMountInfo(s.path("proc/self/mountinfo"))
	if err != nil {
		return err
	}
	return device.CheckUnused(s.config.Root, path, info.Sys().(*syscall.Stat_t).Rdev, mounts)
}

// probe the device, which SPDK does not have yet, or has without an lvstore: an interrupted call may have left it so.
func (s *session) probe(o *opening) error {
	path := s.path(o.Path)
	found, err := device.Look(s.ctx, s.config.Exec, path)
	if err != nil {
		return err
	}
	if found.Values == nil && found.HasPrefix(device.SPDKBlobstore) {
		return nil // whose it is SPDK tells, by its name
	}
	if name := found.Name(); name != "" {
		return &device.ForeignSignatureError{Device: o.Path, Signature: name}
	}
	o.blank = true
	bytes, err := sizeOf(path)
	if err != nil {
		return err
	}
	if o.FileBytes == 0 && bytes%blockBytes == 0 {
		o.blockBytes = blockBytes
	}
	if bytes < minPoolBytes {
		return fmt.Errorf("%w: %s has %d bytes; a pool needs at least %d", engine.ErrInvalid, o.Path, bytes, minPoolBytes)
	}
	return nil
}

func sizeOf(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	size, err := f.Seek(0, 2)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return size, err
}

// attach devices to the target.
func (s *session) attach(open []*opening, items []int, errs []error) {
	b := s.batch(errs)
	for _, i := range items {
		o := open[i]
		if o.PCIAddress != "" {
			put(b, i, spdkrpc.BdevNvmeAttachController{Name: bdevName(o.ID), Transport: spdkrpc.TransportPCIe, Address: o.PCIAddress})
			continue
		}
		put(b, i, spdkrpc.BdevAioCreate{Name: bdevName(o.ID), Path: o.Path, BlockBytes: o.blockBytes})
	}
	b.wait()
}

// detach a device that is not weft's.
func (s *session) detach(o *opening) error {
	var err error
	if o.PCIAddress != "" {
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevNvmeDetachController{Name: bdevName(o.ID)})
	} else {
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevAioDelete{Name: bdevName(o.ID)})
	}
	return mapError(err)
}

// makeLvstores on blank devices; a device that is not blank and has no lvstore of its name is not weft's.
func (s *session) makeLvstores(st *store, open []*opening, errs []error) {
	var create []int
	for i, o := range open {
		if errs[i] != nil {
			continue
		}
		p, err := st.pool(o.ID)
		switch {
		case err == nil:
			o.attached = p
		case o.content == v1alpha1.ContentWeft && st.recorded(o.ID).base.Claimed && st.strangers[o.base()] == "":
			errs[i] = fmt.Errorf("%w: its lvstore is being made, or examined", engine.ErrBusy)
		case !o.blank:
			refused := &device.ForeignSignatureError{Device: o.where(), Signature: "SPDK blobstore of another pool"}
			if o.PCIAddress != "" {
				refused.Signature = "content that is not a pool and may not be blank"
			}
			errs[i] = errors.Join(refused, s.detach(o))
		default:
			if errs[i] = s.makeReady(o); errs[i] == nil {
				o.metadata = metadataPercent(st.recorded(o.ID).base, o.clusterBytes())
				create = append(create, i)
			}
		}
	}
	call(s, create, errs, func(i int) spdkrpc.Request[string] {
		return spdkrpc.BdevLvolCreateLvstore{Bdev: open[i].base(), Name: open[i].lvstore, ClusterBytes: uint32(open[i].clusterBytes()), Clear: spdkrpc.ClearNone, MetadataPagesPercent: open[i].metadata}
	})
	for _, i := range create {
		switch {
		case errs[i] == nil:
			logr.FromContextOrDiscard(s.ctx).Info("Created a pool", "device", open[i].ID, "lvstore", open[i].lvstore)
			s.forgetMerges(open[i].lvstore)
		case errors.Is(errs[i], spdkrpc.ErrExists), errors.Is(errs[i], context.DeadlineExceeded):
			errs[i] = fmt.Errorf("%w: its lvstore is being made: %w", engine.ErrBusy, errs[i])
		}
	}
	certify := slices.DeleteFunc(slices.Clone(create), func(i int) bool { return !open[i].zeroed })
	// A pool without the mark is cleared, which takes longer.
	call(s, certify, slices.Clone(errs), func(i int) spdkrpc.Request[string] { return markOf(open[i].lvstore, cleanName) })
}

// makeReady a blank device for its lvstore.
func (s *session) makeReady(o *opening) error {
	if o.PCIAddress != "" {
		// Without it a drive whose lvstore cannot be read after a crash would still pass for blank, and be made
		// again. When making it fails, the drive is looked at again once the pod was deleted and the kernel has
		// it back.
		return device.RecordLvstore(s.path(s.config.Socket), o.PCIAddress, time.Now())
	}
	if o.FileBytes == 0 {
		// The kernel may have given its name to another drive since it was looked at.
		if err := s.checkDrive(o); err != nil {
			return errors.Join(err, s.detach(o))
		}
	}
	return nil
}

// clusterBytes of a pool that is made on the device.
func (o *opening) clusterBytes() int64 { return cmp.Or(o.ClusterBytes, v1alpha1.DefaultClusterSize) }

// metadataPercent of clusters that gives at least metadataPages; on small devices 100, SPDK's default, or so much
// more that larger clusters leave as many pages as those of the default size.
func metadataPercent(base spdkrpc.Bdev, clusterBytes int64) uint32 {
	clusters := max(1, base.Blocks*base.BlockBytes/uint64(clusterBytes))
	most := uint64(max(100, 100*clusterBytes/v1alpha1.DefaultClusterSize))
	return uint32(min(most, (100*metadataPages+clusters-1)/clusters))
}

// growLvstores whose device is larger than they know.
func (s *session) growLvstores(open []*opening, errs []error) {
	var grow []int
	for i, o := range open {
		if errs[i] != nil || o.attached == nil || o.attached.Err != nil || o.FileBytes == 0 {
			continue
		}
		p := o.attached
		clusters := int64(p.base.Blocks*p.base.BlockBytes) / p.ClusterBytes
		// Metadata takes a page for each 1 MiB at most, under 1 %; what is more is growth, also of an interrupted call.
		if o.grown || clusters-p.clusters > clusters/100+16 {
			grow = append(grow, i)
		}
	}
	call(s, grow, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolGrowLvstore{Name: open[i].lvstore}
	})
}

// recordOf a pool.
func (e *Engine) recordOf(device string) string {
	return filepath.Join(e.recordsDir(), url.PathEscape(device))
}
