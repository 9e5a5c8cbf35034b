// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// defaultMaxIOSize is SPDK's (max_io_size).
	defaultMaxIOSize = 128 << 10
	// minRDMAInCapsule: SPDK's RDMA transport raises smaller values to 16 SGL descriptors of 16 bytes.
	minRDMAInCapsule = 256
)

// A transport of SPDK's target: all of spec.transports of one type, since SPDK has one of a type.
type transport struct {
	kind        v1alpha1.TransportType
	queueDepth  int64
	maxIOQueues int64
	inCapsule   int64
	maxIO       int64
	portals     int64 // that listen with it: a host makes a controller on each
	srq         v1alpha1.SRQ
	placement   v1alpha1.Placement
	index       int // of the first in spec.transports
	given       v1alpha1.Transport
	smallCache  int64
	largeCache  int64
	srqDepth    int64           // 0 without SRQs
	c2hSuccess  v1alpha1.Switch // "": as SPDK has it
}

// mergeTransports makes one transport of all entries of a type, and checks that they agree.
func mergeTransports(entries []v1alpha1.Transport) ([]transport, []Reason) {
	var merged []transport
	var reasons []Reason
	for i, entry := range entries {
		t, why := oneTransport(i, entry)
		if why != nil {
			reasons = append(reasons, *why)
			continue
		}
		j := slices.IndexFunc(merged, func(m transport) bool { return m.kind == t.kind })
		if j < 0 {
			merged = append(merged, t)
			continue
		}
		merged[j].portals++
		if field := merged[j].differsFrom(t); field != "" {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting,
				"transports[%d] and transports[%d] are both %s and differ in %s, but SPDK has one transport of each type for all portals; set the same %s in both",
				merged[j].index, i, t.kind, field, field))
		}
	}
	slices.SortFunc(merged, func(a, b transport) int { return cmp.Compare(a.kind, b.kind) })
	return merged, reasons
}

func oneTransport(index int, entry v1alpha1.Transport) (transport, *Reason) {
	t := transport{
		kind: entry.Type, index: index, given: entry, portals: 1,
		queueDepth: int64(cmp.Or(entry.QueueDepth, v1alpha1.DefaultQueueDepth)), maxIOQueues: int64(cmp.Or(entry.MaxIOQueues, v1alpha1.DefaultMaxIOQueues)),
		inCapsule: v1alpha1.DefaultInCapsuleDataSize, maxIO: defaultMaxIOSize, placement: v1alpha1.PlacementNone, srq: v1alpha1.SRQ{Mode: v1alpha1.SRQAuto},
	}
	if entry.InCapsuleDataSize != nil {
		t.inCapsule = entry.InCapsuleDataSize.Value()
	}
	if entry.MaxIOSize != nil {
		t.maxIO = entry.MaxIOSize.Value()
	}
	if entry.Placement != nil {
		t.placement = *entry.Placement
	}
	if entry.C2HSuccess != nil {
		t.c2hSuccess = *entry.C2HSuccess
	}
	if entry.SRQ != nil {
		t.srq = v1alpha1.SRQ{Mode: cmp.Or(entry.SRQ.Mode, v1alpha1.SRQAuto), Depth: entry.SRQ.Depth}
	}
	invalid := func(field, format string, args ...any) *Reason {
		return new(reasonf(v1alpha1.ReasonInvalidSetting, "transports[%d].%s %s", index, field, fmt.Sprintf(format, args...)))
	}
	switch {
	case t.kind != v1alpha1.TransportTCP && t.kind != v1alpha1.TransportRDMA:
		return t, invalid("type", "is %q, which SPDK does not support; use TCP or RDMA", t.kind)
	case t.queueDepth < v1alpha1.MinQueueDepth || t.queueDepth > v1alpha1.MaxQueueDepth:
		return t, invalid("queueDepth", "is %d; use %d to %d", t.queueDepth, v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth)
	case t.maxIOQueues < v1alpha1.MinIOQueues || t.maxIOQueues > v1alpha1.MaxIOQueues:
		return t, invalid("maxIOQueues", "is %d; use %d to %d", t.maxIOQueues, v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues)
	case t.inCapsule < 0 || t.inCapsule > v1alpha1.MaxInCapsuleDataSize:
		return t, invalid("inCapsuleDataSize", "is %d bytes; use 0 to %dKi", t.inCapsule, v1alpha1.MaxInCapsuleDataSize>>10)
	case t.maxIO < v1alpha1.MinMaxIOSize || t.maxIO > v1alpha1.MaxMaxIOSize || t.maxIO&(t.maxIO-1) != 0:
		return t, invalid("maxIOSize", "is %d bytes; use a power of two from %dKi to %dMi", t.maxIO, v1alpha1.MinMaxIOSize>>10, v1alpha1.MaxMaxIOSize>>20)
	case t.inCapsule > t.maxIO:
		return t, invalid("inCapsuleDataSize", "is %d bytes, which is greater than maxIOSize (%d bytes); use %d or less", t.inCapsule, t.maxIO, t.maxIO)
	case t.kind == v1alpha1.TransportRDMA && t.srq.Depth != nil && (*t.srq.Depth < v1alpha1.MinSRQDepth || *t.srq.Depth > v1alpha1.MaxSRQDepth):
		return t, invalid("srq.depth", "is %d; use %d to %d: SPDK keeps it in 16 bits", *t.srq.Depth, v1alpha1.MinSRQDepth, v1alpha1.MaxSRQDepth)
	case !isSRQMode(t.srq.Mode):
		return t, invalid("srq.mode", "is %q; use Auto, Enabled or Disabled", t.srq.Mode)
	case !slices.Contains([]v1alpha1.Placement{v1alpha1.PlacementNone, v1alpha1.PlacementNAPI, v1alpha1.PlacementCPU}, t.placement):
		return t, invalid("placement", "is %q; use None, NAPI or CPU", t.placement)
	case entry.C2HSuccess != nil && (t.kind != v1alpha1.TransportTCP || !isSwitch(t.c2hSuccess)):
		return t, invalid("c2hSuccess", "is %q; use Enabled or Disabled, with type TCP", t.c2hSuccess)
	}
	if t.kind == v1alpha1.TransportRDMA {
		t.inCapsule = max(t.inCapsule, minRDMAInCapsule)
	}
	return t, nil
}

// differsFrom names the first field in which two entries of one type differ.
func (t transport) differsFrom(other transport) string {
	depth := func(s v1alpha1.SRQ) int32 {
		if s.Depth == nil {
			return 0
		}
		return *s.Depth
	}
	for _, f := range []struct {
		name string
		same bool
	}{
		{"queueDepth", t.queueDepth == other.queueDepth},
		{"maxIOQueues", t.maxIOQueues == other.maxIOQueues},
		{"inCapsuleDataSize", t.inCapsule == other.inCapsule},
		{"maxIOSize", t.maxIO == other.maxIO},
		{"srq", t.kind == v1alpha1.TransportTCP || t.srq.Mode == other.srq.Mode && depth(t.srq) == depth(other.srq)},
		{"c2hSuccess", cmp.Or(t.c2hSuccess, v1alpha1.SwitchEnabled) == cmp.Or(other.c2hSuccess, v1alpha1.SwitchEnabled)},
		{"placement", t.kind == v1alpha1.TransportRDMA || t.placement == other.placement},
	} {
		if !f.same {
			return f.name
		}
	}
	return ""
}

// buffersPerIO is how many large buffers the largest I/O takes at once.
func (t transport) buffersPerIO() int64 { return ceilDiv(t.maxIO, largeBufferBytes) }

// ioQueues that each attachment opens on each of the transport's portals.
func (t transport) ioQueues(asked int64) int64 { return min(asked, t.maxIOQueues) }

func (t transport) setting(field string) string {
	return "transports[" + string(t.kind) + "]." + field
}

// explain says where the transport's own limits came from; ioQueues is what attachments ask for.
func (t transport) explain(why *explanation, ioQueues int64) {
	// The API server fills defaults in, so a given value that equals the default cannot be told from it.
	say := func(field string, value, byDefault int64, words string, warnings ...string) {
		if value == byDefault {
			why.byDefault(t.setting(field), strconv.FormatInt(value, 10), words, warnings...)
		} else {
			why.given(t.setting(field), strconv.FormatInt(value, 10), words, warnings...)
		}
	}
	say("queueDepth", t.queueDepth, v1alpha1.DefaultQueueDepth, fmt.Sprintf("at most %d commands in one queue; the default of SPDK and of the kernel's initiator is %d", t.queueDepth, v1alpha1.DefaultQueueDepth))
	var few string
	if ioQueues > t.maxIOQueues {
		few = fmt.Sprintf("attachments.ioQueues requests %d queues for each volume, but a host gets only %d; raise maxIOQueues, or lower ioQueues", ioQueues, t.maxIOQueues)
	}
	say("maxIOQueues", t.maxIOQueues, v1alpha1.DefaultMaxIOQueues, "maximum number of I/O queues for each controller; every queue needs memory, used or not", few)
	var raised string
	if t.given.InCapsuleDataSize != nil && t.given.InCapsuleDataSize.Value() < t.inCapsule {
		raised = fmt.Sprintf("%d bytes were requested, but SPDK's RDMA transport requires at least %d", t.given.InCapsuleDataSize.Value(), minRDMAInCapsule)
	}
	say("inCapsuleDataSize", t.inCapsule, v1alpha1.DefaultInCapsuleDataSize, "writes up to this size are sent with their command, without another round trip; each slot of each queue reserves this size", raised)
	say("maxIOSize", t.maxIO, defaultMaxIOSize, fmt.Sprintf("the maximum size of one transfer, which uses %s of 132 KiB", text.Plural(int(t.buffersPerIO()), "large buffer")))
}
