// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
				if port != "metrics" && (port != "webhook" || w.name != "weft-operator") && (port != "snapshot-data" || w.name != "weft-csi-controller") {
					t.Errorf("%s: port %s is open", w.name, port)
				}
				if !slices.ContainsFunc(w.template.Spec.Containers, func(c corev1.Container) bool {
					return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port })
				}) {
					t.Errorf("%s: has no port %s", w.name, port)
				}
			}
		}
	})
	for component, want := range map[string][]string{"operator": {"webhook", "metrics"}, "csi-controller": {"metrics"}} {
		got := ingressPorts(policiesFor(t, render(t), map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: component})[0])
		if !slices.Equal(got, want) {
			t.Errorf("%s is reached at %q", component, got)
		}
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
		for _, rule := range p.Spec.Ingress {
			if scrapes := open(rule.Ports)[0] == "metrics"; scrapes != (len(rule.From) == 1) {
				t.Errorf("%s: who may connect: %+v", component, p.Spec.Ingress)
			}
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
func TestMetricsAreServedOnAPortOfNodesIfAskedFor(t *testing.T) {
	for name, value := range map[string]string{"weft-agent": "agents", "weft-csi-node": "nodePlugins"} {
		t.Run(name, func(t *testing.T) {
			service := func(objects []runtime.Object) *corev1.Service {
				for _, s := range of[*corev1.Service](objects) {
					if s.Name == name+"-metrics" {
						return s
					}
				}
				return nil
			}
			daemonSet := func(objects []runtime.Object) *appsv1.DaemonSet {
				all := of[*appsv1.DaemonSet](objects)
				return all[slices.IndexFunc(all, func(d *appsv1.DaemonSet) bool { return d.Name == name })]
			}
			unasked := daemonSet(render(t)).Spec.Template.Spec.Containers[0].Args
			if slices.ContainsFunc(unasked, func(arg string) bool { return strings.HasPrefix(arg, "--metrics-") }) || service(render(t)) != nil {
				t.Errorf("metrics are served though nobody asked: %q, %+v", unasked, service(render(t)))
			}
			objects := render(t, "--set", "metrics."+value+".port=9807,metrics.service.annotations.team=storage")
			d, s := daemonSet(objects), service(objects)
			if !slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--metrics-bind-address=:9807") {
				t.Errorf("its arguments are %q", d.Spec.Template.Spec.Containers[0].Args)
			}
			if s == nil || s.Spec.ClusterIP != corev1.ClusterIPNone || s.Spec.Ports[0].TargetPort.IntValue() != 9807 || s.Annotations["team"] != "storage" ||
				!labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Errorf("the Service is %+v", s)
			}
		})
	}
}

// ServiceMonitors check the certificate that the pods get: for the name of the Service that they scrape.
func TestMetricsHaveACertificateThatIsChecked(t *testing.T) {
	objects := render(t, "--set", "metrics.tls.secretName=own,metrics.agents.port=9809,metrics.nodePlugins.port=9808,metrics.serviceMonitor.enabled=true")
	names := map[string]bool{}
	for _, s := range of[*corev1.Service](objects) {
		names[s.Name+"."+s.Namespace+".svc"] = true
	}
	checked := 0
	for _, o := range of[*unstructured.Unstructured](objects) {
		endpoints, _, err := unstructured.NestedSlice(o.Object, "spec", "endpoints")
		if err != nil || o.GetKind() != "ServiceMonitor" {
			continue
		}
		config, _, err := unstructured.NestedMap(endpoints[0].(map[string]any), "tlsConfig")
		if err != nil {
			t.Fatal(err)
		}
		ca, _, err := unstructured.NestedStringMap(config, "ca", "secret")
		if err != nil || ca["name"] != "own" || ca["key"] != "ca.crt" || !names[fmt.Sprint(config["serverName"])] || config["insecureSkipVerify"] != nil {
			t.Errorf("%s: %v (%v)", o.GetName(), config, err)
		}
		checked++
	}
	if checked != 4 {
		t.Errorf("%d ServiceMonitors", checked)
	}
	for _, w := range workloads(objects) {
		c := w.template.Spec.Containers[0]
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "metrics-cert" && m.ReadOnly && m.MountPath == "/etc/weft/metrics"
		})
		if !mounted || !slices.Contains(c.Args, "--metrics-cert-dir=/etc/weft/metrics") {
			t.Errorf("%s: %q, %v", w.name, c.Args, c.VolumeMounts)
		}
	}
}

// Who is named in the values may read metrics, and has no other right.
func TestReadersOfMetrics(t *testing.T) {
	objects := render(t, "--set", "metrics.readers[0].namespace=monitoring,metrics.readers[0].name=prometheus")
	var found []string
	for _, b := range of[*rbacv1.ClusterRoleBinding](objects) {
		for _, s := range b.Subjects {
			if s.Namespace != namespace {
				found = append(found, s.Kind+" "+s.Namespace+"/"+s.Name+" has "+b.RoleRef.Name)
			}
		}
	}
	if !slices.Equal(found, []string{"ServiceAccount monitoring/prometheus has weft-metrics-reader"}) {
		t.Errorf("strangers have rights: %q", found)
	}
	for _, r := range of[*rbacv1.ClusterRole](objects) {
		if r.Name == "weft-metrics-reader" && (len(r.Rules) != 1 || !slices.Equal(r.Rules[0].NonResourceURLs, []string{"/metrics"}) || !slices.Equal(r.Rules[0].Verbs, []string{"get"})) {
			t.Errorf("its rules are %+v", r.Rules)
		}
	}
}

// kubectl weft top and report have an account that may read metrics and do nothing else, whether there are Services or
// not.
func TestAccountOfTheCommandLine(t *testing.T) {
	for _, set := range []string{"logLevel=info", "metrics.agents.port=9809", "metrics.service.enabled=false"} {
		objects := render(t, "--set", set)
		exists := false
		for _, account := range of[*corev1.ServiceAccount](objects) {
			if account.Name == "weft-top" {
				exists = account.Namespace == namespace && account.AutomountServiceAccountToken != nil && !*account.AutomountServiceAccountToken
			}
		}
		var roles []string
		for _, b := range of[*rbacv1.ClusterRoleBinding](objects) {
			if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Namespace == namespace && s.Name == "weft-top" }) {
				roles = append(roles, b.RoleRef.Name)
			}
		}
		for _, b := range of[*rbacv1.RoleBinding](objects) {
			if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Name == "weft-top" }) {
				roles = append(roles, b.RoleRef.Name)
			}
		}
		defined := slices.ContainsFunc(of[*rbacv1.ClusterRole](objects), func(r *rbacv1.ClusterRole) bool { return r.Name == "weft-metrics-reader" })
		if !exists || !slices.Equal(roles, []string{"weft-metrics-reader"}) || !defined {
			t.Errorf("%s: the account exists: %v, its roles: %q, which is defined: %v", set, exists, roles, defined)
		}
	}
}
