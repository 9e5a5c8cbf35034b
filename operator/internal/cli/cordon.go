// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// A CordonResult is what `kubectl weft cordon -o json` and uncordon print.
type CordonResult struct {
	DryRun bool           `json:"dryRun"`
	Nodes  []CordonedNode `json:"nodes"`
}

// A CordonedNode is one node that was cordoned or uncordoned.
type CordonedNode struct {
	Name string `json:"name"`
	// Unschedulable as in the spec of the NvmfNode, and whether that changed.
	Unschedulable bool   `json:"unschedulable"`
	Changed       bool   `json:"changed"`
	Target        string `json:"target,omitempty"`
	// Replicas that stay on a node that is cordoned. Absent without a target.
	Replicas *int `json:"replicas,omitempty"`
	// NewVolumesOn are the nodes of the target that still accept new volumes.
	NewVolumesOn []string `json:"newVolumesOn,omitempty"`
	// Reason why a node that was uncordoned still gets no new volumes.
	Reason string `json:"reason,omitempty"`
}

func cordonCommand(at *cluster) *cobra.Command {
	return schedulingCommand(at, true, &cobra.Command{
		Use:   "cordon NODE...",
		Short: "Place no new volumes on nodes",
		Long: `Place no new volumes on nodes. The volumes that a node has stay there, are served, and can grow and be snapshotted. Copies
of them are new volumes on the same node, and wait until the node is uncordoned.

The command sets spec.unschedulable of the NvmfNode. Pods can still run on the node. To keep both pods and volumes away,
use kubectl cordon, which also keeps new volumes away.`,
		Example: `  kubectl weft cordon storage-1`,
	})
}

func uncordonCommand(at *cluster) *cobra.Command {
	return schedulingCommand(at, false, &cobra.Command{
		Use:     "uncordon NODE...",
		Short:   "Place new volumes on nodes again",
		Long:    `Place new volumes on nodes again, after kubectl weft cordon. The command removes spec.unschedulable of the NvmfNode.`,
		Example: `  kubectl weft uncordon storage-1`,
	})
}

// schedulingCommand completes a command that cordons nodes, or takes that back.
func schedulingCommand(at *cluster, cordon bool, cmd *cobra.Command) *cobra.Command {
	dryRun := false
	format := resultFlag(cmd)
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := at.client()
		if err != nil {
			return err
		}
		return cordonNodes(cmd.Context(), verb(api, cmd, format), args, cordon, dryRun)
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would happen; change nothing")
	return cmd
}

// cordonNodes one after the other, or take it back.
func cordonNodes(ctx context.Context, w *watcher, names []string, cordon, dryRun bool) error {
	result := CordonResult{DryRun: dryRun}
	for _, name := range names {
		is, err := cordonAndTell(ctx, w.api, w.table, name, cordon, dryRun)
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		result.Nodes = append(result.Nodes, is)
	}
	return w.did(result, w.err)
}

// cordonAndTell what follows for one node, or take it back.
func cordonAndTell(ctx context.Context, api client.Client, t *table, name string, cordon, dryRun bool) (CordonedNode, error) {
	node, changed, err := setCordon(ctx, api, t, name, cordon, dryRun)
	if err != nil {
		return CordonedNode{}, err
	}
	is := CordonedNode{Name: name, Unschedulable: cordon, Changed: changed, Target: node.Spec.Target}
	if cordon {
		err = is.tellCordoned(ctx, api, t, node)
	} else {
		err = is.tellUncordoned(ctx, api, t, node)
	}
	return is, err
}

// setCordon of one node, and whether that changed it. A dry run goes as far as the API server, which checks it.
func setCordon(ctx context.Context, api client.Client, t *table, name string, cordon, dryRun bool) (node *v1alpha1.NvmfNode, changed bool, err error) {
	var options []client.PatchOption
	suffix := ""
	if dryRun {
		options, suffix = append(options, client.DryRunAll), " (dry run)"
	}
	err = changeNode(ctx, api, name, func(n *v1alpha1.NvmfNode) error {
		node, changed, n.Spec.Unschedulable = n, n.Spec.Unschedulable != cordon, cordon
		return nil
	}, options...)
	if apierrors.IsNotFound(err) {
		return nil, false, noSuchNode(ctx, api, err)
	}
	if err != nil {
		return nil, false, err
	}
	words := map[bool]string{true: "cordoned", false: "uncordoned"}[cordon]
	if !changed {
		words = "already " + words
	}
	t.line("node %s %s%s", name, words, suffix)
	return node, changed, nil
}

// noSuchNode names those that there are.
func noSuchNode(ctx context.Context, api client.Reader, cause error) error {
	var nodes v1alpha1.NvmfNodeList
	if err := api.List(ctx, &nodes); err != nil {
		return unread(err)
	}
	names := make([]string, len(nodes.Items))
	for i := range nodes.Items {
		names[i] = nodes.Items[i].Name
	}
	slices.Sort(names)
	return fmt.Errorf("%w; existing nodes: %s", cause, text.Few(names, maxNamed, ", "))
}

// tellCordoned says what stays on a node, and where new volumes of its target go.
func (is *CordonedNode) tellCordoned(ctx context.Context, api client.Reader, t *table, node *v1alpha1.NvmfNode) error {
	if node.Spec.Target == "" {
		return nil
	}
	var replicas v1alpha1.NvmfReplicaList
	if err := api.List(ctx, &replicas, client.MatchingFields{"spec.node": node.Name}); err != nil {
		return fmt.Errorf("list NvmfReplicas: %w", err)
	}
	others, err := takers(ctx, api, node)
	if err != nil {
		return err
	}
	is.Replicas, is.NewVolumesOn = new(len(replicas.Items)), others
	t.line("  replicas that stay on it: %d", len(replicas.Items))
	if len(others) == 0 {
		t.line("  warning: no other node of NvmfTarget %s accepts volumes, so claims for new volumes stay Pending", node.Spec.Target)
		return nil
	}
	t.line("  new volumes of NvmfTarget %s go to %s", node.Spec.Target, text.Few(others, maxNamed, ", "))
	return nil
}

// takers of new volumes among the other nodes of a node's target.
func takers(ctx context.Context, api client.Reader, but *v1alpha1.NvmfNode) ([]string, error) {
	var nodes v1alpha1.NvmfNodeList
	if err := api.List(ctx, &nodes, client.MatchingFields{"spec.target": but.Spec.Target}); err != nil {
		return nil, fmt.Errorf("list NvmfNodes: %w", err)
	}
	var names []string
	for _, n := range nodes.Items {
		cordoned, err := nodeCordoned(ctx, api, n.Name)
		if err != nil {
			return nil, err
		}
		if why, _ := n.Unschedulable(cordoned); n.Name != but.Name && why == "" && notReady(&n) == "" {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// tellUncordoned says what else keeps new volumes from a node.
func (is *CordonedNode) tellUncordoned(ctx context.Context, api client.Reader, t *table, node *v1alpha1.NvmfNode) error {
	cordoned, err := nodeCordoned(ctx, api, node.Name)
	if err != nil {
		return err
	}
	if _, why := node.Unschedulable(cordoned); why != "" {
		is.Reason = why
		t.line("  it still gets no new volumes: %s", why)
	}
	return nil
}

// nodeCordoned says whether a Kubernetes Node is; one that is gone is not.
func nodeCordoned(ctx context.Context, api client.Reader, name string) (bool, error) {
	kube := &corev1.Node{}
	if err := api.Get(ctx, client.ObjectKey{Name: name}, kube); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read Node %s: %w", name, err)
	}
	return kube.Spec.Unschedulable, nil
}
