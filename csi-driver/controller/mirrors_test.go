// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/test/apiserver"
)

// mirrorOf a volume, as the API server has it; nil when it is not there.
func mirrorOf(t testing.TB, volume string) *v1alpha1.NvmfMirror {
	t.Helper()
	m, err := (&objects[v1alpha1.NvmfMirror, *v1alpha1.NvmfMirror]{}).get(t.Context(), api, volume)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mirroredRequest(st storage, name string, size int64) *csi.CreateVolumeRequest {
	req := createRequest(st, name, size)
	req.Parameters["replicas"] = "2"
	return req
}

func newMirrored(t testing.TB, s *Service, st storage, name string) string {
	t.Helper()
	resp, err := s.CreateVolume(within(t, enough), mirroredRequest(st, own(t, name), gi))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Volume.VolumeId
}

// hold attaches a volume with several replicas, and returns the attachment.
func hold(t *testing.T, s *Service, volume, node string) string {
	t.Helper()
	resp, err := s.ControllerPublishVolume(within(t, enough), publishRequest(volume, node))
	if err != nil {
		t.Fatal(err)
	}
	return resp.PublishContext["attachment"]
}

// write is what a holder's node does: it starts the mirror, after which its members may differ until it is stopped.
func write(t *testing.T, volume string) {
	t.Helper()
	m := mirrorOf(t, volume)
	m.Spec.Dirty = true
	if err := api.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func TestTwoReplicas(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	g := NewWithT(t)
	vol, m := volume(t, id), mirrorOf(t, id)
	g.Expect(vol.Spec.Replicas).To(BeEquivalentTo(2))
	g.Expect(vol.Spec.Members).To(HaveLen(2))
	g.Expect(vol.Spec.Members[0].Node).NotTo(Equal(vol.Spec.Members[1].Node))
	g.Expect(vol.Spec.Members[0].UUID).NotTo(Equal(vol.Spec.Members[1].UUID))
	g.Expect(mirror.InSync(m.Spec)).To(Equal([]string{id + "-0", id + "-1"}))
	if again, err := s.CreateVolume(within(t, enough), mirroredRequest(st, id, gi)); err != nil || again.Volume.VolumeId != id {
		t.Errorf("asked again: %v, %v", again, err)
	}
	_, err := s.CreateVolume(within(t, enough), createRequest(st, id, 2*gi))
	expectError(t, err, codes.AlreadyExists, "its size")
	single := createRequest(st, id, gi)
	single.Parameters["replicas"] = "1"
	_, err = s.CreateVolume(within(t, enough), single)
	expectError(t, err, codes.AlreadyExists, "replicas is 2, not 1")

	first := hold(t, s, id, node)
	g.Expect(hold(t, s, id, node)).To(Equal(first))
	m = mirrorOf(t, id)
	g.Expect(m.Spec.Holder).To(Equal(first))
	g.Expect(mirror.InSync(m.Spec)).To(HaveLen(2))
	_, err = s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id})
	expectError(t, err, codes.FailedPrecondition, "still attached")
	_, err = s.ControllerExpandVolume(within(t, enough), expandRequest(id, 2*gi))
	g.Expect(err).NotTo(HaveOccurred())

	unpublish(t, s, id, node)
	m = mirrorOf(t, id)
	g.Expect(m.Spec.Holder).To(BeEmpty())
	second := hold(t, s, id, node)
	g.Expect(second).NotTo(Equal(first))
	g.Expect(mirrorOf(t, id).Spec.Epoch).To(BeNumerically(">", m.Spec.Epoch))
	unpublish(t, s, id, node)

	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
	g.Expect(mirrorOf(t, id)).To(BeNil())
	for _, mem := range vol.Spec.Members {
		erased(t, mem.Node, mem.UUID)
	}
}

// One node is silent: the attachment goes on with the other, which alone is in sync from then on.
func TestAttachWithoutAReplica(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	vol := volume(t, id)
	silence(t, vol.Spec.Members[1].Node)
	s.grace = short // for the one that is silent
	g := NewWithT(t)
	holder := hold(t, s, id, node)
	m := mirrorOf(t, id)
	g.Expect(m.Spec.Holder).To(Equal(holder))
	g.Expect(mirror.InSync(m.Spec)).To(Equal([]string{id + "-0"}))
	unpublish(t, s, id, node)

	// The silent node comes back; what it has is old.
	agents[vol.Spec.Members[1].Node].Start(t.Context())
	hold(t, s, id, node)
	g.Expect(mirror.InSync(mirrorOf(t, id).Spec)).To(Equal([]string{id + "-0"}))
	unpublish(t, s, id, node)

	// The one that has everything is silent: nobody is admitted, and nothing is given up.
	silence(t, vol.Spec.Members[0].Node)
	before := mirrorOf(t, id).Spec
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerPublishVolume(ctx, publishRequest(id, node))
		return err
	})
	expectError(t, err, codes.Unavailable, vol.Spec.Members[0].Node)
	after := mirrorOf(t, id).Spec
	g.Expect(mirror.InSync(after)).To(Equal(mirror.InSync(before)))
	g.Expect(after.Holder).To(BeEmpty())
}

// The former holder's kernel may have gone on without a replica that returned errors. While nobody can tell, such a
// replica is not the only source: a person decides.
func TestADirtyReplicaAloneNeedsAPerson(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	vol := volume(t, id)
	hold(t, s, id, node)
	write(t, id)
	unpublish(t, s, id, node)
	silence(t, vol.Spec.Members[1].Node)
	s.grace = short
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.Unavailable, "declare one current", id+"-0")

	m := mirrorOf(t, id)
	if m.Spec, err = mirror.Declare(m.Spec, id+"-0"); err != nil {
		t.Fatal(err)
	}
	if err := api.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	hold(t, s, id, node)
	if in := mirror.InSync(mirrorOf(t, id).Spec); !slices.Equal(in, []string{id + "-0"}) {
		t.Errorf("in sync: %v", in)
	}
}

// A replica that left its mirror returns under an identity that was never used, after the former is off.
func TestAReplicaThatLeftGetsAFreshIdentity(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	ctx, stop := context.WithCancel(t.Context())
	go s.Settle(ctx)
	defer stop()
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	holder := hold(t, s, id, node)
	leg := func(n int) *v1alpha1.NvmfReplica {
		t.Helper()
		rep, err := (&objects[v1alpha1.NvmfReplica, *v1alpha1.NvmfReplica]{}).get(t.Context(), api, volume(t, id).Spec.Members[n].Name)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	identity := func(n int) string {
		t.Helper()
		i, _ := v1alpha1.AttachmentOfHost(leg(n).HostOf(holder).NQN)
		return i
	}
	g := NewWithT(t)
	seen := map[string]bool{holder: true}
	for n := range 2 {
		g.Expect(seen[identity(n)]).To(BeFalse())
		seen[identity(n)] = true
		g.Expect(leg(n).Spec.SubsystemNQN).To(HaveSuffix(identity(n)))
	}
	stays := identity(0)
	for range 2 {
		// What the keeper does: it records the identity that it was connected under, and that the replica is out.
		m := mirrorOf(t, id)
		for i := range m.Spec.Members {
			m.Spec.Members[i].Identity = identity(i)
		}
		var err error
		was := identity(1)
		if mirror.StateOf(m.Spec, id+"-1") == v1alpha1.MemberInSync {
			m.Spec, err = mirror.Holder{Attachment: holder, Now: time.Now(), Mark: "m"}.Lost(m.Spec, id+"-1", mirror.ReasonLost, map[string]string{})
			g.Expect(err).NotTo(HaveOccurred())
		}
		// The kernel has let go of it.
		m.Spec.Members[1].Released = true
		g.Expect(api.Update(t.Context(), m)).To(Succeed())
		g.Eventually(func(g Gomega) {
			h := leg(1).HostOf(holder)
			g.Expect(h).NotTo(BeNil())
			g.Expect(h.NQN).NotTo(Equal(v1alpha1.HostNQN(was)))
			g.Expect(leg(1).Admitted(h.NQN)).NotTo(BeNil())
			g.Expect(leg(1).Status.Hosts).To(HaveLen(1))
		}).WithTimeout(enough).Should(Succeed())
		g.Expect(seen[identity(1)]).To(BeFalse())
		seen[identity(1)] = true
		g.Expect(identity(0)).To(Equal(stays))
	}
	unpublish(t, s, id, node)
	for n := range 2 {
		g.Expect(leg(n).Spec.Hosts).To(BeEmpty())
	}
}

// An agent that knows later states than the API shows keeps its replica from being dropped: it may be the current one.
func TestARestoredAPIDropsNoReplica(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	silence(t, volume(t, id).Spec.Members[0].Node)
	s.grace = short
	rep := replica(t, id)
	meta.SetStatusCondition(&rep.Status.Conditions, condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected, "later"))
	if err := api.Status().Update(t.Context(), rep); err != nil {
		t.Fatal(err)
	}
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.Unavailable, id+"-0")
	if in := mirror.InSync(mirrorOf(t, id).Spec); len(in) != 2 {
		t.Errorf("in sync: %v", in)
	}
}

func TestReplicasGoToDifferentNodes(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, err := s.CreateVolume(within(t, enough), mirroredRequest(st, own(t, "v"), gi))
	expectError(t, err, codes.FailedPrecondition, st.nodes[0]+": it stores another replica of the volume")
	if vol := volume(t, own(t, "v")); vol != nil {
		t.Errorf("left: %v", vol)
	}
	capacity, err := s.GetCapacity(within(t, enough), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target, "replicas": "2"}})
	if err != nil || capacity.AvailableCapacity != 0 || capacity.MaximumVolumeSize.GetValue() != 0 {
		t.Errorf("capacity: %v, %v", capacity, err)
	}
	shared := mirroredRequest(st, own(t, "shared"), gi)
	shared.VolumeCapabilities = []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)}
	_, err = s.CreateVolume(within(t, enough), shared)
	expectError(t, err, codes.InvalidArgument, "more than one replica", "one node at a time")
	shared.Parameters["replicas"] = "3"
	_, err = s.CreateVolume(within(t, enough), shared)
	expectError(t, err, codes.InvalidArgument, `replicas: "3" is not possible; weft keeps 1 or 2 copies of a volume`)
}

// A CreateVolume that ends at any of its writes, sent or not, is carried through by the next; nothing stays behind.
func TestCreateWithTwoReplicasCutOffAnywhere(t *testing.T) {
	st := newStorage(t, 2, 100*gi)
	s, _ := newService(t)
	seen(t, s, st)
	for _, sent := range []bool{false, true} {
		for nth := int64(1); nth <= 4; nth++ {
			id := own(t, fmt.Sprintf("%v-%d", sent, nth))
			ctx, cancel := context.WithCancel(within(t, enough))
			config := rest.CopyConfig(restConfig)
			var writes atomic.Int64
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return transport(func(req *http.Request) (*http.Response, error) {
					if req.Method == http.MethodGet || writes.Add(1) < nth {
						return next.RoundTrip(req)
					}
					if sent && writes.Load() == nth {
						resp, err := next.RoundTrip(req)
						if err != nil {
							return nil, err
						}
						_ = resp.Body.Close()
					}
					cancel()
					return nil, context.Canceled
				})
			})
			cut, stop := newServiceOn(t, config)
			seen(t, cut, st)
			if _, err := cut.CreateVolume(ctx, mirroredRequest(st, id, gi)); err == nil || writes.Load() < nth {
				t.Errorf("%s: cut off after %d writes: %v", id, writes.Load(), err)
			}
			stop()
			if _, err := s.CreateVolume(within(t, enough), mirroredRequest(st, id, gi)); err != nil {
				t.Fatalf("%s, repeated: %v", id, err)
			}
			var uids, recorded []string
			for _, m := range volume(t, id).Spec.Members {
				uids = append(uids, string(replicaOf(t, m.Name).UID))
			}
			for _, m := range mirrorOf(t, id).Spec.Members {
				recorded = append(recorded, m.ReplicaUID)
			}
			if !mirror.Whole(mirrorOf(t, id).Spec) || len(uids) != 2 || !cmp.Equal(uids, recorded) {
				t.Errorf("%s: the record is %s, the replicas are %v", id, mirror.String(mirrorOf(t, id).Spec), uids)
			}
			if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil || volume(t, id) != nil || mirrorOf(t, id) != nil {
				t.Errorf("%s, deleted: %v; volume %v, record %v", id, err, volume(t, id), mirrorOf(t, id))
			}
		}
	}
	for _, n := range st.nodes {
		if volumes, _ := holds(t, n); len(volumes) > 0 {
			t.Errorf("%s still holds %v", n, volumes)
		}
	}
}

// A new volume costs one request for each of its objects.
func TestCreateStoresEachObjectOnce(t *testing.T) {
	st := newStorage(t, 2, 100*gi)
	var asked apiserver.Requests
	s, _ := newServiceOn(t, asked.Of(restConfig))
	seen(t, s, st)
	newMirrored(t, s, st, "first") // the client asks which kinds there are
	asked.Reset()
	newMirrored(t, s, st, "two")
	if counts, _ := asked.Reset(); apiserver.Total(counts) != 4 {
		t.Errorf("%v for a volume with two replicas; want 4 requests: the volume, two replicas, the record", counts)
	}
	newVolume(t, s, st, "one")
	if counts, _ := asked.Reset(); apiserver.Total(counts) != 2 {
		t.Errorf("%v for a volume with one replica; want 2 requests", counts)
	}
}

// A record that was lost is not made by a call that was held up after it had stored the replicas.
func TestHeldUpCreateVolumeMakesNoRecord(t *testing.T) {
	st := newStorage(t, 2, 100*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newMirrored(t, s, st, "v")
	vol, reps := volume(t, id), []*v1alpha1.NvmfReplica{replicaOf(t, id+"-0"), replicaOf(t, id+"-1")}
	deleteByHand(t, mirrorOf(t, id))
	for _, stored := range []time.Time{{}, time.Now().Add(-2 * firstMirrorTime)} {
		if made, err := s.firstMirror(t.Context(), vol, reps, stored); made || err != nil || mirrorOf(t, id) != nil {
			t.Errorf("stored at %v: made %v (%v)", stored, made, err)
		}
	}
	// One that other replicas left is not taken for its own.
	stale := mirrorOf(t, newMirrored(t, s, st, "other"))
	create(t, &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: stale.Spec})
	if made, err := s.firstMirror(t.Context(), vol, reps, time.Now()); made || err != nil {
		t.Errorf("made %v (%v) in place of another", made, err)
	}
}

// The record tells whose data is current: when it is gone, nobody guesses.
func TestAMirrorIsMadeOnce(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newMirrored(t, s, st, "v")
	hold(t, s, id, node)
	lost := mirrorOf(t, id)
	deleteByHand(t, lost)
	admitted := replica(t, id).Spec.Hosts
	if now, err := s.follow(t.Context(), volume(t, id)); err != nil || !cmp.Equal(now.replicas[0].Spec.Hosts, admitted) || len(admitted) != 1 {
		t.Errorf("without its record, the replica admits %v, and admitted %v: %v", now.replicas[0].Spec.Hosts, admitted, err)
	}
	lost.ResourceVersion, lost.UID = "", ""
	create(t, lost)
	unpublish(t, s, id, node)
	lost = mirrorOf(t, id)
	deleteByHand(t, lost)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.FailedPrecondition, "NvmfMirror "+id, "kubectl weft recover nv/"+id)
	_, err = s.CreateVolume(within(t, enough), mirroredRequest(st, id, gi))
	expectError(t, err, codes.FailedPrecondition, "NvmfMirror "+id)
	create(t, &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: lost.Spec})
	hold(t, s, id, node)
}

// How much is copied changes every few seconds, and no volume is looked at for its sake.
func TestProgressSettlesNothing(t *testing.T) {
	s, _ := newService(t)
	g := NewWithT(t)
	add := func(name string) *v1alpha1.NvmfMirror {
		t.Helper()
		spec, err := mirror.New("", []mirror.Replica{{Name: "a", UID: "a"}}, []mirror.Replica{{Name: "b", UID: "b"}}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		is := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: own(t, name)}, Spec: spec}
		g.Expect(api.Create(t.Context(), is)).To(Succeed())
		t.Cleanup(func() { g.Expect(api.Delete(context.Background(), is)).To(Succeed()) })
		return is
	}
	next := func(of ...*v1alpha1.NvmfMirror) string {
		for {
			name, _ := s.unsettled.Get()
			s.unsettled.Done(name)
			if slices.ContainsFunc(of, func(is *v1alpha1.NvmfMirror) bool { return is.Name == name }) {
				return name
			}
		}
	}
	one := add("one")
	g.Expect(next(one)).To(Equal(one.Name))
	one.Spec.Members[1].CopiedBytes = 1 << 20
	g.Expect(api.Update(t.Context(), one)).To(Succeed())
	two := add("two")
	g.Expect(next(one, two)).To(Equal(two.Name))
	one.Spec.Members[1].Reason = "Other"
	g.Expect(api.Update(t.Context(), one)).To(Succeed())
	g.Expect(next(one)).To(Equal(one.Name))
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }
