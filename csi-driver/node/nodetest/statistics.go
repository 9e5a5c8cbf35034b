// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// newStatistics of a block device, as Linux 6.12 prints them.
const newStatistics = "       0        0        0        0        0        0        0        0        0        0        0        0        0        0        0        0        0"

// statistics in a device's folder, unless it has some: the kernel scans again and again.
func (k *Kernel) statistics(dir string) error {
	if file := filepath.Join(dir, "stat"); !k.exists(file) {
		return k.write(file, newStatistics)
	}
	return nil
}

// SetStatistics of a block device or of a path, such as nvme0c1n1, to a line as the kernel prints it.
func (k *Kernel) SetStatistics(device, line string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	dir := filepath.Join("sys/class/block", device)
	if controller, _, isPath := strings.Cut(device, "c"); isPath && strings.HasPrefix(controller, "nvme") {
		for _, c := range k.controllers {
			if at := filepath.Join(controllersDir, c.name, device); k.exists(at) {
				dir = at
			}
		}
	}
	if !k.exists(filepath.Join(dir, "stat")) {
		return fmt.Errorf("there is no block device %s", device)
	}
	return k.write(filepath.Join(dir, "stat"), line)
}

// events are the kernel's to one who listens. They are kept until they are read.
type events struct {
	mu     sync.Mutex
	queue  []string
	wake   *sync.Cond
	closed bool
}

// Events opens the kernel's uevents: each read gives one.
func (k *Kernel) Events() (io.ReadCloser, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &events{}
	e.wake = sync.NewCond(&e.mu)
	k.listeners = append(k.listeners, e)
	return e, nil
}

// Read implements io.Reader. What does not fit is lost, as of a datagram.
func (e *events) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.queue) == 0 && !e.closed {
		e.wake.Wait()
	}
	if e.closed {
		return 0, io.ErrClosedPipe
	}
	n := copy(p, e.queue[0])
	e.queue = e.queue[1:]
	return n, nil
}

// Close implements io.Closer.
func (e *events) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake.Broadcast()
	return nil
}

// event of a controller, to all who listen.
func (k *Kernel) event(action, controller string, variables ...string) {
	path := "/devices/virtual/nvme-fabrics/ctl/" + controller
	parts := append([]string{action + "@" + path, "ACTION=" + action, "DEVPATH=" + path, "SUBSYSTEM=nvme"}, variables...)
	for _, e := range k.listeners {
		e.mu.Lock()
		e.queue = append(e.queue, strings.Join(parts, "\x00")+"\x00")
		e.wake.Broadcast()
		e.mu.Unlock()
	}
}

// connected tells of a connection that was made.
func (k *Kernel) connected(controller string) { k.event("change", controller, "NVME_EVENT=connected") }

// Series that a collector gives at a scrape, such as `name{label="value"}`, with their labels in order; of histograms,
// the number of observations.
func Series(c prometheus.Collector) (map[string]float64, error) {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		return nil, err
	}
	families, err := registry.Gather()
	return seriesOf(slices.Values(families)), err
}

// SeriesIn a text that a scrape gave.
func SeriesIn(text io.Reader) (map[string]float64, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	return seriesOf(maps.Values(families)), err
}

func seriesOf(families iter.Seq[*dto.MetricFamily]) map[string]float64 {
	all := map[string]float64{}
	for family := range families {
		for _, m := range family.GetMetric() {
			all[family.GetName()+"{"+labels(m)+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func labels(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		all = append(all, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return strings.Join(all, ",")
}
