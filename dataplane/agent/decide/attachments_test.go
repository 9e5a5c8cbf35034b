// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	hostC = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000c"
	hostD = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000d"
)

// attachableNode has volumes 1 to 3 with a host each, and a plan for two attachments with two I/O queues.
func attachableNode(change ...func(*Observed)) Observed {
	s := quietNode()
	s.Node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{MaxSubsystems: 100, Attachments: &v1alpha1.Attachments{Expected: 2, IOQueues: 2}}
	for i, host := range []string{hostA, hostB, hostC} {
		s.Volumes = append(s.Volumes, testVolume(i+1, isCreatedOn("a"), withHosts(host)))
		holds(engineVolume(i+1, "a"))(&s)
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func expected(n int32) func(*Observed) {
	return func(s *Observed) { s.Node.Spec.Plan.SPDK.Attachments.Expected = n }
}

func serving(exports ...engine.Export) func(*Observed) {
	return func(s *Observed) { s.Target.State.Exports = exports }
}

// served before, as the node's records have it.
func served(n int, hosts ...string) func(*Observed) {
	return func(s *Observed) {
		r := s.Records.Items[id(n)]
		x := exported(n, hosts...)
		r.Export = &x
		s.Records.Items[id(n)] = r
	}
}

// pod of the target, as the operator says that it follows a generation of the plan.
func pod(reason string, generation int64) func(*Observed) {
	return func(s *Observed) {
		s.Node.Status.Conditions = append(s.Node.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionTargetPodReady, Status: metav1.ConditionTrue, Reason: reason, ObservedGeneration: generation,
		})
	}
}

func possible(n int64) func(*Observed) {
	return func(s *Observed) { s.Node.Status.Attachments = &v1alpha1.Places{Possible: &n} }
}

func TestDecideAttachments(t *testing.T) {
	exhausted := says{"Exported": "False/AttachmentsExhausted", "Ready": "False/AttachmentsExhausted"}
	for name, c := range map[string]struct {
		given          []func(*Observed)
		does           []string
		held           []string
		used, possible int64
		message        string
	}{
		"the first find places, the next waits": {
			does: []string{"Export v1 to 1", "Export v2 to 1", "Export v3 to 0"}, used: 2, possible: 2,
		},
		"who waits is told what to change": {
			given: []func(*Observed){serving(exported(1, hostA), exported(2, hostB), exported(3))},
			held:  []string{"v3"}, used: 2, possible: 2, message: "raise attachments.expected of NvmfTarget fast",
		},
		"who was first keeps its place, whatever the names": {
			given: []func(*Observed){serving(exported(1), exported(2, hostB), exported(3, hostC))},
			held:  []string{"v1"}, used: 2, possible: 2,
		},
		"also in a target that came back empty": {
			given: []func(*Observed){served(1), served(2, hostB), served(3, hostC)},
			does:  []string{"Export v1 to 0", "Export v2 to 1", "Export v3 to 1"}, used: 2, possible: 2,
		},
		"also where only the volume's status tells": {
			given: []func(*Observed){func(s *Observed) { reportedHost(hostC, false)(s.Volumes[2]) }},
			does:  []string{"Export v1 to 1", "Export v2 to 0", "Export v3 to 1"}, used: 2, possible: 2,
		},
		"also where the plan was lowered": {
			given: []func(*Observed){expected(1), served(1, hostA), served(2, hostB), served(3)},
			does:  []string{"Export v1 to 1", "Export v2 to 1", "Export v3 to 0"}, used: 2, possible: 1,
		},
		"a host that is being ended has its place until it is gone": {
			given: []func(*Observed){expected(3), serving(exported(1, hostA), exported(2, hostB), former(3, hostD))},
			does:  []string{"Unexport v3:former", "Export v3 to 0"}, used: 3, possible: 3,
		},
		"more queues than planned take more places": {
			given: []func(*Observed){expected(4), func(s *Observed) { s.Volumes[0].Spec.Connection.IOQueues = 8 }},
			does:  []string{"Export v1 to 1", "Export v2 to 1", "Export v3 to 0"}, used: 4, possible: 4,
		},
		"a target that was not restarted has no more than before": {
			given: []func(*Observed){
				expected(3), possible(2), pod(v1alpha1.ReasonPodOutdated, 3), serving(exported(1, hostA), exported(2, hostB), exported(3)),
			},
			held: []string{"v3"}, used: 2, possible: 2, message: "the plan allows 3 after the next restart of pod weft-target-node-1",
		},
		"nor before the operator has looked": {
			given: []func(*Observed){expected(3), possible(2), pod(v1alpha1.ReasonAsExpected, 2), serving(exported(1, hostA), exported(2, hostB), exported(3))},
			held:  []string{"v3"}, used: 2, possible: 2,
		},
		"once it was restarted there are more": {
			given: []func(*Observed){expected(3), possible(2), pod(v1alpha1.ReasonAsExpected, 3), serving(exported(1, hostA), exported(2, hostB), exported(3))},
			does:  []string{"Export v3 to 1"}, used: 3, possible: 3,
		},
		"the kernel's target has no limit": {
			given: []func(*Observed){func(s *Observed) { s.Node.Spec.Plan.SPDK = nil }},
			does:  []string{"Export v1 to 1", "Export v2 to 1", "Export v3 to 1"}, used: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := Decide(attachableNode(c.given...))
			g.Expect(written(d.Operations)).To(ConsistOf(c.does))
			for _, v := range c.held {
				is := said(d.Volumes[v].Conditions)
				for kind, want := range exhausted {
					g.Expect(is).To(HaveKeyWithValue(kind, want), v)
				}
				g.Expect(meta.FindStatusCondition(d.Volumes[v].Conditions, v1alpha1.ConditionExported).Message).To(ContainSubstring(c.message))
			}
			g.Expect(d.Node.Attachments.Used).To(Equal(c.used))
			if c.possible == 0 {
				g.Expect(d.Node.Attachments.Possible).To(BeNil())
				g.Expect(d.Node.Volumes).To(Equal(&v1alpha1.Places{Used: 3}))
				return
			}
			g.Expect(*d.Node.Attachments.Possible).To(Equal(c.possible))
			g.Expect(d.Node.Volumes).To(Equal(&v1alpha1.Places{Used: 3, Possible: new(int64(99))}))
			for n := 1; n <= 3; n++ {
				g.Expect(d.Records.Put[id(n)].Dismissed).To(BeEmpty(), "v%d: who waits is admitted later", n)
			}
		})
	}
}
