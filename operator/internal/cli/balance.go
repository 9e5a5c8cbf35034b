// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"slices"
)

// weighed is a node of a target, as its pools that are ready add up.
type weighed struct {
	node                      string
	totalBytes, promisedBytes int64
	// receives: it can take replicas.
	receives bool
	pools    []roomy
}

// roomy is a pool that can be promised so many more bytes.
type roomy struct {
	class     string
	freeBytes int64
}

// usage of a node: what is promised of what there is; more than 1 with over-provisioning.
func (w weighed) usage() float64 { return share(w.promisedBytes, w.totalBytes) }

func share(part, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// load is a replica that can move.
type load struct {
	volume, replica, node string
	// class of drives that it must be on; empty for any.
	class string
	bytes int64
	// others are the nodes that cannot take it: those of the volume's other replicas, and those outside its zones.
	others []string
}

// shift is a load that moves to another node.
type shift struct {
	load
	to string
}

// balance chooses at most so many shifts from the fullest nodes to the emptiest ones that can receive, until their
// usage is within a fraction, or no shift brings two of them nearer to each other. Each volume moves once. It returns
// the nodes as they are afterwards. Equal input gives equal output.
func balance(nodes []weighed, loads []load, within float64, most int) ([]shift, []weighed) {
	after := make([]weighed, len(nodes))
	for i, n := range nodes {
		after[i] = n
		after[i].pools = slices.Clone(n.pools)
	}
	loads = slices.Clone(loads)
	var shifts []shift
	for len(shifts) < most {
		s, found := nextShift(after, loads, within)
		if !found {
			break
		}
		shifts = append(shifts, s)
		apply(after, s)
		loads = slices.DeleteFunc(loads, func(l load) bool { return l.volume == s.volume })
	}
	return shifts, after
}

// nextShift is, of the fullest node that can give, to the emptiest that can receive of it, the one that leaves the two
// nearest to each other.
func nextShift(nodes []weighed, loads []load, within float64) (shift, bool) {
	order := slices.Clone(nodes)
	slices.SortFunc(order, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.usage(), a.usage()), cmp.Compare(a.node, b.node))
	})
	for _, full := range order {
		for _, empty := range slices.Backward(order) {
			if !empty.receives || full.usage()-empty.usage() <= within {
				continue
			}
			if l, found := bestLoad(full, empty, loads); found {
				return shift{l, empty.node}, true
			}
		}
	}
	return shift{}, false
}

// bestLoad from one node to another, the first of equal ones: it leaves them nearer to each other than they were.
func bestLoad(full, empty weighed, loads []load) (best load, found bool) {
	least := full.usage() - empty.usage()
	for _, l := range loads {
		if l.node != full.node || slices.Contains(l.others, empty.node) || l.bytes <= 0 || roomFor(empty, l) < 0 {
			continue
		}
		gap := share(full.promisedBytes-l.bytes, full.totalBytes) - share(empty.promisedBytes+l.bytes, empty.totalBytes)
		gap = max(gap, -gap)
		if gap < least {
			best, least, found = l, gap, true
		}
	}
	return best, found
}

// roomFor a load: the index of the node's pool that has most room for it, or -1.
func roomFor(n weighed, l load) int {
	best := -1
	for i, p := range n.pools {
		if (l.class == "" || l.class == p.class) && p.freeBytes >= l.bytes && (best < 0 || p.freeBytes > n.pools[best].freeBytes) {
			best = i
		}
	}
	return best
}

func apply(nodes []weighed, s shift) {
	for i := range nodes {
		switch n := &nodes[i]; n.node {
		case s.node:
			n.promisedBytes -= s.bytes
		case s.to:
			n.pools[roomFor(*n, s.load)].freeBytes -= s.bytes
			n.promisedBytes += s.bytes
		}
	}
}
