// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// nicShare is what a CPU that takes interrupts of a NIC is taken to give to them at least: time that the kernel spends
// for them outside of interrupts is not counted as theirs.
const nicShare = 0.05

// interruptReader tells how much of its time each CPU gives to interrupts, from one reading to the next.
type interruptReader struct {
	// root of the node's filesystem.
	root  string
	times map[int]cpuTimes
	nics  map[int]uint64
}

// cpuTimes of a CPU since boot, in ticks.
type cpuTimes struct{ interrupts, all uint64 }

// read the share of each CPU's time, 0 to 1. The first reading knows none.
func (r *interruptReader) read(nics []v1alpha1.NIC) (map[int]float64, error) {
	stat, err := os.ReadFile(filepath.Join(r.root, "proc/stat"))
	if err != nil {
		return nil, fmt.Errorf("read the CPUs' times: %w", err)
	}
	table, err := os.ReadFile(filepath.Join(r.root, "proc/interrupts"))
	if err != nil {
		return nil, fmt.Errorf("read interrupts: %w", err)
	}
	times, counts := parseTimes(string(stat)), parseInterrupts(string(table), r.irqsOf(nics))
	shares := map[int]float64{}
	for cpu, is := range times {
		was, known := r.times[cpu]
		if known && is.all > was.all && is.interrupts >= was.interrupts {
			shares[cpu] = float64(is.interrupts-was.interrupts) / float64(is.all-was.all)
		}
		if before, known := r.nics[cpu]; known && counts[cpu] > before {
			shares[cpu] = max(shares[cpu], nicShare)
		}
	}
	r.times, r.nics = times, counts
	return shares, nil
}

// irqsOf NICs; of one that is no PCI device, or has no message-signalled interrupts, none.
func (r *interruptReader) irqsOf(nics []v1alpha1.NIC) map[string]bool {
	irqs := map[string]bool{}
	for _, nic := range nics {
		if nic.PCIAddress == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(r.root, "sys/bus/pci/devices", nic.PCIAddress, "msi_irqs"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			irqs[e.Name()] = true
		}
	}
	return irqs
}

// parseTimes of /proc/stat: "cpu3 user nice system idle iowait irq softirq steal ...".
func parseTimes(stat string) map[int]cpuTimes {
	times := map[int]cpuTimes{}
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		cpu, err := strconv.Atoi(fields[0][len("cpu"):])
		if err != nil {
			continue // the line of all CPUs
		}
		var t cpuTimes
		for i, field := range fields[1:9] {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				continue
			}
			t.all += n
			if i == 5 || i == 6 {
				t.interrupts += n
			}
		}
		times[cpu] = t
	}
	return times
}

// parseInterrupts of /proc/interrupts counts those of some IRQs by CPU.
func parseInterrupts(table string, irqs map[string]bool) map[int]uint64 {
	counts := map[int]uint64{}
	var cpus []int
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if cpus == nil {
			for _, f := range fields {
				if cpu, err := strconv.Atoi(strings.TrimPrefix(f, "CPU")); err == nil {
					cpus = append(cpus, cpu)
					counts[cpu] = 0
				}
			}
			continue
		}
		if len(fields) <= len(cpus) || !irqs[strings.TrimSuffix(fields[0], ":")] {
			continue
		}
		for i, cpu := range cpus {
			if n, err := strconv.ParseUint(fields[i+1], 10, 64); err == nil {
				counts[cpu] += n
			}
		}
	}
	return counts
}
