// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// spdkNode is a quiet node with an SPDK target of one core.
func spdkNode() Observed {
	s := quietNode()
	s.Node.Spec.Plan = &v1alpha1.Plan{
		Engine:  v1alpha1.EngineSPDK,
		Portals: []v1alpha1.PlannedPortal{planned(tcp)},
		SPDK: &v1alpha1.SPDKPlan{
			CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 640 << 20, PodMemoryBytes: 2 << 30,
			BdevIOPoolSize: 8192, SmallBuffers: 2048, LargeBuffers: 256, MaxSubsystems: 2048,
			Transports: []v1alpha1.PlannedTransport{{
				Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
			}},
			Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverVFIO,
		},
	}
	return s
}

func TestStarvation(t *testing.T) {
	g := NewWithT(t)
	s := spdkNode()
	var st Starvation
	step := func(after time.Duration, waits ...engine.BufferWaits) (condition, message string, grown int) {
		s.Now = s.Now.Add(after)
		var by map[[2]string]uint64
		st, by = st.Observe(s.Now, waits)
		s.Starvation = st
		d := Decide(s)
		s.Node.Status.Conditions = d.Node.Conditions
		v := meta.FindStatusCondition(d.Node.Conditions, v1alpha1.ConditionBuffersSufficient)
		return string(v.Status) + "/" + v.Reason, v.Message, len(by)
	}
	is := func(after time.Duration, want string, waits ...engine.BufferWaits) string {
		t.Helper()
		got, message, _ := step(after, waits...)
		g.Expect(got).To(Equal(want), message)
		return message
	}
	tcp := func(small, large uint64) engine.BufferWaits {
		return engine.BufferWaits{Module: "nvmf_TCP", Small: small, Large: large}
	}
	is(0, "Unknown/Pending")
	is(0, "True/AsExpected", tcp(5, 7)) // from before this agent
	is(time.Minute, "True/AsExpected", tcp(5, 7))
	first := is(time.Minute, "False/BuffersExhausted", tcp(5, 8))
	g.Expect(first).To(And(ContainSubstring("(nvmf_TCP large)"),
		ContainSubstring("buffers: {mode: Manual, large: {count: 272, cachePerCore: 32}, small: {count: 2048, cachePerCore: 128}}"), ContainSubstring("memory.limit")))
	g.Expect(is(time.Minute, "False/BuffersExhausted", tcp(5, 900))).To(Equal(first), "an object is not written for every count")
	g.Expect(is(time.Minute, "False/BuffersExhausted", tcp(6, 900))).To(ContainSubstring("nvmf_TCP large, nvmf_TCP small"))
	is(starvationQuiet-time.Second, "False/BuffersExhausted", tcp(6, 900))
	is(time.Second, "True/AsExpected", tcp(6, 900))
	is(time.Minute, "False/BuffersExhausted", tcp(7, 900))
	is(time.Minute, "True/AsExpected", tcp(0, 0)) // another life of the target

	pending := engine.BufferWaits{Module: "nvmf_RDMA", Pending: 3}
	is(time.Minute, "True/AsExpected", tcp(0, 0))
	is(time.Minute, "False/BuffersExhausted", tcp(0, 0), pending)

	// Another agent knows the condition, but not the counters that led to it.
	st = Starvation{}
	is(time.Minute, "False/BuffersExhausted", tcp(0, 0), pending)
	is(starvationQuiet, "True/AsExpected", tcp(0, 0), pending)
}

// Where the data of more buffers would not fit the cache, the number comes with what it costs.
func TestStarvationWithASmallCache(t *testing.T) {
	g := NewWithT(t)
	s := spdkNode()
	s.Inventory = &v1alpha1.Inventory{NUMANodes: []v1alpha1.NUMANode{{CPUs: "0-7", LLCBytes: 16 << 20}}}
	s.Starvation = Starvation{Since: now, Last: now, Of: []string{"nvmf_TCP large"}}
	v := meta.FindStatusCondition(Decide(s).Node.Conditions, v1alpha1.ConditionBuffersSufficient)
	g.Expect(v.Message).To(And(ContainSubstring("buffers: {mode: Manual"), ContainSubstring("But the large buffers would hold"), ContainSubstring("do not add buffers")))
	g.Expect(len(v.Message)).To(BeNumerically("<", MaxMessageBytes))
}

func TestStarvationWithMorePlanned(t *testing.T) {
	g := NewWithT(t)
	s := spdkNode()
	s.Starvation = Starvation{Since: now, Last: now, Of: []string{"bdev large"}}
	s.Target.Settings = []v1alpha1.EngineSetting{{Setting: "largeBuffers", Value: "128", Planned: "256"}}
	v := meta.FindStatusCondition(Decide(s).Node.Conditions, v1alpha1.ConditionBuffersSufficient)
	g.Expect(v.Message).To(ContainSubstring("the plan already has more (256 large, 2048 small)"))
}

// The numbers to set follow from what the target runs with, not from a plan that it has not taken up.
func TestStarvationOfWhatRuns(t *testing.T) {
	g := NewWithT(t)
	s := spdkNode()
	s.Starvation = Starvation{Since: now, Last: now, Of: []string{"nvmf_TCP large"}}
	s.Target.Settings = []v1alpha1.EngineSetting{{Setting: "largeBuffers", Value: "300"}, {Setting: "transports[TCP].largeCache", Value: "40"}}
	v := meta.FindStatusCondition(Decide(s).Node.Conditions, v1alpha1.ConditionBuffersSufficient)
	g.Expect(v.Message).To(ContainSubstring("large: {count: 340, cachePerCore: 80}"))
}

func TestBuffersOfTheKernelsTarget(t *testing.T) {
	g := NewWithT(t)
	v := meta.FindStatusCondition(Decide(quietNode()).Node.Conditions, v1alpha1.ConditionBuffersSufficient)
	g.Expect(v.Reason).To(Equal(v1alpha1.ReasonNotNeeded))
	g.Expect(v.Status).To(Equal(metav1.ConditionTrue))
}
