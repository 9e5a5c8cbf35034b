// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// starvationQuiet is how long no I/O must have waited for a buffer before the pools count as sufficient
// again: many times the resync, so that load that comes in bursts does not make the condition flap.
const starvationQuiet = 10 * time.Minute

// pools that a module waited for.
const (
	smallPool = "small"
	largePool = "large"
)

// BufferPools are the pools that a module may wait for, as Observe names them.
var BufferPools = []string{smallPool, largePool}

// Starvation is what is known of I/O that waited for buffers.
type Starvation struct {
	// Since the counters were first read by this agent, in this life of the target.
	Since time.Time
	// Inherited: nothing was known before, so an earlier agent may have seen what this one has not.
	Inherited bool
	// Last time that one had grown; zero when none has.
	Last time.Time
	// Of are the modules, and the pools that each waited for, until the target was quiet: "nvmf_TCP large".
	Of []string

	counters map[string]engine.BufferWaits
}

// Observe the counters, and answer what is known then, and how often who waited since the last time. Smaller ones are
// those of another life of the target, with which everything starts afresh.
func (s Starvation) Observe(now time.Time, waits []engine.BufferWaits) (Starvation, map[[2]string]uint64) {
	if waits == nil {
		return s, nil
	}
	counters := make(map[string]engine.BufferWaits, len(waits))
	fresh := s.counters == nil
	for _, w := range waits {
		was := s.counters[w.Module]
		fresh = fresh || w.Small < was.Small || w.Large < was.Large || w.Pending < was.Pending
		counters[w.Module] = w
	}
	if fresh {
		return Starvation{Since: now, Inherited: s.counters == nil, counters: counters}, nil
	}
	grown := map[[2]string]uint64{}
	for module, w := range counters {
		was := s.counters[module]
		small, large := w.Small-was.Small, w.Large-was.Large
		if small+large == 0 {
			large = w.Pending - was.Pending // of which pool is not told; I/Os over 8 KiB take large buffers
		}
		if small > 0 {
			grown[[2]string{module, smallPool}] = small
		}
		if large > 0 {
			grown[[2]string{module, largePool}] = large
		}
	}
	s.counters = counters
	if !s.Last.IsZero() && now.Sub(s.Last) >= starvationQuiet {
		s.Last, s.Of = time.Time{}, nil
	}
	if len(grown) == 0 {
		return s, nil
	}
	of := slices.Clone(s.Of)
	for who := range maps.Keys(grown) {
		of = append(of, who[0]+" "+who[1])
	}
	slices.Sort(of)
	s.Last, s.Of = now, slices.Compact(of)
	return s, grown
}

func (s Starvation) waitedFor(pool string) bool {
	return slices.ContainsFunc(s.Of, func(of string) bool { return strings.HasSuffix(of, " "+pool) })
}

// buffersSufficient judges the buffer pools.
func (d *decider) buffersSufficient() metav1.Condition {
	plan := d.Node.Spec.Plan
	was := meta.FindStatusCondition(d.Node.Status.Conditions, v1alpha1.ConditionBuffersSufficient)
	switch {
	case plan.SPDK == nil:
		return yesBecause(v1alpha1.ReasonNotNeeded, "engine %s has no buffer pools", plan.Engine)
	case d.Starvation.Since.IsZero():
		return unknown(v1alpha1.ReasonPending, "the target's counters have not been read yet")
	case len(d.Starvation.Of) > 0:
		return no(v1alpha1.ReasonBuffersExhausted, "%s", d.relief())
	case was != nil && was.Reason == v1alpha1.ReasonBuffersExhausted && d.Starvation.Inherited && d.Now.Sub(d.Starvation.Since) < starvationQuiet:
		return *was // an earlier agent saw it, and this one has not watched for long enough to take it back
	}
	return yes()
}

// relief for pools that ran out, by what the target really runs with.
func (d *decider) relief() string {
	small, large := d.Starvation.waitedFor(smallPool), d.Starvation.waitedFor(largePool)
	waited := "I/O waited for buffers (" + strings.Join(d.Starvation.Of, ", ") + ")"
	plan := d.Node.Spec.Plan.SPDK
	running := runningPools(*plan, d.Target.Settings)
	if (!small || plan.SmallBuffers > running.SmallBuffers) && (!large || plan.LargeBuffers > running.LargeBuffers) {
		return fmt.Sprintf("%s; the plan already has more (%d large, %d small): delete the target pod so that they take effect", waited, plan.LargeBuffers, plan.SmallBuffers)
	}
	r, ok := sizing.RelieveBuffers(running, small, large)
	if !ok {
		return waited + "; the pools cannot grow any more: distribute the volumes over more nodes, or use fewer cores for the target"
	}
	words := fmt.Sprintf("%s; set in the NvmfTarget's spec: %s. Then %s", waited, r, r.Room(d.Inventory, plan.Hugepages))
	if but := r.Cache(d.Inventory, running); but != "" {
		words += ". But " + but
	}
	return words
}

// runningPools is the plan with the pools and caches that the target really has.
func runningPools(plan v1alpha1.SPDKPlan, settings []v1alpha1.EngineSetting) v1alpha1.SPDKPlan {
	plan = *plan.DeepCopy()
	for _, s := range settings {
		n, err := strconv.ParseInt(s.Value, 10, 32)
		if err != nil {
			continue
		}
		switch s.Setting {
		case "smallBuffers":
			plan.SmallBuffers = int32(n)
		case "largeBuffers":
			plan.LargeBuffers = int32(n)
		}
		for i, t := range plan.Transports {
			switch s.Setting {
			case fmt.Sprintf("transports[%s].smallCache", t.Type):
				plan.Transports[i].SmallCache = int32(n)
			case fmt.Sprintf("transports[%s].largeCache", t.Type):
				plan.Transports[i].LargeCache = int32(n)
			}
		}
	}
	return plan
}
