// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// moves is a volume whose members change.
type moves struct {
	t  *testing.T
	st storage
	id string
	// headers have the marks that the holder's node has written, by the replica's UID.
	headers map[string]string
	// full is a node whose agent tries in vain to make replicas.
	full string
	// dropped are members that the holder's kernel has dropped.
	dropped []string
	// onDisk are whole headers, by replica, for a node that is to read them.
	onDisk map[string]mirror.Header
	// lives of the service, of which one works at a time.
	lives []*Service
	next  int
}

func newMoves(t *testing.T, nodes int) *moves {
	t.Helper()
	return movesOf(t, newStorage(t, nodes, 10*gi))
}

func movesOf(t *testing.T, st storage) *moves {
	t.Helper()
	m := &moves{t: t, st: st, headers: map[string]string{}}
	t.Cleanup(m.endFills)
	m.restart()
	NewWithT(t).Expect(m.service().fills(t.Context(), "")).To(BeZero(), "an earlier test has left volumes that are being filled, of which only mostFills may be at once")
	return m
}

// endFills leaves no volume of this storage that counts as being filled: tests share an API server, and what is filled
// in one would keep replicas of another waiting.
func (m *moves) endFills() {
	ctx := context.WithoutCancel(m.t.Context())
	var vols v1alpha1.NvmfVolumeList
	var reps v1alpha1.NvmfReplicaList
	g := NewWithT(m.t)
	g.Expect(api.List(ctx, &vols)).To(Succeed())
	g.Expect(api.List(ctx, &reps)).To(Succeed())
	for _, vol := range vols.Items {
		if vol.Spec.Target == m.st.target {
			is := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: vol.Name}}
			g.Expect(client.IgnoreNotFound(api.Delete(ctx, is))).To(Succeed())
		}
	}
	for i := range reps.Items {
		if rep := &reps.Items[i]; slices.Contains(m.st.nodes, rep.Spec.Node) && joins(rep) {
			read := rep.DeepCopy()
			delete(rep.Annotations, joinsAnnotation)
			g.Expect(client.IgnoreNotFound(api.Patch(ctx, rep, client.MergeFrom(read)))).To(Succeed())
		}
	}
}

// restart both of the service's processes.
func (m *moves) restart() {
	m.t.Helper()
	m.lives = nil
	for range 2 {
		s, _ := newService(m.t)
		seen(m.t, s, m.st)
		m.lives = append(m.lives, s)
	}
}

func (m *moves) service() *Service { return m.lives[0] }

func replicaOf(t testing.TB, name string) *v1alpha1.NvmfReplica {
	t.Helper()
	rep, err := (&objects[v1alpha1.NvmfReplica, *v1alpha1.NvmfReplica]{}).get(t.Context(), api, name)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// edit the volume's spec as a person does, or the CLI.
func (m *moves) edit(change func(*v1alpha1.NvmfVolumeSpec)) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func() error {
		vol := volume(m.t, m.id)
		change(&vol.Spec)
		return api.Update(m.t.Context(), vol)
	}).WithTimeout(enough).Should(Succeed())
}

func (m *moves) move(replica, node string) {
	m.t.Helper()
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Move = &v1alpha1.VolumeMove{Replica: replica, Node: node} })
}

func (m *moves) cancel() {
	m.t.Helper()
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Move = nil })
}

// keep plays the keeper of the holder's node: it takes one step, if there is one.
func (m *moves) keep() {
	m.t.Helper()
	is := mirrorOf(m.t, m.id)
	if is == nil || is.Spec.Holder == "" {
		return
	}
	if is.Spec.Recovering {
		m.read(is)
		return
	}
	h := mirror.Holder{Attachment: is.Spec.Holder, Mark: uuid.NewString(), Now: time.Now()}
	next, written, err := m.kept(h, is.Spec)
	if err != nil {
		m.t.Fatal(err)
	}
	is.Spec = next
	if err := api.Update(m.t.Context(), is); apierrors.IsConflict(err) {
		return
	} else if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range written {
		is, _ := mirror.Get(next, name)
		m.headers[is.ReplicaUID] = h.Mark
	}
}

func (m *moves) kept(h mirror.Holder, r mirror.Record) (mirror.Record, []string, error) {
	marks := func(names ...string) map[string]string {
		marks := map[string]string{}
		for _, name := range append(names, mirror.InSync(r)...) {
			is, _ := mirror.Get(r, name)
			if marks[name] = m.headers[is.ReplicaUID]; marks[name] == "" {
				marks[name] = mirror.NoMark
			}
		}
		return marks
	}
	keys := func(marks map[string]string) (names []string) {
		for name := range marks {
			names = append(names, name)
		}
		return names
	}
	for _, is := range r.Members {
		switch {
		case is.State == v1alpha1.MemberOut && !is.Released:
			next, err := h.Released(r, is.Replica)
			return next, nil, err
		case is.Retired && is.State != v1alpha1.MemberOut:
			all := marks()
			delete(all, is.Replica)
			next, err := h.Lost(r, is.Replica, mirror.ReasonRetired, all)
			return next, keys(all), err
		case is.Retired || is.State == v1alpha1.MemberInSync || slices.Contains(m.dropped, is.Replica):
			continue
		}
		rep := replicaOf(m.t, is.Replica)
		if rep == nil || rep.HostOf(r.Holder) == nil || rep.Admitted(rep.HostOf(r.Holder).NQN) == nil || string(rep.UID) != is.ReplicaUID {
			continue
		}
		all := marks(is.Replica)
		if identity, _ := v1alpha1.AttachmentOfHost(rep.HostOf(r.Holder).NQN); identity != is.Identity {
			next, err := h.Return(r, is.Replica, identity, false, all)
			return next, keys(all), err
		}
		next, err := h.Complete(r, is.Replica, all)
		return next, keys(all), err
	}
	for _, name := range m.dropped {
		if mirror.StateOf(r, name) == v1alpha1.MemberInSync {
			all := marks()
			delete(all, name)
			next, err := h.Lost(r, name, mirror.ReasonLost, all)
			return next, keys(all), err
		}
	}
	if r.ConfirmRequested > r.Confirmed && r.Dirty {
		next, err := h.Confirm(r)
		return next, nil, err
	}
	return r, nil, nil
}

// safe checks what must be true at every moment: what the record has in sync exists, and no replica was made twice.
func (m *moves) safe() {
	m.t.Helper()
	for _, node := range m.st.nodes {
		for id, n := range agents[node].Made() {
			if n > 1 && node != m.full {
				m.t.Fatalf("node %s made %s %d times", node, id, n)
			}
		}
	}
	is := mirrorOf(m.t, m.id)
	if is == nil || volume(m.t, m.id) == nil || !volume(m.t, m.id).Replicated() {
		return
	}
	exists := func(name string) bool {
		rep, of := replicaOf(m.t, name), slices.IndexFunc(is.Spec.Members, func(is mirror.Member) bool { return is.Replica == name })
		if rep == nil || string(rep.UID) != is.Spec.Members[of].ReplicaUID || rep.DeletionTimestamp != nil {
			return false
		}
		has, _ := holds(m.t, rep.Spec.Node)
		return slices.Contains(has, rep.Spec.UUID)
	}
	if !slices.ContainsFunc(mirror.InSync(is.Spec), exists) {
		m.t.Fatalf("no replica that is in sync exists: %s", mirror.String(is.Spec))
	}
}

// until has a life of the service, and the keeper, take steps until this holds.
func (m *moves) until(holds func(g Gomega)) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func(g Gomega) {
		s := m.lives[m.next%len(m.lives)]
		m.next++
		if vol := volume(m.t, m.id); vol != nil {
			_, err := s.follow(m.t.Context(), vol)
			if err == nil {
				err = s.arrange(m.t.Context(), m.id)
			}
			g.Expect(err == nil || errors.Is(err, errKilled)).To(BeTrue(), "%v", err)
		}
		m.safe()
		m.keep()
		m.safe()
		holds(g)
	}).WithTimeout(enough).WithPolling(20 * time.Millisecond).Should(Succeed())
}

// names of the members that are all in sync, with nothing left to do.
func (m *moves) has(names ...string) func(Gomega) {
	return func(g Gomega) {
		vol, is := volume(m.t, m.id), mirrorOf(m.t, m.id)
		var members []string
		for _, mem := range vol.Spec.Members {
			members = append(members, mem.Name)
		}
		g.Expect(vol.Spec.Move).To(BeNil())
		g.Expect(members).To(Equal(names))
		g.Expect(mirror.InSync(is.Spec)).To(Equal(names))
		g.Expect(is.Spec.Members).To(HaveLen(len(names)))
		left, err := m.service().unlisted(m.t.Context(), api, vol)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(left).To(BeEmpty())
	}
}

// waits until the move says that it waits for this.
func (m *moves) waits(says string) {
	m.t.Helper()
	m.until(func(g Gomega) {
		move := volume(m.t, m.id).Spec.Move
		g.Expect(move).NotTo(BeNil())
		g.Expect(move.Waiting).To(ContainSubstring(says))
	})
}

func (m *moves) delete() {
	m.t.Helper()
	NewWithT(m.t).Eventually(func() error {
		_, err := m.service().DeleteVolume(within(m.t, enough), &csi.DeleteVolumeRequest{VolumeId: m.id})
		// Detaching waits for no replica that was not in sync. external-provisioner tries again, too.
		if err != nil && !strings.Contains(err.Error(), "detached, still disconnecting") {
			m.t.Fatal(err)
		}
		return err
	}).WithTimeout(enough).Should(Succeed())
	if is := mirrorOf(m.t, m.id); is != nil {
		m.t.Errorf("left: %v", is)
	}
	for _, node := range m.st.nodes {
		if volumes, _ := holds(m.t, node); len(volumes) > 0 {
			m.t.Errorf("left on %s: %v", node, volumes)
		}
	}
}

func TestMoveWhileAttached(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	holder := hold(t, m.service(), m.id, node)
	g := NewWithT(t)
	g.Expect(mirrorOf(t, m.id).Spec.HolderNode).To(Equal(node))
	was := volume(t, m.id).Spec.Members
	m.move(was[0].Name, "")
	m.until(m.has(m.id+"-1", m.id+"-2"))
	now := volume(t, m.id).Spec
	g.Expect(now.Mirrored).To(BeTrue())
	g.Expect(now.Members[1].Node).NotTo(BeElementOf(was[0].Node, was[1].Node))
	erased(t, was[0].Node, was[0].UUID)
	g.Expect(mirrorOf(t, m.id).Spec.Holder).To(Equal(holder))
	unpublish(t, m.service(), m.id, node)
	g.Expect(mirrorOf(t, m.id).Spec.HolderNode).To(BeEmpty())
	m.delete()
}

// A detached volume's move waits for a node that can copy, and can be cancelled until then.
func TestMoveOfADetachedVolume(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	target := volume(t, m.id).Spec.Members
	third := m.st.nodes[slices.IndexFunc(m.st.nodes, func(n string) bool { return n != target[0].Node && n != target[1].Node })]
	m.move(m.id+"-1", third)
	m.waits("no node can copy the data")
	if got := volume(t, m.id).Spec.Members[2].Node; got != third {
		t.Errorf("moves to %s, not %s", got, third)
	}
	m.cancel()
	m.until(m.has(m.id+"-0", m.id+"-1")) // without a node that takes the new one out
	m.move(m.id+"-1", third)
	m.waits("no node can copy the data")
	hold(t, m.service(), m.id, node)
	m.until(m.has(m.id+"-0", m.id+"-3"))
	unpublish(t, m.service(), m.id, node)
	m.delete()
}

// A plain volume becomes mirrored under the pod that uses it, moves, and stays mirrored with one replica.
func TestMoveOfAPlainVolume(t *testing.T) {
	for _, attached := range []bool{true, false} {
		t.Run(map[bool]string{true: "attached", false: "detached"}[attached], func(t *testing.T) {
			m := newMoves(t, 2)
			node := newHost(t, "host")
			m.id = newVolume(t, m.service(), m.st, "v")
			g := NewWithT(t)
			var before *v1alpha1.NvmfReplica
			if attached {
				publish(t, m.service(), m.id, node)
				before = replica(t, m.id)
			}
			m.move(m.id+"-0", "")
			if attached {
				m.until(func(g Gomega) { g.Expect(mirrorOf(t, m.id)).NotTo(BeNil()) })
				is := mirrorOf(t, m.id).Spec
				g.Expect(is.Holder).To(Equal(volume(t, m.id).Spec.Attachments[0].AttachmentUUID()))
				g.Expect(is.HolderNode).To(Equal(node))
				g.Expect(is.Dirty).To(BeTrue())
				rep := replica(t, m.id)
				g.Expect(rep.Spec.Hosts).To(Equal(before.Spec.Hosts))
				g.Expect(rep.Spec.SubsystemNQN).To(Equal(before.Spec.SubsystemNQN))
			} else {
				m.waits("no node can copy the data")
				hold(t, m.service(), m.id, node)
			}
			m.until(m.has(m.id + "-1"))
			g.Expect(volume(t, m.id).Spec.Mirrored).To(BeTrue())
			erased(t, m.st.nodes[0], volume(t, m.id).Spec.UUID)
			erased(t, m.st.nodes[1], volume(t, m.id).Spec.UUID)

			// The one replica is what can be copied, attached or not.
			_, err := m.service().CreateSnapshot(within(t, enough), &csi.CreateSnapshotRequest{Name: own(t, "snap"), SourceVolumeId: m.id})
			g.Expect(err).NotTo(HaveOccurred())
			clone := createRequest(m.st, own(t, "clone"), gi)
			clone.VolumeContentSource = contentSource(&v1alpha1.VolumeSource{Volume: m.id})
			_, err = m.service().CreateVolume(within(t, enough), clone)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(replica(t, clone.Name).Spec.Source).To(Equal(&v1alpha1.ReplicaSource{Replica: m.id + "-1"}))
			_, err = m.service().ControllerExpandVolume(within(t, enough), expandRequest(m.id, 2*gi))
			g.Expect(err).NotTo(HaveOccurred())

			unpublish(t, m.service(), m.id, node)
			shared := publishRequest(m.id, node)
			shared.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
			_, err = m.service().ControllerPublishVolume(within(t, enough), shared)
			expectError(t, err, codes.InvalidArgument, "has one replica, but it had more", "cannot be undone")
			hold(t, m.service(), m.id, node)
			unpublish(t, m.service(), m.id, node)
			_, err = m.service().DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: m.id})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(mirrorOf(t, m.id)).To(BeNil())
		})
	}
}

// The number of replicas of a volume in use changes by a VolumeAttributesClass.
func TestChangeTheNumberOfReplicas(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newVolume(t, m.service(), m.st, "v")
	modify := func(replicas string) error {
		_, err := m.service().ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: m.id, MutableParameters: map[string]string{"replicas": replicas}})
		return err
	}
	g := NewWithT(t)
	shared := publishRequest(m.id, node)
	shared.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	publishAs(t, m.service(), shared)
	expectError(t, modify("2"), codes.InvalidArgument, "while nodes share it")
	expectError(t, modify("3"), codes.InvalidArgument, "weft keeps 1 or 2 copies of a volume")
	m.move(m.id+"-0", "")
	m.waits("nodes share the volume")
	m.cancel()
	unpublish(t, m.service(), m.id, node)

	publish(t, m.service(), m.id, node)
	g.Expect(modify("2")).To(Succeed())
	g.Expect(volume(t, m.id).Replicated()).To(BeFalse(), "it is not mirrored before it has a mirror")
	m.until(m.has(m.id+"-0", m.id+"-1"))
	g.Expect(modify("1")).To(Succeed())
	m.until(m.has(m.id + "-0"))
	g.Expect(modify("2")).To(Succeed())
	m.until(m.has(m.id+"-0", m.id+"-2")) // no name is used twice
	unpublish(t, m.service(), m.id, node)
	m.delete()
}

// mortal makes the lives of the service short: each is killed after one to six writes, and another goes on. With untold
// it does not learn of its last write, which is stored.
func (m *moves) mortal(untold bool) {
	for n, s := range m.lives {
		whole, lives := s.client, n
		s.client = &mortal{Client: whole, untold: untold, revive: func() int {
			lives++
			return lives%6 + 1
		}}
	}
}

// errKilled ends a life of the service.
var errKilled = context.Canceled

// mortal is a client of a service that is killed after so many writes, and then lives again.
type mortal struct {
	client.Client
	left   int
	untold bool
	revive func() int
}

func (c *mortal) do(write func() error) error {
	if c.left == 0 {
		c.left = c.revive()
		return errKilled
	}
	if c.left--; c.left == 0 && c.untold {
		c.left = c.revive()
		_ = write()
		return errKilled
	}
	return write()
}

func (c *mortal) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.do(func() error { return c.Client.Create(ctx, obj, opts...) })
}

func (c *mortal) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.do(func() error { return c.Client.Update(ctx, obj, opts...) })
}

func (c *mortal) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.do(func() error { return c.Client.Patch(ctx, obj, patch, opts...) })
}

func (c *mortal) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.do(func() error { return c.Client.Delete(ctx, obj, opts...) })
}

// A service that is killed at any moment, and another that takes over, complete each change, and make no replica twice.
func TestMovesThatAreInterrupted(t *testing.T) {
	for name, tc := range map[string]struct {
		mirrored, untold bool
	}{
		"of two replicas":                        {true, false},
		"of two replicas, the last write stored": {true, true},
		"of one replica":                         {false, false},
		"of one replica, the last write stored":  {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 3)
			node := newHost(t, "host")
			if tc.mirrored {
				m.id = newMirrored(t, m.service(), m.st, "v")
				hold(t, m.service(), m.id, node)
			} else {
				m.id = newVolume(t, m.service(), m.st, "v")
				publish(t, m.service(), m.id, node)
			}
			whole := []client.Client{m.lives[0].client, m.lives[1].client}
			want := []string{m.id + "-1"}
			if tc.mirrored {
				want = append(want, m.id+"-2")
			}
			m.mortal(tc.untold)
			m.move(m.id+"-0", "")
			m.until(m.has(want...))
			m.lives[0].client, m.lives[1].client = whole[0], whole[1]
			unpublish(t, m.service(), m.id, node)
			hold(t, m.service(), m.id, node)
			unpublish(t, m.service(), m.id, node)
			m.delete()
		})
	}
}

// stage has one step after another taken until this holds.
func (m *moves) stage(holds func() bool) {
	m.t.Helper()
	NewWithT(m.t).Eventually(func(g Gomega) bool {
		if holds() {
			return true
		}
		if _, err := m.service().follow(m.t.Context(), volume(m.t, m.id)); err != nil {
			g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		}
		if holds() {
			return true
		}
		did, err := m.service().step(m.t.Context(), m.id)
		if err != nil {
			g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		}
		m.safe()
		if !holds() && !did.changed {
			m.keep()
		}
		return holds()
	}).WithTimeout(enough).WithPolling(5 * time.Millisecond).Should(BeTrue())
}

// A move that is cancelled leaves as many replicas as there were, all of them in sync, and nothing else.
func TestMovesThatAreCancelled(t *testing.T) {
	for name, reached := range map[string]func(*moves) bool{
		"before it begins":            func(*moves) bool { return true },
		"while the replica is made":   func(m *moves) bool { return replicaOf(m.t, m.id+"-2") != nil },
		"when the replica is listed":  func(m *moves) bool { return len(volume(m.t, m.id).Spec.Members) == 3 },
		"while the replica is filled": func(m *moves) bool { return joined(&mirrorOf(m.t, m.id).Spec, m.id+"-2") },
		"when the replica is in sync": func(m *moves) bool { return len(mirror.InSync(mirrorOf(m.t, m.id).Spec)) == 3 },
		"when the former is retired":  func(m *moves) bool { is, _ := mirror.Get(mirrorOf(m.t, m.id).Spec, m.id+"-0"); return is.Retired },
		"when the former is out":      func(m *moves) bool { return mirror.StateOf(mirrorOf(m.t, m.id).Spec, m.id+"-0") == v1alpha1.MemberOut },
		"when the former is removed":  func(m *moves) bool { return !joined(&mirrorOf(m.t, m.id).Spec, m.id+"-0") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 3)
			node := newHost(t, "host")
			m.id = newMirrored(t, m.service(), m.st, "v")
			hold(t, m.service(), m.id, node)
			m.move(m.id+"-0", "")
			m.stage(func() bool { return reached(m) })
			former, _ := mirror.Get(mirrorOf(t, m.id).Spec, m.id+"-0")
			want := []string{m.id + "-0", m.id + "-1"}
			if former.Replica == "" || former.Retired {
				want = []string{m.id + "-1", m.id + "-2"} // which cannot be undone
			}
			m.cancel()
			m.until(m.has(want...))
			unpublish(t, m.service(), m.id, node)
			m.delete()
		})
	}
}

// leavesReplaced checks that a replica which moves is not taken out before as many others as are wanted have
// everything.
func (m *moves) leavesReplaced(name string) {
	m.t.Helper()
	is := mirrorOf(m.t, m.id).Spec
	former, joined := mirror.Get(is, name)
	others := slices.DeleteFunc(mirror.InSync(is), func(other string) bool { return other == name })
	if (!joined || former.Retired) && len(others) < 2 {
		m.t.Fatalf("%s leaves too early: %s", name, mirror.String(is))
	}
}

// A move that is cancelled and requested again, before what it has begun was removed, takes nothing out early: what was
// copied is used if it is where it is wanted now, and else removed first.
func TestAMoveThatIsRequestedAgain(t *testing.T) {
	for name, another := range map[string]bool{"to any node": false, "to another node": true} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 4)
			m.id = newMirrored(t, m.service(), m.st, "v")
			hold(t, m.service(), m.id, newHost(t, "host"))
			m.move(m.id+"-0", "")
			m.dropped = append(m.dropped, m.id+"-2", m.id+"-3") // which are being filled
			m.stage(func() bool { return joined(&mirrorOf(t, m.id).Spec, m.id+"-2") })
			first := replicaOf(t, m.id+"-2").Spec.Node
			m.cancel()
			node, want := "", m.id+"-2"
			if another {
				node, want = m.unused(), m.id+"-3"
			}
			m.move(m.id+"-0", node)
			m.until(func(g Gomega) {
				m.leavesReplaced(m.id + "-0")
				g.Expect(joined(&mirrorOf(t, m.id).Spec, want)).To(BeTrue())
				g.Expect(volume(t, m.id).Spec.Move.Replacement).To(Equal(want))
			})
			m.dropped = nil
			m.until(func(g Gomega) {
				m.leavesReplaced(m.id + "-0")
				m.has(m.id+"-1", want)(g)
			})
			if on := replicaOf(t, want).Spec.Node; (on == first) == another || another && on != node {
				t.Errorf("it is on node %s, after %s", on, first)
			}
		})
	}
}

// unused is a node that has no replica of the volume.
func (m *moves) unused() string {
	m.t.Helper()
	for i, node := range m.st.nodes {
		if !slices.Contains(m.nodesOf(), i) {
			return node
		}
	}
	m.t.Fatal("all nodes have a replica")
	return ""
}

func TestMoveToANodeThatCannotTakeIt(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	members := volume(t, m.id).Spec.Members
	third := m.st.nodes[slices.IndexFunc(m.st.nodes, func(n string) bool { return n != members[0].Node && n != members[1].Node })]
	m.move(members[0].Name, members[1].Node)
	m.waits("it stores another replica of the volume")
	m.cancel()
	m.move(members[0].Name, "nowhere")
	m.waits("node nowhere does not serve target")
	m.cancel()

	// The agent finds no room: another node is tried, of which there is none, until its node has room again.
	agents[third].NoRoom(true)
	m.full = third
	m.move(members[0].Name, "")
	m.waits(third + ": its agent found no space")
	agents[third].NoRoom(false)
	for _, s := range m.lives {
		s.refused.until = nil // as after a while
	}
	m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Move).To(BeNil()) })
	now := volume(t, m.id).Spec.Members
	if now[1].Node != third {
		t.Errorf("moved to %s", now[1].Node)
	}
	m.until(m.has(m.id+"-1", now[1].Name))
}

// The node of the replica that moves is down: the move is completed, and the replica deleted when the node is back.
func TestMoveFromANodeThatIsDown(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	was := volume(t, m.id).Spec.Members[0]
	silence(t, was.Node)
	m.move(was.Name, "")
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Move).To(BeNil())
		g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-1", m.id + "-2"}))
		g.Expect(replicaOf(t, was.Name).Spec.Hosts).To(BeEmpty())
	})
	if volumes, _ := holds(t, was.Node); !slices.Contains(volumes, was.UUID) {
		t.Error("the replica is gone before its node could say who is connected")
	}
	agents[was.Node].Start(t.Context())
	m.until(m.has(m.id+"-1", m.id+"-2"))
	erased(t, was.Node, was.UUID)
	unpublish(t, m.service(), m.id, node)
	m.delete()
}

// racing has something happen before the nth write.
type racing struct {
	client.Client
	n      int
	happen func()
}

func (c *racing) count() {
	if c.n--; c.n == 0 {
		c.happen()
	}
}

func (c *racing) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	c.count()
	return c.Client.Create(ctx, obj, opts...)
}

func (c *racing) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	c.count()
	return c.Client.Patch(ctx, obj, patch, opts...)
}

// The volume is detached, or attached, while it becomes mirrored: the record is of what is so in the end.
func TestAVolumeIsMirroredWhileItsAttachmentChanges(t *testing.T) {
	for name, attached := range map[string]bool{"detached": true, "attached": false} {
		for write := 1; write <= 3; write++ { // the annotation, the record, the volume
			t.Run(name, func(t *testing.T) {
				m := newMoves(t, 2)
				node := newHost(t, "host")
				m.id = newVolume(t, m.service(), m.st, "v")
				publish(t, m.service(), m.id, node)
				if !attached {
					unpublish(t, m.service(), m.id, node)
				}
				m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
				g := NewWithT(t)
				g.Eventually(func(g Gomega) {
					now, err := m.service().follow(t.Context(), volume(t, m.id))
					g.Expect(err).NotTo(HaveOccurred())
					ready, _ := convertible(now.NvmfVolume, now.replicas[0])
					g.Expect(ready).To(BeTrue())
				}).WithTimeout(enough).Should(Succeed())
				other, happened := m.lives[1], false
				whole := m.service().client
				m.service().client = &racing{Client: whole, n: write, happen: func() {
					happened = true
					if attached {
						unpublish(t, other, m.id, node)
					} else {
						publish(t, other, m.id, node)
					}
				}}
				if _, err := m.service().step(t.Context(), m.id); !apierrors.IsConflict(err) {
					t.Errorf("got %v, want a conflict", err)
				}
				m.service().client = whole
				g.Expect(happened).To(BeTrue())
				g.Expect(volume(t, m.id).Spec.Mirrored).To(BeFalse())
				m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Mirrored).To(BeTrue()) })
				holder := ""
				if !attached {
					holder = volume(t, m.id).Spec.Attachments[0].AttachmentUUID()
				}
				g.Expect(mirrorOf(t, m.id).Spec.Holder).To(Equal(holder))
				if attached {
					hold(t, m.service(), m.id, node)
				}
				m.until(m.has(m.id+"-0", m.id+"-1"))
				unpublish(t, m.service(), m.id, node)
				m.delete()
			})
		}
	}
}

// newDoubled are moves of a volume that has one replica, and is to have two.
func newDoubled(t *testing.T) *moves {
	t.Helper()
	m := newMoves(t, 2)
	m.id = newVolume(t, m.service(), m.st, "v")
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas, spec.Used = 2, true })
	return m
}

// Of two services that both make a volume mirrored, the one that is late takes nothing from the other.
func TestAnAttemptThatIsLateDropsNoRecord(t *testing.T) {
	m := newDoubled(t)
	g := NewWithT(t)
	claimed := volume(t, m.id)
	m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Mirrored).To(BeTrue()) })
	before := mirrorOf(t, m.id)
	current, err := m.service().dropAttempt(t.Context(), claimed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(current).To(BeFalse())
	g.Expect(mirrorOf(t, m.id).UID).To(Equal(before.UID))
}

// A volume that cannot get another replica says why, until it can or is not to any more.
func TestAChangeOfReplicasSaysWhatItWaitsFor(t *testing.T) {
	waits := func(m *moves, says OmegaMatcher) {
		m.t.Helper()
		NewWithT(m.t).Eventually(func(g Gomega) {
			g.Expect(m.service().settle(m.t.Context(), m.id)).To(Or(Succeed(), Satisfy(apierrors.IsConflict)))
			g.Expect(volume(m.t, m.id).Spec.Waiting).To(says)
		}).WithTimeout(enough).Should(Succeed())
	}
	t.Run("no other node", func(t *testing.T) {
		m := newMoves(t, 1)
		m.id = newVolume(t, m.service(), m.st, "v")
		m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
		waits(m, ContainSubstring("node"))
		m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 1 })
		waits(m, BeEmpty())
		m.delete()
	})
	t.Run("a node that does not create it", func(t *testing.T) {
		m := newMoves(t, 2)
		m.id = newVolume(t, m.service(), m.st, "v")
		node := newHost(t, "host")
		hold(t, m.service(), m.id, node)
		other := m.st.nodes[0]
		if other == volume(t, m.id).Spec.Members[0].Node {
			other = m.st.nodes[1]
		}
		silence(t, other)
		m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
		m.stage(func() bool { return replicaOf(t, m.id+"-1") != nil })
		waits(m, BeEmpty())
		m.later(creationPatience)
		waits(m, ContainSubstring("has not created replica "+m.id+"-1"))
		agents[other].Start(t.Context())
		m.until(m.has(m.id+"-0", m.id+"-1"))
		waits(m, BeEmpty())
		unpublish(t, m.service(), m.id, node)
		m.delete()
	})
	t.Run("no mover", func(t *testing.T) {
		m := newMoves(t, 2)
		m.id = newVolume(t, m.service(), m.st, "v")
		m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
		m.until(func(g Gomega) {
			g.Expect(volume(t, m.id).Spec.Waiting).To(ContainSubstring("no node can copy the data"))
		})
		node := newHost(t, "host")
		hold(t, m.service(), m.id, node)
		m.until(m.has(m.id+"-0", m.id+"-1"))
		waits(m, BeEmpty())
		unpublish(t, m.service(), m.id, node)
		m.delete()
	})
}

// A replica that joined a volume, and was lost before it was filled, is not made again.
func TestAReplicaThatJoinedIsNotMadeAgain(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newVolume(t, m.service(), m.st, "v")
	publish(t, m.service(), m.id, node)
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
	m.stage(func() bool { return len(volume(t, m.id).Spec.Members) == 2 })
	lost := volume(t, m.id).Spec.Members[1]
	silence(t, lost.Node)
	agents[lost.Node].Lose(lost.UUID)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	g := NewWithT(t)
	g.Expect(api.Patch(t.Context(), replicaOf(t, lost.Name), patch)).To(Succeed())
	deleteByHand(t, replicaOf(t, lost.Name))
	agents[lost.Node].Start(t.Context())
	m.until(func(g Gomega) {
		rep := replicaOf(t, lost.Name)
		g.Expect(rep).NotTo(BeNil())
		g.Expect(rep.Spec.Used).To(BeTrue())
		g.Expect(rep.Status.Conditions).NotTo(BeEmpty(), "its agent has not looked at it")
	})
	volumes, _ := holds(t, lost.Node)
	g.Expect(volumes).NotTo(ContainElement(lost.UUID))
	g.Expect(mirror.InSync(mirrorOf(t, m.id).Spec)).To(Equal([]string{m.id + "-0"}))
	// Its agent has acted on another object of that name. Before a person has declared that this one is right, it
	// stays.
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 1 })
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Waiting).To(ContainSubstring("suspects that the API was restored"))
	})
	g.Expect(volume(t, m.id).Spec.Members).To(HaveLen(2))
}

// After an unclean end, a replica that was recorded out, and not released, may be the only one that has everything.
func TestAReplicaThatMayHaveRunLastStays(t *testing.T) {
	r := mirror.Record{Epoch: 9, Dirty: true, Members: []mirror.Member{
		{Replica: "a", ReplicaUID: "a", State: v1alpha1.MemberInSync},
		{Replica: "b", ReplicaUID: "b", State: v1alpha1.MemberOut, Identity: "i", Retired: true},
	}}
	for _, tc := range []struct {
		name   string
		change func(*mirror.Record)
		want   bool
	}{
		{"not released, then fenced", func(*mirror.Record) {}, false},
		{"released", func(r *mirror.Record) { r.Members[1].Released = true }, true},
		{"stopped cleanly", func(r *mirror.Record) { r.Dirty = false }, true},
		{"held, not released", func(r *mirror.Record) { r.Holder = "h" }, false},
		{"not retired", func(r *mirror.Record) { r.Dirty, r.Members[1].Retired = false, false }, false},
	} {
		is := *r.DeepCopy()
		tc.change(&is)
		if got := hasLeft(is, is.Members[1]); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// A replica has been taken out of the mirror and marked, and a person then declares it the current one, because what
// is on the others is wrong: it stays, and another one leaves.
func TestARetiredReplicaThatIsPromotedStays(t *testing.T) {
	for name, replicas := range map[string]int32{"another leaves": 1, "both are wanted again": 2} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 2)
			node := newHost(t, "host")
			m.id = newMirrored(t, m.service(), m.st, "v")
			hold(t, m.service(), m.id, node)
			m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 1 })
			both := volume(t, m.id).Spec.Members
			leaves, left := both[1], []string{both[0].Name, both[1].Name}[2-replicas:]
			marked := func() bool { rep := replicaOf(t, leaves.Name); return rep != nil && retired(rep) }
			m.stage(marked)
			g := NewWithT(t)
			unpublish(t, m.service(), m.id, node)
			m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = replicas })
			is := mirrorOf(t, m.id)
			next, err := mirror.Choose(mirror.Doubt(is.Spec), leaves.Name, map[string]mirror.Header{leaves.Name: {Mark: mirror.NoMark}}, time.Now())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(api.Delete(t.Context(), is)).To(Succeed())
			again := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: is.Name, Labels: is.Labels}, Spec: next}
			g.Expect(api.Create(t.Context(), again)).To(Succeed())
			g.Expect(marked()).To(BeTrue())
			g.Eventually(func(g Gomega) {
				err := m.service().settle(t.Context(), m.id)
				g.Expect(client.IgnoreNotFound(err)).To(Or(Succeed(), Satisfy(apierrors.IsConflict)))
				g.Expect(marked()).To(BeFalse())
			}).WithTimeout(enough).Should(Succeed())
			hold(t, m.service(), m.id, node)
			m.until(m.has(left...))
			unpublish(t, m.service(), m.id, node)
			m.delete()
		})
	}
}

// So many volumes are filled at once, and no more.
func TestFillsAreBounded(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	var others []*v1alpha1.NvmfMirror
	for range mostFills {
		other := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{GenerateName: "filling-"}, Spec: mirror.Record{Epoch: 1, Holder: uuid.NewString(), Members: []mirror.Member{
			{Replica: "a", ReplicaUID: "a", State: v1alpha1.MemberInSync}, {Replica: "b", ReplicaUID: "b", State: v1alpha1.MemberFilling},
		}}}
		create(t, other)
		others = append(others, other)
	}
	t.Cleanup(func() {
		for _, other := range others {
			_ = api.Delete(context.WithoutCancel(t.Context()), other)
		}
	})
	NewWithT(t).Eventually(func(g Gomega) {
		for _, s := range m.lives {
			g.Expect(s.fills(t.Context(), m.id)).To(BeNumerically(">=", mostFills))
		}
	}).WithTimeout(enough).Should(Succeed())
	m.move(m.id+"-0", "")
	m.waits("other volumes are being filled")
	for _, other := range others {
		deleteByHand(t, other)
	}
	m.until(m.has(m.id+"-1", m.id+"-2"))
}

// Nothing but what the watches tell has a move go on.
func TestSettleMovesAReplica(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newVolume(t, m.service(), m.st, "v")
	publish(t, m.service(), m.id, node)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.service().Settle(ctx)
	}()
	m.move(m.id+"-0", "")
	NewWithT(t).Eventually(func(g Gomega) {
		m.safe()
		m.keep()
		m.has(m.id + "-1")(g)
	}).WithTimeout(2 * enough).Should(Succeed())
	stop()
	<-ended
	unpublish(t, m.service(), m.id, node)
	m.delete()
}

// A volume can be deleted at every stage of a move, and leaves nothing.
func TestDeleteWhileAReplicaMoves(t *testing.T) {
	for name, reached := range map[string]func(*moves) bool{
		"while the replica is made":   func(m *moves) bool { return replicaOf(m.t, m.id+"-2") != nil },
		"while the replica is filled": func(m *moves) bool { return joined(&mirrorOf(m.t, m.id).Spec, m.id+"-2") },
		"when the former is removed": func(m *moves) bool {
			return len(volume(m.t, m.id).Spec.Members) == 2 && replicaOf(m.t, m.id+"-2") != nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoves(t, 3)
			node := newHost(t, "host")
			m.id = newMirrored(t, m.service(), m.st, "v")
			hold(t, m.service(), m.id, node)
			m.move(m.id+"-0", "")
			m.stage(func() bool { return reached(m) })
			unpublish(t, m.service(), m.id, node)
			m.delete()
		})
	}
}

// What an attempt to make a volume mirrored has left is deleted with the volume.
func TestDeleteAfterAnAttemptToMirror(t *testing.T) {
	m := newDoubled(t)
	whole := m.service().client
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		_, err := m.service().follow(t.Context(), volume(t, m.id))
		g.Expect(err).NotTo(HaveOccurred())
		m.service().client = &mortal{Client: whole, left: 2, revive: func() int { return 0 }}
		_, err = m.service().step(t.Context(), m.id)
		m.service().client = whole
		g.Expect(err).To(MatchError(errKilled))
	}).WithTimeout(enough).Should(Succeed())
	g.Expect(mirrorOf(t, m.id)).NotTo(BeNil())
	g.Expect(volume(t, m.id).Spec.Mirrored).To(BeFalse())
	m.delete()
}

// A record that its keeper changes just when it is to be deleted goes with its volume.
func TestDeleteBesideAChangeOfTheRecord(t *testing.T) {
	m := newMoves(t, 2)
	m.id = newMirrored(t, m.service(), m.st, "v")
	changed := false
	m.service().client = &admitting{Client: m.service().client, admit: func() {
		is := mirrorOf(t, m.id)
		if changed || is == nil || replicaOf(t, m.id+"-0") != nil || replicaOf(t, m.id+"-1") != nil {
			return
		}
		changed = true
		is.Annotations = map[string]string{"changed": "true"}
		if err := api.Update(t.Context(), is); err != nil {
			t.Error(err)
		}
	}}
	m.delete()
	if !changed {
		t.Error("the record did not change in time")
	}
}

// A replica that joins says for which claim its volume was created, as the others do, also by a name too long for a
// label.
func TestAReplicaThatJoinsNamesTheClaim(t *testing.T) {
	m := newDoubled(t)
	claim := strings.Repeat("c", 100)
	vol := volume(t, m.id)
	vol.Annotations[v1alpha1.PVCNameKey] = claim
	if err := api.Update(t.Context(), vol); err != nil {
		t.Fatal(err)
	}
	m.stage(func() bool { return replicaOf(t, m.id+"-1") != nil })
	if _, name := v1alpha1.ClaimOf(replicaOf(t, m.id+"-1")); name != claim {
		t.Errorf("it is of claim %q", name)
	}
}

// A replica that was to join a volume whose object somebody removed is of no use.
func TestAReplicaThatWasToJoinGoesWithItsVolume(t *testing.T) {
	m := newDoubled(t)
	m.stage(func() bool { return replicaOf(t, m.id+"-1") != nil })
	joins := replicaOf(t, m.id+"-1")
	g := NewWithT(t)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	g.Expect(api.Patch(t.Context(), volume(t, m.id), patch)).To(Succeed())
	deleteByHand(t, volume(t, m.id))
	g.Eventually(func(g Gomega) {
		g.Expect(m.service().settle(t.Context(), m.id)).To(Succeed())
		g.Expect(replicaOf(t, joins.Name)).To(BeNil())
	}).WithTimeout(enough).Should(Succeed())
	erased(t, joins.Spec.Node, joins.Spec.UUID)
	if replica(t, m.id) == nil {
		t.Error("the volume's own replica was deleted, too")
	}
}

// A replica that was to join, and that its volume does not list, may have data all the same: the API was restored to a
// time before it was listed. Such a one stays, however little it is needed.
func TestAReplicaThatIsNotListedIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		doubt func(m *moves, joins *v1alpha1.NvmfReplica)
		stays bool
	}{
		"it is blank": {func(*moves, *v1alpha1.NvmfReplica) {}, false},
		"it was written": {func(m *moves, joins *v1alpha1.NvmfReplica) {
			markWritten(m.t, joins.Spec.Node, joins.Spec.UUID)
			NewWithT(m.t).Eventually(func() bool { return replicaOf(m.t, joins.Name).Status.Written }).WithTimeout(enough).Should(BeTrue())
		}, true},
		"its agent suspects a restore": {func(m *moves, joins *v1alpha1.NvmfReplica) {
			silence(m.t, joins.Spec.Node)
			m.suspectsOf(joins.Name, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newDoubled(t)
			m.stage(func() bool { return replicaOf(t, m.id+"-1") != nil })
			joins := replicaOf(t, m.id+"-1")
			NewWithT(t).Eventually(func() bool { return isCreated(replicaOf(t, joins.Name)) }).WithTimeout(enough).Should(BeTrue())
			tc.doubt(m, joins)
			m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 1 })
			m.until(func(g Gomega) {
				rep, says := replicaOf(t, joins.Name), volume(t, m.id).Spec.Waiting
				if tc.stays {
					g.Expect(says).To(ContainSubstring("may have data"))
					g.Expect(rep).NotTo(BeNil())
					g.Expect(rep.Marked()).To(BeFalse())
					g.Expect(rep.DeletionTimestamp).To(BeNil())
				} else {
					g.Expect(says).To(BeEmpty())
					g.Expect(rep).To(BeNil())
				}
			})
			if volumes, _ := holds(t, joins.Spec.Node); slices.Contains(volumes, joins.Spec.UUID) != tc.stays {
				t.Errorf("its node has %v", volumes)
			}
		})
	}
}

// Of too many members, one leaves that the record does not have, or that lacks data. While an agent suspects a restore
// of the API, none does: the record may be old, and the one that was only being filled by it the only one that has
// everything now.
func TestNobodyLeavesWhileARestoreIsSuspected(t *testing.T) {
	const inSync, out = v1alpha1.MemberInSync, v1alpha1.MemberOut
	is := func(state v1alpha1.MirrorMemberState) mirror.Member { return mirror.Member{State: state} }
	for _, tc := range []struct {
		name    string
		members []mirror.Member // of three that the volume lists
		leaves  int
	}{
		{"one lacks data", []mirror.Member{is(out), is(inSync), is(inSync)}, 0},
		{"one is filled", []mirror.Member{is(inSync), is(v1alpha1.MemberFilling), is(inSync)}, 1},
		{"two lack data", []mirror.Member{is(inSync), is(v1alpha1.MemberFilling), is(out)}, 2},
		{"all are in sync", []mirror.Member{is(inSync), is(inSync), is(inSync)}, 2},
		{"one is not in the record", []mirror.Member{is(inSync), is(out)}, 2},
		{"one was refused, and may have data that no other has", []mirror.Member{{State: out, Foreign: true}, is(inSync), is(inSync)}, -1},
		{"one was refused, and one lacks data", []mirror.Member{{State: out, Foreign: true}, is(inSync), is(out)}, 2},
		{"one is to leave already", []mirror.Member{is(inSync), is(inSync), {State: out, Retired: true}}, -1},
	} {
		v := &replicatedVolume{NvmfVolume: volumeWith(1, nil), replicas: make([]*v1alpha1.NvmfReplica, 3)}
		v.Spec.Replicas = 2
		record := mirror.Record{Epoch: 9}
		for i := range v.replicas {
			v.replicas[i] = replicaWith(v1alpha1.ReasonAsExpected)
			v.replicas[i].Name = "v-" + strconv.Itoa(i)
			v.replicas[i].Annotations = map[string]string{}
			v.Spec.Members = append(v.Spec.Members, v1alpha1.VolumeMember{Name: v.replicas[i].Name})
			if i < len(tc.members) {
				m := tc.members[i]
				m.Replica, m.ReplicaUID = v.replicas[i].Name, string(v.replicas[i].UID)
				if m.Retired {
					v.replicas[i].Annotations[retiredAnnotation] = m.ReplicaUID
				}
				record.Members = append(record.Members, m)
			}
		}
		if got := indexOf(v.NvmfVolume, toLeave(v, record)); got != tc.leaves {
			t.Errorf("%s: member %d leaves, want %d", tc.name, got, tc.leaves)
		}
		v.replicas[0].Status = replicaWith(v1alpha1.ReasonRestoreSuspected).Status
		if got := toLeave(v, record); got != "" {
			t.Errorf("%s, suspected: %s leaves", tc.name, got)
		}
		if next, err := nextRecord(v, record, time.Now()); err != nil || !equality.Semantic.DeepEqual(next, record) {
			t.Errorf("%s, suspected: the next record is %s, %v", tc.name, mirror.String(next), err)
		}
		v.replicas[0].Status = replicaWith(v1alpha1.ReasonAsExpected).Status
		record = mirror.Uncertain(record)
		if next, err := nextRecord(v, record, time.Now()); err != nil || !equality.Semantic.DeepEqual(next, record) {
			t.Errorf("%s, declared: the next record is %s, %v", tc.name, mirror.String(next), err)
		}
	}
}

// The API was restored to the moment between two writes: a replica is listed, and not in the record yet. It was filled
// since, and is not deleted as one that never had anything.
func TestAListedReplicaWithDataThatTheRecordDoesNotKnowStays(t *testing.T) {
	m := newMoves(t, 3)
	m.id = newMirrored(t, m.service(), m.st, "v")
	m.move(m.id+"-1", "")
	m.waits("no node can copy the data")
	g := NewWithT(t)
	g.Eventually(func() error {
		rep := replicaOf(t, m.id+"-2")
		rep.Status.Written = true
		return api.Status().Update(t.Context(), rep)
	}).WithTimeout(enough).Should(Succeed())
	is := mirrorOf(t, m.id)
	is.Spec.Members, is.Spec.Epoch = is.Spec.Members[:2], is.Spec.Epoch+1
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	m.cancel()
	m.until(func(g Gomega) {
		g.Expect(volume(t, m.id).Spec.Waiting).To(ContainSubstring("replica " + m.id + "-2 may have data, and is not in the mirror's record"))
	})
	if rep := replicaOf(t, m.id+"-2"); retired(rep) || rep.DeletionTimestamp != nil {
		t.Error("it is to be deleted")
	}
}

// The same for one that was to join, of a volume that is gone.
func TestAReplicaWithDataOutlivesItsVolume(t *testing.T) {
	m := newMoves(t, 1)
	m.id = newVolume(t, m.service(), m.st, "v")
	volumeName := "pvc-" + uuid.NewString()
	rep := &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName + "-1", Annotations: map[string]string{joinsAnnotation: uuid.NewString()}},
		Spec:       *replicaOf(t, m.id+"-0").Spec.DeepCopy(),
	}
	rep.Spec.Volume, rep.Spec.UUID, rep.Spec.Node = v1alpha1.ReplicaOf{Name: volumeName, UUID: uuid.NewString()}, uuid.NewString(), "nowhere"
	g := NewWithT(t)
	g.Expect(api.Create(t.Context(), rep)).To(Succeed())
	settles := func(written bool) *v1alpha1.NvmfReplica {
		t.Helper()
		rep.Status.Written = written
		g.Expect(api.Status().Update(t.Context(), rep)).To(Succeed())
		g.Eventually(func(g Gomega) {
			var cached v1alpha1.NvmfReplica
			g.Expect(m.service().client.Get(t.Context(), keyOf(rep.Name), &cached)).To(Succeed())
			g.Expect(cached.ResourceVersion).To(Equal(rep.ResourceVersion))
		}).WithTimeout(enough).Should(Succeed())
		g.Expect(m.service().settle(t.Context(), volumeName)).To(Succeed())
		return replicaOf(t, rep.Name)
	}
	g.Expect(settles(true)).To(And(HaveField("DeletionTimestamp", BeNil()), HaveField("Spec.DeletionMark", "")))
	if left := settles(false); left != nil && left.DeletionTimestamp == nil {
		t.Error("a blank one stays")
	}
}

// An attachment that is older than the field gets the node of its holder recorded.
func TestTheNodeOfAHolderIsRecorded(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	is := mirrorOf(t, m.id)
	is.Spec.HolderNode = ""
	g := NewWithT(t)
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(m.service().settle(t.Context(), m.id)).To(Succeed())
		g.Expect(mirrorOf(t, m.id).Spec.HolderNode).To(Equal(node))
	}).WithTimeout(enough).Should(Succeed())
}

// A VolumeAttributesClass that is named at the creation has the last word on the number of replicas.
func TestCreateWithReplicasOfAnAttributesClass(t *testing.T) {
	m := newMoves(t, 2)
	req := createRequest(m.st, own(t, "v"), gi)
	req.Parameters["replicas"], req.MutableParameters = "1", map[string]string{"replicas": "2"}
	resp, err := m.service().CreateVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	m.id = resp.Volume.VolumeId
	m.has(m.id+"-0", m.id+"-1")(NewWithT(t))
	if !volume(t, m.id).Spec.Mirrored {
		t.Error("it is not mirrored")
	}
}

// A copy is one of what is current only if its source had the same single replica all the time, or was not attached.
func TestACopyIsCheckedAgainstItsSource(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newVolume(t, m.service(), m.st, "v")
	publish(t, m.service(), m.id, node)
	g := NewWithT(t)
	proven := func(proof string) bool {
		t.Helper()
		is, err := m.service().proven(t.Context(), t.Context(), m.id, "", proof)
		g.Expect(err).NotTo(HaveOccurred())
		return is
	}
	_, plain, err := m.service().copyable(t.Context(), volume(t, m.id))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(proven(plain)).To(BeTrue())
	m.move(m.id+"-0", "")
	m.until(m.has(m.id + "-1"))
	g.Expect(proven(plain)).To(BeFalse())
	of, only, err := m.service().copyable(t.Context(), volume(t, m.id))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(of.Name).To(Equal(m.id + "-1"))
	g.Expect(proven(only)).To(BeTrue())
	// Another one had joined, it was left behind and came back, and the other one left.
	is := mirrorOf(t, m.id)
	since := is.Spec.Members[0].Since
	is.Spec.Members[0].Since = new(metav1.NewTime(since.Add(time.Second)))
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	g.Eventually(func() bool { return proven(only) }).WithTimeout(enough).Should(BeFalse())
	is.Spec.Members[0].Since = since
	g.Expect(api.Update(t.Context(), is)).To(Succeed())
	g.Eventually(func() bool { return proven(only) }).WithTimeout(enough).Should(BeTrue())
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
	m.until(func(g Gomega) { g.Expect(mirrorOf(t, m.id).Spec.Members).To(HaveLen(2)) })
	g.Expect(proven(only)).To(BeFalse())
}

// The node of a pod fails while the replacement of a moving replica is filled: the volume can be attached elsewhere,
// from the replica that has everything, as it could before it was moved.
func TestNodeFailsWhileAReplicaIsFilled(t *testing.T) {
	m := newMoves(t, 2)
	node, other := newHost(t, "host"), newHost(t, "other")
	m.id = newVolume(t, m.service(), m.st, "v")
	publish(t, m.service(), m.id, node)
	m.move(m.id+"-0", "")
	m.until(func(g Gomega) {
		is := mirrorOf(t, m.id)
		g.Expect(is).NotTo(BeNil())
		f, _ := mirror.Get(is.Spec, m.id+"-1")
		g.Expect(f.Identity).NotTo(BeEmpty())
		g.Expect(f.State).To(Equal(v1alpha1.MemberFilling))
	})
	unpublish(t, m.service(), m.id, node) // the node never stopped the mirror
	_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, other))
	if err != nil {
		t.Errorf("attach elsewhere: %v", err)
	}
}

// A CreateVolume that was held up before it makes the mirror takes nothing from a volume that has gone on since.
func TestLateCreateVolumeDropsNoRecord(t *testing.T) {
	m := newMoves(t, 3)
	node := newHost(t, "host")
	m.id = newMirrored(t, m.service(), m.st, "v")
	stale, reps := volume(t, m.id), []*v1alpha1.NvmfReplica{replicaOf(t, m.id+"-0"), replicaOf(t, m.id+"-1")}
	hold(t, m.service(), m.id, node)
	m.move(m.id+"-0", "")
	m.until(func(g Gomega) { g.Expect(mirrorOf(t, m.id).Spec.Members).To(HaveLen(3)) })
	before := mirrorOf(t, m.id)
	err := m.lives[1].makeMirror(t.Context(), stale, reps)
	now := mirrorOf(t, m.id)
	if now == nil || now.UID != before.UID {
		t.Errorf("makeMirror (%v) replaced %s by %s", err, mirror.String(before.Spec), mirror.String(now.Spec))
	}
	// Nor does it make one in place of a record that was lost meanwhile: that one alone knew which replica is current.
	deleteByHand(t, mirrorOf(t, m.id))
	err = m.lives[1].makeMirror(t.Context(), stale, reps)
	if made := mirrorOf(t, m.id); made != nil || err == nil {
		t.Errorf("makeMirror (%v) made %v", err, made)
	}
}

// The same of a volume with two replicas, both of which are in sync and can be reached, as can the one that is filled.
func TestNodeFailsWhileAThirdIsFilled(t *testing.T) {
	m := newMoves(t, 3)
	node, other := newHost(t, "host"), newHost(t, "other")
	m.id = newMirrored(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, node)
	write(t, m.id)
	m.move(m.id+"-0", "")
	m.until(func(g Gomega) {
		f, _ := mirror.Get(mirrorOf(t, m.id).Spec, m.id+"-2")
		g.Expect(f.Identity).NotTo(BeEmpty())
		g.Expect(f.State).To(Equal(v1alpha1.MemberFilling))
	})
	unpublish(t, m.service(), m.id, node)
	_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, other))
	if err != nil {
		t.Errorf("attach elsewhere: %v", err)
	}
}
