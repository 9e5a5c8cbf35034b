// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// testAnIntruderGetsNoFurther: what somebody with the token of one part wants next. The other tests look at each right
// that a part has; this one looks at each aim. With the CSI controller's token, whose task it is, a host is admitted
// and a volume formatted: nothing defends against that.
func testAnIntruderGetsNoFurther(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenants"}, Data: map[string][]byte{"key": []byte("x")}}
	volume, replica := volumeOn("l"), replicaOn("l")
	for _, o := range []client.Object{secret, volume, replica} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	host := `{"spec":{"subsystemNQN":"nqn.2026-11.storage.weft:volume-on-l-0:00000000-0000-4000-8000-00000000000a","hosts":[` +
		`{"nqn":"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000b","node":"k","nodeUID":"1"}]}}`
	const patchRight, byPolicy, allowed = "cannot patch resource", "may not write nvmfreplicas", ""
	for part, denied := range map[string]struct{ format, admit string }{
		"weft-agent":          {patchRight, byPolicy},
		"weft-csi-node":       {patchRight, patchRight},
		"weft-operator":       {patchRight, patchRight},
		"weft-csi-controller": {allowed, allowed},
	} {
		as := tokenOf(ctx, t, config, admin, part, nil)
		c := newClient(t, as)
		if part == "weft-agent" {
			c = agentOf(ctx, t, config, admin, "k")
		}
		other := rest.CopyConfig(as)
		other.Impersonate.UserName = "system:admin"
		patch := func(o client.Object, content string) func() error {
			return func() error {
				return c.Patch(ctx, o.DeepCopyObject().(client.Object), merge("%s", content), client.DryRunAll)
			}
		}
		meta := metav1.ObjectMeta{Namespace: namespace}
		named := func(name string) metav1.ObjectMeta { m := meta; m.Name = name; return m }
		image := `{"spec":{"template":{"spec":{"containers":[{"name":"x","image":"registry.example/shell:1"}]}}}}`
		t.Run(part, func(t *testing.T) {
			// A policy acts a moment after it is created.
			NewWithT(t).Eventually(func() bool { return denied.admit == allowed || patch(replica, host)() != nil }).WithTimeout(30 * time.Second).Should(BeTrue())
			try(t, []attempt{
				{"has a volume formatted", denied.format, patch(volume, `{"metadata":{"annotations":{"`+v1alpha1.AllowFormatAnnotation+`":"`+volumeUUID+`"}}}`)},
				{"is admitted as a host", denied.admit, patch(replica, host)},
				{"attaches a volume", "cannot create resource", func() error { return c.Create(ctx, attachmentBy("intruder", v1alpha1.DriverName), client.DryRunAll) }},
				{"gives the operator another image", patchRight, patch(&appsv1.Deployment{ObjectMeta: named("weft-operator")}, image)},
				{"gives the agents another image", patchRight, patch(&appsv1.DaemonSet{ObjectMeta: named("weft-agent")}, image)},
				{"rewrites a policy", patchRight, patch(&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "weft-operator-pods"}}, `{"spec":{"failurePolicy":"Ignore"}}`)},
				{"takes a policy out of force", "cannot delete resource", func() error {
					return c.Delete(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "weft-operator-pods"}}, client.DryRunAll)
				}},
				{"reads a tenant's Secret", "cannot get resource", func() error { return c.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}) }},
				{"lists Secrets", "cannot list resource", func() error { return c.List(ctx, &corev1.SecretList{}) }},
				{"takes another part's token", "cannot create resource", func() error {
					return c.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: named("weft-csi-controller")}, &authenticationv1.TokenRequest{})
				}},
				{"is somebody else", "cannot impersonate", func() error {
					_, err := kubernetes.NewForConfigOrDie(other).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
					return err
				}},
			})
		})
	}
}

// testANodesCredentialsGetNoFurther: what somebody wants next who has a kubelet's certificate, and with it the tokens
// of the pods on its node.
func testANodesCredentialsGetNoFurther(ctx context.Context, t *testing.T, environment *envtest.Environment, admin client.Client) {
	const own, other = "taken", "whole"
	for _, node := range []string{own, other} {
		agentOf(ctx, t, environment.Config, admin, node)
	}
	itself := &corev1.Node{}
	if err := admin.Get(ctx, client.ObjectKey{Name: own}, itself); err != nil {
		t.Fatal(err)
	}
	kubelet, err := environment.AddUser(envtest.User{Name: "system:node:" + own, Groups: []string{"system:nodes"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, kubelet.Config())
	token := func(part, node string) func() error {
		return func() error {
			request := &authenticationv1.TokenRequest{}
			if node != "" {
				pod := &corev1.Pod{}
				if err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "weft-agent-on-" + node}, pod); err != nil {
					return err
				}
				request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
			}
			return c.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: part}}, request)
		}
	}
	label := func(key string) func() error {
		return func() error {
			return c.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}}, merge(`{"metadata":{"labels":{%q:"x"}}}`, key), client.DryRunAll)
		}
	}
	publish := func(node string) func() error {
		return func() error {
			return c.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
				strategic(`{"status":{"conditions":[{"type":%q,"status":"False","message":%q}]}}`, v1alpha1.ConditionAuthenticationUnavailable, aPublicKey), client.DryRunAll)
		}
	}
	pod := func(annotations map[string]string) func() error {
		return func() error {
			return c.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more", Annotations: annotations, OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "Node", Name: own, UID: itself.UID, Controller: new(true)},
				}},
				Spec: corev1.PodSpec{NodeName: own, ServiceAccountName: "weft-operator", Containers: []corev1.Container{{Name: "c", Image: "weft"}}},
			}, client.DryRunAll)
		}
	}
	// The authorizer learns of pods a moment after they are created.
	NewWithT(t).Eventually(token("weft-agent", own)).WithTimeout(30 * time.Second).Should(Succeed())
	const unrelated = "no relationship found between node 'taken' and this object"
	try(t, []attempt{
		{"is the agent elsewhere", "bound to a pod scheduled on a different node", token("weft-agent", other)},
		{"is an agent of no node", "not bound to a pod", token("weft-agent", "")},
		{"is the operator", unrelated, token("weft-operator", own)},
		{"is the CSI controller", unrelated, token("weft-csi-controller", own)},
		{"runs the operator", "can only create mirror pods", pod(nil)},
		{"runs the operator, as a mirror pod", "can not create pods that reference serviceaccounts", pod(map[string]string{corev1.MirrorPodAnnotationKey: "x"})},
		{"publishes its own key", "", publish(own)},
		{"publishes another node's key", "is not allowed to modify node", publish(other)},
		{"has a target select it", "", label("storage")},
		{"has a target select it by a label of administrators", "is not allowed to modify labels", label("node-restriction.kubernetes.io/weft-target")},
		{"has another agent taken for alive", "can only access leases in the", func() error {
			return c.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentLeasePrefix + other}}, client.DryRunAll)
		}},
		{"reads a tenant's Secret", unrelated, func() error {
			return c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "tenants"}, &corev1.Secret{})
		}},
		{"lists attachments", "can only get individual resources of this type", func() error { return c.List(ctx, &storagev1.VolumeAttachmentList{}) }},
		// What its agent and its node plugin may, it may as those.
		{"reads volumes", "cannot list resource", func() error { return c.List(ctx, &v1alpha1.NvmfVolumeList{}) }},
		{"writes a replica", "cannot patch resource", func() error {
			return c.Status().Patch(ctx, replicaOn(own), merge(`{"status":{"written":false}}`), client.DryRunAll)
		}},
	})
}

// testTheOperatorLeavesObjectsOfOthers: its role names kinds. What it deletes, and which budgets and leases it makes,
// is what it needs for its work.
func testTheOperatorLeavesObjectsOfOthers(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	c := withToken(ctx, t, config, admin, "weft-operator", nil)
	budget := func(name string, owned bool, selects metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(2)), Selector: &selects},
		}
		if owned {
			b.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfNode", Name: "stays", UID: "1", Controller: new(true)}}
		}
		return b
	}
	weft := map[string]string{"app.kubernetes.io/name": "weft"}
	guards := metav1.LabelSelector{MatchLabels: weft, MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: v1alpha1.ComponentLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{"guard", v1alpha1.ComponentTarget}},
	}}
	targets := metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: v1alpha1.ComponentTarget}}
	more := *guards.DeepCopy()
	more.MatchExpressions[0].Values = append(more.MatchExpressions[0].Values, "csi-controller")
	stays, gone, own, others := nodeNamed("stays"), nodeNamed("gone"), budget("weft-guard-gone", true, guards), budget("others", false, metav1.LabelSelector{})
	for _, o := range []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}, stays, gone, own, others} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	create := func(o client.Object) func() error { return func() error { return c.Create(ctx, o, client.DryRunAll) } }
	remove := func(o client.Object) func() error { return func() error { return c.Delete(ctx, o, client.DryRunAll) } }
	patch := func(o client.Object, content string) func() error {
		return func() error {
			return c.Patch(ctx, o.DeepCopyObject().(client.Object), merge("%s", content), client.DryRunAll)
		}
	}
	lease := func(name string) func() error {
		return create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	const there, foreign, selects, leases = "may not delete NvmfNode stays, whose Node is there", "only the PodDisruptionBudgets of NvmfNodes and NvmfTargets",
		"selects guard pods and target pods only", "may write only its own lease"
	// A policy acts a moment after it is created.
	for _, a := range []struct {
		do     func() error
		denied string
	}{{remove(stays), there}, {lease("x"), leases}} {
		NewWithT(t).Eventually(a.do).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(a.denied)))
	}
	try(t, []attempt{
		{"an NvmfNode whose Node is gone, deleted", "", remove(gone)},
		{"an NvmfNode whose Node is there, deleted", there, remove(stays)},
		{"all NvmfNodes, deleted", "cannot deletecollection resource", func() error { return c.DeleteAllOf(ctx, &v1alpha1.NvmfNode{}, client.DryRunAll) }},
		{"a node's budget", "", create(budget("weft-guard-stays", true, guards))},
		{"a target's budget", "", create(budget("weft-target-fast", true, targets))},
		{"a budget of nobody's", foreign, create(budget("weft-guard-stays", false, guards))},
		{"a budget of all pods", selects, create(budget("weft-guard-stays", true, metav1.LabelSelector{}))},
		{"a budget of all weft's pods", selects, create(budget("weft-guard-stays", true, metav1.LabelSelector{MatchLabels: weft}))},
		{"a budget of the CSI controller, too", selects, create(budget("weft-guard-stays", true, more))},
		{"its budget, opened", "", patch(own, `{"spec":{"minAvailable":0}}`)},
		{"its budget, of all pods", selects, patch(own, `{"spec":{"selector":{"matchExpressions":null}}}`)},
		{"its budget, deleted", "", remove(own)},
		{"another's budget, opened", foreign, patch(others, `{"spec":{"minAvailable":0}}`)},
		{"another's budget, taken over", foreign, patch(others, `{"metadata":{"ownerReferences":[{"apiVersion":"weft.storage/v1alpha1","kind":"NvmfNode","name":"stays","uid":"1"}]}}`)},
		{"another's budget, deleted", foreign, remove(others)},
		{"its lease", "", lease("weft-operator")},
		{"the lease of an agent", leases, lease(v1alpha1.AgentLeasePrefix + "stays")},
	})
}
