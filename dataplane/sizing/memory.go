// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"math/bits"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Buffers of SPDK's two pools (iobuf), with its default sizes.
const (
	smallBufferBytes = 8 << 10
	largeBufferBytes = 132 << 10
)

// memoryModel has what a version of SPDK takes from its heap. Those of 26.05 are fitted to
// measurements of running targets (testdata/memory-26.05*.json), and never under one of them.
type memoryModel struct {
	fixed        int64 // of a target without cores and pools
	perCore      int64
	bdevIO       int64 // for each descriptor of the pool
	ringEntry    int64 // a pool keeps its free objects in a ring, of the next power of two
	tcpPerGroup  int64 // buffers for capsules with more data than in-capsule size, in each poll group
	tcpInCapsule int64 // from this in-capsule size on there are none
	tcpPDU       int64 // 2 x depth + 1 in each queue pair
	tcpQueuePair int64
	tcpHost      int64 // for each controller
	rdma         int64 // of an RDMA transport, before any queue
	rdmaSlot     int64 // of a receive queue, without in-capsule data
	srq          int64 // for each shared receive queue
	drive        int64 // for each logical volume store
	volume       int64
	// SPDK's own NVMe driver, from its source and not measured: 192 trackers of 4 KiB and 513 requests for each
	// of the 256-entry queue pairs that every thread has on every drive.
	nvmeController int64
	nvmeQueuePair  int64
}

var spdk2605 = memoryModel{
	fixed: 61_200_000, perCore: 2_098_800, bdevIO: 1601, ringEntry: 8,
	tcpPerGroup: 32*8192 + 128, tcpInCapsule: 8192, tcpPDU: 1088, tcpQueuePair: 256, tcpHost: 384,
	rdma: 2_926_464, rdmaSlot: 1432 + 104 + 64 + 16, srq: 512, drive: 540_000, volume: 3800,
	nvmeController: 4 << 20, nvmeQueuePair: 3 << 19,
}

// withoutHugepages: objects of pools do not cross the edge of a page, so that two descriptors of an I/O fill one of 4 KiB.
func (m memoryModel) withoutHugepages() memoryModel {
	m.fixed, m.bdevIO, m.rdma = 62_040_000, 2048, m.rdma*6/5
	return m
}

// spdk1901 has only what the published measurement of shared receive queues needs: there a slot took 1200 bytes.
var spdk1901 = memoryModel{rdmaSlot: 1024 + 96 + 64 + 16}

// memoryModels by version.
var memoryModels = map[string]memoryModel{"26.05": spdk2605, "19.01": spdk1901}

// spdkVersion that plans are made for.
const spdkVersion = "26.05"

// modelFor the pages that the spec asks for.
func modelFor(spec v1alpha1.NvmfTargetSpec) memoryModel {
	m := memoryModels[spdkVersion]
	if spec.Memory != nil && spec.Memory.Hugepages == v1alpha1.HugepagesDisabled {
		return m.withoutHugepages()
	}
	return m
}

// load is what a target must hold at once; its memory follows from it.
type load struct {
	cores, pollGroups     int64
	attachments, ioQueues int64
	volumes               int64
	bdevIOPool            int64
	smallBuffers          int64
	largeBuffers          int64
	transports            []transport
	devices               int64 // RDMA
	stores                int64 // logical volume stores: one for each drive, or that of the file
	ownDriver             bool  // of the drives
	podDrives             int64 // ordinary memory of the pool, in bytes
	socketBytes           int64 // of a TCP connection, both ways
	quiet                 bool  // only the numbers count: no words are made
}

// sprintf makes words, unless only the numbers count.
func (l load) sprintf(format string, args ...any) string {
	if l.quiet {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func (l load) product(n, each int64) string {
	if l.quiet {
		return ""
	}
	return strconv.FormatInt(n, 10) + " x " + strconv.FormatInt(each, 10)
}

// queuePairs of a transport, admin ones too.
func (l load) queuePairs(t transport) int64 { return l.controllers(t) * (t.ioQueues(l.ioQueues) + 1) }

// ioQueuePairs of all transports: each is on one poll group.
func (l load) ioQueuePairs() int64 {
	var pairs int64
	for _, t := range l.transports {
		pairs += l.controllers(t) * t.ioQueues(l.ioQueues)
	}
	return pairs
}

// controllers of a transport: each attachment has one on each portal.
func (l load) controllers(t transport) int64 { return l.attachments * t.portals }

// receiveSlots of an RDMA transport without SRQs: each queue pair's at the depth that the host asks for.
func (l load) receiveSlots(t transport) int64 {
	return l.controllers(t) * (t.ioQueues(l.ioQueues)*t.queueDepth + min(kernelAdminDepth, t.queueDepth))
}

// sharedQueues is what SRQs cost, one for each poll group and device.
func (m memoryModel) sharedQueues(pollGroups, devices, depth, inCapsule int64) int64 {
	return pollGroups * devices * (depth*(m.rdmaSlot+inCapsule) + m.srq)
}

// ownQueues is what receive queues with so many slots together cost.
func (m memoryModel) ownQueues(slots, inCapsule int64) int64 { return slots * (m.rdmaSlot + inCapsule) }

// ring of a pool of n objects.
func (m memoryModel) ring(n int64) int64 { return m.ringEntry << bits.Len64(uint64(n)) }

// heap lists what the target takes from its hugepages (or, without them, from the memory given with -s).
func (m memoryModel) heap(l load) []v1alpha1.MemoryUse {
	return m.appendHeap(make([]v1alpha1.MemoryUse, 0, 24), l)
}

// heapBytes is the sum of heap, without words.
func (m memoryModel) heapBytes(l load) int64 {
	var room [16]v1alpha1.MemoryUse
	l.quiet = true
	return total(m.appendHeap(room[:0], l))
}

func (m memoryModel) appendHeap(uses []v1alpha1.MemoryUse, l load) []v1alpha1.MemoryUse {
	uses = append(uses,
		v1alpha1.MemoryUse{Use: "SPDK itself", Bytes: m.fixed, How: "measured of " + spdkVersion},
		v1alpha1.MemoryUse{Use: "cores", Bytes: l.cores * m.perCore, How: l.product(l.cores, m.perCore)},
		v1alpha1.MemoryUse{Use: "bdev_io pool", Bytes: l.bdevIOPool*m.bdevIO + m.ring(l.bdevIOPool), How: l.withRing(l.bdevIOPool, m.bdevIO)},
		v1alpha1.MemoryUse{Use: "small buffers", Bytes: l.smallBuffers*smallBufferBytes + m.ring(l.smallBuffers), How: l.withRing(l.smallBuffers, smallBufferBytes)},
		v1alpha1.MemoryUse{Use: "large buffers", Bytes: l.largeBuffers*largeBufferBytes + m.ring(l.largeBuffers), How: l.withRing(l.largeBuffers, largeBufferBytes)})
	for i := range l.transports {
		if t := &l.transports[i]; t.kind == v1alpha1.TransportTCP {
			uses = m.tcp(uses, l, t)
		} else {
			uses = m.overRDMA(uses, l, t)
		}
	}
	uses = append(uses,
		v1alpha1.MemoryUse{Use: "logical volume stores", Bytes: l.stores * m.drive, How: l.product(l.stores, m.drive)},
		v1alpha1.MemoryUse{Use: "volumes", Bytes: l.volumes * m.volume, How: l.product(l.volumes, m.volume)})
	if l.ownDriver {
		threads := l.pollGroups + 1
		var how string
		if !l.quiet {
			how = fmt.Sprintf("%d drives x (%d + %d queue pairs x %d)", l.stores, m.nvmeController, threads, m.nvmeQueuePair)
		}
		uses = append(uses, v1alpha1.MemoryUse{Use: "SPDK's NVMe driver", Bytes: l.stores * (m.nvmeController + threads*m.nvmeQueuePair), How: how})
	}
	return uses
}

func (l load) withRing(n, each int64) string {
	if l.quiet {
		return ""
	}
	return l.product(n, each) + " + ring"
}

func (m memoryModel) tcp(uses []v1alpha1.MemoryUse, l load, t *transport) []v1alpha1.MemoryUse {
	if t.inCapsule < m.tcpInCapsule {
		uses = append(uses, v1alpha1.MemoryUse{Use: "TCP transport", Bytes: l.pollGroups * m.tcpPerGroup, How: l.product(l.pollGroups, m.tcpPerGroup)})
	}
	pairs := l.queuePairs(*t)
	each := (2*t.queueDepth+1)*m.tcpPDU + t.queueDepth*t.inCapsule + m.tcpQueuePair
	var how string
	if !l.quiet {
		how = fmt.Sprintf("%d (admin too) x ((2 x %d + 1) x %d + %d x %d + %d) + %s", pairs, t.queueDepth, m.tcpPDU, t.queueDepth, t.inCapsule, m.tcpQueuePair, l.product(l.controllers(*t), m.tcpHost))
	}
	return append(uses, v1alpha1.MemoryUse{Use: "TCP queue pairs", Bytes: pairs*each + l.controllers(*t)*m.tcpHost, How: how})
}

func (m memoryModel) overRDMA(uses []v1alpha1.MemoryUse, l load, t *transport) []v1alpha1.MemoryUse {
	uses = append(uses, v1alpha1.MemoryUse{Use: "RDMA transport", Bytes: m.rdma, How: "measured of " + spdkVersion})
	slot := m.rdmaSlot + t.inCapsule
	var how string
	if t.srqDepth > 0 {
		if !l.quiet {
			how = fmt.Sprintf("%d poll groups x %d devices x (%d x %d + %d)", l.pollGroups, l.devices, t.srqDepth, slot, m.srq)
		}
		return append(uses, v1alpha1.MemoryUse{Use: "shared receive queues", Bytes: m.sharedQueues(l.pollGroups, l.devices, t.srqDepth, t.inCapsule), How: how})
	}
	slots := l.receiveSlots(*t)
	if !l.quiet {
		how = fmt.Sprintf("%d slots of %d queue pairs x %d", slots, l.queuePairs(*t), slot)
	}
	return append(uses, v1alpha1.MemoryUse{Use: "RDMA receive queues", Bytes: m.ownQueues(slots, t.inCapsule), How: how})
}

func total(uses []v1alpha1.MemoryUse) int64 {
	var sum int64
	for _, u := range uses {
		sum += u.Bytes
	}
	return sum
}

func mib(bytes int64) string {
	if bytes < 100<<20 {
		return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatInt(ceilDiv(bytes, 1<<20), 10) + " MiB"
}
