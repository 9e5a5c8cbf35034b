// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"sort"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// fitting lists single changes of the spec with which the target would need no more than so many bytes, of the memory
// that bytes answers.
func (s sizer) fitting(l load, bytes func(load) int64, allowed int64) string {
	need := func(l load) int64 { return s.need(l, bytes) }
	deepest, capsule, leastCapsule := int64(0), int64(0), int64(0)
	for _, t := range l.transports {
		deepest, capsule = max(deepest, t.queueDepth), max(capsule, t.inCapsule)
		if t.kind == v1alpha1.TransportRDMA {
			leastCapsule = minRDMAInCapsule
		}
	}
	knobs := []knobToTurn{
		{"attachments.expected", 1, l.attachments, func(l load, n int64) load { l.attachments = n; return l }},
		{"attachments.ioQueues", 1, l.ioQueues, func(l load, n int64) load { l.ioQueues = n; return l }},
		{"transports[].queueDepth", v1alpha1.MinQueueDepth, deepest, func(l load, n int64) load {
			return l.each(func(t *transport) { t.queueDepth = min(t.queueDepth, n) })
		}},
		{"transports[].inCapsuleDataSize", leastCapsule, capsule, func(l load, n int64) load {
			n -= n % v1alpha1.InCapsuleDataStep
			return l.each(func(t *transport) { t.inCapsule = min(t.inCapsule, n) })
		}},
		{"cores.count", 1, l.cores, func(l load, n int64) load {
			l.cores, l.pollGroups = n, min(l.pollGroups, n)
			return l
		}},
	}
	var said []string
	smallest := l.onTransports(nil)
	for _, k := range knobs {
		if words := k.turn(need, l, allowed); words != "" {
			said = append(said, words)
		}
		smallest = k.turned(smallest, min(k.least, k.now))
	}
	switch least := need(smallest); {
	case len(said) > 0:
		return strings.Join(said, ", or ")
	case least > allowed:
		return fmt.Sprintf("nothing: even one attachment with one queue on one core needs %s", mib(least))
	}
	return "no single change; lower attachments.expected together with ioQueues or queueDepth"
}

// A knobToTurn is a number of the spec that could be less.
type knobToTurn struct {
	name       string
	least, now int64
	// turned changes the transports that it is given.
	turned func(l load, n int64) load
}

// turn finds the largest value that fits, and says by how much; "" when none does. Where less of a knob needs a little
// more (queues are spread over poll groups in whole ones), it may find a smaller one that fits.
func (k knobToTurn) turn(needs func(load) int64, l load, allowed int64) string {
	room := make([]transport, 0, len(l.transports))
	need := func(n int64) int64 { return needs(k.turned(l.onTransports(room), n)) }
	if k.now <= k.least || need(k.least) > allowed {
		return ""
	}
	// The smallest i for which k.now - 1 - i fits.
	i := sort.Search(int(k.now-1-k.least), func(i int) bool { return need(k.now-1-int64(i)) <= allowed })
	n := k.now - 1 - int64(i)
	if k.name == "transports[].inCapsuleDataSize" {
		n -= n % v1alpha1.InCapsuleDataStep
	}
	return fmt.Sprintf("%s %d (%s to spare)", k.name, n, mib(allowed-need(n)))
}

// need is the memory of a load with its headroom; more than there can be when it cannot be sized. It changes the load's
// transports.
func (s sizer) need(l load, bytes func(load) int64) int64 {
	if _, reasons := s.size(&l); len(reasons) > 0 {
		return 1 << 62
	}
	return bytes(l)
}

// onTransports of its own, in the room given.
func (l load) onTransports(room []transport) load {
	l.transports = append(room[:0], l.transports...)
	return l
}

// each changes the transports.
func (l load) each(change func(*transport)) load {
	for i := range l.transports {
		change(&l.transports[i])
	}
	return l
}
