// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	// statisticsFresh is how long statistics are good for: several scrapers, or one in a hurry, ask the target once.
	statisticsFresh = 5 * time.Second
	// statisticsPatience with a target that does not answer. Prometheus gives up after 10 seconds by default, and then
	// has nothing of the agent at all.
	statisticsPatience = 5 * time.Second
)

// The labels of a replica, of an I/O and of a pool.
var (
	replicaLabels   = []string{"persistentvolumeclaim", "namespace", "volume", "replica", "target"}
	operationLabels = slices.Concat(replicaLabels, []string{"op"})
	poolLabels      = []string{"device", "op"}
)

// statistics of the target, which it is asked for when they are scraped. What it does not answer is left out: an old
// value would look like a target that stands still. It is safe for concurrent use.
type statistics struct {
	clock    clock.PassiveClock
	failures *prometheus.CounterVec

	replicaOperations, replicaBytes, replicaSeconds, replicaErrors *prometheus.Desc
	replicaDuration                                                *prometheus.Desc
	poolOperations, poolBytes, poolSeconds                         *prometheus.Desc
	coreSeconds, bufferGets, measured                              *prometheus.Desc

	mu sync.Mutex
	// target to be asked, nil when there is none, and the replicas that it serves with the values of replicaLabels.
	target engine.Measured
	served map[engine.ID][]string
	// latencies are asked for, too.
	latencies bool
	// within makes the context of one look; nil unless the agent runs.
	within func(time.Duration) (context.Context, context.CancelFunc)

	// asking is held by who asks, and guards what follows: the last answer, whose it is, and since when. answered is
	// the same time, or zero if the target did not answer.
	asking       sync.Mutex
	last         engine.Statistics
	of           engine.Measured
	at, answered time.Time
}

// newStatistics that count in failures, by method, when the target does not answer.
func newStatistics(c clock.PassiveClock, failures *prometheus.CounterVec) *statistics {
	return &statistics{
		clock: c, failures: failures,
		replicaOperations: prometheus.NewDesc("weft_agent_replica_operations_total", "Number of I/Os of a served replica, seen from the target.", operationLabels, nil),
		replicaBytes:      prometheus.NewDesc("weft_agent_replica_transferred_bytes_total", "Bytes of the I/Os of a served replica, seen from the target.", operationLabels, nil),
		replicaSeconds:    prometheus.NewDesc("weft_agent_replica_operation_seconds_total", "Time that the I/Os of a served replica took in the target, all added.", operationLabels, nil),
		replicaErrors:     prometheus.NewDesc("weft_agent_replica_errors_total", "Number of I/Os of a served replica that failed, without those that the host aborted.", replicaLabels, nil),
		replicaDuration:   prometheus.NewDesc("weft_agent_replica_operation_duration_seconds", "Duration of the I/Os of a served replica in the target, of all kinds.", replicaLabels, nil),
		poolOperations:    prometheus.NewDesc("weft_agent_pool_operations_total", "Number of I/Os of the device that a pool is on.", poolLabels, nil),
		poolBytes:         prometheus.NewDesc("weft_agent_pool_transferred_bytes_total", "Bytes of the I/Os of the device that a pool is on.", poolLabels, nil),
		poolSeconds:       prometheus.NewDesc("weft_agent_pool_operation_seconds_total", "Time that the I/Os of the device that a pool is on took, all added.", poolLabels, nil),
		coreSeconds:       prometheus.NewDesc("weft_agent_core_seconds_total", "Time that each core of the target was busy or idle.", []string{"core", "state"}, nil),
		bufferGets:        prometheus.NewDesc("weft_agent_buffer_gets_total", "Number of buffers that the target's modules took, by module and pool.", []string{"module", "pool"}, nil),
		measured:          prometheus.NewDesc("weft_agent_statistics_timestamp_seconds", "When the target counted what this scrape has of it, in seconds since 1970.", nil, nil),
	}
}

// Start lets the target be asked until ctx ends.
func (s *statistics) Start(ctx context.Context) error {
	s.allow(func(d time.Duration) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) })
	<-ctx.Done()
	s.allow(nil)
	return nil
}

func (s *statistics) allow(within func(time.Duration) (context.Context, context.CancelFunc)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.within = within
}

// use a target from now on, nil when there is none to be asked, and these replicas of it, with their latencies or
// without.
func (s *statistics) use(target engine.Measured, served map[engine.ID][]string, latencies bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.served, s.latencies = target, served, latencies
}

// Describe implements prometheus.Collector.
func (s *statistics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.replicaOperations, s.replicaBytes, s.replicaSeconds, s.replicaErrors, s.replicaDuration, s.poolOperations, s.poolBytes, s.poolSeconds, s.coreSeconds, s.bufferGets, s.measured,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *statistics) Collect(ch chan<- prometheus.Metric) {
	stats, served, at := s.ask()
	if !at.IsZero() {
		ch <- prometheus.MustNewConstMetric(s.measured, prometheus.GaugeValue, float64(at.UnixNano())/1e9)
	}
	count := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	io := func(operations, bytes, seconds *prometheus.Desc, is engine.Operations, labels ...string) {
		count(operations, float64(is.Count), labels...)
		count(bytes, float64(is.Bytes), labels...)
		count(seconds, is.Seconds, labels...)
	}
	for id, labels := range served {
		is, there := stats.Volumes[id]
		if !there {
			continue
		}
		io(s.replicaOperations, s.replicaBytes, s.replicaSeconds, is.Read, append(slices.Clone(labels), "read")...)
		io(s.replicaOperations, s.replicaBytes, s.replicaSeconds, is.Write, append(slices.Clone(labels), "write")...)
		if is.Errors != nil {
			count(s.replicaErrors, float64(*is.Errors), labels...)
		}
		if latencies, there := stats.Latencies[id]; there {
			ch <- durations(s.replicaDuration, is, latencies, labels)
		}
	}
	for device, is := range stats.Pools {
		io(s.poolOperations, s.poolBytes, s.poolSeconds, is.Read, device, "read")
		io(s.poolOperations, s.poolBytes, s.poolSeconds, is.Write, device, "write")
		io(s.poolOperations, s.poolBytes, s.poolSeconds, is.Discard, device, "discard")
	}
	for _, core := range stats.Cores {
		count(s.coreSeconds, core.BusySeconds, strconv.Itoa(core.Core), "busy")
		count(s.coreSeconds, core.IdleSeconds, strconv.Itoa(core.Core), "idle")
	}
	for _, b := range stats.Buffers {
		count(s.bufferGets, float64(b.Small), b.Module, "small")
		count(s.bufferGets, float64(b.Large), b.Module, "large")
	}
}

// durations of a replica's I/Os. Their sum is what reads and writes took that succeeded: of others it is not known.
func durations(d *prometheus.Desc, is engine.IO, latencies []uint64, labels []string) prometheus.Metric {
	buckets := map[float64]uint64{}
	for i, bound := range engine.LatencyBounds {
		buckets[bound.Seconds()] = latencies[i]
	}
	return prometheus.MustNewConstHistogram(d, latencies[len(engine.LatencyBounds)], is.Read.Seconds+is.Write.Seconds, buckets, labels...)
}

// ask the target, unless it was asked just now. The time is when it answered; zero: it did not.
func (s *statistics) ask() (stats engine.Statistics, served map[engine.ID][]string, at time.Time) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	target, within, latencies := s.target, s.within, s.latencies
	served = s.served
	s.mu.Unlock()
	if target == nil || within == nil {
		return engine.Statistics{}, nil, time.Time{}
	}
	if s.of == target && s.clock.Since(s.at) < statisticsFresh {
		return s.last, served, s.answered
	}
	ctx, cancel := within(statisticsPatience)
	defer cancel()
	stats, err := target.Statistics(ctx, slices.Collect(maps.Keys(served)), latencies)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.failures.WithLabelValues(methodStatistics).Inc()
		log.FromContext(ctx).Error(err, "Cannot read the target's statistics")
	}
	s.last, s.of, s.at, s.answered = stats, target, s.clock.Now(), time.Time{}
	if err == nil {
		s.answered = s.at
	}
	return stats, served, s.answered
}

// servedBy a target: the replicas that hosts are admitted to, with the values of replicaLabels.
func servedBy(s *decide.Observed) map[engine.ID][]string {
	exported := map[engine.ID]bool{}
	for _, x := range s.Target.State.Exports {
		for _, ns := range x.Namespaces {
			exported[ns.Volume] = exported[ns.Volume] || len(x.Hosts) > 0
		}
	}
	served := map[engine.ID][]string{}
	for _, v := range s.Volumes {
		if id := engine.ID(v.Spec.UUID); exported[id] {
			namespace, claim := v1alpha1.ClaimOf(v)
			served[id] = []string{claim, namespace, v.Spec.Volume.Name, v.Name, v.Spec.Target}
		}
	}
	return served
}
