// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

// controllers that a change of a node can lead to.
var controllers = []string{"nvmftarget", "nvmfnode", "targetpod", "guard"}

// BenchmarkScale measures the operator beside as many objects as a cluster of each size has: its start, what it keeps
// in memory, and what it does, and asks of the API server, for one change of each kind. Reconciles and requests do not
// depend on how busy the machine is; times do.
//
//	make bench-scale
func BenchmarkScale(b *testing.B) {
	server.BenchmarkSizes(b, "scale", measureOperator)
}

func measureOperator(b *testing.B, fleet *apiserver.Fleet) {
	server.ServeFor(b)
	m := &measured{B: b}
	before := apiserver.HeapMiB()
	m.start("plan")()       // all nodes that are new
	end := m.start("start") // once there is nothing left to do
	defer end()
	b.ReportMetric(apiserver.HeapMiB()-before, "heap-MiB")
	b.ReportMetric(0, "ns/op") // nothing is repeated b.N times

	const times = 5
	m.each("free", times, func(i int) error { // as an agent writes when hosts have written
		return patchStatus(b.Context(), fleet.Node(i), `{"status":{"pools":[{"device":%q,"ready":true,"total":"16Ti","free":"%dGi"}]}}`, apiserver.FleetPool, 1000+i)
	})
	m.each("lease", times, func(i int) error {
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro)))
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentLeasePrefix + fleet.Node(i)}}
		return admin.Patch(b.Context(), lease, patch)
	})
	m.each("inventory", times, func(i int) error { // a drive is replaced
		return patchStatus(b.Context(), fleet.Node(i), `{"status":{"inventory":{"kernelVersion":"6.12.%d"}}}`, time.Now().UnixNano()%1000)
	})
	m.each("silent", times, func(i int) error { // a report that makes a node fail, and the target with it
		return patchStatus(b.Context(), fleet.Node(0), `{"status":{"observedGeneration":%d}}`, i)
	})
	m.target(fleet)
}

func patchStatus(ctx context.Context, node, format string, args ...any) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...))
	return admin.Status().Patch(ctx, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)
}

// settled is how long nothing happens before the operator counts as having done its work.
const settled = time.Second

// measured operator.
type measured struct {
	*testing.B
	asked apiserver.Requests
}

// start the operator, and wait until it has done its work. The returned function ends it.
func (m *measured) start(what string) (end func()) {
	m.asked.Reset()
	begun, cpu := time.Now(), apiserver.CPUTime()
	ctx, cancel := context.WithCancel(m.Context())
	mgr, err := newManager(ctx, rest.CopyConfig(m.asked.Of(operatorConfig)), settings{
		Version: operatorVersion, Namespace: namespace, MetricsBindAddress: off, HealthProbeBindAddress: off,
		WebhookBindAddress: off, AllowSeveral: true, TargetImage: targetImage,
	})
	if err != nil {
		m.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		m.Fatal("the caches do not fill")
	}
	m.settle()
	counts, received := m.asked.Reset()
	m.Logf("%s: %v", what, counts)
	m.ReportMetric((time.Since(begun) - settled).Seconds(), what+"-s")
	m.ReportMetric((apiserver.CPUTime() - cpu).Seconds(), what+"-cpu-s")
	m.ReportMetric(float64(apiserver.Writes(counts)), what+"-writes")
	m.ReportMetric(float64(received)/(1<<20), what+"-received-MiB")
	return func() {
		cancel()
		if err := <-done; err != nil {
			m.Error(err)
		}
	}
}

// settle waits until the operator has nothing to do.
func (m *measured) settle() {
	m.Helper()
	apiserver.AwaitQuiet(m, &m.asked, settled, func() bool {
		return metric(m, "workqueue_depth", "") == 0 && metric(m, "controller_runtime_active_workers", "") == 0
	})
}

// each change, one after the other: the operator has done its work before the next.
func (m *measured) each(what string, times int, change func(i int) error) {
	m.settle()
	m.asked.Reset()
	reconciled := map[string]float64{}
	for _, c := range controllers {
		reconciled[c] = -metric(m, "controller_runtime_reconcile_total", c)
	}
	cpu := apiserver.CPUTime()
	for i := range times {
		if err := change(i); err != nil {
			m.Fatal(err)
		}
		m.settle()
	}
	cpu = apiserver.CPUTime() - cpu
	counts, _ := m.asked.Reset()
	m.Logf("%s: %v of %d", what, counts, times)
	for _, c := range controllers {
		m.ReportMetric((reconciled[c]+metric(m, "controller_runtime_reconcile_total", c))/float64(times), what+"-"+c)
	}
	m.ReportMetric(float64(apiserver.Writes(counts))/float64(times), what+"-writes")
	m.ReportMetric(cpu.Seconds()*1000/float64(times), what+"-cpu-ms")
}

// target that selects all nodes of the fleet: how long until its status says so.
func (m *measured) target(fleet *apiserver.Fleet) {
	m.settle()
	m.asked.Reset()
	target := fleet.NewTarget(fmt.Sprintf("second-%d", fleet.Nodes))
	begun := time.Now()
	if err := admin.Create(m.Context(), target); err != nil {
		m.Fatal(err)
	}
	for target.Status.ObservedGeneration == 0 {
		if err := admin.Get(m.Context(), client.ObjectKeyFromObject(target), target); err != nil {
			m.Fatal(err)
		}
	}
	m.ReportMetric(time.Since(begun).Seconds(), "target-s")
	m.settle()
	counts, _ := m.asked.Reset()
	m.Logf("target: %v", counts)
	m.ReportMetric(float64(apiserver.Writes(counts)), "target-writes")
	if err := admin.Delete(m.Context(), target); err != nil {
		m.Fatal(err)
	}
	m.settle()
}

// metric of this process, of one controller or the sum of all.
func metric(t testing.TB, name, controller string) float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if controller == "" || labelValue(m, "controller") == controller {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return total
}
