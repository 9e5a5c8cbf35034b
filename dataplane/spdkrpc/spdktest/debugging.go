// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"slices"
	"strings"
)

// debugging is the state of logging and tracing, which a real target lists among its start-up methods.
type debugging struct {
	level, printLevel string
	flags             map[string]bool
	groups            uint64
	masks             map[string]uint64
}

var logLevels = []string{"ERROR", "WARNING", "NOTICE", "INFO", "DEBUG"}

// logFlags are the components of a real target that the fake has a counterpart of.
var logFlags = []string{
	"accel", "aio", "app_rpc", "bdev", "bdev_nvme", "blob", "json_util", "keyring", "log_rpc", "lvol", "lvol_rpc",
	"notify_rpc", "nvmf", "nvmf_tcp", "reactor", "rpc", "sock", "sock_posix", "thread", "trace", "vbdev_lvol",
}

// traceGroups in the order of their bits.
var traceGroups = []string{"sock", "nvmf_tcp", "bdev", "blob", "thread", "bdev_nvme", "scheduler"}

func defaultDebugging() debugging {
	return debugging{level: "NOTICE", printLevel: "INFO", flags: map[string]bool{}, masks: map[string]uint64{}}
}

func (a *app) logGetFlags(r *request) {
	if !none(r, "log_get_flags requires no parameters") {
		return
	}
	flags := map[string]bool{}
	for _, f := range logFlags {
		flags[f] = a.debug.flags[f]
	}
	r.answer(flags)
}

func (a *app) logSetFlag(r *request)   { a.logFlag(r, true) }
func (a *app) logClearFlag(r *request) { a.logFlag(r, false) }

func (a *app) logFlag(r *request, on bool) {
	var flag string
	if !r.decode(required("flag", asString(&flag))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	if flag != "all" && !slices.Contains(logFlags, flag) {
		r.fail(codeInvalidParams, "invalid log flag")
		return
	}
	for _, f := range logFlags {
		if flag == "all" || flag == f {
			a.debug.flags[f] = on
		}
	}
	r.answer(true)
}

func (a *app) logGetLevel(r *request) {
	if none(r, "log_get_level requires no parameters") {
		r.answer(a.debug.level)
	}
}

func (a *app) logGetPrintLevel(r *request) {
	if none(r, "log_get_print_level requires no parameters") {
		r.answer(a.debug.printLevel)
	}
}

func (a *app) logSetLevel(r *request)      { setLevel(r, &a.debug.level) }
func (a *app) logSetPrintLevel(r *request) { setLevel(r, &a.debug.printLevel) }

func setLevel(r *request, dst *string) {
	var level string
	if !r.decode(required("level", asString(&level))) || !slices.Contains(logLevels, strings.ToUpper(level)) {
		r.fail(codeInternal, msgDecode)
		return
	}
	*dst = strings.ToUpper(level)
	r.answer(true)
}

func (a *app) traceGetInfo(r *request) {
	if !none(r, "trace_get_info requires no parameters") {
		return
	}
	info := map[string]any{
		"tpoint_shm_path": fmt.Sprintf("/dev/shm/nvmf_trace.pid%d", pid()), "tpoint_group_mask": hexMask(a.debug.groups),
	}
	for i, g := range traceGroups {
		info[g] = map[string]string{"mask": hexMask(1 << i), "tpoint_mask": hexMask(a.debug.masks[g])}
	}
	r.answer(info)
}

func (a *app) traceGetMask(r *request) {
	if !none(r, "trace_get_tpoint_group_mask requires no parameters") {
		return
	}
	groups := map[string]any{"tpoint_group_mask": hexMask(a.debug.groups)}
	for i, g := range traceGroups {
		groups[g] = map[string]any{
			"enabled": a.debug.masks[g] != 0, "mask": hexMask(1 << i), "tpoint_mask": hexMask(a.debug.masks[g]),
			"tpoints": []any{},
		}
	}
	r.answer(groups)
}

func hexMask(m uint64) string { return fmt.Sprintf("0x%x", m) }

func (a *app) traceEnableGroup(r *request)  { a.traceGroup(r, ^uint64(0)) }
func (a *app) traceDisableGroup(r *request) { a.traceGroup(r, 0) }

func (a *app) traceGroup(r *request, mask uint64) {
	var name string
	if !r.decode(required("name", asString(&name))) || name != "all" && !slices.Contains(traceGroups, name) {
		r.invalid()
		return
	}
	for _, g := range traceGroups {
		if name == "all" || name == g {
			a.setTrace(g, mask)
		}
	}
	r.answer(true)
}

func (a *app) setTrace(group string, mask uint64) {
	a.debug.masks[group] = mask
	bit := uint64(1) << slices.Index(traceGroups, group)
	a.debug.groups &^= bit
	if mask != 0 {
		a.debug.groups |= bit
	}
}

func (a *app) traceSetMask(r *request) {
	a.traceMask(r, func(old, given uint64) uint64 { return old | given })
}

func (a *app) traceClearMask(r *request) {
	a.traceMask(r, func(old, given uint64) uint64 { return old &^ given })
}

func (a *app) traceMask(r *request, change func(old, given uint64) uint64) {
	var name string
	mask := ^uint64(0)
	if !r.decode(required("name", asString(&name)), optional("tpoint_mask", asUint(&mask))) ||
		!slices.Contains(traceGroups, name) {
		r.invalid()
		return
	}
	a.setTrace(name, change(a.debug.masks[name], mask))
	r.answer(true)
}
