// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// newWritten is a volume with two replicas that a node uses.
func newWritten(t *testing.T, nodes int) (m *moves, node string) {
	t.Helper()
	m = newMoves(t, nodes)
	node = newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	write(t, m.id)
	return m, node
}

// whileKept makes calls at once. The holder's keeper begins to take its steps when each has requested a confirmation.
func (m *moves) whileKept(calls ...func(context.Context) error) []error {
	m.t.Helper()
	errs, left := make([]error, len(calls)), len(calls)
	type answer struct {
		call int
		err  error
	}
	answers := make(chan answer)
	ctx, before := within(m.t, enough), mirrorOf(m.t, m.id).Spec.ConfirmRequested
	for i, call := range calls {
		go func() { answers <- answer{i, call(ctx)} }()
	}
	NewWithT(m.t).Eventually(func() int {
		if mirrorOf(m.t, m.id).Spec.ConfirmRequested >= before+int64(len(calls)) {
			m.keep()
		}
		select {
		case a := <-answers:
			errs[a.call] = a.err
			left--
		default:
		}
		return left
	}).WithTimeout(enough).Should(BeZero())
	return errs
}

func (m *moves) snapshot(name string) func(context.Context) error {
	req := snapshotRequest(m.t, name, m.id)
	return func(ctx context.Context) error { _, err := m.service().CreateSnapshot(ctx, req); return err }
}

func (m *moves) clone(name string) func(context.Context) error {
	req := createRequest(m.st, own(m.t, name), gi)
	req.VolumeContentSource = ofVolume(m.id)
	return func(ctx context.Context) error { _, err := m.service().CreateVolume(ctx, req); return err }
}

func snapshotOf(t testing.TB, name string) *v1alpha1.NvmfSnapshot {
	t.Helper()
	snap, err := (&objects[v1alpha1.NvmfSnapshot, *v1alpha1.NvmfSnapshot]{}).get(t.Context(), api, own(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// The node that uses a volume confirms that the replica which was copied has everything: several copies at once.
func TestCopiesOfAnAttachedVolume(t *testing.T) {
	m, _ := newWritten(t, 2)
	before := mirrorOf(t, m.id).Spec
	for _, err := range m.whileKept(m.snapshot("one"), m.snapshot("two"), m.clone("three"), m.clone("four")) {
		if err != nil {
			t.Error(err)
		}
	}
	after := mirrorOf(t, m.id).Spec
	g := NewWithT(t)
	g.Expect(after.Epoch).To(Equal(before.Epoch))
	g.Expect(after.ConfirmRequested).To(BeEquivalentTo(4))
	g.Expect(snapshotOf(t, "one").Spec.Taken).To(BeTrue())
	g.Expect(volume(t, own(t, "three")).Annotations).NotTo(HaveKey(sourceProofAnnotation))

	// Asked again, the same is there, although the holder is away, and the replica that was copied is lost since.
	is := mirrorOf(t, m.id)
	h := mirror.Holder{Attachment: is.Spec.Holder, Mark: "m"}
	var err error
	is.Spec, err = h.Lost(is.Spec, m.id+"-0", mirror.ReasonLost, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	for _, call := range []func(context.Context) error{m.snapshot("one"), m.clone("three")} {
		g.Expect(call(within(t, enough))).To(Succeed())
	}
	g.Expect(mirrorOf(t, m.id).Spec.ConfirmRequested).To(BeEquivalentTo(4))
}

// While the holder does not answer, nobody can use the copy, and the user is told why. It is kept until then.
func TestACopyWaitsForTheHolder(t *testing.T) {
	m, node := newWritten(t, 2)
	g := NewWithT(t)
	for _, call := range []func(context.Context) error{m.snapshot("snap"), m.clone("clone")} {
		expectError(t, inVain(t, call), codes.Unavailable, "node "+node, "has not confirmed yet", "is kept", "older")
	}
	snap := snapshotOf(t, "snap")
	g.Expect(snap.Status.Ready).To(BeTrue())
	g.Expect(snap.Spec.Taken).To(BeFalse())
	listed, err := m.service().ListSnapshots(within(t, enough), &csi.ListSnapshotsRequest{SnapshotId: snap.Name})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listed.Entries).To(HaveLen(1))
	g.Expect(listed.Entries[0].Snapshot.ReadyToUse).To(BeFalse())
	restored := createRequest(m.st, own(t, "restored"), gi)
	restored.VolumeContentSource = ofSnapshot(snap.Name)
	_, err = m.service().CreateVolume(within(t, enough), restored)
	expectError(t, err, codes.Unavailable, "may lack data")
	clone := replica(t, own(t, "clone"))

	for _, err := range m.whileKept(m.snapshot("snap"), m.clone("clone")) {
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(snapshotOf(t, "snap").UID).To(Equal(snap.UID))
	g.Expect(replica(t, own(t, "clone")).UID).To(Equal(clone.UID))
	_, err = m.service().CreateVolume(within(t, enough), restored)
	g.Expect(err).NotTo(HaveOccurred())
}

// The kernel had dropped the replica that was copied: the copy may lack what was written since, and is made again, of
// the other one.
func TestACopyOfADroppedReplicaIsDiscarded(t *testing.T) {
	m, _ := newWritten(t, 2)
	m.dropped = []string{m.id + "-0"}
	errs := m.whileKept(m.snapshot("snap"), m.clone("clone"))
	expectError(t, errs[0], codes.Aborted, "is deleted; try again")
	g := NewWithT(t)
	g.Expect(errs[1]).NotTo(HaveOccurred())
	g.Expect(replica(t, own(t, "clone")).Spec.Source).To(Equal(&v1alpha1.ReplicaSource{Replica: m.id + "-1"}))
	g.Expect(m.whileKept(m.snapshot("snap"))[0]).To(Succeed())
	g.Expect(snapshotOf(t, "snap").Spec.Replica).To(Equal(m.id + "-1"))
}

// A node plugin that does not know the request writes the record without it.
func TestACopyWithAnOlderNodePlugin(t *testing.T) {
	m, _ := newWritten(t, 2)
	older := make(chan error)
	go func() { older <- m.snapshot("snap")(within(t, enough/6)) }()
	NewWithT(t).Eventually(func() error {
		is := mirrorOf(t, m.id)
		if is.Spec.ConfirmRequested == 0 {
			return errLate
		}
		is.Spec.ConfirmRequested = 0
		return api.Update(t.Context(), is)
	}).WithTimeout(enough).Should(Succeed())
	expectError(t, <-older, codes.Unavailable, "is older than this controller", "upgrade it")
}

// After an unclean end, no node tells which replica has everything. A clean one is copied without a node.
func TestCopiesOfADetachedVolume(t *testing.T) {
	m, node := newWritten(t, 2)
	unpublish(t, m.service(), m.id, node)
	expectError(t, m.snapshot("snap")(within(t, enough)), codes.FailedPrecondition, "not detached cleanly", "start a pod")
	expectError(t, m.clone("clone")(within(t, enough)), codes.FailedPrecondition, "not detached cleanly")
	g := NewWithT(t)
	is := mirrorOf(t, m.id)
	is.Spec.Dirty = false
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	for range 2 { // asked again, it is the same, although the source was attached meanwhile
		g.Expect(m.snapshot("snap")(within(t, enough))).To(Succeed())
		g.Expect(m.clone("clone")(within(t, enough))).To(Succeed())
		hold(t, m.service(), m.id, node)
		unpublish(t, m.service(), m.id, node)
	}
}

// A record that was restored to an earlier state proves nothing.
func TestNoCopyWhileARestoreIsSuspected(t *testing.T) {
	m := newMoves(t, 2)
	m.id = newMirrored(t, m.service(), m.st, "v")
	rep := replica(t, m.id)
	silence(t, volume(t, m.id).Spec.Members[0].Node)
	meta.SetStatusCondition(&rep.Status.Conditions, condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected, "later"))
	g := NewWithT(t)
	g.Expect(api.Status().Update(t.Context(), rep)).To(Succeed())
	_, err := m.service().proven(t.Context(), within(t, enough), m.id, m.id+"-0", "1")
	expectError(t, toStatus(err), codes.Unavailable, "restored to an earlier state")
}

// A copy with two replicas begins with the one that has the data; the other is created, and filled, as for any volume.
func TestRestoreWithTwoReplicas(t *testing.T) {
	m, node := newWritten(t, 3)
	g := NewWithT(t)
	g.Expect(m.whileKept(m.snapshot("snap"))[0]).To(Succeed())
	first := volume(t, m.id).Spec.Members[0].Node
	source := m.id
	for name, from := range map[string]*csi.VolumeContentSource{"restored": ofSnapshot(own(t, "snap")), "cloned": ofVolume(source)} {
		m.id = source
		req := mirroredRequest(m.st, own(t, name), gi)
		req.VolumeContentSource = from
		create := func(ctx context.Context) error { _, err := m.service().CreateVolume(ctx, req); return err }
		g.Expect(m.whileKept(create)[0]).To(Succeed())
		vol := volume(t, req.Name)
		g.Expect(vol.Spec.Replicas).To(BeEquivalentTo(2))
		g.Expect(vol.Spec.Members).To(HaveLen(1))
		g.Expect(vol.Spec.Members[0].Node).To(Equal(first))
		g.Expect(create(within(t, enough))).To(Succeed())
		single := createRequest(m.st, req.Name, gi)
		single.VolumeContentSource, single.Parameters["replicas"] = from, "1"
		_, err := m.service().CreateVolume(within(t, enough), single)
		expectError(t, err, codes.AlreadyExists, "replicas is 2, not 1")

		// It becomes mirrored while it is detached, and the second replica is filled while a pod uses it.
		m.id = req.Name
		m.until(func(g Gomega) {
			g.Expect(mirrorOf(t, m.id)).NotTo(BeNil())
			g.Expect(mirrorOf(t, m.id).Spec.Members).To(HaveLen(2))
		})
		before := mirrorOf(t, m.id)
		g.Expect(mirror.InSync(before.Spec)).To(Equal([]string{m.id + "-0"}))
		g.Expect(create(within(t, enough))).To(Succeed())
		g.Expect(mirrorOf(t, m.id).UID).To(Equal(before.UID))
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-0"}))
		g.Expect(replicaOf(t, m.id+"-1").Spec.Source).To(BeNil())
		hold(t, m.service(), m.id, node)
		m.until(m.has(m.id+"-0", m.id+"-1"))
	}
}

// A copy that is not checked yet may be made again, and is not made mirrored before.
func TestAnUncheckedCopyIsNotConverted(t *testing.T) {
	m, _ := newWritten(t, 2)
	source := m.id
	req := mirroredRequest(m.st, own(t, "clone"), gi)
	req.VolumeContentSource = ofVolume(source)
	err := inVain(t, func(ctx context.Context) error { _, err := m.service().CreateVolume(ctx, req); return err })
	expectError(t, err, codes.Unavailable, "has not confirmed yet")
	g := NewWithT(t)
	for _, s := range m.lives {
		g.Expect(s.arrange(t.Context(), req.Name)).To(Succeed())
	}
	g.Expect(volume(t, req.Name).Spec.Mirrored).To(BeFalse())
	g.Expect(mirrorOf(t, req.Name)).To(BeNil())
}

// Nothing is copied if the other replica could be nowhere.
func TestRestoreWithTwoReplicasNeedsTwoNodes(t *testing.T) {
	m := newMoves(t, 1)
	m.id = newVolume(t, m.service(), m.st, "v")
	req := mirroredRequest(m.st, own(t, "clone"), gi)
	req.VolumeContentSource = ofVolume(m.id)
	_, err := m.service().CreateVolume(within(t, enough), req)
	expectError(t, err, codes.FailedPrecondition, m.st.nodes[0]+": it stores another replica of the volume")
	if vol := volume(t, req.Name); vol != nil {
		t.Errorf("left: %v", vol)
	}
}
