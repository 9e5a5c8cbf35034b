// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Metrics of the agent.
type Metrics struct {
	volumes      *prometheus.GaugeVec
	exports      prometheus.Gauge
	orphans      prometheus.Gauge
	phaseSeconds *prometheus.HistogramVec
	engineErrors *prometheus.CounterVec
	// refillSeconds of targets that came back empty.
	refillSeconds prometheus.Histogram
	bufferWaits   *prometheus.CounterVec
	// coreLoad and threadMoves of poll groups that are balanced.
	coreLoad    *prometheus.GaugeVec
	threadMoves prometheus.Counter
	poolBytes   *prometheus.GaugeVec
	places      *prometheus.GaugeVec
}

// NewMetrics makes the agent's metrics and registers them. It fails when they are registered already.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		volumes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_volumes", Help: "NvmfVolumes of this node, by whether they are ready.",
		}, []string{"ready"}),
		exports: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_agent_exports", Help: "Subsystems that the engine of this node serves.",
		}),
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_agent_orphans", Help: "Volumes, snapshots and subsystems with hosts in the engine that have no object.",
		}),
		phaseSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_agent_reconcile_seconds", Help: "Time of one reconciliation of the node, by phase.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}, []string{"phase"}),
		engineErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_agent_engine_errors_total", Help: "Items that the engine refused or failed, by method.",
		}, []string{"method"}),
		refillSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weft_agent_refill_seconds", Help: "Time from when a target that had ended answers again until everything is exported and its portals are open.",
			Buckets: prometheus.ExponentialBuckets(0.0625, 2, 12),
		}),
		poolBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_pool_bytes", Help: "Size of each pool of this node (total), how much of it is unwritten (free), how much its volumes and snapshots may use (promised), and how much still holds data of deleted ones (clearing).",
		}, []string{"device", "part"}),
		places: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_places", Help: "Places of this node for attachments and for volumes: those that are used, and, where something limits them, those that are possible.",
		}, []string{"for", "part"}),
		bufferWaits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_agent_buffer_waits_total", Help: "I/Os of the target that had to wait for a buffer, by module and pool, as far as this agent saw it.",
		}, []string{"module", "pool"}),
		coreLoad: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_core_load", Help: "How busy each core of a balanced target is, 1 being all that it has to give, by core.",
		}, []string{"core"}),
		threadMoves: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weft_agent_thread_moves_total", Help: "Poll groups that were moved from one core to another.",
		}),
	}
	for _, c := range m.all() {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.volumes, m.exports, m.orphans, m.phaseSeconds, m.engineErrors, m.refillSeconds, m.bufferWaits, m.coreLoad, m.threadMoves, m.poolBytes, m.places}
}

// Unregister them, so that another agent in this process may register its own.
func (m *Metrics) Unregister(registry prometheus.Registerer) {
	for _, c := range m.all() {
		registry.Unregister(c)
	}
}

// setPools to what the node reports of them.
func (m *Metrics) setPools(pools []v1alpha1.PoolStatus) {
	m.poolBytes.Reset()
	for _, p := range pools {
		if p.Total != nil && p.Free != nil {
			m.poolBytes.WithLabelValues(p.Device, "total").Set(float64(p.Total.Value()))
			m.poolBytes.WithLabelValues(p.Device, "free").Set(float64(p.Free.Value()))
		}
		if p.Promised != nil {
			m.poolBytes.WithLabelValues(p.Device, "promised").Set(float64(p.Promised.Value()))
			clearing := 0.0
			if p.Clearing != nil {
				clearing = float64(p.Clearing.Value())
			}
			m.poolBytes.WithLabelValues(p.Device, "clearing").Set(clearing)
		}
	}
}

// setPlaces to what the node reports of them.
func (m *Metrics) setPlaces(attachments, volumes *v1alpha1.Places) {
	m.places.Reset()
	for of, places := range map[string]*v1alpha1.Places{"attachments": attachments, "volumes": volumes} {
		if places == nil {
			continue
		}
		m.places.WithLabelValues(of, "used").Set(float64(places.Used))
		if places.Possible != nil {
			m.places.WithLabelValues(of, "possible").Set(float64(*places.Possible))
		}
	}
}
