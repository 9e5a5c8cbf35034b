// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Index has the storage nodes, what was promised of each, and which of them can take what is asked for. It is told of
// each change, and judges only those nodes again that have changed since the same was asked for. Of the others, a
// choice looks at as many as it takes to find one, which is few unless the cluster is full, or zones matter. Its zero
// value has no nodes. It is not safe for concurrent use.
type Index struct {
	ledger Ledger
	nodes  map[string]*v1alpha1.NvmfNode
	views  map[question]*view
	// pools counts the pools by target and logical blocks.
	pools map[string]map[int32]int
	// asked counts what was asked for.
	asked uint64
}

// mostViews that are kept; the one that was asked for longest ago goes first. With 5,000 nodes, one takes about 1 MiB.
// A cluster has one for each target, and for each way in which its StorageClasses ask for drives and connections.
const mostViews = 32

// question is what a node is judged by, whatever is to be placed: the same for all volumes of a StorageClass.
type question struct {
	target, class, device, transports string
	ioQueues, queueDepth, blockBytes  int32
}

func questionOf(req Request) question {
	transports := make([]string, len(req.Connection.Transports))
	for i, t := range req.Connection.Transports {
		transports[i] = string(t)
	}
	return question{
		target: req.Target, class: req.DeviceClass, device: req.Device, transports: strings.Join(transports, ","),
		ioQueues: req.Connection.IOQueues, queueDepth: req.Connection.QueueDepth, blockBytes: req.BlockBytes,
	}
}

// view of the nodes, as far as they can answer one question.
type view struct {
	// ask has what the question says, and nothing else.
	ask Request
	// verdicts on the nodes of its target, by their names.
	verdicts map[string]*verdict
	// order of those that can take volumes: the one with the most free space first, then by name.
	order []*verdict
	// stale are the names of nodes that have to be looked at again.
	stale map[string]bool
	// used is Index.asked when it was asked last.
	used uint64
}

// verdict on a node: what it can take, or, with a reason, that it takes nothing.
type verdict struct {
	Candidate
	reason string
	full   bool
}

// SetNode as it is now. It must not be changed any more.
func (x *Index) SetNode(n *v1alpha1.NvmfNode) {
	if x.nodes == nil {
		x.nodes = map[string]*v1alpha1.NvmfNode{}
	}
	x.count(x.nodes[n.Name], -1)
	x.count(n, 1)
	x.nodes[n.Name] = n
	x.touch(n.Name)
}

// count the pools of a node that comes or goes.
func (x *Index) count(n *v1alpha1.NvmfNode, by int) {
	if n == nil {
		return
	}
	if x.pools == nil {
		x.pools = map[string]map[int32]int{}
	}
	of := x.pools[n.Spec.Target]
	if of == nil {
		of = map[int32]int{}
		x.pools[n.Spec.Target] = of
	}
	for _, p := range n.Status.Pools {
		if of[p.BlockSizeBytes] += by; of[p.BlockSizeBytes] == 0 {
			delete(of, p.BlockSizeBytes)
		}
	}
	if len(of) == 0 {
		delete(x.pools, n.Spec.Target)
	}
}

// BlockSizes of the pools of a target's nodes, those of most pools first. Pools whose blocks are not known are left
// out.
func (x *Index) BlockSizes(target string) []int32 {
	of := x.pools[target]
	all := slices.DeleteFunc(slices.Collect(maps.Keys(of)), func(bytes int32) bool { return bytes == 0 })
	slices.SortFunc(all, func(a, b int32) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	return all
}

// RemoveNode that is gone. What was promised of it stays, until that is withdrawn.
func (x *Index) RemoveNode(name string) {
	x.count(x.nodes[name], -1)
	delete(x.nodes, name)
	x.touch(name)
}

// Shows tells whether the index has the node as it is here.
func (x *Index) Shows(n *v1alpha1.NvmfNode) bool {
	has := x.nodes[n.Name]
	return has != nil && has.UID == n.UID && has.ResourceVersion == n.ResourceVersion
}

// Names of the nodes, in no order.
func (x *Index) Names() []string {
	names := make([]string, 0, len(x.nodes))
	for name := range x.nodes {
		names = append(names, name)
	}
	return names
}

// Promise space to a volume or snapshot, instead of what was promised to it.
func (x *Index) Promise(p Promise) {
	was, is := x.ledger.byVolume[p.Volume]
	if is && was == p {
		return
	}
	x.ledger.Set(p)
	x.touch(p.Node)
	if is {
		x.touch(was.Node)
	}
}

// Withdraw what is promised to a volume or snapshot.
func (x *Index) Withdraw(volume string) {
	if p, is := x.ledger.byVolume[volume]; is {
		x.ledger.Remove(volume)
		x.touch(p.Node)
	}
}

// touch a node: what was thought of it may not be so any more.
func (x *Index) touch(node string) {
	for _, v := range x.views {
		if v.stale == nil {
			v.stale = map[string]bool{}
		}
		v.stale[node] = true
	}
}

// Room is the package's Room, of what the index has promised.
func (x *Index) Room(n *v1alpha1.NvmfNode, device, volume string) (int64, bool) {
	return Room(n, device, volume, &x.ledger)
}

// Choose returns the node for a volume: of those with a pool that has room, one in another zone than the
// volume's other replicas, then the nearest, then the one with the most
// free space, then the first by name. It fails with *NoNodeError or *NoRoomError.
func (x *Index) Choose(req Request) (string, error) {
	if req.Node == "" {
		if node := x.view(req).first(req); node != "" {
			return node, nil
		}
	}
	candidates, refusals := x.Candidates(req)
	full := slices.ContainsFunc(refusals, func(r Refusal) bool { return r.Full })
	if len(candidates) == 0 && len(req.Avoid) == 0 && !full {
		return "", &NoNodeError{Request: req, Refusals: refusals}
	}
	// Those of a view do not fit, or one of them would have been chosen.
	fits := slices.IndexFunc(candidates, func(c Candidate) bool { return c.LargestBytes >= req.SizeBytes })
	if fits < 0 {
		noRoom := &NoRoomError{Request: req, Candidates: candidates, Refusals: refusals}
		for _, c := range candidates {
			noRoom.DriveBytes = max(noRoom.DriveBytes, largestDrive(x.nodes[c.Node], req, &x.ledger))
		}
		return "", noRoom
	}
	return candidates[fits].Node, nil
}

// Candidates are the target's nodes that can take volumes, with their room, and those that
// cannot, with the reason; both by name. Nodes to avoid are in neither.
func (x *Index) Candidates(req Request) (candidates []Candidate, refusals []Refusal) {
	var verdicts map[string]*verdict
	switch n := x.nodes[req.Node]; {
	case req.Node == "":
		verdicts = x.view(req).verdicts
	case n == nil || n.Spec.Plan == nil || slices.Contains(req.Avoid, n.Name):
	case req.Target != "" && n.Spec.Target != req.Target:
		return nil, []Refusal{{Node: n.Name, Reason: fmt.Sprintf(
			"it belongs to target %q, and a copy is stored on the node of its source; use a StorageClass of that target", n.Spec.Target)}}
	default:
		verdicts = map[string]*verdict{n.Name: judge(n, req, &x.ledger)}
	}
	for name, is := range verdicts {
		if slices.Contains(req.Avoid, name) {
			continue
		}
		reason, full := req.elsewhere(name), false
		switch {
		case reason != "":
		case req.Cordoned[name]:
			reason = refusal(x.nodes[name], req)
		default:
			reason, full = is.reason, is.full
		}
		if reason != "" {
			refusals = append(refusals, Refusal{Node: name, Reason: reason, Full: full})
		} else {
			candidates = append(candidates, is.Candidate)
		}
	}
	slices.SortFunc(candidates, func(a, b Candidate) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(refusals, func(a, b Refusal) int { return cmp.Compare(a.Node, b.Node) })
	return candidates, refusals
}

// judge a node of a request's target that has a plan, whatever other nodes there are.
func judge(n *v1alpha1.NvmfNode, req Request, ledger *Ledger) *verdict {
	if reason := cmp.Or(refusal(n, req), noPool(n, req)); reason != "" {
		return &verdict{Candidate: Candidate{Node: n.Name}, reason: reason}
	}
	if reason := atLimit(n, ledger); reason != "" {
		return &verdict{Candidate: Candidate{Node: n.Name}, reason: reason, full: true}
	}
	return &verdict{Candidate: room(n, req, ledger)}
}

// view that answers a request, with all nodes as they are now.
func (x *Index) view(req Request) *view {
	q := questionOf(req)
	v := x.views[q]
	if v == nil {
		v = x.newView(q, req)
	}
	x.asked++
	v.used = x.asked
	x.refresh(v)
	return v
}

func (x *Index) newView(q question, req Request) *view {
	if x.views == nil {
		x.views = map[question]*view{}
	}
	if len(x.views) >= mostViews {
		var oldest question
		least := x.asked + 1
		for other, v := range x.views {
			if v.used < least {
				oldest, least = other, v.used
			}
		}
		delete(x.views, oldest)
	}
	v := &view{
		ask:      Request{Target: req.Target, Connection: req.Connection, DeviceClass: req.DeviceClass, Device: req.Device, BlockBytes: req.BlockBytes},
		verdicts: map[string]*verdict{}, stale: make(map[string]bool, len(x.nodes)),
	}
	for name := range x.nodes {
		v.stale[name] = true
	}
	x.views[q] = v
	return v
}

// refresh what a view has of the nodes that have changed. Where they are many, all are sorted again: to move each to
// its place would take longer.
func (x *Index) refresh(v *view) {
	stale := v.stale
	v.stale = nil // and not emptied: to go through a map takes as long as it was ever large
	sortAll := len(stale) > len(v.verdicts)/16
	for name := range stale {
		if was := v.verdicts[name]; was != nil && was.reason == "" && !sortAll {
			i, _ := slices.BinarySearchFunc(v.order, was, before)
			v.order = slices.Delete(v.order, i, i+1)
		}
		delete(v.verdicts, name)
		n := x.nodes[name]
		if n == nil || n.Spec.Plan == nil || v.ask.Target != "" && n.Spec.Target != v.ask.Target {
			continue
		}
		is := judge(n, v.ask, &x.ledger)
		v.verdicts[name] = is
		if is.reason == "" && !sortAll {
			i, _ := slices.BinarySearchFunc(v.order, is, before)
			v.order = slices.Insert(v.order, i, is)
		}
	}
	if !sortAll || len(stale) == 0 {
		return
	}
	v.order = v.order[:0]
	for _, is := range v.verdicts {
		if is.reason == "" {
			v.order = append(v.order, is)
		}
	}
	slices.SortFunc(v.order, before)
}

// before is the order of a view.
func before(a, b *verdict) int {
	return cmp.Or(cmp.Compare(b.FreeBytes, a.FreeBytes), cmp.Compare(a.Node, b.Node))
}

// first of the nodes, in the order of Choose, that a request can go to; empty if there is none. It stops at the first
// one that is as near as any can be.
func (v *view) first(req Request) string {
	nearest := farther
	if req.Near.Zone != "" {
		nearest = inZone
	}
	if near := v.verdicts[req.Near.Node]; near != nil && near.reason == "" {
		nearest = onNode
	}
	best, rank := "", 0
	for _, is := range v.order {
		if is.LargestBytes < req.SizeBytes || req.Cordoned[is.Node] || slices.Contains(req.Avoid, is.Node) || slices.Contains(req.Apart, is.Node) || req.inOtherZone(is.Node) {
			continue
		}
		// Apart from the other replicas counts before near.
		if r := req.together(is.Node)*(farther+1) + req.distance(is.Node); best == "" || r < rank {
			best, rank = is.Node, r
		}
		if rank == nearest {
			break
		}
	}
	return best
}
