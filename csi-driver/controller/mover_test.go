// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// newMoverHost is a node whose node plugin can be a mover.
func newMoverHost(t *testing.T, name string) string {
	t.Helper()
	name = newHost(t, name)
	create(t, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName, NodeID: name}},
	}})
	setReady(t, name, corev1.ConditionTrue)
	t.Cleanup(func() { setReady(t, name, corev1.ConditionFalse) }) // no mover of another test
	return name
}

func setReady(t *testing.T, name string, is corev1.ConditionStatus) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		var node corev1.Node
		if err := api.Get(context.Background(), keyOf(name), &node); err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
		return api.Status().Update(context.Background(), &node)
	}).WithTimeout(enough).Should(Succeed())
}

// obey plays the node plugin of a mover that is asked to stop. It tells whether it has stopped.
func (m *moves) obey() (stopped bool) {
	is := mirrorOf(m.t, m.id)
	if is == nil || is.Spec.Mover != v1alpha1.MoverStop {
		return false
	}
	is.Spec.Mover, is.Spec.Dirty = v1alpha1.MoverStopped, false
	return api.Update(m.t.Context(), is) == nil // or the next time
}

// newWrittenAndDetached is a detached volume that a pod has written.
func newWrittenAndDetached(t *testing.T, mirrored bool) *moves {
	t.Helper()
	m := newMoves(t, 3)
	if mirrored {
		m.id = newMirrored(t, m.service(), m.st, "v")
	} else {
		m.id = newVolume(t, m.service(), m.st, "v")
	}
	node := newHost(t, "user")
	if mirrored {
		hold(t, m.service(), m.id, node)
	} else {
		publish(t, m.service(), m.id, node)
	}
	for _, member := range volume(t, m.id).Spec.Members {
		markWritten(t, member.Node, member.UUID)
	}
	unpublish(t, m.service(), m.id, node)
	NewWithT(t).Eventually(func(g Gomega) {
		for _, member := range volume(t, m.id).Spec.Members {
			g.Expect(replicaOf(t, member.Name).Status.Written).To(BeTrue())
		}
	}).WithTimeout(enough).Should(Succeed())
	return m
}

// copying until a mover holds the volume in the middle of a move.
func (m *moves) copying() {
	m.t.Helper()
	m.move(m.id+"-0", "")
	m.stage(func() bool { is := mirrorOf(m.t, m.id); return is != nil && is.Spec.Mover != "" })
}

// A volume that nobody ever wrote to moves although there is nothing to copy, without any node holding its mirror. The
// pod that uses it first finds it blank on its new node, and may format it.
func TestMoveOfAVolumeThatWasNeverUsed(t *testing.T) {
	for name, mirrored := range map[string]bool{"of two replicas": true, "of one replica": false} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 3)
			newMoverHost(t, "mover")
			want := []string{"-1"}
			if mirrored {
				m.id, want = newMirrored(t, m.service(), m.st, "v"), append(want, "-2")
			} else {
				m.id = newVolume(t, m.service(), m.st, "v")
			}
			for i := range want {
				want[i] = m.id + want[i]
			}
			was := volume(t, m.id).Spec.Members[0]
			m.move(was.Name, "")
			m.until(func(g Gomega) {
				if is := mirrorOf(t, m.id); is != nil && is.Spec.Holder != "" {
					t.Fatalf("it has a holder: %s", mirror.String(is.Spec))
				}
				m.has(want...)(g)
				g.Expect(volume(t, m.id).Spec.Attachments).To(BeEmpty())
			})
			erased(t, was.Node, was.UUID)
			node := newHost(t, "user")
			holder := hold(t, m.service(), m.id, node)
			for _, name := range want {
				if !isBlankTo(replicaOf(t, name), holder) {
					t.Errorf("replica %s is not blank to its first host", name)
				}
			}
			if is := mirrorOf(t, m.id).Spec; is.Holder != holder || len(mirror.InSync(is)) != len(want) {
				t.Errorf("the pod has %s", mirror.String(is))
			}
			unpublish(t, m.service(), m.id, node)
			m.delete()
		})
	}
}

// No mover is given to a volume whose node cannot say that nothing was written to it.
func TestNoMoverWithoutTheWordOfAnAgent(t *testing.T) {
	m := newMoves(t, 3)
	newMoverHost(t, "mover")
	m.id = newMirrored(t, m.service(), m.st, "v")
	node := volume(t, m.id).Spec.Members[0].Node
	silence(t, node)
	setNodeStatus(t, node, func(n *v1alpha1.NvmfNodeStatus) {
		n.Conditions = append(n.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no sign for a minute"))
	})
	m.move(m.id+"-0", "")
	m.until(func(g Gomega) {
		vol := volume(t, m.id)
		if vol.Mover() != nil {
			t.Fatal("it has a mover")
		}
		g.Expect(vol.Spec.Move.Waiting).To(ContainSubstring("when node " + node + " confirms it"))
	})
	m.cancel()
	m.until(m.has(m.id+"-0", m.id+"-1"))
}

// Nothing is concluded of a volume that was written to after all, or whose agent does not say that it was not.
func TestEquateTakesNoWordForIt(t *testing.T) {
	m := newMoves(t, 2)
	newMoverHost(t, "mover")
	m.id = newVolume(t, m.service(), m.st, "v")
	first := volume(t, m.id).Spec.Members[0]
	m.move(first.Name, "")
	m.stage(func() bool { return volume(t, m.id).Mover() != nil })
	NewWithT(t).Eventually(func(g Gomega) {
		_, err := m.service().follow(t.Context(), volume(t, m.id))
		g.Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{m.id + "-0", m.id + "-1"} {
			g.Expect(isBlankTo(replicaOf(t, name), volume(t, m.id).Mover().AttachmentUUID())).To(BeTrue())
		}
	}).WithTimeout(enough).Should(Succeed())
	a, err := m.service().survey(t.Context(), m.id)
	if err != nil {
		t.Fatal(err)
	}
	h := a.Mover()
	equated := func() bool {
		t.Helper()
		if is := mirrorOf(t, m.id).Spec; len(mirror.InSync(is)) != 1 {
			t.Fatalf("before: %s", mirror.String(is))
		}
		if _, err := m.service().equate(t.Context(), a, h); err != nil {
			t.Fatal(err)
		}
		return len(mirror.InSync(mirrorOf(t, m.id).Spec)) > 1
	}
	for name, edit := range map[string]func(*v1alpha1.NvmfReplicaStatus){
		"was written":             func(is *v1alpha1.NvmfReplicaStatus) { is.Written = true },
		"not blank when admitted": func(is *v1alpha1.NvmfReplicaStatus) { is.Hosts[0].Blank = false },
		"another host is there": func(is *v1alpha1.NvmfReplicaStatus) {
			is.Hosts = append(is.Hosts, v1alpha1.AdmittedHost{NQN: v1alpha1.HostNQN("00000000-0000-4000-8000-00000000000f"), Blank: true})
		},
		"not seen yet": func(is *v1alpha1.NvmfReplicaStatus) { is.ObservedGeneration-- },
		"not created": func(is *v1alpha1.NvmfReplicaStatus) {
			meta.SetStatusCondition(&is.Conditions, metav1.Condition{Type: v1alpha1.ConditionCreated, Status: metav1.ConditionUnknown, Reason: "Test"})
		},
		"a restore is suspected": func(is *v1alpha1.NvmfReplicaStatus) {
			meta.SetStatusCondition(&is.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRestoreSuspected})
		},
	} {
		for _, name2 := range []string{first.Name, m.id + "-1"} {
			rep := replicaOf(t, name2).DeepCopy()
			edit(&rep.Status)
			if isBlankTo(rep, h.AttachmentUUID()) {
				t.Errorf("%s of %s: it counts as blank", name, name2)
			}
		}
	}
	markWritten(t, first.Node, first.UUID)
	NewWithT(t).Eventually(func() bool { return replicaOf(t, first.Name).Status.Written }).WithTimeout(enough).Should(BeTrue())
	if equated() {
		t.Error("a replica that was written to is said to equal a blank one")
	}
	m.cancel()
	m.until(m.has(m.id + "-0"))
	m.delete()
}

// A detached volume moves by a mover, which is nobody's attachment, and is gone in the end.
func TestMoverMovesADetachedVolume(t *testing.T) {
	for name, mirrored := range map[string]bool{"of two replicas": true, "of one replica": false} {
		t.Run(name, func(t *testing.T) {
			m := newWrittenAndDetached(t, mirrored)
			host := newMoverHost(t, "mover")
			m.move(m.id+"-0", "")
			want := []string{m.id + "-1"}
			if mirrored {
				want = append(want, m.id+"-2")
			}
			seen := false
			m.until(func(g Gomega) {
				m.obey()
				vol := volume(t, m.id)
				if h := vol.Mover(); h != nil {
					seen = true
					g.Expect(h.Node).To(Equal(host))
					resp, err := m.service().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: m.id})
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(resp.Status.PublishedNodeIds).To(BeEmpty())
					g.Expect(m.service().takeBackAll(t.Context())).To(Succeed())
				}
				m.has(want...)(g)
				g.Expect(vol.Spec.Attachments).To(BeEmpty())
				g.Expect(mirrorOf(t, m.id).Spec.Holder).To(BeEmpty())
			})
			if !seen {
				t.Error("it moved without a mover")
			}
			m.delete()
		})
	}
}

// A pod's attachment takes the volume from a mover, on the same node and on another, whether it answers or not.
func TestPublishDisplacesAMover(t *testing.T) {
	for name, answers := range map[string]bool{"that answers": true, "that does not": false} {
		t.Run(name, func(t *testing.T) {
			m := newWrittenAndDetached(t, true)
			host := newMoverHost(t, "mover")
			m.copying()
			err := inVain(t, func(ctx context.Context) error {
				_, err := m.service().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: own(t, "snap"), SourceVolumeId: m.id}) //nolint:contextcheck // what was left is swept away with the test's context
				return err
			})
			NewWithT(t).Expect(err).To(HaveOccurred())
			done := make(chan struct{})
			ended := make(chan struct{})
			stopped := false
			go func() {
				defer close(ended)
				for answers && !stopped {
					stopped = m.obey()
					select {
					case <-done:
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
			}()
			holder := hold(t, m.service(), m.id, host)
			close(done)
			<-ended
			g := NewWithT(t)
			g.Expect(stopped).To(Equal(answers), "it is revoked only if it does not stop")
			g.Expect(mirrorOf(t, m.id).Spec.Holder).To(Equal(holder))
			g.Expect(mirrorOf(t, m.id).Spec.Mover).To(BeEmpty())
			g.Expect(volume(t, m.id).Mover()).To(BeNil())
			m.until(m.has(m.id+"-1", m.id+"-2"))
			unpublish(t, m.service(), m.id, host)
			m.delete()
		})
	}
}

// A volume that a mover holds can be deleted, its move cancelled, and its node lost.
func TestMoverIsInNobodysWay(t *testing.T) {
	t.Run("delete", func(t *testing.T) {
		m := newWrittenAndDetached(t, true)
		newMoverHost(t, "mover")
		m.copying()
		m.delete()
	})
	t.Run("cancel", func(t *testing.T) {
		m := newWrittenAndDetached(t, true)
		newMoverHost(t, "mover")
		m.copying()
		m.cancel()
		m.until(func(g Gomega) {
			m.obey()
			m.has(m.id+"-0", m.id+"-1")(g)
			g.Expect(volume(t, m.id).Spec.Attachments).To(BeEmpty())
		})
		m.delete()
	})
	t.Run("unpublish of an earlier attachment", func(t *testing.T) {
		m := newWrittenAndDetached(t, true)
		host := newMoverHost(t, "mover")
		m.copying()
		unpublish(t, m.service(), m.id, host)
		if volume(t, m.id).Mover() == nil {
			t.Error("the mover was dismissed")
		}
		m.delete()
	})
}

// A pod comes and goes after the replicas have confirmed a mover, and before that is written: it does not hold.
func TestStaleMoverIsNotAdmitted(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	host := newMoverHost(t, "mover")
	m.move(m.id+"-0", "")
	m.stage(func() bool { return volume(t, m.id).Mover() != nil })
	was, record := volume(t, m.id), mirrorOf(t, m.id).Spec
	var confirmed []mirror.Confirmation
	for _, is := range record.Members {
		confirmed = append(confirmed, mirror.Confirmation{Replica: mirror.Replica{Name: is.Replica, UID: is.ReplicaUID}})
	}
	hold(t, m.service(), m.id, host)
	unpublish(t, m.service(), m.id, host)
	before := mirrorOf(t, m.id).Spec
	for _, as := range []mirror.Record{record, before} {
		if err := m.service().holdByMover(t.Context(), was, was.Mover(), as, confirmed); !errors.Is(err, errMoverLeft) {
			t.Errorf("admitted with the record %s: %v", mirror.String(as), err)
		}
	}
	NewWithT(t).Expect(mirrorOf(t, m.id).Spec).To(Equal(before))
	m.delete()
}

// The node of a mover, and of the new replica, is lost while it copies: a pod gets the volume with the others.
func TestMoverIsLostWithItsNode(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	host, other := newMoverHost(t, "mover"), newHost(t, "other")
	m.copying()
	is := mirrorOf(t, m.id)
	var found []mirror.Found
	for _, in := range is.Spec.Members[:2] {
		found = append(found, mirror.Found{Replica: mirror.Replica{Name: in.Replica, UID: in.ReplicaUID}, Mark: mirror.NoMark, Identity: in.Replica})
	}
	h := mirror.Holder{Attachment: is.Spec.Holder, Mark: "mark", Now: time.Now()}
	next, err := h.Start(is.Spec, found)
	if err == nil {
		next, err = h.Return(next, m.id+"-2", "identity", false, map[string]string{m.id + "-2": mirror.NoMark})
	}
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	is.Spec = next
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	setReady(t, host, corev1.ConditionFalse)
	silence(t, volume(t, m.id).Spec.Members[2].Node)
	holder := hold(t, m.service(), m.id, other)
	record := mirrorOf(t, m.id).Spec
	g.Expect(record.Holder).To(Equal(holder))
	g.Expect(mirror.InSync(record)).To(Equal([]string{m.id + "-0", m.id + "-1"}))
}

// Another process finds a mover that was asked to stop and does not: it revokes it in the end, too.
func TestMoverThatDoesNotStopIsRevokedAfterARestart(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	newMoverHost(t, "mover")
	m.copying()
	was := volume(t, m.id).Mover()
	g := NewWithT(t)
	g.Expect(m.service().askMover(t.Context(), volume(t, m.id), was)).To(Succeed())
	other := m.lives[1]
	g.Expect(other.arrange(t.Context(), m.id)).To(Succeed())
	asked, is := other.asked.at[m.id]
	g.Expect(is).To(BeTrue())
	g.Expect(volume(t, m.id).Mover().NQN).To(Equal(was.NQN))
	asked.when = asked.when.Add(-moverEnds)
	other.asked.at[m.id] = asked
	g.Eventually(func(g Gomega) {
		g.Expect(other.arrange(t.Context(), m.id)).To(Succeed())
		now := volume(t, m.id).Mover()
		g.Expect(now == nil || now.NQN != was.NQN).To(BeTrue())
	}).WithTimeout(enough).Should(Succeed())
	m.delete()
}

// Where nobody could be admitted, no mover is given to the volume, over and over. The move says why, also when a mover
// cannot begin.
func TestMoveSaysWhyNobodyCopies(t *testing.T) {
	t.Run("nobody knows which replica is current", func(t *testing.T) {
		m := newWrittenAndDetached(t, true)
		newMoverHost(t, "mover")
		is := mirrorOf(t, m.id)
		is.Spec.Dirty = true
		g := NewWithT(t)
		g.Expect(api.Update(t.Context(), is)).To(Succeed())
		node := volume(t, m.id).Spec.Members[0].Node
		silence(t, node)
		setNodeStatus(t, node, func(n *v1alpha1.NvmfNodeStatus) {
			n.Conditions = append(n.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no sign for a minute"))
		})
		session := volume(t, m.id).Spec.Session
		m.move(m.id+"-0", "")
		m.waits("no node can copy from the volume's replicas: " + mirror.ErrNeedsPerson.Error())
		vol := volume(t, m.id)
		g.Expect(vol.Spec.Attachments).To(BeEmpty())
		g.Expect(vol.Spec.Session).To(Equal(session))
	})
	t.Run("the node cannot begin", func(t *testing.T) {
		m := newWrittenAndDetached(t, true)
		newMoverHost(t, "mover")
		m.copying()
		says := func(what string) {
			t.Helper()
			NewWithT(t).Expect(m.service().arrange(t.Context(), m.id)).To(Succeed())
			NewWithT(t).Expect(volume(t, m.id).Spec.Move.Waiting).To(ContainSubstring(what))
		}
		says("has not begun to copy yet")
		is := mirrorOf(t, m.id)
		is.Spec.MoverWaiting = "it is still staged here"
		NewWithT(t).Expect(api.Update(t.Context(), is)).To(Succeed())
		says("cannot begin to copy: it is still staged here")
		m.delete()
	})
}

// A mover that does not begin is given up for one on another node: it would keep a place among the volumes that are
// filled, and the volume from being copied.
func TestMoverThatDoesNotBeginIsReplaced(t *testing.T) {
	m := newImpatient(t)
	m.waitsFor(moverStarts)
	m.replaced()
}

// The mover started the mirror, and copies for a while; then it gets nowhere.
func TestMoverThatGetsNowhereIsReplaced(t *testing.T) {
	m := newImpatient(t)
	is := mirrorOf(t, m.id)
	for i := range is.Spec.Members {
		is.Spec.Members[i].Identity = is.Spec.Holder
	}
	m.Expect(api.Update(t.Context(), is)).To(Succeed())
	m.waitsFor(moverStarts)
	for copied := range int64(3) {
		is := mirrorOf(t, m.id)
		is.Spec.Members[1].CopiedBytes = copied << 20
		m.Expect(api.Update(t.Context(), is)).To(Succeed())
		m.Expect(m.s.arrange(t.Context(), m.id)).To(Succeed())
		m.waitsFor(moverCopies - time.Minute)
		m.Expect(mirrorOf(t, m.id).Spec.Mover).To(Equal(v1alpha1.MoverCopy), "there was progress")
	}
	m.waitsFor(time.Minute)
	m.replaced()
}

// impatient is a detached volume with a mover, for which two nodes can copy, and the service that waits for it.
type impatient struct {
	*moves
	*WithT
	s   *Service
	was v1alpha1.VolumeHost
}

func newImpatient(t *testing.T) *impatient {
	t.Helper()
	m := newWrittenAndDetached(t, true)
	newMoverHost(t, "a-mover")
	newMoverHost(t, "b-mover")
	m.copying()
	i := &impatient{moves: m, WithT: NewWithT(t), s: m.service(), was: *volume(t, m.id).Mover()}
	i.Expect(i.s.arrange(t.Context(), m.id)).To(Succeed())
	i.Expect(mirrorOf(t, m.id).Spec.Mover).To(Equal(v1alpha1.MoverCopy))
	return i
}

// waitsFor the mover as if so much time had passed.
func (i *impatient) waitsFor(d time.Duration) {
	i.t.Helper()
	given := i.s.given.at[i.id]
	given.when = given.when.Add(-d)
	i.s.given.at[i.id] = given
	i.Expect(i.s.arrange(i.t.Context(), i.id)).To(Succeed())
}

// replaced by a mover on another node.
func (i *impatient) replaced() {
	i.t.Helper()
	i.Expect(mirrorOf(i.t, i.id).Spec.Mover).To(Equal(v1alpha1.MoverStop))
	i.obey()
	i.Eventually(func(g Gomega) {
		g.Expect(i.s.arrange(i.t.Context(), i.id)).To(Succeed())
		now := volume(i.t, i.id).Mover()
		g.Expect(now).NotTo(BeNil())
		g.Expect(now.Node).NotTo(Equal(i.was.Node))
	}).WithTimeout(enough).Should(Succeed())
	i.delete()
}

// What a new replica waits for does not keep the others from being made equal.
func TestMoverCopiesWhileANewReplicaWaitsForItsNode(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	newMoverHost(t, "mover")
	is := mirrorOf(t, m.id)
	is.Spec.Epoch++
	is.Spec.Members[1].State, is.Spec.Members[1].Reason = v1alpha1.MemberOut, mirror.ReasonUnconfirmed
	g := NewWithT(t)
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	m.move(m.id+"-0", "no-such-node")
	m.waits("does not serve target")
	m.stage(func() bool { return mirrorOf(t, m.id).Spec.Mover != "" })
	m.delete()
}

// The node of a mover is lost while it copies, and nothing else happens: that is noticed.
func TestMoverIsLookedAtAgain(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	host := newMoverHost(t, "mover")
	m.copying()
	is := mirrorOf(t, m.id)
	is.Spec.Members[0].Identity = "connected"
	g := NewWithT(t)
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	did, err := m.service().step(t.Context(), m.id)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(did).To(Equal(outcome{again: true}))
	setReady(t, host, corev1.ConditionFalse)
	g.Expect(m.service().step(t.Context(), m.id)).To(Equal(changed))
	g.Expect(mirrorOf(t, m.id).Spec.Mover).To(Equal(v1alpha1.MoverStop))
	m.delete()
}

// A pod that cannot be attached to its node is tried over and over: that does not end the copy.
func TestMoverStaysWhileAPodCannotBeAttached(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	newMoverHost(t, "mover")
	m.copying()
	was := volume(t, m.id).Mover().NQN
	unable := newHost(t, "unable")
	var node corev1.Node
	g := NewWithT(t)
	g.Expect(api.Get(t.Context(), keyOf(unable), &node)).To(Succeed())
	node.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.ConditionMirrorsUnavailable, Status: corev1.ConditionTrue, Reason: "NoProgram"}}
	g.Expect(api.Status().Update(t.Context(), &node)).To(Succeed())
	_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, unable))
	g.Expect(err).To(MatchError(ContainSubstring("cannot be mirrored by node")))
	g.Expect(volume(t, m.id).Mover()).To(HaveField("NQN", was))
	g.Expect(mirrorOf(t, m.id).Spec.Mover).To(Equal(v1alpha1.MoverCopy))
	m.delete()
}

// A service ends between the two writes that dismiss a mover which nobody needs any more: the next one makes the other.
func TestMoverThatWasHalfDismissedHoldsNothing(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	is := mirrorOf(t, m.id)
	is.Spec.Epoch++
	is.Spec.Holder, is.Spec.HolderNode, is.Spec.Mover = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a004", "mover", v1alpha1.MoverStopped
	g := NewWithT(t)
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	if arranged(&replicatedVolume{NvmfVolume: volume(t, m.id), replicas: make([]*v1alpha1.NvmfReplica, 2)}, &is.Spec) {
		t.Error("a holder that the volume does not list is taken for settled")
	}
	g.Expect(m.service().arrange(t.Context(), m.id)).To(Succeed())
	g.Expect(mirrorOf(t, m.id).Spec.Holder).To(BeEmpty())
	m.delete()
}

// The last member that is in sync stays, though it is to leave: a mover could do nothing about it.
func TestNoMoverForTheLastMemberInSync(t *testing.T) {
	for state, want := range map[v1alpha1.MirrorMemberState]bool{v1alpha1.MemberOut: false, v1alpha1.MemberInSync: true} {
		v := replicatedVolume{NvmfVolume: volumeWith(1, nil), replicas: []*v1alpha1.NvmfReplica{nil, replicaWith(v1alpha1.ReasonAsExpected)}}
		v.Spec.Members = []v1alpha1.VolumeMember{{Name: "a"}, {Name: "b"}}
		record := mirror.Record{Epoch: 9, Members: []mirror.Member{{Replica: "a", State: state}, {Replica: "b", State: v1alpha1.MemberInSync, Retired: true}}}
		if got := (&Service{}).moverNeeded(t.Context(), &arrangement{replicatedVolume: v, record: &record}); got != want {
			t.Errorf("the other one is %s: a mover is needed: %t", state, got)
		}
	}
}
