// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// What is awaited without a condition of its own.
const (
	deletion = "Deleted"
	detached = "Detached"
	growth   = "Grown"
)

// late explains that a replica is not in the awaited condition yet: on which
// node, what its agent said last, and whether the agent is alive. The object stays: what a node does not say
// is unknown.
func (s *Service) late(ctx context.Context, volume string, rep *v1alpha1.NvmfReplica, awaited string) error {
	kind := awaited
	switch awaited {
	case deletion:
		kind = v1alpha1.ConditionReady
	case detached:
		kind = v1alpha1.ConditionExported
	case growth:
		kind = v1alpha1.ConditionDegraded
	}
	seen := rep.Status.ObservedGeneration >= rep.Generation
	return failf(waiting, "volume %s is not %s yet: %s, and %s; the operation continues automatically when the node answers",
		volume, awaited, s.nodeState(ctx, rep.Spec.Node), lastWord(rep.Status.Conditions, kind, seen))
}

// lateSnapshot is late for a snapshot.
func (s *Service) lateSnapshot(ctx context.Context, snap *v1alpha1.NvmfSnapshot, awaited string) error {
	seen := snap.Status.ObservedGeneration >= snap.Generation
	return failf(waiting, "snapshot %s is not %s yet: %s, and %s; the operation continues automatically when the node answers",
		snap.Name, awaited, s.nodeState(ctx, snap.Spec.Node), lastWord(snap.Status.Conditions, v1alpha1.ConditionReady, seen))
}

// nodeState in words.
func (s *Service) nodeState(ctx context.Context, name string) string {
	var node v1alpha1.NvmfNode
	err := s.client.Get(context.WithoutCancel(ctx), types.NamespacedName{Name: name}, &node)
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("node %s has no NvmfNode (its agent has never run, or the node was removed)", name)
	}
	if err != nil {
		return fmt.Sprintf("the state of node %s is unknown (%v)", name, err)
	}
	for _, kind := range []string{v1alpha1.ConditionAgentAlive, v1alpha1.ConditionReady} {
		c := meta.FindStatusCondition(node.Status.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionFalse {
			return fmt.Sprintf("node %s is not %s (%s: %s)", name, kind, c.Reason, c.Message)
		}
	}
	return fmt.Sprintf("node %s has not answered in time", name)
}

// lastWord of the agent about a condition; seen says that it speaks of the object as it is now.
func lastWord(conditions []metav1.Condition, kind string, seen bool) string {
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		return "the node's agent has not reported on it"
	case !seen:
		return fmt.Sprintf("its agent has not seen the last change; it last reported %s=%s (%s: %s)", kind, c.Status, c.Reason, c.Message)
	}
	return fmt.Sprintf("its agent reports %s=%s (%s: %s)", kind, c.Status, c.Reason, c.Message)
}
