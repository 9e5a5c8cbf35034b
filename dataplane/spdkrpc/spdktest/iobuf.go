// SPDX-License-Identifier: Apache-2.0

package spdktest

// A poolStat is one pool of one module in iobuf_get_stats, summed over all threads.
type poolStat struct {
	Cache     uint64 `json:"cache"`
	Main      uint64 `json:"main"`
	Retry     uint64 `json:"retry"`
	CacheSize uint32 `json:"cache_size"`
}

type moduleStat struct {
	Module string   `json:"module"`
	Small  poolStat `json:"small_pool"`
	Large  poolStat `json:"large_pool"`
}

// bdevThreads is how many threads have buffers of the bdev layer: the application for an lvstore, the poll groups for
// namespaces.
func (a *app) bdevThreads() uint32 { return a.threadsWithBuffers(false) }

// accelThreads is how many have those of the acceleration framework, which the bdev layer and TCP use.
func (a *app) accelThreads() uint32 { return a.threadsWithBuffers(a.transport("TCP") != nil) }

func (a *app) threadsWithBuffers(groups bool) uint32 {
	var n uint32
	if len(a.lvstores) > 0 {
		n++
	}
	for _, s := range a.subsystems {
		groups = groups || len(s.namespaces) > 0
	}
	if groups {
		n += uint32(len(a.nvmf.pollGroups))
	}
	return n
}

// taken is how many buffers of each pool the threads keep for themselves.
func (a *app) taken() (small, large uint64) {
	groups := uint64(len(a.nvmf.pollGroups))
	small = uint64(a.accelThreads()*a.accel.SmallCacheSize + a.bdevThreads()*a.bdevOpts.IobufSmallCache)
	large = uint64(a.accelThreads()*a.accel.LargeCacheSize + a.bdevThreads()*a.bdevOpts.IobufLargeCache)
	for _, t := range a.transports {
		small += groups * uint64(t.small)
		large += groups * uint64(t.large)
	}
	return small, large
}

// reserve fills the caches of a new transport's poll groups. When the pools cannot give that much they get nothing.
func (a *app) reserve(t *transport) {
	groups := uint64(len(a.nvmf.pollGroups))
	size := func(cache uint32, pool uint64) uint64 {
		if cache == automatic {
			return pool / 2 / groups
		}
		return uint64(cache)
	}
	small, large := size(t.smallCache, a.iobuf.SmallPoolCount), size(t.largeCache, a.iobuf.LargePoolCount)
	takenSmall, takenLarge := a.taken()
	if t.trtype == "TCP" {
		takenSmall += groups * uint64(a.accel.SmallCacheSize)
		takenLarge += groups * uint64(a.accel.LargeCacheSize)
	}
	if takenSmall+groups*small > a.iobuf.SmallPoolCount || takenLarge+groups*large > a.iobuf.LargePoolCount {
		return
	}
	t.small, t.large = uint32(small), uint32(large)
}

func (a *app) iobufGetStats(r *request) {
	module := func(name string, threads, small, large uint32) moduleStat {
		m := moduleStat{Module: name, Small: poolStat{CacheSize: threads * small}, Large: poolStat{CacheSize: threads * large}}
		if s, ok := a.retries[name]; ok {
			m.Small.Retry, m.Large.Retry = s[0], s[1]
		}
		return m
	}
	groups := uint32(len(a.nvmf.pollGroups))
	stats := []moduleStat{
		module("accel", a.accelThreads(), a.accel.SmallCacheSize, a.accel.LargeCacheSize),
		module("bdev", a.bdevThreads(), a.bdevOpts.IobufSmallCache, a.bdevOpts.IobufLargeCache),
	}
	for _, t := range a.transports {
		if t.smallCache != 0 || t.largeCache != 0 {
			stats = append(stats, module("nvmf_"+t.trtype, groups, t.small, t.large))
		}
	}
	r.answer(stats)
}
