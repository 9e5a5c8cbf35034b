// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// listing is a table of one kind of things, over all nodes.
type listing[T any] struct {
	// kind is the key of -o json, and "No KIND found" of an empty table.
	kind string
	head []string
	// wide has further columns of -o wide.
	wide  []string
	row   func(item T, wide bool) []string
	items []T
	// where the listing was looked for, if not everywhere: " in namespace NAME".
	where string
}

// in only those items of a listing that are in a namespace, or all of them if that is empty.
func (l listing[T]) in(namespace string, is func(item T, namespace string) bool) listing[T] {
	if namespace != "" {
		l.where = " in namespace " + namespace
		l.items = slices.DeleteFunc(l.items, func(item T) bool { return !is(item, namespace) })
	}
	return l
}

// namespaceFlags of a listing of claims, and the namespace that they choose; empty for all.
func namespaceFlags(cmd *cobra.Command) *string {
	namespace := ""
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "list only this namespace (default: all namespaces, and what has no claim)")
	cmd.Flags().BoolP("all-namespaces", "A", false, "list all namespaces, and what has no claim; this is the default")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return &namespace
}

// show the listing in a format.
func (l listing[T]) show(out io.Writer, format *output) error {
	if done, err := format.encode(out, map[string][]T{l.kind: append([]T{}, l.items...)}); done || err != nil {
		return err
	}
	t := newTable(out)
	if len(l.items) == 0 {
		t.line("No %s found%s.", l.kind, l.where)
		return t.err
	}
	head := l.head
	if format.wide() {
		head = slices.Concat(l.head, l.wide)
	}
	rows := [][]string{head}
	for _, item := range l.items {
		rows = append(rows, l.row(item, format.wide()))
	}
	t.columns(rows)
	return t.err
}

// shower shows something of these nodes in a format.
type shower func(ctx context.Context, api client.Reader, f *fleet, nodes []string, out io.Writer, format *output) error

// shownAs is the shower of a listing that needs nothing but the fleet.
func shownAs[T any](list func(f *fleet, nodes []string) listing[T]) shower {
	return func(_ context.Context, _ client.Reader, f *fleet, nodes []string, out io.Writer, format *output) error {
		return list(f, nodes).show(out, format)
	}
}

// listingCommand completes a command that shows something of nodes: of those in its arguments, or of all.
func listingCommand(at *cluster, now clock.PassiveClock, cmd *cobra.Command, show shower) *cobra.Command {
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := at.client()
		if err != nil {
			return err
		}
		f, err := lookAtNodes(cmd.Context(), api, now.Now(), args)
		if err != nil {
			return err
		}
		return show(cmd.Context(), api, f, args, cmd.OutOrStdout(), format)
	}
	return cmd
}

// lookAtNodes is a look at the fleet, in which these nodes must be.
func lookAtNodes(ctx context.Context, api client.Reader, now time.Time, nodes []string) (*fleet, error) {
	f, err := lookAtFleet(ctx, api, now)
	if err != nil {
		return nil, err
	}
	return f, f.haveNodes(nodes)
}

// haveNodes of these names.
func (f *fleet) haveNodes(names []string) error {
	return haveAll(f.nodes, func(n *v1alpha1.NvmfNode) string { return n.Name }, names, "NvmfNode", "nodes")
}

// haveTargets of these names.
func (f *fleet) haveTargets(names []string) error {
	return haveAll(f.targets, func(t *v1alpha1.NvmfTarget) string { return t.Name }, names, "NvmfTarget", "targets")
}

// haveAll of these names. If there is one missing, the error has it and those that there are.
func haveAll[T any](items []T, nameOf func(*T) string, names []string, kind, plural string) error {
	existing := make([]string, len(items))
	for i := range items {
		existing[i] = nameOf(&items[i])
	}
	slices.Sort(existing)
	for _, name := range names {
		if !slices.Contains(existing, name) {
			return fmt.Errorf("%s %s not found; existing %s: %s", kind, name, plural, orNone(existing))
		}
	}
	return nil
}

// chosen nodes: those named, or all.
func chosen(nodes []string, name string) bool { return len(nodes) == 0 || slices.Contains(nodes, name) }

// place is one drive or pool file of one node.
type place struct{ node, device string }

// stored is what a place stores.
type stored struct {
	replicas, snapshots int
	// claims of the replicas' volumes, sorted; a volume without one is nv/NAME.
	claims []string
}

// contents of all places, as agents reported them.
func (f *fleet) contents() map[place]*stored {
	all := map[place]*stored{}
	at := func(node, device string) *stored {
		key := place{node, device}
		if all[key] == nil {
			all[key] = &stored{}
		}
		return all[key]
	}
	for i := range f.replicas {
		r := &f.replicas[i]
		s := at(r.Spec.Node, r.Status.Device)
		s.replicas++
		claim := volumePrefix + r.Spec.Volume.Name
		if v := f.volume(r.Spec.Volume.Name); v != nil {
			claim = f.called(v)
		}
		s.claims = append(s.claims, claim)
	}
	for i := range f.snapshots {
		at(f.snapshots[i].Spec.Node, f.snapshots[i].Status.Device).snapshots++
	}
	for _, s := range all {
		slices.Sort(s.claims)
		s.claims = slices.Compact(s.claims)
	}
	return all
}

// maxClaims that a table names in one row.
const maxClaims = 3

func claimsIn(claims []string, wide bool) string {
	if wide {
		return orDash(text.Few(claims, len(claims), ", "))
	}
	return orDash(text.Few(claims, maxClaims, ", "))
}

// silent says whether what a node reported is old, because its agent does not answer.
func silent(n *v1alpha1.NvmfNode) bool {
	return meta.IsStatusConditionFalse(n.Status.Conditions, v1alpha1.ConditionAgentAlive)
}

// claimIn tells whether what a volume is called is a claim in a namespace, not the volume itself.
func claimIn(called, volume, namespace string) bool {
	return called != volumePrefix+volume && strings.HasPrefix(called, namespace+"/")
}
