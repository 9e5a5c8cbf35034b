// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Orders of pools.
const (
	sortByName = "name"
	sortByUsed = "used"
)

// A PoolReport is one pool of one node; -o json prints it. What is absent was not reported.
type PoolReport struct {
	Node        string `json:"node"`
	Target      string `json:"target,omitempty"`
	Pool        string `json:"pool"`
	DeviceClass string `json:"deviceClass,omitempty"`
	Path        string `json:"path,omitempty"`
	Ready       bool   `json:"ready"`
	// AgentSilent: the agent of the node does not answer, so all of this is old.
	AgentSilent bool `json:"agentSilent,omitempty"`
	// Problem of the pool: its reason and message.
	Problem    string             `json:"problem,omitempty"`
	Total      *resource.Quantity `json:"total,omitempty"`
	Promised   *resource.Quantity `json:"promised,omitempty"`
	Promisable *resource.Quantity `json:"promisable,omitempty"`
	// UsedPercent is what is promised of what may be.
	UsedPercent *float64           `json:"usedPercent,omitempty"`
	Unwritten   *resource.Quantity `json:"unwritten,omitempty"`
	Clearing    *resource.Quantity `json:"clearing,omitempty"`
	ClusterSize *resource.Quantity `json:"clusterSize,omitempty"`
	WriteCache  string             `json:"writeCache,omitempty"`
	Replicas    int                `json:"replicas"`
	Snapshots   int                `json:"snapshots"`
	Claims      []string           `json:"claims,omitempty"`
}

func poolsCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	order := sortByName
	cmd := &cobra.Command{
		Use:   "pools [NODE...]",
		Short: "List the pools of all nodes, with the claims on them",
		Long: `List the pools of all nodes, or of those named: their size, how much of it is promised, what is not written yet, what is being cleared, the
claims that are stored there, and problems. The pools are sorted by node; --sort-by used shows the fullest first.`,
		Example: `  kubectl weft pools
  kubectl weft pools --sort-by used -o wide`,
	}
	listingCommand(at, now, cmd, func(_ context.Context, _ client.Reader, f *fleet, nodes []string, out io.Writer, format *output) error {
		if order != sortByName && order != sortByUsed {
			return fmt.Errorf("--sort-by is %q; must be %s or %s", order, sortByName, sortByUsed)
		}
		return f.listPools(nodes, order).show(out, format)
	})
	cmd.Flags().StringVar(&order, "sort-by", order, "order: name, or used for the fullest first")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{sortByName, sortByUsed}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// listPools of nodes, sorted.
func (f *fleet) listPools(nodes []string, order string) listing[PoolReport] {
	l := listing[PoolReport]{kind: "pools", head: []string{"NODE", "TARGET", "POOL", "READY", "TOTAL", "PROMISED", "OF", "USED", "UNWRITTEN", "CLEARING", "REPLICAS", "CLAIMS", "PROBLEM"},
		wide: []string{"CLASS", "PATH", "CACHE", "CLUSTER", "SNAPSHOTS"}, row: PoolReport.row}
	contents := f.contents()
	for i := range f.nodes {
		if n := &f.nodes[i]; chosen(nodes, n.Name) {
			for _, p := range n.Status.Pools {
				l.items = append(l.items, reportPool(n, p, contents))
			}
		}
	}
	slices.SortStableFunc(l.items, func(a, b PoolReport) int {
		byUse := 0
		if order == sortByUsed {
			byUse = cmp.Compare(b.used(), a.used())
		}
		return cmp.Or(byUse, cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool))
	})
	return l
}

func reportPool(n *v1alpha1.NvmfNode, p v1alpha1.PoolStatus, contents map[place]*stored) PoolReport {
	r := PoolReport{
		Node: n.Name, Target: n.Spec.Target, Pool: p.Device, DeviceClass: p.DeviceClass, Path: p.Path, Ready: p.Ready, AgentSilent: silent(n),
		Problem: strings.TrimSpace(p.Reason + " " + p.Message), Total: p.Total, Promised: p.Promised, Unwritten: p.Free, Clearing: p.Clearing,
		ClusterSize: p.ClusterSize, WriteCache: string(driveCache(*n, p.Device)),
	}
	if p.Total != nil {
		r.Promisable = resource.NewQuantity(n.Spec.Plan.Promisable(p.Total.Value()), resource.BinarySI)
	}
	if p.Promised != nil && r.Promisable.CmpInt64(0) > 0 {
		r.UsedPercent = new(float64(p.Promised.Value()) / float64(r.Promisable.Value()) * 100)
	}
	if s := contents[place{n.Name, p.Device}]; s != nil {
		r.Replicas, r.Snapshots, r.Claims = s.replicas, s.snapshots, s.claims
	}
	return r
}

// used percent of a pool; -1: not known.
func (r PoolReport) used() float64 {
	if r.UsedPercent == nil {
		return -1
	}
	return *r.UsedPercent
}

func (r PoolReport) row(wide bool) []string {
	used, problem := "-", r.Problem
	if r.UsedPercent != nil {
		used = fmt.Sprintf("%.0f %%", *r.UsedPercent)
	}
	if r.AgentSilent {
		problem = strings.TrimSpace(v1alpha1.ReasonAgentSilent + " " + problem)
	}
	row := []string{r.Node, orDash(r.Target), r.Pool, yes(r.Ready), size(r.Total), size(r.Promised), size(r.Promisable), used, size(r.Unwritten), size(r.Clearing),
		fmt.Sprint(r.Replicas), claimsIn(r.Claims, wide), orDash(problem)}
	if wide {
		row = append(row, orDash(r.DeviceClass), orDash(r.Path), orDash(r.WriteCache), size(r.ClusterSize), fmt.Sprint(r.Snapshots))
	}
	return row
}
