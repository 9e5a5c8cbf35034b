// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// drainOptions are the flags of drain and retire.
type drainOptions struct {
	dryRun, wait bool
	// undo of what keeps new replicas off a drive.
	undo bool
	max  int
}

// source is what is to be emptied: a node, or one of its drives.
type source struct{ node, drive string }

func (s source) String() string {
	if s.drive == "" {
		return "node " + s.node
	}
	return fmt.Sprintf("drive %s of node %s", s.drive, s.node)
}

// command that empties the source.
func (s source) command() string {
	if s.drive == "" {
		return "kubectl weft drain " + s.node
	}
	return "kubectl weft retire " + s.node + " " + s.drive
}

// A DrainResult is what `kubectl weft drain -o json` and retire print.
type DrainResult struct {
	DryRun bool   `json:"dryRun"`
	Node   string `json:"node"`
	Drive  string `json:"drive,omitempty"`
	// Unschedulable: the node or drive gets no new replicas. It is false with --undo, which ends there.
	Unschedulable bool `json:"unschedulable"`
	// Requested moves; with --wait, of the whole time.
	Requested []MoveReport `json:"requested"`
	// Left on the node or drive. Absent with --undo.
	Left *DrainLeft `json:"left,omitempty"`
}

// DrainLeft is what a node or drive still has. It is empty if there is neither a replica nor a snapshot.
type DrainLeft struct {
	Empty     bool     `json:"empty"`
	Replicas  []string `json:"replicas"`
	Snapshots []string `json:"snapshots"`
	// Running moves of these replicas.
	Running []MoveReport `json:"running"`
	// CanMove are replicas whose move was not requested yet; with --dry-run, those that would be.
	CanMove    []string       `json:"canMove"`
	CannotMove []StuckReplica `json:"cannotMove"`
	// Passing replicas are being removed or added.
	Passing []string `json:"passing"`
}

// A StuckReplica cannot move now.
type StuckReplica struct {
	Name string `json:"name"`
	// Volume by its claim, NAMESPACE/NAME, or nv/NAME. Absent if there is no NvmfVolume.
	Volume string `json:"volume,omitempty"`
	Reason string `json:"reason"`
}

func drainCommand(at *cluster) *cobra.Command {
	return emptyingCommand(at, &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all replicas of a storage node to other nodes",
		Long: `Move all replicas of a storage node to other nodes, also while their volumes are in use. The command cordons the node
(spec.unschedulable of the NvmfNode), then requests a move for each volume that has a replica there, at most --max at
once. With --wait it continues until nothing is left that can move. Without --wait it requests the first moves; repeat
it until the node is empty.

Volumes that cannot move, such as shared volumes, are listed with the reason. Pods on the node are not affected; use
kubectl drain for them. To place volumes on the node again, use kubectl weft uncordon.

Exit codes:
  0  the node stores no replica and no snapshot, or --dry-run
  1  error
  2  something is left on the node`,
		Example: `  kubectl weft drain storage-1 --dry-run
  kubectl weft drain storage-1 --wait`,
		Args: takes(1),
	})
}

func retireCommand(at *cluster) *cobra.Command {
	return emptyingCommand(at, &cobra.Command{
		Use:   "retire NODE DRIVE",
		Short: "Move all replicas of a drive to other nodes",
		Long: `Move all replicas on a drive that works to other nodes, also while their volumes are in use, at most --max at once. The
command first keeps new replicas off the drive (spec.unschedulableDrives of the NvmfNode). With --wait the command continues until nothing is left that can move. Without --wait it requests the first moves;
repeat it until the drive is empty. Replicas do not move to other drives of the same node.

DRIVE is the ID of the drive, as shown by kubectl weft status NODE. Use --undo to place new replicas on the drive
again; moves that are running go on.

Exit codes:
  0  the drive stores no replica and no snapshot, or --dry-run
  1  error
  2  something is left on the drive`,
		Example: `  kubectl weft retire storage-1 eui.0025388b710116a1 --wait`,
		Args:    takes(2),
	})
}

// emptyingCommand completes a command whose arguments are a node and, perhaps, a drive.
func emptyingCommand(at *cluster, cmd *cobra.Command) *cobra.Command {
	var o drainOptions
	format := resultFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from := source{node: args[0]}
		if len(args) > 1 {
			from.drive = args[1]
		}
		api, err := at.client()
		if err != nil {
			return err
		}
		return drain(cmd.Context(), verb(api, cmd, format), from, o)
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would happen; change nothing")
	flags.BoolVar(&o.wait, "wait", false, "show the progress, and continue until nothing is left that can move")
	flags.IntVar(&o.max, "max", defaultMoves, "moves that run at once")
	if cmd.Name() == "retire" {
		flags.BoolVar(&o.undo, "undo", false, "place new replicas on the drive again")
		cmd.MarkFlagsMutuallyExclusive("undo", "wait")
	}
	return cmd
}

// drain a node or drive, and tell what is left on it.
func drain(ctx context.Context, w *watcher, from source, o drainOptions) error {
	if o.max < 1 {
		return fmt.Errorf("--max is %d; must be at least 1", o.max)
	}
	if err := prepare(ctx, w, from, o); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	result := DrainResult{DryRun: o.dryRun, Node: from.node, Drive: from.drive, Unschedulable: !o.undo, Requested: []MoveReport{}}
	if o.undo {
		return w.did(result, w.err)
	}
	return w.did(&result, w.untilEmpty(ctx, from, o, &result))
}

// untilEmpty requests moves from a node or drive, if that is wanted until nothing is left that can move.
func (w *watcher) untilEmpty(ctx context.Context, from source, o drainOptions, result *DrainResult) error {
	goesOn := "the moves that are running go on; to continue, run: " + from.command() + " --wait"
	var passing []string
	for {
		f, requested, err := w.startMoves(ctx, o.dryRun, func(f *fleet) []wish {
			left := f.todo(from)
			if o.dryRun {
				return left.wishes
			}
			return first(left.wishes, o.max-len(left.running))
		})
		if err != nil {
			return w.interrupted(ctx, fmt.Errorf("%s: %w", from, err), goesOn)
		}
		left := f.todo(from)
		result.Requested, result.Left = append(result.Requested, requested...), left.report()
		if !o.dryRun {
			w.tell(f, left.running)
		}
		if o.dryRun || !o.wait || len(left.running)+len(left.passing) == 0 {
			w.tellLeft(f, left, o.dryRun)
			if o.dryRun || left.empty() {
				return w.err
			}
			return w.ends(CodeUnwell)
		}
		if len(left.running) == 0 && !slices.Equal(left.passing, passing) {
			passing = left.passing
			w.stamped("waiting for replicas that are being removed or added: %s", text.Few(passing, maxNamed, ", "))
		}
		if err := w.pause(ctx); err != nil {
			return w.interrupted(ctx, err, goesOn)
		}
	}
}

// prepare keeps new replicas off a node or drive that is emptied. A drive has to be one of the node's.
func prepare(ctx context.Context, w *watcher, from source, o drainOptions) error {
	if from.drive != "" {
		return setDriveCordon(ctx, w, from, !o.undo, o.dryRun)
	}
	_, _, err := setCordon(ctx, w.api, w.table, from.node, true, o.dryRun)
	return err
}

// setDriveCordon of one drive of a node. A dry run goes as far as the API server, which checks it.
func setDriveCordon(ctx context.Context, w *watcher, from source, cordon, dryRun bool) error {
	var options []client.PatchOption
	suffix := ""
	if dryRun {
		options, suffix = append(options, client.DryRunAll), " (dry run)"
	}
	was := false
	err := changeNode(ctx, w.api, from.node, func(n *v1alpha1.NvmfNode) error {
		was = n.Spec.Cordons(from.drive)
		if !cordon {
			n.Spec.UnschedulableDrives = slices.DeleteFunc(n.Spec.UnschedulableDrives, func(id string) bool { return id == from.drive })
			return nil
		}
		if !was {
			n.Spec.UnschedulableDrives = append(n.Spec.UnschedulableDrives, from.drive)
		}
		return hasDrive(n, from.drive)
	}, options...)
	if apierrors.IsNotFound(err) {
		return noSuchNode(ctx, w.api, err)
	}
	if err != nil {
		return err
	}
	words := map[bool]string{true: "gets no new replicas", false: "gets new replicas"}[cordon]
	if was != cordon {
		words = "now " + words
	}
	w.line("%s %s%s", from, words, suffix)
	return nil
}

// wish is a move that can be requested.
type wish struct {
	volume, replica, to string
}

// remainder is what is left on a source.
type remainder struct {
	source
	// replicas and snapshots by their objects.
	replicas, snapshots []string
	running             []progress
	// passing are the replicas that no volume lists: they are being removed, or added.
	passing []string
	// wishes for replicas that can move, and stuck those that cannot, with the reason and what to do.
	wishes []wish
	stuck  []StuckReplica
}

func (r remainder) empty() bool { return len(r.replicas) == 0 && len(r.snapshots) == 0 }

// report on it, for programs.
func (r remainder) report() *DrainLeft {
	left := &DrainLeft{Empty: r.empty(), Replicas: append([]string{}, r.replicas...), Snapshots: append([]string{}, r.snapshots...), Running: reports(r.running),
		CanMove: []string{}, CannotMove: append([]StuckReplica{}, r.stuck...), Passing: append([]string{}, r.passing...)}
	for _, w := range r.wishes {
		left.CanMove = append(left.CanMove, w.replica)
	}
	return left
}

// words about the replica, as a line.
func (s StuckReplica) words() string {
	if s.Volume == "" {
		return fmt.Sprintf("NvmfReplica %s: %s", s.Name, s.Reason)
	}
	return fmt.Sprintf("volume %s: %s", s.Volume, s.Reason)
}

// todo is what is left on a node or drive. What has not said on which drive it is counts for each.
func (f *fleet) todo(from source) remainder {
	left := remainder{source: from}
	on := func(node, device string) bool {
		return node == from.node && (from.drive == "" || device == "" || device == from.drive)
	}
	for _, r := range f.replicas {
		if on(r.Spec.Node, r.Status.Device) {
			left.replicas = append(left.replicas, r.Name)
		}
	}
	for _, v := range f.volumes { // a replica is listed before its object is created
		if m := memberOn(&v, from.node); m != nil && f.replica(m.Name) == nil {
			left.replicas = append(left.replicas, m.Name)
		}
	}
	for _, s := range f.snapshots {
		if on(s.Spec.Node, s.Status.Device) {
			left.snapshots = append(left.snapshots, s.Name)
		}
	}
	slices.Sort(left.replicas)
	slices.Sort(left.snapshots)
	for _, name := range left.replicas {
		f.assign(&left, name)
	}
	return left
}

// assign a replica to what can be done with it.
func (f *fleet) assign(left *remainder, replica string) {
	i := slices.IndexFunc(f.volumes, func(v v1alpha1.NvmfVolume) bool { return memberOf(&v, replica) != nil })
	if i < 0 {
		f.assignUnlisted(left, replica)
		return
	}
	v, r := &f.volumes[i], f.replica(replica)
	p, moves := f.moving(v)
	stuck := func(format string, args ...any) {
		left.stuck = append(left.stuck, StuckReplica{Name: replica, Volume: f.called(v), Reason: fmt.Sprintf(format, args...)})
	}
	switch err := f.movable(v); {
	case moves && p.replica == replica:
		left.running = append(left.running, p)
	case moves:
		stuck("another move is running, from node %s%s; when it is complete, repeat the command", p.from, toNode(p.to))
	case r == nil:
		stuck("its NvmfReplica %s does not exist; see kubectl weft status %s", replica, left.node)
	case left.drive != "" && r.Status.Device == "":
		stuck("its replica %s has not reported which drive stores it; see kubectl weft status %s", replica, left.node)
	case err != nil:
		stuck("%v", err)
	case len(f.takers(v)) == 0:
		stuck("no other node of NvmfTarget %s can take its replica now; see kubectl weft status %s", v.Spec.Target, v.Spec.Target)
	default:
		left.wishes = append(left.wishes, wish{volume: v.Name, replica: replica})
	}
}

// assignUnlisted is about a replica that no volume lists: it is being added, or removed after a move, or its NvmfVolume
// is gone.
func (f *fleet) assignUnlisted(left *remainder, replica string) {
	r := f.replica(replica)
	v := f.volume(r.Spec.Volume.Name)
	if v == nil {
		left.stuck = append(left.stuck, StuckReplica{Name: replica, Reason: fmt.Sprintf("its NvmfVolume %s does not exist; see docs/tasks/recover-a-deleted-volume.md", r.Spec.Volume.Name)})
		return
	}
	if p, moves := f.moving(v); moves && p.replica == replica {
		left.running = append(left.running, p)
		return
	}
	left.passing = append(left.passing, replica)
}

// startMoves requests the moves that a look at everything leads to, and returns them. A dry run only shows them.
func (w *watcher) startMoves(ctx context.Context, dryRun bool, plan func(*fleet) []wish) (f *fleet, requested []MoveReport, err error) {
	requested = []MoveReport{}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if dryRun {
			requested = []MoveReport{} // the last look counts
		}
		var err error
		if f, err = w.look(ctx); err != nil {
			return err
		}
		for _, one := range plan(f) {
			v := f.volume(one.volume)
			if err := writeMove(ctx, w.api, v, &v1alpha1.VolumeMove{Replica: one.replica, Node: one.to}, dryRun); err != nil {
				return fmt.Errorf("volume %s: %w", f.called(v), err)
			}
			m := memberOf(v, one.replica)
			w.line("%s", f.requested(v, m, one.to, dryRun))
			requested = append(requested, progress{called: f.called(v), replica: m.Name, from: m.Node, to: one.to, state: moveRequested, copied: notCopied}.report())
			if p, is := f.moving(v); is {
				w.last[v.Name] = p
			}
		}
		return nil
	})
	return f, requested, err
}

// first of the wishes, as many as there is room for.
func first(wishes []wish, room int) []wish { return wishes[:min(max(room, 0), len(wishes))] }

// tellLeft says what is left on a node or drive, or that nothing is.
func (w *watcher) tellLeft(f *fleet, left remainder, dryRun bool) {
	from := left.source
	if len(left.stuck) > 0 {
		w.line("cannot move:")
		for _, s := range left.stuck {
			w.line("- %s", s.words())
		}
	}
	if len(left.passing) > 0 {
		w.line("being removed or added: %s", text.Few(left.passing, maxNamed, ", "))
	}
	if len(left.snapshots) > 0 {
		w.line("snapshots do not move; delete their VolumeSnapshots: %s", text.Few(left.snapshots, maxNamed, ", "))
	}
	switch {
	case left.empty() && from.drive == "" && !dryRun:
		w.line("node %s serves no replica and can be switched off", from.node)
	case left.empty():
		w.line("%s stores no replica and no snapshot", from)
	default:
		w.line("%s stores %s and %s: %d moving, %d can move, %d cannot move", from, text.Plural(len(left.replicas), "replica"),
			text.Plural(len(left.snapshots), "snapshot"), len(left.running), len(left.wishes), len(left.stuck))
		if len(left.running)+len(left.passing)+len(left.wishes) > 0 && !dryRun {
			w.line("to continue, repeat: %s", from.command())
		}
		w.tellEvictable(f, from)
	}
}

// tellEvictable says that a node can be drained for its pods although it stores replicas, if the operator says so.
func (w *watcher) tellEvictable(f *fleet, from source) {
	n := f.node(from.node)
	if n == nil || from.drive != "" {
		return
	}
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionEvictable); c != nil && c.Status == metav1.ConditionTrue && c.Reason != v1alpha1.ReasonNotNeeded {
		w.line("kubectl drain %s is allowed meanwhile: %s", from.node, c.Message)
	}
}
