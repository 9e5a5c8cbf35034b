// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Metrics of the agent.
type Metrics struct {
	volumes      *prometheus.GaugeVec
	exports      prometheus.Gauge
	orphans      prometheus.Gauge
	phaseSeconds *prometheus.HistogramVec
	engineErrors *prometheus.CounterVec
	noteErrors   *prometheus.CounterVec
	// refillSeconds of targets that came back empty.
	refillSeconds prometheus.Histogram
	bufferWaits   *prometheus.CounterVec
	// coreLoad and threadMoves of poll groups that are balanced.
	coreLoad    *prometheus.GaugeVec
	threadMoves prometheus.Counter
	poolBytes   *prometheus.GaugeVec
	places      *prometheus.GaugeVec
	// lastReconcile is the agent's heartbeat, and targetUp the target's.
	lastReconcile prometheus.Gauge
	targetUp      *prometheus.GaugeVec
	buffers       *prometheus.GaugeVec
	// statistics and health are asked for beside the reconciler, by the runnables that they are.
	statistics *statistics
	health     *healthWatch
}

// Methods of engines that are called beside the reconciler.
const (
	methodStatistics  = "Statistics"
	methodDriveHealth = "DriveHealth"
	methodMoveThreads = "MoveThreads"
)

// countedMethods are those whose errors are counted.
var countedMethods = []string{
	string(decide.VerbOpenPool), string(decide.VerbForgetPool), string(decide.VerbUnexport), string(decide.VerbDeleteVolume), string(decide.VerbDeleteSnapshot),
	string(decide.VerbCreateSnapshot), string(decide.VerbCreateVolume), string(decide.VerbGrowVolume), string(decide.VerbExport), string(decide.VerbSetQoS),
	string(decide.VerbClosePortal), string(decide.VerbOpenPortal), methodStatistics, methodDriveHealth, methodMoveThreads,
}

// NewMetrics makes the agent's metrics and registers them. It fails when they are registered already.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		volumes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_volumes", Help: "Number of NvmfReplicas of this node, by readiness.",
		}, []string{"ready"}),
		exports: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_agent_exports", Help: "Number of subsystems that the engine of this node serves.",
		}),
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_agent_orphans", Help: "Number of replicas, snapshots, and subsystems with hosts in the engine that have no object.",
		}),
		phaseSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_agent_reconcile_seconds", Help: "Duration of one reconciliation of the node, by phase.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}, []string{"phase"}),
		engineErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_agent_engine_errors_total", Help: "Number of items that the engine rejected or that failed, by method.",
		}, []string{"method"}),
		noteErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_agent_note_errors_total", Help: "Number of descriptions beside the data of volumes and snapshots that could not be read or written, by op, each time that it was tried.",
		}, []string{"op"}),
		refillSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weft_agent_refill_seconds", Help: "Time from the first answer of a restarted target until all volumes are exported and all portals are open.",
			Buckets: prometheus.ExponentialBuckets(0.0625, 2, 12),
		}),
		poolBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_pool_bytes", Help: "Size in bytes of each pool of this node: total, unwritten (free), promised to volumes and snapshots (promised), and with data of deleted volumes and snapshots (clearing).",
		}, []string{"device", "part"}),
		places: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_places", Help: "Number of places of this node for attachments and volumes: used, and possible if limited.",
		}, []string{"for", "part"}),
		bufferWaits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_agent_buffer_waits_total", Help: "Number of I/Os of the target that had to wait for a buffer, by module and pool, since this agent started.",
		}, []string{"module", "pool"}),
		coreLoad: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_core_load", Help: "Load of each core of a balanced target, from 0 to 1.",
		}, []string{"core"}),
		threadMoves: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weft_agent_thread_moves_total", Help: "Number of poll groups that were moved to another core.",
		}),
		lastReconcile: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_agent_last_reconcile_timestamp_seconds", Help: "When the agent last completed a reconciliation of its node, in seconds since 1970.",
		}),
		targetUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_target_up", Help: "1 while the node's target answers, else 0.",
		}, []string{"engine"}),
		buffers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_agent_buffers", Help: "Number of buffers that the target has in each pool.",
		}, []string{"pool"}),
	}
	// A counter that begins with the first error has no rate that shows it.
	for _, method := range countedMethods {
		m.engineErrors.WithLabelValues(method)
	}
	for _, op := range []string{"read", "write"} {
		m.noteErrors.WithLabelValues(op)
	}
	m.statistics = newStatistics(clock.RealClock{}, m.engineErrors)
	m.health = newHealthWatch(clock.RealClock{}, m.engineErrors)
	for _, c := range m.all() {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.volumes, m.exports, m.orphans, m.phaseSeconds, m.engineErrors, m.noteErrors, m.refillSeconds, m.bufferWaits, m.coreLoad, m.threadMoves,
		m.poolBytes, m.places, m.lastReconcile, m.targetUp, m.buffers, m.statistics, m.health,
	}
}

// Unregister them, so that another agent in this process may register its own.
func (m *Metrics) Unregister(registry prometheus.Registerer) {
	for _, c := range m.all() {
		registry.Unregister(c)
	}
}

// setPools to what the node reports of them. Of those that the target has, the size and the free bytes are as the
// target says: the report has them only when they have changed much.
func (m *Metrics) setPools(pools []v1alpha1.PoolStatus, has []engine.Pool) {
	m.poolBytes.Reset()
	for _, p := range pools {
		if p.Total != nil && p.Free != nil {
			total, free := p.Total.Value(), p.Free.Value()
			if i := slices.IndexFunc(has, func(h engine.Pool) bool { return h.Device == p.Device && h.Err == nil }); i >= 0 {
				total, free = has[i].TotalBytes, has[i].FreeBytes
			}
			m.poolBytes.WithLabelValues(p.Device, "total").Set(float64(total))
			m.poolBytes.WithLabelValues(p.Device, "free").Set(float64(free))
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

// setTarget to what was seen of it. What cannot be seen of it now, its drives and replicas stay as they were.
func (m *Metrics) setTarget(e engine.Engine, s *decide.Observed) {
	m.targetUp.Reset()
	measured, _ := e.(engine.Measured)
	if s.Node.Spec.Plan == nil {
		m.buffers.Reset()
		m.statistics.use(nil, nil, false)
		m.health.use(nil, nil)
		return
	}
	up := 0.0
	if s.Target.Err == nil || s.Target.Info.Type != "" && s.Target.Reason != v1alpha1.ReasonEngineNotAnswering {
		up = 1
	}
	m.targetUp.WithLabelValues(string(s.Node.Spec.Plan.Engine)).Set(up)
	if s.Target.Err != nil {
		return
	}
	m.buffers.Reset()
	for _, setting := range s.Target.Settings {
		pool, is := map[string]string{"smallBuffers": "small", "largeBuffers": "large"}[setting.Setting]
		if n, err := strconv.ParseFloat(setting.Value, 64); is && err == nil {
			m.buffers.WithLabelValues(pool).Set(n)
		}
	}
	spdk := s.Node.Spec.Plan.SPDK
	m.statistics.use(measured, servedBy(s), spdk != nil && spdk.LatencyHistograms == v1alpha1.SwitchEnabled)
	m.health.use(measured, drivesOf(s))
}
