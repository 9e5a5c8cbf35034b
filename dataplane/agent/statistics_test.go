// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// counting is a target whose counters the test sets, and drives that answer when it lets them.
type counting struct {
	*enginetest.Engine
	stats  engine.Statistics
	err    error
	looks  int
	asked  chan string
	health chan device.Health
}

func newCounting() *counting {
	return &counting{Engine: enginetest.New(), asked: make(chan string), health: make(chan device.Health)}
}

func (e *counting) Statistics(ctx context.Context, volumes []engine.ID, latencies bool) (engine.Statistics, error) {
	e.looks++
	if e.err != nil {
		return engine.Statistics{}, e.err
	}
	is := e.stats
	is.Volumes = map[engine.ID]engine.IO{}
	if !latencies {
		is.Latencies = nil
	}
	for _, id := range volumes {
		if io, there := e.stats.Volumes[id]; there {
			is.Volumes[id] = io
		}
	}
	return is, ctx.Err()
}

func (e *counting) DriveHealth(ctx context.Context, pool string) (device.Health, error) {
	e.asked <- pool
	select {
	case h, alive := <-e.health:
		if !alive {
			return device.Health{}, engine.ErrUnavailable
		}
		return h, nil
	case <-ctx.Done():
		return device.Health{}, ctx.Err()
	}
}

// samples of a registry, as metric{label="value",...}.
func samples(g *WithT, registry prometheus.Gatherer, of string) map[string]float64 {
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if strings.HasPrefix(f.GetName(), of) {
				found[strings.TrimPrefix(f.GetName(), of)+"{"+strings.Join(labels, ",")+"}"] = max(m.GetCounter().GetValue(), m.GetGauge().GetValue())
			}
		}
	}
	return found
}

// observedWith replicas 1, of a claim, and 2, both exported; hosts may use 1 only, and 3 is not exported.
func observedWith() *decide.Observed {
	s := &decide.Observed{Node: testNode(), Inventory: testInventory(), Volumes: []*v1alpha1.NvmfReplica{
		testVolume(1, func(v *v1alpha1.NvmfReplica) {
			v.Annotations = map[string]string{v1alpha1.PVCNameKey: "data", v1alpha1.PVCNamespaceKey: "shop"}
		}), testVolume(2), testVolume(3),
	}}
	s.Target.State.Pools = []engine.Pool{{Device: "a"}, {Device: "b"}, {Device: "c", Err: engine.ErrUnavailable}}
	for n := 1; n <= 2; n++ {
		x := engine.Export{Namespaces: []engine.Namespace{{NSID: 1, Volume: id(n)}}}
		if n == 1 {
			x.Hosts = []string{hostA}
		}
		s.Target.State.Exports = append(s.Target.State.Exports, x)
	}
	return s
}

// measuredAgent has metrics of its own, and a clock for its statistics.
func measuredAgent(g *WithT) (*prometheus.Registry, *Metrics, *clocktesting.FakeClock) {
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	g.Expect(err).NotTo(HaveOccurred())
	clock := clocktesting.NewFakeClock(now)
	metrics.statistics.clock = clock
	return registry, metrics, clock
}

// Errors are counted from 0, so that the first one is seen: of the methods of the contract that answer one for each
// item, and of those of other interfaces that are counted.
func TestErrorsBeginAtZero(t *testing.T) {
	g := NewWithT(t)
	registry, _, _ := measuredAgent(g)
	want := map[string]float64{`{method="Statistics"}`: 0, `{method="DriveHealth"}`: 0, `{method="MoveThreads"}`: 0}
	contract := reflect.TypeFor[engine.Engine]()
	for i := range contract.NumMethod() {
		if m := contract.Method(i); m.Type.NumOut() == 1 && m.Type.Out(0) == reflect.TypeFor[[]error]() {
			want[fmt.Sprintf("{method=%q}", m.Name)] = 0
		}
	}
	g.Expect(len(want)).To(BeNumerically(">", 3))
	g.Expect(samples(g, registry, "weft_agent_engine_errors_total")).To(Equal(want))
	g.Expect(samples(g, registry, "weft_agent_note_errors_total")).To(Equal(map[string]float64{`{op="read"}`: 0, `{op="write"}`: 0}))
}

func TestStatistics(t *testing.T) {
	g := NewWithT(t)
	registry, metrics, clock := measuredAgent(g)
	failed := uint64(4)
	target := newCounting()
	target.stats = engine.Statistics{
		Pools: map[string]engine.IO{"a": {Read: engine.Operations{Count: 1, Bytes: 4096, Seconds: 0.5}, Discard: engine.Operations{Count: 7}}},
		Volumes: map[engine.ID]engine.IO{
			id(1): {Read: engine.Operations{Count: 1, Bytes: 2, Seconds: 3}, Write: engine.Operations{Count: 10, Bytes: 20, Seconds: 30}, Errors: &failed},
			id(2): {Read: engine.Operations{Count: 99}},
		},
		Cores:   []engine.CoreTime{{Core: 2, BusySeconds: 8, IdleSeconds: 9}},
		Buffers: []engine.BufferGets{{Module: "nvmf_TCP", Small: 5, Large: 6}},
	}
	s := observedWith()
	s.Target.Settings = []v1alpha1.EngineSetting{{Setting: "smallBuffers", Value: "8192"}, {Setting: "largeBuffers", Value: "1024"}, {Setting: "coreMask", Value: "0x4"}}
	metrics.setTarget(target, s)
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(BeEmpty(), "the agent does not run")
	metrics.statistics.allow(func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), d)
	})

	const of = `{namespace="shop",op="%s",persistentvolumeclaim="data",replica="v1",target="fast",volume="volume-of-v1"}`
	read, write := fmt.Sprintf(of, "read"), fmt.Sprintf(of, "write")
	want := map[string]float64{
		"operations_total" + read: 1, "transferred_bytes_total" + read: 2, "operation_seconds_total" + read: 3,
		"operations_total" + write: 10, "transferred_bytes_total" + write: 20, "operation_seconds_total" + write: 30,
		`errors_total{namespace="shop",persistentvolumeclaim="data",replica="v1",target="fast",volume="volume-of-v1"}`: 4,
	}
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(Equal(want), "hosts are admitted to one")
	g.Expect(samples(g, registry, "weft_agent_pool_operations")).To(Equal(map[string]float64{
		`_total{device="a",op="read"}`: 1, `_total{device="a",op="write"}`: 0, `_total{device="a",op="discard"}`: 7,
	}))
	g.Expect(samples(g, registry, "weft_agent_core_seconds_total")).To(Equal(map[string]float64{`{core="2",state="busy"}`: 8, `{core="2",state="idle"}`: 9}))
	g.Expect(samples(g, registry, "weft_agent_buffer")).To(Equal(map[string]float64{
		`s{pool="small"}`: 8192, `s{pool="large"}`: 1024,
		`_gets_total{module="nvmf_TCP",pool="small"}`: 5, `_gets_total{module="nvmf_TCP",pool="large"}`: 6,
	}))
	clock.Step(time.Second)
	counted := func() map[string]float64 { return samples(g, registry, "weft_agent_statistics_timestamp_seconds") }
	g.Expect(counted()).To(Equal(map[string]float64{"{}": float64(now.Unix())}), "when it was asked, not when it was scraped")
	g.Expect(target.looks).To(Equal(1), "several scrapes in a row are one look")

	target.err = errors.New("no answer")
	clock.Step(statisticsFresh)
	g.Expect(counted()).To(BeEmpty(), "it counted nothing")
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(BeEmpty(), "old values would say that nothing is done")
	g.Expect(samples(g, registry, "weft_agent_engine_errors_total")).To(HaveKeyWithValue(`{method="Statistics"}`, 1.0))
	g.Expect(target.looks).To(Equal(2), "nor is a target that does not answer asked again and again")
	target.err = nil
	clock.Step(statisticsFresh)
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(Equal(want))

	g.Expect(samples(g, registry, "weft_agent_target_up")).To(Equal(map[string]float64{`{engine="Nvmet"}`: 1}))
	down := observedWith()
	down.Target = decide.Target{Err: engine.ErrUnavailable, Reason: v1alpha1.ReasonEngineNotAnswering}
	metrics.setTarget(target, down)
	g.Expect(samples(g, registry, "weft_agent_target_up")).To(Equal(map[string]float64{`{engine="Nvmet"}`: 0}))
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(Equal(want), "what it served, it will serve again")

	down.Node.Spec.Plan = nil
	metrics.setTarget(nil, down)
	g.Expect(samples(g, registry, "weft_agent_replica_")).To(BeEmpty())
	g.Expect(samples(g, registry, "weft_agent_target_up")).To(BeEmpty())
}

// A plan that asks for it has histograms of the I/Os' durations.
func TestLatencyHistograms(t *testing.T) {
	g := NewWithT(t)
	registry, metrics, clock := measuredAgent(g)
	metrics.statistics.allow(func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), d)
	})
	counts := make([]uint64, len(engine.LatencyBounds)+1)
	for i := range counts {
		counts[i] = uint64(10 * i)
	}
	target := newCounting()
	target.stats.Volumes = map[engine.ID]engine.IO{id(1): {Read: engine.Operations{Seconds: 2}, Write: engine.Operations{Seconds: 3}}}
	target.stats.Latencies = map[engine.ID][]uint64{id(1): counts}
	s := observedWith()
	s.Node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{}
	shown := func() []*dto.Metric {
		metrics.setTarget(target, s)
		clock.Step(statisticsFresh)
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, f := range families {
			if f.GetName() == "weft_agent_replica_operation_duration_seconds" {
				return f.GetMetric()
			}
		}
		return nil
	}
	g.Expect(shown()).To(BeEmpty())
	s.Node.Spec.Plan.SPDK.LatencyHistograms = v1alpha1.SwitchEnabled
	all := shown()
	g.Expect(all).To(HaveLen(1))
	h := all[0].GetHistogram()
	g.Expect(h.GetSampleCount()).To(BeEquivalentTo(170))
	g.Expect(h.GetSampleSum()).To(Equal(5.0))
	g.Expect(h.GetBucket()).To(HaveLen(17))
	g.Expect(h.GetBucket()[0].GetUpperBound()).To(Equal(10e-6))
	g.Expect(h.GetBucket()[1].GetCumulativeCount()).To(BeEquivalentTo(10))
	g.Expect(h.GetBucket()[16].GetUpperBound()).To(Equal(2.0))
	s.Node.Spec.Plan.SPDK.LatencyHistograms = v1alpha1.SwitchDisabled
	g.Expect(shown()).To(BeEmpty())
}

// served as kubectl weft top reads it in its tests.
func served(file string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		text, err := os.ReadFile("../../operator/internal/cli/testdata/top/" + file)
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		return slices.Collect(maps.Values(families)), err
	})
}

// Waits are counted from 0 for each module of the target, so that the first one is seen.
func TestWaitsForBuffersBeginAtZero(t *testing.T) {
	g := NewWithT(t)
	registry, metrics, _ := measuredAgent(g)
	r := Reconciler{metrics: metrics}
	const metric = "weft_agent_buffer_waits_total"
	g.Expect(samples(g, registry, metric)).To(BeEmpty())
	s := observedWith()
	s.Target.BufferWaits = []engine.BufferWaits{{Module: "bdev"}, {Module: "nvmf_TCP", Small: 3}} // 3 before this agent
	r.observeWaits(s)
	want := map[string]float64{
		`{module="bdev",pool="large"}`: 0, `{module="bdev",pool="small"}`: 0,
		`{module="nvmf_TCP",pool="large"}`: 0, `{module="nvmf_TCP",pool="small"}`: 0,
	}
	g.Expect(samples(g, registry, metric)).To(Equal(want))
	s.Target.BufferWaits = []engine.BufferWaits{{Module: "bdev"}, {Module: "nvmf_TCP", Small: 4}}
	r.observeWaits(s)
	want[`{module="nvmf_TCP",pool="small"}`] = 1
	g.Expect(samples(g, registry, metric)).To(Equal(want))
}

// The tests of kubectl weft top have two scrapes of an agent, 10 seconds apart. They are what an agent serves.
func TestScrapesForTheCommandLine(t *testing.T) {
	g := NewWithT(t)
	registry, metrics, clock := measuredAgent(g)
	metrics.statistics.allow(func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), d)
	})
	s := observedWith()
	s.Node.Spec.Plan.Engine = v1alpha1.EngineSPDK
	s.Volumes[0] = testVolume(1, func(v *v1alpha1.NvmfReplica) {
		v.Name, v.Spec.Volume.Name = "pvc-1-r1", "pvc-1"
		v.Annotations = map[string]string{v1alpha1.PVCNameKey: "orders", v1alpha1.PVCNamespaceKey: "shop"}
	})
	metrics.volumes.WithLabelValues("true").Set(1)
	metrics.volumes.WithLabelValues("false").Set(2)
	metrics.setPools([]v1alpha1.PoolStatus{{Device: "a", Total: ptr.To(resource.MustParse("100Gi")), Free: ptr.To(resource.MustParse("80Gi")), Promised: ptr.To(resource.MustParse("50Gi"))}}, nil)
	target := newCounting()
	waits := metrics.bufferWaits.WithLabelValues("nvmf_TCP", "small")
	for i, counts := range []struct {
		failed        uint64
		waited        float64
		pool, replica engine.IO
		cores         []engine.CoreTime
	}{
		{
			2, 3, engine.IO{Read: engine.Operations{Count: 1000, Bytes: 4096000, Seconds: 1}, Write: engine.Operations{Count: 2000, Bytes: 8192000, Seconds: 4}},
			engine.IO{Read: engine.Operations{Count: 500, Bytes: 2048000, Seconds: 0.25}, Write: engine.Operations{Count: 1000, Bytes: 4096000, Seconds: 1}},
			[]engine.CoreTime{{Core: 2, BusySeconds: 10, IdleSeconds: 90}, {Core: 3, BusySeconds: 50, IdleSeconds: 50}},
		},
		{
			5, 4, engine.IO{Read: engine.Operations{Count: 11000, Bytes: 45056000, Seconds: 3}, Write: engine.Operations{Count: 7000, Bytes: 49152000, Seconds: 9}, Discard: engine.Operations{Count: 20, Bytes: 81920, Seconds: 1}},
			engine.IO{Read: engine.Operations{Count: 5500, Bytes: 22528000, Seconds: 0.75}, Write: engine.Operations{Count: 3500, Bytes: 24576000, Seconds: 3}},
			[]engine.CoreTime{{Core: 2, BusySeconds: 15, IdleSeconds: 95}, {Core: 3, BusySeconds: 60, IdleSeconds: 50}},
		},
	} {
		waits.Add(counts.waited)
		counts.replica.Errors = &counts.failed
		target.stats = engine.Statistics{Pools: map[string]engine.IO{"a": counts.pool}, Volumes: map[engine.ID]engine.IO{id(1): counts.replica}, Cores: counts.cores}
		metrics.setTarget(target, s)
		file := fmt.Sprintf("agent-%d.prom", i+1)
		g.Expect(samples(g, registry, "weft_")).To(Equal(samples(g, served(file), "weft_")), file)
		clock.Step(10 * time.Second)
	}
}

func TestHealthOfDrives(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	g.Expect(err).NotTo(HaveOccurred())
	clock := clocktesting.NewFakeClock(now)
	metrics.health.clock = clock
	target := newCounting()
	s := observedWith()
	s.Inventory.Drives[0].NVMe, s.Inventory.Drives[0].Model, s.Inventory.Drives[0].Serial = true, "M", "S1" // b is no NVMe drive
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- metrics.health.Start(ctx) }()
	answered := func(value float64) {
		g.Eventually(func() map[string]float64 { return samples(g, registry, "weft_agent_drive_used_ratio") }, patience, interval).
			Should(Equal(map[string]float64{`{device="a",model="M",serial="S1"}`: value}))
	}

	metrics.setTarget(target, s)
	g.Expect(<-target.asked).To(Equal("a"), "a drive is asked as soon as it is known")
	g.Expect(samples(g, registry, "weft_agent_drive_")).To(BeEmpty())
	target.health <- device.Health{Warnings: device.WarnSpare | device.WarnBackup, TemperatureCelsius: 40, UsedRatio: 0.5, SpareRatio: 0.05, SpareThresholdRatio: 0.1, MediaErrors: 2, PowerOnHours: 10, UnsafeShutdowns: 3, ReadBytes: 5, WrittenBytes: 6}
	answered(0.5)
	const of, warns = `{device="a",model="M",serial="S1"}`, `critical_warning{device="a",model="M",serial="S1",warning="%s"}`
	want := map[string]float64{
		"used_ratio" + of: 0.5, "spare_ratio" + of: 0.05, "spare_threshold_ratio" + of: 0.1, "media_errors_total" + of: 2, "temperature_celsius" + of: 40,
		"power_on_seconds_total" + of: 36000, "unsafe_shutdowns_total" + of: 3, "written_bytes_total" + of: 6, "read_bytes_total" + of: 5,
		"health_timestamp_seconds" + of: float64(now.Unix()),
	}
	for name, is := range map[string]float64{"spare": 1, "temperature": 0, "reliability": 0, "read_only": 0, "backup": 1, "persistent_memory": 0} {
		want[fmt.Sprintf(warns, name)] = is
	}
	g.Expect(samples(g, registry, "weft_agent_drive_")).To(Equal(want))

	metrics.setTarget(target, s)
	g.Eventually(clock.HasWaiters, patience, interval).Should(BeTrue())
	clock.Step(healthPeriod)
	g.Expect(<-target.asked).To(Equal("a"))
	pools := s.Target.State.Pools
	for _, is := range [][]engine.Pool{nil, pools} { // its pool goes, and comes back
		s.Target.State.Pools = is
		metrics.setTarget(target, s)
	}
	clock.Step(healthPeriod) // it owes an answer, and is not asked again
	target.health <- device.Health{UsedRatio: 0.6}
	answered(0.6)

	clock.Step(healthPeriod)
	g.Expect(<-target.asked).To(Equal("a"))
	close(target.health)
	g.Eventually(func() map[string]float64 { return samples(g, registry, "weft_agent_engine_errors_total") }, patience, interval).
		Should(HaveKeyWithValue(`{method="DriveHealth"}`, 1.0))
	answered(0.6)
	cancel()
	g.Expect(<-ended).To(Succeed())
	s.Target.State.Pools = nil
	metrics.setTarget(target, s)
	g.Expect(samples(g, registry, "weft_agent_drive_")).To(BeEmpty(), "it is no pool's any more")
}

// The report of a pool lags behind by up to 1 %; the metric does not, unless the target cannot say.
func TestPoolBytesAreThoseOfTheTarget(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	g.Expect(err).NotTo(HaveOccurred())
	reported := []v1alpha1.PoolStatus{
		{Device: "a", Total: ptr.To(resource.MustParse("100Gi")), Free: ptr.To(resource.MustParse("6Gi"))},
		{Device: "b", Total: ptr.To(resource.MustParse("100Gi")), Free: ptr.To(resource.MustParse("7Gi"))},
	}
	const gi = 1 << 30
	metrics.setPools(reported, []engine.Pool{{Device: "a", TotalBytes: 100 * gi, FreeBytes: 5*gi + 1}, {Device: "b", Err: errors.New("gone")}})
	g.Expect(samples(g, registry, "weft_agent_pool_bytes")).To(Equal(map[string]float64{
		`{device="a",part="total"}`: 100 * gi, `{device="a",part="free"}`: 5*gi + 1,
		`{device="b",part="total"}`: 100 * gi, `{device="b",part="free"}`: 7 * gi,
	}))
}
