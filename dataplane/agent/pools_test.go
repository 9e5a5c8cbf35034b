// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// filling is an engine whose pools have so much free as a test says, by their drives.
type filling struct {
	*enginetest.Engine
	free map[string]int64
}

func (e *filling) Gather(ctx context.Context) (engine.State, error) {
	state, err := e.Engine.Gather(ctx)
	for i := range state.Pools {
		if free, ok := e.free[state.Pools[i].Device]; ok {
			state.Pools[i].FreeBytes = free
		}
	}
	return state, err
}

// fillable node, of whose drive a more may be promised than there is, and is.
func (l *lab) fillable() *filling {
	l.t.Helper()
	node := l.nvmfNode()
	node.Spec.Plan.OverProvisioningPercent = 200
	l.Expect(l.admin.Update(l.t.Context(), node)).To(Succeed())
	for n := 1; n <= 2; n++ {
		l.create(n, ofSize("60Gi")) // drive b has 50Gi
	}
	l.reconcile(l.agent())
	return &filling{Engine: l.target, free: map[string]int64{}}
}

// agentOf is an agent of another engine.
func (l *lab) agentOf(e engine.Engine) *Reconciler {
	r := l.agent()
	r.Engines = func(v1alpha1.Engine) (engine.Engine, error) { return e, nil }
	return r
}

func TestPoolsThatFillAreToldOnce(t *testing.T) {
	l := newLab(t)
	e := l.fillable()
	for _, step := range []struct {
		name         string
		freeA, freeB int64
		says         string
		message      OmegaMatcher
		told         []string
	}{
		{"room", 50 * gib, 25 * gib, "True/AsExpected", BeEmpty(), nil},
		{"one", 4 * gib, 25 * gib, "False/PoolNearlyFull", HavePrefix("pool a: less "), []string{"Warning PoolNearlyFull pool a: less "}},
		{"the same", 3 * gib, 25 * gib, "False/PoolNearlyFull", HavePrefix("pool a: less "), nil},
		{"another", 3 * gib, 1 * gib, "False/PoolNearlyFull", HavePrefix("pool a, b: less "), []string{"Warning PoolNearlyFull pool b: less "}},
		{"full", 16 << 20, 1 * gib, "False/PoolFull", And(HavePrefix("pool a: the pool is full, "), ContainSubstring("; pool b: less ")), []string{"Warning PoolFull pool a: the pool is full, "}},
		{"better", 4 * gib, 1 * gib, "False/PoolNearlyFull", HavePrefix("pool a, b: less "), nil},
		{"room again", 50 * gib, 25 * gib, "True/AsExpected", BeEmpty(), nil},
		{"both", 4 * gib, 0, "False/PoolNearlyFull", HavePrefix("pool a, b: less "), []string{"Warning PoolNearlyFull pool a: less ", "Warning PoolNearlyFull pool b: less "}},
	} {
		t.Run(step.name, func(t *testing.T) {
			g := NewWithT(t)
			e.free["a"], e.free["b"] = step.freeA, step.freeB
			before := len(l.events)
			r := l.agentOf(e) // one that was just started, and reads the figures again
			l.reconcile(r)
			l.reconcile(l.agentOf(e))
			told := l.events[before:]
			g.Expect(told).To(HaveLen(len(step.told)))
			for i, want := range step.told {
				g.Expect(told[i]).To(HavePrefix(want))
			}
			node := l.nvmfNode()
			g.Expect(said(node.Status.Conditions)).To(And(HaveKeyWithValue("PoolReady", step.says), HaveKeyWithValue("Ready", "True/AsExpected")))
			g.Expect(meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionPoolReady).Message).To(step.message)
			g.Expect(poolGauges(g, r)).To(Equal(map[string]float64{
				"a total": float64(100 * gib), "a free": float64(step.freeA), "a promised": float64(2 * (60*gib + v1alpha1.OverheadBytes)), "a clearing": 0,
				"b total": float64(50 * gib), "b free": float64(step.freeB), "b promised": 0, "b clearing": 0,
			}))
		})
	}
}

// poolGauges by drive and part.
func poolGauges(g *WithT, r *Reconciler) map[string]float64 {
	registry := prometheus.NewRegistry()
	g.Expect(registry.Register(r.metrics.poolBytes)).To(Succeed())
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(families).To(HaveLen(1))
	gauges := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		gauges[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
	}
	return gauges
}

// Recorders merge Events that are alike, and the API server refuses notes that are long.
func TestEventsOfPoolsReachTheAPIServer(t *testing.T) {
	l := newLab(t)
	e := l.fillable()
	clientset, err := kubernetes.NewForConfig(l.server.agentConfig)
	l.Expect(err).NotTo(HaveOccurred())
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clientset.EventsV1()})
	t.Cleanup(broadcaster.Shutdown)
	l.Expect(broadcaster.StartRecordingToSinkWithContext(t.Context())).To(Succeed())
	recorder := broadcaster.NewRecorder(l.server.Admin.Scheme(), "weft-agent")
	told := func() ([]string, error) {
		var list eventsv1.EventList
		err := l.admin.List(t.Context(), &list, client.InNamespace("default"))
		var notes []string
		for _, event := range list.Items {
			if event.Regarding.UID == l.nvmfNode().UID {
				notes = append(notes, event.Reason+" "+event.Note[:min(len(event.Note), len("pool a"))])
			}
		}
		slices.Sort(notes)
		return notes, err
	}
	look := func() {
		r := l.agentOf(e)
		r.recorder = recorder
		l.reconcile(r)
	}
	e.free["a"], e.free["b"] = gib, gib
	look()
	l.Eventually(told, patience, interval).Should(Equal([]string{"PoolNearlyFull pool a", "PoolNearlyFull pool b"}))
	l.target.BreakDevice(drivePathB, errors.New(strings.Repeat("input/output error ", 100)))
	look()
	l.Eventually(told, patience, interval).Should(Equal([]string{"PoolFailed pool b", "PoolNearlyFull pool a", "PoolNearlyFull pool b"}))
}
