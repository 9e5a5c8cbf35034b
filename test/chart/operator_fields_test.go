// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// aPublicKey has the form of an age recipient.
const aPublicKey = "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"

// testTheOperatorWritesItsFieldsAlone: what a node says of itself, what a person asks for, and what the API server asks
// the webhook about are not the operator's.
func testTheOperatorWritesItsFieldsAlone(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	c := withToken(ctx, t, config, admin, "weft-operator", nil)
	const name = "operated"
	node, target := nodeNamed(name), aTargetOfTheSamples(t, name)
	node.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "eui.a"}}
	for _, o := range []client.Object{node, target} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	const alive, ready = `{"type":"AgentAlive","status":"True","reason":"AsExpected","message":"","lastTransitionTime":"2026-11-20T08:00:00Z"}`,
		`{"type":"Ready","status":"True","reason":"AsExpected","message":"","lastTransitionTime":"2026-11-20T08:00:00Z"}`
	if err := admin.Status().Patch(ctx, nodeNamed(name), merge(`{"status":{"publicKey":%q,"conditions":[%s]}}`, aPublicKey, ready)); err != nil {
		t.Fatal(err)
	}
	patch := func(o client.Object, format string, args ...any) func() error {
		return func() error {
			return c.Patch(ctx, o.DeepCopyObject().(client.Object), merge(format, args...), client.DryRunAll)
		}
	}
	status := func(o client.Object, format string, args ...any) func() error {
		return func() error {
			return c.Status().Patch(ctx, o.DeepCopyObject().(client.Object), merge(format, args...), client.DryRunAll)
		}
	}
	const conditions, persons, targets, metadata = "may change only the conditions AgentAlive", "only administrators may change unschedulable",
		"only administrators may change the spec of an NvmfTarget", "may not change labels, annotations and owners"
	// A policy acts a moment after it is created.
	NewWithT(t).Eventually(status(node, `{"status":{"publicKey":null}}`)).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(conditions)))
	try(t, []attempt{
		{"its conditions of a node", "", status(node, `{"status":{"conditions":[%s,%s]}}`, ready, alive)},
		{"a node's key, as its own", conditions, status(node, `{"status":{"publicKey":%q}}`, aPublicKey[:len(aPublicKey)-1]+"p")},
		{"where a node is asked for blocks", conditions, status(node, `{"status":{"snapshotMetadata":{"address":"192.0.2.1:1","publicKeySHA256":%q}}}`, strings.Repeat("0", 64))},
		{"a node's key, away", conditions, status(node, `{"status":{"publicKey":null}}`)},
		{"a node's condition", conditions, status(node, `{"status":{"conditions":[%s]}}`, alive)},
		{"what a node serves", conditions, status(node, `{"status":{"portals":[{"transport":"TCP","address":"192.0.2.9","port":4420}]}}`)},
		{"a node's authentication", conditions, status(node, `{"status":{"engine":{"type":"Nvmet","authentication":true}}}`)},
		{"a node's claim", "", patch(node, `{"spec":{"leaving":true}}`)},
		{"a person's cordon", persons, patch(node, `{"spec":{"unschedulable":true}}`)},
		{"a drive that a person gave up", persons, patch(node, `{"spec":{"droppedDrives":[{"id":"eui.b"}]}}`)},
		{"a drive that a person gave up, taken back", persons, patch(node, `{"spec":{"droppedDrives":null}}`)},
		{"a drive that a person retires", persons, patch(node, `{"spec":{"unschedulableDrives":["eui.b"]}}`)},
		{"a restore that a person declares", metadata, patch(node, `{"metadata":{"annotations":{%q:"x"}}}`, v1alpha1.RestoredAnnotation)},
		{"a drain that a person allows", metadata, patch(node, `{"metadata":{"annotations":{%q:"x"}}}`, v1alpha1.AllowEvictionAnnotation)},
		{"a node's finalizer", "", patch(node, `{"metadata":{"finalizers":["weft.storage/x"]}}`)},
		{"a target's finalizer", "", patch(target, `{"metadata":{"finalizers":["weft.storage/x"]}}`)},
		{"a target's status", "", status(target, `{"status":{"observedGeneration":1}}`)},
		{"a target's spec", targets, patch(target, `{"spec":{"overProvisioningPercent":300}}`)},
		{"a target that asks for no authentication", targets, patch(target, `{"spec":{"security":{"authentication":"Disabled"}}}`)},
		{"a target's labels", metadata, patch(target, `{"metadata":{"labels":{"a":"b"}}}`)},
	})
	t.Run("webhook", func(t *testing.T) { testTheWebhookStaysAsItIs(ctx, t, c, admin) })
}

func aTargetOfTheSamples(t *testing.T, name string) *v1alpha1.NvmfTarget {
	t.Helper()
	target := of[*v1alpha1.NvmfTarget](must(decode([]byte(files(t, "../../config/samples")["target-file.yaml"]))))[0]
	target.Name = name
	return target
}

// testTheWebhookStaysAsItIs: with rules or an address of its own, the operator would see every Secret that is written.
func testTheWebhookStaysAsItIs(ctx context.Context, t *testing.T, c, admin client.Client) {
	grant(ctx, t, admin, "weft-operator", rbacv1.PolicyRule{
		APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingwebhookconfigurations"}, Verbs: []string{"create", "update", "delete"},
	})
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := admin.Get(ctx, webhookConfig, webhook); err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*admissionregistrationv1.ValidatingWebhook)) func() error {
		return func() error {
			w := webhook.DeepCopy()
			change(&w.Webhooks[0])
			return c.Update(ctx, w, client.DryRunAll)
		}
	}
	other := webhook.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "other"}
	const bundleOnly, noOther = "may change only the caBundle", "may not create or delete webhook configurations"
	NewWithT(t).Eventually(changed(func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = new(int32(1)) })).
		WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(bundleOnly)))
	try(t, []attempt{
		{"its authorities", "", changed(func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = selfSigned(t) })},
		{"every Secret", bundleOnly, changed(func(w *admissionregistrationv1.ValidatingWebhook) {
			w.Rules[0].APIGroups, w.Rules[0].APIVersions, w.Rules[0].Resources, w.Rules[0].Scope = []string{""}, []string{"v1"}, []string{"secrets"}, nil
		})},
		{"another address", bundleOnly, changed(func(w *admissionregistrationv1.ValidatingWebhook) {
			w.ClientConfig.Service, w.ClientConfig.URL = nil, new("https://192.0.2.1/")
		})},
		{"another Service", bundleOnly, changed(func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.Service.Namespace = "default" })},
		{"without conditions", bundleOnly, changed(func(w *admissionregistrationv1.ValidatingWebhook) { w.MatchConditions = nil })},
		{"so that nothing is written without it", bundleOnly, changed(func(w *admissionregistrationv1.ValidatingWebhook) {
			w.FailurePolicy = new(admissionregistrationv1.Fail)
		})},
		{"a second one beside it", bundleOnly, func() error {
			w := webhook.DeepCopy()
			w.Webhooks = append(slices.Clone(w.Webhooks), *w.Webhooks[0].DeepCopy())
			w.Webhooks[1].Name = "second.weft.storage"
			return c.Update(ctx, w, client.DryRunAll)
		}},
		{"another configuration", noOther, func() error { return c.Create(ctx, other, client.DryRunAll) }},
		{"no configuration", noOther, func() error { return c.Delete(ctx, webhook.DeepCopy(), client.DryRunAll) }},
	})
}
