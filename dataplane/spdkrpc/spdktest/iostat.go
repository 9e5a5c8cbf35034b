// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"syscall"
)

// ioStats are the counters of one bdev. The fake moves no data: they are what examining a device reads, and what
// Target.Write tells.
type ioStats struct {
	bytesRead, readOps, bytesWritten, writeOps uint64
}

// examined is what looking for partition tables and other metadata reads of a new bdev of 4 KiB blocks.
var examined = ioStats{bytesRead: 40960, readOps: 3}

func (a *app) iostat(b *bdev) map[string]any {
	stat := map[string]any{
		"name": b.name, "bytes_read": b.io.bytesRead, "num_read_ops": b.io.readOps,
		"bytes_written": b.io.bytesWritten, "num_write_ops": b.io.writeOps, "io_error": map[string]any{},
	}
	for _, zero := range []string{"bytes_unmapped", "num_unmap_ops", "bytes_copied", "num_copy_ops"} {
		stat[zero] = 0
	}
	for _, op := range []string{"read", "write", "unmap", "copy"} {
		for _, kind := range []string{"", "max_", "min_"} {
			stat[kind+op+"_latency_ticks"] = 0
		}
	}
	return stat
}

func (a *app) bdevGetIostat(r *request) {
	var perChannel bool
	var mode string
	var names []string
	if r.params != nil && !r.decode(optional("per_channel", asBool(&perChannel)),
		optional("reset_mode", asOneOf(&mode, resetModes...)), optional("names", asStrings(&names))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	if perChannel && len(names) != 1 {
		r.errno(syscall.EINVAL)
		return
	}
	bdevs := a.bdevs
	if names != nil {
		bdevs = nil
		for _, n := range names {
			b := a.bdevNames[n]
			if b == nil {
				r.errno(syscall.ENODEV)
				return
			}
			bdevs = append(bdevs, b)
		}
	}
	answer := map[string]any{"tick_rate": tickRate, "ticks": a.ticks()}
	if perChannel {
		answer["name"], answer["channels"] = bdevs[0].name, []any{}
		r.answer(answer)
		return
	}
	stats := []any{}
	for _, b := range bdevs {
		stats = append(stats, a.iostat(b))
		if mode == "all" {
			b.io = ioStats{}
		}
	}
	answer["bdevs"] = stats
	a.post(func() { r.answer(answer) })
}

var resetModes = []string{"all", "maxmin", "error", "none"}

func (a *app) bdevResetIostat(r *request) {
	var name string
	mode := "all"
	if r.params != nil && !r.decode(optional("name", asString(&name)), optional("mode", asOneOf(&mode, resetModes...))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	bdevs := a.bdevs
	if name != "" {
		b := a.bdevNames[name]
		if b == nil {
			r.errno(syscall.ENODEV)
			return
		}
		bdevs = []*bdev{b}
	}
	if mode == "all" {
		for _, b := range bdevs {
			b.io = ioStats{}
		}
	}
	a.post(func() { r.answer(true) })
}

type notification struct {
	Type string `json:"type"`
	Ctx  string `json:"ctx"`
	ID   uint64 `json:"id"`
}

// maxNotifications is how many SPDK keeps.
const maxNotifications = 1024

func (a *app) notify(kind, ctx string) {
	id := uint64(0)
	if n := len(a.notifications); n > 0 {
		id = a.notifications[n-1].ID + 1
	}
	a.notifications = append(a.notifications, notification{kind, ctx, id})
	if len(a.notifications) >= 2*maxNotifications { // seldom: it copies
		a.notifications = slices.Clone(a.kept())
	}
}

func (a *app) kept() []notification {
	return a.notifications[max(0, len(a.notifications)-maxNotifications):]
}

func (a *app) notifyGetTypes(r *request) {
	if none(r, "No parameters required") {
		r.answer([]string{"bdev_register", "bdev_unregister", "bdev_resize"})
	}
}

func (a *app) notifyGetNotifications(r *request) {
	var id uint64
	most := ^uint64(0)
	if r.params != nil && !r.decode(optional("id", asUint(&id)), optional("max", asUint(&most))) {
		r.fail(codeInvalidParams, strerror(syscall.EINVAL))
		return
	}
	events := []notification{}
	for _, n := range a.kept() {
		if n.ID >= id && uint64(len(events)) < most {
			events = append(events, n)
		}
	}
	r.answer(events)
}
