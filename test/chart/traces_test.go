// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/tracing"
)

// traced are the workloads that take part in what a volume's calls ask for.
var traced = []string{"weft-agent", "weft-csi-controller", "weft-csi-node"}

// environment of a container that is about traces, as its process has it on a node with an address.
func environment(c corev1.Container, host string) map[string]string {
	known := map[string]string{"NODE_NAME": "n1", "POD_NAMESPACE": namespace}
	found := map[string]string{}
	for _, e := range c.Env {
		if e.Name == "HOST_IP" && e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "status.hostIP" {
			known[e.Name] = host
		}
		if strings.HasPrefix(e.Name, "OTEL_") {
			value := e.Value
			for name, is := range known { // those before it
				value = strings.ReplaceAll(value, "$("+name+")", is)
			}
			found[e.Name] = value
		}
	}
	return found
}

// Traces are off by default. If they are on, weft's programs take what the chart tells them, and the sidecars and the
// operator, which have none, are told nothing.
func TestTracesAreOnlyExportedIfAskedFor(t *testing.T) {
	for _, w := range workloads(render(t)) {
		for _, c := range w.template.Spec.Containers {
			if got := environment(c, "192.0.2.1"); len(got) > 0 {
				t.Errorf("%s, %s: %v", w.name, c.Name, got)
			}
		}
	}
	for _, w := range workloads(render(t, "--set", "tracing.endpoint=http://$(HOST_IP):4317,tracing.samplingRatio=0.1")) {
		for i, c := range w.template.Spec.Containers {
			got := environment(c, "192.0.2.1")
			if i > 0 || !slices.Contains(traced, w.name) {
				if len(got) > 0 {
					t.Errorf("%s, %s: %v", w.name, c.Name, got)
				}
				continue
			}
			if got["OTEL_EXPORTER_OTLP_ENDPOINT"] != "http://192.0.2.1:4317" || got["OTEL_TRACES_SAMPLER_ARG"] != "0.1" || got["OTEL_RESOURCE_ATTRIBUTES"] != "k8s.node.name=n1,k8s.namespace.name=weft-system" {
				t.Errorf("%s: %v", w.name, got)
			}
			for name, value := range got {
				t.Setenv(name, value)
			}
			ctx, stop, err := tracing.Setup(t.Context(), w.name, "1")
			if err != nil || tracing.Provider(ctx) == nil {
				t.Errorf("%s does not start with them: %v", w.name, err)
			}
			stop()
		}
	}
}

func TestTracesOverTLS(t *testing.T) {
	for _, client := range []bool{false, true} {
		set := "tracing.endpoint=https://collector.example:4317,tracing.tls.secretName=collector"
		if client {
			set += ",tracing.tls.clientCertificate=true"
		}
		for _, w := range workloads(render(t, "--set", set)) {
			if !slices.Contains(traced, w.name) {
				continue
			}
			c := w.template.Spec.Containers[0]
			at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "tracing" })
			in := slices.IndexFunc(w.template.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "collector" })
			if at < 0 || in < 0 || w.template.Spec.Volumes[in].Name != "tracing" || !c.VolumeMounts[at].ReadOnly {
				t.Errorf("%s does not have the Secret: %+v", w.name, c.VolumeMounts)
				continue
			}
			got, path := environment(c, ""), c.VolumeMounts[at].MountPath
			want := map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": path + "/ca.crt", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "", "OTEL_EXPORTER_OTLP_CLIENT_KEY": ""}
			if client {
				want["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"], want["OTEL_EXPORTER_OTLP_CLIENT_KEY"] = path+"/tls.crt", path+"/tls.key"
			}
			for name, value := range want {
				if got[name] != value {
					t.Errorf("%s: %s is %q, want %q", w.name, name, got[name], value)
				}
			}
		}
	}
}

// A CSI controller that may connect to the API server alone may connect to the collector too.
func TestTheCollectorIsReachedThroughNetworkPolicies(t *testing.T) {
	objects := render(t, "--set", "networkPolicy.restrictEgress=true,tracing.endpoint=http://[fd00::1]:14317")
	for component, want := range map[string]int{"operator": 1, "csi-controller": 3} {
		p := policiesFor(t, objects, map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: component})[0]
		if len(p.Spec.Egress) != want {
			t.Errorf("%s: %+v", component, p.Spec.Egress)
		}
		if want > 1 && !slices.Equal(open(p.Spec.Egress[1].Ports), []string{"14317"}) {
			t.Errorf("%s: %+v", component, p.Spec.Egress)
		}
	}
}
