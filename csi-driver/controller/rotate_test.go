// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/dhchap"
)

// rotation of the keys of a volume that is attached to one node.
type rotation struct {
	*testing.T
	g      *WithT
	s      *Service
	st     storage
	node   string
	plugin *dhchap.Identity
	id     string
}

func newRotation(t *testing.T, mode v1alpha1.AuthenticationMode) *rotation {
	t.Helper()
	r := &rotation{T: t, g: NewWithT(t), st: newSecure(t, mode), node: newHost(t, "host")}
	r.s, _ = newService(t)
	seen(t, r.s, r.st)
	r.plugin = plugin(t, r.node)
	r.id = newVolume(t, r.s, r.st, "v")
	publish(t, r.s, r.id, r.node)
	t.Cleanup(r.detach)
	return r
}

// detach the volume: a rotation that goes on would take the place of another test's.
func (r *rotation) detach() {
	vol, err := (&objects[v1alpha1.NvmfVolume, *v1alpha1.NvmfVolume]{}).get(context.Background(), api, r.id)
	if err == nil && vol != nil {
		was := vol.DeepCopy()
		vol.Spec.Attachments = nil
		err = api.Patch(context.Background(), vol, client.MergeFrom(was))
	}
	if err != nil {
		r.Error(err)
	}
}

// write to the volume, and wait until its agent says so.
func (r *rotation) write() {
	r.Helper()
	r.writeTo(r.id + "-0")
}

func (r *rotation) writeTo(name string) {
	r.Helper()
	rep := replicaOf(r, name)
	markWritten(r, rep.Spec.Node, rep.Spec.UUID)
	was := rep.DeepCopy()
	rep.Annotations = map[string]string{"test": "look again"}
	r.g.Expect(api.Patch(r.Context(), rep, client.MergeFrom(was))).To(Succeed())
	r.g.Eventually(func() bool { return replicaOf(r, name).Status.Written }).WithTimeout(enough).Should(BeTrue())
}

// onePlace for attachments is what a node has, and the service has seen that.
func (r *rotation) onePlace(node string) {
	r.Helper()
	planSPDK(r.T, node, 100)
	planAttachments(r.T, node, 1)
	r.g.Eventually(func() bool {
		var seen v1alpha1.NvmfNode
		r.g.Expect(r.s.client.Get(r.Context(), keyOf(node), &seen)).To(Succeed())
		limit, limited := seen.AttachmentLimit()
		return limited && limit == 1
	}).WithTimeout(enough).Should(BeTrue())
}

func (r *rotation) edit(change func(*v1alpha1.NvmfReplica)) {
	r.Helper()
	rep := replica(r, r.id)
	was := rep.DeepCopy()
	change(rep)
	r.g.Expect(api.Patch(r.Context(), rep, client.MergeFrom(was))).To(Succeed())
}

// request a rotation, as kubectl weft rotate does.
func (r *rotation) request(value string) {
	r.Helper()
	vol := volume(r, r.id)
	was := vol.DeepCopy()
	vol.Spec.KeyRotation = value
	r.g.Expect(api.Patch(r.Context(), vol, client.MergeFrom(was))).To(Succeed())
}

// hosts of the replica once there are so many, and the agent admits exactly them. The service is run meanwhile.
func (r *rotation) hosts(want int) []v1alpha1.VolumeHost {
	r.Helper()
	var hosts []v1alpha1.VolumeHost
	r.g.Eventually(func(g Gomega) {
		g.Expect(r.s.rotateAll(r.Context())).To(Succeed())
		rep := replica(r, r.id)
		hosts = rep.Spec.Hosts
		g.Expect(hosts).To(HaveLen(want))
		g.Expect(rep.Status.Hosts).To(HaveLen(want))
		for _, h := range hosts {
			g.Expect(rep.Admitted(h.NQN)).NotTo(BeNil())
		}
	}).WithTimeout(enough).Should(Succeed())
	return hosts
}

// stays so, however often the service looks once its cache has what the API server has.
func (r *rotation) stays(why string) {
	r.Helper()
	want := replica(r, r.id).Spec
	r.g.Eventually(func(g Gomega) {
		cached, err := r.s.volumes.get(r.Context(), r.s.client, r.id)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cached.ResourceVersion).To(Equal(volume(r, r.id).ResourceVersion))
		rep, err := r.s.replicas.get(r.Context(), r.s.client, r.id+"-0")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rep.ResourceVersion).To(Equal(replica(r, r.id).ResourceVersion))
	}).WithTimeout(enough).Should(Succeed())
	r.g.Expect(r.s.rotateAll(r.Context())).To(Succeed())
	r.g.Expect(replica(r, r.id).Spec).To(Equal(want), why)
}

// retire identities by the word of a node.
func (r *rotation) retire(node string, uuids ...string) {
	r.Helper()
	var n corev1.Node
	r.g.Expect(api.Get(r.Context(), types.NamespacedName{Name: node}, &n)).To(Succeed())
	was := n.DeepCopy()
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.ConditionIdentitiesRetired })
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: v1alpha1.ConditionIdentitiesRetired, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonKeysRotated, Message: strings.Join(uuids, " "),
	})
	r.g.Expect(api.Status().Patch(r.Context(), &n, client.StrategicMergeFrom(was))).To(Succeed())
}

func identityOf(h v1alpha1.VolumeHost) string {
	uuid, _ := v1alpha1.AttachmentOfHost(h.NQN)
	return uuid
}

func (r *rotation) open(h v1alpha1.VolumeHost) dhchap.Pair {
	r.Helper()
	keys, err := r.plugin.Open(h.SealedKeys)
	r.g.Expect(err).NotTo(HaveOccurred())
	return keys
}

func TestRotateKeys(t *testing.T) {
	r := newRotation(t, v1alpha1.AuthenticationRequired)
	first := onlyHost(t, r.id)
	attachment := identityOf(first)
	r.g.Expect(first.KeysCreated).NotTo(BeNil())
	r.request("one")
	r.stays("its host may have to format it")
	r.write()

	both := r.hosts(2)
	r.g.Expect(both[0]).To(Equal(first), "the host that is connected stays as it is")
	r.g.Expect(both[1].NQN).NotTo(Equal(first.NQN))
	r.g.Expect(both[1].AttachmentUUID()).To(Equal(attachment))
	r.g.Expect(both[1].VolumeAttachment).To(Equal(first.VolumeAttachment))
	former, next := r.open(both[0]), r.open(both[1])
	r.g.Expect(next).NotTo(Equal(former))
	r.g.Expect(replica(t, r.id).Admitted(both[1].NQN).Keys).To(Equal(next.Fingerprint()), "the agent has the same")
	r.stays("one rotation at a time")
	r.g.Expect(rotatesSince(replica(t, r.id))).To(BeNumerically("<", rotationTime))
	r.request("two")
	r.stays("the next one waits for the end of this one")

	// The former host stays until its own node has left it.
	other := newHost(t, "other")
	r.retire(other, attachment)
	r.retire(r.node, identityOf(both[1]))
	r.stays("nobody says that of the former host")

	// Any process may be another one by now.
	r.g.Expect(agents[r.st.nodes[0]].Stop()).To(Succeed())
	agents[r.st.nodes[0]].Start(t.Context())
	r.s, _ = newService(t)
	seen(t, r.s, r.st)
	r.g.Expect(publish(t, r.s, r.id, r.node).Attachment).To(Equal(attachment), "asked again, nothing changes")

	r.retire(r.node, attachment)
	r.g.Eventually(func(g Gomega) {
		g.Expect(r.s.rotateAll(t.Context())).To(Succeed())
		g.Expect(replica(t, r.id).Listed(first.NQN)).To(BeNil())
		g.Expect(replica(t, r.id).Admitted(first.NQN)).To(BeNil())
	}).WithTimeout(enough).Should(Succeed())
	r.g.Expect(publish(t, r.s, r.id, r.node).Attachment).To(Equal(attachment))

	// The second request begins, and is cut off by a detachment, which leaves nobody admitted.
	both = r.hosts(2)
	r.g.Expect(both[0].KeyRotation).To(Equal("one"))
	r.g.Expect(both[1].KeyRotation).To(Equal("two"))
	third := r.open(both[1])
	for _, obj := range []any{volume(t, r.id), replica(t, r.id)} {
		text, err := json.Marshal(obj)
		r.g.Expect(err).NotTo(HaveOccurred())
		for _, pair := range []dhchap.Pair{former, next, third} {
			for _, k := range []dhchap.Key{pair.Host, pair.Controller} {
				r.g.Expect(string(text)).NotTo(ContainSubstring(strings.Split(k.Text(), ":")[2]), "an object has a key in it")
			}
		}
	}
	unpublish(t, r.s, r.id, r.node)
	r.g.Expect(replica(t, r.id).Status.Hosts).To(BeEmpty())
	publish(t, r.s, r.id, r.node)
	again := onlyHost(t, r.id)
	r.g.Expect(again.NQN).NotTo(BeElementOf(first.NQN, both[0].NQN, both[1].NQN))
	r.stays("a new attachment has new keys")
}

// A former host that came back, as from a backup of etcd, is not admitted.
func TestRotatedHostIsDismissedForGood(t *testing.T) {
	r := newRotation(t, v1alpha1.AuthenticationRequired)
	r.write()
	first := onlyHost(t, r.id)
	r.request("one")
	r.hosts(2)
	r.retire(r.node, identityOf(first))
	now := r.hosts(1)
	r.g.Expect(now[0].Retired).To(Equal(identityOf(first)), "the agent need not disturb the other to dismiss it")
	r.stays("it is kept")
	r.edit(func(rep *v1alpha1.NvmfReplica) { rep.Spec.Hosts = []v1alpha1.VolumeHost{first} })
	r.g.Eventually(func() bool { return replica(t, r.id).RestoreSuspected() }).WithTimeout(enough).Should(BeTrue())
	r.g.Expect(replica(t, r.id).Admitted(first.NQN)).To(BeNil())
	r.g.Expect(replica(t, r.id).Admitted(now[0].NQN)).NotTo(BeNil(), "it serves on")
}

func TestRotateKeysByAge(t *testing.T) {
	r := newRotation(t, v1alpha1.AuthenticationPreferred)
	r.write()
	first := onlyHost(t, r.id)
	age := func(d time.Duration) {
		r.edit(func(rep *v1alpha1.NvmfReplica) {
			rep.Spec.Hosts[0].KeysCreated = new(metav1.NewTime(time.Now().Add(-d)).Rfc3339Copy())
		})
	}
	age(v1alpha1.DefaultKeyLifetimeHours*time.Hour - time.Minute)
	r.stays("they are not old enough")
	age(-time.Hour)
	r.stays("a clock was wrong")
	age(v1alpha1.DefaultKeyLifetimeHours * time.Hour)
	both := r.hosts(2)
	r.g.Expect(both[0].NQN).To(Equal(first.NQN))
	r.g.Expect(time.Since(both[1].KeysCreated.Time)).To(BeNumerically("<", time.Minute))
	r.g.Expect(volume(t, r.id).Spec.KeyRotation).To(Equal(both[1].KeyRotation))
	r.retire(r.node, identityOf(first))
	r.hosts(1)
	r.stays("the new keys are not old")
}

// A host without keys gets some, where its target wants that by now; and one that has keys never has none afterwards.
func TestRotationNeverTakesKeys(t *testing.T) {
	for mode, next := range map[v1alpha1.AuthenticationMode]v1alpha1.AuthenticationMode{
		v1alpha1.AuthenticationDisabled: v1alpha1.AuthenticationRequired, v1alpha1.AuthenticationRequired: v1alpha1.AuthenticationDisabled,
	} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRotation(t, mode)
			r.write()
			var target v1alpha1.NvmfTarget
			r.g.Expect(api.Get(t.Context(), types.NamespacedName{Name: r.st.target}, &target)).To(Succeed())
			was := target.DeepCopy()
			target.Spec.Security.Authentication = next
			r.g.Expect(api.Patch(t.Context(), &target, client.MergeFrom(was))).To(Succeed())
			r.request("one")
			both := r.hosts(2)
			r.open(both[1])
			reportAuthentication(t, r.node, corev1.ConditionTrue, "this kernel cannot")
			r.retire(r.node, identityOf(both[0]))
			r.hosts(1)
			r.request("two")
			r.stays("its node cannot have others")
		})
	}
}

// Nodes that share a volume get new keys one after the other, of one request.
func TestRotateKeysOfASharedVolume(t *testing.T) {
	g := NewWithT(t)
	st := newSecure(t, v1alpha1.AuthenticationRequired)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	r := &rotation{T: t, g: g, s: s, st: st, id: id}
	for _, name := range []string{"a", "b"} {
		r.node = newHost(t, name)
		r.plugin = plugin(t, r.node)
		req := publishRequest(id, r.node)
		req.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
		publishAs(t, s, req)
	}
	t.Cleanup(r.detach)
	r.write()
	first := r.hosts(2)
	r.request("one")
	for range first {
		both := r.hosts(3)
		i := slices.IndexFunc(both, func(h v1alpha1.VolumeHost) bool { return h.KeyRotation == "" })
		r.stays("one host at a time")
		r.retire(both[i].Node, identityOf(both[i]))
		r.g.Eventually(func(g Gomega) {
			g.Expect(r.s.rotateAll(r.Context())).To(Succeed())
			g.Expect(replica(t, id).Listed(both[i].NQN)).To(BeNil())
		}).WithTimeout(enough).Should(Succeed())
	}
	for _, h := range r.hosts(2) {
		r.g.Expect(h.KeyRotation).To(Equal("one"))
	}
}

// What cannot be rotated is left as it is.
func TestRotationWaits(t *testing.T) {
	t.Run("for a place", func(t *testing.T) {
		r := newRotation(t, v1alpha1.AuthenticationRequired)
		r.write()
		r.onePlace(r.st.nodes[0])
		r.request("one")
		r.stays("the target has no place for another host")
		planAttachments(t, r.st.nodes[0], 2)
		r.hosts(2)
	})
	t.Run("while the volume is to be mirrored", func(t *testing.T) {
		r := newRotation(t, v1alpha1.AuthenticationRequired)
		r.write()
		vol := volume(t, r.id)
		was := vol.DeepCopy()
		vol.Spec.KeyRotation, vol.Spec.Replicas = "one", 2
		r.g.Expect(api.Patch(t.Context(), vol, client.MergeFrom(was))).To(Succeed())
		r.stays("a mirror knows its legs by their hosts")
	})
	t.Run("but a rotation that has begun keeps the mirror waiting", func(t *testing.T) {
		r := newRotation(t, v1alpha1.AuthenticationRequired)
		r.write()
		first := onlyHost(t, r.id)
		r.request("one")
		r.hosts(2)
		ready, why := convertible(volume(t, r.id), replica(t, r.id))
		r.g.Expect(ready).To(BeFalse(), why)
		r.retire(r.node, identityOf(first))
		r.hosts(1)
		ready, why = convertible(volume(t, r.id), replica(t, r.id))
		r.g.Expect(ready).To(BeTrue(), why)
	})
}

// The replica of an attachment whose keys were rotated has no object any more: another one does not list the NQN that
// was dismissed.
func TestReplicaOfARotatedAttachmentIsMadeAgain(t *testing.T) {
	const attachment, session = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002"
	for rotated, same := range map[string]bool{"": true, "since": false} {
		vol := &v1alpha1.NvmfVolume{Spec: v1alpha1.NvmfVolumeSpec{
			KeyRotation: rotated, Session: session, Attachments: []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(attachment), Node: "n"}},
		}}
		rep := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "v-0"}}
		rep.Spec = derive(vol, nil, rep)
		h := rep.Spec.Hosts[0]
		if h.AttachmentUUID() != attachment || (h.NQN == v1alpha1.HostNQN(attachment)) != same {
			t.Errorf("rotation %q: %+v", rotated, h)
		}
		if again := derive(vol, nil, rep); !sameHosts(again, rep.Spec) {
			t.Errorf("rotation %q: it is another one each time: %+v", rotated, again.Hosts)
		}
	}
}

// Volumes that cannot be rotated now, however many, take nobody's turn.
func TestRotationsThatWaitKeepNoneFromBeginning(t *testing.T) {
	st := newSecure(t, v1alpha1.AuthenticationRequired)
	s, _ := newService(t)
	seen(t, s, st)
	var all []*rotation
	for i := range mostRotations + 1 {
		name := string(rune('a' + i))
		r := &rotation{T: t, g: NewWithT(t), s: s, st: st, node: newHost(t, name)}
		r.plugin = plugin(t, r.node)
		r.id = newVolume(t, s, st, name)
		publish(t, s, r.id, r.node)
		t.Cleanup(r.detach)
		r.write()
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *rotation) int { return strings.Compare(a.id, b.id) })
	for _, r := range all[:mostRotations] {
		reportAuthentication(t, r.node, corev1.ConditionTrue, "this kernel cannot")
		r.request("one")
	}
	last := all[mostRotations]
	last.request("one")
	last.hosts(2)
	for _, r := range all[:mostRotations] {
		r.stays("its node cannot have others")
		r.g.Expect(replica(t, r.id).Rotating()).To(BeFalse())
	}
}
