// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
)

// Relief are the buffers that a target needs whose pools ran out.
type Relief struct {
	// Buffers for the NvmfTarget's spec.
	Buffers v1alpha1.Buffers
	// MoreBytes of memory than now.
	MoreBytes int64
}

// RelieveBuffers answers what to set when I/O waited for buffers of a target that runs by this plan: each poll group's
// cache of the pool that ran out twice as large, and the pool larger by as much, so that what all share stays. The
// other pool stays as it is. It answers false when a pool cannot grow any more.
func RelieveBuffers(p v1alpha1.SPDKPlan, small, large bool) (Relief, bool) {
	cores, err := cpus.ParseMask(p.CoreMask)
	if err != nil {
		return Relief{}, false
	}
	groups := cores
	if p.PollGroupMask != "" {
		if groups, err = cpus.ParseMask(p.PollGroupMask); err != nil {
			return Relief{}, false
		}
	}
	n := poolGrowth{cores: int64(cores.Size()), groups: int64(groups.Size()), kinds: int64(len(p.Transports))}
	var smallCache, largeCache, leastLarge int64 = 1, 1, 1
	for _, t := range p.Transports {
		smallCache, largeCache = max(smallCache, int64(t.SmallCache)), max(largeCache, int64(t.LargeCache))
		leastLarge = max(leastLarge, ioPerPollGroup*ceilDiv(t.MaxIOSize, largeBufferBytes))
	}
	smallCount, smallCache := n.grow(int64(p.SmallBuffers), max(smallCache, ioPerPollGroup), smallKept, small)
	largeCount, largeCache := n.grow(int64(p.LargeBuffers), max(largeCache, leastLarge), largeKept, large)
	if max(smallCount, largeCount) > v1alpha1.MaxBuffers || max(smallCache, largeCache) > v1alpha1.MaxCachePerCore {
		return Relief{}, false
	}
	return Relief{
		Buffers: v1alpha1.Buffers{
			Mode:  v1alpha1.BuffersManual,
			Large: &v1alpha1.LargePool{Count: int32(largeCount), CachePerCore: int32(largeCache)},
			Small: &v1alpha1.SmallPool{Count: int32(smallCount), CachePerCore: int32(smallCache)},
		},
		MoreBytes: (smallCount-int64(p.SmallBuffers))*smallBufferBytes + (largeCount-int64(p.LargeBuffers))*largeBufferBytes,
	}, true
}

type poolGrowth struct{ cores, groups, kinds int64 }

// grow a pool, if it shall, and in any case to what manualBuffers accepts.
func (n poolGrowth) grow(count, cache, keptEach int64, more bool) (newCount, newCache int64) {
	newCache = cache
	if more {
		newCache, count = 2*cache, count+n.groups*n.kinds*cache
	}
	return max(count, kept(n.groups, keptEach)+n.groups*n.kinds*newCache, newCache*n.cores), newCache
}

// String is the relief as it is written in an NvmfTarget.
func (r Relief) String() string {
	return fmt.Sprintf("buffers: {mode: Manual, large: {count: %d, cachePerCore: %d}, small: {count: %d, cachePerCore: %d}}",
		r.Buffers.Large.Count, r.Buffers.Large.CachePerCore, r.Buffers.Small.Count, r.Buffers.Small.CachePerCore)
}

// Room says whether the node's free hugepages hold what the relief takes more; empty when that is not known.
func (r Relief) Room(inv *v1alpha1.Inventory, size v1alpha1.Hugepages) string {
	pageBytes := map[v1alpha1.Hugepages]int64{v1alpha1.Hugepages2Mi: 2 << 20, v1alpha1.Hugepages1Gi: 1 << 30}[size]
	more := ceilDiv(r.MoreBytes, 1<<20)
	if inv == nil || pageBytes == 0 {
		return fmt.Sprintf("it needs %d MiB more memory, which the node and memory.limit must allow", more)
	}
	var free int64
	for _, n := range inv.NUMANodes {
		for _, h := range n.Hugepages {
			if h.SizeBytes == pageBytes {
				free += h.Free
			}
		}
	}
	if pages := ceilDiv(r.MoreBytes, pageBytes); pages > free {
		return fmt.Sprintf("it needs %d MiB more memory, which is not available now: the node has %d free hugepages of %s, but needs %d", more, free, size, pages)
	}
	return fmt.Sprintf("it needs %d MiB more memory, for which the node has enough free hugepages; memory.limit, if set, must allow it", more)
}

// Cache warns when the large buffers would hold more data than the last-level caches of the target's NUMA nodes keep of
// what devices write: then waiting for a buffer is what keeps the bandwidth up under deep queues. p is what the target
// runs with now. Empty when they would not, when they do not grow, and when the caches are not known.
func (r Relief) Cache(inv *v1alpha1.Inventory, p v1alpha1.SPDKPlan) string {
	cores, err := cpus.ParseMask(p.CoreMask)
	if inv == nil || err != nil || r.Buffers.Large.Count <= p.LargeBuffers {
		return ""
	}
	groups := int64(cores.Size())
	if serving, err := cpus.ParseMask(p.PollGroupMask); err == nil {
		groups = int64(serving.Size())
	}
	var each int64
	for _, t := range p.Transports {
		each = max(each, transport{maxIO: t.MaxIOSize}.bytesInLarge())
	}
	bytes, keeps := (int64(r.Buffers.Large.Count)-kept(groups, largeKept))*each, cachedForDevices(lastLevelCache(inv, cores))
	if keeps == 0 || bytes <= keeps {
		return ""
	}
	return fmt.Sprintf("the large buffers would hold %s of data in flight, but the last-level cache has room for %s of device writes (%d of %d ways), so that bandwidth would drop with deep queues; do not add buffers unless latency is more important",
		mib(bytes), mib(keeps), deviceWays, cacheWays)
}
