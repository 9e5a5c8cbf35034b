// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// testMirrorsAreConfined: a node plugin writes what it keeps on its own node. It gets rights here that its role does
// not have, so that what is denied is denied by the policy.
func testMirrorsAreConfined(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	e, f := podOn(ctx, t, config, admin, "weft-csi-node", "e"), podOn(ctx, t, config, admin, "weft-csi-node", "f")
	unbound := withToken(ctx, t, config, admin, "weft-csi-node", nil)
	grant(ctx, t, admin, "weft-csi-node", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nvmfmirrors"}, Verbs: []string{"create", "patch", "delete", "deletecollection"},
	})
	const held, free, former, stopping, reading = "held-by-e", "held-by-nobody", "held-before-the-upgrade", "held-by-a-mover", "held-by-a-reader"
	const declared, personsOnly = "held-and-declared", "may declare a member current, retire it, or request a confirmation"
	mover := mirrorHeld(stopping, holder, "e")
	mover.Spec.Mover = v1alpha1.MoverStop
	reader := mirrorHeld(reading, holder, "e")
	reader.Spec.Mover, reader.Spec.Recovering, reader.Spec.Recovery = v1alpha1.MoverRead, true, holder
	current := mirrorHeld(declared, holder, "e")
	current.Spec.Members[1].DeclaredCurrent = 1
	for _, o := range []client.Object{reader, mirrorHeld(held, holder, "e"), mirrorHeld(free, "", ""), mirrorHeld(former, holder, ""), mover, current} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	update := func(c client.Client, name string, change func(*v1alpha1.NvmfMirrorSpec)) func() error {
		return func() error {
			var m v1alpha1.NvmfMirror
			if err := c.Get(ctx, client.ObjectKey{Name: name}, &m); err != nil {
				return err
			}
			m.Spec.Epoch++
			change(&m.Spec)
			return c.Update(ctx, &m, client.DryRunAll)
		}
	}
	patch := func(c client.Client, name, content string) func() error {
		return func() error { return c.Patch(ctx, mirrorHeld(name, "", ""), merge("%s", content), client.DryRunAll) }
	}
	dirty := func(s *v1alpha1.NvmfMirrorSpec) { s.Dirty = true }
	refuse := func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].State, s.Members[1].Foreign = v1alpha1.MemberOut, true }
	report := func(s *v1alpha1.NvmfMirrorSpec) {
		s.Epoch-- // it says what was read, and changes nothing
		s.Mover, s.Members[0].Header = v1alpha1.MoverStopped, &v1alpha1.MirrorHeader{Epoch: 9, Mark: "m"}
	}
	const recoverer = "only the CSI controller may recover a mirror"
	const other, holderOnly, lifetime, stopped = "may not write NvmfMirror held-by-e, which node e holds", "only the CSI controller may change the holder",
		"only the CSI controller may create and delete mirrors", "may only answer that a mover has stopped"
	// Policy and role act a moment after they are created.
	g := NewWithT(t)
	g.Eventually(patch(f, held, `{"spec":{"dirty":true}}`)).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(other)))
	try(t, []attempt{
		{"its own", "", update(e, held, dirty)},
		{"its own, a member is out", "", update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].State = v1alpha1.MemberOut })},
		{"its own, refuses a member", "", update(e, held, refuse)},
		{"its own, suspects all members", "", update(e, held, func(s *v1alpha1.NvmfMirrorSpec) {
			for i := range s.Members {
				s.Members[i].Suspect = true
			}
			s.Dirty = true
		})},
		{"another node's", other, update(f, held, dirty)},
		{"another node's, refuses a member", other, update(f, held, refuse)},
		{"another node's, by a patch", other, patch(f, held, `{"spec":{"dirty":true}}`)},
		{"another node's, as its own", other, update(f, held, func(s *v1alpha1.NvmfMirrorSpec) { s.HolderNode = "f" })},
		{"another node's, whose node it takes away", other, update(f, held, func(s *v1alpha1.NvmfMirrorSpec) { s.HolderNode = "" })},
		{"another node's, without its finalizer", other, patch(f, held, `{"metadata":{"finalizers":null}}`)},
		{"with a token that names no node", "which node e holds", update(unbound, held, dirty)},
		{"its own, for another holder", "holder must be removed before another one is set", update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Holder = strings.Replace(holder, "a", "b", 1) })},
		{"its own, for no holder", holderOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Holder, s.HolderNode = "", "" })},
		{"its own, for another node", holderOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.HolderNode = "f" })},
		{"its own, for all nodes", holderOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.HolderNode = "" })},
		{"its own, with fewer members", "may add and remove members", update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Members = s.Members[:1] })},
		{"its own, without its finalizer", "may not change labels, annotations, finalizers", patch(e, held, `{"metadata":{"finalizers":null}}`)},
		{"its own, says why it waits", "", update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.MoverWaiting = "it is still staged" })},
		{"its own, as a mover", stopped, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Mover = v1alpha1.MoverCopy })},
		{"its own, that is to stop", "", update(e, stopping, func(s *v1alpha1.NvmfMirrorSpec) { s.Mover = v1alpha1.MoverStopped })},
		{"its own, that is to stop and goes on", stopped, update(e, stopping, func(s *v1alpha1.NvmfMirrorSpec) { s.Mover = v1alpha1.MoverCopy })},
		{"its own, that is to stop, as a pod's", stopped, update(e, stopping, func(s *v1alpha1.NvmfMirrorSpec) { s.Mover = "" })},
		{"its own, reports headers", "", update(e, reading, report)},
		{"its own, reports headers, of another epoch", recoverer, update(e, reading, func(s *v1alpha1.NvmfMirrorSpec) { report(s); s.Epoch++ })},
		{"its own, reports headers and recovers it", recoverer, update(e, reading, func(s *v1alpha1.NvmfMirrorSpec) { report(s); s.Epoch++; s.Recovering = false })},
		{"its own, is recovered for another request", recoverer, update(e, reading, func(s *v1alpha1.NvmfMirrorSpec) { report(s); s.Recovery = "" })},
		{"its own, puts it in doubt", recoverer, update(e, stopping, func(s *v1alpha1.NvmfMirrorSpec) { s.Recovering, s.Mover = true, v1alpha1.MoverStopped })},
		{"another node's, reports headers", "may not write NvmfMirror held-by-a-reader", update(f, reading, report)},
		{"its own, and declares a member current", personsOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].DeclaredCurrent = s.Epoch })},
		{"its own, and retires a member", personsOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].Retired = true })},
		{"its own, and asks itself to confirm", personsOnly, update(e, held, func(s *v1alpha1.NvmfMirrorSpec) { s.ConfirmRequested = 1 })},
		{"its own, that was declared current and started", "", update(e, declared, func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].DeclaredCurrent = 0 })},
		{"its own, that was declared current, for another epoch", personsOnly, update(e, declared, func(s *v1alpha1.NvmfMirrorSpec) { s.Members[1].DeclaredCurrent++ })},
		{"its own, that was declared current, as it is", "", update(e, declared, dirty)},
		{"nobody's", holderOnly, update(e, free, dirty)},
		{"nobody's, as its own", holderOnly, update(e, free, func(s *v1alpha1.NvmfMirrorSpec) { s.Holder, s.HolderNode = holder, "e" })},
		{"one of before the upgrade", "", update(e, former, dirty)},
		{"one of before the upgrade, as its own", holderOnly, update(f, former, func(s *v1alpha1.NvmfMirrorSpec) { s.HolderNode = "f" })},
		{"creates one", lifetime, func() error { return e.Create(ctx, mirrorHeld("new", holder, "e"), client.DryRunAll) }},
		{"the CSI controller changes the holder", "", update(withToken(ctx, t, config, admin, "weft-csi-controller", nil), held, func(s *v1alpha1.NvmfMirrorSpec) { s.Holder, s.HolderNode = "", "" })},
	})
	// Another policy refuses deletions as well; this one does it alone.
	deletions := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "weft-deletions"}}
	if err := admin.Delete(ctx, deletions); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() error { return admin.Delete(ctx, mirrorHeld(held, "", ""), client.DryRunAll) }).WithTimeout(30 * time.Second).Should(Succeed())
	for name, c := range map[string]client.Client{"own": e, "other": f, "none": unbound} {
		g.Expect(c.Delete(ctx, mirrorHeld(held, "", ""), client.DryRunAll)).To(MatchError(ContainSubstring(lifetime)), name)
	}
	g.Expect(e.DeleteAllOf(ctx, &v1alpha1.NvmfMirror{}, client.DryRunAll)).To(MatchError(ContainSubstring(lifetime)))
}

// testRecoveriesAreAskedFor: an administrator may ask for the recovery of a record, and nobody else of weft's but the
// CSI controller, which carries it out. The NvmfMirror itself is deleted by nobody, as an administrator neither.
func testRecoveriesAreAskedFor(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	vol := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "to-be-recovered"}, Spec: v1alpha1.NvmfVolumeSpec{
		UUID: "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", Target: "fast", Replicas: 2, Size: resource.MustParse("4Mi"),
		Members: []v1alpha1.VolumeMember{
			{Name: "to-be-recovered-0", UUID: "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", Node: "e"},
			{Name: "to-be-recovered-1", UUID: "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002", Node: "f"},
		},
	}}
	for _, o := range []client.Object{vol, mirrorHeld(vol.Name, "", "")} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		by     client.Client
		denied bool
	}{
		"administrator":  {admin, false},
		"CSI controller": {withToken(ctx, t, config, admin, "weft-csi-controller", nil), false},
		"node plugin":    {withToken(ctx, t, config, admin, "weft-csi-node", nil), true},
		"agent":          {withToken(ctx, t, config, admin, "weft-agent", nil), true},
		"operator":       {withToken(ctx, t, config, admin, "weft-operator", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			ask := merge(`{"spec":{"recovery":{"id":%q,"current":"to-be-recovered-0","acceptLossUntil":"2026-11-20T09:00:00Z"}}}`, holder)
			err := test.by.Patch(ctx, vol.DeepCopy(), ask, client.DryRunAll)
			if test.denied && !apierrors.IsForbidden(err) || !test.denied && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
	g := NewWithT(t)
	g.Eventually(func() error { return admin.Delete(ctx, mirrorHeld(vol.Name, "", ""), client.DryRunAll) }).WithTimeout(30 * time.Second).
		Should(MatchError(ContainSubstring("run: kubectl weft recover")))
}
