// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/balance"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

var recordLoads = flag.String("record-loads", "", "write the poll groups' loads of TestBalancesARealTarget to this file")

// TestBalancesARealTarget under load over loopback: both poll groups are put on one of its two cores, and the agent's
// own decision takes one of them to the other. It takes as much of two CPUs as it gets.
func TestBalancesARealTarget(t *testing.T) {
	path := spdktest.RealTarget(t)
	g := NewWithT(t)
	n := newSPDKNode(t)
	portal := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 24431}
	n.plan.SPDK.CoreMask, n.plan.SPDK.Mode, n.plan.SPDK.Balance = "0x3", v1alpha1.CoresStatic, true
	n.plan.Portals = []v1alpha1.PlannedPortal{planned(portal)}
	n.launch = func(ctx context.Context, socket string) (mortal, error) {
		return spdktest.RunReal(ctx, path, socket, "-m", "0x3", "--wait-for-rpc")
	}
	n.start()
	e := n.engine()
	g.Expect(e.Start(t.Context(), *n.plan)).To(Succeed())
	file := filepath.Join(n.dir, "pool.img")
	g.Expect(e.OpenPools(t.Context(), []engine.Device{{ID: file, Path: file, FileBytes: gib}})[0]).To(Succeed())
	var exports []engine.Export
	for i := range 2 {
		x := engine.Export{NQN: fmt.Sprintf("%spvc-%d", v1alpha1.NQNPrefix, i), Serial: fmt.Sprintf("s%d", i), Model: "weft", MaxIOQueues: 2,
			Namespaces: []engine.Namespace{{NSID: 1, Volume: id(i)}}, Hosts: []string{hostA}}
		g.Expect(e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id(i), Pool: file, SizeBytes: 64 << 20}})[0]).To(Succeed())
		g.Expect(e.Export(t.Context(), []engine.Export{x})[0]).To(Succeed())
		exports = append(exports, x)
	}
	g.Expect(e.OpenPortals(t.Context(), []engine.Portal{{Portal: portal, QueueDepth: 128, InCapsuleDataBytes: 4096}})[0]).To(Succeed())
	before, err := e.Loads(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	homes := map[uint64]int{}
	var together []engine.ThreadMove
	for _, l := range before.Threads {
		if l.PollGroup {
			homes[l.ID] = l.Core
			together = append(together, engine.ThreadMove{Thread: l.ID, Core: 1, Allowed: []int{0, 1}})
		}
	}
	g.Expect(failedOf(e.MoveThreads(t.Context(), together))).To(BeEmpty())
	startLoad(t, portal, exports)

	recorder := events.NewFakeRecorder(100)
	metrics, err := NewMetrics(prometheus.NewRegistry())
	g.Expect(err).NotTo(HaveOccurred())
	clock := clocktesting.NewFakeClock(now)
	r := NewReconciler(Config{NodeName: nodeName, Recorder: recorder, Metrics: metrics, Clock: clock, HostRoot: "/"})
	// A machine of two CPUs, which the load takes too, does not keep a core busy.
	r.balanceOptions = balance.Options{Busy: 0.2, Threshold: 0.06}
	s := decide.Observed{Node: testNode(), Inventory: testInventory()}
	s.Node.Spec.Plan = n.plan
	var loads [][]float64
	last := before
	step := func() int {
		r.balanceThreads(t.Context(), e, &s)
		clock.Step(balancePeriod)
		is, err := e.Loads(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		loads = append(loads, loadsBetween(last, is))
		t.Logf("poll groups busy: %.2f; on cores %v", loads[len(loads)-1], coresOfGroups(is))
		last = is
		return len(recorder.Events)
	}
	g.Eventually(step, 4*time.Minute, 2*time.Second).Should(BeNumerically(">", 0), "a decision")
	event := <-recorder.Events
	t.Log(event)
	g.Expect(event).To(ContainSubstring("from core 1 to core 0"))
	g.Expect(coresOfGroups(last)).To(ConsistOf(0, 1))
	g.Eventually(func() int { return step()*0 + len(loads) }, time.Minute, time.Second).Should(BeNumerically(">", 24))
	g.Expect(recorder.Events).To(BeEmpty(), "and then it is quiet")

	n.plan.SPDK.Balance = false
	step()
	g.Expect(coresOfGroups(last)).To(Equal([]int{1, 1}), "where they were when balancing began")
	t.Log(<-recorder.Events)
	if *recordLoads != "" {
		data, err := json.Marshal(map[string]any{"target": "26.05, 2 cores, 2 poll groups, writes of 4 KiB over loopback", "loads": loads[1:]})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(*recordLoads, append(data, '\n'), 0o600)).To(Succeed())
	}
}

// startLoad of several hosts of each export, which write until the test ends.
func startLoad(t *testing.T, portal v1alpha1.Portal, exports []engine.Export) {
	t.Helper()
	const hostsOfEach = 4
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var writes atomic.Int64
	for n := range hostsOfEach * len(exports) {
		x := exports[n%len(exports)]
		host, err := enginetest.ConnectWire(ctx, portal, x.NQN, x.Hosts[0], dhchap.Pair{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer host.Close()
			block := make([]byte, enginetest.BlockBytes)
			for at := int64(n) * enginetest.BlockBytes; ctx.Err() == nil && err == nil; at += hostsOfEach * enginetest.BlockBytes {
				_, err = host.WriteAt(block, at%host.SizeBytes())
				writes.Add(1)
			}
			if err != nil {
				t.Errorf("a host that makes load: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
		t.Logf("%d writes", writes.Load())
	})
}

func coresOfGroups(l engine.Loads) []int {
	var cores []int
	for _, t := range l.Threads {
		if t.PollGroup {
			cores = append(cores, t.Core)
		}
	}
	return cores
}

// loadsBetween two samples: the share of its own time that each poll group was busy.
func loadsBetween(last, is engine.Loads) []float64 {
	var loads []float64
	total := map[int]uint64{}
	for i, t := range is.Threads {
		total[t.Core] += t.BusyTicks + t.IdleTicks - last.Threads[i].BusyTicks - last.Threads[i].IdleTicks
	}
	for i, t := range is.Threads {
		if t.PollGroup {
			loads = append(loads, float64(int(1000*float64(t.BusyTicks-last.Threads[i].BusyTicks)/float64(max(total[t.Core], 1))))/1000)
		}
	}
	return loads
}
