// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
	"github.com/weft-storage/weft/dataplane/inventory"
)

// changes counts what an engine is asked to change.
type changes struct {
	engine.Engine
	made []string
}

func note[T any](c *changes, verb decide.Verb, items []T, do func(context.Context, []T) []error) func(context.Context) []error {
	c.made = append(c.made, fmt.Sprintf("%s %v", verb, items))
	return func(ctx context.Context) []error { return do(ctx, items) }
}

func (c *changes) OpenPools(ctx context.Context, d []engine.Device) []error {
	return note(c, decide.VerbOpenPool, d, c.Engine.OpenPools)(ctx)
}

func (c *changes) CreateVolumes(ctx context.Context, v []engine.VolumeSpec) []error {
	return note(c, decide.VerbCreateVolume, v, c.Engine.CreateVolumes)(ctx)
}

func (c *changes) GrowVolumes(ctx context.Context, v []engine.VolumeSize) []error {
	return note(c, decide.VerbGrowVolume, v, c.Engine.GrowVolumes)(ctx)
}

func (c *changes) DeleteVolumes(ctx context.Context, i []engine.ID) []error {
	return note(c, decide.VerbDeleteVolume, i, c.Engine.DeleteVolumes)(ctx)
}

func (c *changes) CreateSnapshots(ctx context.Context, s []engine.SnapshotSpec) []error {
	return note(c, decide.VerbCreateSnapshot, s, c.Engine.CreateSnapshots)(ctx)
}

func (c *changes) DeleteSnapshots(ctx context.Context, i []engine.ID) []error {
	return note(c, decide.VerbDeleteSnapshot, i, c.Engine.DeleteSnapshots)(ctx)
}

func (c *changes) Export(ctx context.Context, e []engine.Export) []error {
	return note(c, decide.VerbExport, e, c.Engine.Export)(ctx)
}

func (c *changes) Unexport(ctx context.Context, nqns []string) []error {
	return note(c, decide.VerbUnexport, nqns, c.Engine.Unexport)(ctx)
}

func (c *changes) OpenPortals(ctx context.Context, p []engine.Portal) []error {
	return note(c, decide.VerbOpenPortal, p, c.Engine.OpenPortals)(ctx)
}

func (c *changes) ClosePortals(ctx context.Context, p []v1alpha1.Portal) []error {
	return note(c, decide.VerbClosePortal, p, c.Engine.ClosePortals)(ctx)
}

// applyAndRead answers with the whole object, as an API server does; the fake client answers with what was applied.
func applyAndRead(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if err := c.SubResource(sub).Apply(ctx, obj, opts...); err != nil {
		return err
	}
	applied, ok := obj.(interface {
		client.Object
		runtime.Unstructured
	})
	if !ok {
		return fmt.Errorf("%T is not unstructured", obj)
	}
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(applied.GetObjectKind().GroupVersionKind())
	if err := c.Get(ctx, client.ObjectKeyFromObject(applied), now); err != nil {
		return err
	}
	applied.SetUnstructuredContent(now.Object)
	return nil
}

// held by the agent's finalizer.
func held(o client.Object) { o.SetFinalizers([]string{v1alpha1.EngineFinalizer}) }

// onKernel is an agent with an engine on this machine, and objects that only the API server of is not real. Each run is
// that of an agent which has just started, and knows what is recorded.
func onKernel(t *testing.T, target engine.Engine, found *v1alpha1.Inventory, objects ...client.Object) (c client.Client, run func()) {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	for i, o := range objects {
		o.SetUID(types.UID(uuid(1000 + i)))
	}
	c = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{SubResourceApply: applyAndRead}).
		WithStatusSubresource(&v1alpha1.NvmfNode{}, &v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{}).WithObjects(objects...).Build()
	inventoried := &InventoryWatch{}
	inventoried.current.Store(found)
	records, err := OpenRecords(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	return c, func() {
		t.Helper()
		metrics, err := NewMetrics(prometheus.NewRegistry())
		g.Expect(err).NotTo(HaveOccurred())
		r := NewReconciler(Config{
			NodeName: nodeName, Client: c, Recorder: &events.FakeRecorder{}, Inventory: inventoried, Records: records, Metrics: metrics,
			Targets: NewTargetWatch(clock.RealClock{}), Clearing: NewClearing(), Clock: clock.RealClock{}, Resync: defaultResync,
			Engines: func(v1alpha1.Engine) (engine.Engine, error) { return target, nil },
		})
		_, err = r.Reconcile(t.Context(), reconcile.Request{})
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// expectMeasured drives, which are pools with volumes.
func expectMeasured(t *testing.T, target engine.Measured, drives []v1alpha1.PlannedDrive) {
	t.Helper()
	g := NewWithT(t)
	stats, err := target.Statistics(t.Context(), []engine.ID{id(1)}, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stats.Pools).To(HaveLen(len(drives)))
	g.Expect(stats.Pools).To(HaveEach(And(HaveField("Write.Bytes", BeNumerically(">", 4096)), HaveField("Write.Seconds", BeNumerically(">", 0)))), "filesystems were made")
	g.Expect(stats.Volumes).To(BeEmpty(), "the kernel counts nothing of a file")
	for _, d := range drives {
		health, err := target.DriveHealth(t.Context(), d.ID)
		g.Expect(err).NotTo(HaveOccurred())
		// What QEMU's drives say of themselves.
		g.Expect(health).To(And(HaveField("TemperatureCelsius", 50.0), HaveField("UsedRatio", 0.0), HaveField("WrittenBytes", BeNumerically(">", 0))), "%s: %+v", d.ID, health)
	}
	_, err = target.DriveHealth(t.Context(), "another")
	g.Expect(err).To(MatchError(engine.ErrUnavailable))
}

// TestWithTheKernelsTarget has the agent, the real inventory and the real engine, on a machine of
// their own: its blank NVMe drives are taken. Only the API server is not real.
//
//	CGO_ENABLED=0 go test -c -tags lab -o $WEFT_LAB_DIR/share/agent.test ./dataplane/agent
//	weft-lab exec node1 -- /host-share/agent.test -test.v
func TestWithTheKernelsTarget(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	found, err := inventory.Discover(ctx, inventory.Host{Addresses: inventory.Netlink{}, Prober: inventory.Blkid{}})
	g.Expect(err).NotTo(HaveOccurred())
	loopback := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 4499}
	node := testNode()
	node.Spec.Plan.Portals, node.Spec.Plan.Drives = []v1alpha1.PlannedPortal{planned(loopback)}, nil
	for _, d := range found.Drives {
		if d.NVMe && (d.Content == v1alpha1.ContentBlank || d.Content == v1alpha1.ContentWeft) {
			node.Spec.Plan.Drives = append(node.Spec.Plan.Drives, v1alpha1.PlannedDrive{ID: d.ID, Serial: d.Serial})
		}
	}
	g.Expect(node.Spec.Plan.Drives).NotTo(BeEmpty(), "the machine has no blank NVMe drive: %+v", found.Drives)

	small := func(v *v1alpha1.NvmfReplica) {
		ofSize("64Mi")(v)
		held(v)
	}
	kernel := nvmet.New(nvmet.Options{StateDir: "/var/tmp/weft-agent-test"})
	target := &changes{Engine: kernel}
	c, run := onKernel(t, target, found, node, testVolume(1, small, withHosts(hostA)), testVolume(2, small), testVolume(4, small, fromSnapshot("s3")),
		testSnapshot(3, "v1", func(s *v1alpha1.NvmfSnapshot) { held(s) }))
	volume := func(n int) *v1alpha1.NvmfReplica {
		t.Helper()
		v := &v1alpha1.NvmfReplica{}
		g.Expect(c.Get(ctx, client.ObjectKey{Name: fmt.Sprintf("v%d", n)}, v)).To(Succeed())
		return v
	}

	run()
	g.Expect(c.Get(ctx, client.ObjectKey{Name: nodeName}, node)).To(Succeed())
	g.Expect(said(node.Status.Conditions)).To(Equal(map[string]string{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected", "PortalsReady": "True/AsExpected", "RestartNeeded": "False/AsExpected", "RestoreSuspected": "False/AsExpected", "BuffersSufficient": "True/NotNeeded", "WritesDurable": "True/AsExpected"}), "%+v", node.Status.Conditions)
	for _, n := range []int{1, 2, 4} {
		g.Expect(said(volume(n).Status.Conditions)).To(HaveKeyWithValue("Ready", "True/AsExpected"), "%+v", volume(n).Status)
	}
	g.Expect(volume(1).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}))
	g.Expect(volume(1).Status.Portals).To(Equal([]v1alpha1.Portal{loopback}))

	expectMeasured(t, kernel, node.Spec.Plan.Drives)

	target.made = nil
	run()
	g.Expect(target.made).To(BeEmpty(), "another agent finds nothing to do")

	grown := volume(1)
	ofSize("128Mi")(grown)
	withHosts(hostB)(grown)
	g.Expect(c.Update(ctx, grown)).To(Succeed())
	run()
	g.Expect(volume(1).Status.Size.Value()).To(Equal(int64(128 << 20)))
	g.Expect(volume(1).Status.Hosts).To(HaveLen(2))
	state, err := target.Gather(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(state.Volumes).To(ContainElement(And(HaveField("ID", id(1)), HaveField("SizeBytes", v1alpha1.WithOverhead(128<<20)))))
	target.made = nil
	run()
	g.Expect(target.made).To(BeEmpty())

	for _, n := range []int{1, 2, 4} {
		v := volume(n)
		v.Spec.Hosts, v.Spec.DeletionMark = nil, string(v.UID)
		g.Expect(c.Update(ctx, v)).To(Succeed())
		g.Expect(c.Delete(ctx, v)).To(Succeed())
	}
	snapshot := &v1alpha1.NvmfSnapshot{}
	g.Expect(c.Get(ctx, client.ObjectKey{Name: "s3"}, snapshot)).To(Succeed())
	snapshot.Spec.DeletionMark = string(snapshot.UID)
	g.Expect(c.Update(ctx, snapshot)).To(Succeed())
	g.Expect(c.Delete(ctx, snapshot)).To(Succeed())
	run()
	left := &v1alpha1.NvmfReplicaList{}
	g.Expect(c.List(ctx, left)).To(Succeed())
	g.Expect(left.Items).To(BeEmpty())
	state, err = target.Gather(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(state.Volumes).To(BeEmpty())
	g.Expect(state.Snapshots).To(BeEmpty())
	g.Expect(state.Exports).To(BeEmpty())
	g.Expect(target.Engine.ClosePortals(ctx, []v1alpha1.Portal{loopback})).To(HaveExactElements(BeNil()))
}
