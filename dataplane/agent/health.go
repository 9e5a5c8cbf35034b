// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// healthPeriod is how often a drive is asked for its health log. That is a command to the drive, which some answer only
// after milliseconds in which they do nothing else, and what the log tells changes over hours; its temperature over
// minutes.
const healthPeriod = 5 * time.Minute

var driveLabels = []string{"device", "model", "serial"}

// warnings of a drive, by the values of the label.
var warnings = map[string]device.Warnings{
	"spare": device.WarnSpare, "temperature": device.WarnTemperature, "reliability": device.WarnReliability,
	"read_only": device.WarnReadOnly, "backup": device.WarnBackup, "persistent_memory": device.WarnPersistentMemory,
}

// healthWatch asks the drives that pools are on how they are. A drive that does not answer has what it said last, with
// the time when it did, and is not asked again until the first command has ended. It is safe for concurrent use.
type healthWatch struct {
	clock    clock.WithTicker
	failures *prometheus.CounterVec
	values   []healthValue
	warning  *prometheus.Desc
	// look at once at drives that were not asked yet.
	look chan struct{}

	mu     sync.Mutex
	target engine.Measured
	drives map[string]*watchedDrive // by their pools' devices
	// waiting for the answers of these: also of a drive that came and went meanwhile.
	waiting map[asked]bool
}

// asked is a drive of a target.
type asked struct {
	target engine.Measured
	id     string
}

// healthValue is a metric of a drive.
type healthValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*watchedDrive) float64
}

// watchedDrive is a drive and what it said last.
type watchedDrive struct {
	labels []string
	// asked at some time.
	asked  bool
	health device.Health
	// at is when it answered; zero before it did.
	at time.Time
}

// newHealthWatch that counts in failures, by method, when a drive does not answer.
func newHealthWatch(c clock.WithTicker, failures *prometheus.CounterVec) *healthWatch {
	w := &healthWatch{
		clock: c, failures: failures, look: make(chan struct{}, 1), drives: map[string]*watchedDrive{}, waiting: map[asked]bool{},
		warning: prometheus.NewDesc("weft_agent_drive_critical_warning", "1 while the drive gives this warning, else 0.", slices.Concat(driveLabels, []string{"warning"}), nil),
	}
	add := func(desc *prometheus.Desc, kind prometheus.ValueType, of func(*watchedDrive) float64) {
		w.values = append(w.values, healthValue{desc, kind, of})
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(prometheus.NewDesc("weft_agent_drive_used_ratio", "Part of the drive's expected life that is used up; may grow beyond 1.", driveLabels, nil), gauge, func(d *watchedDrive) float64 { return d.health.UsedRatio })
	add(prometheus.NewDesc("weft_agent_drive_spare_ratio", "Spare capacity of the drive that is left, of 1.", driveLabels, nil), gauge, func(d *watchedDrive) float64 { return d.health.SpareRatio })
	add(prometheus.NewDesc("weft_agent_drive_spare_threshold_ratio", "Spare capacity below which the drive warns, of 1.", driveLabels, nil), gauge, func(d *watchedDrive) float64 { return d.health.SpareThresholdRatio })
	add(prometheus.NewDesc("weft_agent_drive_media_errors_total", "Number of errors of the drive's media in its life.", driveLabels, nil), counter, func(d *watchedDrive) float64 { return d.health.MediaErrors })
	add(prometheus.NewDesc("weft_agent_drive_temperature_celsius", "Composite temperature of the drive.", driveLabels, nil), gauge, func(d *watchedDrive) float64 { return d.health.TemperatureCelsius })
	add(prometheus.NewDesc("weft_agent_drive_power_on_seconds_total", "Time that the drive was in operation in its life, in whole hours.", driveLabels, nil), counter, func(d *watchedDrive) float64 { return d.health.PowerOnHours * time.Hour.Seconds() })
	add(prometheus.NewDesc("weft_agent_drive_unsafe_shutdowns_total", "Number of losses of power without a shutdown in the drive's life.", driveLabels, nil), counter, func(d *watchedDrive) float64 { return d.health.UnsafeShutdowns })
	add(prometheus.NewDesc("weft_agent_drive_written_bytes_total", "Bytes written to the drive in its life.", driveLabels, nil), counter, func(d *watchedDrive) float64 { return d.health.WrittenBytes })
	add(prometheus.NewDesc("weft_agent_drive_read_bytes_total", "Bytes read from the drive in its life.", driveLabels, nil), counter, func(d *watchedDrive) float64 { return d.health.ReadBytes })
	add(prometheus.NewDesc("weft_agent_drive_health_timestamp_seconds", "When the drive reported this, in seconds since 1970.", driveLabels, nil), gauge, func(d *watchedDrive) float64 { return float64(d.at.Unix()) })
	return w
}

// use a target and the drives of its pools from now on: the values of driveLabels, by the pools' devices.
func (w *healthWatch) use(target engine.Measured, drives map[string][]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.drives
	if target != w.target {
		was = nil
	}
	w.target, w.drives = target, make(map[string]*watchedDrive, len(drives))
	for id, labels := range drives {
		d := was[id]
		if d == nil {
			d = &watchedDrive{}
			w.lookSoon()
		}
		d.labels = labels
		w.drives[id] = d
	}
}

func (w *healthWatch) lookSoon() {
	select {
	case w.look <- struct{}{}:
	default: // a look is due already
	}
}

// Start asks until ctx ends.
func (w *healthWatch) Start(ctx context.Context) error {
	period := w.clock.NewTicker(healthPeriod)
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.look:
			w.ask(ctx, false)
		case <-period.C():
			w.ask(ctx, true)
		}
	}
}

// ask the drives, all or those that were not asked yet. Nothing waits for their answers.
func (w *healthWatch) ask(ctx context.Context, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, d := range w.drives {
		this := asked{w.target, id}
		if w.target != nil && !w.waiting[this] && (all || !d.asked) {
			d.asked, w.waiting[this] = true, true
			go w.askOne(ctx, this)
		}
	}
}

func (w *healthWatch) askOne(ctx context.Context, this asked) {
	health, err := this.target.DriveHealth(ctx, this.id)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, this)
	d := w.drives[this.id]
	if d == nil || this.target != w.target {
		d = &watchedDrive{asked: true} // nobody's any more
	}
	if err != nil && !d.asked {
		w.lookSoon() // it came back while a former question was open
	}
	switch {
	case err == nil:
		d.asked, d.health, d.at = true, health, w.clock.Now()
	case ctx.Err() == nil && !errors.Is(err, engine.ErrUnsupported):
		w.failures.WithLabelValues(methodDriveHealth).Inc()
		log.FromContext(ctx).Error(err, "Cannot read the health log of a drive", "device", this.id)
	}
}

// Describe implements prometheus.Collector.
func (w *healthWatch) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range w.values {
		ch <- v.desc
	}
	ch <- w.warning
}

// Collect implements prometheus.Collector.
func (w *healthWatch) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.drives {
		if d.at.IsZero() {
			continue
		}
		for _, v := range w.values {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.of(d), d.labels...)
		}
		for name, bit := range warnings {
			is := 0.0
			if d.health.Warnings&bit != 0 {
				is = 1
			}
			ch <- prometheus.MustNewConstMetric(w.warning, prometheus.GaugeValue, is, append(d.labels[:len(d.labels):len(d.labels)], name)...)
		}
	}
}

// drivesOf the pools that can be read, with the values of driveLabels, by their devices.
func drivesOf(s *decide.Observed) map[string][]string {
	drives := map[string][]string{}
	if s.Inventory == nil {
		return drives
	}
	pools := map[string]bool{}
	for _, p := range s.Target.State.Pools {
		pools[p.Device] = p.Err == nil
	}
	for _, d := range s.Inventory.Drives {
		if d.NVMe && pools[d.ID] {
			drives[d.ID] = []string{d.ID, d.Model, d.Serial}
		}
	}
	return drives
}
