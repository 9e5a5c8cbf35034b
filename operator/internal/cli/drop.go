// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// maxNamed bounds the names in a message.
const maxNamed = 5

// A DropResult is what `kubectl weft drop -o json` prints.
type DropResult struct {
	Node  string `json:"node"`
	Drive string `json:"drive"`
	// Dropped is false with --undo.
	Dropped bool `json:"dropped"`
	// LostReplicas are those on a drive that is dropped.
	LostReplicas []LostReplica `json:"lostReplicas,omitempty"`
}

// A LostReplica is an NvmfReplica on a dead drive.
type LostReplica struct {
	Name string `json:"name"`
	// Volume is the name of the NvmfVolume.
	Volume string `json:"volume"`
}

func dropCommand(at *cluster) *cobra.Command {
	undo := false
	var format *output
	cmd := &cobra.Command{
		Use:   "drop NODE DRIVE",
		Short: "Give up a dead drive and the replicas on it",
		Long: `Give up a dead drive. All replicas and snapshots on it are lost; their objects stay and report it.

DRIVE is the ID of the drive, as shown by kubectl weft status NODE. The command refuses to drop a drive if its pool
can be read. A dropped drive is not used again, even if it returns. To use it again, with its data, run the command
with --undo.`,
		Example: `  kubectl weft drop node1 eui.0025388b710116a1`,
		Args:    takes(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := at.client()
			if err != nil {
				return err
			}
			if undo {
				err = takeBack(cmd.Context(), api, args[0], args[1])
			} else {
				err = drop(cmd.Context(), api, args[0], args[1])
			}
			if err != nil {
				return fmt.Errorf("drive %s of node %s: %w", args[1], args[0], unread(err))
			}
			w := verb(api, cmd, format)
			if undo {
				w.line("drive %s is no longer dropped; if its NvmfTarget selects it, its volumes become available again", args[1])
				return w.did(DropResult{Node: args[0], Drive: args[1]}, w.err)
			}
			return tellDropped(cmd.Context(), w, args[0], args[1])
		},
	}
	format = resultFlag(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "use the drive again")
	return cmd
}

// drop names a drive in the node's spec, only if nobody has changed the node since it was looked at.
func drop(ctx context.Context, api client.Client, node, drive string) error {
	return changeNode(ctx, api, node, func(n *v1alpha1.NvmfNode) error {
		if err := mayDrop(n, drive); err != nil || n.Spec.Drops(drive) {
			return err
		}
		n.Spec.DroppedDrives = append(n.Spec.DroppedDrives, v1alpha1.DroppedDrive{ID: drive})
		return nil
	})
}

// mayDrop refuses what is no drive of the node's pool, and what can be read.
func mayDrop(n *v1alpha1.NvmfNode, drive string) error {
	if slices.ContainsFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Device == drive && p.Ready }) {
		return fmt.Errorf("its pool can still be read; delete or move its volumes and remove the drive first")
	}
	if n.Spec.Drops(drive) {
		return nil
	}
	return hasDrive(n, drive)
}

// hasDrive refuses what is no drive of the node's plan or pools.
func hasDrive(n *v1alpha1.NvmfNode, drive string) error {
	var ids []string
	for _, p := range n.Status.Pools {
		ids = append(ids, p.Device)
	}
	if n.Spec.Plan != nil {
		for _, d := range n.Spec.Plan.Drives {
			ids = append(ids, d.ID)
		}
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); !slices.Contains(ids, drive) {
		return fmt.Errorf("the drive is not in the node's pool; drives in the pool: %s", text.Few(ids, maxNamed, ", "))
	}
	return nil
}

// takeBack names a drive no more.
func takeBack(ctx context.Context, api client.Client, node, drive string) error {
	return changeNode(ctx, api, node, func(n *v1alpha1.NvmfNode) error {
		if !n.Spec.Drops(drive) {
			return fmt.Errorf("the drive is not in spec.droppedDrives")
		}
		n.Spec.DroppedDrives = slices.DeleteFunc(n.Spec.DroppedDrives, func(d v1alpha1.DroppedDrive) bool { return d.ID == drive })
		return nil
	})
}

// changeNode only if nobody else has meanwhile.
func changeNode(ctx context.Context, api client.Client, name string, change func(*v1alpha1.NvmfNode) error, options ...client.PatchOption) error {
	options = append(options, client.FieldOwner(fieldManager))
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node := &v1alpha1.NvmfNode{}
		if err := api.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err
		}
		read := node.DeepCopy()
		if err := change(node); err != nil {
			return err
		}
		return api.Patch(ctx, node, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}), options...)
	})
}

// tellDropped says what is lost with a drive.
func tellDropped(ctx context.Context, w *watcher, node, drive string) error {
	var replicas v1alpha1.NvmfReplicaList
	if err := w.api.List(ctx, &replicas, client.MatchingFields{"spec.node": node}); err != nil {
		return err
	}
	result := DropResult{Node: node, Drive: drive, Dropped: true}
	var names []string
	for _, r := range replicas.Items {
		if r.Status.Device == drive {
			result.LostReplicas = append(result.LostReplicas, LostReplica{Name: r.Name, Volume: r.Spec.Volume.Name})
			names = append(names, fmt.Sprintf("%s of volume %s", r.Name, r.Spec.Volume.Name))
		}
	}
	lost := "it has no replicas"
	if len(names) > 0 {
		lost = fmt.Sprintf("lost replicas: %s", strings.Join(names, ", "))
	}
	w.line("dropping drive %s as soon as the node reports that it cannot be read (kubectl weft status %s); %s", drive, node, lost)
	return w.did(result, w.err)
}
