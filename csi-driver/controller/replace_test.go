// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// limit after which a lost replica is replaced.
const limit = v1alpha1.UsualReplaceLostMinutes * time.Minute

// newHeld is a volume with two replicas that a pod uses, of a target with so many nodes.
func newHeld(t *testing.T, nodes int) *moves {
	t.Helper()
	m := newMoves(t, nodes)
	m.id = newMirrored(t, m.service(), m.st, "v")
	return m.held()
}

// held by a pod's attachment, and with the usual time after which a lost replica is replaced.
func (m *moves) held() *moves {
	m.t.Helper()
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) {
		spec.ReplaceLostReplicaAfterMinutes = v1alpha1.UsualReplaceLostMinutes
	})
	hold(m.t, m.service(), m.id, newHost(m.t, "host"))
	return m
}

// alive says of a storage node what the operator does.
func (m *moves) alive(node string, is metav1.ConditionStatus) {
	m.t.Helper()
	m.aliveSince(node, is, time.Now())
}

// aliveSince is alive by a clock that may be wrong.
func (m *moves) aliveSince(node string, is metav1.ConditionStatus, at time.Time) {
	m.t.Helper()
	setNodeStatus(m.t, node, func(s *v1alpha1.NvmfNodeStatus) {
		c := condition(v1alpha1.ConditionAgentAlive, is, v1alpha1.ReasonAgentSilent, "")
		c.LastTransitionTime = metav1.NewTime(at)
		meta.SetStatusCondition(&s.Conditions, c)
	})
	for _, s := range m.lives {
		seen(m.t, s, m.st)
	}
}

// down is the node of a replica, whose loss the holder records, and the service notes.
func (m *moves) down(name string) {
	m.t.Helper()
	node := replicaOf(m.t, name).Spec.Node
	silence(m.t, node)
	m.alive(node, metav1.ConditionFalse)
	m.out(name)
	m.noted(name)
}

// noted is the loss of a replica, from the time that it is for the service.
func (m *moves) noted(name string) {
	m.t.Helper()
	m.until(func(g Gomega) {
		a, err := m.service().survey(m.t.Context(), m.id)
		g.Expect(err).NotTo(HaveOccurred())
		l, is := m.service().lossOf(m.t.Context(), &a.replicatedVolume, *a.record, name)
		g.Expect(is).To(BeTrue())
		g.Expect(l.noted()).To(BeTrue())
	})
}

// out is a replica by the record: the holder has lost it.
func (m *moves) out(name string) {
	m.t.Helper()
	m.dropped = append(m.dropped, name)
	m.until(func(g Gomega) {
		g.Expect(mirror.StateOf(mirrorOf(m.t, m.id).Spec, name)).NotTo(Equal(v1alpha1.MemberInSync))
	})
}

// recorded of a member is what its holder says next.
func (m *moves) recorded(name string, says func(*mirror.Member)) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func() error {
		is := mirrorOf(m.t, m.id)
		says(&is.Spec.Members[slices.IndexFunc(is.Spec.Members, func(is mirror.Member) bool { return is.Replica == name })])
		is.Spec.Epoch++
		return api.Update(m.t.Context(), is)
	}).WithTimeout(enough).Should(Succeed())
}

// up is the node of a replica again.
func (m *moves) up(name string) {
	m.t.Helper()
	node := replicaOf(m.t, name).Spec.Node
	agents[node].Start(m.t.Context())
	m.alive(node, metav1.ConditionTrue)
	m.dropped = slices.DeleteFunc(m.dropped, func(dropped string) bool { return dropped == name })
}

// later it is for the service.
func (m *moves) later(by time.Duration) {
	for _, s := range m.lives {
		s.clock = testingclock.NewFakePassiveClock(time.Now().Add(by))
	}
}

// stays as it is: neither the replicas nor the wishes about them change.
func (m *moves) stays(says string) {
	m.t.Helper()
	before := volume(m.t, m.id).Spec.Members
	for range 2 * len(m.lives) {
		_ = m.lives[0].arrange(m.t.Context(), m.id)
		m.lives[0], m.lives[1] = m.lives[1], m.lives[0]
		m.keep()
		m.safe()
	}
	NewWithT(m.t).Eventually(func(g Gomega) {
		g.Expect(m.service().arrange(m.t.Context(), m.id)).To(Succeed())
		now := volume(m.t, m.id).Spec
		g.Expect(now.Members).To(Equal(before))
		g.Expect(now.Move).To(BeNil())
		g.Expect(now.Waiting).To(ContainSubstring(says))
	}).WithTimeout(enough).Should(Succeed())
}

// A replica whose node stays down is replaced after the limit, and deleted when the node is back.
func TestALostReplicaIsReplaced(t *testing.T) {
	m := newHeld(t, 3)
	was := volume(t, m.id).Spec.Members[0]
	m.down(was.Name)
	m.later(limit - time.Minute)
	m.stays("")
	m.later(limit + time.Minute)
	m.stage(func() bool { return volume(t, m.id).Spec.Move != nil })
	g := NewWithT(t)
	g.Expect(*volume(t, m.id).Spec.Move).To(Equal(v1alpha1.VolumeMove{Replica: was.Name, Reason: v1alpha1.MoveReplicaLost}))
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
	})
	if volumes, _ := holds(t, was.Node); !slices.Contains(volumes, was.UUID) {
		t.Error("the lost replica is gone before its node could say who is connected")
	}
	m.up(was.Name)
	m.until(m.has(m.id+"-1", m.id+"-2"))
	erased(t, was.Node, was.UUID)
}

// A replica that has left is not deleted while its agent suspects a restore of the API, nor afterwards: by an old
// record, it may be the one that has everything.
func TestALostReplicaThatSuspectsARestoreIsKept(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	m.later(limit + time.Minute)
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Members).To(HaveLen(2))
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
	})
	g := NewWithT(t)
	lost := replicaOf(t, m.id+"-0")
	g.Expect(lost.DeletionTimestamp).To(BeNil())
	g.Expect(retired(lost)).To(BeTrue())
	m.suspectsOf(lost.Name, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
	m.until(func(g Gomega) { g.Expect(retired(replicaOf(t, lost.Name))).To(BeFalse()) })
	g.Eventually(func() []string {
		for m.service().untold.Len() > 0 {
			m.service().tellNext(t.Context())
		}
		return reasonsOn(t, volume(t, m.id))
	}).WithTimeout(enough).Should(ContainElement(v1alpha1.ReasonReplicaKept))
	m.suspectsOf(lost.Name, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	m.stays("")
	g.Expect(replicaOf(t, lost.Name).DeletionTimestamp).To(BeNil())
}

// While the agent of a member suspects a restore of the API, nothing is deleted either that has left by the record.
func TestALostReplicaIsNotDeletedWhileARestoreIsSuspected(t *testing.T) {
	m := newHeld(t, 3)
	was := volume(t, m.id).Spec.Members[0]
	m.down(was.Name)
	m.later(limit + time.Minute)
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Members).To(HaveLen(2))
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
	})
	other := volume(t, m.id).Spec.Members[0]
	silence(t, other.Node)
	m.suspects(0, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
	m.up(was.Name)
	NewWithT(t).Eventually(func(g Gomega) {
		off, err := dismissed(replicaOf(t, was.Name), replicaOf(t, was.Name).Generation)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(off).To(BeTrue())
	}).WithTimeout(enough).Should(Succeed())
	m.stays("")
	if volumes, _ := holds(t, was.Node); !slices.Contains(volumes, was.UUID) {
		t.Error("its data is gone")
	}
	m.suspects(0, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	m.until(func(g Gomega) { g.Expect(replicaOf(t, was.Name)).To(BeNil()) })
	erased(t, was.Node, was.UUID)
}

// Nothing but what the watches tell, and time, has a lost replica replaced.
func TestSettleReplacesALostReplica(t *testing.T) {
	m := newHeld(t, 3)
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.ReplaceLostReplicaAfterMinutes = 1 })
	m.down(m.id + "-0")
	m.later(2 * time.Minute)
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		g.Expect(m.service().settle(t.Context(), m.id)).To(Succeed())
		m.safe()
		m.keep()
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
	}).WithTimeout(enough).Should(Succeed())
}

// A lost replica that is in sync again before its replacement stays, whatever was done for that, and nothing is left
// of it.
func TestALostReplicaThatReturnsFirstStays(t *testing.T) {
	for name, reached := range map[string]func(*moves) bool{
		"when it is requested":        func(m *moves) bool { return volume(m.t, m.id).Spec.Move != nil },
		"while the replica is made":   func(m *moves) bool { return replicaOf(m.t, m.id+"-2") != nil },
		"when the replica is listed":  func(m *moves) bool { return len(volume(m.t, m.id).Spec.Members) == 3 },
		"while the replica is filled": func(m *moves) bool { return joined(&mirrorOf(m.t, m.id).Spec, m.id+"-2") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 3)
			m.down(m.id + "-0")
			m.later(limit + time.Minute)
			m.stage(func() bool { return reached(m) })
			m.dropped = append(m.dropped, m.id+"-2") // it is filled for as long as the other one takes
			m.up(m.id + "-0")
			m.until(m.has(m.id+"-0", m.id+"-1"))
		})
	}
}

// A lost replica that is served again is not made to wait for the full copy of its replacement: its holder takes back
// one at a time.
func TestALostReplicaThatIsServedAgainIsNotReplaced(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	m.later(limit + time.Minute)
	m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
	m.up(m.id + "-0")
	m.dropped = append(m.dropped, m.id+"-0", m.id+"-2") // none of the two is in sync yet
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
		g.Expect(mirror.StateOf(mirrorOf(t, m.id).Spec, m.id+"-0")).NotTo(Equal(v1alpha1.MemberInSync))
	})
	m.dropped = []string{m.id + "-2"}
	m.until(m.has(m.id+"-0", m.id+"-1"))
}

// Once its replacement has everything, the lost replica leaves, also if it returns at that moment.
func TestALostReplicaThatReturnsLateLeaves(t *testing.T) {
	for name, reached := range map[string]func(*moves) bool{
		"when the replacement is in sync": func(m *moves) bool {
			return mirror.StateOf(mirrorOf(m.t, m.id).Spec, m.id+"-2") == v1alpha1.MemberInSync
		},
		"when it is retired": func(m *moves) bool {
			is, joined := mirror.Get(mirrorOf(m.t, m.id).Spec, m.id+"-0")
			return is.Retired || !joined
		},
		"when it is removed": func(m *moves) bool { return !joined(&mirrorOf(m.t, m.id).Spec, m.id+"-0") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 3)
			m.down(m.id + "-0")
			m.later(limit + time.Minute)
			m.stage(func() bool { return reached(m) })
			m.up(m.id + "-0")
			m.until(m.has(m.id+"-1", m.id+"-2"))
		})
	}
}

// What a person would look at before: nothing is begun.
func TestALostReplicaIsNotReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes int
		doubt func(m *moves)
		says  string
	}{
		"never": {3, func(m *moves) {
			m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.ReplaceLostReplicaAfterMinutes = -1 })
		}, ""},
		"later": {3, func(m *moves) {
			m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.ReplaceLostReplicaAfterMinutes = 60 })
		}, ""},
		"for lack of a node":           {2, func(*moves) {}, "has been lost since"},
		"while a restore is suspected": {3, func(m *moves) { m.suspects(0, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected) }, "suspects that the API was restored"},
		"while the other's node is silent": {3, func(m *moves) {
			node := replicaOf(m.t, m.id+"-1").Spec.Node
			silence(m.t, node)
			m.alive(node, metav1.ConditionFalse)
		}, "no other replica is in sync and served"},
		"when its agent answers again": {3, func(m *moves) { m.alive(replicaOf(m.t, m.id+"-0").Spec.Node, metav1.ConditionTrue) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, tc.nodes)
			m.down(m.id + "-0")
			tc.doubt(m)
			m.later(limit + time.Minute)
			m.stays(tc.says)
		})
	}
}

// A replica that is out, while its node serves it, may be one that a kernel went on with alone: it is left to a person.
func TestAReplicaThatIsServedIsNotReplaced(t *testing.T) {
	m := newHeld(t, 3)
	m.out(m.id + "-0")
	NewWithT(t).Eventually(func(g Gomega) {
		_, err := m.service().follow(t.Context(), volume(t, m.id))
		g.Expect(err).NotTo(HaveOccurred())
		m.keep()
		rep := replicaOf(t, m.id+"-0")
		g.Expect(rep.Spec.Hosts).NotTo(BeEmpty())
		g.Expect(meta.IsStatusConditionTrue(rep.Status.Conditions, v1alpha1.ConditionExported)).To(BeTrue())
		g.Expect(rep.Admitted(rep.Spec.Hosts[0].NQN)).NotTo(BeNil())
	}).WithTimeout(enough).Should(Succeed())
	m.later(100 * limit)
	m.stays("")
}

// A replica that its holder has refused may have data that no other has, also when its node is down since. It stays
// until a person has decided.
func TestARefusedReplicaIsNotReplaced(t *testing.T) {
	refused := func(is *mirror.Member) { is.Foreign = true }
	stays := func(m *moves) func(Gomega) {
		return func(g Gomega) {
			former, joined := mirror.Get(mirrorOf(m.t, m.id).Spec, m.id+"-0")
			g.Expect(joined).To(BeTrue())
			g.Expect(former.Retired).To(BeFalse())
			g.Expect(volume(m.t, m.id).Spec.Move).To(BeNil())
			g.Expect(volume(m.t, m.id).Spec.Members).To(HaveLen(2))
		}
	}
	t.Run("before it begins", func(t *testing.T) {
		m := newHeld(t, 3)
		m.down(m.id + "-0")
		m.recorded(m.id+"-0", refused)
		m.later(limit + time.Minute)
		m.stays("")
	})
	// refusedWhileReplaced gives a volume whose lost replica is refused when its replacement has joined.
	refusedWhileReplaced := func(t *testing.T) *moves {
		t.Helper()
		m := newHeld(t, 3)
		m.down(m.id + "-0")
		m.later(limit + time.Minute)
		m.dropped = append(m.dropped, m.id+"-2")
		m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
		m.recorded(m.id+"-0", refused)
		return m
	}
	t.Run("while the replacement is filled", func(t *testing.T) {
		m := refusedWhileReplaced(t)
		m.until(stays(m))
		m.stays("")
	})
	t.Run("when the replacement is in sync", func(t *testing.T) {
		m := refusedWhileReplaced(t)
		m.recorded(m.id+"-2", func(is *mirror.Member) { is.State = v1alpha1.MemberInSync })
		m.dropped = []string{m.id + "-0"}
		m.waits("has refused it")
		m.cancel() // then one of three replicas is too many, but only two have everything
		m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Waiting).To(ContainSubstring("has refused it")) })
		both := ConsistOf(m.id+"-1", m.id+"-2")
		NewWithT(t).Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(both)
		m.move(m.id+"-0", "") // a person has decided
		m.until(func(g Gomega) {
			g.Expect(joined(&mirrorOf(t, m.id).Spec, m.id+"-0")).To(BeFalse())
			g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(both)
		})
	})
}

// The service measures how long a replica has been lost by its own clock, also across restarts: that of the node that
// wrote the record, of the operator and of agents may be wrong.
func TestTheTimeIsMeasuredByOneClock(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"the others are behind": -100 * limit, "the others are ahead": 100 * limit} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 3)
			m.out(m.id + "-0")
			at := metav1.NewTime(time.Now().Add(wrong).Truncate(time.Second))
			m.recorded(m.id+"-0", func(is *mirror.Member) { is.Since = &at })
			node := replicaOf(t, m.id+"-0").Spec.Node
			silence(t, node)
			m.aliveSince(node, metav1.ConditionFalse, at.Time)
			m.noted(m.id + "-0")
			m.later(limit - time.Minute)
			m.stays("")
			m.restart()
			m.later(limit + time.Minute)
			m.until(func(g Gomega) {
				g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
			})
		})
	}
}

// A cache that has stopped shows a node as down that is not.
func TestAReplicaIsLostByTheAPIServerToo(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	var then v1alpha1.NvmfNode
	node := replicaOf(t, m.id+"-0").Spec.Node
	if err := api.Get(t.Context(), keyOf(node), &then); err != nil {
		t.Fatal(err)
	}
	m.alive(node, metav1.ConditionTrue)
	for _, s := range m.lives {
		s.client = stopped{s.client, then}
	}
	m.later(limit + time.Minute)
	m.stays("")
}

// stopped is a cache that shows an NvmfNode as it was.
type stopped struct {
	client.Client
	then v1alpha1.NvmfNode
}

func (c stopped) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if node, is := obj.(*v1alpha1.NvmfNode); is && key.Name == c.then.Name {
		c.then.DeepCopyInto(node)
		return nil
	}
	return c.Client.Get(ctx, key, obj, opts...)
}

// A node that comes back for a moment has the time begin again, whether the service saw that or not.
func TestTheTimeBeginsWithEachLoss(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	node := replicaOf(t, m.id+"-0").Spec.Node
	m.later(limit - time.Minute)
	m.stays("")
	m.alive(node, metav1.ConditionTrue)
	m.aliveSince(node, metav1.ConditionFalse, time.Now().Add(time.Minute))
	m.noted(m.id + "-0")
	m.later(limit + time.Minute)
	m.stays("")
	m.later(2 * limit)
	m.until(func(g Gomega) {
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
	})
}

// What was noted by a clock that was wrong does not keep a replica from being replaced.
func TestATimeThatIsYetToComeIsNotedAgain(t *testing.T) {
	m := newHeld(t, 3)
	m.later(1000 * limit)
	m.down(m.id + "-0")
	m.later(0)
	m.noted(m.id + "-0")
	m.later(limit - time.Minute)
	m.stays("")
	m.later(limit + time.Minute)
	m.until(func(g Gomega) {
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
	})
}

// A replica whose drive was given up is replaced at once.
func TestAReplicaWithoutItsDataIsReplacedAtOnce(t *testing.T) {
	m := newHeld(t, 3)
	was := volume(t, m.id).Spec.Members[1]
	silence(t, was.Node)
	agents[was.Node].Lose(was.UUID)
	agents[was.Node].Start(t.Context())
	NewWithT(t).Eventually(func() bool { return lostData(replicaOf(t, was.Name)) }).WithTimeout(enough).Should(BeTrue())
	m.dropped = append(m.dropped, was.Name)
	m.until(m.has(m.id+"-0", m.id+"-2"))
}

// A replacement that is lost itself is given up, and another node gets the replica.
func TestALostReplacementIsReplaced(t *testing.T) {
	m := newHeld(t, 4)
	m.down(m.id + "-0")
	m.later(limit + time.Minute)
	m.dropped = append(m.dropped, m.id+"-2")
	m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
	second := replicaOf(t, m.id+"-2").Spec.Node
	silence(t, second)
	m.alive(second, metav1.ConditionFalse)
	m.noted(m.id + "-2")
	m.later(2*limit + 2*time.Minute)
	m.until(func(g Gomega) {
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-3"}))
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
		g.Expect(volume(t, m.id).Spec.Members).To(HaveLen(2))
	})
	if third := replicaOf(t, m.id+"-3").Spec.Node; third == second {
		t.Errorf("it is on node %s again, which is down", third)
	}
	m.up(m.id + "-0")
	m.up(m.id + "-2")
	m.until(m.has(m.id+"-1", m.id+"-3"))
}

// A person who asks for a move of the replica has it, whatever the service would do.
func TestAMoveOfAPersonIsNotCancelled(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	m.move(m.id+"-0", "")
	m.later(limit + time.Minute)
	m.stage(func() bool { return len(volume(t, m.id).Spec.Members) == 3 })
	m.up(m.id + "-0")
	m.until(m.has(m.id+"-1", m.id+"-2"))
}

// A person chooses another node than the service did for the replacement, while that is filled: the lost replica stays
// until the new one has everything, and a return of its node cancels nothing.
func TestAPersonChoosesTheNodeOfAReplacement(t *testing.T) {
	for name, choose := range map[string]func(m *moves, node string){
		"by another move":      func(m *moves, node string) { m.move(m.id+"-0", node) },
		"in the service's own": func(m *moves, node string) { m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Move.Node = node }) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 4)
			m.down(m.id + "-0")
			m.later(limit + time.Minute)
			m.dropped = append(m.dropped, m.id+"-2")
			m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
			node := m.unused()
			choose(m, node)
			m.until(func(g Gomega) {
				m.leavesReplaced(m.id + "-0")
				g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-3"}))
				g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
			})
			if on := replicaOf(t, m.id+"-3").Spec.Node; on != node {
				t.Errorf("it is on node %s, not %s", on, node)
			}
			m.up(m.id + "-0")
			m.until(m.has(m.id+"-1", m.id+"-3"))
		})
	}
}

// While the agent of a replica suspects a restore of the API, the record may be wrong: a replacement that has begun is
// given up, and of one that is complete, the lost replica does not leave before the restore is declared.
func TestNoLostReplicaLeavesWhileARestoreIsSuspected(t *testing.T) {
	t.Run("while the replacement is filled", func(t *testing.T) {
		m := newHeld(t, 3)
		m.down(m.id + "-0")
		m.later(limit + time.Minute)
		m.dropped = append(m.dropped, m.id+"-2")
		m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
		m.suspects(0, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
		m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Move).To(BeNil()) })
		m.stays("suspects that the API was restored")
		for _, name := range []string{m.id + "-0", m.id + "-2"} {
			if is, joined := mirror.Get(mirrorOf(t, m.id).Spec, name); !joined || is.Retired {
				t.Errorf("%s has left, or is to leave: %+v", name, is)
			}
		}
	})
	for name, cancelled := range map[string]bool{"when the replacement is in sync": false, "when a person cancels that": true} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 3)
			m.down(m.id + "-0")
			m.later(limit + time.Minute)
			m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
			m.suspects(0, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
			m.recorded(m.id+"-2", func(is *mirror.Member) { is.State = v1alpha1.MemberInSync })
			g := NewWithT(t)
			if cancelled {
				m.cancel() // one of three replicas is too many then
			}
			for range 5 {
				g.Expect(m.service().arrange(t.Context(), m.id)).To(Succeed())
				m.keep()
				m.safe()
			}
			former, joined := mirror.Get(mirrorOf(t, m.id).Spec, m.id+"-0")
			g.Expect(joined).To(BeTrue())
			g.Expect(former.Retired).To(BeFalse())
			m.suspects(0, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
			m.until(func(g Gomega) {
				g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
				g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
				g.Expect(volume(t, m.id).Spec.Members).To(HaveLen(2))
			})
		})
	}
}

// A service that is killed at any moment, and another that takes over, complete the replacement.
func TestReplacementsThatAreInterrupted(t *testing.T) {
	for name, untold := range map[string]bool{"killed": false, "the last write stored": true} {
		t.Run(name, func(t *testing.T) {
			m := newHeld(t, 3)
			m.down(m.id + "-0")
			m.later(limit + time.Minute)
			m.mortal(untold)
			m.until(func(g Gomega) {
				g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
				g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
			})
		})
	}
}

// Two services that act at once make one replacement, also while the lost replica comes and goes.
func TestTwoServicesReplaceAReplicaOnce(t *testing.T) {
	m := newHeld(t, 3)
	m.down(m.id + "-0")
	m.later(limit + time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	var both sync.WaitGroup
	for _, s := range m.lives {
		both.Go(func() {
			for ctx.Err() == nil {
				_ = s.arrange(ctx, m.id) // what it finds is tried again
			}
		})
	}
	NewWithT(t).Eventually(func(g Gomega) {
		m.safe()
		m.keep()
		now := volume(t, m.id).Spec
		g.Expect(now.Move).To(BeNil())
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
		g.Expect(now.Members).To(HaveLen(2))
	}).WithTimeout(enough).WithPolling(time.Millisecond).Should(Succeed())
	stop()
	both.Wait()
	m.up(m.id + "-0")
	m.until(m.has(m.id+"-1", m.id+"-2"))
}

// newHeldInRacks is a volume with two replicas that a pod uses, of a target with a node in each of these racks.
func newHeldInRacks(t *testing.T, racks ...string) *moves {
	t.Helper()
	m := movesOf(t, newRacks(t, racks...))
	inRacks(t, m, "2", "")
	return m.held()
}

// As long as the zone of a lost replica is down, its replacement does not go to that of the other one.
func TestALostReplicaIsReplacedInAnotherZone(t *testing.T) {
	for name, tc := range map[string]struct {
		racks []string
		says  string
	}{
		"there is a third":       {[]string{"a", "b", "b", "c"}, ""},
		"there is no other zone": {[]string{"a", "b", "b", "b"}, "no node in another zone"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeldInRacks(t, tc.racks...)
			var inA string // the only node of its rack
			for i, member := range volume(t, m.id).Spec.Members {
				if m.nodesOf()[i] == 0 {
					inA = member.Name
				}
			}
			if tc.says == "" { // the replicas are in the racks b and c, and that of c is lost
				for i, member := range volume(t, m.id).Spec.Members {
					if m.nodesOf()[i] == 3 {
						inA = member.Name
					}
				}
			}
			m.down(inA)
			m.later(limit + time.Minute)
			if tc.says != "" {
				m.stays(tc.says)
				return
			}
			m.until(func(g Gomega) { g.Expect(m.nodesOf()).To(ConsistOf(0, 2)) })
		})
	}
}

// The zone of a lost replica is not known any more once its Node is gone, as clouds delete those of machines that they
// have lost. Where the target has another zone, its replacement waits for that.
func TestAReplicaWhoseNodeIsGoneIsReplacedInAnotherZone(t *testing.T) {
	for name, tc := range map[string]struct {
		racks []string // the replicas are on the second node and the last one
		says  string
	}{
		"there is another zone":  {[]string{"a", "a", "b", "b"}, "no node in another zone"},
		"there is no other zone": {[]string{"a", "a", "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeldInRacks(t, tc.racks...)
			g := NewWithT(t)
			g.Expect(m.nodesOf()).To(ConsistOf(1, len(tc.racks)-1))
			lost := volume(t, m.id).Spec.Members[slices.Index(m.nodesOf(), 1)]
			if tc.says != "" {
				silence(t, m.st.nodes[0])
				m.alive(m.st.nodes[0], metav1.ConditionFalse)
			}
			m.down(lost.Name)
			g.Expect(api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost.Node}})).To(Succeed())
			m.later(limit + time.Minute)
			if tc.says != "" {
				m.stays(tc.says)
				return
			}
			m.until(func(g Gomega) { g.Expect(m.nodesOf()).To(ConsistOf(0, 2)) })
		})
	}
}

// The limit comes from the class, and changes with the VolumeAttributesClass.
func TestTheLimitIsThatOfTheClass(t *testing.T) {
	m := newMoves(t, 2)
	req := mirroredRequest(m.st, own(t, "v"), gi)
	req.Parameters["replaceLostReplicaAfter"] = "never"
	g := NewWithT(t)
	_, err := m.service().CreateVolume(within(t, enough), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(volume(t, req.Name).Spec.ReplaceLostReplicaAfterMinutes).To(BeEquivalentTo(v1alpha1.ReplaceLostNever))
	_, ever := volume(t, req.Name).ReplaceLostAfter()
	g.Expect(ever).To(BeFalse())
	modify := func(parameters map[string]string) {
		_, err := m.service().ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: req.Name, MutableParameters: parameters})
		g.Expect(err).NotTo(HaveOccurred())
	}
	modify(map[string]string{"replaceLostReplicaAfter": "2h"})
	modify(map[string]string{"replicas": "2"}) // which says nothing of it
	after, ever := volume(t, req.Name).ReplaceLostAfter()
	g.Expect(ever).To(BeTrue())
	g.Expect(after).To(Equal(2 * time.Hour))
}

// After a restore of the API, a replica that was created since is not known any more, and may be the only one that has
// everything. Its name is not given to another one, which its record would be taken to mean.
func TestNoReplicaGetsTheNameOfAnother(t *testing.T) {
	m := newMoves(t, 2)
	m.id = newVolume(t, m.service(), m.st, "v")
	m.service().suffix = randomSuffix
	g := NewWithT(t)
	a, err := m.service().survey(t.Context(), m.id)
	g.Expect(err).NotTo(HaveOccurred())
	first, err := m.service().newMember(t.Context(), a)
	g.Expect(err).NotTo(HaveOccurred())
	again, err := m.service().newMember(t.Context(), a)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.Name).To(MatchRegexp("^" + m.id + "-1-[0-9a-f]{6}$"))
	g.Expect(again.Name).NotTo(Equal(first.Name))
	a.names = append(a.names, first.Name)
	g.Expect(lastReplica(a)).To(Equal(1))
	third, err := m.service().newMember(t.Context(), a)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.Name).To(HavePrefix(m.id + "-2-"))
}
