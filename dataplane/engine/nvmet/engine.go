// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// DefaultStateDir is where pools are mounted.
const DefaultStateDir = "/var/lib/weft"

// Options of an Engine.
type Options struct {
	// Root of the host's filesystem. Default: "/".
	Root string
	// StateDir under Root; pools are mounted in its folder pools. On a node it must be shared
	// with the host (mount propagation), or mounts end with the process. Default: DefaultStateDir.
	StateDir string
	// Exec runs mount, mkfs.xfs, xfs_growfs, blkid, losetup, modprobe and rmmod. Default: k8s.io/utils/exec.New().
	Exec exec.Interface
}

// Engine is the kernel's target of this node. Make it with New.
type Engine struct {
	mu sync.Mutex
	// inherited says that what an earlier process exported has been made synchronous.
	inherited bool
	// copies that were begun, by the path of what is made, until a call has their outcome; and when a change of a file
	// was refused because of one, by its path.
	copies  map[string]*copying
	heldOff map[string]time.Time
	// share and copyPatience are the functions and constants of these names, but in tests.
	share        func(f *os.File, source string) error
	copyPatience time.Duration
	host
	guard guard
}

var _ engine.Engine = (*Engine)(nil)

// New engine. It touches nothing until it is called.
func New(o Options) *Engine {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.Exec == nil {
		o.Exec = exec.New()
	}
	return &Engine{copies: map[string]*copying{}, heldOff: map[string]time.Time{}, share: share, copyPatience: copyPatience, host: newHost(o)}
}

// begin a call: calls run alone, and find the kernel's target loaded.
func (e *Engine) begin(ctx context.Context) (end func(), err error) {
	e.mu.Lock()
	e.forgetCopies()
	e.guard.begin(ctx)
	return e.mu.Unlock, e.load(ctx)
}

// each does a call's items one after the other. An error of the call as a whole is every item's.
func each[T any](ctx context.Context, items []T, whole error, do func(T) error) []error {
	errs := make([]error, len(items))
	for i, item := range items {
		switch {
		case whole != nil:
			errs[i] = whole
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
		default:
			errs[i] = do(item)
		}
	}
	return errs
}

// Info implements engine.Engine.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return engine.Info{}, err
	}
	release, err := e.readAttr(e.path("proc/sys/kernel/osrelease"))
	if err != nil {
		return engine.Info{}, err
	}
	info := engine.Info{Type: v1alpha1.EngineNvmet, Version: release}
	if info.Authentication, err = e.authenticates(); err != nil && !isMissing(err) { // before the module is loaded
		return engine.Info{}, fmt.Errorf("see whether the kernel's target can authenticate hosts: %w", err)
	}
	for _, transport := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		if e.canServe(ctx, transport) {
			info.Transports = append(info.Transports, transport)
		}
	}
	return info, nil
}

// Start implements engine.Engine. Most of what the kernel's target is told, each portal and export is told. Parameters
// of its modules hold for all of them: they are written, or the module of RDMA is loaded anew while no port uses it.
func (e *Engine) Start(ctx context.Context, plan v1alpha1.Plan) error {
	end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return err
	}
	if plan.Engine != v1alpha1.EngineNvmet {
		return fmt.Errorf("%w: the plan is for engine %s, but this is the kernel's target", engine.ErrUnsupported, plan.Engine)
	}
	if !e.inherited {
		if err := e.makeServedSynchronous(ctx); err != nil {
			return err
		}
		e.inherited = true
	}
	if plan.Nvmet == nil {
		return nil
	}
	differences, err := e.setModules(ctx, *plan.Nvmet)
	if err != nil {
		return err
	}
	if len(differences) > 0 {
		return &engine.RestartNeededError{Differences: differences}
	}
	return nil
}

// Gather implements engine.Engine.
func (e *Engine) Gather(ctx context.Context) (engine.State, error) {
	end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return engine.State{}, err
	}
	stored, err := e.scan()
	if err != nil {
		return engine.State{}, err
	}
	ports, err := e.ports()
	if err != nil {
		return engine.State{}, err
	}
	subsystems, err := e.subsystems()
	if err != nil {
		return engine.State{}, err
	}
	state := stored.state()
	state.LimitFiles(func(path string) string { return e.path(path) })
	var refusing []*subsystem
	for _, s := range subsystems {
		if s.onlyRefuses() {
			refusing = append(refusing, s)
		} else {
			state.Exports = append(state.Exports, s.export(ports))
		}
	}
	for _, p := range ports {
		// One that listens and does not know all subsystems that refuse hosts was not opened to the end.
		forgotten := len(p.listens) > 0 && slices.ContainsFunc(refusing, func(s *subsystem) bool { return !slices.Contains(s.ports, p.id) })
		if p.finished() && !forgotten {
			state.Portals = append(state.Portals, p.portal())
		}
	}
	slices.SortFunc(state.Portals, func(a, b engine.Portal) int { return engine.ComparePortals(a.Portal, b.Portal) })
	return state, nil
}
