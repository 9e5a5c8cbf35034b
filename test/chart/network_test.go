// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// policiesFor pods with these labels.
func policiesFor(t *testing.T, objects []runtime.Object, pod map[string]string) []*networkingv1.NetworkPolicy {
	t.Helper()
	var found []*networkingv1.NetworkPolicy
	for _, p := range of[*networkingv1.NetworkPolicy](objects) {
		selector := must(metav1.LabelSelectorAsSelector(&p.Spec.PodSelector))
		if p.Namespace == namespace && selector.Matches(labels.Set(pod)) {
			found = append(found, p)
		}
	}
	return found
}

// open ports of a policy, in either direction, by name or number.
func open(rules ...[]networkingv1.NetworkPolicyPort) []string {
	var ports []string
	for _, rule := range rules {
		if len(rule) == 0 {
			ports = append(ports, "all")
		}
		for _, p := range rule {
			if p.EndPort != nil || p.Protocol == nil || *p.Protocol != corev1.ProtocolTCP {
				ports = append(ports, "more")
			}
			ports = append(ports, p.Port.String())
		}
	}
	return ports
}

func ingressPorts(p *networkingv1.NetworkPolicy) []string {
	var rules [][]networkingv1.NetworkPolicyPort
	for _, r := range p.Spec.Ingress {
		rules = append(rules, r.Ports)
	}
	return open(rules...)
}

func TestPodsInTheClustersNetworkAreReachedForWhatTheyServeAlone(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		enabled := len(of[*networkingv1.NetworkPolicy](objects)) > 0
		for _, w := range workloads(objects) {
			found := policiesFor(t, objects, w.template.Labels)
			if w.template.Spec.HostNetwork || !enabled {
				if len(found) > 0 {
					t.Errorf("%s: NetworkPolicies do not apply in the node's network", w.name)
				}
				continue
			}
			if len(found) != 1 || !slices.Contains(found[0].Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
				t.Errorf("%s: has policies %v, want one for what comes in", w.name, found)
				continue
			}
			for _, port := range ingressPorts(found[0]) {
				if port != "webhook" && port != "metrics" || w.name != "weft-operator" {
					t.Errorf("%s: port %s is open", w.name, port)
				}
				if !slices.ContainsFunc(w.template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port }) {
					t.Errorf("%s: has no port %s", w.name, port)
				}
			}
		}
	})
	got := ingressPorts(policiesFor(t, render(t), map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: "operator"})[0])
	if !slices.Equal(got, []string{"webhook", "metrics"}) {
		t.Errorf("the operator is reached at %q", got)
	}
}

func TestPodsConnectToTheAPIServerAloneIfAskedFor(t *testing.T) {
	objects := render(t, "--set", "networkPolicy.restrictEgress=true,networkPolicy.apiServer.ports={443,16443},networkPolicy.apiServer.cidrs={10.96.0.1/32}",
		"--set-json", `networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]`)
	for _, component := range []string{"operator", "csi-controller"} {
		p := policiesFor(t, objects, map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: component})[0]
		if !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || len(p.Spec.Egress) != 1 {
			t.Fatalf("%s: %+v", component, p.Spec)
		}
		out := p.Spec.Egress[0]
		if got := open(out.Ports); !slices.Equal(got, []string{"443", "16443"}) || len(out.To) != 1 || out.To[0].IPBlock.CIDR != "10.96.0.1/32" {
			t.Errorf("%s: connects to %q of %+v", component, got, out.To)
		}
		if component == "operator" && (len(p.Spec.Ingress) != 2 || len(p.Spec.Ingress[0].From) != 0 || len(p.Spec.Ingress[1].From) != 1) {
			t.Errorf("who may scrape: %+v", p.Spec.Ingress)
		}
	}
}

// The operator's own pods do nothing on the network, but for target pods, which are in their node's.
func TestGuardsHaveNoNetwork(t *testing.T) {
	objects := render(t)
	for name, pod := range operatorsPods(t) {
		found := policiesFor(t, objects, pod.Labels)
		if pod.Spec.HostNetwork {
			if len(found) > 0 {
				t.Errorf("%s: NetworkPolicies do not apply in the node's network", name)
			}
			continue
		}
		if len(found) != 1 || len(found[0].Spec.Ingress)+len(found[0].Spec.Egress) > 0 || len(found[0].Spec.PolicyTypes) != 2 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// On a port of the nodes, metrics are served over HTTPS to whom the API server allows them: --metrics-bind-address says
// so.
func TestAgentsServeMetricsOnAPortOfTheirNodesIfAskedFor(t *testing.T) {
	service := func(objects []runtime.Object) *corev1.Service {
		i := slices.IndexFunc(of[*corev1.Service](objects), func(s *corev1.Service) bool { return s.Name == "weft-agent-metrics" })
		if i < 0 {
			return nil
		}
		return of[*corev1.Service](objects)[i]
	}
	agent := func(objects []runtime.Object) *appsv1.DaemonSet {
		all := of[*appsv1.DaemonSet](objects)
		return all[slices.IndexFunc(all, func(d *appsv1.DaemonSet) bool { return d.Name == "weft-agent" })]
	}
	if service(render(t)) != nil {
		t.Error("there is a Service for metrics that agents do not serve")
	}
	objects := render(t, "--set", "metrics.agents.port=9809")
	d, s := agent(objects), service(objects)
	if !slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--metrics-bind-address=:9809") {
		t.Errorf("agents have %q", d.Spec.Template.Spec.Containers[0].Args)
	}
	if s == nil || s.Spec.ClusterIP != corev1.ClusterIPNone || s.Spec.Ports[0].TargetPort.IntValue() != 9809 ||
		!labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
		t.Errorf("the Service is %+v", s)
	}
}
