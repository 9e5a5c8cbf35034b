// SPDX-License-Identifier: Apache-2.0

// Package enginetest states what an engine does, as tests that run against every implementation of engine.Engine, and
// has an implementation in memory that passes them.
//
// Run needs a Harness: the machine that the target runs on, and a host that can connect to it. Where the harness is a
// virtual machine, bytes go through the kernel's own initiator.
//
// In memory is what a storage node gives to its agent: an Engine, and a Machine with its settings. The Engine is
// stateful. Devices, with the volumes and snapshots on them, survive Restart; pools have to be opened again, and
// exports and portals are gone, as after a reboot.
package enginetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Method names a method of engine.Engine.
type Method string

// Methods of engine.Engine.
const (
	Info            Method = "Info"
	Start           Method = "Start"
	Gather          Method = "Gather"
	OpenPools       Method = "OpenPools"
	ForgetPools     Method = "ForgetPools"
	CreateVolumes   Method = "CreateVolumes"
	GrowVolumes     Method = "GrowVolumes"
	SetQoS          Method = "SetQoS"
	DeleteVolumes   Method = "DeleteVolumes"
	CreateSnapshots Method = "CreateSnapshots"
	DeleteSnapshots Method = "DeleteSnapshots"
	Export          Method = "Export"
	Unexport        Method = "Unexport"
	OpenPortals     Method = "OpenPortals"
	ClosePortals    Method = "ClosePortals"
)

// Call that the engine was asked for.
type Call struct {
	Method Method
	// Items are the keys of what was asked for: device IDs, volume and snapshot IDs, NQNs, PortalKeys.
	Items []string
}

// Engine in memory. Its zero value is not usable; see New.
type Engine struct {
	// run makes calls run alone; mu guards the fields, so that hooks and tests may look while a call runs.
	run sync.Mutex
	mu  sync.Mutex

	info      engine.Info
	now       func() time.Time
	devices   map[string]*disk // by path
	pools     map[string]*pool // by device ID
	exports   map[string]engine.Export
	portals   map[v1alpha1.Portal]engine.Portal
	initiator map[*Host]bool
	dismissed map[admission]bool
	// controllers that there have been.
	controllers int
	// changed, with mu, tells hosts that wait for their target.
	changed *sync.Cond

	calls     []Call
	itemFault map[Method]map[string]error
	callFault map[Method]error
	hooks     map[Method]func(context.Context)
}

var _ engine.Engine = (*Engine)(nil)

// New engine of type Nvmet that can serve TCP and RDMA, with these devices in its machine.
func New(devices ...Device) *Engine {
	e := &Engine{
		info: engine.Info{
			Type:    v1alpha1.EngineNvmet,
			Version: "enginetest",
			QoS:     true, Authentication: true,
			Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA},
		},
		now:       time.Now,
		devices:   map[string]*disk{},
		pools:     map[string]*pool{},
		initiator: map[*Host]bool{},
		dismissed: map[admission]bool{},
		itemFault: map[Method]map[string]error{},
		callFault: map[Method]error{},
		hooks:     map[Method]func(context.Context){},
	}
	e.changed = sync.NewCond(&e.mu)
	e.forget()
	for _, d := range devices {
		e.AddDevice(d)
	}
	return e
}

// forget what a reboot of the machine loses.
func (e *Engine) forget() {
	e.exports = map[string]engine.Export{}
	e.portals = map[v1alpha1.Portal]engine.Portal{}
	for _, p := range e.pools {
		p.open = false
		for _, v := range p.device.volumes {
			v.qos = engine.QoS{}
		}
	}
}

// Restart is a reboot of the machine: exports and portals are gone, pools are
// listed with an Err until they are opened again, data stays. Connected hosts
// wait until their portal is open again; see Host. Calls that were recorded and faults that were ordered stay.
func (e *Engine) Restart() {
	e.run.Lock()
	defer e.run.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
}

// SetInfo changes what Info answers.
func (e *Engine) SetInfo(info engine.Info) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.info = info
}

// FailItem makes a method fail for one item, with its key as in Call.Items,
// before anything is done for it, until err is nil again.
func (e *Engine) FailItem(m Method, key string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.itemFault[m] == nil {
		e.itemFault[m] = map[string]error{}
	}
	e.itemFault[m][key] = err
}

// FailCall makes a method fail as a whole, for each item and even with none, before
// anything is done, until err is nil again.
func (e *Engine) FailCall(m Method, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.callFault[m] = err
}

// Before makes a method call hook before it does anything, until hook is nil
// again. The hook may look at the engine and order faults, but not call its methods of engine.Engine.
func (e *Engine) Before(m Method, hook func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hooks[m] = hook
}

// Calls made so far, in order; Gather and Info too.
func (e *Engine) Calls() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// Changes are the Calls other than Info and Gather.
func (e *Engine) Changes() []Call {
	return slices.DeleteFunc(e.Calls(), func(c Call) bool { return c.Method == Info || c.Method == Gather })
}

// ForgetCalls empties Calls.
func (e *Engine) ForgetCalls() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = nil
}

// PortalKey is a portal's key in Call.Items and for FailItem, such as "TCP 10.0.0.1 4420".
func PortalKey(p v1alpha1.Portal) string {
	return fmt.Sprintf("%s %s %d", p.Transport, p.Address, p.Port)
}

// begin a call: record it, run its hook, and answer the fault that was ordered for all of it.
// end must be called in any case.
func (e *Engine) begin(ctx context.Context, m Method, items []string) (end func(), err error) {
	e.run.Lock()
	e.mu.Lock()
	e.calls = append(e.calls, Call{Method: m, Items: items})
	hook := e.hooks[m]
	e.mu.Unlock()
	if hook != nil {
		hook(ctx)
	}
	e.mu.Lock()
	err = ctx.Err()
	if err == nil {
		err = e.callFault[m]
	}
	return func() {
		e.settle()
		e.mu.Unlock()
		e.run.Unlock()
	}, err
}

// each does one call's items, one after the other.
func each[T any](ctx context.Context, e *Engine, m Method, items []T, key func(T) string, do func(T) error) []error {
	keys := make([]string, len(items))
	for i, item := range items {
		keys[i] = key(item)
	}
	end, err := e.begin(ctx, m, keys)
	defer end()
	errs := make([]error, len(items))
	for i, item := range items {
		switch {
		case err != nil:
			errs[i] = err
		case e.itemFault[m][keys[i]] != nil:
			errs[i] = e.itemFault[m][keys[i]]
		default:
			errs[i] = do(item)
		}
	}
	return errs
}

// Info implements engine.Engine.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	end, err := e.begin(ctx, Info, nil)
	defer end()
	if err != nil {
		return engine.Info{}, err
	}
	return e.info, nil
}

// Start implements engine.Engine. Its target takes any plan of its engine.
func (e *Engine) Start(ctx context.Context, plan v1alpha1.Plan) error {
	end, err := e.begin(ctx, Start, nil)
	defer end()
	if err != nil {
		return err
	}
	if plan.Engine != e.info.Type {
		return fmt.Errorf("%w: the plan is for engine %s, and this is %s", engine.ErrUnsupported, plan.Engine, e.info.Type)
	}
	return nil
}

// Gather implements engine.Engine.
func (e *Engine) Gather(ctx context.Context) (engine.State, error) {
	end, err := e.begin(ctx, Gather, nil)
	defer end()
	if err != nil {
		return engine.State{}, err
	}
	var state engine.State
	for _, id := range slices.Sorted(maps.Keys(e.pools)) {
		e.gatherPool(&state, e.pools[id])
	}
	for _, nqn := range slices.Sorted(maps.Keys(e.exports)) {
		state.Exports = append(state.Exports, e.gatherExport(nqn))
	}
	for _, portal := range e.sortedPortals() {
		state.Portals = append(state.Portals, e.portals[portal])
	}
	return state, nil
}

func (e *Engine) gatherPool(state *engine.State, p *pool) {
	if err := p.readable(); err != nil {
		state.Pools = append(state.Pools, engine.Pool{Device: p.id, Path: p.device.Path, Err: err})
		return
	}
	state.Pools = append(state.Pools, engine.Pool{
		Device: p.id, Path: p.device.Path, TotalBytes: p.device.SizeBytes, FreeBytes: p.device.free(),
	})
	for _, id := range slices.Sorted(maps.Keys(p.device.volumes)) {
		v := p.device.volumes[id]
		state.Volumes = append(state.Volumes, engine.Volume{ID: id, Pool: p.id, SizeBytes: v.sizeBytes, AllocatedBytes: v.allocated(), QoS: v.qos})
	}
	for _, id := range slices.Sorted(maps.Keys(p.device.snapshots)) {
		s := p.device.snapshots[id]
		state.Snapshots = append(state.Snapshots, engine.Snapshot{ID: id, Pool: p.id, SizeBytes: s.sizeBytes, AllocatedBytes: s.allocated(), CreatedAt: s.createdAt})
	}
}

func (e *Engine) gatherExport(nqn string) engine.Export {
	x := e.exports[nqn]
	x.Namespaces = slices.Clone(x.Namespaces)
	x.Hosts = slices.Clone(x.Hosts)
	x.Authentication = Gathered(x.Authentication)
	if len(x.Hosts) > 0 {
		x.Portals = e.sortedPortals()
	}
	return x
}

// Gathered is what Gather answers of the authentication of an export's hosts.
func Gathered(given map[string]engine.Authentication) map[string]engine.Authentication {
	if len(given) == 0 {
		return nil
	}
	told := map[string]engine.Authentication{}
	for host, a := range given {
		told[host] = engine.Authentication{Fingerprint: a.Keys.Fingerprint()}
	}
	return told
}

func (e *Engine) sortedPortals() []v1alpha1.Portal {
	return slices.SortedFunc(maps.Keys(e.portals), engine.ComparePortals)
}
