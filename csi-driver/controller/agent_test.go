// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const poolDevice = "/var/lib/weft/pool.img"

// agentSet stands in for the agents of all nodes. Each keeps an engine's state of its own, apart
// from the objects: volumes by UUID, admitted hosts, what was written. A silent agent does nothing, and
// catches up when it speaks again.
type agentSet struct {
	client client.Client
	wake   chan event.TypedGenericEvent[*v1alpha1.NvmfVolume]

	mu    sync.Mutex
	nodes map[string]*agent
	// serve is called with each volume that a node serves, as it does.
	serve func(*v1alpha1.NvmfVolume)
}

type agent struct {
	silent bool
	// unlimited: its target cannot limit volumes.
	unlimited bool
	// sourceless: it does not find the sources of copies.
	sourceless bool
	// engine: what the node really holds.
	poolBytes int64
	volumes   map[string]*engineVolume
	// snapshots by UUID, with their sizes.
	snapshots map[string]int64
	// made counts creations by UUID: more than one would be data made twice.
	made map[string]int
}

type engineVolume struct {
	size    int64
	written bool
	hosts   []v1alpha1.AdmittedHost
}

func startAgents(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (*agentSet, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	a := &agentSet{client: mgr.GetClient(), nodes: map[string]*agent{}, wake: make(chan event.TypedGenericEvent[*v1alpha1.NvmfVolume])}
	err = ctrl.NewControllerManagedBy(mgr).Named("agents").For(&v1alpha1.NvmfVolume{}).
		WatchesRawSource(source.Channel(a.wake, &handler.TypedEnqueueRequestForObject[*v1alpha1.NvmfVolume]{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(a)
	if err == nil {
		err = ctrl.NewControllerManagedBy(mgr).Named("snapshots").For(&v1alpha1.NvmfSnapshot{}).
			WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
			Complete(reconcile.Func(a.reconcileSnapshot))
	}
	if err != nil {
		return nil, err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil {
			panic(err)
		}
	}()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the agents' cache does not fill")
	}
	return a, nil
}

func (a *agentSet) add(node string, poolBytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes[node] = &agent{poolBytes: poolBytes, volumes: map[string]*engineVolume{}, snapshots: map[string]int64{}, made: map[string]int{}}
}

func (a *agentSet) with(node string, do func(*agent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do(a.nodes[node])
}

func (a *agentSet) onServe(serve func(*v1alpha1.NvmfVolume)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serve = serve
}

func (a *agentSet) silence(node string) { a.with(node, func(n *agent) { n.silent = true }) }

// speak again: all volumes of the node are looked at anew.
func (a *agentSet) speak(ctx context.Context, node string) error {
	a.with(node, func(n *agent) { n.silent = false })
	var vols v1alpha1.NvmfVolumeList
	if err := a.client.List(ctx, &vols); err != nil {
		return err
	}
	for i := range vols.Items {
		select {
		case a.wake <- event.TypedGenericEvent[*v1alpha1.NvmfVolume]{Object: &vols.Items[i]}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (a *agentSet) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var vol v1alpha1.NvmfVolume
	if err := a.client.Get(ctx, req.NamespacedName, &vol); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	act, gone := a.reconcileEngine(ctx, &vol)
	if !act {
		return ctrl.Result{}, nil
	}
	var err error
	if gone {
		if controllerutil.RemoveFinalizer(&vol, v1alpha1.VolumeFinalizer) {
			err = a.client.Update(ctx, &vol)
		}
	} else {
		err = a.client.Status().Update(ctx, &vol)
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 1}, nil
	}
	if c := meta.FindStatusCondition(vol.Status.Conditions, v1alpha1.ConditionCreated); c != nil && c.Reason == v1alpha1.ReasonSourceNotReady {
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// reconcileEngine makes the node's engine as the volume says, and writes into the volume what it then is.
func (a *agentSet) reconcileEngine(ctx context.Context, vol *v1alpha1.NvmfVolume) (act, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.nodes[vol.Spec.Node]
	if n == nil || n.silent {
		return false, false
	}
	before := vol.Status.DeepCopy()
	id := vol.Spec.UUID
	if vol.DeletionTimestamp != nil && len(vol.Spec.Hosts) == 0 {
		delete(n.volumes, id)
		return true, true
	}
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&vol.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: vol.Generation,
		})
	}
	vol.Status.ObservedGeneration = vol.Generation
	if n.volumes[id] == nil {
		if source := vol.Spec.Source; source != nil && (n.sourceless || !n.has(a.identityOf(ctx, source))) {
			set(v1alpha1.ConditionCreated, metav1.ConditionFalse, v1alpha1.ReasonSourceNotReady, "its source is not here")
			return true, false
		}
		if n.used()+vol.Spec.Size.Value() > n.poolBytes {
			set(v1alpha1.ConditionCreated, metav1.ConditionFalse, v1alpha1.ReasonNoSpace, "no pool has room")
			return true, false
		}
		e := &engineVolume{size: vol.Spec.Size.Value()}
		if source := vol.Spec.Source; source != nil {
			of := n.volumes[a.identityOf(ctx, source)]
			e.written = of == nil || of.written // of a snapshot it is not known here
		}
		n.volumes[id] = e
		n.made[id]++
	}
	e := n.volumes[id]
	e.admit(vol)
	if more := vol.Spec.Size.Value() - e.size; more > 0 && n.used()+more > n.poolBytes {
		set(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNoSpace, "it cannot grow: no room")
	} else {
		set(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "")
		e.size += max(0, more)
	}
	vol.Status.Device = poolDevice
	vol.Status.NQN, vol.Status.NSID = v1alpha1.SubsystemNQN(vol.Name), 1
	vol.Status.NGUID = strings.ReplaceAll(id, "-", "")
	vol.Status.Size = resource.NewQuantity(e.size, resource.BinarySI)
	vol.Status.Hosts = slices.Clone(e.hosts)
	vol.Status.Portals = []v1alpha1.Portal{
		{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
		{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4421},
	}
	vol.Status.QoS = vol.Spec.QoS
	set(v1alpha1.ConditionQoSApplied, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")
	if n.unlimited && vol.Spec.QoS != nil {
		vol.Status.QoS = nil
		set(v1alpha1.ConditionQoSApplied, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, "this version cannot")
	}
	for _, kind := range []string{v1alpha1.ConditionCreated, v1alpha1.ConditionExported, v1alpha1.ConditionReady} {
		set(kind, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")
	}
	if a.serve != nil {
		a.serve(vol)
	}
	return !equal(before, &vol.Status), false
}

// has a volume or snapshot with this UUID.
func (n *agent) has(uuid string) bool {
	_, snapshot := n.snapshots[uuid]
	return snapshot || n.volumes[uuid] != nil
}

// identityOf a source: its UUID.
func (a *agentSet) identityOf(ctx context.Context, source *v1alpha1.VolumeSource) string {
	var vol v1alpha1.NvmfVolume
	var snap v1alpha1.NvmfSnapshot
	if source.Volume != "" {
		if err := a.client.Get(ctx, keyOf(source.Volume), &vol); err != nil {
			return ""
		}
		return vol.Spec.UUID
	}
	if err := a.client.Get(ctx, keyOf(source.Snapshot), &snap); err != nil {
		return ""
	}
	return snap.Spec.UUID
}

// snapshotBytes is what each snapshot holds of the pool.
const snapshotBytes = gi / 4

func (a *agentSet) reconcileSnapshot(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var snap v1alpha1.NvmfSnapshot
	if err := a.client.Get(ctx, req.NamespacedName, &snap); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var vol v1alpha1.NvmfVolume
	if err := a.client.Get(ctx, keyOf(snap.Spec.Volume), &vol); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	var silent, made bool
	a.with(snap.Spec.Node, func(n *agent) {
		if silent = n.silent; silent {
			return
		}
		if snap.DeletionTimestamp != nil {
			delete(n.snapshots, snap.Spec.UUID)
		} else if v := n.volumes[vol.Spec.UUID]; v != nil && n.snapshots[snap.Spec.UUID] == 0 {
			n.snapshots[snap.Spec.UUID] = v.size
		}
		made = n.snapshots[snap.Spec.UUID] > 0
		snap.Status.Size = resource.NewQuantity(n.snapshots[snap.Spec.UUID], resource.BinarySI)
	})
	var err error
	switch {
	case silent || snap.Status.Ready && snap.DeletionTimestamp == nil:
	case snap.DeletionTimestamp != nil:
		if controllerutil.RemoveFinalizer(&snap, v1alpha1.VolumeFinalizer) {
			err = a.client.Update(ctx, &snap)
		}
	case made:
		at := metav1.Now()
		snap.Status.Ready, snap.Status.CreatedAt, snap.Status.Device, snap.Status.ObservedGeneration = true, &at, poolDevice, snap.Generation
		snap.Status.Allocated = resource.NewQuantity(snapshotBytes, resource.BinarySI)
		err = a.client.Status().Update(ctx, &snap)
	default:
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, nil
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 1}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func equal(a, b *v1alpha1.NvmfVolumeStatus) bool {
	return fmt.Sprintf("%+v", a.Conditions) == fmt.Sprintf("%+v", b.Conditions) && slices.Equal(a.Hosts, b.Hosts) && a.ObservedGeneration == b.ObservedGeneration
}

func (n *agent) used() (sum int64) {
	for _, v := range n.volumes {
		sum += v.size
	}
	return sum
}

// admit exactly the hosts of the spec; blank is judged when a host is admitted, and kept.
func (e *engineVolume) admit(vol *v1alpha1.NvmfVolume) {
	var hosts []v1alpha1.AdmittedHost
	for _, h := range vol.Spec.Hosts {
		i := slices.IndexFunc(e.hosts, func(a v1alpha1.AdmittedHost) bool { return a.NQN == h.NQN })
		if i >= 0 {
			hosts = append(hosts, e.hosts[i])
			continue
		}
		hosts = append(hosts, v1alpha1.AdmittedHost{NQN: h.NQN, Blank: !e.written && len(e.hosts) == 0})
	}
	e.hosts = hosts
}
