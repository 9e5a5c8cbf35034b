// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// state of the nodes while volumes are placed.
type state struct {
	nodes []Node
	loads []Load
	// free bytes of each node's pools.
	free [][]int64
}

func newState(nodes []Node) *state {
	s := &state{nodes: nodes, loads: make([]Load, len(nodes)), free: make([][]int64, len(nodes))}
	for i, n := range nodes {
		s.loads[i].Attachments, s.loads[i].Replicas = n.Attachments, n.Replicas
		for _, p := range n.Pools {
			s.free[i] = append(s.free[i], p.PromisableBytes-p.PromisedBytes)
			s.loads[i].Bytes += p.PromisedBytes
		}
	}
	return s
}

func (s *state) clone() *state {
	c := &state{nodes: s.nodes, loads: slices.Clone(s.loads), free: make([][]int64, len(s.free))}
	for i := range s.free {
		c.free[i] = slices.Clone(s.free[i])
	}
	return c
}

// room of a node for one replica more of a volume.
type room struct {
	node, pool int
	// together with another replica in its zone: 1, else 0.
	together int
	// freeBytes of all pools that come into question.
	freeBytes int64
}

// place one replica more of a volume, as the CSI controller chooses the node and the agent the pool: on another node
// than the others, in another zone if one has room, then where most is free. False when no node has room.
func (s *state) place(v *Volumes, others []replica, lost int) (replica, bool) {
	var best *room
	for i := range s.nodes {
		if i == lost || s.isFull(i) || slices.ContainsFunc(others, func(r replica) bool { return r.node == i }) {
			continue
		}
		r, ok := s.room(i, v)
		if !ok {
			continue
		}
		if slices.ContainsFunc(others, func(o replica) bool { return s.zone(v, i) != "" && s.zone(v, o.node) == s.zone(v, i) }) {
			r.together = 1
		}
		if best == nil || better(r, *best) {
			best = &r
		}
	}
	if best == nil {
		return replica{}, false
	}
	r := replica{best.node, s.cost(best.node, best.pool, v)}
	s.free[best.node][best.pool] -= r.Bytes
	s.loads[best.node] = s.loads[best.node].Add(r.Load)
	return r, true
}

func better(a, b room) bool {
	return cmp.Or(cmp.Compare(a.together, b.together), cmp.Compare(b.freeBytes, a.freeBytes), cmp.Compare(a.node, b.node)) < 0
}

// zone of a node, as the volumes name zones; empty when it has none.
func (s *state) zone(v *Volumes, node int) string { return s.nodes[node].Labels[v.ZoneLabel] }

// chosen by the volumes' zones.
func (s *state) chosen(v *Volumes, node int) bool {
	return len(v.Zones) == 0 || slices.Contains(v.Zones, s.zone(v, node))
}

// room of a node, in the pool with the most free space; false when it has none.
func (s *state) room(node int, v *Volumes) (room, bool) {
	r := room{node: node, pool: -1}
	if !s.chosen(v, node) || !serves(&s.nodes[node], v) {
		return r, false
	}
	for i, p := range s.nodes[node].Pools {
		if v.Class != "" && p.Class != v.Class {
			continue
		}
		free := s.free[node][i]
		r.freeBytes += free
		if needs := v1alpha1.ServedBytes(v.SizeBytes, p.ClusterBytes); needs <= free && needs <= p.TotalBytes && (r.pool < 0 || free > s.free[node][r.pool]) {
			r.pool = i
		}
	}
	return r, r.pool >= 0
}

// serves all transports that the volumes need.
func serves(n *Node, v *Volumes) bool {
	return !slices.ContainsFunc(v.Transports, func(t v1alpha1.TransportType) bool {
		return !slices.ContainsFunc(n.Portals, func(p v1alpha1.PlannedPortal) bool { return p.Transport == t && v.IOQueues <= p.MaxIOQueues })
	})
}

func (s *state) isFull(node int) bool {
	most := s.nodes[node].MaxReplicas
	return most > 0 && s.loads[node].Replicas >= most
}

// full counts the nodes that have room for the volumes, but not for one replica more.
func (s *state) full(v *Volumes, lost int) int {
	n := 0
	for i := range s.nodes {
		if _, ok := s.room(i, v); ok && i != lost && s.isFull(i) {
			n++
		}
	}
	return n
}

// cost of one replica in a pool of a node.
func (s *state) cost(node, pool int, v *Volumes) Load {
	n := &s.nodes[node]
	l := Load{
		Replicas: 1, Bytes: v1alpha1.ServedBytes(v.SizeBytes, n.Pools[pool].ClusterBytes),
		Attachments: v.Hosts, WriteBytes: v.WriteBytes,
	}
	if n.Expected != nil {
		l.Attachments *= n.Expected.Places(v1alpha1.Connection{IOQueues: v.IOQueues})
	}
	l.Controllers, l.QueuePairs = Connections(n.Portals, v)
	l.Controllers, l.QueuePairs = l.Controllers*v.Hosts, l.QueuePairs*v.Hosts
	return l
}

// Connections that one host has to one replica: a controller on each portal, and the queue pairs of these: the I/O
// queues, and the admin queue.
func Connections(portals []v1alpha1.PlannedPortal, v *Volumes) (controllers, queuePairs int64) {
	for _, p := range portals {
		if slices.Contains(v.Transports, p.Transport) {
			controllers++
			queuePairs += int64(v.IOQueues) + 1
		}
	}
	return controllers, queuePairs
}

// oneZone tells whether all replicas of a volume are in one zone.
func (s *state) oneZone(v *Volumes, replicas []replica) bool {
	zone := s.zone(v, replicas[0].node)
	return zone != "" && !slices.ContainsFunc(replicas, func(r replica) bool { return s.zone(v, r.node) != zone })
}

// Eligible counts the nodes that can store such volumes, however much space they have: those in their zones that serve
// their transports and have a drive of their class.
func Eligible(nodes []Node, v *Volumes) int {
	s := newState(nodes)
	n := 0
	for i := range nodes {
		if s.chosen(v, i) && serves(&nodes[i], v) && slices.ContainsFunc(nodes[i].Pools, func(p Pool) bool { return v.Class == "" || p.Class == v.Class }) {
			n++
		}
	}
	return n
}
