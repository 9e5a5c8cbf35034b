// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// running is the whole agent of a lab, with its own rights and nothing but its target's word to tell it that something
// happened.
type running struct {
	*lab
	address string
	// stop it, and wait for its end.
	stop func()
}

func (l *lab) run(engines Engines, change ...func(*Options)) *running {
	l.t.Helper()
	r := &running{lab: l, address: freeAddress(l.t)}
	options := Options{
		StateDir: l.stateDir, NodeName: l.node, Namespace: testNamespace, HealthAddress: r.address, DeviceFolder: l.t.TempDir(),
		Inventory: &discovered{found: l.inventory}, Engines: engines, Tuning: enginetest.NewMachine(), Resync: time.Hour,
	}
	for _, c := range change {
		c(&options)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	l.closeRecords()
	go func() { ended <- Run(ctx, l.server.agentConfig, options) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		l.Eventually(ended, patience).Should(Receive(BeNil()))
		l.openRecords()
	})
	l.t.Cleanup(r.stop)
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

// versions of the volumes that are ready: each write to one changes its.
func (l *lab) versions() map[string]string {
	l.t.Helper()
	var list v1alpha1.NvmfReplicaList
	l.Expect(l.admin.List(l.t.Context(), &list, client.MatchingFields{"spec.node": l.node})).To(Succeed())
	versions := map[string]string{}
	for _, v := range list.Items {
		if said(v.Status.Conditions)["Ready"] == "True/AsExpected" {
			versions[v.Name] = v.ResourceVersion
		}
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
	l.Eventually(l.versions, patience, interval).Should(HaveLen(count))
	before := l.versions()
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
	l.Expect(l.versions()).To(Equal(before))
	l.Expect(host.Disconnected()).To(BeFalse())
	l.Expect(r.get("/metrics")).To(And(ContainSubstring("weft_agent_refill_seconds_count 1"), ContainSubstring(`weft_agent_refill_seconds_bucket{le="1"} 1`)))
}

// The same with the engine for SPDK and a target that answers at SPDK's pace, killed while it serves and again while it
// is filled.
func TestRunRefillsSPDK(t *testing.T) {
	const count = 200
	fake := newFakeSPDK(t, spdktest.DefaultPollInterval)
	l := newLab(t)
	node := l.nvmfNode()
	node.Spec.Plan = fake.plan
	l.Expect(l.admin.Update(t.Context(), node)).To(Succeed())
	for n := 1; n <= count; n++ {
		l.create(n, ofSize("64Mi"), withHosts(hostA), func(v *v1alpha1.NvmfReplica) {
			v.Spec.QoS = &v1alpha1.VolumeQoS{IOPS: ptr.To(int64(1000 * n))}
		})
	}
	userSpace := fake.engine()
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return userSpace, nil })
	l.Eventually(l.versions, patience, interval).Should(HaveLen(count))
	l.Eventually(r.nodeSays, patience, interval).Should(And(HaveKeyWithValue("Ready", "True/AsExpected"), HaveKeyWithValue("RestartNeeded", "False/AsExpected")))
	l.Expect(r.get("/metrics")).To(And(
		ContainSubstring("weft_agent_target_up{engine=\"SPDK\"} 1"), MatchRegexp(`(?m)^weft_agent_last_reconcile_timestamp_seconds [1-9]`),
		ContainSubstring(fmt.Sprintf(`weft_agent_replica_operations_total{namespace="",op="write",persistentvolumeclaim="",replica=%q,target="fast",volume="volume-of-v7"} 0`, l.name(7))),
		MatchRegexp(`(?m)^weft_agent_pool_operations_total\{device=".*",op="read"\} [1-9]`), MatchRegexp(`(?m)^weft_agent_core_seconds_total\{core="1",state="busy"\} `),
		ContainSubstring(`weft_agent_buffers{pool="small"} 2048`), MatchRegexp(`(?m)^weft_agent_buffer_gets_total\{module="nvmf_TCP",pool="small"\} `)))
	is := l.nvmfNode().Status.Engine
	l.Expect(is).To(And(HaveField("Type", v1alpha1.EngineSPDK), HaveField("Version", "26.05"), HaveField("Transports", ConsistOf(v1alpha1.TransportTCP))))
	l.Expect(is.Settings).To(ContainElements(v1alpha1.EngineSetting{Setting: "largeBuffers", Value: "256"}, v1alpha1.EngineSetting{Setting: "coreMask", Value: "0x2"}))
	l.Expect(is.Settings).To(HaveEach(HaveField("Planned", BeEmpty())))
	before := l.versions()
	served, err := userSpace.Gather(t.Context())
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(served.Exports).To(HaveLen(count))
	l.Expect(served.Volumes).To(HaveEach(HaveField("QoS.IOPS", BeNumerically(">=", 1000))))
	l.Expect(l.volume(7).Status.QoS).To(HaveValue(HaveField("IOPS", HaveValue(BeEquivalentTo(7000)))))

	fake.kill()
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "False/EngineNotAnswering"))
	l.Expect(r.get("/readyz")).To(HavePrefix("200"), "the agent works, whatever its target does")
	fake.start()
	fake.target.(*spdktest.Target).Inject(spdktest.Fault{Method: "nvmf_create_subsystem", Skip: count / 2, Do: spdktest.Die})
	l.Eventually(fake.target.Done(), patience).Should(BeClosed())
	fake.start()
	start := time.Now()
	l.Eventually(func() (string, error) { return r.get("/metrics") }, patience, 10*time.Millisecond).Should(ContainSubstring("weft_agent_refill_seconds_count 1"))
	t.Logf("%d volumes were served again %v after the target's socket was back", count, time.Since(start).Round(time.Millisecond))

	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(userSpace.Gather(t.Context())).To(Equal(served), "the same identities and limits as before")
	l.Expect(l.versions()).To(Equal(before), "no volume's status was touched")
}
