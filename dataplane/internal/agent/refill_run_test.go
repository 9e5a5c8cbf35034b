// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// running is the whole agent of a lab, with its own rights and nothing but its target's word to tell it that something happened.
type running struct {
	*lab
	address string
}

func (l *lab) run(engines Engines) *running {
	l.t.Helper()
	r := &running{lab: l, address: freeAddress(l.t)}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, l.server.agentConfig, Options{
			NodeName: l.node, Namespace: testNamespace, HealthAddress: r.address, DeviceFolder: l.t.TempDir(),
			Inventory: &discovered{found: l.inventory}, Engines: engines, Resync: time.Hour,
		})
	}()
	l.t.Cleanup(func() {
		cancel()
		l.Eventually(ended, patience).Should(Receive(BeNil()))
	})
	return r
}

// get answers the status and the body of a page of the agent's health server.
func (r *running) get(path string) (string, error) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.address+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, body), err
}

func (r *running) nodeSays() map[string]string { return said(r.nvmfNode().Status.Conditions) }

// versions of all volumes: each write to one changes its.
func (l *lab) versions(count int) map[string]string {
	l.t.Helper()
	versions := map[string]string{}
	for n := 1; n <= count; n++ {
		v := l.volume(n)
		l.Expect(said(v.Status.Conditions)).To(HaveKeyWithValue("Ready", "True/AsExpected"), v.Name)
		versions[v.Name] = v.ResourceVersion
	}
	return versions
}

// A target that ends and comes back empty is filled again at once, and no volume's status is touched meanwhile.
func TestRunRefills(t *testing.T) {
	const count = 50
	l := newLab(t)
	for n := 1; n <= count; n++ {
		l.create(n, ofSize("1Gi"), withHosts(hostA))
	}
	target := &apart{Engine: l.target, ends: make(chan struct{})}
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return target, nil })
	for n := 1; n <= count; n++ {
		l.Eventually(func() map[string]string { return l.says(n) }, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	}
	before := l.versions(count)
	host, err := l.target.Connect(t.Context(), tcp, l.volume(7).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())

	l.target.FailCall(enginetest.Start, engine.ErrUnavailable)
	l.target.FailCall(enginetest.Gather, engine.ErrUnavailable)
	target.ends <- struct{}{}
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "False/EngineNotAnswering"))
	l.Expect(r.get("/readyz")).To(HavePrefix("200"), "the agent works, whatever its target does")

	l.target.Restart()
	l.target.ForgetCalls()
	l.target.FailCall(enginetest.Start, nil)
	l.target.FailCall(enginetest.Gather, nil)
	target.ends <- struct{}{}
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(methods(l.changes())).To(Equal([]enginetest.Method{enginetest.OpenPools, enginetest.Export, enginetest.OpenPortals}))
	l.Expect(l.versions(count)).To(Equal(before))
	l.Expect(host.Disconnected()).To(BeFalse())
	l.Expect(r.get("/metrics")).To(And(ContainSubstring("weft_agent_refill_seconds_count 1"), ContainSubstring(`weft_agent_refill_seconds_bucket{le="1"} 1`)))
}
