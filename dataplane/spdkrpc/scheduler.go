// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// Schedulers of SPDK.
const (
	SchedulerStatic  = "static"
	SchedulerDynamic = "dynamic"
)

// FrameworkSetScheduler chooses the scheduler and its limits. Allowed in every state.
type FrameworkSetScheduler struct {
	answers[Done]
	// Name is SchedulerStatic or SchedulerDynamic.
	Name string `json:"name"`
	// PeriodMicros between two decisions; 1 s when it was never set.
	PeriodMicros uint64 `json:"period,omitzero"`
	// LoadLimit, CoreLimit and CoreBusy in percent; SchedulerDynamic only. SPDK's defaults are 20, 80 and 95.
	LoadLimit uint8 `json:"load_limit,omitzero"`
	CoreLimit uint8 `json:"core_limit,omitzero"`
	CoreBusy  uint8 `json:"core_busy,omitzero"`
}

func (FrameworkSetScheduler) method() string { return "framework_set_scheduler" }

// SchedulerSetOptions chooses cores for the dynamic scheduler. Only before init.
type SchedulerSetOptions struct {
	answers[Done]
	// SchedulingCore that idle threads are gathered on. The main core by default, which is the first.
	SchedulingCore *uint32 `json:"scheduling_core,omitzero"`
	// IsolatedCoreMask in hexadecimal, of cores whose threads stay and that get no others; 0x0 for none. SchedulingCore
	// is none of them.
	IsolatedCoreMask string `json:"isolated_core_mask,omitzero"`
}

func (SchedulerSetOptions) method() string { return "scheduler_set_options" }

// FrameworkGetScheduler asks for the scheduler and its limits. Allowed in every state.
type FrameworkGetScheduler struct {
	answers[Scheduler]
}

func (FrameworkGetScheduler) method() string { return "framework_get_scheduler" }

// Scheduler as it is. The limits are 0 unless Name is SchedulerDynamic.
type Scheduler struct {
	Name           string `json:"scheduler_name"`
	PeriodMicros   uint64 `json:"scheduler_period"`
	SchedulingCore uint32 `json:"scheduling_core"`
	// IsolatedCoreMask in hexadecimal without 0x.
	IsolatedCoreMask string `json:"isolated_core_mask"`
	LoadLimit        uint8  `json:"load_limit"`
	CoreLimit        uint8  `json:"core_limit"`
	CoreBusy         uint8  `json:"core_busy"`
}

// FrameworkGetReactors asks what each core does. Only after init.
type FrameworkGetReactors struct {
	answers[Reactors]
}

func (FrameworkGetReactors) method() string { return "framework_get_reactors" }

// Reactors of a target.
type Reactors struct {
	// TickRate is ticks per second.
	TickRate uint64 `json:"tick_rate"`
	// PID of the target, in its own PID namespace.
	PID      int       `json:"pid"`
	Reactors []Reactor `json:"reactors"`
}

// Reactor is one core of the target.
type Reactor struct {
	Core uint32 `json:"lcore"`
	// BusyTicks and IdleTicks since the start; they stand still in interrupt mode.
	BusyTicks   uint64          `json:"busy"`
	IdleTicks   uint64          `json:"idle"`
	InInterrupt bool            `json:"in_interrupt"`
	Threads     []ReactorThread `json:"lw_threads"`
}

// ReactorThread is an SPDK thread and the core it is on now.
type ReactorThread struct {
	Name string `json:"name"`
	ID   uint64 `json:"id"`
	// Cpumask in hexadecimal without 0x.
	Cpumask      string `json:"cpumask"`
	ElapsedTicks uint64 `json:"elapsed"`
}

// ThreadSetCpumask moves an SPDK thread to the cores of a mask. Only after init.
type ThreadSetCpumask struct {
	answers[Done]
	// ID of the thread, from FrameworkGetReactors or ThreadGetStats.
	ID uint64 `json:"id"`
	// Cpumask in hexadecimal, or a list such as "[1,2]"; it needs at least one core of the target.
	Cpumask string `json:"cpumask"`
}

func (ThreadSetCpumask) method() string { return "thread_set_cpumask" }
