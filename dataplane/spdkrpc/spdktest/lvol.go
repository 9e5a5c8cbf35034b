// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

const maxVolumeName = 63

// An lvol is a logical volume, a snapshot or a clone: all three are blobs of one store.
type lvol struct {
	store    *lvstore
	page     uint64 // its number in the store
	uuid     string
	name     string
	thin     bool
	snapshot bool
	readOnly bool
	clear    string // method by which its clusters are cleared when it is deleted
	clusters uint64
	dirty    uint64 // clusters that it was given as they were
	clearing uint64 // clusters that are being cleared, once the metadata has it no longer
	alloc    clusters
	data     map[uint64]uint64 // what hosts wrote, by cluster
	parent   *lvol
	clones   []*lvol
	bdev     *bdev
	cloned   bool // listed as a snapshot: it is one of this life, or has had a clone in it
	loaded   bool // found on disk
	locked   bool // a snapshot, clone, resize or inflation is under way
	deleting bool
}

func newLvol(s *lvstore, page uint64, r *volumeRecord) *lvol {
	v := &lvol{
		store: s, page: page, uuid: r.UUID, name: r.Name, thin: r.Thin, snapshot: r.Snapshot, readOnly: r.ReadOnly, clear: r.Clear,
		clusters: r.Clusters, dirty: r.Dirty, loaded: true,
	}
	for _, run := range r.Allocated {
		v.alloc.addRange(run[0], run[1])
	}
	for _, w := range r.Words {
		if v.data == nil {
			v.data = map[uint64]uint64{}
		}
		v.data[w[0]] = w[1]
	}
	return v
}

func (v *lvol) record() *volumeRecord {
	r := &volumeRecord{
		UUID: v.uuid, Name: v.name, Thin: v.thin, Snapshot: v.snapshot, ReadOnly: v.readOnly, Clear: v.clear, Clusters: v.clusters, Dirty: v.dirty,
		Allocated: v.alloc.runs(), Words: v.words(),
	}
	if v.parent != nil {
		r.Parent = v.parent.page
	}
	return r
}

func (v *lvol) allocated() uint64 { return v.alloc.count() }

// isReadOnly says what clones can be made of.
func (v *lvol) isReadOnly() bool { return v.snapshot || v.readOnly }

// refusesWrites says what the bdev shows: bdev_lvol_set_read_only shows only in the next life.
func (v *lvol) refusesWrites() bool { return v.snapshot || v.readOnly && v.loaded }

func (v *lvol) alias() string { return v.store.Name + "/" + v.name }

// setParent makes v a clone of p, or of nothing.
func (v *lvol) setParent(p *lvol) {
	if v.parent != nil {
		v.parent.clones = slices.DeleteFunc(v.parent.clones, func(c *lvol) bool { return c == v })
	}
	v.parent = p
	if p != nil {
		p.clones = append(p.clones, v)
		p.cloned = true
	}
}

// registerLvol makes the volume's bdev, named by its UUID, with the alias lvstore/volume.
func (a *app) registerLvol(v *lvol) {
	block := v.store.base.blockSize
	b := &bdev{
		name: v.uuid, aliases: []string{v.alias()}, product: "Logical Volume", uuid: v.uuid, blockSize: block,
		numBlocks: v.clusters * v.store.ClusterSize / uint64(block), lvol: v, io: examined,
		ioTypes: []string{"read", "write", "unmap", "reset", "write_zeroes", "seek_hole", "seek_data"},
	}
	b.specific = func() map[string]any { return map[string]any{"lvol": v.specific()} }
	if e := a.register(b); e == 0 {
		v.bdev = b
	}
}

func (v *lvol) specific() map[string]any {
	info := map[string]any{
		"lvol_store_uuid": v.store.UUID, "base_bdev": v.store.base.name, "thin_provision": v.thin,
		"num_allocated_clusters": v.allocated(), "snapshot": v.cloned, "clone": v.parent != nil, "esnap_clone": false,
	}
	if v.parent != nil {
		info["base_snapshot"] = v.parent.name
	}
	if len(v.clones) > 0 {
		names := []string{}
		for _, c := range v.clones {
			names = append(names, c.name)
		}
		info["clones"] = names
	}
	return info
}

// alias gives the bdev the name that volume and store have now.
func (a *app) alias(v *lvol) {
	if v.bdev == nil {
		return
	}
	for _, old := range v.bdev.aliases {
		delete(a.bdevNames, old)
	}
	v.bdev.aliases = []string{v.alias()}
	a.bdevNames[v.alias()] = v.bdev
}

// findLvol finds a volume by its UUID or as lvstore/volume.
func (a *app) findLvol(name string) (*lvol, syscall.Errno) {
	if b := a.bdevNames[name]; b != nil && b.lvol != nil {
		return b.lvol, 0
	}
	return nil, syscall.ENODEV
}

func (s *lvstore) checkName(name string) syscall.Errno {
	if name == "" || len(name) > maxVolumeName {
		return syscall.EINVAL
	}
	if s.names[name] {
		return syscall.EEXIST
	}
	return 0
}

// makeLvol adds a volume to the store when its metadata is written, then calls done. What it allocates is taken at
// once.
func (a *app) makeLvol(v *lvol, done func()) syscall.Errno {
	s := v.store
	pages := s.freePages()
	if pages == 0 {
		return syscall.ENOMEM
	}
	if !v.thin && (v.clusters > s.free() || (v.clusters+clustersPerPage-1)/clustersPerPage > pages-1) {
		return syscall.ENOSPC
	}
	v.page, v.uuid = s.freePage(), uuid.NewString()
	if !v.thin {
		s.giveDirty(v, v.clusters)
		v.alloc.addRange(0, v.clusters)
	}
	if !a.start(s, func() {
		v.locked = false
		done()
		s.save(v)
		if !s.gone {
			a.registerLvol(v)
		}
	}) {
		return syscall.ENOMEM
	}
	// Counted from now on: two volumes must not get the same page or clusters. Listed only once it has a bdev.
	v.locked = true
	s.add(v)
	return 0
}

func (s *lvstore) clustersFor(mib uint64) uint64 {
	return (mib<<20 + s.ClusterSize - 1) / s.ClusterSize
}

func (a *app) lvolCreate(r *request) {
	var id, storeName, name, clearing string
	var mib uint64
	var thin bool
	if !r.decode(optional("uuid", asString(&id)), optional("lvs_name", asString(&storeName)),
		required("lvol_name", asString(&name)), required("size_in_mib", asUint(&mib)),
		optional("thin_provision", asBool(&thin)), optional("clear_method", asString(&clearing))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	s, e := a.findStore(id, storeName)
	if e != 0 {
		r.errno(e)
		return
	}
	if !knownClearMethod(clearing) {
		r.fail(-int(syscall.EINVAL), "Invalid clean_method option")
		return
	}
	if e := s.checkName(name); e != 0 {
		r.errno(e)
		return
	}
	v := &lvol{store: s, name: name, thin: thin, clear: strings.ToLower(clearing), clusters: s.clustersFor(mib)}
	if e := a.makeLvol(v, func() { a.post(func() { r.answer(v.uuid) }) }); e != 0 {
		r.errnoAs(codeInvalidParams, e)
	}
}

func (a *app) lvolSnapshot(r *request) {
	a.derive(r, "lvol_name", "snapshot_name", false, func(v, origin *lvol) {
		if ns := origin.bdev.namespace; ns != nil && ns.written() {
			// A write in progress is entered in the lvstore's first page, and no volume is there after the next start.
			origin.store.Lost = true
			origin.store.saveStore()
		}
		// The snapshot takes over what the origin has; the origin becomes a thin clone of it with nothing of its own.
		v.snapshot, v.cloned, v.clusters, v.thin = true, true, origin.clusters, origin.thin
		v.clear = origin.clear
		v.alloc, origin.alloc = origin.alloc, nil
		v.data, origin.data = origin.data, nil
		v.setParent(origin.parent)
		origin.setParent(v)
		origin.thin = true
		origin.store.save(v)
		origin.store.save(origin)
	})
}

func (a *app) lvolClone(r *request) {
	a.derive(r, "snapshot_name", "clone_name", true, func(v, origin *lvol) { v.setParent(origin) })
}

// derive makes an lvol from another, which must be read-only, or must not be, and takes one such operation at a time.
// It calls made when the new one is there, and answers its UUID.
func (a *app) derive(r *request, originKey, nameKey string, ofReadOnly bool, made func(v, origin *lvol)) {
	var of, name string
	if !r.decode(required(originKey, asString(&of)), required(nameKey, asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	origin, e := a.findLvol(of)
	if e != 0 {
		r.errno(e)
		return
	}
	e = origin.store.checkName(name)
	switch {
	case e != 0:
	case origin.isReadOnly() != ofReadOnly && origin.locked:
		// It closes the origin first, and that waits until its metadata are written.
		origin.store.names[name] = true
		if a.start(origin.store, func() {
			delete(origin.store.names, name)
			r.errnoAs(codeInvalidParams, syscall.EINVAL)
		}) {
			return
		}
		e = syscall.ENOMEM
	case origin.isReadOnly() != ofReadOnly:
		e = syscall.EINVAL
	case origin.locked:
		e = syscall.EBUSY
	}
	if e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	v := &lvol{store: origin.store, name: name, thin: true, clusters: origin.clusters}
	e = a.makeLvol(v, func() {
		origin.locked = false
		made(v, origin)
		a.post(func() { r.answer(v.uuid) })
	})
	if e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	origin.locked = true
}

func (a *app) lvolList(r *request) {
	stores, ok := a.storesOf(r, "lvs_uuid")
	if !ok {
		return
	}
	type storeName struct {
		Name string `json:"name"`
		UUID string `json:"uuid"`
	}
	type entry struct {
		Alias      string    `json:"alias"`
		UUID       string    `json:"uuid"`
		Name       string    `json:"name"`
		Thin       bool      `json:"is_thin_provisioned"`
		Snapshot   bool      `json:"is_snapshot"`
		Clone      bool      `json:"is_clone"`
		EsnapClone bool      `json:"is_esnap_clone"`
		Degraded   bool      `json:"is_degraded"`
		Allocated  uint64    `json:"num_allocated_clusters"`
		Store      storeName `json:"lvs"`
	}
	entries := []entry{}
	for _, s := range stores {
		for _, v := range s.lvols {
			if v.bdev == nil {
				continue // being made or deleted
			}
			entries = append(entries, entry{
				Alias: v.alias(), UUID: v.uuid, Name: v.name, Thin: v.thin, Snapshot: v.cloned, Clone: v.parent != nil,
				Allocated: v.allocated(), Store: storeName{s.Name, s.UUID},
			})
		}
	}
	r.answer(entries)
}
