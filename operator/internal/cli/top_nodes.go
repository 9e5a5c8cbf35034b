// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	klabels "k8s.io/apimachinery/pkg/labels"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// A Load is what a node's target does, or all nodes of a target together. What is absent is not known, or is not
// counted by the engine.
type Load struct {
	// Traffic of the devices that pools are on, with what the engine does for itself, such as metadata and copies.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Replicas that the nodes store.
	Replicas *int64 `json:"replicas,omitempty"`
	// PromisedBytes of pools, and how many they may promise.
	PromisedBytes   *int64 `json:"promisedBytes,omitempty"`
	PromisableBytes *int64 `json:"promisableBytes,omitempty"`
	// Errors are I/Os of replicas that an SPDK target failed.
	Errors *Count `json:"errors,omitempty"`
	// BufferWaits are I/Os that waited for a buffer of an SPDK target, as far as its agent saw it. It looks every 30 s.
	BufferWaits *Count `json:"bufferWaits,omitempty"`
	// BusyCores of an SPDK target, of so many.
	BusyCores *float64 `json:"busyCores,omitempty"`
	Cores     *int64   `json:"cores,omitempty"`
	// flow that the traffic is of.
	flow flow
}

// A TopNode is one storage node; kubectl weft top nodes -o json prints it.
type TopNode struct {
	Node   string `json:"node"`
	Target string `json:"target,omitempty"`
	Engine string `json:"engine,omitempty"`
	Load
	Problem string `json:"problem,omitempty"`
}

// A TopTarget is one NvmfTarget; kubectl weft top targets -o json prints it. Its load is that of the nodes that
// answered.
type TopTarget struct {
	Target string `json:"target"`
	Engine string `json:"engine"`
	// Nodes that serve the target, and those of them whose I/O is known.
	Nodes      int `json:"nodes"`
	NodesKnown int `json:"nodesKnown"`
	// Volumes of the target.
	Volumes int `json:"volumes"`
	Load
	Problem string `json:"problem,omitempty"`
}

// engineOf a target; empty if there is no such target.
func (f *fleet) engineOf(target string) v1alpha1.Engine {
	if t := find(f.targets, func(t *v1alpha1.NvmfTarget) bool { return t.Name == target }); t != nil {
		return t.Spec.Engine
	}
	return ""
}

// topNode is the load of a node.
func (f *fleet) topNode(n *v1alpha1.NvmfNode, s *samples) TopNode {
	r := TopNode{Node: n.Name, Target: n.Spec.Target, Engine: string(f.engineOf(n.Spec.Target))}
	if n.Spec.Target == "" {
		r.Problem = "serves no target"
		return r
	}
	is, answered := s.spans[exporter{componentAgent, n.Name}]
	if !answered {
		r.Problem = "the agent did not answer"
		return r
	}
	r.Replicas = total(is.to.sums("weft_agent_volumes", together))
	r.promised(n, is.to)
	devices := is.to.sums(ioOfPools.operations, by("device"))
	for _, p := range n.Status.Pools {
		if _, counted := devices[p.Device]; p.Ready && !counted {
			r.Problem = "no figures of pool " + p.Device
		}
	}
	up, known := is.to.only("weft_agent_target_up")
	switch flows := is.flows(ioOfPools, together); {
	case known && up == 0:
		r.Problem = "the target does not answer"
	case len(devices) == 0:
		r.Problem = "the target reports no I/O"
	case r.Problem != "": // a sum without one of the pools would look like all of them
	case flows[""] == nil:
		r.Problem = notThroughout
	default:
		r.flow = flows[""]
		r.Traffic = r.flow.traffic()
	}
	if f.engineOf(n.Spec.Target) == v1alpha1.EngineSPDK && len(devices) > 0 {
		r.ofSPDK(is)
	}
	return r
}

// promised of the pools whose size is known.
func (l *Load) promised(n *v1alpha1.NvmfNode, now *reading) {
	var promised, promisable int64
	known := false
	sizes := now.sums("weft_agent_pool_bytes", func(of labelSet) (string, bool) { return of["device"], of["part"] == "total" })
	now.each("weft_agent_pool_bytes", func(of labelSet, value float64) {
		if size, sized := sizes[of["device"]]; sized && of["part"] == "promised" {
			promised, promisable, known = promised+int64(value), promisable+n.Spec.Plan.Promisable(int64(size)), true
		}
	})
	if known {
		l.PromisedBytes, l.PromisableBytes = &promised, &promisable
	}
}

// ofSPDK is what only SPDK counts.
func (l *Load) ofSPDK(is span) {
	errors, counted := is.counts("weft_agent_replica_errors_total", together)[""]
	if counted || len(is.to.sums(ioOfReplicas.operations, together)) == 0 { // without replicas in use, there are none
		l.Errors = &errors
	}
	waits := is.counts("weft_agent_buffer_waits_total", together)[""] // absent until the target has answered
	l.BufferWaits = &waits
	const metric = "weft_agent_core_seconds_total"
	spent := is.growth(metric, by("state"))
	busy, idle := spent["busy"][""], spent["idle"][""]
	if cores := int64(len(is.to.sums(metric, by("core")))); busy+idle > 0 { // in interrupt mode, neither grows
		l.BusyCores, l.Cores = new(busy/(busy+idle)*float64(cores)), &cores
	}
}

// total of a sum that may be missing.
func total(sums map[string]float64) *int64 {
	if value, known := sums[""]; known {
		return new(int64(value))
	}
	return nil
}

// add the load of another node.
func (l *Load) add(more *Load) {
	sum := func(to **int64, n *int64) {
		if n != nil {
			*to = new(*n + value(*to))
		}
	}
	count := func(to **Count, n *Count) {
		if n != nil {
			is := *n
			if *to != nil {
				is = is.add(**to)
			}
			*to = &is
		}
	}
	sum(&l.Replicas, more.Replicas)
	sum(&l.PromisedBytes, more.PromisedBytes)
	sum(&l.PromisableBytes, more.PromisableBytes)
	sum(&l.Cores, more.Cores)
	count(&l.Errors, more.Errors)
	count(&l.BufferWaits, more.BufferWaits)
	if more.BusyCores != nil {
		l.BusyCores = new(*more.BusyCores + value(l.BusyCores))
	}
	if more.flow != nil {
		l.flow = l.flow.add(more.flow)
		l.Traffic = l.flow.traffic()
	}
}

// value or zero.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// topTarget is the load of a target's nodes.
func (f *fleet) topTarget(t *v1alpha1.NvmfTarget, s *samples) TopTarget {
	r := TopTarget{Target: t.Name, Engine: string(t.Spec.Engine)}
	for i := range f.volumes {
		if f.volumes[i].Spec.Target == t.Name {
			r.Volumes++
		}
	}
	var missing []string
	for i := range f.nodes {
		if f.nodes[i].Spec.Target != t.Name {
			continue
		}
		n := f.topNode(&f.nodes[i], s)
		r.Nodes++
		if n.Traffic == nil {
			missing = append(missing, n.Node)
			continue
		}
		r.NodesKnown++
		r.add(&n.Load)
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		r.Problem = "not counted: node " + text.Few(missing, maxNamed, ", ")
	}
	return r
}

// used percent of what may be promised.
func (l *Load) used() (percent float64, known bool) {
	if l.PromisedBytes == nil || value(l.PromisableBytes) <= 0 {
		return 0, false
	}
	return float64(*l.PromisedBytes) / float64(*l.PromisableBytes) * 100, true
}

func (l *Load) measure(order string) (float64, bool) {
	switch {
	case order == sortByErrors && l.Errors != nil:
		return float64(l.Errors.Total), true
	case order == sortByUsed:
		return l.used()
	}
	return l.Traffic.measure(order)
}

// columns of a table, with what only SPDK counts.
func (l *Load) columns(spdk bool) []string {
	const notKnown = "unknown"
	used, counts := notKnown, []string{"-", "-", "-"}
	if percent, known := l.used(); known {
		used = fmt.Sprintf("%.0f %%", percent)
	}
	if spdk {
		counts = []string{notKnown, notKnown, notKnown}
		if l.Errors != nil {
			counts[0] = l.Errors.String()
		}
		if l.BufferWaits != nil {
			counts[1] = l.BufferWaits.String()
			counts[2] = "-"
		}
		if l.BusyCores != nil {
			counts[2] = fmt.Sprintf("%.1f of %d", *l.BusyCores, value(l.Cores))
		}
	}
	queue := notKnown
	if l.Traffic != nil {
		queue = perSecond(l.Traffic.QueueDepth)
	}
	return append(append(l.Traffic.columns(notKnown), queue, whole(l.Replicas, notKnown), used), counts...)
}

var loadHead = slices.Concat(trafficHead, []string{"QUEUE", "REPLICAS", "USED", "ERRORS", "BUFFER WAITS", "CORES BUSY"})

func (r *TopNode) unknown() bool              { return r.Traffic == nil && r.Target != "" }
func (r *TopNode) compare(other *TopNode) int { return cmp.Compare(r.Node, other.Node) }

func (r TopNode) row(wide bool) []string {
	row := append([]string{r.Node, orDash(r.Target)}, r.columns(r.Engine == string(v1alpha1.EngineSPDK))...)
	row = append(row, orDash(r.Problem))
	if wide {
		row = append(append(row, orDash(r.Engine)), r.Traffic.more("unknown")...)
	}
	return row
}

func (r *TopTarget) unknown() bool                { return r.NodesKnown < r.Nodes }
func (r *TopTarget) compare(other *TopTarget) int { return cmp.Compare(r.Target, other.Target) }

func (r TopTarget) row(wide bool) []string {
	row := append([]string{r.Target, fmt.Sprintf("%d of %d", r.NodesKnown, r.Nodes), fmt.Sprint(r.Volumes)}, r.columns(r.Engine == string(v1alpha1.EngineSPDK))...)
	row = append(row, orDash(r.Problem))
	if wide {
		row = append(append(row, r.Engine), r.Traffic.more("unknown")...)
	}
	return row
}

// nodeChoice says which nodes are shown.
type nodeChoice struct {
	names []string
	// selector of labels of Kubernetes Nodes.
	selector klabels.Selector
}

func (c *nodeChoice) chosen(f *fleet, n *v1alpha1.NvmfNode) bool {
	if len(c.names) > 0 {
		return slices.Contains(c.names, n.Name)
	}
	return n.Spec.Target != "" && (c.selector == nil || c.selector.Matches(klabels.Set(f.labels[n.Name])))
}

func (c *nodeChoice) exporters(f *fleet) []exporter {
	return f.agents(func(n *v1alpha1.NvmfNode) bool { return c.chosen(f, n) })
}

// agents of the nodes that serve a target.
func (f *fleet) agents(of func(*v1alpha1.NvmfNode) bool) []exporter {
	var all []exporter
	for i := range f.nodes {
		if n := &f.nodes[i]; n.Spec.Target != "" && of(n) {
			all = append(all, exporter{componentAgent, n.Name})
		}
	}
	return all
}

func (c *nodeChoice) listing(f *fleet, s *samples, order string) frame {
	l := listing[TopNode]{kind: "nodes", head: slices.Concat([]string{"NODE", "TARGET"}, loadHead, []string{"PROBLEM"}), wide: slices.Concat([]string{"ENGINE"}, trafficMore), row: TopNode.row}
	for i := range f.nodes {
		if n := &f.nodes[i]; c.chosen(f, n) {
			l.items = append(l.items, f.topNode(n, s))
		}
	}
	return framed(l, order, (*TopNode).measure, (*TopNode).compare, (*TopNode).unknown)
}

func topNodesCommand(run topRunner) *cobra.Command {
	var c nodeChoice
	var selector string
	cmd := &cobra.Command{
		Use:   "nodes [NODE...]",
		Short: "Show the I/O and the load of storage nodes, the busiest first",
		Long: `Show what the storage nodes do, or those named: the I/O of the devices that their pools are on, with how long it takes on average and how many
I/Os are in progress at a time; the replicas that they store, how much of the pools is promised, and of SPDK targets errors, I/Os that waited for
a buffer, and how many cores are busy.` + aboutTop,
		Example: `  kubectl weft top nodes
  kubectl weft top nodes -l topology.kubernetes.io/zone=zone-a --watch --sort-by latency`,
	}
	o := topFlags(cmd, sortByOperations, sortByName, sortByOperations, sortByBytes, sortByLatency, sortByQueue, sortByErrors, sortByUsed)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "show only nodes whose Kubernetes Nodes match this label selector")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.names = args
		if selector != "" {
			if len(args) > 0 {
				return fmt.Errorf("use either names or --selector")
			}
			var err error
			if c.selector, err = klabels.Parse(selector); err != nil {
				return fmt.Errorf("--selector: %w", err)
			}
		}
		return run(cmd, o, view{check: func(f *fleet) error { return f.haveNodes(args) }, exporters: c.exporters, frame: c.listing})
	}
	return cmd
}

func topTargetsCommand(run topRunner) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "targets [TARGET...]",
		Short: "Show the I/O and the load of targets, the busiest first",
		Long: `Show what all nodes of each NvmfTarget do together, or of those named. The columns are those of kubectl weft top nodes. NODES is how many of the
target's nodes were counted: the others are missing in the sums, and PROBLEM names them.` + aboutTop,
		Example: `  kubectl weft top targets
  kubectl weft top targets fast --watch`,
	}
	o := topFlags(cmd, sortByOperations, sortByName, sortByOperations, sortByBytes, sortByLatency, sortByQueue, sortByErrors, sortByUsed)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return run(cmd, o, view{
			check: func(f *fleet) error { return f.haveTargets(args) },
			exporters: func(f *fleet) []exporter {
				return f.agents(func(n *v1alpha1.NvmfNode) bool { return chosen(args, n.Spec.Target) })
			},
			frame: func(f *fleet, s *samples, order string) frame { return f.listTopTargets(args, s, order) },
		})
	}
	return cmd
}

func (f *fleet) listTopTargets(names []string, s *samples, order string) frame {
	l := listing[TopTarget]{kind: "targets", head: slices.Concat([]string{"TARGET", "NODES", "VOLUMES"}, loadHead, []string{"PROBLEM"}), wide: slices.Concat([]string{"ENGINE"}, trafficMore), row: TopTarget.row}
	for i := range f.targets {
		if t := &f.targets[i]; chosen(names, t.Name) {
			l.items = append(l.items, f.topTarget(t, s))
		}
	}
	return framed(l, order, (*TopTarget).measure, (*TopTarget).compare, (*TopTarget).unknown)
}
