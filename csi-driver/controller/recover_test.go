// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// read plays the node plugin of a mover that is to read headers: of the replicas that admit it, and of no others.
func (m *moves) read(is *v1alpha1.NvmfMirror) {
	m.t.Helper()
	if is.Spec.Mover != v1alpha1.MoverRead {
		return
	}
	headers := map[string]v1alpha1.MirrorHeader{}
	for _, member := range is.Spec.Members {
		rep := replicaOf(m.t, member.Replica)
		if h := rep.HostOf(is.Spec.Holder); h == nil || rep.Admitted(h.NQN) == nil {
			continue
		}
		if len(rep.Status.Hosts) != 1 {
			m.t.Fatalf("%s is read while it admits %v", member.Replica, rep.Status.Hosts)
		}
		headers[member.Replica] = mirror.Reported(m.onDisk[member.Replica])
		m.headers[member.ReplicaUID] = m.onDisk[member.Replica].Mark
	}
	var err error
	if is.Spec, err = mirror.Report(is.Spec, is.Spec.Holder, headers); err != nil {
		m.t.Fatal(err)
	}
	if err := api.Update(m.t.Context(), is); err != nil && !apierrors.IsConflict(err) {
		m.t.Fatal(err)
	}
}

// newToRecover is a detached volume of two replicas, whose headers say what they are given: "epoch mark state state",
// the states of the first replica and of the second.
func newToRecover(t *testing.T, first, second string) *moves {
	t.Helper()
	m := newWrittenAndDetached(t, true)
	newMoverHost(t, "reader")
	m.onDisk = map[string]mirror.Header{}
	for i, text := range []string{first, second} {
		f := strings.Fields(text)
		m.onDisk[m.name(i)] = mirror.Header{Epoch: int64(len(f[0])), Mark: f[1], Members: map[string]v1alpha1.MirrorMemberState{
			m.name(0): v1alpha1.MirrorMemberState(f[2]), m.name(1): v1alpha1.MirrorMemberState(f[3]),
		}}
	}
	return m
}

// Headers of newToRecover: the epoch is as high as its text is long.
const (
	bothOld   = "111 m3 InSync InSync"
	firstOnly = "11111 m5 InSync Out"
	otherOnly = "1111111 m7 Out InSync"
)

func (m *moves) name(i int) string { return volume(m.t, m.id).Spec.Members[i].Name }

func (m *moves) ask(change func(*v1alpha1.VolumeRecovery)) {
	m.t.Helper()
	wish := &v1alpha1.VolumeRecovery{ID: uuid.NewString()}
	if change != nil {
		change(wish)
	}
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Recovery = wish })
}

// recovers until the request is carried out: these replicas are in sync. The others are filled from then on.
func (m *moves) recovers(inSync ...string) {
	m.t.Helper()
	m.until(func(g Gomega) {
		g.Expect(volume(m.t, m.id).Spec.Recovery).To(BeNil())
		g.Expect(mirrorOf(m.t, m.id).Spec.Recovering).To(BeFalse())
	})
	r := mirrorOf(m.t, m.id).Spec
	NewWithT(m.t).Expect(mirror.InSync(r)).To(Equal(inSync), mirror.String(r))
	for replica, h := range m.onDisk {
		NewWithT(m.t).Expect(mirror.Check(r, replica, h)).To(Succeed())
	}
}

// recoveryWaits until the request says that it waits for this.
func (m *moves) recoveryWaits(says ...string) {
	m.t.Helper()
	m.until(func(g Gomega) {
		wish := volume(m.t, m.id).Spec.Recovery
		g.Expect(wish).NotTo(BeNil())
		for _, what := range says {
			g.Expect(wish.Waiting).To(ContainSubstring(what))
		}
	})
}

func acceptLoss(current string) func(*v1alpha1.VolumeRecovery) {
	return func(wish *v1alpha1.VolumeRecovery) {
		wish.Current, wish.AcceptLossUntil = current, &metav1.Time{Time: time.Now().Add(time.Hour)}
	}
}

// The record says that both are current, which is not true, or there is none. The headers tell, also when the service
// is killed at any moment.
func TestRecoverARecord(t *testing.T) {
	for name, lost := range map[string]bool{"that is not true": false, "that is lost": true} {
		t.Run(name, func(t *testing.T) {
			m := newToRecover(t, bothOld, otherOnly)
			if lost {
				NewWithT(t).Expect(api.Delete(t.Context(), mirrorOf(t, m.id))).To(Succeed())
			}
			m.mortal(lost)
			m.ask(nil)
			m.recovers(m.name(1))
		})
	}
}

// The objects of the replicas were created again, so that the record of the backup knows none of them by its UID.
func TestRecoverARecordOfOtherObjects(t *testing.T) {
	m := newToRecover(t, bothOld, otherOnly)
	g := NewWithT(t)
	is := mirrorOf(t, m.id)
	g.Expect(api.Delete(t.Context(), is)).To(Succeed())
	is.ObjectMeta = metav1.ObjectMeta{Name: is.Name, Labels: is.Labels}
	for i := range is.Spec.Members {
		is.Spec.Members[i].ReplicaUID += "-of-the-backup"
	}
	g.Expect(api.Create(t.Context(), is)).To(Succeed())
	m.ask(nil)
	g.Eventually(func(g Gomega) {
		g.Expect(m.service().arrange(t.Context(), m.id)).To(Succeed())
		m.keep()
		g.Expect(volume(t, m.id).Spec.Recovery).To(BeNil())
	}).WithTimeout(enough).Should(Succeed())
	g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.name(1)}))
}

// What nobody knows, a person decides, and permits what is lost.
func TestAPersonChoosesWhatIsCurrent(t *testing.T) {
	m := newToRecover(t, firstOnly, otherOnly)
	m.ask(nil)
	m.recoveryWaits("different histories", "--current REPLICA --accept-loss")
	for _, wish := range []func(*v1alpha1.VolumeRecovery){
		func(wish *v1alpha1.VolumeRecovery) { wish.Current = m.name(0) },
		func(wish *v1alpha1.VolumeRecovery) {
			acceptLoss(m.name(0))(wish)
			wish.AcceptLossUntil.Time = time.Now().Add(-time.Second)
		},
	} {
		m.ask(wish)
		m.recoveryWaits("writes could be lost with replica "+m.name(0), m.name(1)+", whose header of epoch 7 has "+m.name(1)+" in sync", "--accept-loss")
	}
	_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, newHost(t, "user-again")))
	expectError(t, err, codes.Unavailable, "is attached when the record of its replicas is recovered")
	m.ask(acceptLoss(m.name(0)))
	m.recovers(m.name(0))
	// The other one's header is no hindrance: it is filled.
	hold(t, m.service(), m.id, newHost(t, "user-later"))
	m.until(m.has(m.name(0), m.name(1)))
}

// Nothing is lost with a replica that is current anyway, so that nobody has to permit it.
func TestAChoiceThatLosesNothing(t *testing.T) {
	m := newToRecover(t, bothOld, otherOnly)
	m.ask(func(wish *v1alpha1.VolumeRecovery) { wish.Current = m.name(1) })
	m.recovers(m.name(1))
}

// By the headers both are current, and a person knows better: only the one that was chosen is. Without a permission
// that is still valid, the headers decide.
func TestAPersonDecidesAgainstTheHeaders(t *testing.T) {
	now := time.Now()
	both := map[string]v1alpha1.MirrorMemberState{"a": v1alpha1.MemberInSync, "b": v1alpha1.MemberInSync}
	r, err := mirror.NewDoubt([]mirror.Replica{{Name: "a", UID: "u-a"}, {Name: "b", UID: "u-b"}}, now)
	if err == nil {
		r, err = mirror.AdmitReader(r, uuid.NewString(), "reader")
	}
	if err == nil {
		h := mirror.Reported(mirror.Header{Epoch: 9, Mark: "m9", Members: both})
		r, err = mirror.Report(r, r.Holder, map[string]v1alpha1.MirrorHeader{"a": h, "b": h})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		until *metav1.Time
		want  []string
		lost  int
	}{
		{nil, []string{"a", "b"}, 0},
		{&metav1.Time{Time: now}, []string{"a", "b"}, 0},
		{&metav1.Time{Time: now.Add(time.Second)}, []string{"a"}, 1},
	} {
		got, lost, err := recordFor(mirror.Begin(r), v1alpha1.VolumeRecovery{Current: "a", AcceptLossUntil: tc.until}, now)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(mirror.InSync(got)).To(Equal(tc.want), "until %s", tc.until)
		NewWithT(t).Expect(lost).To(HaveLen(tc.lost), "until %s", tc.until)
	}
}

// A replica that cannot be asked may be the newest one. A person may give it up, and it is no hindrance then.
func TestAReplicaThatCannotBeReadMayBeNewer(t *testing.T) {
	m := newToRecover(t, firstOnly, otherOnly)
	away := volume(t, m.id).Spec.Members[1].Node
	silence(t, away)
	setNodeStatus(t, away, func(n *v1alpha1.NvmfNodeStatus) {
		n.Conditions = append(n.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no sign for a minute"))
	})
	g := NewWithT(t)
	g.Eventually(func() bool { return m.service().silent(t.Context(), away) && m.lives[1].silent(t.Context(), away) }).WithTimeout(enough).Should(BeTrue())
	m.ask(nil)
	m.recoveryWaits("the header of "+m.name(1)+" was not read", "start the nodes of all replicas")
	m.ask(acceptLoss(m.name(1)))
	m.recoveryWaits("the header of " + m.name(1) + " was not read")
	m.ask(acceptLoss(m.name(0)))
	m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Recovery).To(BeNil()) })
	r := mirrorOf(t, m.id).Spec
	g.Expect(mirror.InSync(r)).To(Equal([]string{m.name(0)}))
	g.Expect(mirror.Check(r, m.name(1), m.onDisk[m.name(1)])).To(Succeed())
}

// While the volume is attached, nothing is done, unless a person ends that. The replicas confirm that who wrote is off
// before their headers are read.
func TestRecoverWhileANodeWrites(t *testing.T) {
	m := newToRecover(t, bothOld, otherOnly)
	node := newHost(t, "writer")
	holder := hold(t, m.service(), m.id, node)
	before := mirrorOf(t, m.id).Spec.Epoch
	m.ask(nil)
	m.recoveryWaits("attached to node "+node, "--detach")
	r := mirrorOf(t, m.id).Spec
	if r.Holder != holder || r.Recovering {
		t.Fatalf("while it is attached, the record is %s", mirror.String(r))
	}
	m.ask(func(wish *v1alpha1.VolumeRecovery) { wish.Attachments = v1alpha1.RecoveryEnds })
	m.recovers(m.name(1))
	if after := mirrorOf(t, m.id).Spec.Epoch; after < before+1000 {
		t.Errorf("who wrote may take epoch %d for the past", after)
	}
	unpublish(t, m.service(), m.id, node) // late
}

// A mover copies by a record that is in doubt: it is dismissed first, and does not read the headers under the identity
// by which its commands may still be under way.
func TestRecoverWhileAMoverCopies(t *testing.T) {
	m := newToRecover(t, bothOld, otherOnly)
	m.copying()
	copies := volume(t, m.id).Mover().NQN
	current := m.name(1)
	m.ask(nil)
	m.until(func(g Gomega) {
		if is := mirrorOf(t, m.id); is.Spec.Recovering && v1alpha1.HostNQN(is.Spec.Holder) == copies {
			t.Fatalf("the mover that copied holds the record in doubt: %s", mirror.String(is.Spec))
		}
		g.Expect(volume(t, m.id).Spec.Recovery).To(BeNil())
	})
	if r := mirrorOf(t, m.id).Spec; mirror.StateOf(r, current) != v1alpha1.MemberInSync || len(mirror.InSync(r)) > 1 {
		t.Errorf("the record is %s", mirror.String(r))
	}
}

// A request is carried out once, and another one has the same result.
func TestRecoverTwice(t *testing.T) {
	m := newToRecover(t, bothOld, otherOnly)
	m.ask(nil)
	id := volume(t, m.id).Spec.Recovery.ID
	m.recovers(m.name(1))
	first := mirrorOf(t, m.id).Spec
	m.ask(func(wish *v1alpha1.VolumeRecovery) { wish.ID = id })
	m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Recovery).To(BeNil()) })
	if again := mirrorOf(t, m.id).Spec; again.Epoch > first.Epoch+1000 {
		t.Errorf("it was recovered again: %s", mirror.String(again))
	}
	m.ask(nil)
	m.recovers(m.name(1))
	if again := mirrorOf(t, m.id).Spec; again.Epoch < first.Epoch+1000 {
		t.Error("another request was not carried out")
	}
}

// suspects a restore of the API: the agent of a replica's node does, or does no more.
func (m *moves) suspects(i int, is metav1.ConditionStatus, reason string) {
	m.t.Helper()
	m.suspectsOf(m.name(i), is, reason)
}

// suspectsOf is suspects of a replica that need not be a member.
func (m *moves) suspectsOf(replica string, is metav1.ConditionStatus, reason string) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func() error {
		rep := replicaOf(m.t, replica)
		meta.SetStatusCondition(&rep.Status.Conditions, condition(v1alpha1.ConditionDegraded, is, reason, "later"))
		return api.Status().Update(m.t.Context(), rep)
	}).WithTimeout(enough).Should(Succeed())
}

// While the agent of a replica suspects a restore of the API, the request may be as old as the backup: what it permits
// to lose is permitted no more. Nothing begins before the restore is declared.
func TestARequestOfTheBackupLosesNothing(t *testing.T) {
	m := newToRecover(t, firstOnly, otherOnly)
	silence(t, volume(t, m.id).Spec.Members[1].Node)
	m.suspects(1, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
	m.ask(func(wish *v1alpha1.VolumeRecovery) {
		acceptLoss(m.name(0))(wish)
		wish.Attachments = v1alpha1.RecoveryEnds
	})
	m.recoveryWaits("suspects a restore of the API", "declare the restore first")
	m.permitsNothing()
	if r := mirrorOf(t, m.id).Spec; r.Recovering {
		t.Errorf("the record is %s", mirror.String(r))
	}
}

// A restore that an agent suspects is recorded, and stays so when a person declares it: the next start compares.
func TestASuspicionOutlivesItsDeclaration(t *testing.T) {
	m := newWrittenAndDetached(t, true)
	g := NewWithT(t)
	settles := func(dirty bool) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			g.Expect(m.service().settle(t.Context(), m.id)).To(Succeed())
			g.Expect(mirrorOf(t, m.id).Spec.Dirty).To(Equal(dirty))
		}).WithTimeout(enough).Should(Succeed())
	}
	silence(t, volume(t, m.id).Spec.Members[1].Node)
	settles(false)
	m.suspects(1, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
	settles(true)
	is := mirrorOf(t, m.id).ResourceVersion
	m.suspects(1, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	settles(true)
	if mirrorOf(t, m.id).ResourceVersion != is {
		t.Error("it was written again")
	}
}

// permitsNothing: the request has become one that neither loses data nor ends attachments.
func (m *moves) permitsNothing() {
	m.t.Helper()
	if wish := volume(m.t, m.id).Spec.Recovery; wish.AcceptLossUntil != nil || wish.Attachments != v1alpha1.RecoveryWaits {
		m.t.Errorf("it permits to lose data until %s, and attachments: %s", wish.AcceptLossUntil, wish.Attachments)
	}
}

// declared restore of the API, of the node of a replica.
func (m *moves) declared(i int) v1alpha1.DeclaredRestore {
	m.t.Helper()
	is := v1alpha1.DeclaredRestore{Node: volume(m.t, m.id).Spec.Members[i].Node, ID: uuid.NewString()}
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: is.Node}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.RestoredAnnotation, is.ID))
	if err := api.Patch(m.t.Context(), node, patch); err != nil {
		m.t.Fatal(err)
	}
	return is
}

// While the service was away, the API was restored to the moment of a request, and a person has declared that: no agent
// suspects it any more, and the request is as old as the backup all the same. One that was made after the declaration
// permits what it says.
func TestARequestFromBeforeADeclaredRestoreLosesNothing(t *testing.T) {
	m := newToRecover(t, firstOnly, otherOnly)
	wish := func(known ...v1alpha1.DeclaredRestore) func(*v1alpha1.VolumeRecovery) {
		return func(wish *v1alpha1.VolumeRecovery) {
			acceptLoss(m.name(0))(wish)
			wish.Attachments, wish.DeclaredRestores = v1alpha1.RecoveryEnds, known
		}
	}
	before := m.declared(1)
	after := m.declared(1)
	for _, known := range [][]v1alpha1.DeclaredRestore{nil, {before}} {
		m.ask(wish(known...))
		m.recoveryWaits("writes could be lost with replica " + m.name(0))
		m.permitsNothing()
	}
	m.ask(wish(after))
	m.recovers(m.name(0))
}

// An attachment says at once what it would wait for in vain, and leaves nothing behind.
func TestAnAttachmentSaysAtOnceThatARestoreIsSuspected(t *testing.T) {
	for name, mirrored := range map[string]bool{"of two replicas": true, "of one replica": false} {
		t.Run(name, func(t *testing.T) {
			m := newWrittenAndDetached(t, mirrored)
			silence(t, volume(t, m.id).Spec.Members[0].Node) // its agent says no more than this
			m.suspects(0, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
			began := time.Now()
			_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, newHost(t, "late")))
			expectError(t, err, codes.Unavailable, "may have been restored to an earlier state", "declare the restore", "kubectl describe nvmfnode "+volume(t, m.id).Spec.Members[0].Node)
			if took := time.Since(began); took > confirmGrace/2 {
				t.Errorf("it said so after %s", took)
			}
			if vol := volume(t, m.id); len(vol.Spec.Attachments) > 0 {
				t.Errorf("it left the attachments %v", vol.Spec.Attachments)
			}
		})
	}
}

// A volume whose record is in doubt is not expanded, and is deleted as any other.
func TestAVolumeWhoseRecordIsInDoubt(t *testing.T) {
	m := newToRecover(t, firstOnly, otherOnly)
	m.ask(nil)
	m.recoveryWaits("different histories")
	_, err := m.service().ControllerExpandVolume(within(t, enough), &csi.ControllerExpandVolumeRequest{VolumeId: m.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gi}})
	expectError(t, err, codes.Unavailable, "when the record of its replicas is recovered")
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Recovery = nil })
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Waiting).To(ContainSubstring("kubectl weft recover nv/" + m.id))
	})
	m.delete()
}
