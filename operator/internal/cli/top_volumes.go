// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A TopVolume is one volume on one node that uses it; kubectl weft top volumes -o json prints it. What is absent is not
// known.
type TopVolume struct {
	// Claim as NAMESPACE/NAME; nv/NAME of a volume without one.
	Claim  string `json:"claim"`
	Volume string `json:"volume"`
	Target string `json:"target"`
	// Node that uses the volume; empty if none does.
	Node string `json:"node,omitempty"`
	// Traffic of the device that pods use.
	Traffic *Traffic `json:"traffic,omitempty"`
	// AtTarget is the traffic of all replicas as their targets see it, without the network and the host. The kernel's
	// target does not count it.
	AtTarget *Traffic `json:"atTarget,omitempty"`
	// InFlight are the I/Os that are not completed.
	InFlight  *int64 `json:"inFlight,omitempty"`
	PathsLive *int64 `json:"pathsLive,omitempty"`
	Paths     *int64 `json:"paths,omitempty"`
	// Errors are I/Os that an SPDK target failed, or else reads that the mirror corrected from another replica. It is
	// absent if neither is counted.
	Errors  *Count `json:"errors,omitempty"`
	Problem string `json:"problem,omitempty"`
	// targetUnknown: an agent did not answer.
	targetUnknown bool
}

// volumeChoice says which volumes are shown.
type volumeChoice struct {
	// namespace of the claims; empty for all.
	namespace string
	// names of claims in it, as NAME, NAMESPACE/NAME or nv/NAME; none for all.
	names []string
	// node that uses them; empty for all.
	node string
}

// is a volume one that a name means?
func (c *volumeChoice) is(f *fleet, v *v1alpha1.NvmfVolume, name string) bool {
	called := f.called(v)
	if nv, ok := strings.CutPrefix(name, volumePrefix); ok {
		return v.Name == nv
	}
	if strings.Contains(name, "/") {
		return called == name
	}
	namespace, claim, _ := strings.Cut(called, "/")
	return claim == name && namespace+"/" != volumePrefix && (c.namespace == "" || c.namespace == namespace)
}

// chosen tells whether a volume is shown.
func (c *volumeChoice) chosen(f *fleet, v *v1alpha1.NvmfVolume) bool {
	if len(c.names) > 0 {
		return slices.ContainsFunc(c.names, func(name string) bool { return c.is(f, v, name) })
	}
	return c.namespace == "" || strings.HasPrefix(f.called(v), c.namespace+"/") && !strings.HasPrefix(f.called(v), volumePrefix)
}

// check that there is a volume for each name, and the node.
func (c *volumeChoice) check(f *fleet) error {
	for _, name := range c.names {
		if !slices.ContainsFunc(f.volumes, func(v v1alpha1.NvmfVolume) bool { return c.is(f, &v, name) }) {
			where := ""
			if c.namespace != "" && !strings.Contains(name, "/") {
				where = " in namespace " + c.namespace
			}
			return fmt.Errorf("%s is not the claim of a volume of weft%s; kubectl weft volumes lists all", name, where)
		}
	}
	return nil
}

// users of a volume: the nodes that it is attached to for pods, of those that are asked for.
func (c *volumeChoice) users(v *v1alpha1.NvmfVolume) []string {
	var nodes []string
	for _, h := range v.Spec.Attachments {
		if !h.Mover && (c.node == "" || c.node == h.Node) && !slices.Contains(nodes, h.Node) { // while keys are rotated, a node is listed twice
			nodes = append(nodes, h.Node)
		}
	}
	return nodes
}

// counted at its target is the I/O of a volume.
func (f *fleet) countedAtTarget(v *v1alpha1.NvmfVolume) bool {
	return f.engineOf(v.Spec.Target) == v1alpha1.EngineSPDK
}

// exporters that know of the volumes.
func (c *volumeChoice) exporters(f *fleet) []exporter {
	all := map[exporter]bool{}
	for i := range f.volumes {
		v := &f.volumes[i]
		users := c.users(v)
		if !c.chosen(f, v) || len(users) == 0 {
			continue
		}
		for _, node := range users {
			all[exporter{componentNodePlugin, node}] = true
		}
		if f.countedAtTarget(v) {
			for _, m := range v.Spec.Members {
				all[exporter{componentAgent, m.Node}] = true
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// figuresOfVolumes are what node plugins and agents count, by volume or replica.
type figuresOfVolumes struct {
	flows                          map[string]flow
	inFlight, paths, live, counted map[string]float64
	errors                         map[string]Count
}

func (s *samples) figuresOfVolumes(e exporter) *figuresOfVolumes {
	is, answered := s.spans[e]
	if !answered {
		return nil
	}
	if e.component == componentAgent {
		replica := by("replica")
		return &figuresOfVolumes{flows: is.flows(ioOfReplicas, replica), errors: is.counts("weft_agent_replica_errors_total", replica)}
	}
	volume := by("volume")
	return &figuresOfVolumes{
		flows: is.flows(ioOfVolumes, volume), counted: is.to.sums(ioOfVolumes.operations, volume), inFlight: is.to.sums("weft_volume_operations_in_flight", volume),
		paths: is.to.sums("weft_volume_paths", volume), live: is.to.sums("weft_volume_paths_live", volume), errors: is.counts("weft_mirror_read_errors_total", volume),
	}
}

// list the volumes.
func (c *volumeChoice) list(f *fleet, s *samples) []TopVolume {
	figures := map[exporter]*figuresOfVolumes{}
	of := func(component, node string) *figuresOfVolumes {
		e := exporter{component, node}
		if _, known := figures[e]; !known {
			figures[e] = s.figuresOfVolumes(e)
		}
		return figures[e]
	}
	var rows []TopVolume
	for i := range f.volumes {
		v := &f.volumes[i]
		if !c.chosen(f, v) {
			continue
		}
		users := c.users(v)
		if len(users) == 0 && len(c.names) > 0 && c.node == "" {
			rows = append(rows, TopVolume{Claim: f.called(v), Volume: v.Name, Target: v.Spec.Target, Problem: "not attached to a node"})
		}
		for _, node := range users {
			r := TopVolume{Claim: f.called(v), Volume: v.Name, Target: v.Spec.Target, Node: node}
			if f.countedAtTarget(v) {
				r.atTargets(v, of)
			}
			r.onNode(of(componentNodePlugin, node))
			rows = append(rows, r)
		}
	}
	return rows
}

// atTargets are the figures that the agents have of the replicas. One that does not answer leaves all of them unknown.
func (r *TopVolume) atTargets(v *v1alpha1.NvmfVolume, of func(component, node string) *figuresOfVolumes) {
	var all flow
	var errors *Count
	for _, m := range v.Spec.Members {
		is := of(componentAgent, m.Node)
		if is == nil {
			r.targetUnknown, r.Problem = true, "the agent of node "+m.Node+" did not answer"
			return
		}
		if f := is.flows[m.Name]; f != nil {
			all = all.add(f)
		}
		if n, counted := is.errors[m.Name]; counted {
			if errors != nil {
				n = n.add(*errors)
			}
			errors = &n
		}
	}
	r.AtTarget, r.Errors = all.traffic(), errors
}

// onNode are the figures of the node plugin; nil: it did not answer.
func (r *TopVolume) onNode(is *figuresOfVolumes) {
	if is == nil {
		r.Problem = "the node plugin of the node did not answer"
		return
	}
	whole := func(values map[string]float64) *int64 {
		if value, known := values[r.Volume]; known {
			return new(int64(value))
		}
		return nil
	}
	r.InFlight, r.Paths, r.PathsLive = whole(is.inFlight), whole(is.paths), whole(is.live)
	r.Traffic = is.flows[r.Volume].traffic()
	if n, counted := is.errors[r.Volume]; counted && r.Errors == nil && !r.targetUnknown {
		r.Errors = &n
	}
	_, counted := is.counted[r.Volume]
	switch {
	case r.Traffic == nil && !counted:
		r.Problem = "the node plugin has no figures of it"
	case r.Traffic == nil:
		r.Problem = notThroughout
	case r.InFlight != nil && *r.InFlight > 0 && r.Traffic.operations() == 0:
		r.Problem = fmt.Sprintf("%d I/Os in flight, and none completed", *r.InFlight)
	case r.Paths != nil && r.PathsLive != nil && *r.PathsLive < *r.Paths:
		r.Problem = fmt.Sprintf("%d of %d paths do not carry I/O", *r.Paths-*r.PathsLive, *r.Paths)
	}
}

// unknown is a volume that is attached and whose I/O is not known on its node or at its target.
func (r *TopVolume) unknown() bool { return r.Node != "" && (r.Traffic == nil || r.targetUnknown) }

func (r *TopVolume) compare(other *TopVolume) int {
	return cmp.Or(cmp.Compare(r.Claim, other.Claim), cmp.Compare(r.Volume, other.Volume), cmp.Compare(r.Node, other.Node))
}

func (r *TopVolume) measure(order string) (float64, bool) {
	switch {
	case order == sortByQueue && r.InFlight != nil:
		return float64(*r.InFlight), true
	case order == sortByErrors && r.Errors != nil:
		return float64(r.Errors.Total), true
	}
	return r.Traffic.measure(order)
}

func (r TopVolume) row(wide bool) []string {
	notKnown := "unknown"
	if r.Node == "" {
		notKnown = "-"
	}
	errors, atTarget := "-", []string{"-", "-"}
	if r.targetUnknown {
		errors, atTarget = notKnown, []string{notKnown, notKnown}
	}
	if r.Errors != nil {
		errors = r.Errors.String()
	}
	row := append([]string{r.Claim, orDash(r.Node)}, r.Traffic.columns(notKnown)...)
	row = append(row, whole(r.InFlight, notKnown), ofAll(r.PathsLive, r.Paths, notKnown), errors, orDash(r.Problem))
	if wide {
		if r.AtTarget != nil {
			atTarget = []string{latency(r.AtTarget.ReadLatencySeconds), latency(r.AtTarget.WriteLatencySeconds)}
		}
		row = append(append(row, atTarget...), r.Traffic.more(notKnown)...)
		row = append(row, r.Target, r.Volume)
	}
	return row
}

// listing of volumes in an order.
func (c *volumeChoice) listing(f *fleet, s *samples, order string) frame {
	is := framed(listing[TopVolume]{
		kind: "volumes", head: slices.Concat([]string{"CLAIM", "NODE"}, trafficHead, []string{"IN FLIGHT", "PATHS", "ERRORS", "PROBLEM"}),
		wide: slices.Concat([]string{"READ AT TARGET", "WRITE AT TARGET"}, trafficMore, []string{"TARGET", "VOLUME"}), row: TopVolume.row, items: c.list(f, s),
	}, order, (*TopVolume).measure, (*TopVolume).compare, (*TopVolume).unknown)
	if len(is.marked) == 0 {
		table := is.show
		is.show = func(out io.Writer, format *output) error {
			if !format.forPeople() {
				return table(out, format)
			}
			_, err := fmt.Fprintln(out, c.none())
			return err
		}
	}
	return is
}

// none says that there is nothing to show.
func (c *volumeChoice) none() string {
	where := ""
	if c.node != "" {
		where = " to node " + c.node
	}
	if c.namespace == "" {
		return "No volumes are attached" + where + "."
	}
	return fmt.Sprintf("No volumes of namespace %s are attached%s; -A shows those of all namespaces.", c.namespace, where)
}

func topVolumesCommand(at *cluster, run topRunner) *cobra.Command {
	var c volumeChoice
	var all bool
	cmd := &cobra.Command{
		Use:   "volumes [CLAIM...]",
		Short: "Show the I/O of attached volumes by claim, the busiest first",
		Long: `Show the I/O of the volumes that are attached to a node, or of those named, as the node that uses them sees it: how many reads and writes
complete in a second, how many bytes, how long they take on average, how many are in flight, how many of the paths carry I/O, and errors.

With -o wide, and an SPDK target, it also shows how long the same I/O takes at the target. The difference is the network and the node.

CLAIM is NAME, NAMESPACE/NAME or, for a volume without a claim, nv/NAME.` + aboutTop,
		Example: `  kubectl weft top volumes -A
  kubectl weft top volumes data -n databases --watch -o wide
  kubectl weft top volumes -A --node worker-1 --sort-by latency`,
	}
	o := topFlags(cmd, sortByOperations, sortByName, sortByOperations, sortByBytes, sortByLatency, sortByQueue, sortByErrors)
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", "", "namespace of the claims (default: the namespace of the kubeconfig context)")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show volumes of all namespaces, and those without a claim")
	cmd.Flags().StringVar(&c.node, "node", "", "show only volumes that are attached to this node")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		c.names = args
		if all {
			c.namespace = ""
		} else if c.namespace, err = at.namespaceOf(c.namespace); err != nil {
			return err
		}
		return run(cmd, o, view{check: c.check, exporters: c.exporters, frame: c.listing})
	}
	return cmd
}
