// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// The target's ordinary memory, outside its heap: measured on 26.05 where nothing else is said.
const (
	// podHeadroom in percent.
	podHeadroom = 25
	// podBase is nvmf_tgt itself (24 MB), what bulk operations on volumes take for a moment (40 MB), and the page
	// tables.
	podBase = 96 << 20
	// podCore: 0.3 MB, 1.3 MB of a transport's poll group, and 1 MiB of trace buffer.
	podCore = 4 << 20
	// podVolume with its subsystem, listener and host: 6 kB made a few at a time (testdata/memory-26.05-volumes.json),
	// 26 kB with what making 1,000 at once leaves behind.
	podVolume = 26_000
	// podVolumeGroup: each poll group has a channel to each volume (0.9 kB), and an entry for each namespace that a
	// subsystem has room for (0.4 kB): of one, which is all that the engine asks for.
	podVolumeGroup = 1_500
	// podHistogram of a volume on a poll group: 58 x 128 counts of 8 bytes, and what the allocator adds.
	podHistogram = 59_500
	// podClusterBytes: the map of a volume takes 16 bytes for each cluster of 1 MiB of its size, written or not (16.4
	// MB for 1 TiB).
	podClusterBytes = 16
	// podMapped: room for the maps of volumes as large as the drive together, and of as much in snapshots.
	podMapped = 2
	// podLeastDrive is the least for a drive, also for one whose size is not known.
	podLeastDrive = 16 << 20
	// Of a TCP queue pair: 984 bytes for each slot, 880 more, up to 3.3 kB of a host that proved itself, and, where
	// sockets have a receive pipe, one of 8 capsules with their headers. A slot counts as 1,000: runs of the same
	// measurement differ by 1 % (make bench-memory).
	podTCPSlot, podTCPPair, podTCPCapsules, podTCPHeader = 1000, 4300, 8, 80
	// podRDMASlot has work queue entries and their bookkeeping; an allowance, not measured.
	podRDMASlot = 1024

	podDrivesUse = "pod: maps of volumes"
)

// podMemory lists the target pod's ordinary memory, outside its heap.
func podMemory(l load) []line {
	lines := append(make([]line, 0, 8),
		asMeasured("pod: SPDK, fixed", podBase),
		times("pod: cores", l.cores, podCore),
		reckoned("pod: volumes", l.volumes*(podVolume+l.pollGroups*podVolumeGroup),
			"%d x (%d + %d poll groups x %d)", l.volumes, podVolume, l.pollGroups, podVolumeGroup),
		reckoned(podDrivesUse, l.podDrives, "%d bytes for each MiB of %d times the pool", podClusterBytes, podMapped))
	if l.histograms {
		lines = append(lines, reckoned("pod: latency histograms", l.attachments*l.pollGroups*podHistogram,
			"%d attachments x %d poll groups x %d", l.attachments, l.pollGroups, podHistogram))
	}
	for _, t := range l.transports {
		pairs := l.queuePairs(t)
		if t.kind == v1alpha1.TransportTCP {
			each := t.queueDepth*podTCPSlot + podTCPPair
			if l.receivePipe {
				each += podTCPCapsules * (t.inCapsule + podTCPHeader)
			}
			lines = append(lines, times("pod: TCP queue pairs", pairs, each), times("pod: TCP socket buffers", pairs, l.socketBytes))
			continue
		}
		lines = append(lines, times("pod: RDMA queue pairs", pairs, t.queueDepth*podRDMASlot))
	}
	return lines
}

// podDrives is the ordinary memory of a pool. A drive that SPDK drives itself is not in the inventory, and its size
// is not known any more: then what the current plan set aside for its drives stays, so that taking them changes
// nothing.
func podDrives(node Node, p pool) int64 {
	if p.file != nil {
		return podMaps(p.file.Size.Value())
	}
	had := map[string]bool{}
	set := int64(0)
	if node.Current != nil {
		for _, d := range node.Current.Drives {
			had[d.ID] = true
		}
		if i := slices.IndexFunc(node.Current.Memory, func(m v1alpha1.MemoryUse) bool { return m.Use == podDrivesUse }); i >= 0 {
			set = min(max(node.Current.Memory[i].Bytes, 0), 1<<40)
		}
	}
	var kept, added int64
	missing := false
	for _, d := range p.drives {
		bytes := int64(podLeastDrive)
		have := driveOf(node.Inventory, d.ID)
		if have != nil {
			bytes = podMaps(have.SizeBytes)
		}
		missing = missing || have == nil
		if had[d.ID] {
			kept += bytes
		} else {
			added += bytes
		}
	}
	if missing {
		kept = max(kept, set)
	}
	return kept + added
}

func podMaps(bytes int64) int64 {
	bytes = min(max(bytes, 0), 1<<50)
	return max(ceilDiv(bytes, 1<<20)*podClusterBytes*podMapped, podLeastDrive)
}
