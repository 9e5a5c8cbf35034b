// SPDX-License-Identifier: Apache-2.0

// Package capacity counts what volumes would take of the nodes of a target: it places them as the CSI controller would,
// and again after the loss of each node. It is pure, and equal input gives equal output.
package capacity

import (
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Node of the target, with what it can still take.
type Node struct {
	Name   string
	Labels map[string]string
	Pools  []Pool
	// Portals that its target listens on.
	Portals []v1alpha1.PlannedPortal
	// Expected attachments that the memory of its target is planned for; nil where nothing limits them.
	Expected *v1alpha1.Attachments
	// Attachments and Replicas that it has already.
	Attachments, Replicas int64
	// MaxReplicas that its target can serve; 0 for no limit.
	MaxReplicas int64
}

// Pool of a node.
type Pool struct {
	// Class of its drive; empty for none.
	Class string
	// PromisableBytes in all, PromisedBytes already.
	PromisableBytes, PromisedBytes int64
	// TotalBytes of the pool: no replica is larger.
	TotalBytes int64
	// ClusterBytes that it allocates at once; 0 for none.
	ClusterBytes int64
}

// Volumes that are alike.
type Volumes struct {
	// Count of volumes, each of SizeBytes, without the header, with so many Replicas.
	Count, SizeBytes int64
	Replicas         int
	// Class of drives that they ask for; empty for any.
	Class string
	// Zones that they ask for, values of the node label ZoneLabel; none for all.
	Zones     []string
	ZoneLabel string
	// Transports that hosts connect over, with so many IOQueues on each path.
	Transports []v1alpha1.TransportType
	IOQueues   int32
	// Hosts that use each volume at once.
	Hosts int64
	// WriteBytes a second that pods write to each volume; 0 when not known.
	WriteBytes int64
}

// Load of a node.
type Load struct {
	// Replicas that it stores, and Bytes of its pools that are promised to them, with headers.
	Replicas, Bytes int64
	// Attachments that it holds, in places of Attachments.Expected.
	Attachments int64
	// Controllers that hosts have on it, and QueuePairs of these, admin ones too.
	Controllers, QueuePairs int64
	// WriteBytes a second that hosts send to it.
	WriteBytes int64
}

// Add the figures of both.
func (l Load) Add(o Load) Load {
	return Load{
		l.Replicas + o.Replicas, l.Bytes + o.Bytes, l.Attachments + o.Attachments,
		l.Controllers + o.Controllers, l.QueuePairs + o.QueuePairs, l.WriteBytes + o.WriteBytes,
	}
}

// most of each figure.
func (l Load) most(o Load) Load {
	return Load{
		max(l.Replicas, o.Replicas), max(l.Bytes, o.Bytes), max(l.Attachments, o.Attachments),
		max(l.Controllers, o.Controllers), max(l.QueuePairs, o.QueuePairs), max(l.WriteBytes, o.WriteBytes),
	}
}

// Shortage is what does not fit.
type Shortage struct {
	// Lost node after whose loss it is; empty for the volumes themselves.
	Lost string
	// Volumes is an index into those that were given, and Replicas of them that no node can take.
	Volumes  int
	Replicas int64
	// Full is how many of the other nodes have room, but as many replicas as they can have.
	Full int
}

// Result of counting.
type Result struct {
	// Loads of the nodes, in the order given, with what they have already.
	Loads []Load
	// Reserve is the most of each figure that a node has after the loss of any other one. Nil without a reserve, and
	// when the volumes do not fit.
	Reserve []Load
	// OneZone counts the volumes with several replicas that are all in one zone.
	OneZone int64
	// Shortages: none when all of it fits.
	Shortages []Shortage
}

// replica of a volume on a node, with what it takes there.
type replica struct {
	node int
	Load
}

// placed volume: the index of what it is one of, and where its replicas are.
type placed struct {
	of       int
	replicas []replica
}

// Count places the volumes on the nodes. With a reserve, it then loses each node in turn, and places what it stored of
// volumes with other replicas on the nodes that remain. What has one replica is lost with its node. Volumes that do not
// fit as it is have no reserve.
func Count(nodes []Node, volumes []Volumes, reserve bool) Result {
	s := newState(nodes)
	var (
		result Result
		all    []placed
	)
	for i := range volumes {
		v := &volumes[i]
		short := Shortage{Volumes: i}
		for range v.Count {
			p := placed{of: i}
			for range v.Replicas {
				if r, ok := s.place(v, p.replicas, -1); ok {
					p.replicas = append(p.replicas, r)
				} else {
					short.Replicas++
				}
			}
			if len(p.replicas) > 1 && s.oneZone(v, p.replicas) {
				result.OneZone++
			}
			all = append(all, p)
		}
		if short.Replicas > 0 {
			short.Full = s.full(v, -1)
			result.Shortages = append(result.Shortages, short)
		}
	}
	result.Loads = s.loads
	if !reserve || len(result.Shortages) > 0 {
		return result
	}
	result.Reserve = slices.Clone(s.loads)
	for lost := range nodes {
		after, short := s.lose(lost, volumes, all)
		result.Shortages = append(result.Shortages, short...)
		for i := range after {
			if i != lost {
				result.Reserve[i] = result.Reserve[i].most(after[i])
			}
		}
	}
	return result
}

// lose a node, and place its replicas again, apart from the others of their volumes.
func (s *state) lose(lost int, volumes []Volumes, all []placed) (loads []Load, shortages []Shortage) {
	left := s.clone()
	short := make([]int64, len(volumes))
	for _, p := range all {
		at := slices.IndexFunc(p.replicas, func(r replica) bool { return r.node == lost })
		if at < 0 || len(p.replicas) < 2 {
			continue
		}
		others := slices.Delete(slices.Clone(p.replicas), at, at+1)
		if _, ok := left.place(&volumes[p.of], others, lost); !ok {
			short[p.of]++
		}
	}
	for i, n := range short {
		if n > 0 {
			shortages = append(shortages, Shortage{Lost: s.nodes[lost].Name, Volumes: i, Replicas: n, Full: left.full(&volumes[i], lost)})
		}
	}
	return left.loads, shortages
}
