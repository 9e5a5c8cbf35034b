// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/dhchap"
	"github.com/weft-storage/weft/test/apiserver"
)

// newSecure storage, whose target asks for authentication in this way, or says nothing of security if that is empty.
func newSecure(t *testing.T, mode v1alpha1.AuthenticationMode) storage {
	t.Helper()
	return newSecureOn(t, mode, 1)
}

func newSecureOn(t *testing.T, mode v1alpha1.AuthenticationMode, nodes int) storage {
	t.Helper()
	st := newStorageOf(t, func(target *v1alpha1.NvmfTarget) {
		if mode != "" {
			target.Spec.Security = &v1alpha1.Security{Authentication: mode}
		}
	}, nodes, 10*gi)
	for _, node := range st.nodes {
		key, err := agents[node].PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		setNodeStatus(t, node, func(s *v1alpha1.NvmfNodeStatus) { s.PublicKey = key })
	}
	return st
}

func nvmfNode(t *testing.T, name string) *v1alpha1.NvmfNode {
	t.Helper()
	var node v1alpha1.NvmfNode
	if err := api.Get(t.Context(), types.NamespacedName{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	return &node
}

// plugin of a Node: it reports a public key, and can read what is sealed to it.
func plugin(t *testing.T, node string) *dhchap.Identity {
	t.Helper()
	identity, err := dhchap.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	reportAuthentication(t, node, corev1.ConditionFalse, identity.PublicKey())
	return identity
}

// reportAuthentication as the node plugin does.
func reportAuthentication(t *testing.T, name string, s corev1.ConditionStatus, message string) {
	t.Helper()
	node := corev1ac.Node(name).WithStatus(corev1ac.NodeStatus().WithConditions(
		corev1ac.NodeCondition().WithType(v1alpha1.ConditionAuthenticationUnavailable).WithStatus(s).WithReason("x").WithMessage(message)))
	if err := api.Status().Apply(t.Context(), node, client.FieldOwner(v1alpha1.AuthenticationFieldManager), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// only host of a volume's replica.
func onlyHost(t *testing.T, volume string) v1alpha1.VolumeHost {
	t.Helper()
	hosts := replica(t, volume).Spec.Hosts
	if len(hosts) != 1 {
		t.Fatalf("hosts: %v", hosts)
	}
	return hosts[0]
}

func TestPublishSealsKeys(t *testing.T) {
	g := NewWithT(t)
	st := newSecure(t, v1alpha1.AuthenticationRequired)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	identity := plugin(t, nodeID)
	id := newVolume(t, s, st, "v")
	other := newVolume(t, s, st, "w")

	publish(t, s, id, nodeID)
	first := onlyHost(t, id)
	keys, err := identity.Open(first.SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.SealedTo).To(Equal(dhchap.SealedTo(identity.PublicKey(), nvmfNode(t, st.nodes[0]).Status.PublicKey)))
	g.Expect(replica(t, id).Admitted(first.NQN).Keys).To(Equal(keys.Fingerprint()), "the agent has the same")
	g.Expect(volume(t, id).Spec.Attachments[0].SealedKeys).To(BeEmpty())
	publish(t, s, id, nodeID)
	g.Expect(onlyHost(t, id)).To(Equal(first), "asked again, nothing changes")

	publish(t, s, other, nodeID)
	others, err := identity.Open(onlyHost(t, other).SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(others.Host).NotTo(Equal(keys.Host))

	unpublish(t, s, id, nodeID)
	publish(t, s, id, nodeID)
	again, err := identity.Open(onlyHost(t, id).SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).NotTo(Equal(keys), "another attachment has other keys")

	for _, obj := range []any{volume(t, id), replica(t, id), nvmfNode(t, st.nodes[0])} {
		text, err := json.Marshal(obj)
		g.Expect(err).NotTo(HaveOccurred())
		for _, k := range []dhchap.Key{keys.Host, keys.Controller, again.Host, again.Controller} {
			g.Expect(strings.Contains(string(text), strings.Split(k.Text(), ":")[2])).To(BeFalse(), "an object has a key in it")
		}
	}
}

// A target that says nothing has keys for each attachment whose two ends can authenticate. What was attached before
// they could stays as it is.
func TestKeysByDefault(t *testing.T) {
	st := newSecure(t, "")
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	before, after := newVolume(t, s, st, "before"), newVolume(t, s, st, "after")
	publish(t, s, before, nodeID)
	bare := onlyHost(t, before)
	identity := plugin(t, nodeID)
	publish(t, s, after, nodeID)
	if _, err := identity.Open(onlyHost(t, after).SealedKeys); err != nil {
		t.Errorf("a new attachment: %v", err)
	}
	publish(t, s, before, nodeID)
	if got := onlyHost(t, before); bare.SealedKeys != "" || got.SealedKeys != "" {
		t.Errorf("an earlier attachment: %+v", got)
	}
}

func TestPublishWhereAuthenticationCannotBe(t *testing.T) {
	for mode, refused := range map[v1alpha1.AuthenticationMode]bool{
		v1alpha1.AuthenticationRequired: true, v1alpha1.AuthenticationPreferred: false, v1alpha1.AuthenticationDisabled: false, "": false,
	} {
		t.Run(string(mode), func(t *testing.T) {
			st := newSecure(t, mode)
			s, _ := newService(t)
			seen(t, s, st)
			silent, unable := newHost(t, "silent"), newHost(t, "unable")
			reportAuthentication(t, unable, corev1.ConditionTrue, "this kernel cannot")
			id := newVolume(t, s, st, "v")
			for node, says := range map[string]string{silent: "does not report whether it can", unable: "this kernel cannot"} {
				if !refused {
					publish(t, s, id, node)
					if h := onlyHost(t, id); h.SealedKeys != "" {
						t.Errorf("%s has keys", node)
					}
					unpublish(t, s, id, node)
					continue
				}
				_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
				expectError(t, err, codes.Unavailable, says, "requires authentication")
				if len(volume(t, id).Spec.Attachments)+len(replica(t, id).Spec.Hosts) > 0 {
					t.Error("it was attached all the same")
				}
			}
		})
	}
}

// A node that has another public key, as after a reinstallation, gets new keys of its attachments; hosts without keys
// stay so.
func TestKeysAreSealedAgain(t *testing.T) {
	g := NewWithT(t)
	st := newSecure(t, v1alpha1.AuthenticationPreferred)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID, bare := newHost(t, "host"), newHost(t, "bare")
	before := plugin(t, nodeID)
	id, without := newVolume(t, s, st, "v"), newVolume(t, s, st, "w")
	publish(t, s, id, nodeID)
	publish(t, s, without, bare)
	first, none := onlyHost(t, id), onlyHost(t, without)
	g.Expect(none.SealedKeys).To(BeEmpty())

	g.Eventually(func() error { return s.sealAllAgain(t.Context()) }).WithTimeout(enough).Should(Succeed())
	g.Expect(onlyHost(t, id)).To(Equal(first), "nothing has changed")

	after := plugin(t, nodeID)
	plugin(t, bare)
	g.Eventually(func() string {
		g.Expect(s.sealAllAgain(t.Context())).To(Succeed())
		return onlyHost(t, id).SealedTo
	}).WithTimeout(enough).ShouldNot(Equal(first.SealedTo))
	again := onlyHost(t, id)
	g.Expect(again.NQN).To(Equal(first.NQN), "the attachment is the same")
	keys, err := after.Open(again.SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = before.Open(again.SealedKeys)
	g.Expect(err).To(MatchError(dhchap.ErrCannotOpen))
	g.Eventually(func() string { return replica(t, id).Admitted(again.NQN).Keys }).WithTimeout(enough).Should(Equal(keys.Fingerprint()))
	g.Expect(onlyHost(t, without)).To(Equal(none))
}

// nodesRead counts how often each Node is read from the API server.
type nodesRead struct {
	client.Reader
	of map[string]int
}

func (n *nodesRead) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, is := obj.(*corev1.Node); is {
		n.of[key.Name]++
	}
	return n.Reader.Get(ctx, key, obj, opts...)
}

// Looking at all keys asks for each Node once, however many volumes it uses, and not again before its node plugin has
// reported something else, whatever its kubelet writes; and it asks for no NvmfNode.
func TestLookingAtAllKeysReadsEachNodeOnce(t *testing.T) {
	g := NewWithT(t)
	st := newSecure(t, v1alpha1.AuthenticationPreferred)
	var asked apiserver.Requests
	s, _ := newServiceOn(t, asked.Of(restConfig))
	seen(t, s, st)
	s.reportAge = 0 // nothing is reported twice in a second here
	nodeID := newHost(t, "host")
	plugin(t, nodeID)
	for _, name := range []string{"a", "b", "c"} {
		publish(t, s, newVolume(t, s, st, name), nodeID)
	}
	read := &nodesRead{Reader: s.live}
	s.live = read
	looks := func() int {
		read.of = map[string]int{}
		asked.Reset()
		g.Expect(s.sealAllAgain(t.Context())).To(Succeed())
		counts, _ := asked.Reset()
		g.Expect(counts).NotTo(HaveKey("get nvmfnodes"))
		return read.of[nodeID]
	}
	g.Expect(looks()).To(Equal(1))
	g.Eventually(looks).WithTimeout(enough).Should(BeZero(), "once the cache shows what was read")

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}}
	g.Expect(api.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeInfo":{"kernelVersion":"6.12.1"}}}`)))).To(Succeed())
	g.Eventually(func() string {
		is := &metav1.PartialObjectMetadata{}
		is.SetGroupVersionKind(nodeGVK)
		g.Expect(s.client.Get(t.Context(), keyOf(nodeID), is)).To(Succeed())
		return is.ResourceVersion
	}).WithTimeout(enough).Should(Equal(node.ResourceVersion))
	g.Expect(looks()).To(BeZero(), "its kubelet wrote something")

	earlier := s.users[nodeID]
	earlier.reported = metav1.NewTime(earlier.reported.Add(-time.Second))
	s.users[nodeID] = earlier
	g.Expect(looks()).To(Equal(1), "something was reported since it was read")
	late := s.users[nodeID]
	late.until = time.Now()
	s.users[nodeID] = late
	g.Expect(looks()).To(Equal(1), "it was read long ago")
}

// An agent that cannot read the keys says so, and gets new ones at once.
func TestKeysThatAnAgentCannotRead(t *testing.T) {
	g := NewWithT(t)
	st := newSecure(t, v1alpha1.AuthenticationRequired)
	s, _ := newService(t)
	seen(t, s, st)
	go s.Settle(t.Context())
	nodeID := newHost(t, "host")
	identity := plugin(t, nodeID)
	id := newVolume(t, s, st, "v")
	publish(t, s, id, nodeID)
	first := onlyHost(t, id)

	// Keys of nobody, as if they were sealed to a key that the agent had before.
	lost, err := dhchap.NewIdentity()
	g.Expect(err).NotTo(HaveOccurred())
	rep := replica(t, id)
	was := rep.DeepCopy()
	g.Expect(seal(&rep.Spec.Hosts[0], ends{agent: lost.PublicKey(), host: identity.PublicKey()})).To(Succeed())
	g.Expect(api.Patch(t.Context(), rep, client.MergeFrom(was))).To(Succeed())
	g.Eventually(func() string { return onlyHost(t, id).SealedTo }).WithTimeout(enough).Should(Equal(first.SealedTo))
	keys, err := identity.Open(onlyHost(t, id).SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() string { return replica(t, id).Admitted(first.NQN).Keys }).WithTimeout(enough).Should(Equal(keys.Fingerprint()))
}
