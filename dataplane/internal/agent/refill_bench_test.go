// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// inMemory is a client that reads as a cache does, copies and all, and refuses to write.
type inMemory struct {
	client.Client
	node      *v1alpha1.NvmfNode
	volumes   []*v1alpha1.NvmfVolume
	snapshots []*v1alpha1.NvmfSnapshot
}

func (c *inMemory) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.node.DeepCopyInto(obj.(*v1alpha1.NvmfNode))
	return nil
}

func (c *inMemory) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1alpha1.NvmfVolumeList:
		for _, v := range c.volumes {
			list.Items = append(list.Items, *v.DeepCopy())
		}
	case *v1alpha1.NvmfSnapshotList:
		for _, s := range c.snapshots {
			list.Items = append(list.Items, *s.DeepCopy())
		}
	}
	return nil
}

func (c *inMemory) Status() client.SubResourceWriter { return noWriter{} }

type noWriter struct{ client.SubResourceWriter }

var errWritten = errors.New("a status was written that had not changed")

func (noWriter) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return errWritten
}

// timedEngine adds up how long its target takes.
type timedEngine struct {
	*enginetest.Engine
	took time.Duration
}

func (e *timedEngine) add(start time.Time) { e.took += time.Since(start) }

func (e *timedEngine) Gather(ctx context.Context) (engine.State, error) {
	defer e.add(time.Now())
	return e.Engine.Gather(ctx)
}

func (e *timedEngine) OpenPools(ctx context.Context, devices []engine.Device) []error {
	defer e.add(time.Now())
	return e.Engine.OpenPools(ctx, devices)
}

func (e *timedEngine) Export(ctx context.Context, exports []engine.Export) []error {
	defer e.add(time.Now())
	return e.Engine.Export(ctx, exports)
}

func (e *timedEngine) OpenPortals(ctx context.Context, portals []engine.Portal) []error {
	defer e.add(time.Now())
	return e.Engine.OpenPortals(ctx, portals)
}

// servingNode is a node whose volumes, each with a host, are served, and whose statuses say so.
func servingNode(tb testing.TB, volumes int) (*Reconciler, *timedEngine) {
	tb.Helper()
	ctx := tb.Context()
	target := &timedEngine{Engine: enginetest.New(
		enginetest.Device{Path: "/dev/nvme0n1", SizeBytes: 1 << 50}, enginetest.Device{Path: "/dev/nvme1n1", SizeBytes: 1 << 50})}
	c := &inMemory{node: testNode()}
	snapshot := Snapshot{Now: now, Refresh: true, Node: c.node, Inventory: testInventory()}
	for n := range volumes {
		v := testVolume(n+1, withHosts(hostA))
		v.UID = types.UID(uuid(n + 1))
		c.volumes = append(c.volumes, v)
	}
	settled := false
	for !settled {
		snapshot.Volumes, snapshot.Attempts = c.volumes, Attempts{}
		snapshot.Target = lookAt(ctx, target, *c.node.Spec.Plan, snapshot.Target)
		d := Decide(snapshot)
		settled = d.Operations.Empty()
		var failed []error
		for _, errs := range [][]error{
			target.OpenPools(ctx, d.Operations.OpenPools), target.CreateVolumes(ctx, d.Operations.CreateVolumes),
			target.Export(ctx, d.Operations.Export), target.OpenPortals(ctx, d.Operations.OpenPortals),
		} {
			failed = append(failed, errs...)
		}
		if err := errors.Join(failed...); err != nil {
			tb.Fatal(err)
		}
		c.node.Status = d.Node
		for _, v := range c.volumes {
			v.Status = d.Volumes[v.Name]
		}
	}
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	return NewReconciler(Config{
		NodeName: nodeName, Client: c, Recorder: events.NewFakeRecorder(100), Inventory: fixedInventory{}, Targets: NewTargetWatch(clock.RealClock{}),
		Metrics: metrics, Clock: clock.RealClock{}, Resync: defaultResync,
		Engines: func(v1alpha1.Engine) (engine.Engine, error) { return target, nil },
	}), target
}

type fixedInventory struct{}

func (fixedInventory) Current() *v1alpha1.Inventory { return testInventory() }

// The agent's own part of a refill is what a target's return costs beyond the target's answers:
// reconcile/op less engine/op.
func BenchmarkRefill(b *testing.B) {
	for _, volumes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("volumes=%d", volumes), func(b *testing.B) {
			r, target := servingNode(b, volumes)
			measure(b, r, target, target.Restart)
		})
	}
}

func BenchmarkNothingToDo(b *testing.B) {
	r, target := servingNode(b, 1000)
	measure(b, r, target, func() {})
}

func measure(b *testing.B, r *Reconciler, target *timedEngine, before func()) {
	ctx := log.IntoContext(b.Context(), logr.Discard())
	var took time.Duration
	target.took = 0
	for b.Loop() {
		before()
		start := time.Now()
		if _, err := r.Reconcile(ctx, reconcile.Request{}); err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		target.ForgetCalls()
	}
	b.ReportMetric(took.Seconds()*1e3/float64(b.N), "ms-reconcile/op")
	b.ReportMetric(target.took.Seconds()*1e3/float64(b.N), "ms-engine/op")
}
