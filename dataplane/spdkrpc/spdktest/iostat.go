// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"syscall"
	"time"
)

// ioStats are the counters of one bdev. The fake moves no data: they are what examining a device reads, and what
// Target.Write and its like tell of a volume. What a volume's I/O does to the device below is not counted.
type ioStats struct {
	bytesRead, readOps, bytesWritten, writeOps uint64
	// failed I/Os, which count nowhere else.
	failed uint32
}

// examined is what looking for partition tables and other metadata reads of a new bdev of 4 KiB blocks.
var examined = ioStats{bytesRead: 40960, readOps: 3}

// opTicks are what each I/O takes.
const opTicks = uint64(100 * time.Microsecond)

// mostIostatNames that bdev_get_iostat takes.
const mostIostatNames = 1024

func (s ioStats) info(name string) map[string]any {
	info := map[string]any{
		"name": name, "bytes_read": s.bytesRead, "num_read_ops": s.readOps, "bytes_written": s.bytesWritten, "num_write_ops": s.writeOps,
		"bytes_unmapped": 0, "num_unmap_ops": 0, "bytes_copied": 0, "num_copy_ops": 0,
	}
	for of, ops := range map[string]uint64{"read": s.readOps, "write": s.writeOps, "unmap": 0, "copy": 0} {
		one := min(ops, 1) * opTicks
		info[of+"_latency_ticks"] = ops * opTicks
		info["max_"+of+"_latency_ticks"], info["min_"+of+"_latency_ticks"] = one, one
	}
	errs := map[string]uint32{}
	if s.failed > 0 {
		errs["failed"] = s.failed
	}
	info["io_error"] = errs
	return info
}

func (a *app) bdevGetIostat(r *request) {
	var names []string
	var name string
	var perChannel bool
	reset := "none"
	params := []field{optional("per_channel", asBool(&perChannel)), optional("reset_mode", asOneOf(&reset, "all", "maxmin", "error", "none"))}
	if !a.before(release2601) {
		params = append(params, optional("names", asStrings(&names)))
	}
	if a.before(release2605) {
		params = append(params, optional("name", asString(&name)))
	}
	if r.params != nil && !r.decode(params...) || len(names) > mostIostatNames {
		r.fail(codeInternal, msgDecode)
		return
	}
	// Of one bdev, SPDK tells what each channel did, and sets counters to 0 where it is asked to. The client has no use
	// for either, and the fake refuses what it cannot do.
	if perChannel || reset != "none" {
		r.errno(syscall.EINVAL)
		return
	}
	if name != "" {
		names = []string{name}
	}
	of := a.bdevs
	if names != nil {
		of = nil
	}
	for _, name := range names {
		b := a.bdevNames[name]
		if b == nil {
			r.errno(syscall.ENODEV)
			return
		}
		of = append(of, b)
	}
	a.post(func() {
		all := []any{}
		for _, b := range of {
			all = append(all, b.io.info(b.name))
		}
		r.answer(map[string]any{"tick_rate": tickRate, "ticks": uint64(time.Now().UnixNano()), "bdevs": all})
	})
}
