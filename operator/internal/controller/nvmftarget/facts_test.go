// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/test/apiserver"
)

// world is a small cluster to which something happens.
type world struct {
	*rand.Rand
	*store
	clock *testingclock.FakePassiveClock
	fleet *apiserver.Fleet
	pods  manifest.TargetPods
}

const worldNodes = 4

var (
	worldTargets  = []string{"t0", "t1", "t2"}
	worldReplicas = []string{"v0-0", "v1-0", "v2-0", "v3-0"}
)

// newWorld has some nodes and targets.
func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 3)), store: newStore(t), clock: newClock(), fleet: apiserver.PaperFleet("n", worldNodes, 0),
	}
	for range 2 * worldNodes {
		happenings["a Node comes or goes"](w)
		happenings["an agent comes"](w)
	}
	happenings["a target is made"](w)
	return w
}

// happenings by name; each answers whether it could happen.
var happenings = map[string]func(*world) bool{
	"a target is made": func(w *world) bool {
		target := w.fleet.NewTarget(w.one(worldTargets...))
		if w.find(target) != nil {
			return false
		}
		target.CreationTimestamp = metav1.NewTime(w.clock.Now())
		target.Spec.NodeSelector = w.selector()
		if w.IntN(3) > 0 {
			target.Spec.Engine = v1alpha1.EngineSPDK
		}
		target.Spec.OverProvisioningPercent = 200
		target.Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate}
		w.put(target)
		return true
	},
	"a target is changed": func(w *world) bool {
		return w.target(func(t *v1alpha1.NvmfTarget) {
			t.Generation++
			switch w.IntN(6) {
			case 0:
				t.Spec.NodeSelector = w.selector()
			case 1:
				t.Spec.OverProvisioningPercent = int32(100 * (1 + w.IntN(2)))
			case 2:
				t.Spec.Tuning = &v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: new(int32(1024 << w.IntN(3)))}}
			case 3:
				t.Spec.Transports[0].MaxIOQueues = int32(4 + w.IntN(4))
			default:
				t.Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate, Paused: w.IntN(5) == 0}
				if w.IntN(3) == 0 {
					t.Spec.UpdateStrategy.Type = v1alpha1.UpdateOnDelete
				} else if w.IntN(2) == 0 {
					t.Spec.UpdateStrategy.RollingUpdate = &v1alpha1.RollingUpdate{MaxUnavailable: new(intstr.FromInt32(int32(1 + w.IntN(3))))}
				}
			}
		})
	},
	"a target is deleted": func(w *world) bool {
		return w.IntN(6) == 0 && w.target(func(t *v1alpha1.NvmfTarget) {
			if t.DeletionTimestamp.IsZero() {
				t.DeletionTimestamp = new(metav1.NewTime(w.clock.Now()))
			}
		})
	},
	"a Node comes or goes": func(w *world) bool {
		kube := w.fleet.KubernetesNode(w.IntN(worldNodes))
		kube.Status.Images = nil // as from the manager's cache
		if is := w.find(kube); is != nil {
			return w.IntN(5) == 0 && w.gone(is)
		}
		w.put(kube)
		return true
	},
	"a Node changes": func(w *world) bool {
		return alter(w, w.fleet.KubernetesNode(w.IntN(worldNodes)), func(n *corev1.Node) {
			switch w.IntN(4) {
			case 0:
				n.Labels["pool"] = w.one("a", "b")
			case 1:
				n.Status.Conditions[0].Status = corev1.ConditionStatus(w.one("True", "False"))
				n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.clock.Now())
			case 2:
				n.Status.Allocatable = corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(w.one("8", "64")), corev1.ResourceMemory: resource.MustParse("512Gi"), "hugepages-2Mi": resource.MustParse(w.one("0", "64Gi")),
				}
			case 3:
				n.Status.Conditions = append(n.Status.Conditions[:4], corev1.NodeCondition{Type: v1alpha1.ConditionAuthenticationUnavailable, Status: corev1.ConditionStatus(w.one("True", "False")), Message: "its kernel"})
			}
		})
	},
	"an agent comes": func(w *world) bool {
		node := w.nvmfNode()
		if w.find(node) != nil {
			return false
		}
		node.Spec = v1alpha1.NvmfNodeSpec{}
		for i := range node.Status.Inventory.NUMANodes {
			node.Status.Inventory.NUMANodes[i].Hugepages = []v1alpha1.HugepagePool{{SizeBytes: 2 << 20, Total: 40960, Free: 40960}}
		}
		nic := &node.Status.Inventory.NICs[0] // of the portal
		nic.Addresses[0] += "/8"
		w.fine(node)
		w.put(node)
		return true
	},
	"an NvmfNode is removed": func(w *world) bool {
		node := w.find(w.nvmfNode())
		return node != nil && w.IntN(20) == 0 && w.gone(node)
	},
	"an agent applies the plan": func(w *world) bool {
		return alter(w, w.nvmfNode(), func(n *v1alpha1.NvmfNode) { w.fine(n) })
	},
	"an agent reports": func(w *world) bool { return alter(w, w.nvmfNode(), w.report) },
	"an agent reports what matters to nobody": func(w *world) bool {
		return alter(w, w.nvmfNode(), func(n *v1alpha1.NvmfNode) { n.Status.AgentVersion = fmt.Sprint("1.2.", w.IntN(9)) })
	},
	"a person drops a drive": func(w *world) bool {
		return alter(w, w.nvmfNode(), func(n *v1alpha1.NvmfNode) {
			n.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: n.Status.Inventory.Drives[0].ID}}
			n.Generation++
		})
	},
	"a volume comes or goes": func(w *world) bool {
		volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: w.one("v0", "v1", "v2")}}
		if is := w.find(volume); is != nil {
			return w.gone(is)
		}
		volume.Spec.Target = w.one(worldTargets...)
		w.put(volume)
		return true
	},
	"a replica comes or goes": func(w *world) bool {
		replica := w.replica()
		if is := w.find(replica); is != nil {
			return w.gone(is)
		}
		replica.Spec = v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: strings.TrimSuffix(replica.Name, "-0")}, Node: w.fleet.Node(w.IntN(worldNodes)), Target: w.one(worldTargets...), Size: resource.MustParse(w.one("1Gi", "2Gi")),
		}
		w.put(replica)
		return true
	},
	"a replica changes": func(w *world) bool {
		return alter(w, w.replica(), func(r *v1alpha1.NvmfReplica) {
			r.Status.Device = apiserver.FleetPool
			r.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionStatus(w.one("True", "False")), Reason: w.one("AsExpected", v1alpha1.ReasonVolumeLost, v1alpha1.ReasonPoolFailed)},
				{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse},
			}
		})
	},
	"a snapshot comes, changes or goes": func(w *world) bool {
		snapshot := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: w.one("s0", "s1")}}
		if is := w.find(snapshot); is != nil {
			return w.IntN(2) == 0 && w.gone(is) || alter(w, snapshot, func(s *v1alpha1.NvmfSnapshot) {
				s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
				s.Status.Allocated = resource.NewQuantity(int64(1+w.IntN(3))<<30, resource.BinarySI)
			})
		}
		snapshot.Spec = v1alpha1.NvmfSnapshotSpec{Node: w.fleet.Node(w.IntN(worldNodes)), Replica: "v0-0"}
		w.put(snapshot)
		return true
	},
	"a pod comes or goes": func(w *world) bool {
		node, ok := w.find(w.nvmfNode()).(*v1alpha1.NvmfNode)
		if !ok {
			return false
		}
		pod := w.pod(w.one(manifest.TargetPodName(node.Name), manifest.PullPodName(node.Name)), node, w.one("target:1", "target:2"), w.hash(node), corev1.ConditionFalse)
		if is := w.find(pod); is != nil {
			return w.IntN(3) == 0 && w.gone(is)
		}
		if w.IntN(5) == 0 {
			pod.OwnerReferences[0].UID = "another"
		}
		w.put(pod)
		return true
	},
	"a pod changes": func(w *world) bool {
		name := w.fleet.Node(w.IntN(worldNodes))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pods.Namespace, Name: w.one(manifest.TargetPodName(name), manifest.PullPodName(name))}}
		return alter(w, pod, func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPhase(w.one("Running", "Running", "Succeeded"))
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionStatus(w.one("True", "True", "False")), LastTransitionTime: metav1.NewTime(w.clock.Now()),
			}}
		})
	},
	"all is well for a while": func(w *world) bool { // else a turn would be rare
		for i := range worldNodes {
			node := w.fleet.NvmfNode(i)
			if !alter(w, node, w.fine) {
				continue
			}
			node = w.find(node).(*v1alpha1.NvmfNode)
			alter(w, w.fleet.KubernetesNode(i), func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
			w.put(w.pod(manifest.TargetPodName(node.Name), node, "target:2", w.hash(node), corev1.ConditionTrue))
		}
		for _, name := range worldReplicas {
			alter(w, &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: name}}, func(r *v1alpha1.NvmfReplica) {
				r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse}}
			})
		}
		w.clock.SetTime(w.clock.Now().Add(time.Minute))
		return true
	},
	"time passes": func(w *world) bool {
		w.clock.SetTime(w.clock.Now().Add([]time.Duration{time.Second, 15 * time.Second, 2 * time.Hour}[w.IntN(3)]))
		return true
	},
}

func (w *world) one(of ...string) string { return of[w.IntN(len(of))] }

func (w *world) selector() metav1.LabelSelector {
	if w.IntN(3) == 0 {
		return metav1.LabelSelector{MatchLabels: map[string]string{"pool": w.one("a", "b")}}
	}
	return metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/fleet": "n"}}
}

func (w *world) nvmfNode() *v1alpha1.NvmfNode { return w.fleet.NvmfNode(w.IntN(worldNodes)) }

func (w *world) replica() *v1alpha1.NvmfReplica {
	return &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: w.one(worldReplicas...)}}
}

func (w *world) gone(o client.Object) bool {
	w.remove(o)
	return true
}

// someTarget that there is, or a name that none may have.
func (w *world) someTarget() string {
	name := w.one(worldTargets...)
	for range 2 {
		if w.find(w.fleet.NewTarget(name)) == nil {
			name = w.one(worldTargets...)
		}
	}
	return name
}

func (w *world) target(how func(*v1alpha1.NvmfTarget)) bool {
	return alter(w, w.fleet.NewTarget(w.one(worldTargets...)), how)
}

// alter an object if there is one.
func alter[T client.Object](w *world, o T, how func(T)) bool {
	if w.find(o) == nil {
		return false
	}
	change(w.store, o, how)
	return true
}

// pod of a node.
func (w *world) pod(name string, node *v1alpha1.NvmfNode, image, hash string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.pods.Namespace, Name: name, Labels: manifest.TargetPodLabels(), Annotations: map[string]string{manifest.StartupAnnotation: hash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "weft.storage/v1alpha1", Kind: "NvmfNode", Name: node.Name, UID: node.UID, Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(w.clock.Now())}}},
	}
}

// hash that the node's target pod would have with its present plan, or an earlier one.
func (w *world) hash(node *v1alpha1.NvmfNode) string {
	if node.Spec.Plan == nil || node.Spec.Plan.SPDK == nil || w.IntN(3) == 0 {
		return "earlier"
	}
	pod, err := w.pods.Pod(node)
	if err != nil {
		w.t.Fatal(err)
	}
	return pod.Annotations[manifest.StartupAnnotation]
}

// fine node, whose agent, and whose target pod, follow the plan.
func (w *world) fine(n *v1alpha1.NvmfNode) {
	n.Status.ObservedGeneration = n.Generation
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAgentAlive, v1alpha1.ConditionTuned, v1alpha1.ConditionTargetPodReady} {
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected, ObservedGeneration: n.Generation, LastTransitionTime: metav1.NewTime(w.clock.Now()),
		})
	}
}

func (w *world) report(n *v1alpha1.NvmfNode) {
	n.Status.Inventory = n.Status.Inventory.DeepCopy()
	pool := &n.Status.Pools[0]
	switch w.IntN(7) {
	case 0:
		n.Status.Inventory.NICs[0].Up = w.IntN(2) == 0
	case 1:
		n.Status.Inventory.Modules = []string{"loop", "nvmet", "nvmet_tcp", "xfs"}[:2+2*w.IntN(2)]
	case 2:
		pool.Ready, pool.Reason = w.IntN(2) == 0, v1alpha1.ReasonPoolFailed
	case 3:
		pool.Promised = resource.NewQuantity(apiserver.PoolBytes*int64(1+w.IntN(3)), resource.BinarySI)
	case 4:
		n.Status.Capacity.Free = resource.NewQuantity(w.Int64N(1<<40), resource.BinarySI)
	case 5:
		n.Status.Engine = &v1alpha1.EngineStatus{Type: v1alpha1.EngineNvmet, Authentication: w.IntN(2) == 0}
	case 6:
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{
			Type:   w.one(v1alpha1.ConditionReady, v1alpha1.ConditionAgentAlive, v1alpha1.ConditionTuned, v1alpha1.ConditionTargetPodReady),
			Status: metav1.ConditionFalse, Reason: w.one(v1alpha1.ReasonPoolFailed, v1alpha1.ReasonPodOutdated), LastTransitionTime: metav1.NewTime(w.clock.Now()),
		})
	}
}

// stored is a copy of all that is in the store.
func (w *world) stored() map[string]client.Object {
	all := map[string]client.Object{}
	for kind, indexer := range w.kinds {
		for _, o := range indexer.List() {
			is := o.(client.Object)
			all[kind.String()+" "+is.GetName()] = is.DeepCopyObject().(client.Object)
		}
	}
	return all
}

// TestKeptConclusionsAreThoseOfOneWhoLooksAtEverything lets random things happen to a cluster, and reconciles it with
// one Reconciler that has been there all the time and with one that has just been started. They must write the same:
// specs, conditions, statuses, finalizers, budgets and Events, byte by byte; and neither may write to what is the
// cache's own. Each seed is one history.
func TestKeptConclusionsAreThoseOfOneWhoLooksAtEverything(t *testing.T) {
	ctx := log.IntoContext(t.Context(), logr.Discard())
	wrote := map[string]int{}
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		kept, at := w.reconciler(w.clock)
		w.pods = kept.Pods
		var history []string
		for range 150 {
			history = append(history, w.happen())
			if w.IntN(3) == 0 {
				continue // several things at once
			}
			req := ctrl.Request{NamespacedName: types.NamespacedName{Name: w.someTarget()}}
			before := w.stored()
			got, gotErr := kept.Reconcile(ctx, req)
			started, plain := w.reconciler(w.clock)
			w.told = w.told[:1] // it hears of nothing later
			want, wantErr := started.Reconcile(ctx, req)
			if diff := cmp.Diff(plain.wrote(), at.wrote()); diff != "" || got != want || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d: %s: %v, %v, want %v, %v: %s\nafter %s", seed, req.Name, got, gotErr, want, wantErr, diff, strings.Join(history, "; "))
			}
			for name, is := range w.stored() {
				if !reflect.DeepEqual(is, before[name]) {
					t.Fatalf("seed %d: %s was written to: %s", seed, name, cmp.Diff(before[name], is))
				}
			}
			for _, line := range at.wrote() {
				wrote[what(line)]++
			}
			at.apply()
		}
	}
	t.Log(wrote)
	for what, least := range map[string]int{"plan": 150, "Updating": 10, "turn": 30, "status": 500, "finalizers": 40, "event": 400} {
		if wrote[what] < least {
			t.Errorf("%d of %q were written; want at least %d, else the histories show little", wrote[what], what, least)
		}
	}
}

// happen lets one thing happen, and tells what.
func (w *world) happen() string {
	names := slices.Sorted(maps.Keys(happenings))
	for {
		if name := "all is well for a while"; w.IntN(8) == 0 && happenings[name](w) {
			return name
		}
		if name := names[w.IntN(len(names))]; happenings[name](w) {
			return name
		}
	}
}

// wrote tells what was written in the session and not applied yet.
func (s *session) wrote() []string {
	var all []string
	for _, w := range s.writes {
		all = append(all, w.what)
	}
	return all
}

// what kind of write a line of session.wrote is.
func what(line string) string {
	for _, kind := range []struct{ text, what string }{
		{"event", "event"}, {"finalizers", "finalizers"}, {`"updating":["`, "turn"}, {`"kind":"NvmfTarget"`, "status"}, {`"reason":"Updating"`, "Updating"}, {`"plan"`, "plan"},
	} {
		if strings.Contains(line, kind.text) {
			return kind.what
		}
	}
	return "other"
}
