// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// lab is one node: an engine with two drives, its objects in a real API server, and agents that come and go.
type lab struct {
	*WithT
	t      *testing.T
	server *server
	admin  client.Client
	node   string
	target *enginetest.Engine
	// records outlive agents, as their folder on the node does.
	records  *Records
	stateDir string
	// identity of the node.
	identity *dhchap.Identity

	mu        sync.Mutex
	events    []string
	writes    int
	inventory *v1alpha1.Inventory
	// past is what the API server shows of NvmfReplicas instead of what is, when it is set.
	past []v1alpha1.NvmfReplica
	// beforeWrite is called before each write to the API server, when it is set.
	beforeWrite func(ctx context.Context) error
}

const drivePathA, drivePathB = "/dev/nvme0n1", "/dev/nvme1n1"

// newLab with an NvmfNode that is claimed, as newly found.
func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabOn(t, apiServer(t))
}

func newLabOn(t *testing.T, s *server) *lab {
	t.Helper()
	l := &lab{
		WithT: NewWithT(t), t: t, server: s, admin: s.Admin, inventory: testInventory(), stateDir: t.TempDir(),
		node: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())),
		target: enginetest.New(
			enginetest.Device{Path: drivePathA, SizeBytes: 100 * gib}, enginetest.Device{Path: drivePathB, SizeBytes: 50 * gib}),
	}
	var err error
	l.identity, err = dhchap.NewIdentity()
	l.Expect(err).NotTo(HaveOccurred())
	l.openRecords()
	t.Cleanup(l.closeRecords)
	l.reconcile(l.agent())
	l.claim()
	return l
}

// openRecords, which one process at a time may.
func (l *lab) openRecords() {
	l.t.Helper()
	var err error
	l.records, err = OpenRecords(filepath.Join(l.stateDir, "agent"))
	l.Expect(err).NotTo(HaveOccurred())
}

func (l *lab) closeRecords() {
	l.t.Helper()
	l.Expect(l.records.Close()).To(Succeed())
}

// claim the node, as the operator does.
func (l *lab) claim() {
	node := l.nvmfNode()
	node.Spec = testNode().Spec
	l.Expect(l.admin.Update(l.t.Context(), node)).To(Succeed())
}

// Current and Eventf make the lab the inventory and the event recorder of its agents.
func (l *lab) Current() *v1alpha1.Inventory { return l.inventory }

func (l *lab) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

// agent that was just started, with its role and nothing remembered.
func (l *lab) agent() *Reconciler {
	l.t.Helper()
	plain, err := client.NewWithWatch(l.server.agentConfig, client.Options{Scheme: l.server.Admin.Scheme()})
	l.Expect(err).NotTo(HaveOccurred())
	counting := interceptor.NewClient(plain, interceptor.Funcs{
		// The API server is shared by all tests: an agent's cache holds its own node's objects only.
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if volumes, ok := list.(*v1alpha1.NvmfReplicaList); ok && l.past != nil {
				volumes.Items = l.past
				return nil
			}
			return c.List(ctx, list, append(opts, client.MatchingFields{"spec.node": l.node})...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := l.write(ctx); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			if err := l.write(ctx); err != nil {
				return err
			}
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
	})
	metrics, err := NewMetrics(prometheus.NewRegistry())
	l.Expect(err).NotTo(HaveOccurred())
	return NewReconciler(Config{
		Version: "1.2.3", NodeName: l.node, Client: counting, Recorder: l, Inventory: l, Records: l.records, Identity: l.identity, Targets: NewTargetWatch(clock.RealClock{}), Clearing: NewClearing(), Metrics: metrics, Clock: clock.RealClock{},
		Engines: func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil },
		Resync:  defaultResync,
	})
}

func (l *lab) write(ctx context.Context) error {
	l.mu.Lock()
	l.writes++
	hook := l.beforeWrite
	l.mu.Unlock()
	if hook != nil {
		return hook(ctx)
	}
	return ctx.Err()
}

// reconcile to success.
func (l *lab) reconcile(r *Reconciler) reconcile.Result {
	l.t.Helper()
	result, err := r.Reconcile(l.t.Context(), reconcile.Request{})
	l.Expect(err).NotTo(HaveOccurred())
	return result
}

func (l *lab) nvmfNode() *v1alpha1.NvmfNode {
	l.t.Helper()
	var node v1alpha1.NvmfNode
	l.Expect(l.admin.Get(l.t.Context(), client.ObjectKey{Name: l.node}, &node)).To(Succeed())
	return &node
}

// create volume number n of this lab, as the CSI controller does.
func (l *lab) create(n int, changes ...func(*v1alpha1.NvmfReplica)) {
	l.t.Helper()
	v := testVolume(n, changes...)
	v.Name, v.Spec.Node, v.Generation = l.name(n), l.node, 0
	v.Spec.SubsystemNQN = v.CurrentSubsystem()
	v.Finalizers = []string{v1alpha1.EngineFinalizer}
	l.Expect(l.admin.Create(l.t.Context(), v)).To(Succeed())
}

func (l *lab) createSnapshot(n int, volume string, change ...func(*v1alpha1.NvmfSnapshot)) {
	l.t.Helper()
	s := testSnapshot(n, volume, change...)
	s.Name, s.Spec.Node, s.Generation = l.name(n), l.node, 0
	s.Finalizers = []string{v1alpha1.EngineFinalizer}
	l.Expect(l.admin.Create(l.t.Context(), s)).To(Succeed())
}

func (l *lab) name(n int) string { return fmt.Sprintf("%s-%d", l.node, n) }

func (l *lab) volume(n int) *v1alpha1.NvmfReplica {
	l.t.Helper()
	var v v1alpha1.NvmfReplica
	l.Expect(l.admin.Get(l.t.Context(), client.ObjectKey{Name: l.name(n)}, &v)).To(Succeed())
	return &v
}

// change a volume's spec, as the CSI controller does. An agent that runs may write the status at the same time.
func (l *lab) change(n int, change func(*v1alpha1.NvmfReplica)) {
	l.t.Helper()
	l.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		v := l.volume(n)
		change(v)
		return l.admin.Update(l.t.Context(), v)
	})).To(Succeed())
}

// delete a volume with its data, as the CSI controller does.
func (l *lab) delete(n int) {
	l.t.Helper()
	l.change(n, (*v1alpha1.NvmfReplica).Mark)
	l.Expect(l.admin.Delete(l.t.Context(), l.volume(n))).To(Succeed())
}

// changes that the engine was asked for. Start is none of them: with nothing to do it only reads.
func (l *lab) changes() []enginetest.Call {
	return slices.DeleteFunc(l.target.Changes(), func(c enginetest.Call) bool { return c.Method == enginetest.Start })
}

// state of the engine.
func (l *lab) state() engine.State {
	l.t.Helper()
	s, err := l.target.Gather(l.t.Context())
	l.Expect(err).NotTo(HaveOccurred())
	return s
}

func (l *lab) says(n int) map[string]string {
	l.t.Helper()
	return said(l.volume(n).Status.Conditions)
}
