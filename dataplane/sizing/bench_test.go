// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// BenchmarkPlanOf1000Nodes is a whole cluster: what the operator does when a target's spec changes. It takes about
// 100 ms.
func BenchmarkPlanOf1000Nodes(b *testing.B) {
	both := transports(rdma(4420, iface("ens1f0")), tcp(4420, iface("ens1f0")))
	for name, s := range map[string]v1alpha1.NvmfTargetSpec{
		"SPDK":                  spdk(both),
		"SPDK, refused":         spdk(both, limit("300Mi")),
		"Nvmet":                 spdk(both, func(s *v1alpha1.NvmfTargetSpec) { s.Engine = v1alpha1.EngineNvmet }),
		"SPDK, its own drivers": spdk(both, driver(v1alpha1.DriverVFIO)),
	} {
		b.Run(name, func(b *testing.B) {
			nodes := make([]sizing.Node, 1000)
			for i := range nodes {
				nodes[i] = bigServer()
				nodes[i].Name = fmt.Sprintf("storage-%d", i)
				for j := 4; j < 24; j++ {
					d := nodes[i].Inventory.Drives[0]
					d.ID, d.Name, d.PCIAddress = fmt.Sprintf("eui.%d", j), fmt.Sprintf("nvme%dn1", j), fmt.Sprintf("0000:%02x:00.0", j)
					nodes[i].Inventory.Drives = append(nodes[i].Inventory.Drives, d)
				}
			}
			before := processorTime(b)
			b.ResetTimer()
			for b.Loop() {
				for i := range nodes {
					if plan, reasons := sizing.Plan(nodes[i], s); (plan == nil) == (len(reasons) == 0) {
						b.Fatal(plan, reasons)
					}
				}
			}
			// What other programs take of the machine does not count.
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime that this process has taken, with its collection of garbage.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
