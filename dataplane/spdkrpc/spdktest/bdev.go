// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"syscall"
)

// Claims of a bdev: who may write to it.
const (
	claimExclusive = "exclusive_write"     // a namespace
	claimShared    = "read_many_write_one" // an lvstore
)

// A bdev is one block device of the target: a file, a drive or a logical volume.
type bdev struct {
	name      string
	aliases   []string
	product   string
	blockSize uint32
	numBlocks uint64
	uuid      string
	claim     string
	limits    qosLimits
	io        ioStats
	histogram histogram
	ioTypes   []string
	specific  func() map[string]any
	namespace *namespace // which holds it open
	held      int        // I/O that does not end
	released  []func()   // what waits for it
	hangs     bool       // a base device that answers nothing that its lvstore writes
	mute      bool       // a base device that answers no read
	// holdsClearing: a base device on which clearing does not end
	holdsClearing bool
	examining     bool     // it is examined, which does not end
	waiting       []func() // what waits for it
	lvol          *lvol
	disk          *disk    // base devices only
	store         *lvstore // which lies on it
	aio           *aioFile
}

type qosLimits struct {
	RWIOs    uint64 `json:"rw_ios_per_sec"`
	RWMBytes uint64 `json:"rw_mbytes_per_sec"`
	ReadMB   uint64 `json:"r_mbytes_per_sec"`
	WriteMB  uint64 `json:"w_mbytes_per_sec"`
}

// ioTypeNames are all that bdev_get_bdevs lists.
var ioTypeNames = []string{
	"read", "write", "unmap", "flush", "reset", "nvme_admin", "nvme_io", "nvme_io_md", "write_zeroes", "zcopy",
	"get_zone_info", "zone_management", "zone_append", "compare", "compare_and_write", "abort", "seek_hole", "seek_data",
	"copy", "nvme_iov_md", "nvme_nssr", "write_uncorrectable",
}

// register makes a bdev known, as a whole: no name or alias may be taken.
func (a *app) register(b *bdev) syscall.Errno {
	names := append([]string{b.name}, b.aliases...)
	for _, n := range names {
		if a.bdevNames[n] != nil {
			return syscall.EEXIST
		}
	}
	for _, n := range names {
		a.bdevNames[n] = b
	}
	a.bdevs = append(a.bdevs, b)
	return 0
}

// unregister takes a bdev away from whoever uses it, then calls done. There is no guard: a namespace on it vanishes
// under its hosts.
func (a *app) unregister(b *bdev, done func()) {
	for _, name := range append([]string{b.name}, b.aliases...) {
		delete(a.bdevNames, name)
		delete(a.toExamine, name)
	}
	if b.examining { // its reads are aborted
		b.examining = false
		if a.examining--; a.examining == 0 {
			for _, f := range a.onExamined {
				a.post(f)
			}
			a.onExamined = nil
		}
	}
	a.bdevs = slices.DeleteFunc(a.bdevs, func(o *bdev) bool { return o == b })
	if ns := b.namespace; ns != nil {
		ns.subsystem.changeNamespace(ns.id, func() {
			ns.subsystem.removeNamespace(ns.id)
			done()
		})
		return
	}
	a.post(done)
}

// resized tells whoever has the bdev open of its new size. As in SPDK an open bdev does not shrink.
func (a *app) resized(b *bdev, numBlocks uint64) syscall.Errno {
	switch {
	case numBlocks == b.numBlocks:
		return 0
	case numBlocks < b.numBlocks && (b.namespace != nil || b.store != nil):
		return syscall.EBUSY
	}
	b.numBlocks = numBlocks
	return 0
}

func (b *bdev) info() map[string]any {
	supported := map[string]bool{}
	for _, t := range ioTypeNames {
		supported[t] = slices.Contains(b.ioTypes, t)
	}
	if b.lvol != nil && b.lvol.refusesWrites() {
		supported["write"], supported["unmap"], supported["write_zeroes"] = false, false, false
	}
	info := map[string]any{
		"name": b.name, "aliases": b.aliases, "product_name": b.product,
		"block_size": b.blockSize, "num_blocks": b.numBlocks,
		"preferred_write_alignment": 0, "preferred_write_granularity": 0, "optimal_write_size": 0,
		"preferred_unmap_alignment": 0, "preferred_unmap_granularity": 0,
		"uuid": b.uuid, "assigned_rate_limits": b.limits, "claimed": b.claim != "", "zoned": false,
		"supported_io_types": supported, "driver_specific": b.specific(),
	}
	if b.claim != "" {
		info["claim_type"] = b.claim
	}
	return info
}

func (a *app) bdevGetBdevs(r *request) {
	var name string
	var timeout uint64
	if r.params != nil && !r.decode(optional("name", asString(&name)), optional("timeout", asUint(&timeout))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	if name == "" {
		all := []any{}
		for _, b := range a.bdevs {
			all = append(all, b.info())
		}
		r.answer(all)
		return
	}
	b := a.bdevNames[name]
	if b == nil {
		r.errno(syscall.ENODEV)
		return
	}
	r.answer([]any{b.info()})
}

func (a *app) bdevWaitForExamine(r *request) {
	if none(r, "bdev_wait_for_examine requires no parameters") {
		a.examined(func() { r.answer(true) })
	}
}

// examined has f run when everything was examined that is to be.
func (a *app) examined(f func()) {
	if a.examining > 0 {
		a.onExamined = append(a.onExamined, f)
		return
	}
	a.post(f)
}

// bdevExamine answers as lib/bdev/bdev_rpc.c does. A bdev that is not there yet is examined when it is.
func (a *app) bdevExamine(r *request) {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInvalidParams, msgDecode)
		return
	}
	switch {
	case a.bdevOpts.AutoExamine:
		r.errno(syscall.EINVAL)
		return
	case a.toExamine[name]:
		r.errno(syscall.EEXIST)
		return
	}
	a.toExamine[name] = true
	if b := a.bdevNames[name]; b != nil {
		a.examine(b)
	}
	r.answer(true)
}

// appeared is a bdev that is examined if it is to be.
func (a *app) appeared(b *bdev) {
	if a.bdevOpts.AutoExamine || slices.ContainsFunc(append([]string{b.name}, b.aliases...), func(name string) bool { return a.toExamine[name] }) {
		a.examine(b)
	}
}

// examine looks for an lvstore on a new base device and brings its volumes up. What does not answer is waited for.
func (a *app) examine(b *bdev) {
	if b.disk == nil || b.store != nil {
		return
	}
	if b.mute {
		b.examining = true
		a.examining++
		return
	}
	if has, err := b.disk.hasStore(); err == nil && has {
		a.loadStore(b)
	}
}

const (
	minQosIOs = 1000
)

func (a *app) bdevSetQosLimit(r *request) {
	var name string
	var given [4]bool
	var l qosLimits
	if !r.decode(required("name", asString(&name)),
		optional("rw_ios_per_sec", asGiven(&given[0], asUint(&l.RWIOs))),
		optional("rw_mbytes_per_sec", asGiven(&given[1], asUint(&l.RWMBytes))),
		optional("r_mbytes_per_sec", asGiven(&given[2], asUint(&l.ReadMB))),
		optional("w_mbytes_per_sec", asGiven(&given[3], asUint(&l.WriteMB)))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b := a.bdevNames[name]
	if b == nil {
		r.errno(syscall.ENODEV)
		return
	}
	if given == [4]bool{} {
		r.fail(-int(syscall.EINVAL), "No rate limits specified")
		return
	}
	// Limits of a bdev that nobody has open are stuck: SPDK answers this to all changes until somebody has.
	if b.limits != (qosLimits{}) && b.namespace == nil && b.store == nil {
		r.failf(codeInvalidParams, "Failed to configure rate limit: %s", strerror(syscall.EAGAIN))
		return
	}
	a.post(func() {
		for i, set := range []struct{ dst, src *uint64 }{
			{&b.limits.RWIOs, &l.RWIOs}, {&b.limits.RWMBytes, &l.RWMBytes},
			{&b.limits.ReadMB, &l.ReadMB}, {&b.limits.WriteMB, &l.WriteMB},
		} {
			if !given[i] {
				continue
			}
			*set.dst = *set.src
			if i == 0 { // I/Os are limited in steps; bytes in MiB, which are steps already
				*set.dst = (*set.src + minQosIOs - 1) / minQosIOs * minQosIOs
			}
		}
		r.answer(true)
	})
}
