// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

const (
	maxStoreName       = 63
	defaultClusterSize = 4 << 20
	mdPageSize         = 4096
	mdMaskHeader       = 5   // bytes before the bits of a mask page
	maxStoreOps        = 512 // SPDK_LVOL_BLOB_OPTS_CHANNEL_OPS: operations an lvstore takes at once
	maxDeletes         = 384 // how many of them may be deletions, which take more each: measured, 512 at once fail
)

// An lvstore is a blobstore with logical volumes on a base device.
type lvstore struct {
	storeRecord
	base     *bdev
	journal  journal
	lvols    []*lvol         // in the order in which they came to be, those being made too
	names    map[string]bool // of lvols
	pages    clusters        // metadata pages that are numbers of lvols
	inFlight int             // in parts of maxStoreOps*maxDeletes
	lost     []*lvol         // on disk, but not known any more
	busy     time.Time       // until when operations take their time
	gone     bool            // unloaded
	broken   error           // metadata could not be written
	clearing uint64          // clusters of volumes that the metadata has no longer
}

// layout computes, as spdk_bs_init does, how many clusters metadata takes and how many are left for data.
func (s *lvstore) layout(deviceBytes, ratio uint64) syscall.Errno {
	total := deviceBytes / s.ClusterSize
	s.MDPages = ratio * total / 100
	pages := func(bits uint64) uint64 { return (mdMaskHeader + (bits+7)/8 + mdPageSize - 1) / mdPageSize }
	md := 1 + pages(s.MDPages) + max(pages(s.MDPages), pages(total)) + pages(s.MDPages) + s.MDPages
	perCluster := s.ClusterSize / mdPageSize
	if perCluster == 0 {
		return syscall.EINVAL
	}
	s.MDClusters = (md + perCluster - 1) / perCluster
	if s.MDClusters > total {
		return syscall.ENOMEM
	}
	s.Clusters = total - s.MDClusters
	return 0
}

func (s *lvstore) maxGrowableSize() uint64 {
	pages := (mdMaskHeader + (s.MDPages+7)/8 + mdPageSize - 1) / mdPageSize
	return (pages*mdPageSize - mdMaskHeader) * 8 * s.ClusterSize
}

func (s *lvstore) used() uint64 {
	var n uint64
	for _, v := range slices.Concat(s.lvols, s.lost) {
		n += v.allocated()
	}
	return n
}

// freePages is how many metadata pages are left: each volume takes one, and one for each part of it that has clusters.
func (s *lvstore) freePages() uint64 {
	taken := 1 + uint64(len(s.lvols)+len(s.lost))
	for _, v := range slices.Concat(s.lvols, s.lost) {
		taken += v.alloc.pages()
	}
	return s.MDPages - min(s.MDPages, taken)
}

func (s *lvstore) free() uint64 { return s.Clusters - min(s.Clusters, s.used()) }

// giveDirty clusters to a volume that is about to be allocated n, if it must be any.
func (s *lvstore) giveDirty(v *lvol, n uint64) {
	clean := s.free() - min(s.free(), s.Dirty)
	given := n - min(n, clean)
	s.Dirty -= given
	v.dirty += given
	s.saveStore()
}

// freePage finds the first metadata page that no volume has: it becomes the volume's number. Page 0 is the store's.
func (s *lvstore) freePage() uint64 { return max(1, s.pages.firstFree()) }

// add lists a volume; drop takes one out, and the only clone of a snapshot inherits what it has.
func (s *lvstore) add(v *lvol) {
	s.lvols = append(s.lvols, v)
	s.names[v.name] = true
	s.pages.add(v.page)
}

func (s *lvstore) drop(v *lvol) {
	held := s.used()
	defer func() {
		// A file is not told to unmap, and what clears by that, or not at all, leaves its data.
		if freed := held - s.used(); v.clear != clearWriteZeroes && freed > 0 {
			s.Dirty += freed
			s.saveStore()
		}
	}()
	v.setParent(nil)
	s.unlist(v)
}

// lose forgets a volume that stays on disk.
func (s *lvstore) lose(v *lvol) {
	s.unlist(v)
	s.lost = append(s.lost, v)
}

func (s *lvstore) unlist(v *lvol) {
	s.lvols = slices.DeleteFunc(s.lvols, func(o *lvol) bool { return o == v })
	delete(s.names, v.name)
}

func (s *lvstore) info(older bool) map[string]any {
	info := map[string]any{
		"uuid": s.UUID, "name": s.Name, "base_bdev": s.base.name, "total_data_clusters": s.Clusters,
		"free_clusters": s.free(), "block_size": s.base.blockSize, "cluster_size": s.ClusterSize,
		"max_growable_size": s.maxGrowableSize(),
	}
	if older {
		delete(info, "max_growable_size")
	}
	return info
}

// start begins an operation; it completes, with done, when the store has written its metadata. False means that too
// many are under way.
func (a *app) start(s *lvstore, done func()) bool { return a.startOne(s, maxDeletes, done) }

func (a *app) startDelete(s *lvstore, done func()) bool { return a.startOne(s, maxStoreOps, done) }

func (a *app) startOne(s *lvstore, parts int, done func()) bool {
	if s.inFlight+parts > maxStoreOps*maxDeletes {
		return false
	}
	s.inFlight += parts
	var complete func()
	complete = func() {
		if s.base.hangs {
			s.base.waiting = append(s.base.waiting, complete)
			return
		}
		s.inFlight -= parts
		done()
	}
	if a.opts.LvolTime == 0 {
		a.written(complete)
		return true
	}
	now := time.Now()
	if s.busy.Before(now) {
		s.busy = now
	}
	s.busy = s.busy.Add(a.opts.LvolTime)
	a.after(s.busy.Sub(now), complete)
	return true
}

// save records a volume's state on disk with the next sync.
func (s *lvstore) save(v *lvol) { s.record(record{Page: v.page, Volume: v.record()}) }

func (s *lvstore) saveStore() { s.record(s.storeNow()) }

// storeNow is how a target that ended now would find the store.
func (s *lvstore) storeNow() record {
	r := s.storeRecord
	r.Dirty += s.clearing
	return record{Store: &r}
}

func (s *lvstore) record(r record) {
	if err := s.journal.add(r); err != nil {
		s.broken = err
	}
}

func (s *lvstore) all() []record {
	records := []record{s.storeNow()}
	for _, v := range slices.Concat(s.lvols, s.lost) {
		if v.clearing == 0 {
			records = append(records, record{Page: v.page, Volume: v.record()})
		}
	}
	return records
}

func (s *lvstore) sync() {
	if err := s.journal.sync(s.all); err != nil {
		s.broken = err
	}
}

// findStore finds an lvstore by exactly one of uuid and name.
func (a *app) findStore(id, name string) (*lvstore, syscall.Errno) {
	if (id == "") == (name == "") {
		return nil, syscall.EINVAL
	}
	for _, s := range a.lvstores {
		if id != "" && strings.EqualFold(s.UUID, id) || name != "" && s.Name == name {
			return s, 0
		}
	}
	return nil, syscall.ENODEV
}

const clearWriteZeroes = "write_zeroes"

var clearMethods = []string{"none", "unmap", clearWriteZeroes}

func knownClearMethod(m string) bool {
	return m == "" || slices.Contains(clearMethods, strings.ToLower(m))
}

func (a *app) lvstoreCreate(r *request) {
	var base, name, clearing string
	var cluster, ratio, page uint32
	if !r.decode(required("bdev_name", asString(&base)), required("lvs_name", asString(&name)),
		optional("cluster_sz", asUint(&cluster)), optional("clear_method", asString(&clearing)),
		optional("num_md_pages_per_cluster_ratio", asUint(&ratio)), optional("md_page_size", asUint(&page))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	if !knownClearMethod(clearing) {
		r.fail(-int(syscall.EINVAL), "Invalid clear_method parameter")
		return
	}
	if cluster == 0 {
		cluster = defaultClusterSize
	}
	if ratio == 0 {
		ratio = 100
	}
	if name == "" || len(name) > maxStoreName || page != 0 && (page < 4096 || page > 65536 || page&(page-1) != 0) {
		r.errno(syscall.EINVAL)
		return
	}
	b := a.bdevNames[base]
	if e := storeFits(b, cluster); e != 0 {
		r.errno(e)
		return
	}
	if _, e := a.findStore("", name); e == 0 {
		r.errno(syscall.EEXIST)
		return
	}
	if b.aio != nil && b.aio.ReadOnly {
		r.errnoAs(codeInvalidParams, syscall.EIO) // found out by writing
		return
	}
	s := &lvstore{
		storeRecord: storeRecord{UUID: uuid.NewString(), Name: name, ClusterSize: uint64(cluster)},
		base:        b, names: map[string]bool{}, pages: clusters{1},
	}
	if e := s.layout(b.numBlocks*uint64(b.blockSize), uint64(ratio)); e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	if strings.EqualFold(clearing, "none") && b.disk.holdsData(int64(s.MDClusters*s.ClusterSize)) {
		s.Dirty = s.Clusters
	}
	s.journal = journal{disk: b.disk, limit: int64(s.MDClusters * s.ClusterSize)}
	if err := s.journal.format(); err != nil {
		r.errnoAs(codeInvalidParams, errnoOf(err))
		return
	}
	a.adopt(s)
	s.saveStore()
	a.post(func() { r.answer(s.UUID) })
}

func storeFits(b *bdev, cluster uint32) syscall.Errno {
	switch {
	case b == nil:
		return syscall.ENODEV
	case b.claim != "" || b.disk == nil:
		return syscall.EPERM
	case cluster < b.blockSize || cluster%b.blockSize != 0:
		return syscall.EINVAL
	}
	return 0
}

func (a *app) adopt(s *lvstore) {
	s.base.store, s.base.claim = s, claimShared
	a.lvstores = append(a.lvstores, s)
}

// loadStore brings the lvstore of a device up, with its volumes.
func (a *app) loadStore(b *bdev) {
	rec, volumes, end, err := b.disk.load()
	if err != nil || rec.Lost {
		return // a device whose metadata cannot be read has no lvstore, as in SPDK
	}
	for _, other := range a.lvstores {
		if other.Name == rec.Name || other.UUID == rec.UUID {
			return // a copy of one that is there already
		}
	}
	s := &lvstore{storeRecord: rec, base: b, names: map[string]bool{}, pages: clusters{1}}
	s.journal = journal{disk: b.disk, end: end, limit: int64(s.MDClusters * s.ClusterSize)}
	a.adopt(s)
	byPage := map[uint64]*lvol{}
	for page, v := range volumes {
		byPage[page] = newLvol(s, page, v)
	}
	for _, page := range sortedPages(byPage) {
		v := byPage[page]
		v.setParent(byPage[volumes[page].Parent])
		s.add(v)
	}
	for _, v := range slices.Clone(s.lvols) {
		if a.unopenable[v.name] {
			s.lose(v)
			continue
		}
		a.registerLvol(v)
	}
}

func sortedPages(byPage map[uint64]*lvol) []uint64 {
	pages := make([]uint64, 0, len(byPage))
	for p := range byPage {
		pages = append(pages, p)
	}
	slices.Sort(pages)
	return pages
}

// unloadStore takes the volumes of a store away; what is on disk stays.
func (a *app) unloadStore(s *lvstore, done func()) {
	s.sync()
	left := len(s.lvols) + 1
	one := func() {
		if left--; left > 0 {
			return
		}
		a.lvstores = slices.DeleteFunc(a.lvstores, func(o *lvstore) bool { return o == s })
		s.base.store, s.base.claim, s.gone = nil, "", true
		done()
	}
	for _, v := range s.lvols {
		if v.bdev == nil {
			a.post(one)
			continue
		}
		a.unregister(v.bdev, one)
		v.bdev = nil
	}
	a.post(one)
}

// storeOf the request, which names it by UUID or by name. When it names none, the request is answered.
func (a *app) storeOf(r *request, uuidKey string) (*lvstore, bool) {
	var id, name string
	if !r.decode(optional(uuidKey, asString(&id)), optional("lvs_name", asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return nil, false
	}
	s, e := a.findStore(id, name)
	if e != 0 {
		r.errno(e)
		return nil, false
	}
	return s, true
}

// storesOf the request: the one it names, or all when it has no parameters.
func (a *app) storesOf(r *request, uuidKey string) ([]*lvstore, bool) {
	if r.params == nil {
		return a.lvstores, true
	}
	s, ok := a.storeOf(r, uuidKey)
	return []*lvstore{s}, ok
}

func (a *app) lvstoreGrow(r *request) {
	s, ok := a.storeOf(r, "uuid")
	if !ok {
		return
	}
	size := s.base.numBlocks * uint64(s.base.blockSize)
	total := size / s.ClusterSize
	switch {
	case total < s.MDClusters+s.Clusters:
		r.errnoAs(codeInvalidParams, syscall.EILSEQ)
		return
	case total*s.ClusterSize > s.maxGrowableSize():
		r.errnoAs(codeInvalidParams, syscall.ENOSPC)
		return
	}
	if !a.start(s, func() {
		s.Clusters = total - s.MDClusters
		s.saveStore()
		r.answer(true)
	}) {
		r.errnoAs(codeInvalidParams, syscall.ENOMEM)
	}
}

func (a *app) lvstoreList(r *request) {
	stores, ok := a.storesOf(r, "uuid")
	if !ok {
		return
	}
	infos := []any{}
	for _, s := range stores {
		infos = append(infos, s.info(a.before(release2601)))
	}
	r.answer(infos)
}
