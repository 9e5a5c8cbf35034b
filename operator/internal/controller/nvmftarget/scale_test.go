// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

// volumesPerNode of a fleet.
const volumesPerNode = 20

// newFleet of storage nodes that all serve one target, in a store, with a Reconciler that has nothing to do.
func newFleet(t testing.TB, nodes int) (*apiserver.Fleet, *Reconciler, *session) {
	t.Helper()
	clock := newClock()
	s := newStore(t)
	f := apiserver.PaperFleet("fast", nodes, volumesPerNode*nodes)
	s.put(f.NewTarget(f.Target))
	for i := range nodes {
		s.put(f.KubernetesNode(i))
		node := f.NvmfNode(i)
		meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionAgentAlive, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(clock.Now()),
		})
		s.put(node)
	}
	for i := range f.Volumes {
		volume, replica := f.NvmfVolume(i)
		s.put(volume)
		s.put(replica)
	}
	r, at := s.reconciler(clock)
	settle(t, r, at, f.Target)
	for i := range nodes { // their agents follow the plans
		change(s, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: f.Node(i)}}, func(n *v1alpha1.NvmfNode) { n.Status.ObservedGeneration = n.Generation })
	}
	settle(t, r, at, f.Target)
	target := &v1alpha1.NvmfTarget{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: f.Target}, target); err != nil || int(target.Status.Nodes.Ready) != nodes {
		t.Fatalf("%+v, %v: want %d nodes ready", target.Status, err, nodes)
	}
	return f, r, at
}

// report another inventory for a node, as its agent does when a drive is replaced.
func report(f *apiserver.Fleet, at *session, node, i int) {
	change(at.store, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: f.Node(node)}}, func(n *v1alpha1.NvmfNode) {
		n.Status.Inventory.KernelVersion = fmt.Sprint("6.12.", i)
	})
}

// TestOneNodesReportReadsOneNode: the node's objects, and the targets, however many other nodes there are.
func TestOneNodesReportReadsOneNode(t *testing.T) {
	for _, nodes := range []int{3, 30} {
		f, r, at := newFleet(t, nodes)
		report(f, at, 1, 1)
		at.given, at.copied = 0, 0
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: f.Target}}); err != nil {
			t.Fatal(err)
		}
		// Node, NvmfNode and replicas; and the target, which is got and listed.
		if want := 2 + volumesPerNode + 2; at.given != want || at.copied != 2 {
			t.Errorf("of %d nodes: %d objects were read, and %d of them copied; want %d and 2", nodes, at.given, at.copied, want)
		}
	}
}

// listed counts what is listed from the API server, by kind.
type listed struct {
	client.Reader
	of map[string]int
}

func (l *listed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := l.Reader.List(ctx, list, opts...)
	l.of[strings.TrimPrefix(fmt.Sprintf("%T", list), "*")] += meta.LenList(list)
	return err
}

// TestTurnReadsTheDataOfItsOwnNodeAlone: replicas are most of what there is, and only those on the node that gets the
// turn have to be as the API server has them.
func TestTurnReadsTheDataOfItsOwnNodeAlone(t *testing.T) {
	for _, nodes := range []int{3, 30} {
		f, r, at := newFleet(t, nodes)
		for i := range nodes { // a NIC of their own carries their portals
			change(at.store, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: f.Node(i)}}, func(n *v1alpha1.NvmfNode) {
				n.Status.Inventory.NICs[0].Addresses = []string{n.Status.Portals[0].Address + "/8"}
			})
		}
		settle(t, r, at, f.Target)
		change(at.store, f.NewTarget(f.Target), func(t *v1alpha1.NvmfTarget) {
			t.Generation++
			t.Spec.Tuning = &v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: new(int32(1024))}}
		})
		live := &listed{r.Live, map[string]int{}}
		r.Live = live
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: f.Target}}); err != nil {
			t.Fatal(err)
		}
		at.apply()
		target := &v1alpha1.NvmfTarget{}
		if err := at.Get(t.Context(), client.ObjectKey{Name: f.Target}, target); err != nil || len(target.Status.Rollout.Updating) != 1 {
			t.Fatalf("%+v, %v: want one node to have a turn", target.Status, err)
		}
		if got := live.of["v1alpha1.NvmfReplicaList"]; got != volumesPerNode {
			t.Errorf("of %d nodes: %d replicas were read, want %d", nodes, got, volumesPerNode)
		}
		if got := live.of["v1alpha1.NvmfNodeList"]; got != nodes {
			t.Errorf("%d of %d nodes were read: any may be one that does not serve", got, nodes)
		}
	}
}

// BenchmarkOneNode is what the operator does when one node of a target has reported something. It counts the objects
// that are read from the cache for it, and those of them that are copied.
func BenchmarkOneNode(b *testing.B) {
	for _, nodes := range []int{100, 500, 2000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			f, r, at := newFleet(b, nodes)
			at.given, at.copied = 0, 0
			cpu := apiserver.CPUTime()
			for i := 0; b.Loop(); i++ {
				report(f, at, i%nodes, i)
				if _, err := r.Reconcile(b.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: f.Target}}); err != nil {
					b.Fatal(err)
				}
				if n := at.apply(); n > 0 {
					b.Fatalf("%d writes", n)
				}
			}
			b.ReportMetric(float64((apiserver.CPUTime()-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(at.given)/float64(b.N), "read/op")
			b.ReportMetric(float64(at.copied)/float64(b.N), "copied/op")
		})
	}
}
