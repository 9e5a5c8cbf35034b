// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// countedAge is how much older than its reading what a target counted can be: an answer is good for 5 s, and a scrape
// waits 5 s for one. Two readings whose times differ by more have a clock between them that was set.
const countedAge = 10 * time.Second

// labelSet of a series.
type labelSet map[string]string

func labelsOf(m *dto.Metric) labelSet {
	all := labelSet{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

// key is the same for the same labels.
func (l labelSet) key() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l)) {
		b.WriteString(name + "\x00" + l[name] + "\x00")
	}
	return b.String()
}

// each series of a metric.
func (r *reading) each(metric string, do func(of labelSet, value float64)) {
	if r == nil {
		return
	}
	for _, m := range r.families[metric].GetMetric() {
		switch {
		case m.Counter != nil:
			do(labelsOf(m), m.GetCounter().GetValue())
		case m.Gauge != nil:
			do(labelsOf(m), m.GetGauge().GetValue())
		case m.Untyped != nil:
			do(labelsOf(m), m.GetUntyped().GetValue())
		}
	}
}

// only value of a metric without labels, or with one series.
func (r *reading) only(metric string) (value float64, found bool) {
	r.each(metric, func(_ labelSet, is float64) { value, found = is, true })
	return value, found
}

// group of a series, and whether it belongs to one.
type group func(of labelSet) (name string, belongs bool)

// by the value of a label.
func by(label string) group {
	return func(of labelSet) (string, bool) { return of[label], of[label] != "" }
}

// together are all series in one group.
func together(labelSet) (string, bool) { return "", true }

// sums of a metric now, by group.
func (r *reading) sums(metric string, g group) map[string]float64 {
	sums := map[string]float64{}
	r.each(metric, func(of labelSet, value float64) {
		if name, belongs := g(of); belongs {
			sums[name] += value
		}
	})
	return sums
}

// span is two readings of the same component on the same node. Without the first, there is nothing to compare with.
type span struct{ from, to *reading }

// seconds between the moments at which what both have was counted; 0: not known.
//
// Agents say when their target counted. It need not be when they were asked: several scrapers share an answer.
func (s span) seconds() float64 {
	if s.from == nil || s.to == nil {
		return 0
	}
	asked := s.to.at.Sub(s.from.at).Seconds()
	const metric = "weft_agent_statistics_timestamp_seconds"
	from, known := s.from.only(metric)
	to, alsoKnown := s.to.only(metric)
	if !known || !alsoKnown {
		return max(asked, 0)
	}
	counted := to - from
	if counted <= 0 || counted > asked+countedAge.Seconds() {
		return 0
	}
	return counted
}

// growth of counters, by group and the value of the label op. A group is missing if its growth is not known: because
// one of its counters went back, as it does when what counts starts again, because one is gone, or because none was
// there before. A counter that is new counts from the next reading on.
func (s span) growth(metric string, g group) map[string]map[string]float64 {
	type counter struct {
		group string
		value float64
	}
	before, grown, unknown := map[string]counter{}, map[string]map[string]float64{}, map[string]bool{}
	s.from.each(metric, func(of labelSet, value float64) {
		if name, belongs := g(of); belongs {
			before[of.key()] = counter{name, value}
		}
	})
	s.to.each(metric, func(of labelSet, value float64) {
		name, belongs := g(of)
		if !belongs {
			return
		}
		key := of.key()
		was, known := before[key]
		if !known {
			return
		}
		delete(before, key)
		unknown[name] = unknown[name] || value < was.value
		if grown[name] == nil {
			grown[name] = map[string]float64{}
		}
		grown[name][of["op"]] += value - was.value
	})
	for _, gone := range before {
		unknown[gone.group] = true
	}
	for name, is := range unknown {
		if is {
			delete(grown, name)
		}
	}
	return grown
}

// A Count is how often something happened that should be rare.
type Count struct {
	// Total since it began to be counted.
	Total int64 `json:"total"`
	// New since the sample before.
	New int64 `json:"new"`
}

// counts of what happened, by group. A counter that went back began at 0 since the reading before.
func (s span) counts(metric string, g group) map[string]Count {
	before := map[string]float64{}
	s.from.each(metric, func(of labelSet, value float64) { before[of.key()] = value })
	all := map[string]Count{}
	s.to.each(metric, func(of labelSet, value float64) {
		name, belongs := g(of)
		if !belongs {
			return
		}
		c := all[name]
		c.Total += int64(value)
		if was, known := before[of.key()]; known {
			if value < was {
				was = 0
			}
			c.New += int64(value - was)
		}
		all[name] = c
	})
	return all
}

func (c Count) add(more Count) Count { return Count{c.Total + more.Total, c.New + more.New} }

// rates are what I/Os of one kind do in a second, on average.
type rates struct {
	operations, bytes float64
	// busy is the time that they took, all added: how many were under way at a time.
	busy float64
}

// latency of an I/O in seconds; nil: none completed.
func (r rates) latency() *float64 {
	if r.operations <= 0 {
		return nil
	}
	return new(r.busy / r.operations)
}

func (r rates) add(more rates) rates {
	return rates{r.operations + more.operations, r.bytes + more.bytes, r.busy + more.busy}
}

// flow of I/O, by its kinds: read, write and discard.
type flow map[string]rates

func (f flow) add(more flow) flow {
	sum := flow{}
	for op := range f {
		sum[op] = f[op]
	}
	for op := range more {
		sum[op] = sum[op].add(more[op])
	}
	return sum
}

// ioMetrics are the counters of I/O that belong together.
type ioMetrics struct{ operations, bytes, seconds string }

var (
	ioOfVolumes  = ioMetrics{"weft_volume_operations_total", "weft_volume_bytes_total", "weft_volume_operation_seconds_total"}
	ioOfReplicas = ioMetrics{"weft_agent_replica_operations_total", "weft_agent_replica_transferred_bytes_total", "weft_agent_replica_operation_seconds_total"}
	ioOfPools    = ioMetrics{"weft_agent_pool_operations_total", "weft_agent_pool_transferred_bytes_total", "weft_agent_pool_operation_seconds_total"}
)

// flows by group. Those that are not known are missing.
func (s span) flows(of ioMetrics, g group) map[string]flow {
	seconds := s.seconds()
	if seconds <= 0 {
		return nil
	}
	operations, bytes, busy := s.growth(of.operations, g), s.growth(of.bytes, g), s.growth(of.seconds, g)
	all := map[string]flow{}
	for name, ops := range operations {
		if bytes[name] == nil || busy[name] == nil {
			continue
		}
		f := flow{}
		for op, n := range ops {
			f[op] = rates{n / seconds, bytes[name][op] / seconds, busy[name][op] / seconds}
		}
		all[name] = f
	}
	return all
}

// A Traffic is I/O between two samples, on average.
type Traffic struct {
	ReadsPerSecond      float64 `json:"readsPerSecond"`
	WritesPerSecond     float64 `json:"writesPerSecond"`
	DiscardsPerSecond   float64 `json:"discardsPerSecond"`
	ReadBytesPerSecond  float64 `json:"readBytesPerSecond"`
	WriteBytesPerSecond float64 `json:"writeBytesPerSecond"`
	// ReadLatencySeconds and WriteLatencySeconds are means, and absent if no such I/O completed.
	ReadLatencySeconds  *float64 `json:"readLatencySeconds,omitempty"`
	WriteLatencySeconds *float64 `json:"writeLatencySeconds,omitempty"`
	// QueueDepth is how many I/Os were in progress at a time. An I/O is counted when it completes.
	QueueDepth float64 `json:"queueDepth"`
}

// traffic of a flow; nil of one that is not known.
func (f flow) traffic() *Traffic {
	if f == nil {
		return nil
	}
	read, write, discard := f["read"], f["write"], f["discard"]
	return &Traffic{
		ReadsPerSecond: read.operations, WritesPerSecond: write.operations, DiscardsPerSecond: discard.operations,
		ReadBytesPerSecond: read.bytes, WriteBytesPerSecond: write.bytes,
		ReadLatencySeconds: read.latency(), WriteLatencySeconds: write.latency(),
		QueueDepth: read.busy + write.busy + discard.busy,
	}
}
