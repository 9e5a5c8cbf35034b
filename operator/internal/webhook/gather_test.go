// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

var pools = []string{"a", "b", "c"}

// proposal of a target that selects the nodes of a pool.
func proposal(name, pool string) *v1alpha1.NvmfTarget {
	return &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Finalizers: []string{v1alpha1.TargetFinalizer}},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine: v1alpha1.EngineNvmet, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}, OverProvisioningPercent: 200,
			Transports: []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: 4420}},
			Devices:    v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + name, Size: resource.MustParse("10Gi")}},
		},
	}
}

// cluster is a reader of objects as the manager's cache has them. It counts the lists of replicas of one node.
func cluster(t *testing.T, perNode *int, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1alpha1.NvmfReplica{}, "spec.node", func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfReplica).Spec.Node} }).
		WithIndex(&v1alpha1.NvmfSnapshot{}, "spec.node", func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfSnapshot).Spec.Node} }).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.NvmfReplicaList); ok && len(opts) > 1 {
				*perNode++
			}
			return c.List(ctx, list, opts...)
		}}).Build()
}

// kubernetesNode of a pool, and what its agent reports.
func kubernetesNode(name, pool string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
}

func nvmfNode(name, target string, modules ...string) *v1alpha1.NvmfNode {
	n := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: target}}
	if target != "" {
		n.Spec.Plan = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}
	}
	n.Status.Inventory = &v1alpha1.Inventory{Modules: modules}
	n.Status.Pools = []v1alpha1.PoolStatus{{Device: "d", Ready: true, Total: new(resource.MustParse("10Gi")), Promised: new(resource.MustParse("16Gi"))}}
	return n
}

var capable = []string{"loop", "nvmet", "nvmet_tcp", "xfs"}

// randomCluster has a few targets, and nodes of which some lack something, are another target's, or have data.
func randomCluster(r *rand.Rand) []client.Object {
	var objects []client.Object
	names := []string{"t0", "t1", "t2"}[:1+r.IntN(3)]
	for i, name := range names {
		target := proposal(name, pools[r.IntN(len(pools))])
		target.CreationTimestamp = metav1.NewTime(time.Date(2026, 11, 1+i, 0, 0, 0, 0, time.UTC))
		if r.IntN(3) == 0 {
			target.DeletionTimestamp = new(metav1.NewTime(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)))
		}
		objects = append(objects, target)
	}
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprint("n", i)
		if r.IntN(8) > 0 {
			objects = append(objects, kubernetesNode(name, pools[r.IntN(len(pools))]))
		}
		if r.IntN(8) > 0 {
			modules := capable
			if r.IntN(2) == 0 {
				modules = nil
			}
			objects = append(objects, nvmfNode(name, append(names, "", "gone")[r.IntN(len(names)+2)], modules...))
		}
		for j := range max(0, r.IntN(5)-2) {
			objects = append(objects, &v1alpha1.NvmfReplica{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", j)}, Spec: v1alpha1.NvmfReplicaSpec{Node: name, Target: names[r.IntN(len(names))]},
			})
		}
		if r.IntN(4) == 0 {
			objects = append(objects, &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name + "-s"}, Spec: v1alpha1.NvmfSnapshotSpec{Node: name}})
		}
	}
	return objects
}

// TestJudgesAsIfAllWereGathered compares the answers in random clusters with those from all nodes, judged before and
// after.
func TestJudgesAsIfAllWereGathered(t *testing.T) {
	refused, warned := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 17))
		var perNode int
		reader := cluster(t, &perNode, randomCluster(r)...)
		all, err := gather.All(t.Context(), reader)
		if err != nil {
			t.Fatal(err)
		}
		target := proposal("new", pools[r.IntN(len(pools))])
		var old *v1alpha1.NvmfTarget
		if r.IntN(3) > 0 {
			old = all.Targets[r.IntN(len(all.Targets))].DeepCopy()
			target = old.DeepCopy()
			target.Spec.NodeSelector.MatchLabels["pool"] = pools[r.IntN(len(pools))]
			target.Spec.OverProvisioningPercent = 100 + 100*r.Int32N(2)
		}
		nodes := gather.Claims(all.Nodes)
		after := claim.Prospects(target, all.Targets, nodes)
		worse := old == nil || claim.Worse(claim.Prospects(old, all.Targets, nodes), after)
		want, wantErr := response(target, after, func() bool { return worse })
		if wantErr == nil && old != nil && target.Spec.OverProvisioningPercent < old.Spec.OverProvisioningPercent {
			want = append(want, overPromised(target, nodes)...)
		}
		got, gotErr := (&Targets{Reader: reader}).judge(t.Context(), old, target)
		if diff := cmp.Diff([]string(want), []string(got)); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
			t.Fatalf("seed %d: %v, want %v: %s", seed, gotErr, wantErr, diff)
		}
		if gotErr != nil {
			refused++
		} else if len(got) > 0 {
			warned++
		}
	}
	if refused < 20 || warned < 100 {
		t.Errorf("%d refused, and %d warned of: the clusters are too alike", refused, warned)
	}
}

// TestReadsOnlyWhatTheAnswerIsAbout: of the nodes that the target has nothing to do with, no replicas are asked for.
func TestReadsOnlyWhatTheAnswerIsAbout(t *testing.T) {
	objects := []client.Object{proposal("t0", "a")}
	for i := range 20 {
		name := fmt.Sprint("n", i)
		objects = append(objects, kubernetesNode(name, pools[min(i/2, 2)]), nvmfNode(name, "", capable...))
	}
	for name, test := range map[string]struct {
		change  func(*v1alpha1.NvmfTarget)
		objects []client.Object
		want    int
	}{
		"the nodes that it selects":          {func(t *v1alpha1.NvmfTarget) { t.Spec.OverProvisioningPercent = 300 }, nil, 2},
		"those that it selected before":      {func(t *v1alpha1.NvmfTarget) { t.Spec.NodeSelector.MatchLabels["pool"] = "b" }, nil, 4},
		"those that serve it, without label": {func(t *v1alpha1.NvmfTarget) { t.Spec.OverProvisioningPercent = 300 }, []client.Object{nvmfNode("kept", "t0", capable...)}, 3},
	} {
		var perNode int
		v := &Targets{Reader: cluster(t, &perNode, slices.Concat(objects, test.objects)...)}
		old := proposal("t0", "a")
		target := old.DeepCopy()
		test.change(target)
		if _, err := v.judge(t.Context(), old, target); err != nil {
			t.Fatal(err)
		}
		if perNode != test.want {
			t.Errorf("%s: replicas of %d nodes were read, want %d", name, perNode, test.want)
		}
	}
}
