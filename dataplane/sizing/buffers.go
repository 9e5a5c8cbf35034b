// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
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
	// published measurement of I/O pacing was best with 96 buffers of 128 KiB for 2 x 100 Gb/s: 96 x 128 KiB = 25 GB/s x 335 us x 1.5.
	pacingLatencyMicroseconds = 335
	// The part of the last-level cache that devices write to: 2 of 11 ways, Intel's default for DDIO.
	deviceWays, cacheWays = 2, 11
	// ioPerPollGroup: with room for one I/O only, a poll group waits for the wire before it may read on.
	// Published: 1 buffer for each poll group lost a quarter of the bandwidth, and 16 for 16 were refused.
	ioPerPollGroup = 2
	// smallIOBytes is the data of a small I/O, as most of them have.
	smallIOBytes = 4 << 10
	maxBuffers   = 1 << 20
)

// bufferPlan is the two pools.
type bufferPlan struct{ small, large int64 }

// pacing is what is known of the data in flight.
type pacing struct {
	known   bool             // the links' speed is, and all drives are NVMe
	because string           // not known
	need    map[string]int64 // bytes in flight that keep the links of a type busy
	sum     int64            // of need
	cap     int64            // bytes that the cache holds for devices; 0 is unknown
}

func pacingOf(l links, llcBytes int64, nvmeOnly bool, transports []transport) pacing {
	p := pacing{known: nvmeOnly, need: map[string]int64{}, cap: llcBytes / cacheWays * deviceWays}
	if !nvmeOnly {
		p.because = "the pool is not of NVMe drives only, so its latency is not known"
	}
	for _, t := range transports {
		mbps := l.mbps[t.kind]
		if mbps == 0 {
			p.known, p.because = false, fmt.Sprintf("the speed of the link for %s is not known", t.kind)
		}
		bytes := mbps * 1_000_000 / 8 * pacingLatencyMicroseconds / 1_000_000 * 3 / 2
		p.need[string(t.kind)] = bytes
		p.sum += bytes
	}
	return p
}

// bytesIn a large buffer when the largest I/O is spread over its buffers.
func (t transport) bytesInLarge() int64 { return t.maxIO / t.buffersPerIO() }

// leastLarge is how many large buffers a poll group needs to make progress.
func (t transport) leastLarge() int64 { return ioPerPollGroup * t.buffersPerIO() }

// kept is what the bdev and accel channels of all threads keep: the poll groups and the application's own.
func kept(pollGroups, each int64) int64 { return 2 * each * (pollGroups + 1) }

// planBuffers sizes the pools, and the caches of the transports.
func planBuffers(spec *v1alpha1.Buffers, l *load, p pacing, why *explanation) (bufferPlan, []Reason) {
	if spec != nil && spec.Mode == v1alpha1.BuffersManual {
		return manualBuffers(*spec, l, p, why)
	}
	if !p.known {
		return unpacedBuffers(l, p, why), nil
	}
	return pacedBuffers(l, p, why), nil
}

// pacedBuffers gives each poll group an equal share of what keeps the links busy, within the cache.
func pacedBuffers(l *load, p pacing, why *explanation) bufferPlan {
	groups := l.pollGroups
	b := bufferPlan{small: kept(groups, smallKept), large: kept(groups, largeKept)}
	var warning string
	capped := p.cap > 0 && p.sum > p.cap
	switch {
	case capped:
		warning = fmt.Sprintf("the links need %s in flight, and the last-level cache keeps %s of what devices write (%d of %d ways): they will not be quite full",
			mib(p.sum), mib(p.cap), deviceWays, cacheWays)
	case p.cap == 0:
		warning = "the size of the last-level cache is not known, so nothing but the links' need bounds the data in flight"
	}
	inFlight := int64(0)
	for i := range l.transports {
		t := &l.transports[i]
		need := p.need[string(t.kind)]
		if capped {
			need = need * p.cap / p.sum // both under 2^50 and 2^40: see speedOf, and cap is under sum
		}
		share := func(bytes int64, least int64) int64 {
			n := ceilDiv(need, bytes)
			if capped {
				return max(need/bytes/groups, least)
			}
			return max(ceilDiv(n, groups), least)
		}
		t.largeCache, t.smallCache = share(t.bytesInLarge(), t.leastLarge()), share(smallIOBytes, ioPerPollGroup)
		b.large += groups * t.largeCache
		b.small += groups * t.smallCache
		inFlight += groups * t.largeCache
		because := fmt.Sprintf("an equal share for each of %s of the %s that keep the links busy (speed x %d us x 1.5)",
			plural(int(groups), "poll group"), mib(p.need[string(t.kind)]), pacingLatencyMicroseconds)
		why.computed(t.setting("largeCache"), strconv.FormatInt(t.largeCache, 10), because)
		why.computed(t.setting("smallCache"), strconv.FormatInt(t.smallCache, 10), because+", in I/Os of 4 KiB")
	}
	b.atLeastForCores(l)
	why.computed("largeBuffers", strconv.FormatInt(b.large, 10), fmt.Sprintf(
		"%d for the data in flight, all of it in the poll groups' caches, and %d that bdev and accel keep (%d each on %d threads)",
		inFlight, kept(groups, largeKept), largeKept, groups+1), warning)
	why.computed("smallBuffers", strconv.FormatInt(b.small, 10), fmt.Sprintf(
		"the same bytes in flight in I/Os of 4 KiB, and %d that bdev and accel keep (%d each on %d threads)", kept(groups, smallKept), smallKept, groups+1))
	return b
}

// unpacedBuffers takes SPDK's counts, or more where so many poll groups need more, and gives the poll groups half of
// what bdev and accel leave.
func unpacedBuffers(l *load, p pacing, why *explanation) bufferPlan {
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
	var b bufferPlan
	var small, large int64
	b.large, large = size(defaultLargeBuffers, largeKept, least)
	b.small, small = size(defaultSmallBuffers, smallKept, ioPerPollGroup)
	for i := range l.transports {
		t := &l.transports[i]
		t.largeCache, t.smallCache = large, small
		because := fmt.Sprintf("half of the buffers that bdev and accel leave, shared equally by %s and %s",
			plural(int(groups), "poll group"), plural(int(kinds), "transport"))
		why.computed(t.setting("largeCache"), strconv.FormatInt(large, 10), because)
		why.computed(t.setting("smallCache"), strconv.FormatInt(small, 10), because)
	}
	b.atLeastForCores(l)
	because := func(count, usual int64) (v1alpha1.ChoiceSource, string) {
		if count == usual {
			return v1alpha1.SourceDefault, fmt.Sprintf("SPDK's default, as %s", p.because)
		}
		return v1alpha1.SourceComputed, fmt.Sprintf("more than SPDK's %d, so that %s have what they need; no bound on the data in flight, as %s", usual, plural(int(groups), "poll group"), p.because)
	}
	source, words := because(b.large, defaultLargeBuffers)
	why.add(source, "largeBuffers", strconv.FormatInt(b.large, 10), words)
	source, words = because(b.small, defaultSmallBuffers)
	why.add(source, "smallBuffers", strconv.FormatInt(b.small, 10), words)
	return b
}

// atLeastForCores raises the pools to cache x cores of every transport: SPDK cuts caches that are over it, counting
// cores that have no poll group too.
func (b *bufferPlan) atLeastForCores(l *load) {
	for _, t := range l.transports {
		b.large = max(b.large, t.largeCache*l.cores)
		b.small = max(b.small, t.smallCache*l.cores)
	}
}

// manualBuffers checks what the user gave.
func manualBuffers(spec v1alpha1.Buffers, l *load, p pacing, why *explanation) (bufferPlan, []Reason) {
	if spec.Large == nil || spec.Small == nil {
		return bufferPlan{}, []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "buffers.mode Manual needs buffers.large and buffers.small, each with count and cachePerCore; or use mode Auto")}
	}
	large := manualPool{name: "large", count: int64(spec.Large.Count), cache: int64(spec.Large.CachePerCore), keptEach: largeKept}
	small := manualPool{name: "small", count: int64(spec.Small.Count), cache: int64(spec.Small.CachePerCore), keptEach: smallKept}
	for i := range l.transports {
		t := &l.transports[i]
		t.largeCache, t.smallCache = large.cache, small.cache
		large.least, small.least = max(large.least, t.leastLarge()), max(small.least, ioPerPollGroup)
	}
	var reasons []Reason
	for _, pool := range []manualPool{large, small} {
		if why := pool.check(l); why != nil {
			reasons = append(reasons, *why)
		}
	}
	if len(reasons) > 0 {
		return bufferPlan{}, reasons
	}
	for _, t := range l.transports {
		for _, pool := range []manualPool{large, small} {
			why.given(t.setting(pool.name+"Cache"), strconv.FormatInt(pool.cache, 10), fmt.Sprintf("buffers.%s.cachePerCore asks for it", pool.name), pool.cacheWarning())
		}
	}
	why.given("largeBuffers", strconv.FormatInt(large.count, 10), fmt.Sprintf(
		"buffers.large.count asks for it: %d for the data in flight, after the %d that bdev and accel keep", large.free(l), kept(l.pollGroups, largeKept)), large.warning(l, p))
	why.given("smallBuffers", strconv.FormatInt(small.count, 10), fmt.Sprintf(
		"buffers.small.count asks for it: %d for the data in flight, after the %d that bdev and accel keep", small.free(l), kept(l.pollGroups, smallKept)))
	return bufferPlan{small: small.count, large: large.count}, nil
}

// manualPool is a pool that the user sized.
type manualPool struct {
	name                   string
	count, cache, keptEach int64
	least                  int64 // for each poll group and transport
}

// free is what is left for the transports.
func (m manualPool) free(l *load) int64 { return m.count - kept(l.pollGroups, m.keptEach) }

// check says why SPDK could not run with the pool.
func (m manualPool) check(l *load) *Reason {
	groups, kinds := l.pollGroups, int64(len(l.transports))
	reserved := kept(groups, m.keptEach)
	needed := max(reserved+groups*kinds*max(m.cache, m.least), m.cache*l.cores)
	switch {
	case m.count > maxBuffers:
		return new(reasonf(v1alpha1.ReasonInvalidSetting, "buffers.%s.count is %d; use %d or less", m.name, m.count, maxBuffers))
	case m.cache < 1:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s.cachePerCore is %d, with which a poll group can wait for ever; use %d or more", m.name, m.cache, m.least))
	case m.free(l) < groups*kinds*m.least:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s.count %d is under the minimum for forward progress: bdev and accel keep %d, and %d poll groups x %d transports need %d each; use %d or more, or fewer cores",
			m.name, m.count, reserved, groups, kinds, m.least, needed))
	case m.count < needed:
		return new(reasonf(v1alpha1.ReasonBuffersTooFew,
			"buffers.%s: the caches alone need %d buffers (%d poll groups x %d transports x %d, and %d that bdev and accel keep), and the count is %d; use a count of %d, or a cachePerCore of %d",
			m.name, needed, groups, kinds, m.cache, reserved, m.count, needed, m.free(l)/(groups*kinds)))
	}
	return nil
}

func (m manualPool) cacheWarning() string {
	if m.cache >= m.least {
		return ""
	}
	return fmt.Sprintf("a poll group with fewer than %d waits for the wire before it reads on: in published measurements a cache of 1 lost a quarter of the bandwidth", m.least)
}

// warning says when the pool of large buffers leaves the links idle, or lets too much data into flight.
func (m manualPool) warning(l *load, p pacing) string {
	if !p.known || m.name != "large" {
		return ""
	}
	most := int64(0)
	for _, t := range l.transports {
		most = max(most, t.bytesInLarge())
	}
	bytes := m.free(l) * most
	var said []string
	if bytes < p.sum {
		said = append(said, fmt.Sprintf("%s in flight, where the links need %s (speed x %d us x 1.5): they may idle", mib(bytes), mib(p.sum), pacingLatencyMicroseconds))
	}
	if p.cap > 0 && bytes > p.cap {
		said = append(said, fmt.Sprintf("%s in flight, where the last-level cache keeps %s of what devices write (%d of %d ways): deep queues will lose bandwidth",
			mib(bytes), mib(p.cap), deviceWays, cacheWays))
	}
	return strings.Join(said, "; ")
}
