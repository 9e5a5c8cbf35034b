// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	// DefaultStateDir holds the links that say which pools there are.
	DefaultStateDir = "/var/lib/weft"
	// connectPatience with a target that does not answer, so that a call says so soon.
	connectPatience = time.Second
)

// Config of an Engine.
type Config struct {
	// Socket of the target's RPC server (nvmf_tgt -r), under Root. Beside it lies what weft-launch saw on drives that
	// SPDK drives itself.
	Socket string
	// Root of the host's filesystem. Default: "/". The target sees files and devices by the same paths.
	Root string
	// StateDir under Root. Default: DefaultStateDir.
	StateDir string
	// Exec runs blkid. Default: k8s.io/utils/exec.New().
	Exec exec.Interface
	// Now is the clock that snapshots are dated by, and the silence of drives is measured with. Default: time.Now.
	Now func() time.Time
}

// Engine is an SPDK target of this node. Make it with New.
type Engine struct {
	mu     sync.Mutex
	client *spdkrpc.Client
	// observer calls what no other call may have to wait for; observed is what the last Gather found for it.
	observer   *spdkrpc.Client
	observed   atomic.Pointer[observed]
	histograms histograms
	config     Config
	// life is what was read of the target. Guarded by mu.
	life life
	// clearings of pools, by their devices: each is a *clearing.
	clearings sync.Map
	// busy are the aliases of lvols that a Clear has SPDK change, and leaving counts, by their pools' devices, those
	// that it has SPDK delete. A pool of which it says that it is clean counts one, too. Guarded by mu.
	busy    map[string]bool
	leaving map[string]int
	// blanks are devices that are being deallocated, by their paths. Guarded by mu.
	blanks map[string]*blanking
	// uncached are the pools of a target that must not find pages of them in the kernel's cache.
	uncached *uncached
}

var (
	_ engine.Engine  = (*Engine)(nil)
	_ engine.Glancer = (*Engine)(nil)
	_ engine.Watcher = (*Engine)(nil)
)

// New engine. It touches nothing until it is called. It fails when the config names no socket.
func New(c Config) (*Engine, error) {
	if c.Root == "" {
		c.Root = "/"
	}
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir
	}
	if c.Exec == nil {
		c.Exec = exec.New()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	client, err := spdkrpc.New(filepath.Join(c.Root, c.Socket), spdkrpc.Options{})
	if err != nil {
		return nil, err
	}
	observer, err := spdkrpc.New(filepath.Join(c.Root, c.Socket), spdkrpc.Options{})
	if err != nil {
		return nil, err
	}
	return &Engine{client: client, observer: observer, config: c, busy: map[string]bool{}, leaving: map[string]int{}, blanks: map[string]*blanking{}, uncached: newUncached(dropPages)}, nil
}

// Close the connection to the target, which goes on.
func (e *Engine) Close() {
	e.uncached.stop()
	e.client.Close()
	e.observer.Close()
}

func (e *Engine) path(elem ...string) string {
	return filepath.Join(append([]string{e.config.Root}, elem...)...)
}

// life holds what cannot change until the target behind a connection ends, and the connection with it. A new
// connection begins with nothing: what was read on one is never taken for what is behind another.
type life struct {
	conn *spdkrpc.Conn
	// began is when this process first called it.
	began   time.Time
	version *spdkrpc.Version
	fixed   *fixed
	// uncleared pools, by their devices, are those where SPDK could not delete something. It may list it no more, and
	// it still takes its space.
	uncleared map[string]bool
	// condemned are volumes and snapshots that only this process knows to be deleted.
	condemned condemned
	// trust in pools' free clusters, by their devices.
	trust map[string]*trust
	// fresh pools, by their devices, are those that this process had SPDK open, and from which nothing was deleted
	// since: SPDK lists all that is in them.
	fresh map[string]bool
	// examined: SPDK has said that all is open that it was to open.
	examined bool
	// asked are drives that SPDK drives itself, and that owe an answer, by their IDs.
	asked map[string]*asking
	// checks of drives that the target has attached and not examined, which owe an answer, by their IDs.
	checks map[string]*asking
	// waking are subsystems whose hosts are being woken, by their NQNs. awake says that nobody else's wait: see quiet.
	waking map[string]*asking
	awake  bool
	// changing are volumes that SPDK changes, by their aliases. They are not exported meanwhile. recalled says that
	// what processes before this one had it change is among them.
	changing map[string]*asking
	recalled bool
	// merging has the bdevs of the volumes into which SPDK merges snapshots for this process. Of other snapshots, it
	// said that it could not merge those in failed, those in kept stay on record, and those in relisted are listed
	// still. All are by the aliases of the snapshots.
	merging                map[string]string
	failed, kept, relisted map[string]bool
	// noPages is why a deleted snapshot of an lvstore is not merged: see roomToMerge.
	noPages map[string]error
	// left are hosts that were taken away, by their subsystems' NQNs, of which it is unknown whether they are gone.
	left map[string][]spdkrpc.AllowedHost
	// known is what the last look found; nil when that says nothing of the present.
	known *known
	// listed are as many bdevs and subsystems as the last look found.
	listed int
}

// session is one call's connection: all that it asks goes to one life of the target.
type session struct {
	*Engine
	ctx  context.Context
	conn *spdkrpc.Conn
}

// begin a call: calls run alone. end must be called, also after an error.
func (e *Engine) begin(ctx context.Context) (s *session, end func(), err error) {
	e.mu.Lock()
	dial, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	conn, err := e.client.Connect(dial)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		err = fmt.Errorf("%w: %s: %w", engine.ErrUnavailable, e.config.Socket, err)
	}
	// A call that has no connection says nothing of the one that there is.
	if err == nil && e.life.conn != conn {
		e.life = life{conn: conn, began: e.config.Now(), uncleared: map[string]bool{}, condemned: condemned{}, trust: map[string]*trust{}, fresh: map[string]bool{}, asked: map[string]*asking{}, checks: map[string]*asking{}, waking: map[string]*asking{}, changing: map[string]*asking{}, merging: map[string]string{}, failed: map[string]bool{}, kept: map[string]bool{}, relisted: map[string]bool{}, noPages: map[string]error{}}
	}
	s = &session{Engine: e, ctx: ctx, conn: conn}
	if err == nil {
		if failed := s.recall(); failed != nil { //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
			logr.FromContextOrDiscard(ctx).Error(failed, "Unknown what SPDK still changes; trying again")
		}
	}
	return s, e.mu.Unlock, err
}

// under another context, the same session.
func (s *session) under(ctx context.Context) *session {
	return &session{Engine: s.Engine, ctx: ctx, conn: s.conn}
}

// Watch implements engine.Watcher. It ends only once hosts have been woken, or their time is over.
func (e *Engine) Watch(ctx context.Context, changed func()) {
	defer e.outlast(context.WithoutCancel(ctx))
	for {
		conn, err := e.client.Connect(ctx)
		if err != nil {
			return // ctx ended, or the engine was closed
		}
		changed()
		e.wakeLeft(ctx)
		select {
		case <-conn.Lost():
			changed()
		case <-ctx.Done():
			return
		}
	}
}

// wakeLeft wakes hosts that a process before this one has left waiting, as soon as there is a target: what decides
// anything else may wait for the API, or for a plan.
func (e *Engine) wakeLeft(ctx context.Context) {
	s, end, err := e.begin(ctx)
	defer end()
	if err == nil {
		err = s.wakeAll() //nolint:contextcheck // they are woken, also when this ends
	}
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "Hosts may still wait; trying again")
	}
}

// Info implements engine.Engine. Transports are those that the target was given; TCP it always can.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return engine.Info{}, err
	}
	listed := spdkrpc.Start(ctx, s.conn, spdkrpc.NvmfGetTransports{})
	reactors := spdkrpc.Start(ctx, s.conn, spdkrpc.FrameworkGetReactors{})
	v, err := s.version()
	if err != nil {
		return engine.Info{}, err
	}
	info := engine.Info{Type: v1alpha1.EngineSPDK, Version: versionOf(v), QoS: true, Authentication: true, Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}}
	made, err := listed.Wait()
	if errors.Is(err, spdkrpc.ErrWrongState) {
		return info, nil
	}
	if err != nil {
		return engine.Info{}, mapError(err)
	}
	for _, t := range made {
		if t.Type == spdkrpc.TransportRDMA {
			info.Transports = append(info.Transports, v1alpha1.TransportRDMA)
		}
	}
	running, err := reactors.Wait()
	if err != nil {
		return engine.Info{}, mapError(err)
	}
	info.InterruptMode = interruptMode(running)
	return info, nil
}

// versionOf SPDK without its commit, such as 26.05.
func versionOf(v spdkrpc.Version) string {
	text := strings.TrimPrefix(v.Text, "SPDK v")
	text, _, _ = strings.Cut(text, " ")
	return text
}

// interruptMode: every core sleeps. Under the dynamic scheduler idle cores do so too, but never the one that schedules.
func interruptMode(r spdkrpc.Reactors) bool {
	for _, core := range r.Reactors {
		if !core.InInterrupt {
			return false
		}
	}
	return len(r.Reactors) > 0
}

// mapError gives a call's failure its meaning for an engine. Where SPDK's answer
// has several causes it stays as it is: what it could be was looked at before.
func mapError(err error) error {
	var unanswered *spdkrpc.UnansweredError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &unanswered):
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	case errors.Is(err, spdkrpc.ErrNoSpace):
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	case errors.Is(err, spdkrpc.ErrBusy), errors.Is(err, spdkrpc.ErrNoMemory):
		return fmt.Errorf("%w: %w", engine.ErrBusy, err)
	case errors.Is(err, spdkrpc.ErrWrongState):
		return fmt.Errorf("%w: it waits for its settings: %w", engine.ErrUnavailable, err)
	}
	return err
}
