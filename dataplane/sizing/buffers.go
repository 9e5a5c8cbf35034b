// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// Buffers bound the data in flight: too few and the link idles; too many and the data falls out of the
// part of the last-level cache that devices write to, and bandwidth collapses.
const (
	// SPDK's pools by default.
	defaultSmallBuffers = 8192
	defaultLargeBuffers = 1024
	// What each thread's bdev and accel channels each keep for themselves (bdev_set_options, accel_set_options).
	smallKept = 128
	largeKept = 16
	// pacingLatencyMicroseconds is how long a buffer is taken, from the drive to the wire, on a drive under load. The
	// published measurement of I/O pacing was best with 96 buffers of 128 KiB for 2 x 100 Gb/s: 96 x 128 KiB = 25 GB/s
	// x 335 us x 1.5.
	pacingLatencyMicroseconds = 335
	// The part of the last-level cache that devices write to: 2 of 11 ways, Intel's default for DDIO.
	deviceWays, cacheWays = 2, 11
	// ioPerPollGroup: with room for one I/O only, a poll group waits for the wire before it may read on.
	// Published: 1 buffer for each poll group lost a quarter of the bandwidth, and 16 for 16 were refused.
	ioPerPollGroup = 2
	// What Auto gives each poll group at least, in I/Os of the largest size and in small buffers: on a slow link a
	// buffer is taken longer by the wire than by the drive.
	autoLargeIOs, autoSmall = 4, 32
	// smallIOBytes is the data of a small I/O, as most of them have.
	smallIOBytes = 4 << 10
)

// pacing is what is known of the data in flight.
type pacing struct {
	known   bool   // the links' speed is, and all drives are NVMe
	unknown string // why not
	need    [2]int64
	sum     int64 // of need: each transport can fill its links by itself
	most    int64 // of need
	cache   int64 // bytes that the last-level cache holds for devices; 0 is unknown
}

// pacingOf links, with the last-level caches of the NUMA nodes that have the target's cores and memory.
func pacingOf(l links, llcBytes int64, nvmeOnly bool, transports []transport) pacing {
	p := pacing{known: nvmeOnly, cache: cachedForDevices(llcBytes)}
	if !nvmeOnly {
		p.unknown = "the pool does not consist of NVMe drives only, so its latency is unknown"
	}
	for i, t := range transports {
		mbps := l.mbps[t.kind]
		if mbps == 0 {
			p.known, p.unknown = false, fmt.Sprintf("the link speed of %s is unknown", t.kind)
		}
		p.need[i] = mbps * 1_000_000 / 8 * pacingLatencyMicroseconds / 1_000_000 * 3 / 2
		p.sum += p.need[i]
		p.most = max(p.most, p.need[i])
	}
	return p
}

// cachedForDevices is what the last-level cache holds of what devices write.
func cachedForDevices(llcBytes int64) int64 { return llcBytes / cacheWays * deviceWays }

// over tells whether the cache is too small for what the links need.
func (p pacing) over() bool { return p.cache > 0 && p.sum > p.cache }

// bytesInLarge is the data of a large buffer when the largest I/O is spread over its buffers.
func (t transport) bytesInLarge() int64 { return t.maxIO / t.buffersPerIO() }

// leastLarge is how many large buffers a poll group needs to make progress.
func (t transport) leastLarge() int64 { return ioPerPollGroup * t.buffersPerIO() }

// kept is what the bdev and accel channels of all threads keep: those of the poll groups, and the application's own.
func kept(pollGroups, each int64) int64 { return 2 * each * (pollGroups + 1) }

// sizeBuffers sizes the pools, and the caches of the transports.
func sizeBuffers(spec *v1alpha1.Buffers, l *load, p pacing) []Reason {
	switch {
	case spec != nil && spec.Mode == v1alpha1.BuffersManual:
		return manualBuffers(*spec, l)
	case spec != nil && spec.Mode != "" && spec.Mode != v1alpha1.BuffersAuto:
		return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "buffers.mode is %q; use Auto or Manual", spec.Mode)}
	case p.known:
		pacedBuffers(l, p)
	default:
		unpacedBuffers(l)
	}
	// SPDK cuts caches of which cores x cache is over the pool, counting cores that have no poll group too.
	for _, t := range l.transports {
		l.largeBuffers = max(l.largeBuffers, t.largeCache*l.cores)
		l.smallBuffers = max(l.smallBuffers, t.smallCache*l.cores)
	}
	return nil
}

// pacedBuffers gives each poll group an equal share of what keeps the links busy, within the cache.
func pacedBuffers(l *load, p pacing) {
	groups := l.pollGroups
	l.smallBuffers, l.largeBuffers = kept(groups, smallKept), kept(groups, largeKept)
	for i := range l.transports {
		t := &l.transports[i]
		share := func(bytes, usual, least int64) int64 {
			if p.over() {
				return max(p.need[i]>>10*(p.cache>>10)/(p.sum>>10)<<10/bytes/groups, least)
			}
			return max(ceilDiv(ceilDiv(p.need[i], bytes), groups), usual)
		}
		t.largeCache = share(t.bytesInLarge(), autoLargeIOs*t.buffersPerIO(), t.leastLarge())
		t.smallCache = share(smallIOBytes, autoSmall, ioPerPollGroup)
		l.largeBuffers += groups * t.largeCache
		l.smallBuffers += groups * t.smallCache
	}
}

// unpacedBuffers takes SPDK's counts, or more where so many poll groups need more, and gives the poll groups half of
// what bdev and accel leave.
func unpacedBuffers(l *load) {
	groups, kinds := l.pollGroups, int64(len(l.transports))
	least := int64(0)
	for _, t := range l.transports {
		least = max(least, t.leastLarge())
	}
	size := func(usual, keptEach, least int64) (count, cache int64) {
		reserved := kept(groups, keptEach)
		free := max(usual-reserved, 2*least*groups*kinds)
		return reserved + free, free / 2 / (groups * kinds)
	}
	var small, large int64
	l.largeBuffers, large = size(defaultLargeBuffers, largeKept, least)
	l.smallBuffers, small = size(defaultSmallBuffers, smallKept, ioPerPollGroup)
	for i := range l.transports {
		l.transports[i].largeCache, l.transports[i].smallCache = large, small
	}
}

// manualBuffers checks what the user gave.
func manualBuffers(spec v1alpha1.Buffers, l *load) []Reason {
	if spec.Large == nil || spec.Small == nil {
		return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "buffers.mode Manual requires buffers.large and buffers.small, each with count and cachePerCore; set them, or use mode Auto")}
	}
	l.largeBuffers, l.smallBuffers = int64(spec.Large.Count), int64(spec.Small.Count)
	large := manualPool{"large", l.largeBuffers, int64(spec.Large.CachePerCore), largeKept, 0}
	small := manualPool{"small", l.smallBuffers, int64(spec.Small.CachePerCore), smallKept, ioPerPollGroup}
	for i := range l.transports {
		t := &l.transports[i]
		t.largeCache, t.smallCache = large.cache, small.cache
		large.least = max(large.least, t.leastLarge())
	}
	var reasons []Reason
	for _, p := range []manualPool{large, small} {
		if why := p.check(*l); why != nil {
			reasons = append(reasons, *why)
		}
	}
	return reasons
}

// manualPool is a pool that the user sized.
type manualPool struct {
	name                   string
	count, cache, keptEach int64
	least                  int64 // for each poll group and transport
}

// check says why SPDK could not run with the pool.
func (p manualPool) check(l load) *Reason {
	groups, kinds := l.pollGroups, int64(len(l.transports))
	reserved := kept(groups, p.keptEach)
	free := p.count - reserved
	// What keeps the caches full, and what keeps SPDK from cutting them.
	needed := max(reserved+groups*kinds*max(p.cache, p.least), p.cache*l.cores)
	switch {
	case p.count > v1alpha1.MaxBuffers:
		return new(reasonf(v1alpha1.ReasonInvalidSetting, "buffers.%s.count is %d; use %d or less", p.name, p.count, v1alpha1.MaxBuffers))
	case p.cache < 1:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s.cachePerCore is %d, with which a poll group can hang; use %d or more", p.name, p.cache, p.least))
	case free < groups*kinds*p.least:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s.count %d is below the minimum for forward progress: bdev and accel keep %d, and %s need %d each for %s; use %d or more, or fewer cores",
			p.name, p.count, reserved, text.Plural(int(groups), "poll group"), p.least, text.Plural(int(kinds), "transport"), needed))
	case p.count < needed:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s.count is %d, but the caches alone need %d (%d that bdev and accel keep, and %d for each of %s and %s); use a count of %d or more, or a cachePerCore of %d",
			p.name, p.count, needed, reserved, p.cache, text.Plural(int(groups), "poll group"), text.Plural(int(kinds), "transport"), needed, min(free/(groups*kinds), p.count/l.cores)))
	}
	return nil
}

// explainBuffers says why, once the pools are sized.
func explainBuffers(spec *v1alpha1.Buffers, l load, p pacing, why *explanation) {
	manual := spec != nil && spec.Mode == v1alpha1.BuffersManual
	largeFlight, smallFlight := l.largeBuffers-kept(l.pollGroups, largeKept), l.smallBuffers-kept(l.pollGroups, smallKept)
	largeKeeps := fmt.Sprintf("%d for the data in flight (any I/O over 8 KiB takes one or more), and %d that bdev and accel keep (%d each on %d threads)", largeFlight, kept(l.pollGroups, largeKept), largeKept, l.pollGroups+1)
	smallKeeps := fmt.Sprintf("%d for the data in flight, and %d that bdev and accel keep (%d each on %d threads)", smallFlight, kept(l.pollGroups, smallKept), smallKept, l.pollGroups+1)
	large, small := strconv.FormatInt(l.largeBuffers, 10), strconv.FormatInt(l.smallBuffers, 10)
	switch {
	case manual:
		why.given("largeBuffers", large, "set by buffers.large.count: "+largeKeeps, p.warnings(l, largeFlight)...)
		why.given("smallBuffers", small, "set by buffers.small.count: "+smallKeeps)
	case p.known:
		why.computed("largeBuffers", large, largeKeeps, p.cacheWarning())
		why.computed("smallBuffers", small, smallKeeps)
	default:
		usual := func(setting, value string, is bool, usual int64, keeps string) {
			if is {
				why.byDefault(setting, value, fmt.Sprintf("SPDK's default, because %s: %s", p.unknown, keeps))
			} else {
				why.computed(setting, value, fmt.Sprintf("more than SPDK's default of %d, because the number of poll groups requires it: %s; the data in flight is not limited, because %s", usual, keeps, p.unknown))
			}
		}
		usual("largeBuffers", large, l.largeBuffers == defaultLargeBuffers, defaultLargeBuffers, largeKeeps)
		usual("smallBuffers", small, l.smallBuffers == defaultSmallBuffers, defaultSmallBuffers, smallKeeps)
	}
	for i, t := range l.transports {
		explainCaches(t, l, p, p.need[i], manual, why)
	}
}

func explainCaches(t transport, l load, p pacing, need int64, manual bool, why *explanation) {
	large, small := strconv.FormatInt(t.largeCache, 10), strconv.FormatInt(t.smallCache, 10)
	groups := text.Plural(int(l.pollGroups), "poll group")
	switch {
	case manual:
		var warning string
		if t.largeCache < t.leastLarge() {
			warning = fmt.Sprintf("with fewer than %d, a poll group waits for the network before it continues to read: in published measurements, a cache of 1 reduced the bandwidth by a quarter", t.leastLarge())
		}
		why.given(t.setting("largeCache"), large, "set by buffers.large.cachePerCore", warning)
		why.given(t.setting("smallCache"), small, "set by buffers.small.cachePerCore")
	case p.known:
		bound := ""
		if p.over() {
			bound = fmt.Sprintf(", within %s of the last-level cache", mib(p.cache))
		}
		because := fmt.Sprintf("an equal share for each of %s of the %s in flight that keep the links busy (speed x %d us x 1.5)%s", groups, mib(need), pacingLatencyMicroseconds, bound)
		why.computed(t.setting("largeCache"), large, because)
		why.computed(t.setting("smallCache"), small, because+", in I/Os of 4 KiB")
	default:
		because := fmt.Sprintf("half of what bdev and accel leave, shared equally by %s and %s", groups, text.Plural(len(l.transports), "transport"))
		why.computed(t.setting("largeCache"), large, because)
		why.computed(t.setting("smallCache"), small, because)
	}
}

// cacheWarning of a pool that weft sized.
func (p pacing) cacheWarning() string {
	switch {
	case p.over():
		return fmt.Sprintf("full links need %s in flight, but the last-level cache has room for %s of device writes (%d of %d ways): the links will not be fully used", mib(p.sum), mib(p.cache), deviceWays, cacheWays)
	case p.cache == 0:
		return "the size of the last-level cache is unknown, so that only the links limit the data in flight"
	}
	return ""
}

// warnings says when so many large buffers leave the links idle, or let too much data into flight.
func (p pacing) warnings(l load, inFlight int64) []string {
	if !p.known {
		return nil
	}
	each := int64(0)
	for _, t := range l.transports {
		each = max(each, t.bytesInLarge())
	}
	bytes := inFlight * each
	var said []string
	if bytes < p.most {
		said = append(said, fmt.Sprintf("they hold %s, but full links need %s in flight (speed x %d us x 1.5): the links may idle", mib(bytes), mib(p.most), pacingLatencyMicroseconds))
	}
	if p.cache > 0 && bytes > p.cache {
		said = append(said, fmt.Sprintf("they hold %s, but the last-level cache has room for %s of device writes (%d of %d ways): bandwidth drops with deep queues", mib(bytes), mib(p.cache), deviceWays, cacheWays))
	}
	return said
}
