// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// facts are all that is known of one node, as read at one time. They are replaced as a whole when something of the
// node changes, and never written to: what is concluded from them holds as long as they do.
type facts struct {
	gather.Node
	// pod is the node's target pod, and pull the one that pulls the image of the next; nil where there is none.
	pod, pull *corev1.Pod
}

// fleet keeps all nodes, each with what was concluded from its facts. The zero value knows of none yet.
//
// It reads from the cache what an event is about, and only that, so it holds this invariant: every event of an object
// that facts are made of is noted before it is acted upon, those that call for no look too. The cache has what an event
// tells of before its handlers are called, so facts that are read after an event was noted are not older than it.
type fleet struct {
	mu sync.Mutex
	// changed are the nodes that events were about since their facts were read.
	changed map[string]bool

	// The rest is the worker's: nodes by name, nil before they have been read once, and their names in order, nil when
	// that is to be found out.
	nodes map[string]*node
	names []string
}

// note that something of a node has changed; it may be called at any time, by several.
func (f *fleet) note(objects ...client.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range objects {
		if name := nodeOf(o); name != "" {
			if f.changed == nil {
				f.changed = map[string]bool{}
			}
			f.changed[name] = true
		}
	}
}

// nodeOf an object that facts are made of, by name. Of pods, only those count that the node's NvmfNode controls.
func nodeOf(o client.Object) string {
	switch o := o.(type) {
	case *corev1.Node, *v1alpha1.NvmfNode:
		return o.GetName()
	case *v1alpha1.NvmfReplica:
		return o.Spec.Node
	case *v1alpha1.NvmfSnapshot:
		return o.Spec.Node
	case *corev1.Pod:
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "NvmfNode" {
			return owner.Name
		}
	}
	return ""
}

// take the names of the nodes that have changed.
func (f *fleet) take() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.changed
	f.changed = nil
	return changed
}

// giveBack names that could not be read.
func (f *fleet) giveBack(changed map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = changed
	}
	maps.Copy(f.changed, changed)
}

// refreshed returns all nodes by name, after reading from the cache those that have changed.
func (r *Reconciler) refreshed(ctx context.Context) ([]*node, error) {
	f := &r.fleet
	changed, read := f.take(), false
	defer func() {
		if !read { // also after a panic
			f.giveBack(changed)
		}
	}()
	if err := r.refresh(ctx, changed); err != nil {
		return nil, err
	}
	read = true
	nodes := make([]*node, len(f.names))
	for i, name := range f.names {
		nodes[i] = f.nodes[name]
	}
	return nodes, nil
}

func (r *Reconciler) refresh(ctx context.Context, changed map[string]bool) error {
	f := &r.fleet
	if f.nodes == nil {
		_, nodes, err := r.read(ctx, r.Client)
		if err != nil {
			return err
		}
		f.nodes, f.names = make(map[string]*node, len(nodes)), nil
		for _, n := range nodes {
			f.nodes[n.Name] = n
		}
		changed = nil // before all was read
	}
	for name := range changed {
		is, err := r.readOne(ctx, name)
		if err != nil {
			return err
		}
		if was := f.nodes[name]; (was == nil) != (is == nil) {
			f.names = nil
		}
		if f.nodes[name] = is; is == nil {
			delete(f.nodes, name)
		}
	}
	if f.names == nil {
		f.names = slices.Sorted(maps.Keys(f.nodes))
	}
	return nil
}

// read all targets, and after them all nodes, sorted by name.
func (r *Reconciler) read(ctx context.Context, from client.Reader) ([]v1alpha1.NvmfTarget, []*node, error) {
	all, err := gather.All(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := r.withPods(ctx, from, all.Nodes)
	return all.Targets, nodes, err
}

// readLive is read for turns that these nodes are to get. Targets, nodes and target pods come from the API server,
// since any node may be one that does not serve; and so do the replicas and snapshots on the nodes that are to get a
// turn, which must not be in the midst of something, and on those that lookLive names. Those on other nodes decide
// about no turn, and are many: they come from the cache.
func (r *Reconciler) readLive(ctx context.Context, turns []string) ([]v1alpha1.NvmfTarget, []*node, error) {
	var targets v1alpha1.NvmfTargetList
	if err := r.Live.List(ctx, &targets); err != nil {
		return nil, nil, fmt.Errorf("list NvmfTargets: %w", err)
	}
	all, err := gather.Fresh(ctx, r.Live, r.Client, r.fleet.names, func(name string) bool { return slices.Contains(turns, name) })
	if err != nil {
		return nil, nil, err
	}
	nodes, err := r.withPods(ctx, r.Live, all)
	return targets.Items, nodes, err
}

// withPods are nodes with the pods that the operator made for them.
func (r *Reconciler) withPods(ctx context.Context, from client.Reader, all []gather.Node) ([]*node, error) {
	pods, err := r.pods(ctx, from)
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, len(all))
	for i, n := range all {
		nodes[i] = &node{facts: &facts{Node: n, pod: pods[manifest.TargetPodName(n.Name)], pull: pods[manifest.PullPodName(n.Name)]}}
	}
	return nodes, nil
}

// readOne node from the cache; nil when nothing names it.
func (r *Reconciler) readOne(ctx context.Context, name string) (*node, error) {
	one, err := gather.One(ctx, r.Client, name)
	if one == nil || err != nil {
		return nil, err
	}
	is := &facts{Node: *one}
	for podName, into := range map[string]**corev1.Pod{manifest.TargetPodName(name): &is.pod, manifest.PullPodName(name): &is.pull} {
		pod := &corev1.Pod{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: r.Pods.Namespace, Name: podName}, pod, client.UnsafeDisableDeepCopy); err == nil {
			*into = pod
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get pod %s: %w", podName, err)
		}
	}
	return &node{facts: is}, nil
}

// pods that the operator made, by name.
func (r *Reconciler) pods(ctx context.Context, reader client.Reader) (map[string]*corev1.Pod, error) {
	selector, err := manifest.PodSelector()
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := reader.List(ctx, &list, client.InNamespace(r.Pods.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list target pods: %w", err)
	}
	pods := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}
