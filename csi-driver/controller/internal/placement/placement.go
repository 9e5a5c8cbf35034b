// SPDX-License-Identifier: Apache-2.0

// Package placement chooses the node for a volume. It is pure: nodes and
// promises in, a node or the reasons why none will do out.
//
// Volumes are thin, but by default space is given out as if they were not: a pool's free space is what its plan lets
// be promised of it, which is its size unless the target says more, less what was.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// Promise is space of a pool that was given to a volume or snapshot, whether that exists yet, exists, or is being
// deleted. A snapshot's is what it holds: its volume may be overwritten from end to end while the snapshot keeps the
// old data.
type Promise struct {
	// Volume's name, or a snapshot's with SnapshotPrefix. Each is counted once.
	Volume string
	// Node that holds it.
	Node string
	// Device of the pool that holds it; empty until the agent has chosen one.
	Device string
	// DeviceClass that it asked for; empty for any. It counts until the device is known.
	DeviceClass string
	// SizeBytes of the pool: those of the volume's data, with its header and trailer.
	SizeBytes int64
}

// SnapshotPrefix tells the name of a snapshot from that of a volume; no object's name has a slash.
const SnapshotPrefix = "snapshot/"

// PromiseTo a volume, on a device or of a class as far as that is known, with so many bytes of data.
func PromiseTo(volume, node, device, class string, dataBytes int64) Promise {
	return Promise{Volume: volume, Node: node, Device: device, DeviceClass: class, SizeBytes: v1alpha1.WithOverhead(dataBytes)}
}

// Request is a volume to be placed.
type Request struct {
	// Target whose nodes come into question; empty for all targets.
	Target string
	// Connection that every portal of its transports must serve on the node, and the node must have one of each. What
	// is empty or 0 is not asked for.
	Connection v1alpha1.Connection
	// SizeBytes of the volume's data.
	SizeBytes int64
	// DeviceClass of its pool; empty for any.
	DeviceClass string
	// BlockBytes of each logical block of its pool, as the volume's other replicas have; 0 for any. A pool whose blocks
	// are not known may have them.
	BlockBytes int32
	// Avoid nodes that have said they have no room.
	Avoid []string
	// Apart are the nodes of the volume's other replicas. None of them takes this one, and a node in another zone than
	// theirs is chosen before one in theirs.
	Apart []string
	// Zones that the node must be in one of; none for any. ZoneOf tells the zone of a node.
	Zones  []string
	ZoneOf map[string]string
	// Cordoned nodes: their Kubernetes Nodes are.
	Cordoned map[string]bool
	// Near is where the volume would best be.
	Near Near
	// Node and Device where the volume must be: its source's. Empty for any.
	Node, Device string
}

// Near is a node, and then a zone, in which a volume would best be, before all others that can take it. Empty for none.
type Near struct{ Node, Zone string }

// Distances of a node from where a volume would best be.
const (
	onNode = iota
	inZone
	farther
)

// distance of a node.
func (r Request) distance(node string) int {
	switch {
	case r.Near.Node != "" && node == r.Near.Node:
		return onNode
	case r.Near.Zone != "" && r.ZoneOf[node] == r.Near.Zone:
		return inZone
	}
	return farther
}

// inOtherZone than those that are asked for is a node.
func (r Request) inOtherZone(node string) bool {
	return len(r.Zones) > 0 && !slices.Contains(r.Zones, r.ZoneOf[node])
}

// elsewhere is the reason why a volume goes to another node than this one, whatever that has; empty if there is none.
func (r Request) elsewhere(node string) string {
	switch {
	case slices.Contains(r.Apart, node):
		return "it stores another replica of the volume"
	case r.inOtherZone(node):
		return fmt.Sprintf("it is in zone %q, not in %s", r.ZoneOf[node], strings.Join(r.Zones, " or "))
	}
	return ""
}

// together with another replica in its zone is a node; one whose zone is not known is not.
func (r Request) together(node string) int {
	zone := r.ZoneOf[node]
	if zone != "" && slices.ContainsFunc(r.Apart, func(other string) bool { return r.ZoneOf[other] == zone }) {
		return 1
	}
	return 0
}

// Candidate is a node that can take volumes. Its figures are of data, as those of a request.
type Candidate struct {
	// Node's name.
	Node string
	// FreeBytes of all its ready pools together, with one volume more in each.
	FreeBytes int64
	// LargestBytes of a volume that it can take: what one of its pools has free, less header and trailer.
	LargestBytes int64
}

// Refusal says why a node takes no volumes now.
type Refusal struct {
	Node, Reason string
	// Full says that the node has as many volumes as it can: there is room again when one of them is deleted.
	Full bool
}

// NoNodeError says that no node of the target takes volumes now, whatever their size.
type NoNodeError struct {
	Request  Request
	Refusals []Refusal
}

func (e *NoNodeError) Error() string {
	if len(e.Refusals) == 0 && e.Request.Node != "" {
		return fmt.Sprintf("node %s, which stores the source, does not serve a target now", e.Request.Node)
	}
	if len(e.Refusals) == 0 {
		return fmt.Sprintf("target %q is not served by any node yet; see the conditions of NvmfTarget %s", e.Request.Target, e.Request.Target)
	}
	why := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		why[i] = r.Node + ": " + r.Reason
	}
	return fmt.Sprintf("no node of target %q can accept a volume now: %s", e.Request.Target, list(why))
}

// NoRoomError says that nodes take volumes, but none of this size, or that they have as many as they can.
type NoRoomError struct {
	Request    Request
	Candidates []Candidate
	Refusals   []Refusal
	// DriveBytes that a volume has at most on the largest drive of the candidates, when that is empty.
	DriveBytes int64
}

func (e *NoRoomError) Error() string {
	var has []string
	for _, c := range e.Candidates {
		has = append(has, fmt.Sprintf("%s: at most %s", c.Node, bytes(c.LargestBytes)))
	}
	for _, n := range e.Request.Avoid {
		has = append(has, n+": its agent found no space")
	}
	for _, r := range e.Refusals {
		has = append(has, r.Node+": "+r.Reason)
	}
	larger := ""
	if e.DriveBytes > 0 && e.DriveBytes < e.Request.SizeBytes {
		larger = fmt.Sprintf("; the largest drive has %s, and a volume is on one drive", bytes(e.DriveBytes))
	}
	return fmt.Sprintf("no drive of target %q has enough space for a volume of %s%s: %s%s",
		e.Request.Target, bytes(e.Request.SizeBytes), ofClass(e.Request.DeviceClass)+withBlocks(e.Request.BlockBytes), list(has), larger)
}

// listed nodes in an error: an Event's message has at most 1024 bytes.
const listed = 8

func list(items []string) string { return text.Few(items, listed, "; ") }

func bytes(n int64) string { return resource.NewQuantity(max(n, 0), resource.BinarySI).String() }

// atLimit is the reason why a node takes no volumes, however much room it has, or empty: it has as many as it can.
func atLimit(n *v1alpha1.NvmfNode, ledger *Ledger) string {
	limit, limited := n.Spec.Plan.VolumeLimit()
	if has := ledger.volumesOf(n.Name); limited && has >= limit {
		return fmt.Sprintf("it has %s, the maximum number of its target", text.Plural(int(has), "volume"))
	}
	return ""
}

// refusal is the reason why a node takes no volumes, or empty. A node whose agent is not known to be silent
// is taken at its word: AgentAlive is absent until the operator has first seen the agent's lease.
func refusal(n *v1alpha1.NvmfNode, req Request) string {
	c := req.Connection
	if n.DeletionTimestamp != nil {
		return "it is being removed"
	}
	if _, why := n.Unschedulable(req.Cordoned[n.Name]); why != "" {
		return why
	}
	if alive := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAgentAlive); alive != nil && alive.Status == metav1.ConditionFalse {
		return explain("its agent is silent", alive)
	}
	ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return "its agent has not reported yet"
	}
	if ready.Status != metav1.ConditionTrue {
		return explain("not ready", ready)
	}
	for _, t := range c.Transports {
		if !slices.ContainsFunc(n.Spec.Plan.Portals, func(p v1alpha1.PlannedPortal) bool { return p.Transport == t }) {
			return fmt.Sprintf("it does not serve %s", t)
		}
	}
	for _, p := range n.Spec.Plan.Portals {
		switch {
		case !slices.Contains(c.Transports, p.Transport):
		case c.IOQueues > p.MaxIOQueues:
			return fmt.Sprintf("it supports %d I/O queues over %s, but ioQueues is %d", p.MaxIOQueues, p.Transport, c.IOQueues)
		case c.QueueDepth > p.QueueDepth:
			return fmt.Sprintf("it supports a queue depth of %d over %s, but queueDepth is %d", p.QueueDepth, p.Transport, c.QueueDepth)
		}
	}
	return ""
}

// noPool is the reason why none of the node's pools comes into question for a request, or empty. A node that names no
// pools yet has no room.
func noPool(n *v1alpha1.NvmfNode, req Request) string {
	pools, class := n.Status.Pools, req.DeviceClass
	if class != "" {
		if at := slices.IndexFunc(pools, func(p v1alpha1.PoolStatus) bool { return p.Device == req.Device }); at >= 0 && pools[at].DeviceClass != class {
			return otherClass(pools[at])
		}
		pools = slices.DeleteFunc(slices.Clone(pools), func(p v1alpha1.PoolStatus) bool { return p.DeviceClass != class })
	}
	if n.Spec.Cordons(req.Device) {
		return fmt.Sprintf("its drive %s, which stores the source, is being retired; to place volumes on it again, run: kubectl weft retire %s %s --undo", req.Device, n.Name, req.Device)
	}
	if req.BlockBytes > 0 && len(pools) > 0 {
		pools = slices.DeleteFunc(slices.Clone(pools), func(p v1alpha1.PoolStatus) bool { return !req.blocks(p.BlockSizeBytes) })
		if len(pools) == 0 {
			return "it has no drive" + ofClass(class) + withBlocks(req.BlockBytes)
		}
	}
	switch {
	case len(pools) > 0 && !slices.ContainsFunc(pools, func(p v1alpha1.PoolStatus) bool { return !n.Spec.Cordons(p.Device) }):
		return "its drives" + ofClass(class) + " are being retired"
	case class != "" && len(pools) == 0:
		return "it has no drive of device class " + class
	case class != "" && !slices.ContainsFunc(pools, func(p v1alpha1.PoolStatus) bool { return p.Ready }):
		return fmt.Sprintf("none of its drives%s is ready (%s: %s)", ofClass(class), pools[0].Reason, pools[0].Message)
	case len(pools) > 0 && !slices.ContainsFunc(pools, func(p v1alpha1.PoolStatus) bool { return !p.TakesNothingNew() && !n.Spec.Cordons(p.Device) }):
		return "its pools" + ofClass(class) + " are nearly full"
	}
	return ""
}

// otherClass than that of its source is asked for a copy.
func otherClass(source v1alpha1.PoolStatus) string {
	is, use := "has no device class", "without deviceClass"
	if c := source.DeviceClass; c != "" {
		is, use = "has device class "+c, fmt.Sprintf("with deviceClass %s, or without deviceClass", c)
	}
	return fmt.Sprintf("the source is on drive %s, which %s, and a copy is stored on the drive of its source; use a StorageClass %s", source.Device, is, use)
}

// among the pools that a request may go to.
func (r Request) among(device string, s space) bool {
	return (r.Device == "" || r.Device == device) && (r.DeviceClass == "" || r.DeviceClass == s.class) && r.blocks(s.blockBytes)
}

// blocks that a pool may have, or 0 where they are not known.
func (r Request) blocks(bytes int32) bool {
	return r.BlockBytes == 0 || bytes == 0 || bytes == r.BlockBytes
}

// BlockSizes of the pools of a node that can take a request, in its order: each once, without those that are not known.
func (r Request) BlockSizes(n *v1alpha1.NvmfNode) []int32 {
	var all []int32
	for _, p := range n.Status.Pools {
		s := space{class: p.DeviceClass, blockBytes: p.BlockSizeBytes}
		if p.Ready && s.blockBytes > 0 && r.among(p.Device, s) && !slices.Contains(all, s.blockBytes) {
			all = append(all, s.blockBytes)
		}
	}
	return all
}

// withBlocks in words, behind what has them.
func withBlocks(bytes int32) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(" with logical blocks of %d bytes, as all replicas of a volume need", bytes)
}

// ofClass in words, behind what is of it.
func ofClass(class string) string {
	if class == "" {
		return ""
	}
	return " of device class " + class
}

func explain(what string, c *metav1.Condition) string {
	if c.Message == "" {
		return fmt.Sprintf("%s (%s)", what, c.Reason)
	}
	return fmt.Sprintf("%s (%s: %s)", what, c.Reason, c.Message)
}

// Room is how large the data of the volume with this name may be in a pool of a node; its own promise does not count
// against it. False when the node does not say what the pool has, or cannot read it: then nobody knows.
func Room(n *v1alpha1.NvmfNode, device, volume string, ledger *Ledger) (int64, bool) {
	others := ledger.of(n.Name, volume)
	left, known := freeSpace(n, others)[device]
	if !known {
		left, known = unplannedSpace(n, device, others)
	}
	return left.largest(), known
}

// unplannedSpace of a pool that can be read and is no longer planned: what it holds may grow, and nothing new comes to
// it.
func unplannedSpace(n *v1alpha1.NvmfNode, device string, promises []Promise) (space, bool) {
	i := slices.IndexFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool {
		return p.Device == device && p.Reason == v1alpha1.ReasonNotClaimed && p.Total != nil
	})
	if i < 0 {
		return space{}, false
	}
	left := spaceOf(n.Spec.Plan, n.Status.Pools[i])
	for _, p := range promises {
		if p.Device == device {
			left.take(p.SizeBytes)
		}
	}
	return left, true
}

// space of a pool.
type space struct {
	class string
	// blockBytes of its logical blocks; 0 where they are not known.
	blockBytes int32
	// cordoned: the pool gets no new replicas. Those that it stores can grow.
	cordoned bool
	// free is what may still be promised; negative where more was than may be.
	free int64
	// total is the pool's size: no volume is larger with header and trailer, for it could never be filled.
	total int64
	// cluster is what the pool allocates, and rounds the sizes of volumes up to; 0 for none.
	cluster int64
}

func spaceOf(plan *v1alpha1.Plan, pool v1alpha1.PoolStatus) space {
	s := space{class: pool.DeviceClass, blockBytes: pool.BlockSizeBytes, free: plan.Promisable(pool.Total.Value()), total: pool.Total.Value()}
	if pool.ClusterSize != nil {
		s.cluster = pool.ClusterSize.Value()
	}
	return s
}

// take what is promised.
func (s *space) take(bytes int64) { s.free -= v1alpha1.InClusters(bytes, s.cluster) }

// dataIn so many bytes of the pool, of one volume with its header and trailer.
func (s space) dataIn(bytes int64) int64 {
	return v1alpha1.WithoutOverhead(bytes - max(0, bytes)%max(1, s.cluster))
}

// data that one volume more could have of what is free, however large.
func (s space) data() int64 { return s.dataIn(s.free) }

// largest volume that the pool can take: with its header and trailer it has its place there.
func (s space) largest() int64 { return min(s.data(), s.dataIn(s.total)) }

// freeSpace of each ready pool of a node. Volumes whose drive is not known
// yet are put, largest first, where the agent would put them: on the pool with the most free space that is not smaller
// than they are.
func freeSpace(n *v1alpha1.NvmfNode, promises []Promise) map[string]space {
	pools := map[string]space{}
	for _, p := range n.Status.Pools {
		if p.Ready && p.Total != nil {
			s := spaceOf(n.Spec.Plan, p)
			s.cordoned = n.Spec.Cordons(p.Device)
			pools[p.Device] = s
		}
		if p.Ready && p.TakesNothingNew() {
			pools[p.Device] = space{class: p.DeviceClass, blockBytes: p.BlockSizeBytes} // whatever of it was not promised
		}
	}
	take := func(device string, bytes int64) {
		if s, ok := pools[device]; ok {
			s.take(bytes)
			pools[device] = s
		}
	}
	var unplaced []Promise
	for _, p := range promises {
		if p.Device == "" {
			unplaced = append(unplaced, p)
		} else {
			take(p.Device, p.SizeBytes)
		}
	}
	slices.SortFunc(unplaced, func(a, b Promise) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Volume, b.Volume))
	})
	for _, p := range unplaced {
		take(mostFree(pools, p.DeviceClass, p.SizeBytes), p.SizeBytes)
	}
	return pools
}

// room of a node, in the pools that a request may go to.
func room(n *v1alpha1.NvmfNode, req Request, ledger *Ledger) Candidate {
	c := Candidate{Node: n.Name}
	for d, s := range ledger.left(n) {
		if !req.among(d, s) || s.cordoned {
			continue
		}
		// A pool of which more was promised than may be (its drive was replaced by a smaller one) takes nothing from
		// the others.
		c.FreeBytes += s.data()
		c.LargestBytes = max(c.LargestBytes, s.largest())
	}
	return c
}

// largestDrive of a node that a request may go to: the data of a volume that fills it.
func largestDrive(n *v1alpha1.NvmfNode, req Request, ledger *Ledger) int64 {
	var most int64
	for d, s := range ledger.left(n) {
		if req.among(d, s) && !s.cordoned {
			most = max(most, s.dataIn(s.total))
		}
	}
	return most
}

// mostFree pool of a class, or of all when that is empty, that is not cordoned, of those that can hold a volume of this
// size, else of all; of equals, the first by name.
func mostFree(pools map[string]space, class string, bytes int64) string {
	var best string
	for device, s := range pools {
		if class != "" && s.class != class || s.cordoned {
			continue
		}
		b, found := pools[best]
		fits, better := s.total >= v1alpha1.InClusters(bytes, s.cluster), b.total >= v1alpha1.InClusters(bytes, b.cluster)
		if !found || fits && !better || fits == better && (s.free > b.free || s.free == b.free && device < best) {
			best = device
		}
	}
	return best
}
