// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// mirrorRotation is a rotation of the keys of a mirrored volume, whose holder has started the mirror. Its methods look
// at the replica with this number.
type mirrorRotation struct {
	*rotation
	holder string
}

func newMirrorRotation(t *testing.T) *mirrorRotation {
	t.Helper()
	r := &mirrorRotation{rotation: &rotation{T: t, g: NewWithT(t), st: newSecureOn(t, v1alpha1.AuthenticationRequired, 2), node: newHost(t, "host")}}
	r.s, _ = newService(t)
	seen(t, r.s, r.st)
	r.plugin = plugin(t, r.node)
	r.id = newMirrored(t, r.s, r.st, "v")
	r.holder = hold(t, r.s, r.id, r.node)
	r.write()
	t.Cleanup(r.detach)
	return r
}

// start the mirror, as its holder does.
func (r *mirrorRotation) start() {
	r.Helper()
	var found []mirror.Found
	for n := range 2 {
		rep := r.replica(n)
		found = append(found, mirror.Found{
			Replica: mirror.Replica{Name: rep.Name, UID: string(rep.UID)}, Mark: mirror.NoMark, Identity: v1alpha1.SessionOfSubsystem(rep.Spec.SubsystemNQN),
		})
	}
	r.record(func(h mirror.Holder, is mirror.Record) (mirror.Record, error) { return h.Start(is, found) })
}

// write to both replicas, and wait until their agents say so.
func (r *mirrorRotation) write() {
	r.Helper()
	for n := range 2 {
		r.writeTo(r.replica(n).Name)
	}
}

// record a change as the holder.
func (r *mirrorRotation) record(change func(mirror.Holder, mirror.Record) (mirror.Record, error)) {
	r.Helper()
	is := mirrorOf(r, r.id)
	next, err := change(mirror.Holder{Attachment: r.holder, Mark: uuid.NewString(), Now: time.Now()}, is.Spec)
	r.g.Expect(err).NotTo(HaveOccurred())
	is.Spec = next
	r.g.Expect(api.Update(r.Context(), is)).To(Succeed())
	r.g.Eventually(func(g Gomega) {
		seen, err := r.s.mirrors.get(r.Context(), r.s.client, r.id)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(seen.ResourceVersion).To(Equal(is.ResourceVersion))
	}).WithTimeout(enough).Should(Succeed())
}

func (r *mirrorRotation) replica(n int) *v1alpha1.NvmfReplica {
	r.Helper()
	return replicaOf(r, volume(r, r.id).Spec.Members[n].Name)
}

// have waits until the replicas list, and admit, so many hosts, while the service runs.
func (r *mirrorRotation) have(want ...int) {
	r.Helper()
	r.g.Eventually(func(g Gomega) {
		g.Expect(r.s.rotateAll(r.Context())).To(Succeed())
		_, err := r.s.follow(r.Context(), volume(r, r.id))
		g.Expect(err).NotTo(HaveOccurred())
		for n, hosts := range want {
			rep := r.replica(n)
			g.Expect(rep.Spec.Hosts).To(HaveLen(hosts))
			g.Expect(rep.Status.Hosts).To(HaveLen(hosts))
			for _, h := range rep.Spec.Hosts {
				g.Expect(rep.Admitted(h.NQN)).NotTo(BeNil())
			}
		}
	}).WithTimeout(enough).Should(Succeed())
}

// keep so many hosts, however often the service looks once it has seen what there is.
func (r *mirrorRotation) keep(why string, want ...int) {
	r.Helper()
	r.g.Eventually(func(g Gomega) {
		cached, err := r.s.volumes.get(r.Context(), r.s.client, r.id)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cached.ResourceVersion).To(Equal(volume(r, r.id).ResourceVersion))
		for n := range 2 {
			rep, err := r.s.replicas.get(r.Context(), r.s.client, r.replica(n).Name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rep.ResourceVersion).To(Equal(r.replica(n).ResourceVersion))
		}
	}).WithTimeout(enough).Should(Succeed())
	r.g.Expect(r.s.rotateAll(r.Context())).To(Succeed())
	for n, hosts := range want {
		r.g.Expect(r.replica(n).Spec.Hosts).To(HaveLen(hosts), why)
	}
}

// The replicas of a mirror get new keys one after the other. Neither their subsystems change by that, nor the record.
func TestRotateKeysOfAMirror(t *testing.T) {
	r := newMirrorRotation(t)
	r.request("one")
	r.keep("the mirror was not started", 1, 1)
	r.start()
	before, subsystems := mirrorOf(t, r.id).Spec, []string{r.replica(0).Spec.SubsystemNQN, r.replica(1).Spec.SubsystemNQN}
	for n, want := range [][]int{{2, 1}, {1, 2}} {
		r.have(want...)
		r.keep("one replica at a time", want...)
		hosts := r.replica(n).Spec.Hosts
		r.g.Expect(hosts[1].AttachmentUUID()).To(Equal(r.holder))
		r.g.Expect(hosts[1].KeyRotation).To(Equal("one"))
		r.g.Expect(r.open(hosts[1])).NotTo(Equal(r.open(hosts[0])))
		r.g.Expect(publish(t, r.s, r.id, r.node).Attachment).To(Equal(r.holder), "asked again, nothing changes")
		r.retire(r.node, identityOf(hosts[0]))
	}
	r.have(1, 1)
	r.keep("both are rotated", 1, 1)
	r.g.Expect(mirrorOf(t, r.id).Spec).To(Equal(before))
	r.g.Expect([]string{r.replica(0).Spec.SubsystemNQN, r.replica(1).Spec.SubsystemNQN}).To(Equal(subsystems))
	unpublish(t, r.s, r.id, r.node)
	for n := range 2 {
		r.g.Expect(r.replica(n).Spec.Hosts).To(BeEmpty())
	}
}

// A replica that is lost while its keys are rotated loses both hosts, and its subsystem. It returns with new keys, and
// is not rotated again. The other replica is.
func TestReplicaIsLostWhileItsKeysAreRotated(t *testing.T) {
	r := newMirrorRotation(t)
	r.start()
	r.request("one")
	r.have(2, 1)
	lost := r.replica(0)
	r.record(func(h mirror.Holder, is mirror.Record) (mirror.Record, error) {
		return h.Lost(is, lost.Name, mirror.ReasonLost, nil)
	})
	r.have(2, 1)
	r.record(func(h mirror.Holder, is mirror.Record) (mirror.Record, error) { return h.Released(is, lost.Name) })
	r.have(1, 2)
	now := r.replica(0)
	r.g.Expect(now.Spec.SubsystemNQN).NotTo(Equal(lost.Spec.SubsystemNQN))
	r.g.Expect(now.Spec.Hosts[0].KeyRotation).To(Equal("one"))
	for _, h := range lost.Spec.Hosts {
		r.g.Expect(now.Admitted(h.NQN)).To(BeNil())
	}
	r.retire(r.node, identityOf(r.replica(1).Spec.Hosts[0]))
	r.have(1, 1)
	r.request("two")
	r.have(1, 2)
	leg := v1alpha1.SessionOfSubsystem(now.Spec.SubsystemNQN)
	r.record(func(h mirror.Holder, is mirror.Record) (mirror.Record, error) {
		return h.Return(is, now.Name, leg, false, map[string]string{now.Name: mirror.NoMark})
	})
	r.retire(r.node, identityOf(r.replica(1).Spec.Hosts[0]))
	r.have(1, 1)
	r.keep("it is not in sync yet", 1, 1)
	r.record(func(h mirror.Holder, is mirror.Record) (mirror.Record, error) {
		m, _ := mirror.Get(is, now.Name)
		return h.Complete(is, now.Name, map[string]string{now.Name: m.Marks[len(m.Marks)-1]})
	})
	r.have(2, 1)
}

// A replica whose node has no place for another host keeps the other one from nothing.
func TestReplicaWithoutAPlaceIsRotatedLater(t *testing.T) {
	r := newMirrorRotation(t)
	r.start()
	node := r.replica(0).Spec.Node
	r.onePlace(node)
	r.request("one")
	r.have(1, 2)
	planAttachments(t, node, 2)
	r.keep("one replica at a time", 1, 2)
	r.retire(r.node, identityOf(r.replica(1).Spec.Hosts[0]))
	r.have(2, 1)
}
