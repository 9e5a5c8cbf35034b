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
	nodeCondition = prometheus.NewDesc("weft_node_condition",
		"1 for each condition of an NvmfNode, with its status: True, False or Unknown.", []string{"node", "target", "condition", "status"}, nil)
)

// Metrics gives gauges from the status of all NvmfTargets and NvmfNodes, which is the only
// place they are kept; every replica gives the same. It is a manager's Runnable: registered while
// it runs.
type Metrics struct {
	// Reader of NvmfTargets and NvmfNodes, from a cache.
	Reader client.Reader
	// Registry that is scraped.
	Registry prometheus.Registerer
	// Others are registered with them.
	Others []prometheus.Collector
}

// Start implements manager.Runnable.
func (m *Metrics) Start(ctx context.Context) error {
	for _, c := range append([]prometheus.Collector{&collector{ctx: ctx, reader: m.Reader}}, m.Others...) {
		if err := m.Registry.Register(c); err != nil {
			return fmt.Errorf("register the operator's metrics: %w", err)
		}
		defer m.Registry.Unregister(c)
	}
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
	descs <- nodeCondition
}

// Collect implements prometheus.Collector. When NvmfTargets or NvmfNodes cannot be read the scrape
// fails: no value is not the same as no targets.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.ctx, collectTimeout)
	defer cancel()
	c.collectTargets(ctx, out)
	c.collectNodes(ctx, out)
}

// collectNodes gives one series for each condition: as its status changes, so does the series.
func (c *collector) collectNodes(ctx context.Context, out chan<- prometheus.Metric) {
	var nodes v1alpha1.NvmfNodeList
	if err := c.reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil { // they are only read, and large
		out <- prometheus.NewInvalidMetric(nodeCondition, fmt.Errorf("list NvmfNodes: %w", err))
		return
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		for _, is := range node.Status.Conditions {
			out <- prometheus.MustNewConstMetric(nodeCondition, prometheus.GaugeValue, 1, node.Name, node.Spec.Target, is.Type, string(is.Status))
		}
	}
}

func (c *collector) collectTargets(ctx context.Context, out chan<- prometheus.Metric) {
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
