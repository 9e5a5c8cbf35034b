// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/internal/text"
	"github.com/weft-storage/weft/operator/internal/capacity"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// Reasons why volumes do not fit.
const (
	reasonTooFewNodes     = "TooFewNodes"
	reasonNotEnoughSpace  = "NotEnoughSpace"
	reasonNoReserve       = "NoReserve"
	reasonTooManyVolumes  = "TooManyVolumes"
	reasonTooManyAttached = "TooManyAttachments"
)

// VolumesAnswer is what volumes take of the nodes that can hold a target.
type VolumesAnswer struct {
	Target  string        `json:"target"`
	Verdict claim.Verdict `json:"verdict"`
	// Reasons why the volumes do not fit.
	Reasons []Reason `json:"reasons,omitempty"`
	// Warnings about volumes that fit, but not well.
	Warnings []string `json:"warnings,omitempty"`
	// Volumes as they were given, with what each costs.
	Volumes []VolumesCost `json:"volumes"`
	// Nodes with what they then hold.
	Nodes []NodeLoad `json:"nodes,omitempty"`
}

// VolumesCost is what each of some volumes that are alike costs.
type VolumesCost struct {
	Count     int64  `json:"count"`
	SizeBytes int64  `json:"sizeBytes"`
	Replicas  int    `json:"replicas"`
	Class     string `json:"deviceClass,omitempty"`
	// HostControllers and HostQueuePairs that a host has for each volume that it uses, at most.
	HostControllers int64 `json:"hostControllers"`
	HostQueuePairs  int64 `json:"hostQueuePairs"`
	// WriteBytesPerSecond that hosts send for each volume: what pods write, once for each replica. 0 when not known.
	WriteBytesPerSecond int64 `json:"writeBytesPerSecond,omitempty"`
}

// NodeLoad is what a node holds, with what it has already.
type NodeLoad struct {
	Node string `json:"node"`
	Zone string `json:"zone,omitempty"`
	Figures
	// PromisableBytes of its pools.
	PromisableBytes int64 `json:"promisableBytes"`
	// AttachmentsExpected by the target; absent for no limit.
	AttachmentsExpected int64 `json:"attachmentsExpected,omitempty"`
	// MemoryBytes of its target, if attachments.expected allows all that are needed. Absent with the kernel's target.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// LinkBytesPerSecond of the interfaces that its portals are on; 0 when not known.
	LinkBytesPerSecond int64 `json:"linkBytesPerSecond,omitempty"`
	// Reserve is the most of each figure after the loss of another node. Absent without a reserve.
	Reserve *Figures `json:"reserve,omitempty"`
}

// Figures that volumes add to on a node.
type Figures struct {
	Replicas            int64 `json:"replicas"`
	PromisedBytes       int64 `json:"promisedBytes"`
	Attachments         int64 `json:"attachments"`
	Controllers         int64 `json:"controllers"`
	QueuePairs          int64 `json:"queuePairs"`
	WriteBytesPerSecond int64 `json:"writeBytesPerSecond,omitempty"`
}

func figures(l capacity.Load) Figures {
	return Figures{l.Replicas, l.Bytes, l.Attachments, l.Controllers, l.QueuePairs, l.WriteBytes}
}

// volumesQuestion is what a target and its volumes are counted from.
type volumesQuestion struct {
	target *v1alpha1.NvmfTarget
	// targets that there are, and all nodes.
	targets []v1alpha1.NvmfTarget
	nodes   []claim.Node
	// prospects of the nodes that are asked about.
	prospects []claim.Prospect
	wanted    []wanted
	reserve   bool
}

// count the volumes of a target, if there are any.
func (a *Answers) count(q volumesQuestion) {
	q.wanted = slices.DeleteFunc(slices.Clone(q.wanted), func(w wanted) bool { return w.target != q.target.Name })
	if len(q.wanted) > 0 {
		a.Volumes = append(a.Volumes, q.answer())
	}
}

// answer how the volumes of the target fit on the nodes that can hold it.
func (q *volumesQuestion) answer() VolumesAnswer {
	a := VolumesAnswer{Target: q.target.Name, Verdict: claim.Fits}
	var holds []claim.Prospect
	for _, p := range q.prospects {
		if p.Verdict == claim.Fits {
			holds = append(holds, p)
		} else {
			a.Warnings = append(a.Warnings, fmt.Sprintf("node %s is not counted: %s", p.Node, p.Reasons[0].Message))
		}
	}
	nodes := make([]capacity.Node, len(holds))
	for i, p := range holds {
		var unsized int
		nodes[i], unsized = capacityNode(q.node(p.Node), q.target.Name, p.Plan)
		if unsized > 0 {
			a.Warnings = append(a.Warnings, fmt.Sprintf("node %s: the size of %s is unknown, so that nothing is placed there", p.Node, text.Plural(unsized, "drive")))
		}
	}
	volumes := make([]capacity.Volumes, len(q.wanted))
	for i, w := range q.wanted {
		volumes[i] = w.Volumes
		a.Volumes = append(a.Volumes, costOf(w.Volumes, nodes))
	}
	result := capacity.Count(nodes, volumes, q.reserve)
	for i, p := range holds {
		a.Nodes = append(a.Nodes, q.nodeLoad(&nodes[i], p, result, i))
	}
	for i := range q.wanted {
		a.Reasons = append(a.Reasons, q.shortages(i, result.Shortages, nodes)...)
	}
	a.Reasons = append(a.Reasons, q.attachments(a.Nodes)...)
	if len(a.Reasons) > 0 {
		a.Verdict = claim.CannotHold
	}
	if len(holds) == 0 && slices.ContainsFunc(q.prospects, func(p claim.Prospect) bool { return p.Verdict == claim.Unknown }) {
		a.Verdict = claim.Unknown
	}
	a.Warnings = append(a.Warnings, warnings(a.Nodes, result)...)
	return a
}

// node that is asked about.
func (q *volumesQuestion) node(name string) claim.Node {
	return q.nodes[slices.IndexFunc(q.nodes, func(n claim.Node) bool { return n.Name == name })]
}

func costOf(v capacity.Volumes, nodes []capacity.Node) VolumesCost {
	c := VolumesCost{Count: v.Count, SizeBytes: v.SizeBytes, Replicas: v.Replicas, Class: v.Class, WriteBytesPerSecond: v.WriteBytes * int64(v.Replicas)}
	for i := range nodes {
		controllers, pairs := capacity.Connections(nodes[i].Portals, &v)
		c.HostControllers = max(c.HostControllers, controllers*int64(v.Replicas))
		c.HostQueuePairs = max(c.HostQueuePairs, pairs*int64(v.Replicas))
	}
	return c
}

func (q *volumesQuestion) nodeLoad(n *capacity.Node, p claim.Prospect, result capacity.Result, at int) NodeLoad {
	l := NodeLoad{Node: n.Name, Zone: n.Labels[q.wanted[0].ZoneLabel], Figures: figures(result.Loads[at])}
	for _, pool := range n.Pools {
		l.PromisableBytes += pool.PromisableBytes
	}
	if n.Expected != nil {
		l.AttachmentsExpected = int64(n.Expected.Expected)
	}
	if p.Plan.SPDK != nil {
		l.MemoryBytes = p.Plan.SPDK.MemoryBytes
	}
	const bitsPerByte = 8
	l.LinkBytesPerSecond = sizing.LinkMbps(q.node(n.Name).Nvmf.Status.Inventory, p.Plan.Portals) * 1_000_000 / bitsPerByte
	if result.Reserve != nil {
		l.Reserve = new(figures(result.Reserve[at]))
	}
	return l
}

// needed attachments, also after the loss of another node.
func (l *NodeLoad) needed() int64 {
	if l.Reserve == nil {
		return l.Attachments
	}
	return l.Reserve.Attachments
}

// attachments that are more than expected: what the target would need for them. It sets the memory of the nodes.
func (q *volumesQuestion) attachments(nodes []NodeLoad) []Reason {
	var needed int64
	var over []string
	for i := range nodes {
		if n := &nodes[i]; n.AttachmentsExpected > 0 && n.needed() > n.AttachmentsExpected {
			needed = max(needed, n.needed())
			over = append(over, fmt.Sprintf("%s (%d)", n.Node, n.needed()))
		}
	}
	if len(over) == 0 {
		return nil
	}
	said := fmt.Sprintf("attachments.expected of NvmfTarget %s is %d, but these nodes need more: %s", q.target.Name, nodes[0].AttachmentsExpected, text.Few(over, maxNamed, ", "))
	if needed > v1alpha1.MaxAttachments {
		return []Reason{{reasonTooManyAttached, fmt.Sprintf("%s; %d is the maximum, so add nodes", said, v1alpha1.MaxAttachments)}}
	}
	raised := q.target.DeepCopy()
	raised.Spec.Attachments.Expected = int32(needed)
	for _, p := range claim.Prospects(raised, q.targets, q.nodes) {
		i := slices.IndexFunc(nodes, func(n NodeLoad) bool { return n.Node == p.Node })
		switch {
		case i < 0:
		case p.Plan == nil || p.Plan.SPDK == nil:
			return []Reason{{reasonTooManyAttached, fmt.Sprintf("%s; node %s cannot hold %d (%s), so add nodes", said, p.Node, needed, p.Reasons[0].Message)}}
		default:
			nodes[i].MemoryBytes = p.Plan.SPDK.MemoryBytes
		}
	}
	return []Reason{{reasonTooManyAttached, fmt.Sprintf("%s; set attachments.expected: %d, for which MEMORY is shown, or add nodes", said, needed)}}
}

// shortages of one kind of volumes in words: of themselves, or after the loss of nodes, all of which are in one reason.
func (q *volumesQuestion) shortages(kind int, all []capacity.Shortage, nodes []capacity.Node) []Reason {
	of := slices.DeleteFunc(slices.Clone(all), func(s capacity.Shortage) bool { return s.Volumes != kind })
	if len(of) == 0 {
		return nil
	}
	w, first := &q.wanted[kind], of[0]
	remaining := slices.DeleteFunc(slices.Clone(nodes), func(n capacity.Node) bool { return n.Name == first.Lost })
	eligible := capacity.Eligible(remaining, &w.Volumes)
	full := fmt.Sprintf("the targets of %s already have as many volumes as they can serve; add nodes", text.Plural(first.Full, "node"))
	if first.Lost == "" {
		few := fmt.Sprintf("%s: %d of %d replicas of %s do not fit, because ", w.from, first.Replicas, w.Count*int64(w.Replicas), sizeOf(w.SizeBytes))
		switch {
		case eligible < w.Replicas:
			return []Reason{{reasonTooFewNodes, fmt.Sprintf("%s: replicas is %d, but only %s can store such volumes%s, and replicas of a volume are on different nodes; add nodes, or lower replicas",
				w.from, w.Replicas, text.Plural(eligible, "node"), w.asked())}}
		case first.Full > 0:
			return []Reason{{reasonTooManyVolumes, few + full}}
		}
		return []Reason{{reasonNotEnoughSpace, few + "no drive has enough space" + w.asked() + "; add nodes or drives"}}
	}
	lost := make([]string, len(of))
	for i, s := range of {
		lost[i] = fmt.Sprintf("%s (%s)", s.Lost, text.Plural(int(s.Replicas), "replica"))
	}
	said := fmt.Sprintf("%s: if one of these nodes is lost, some of its replicas cannot be created again: %s. ", w.from, text.Few(lost, maxNamed, ", "))
	without := ", or plan without a reserve (--reserve=false)"
	switch {
	case eligible < w.Replicas:
		return []Reason{{reasonNoReserve, fmt.Sprintf("%sOnly %s would remain that can store such volumes%s: add a node%s", said, text.Plural(eligible, "node"), w.asked(), without)}}
	case first.Full > 0:
		return []Reason{{reasonNoReserve, said + "Then " + full + without}}
	}
	return []Reason{{reasonNoReserve, fmt.Sprintf("%sThe remaining nodes have too little space%s: add nodes or drives%s", said, w.asked(), without)}}
}

// asked of nodes and drives, in words.
func (w *wanted) asked() string {
	var s string
	if w.Class != "" {
		s += " on drives of device class " + w.Class
	}
	if len(w.Zones) > 0 {
		s += " in zone " + strings.Join(w.Zones, " or ")
	}
	return s
}

// warnings about volumes that fit.
func warnings(nodes []NodeLoad, result capacity.Result) []string {
	var all []string
	if result.OneZone > 0 {
		all = append(all, fmt.Sprintf("%s all their replicas in one zone, because no node of another zone has enough space; such volumes do not survive the loss of that zone", text.Plural(int(result.OneZone), "volume")+have(result.OneZone)))
	}
	for _, n := range nodes {
		writes := n.WriteBytesPerSecond
		if n.Reserve != nil {
			writes = n.Reserve.WriteBytesPerSecond
		}
		if n.LinkBytesPerSecond > 0 && writes > n.LinkBytesPerSecond {
			all = append(all, fmt.Sprintf("node %s: hosts would write %s a second, but its network takes %s", n.Node, sizeOf(writes), sizeOf(n.LinkBytesPerSecond)))
		}
	}
	return all
}

func have(n int64) string {
	if n == 1 {
		return " has"
	}
	return " have"
}

// capacityNode is a node with what its plan makes of it, and how many of its drives are not counted, because their size
// is not known.
func capacityNode(n claim.Node, target string, plan *v1alpha1.Plan) (node capacity.Node, unsized int) {
	node = capacity.Node{Name: n.Name, Labels: n.Labels, Portals: plan.Portals}
	if plan.SPDK != nil {
		node.Expected = plan.SPDK.Attachments
	}
	if most, limited := plan.VolumeLimit(); limited {
		node.MaxReplicas = most
	}
	var pools []v1alpha1.PoolStatus
	if status := n.Nvmf.Status; n.Claimant() == target {
		pools = status.Pools
		if status.Attachments != nil {
			node.Attachments = status.Attachments.Used
		}
		if status.Volumes != nil {
			node.Replicas = status.Volumes.Used
		}
	}
	add := func(device, class string, bytes int64) {
		pool := capacity.Pool{Class: class, TotalBytes: sizing.PoolBytes(plan, bytes), ClusterBytes: plan.ClusterBytes}
		if i := slices.IndexFunc(pools, func(p v1alpha1.PoolStatus) bool { return p.Device == device && p.Total != nil }); i >= 0 {
			pool.TotalBytes = pools[i].Total.Value()
			if p := pools[i].Promised; p != nil {
				pool.PromisedBytes = p.Value()
			}
			if c := pools[i].ClusterSize; c != nil {
				pool.ClusterBytes = c.Value()
			}
		}
		if pool.TotalBytes == 0 {
			unsized++
		}
		pool.PromisableBytes = plan.Promisable(pool.TotalBytes)
		node.Pools = append(node.Pools, pool)
	}
	for _, d := range plan.Drives {
		var bytes int64
		for _, has := range n.Nvmf.Status.Inventory.Drives {
			if has.ID == d.ID {
				bytes = has.SizeBytes
			}
		}
		add(d.ID, d.DeviceClass, bytes)
	}
	if plan.File != nil {
		add(plan.File.Path, "", plan.File.Size.Value())
	}
	return node, unsized
}
