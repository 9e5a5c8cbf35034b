// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// settle is how long a pod must have been ready before the next one's turn comes. A target
// answers before it is filled again, and its agent needs a moment to see that it came back
// empty; until then the NvmfNode says what was true before.
const settle = 10 * time.Second

// fleet is what an update of one node's pod has to look at besides.
type fleet struct {
	// nodes of the target that have a plan for SPDK, the node itself included.
	nodes []v1alpha1.NvmfNode
	// pods of the target, by name.
	pods map[string]*corev1.Pod
	// volumes and snapshots on the node.
	volumes   []v1alpha1.NvmfVolume
	snapshots []v1alpha1.NvmfSnapshot
}

// decideRoll decides whether it is the turn of the node's pod, which is outdated.
func decideRoll(v view, f fleet, now time.Time, pods manifest.TargetPods) decision {
	is := condition(v.pod)
	if !pods.ImageOnNode(v.node, v.pod, v.pull) {
		return decision{act: keep, condition: markOutdated(is, "it is replaced when its turn comes; now it waits for its image (condition TargetImageReady)")}
	}
	why, again := waitsFor(v.node, f, v.strategy, now)
	if why != "" {
		return decision{keep, markOutdated(is, "it is replaced when its turn comes; now it waits: "+why), again}
	}
	return decision{act: replaceOutdated, condition: markOutdated(is, "it is being replaced")}
}

// gatherFleet reads the cache or the API server.
func (r *Reconciler) gatherFleet(ctx context.Context, reader client.Reader, node *v1alpha1.NvmfNode) (fleet, error) {
	var (
		nodes     v1alpha1.NvmfNodeList
		pods      corev1.PodList
		volumes   v1alpha1.NvmfVolumeList
		snapshots v1alpha1.NvmfSnapshotList
	)
	ofNode := client.MatchingFields{"spec.node": node.Name}
	for _, of := range []struct {
		list    client.ObjectList
		options []client.ListOption
	}{
		{&nodes, []client.ListOption{client.MatchingFields{"spec.target": node.Spec.Target}}},
		{&pods, []client.ListOption{client.InNamespace(r.Pods.Namespace), client.MatchingLabels{
			v1alpha1.ComponentLabel: v1alpha1.ComponentTarget, manifest.TargetLabel: node.Spec.Target,
		}}},
		{&volumes, []client.ListOption{ofNode}},
		{&snapshots, []client.ListOption{ofNode}},
	} {
		if err := reader.List(ctx, of.list, of.options...); err != nil {
			return fleet{}, fmt.Errorf("list %T: %w", of.list, err)
		}
	}
	f := fleet{pods: map[string]*corev1.Pod{}, volumes: volumes.Items, snapshots: snapshots.Items}
	for i := range nodes.Items {
		if servesWithSPDK(&nodes.Items[i]) {
			f.nodes = append(f.nodes, nodes.Items[i])
		}
	}
	for i := range pods.Items {
		f.pods[pods.Items[i].Name] = &pods.Items[i]
	}
	return f, nil
}

// waitsFor says what keeps the node's pod from being replaced now; "" when nothing does. It also says after
// how long to ask again when nothing happens before (0: not at all).
//
//   - The node's agent must be alive: a target comes back empty, and it is the agent that fills it.
//   - Of the target's other nodes fewer than maxUnavailable may be unavailable.
//   - No volume or snapshot of the node may be in the midst of something.
func waitsFor(node *v1alpha1.NvmfNode, f fleet, strategy v1alpha1.UpdateStrategy, now time.Time) (string, time.Duration) {
	if !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAgentAlive) {
		return "the node's agent is not alive, and nobody would fill the new target", 0
	}
	most := 1
	if strategy.MaxUnavailable != nil {
		most = int(*strategy.MaxUnavailable)
	}
	var unavailable []string
	var again time.Duration
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.Name == node.Name {
			continue
		}
		available, after := isAvailable(n, f.pods[manifest.TargetPodName(n.Name)], now)
		if available {
			continue
		}
		unavailable = append(unavailable, n.Name)
		if after > 0 && (again == 0 || after < again) {
			again = after
		}
	}
	if len(unavailable) >= most {
		slices.Sort(unavailable)
		return fmt.Sprintf("%d of the target's other nodes not ready, such as %s", len(unavailable), unavailable[0]), again
	}
	if busy := busyWith(node, f); len(busy) > 0 {
		return fmt.Sprintf("%d of the node's volumes and snapshots not ready, such as %s", len(busy), slices.Min(busy)), 0
	}
	return "", 0
}

// isAvailable: the node serves, with a pod that has been ready for a while; after which time it
// will be, when that is all that is missing.
func isAvailable(node *v1alpha1.NvmfNode, pod *corev1.Pod, now time.Time) (bool, time.Duration) {
	if pod == nil || ready(pod) == nil ||
		!meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionReady) ||
		!meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAgentAlive) {
		return false, 0
	}
	left := settle - now.Sub(ready(pod).LastTransitionTime.Time)
	return left <= 0, max(0, left)
}

// busyWith names what is being made, changed, exported or deleted on the node, or is degraded. What is out of reach is
// not waited for: a dead drive would keep the node from every update, and its target has nothing of it to serve.
func busyWith(node *v1alpha1.NvmfNode, f fleet) []string {
	var names []string
	homes := map[string]string{}
	for _, v := range f.volumes {
		homes[v.Name] = v.Status.Device
		c := v.Status.Conditions
		if outOfReach(node, v.Status.Device, c) {
			continue
		}
		if !v.DeletionTimestamp.IsZero() || v.Status.ObservedGeneration < v.Generation ||
			!meta.IsStatusConditionTrue(c, v1alpha1.ConditionReady) || !meta.IsStatusConditionFalse(c, v1alpha1.ConditionDegraded) {
			names = append(names, "volume "+v.Name)
		}
	}
	for _, s := range f.snapshots {
		if outOfReach(node, cmp.Or(s.Status.Device, homes[s.Spec.Volume]), s.Status.Conditions) {
			continue
		}
		if !s.DeletionTimestamp.IsZero() || !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) {
			names = append(names, "snapshot "+s.Name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

// outOfReach: the agent says of a volume or snapshot that it is lost, or of its pool that its drive is gone, is another
// one, or cannot be read.
func outOfReach(node *v1alpha1.NvmfNode, device string, conditions []metav1.Condition) bool {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return false
	}
	if ready.Reason == v1alpha1.ReasonVolumeLost {
		return true
	}
	return slices.ContainsFunc(node.Status.Pools, func(p v1alpha1.PoolStatus) bool {
		return p.Device == device && !p.Ready && slices.Contains(unreachable, p.Reason)
	})
}

// unreachable are the reasons of pools that do not pass by themselves.
var unreachable = []string{
	v1alpha1.ReasonDeviceMissing, v1alpha1.ReasonDeviceSwapped, v1alpha1.ReasonForeignSignature, v1alpha1.ReasonPoolFailed,
}
