// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// onFake of a release, whatever target the other tests run on.
func onFake(t *testing.T, version string) *machine {
	t.Helper()
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	m.fake.Version = version
	return m
}

// TestTooOld a target is refused by name, with what to use instead, before anything is set or served.
func TestTooOld(t *testing.T) {
	g := NewWithT(t)
	m := onFake(t, "25.01")
	m.launch(t)
	e := m.engine(t)
	err := e.Start(t.Context(), m.plan)
	g.Expect(err).To(MatchError(engine.ErrUnsupported))
	g.Expect(err).To(MatchError(ContainSubstring("it is SPDK 25.01; use an image with SPDK 25.05 or later, best 26.05")))
	export := engine.Export{NQN: v1alpha1.NQNPrefix + "pvc-1", Serial: "1", Model: "weft"}
	g.Expect(e.Export(t.Context(), []engine.Export{export})).To(ConsistOf(MatchError(engine.ErrUnsupported)))
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(client.Close)
	methods, err := spdkrpc.Call(t.Context(), client, spdkrpc.RPCGetMethods{Current: true})
	check(t, err)
	g.Expect(methods).To(ContainElement("framework_start_init"), "it still waits for its settings")
}

// TestNewer releases are taken for the latest one that is known.
func TestNewer(t *testing.T) {
	m := onFake(t, "27.01")
	m.restart(t)
}

// TestRDMAOfInterruptMode: a release that cannot serve it is not asked to. A plan that does not want that mode any more
// needs a restart only.
func TestRDMAOfInterruptMode(t *testing.T) {
	g := NewWithT(t)
	for version, works := range map[string]bool{"25.05": false, "25.09": false, "26.01": true, "26.05": true} {
		m := onFake(t, version)
		m.fake.InterruptMode = true
		m.launch(t)
		polls := m.plan
		m.plan.SPDK = polls.SPDK.DeepCopy()
		m.plan.SPDK.Mode = v1alpha1.CoresInterrupt
		err := m.engine(t).Start(t.Context(), m.plan)
		if works {
			g.Expect(err).NotTo(HaveOccurred(), version)
			continue
		}
		g.Expect(err).To(MatchError(engine.ErrUnsupported), version)
		g.Expect(err).To(MatchError(ContainSubstring("use cores.mode Dynamic or Static, or an image with a later release, best 26.05")), version)
		g.Expect(m.engine(t).Start(t.Context(), polls)).To(MatchError(engine.ErrRestartNeeded), version)
	}
}

// TestRDMAWithoutHugepages: a release that refuses it does not say why.
func TestRDMAWithoutHugepages(t *testing.T) {
	g := NewWithT(t)
	const why = "set memory.hugepages to 2Mi or 1Gi, or use an image with SPDK 26.05"
	for _, c := range []struct {
		version   string
		hugepages v1alpha1.Hugepages
		said      bool
	}{
		{"25.05", v1alpha1.HugepagesDisabled, true},
		{"25.05", v1alpha1.Hugepages2Mi, false},
		{"26.05", v1alpha1.HugepagesDisabled, false},
	} {
		m := onFake(t, c.version)
		m.plan = planOf(v1alpha1.TransportTCP, v1alpha1.TransportRDMA)
		m.plan.SPDK.Hugepages = c.hugepages
		m.launch(t)
		m.target.(*spdktest.Target).Inject(spdktest.Fault{Method: "nvmf_create_transport", Skip: 1, Error: &spdktest.AnswerError{Code: -32603, Message: "Failed to add transport to tgt.(-1)"}})
		err := m.engine(t).Start(t.Context(), m.plan)
		g.Expect(err).To(MatchError(engine.ErrUnsupported), c.version)
		g.Expect(strings.Contains(err.Error(), why)).To(Equal(c.said), "%s, %s: %v", c.version, c.hugepages, err)
	}
}

// TestDrivesWithoutHugepages: of a release that cannot drive them, a plan is refused before SPDK says "No such device".
func TestDrivesWithoutHugepages(t *testing.T) {
	g := NewWithT(t)
	for _, c := range []struct {
		version   string
		hugepages v1alpha1.Hugepages
		address   string
		refused   bool
	}{
		{"25.05", v1alpha1.HugepagesDisabled, "0000:5e:00.0", true},
		{"25.05", v1alpha1.HugepagesDisabled, "", false},
		{"25.05", v1alpha1.Hugepages2Mi, "0000:5e:00.0", false},
		{"26.05", v1alpha1.HugepagesDisabled, "0000:5e:00.0", false},
	} {
		m := onFake(t, c.version)
		m.plan.SPDK.Hugepages = c.hugepages
		m.plan.Drives = []v1alpha1.PlannedDrive{{ID: "a", PCIAddress: c.address}}
		m.launch(t)
		err := m.engine(t).Start(t.Context(), m.plan)
		if !c.refused {
			g.Expect(err).NotTo(HaveOccurred(), "%+v", c)
			continue
		}
		g.Expect(err).To(MatchError(engine.ErrUnsupported), "%+v", c)
		g.Expect(err).To(MatchError(ContainSubstring("set memory.hugepages to 2Mi or 1Gi, or devices.driver to Kernel")), "%+v", c)
	}
}
