// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/balance"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
	"github.com/weft-storage/weft/internal/tracing"
)

const (
	// maxRounds of one reconciliation: pools, volumes, exports, portals, and some links of a chain of
	// clones. What is left goes on at once in the next one, after statuses were written.
	maxRounds = 12
	// retryFirst and retryMost bound the wait before what failed is tried again.
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// Engines answers the engine of a type, the same one each time. It fails for
// a type that this agent does not have.
type Engines func(v1alpha1.Engine) (engine.Engine, error)

// Inventory is the node's, as last discovered; nil while it is not known.
type Inventory interface {
	Current() *v1alpha1.Inventory
}

// Config of a Reconciler. Every field is required but SnapshotMetadata, Identity, Notes and Settle.
type Config struct {
	// Version of weft, which the node's status reports.
	Version string
	// SnapshotMetadata is the node's server of snapshots' blocks, which the status reports. Nil for none.
	SnapshotMetadata *v1alpha1.SnapshotMetadataServer
	// NodeName of the Kubernetes Node and the NvmfNode.
	NodeName string
	// Client reads this node's objects, from a cache that is synced and that started with a consistent read, and writes
	// them.
	Client    client.Client
	Recorder  events.EventRecorder
	Engines   Engines
	Inventory Inventory
	// Records of what was acted on, which outlive the agent.
	Records *Records
	// Identity of this node, to which keys of hosts are sealed. Nil: hosts cannot prove themselves to it.
	Identity *dhchap.Identity
	Targets  *TargetWatch
	// Clearing of what is deleted.
	Clearing *Clearing
	// Notes that are stored with the data. Default: none are.
	Notes   *Notes
	Metrics *Metrics
	Clock   clock.PassiveClock
	// HostRoot is where the node's /proc and /sys are. Empty: /.
	HostRoot string
	// Settle is how long after the agent's start portals wait for volumes whose pool is missing, or whose export
	// failed. 0: not at all.
	Settle time.Duration
	// Resync is how often the node is looked at when nothing happens, and allocated bytes are brought up to date.
	Resync time.Duration
}

// Reconciler of one node. It runs one reconciliation at a time.
type Reconciler struct {
	Config
	client   client.Client
	recorder events.EventRecorder
	metrics  *Metrics

	own ownWrites
	// seen are the changes of objects that calls may still wait for, while tracing is on.
	seen    map[types.UID]change
	keys    keyring
	started time.Time
	// What follows only saves work or noise: a successor does without.
	refreshed time.Time
	orphans   decide.Orphans
	failures  int
	// starvation of the target, as watched since this agent started.
	starvation decide.Starvation
	balancing  balancing
	// balanceOptions are the defaults, but in tests.
	balanceOptions balance.Options
	// changes of the target that this reconciliation knows of.
	changes uint64
	// served says that a target was seen with its portals open, and refilling when it came back since; zero when it did
	// not.
	served    bool
	refilling time.Time

	mu    sync.Mutex
	ready error // why the agent cannot do its work; nil when it can
}

// NewReconciler makes the reconciler of a node.
func NewReconciler(c Config) *Reconciler {
	if c.HostRoot == "" {
		c.HostRoot = "/"
	}
	if c.Notes == nil {
		c.Notes = NewNotes(c.Records, c.Metrics)
	}
	return &Reconciler{
		Config: c, client: c.Client, recorder: c.Recorder, metrics: c.Metrics,
		keys:    keyring{identity: c.Identity},
		started: c.Clock.Now(), ready: errors.New("the node has not been reconciled yet"),
	}
}

// Reconcile the whole node, whatever the request. What an engine refuses shows in conditions and is tried
// again later; only what cannot be told to the API server is an error.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.noteChanges()
	s, err := r.gatherObjects(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	e := r.engineOf(s)
	r.Targets.Use(e)
	n := r.newRound(ctx, s)
	d := r.decideAndAct(ctx, e, s, n)
	defer n.end(ctx, d)
	ctx = n.in(ctx)
	if err := ctx.Err(); err != nil {
		return reconcile.Result{}, err
	}
	r.Clearing.Use(e, s.Target.State.Pools)
	if s.Target.Err == nil {
		r.Notes.Use(e, d.Notes)
	}
	r.observe(e, s, d)
	unchanged, cancel := r.Targets.UntilChanged(ctx, r.changes)
	defer cancel()
	if err := r.publish(ctx, unchanged, s, d); err != nil {
		return reconcile.Result{}, err
	}
	if unchanged.Err() != nil {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	r.metrics.lastReconcile.Set(float64(r.Clock.Now().Unix()))
	result := r.next(s, d)
	if again := r.balanceThreads(ctx, e, s); again > 0 {
		result.RequeueAfter = min(result.RequeueAfter, again)
	}
	return result, nil
}

// noteChanges of the target, and answers whether there were any. One that may have come back is not kept waiting for
// earlier failures.
func (r *Reconciler) noteChanges() bool {
	changes, at := r.Targets.Changes()
	if changes == r.changes {
		return false
	}
	r.changes, r.refilling, r.failures = changes, at, 0
	return true
}

// gatherObjects of this node, and makes the NvmfNode if it is missing.
func (r *Reconciler) gatherObjects(ctx context.Context) (*decide.Observed, error) {
	node, err := r.ensureNode(ctx)
	if err != nil {
		return nil, err
	}
	var volumes v1alpha1.NvmfReplicaList
	if err := r.client.List(ctx, &volumes); err != nil {
		return nil, fmt.Errorf("list NvmfReplicas: %w", err)
	}
	var snapshots v1alpha1.NvmfSnapshotList
	if err := r.client.List(ctx, &snapshots); err != nil {
		return nil, fmt.Errorf("list NvmfSnapshots: %w", err)
	}
	s := &decide.Observed{Now: r.Clock.Now(), Node: newest(&r.own, node), Inventory: r.Inventory.Current(), Records: r.Records.Current(), Notes: r.Notes.Found(), Attempts: decide.Attempts{}}
	exists := map[types.UID]bool{node.UID: true}
	for i := range volumes.Items {
		if v := &volumes.Items[i]; v.Spec.Node == r.NodeName {
			s.Volumes = append(s.Volumes, newest(&r.own, v))
			exists[v.UID] = true
		}
	}
	for i := range snapshots.Items {
		if v := &snapshots.Items[i]; v.Spec.Node == r.NodeName {
			s.Snapshots = append(s.Snapshots, newest(&r.own, v))
			exists[v.UID] = true
		}
	}
	r.own.keepOnly(exists)
	s.PublicKey, s.Keys = r.keys.publicKey(), r.keys.open(s)
	slices.SortFunc(s.Volumes, func(a, b *v1alpha1.NvmfReplica) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Snapshots, func(a, b *v1alpha1.NvmfSnapshot) int { return strings.Compare(a.Name, b.Name) })
	s.Settling = s.Now.Sub(r.started) < r.Settle
	if s.Refresh = s.Now.Sub(r.refreshed) >= r.Resync; s.Refresh {
		r.refreshed = s.Now
	}
	return s, nil
}

func (r *Reconciler) ensureNode(ctx context.Context) (*v1alpha1.NvmfNode, error) {
	var node v1alpha1.NvmfNode
	err := r.client.Get(ctx, client.ObjectKey{Name: r.NodeName}, &node)
	if err == nil {
		return &node, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get NvmfNode %s: %w", r.NodeName, err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NvmfNode"))
	u.SetName(r.NodeName)
	if err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("create NvmfNode %s: %w", r.NodeName, err)
	}
	if err := fromUnstructured(u, &node); err != nil {
		return nil, err
	}
	return &node, nil
}

// engineOf the plan; nil when there is none, or the agent does not have it.
func (r *Reconciler) engineOf(s *decide.Observed) engine.Engine {
	if s.Node.Spec.Plan == nil {
		return nil
	}
	e, err := r.Engines(s.Node.Spec.Plan.Engine)
	if err != nil {
		s.Target = decide.Target{Err: err, Reason: v1alpha1.ReasonEngineUnavailable}
		return nil
	}
	return e
}

// decideAndAct in rounds, until nothing is left to try, and answers the last decision. When the target came back in the
// middle, what was seen of it and tried before says nothing of its new life.
func (r *Reconciler) decideAndAct(ctx context.Context, e engine.Engine, s *decide.Observed, n *round) decide.Decision {
	glance := s.GlanceIsEnough()
	for round := 1; ; round++ {
		if e != nil {
			r.timed(n.in(ctx), "gather", func(ctx context.Context) { s.Target = lookAt(ctx, e, *s.Node.Spec.Plan, s.Target, glance) })
			r.observeWaits(s)
			if r.noteChanges() && round <= maxRounds {
				s.Target, s.Attempts = decide.Target{}, decide.Attempts{}
				continue
			}
		}
		d := r.decide(s)
		if d.Operations.Empty() || round > maxRounds || ctx.Err() != nil {
			return d
		}
		r.timed(ctx, "act", func(ctx context.Context) { r.act(ctx, e, s, d, n) })
	}
}

// decide, and have on record what is going to be acted on. What cannot be recorded is not acted on.
func (r *Reconciler) decide(s *decide.Observed) decide.Decision {
	d := decide.Decide(*s)
	if d.Records == nil {
		return d
	}
	if err := r.Records.Write(*d.Records); err != nil {
		s.Target.Err, s.Target.Reason = err, v1alpha1.ReasonRecordsFailed
		return decide.Decide(*s)
	}
	s.Records = r.Records.Current()
	return d
}

// lookAt an engine, after it was brought into service. What it is and how it was started does not change during a
// reconciliation, and is asked once: t is what the last look found. A glance holds up the target less, if the engine
// can do with one.
func lookAt(ctx context.Context, e engine.Engine, plan v1alpha1.Plan, t decide.Target, glance bool) decide.Target {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if t.Info.Type == "" {
		if t = start(ctx, e, plan); t.Err != nil {
			return t
		}
	}
	gather := e.Gather
	if g, ok := e.(engine.Glancer); ok && glance {
		gather = g.Glance
	}
	state, err := gather(ctx)
	if err != nil {
		t.State, t.Err, t.Reason = engine.State{}, err, v1alpha1.ReasonEngineNotAnswering
		return t
	}
	t.State = state
	return t
}

// readBack what a target that serves runs with, and how it fares.
func readBack(ctx context.Context, e engine.Engine, plan v1alpha1.Plan, t decide.Target) decide.Target {
	var settingsErr, waitsErr error
	if reporter, ok := e.(engine.Reporter); ok {
		t.Settings, settingsErr = reporter.Settings(ctx, plan)
	}
	if adjustable, ok := e.(engine.Adjustable); ok {
		t.BufferWaits, waitsErr = adjustable.BufferWaits(ctx)
	}
	if err := errors.Join(settingsErr, waitsErr); err != nil {
		t.Err, t.Reason = err, v1alpha1.ReasonEngineNotAnswering
		t.Settings, t.BufferWaits = nil, nil
	}
	return t
}

// observeWaits for buffers. They are read once a reconciliation, and observing them again changes nothing.
func (r *Reconciler) observeWaits(s *decide.Observed) {
	var grown map[[2]string]uint64
	r.starvation, grown = r.starvation.Observe(s.Now, s.Target.BufferWaits)
	// A counter that begins with the first wait has no rate that shows it.
	for _, w := range s.Target.BufferWaits {
		for _, pool := range decide.BufferPools {
			r.metrics.bufferWaits.WithLabelValues(w.Module, pool)
		}
	}
	for who, n := range grown {
		r.metrics.bufferWaits.WithLabelValues(who[0], who[1]).Add(float64(n))
	}
	s.Starvation = r.starvation
}

// start an engine. A target that would have to be restarted for the plan goes on serving as it is:
// when to interrupt its hosts is not the agent's to say.
func start(ctx context.Context, e engine.Engine, plan v1alpha1.Plan) decide.Target {
	var t decide.Target
	err := e.Start(ctx, plan)
	var restart *engine.RestartNeededError
	switch {
	case err == nil:
	case errors.As(err, &restart):
		t.RestartNeeded = slices.Sorted(slices.Values(restart.Differences))
	case errors.Is(err, engine.ErrUnsupported):
		t.Err, t.Reason = err, v1alpha1.ReasonPlanUnsupported
	case errors.Is(err, engine.ErrInvalid):
		t.Err, t.Reason = err, v1alpha1.ReasonInvalidSetting
	case errors.Is(err, engine.ErrUnavailable):
		return decide.Target{Err: err, Reason: v1alpha1.ReasonEngineNotAnswering}
	default:
		t.Err, t.Reason = err, v1alpha1.ReasonEngineUnavailable
	}
	// Only now: a target that still waits for its settings does not know all of this.
	if t.Info, err = e.Info(ctx); err != nil {
		return decide.Target{Err: err, Reason: v1alpha1.ReasonEngineNotAnswering}
	}
	if t.Err != nil {
		return t
	}
	return readBack(ctx, e, plan, t)
}

// observe what the last round found, for metrics and health.
func (r *Reconciler) observe(e engine.Engine, s *decide.Observed, d decide.Decision) {
	r.mu.Lock()
	r.ready = readiness(e, s.Target)
	r.mu.Unlock()
	r.observeRefill(s, d)
	ready := 0
	for _, status := range d.Volumes {
		if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) {
			ready++
		}
	}
	r.metrics.volumes.WithLabelValues("true").Set(float64(ready))
	r.metrics.volumes.WithLabelValues("false").Set(float64(len(s.Volumes) - ready))
	r.metrics.setTarget(e, s)
	r.metrics.setPools(d.Node.Pools, s.Target.State.Pools)
	r.metrics.setPlaces(d.Node.Attachments, d.Node.Volumes)
	if s.Target.Err == nil {
		r.metrics.exports.Set(float64(len(s.Target.State.Exports)))
		r.metrics.orphans.Set(float64(d.Orphans.Count()))
	}
}

// observeRefill ends with a target that came back as hosts find it: with its portals open. One that kept them had only
// been out of reach, and the first that this agent ever filled had not come back.
func (r *Reconciler) observeRefill(s *decide.Observed, d decide.Decision) {
	if !meta.IsStatusConditionTrue(d.Node.Conditions, v1alpha1.ConditionPortalsReady) {
		return
	}
	opened := func(p v1alpha1.PlannedPortal) bool {
		return s.Attempts.Tried(decide.VerbOpenPortal, decide.PortalKey(p.Portal))
	}
	if r.served && !r.refilling.IsZero() && slices.ContainsFunc(s.Node.Spec.Plan.Portals, opened) {
		r.metrics.refillSeconds.Observe(r.Clock.Since(r.refilling).Seconds())
	}
	r.refilling, r.served = time.Time{}, true
}

// readiness of the agent. A kernel's target that cannot be looked at is the agent's own trouble, and so is any answer
// that it does not understand: a new version must not be rolled out over all nodes then. But a target that runs on its
// own may be down, or may not be up yet, for a reason that is not the agent's and that no other agent would mend; the
// operator, which starts such targets, may itself be waiting for agents. And a plan that is refused was refused by an
// agent that works.
func readiness(e engine.Engine, t decide.Target) error {
	_, runsAlone := e.(engine.Watcher)
	if t.Reason == v1alpha1.ReasonPlanUnsupported || runsAlone && errors.Is(t.Err, engine.ErrUnavailable) {
		return nil
	}
	return t.Err
}

// publish what is true: finalizers off, statuses where they changed. All of it is tried; the node comes last, for
// it speaks of the rest. When the target changes meanwhile, what was not written yet is left to
// the next reconciliation: the target's hosts wait for that one, and nobody waits for a status that is out of date.
func (r *Reconciler) publish(ctx, unchanged context.Context, s *decide.Observed, d decide.Decision) error {
	var errs []error
	r.timed(ctx, "publish", func(ctx context.Context) {
		errs = slices.Concat(
			release(ctx, unchanged, r, s.Volumes, d.ReleaseVolumes),
			release(ctx, unchanged, r, s.Snapshots, d.ReleaseSnapshots),
			writeStatuses(ctx, unchanged, r, volumeKind, s.Volumes, d.Volumes),
			writeStatuses(ctx, unchanged, r, snapshotKind, s.Snapshots, d.Snapshots),
		)
		// Nothing is judged by the node's status: it may be abandoned half way.
		if err := r.writeNode(unchanged, s, d.Node); err != nil {
			errs = append(errs, err)
		}
	})
	r.reportOrphans(s.Node, d.Orphans)
	if unchanged.Err() != nil {
		return ctx.Err()
	}
	return firstFew(errs)
}

// next says when to look again: soon when something failed or waits, each time later; else at the next resync.
func (r *Reconciler) next(s *decide.Observed, d decide.Decision) reconcile.Result {
	if !d.Operations.Empty() {
		return reconcile.Result{RequeueAfter: time.Millisecond}
	}
	if s.Attempts.Failed() == 0 && s.Target.Err == nil && len(d.PortalsHeld) == 0 && !d.Unrecorded {
		r.failures = 0
		return reconcile.Result{RequeueAfter: r.Resync}
	}
	wait := min(retryMost, retryFirst<<min(r.failures, 10))
	r.failures++
	if settled := r.started.Add(r.Settle).Sub(s.Now); len(d.PortalsHeld) > 0 && settled > 0 {
		wait = min(wait, settled)
	}
	return reconcile.Result{RequeueAfter: wait}
}

// Ready fails while the agent cannot do its work, as of the last reconciliation, and while there was none yet; see
// readiness.
func (r *Reconciler) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready
}

func (r *Reconciler) timed(ctx context.Context, phase string, do func(context.Context)) {
	start := r.Clock.Now()
	ctx, span := tracing.Start(ctx, phase)
	defer span.End()
	do(ctx)
	r.metrics.phaseSeconds.WithLabelValues(phase).Observe(r.Clock.Since(start).Seconds())
}
