// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

var perfTotal = regexp.MustCompile(`(?m)^Total\s*:\s*([0-9.]+)\s+([0-9.]+)`)

// TestLimitsHold for a host that is connected and does what it can: I/Os and MiB a second of each limit, changed
// between.
func TestLimitsHold(t *testing.T) {
	spdktest.RealTarget(t)
	perf := spdktest.RealPerf(t)
	g := NewWithT(t)
	m := newMachine(t)
	m.restart(t)
	e := m.engine(t)
	d := m.file(1 << 30)
	id, host := engine.ID(uuid.NewString()), v1alpha1.HostNQNPrefix+uuid.NewString()
	x := engine.Export{NQN: v1alpha1.NQNPrefix + "pvc-limits", Serial: "s", Model: "weft", MaxIOQueues: 2,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}}, Hosts: []string{host}}
	portal := m.portals()[0]
	for _, errs := range [][]error{
		e.OpenPools(t.Context(), []engine.Device{d}), e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: d.ID, SizeBytes: 64 << 20}}),
		e.Export(t.Context(), []engine.Export{x}), e.OpenPortals(t.Context(), []engine.Portal{portal}),
	} {
		check(t, errs[0])
	}
	for _, c := range []struct {
		limits              engine.QoS
		io                  string
		mostIOPS, mostMiBps float64
	}{
		{engine.QoS{}, "4096", 0, 0},
		{engine.QoS{IOPS: 1000}, "4096", 1000, 0},
		{engine.QoS{IOPS: 3000}, "4096", 3000, 0},
		{engine.QoS{MiBps: 8}, "65536", 0, 8},
		{engine.QoS{WriteMiBps: 4}, "65536", 0, 4},
		{engine.QoS{}, "65536", 0, 0},
	} {
		check(t, e.SetQoS(t.Context(), []engine.VolumeQoS{{ID: id, QoS: c.limits}})[0])
		out, err := exec.CommandContext(t.Context(), perf, "-q", "32", "-o", c.io, "-w", "randwrite", "-t", "6", "-c", "0x2", "-s", "256", "--no-huge", "-r",
			fmt.Sprintf("trtype:TCP adrfam:IPv4 traddr:%s trsvcid:%d subnqn:%s hostnqn:%s", portal.Address, portal.Port, x.NQN, host)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		total := perfTotal.FindSubmatch(out)
		g.Expect(total).To(HaveLen(3), string(out))
		iops, err := strconv.ParseFloat(string(total[1]), 64)
		check(t, err)
		mibps, err := strconv.ParseFloat(string(total[2]), 64)
		check(t, err)
		t.Logf("limits %+v: %.0f IOPS, %.1f MiB/s", c.limits, iops, mibps)
		// A burst at the start, of what the queue holds, is on top.
		if c.mostIOPS > 0 {
			g.Expect(iops).To(BeNumerically("<=", 1.1*c.mostIOPS))
		}
		if c.mostMiBps > 0 {
			g.Expect(mibps).To(BeNumerically("<=", 1.1*c.mostMiBps+1))
		}
	}
}
