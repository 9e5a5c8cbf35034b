// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// defaultWithin percentage points of each other nodes count as balanced.
const defaultWithin = 10

// rebalanceOptions are the flags of rebalance.
type rebalanceOptions struct {
	dryRun      bool
	max, within int
}

// A RebalanceResult is what `kubectl weft rebalance -o json` prints.
type RebalanceResult struct {
	DryRun bool   `json:"dryRun"`
	Target string `json:"target"`
	// Requested moves, and with those all that are running.
	Requested []MoveReport `json:"requested"`
	Running   []MoveReport `json:"running"`
	Nodes     []NodeUsage  `json:"nodes"`
}

// NodeUsage is what a node's pools have, and promise when the moves that are running are complete.
type NodeUsage struct {
	Name         string             `json:"name"`
	GetsReplicas bool               `json:"getsReplicas"`
	Total        *resource.Quantity `json:"total"`
	Promised     *resource.Quantity `json:"promised"`
	// PromisedAfterwards is what they promise when the moves that were requested are complete, too.
	PromisedAfterwards *resource.Quantity `json:"promisedAfterwards"`
}

func rebalanceCommand(at *cluster) *cobra.Command {
	var o rebalanceOptions
	var format *output
	cmd := &cobra.Command{
		Use:   "rebalance TARGET",
		Short: "Move replicas from the fullest nodes of a target to the emptiest",
		Long: `Move replicas from the fullest nodes of an NvmfTarget to the emptiest, until the usage of its nodes is within --within
percentage points. The usage of a node is what is promised of its pools, divided by their size. At most --max moves run
at once, including those that are running already. Repeat the command to continue.

Two replicas of a volume are never on one node. Cordoned nodes get no replicas, and a volume with a device class stays on
drives of that class. Volumes that are shared, or that no pod has used yet, do not move. Nodes that are not ready are left
out.`,
		Example: `  kubectl weft rebalance fast --dry-run
  kubectl weft rebalance fast --max 2`,
		Args: takes(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := at.client()
			if err != nil {
				return err
			}
			return rebalance(cmd.Context(), verb(api, cmd, format), args[0], o)
		},
	}
	format = resultFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would happen; change nothing")
	flags.IntVar(&o.max, "max", defaultMoves, "moves that run at once")
	flags.IntVar(&o.within, "within", defaultWithin, "percentage points within which the usage of nodes is balanced")
	return cmd
}

// rebalance a target: request moves, and show what they lead to.
func rebalance(ctx context.Context, w *watcher, target string, o rebalanceOptions) error {
	switch {
	case o.max < 1:
		return fmt.Errorf("--max is %d; must be at least 1", o.max)
	case o.within < 1 || o.within > 100:
		return fmt.Errorf("--within is %d; must be from 1 to 100", o.within)
	}
	f, err := w.look(ctx)
	if err != nil {
		return err
	}
	if find(f.targets, func(t *v1alpha1.NvmfTarget) bool { return t.Name == target }) == nil {
		var names []string
		for _, t := range f.targets {
			names = append(names, t.Name)
		}
		return fmt.Errorf("NvmfTarget %s not found; existing NvmfTargets: %s", target, orNone(names))
	}
	var before, after []weighed
	var shifts []shift
	f, requested, err := w.startMoves(ctx, o.dryRun, func(f *fleet) []wish {
		before = f.weigh(target)
		shifts, after = balance(before, f.loads(target), float64(o.within)/100, o.max-len(f.movesOf(target)))
		wishes := make([]wish, len(shifts))
		for i, s := range shifts {
			wishes[i] = wish{volume: s.volume, replica: s.replica, to: s.to}
		}
		return wishes
	})
	if err != nil {
		return fmt.Errorf("NvmfTarget %s: %w", target, err)
	}
	running := f.movesOf(target)
	switch {
	case len(shifts) > 0:
		w.line("")
	case len(running) >= o.max:
		w.line("%d moves are running, and --max is %d; repeat the command later", len(running), o.max)
	default:
		w.line("nothing to move: the usage of the nodes is within %d percentage points, or no replica that can move brings them nearer", o.within)
	}
	w.columns(usageRows(before, after))
	return w.did(RebalanceResult{DryRun: o.dryRun, Target: target, Requested: requested, Running: reports(running), Nodes: usages(before, after)}, w.err)
}

func usages(before, after []weighed) []NodeUsage {
	all := make([]NodeUsage, len(before))
	for i, n := range before {
		all[i] = NodeUsage{Name: n.node, GetsReplicas: n.receives, Total: inBytes(n.totalBytes), Promised: inBytes(n.promisedBytes), PromisedAfterwards: inBytes(after[i].promisedBytes)}
	}
	return all
}

func inBytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

func usageRows(before, after []weighed) [][]string {
	rows := [][]string{{"NODE", "GETS REPLICAS", "USAGE NOW", "USAGE AFTERWARDS"}}
	for i, n := range before {
		rows = append(rows, []string{n.node, yes(n.receives), percent(n.usage()), percent(after[i].usage())})
	}
	return rows
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", share*100) }

// movesOf a target's volumes that are running.
func (f *fleet) movesOf(target string) []progress {
	var moves []progress
	for i := range f.volumes {
		if p, is := f.moving(&f.volumes[i]); is && f.volumes[i].Spec.Target == target {
			moves = append(moves, p)
		}
	}
	return moves
}

// weigh the nodes of a target that are ready, by name, as they will be when the moves that are running are complete.
func (f *fleet) weigh(target string) []weighed {
	var all []weighed
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.Spec.Target != target || n.DeletionTimestamp != nil || notReady(n) != "" {
			continue
		}
		_, why := n.Unschedulable(f.cordoned[n.Name])
		one := weighed{node: n.Name, receives: why == ""}
		for _, p := range n.Status.Pools {
			if !p.Ready || p.Total == nil || p.Promised == nil {
				continue
			}
			one.totalBytes += p.Total.Value()
			one.promisedBytes += p.Promised.Value()
			if !p.TakesNothingNew() && !n.Spec.Cordons(p.Device) {
				one.pools = append(one.pools, roomy{p.DeviceClass, n.Spec.Plan.Promisable(p.Total.Value()) - p.Promised.Value()})
			}
		}
		if one.totalBytes > 0 {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b weighed) int { return strings.Compare(a.node, b.node) })
	for i := range f.volumes {
		if v := &f.volumes[i]; v.Spec.Move != nil {
			f.foresee(all, v)
		}
	}
	return all
}

// foresee the end of a move: the former replica is gone, and the new one counts even if its node has not said so yet.
func (f *fleet) foresee(nodes []weighed, v *v1alpha1.NvmfVolume) {
	p, _ := f.moving(v)
	l := load{volume: v.Name, replica: p.replica, class: v.Spec.DeviceClass, bytes: v1alpha1.WithOverhead(v.Spec.Size.Value())}
	if former := f.replica(p.replica); former != nil {
		if n := find(nodes, func(n *weighed) bool { return n.node == former.Spec.Node }); n != nil {
			n.promisedBytes -= l.bytes
		}
	}
	if r := f.replica(v.Spec.Move.Replacement); r != nil && r.Status.Device != "" {
		return // its pool has promised it
	}
	if n := find(nodes, func(n *weighed) bool { return n.node == p.to }); n != nil {
		n.promisedBytes += l.bytes
		if i := roomFor(*n, l); i >= 0 {
			n.pools[i].freeBytes -= l.bytes
		}
	}
}

// loads of a target: the replicas that can move now, by name.
func (f *fleet) loads(target string) []load {
	var all []load
	for i := range f.volumes {
		v := &f.volumes[i]
		if v.Spec.Target != target || v.Spec.Move != nil || f.movable(v) != nil {
			continue
		}
		for _, m := range v.Spec.Members {
			if f.replica(m.Name) == nil {
				continue
			}
			l := load{volume: v.Name, replica: m.Name, node: m.Node, class: v.Spec.DeviceClass, bytes: v1alpha1.WithOverhead(v.Spec.Size.Value())}
			for _, other := range v.Spec.Members {
				if other.Node != m.Node {
					l.others = append(l.others, other.Node)
				}
			}
			for _, n := range f.nodes {
				if f.outside(v, n.Name) {
					l.others = append(l.others, n.Name)
				}
			}
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b load) int { return strings.Compare(a.replica, b.replica) })
	return all
}
