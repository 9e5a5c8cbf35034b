// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"maps"
	"slices"
	"syscall"
)

// namedLvol decodes the one parameter "name" and finds the volume, or answers why not.
func (a *app) namedLvol(r *request) *lvol {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return nil
	}
	v, e := a.findLvol(name)
	if e != 0 {
		r.errno(e)
		return nil
	}
	return v
}

// lvolAndName decodes two names, the parameters so called, and finds the volume that the first one names; or answers
// why not.
func (a *app) lvolAndName(r *request, first, second string) (*lvol, string) {
	var name, other string
	if !r.decode(required(first, asString(&name)), required(second, asString(&other))) {
		r.fail(codeInternal, msgDecode)
		return nil, ""
	}
	v, e := a.findLvol(name)
	if e != 0 {
		r.errno(e)
		return nil, ""
	}
	return v, other
}

// changeLvol locks a volume, and carries out f when the store has come to it. f answers.
func (a *app) changeLvol(r *request, v *lvol, f func()) {
	switch {
	case v.locked:
		r.errnoAs(codeInvalidParams, syscall.EBUSY)
	case !a.start(v.store, func() {
		v.locked = false
		f()
	}):
		r.errnoAs(codeInvalidParams, syscall.ENOMEM)
	default:
		v.locked = true
	}
}

func (a *app) lvolResize(r *request) {
	var name string
	var mib uint64
	if !r.decode(required("name", asString(&name)), required("size_in_mib", asUint(&mib))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	v, e := a.findLvol(name)
	if e != 0 {
		r.errno(e)
		return
	}
	want := v.store.clustersFor(mib)
	switch {
	case v.isReadOnly():
		r.errnoAs(codeInvalidParams, syscall.EPERM)
		return
	case want == v.clusters:
		a.tellSize(r, v)
		return
	}
	a.changeLvol(r, v, func() {
		if !v.thin && want > v.clusters {
			if want-v.clusters > v.store.free() {
				r.errnoAs(codeInvalidParams, syscall.ENOSPC)
				return
			}
			v.alloc.addRange(v.clusters, want-v.clusters)
		}
		// When shrinking, the data is gone before anybody is asked whether the bdev may shrink.
		v.clusters = want
		v.alloc.truncate(want)
		maps.DeleteFunc(v.data, func(cluster, _ uint64) bool { return cluster >= want })
		v.store.save(v)
		a.tellSize(r, v)
	})
}

// tellSize makes the bdev as large as its volume, and answers.
func (a *app) tellSize(r *request, v *lvol) {
	if v.bdev == nil {
		r.errnoAs(codeInvalidParams, syscall.ENODEV)
		return
	}
	if e := a.resized(v.bdev, v.clusters*v.store.ClusterSize/uint64(v.bdev.blockSize)); e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	r.answer(true)
}

func (a *app) lvolDecouple(r *request) {
	v := a.namedLvol(r)
	switch {
	case v == nil:
	case v.parent == nil && !v.locked:
		r.errnoAs(codeInvalidParams, syscall.EINVAL)
	default:
		a.inflate(r, v, false)
	}
}

// inflate copies into a volume what it shares with its parent; with all, every cluster, and it is thick from then on.
func (a *app) inflate(r *request, v *lvol, all bool) {
	if !v.thin && !v.locked {
		r.answer(true)
		return
	}
	a.changeLvol(r, v, func() {
		want := slices.Clone(v.alloc)
		if all {
			want.addRange(0, v.clusters)
		} else {
			want.union(v.parent.alloc)
			want.truncate(v.clusters)
		}
		if want.count()-v.allocated() > v.store.free() {
			r.errnoAs(codeInvalidParams, syscall.ENOSPC)
			return
		}
		v.inherit(want)
		v.alloc = want
		switch {
		case all:
			v.thin = false
			v.setParent(nil)
		default:
			v.setParent(v.parent.parent)
		}
		v.store.save(v)
		r.answer(true)
	})
}

func (a *app) lvolSetParent(r *request) {
	v, of := a.lvolAndName(r, "lvol_name", "parent_name")
	if v == nil {
		return
	}
	parent, e := a.findLvol(of)
	switch {
	case e != 0:
		r.errno(e)
		return
	case v == parent:
		e = syscall.EINVAL
	case v.parent == parent:
		e = syscall.EEXIST
	case !v.thin, !parent.cloned, v.store != parent.store, v.clusters != parent.clusters:
		e = syscall.EINVAL
	case v.locked || parent.locked:
		e = syscall.EBUSY
	}
	if e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	if !a.start(v.store, func() {
		v.locked, parent.locked = false, false
		v.setParent(parent)
		v.store.save(v)
		r.answer(true)
	}) {
		r.errnoAs(codeInvalidParams, syscall.ENOMEM)
		return
	}
	v.locked, parent.locked = true, true
}

func (a *app) lvolRename(r *request) {
	v, to := a.lvolAndName(r, "old_name", "new_name")
	if v == nil {
		return
	}
	if e := v.store.checkName(to); e != 0 {
		r.errnoAs(codeInvalidParams, e)
		return
	}
	if !a.start(v.store, func() {
		delete(v.store.names, v.name)
		v.store.names[to] = true
		v.name = to
		v.store.save(v)
		a.alias(v)
		r.answer(true)
	}) {
		r.errnoAs(codeInvalidParams, syscall.ENOMEM)
	}
}

// lvolDelete has no guard: the bdev of an exported volume goes like any other, and its namespace with it.
func (a *app) lvolDelete(r *request) {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	v, e := a.findLvol(name)
	if e != 0 {
		if a.deleting(name) {
			r.errnoAs(codeInternal, syscall.EBUSY)
			return
		}
		r.errno(e)
		return
	}
	if len(v.clones) > 1 {
		r.errnoAs(codeInternal, syscall.EPERM)
		return
	}
	b := v.bdev
	v.bdev, v.deleting = nil, true
	a.unregister(b, func() {
		for _, c := range v.clones {
			if c.locked {
				v.store.lose(v)
				r.errnoAs(codeInternal, syscall.EBUSY)
				return
			}
		}
		merged := slices.Clone(v.clones)
		finish := func() {
			for _, c := range merged {
				c.locked = false
			}
			a.clearing(v.store, func() {
				v.store.clearing -= v.clearing
				v.store.saveStore()
				for _, c := range merged {
					v.store.save(c)
				}
				v.store.drop(v)
				v.store.pages.remove(v.page)
				v.store.record(record{Page: v.page})
				r.answer(true)
			})
		}
		if !a.startDelete(v.store, func() {
			// A target that ends from here on finds it all as it was before.
			for _, c := range merged {
				v.mergeInto(c)
			}
			if len(merged) == 0 || !a.start(v.store, finish) {
				finish()
			}
		}) {
			// SPDK forgets the volume even so; it is on disk still, and comes back with the next start.
			v.store.lose(v)
			r.errnoAs(codeInternal, syscall.ENOMEM)
			return
		}
		for _, c := range merged {
			c.locked = true
		}
		if len(v.clones) == 0 && v.clear == clearWriteZeroes && !v.store.base.hangs {
			// SPDK writes the metadata first: a target that ends before all is cleared leaves the rest as it is.
			v.clearing = v.allocated()
			v.store.clearing += v.clearing
			v.store.record(record{Page: v.page})
			v.store.saveStore()
		}
	})
}

// clearing of what was deleted is done, unless it is held.
func (a *app) clearing(s *lvstore, done func()) {
	if s.base.holdsClearing {
		s.base.waiting = append(s.base.waiting, func() { a.clearing(s, done) })
		return
	}
	done()
}

// mergeInto a clone what a deleted snapshot has, which it does not have from then on.
func (v *lvol) mergeInto(c *lvol) {
	inherited := slices.Clone(v.alloc)
	inherited.truncate(c.clusters)
	c.inherit(inherited)
	for i := range c.clusters {
		if inherited.has(i) && !c.alloc.has(i) {
			v.alloc.remove(i)
		}
	}
	c.alloc.union(inherited)
	c.setParent(v.parent)
}

// deleting says whether a volume of this name or UUID is on its way out.
func (a *app) deleting(name string) bool {
	for _, s := range a.lvstores {
		for _, v := range s.lvols {
			if v.deleting && (v.uuid == name || v.alias() == name) {
				return true
			}
		}
	}
	return false
}
