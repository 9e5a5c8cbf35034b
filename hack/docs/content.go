// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

const mib = 1 << 20

// receiveQueues plans the published set-up of shared receive queues for so many jobs, with and without them.
func receiveQueues(p published, jobs int32, mode v1alpha1.SRQMode) (*v1alpha1.Plan, error) {
	node := server(1, 4)
	plan, reasons := sizing.Plan(node, target(node, v1alpha1.TransportRDMA, func(s *v1alpha1.NvmfTargetSpec) {
		s.Cores = &v1alpha1.Cores{Count: new(p.SRQ.Cores), MainCore: v1alpha1.MainCoreShared}
		s.Attachments = v1alpha1.Attachments{Expected: jobs, IOQueues: 1}
		s.Transports[0].QueueDepth = p.SRQ.QueueDepth
		s.Transports[0].SRQ = &v1alpha1.SRQ{Mode: mode}
		if mode != v1alpha1.SRQDisabled {
			s.Transports[0].SRQ.Depth = new(p.SRQ.SRQDepth)
		}
	}))
	if plan == nil {
		return nil, fmt.Errorf("%d jobs: %v", jobs, reasons)
	}
	return plan, nil
}

func bothReceiveQueues(p published, jobs int32) (own, shared int64, auto *v1alpha1.Plan, err error) {
	without, err := receiveQueues(p, jobs, v1alpha1.SRQDisabled)
	if err != nil {
		return 0, 0, nil, err
	}
	with, err := receiveQueues(p, jobs, v1alpha1.SRQEnabled)
	if err != nil {
		return 0, 0, nil, err
	}
	auto, err = receiveQueues(p, jobs, v1alpha1.SRQAuto)
	return memory(without, "RDMA receive queues"), memory(with, "shared receive queues"), auto, err
}

func receiveQueueTable(p published) (string, error) {
	var b strings.Builder
	b.WriteString("| jobs | published kIOPS, own / shared | published memory of the target, own / shared | planned for receive queues, own / shared | Auto takes |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range p.SRQ.Rows {
		own, shared, auto, err := bothReceiveQueues(p, row.Jobs)
		if err != nil {
			return "", err
		}
		takes := "own"
		if auto.SPDK.Transports[0].SRQDepth != nil {
			takes = "shared"
		}
		fmt.Fprintf(&b, "| %d | %g / %g | %.1f / %.1f MiB | %.1f / %.1f MiB | %s |\n", row.Jobs, row.KIOPS[0], row.KIOPS[1],
			float64(row.OwnKiB)/1024, float64(row.SRQKiB)/1024, float64(own)/mib, float64(shared)/mib, takes)
	}
	return b.String(), nil
}

func receiveQueueChart(p published) (chart, error) {
	own, shared := line{name: "plan: own queues"}, line{name: "plan: shared queues"}
	for _, jobs := range []int32{1, 16, 32, 48, 64, 96, 128} {
		a, b, _, err := bothReceiveQueues(p, jobs)
		if err != nil {
			return chart{}, err
		}
		own.points = append(own.points, [2]float64{float64(jobs), float64(a) / mib})
		shared.points = append(shared.points, [2]float64{float64(jobs), float64(b) / mib})
	}
	base := p.SRQ.Rows[0].OwnKiB
	measured := []line{{name: "published: own", dashed: true}, {name: "published: shared", dashed: true}}
	for _, row := range p.SRQ.Rows {
		for i, kib := range []int64{row.OwnKiB, row.SRQKiB} {
			measured[i].points = append(measured[i].points, [2]float64{float64(row.Jobs), float64(kib-base) / 1024})
		}
	}
	return chart{
		title: "Memory of receive queues", xTitle: "connections of one I/O queue, depth 128", yTitle: "MiB", width: 720, height: 380, markAt: math.NaN(),
		below:  "4 poll groups, 1 device, 4 KiB in capsule, shared depth 1024. Published: resident memory beyond one job's.",
		xTicks: []float64{0, 16, 32, 48, 64, 80, 96, 112, 128}, yTicks: []float64{0, 20, 40, 60, 80, 100, 120},
		lines: append([]line{own, shared}, measured...),
	}, nil
}

// kept is what bdev and accel take from today's pools, which the published prototype's did not share.
func kept(each, cores int32) int32 { return 2 * each * (cores + 1) }

// pacing plans the published set-up: 2 x 100 Gb/s, 15 drives; by itself, or with a row's buffers.
func pacing(cores int32, manual *pacingRow) (*v1alpha1.Plan, []sizing.Reason) {
	node := server(2, 15)
	return sizing.Plan(node, target(node, v1alpha1.TransportRDMA, func(s *v1alpha1.NvmfTargetSpec) {
		s.Cores = &v1alpha1.Cores{Count: new(cores), MainCore: v1alpha1.MainCoreShared}
		if manual != nil {
			s.Buffers = &v1alpha1.Buffers{Mode: v1alpha1.BuffersManual,
				Large: &v1alpha1.LargePool{Count: manual.Buffers + kept(16, cores), CachePerCore: manual.Cache},
				Small: &v1alpha1.SmallPool{Count: 4096 + kept(128, cores), CachePerCore: 128}}
		}
	}))
}

func bufferTable(p published) (string, error) {
	var b strings.Builder
	b.WriteString("| cores | buffers (cache of each) | QD 32 | QD 64 | QD 128 | QD 256 | weft says |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range p.Pacing.Rows {
		name := fmt.Sprintf("%d (%d)", row.Buffers, row.Cache)
		if row.Unbounded {
			name = "unbounded"
		}
		fmt.Fprintf(&b, "| %d | %s |", row.Cores, name)
		for _, gbps := range row.Gbps {
			if gbps == 0 {
				b.WriteString(" |")
			} else {
				fmt.Fprintf(&b, " %.1f |", gbps)
			}
		}
		verdict, err := judged(row)
		if err != nil {
			return "", err
		}
		b.WriteString(" " + verdict + " |\n")
	}
	return b.String(), nil
}

// judged is what a plan says of a row's buffers; Auto's own are marked.
func judged(row pacingRow) (string, error) {
	auto, reasons := pacing(row.Cores, nil)
	if auto == nil {
		return "", fmt.Errorf("no plan: %v", reasons)
	}
	if auto.SPDK.LargeBuffers-kept(16, row.Cores) == row.Buffers && auto.SPDK.Transports[0].LargeCache == row.Cache {
		return "**Auto takes this**", nil
	}
	plan, reasons := pacing(row.Cores, &row)
	if plan == nil {
		return "refused: " + brief(reasons[0].Message), nil
	}
	for _, setting := range []string{"largeBuffers", "transports[RDMA].largeCache"} {
		if w := warning(plan, setting); w != "" {
			return "warns: " + brief(w), nil
		}
	}
	return "nothing", nil
}

// brief is the first part of a message.
func brief(message string) string {
	message, _, _ = strings.Cut(message, ";")
	message, _, _ = strings.Cut(message, " (")
	return message
}

func bufferChart(p published) (chart, error) {
	auto, reasons := pacing(16, nil)
	if auto == nil {
		return chart{}, fmt.Errorf("no plan: %v", reasons)
	}
	buffers := auto.SPDK.LargeBuffers - kept(16, 16)
	c := chart{
		title: "Bandwidth over the number of buffers", xTitle: "buffers of 128 KiB for the data in flight", yTitle: "Gb/s", width: 720, height: 380,
		xWords: []string{"32", "64", "96", "128", "unbounded"}, xTicks: []float64{0, 1, 2, 3, 4}, yTicks: []float64{130, 140, 150, 160, 170, 180, 190},
		markAt: float64(buffers)/32 - 1, mark: fmt.Sprintf("Auto: %d", buffers),
		below: "Published: 15 drives, 2 x 100 Gb/s, 128 KiB random reads, 16 cores (I/O pacing, Mellanox prototype on SPDK).",
	}
	for i, depth := range []int{32, 64, 128, 256} {
		l := line{name: fmt.Sprintf("queue depth %d", depth)}
		for j, want := range []int32{32, 64, 96, 128, 4096} {
			for _, row := range p.Pacing.Rows {
				if row.Cores == 16 && row.Buffers == want && row.Gbps[0] > 0 {
					l.points = append(l.points, [2]float64{float64(j), row.Gbps[i]})
				}
			}
		}
		c.lines = append(c.lines, l)
	}
	return c, nil
}

func coreChart(p published) (chart, error) {
	dynamic, static := line{name: "mode: Dynamic"}, line{name: "mode: Static"}
	for _, row := range p.Scheduler.Rows {
		dynamic.points = append(dynamic.points, [2]float64{row.DynamicKIOPS, row.DynamicCores})
		static.points = append(static.points, [2]float64{row.StaticKIOPS, row.StaticCores})
	}
	return chart{
		title: "Cores that a target takes for its work", xTitle: "thousand 4 KiB random reads a second", yTitle: "cores", width: 720, height: 340, markAt: math.NaN(),
		xTicks: []float64{0, 500, 1000, 1500, 2000, 2500, 3000, 3500}, yTicks: []float64{0, 5, 10, 15, 20, 25, 30, 35},
		below: "Published: a target with 30 cores, 16 connections; the source counts 31 cores in use when static (SDC 2021).",
		lines: []line{dynamic, static},
	}, nil
}
