// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var weftAPI = v1alpha1.GroupVersion.String()

// eventBy a reporter about an object without a namespace.
func eventBy(controller, instance, apiVersion, kind, name string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%s.%s", name, instance, strings.ToLower(kind))},
		EventTime:  metav1.NewMicroTime(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)), ReportingController: controller, ReportingInstance: instance,
		Type: corev1.EventTypeWarning, Reason: "Tried", Action: "Try", Note: "tried",
		Regarding: corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Name: name},
	}
}

// testEventsAreOfTheirOwnNode: people act on Events, so that one who has a node's token must not tell of another node.
// It gets rights that its role does not have, so that what is denied is denied by the policy.
func testEventsAreOfTheirOwnNode(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	agent, plugin := agentOf(ctx, t, config, admin, "g"), podOn(ctx, t, config, admin, "weft-csi-node", "h")
	for _, part := range []string{"weft-agent", "weft-csi-node"} {
		grant(ctx, t, admin, part, rbacv1.PolicyRule{
			APIGroups: []string{"", eventsv1.GroupName}, Resources: []string{"events"}, Verbs: []string{"create", "update", "patch"},
		})
	}
	create := func(c client.Client, e client.Object) func() error {
		return func() error { return c.Create(ctx, e, client.DryRunAll) }
	}
	own, others := eventBy("weft-agent", "weft-agent-g", weftAPI, "NvmfNode", "g"), eventBy("weft-agent", "weft-agent-i", weftAPI, "NvmfNode", "i")
	for _, e := range []client.Object{own, others} {
		if err := admin.Create(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	again := own.DeepCopy()
	again.Name += ".2"
	elsewhere := again.DeepCopy()
	elsewhere.Namespace, elsewhere.Regarding.Namespace = namespace, namespace
	patch := func(e client.Object, content string) func() error {
		return func() error {
			return agent.Patch(ctx, e.DeepCopyObject().(client.Object), merge("%s", content), client.DryRunAll)
		}
	}
	const about, name, only = "write Events about their own node", "in their own name only", "in the namespace default"
	const counted = `{"series":{"count":2,"lastObservedTime":"2026-11-20T08:00:01.000000Z"}}`
	// A policy acts a moment after it is created.
	NewWithT(t).Eventually(create(agent, eventBy("weft-agent", "weft-agent-g", weftAPI, "NvmfNode", "h"))).
		WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(about)))
	try(t, []attempt{
		{"an agent about its node", "", create(agent, again)},
		{"an agent about a replica", "", create(agent, eventBy("weft-agent", "weft-agent-g", weftAPI, "NvmfReplica", "pvc-1-0"))},
		{"an agent about a snapshot", "", create(agent, eventBy("weft-agent", "weft-agent-g", weftAPI, "NvmfSnapshot", "s"))},
		{"an agent about a target", about, create(agent, eventBy("weft-agent", "weft-agent-g", weftAPI, "NvmfTarget", "fast"))},
		{"an agent about another Node", about, create(agent, eventBy("weft-agent", "weft-agent-g", "v1", "Node", "h"))},
		{"an agent as the operator", name, create(agent, eventBy("weft-operator", "weft-operator-1", weftAPI, "NvmfNode", "g"))},
		{"an agent in another namespace", only, create(agent, elsewhere)},
		{"an agent by the older API", only, create(agent, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "older"}, Reason: "Tried", Source: corev1.EventSource{Component: "weft-agent"},
			InvolvedObject: corev1.ObjectReference{APIVersion: weftAPI, Kind: "NvmfNode", Name: "h"},
		})},
		{"an agent counts its Event", "", patch(own, counted)},
		{"an agent changes its Event", "field is immutable", patch(own, `{"note":"other"}`)},
		{"an agent counts another's Event", about, patch(others, counted)},
		{"a node plugin about its Node", "", create(plugin, eventBy("weft-csi-node", "h", "v1", "Node", "h"))},
		{"a node plugin about a volume", "", create(plugin, eventBy("weft-csi-node", "h", weftAPI, "NvmfVolume", "pvc-1"))},
		{"a node plugin about another Node", about, create(plugin, eventBy("weft-csi-node", "h", "v1", "Node", "g"))},
		{"a node plugin about a pod", about, create(plugin, eventBy("weft-csi-node", "h", "v1", "Pod", "h"))},
		{"a node plugin as another node's", name, create(plugin, eventBy("weft-csi-node", "g", weftAPI, "NvmfVolume", "pvc-1"))},
		{"a node plugin as the kubelet", name, create(plugin, eventBy("kubelet", "h", "v1", "Node", "h"))},
		{"nobody else is asked", "", create(admin, eventBy("example.org/x", "x", "v1", "Node", "g"))},
	})
}
