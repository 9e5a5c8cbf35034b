// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

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
	// copyOnWrite is what a copy of a cluster takes beside the cluster: the allocator's own, and the pages through
	// which a poll group writes a pool's metadata.
	copyOnWrite int64
}

var spdk2605 = memoryModel{
	fixed: 61_200_000, perCore: 2_098_800, bdevIO: 1601, ringEntry: 8,
	tcpPerGroup: 32*8192 + 128, tcpInCapsule: 8192, tcpPDU: 1088, tcpQueuePair: 256, tcpHost: 448,
	rdma: 2_926_464, rdmaSlot: 1432 + 104 + 64 + 16, srq: 512, drive: 540_000, volume: 3800,
	nvmeController: 4 << 20, nvmeQueuePair: 3 << 19,
	copyOnWrite: 3*128 + 2*4096,
}

// withoutHugepages: objects of pools do not cross the edge of a page, so that two descriptors of an I/O fill one of 4
// KiB.
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
	clusterBytes          int64 // the largest of them
	ownDriver             bool  // of the drives
	podDrives             int64 // ordinary memory of the pool, in bytes
	socketBytes           int64 // of a TCP connection, both ways
	receivePipe           bool  // of each TCP connection
	histograms            bool  // of each attachment, on each poll group
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

// line records what one use of memory takes, and what that was reckoned from.
type line struct {
	use    string
	bytes  int64
	format string   // of the reckoning, with a %d for each number
	of     [8]int64 // the numbers
}

func reckoned(use string, bytes int64, format string, of ...int64) line {
	l := line{use: use, bytes: bytes, format: format}
	copy(l.of[:], of)
	return l
}

func times(use string, n, each int64) line { return reckoned(use, n*each, "%d x %d", n, each) }

func asMeasured(use string, bytes int64) line {
	return reckoned(use, bytes, "measured of "+spdkVersion)
}

// explained is the line as a plan tells it.
func (l line) explained() v1alpha1.MemoryUse {
	numbers := make([]any, strings.Count(l.format, "%d"))
	for i := range numbers {
		numbers[i] = l.of[i]
	}
	return v1alpha1.MemoryUse{Use: l.use, Bytes: l.bytes, How: fmt.Sprintf(l.format, numbers...)}
}

func total(lines []line) int64 {
	var sum int64
	for i := range lines {
		sum += lines[i].bytes
	}
	return sum
}

// heap lists what the target takes from its hugepages (or, without them, from the memory given with -s).
func (m memoryModel) heap(l load) []line {
	withRing := func(use string, n, each int64) line {
		return reckoned(use, n*each+m.ring(n), "%d x %d + the ring of the pool", n, each)
	}
	lines := append(make([]line, 0, 16),
		asMeasured("SPDK, fixed", m.fixed),
		times("cores", l.cores, m.perCore),
		withRing("bdev_io pool", l.bdevIOPool, m.bdevIO),
		withRing("small buffers", l.smallBuffers, smallBufferBytes),
		withRing("large buffers", l.largeBuffers, largeBufferBytes))
	for i := range l.transports {
		if t := &l.transports[i]; t.kind == v1alpha1.TransportTCP {
			lines = m.tcp(lines, l, t)
		} else {
			lines = m.overRDMA(lines, l, t)
		}
	}
	lines = append(lines, times("logical volume stores", l.stores, m.drive), times("volumes", l.volumes, m.volume))
	lines = append(lines, m.copies(l))
	if l.ownDriver {
		threads := l.pollGroups + 1
		lines = append(lines, reckoned("SPDK's NVMe driver", l.stores*(m.nvmeController+threads*m.nvmeQueuePair),
			"%d drives x (%d + %d queue pairs x %d)", l.stores, m.nvmeController, threads, m.nvmeQueuePair))
	}
	return lines
}

// copies on write: a poll group copies one cluster of a pool at a time, into a buffer of its own, and other writes to
// that pool which need a cluster wait for it (bs_allocate_and_copy_cluster in SPDK's lib/blob/blobstore.c). When there
// is no memory for the buffer, the host's write fails.
func (m memoryModel) copies(l load) line {
	return reckoned("copies on write", l.stores*l.pollGroups*(l.clusterBytes+m.copyOnWrite),
		"%d pools x %d poll groups x (a cluster of %d + %d)", l.stores, l.pollGroups, l.clusterBytes, m.copyOnWrite)
}

func (m memoryModel) tcp(lines []line, l load, t *transport) []line {
	if t.inCapsule < m.tcpInCapsule {
		lines = append(lines, times("TCP transport", l.pollGroups, m.tcpPerGroup))
	}
	pairs, controllers := l.queuePairs(*t), l.controllers(*t)
	each := (2*t.queueDepth+1)*m.tcpPDU + t.queueDepth*t.inCapsule + m.tcpQueuePair
	return append(lines, reckoned("TCP queue pairs", pairs*each+controllers*m.tcpHost,
		"%d (admin too) x ((2 x %d + 1) x %d + %d x %d + %d) + %d x %d",
		pairs, t.queueDepth, m.tcpPDU, t.queueDepth, t.inCapsule, m.tcpQueuePair, controllers, m.tcpHost))
}

func (m memoryModel) overRDMA(lines []line, l load, t *transport) []line {
	lines = append(lines, asMeasured("RDMA transport", m.rdma))
	slot := m.rdmaSlot + t.inCapsule
	if t.srqDepth > 0 {
		return append(lines, reckoned("shared receive queues", m.sharedQueues(l.pollGroups, l.devices, t.srqDepth, t.inCapsule),
			"%d poll groups x %d devices x (%d x %d + %d)", l.pollGroups, l.devices, t.srqDepth, slot, m.srq))
	}
	slots := l.receiveSlots(*t)
	return append(lines, reckoned("RDMA receive queues", m.ownQueues(slots, t.inCapsule),
		"%d slots of %d queue pairs x %d", slots, l.queuePairs(*t), slot))
}

func mib(bytes int64) string {
	if bytes < 100<<20 {
		return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatInt(ceilDiv(bytes, 1<<20), 10) + " MiB"
}
