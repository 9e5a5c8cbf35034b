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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
