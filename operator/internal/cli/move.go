// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// moveOptions are the flags of move.
type moveOptions struct {
	namespace, from, to  string
	wait, dryRun, cancel bool
}

// A MoveResult is what `kubectl weft move -o json` prints.
type MoveResult struct {
	DryRun bool `json:"dryRun"`
	// Volume by its claim, NAMESPACE/NAME, or nv/NAME; and the NvmfVolume.
	Volume string `json:"volume"`
	Name   string `json:"name"`
	// Result: Requested, Running if the same move was running already, Cancelled, or NotRunning if there was none to
	// cancel. With --wait, Moved, Cancelled or Deleted.
	Result string `json:"result"`
	// Replica that moves, and its node.
	Replica string `json:"replica,omitempty"`
	From    string `json:"from,omitempty"`
	// To is absent while the CSI controller has not chosen the node.
	To string `json:"to,omitempty"`
}

// Results of commands that change volumes.
const (
	resultRequested  = "Requested"
	resultRunning    = "Running"
	resultNotRunning = "NotRunning"
	resultCancelled  = "Cancelled"
	resultMoved      = "Moved"
	resultDeleted    = "Deleted"
)

func moveCommand(at *cluster) *cobra.Command {
	var o moveOptions
	var format *output
	cmd := &cobra.Command{
		Use:   "move CLAIM [--to NODE] [--from NODE]",
		Short: "Move a replica of a volume to another node",
		Long: `Move a replica of a volume to another node, also while the volume is in use. The command sets spec.move of the
NvmfVolume. The CSI controller then adds a replica on the other node, the node that uses the volume fills it, and the
former replica is removed. If no pod uses the volume, the node plugin of another node fills the replica. If nothing was ever
written to the volume, there is nothing to copy.

CLAIM is the name of a PersistentVolumeClaim, or nv/NAME with the name of an NvmfVolume. Without --to, the CSI
controller chooses the node, as for a new volume. A volume with several replicas requires --from.

You can repeat the command: if the same move is running, it says so, and --wait waits for it.`,
		Example: `  kubectl weft move data --to storage-2 --wait
  kubectl weft move data -n databases --from storage-1
  kubectl weft move data --cancel`,
		Args: takes(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := at.namespaceOf(o.namespace)
			if err != nil {
				return err
			}
			api, err := at.client()
			if err != nil {
				return err
			}
			return moveClaim(cmd.Context(), verb(api, cmd, format), namespace, args[0], o)
		},
	}
	format = resultFlag(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of CLAIM (default: that of the kubeconfig context)")
	flags.StringVar(&o.to, "to", "", "node to move the replica to (default: the CSI controller chooses)")
	flags.StringVar(&o.from, "from", "", "node of the replica to move; required if the volume has several replicas")
	flags.BoolVar(&o.wait, "wait", false, "show the progress until the move is complete")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would happen; change nothing")
	flags.BoolVar(&o.cancel, "cancel", false, "cancel the move that is running")
	cmd.MarkFlagsMutuallyExclusive("cancel", "to")
	cmd.MarkFlagsMutuallyExclusive("cancel", "from")
	cmd.MarkFlagsMutuallyExclusive("cancel", "wait")
	return cmd
}

// moveClaim writes the move of a claim's volume, unless it is there, and waits for it if that is wanted.
func moveClaim(ctx context.Context, w *watcher, namespace, arg string, o moveOptions) error {
	name, err := resolve(ctx, w.api, namespace, arg)
	if err != nil {
		return err
	}
	var f *fleet
	var result MoveResult
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if f, err = w.look(ctx); err != nil {
			return err
		}
		v := f.volume(name)
		if v == nil {
			return fmt.Errorf("NvmfVolume %s not found; existing volumes: kubectl get nv", name)
		}
		result = MoveResult{DryRun: o.dryRun, Volume: f.called(v), Name: v.Name}
		if o.cancel {
			return cancelMove(ctx, w, f, v, o.dryRun, &result)
		}
		return requestMove(ctx, w, f, v, o, &result)
	})
	if err != nil {
		return fmt.Errorf("volume %s: %w", arg, err)
	}
	if !o.wait || o.dryRun {
		return w.did(result, w.err)
	}
	move, _ := f.moving(f.volume(name))
	err = w.untilMoved(ctx, move, &result)
	return w.did(result, err)
}

// requestMove writes the move that was asked for; one that is there already is only told.
func requestMove(ctx context.Context, w *watcher, f *fleet, v *v1alpha1.NvmfVolume, o moveOptions, result *MoveResult) error {
	begun := "" // the node on which the CSI controller began to replace a lost replica
	if running, is := f.moving(v); is {
		if (o.from == "" || o.from == running.from) && (o.to == "" || o.to == running.to) {
			w.line("volume %s: the replica on node %s is already moving%s", f.called(v), running.from, toNode(running.to))
			result.tell(resultRunning, running)
			return nil
		}
		if !f.changeable(running, o) {
			return fmt.Errorf("another move is running, from node %s%s; wait for it, or cancel it: kubectl weft move %s --cancel",
				running.from, toNode(running.to), f.arguments(v))
		}
		o.from, begun = running.from, running.to
	}
	m, err := f.mayMove(v, o.from, o.to)
	if err != nil {
		return err
	}
	if err := writeMove(ctx, w.api, v, &v1alpha1.VolumeMove{Replica: m.Name, Node: o.to}, o.dryRun); err != nil {
		return err
	}
	result.tell(resultRequested, progress{replica: m.Name, from: m.Node, to: o.to})
	w.line("%s", f.requested(v, m, o.to, o.dryRun))
	if is := f.mirrorMember(v.Name, m.Name); is != nil && is.Foreign {
		w.line("  the replica was refused, because it may have data that no other replica has; its data is deleted")
	}
	if begun != "" {
		w.line("  the replica is lost, and was being replaced on node %s; what was copied there is removed", begun)
	}
	if o.dryRun {
		w.line("  would be written into spec.move of NvmfVolume %s: replica: %s%s", v.Name, m.Name, nodeField(o.to))
	}
	if !v.Replicated() {
		w.line("  from then on, the volume has a mirror, and can be used by one node at a time only")
	}
	return nil
}

// tell how a move is.
func (r *MoveResult) tell(result string, p progress) {
	r.Result, r.Replica, r.From, r.To = result, p.replica, p.from, p.to
}

// changeable tells whether a move that is running was begun by the CSI controller, which chose the node, and a person
// can still choose another one: the new replica is not filled yet.
func (f *fleet) changeable(running progress, o moveOptions) bool {
	former := f.mirrorMember(running.volume, running.replica)
	return running.reason == v1alpha1.MoveReplicaLost && o.to != "" && (o.from == "" || o.from == running.from) &&
		running.state != moveRemoving && former != nil && !former.Retired
}

// requested says what was written for a replica, and how much is copied.
func (f *fleet) requested(v *v1alpha1.NvmfVolume, m *v1alpha1.VolumeMember, to string, dryRun bool) string {
	suffix := ""
	if dryRun {
		suffix = " (dry run)"
	}
	if to == "" && f.oneTooMany(v, m) {
		return fmt.Sprintf("volume %s: removing replica %s from node %s%s; enough others are in sync", f.called(v), m.Name, m.Node, suffix)
	}
	return fmt.Sprintf("volume %s: moving replica %s (%s) from node %s%s%s", f.called(v), m.Name, size(&v.Spec.Size), m.Node, toNode(to), suffix)
}

func toNode(node string) string {
	if node == "" {
		return " to a node of the controller's choice"
	}
	return " to node " + node
}

func nodeField(node string) string {
	if node == "" {
		return ""
	}
	return ", node: " + node
}

// mayMove is the replica that was asked for, if it can move to the node, or to any if that is empty.
func (f *fleet) mayMove(v *v1alpha1.NvmfVolume, from, to string) (*v1alpha1.VolumeMember, error) {
	if err := f.movable(v); err != nil {
		return nil, err
	}
	var on []string
	for _, m := range v.Spec.Members {
		on = append(on, m.Node)
	}
	slices.Sort(on)
	m := &v.Spec.Members[0]
	switch {
	case from != "":
		if m = memberOn(v, from); m == nil {
			return nil, fmt.Errorf("it has no replica on node %s; its replicas are on: %s", from, strings.Join(on, ", "))
		}
	case len(on) > 1:
		return nil, fmt.Errorf("it has several replicas; choose one with --from: %s", strings.Join(on, ", "))
	}
	others := f.takers(v)
	if to == "" && len(others) == 0 && !f.oneTooMany(v, m) {
		return nil, fmt.Errorf("no other node of NvmfTarget %s can take it now; see kubectl weft status %s", v.Spec.Target, v.Spec.Target)
	}
	if to == "" {
		return m, nil
	}
	if err := f.takes(v, to); err != nil {
		if len(others) == 0 {
			return nil, fmt.Errorf("%w; no other node can take it now", err)
		}
		return nil, fmt.Errorf("%w; choose another node with --to: %s", err, text.Few(others, maxNamed, ", "))
	}
	return m, nil
}

// oneTooMany tells whether a replica can leave without a new one: as many others have everything as the volume is to
// have.
func (f *fleet) oneTooMany(v *v1alpha1.NvmfVolume, leaves *v1alpha1.VolumeMember) bool {
	others := int32(0)
	for _, m := range v.Spec.Members {
		is := f.mirrorMember(v.Name, m.Name)
		if m.Name != leaves.Name && is != nil && !is.Retired && is.State == v1alpha1.MemberInSync {
			others++
		}
	}
	return others >= max(v.Spec.Replicas, 1)
}

// writeMove into a volume's spec, only if nobody has changed the volume since it was looked at; nil removes it. A dry
// run goes as far as the API server, which checks it.
func writeMove(ctx context.Context, api client.Client, v *v1alpha1.NvmfVolume, move *v1alpha1.VolumeMove, dryRun bool) error {
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	changed := v.DeepCopy()
	changed.Spec.Move = move
	if err := api.Patch(ctx, changed, client.MergeFromWithOptions(v, client.MergeFromWithOptimisticLock{}), options...); err != nil {
		return err
	}
	if !dryRun {
		*v = *changed
	}
	return nil
}

// cancelMove removes the move of a volume, as long as the former replica is not being removed.
func cancelMove(ctx context.Context, w *watcher, f *fleet, v *v1alpha1.NvmfVolume, dryRun bool, result *MoveResult) error {
	p, is := f.moving(v)
	if !is {
		result.Result = resultNotRunning
		w.line("volume %s: no move is running", f.called(v))
		return nil
	}
	former := f.mirrorMember(v.Name, p.replica)
	if memberOf(v, p.replica) == nil || former != nil && former.Retired {
		return errors.New("the new replica is filled, and the former one is already being removed; wait until the move is complete (kubectl weft status)")
	}
	replacement := v.Spec.Move.Replacement
	if err := writeMove(ctx, w.api, v, nil, dryRun); err != nil {
		return err
	}
	suffix := ""
	if dryRun {
		suffix = " (dry run)"
	}
	result.tell(resultCancelled, p)
	w.line("volume %s: move cancelled%s; replica %s stays on node %s", f.called(v), suffix, p.replica, p.from)
	if p.reason == v1alpha1.MoveReplicaLost {
		w.line("  the replica is lost, and is replaced again; set spec.replaceLostReplicaAfterMinutes of NvmfVolume %s to -1 to prevent that", v.Name)
	}
	if replacement != "" {
		w.line("  the new replica %s on node %s is removed with what was copied to it", replacement, orDash(p.to))
	}
	return nil
}

// untilMoved shows the progress of a move until it has ended.
func (w *watcher) untilMoved(ctx context.Context, move progress, result *MoveResult) error {
	const goesOn = "the move goes on; to see its progress, run: kubectl weft status"
	w.last[move.volume] = move
	for {
		f, err := w.look(ctx)
		if err != nil {
			return w.interrupted(ctx, err, goesOn)
		}
		var moves []progress
		v := f.volume(move.volume)
		if v != nil {
			if p, is := f.moving(v); is && p.replica == move.replica {
				moves = append(moves, p)
				result.To = p.to
			}
		}
		w.tell(f, moves)
		switch {
		case len(moves) == 0 && v == nil:
			result.Result = resultDeleted
			return w.ends(CodeUnwell)
		case len(moves) == 0 && memberOf(v, move.replica) != nil:
			result.Result = resultCancelled
			return w.ends(CodeUnwell)
		case len(moves) == 0:
			result.Result = resultMoved
			return w.err
		}
		if err := w.pause(ctx); err != nil {
			return w.interrupted(ctx, err, goesOn)
		}
	}
}
