// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"os"
	"slices"
	"time"
)

type scheduler struct {
	name      string
	period    uint64 // µs
	isolated  []int
	core      int
	loadLimit uint8
	coreLimit uint8
	coreBusy  uint8
	locks     bool
	left      bool // static was in use and is not any more
	chosen    time.Time
}

func defaultScheduler(core int) scheduler {
	return scheduler{core: core, loadLimit: 20, coreLimit: 80, coreBusy: 95, locks: true}
}

func (a *app) frameworkSetScheduler(r *request) {
	var name string
	var period uint64
	common := []field{required("name", asString(&name)), optional("period", asUint(&period))}
	s := a.scheduler
	if !r.decodeRelaxed(common...) {
		r.invalid()
		return
	}
	if period != 0 {
		a.scheduler.period = period
	} else if a.scheduler.period == 0 {
		a.scheduler.period = uint64(time.Second.Microseconds())
	}
	s.period = a.scheduler.period
	if name != "static" && name != "dynamic" {
		r.fail(codeInternal, "Unknown error -22") // SPDK gives strerror a negative number
		return
	}
	s.use(name)
	s.chosen = time.Now()
	a.scheduler = s
	if name == "dynamic" {
		if !r.decodeRelaxed(optional("load_limit", asUint(&s.loadLimit)), optional("core_limit", asUint(&s.coreLimit)),
			optional("core_busy", asUint(&s.coreBusy))) {
			r.fail(codeInternal, "Unknown error -1")
			return
		}
	}
	a.scheduler = s
	r.answer(true)
}

// use makes a scheduler the one in use. The static one has no period: it does nothing, except once, to bring threads
// back when another one was in use.
func (s *scheduler) use(name string) {
	s.left = s.left || s.name == "static" && name != "static"
	s.name = name
	if name == "static" {
		s.period = 0
		if s.left {
			s.period = 1
		}
	}
}

func (a *app) schedulerSetOptions(r *request) {
	var isolated string
	core := uint64(a.scheduler.core)
	if !r.decode(optional("isolated_core_mask", asString(&isolated)), optional("scheduling_core", asUint(&core))) {
		r.fail(codeInvalidParams, "Invalid parameters")
		return
	}
	if isolated != "" {
		cores, err := parseCores(isolated)
		switch {
		case err != nil: // SPDK takes no notice
		case slices.Contains(cores, int(core)):
			r.fail(codeInvalidParams, "Scheduling core cannot be included in isolated core mask.\n")
			return
		case !subset(cores, a.cores):
			r.fail(codeInvalidParams, "Invalid isolated core mask\n")
			return
		default:
			a.scheduler.isolated = cores
		}
	}
	if !slices.Contains(a.cores, int(core)) {
		r.fail(codeInvalidParams, "Invalid scheduling core.\n")
		return
	}
	a.scheduler.core = int(core)
	r.answer(true)
}

// hasDecided says whether the dynamic scheduler has moved threads.
func (s *scheduler) hasDecided() bool {
	return s.name == "dynamic" && time.Since(s.chosen) > time.Duration(s.period)*time.Microsecond
}

func (a *app) frameworkGetScheduler(r *request) {
	if !none(r, "'rpc_get_scheduler' requires no arguments") {
		return
	}
	s := a.scheduler
	answer := map[string]any{
		"scheduler_period": s.period, "isolated_core_mask": formatCores(s.isolated), "scheduling_core": s.core,
	}
	if s.name != "" {
		answer["scheduler_name"] = s.name
	}
	if s.name == "dynamic" {
		answer["load_limit"], answer["core_limit"], answer["core_busy"] = s.loadLimit, s.coreLimit, s.coreBusy
	}
	r.answer(answer)
}

// tickRate is the fake's time stamp counter: 1 GHz, so a tick is a nanosecond.
const tickRate = uint64(time.Second)

func (a *app) ticks() uint64 { return uint64(time.Since(a.started)) }

// A thread is one of SPDK's: the application's own on the first core, and one for each poll group.
type thread struct {
	id    uint64
	name  string
	core  int
	cores []int // where it may run
}

func (a *app) threads() []thread {
	threads := []thread{{1, "app_thread", a.cores[0], []int{a.cores[0]}}}
	allowed := a.cores
	if a.nvmf.pollGroupsMask != nil {
		allowed = a.nvmf.pollGroupsMask
	}
	for i, core := range a.nvmf.pollGroups {
		threads = append(threads, thread{uint64(i) + 2, fmt.Sprintf("nvmf_tgt_poll_group_%03d", i), core, allowed})
	}
	for i := range threads {
		if moved, ok := a.nvmf.cpumasks[threads[i].id]; ok {
			threads[i].cores = moved
			threads[i].core = a.nvmf.placed[threads[i].id]
		}
		// All are idle, which the dynamic scheduler gathers, wherever they may run.
		if a.scheduler.hasDecided() && !slices.Contains(a.scheduler.isolated, threads[i].core) {
			threads[i].core = a.scheduler.core
		}
	}
	return threads
}

func (a *app) frameworkGetReactors(r *request) {
	if !none(r, "`framework_get_reactors` requires no arguments") {
		return
	}
	type lwThread struct {
		Name    string `json:"name"`
		ID      uint64 `json:"id"`
		Cpumask string `json:"cpumask"`
		Elapsed uint64 `json:"elapsed"`
	}
	reactors := []map[string]any{}
	for _, core := range a.cores {
		on := []lwThread{}
		for _, t := range a.threads() {
			if t.core == core {
				on = append(on, lwThread{t.name, t.id, formatCores(t.cores), a.ticks()})
			}
		}
		reactors = append(reactors, map[string]any{
			"lcore": core, "numa_id": 0, "tid": os.Getpid(), "busy": a.ticks() / 100, "idle": a.ticks() - a.ticks()/100,
			"in_interrupt": a.opts.InterruptMode, "irq": 0, "sys": 0, "usr": 0, "lw_threads": on,
		})
	}
	r.answer(map[string]any{"tick_rate": tickRate, "pid": os.Getpid(), "reactors": reactors})
}

func (a *app) threadGetStats(r *request) {
	if !none(r, "'thread_get_stats' requires no arguments") {
		return
	}
	type stats struct {
		Name    string `json:"name"`
		ID      uint64 `json:"id"`
		Cpumask string `json:"cpumask"`
		Busy    uint64 `json:"busy"`
		Idle    uint64 `json:"idle"`
		Active  int    `json:"active_pollers_count"`
		Timed   int    `json:"timed_pollers_count"`
		Paused  int    `json:"paused_pollers_count"`
	}
	var all []stats
	for _, t := range a.threads() {
		s := stats{Name: t.name, ID: t.id, Cpumask: formatCores(t.cores), Busy: a.ticks() / 100, Idle: a.ticks()}
		if t.id == 1 {
			s.Timed = 1 + len(a.transports) // the RPC server, and an acceptor for each transport
		} else {
			s.Active = len(a.transports)
		}
		all = append(all, s)
	}
	r.answer(map[string]any{"tick_rate": tickRate, "threads": all})
}

func (a *app) threadSetCpumask(r *request) {
	var id uint64
	var mask string
	if !r.decode(required("id", asUint(&id)), required("cpumask", asString(&mask))) {
		r.fail(codeInvalidParams, msgDecode)
		return
	}
	if id == 0 || id > uint64(len(a.threads())) {
		r.failf(codeInvalidParams, "Thread %d does not exist", id)
		return
	}
	cores, err := parseCores(mask)
	if err != nil {
		r.failf(codeInternal, "Invalid cpumask %s", mask)
		return
	}
	cores = slices.DeleteFunc(cores, func(c int) bool { return !slices.Contains(a.cores, c) })
	if len(cores) == 0 {
		r.failf(codeInternal, "No CPU is selected from reactor mask %s", formatCores(a.cores))
		return
	}
	a.post(func() {
		a.nvmf.cpumasks[id], a.nvmf.placed[id] = cores, a.nextCore(cores)
		r.answer(true)
	})
}

// nextCore of those on which a thread may run: SPDK takes all cores in turn, also when the thread is on one of them
// already.
func (a *app) nextCore(allowed []int) int {
	for {
		core := a.cores[a.nvmf.turn%len(a.cores)]
		a.nvmf.turn++
		if slices.Contains(allowed, core) {
			return core
		}
	}
}
