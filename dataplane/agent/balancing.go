// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/balance"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/cpus"
)

const (
	// balancePeriod is how often the load of threads is looked at, while they are balanced.
	balancePeriod = 10 * time.Second
	// keptFree is the share of its time that a core which the plan keeps free of connections is taken to give to
	// interrupts: that is why it was kept free.
	keptFree = 0.2

	actionBalance        = "Balance"
	reasonThreadsMoved   = "ThreadsMoved"
	reasonThreadsAreBack = "ThreadsAreBack"
)

// balancing of the poll groups of one target.
type balancing struct {
	key balanceKey
	// balancer, nil while nothing is balanced.
	balancer   *balance.Balancer
	interrupts interruptReader
	// home is where each thread was before this agent moved it.
	home map[uint64]engine.ThreadMove
	// back: all threads are where they were, as far as that is known.
	back bool
	next time.Time
}

// balanceKey is all that lets balancing start afresh when it changes.
type balanceKey struct {
	life                 uint64 // of the target
	coreMask, pollGroups string
	mode                 v1alpha1.CoreMode
	balance              bool
}

// balanceThreads of a target whose plan asks for it, and puts threads back where it does not any more. It answers after
// how long it wants to look again; 0: not before something else happens. Nothing that fails in it keeps a volume from
// being served.
func (r *Reconciler) balanceThreads(ctx context.Context, e engine.Engine, s *decide.Observed) time.Duration {
	target, ok := e.(engine.Adjustable)
	plan := s.Node.Spec.Plan
	if !ok || plan == nil || plan.SPDK == nil || s.Target.Err != nil || s.Target.Info.InterruptMode {
		r.balancing = balancing{}
		return 0
	}
	key := balanceKey{r.changes, plan.SPDK.CoreMask, plan.SPDK.PollGroupMask, plan.SPDK.Mode, plan.SPDK.Balance}
	if key != r.balancing.key {
		was := r.balancing
		r.balancing = balancing{key: key, interrupts: interruptReader{root: r.HostRoot}}
		if was.key.life == key.life {
			r.balancing.home = was.home
		}
	}
	if !plan.SPDK.Balance && r.balancing.back {
		return 0
	}
	now := r.Clock.Now()
	if wait := r.balancing.next.Sub(now); wait > 0 {
		return wait
	}
	r.balancing.next = now.Add(balancePeriod)
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	loads, err := target.Loads(ctx)
	switch {
	case err != nil:
	case plan.SPDK.Balance:
		err = r.balanceOnce(ctx, target, s, loads)
	default:
		err = r.bringBack(ctx, target, s, loads)
	}
	if err != nil {
		r.metrics.engineErrors.WithLabelValues(methodMoveThreads).Inc()
		log.FromContext(ctx).Error(err, "Cannot balance poll groups")
	}
	if r.balancing.back {
		return 0
	}
	return balancePeriod
}

// balanceOnce takes a sample, and makes the step that it leads to.
func (r *Reconciler) balanceOnce(ctx context.Context, target engine.Adjustable, s *decide.Observed, loads engine.Loads) error {
	b := &r.balancing
	if b.balancer == nil {
		b.balancer = balance.New(r.balanceOptions)
	}
	if b.home == nil {
		b.home = map[uint64]engine.ThreadMove{}
	}
	for _, t := range loads.Threads {
		if _, known := b.home[t.ID]; !known && t.PollGroup && len(t.Allowed) > 1 {
			b.home[t.ID] = engine.ThreadMove{Thread: t.ID, Core: t.Core, Allowed: t.Allowed}
		}
	}
	var nics []v1alpha1.NIC
	if s.Inventory != nil {
		nics = s.Inventory.NICs
	}
	shares, err := b.interrupts.read(nics)
	if err != nil {
		return err
	}
	step, ok := b.balancer.Observe(sampleOf(loads, *s.Node.Spec.Plan.SPDK, s.Inventory, shares))
	for core, load := range b.balancer.Loads() {
		r.metrics.coreLoad.WithLabelValues(fmt.Sprint(core)).Set(load)
	}
	if !ok {
		return nil
	}
	moves := make([]engine.ThreadMove, len(step.Moves))
	words := make([]string, len(step.Moves))
	for i, m := range step.Moves {
		moves[i] = engine.ThreadMove{Thread: m.Thread, Core: m.To}
		words[i] = fmt.Sprintf("%s from core %d to core %d", nameOf(loads, m.Thread), m.From, m.To)
	}
	if err := firstFew(failedOf(target.MoveThreads(ctx, moves))); err != nil {
		return fmt.Errorf("move %s: %w", strings.Join(words, ", "), err)
	}
	r.metrics.threadMoves.Add(float64(len(moves)))
	r.recorder.Eventf(s.Node, nil, corev1.EventTypeNormal, reasonThreadsMoved, actionBalance, "moved %s: the load of the busier core was %.0f%%, and is expected to be %.0f%%",
		strings.Join(words, ", "), 100*step.Before, 100*step.After)
	log.FromContext(ctx).Info("Moved poll groups", "moves", words)
	return nil
}

// bringBack threads that were pinned to a core: to where this agent found them, or, when an earlier one moved them, to
// a core each.
func (r *Reconciler) bringBack(ctx context.Context, target engine.Adjustable, s *decide.Observed, loads engine.Loads) error {
	moves := wayBack(loads, *s.Node.Spec.Plan.SPDK, r.balancing.home)
	if err := firstFew(failedOf(target.MoveThreads(ctx, moves))); err != nil {
		return fmt.Errorf("return poll groups to their original cores: %w", err)
	}
	r.balancing.back = true
	if len(moves) == 0 {
		return nil
	}
	r.metrics.coreLoad.Reset()
	words := make([]string, len(moves))
	for i, m := range moves {
		words[i] = fmt.Sprintf("%s on core %d", nameOf(loads, m.Thread), m.Core)
	}
	r.recorder.Eventf(s.Node, nil, corev1.EventTypeNormal, reasonThreadsAreBack, actionBalance, "poll groups are no longer balanced: %s", strings.Join(words, ", "))
	log.FromContext(ctx).Info("Returned poll groups to their original cores", "moves", words)
	return nil
}

// wayBack of the poll groups that may not be on all cores which serve connections, and so were moved.
func wayBack(loads engine.Loads, plan v1alpha1.SPDKPlan, home map[uint64]engine.ThreadMove) []engine.ThreadMove {
	allowed := coresOf(plan.CoreMask)
	if plan.PollGroupMask != "" {
		allowed = coresOf(plan.PollGroupMask)
	}
	all := allowed.Intersection(cpuset.New(loads.Cores...)).List()
	taken := cpuset.New()
	for _, t := range loads.Threads {
		if h, known := home[t.ID]; known {
			taken = taken.Union(cpuset.New(h.Core))
		} else if t.PollGroup && slices.Equal(t.Allowed, all) {
			taken = taken.Union(cpuset.New(t.Core))
		}
	}
	free := cpuset.New(all...).Difference(taken).List()
	var moves []engine.ThreadMove
	for _, t := range loads.Threads {
		if !t.PollGroup || len(all) < 2 || slices.Equal(t.Allowed, all) {
			continue
		}
		m := engine.ThreadMove{Thread: t.ID, Core: t.Core, Allowed: all}
		if h, known := home[t.ID]; known && slices.Contains(all, h.Core) {
			m.Core = h.Core
		} else if len(free) > 0 {
			m.Core, free = free[0], free[1:]
		} else if !slices.Contains(all, m.Core) {
			m.Core = all[0]
		}
		moves = append(moves, m)
	}
	return moves
}

// sampleOf what was measured.
func sampleOf(loads engine.Loads, plan v1alpha1.SPDKPlan, inventory *v1alpha1.Inventory, interrupts map[int]float64) balance.Sample {
	serving := coresOf(plan.PollGroupMask)
	physical := physicalCores(inventory)
	dedicated := dedicatedCore(loads, serving)
	var s balance.Sample
	for _, core := range loads.Cores {
		if dedicated.Contains(core) {
			continue
		}
		c := balance.CoreSample{ID: core, Physical: -1 - core, Interrupts: interrupts[core]}
		if p, known := physical[core]; known {
			c.Physical = p
		}
		if !serving.IsEmpty() && !serving.Contains(core) {
			c.Interrupts = max(c.Interrupts, keptFree)
		}
		s.Cores = append(s.Cores, c)
	}
	for _, t := range loads.Threads {
		if dedicated.Contains(t.Core) {
			continue
		}
		s.Threads = append(s.Threads, balance.ThreadSample{ID: t.ID, Core: t.Core, Movable: t.PollGroup, Busy: t.BusyTicks, Idle: t.IdleTicks})
	}
	return s
}

// dedicatedCore only answers RPCs: the first one, where the plan has no poll group on it. Empty if there is none.
func dedicatedCore(loads engine.Loads, serving cpuset.CPUSet) cpuset.CPUSet {
	if len(loads.Cores) == 0 || serving.IsEmpty() || serving.Contains(loads.Cores[0]) {
		return cpuset.New()
	}
	first := loads.Cores[0]
	if slices.ContainsFunc(loads.Threads, func(t engine.ThreadLoad) bool { return t.PollGroup && t.Core == first }) {
		return cpuset.New() // what is on it has to move away
	}
	return cpuset.New(first)
}

// physicalCores numbers the physical core of each CPU.
func physicalCores(inventory *v1alpha1.Inventory) map[int]int {
	physical := map[int]int{}
	if inventory == nil {
		return physical
	}
	n := 0
	for _, node := range inventory.NUMANodes {
		for _, threads := range node.Cores {
			n++
			siblings, err := cpuset.Parse(threads)
			if err != nil {
				continue
			}
			for _, cpu := range siblings.UnsortedList() {
				physical[cpu] = n
			}
		}
	}
	return physical
}

// coresOf a mask of the plan; none when it is empty. The API takes no other that cannot be parsed.
func coresOf(mask string) cpuset.CPUSet {
	cores, _ := cpus.ParseMask(mask)
	return cores
}

func nameOf(loads engine.Loads, thread uint64) string {
	for _, t := range loads.Threads {
		if t.ID == thread {
			return t.Name
		}
	}
	return fmt.Sprintf("thread %d", thread)
}

func failedOf(errs []error) []error {
	return slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
}
