// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// collectTimeout bounds one scrape's wait for a cache that is still being filled.
const collectTimeout = 5 * time.Second

var (
	targetNodes = prometheus.NewDesc("weft_target_nodes",
		"Number of nodes of an NvmfTarget, by state: matching, capable, ready, updated or outdated (a change that disturbs I/O is pending).", []string{"target", "state"}, nil)
	targetCapacity = prometheus.NewDesc("weft_target_capacity_bytes",
		"Capacity of an NvmfTarget in bytes, by kind: total, allocated (promised to volumes) or free.", []string{"target", "kind"}, nil)
)

// Metrics gives gauges from the status of all NvmfTargets, which is the only
// place they are kept; every replica gives the same. It is a manager's Runnable: registered while
// it runs.
type Metrics struct {
	// Reader of NvmfTargets, from a cache.
	Reader client.Reader
	// Registry that is scraped.
	Registry prometheus.Registerer
}

// Start implements manager.Runnable.
func (m *Metrics) Start(ctx context.Context) error {
	c := &collector{ctx: ctx, reader: m.Reader}
	if err := m.Registry.Register(c); err != nil {
		return fmt.Errorf("register the metrics of NvmfTargets: %w", err)
	}
	defer m.Registry.Unregister(c)
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: all replicas are scraped.
func (*Metrics) NeedLeaderElection() bool { return false }

// collector has the context of the run that it belongs to: a scrape brings none.
type collector struct {
	ctx    context.Context
	reader client.Reader
}

// Describe implements prometheus.Collector.
func (*collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- targetNodes
	descs <- targetCapacity
}

// Collect implements prometheus.Collector. When NvmfTargets cannot be read the scrape
// fails: no value is not the same as no targets.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.ctx, collectTimeout)
	defer cancel()
	var targets v1alpha1.NvmfTargetList
	if err := c.reader.List(ctx, &targets); err != nil {
		out <- prometheus.NewInvalidMetric(targetNodes, fmt.Errorf("list NvmfTargets: %w", err))
		return
	}
	for i := range targets.Items {
		name, status := targets.Items[i].Name, &targets.Items[i].Status
		for state, n := range map[string]int32{
			"matching": status.Nodes.Matching, "capable": status.Nodes.Capable, "ready": status.Nodes.Ready,
			"updated": status.Rollout.Updated, "outdated": status.Rollout.Outdated,
		} {
			out <- prometheus.MustNewConstMetric(targetNodes, prometheus.GaugeValue, float64(n), name, state)
		}
		for kind, q := range map[string]*resource.Quantity{"total": status.Capacity.Total, "allocated": status.Capacity.Allocated, "free": status.Capacity.Free} {
			if q != nil {
				out <- prometheus.MustNewConstMetric(targetCapacity, prometheus.GaugeValue, q.AsApproximateFloat64(), name, kind)
			}
		}
	}
}
