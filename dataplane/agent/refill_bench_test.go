// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// inMemory is a client that reads as a cache does, copies and all, and refuses to write unless it is writable.
type inMemory struct {
	client.Client
	node      *v1alpha1.NvmfNode
	volumes   []*v1alpha1.NvmfReplica
	snapshots []*v1alpha1.NvmfSnapshot
	writable  bool
	// mu is held to write.
	mu sync.Mutex
	// version of the last object that was written.
	version int
}

func (c *inMemory) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.node.DeepCopyInto(obj.(*v1alpha1.NvmfNode))
	return nil
}

func (c *inMemory) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1alpha1.NvmfReplicaList:
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

func (c *inMemory) Status() client.SubResourceWriter {
	if c.writable {
		return statusWriter{c: c}
	}
	return noWriter{}
}

func (c *inMemory) replica(name string) *v1alpha1.NvmfReplica { return c.volumes[c.index(name)] }

func (c *inMemory) index(name string) int {
	return slices.IndexFunc(c.volumes, func(v *v1alpha1.NvmfReplica) bool { return v.Name == name })
}

// replace an object by what it is now.
func (c *inMemory) replace(obj client.Object) {
	switch obj := obj.(type) {
	case *v1alpha1.NvmfNode:
		c.node = obj
	case *v1alpha1.NvmfReplica:
		c.volumes[c.index(obj.Name)] = obj
	}
}

// written objects have a new version.
func (c *inMemory) written(obj client.Object) {
	c.version++
	obj.SetResourceVersion(fmt.Sprint(c.version))
}

// statusWriter takes the statuses of an agent as an API server does.
type statusWriter struct {
	client.SubResourceWriter
	c *inMemory
}

func (w statusWriter) Apply(_ context.Context, applied runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	u := applied.(interface {
		GetName() string
		GetKind() string
		UnstructuredContent() map[string]any
		SetUnstructuredContent(map[string]any)
	})
	status := u.UnstructuredContent()["status"]
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	var of, next client.Object = w.c.node, &v1alpha1.NvmfNode{}
	if u.GetKind() == volumeKind.name {
		of, next = w.c.replica(u.GetName()), &v1alpha1.NvmfReplica{}
	}
	now, err := runtime.DefaultUnstructuredConverter.ToUnstructured(of)
	if err != nil {
		return err
	}
	now["status"], now["kind"], now["apiVersion"] = status, u.GetKind(), v1alpha1.GroupVersion.String()
	if err := fromUnstructured(&unstructured.Unstructured{Object: now}, next); err != nil {
		return err
	}
	w.c.written(next)
	w.c.replace(next)
	now["metadata"].(map[string]any)["resourceVersion"] = next.GetResourceVersion()
	u.SetUnstructuredContent(now)
	return nil
}

type noWriter struct{ client.SubResourceWriter }

var errWritten = errors.New("a status was written that had not changed")

func (noWriter) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return errWritten
}

// timedEngine adds up how long its target takes.
type timedEngine struct {
	engine.Engine
	took map[enginetest.Method]time.Duration
	// opened is when its portals last were: from then on hosts are served.
	opened time.Time
}

func (e *timedEngine) add(m enginetest.Method, start time.Time) { e.took[m] += time.Since(start) }

func (e *timedEngine) Start(ctx context.Context, plan v1alpha1.Plan) error {
	defer e.add(enginetest.Start, time.Now())
	return e.Engine.Start(ctx, plan)
}

func (e *timedEngine) Info(ctx context.Context) (engine.Info, error) {
	defer e.add(enginetest.Info, time.Now())
	return e.Engine.Info(ctx)
}

func (e *timedEngine) Gather(ctx context.Context) (engine.State, error) {
	defer e.add(enginetest.Gather, time.Now())
	return e.Engine.Gather(ctx)
}

// Glance implements engine.Glancer.
func (e *timedEngine) Glance(ctx context.Context) (engine.State, error) {
	g, ok := e.Engine.(engine.Glancer)
	if !ok {
		return e.Gather(ctx)
	}
	defer e.add(enginetest.Gather, time.Now())
	return g.Glance(ctx)
}

func (e *timedEngine) OpenPools(ctx context.Context, devices []engine.Device) []error {
	defer e.add(enginetest.OpenPools, time.Now())
	return e.Engine.OpenPools(ctx, devices)
}

func (e *timedEngine) Export(ctx context.Context, exports []engine.Export) []error {
	defer e.add(enginetest.Export, time.Now())
	return e.Engine.Export(ctx, exports)
}

func (e *timedEngine) OpenPortals(ctx context.Context, portals []engine.Portal) []error {
	defer e.add(enginetest.OpenPortals, time.Now())
	defer func() { e.opened = time.Now() }()
	return e.Engine.OpenPortals(ctx, portals)
}

// servingAll is the agent of a node whose volumes, each with a host, are served, and whose statuses say so.
func servingAll(tb testing.TB, e engine.Engine, plan *v1alpha1.Plan, volumes int) (*Reconciler, *timedEngine) {
	tb.Helper()
	ctx := tb.Context()
	target := &timedEngine{Engine: e, took: map[enginetest.Method]time.Duration{}}
	c := &inMemory{node: testNode()}
	c.node.Spec.Plan = plan
	records, err := OpenRecords(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := records.Close(); err != nil {
			tb.Error(err)
		}
	})
	snapshot := decide.Observed{Now: now, Refresh: true, Node: c.node, Inventory: testInventory()}
	for n := range volumes {
		v := testVolume(n+1, ofSize("16Mi"), withHosts(hostA))
		v.UID, v.ResourceVersion = types.UID(uuid(n+1)), "1"
		c.volumes = append(c.volumes, v)
	}
	for settled := false; !settled; {
		snapshot.Volumes, snapshot.Attempts, snapshot.Records = c.volumes, decide.Attempts{}, records.Current()
		snapshot.Target = lookAt(ctx, target, *plan, snapshot.Target, false)
		if snapshot.Target.Err != nil {
			tb.Fatal(snapshot.Target.Err)
		}
		d := decide.Decide(snapshot)
		settled = d.Operations.Empty()
		if err := records.Write(*d.Records); err != nil {
			tb.Fatal(err)
		}
		for _, errs := range [][]error{
			target.OpenPools(ctx, d.Operations.OpenPools), target.CreateVolumes(ctx, d.Operations.CreateVolumes),
			target.Export(ctx, d.Operations.Export), target.OpenPortals(ctx, d.Operations.OpenPortals),
		} {
			if err := firstFew(slices.DeleteFunc(errs, func(err error) bool { return err == nil })); err != nil {
				tb.Fatal(err)
			}
		}
		c.node.Status = d.Node
		for _, v := range c.volumes {
			v.Status = d.Volumes[v.Name]
		}
	}
	for _, v := range c.volumes {
		if !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionReady) {
			tb.Fatalf("replica %s is not ready: %v", v.Name, v.Status.Conditions)
		}
	}
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	return NewReconciler(Config{
		NodeName: nodeName, Client: c, Recorder: events.NewFakeRecorder(100), Inventory: fixedInventory{}, Records: records, Targets: NewTargetWatch(clock.RealClock{}), Clearing: NewClearing(),
		Metrics: metrics, Clock: clock.RealClock{}, Resync: defaultResync,
		Engines: func(v1alpha1.Engine) (engine.Engine, error) { return target, nil },
	}), target
}

type fixedInventory struct{}

func (fixedInventory) Current() *v1alpha1.Inventory { return testInventory() }

func twoDrives() *enginetest.Engine {
	return enginetest.New(
		enginetest.Device{Path: "/dev/nvme0n1", SizeBytes: 1 << 50}, enginetest.Device{Path: "/dev/nvme1n1", SizeBytes: 1 << 50})
}

// The agent's own part of a refill is what a target's return costs beyond the target's answers: ms-reconcile less
// ms-engine. Hosts are served again after ms-served; what follows is a last look and the comparison of statuses.
func BenchmarkRefill(b *testing.B) {
	for _, volumes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("volumes=%d", volumes), func(b *testing.B) {
			inMemory := twoDrives()
			r, target := servingAll(b, inMemory, testNode().Spec.Plan, volumes)
			measure(b, b.Loop, r, target, func() { inMemory.Restart(); inMemory.ForgetCalls() }, func() {})
		})
	}
}

func BenchmarkNothingToDo(b *testing.B) {
	inMemory := twoDrives()
	r, target := servingAll(b, inMemory, testNode().Spec.Plan, 1000)
	measure(b, b.Loop, r, target, inMemory.ForgetCalls, func() {})
}

// BenchmarkRefillSPDK fills a target of SPDK that was killed, from its socket's return on: one that answers at SPDK's
// pace, and a real one where there is one. A real target takes a core of the machine for itself.
func BenchmarkRefillSPDK(b *testing.B) {
	b.Run("target=fake", func(b *testing.B) { refillSPDK(b, newFakeSPDK(b, spdktest.DefaultPollInterval)) })
	b.Run("target=real", func(b *testing.B) { refillSPDK(b, newRealSPDK(b)) })
}

func refillSPDK(b *testing.B, node *spdkNode) {
	r, target := servingAll(b, node.engine(), node.plan, 1000)
	measureRefill(b, b.Loop, node, r, target)
}

// measureRefill of a target that was killed, from when it is started again.
func measureRefill(b *testing.B, again func() bool, node *spdkNode, r *Reconciler, target *timedEngine) {
	changed := make(chan struct{})
	go target.Engine.(engine.Watcher).Watch(b.Context(), func() {
		select {
		case changed <- struct{}{}:
		case <-b.Context().Done():
		}
	})
	<-changed // it answers
	measure(b, again, r, target, func() {
		node.kill()
		<-changed
		node.start()
	}, func() { <-changed })
}

// measure reconciliations, b.N of them, each after what before does, and from the wait for what starts it.
func measure(b *testing.B, again func() bool, r *Reconciler, target *timedEngine, before, wait func()) {
	ctx := log.IntoContext(b.Context(), logr.Discard())
	var took, served time.Duration
	clear(target.took)
	for again() {
		before()
		start := time.Now()
		wait()
		if _, err := r.Reconcile(ctx, reconcile.Request{}); err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		served += target.opened.Sub(start)
	}
	if served > 0 { // portals were opened at all
		b.ReportMetric(served.Seconds()*1e3/float64(b.N), "ms-served/op")
	}
	b.ReportMetric(took.Seconds()*1e3/float64(b.N), "ms-reconcile/op")
	var all time.Duration
	for method, took := range target.took {
		all += took
		b.ReportMetric(took.Seconds()*1e3/float64(b.N), "ms-"+string(method)+"/op")
	}
	b.ReportMetric(all.Seconds()*1e3/float64(b.N), "ms-engine/op")
}
