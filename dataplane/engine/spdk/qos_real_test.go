// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// TestLimitsHold for a host that is connected and does what it can: I/Os and MiB a second of each limit, changed
// between.
func TestLimitsHold(t *testing.T) {
	spdktest.RealTarget(t)
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
		ioBytes             int64
		mostIOPS, mostMiBps float64
	}{
		{engine.QoS{}, 4096, 0, 0},
		{engine.QoS{IOPS: 1000}, 4096, 1000, 0},
		{engine.QoS{IOPS: 3000}, 4096, 3000, 0},
		{engine.QoS{MiBps: 8}, 65536, 0, 8},
		{engine.QoS{WriteMiBps: 4}, 65536, 0, 4},
		{engine.QoS{}, 65536, 0, 0},
	} {
		check(t, e.SetQoS(t.Context(), []engine.VolumeQoS{{ID: id, QoS: c.limits}})[0])
		iops := writesPerSecond(t, portal.Portal, x, c.ioBytes)
		mibps := iops * float64(c.ioBytes) / mib
		t.Logf("limits %+v: %.0f IOPS, %.1f MiB/s", c.limits, iops, mibps)
		// A burst at the start is on top. On a machine that does not do as much, nothing is seen of a limit.
		if c.mostIOPS > 0 {
			g.Expect(iops).To(BeNumerically("<=", 1.1*c.mostIOPS))
		}
		if c.mostMiBps > 0 {
			g.Expect(mibps).To(BeNumerically("<=", 1.1*c.mostMiBps+1))
		}
	}
}

// writesPerSecond of hosts that write as fast as they can for some seconds, each somewhere else.
func writesPerSecond(t *testing.T, portal v1alpha1.Portal, x engine.Export, ioBytes int64) float64 {
	t.Helper()
	const hosts, seconds = 8, 4
	var all sync.WaitGroup
	var writes atomic.Int64
	errs := make([]error, hosts)
	data := make([]byte, ioBytes)
	began := time.Now()
	for n := range hosts {
		host, err := enginetest.ConnectWire(t.Context(), portal, x.NQN, x.Hosts[0], dhchap.Pair{}, 1)
		check(t, err)
		defer host.Close()
		all.Go(func() {
			for at := int64(n) * ioBytes; errs[n] == nil && time.Since(began) < seconds*time.Second; at += hosts * ioBytes {
				_, errs[n] = host.WriteAt(data, at%(host.SizeBytes()/ioBytes*ioBytes))
				writes.Add(1)
			}
		})
	}
	all.Wait()
	check(t, errors.Join(errs...))
	return float64(writes.Load()) / time.Since(began).Seconds()
}
