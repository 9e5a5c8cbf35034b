// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"strconv"
	"strings"
)

// gitCommit of v26.05, as a real target built from that tag tells it.
const gitCommit = "d519b163cb"

func (a *app) getVersion(r *request) {
	if !none(r, "spdk_get_version method requires no parameters") {
		return
	}
	major, minor, _ := strings.Cut(a.opts.Version, ".")
	minor, patch, _ := strings.Cut(minor, ".")
	r.answer(map[string]any{
		"version": fmt.Sprintf("SPDK v%s git sha1 %s", a.opts.Version, gitCommit),
		"fields": map[string]any{
			"major": number(major), "minor": number(minor), "patch": number(patch), "suffix": "", "commit": gitCommit,
		},
	})
}

// Releases that the fake can tell from each other, year and month.
const (
	release2601 = 2601
	release2605 = 2605
)

// before says whether the fake plays a release before that one.
func (a *app) before(release int) bool {
	year, rest, _ := strings.Cut(a.opts.Version, ".")
	month, _, _ := strings.Cut(rest, ".")
	return 100*number(year)+number(month) < release
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // "" is 0
	return n
}

// initialize brings the target from start-up to running.
func (a *app) initialize() {
	a.nvmf.start(a.cores)
	if a.scheduler.name == "" {
		a.scheduler.name = "static"
	}
	a.running = true
	for _, w := range a.initWaiters {
		w.answer(true)
	}
	a.initWaiters = nil
}

func (a *app) frameworkStartInit(r *request) {
	if !none(r, "framework_start_init requires no parameters") {
		return
	}
	a.post(func() {
		if !a.running {
			a.initialize()
		}
		r.answer(true)
	})
}

// A configCall is one line of a configuration: the call that would bring it about.
type configCall struct {
	Method string `json:"method"`
	Params any    `json:"params,omitempty"`
}

// frameworkSubsystems of nvmf_tgt, in the order in which it starts them, and what each needs.
var frameworkSubsystems = []struct {
	name      string
	dependsOn []string
	config    func(*app) []configCall
}{
	{"scheduler", nil, (*app).schedulerConfig},
	{"vmd", nil, nil},
	{"sock", nil, (*app).sockConfig},
	{"iobuf", nil, (*app).iobufConfig},
	{"keyring", nil, (*app).keyringConfig},
	{"accel", []string{"iobuf"}, (*app).accelConfig},
	{"bdev", []string{"accel", "keyring", "vmd", "sock", "iobuf"}, (*app).bdevConfig},
	{"nvmf", []string{"bdev", "keyring", "sock", "accel", "iobuf"}, (*app).nvmfConfigCalls},
	{"nbd", []string{"bdev"}, nil},
}

func (a *app) frameworkGetConfig(r *request) {
	var name string
	var batches bool
	if !r.decode(required("name", asString(&name)), optional("with_batches", asBool(&batches))) {
		r.fail(codeInvalidParams, "Invalid arguments")
		return
	}
	for _, s := range frameworkSubsystems {
		if s.name != name {
			continue
		}
		if s.config == nil {
			r.answer([]configCall{})
			return
		}
		r.answer(s.config(a))
		return
	}
	r.failf(codeInvalidParams, "Subsystem '%s' not found", name)
}

func (a *app) schedulerConfig() []configCall {
	params := map[string]any{"name": a.scheduler.name}
	if a.scheduler.period != 0 {
		params["period"] = a.scheduler.period
	}
	return []configCall{{"framework_set_scheduler", params}}
}

func (a *app) iobufConfig() []configCall { return []configCall{{"iobuf_set_options", a.iobuf}} }

func (a *app) sockConfig() []configCall {
	calls := []configCall{{"sock_set_default_impl", map[string]string{"impl_name": a.sockImpl}}}
	for _, impl := range sockImpls {
		calls = append(calls, configCall{"sock_impl_set_options", struct {
			ImplName string `json:"impl_name"`
			sockOptions
		}{impl, *a.socks[impl]}})
	}
	return calls
}

func (a *app) accelConfig() []configCall {
	calls := []configCall{{"accel_set_options", a.accel}}
	for _, opcode := range accelOpcodes {
		if module, ok := a.accel.assigned[opcode]; ok {
			calls = append(calls, configCall{"accel_assign_opc", map[string]string{"opname": opcode, "module": module}})
		}
	}
	return calls
}

func (a *app) keyringConfig() []configCall {
	calls := []configCall{}
	for _, k := range a.keys {
		if !k.removed {
			calls = append(calls, configCall{"keyring_file_add_key", map[string]string{"name": k.name, "path": k.path}})
		}
	}
	return calls
}
