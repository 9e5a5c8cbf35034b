// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"slices"
	"time"
)

// An app is all state of a target. Only the loop touches it.
type app struct {
	opts    Options
	cores   []int
	started time.Time
	running bool // false: start-up state

	conns    []*conn
	messages []func() // what runs before the next poll, in order
	writes   []func() // what runs when metadata is on disk: after messages
	timers   []timer  // by time
	dead     bool     // nothing is carried out, answered or written any more
	clean    bool
	// powerless: the target ends because its node loses power.
	powerless bool
	faults    []*Fault
	// unopenable are names of volumes that are left out when their lvstore is loaded.
	unopenable map[string]bool
	calls      map[string]int

	iobuf       iobufOptions
	socks       map[string]*sockOptions
	sockImpl    string
	scheduler   scheduler
	bdevOpts    bdevOptions
	accel       accelOptions
	nvmeOptions moduleOptions
	raidOptions moduleOptions
	nvmf        nvmfConfig

	bdevs       []*bdev
	bdevNames   map[string]*bdev // by name and alias
	toExamine   map[string]bool  // names that bdev_examine was given
	examining   int              // bdevs whose examination does not end
	onExamined  []func()         // what waits for that
	lvstores    []*lvstore
	controllers []*nvmeController
	keys        []*key
	transports  []*transport
	subsystems  map[string]*subsystem
	initWaiters []*request
	retries     map[string][2]uint64 // times that a module waited for a small and a large buffer
	pendingData map[int]uint64       // I/Os over RDMA that waited for a data buffer, by poll group
	qpairs      map[int][2]uint32    // admin and I/O queue pairs there ever were, by poll group
}

type timer struct {
	at  time.Time
	run func()
}

func newApp(o Options) (*app, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	cores, err := parseCores(o.CoreMask)
	if err != nil || len(cores) == 0 {
		return nil, fmt.Errorf("core mask %q: give hex such as 0x3 or a list such as [0,1]: %w", o.CoreMask, err)
	}
	return &app{
		opts: o, cores: cores, started: time.Now(), calls: map[string]int{}, unopenable: map[string]bool{},
		iobuf: defaultIobuf(), socks: defaultSocks(), sockImpl: "posix", scheduler: defaultScheduler(cores[0]),
		bdevOpts: defaultBdevOptions(), accel: defaultAccel(),
		nvmeOptions: defaultNvmeOptions(), raidOptions: defaultRaidOptions(), nvmf: defaultNvmf(),
		bdevNames: map[string]*bdev{}, toExamine: map[string]bool{}, subsystems: map[string]*subsystem{}, retries: map[string][2]uint64{}, pendingData: map[int]uint64{},
		qpairs: map[int][2]uint32{},
	}, nil
}

// post has f run before the next poll, after all that was posted earlier: a message to SPDK's thread.
func (a *app) post(f func()) { a.messages = append(a.messages, f) }

// written has f run when a write of metadata is done, which takes longer than any message.
func (a *app) written(f func()) { a.writes = append(a.writes, f) }

// after has f run when d has passed.
func (a *app) after(d time.Duration, f func()) {
	t := timer{time.Now().Add(d), f}
	i, _ := slices.BinarySearchFunc(a.timers, t, func(x, y timer) int {
		if x.at.After(y.at) {
			return 1
		}
		return -1
	})
	a.timers = slices.Insert(a.timers, i, t)
}

func (a *app) timer() <-chan time.Time {
	if len(a.timers) == 0 {
		return nil
	}
	return time.After(time.Until(a.timers[0].at))
}

// due runs the timers whose time has come.
func (a *app) due() {
	for now := time.Now(); len(a.timers) > 0 && !a.timers[0].at.After(now); {
		run := a.timers[0].run
		a.timers = a.timers[1:]
		run()
	}
}

// drain runs messages until there are none, then makes what was changed on disks lasting: answers are sent later.
func (a *app) drain() {
	for len(a.messages)+len(a.writes) > 0 && !a.dead {
		next := &a.messages
		if len(*next) == 0 {
			next = &a.writes
		}
		run := (*next)[0]
		*next = (*next)[1:]
		run()
	}
	for _, s := range a.lvstores {
		s.sync()
	}
}

func (a *app) die(clean bool) {
	if !a.dead {
		a.dead, a.clean = true, clean
	}
}

// Calls counts the calls that came in since the target started, by method.
func (t *Target) Calls() map[string]int {
	calls := map[string]int{}
	t.do(func() {
		for m, n := range t.app.calls {
			calls[m] = n
		}
	})
	return calls
}
