// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestWrongValuesAreRefusedWithAMessage(t *testing.T) {
	for _, test := range []struct{ set, message string }{
		{"operator.replica=1", "'replica' not allowed"},
		{"operater.replicas=1", "'operater' not allowed"},
		{"operator.replicas=two", "at '/operator/replicas': got string, want integer"},
		{"operator.replicas=0", "at '/operator/replicas': minimum: got 0, want 1"},
		{"operator.webhook.failurePolicy=Open", "at '/operator/webhook/failurePolicy': value must be one of 'Ignore', 'Fail'"},
		{"operator.webhook.timeoutSeconds=31", "at '/operator/webhook/timeoutSeconds': maximum: got 31, want 30"},
		{"operator.webhook.certificate=x", "'certificate' not allowed"},
		{"logLevel=verbose", "at '/logLevel': value must be one of 'error', 'info', 'debug'"},
		{"crds.install=maybe", "at '/crds/install': got string, want boolean"},
		{"image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"},
		{"image.digest=abc", "at '/image/digest'"},
		{"image.tag=latest", "has the tag latest"},
		{"target.image.tag=latest", "has the tag latest"},
		{"target.image.pullPolicy=Sometimes", "at '/target/image/pullPolicy'"},
		{"target.image.tag=", "the image ghcr.io/weft-storage/weft-target needs a tag or a digest"},
		{"guard.enabled=yes", "at '/guard/enabled': got string, want boolean"},
		{"guard.singleReplica=Never", "at '/guard/singleReplica': value must be one of 'Block', 'Allow'"},
		{"guard.image.tag=v1", "'image' not allowed"},
		{"target.images.tag=v1", "'images' not allowed"},
		{"csi.controller.attacher.image.tag=", "at '/csi/controller/attacher/image/tag'"},
		{"csi.controller.resizer.images=x", "'images' not allowed"},
		{"csi.controller.snapshotter.enabled=true", "at '/csi/controller/snapshotter/enabled': value must be one of 'Auto', 'Always', 'Never'"},
		{"kubeletDir=var/lib/kubelet", "at '/kubeletDir'"},
		{"kubeletDir=/var/lib/kubelet/", "at '/kubeletDir'"},
		{"openshift.securityContextConstraints=yes", "at '/openshift/securityContextConstraints': got string, want boolean"},
		{"openshift.scc=true", "'scc' not allowed"},
		{"agent.tolerations[0].operator=Always", "at '/agent/tolerations/0/operator': value must be one of 'Exists', 'Equal'"},
		{"agent.resources.limits.memory=lots", "at '/agent/resources/limits/memory'"},
		{"agent.maxUnavailable=0", "at '/agent/maxUnavailable'"},
		{"agent.extraArgs[0]=verbose", "at '/agent/extraArgs/0'"},
		{"csi.node.mirrors.graceSeconds=4", "at '/csi/node/mirrors/graceSeconds': minimum: got 4, want 5"},
		{"csi.node.mirrors.graceSeconds=61", "at '/csi/node/mirrors/graceSeconds'"},
		{"csi.node.mirrors.copyKiBPerSecond=1023", "at '/csi/node/mirrors/copyKiBPerSecond': minimum: got 1,023, want 1,024"},
		{"csi.node.mirrors.copyKiBPerSecond=100000001", "at '/csi/node/mirrors/copyKiBPerSecond'"},
		{"metrics.nodePlugins.port=70000", "at '/metrics/nodePlugins/port'"},
		{"metrics.readers[0].name=prometheus", "at '/metrics/readers/0'"},
		{"metrics.serviceMonitor.interval=30", "at '/metrics/serviceMonitor/interval'"},
		{"metrics.serviceMonitor.enabled=true,metrics.service.enabled=false", "metrics.serviceMonitor.enabled requires metrics.service.enabled"},
		{"tracing.endpoint=collector:4317", "at '/tracing/endpoint'"},
		{"tracing.endpoint=http://collector", "at '/tracing/endpoint'"},
		{"tracing.endpoint=http://me:secret@collector:4317", "at '/tracing/endpoint'"},
		{"tracing.samplingRatio=2", "at '/tracing/samplingRatio': maximum: got 2, want 1"},
		{"tracing.samplingRatio=1.5", "at '/tracing/samplingRatio'"},
		{"tracing.enabled=true", "'enabled' not allowed"},
		{"tracing.endpoint=https://collector:4317", "tracing.endpoint with https:// requires tracing.tls.secretName"},
		{"tracing.endpoint=http://collector:4317,tracing.tls.secretName=x", "requires a tracing.endpoint with https://"},
		{"snapshotMetadata.enabled=true,snapshotMetadata.tls.caCert=" + testCA, "snapshotMetadata.enabled requires snapshotMetadata.tls.secretName"},
		{"snapshotMetadata.enabled=true,snapshotMetadata.tls.secretName=x", "snapshotMetadata.enabled requires snapshotMetadata.tls.caCert"},
		{"snapshotMetadata.tls.caCert=x", "at '/snapshotMetadata/tls/caCert'"},
		{"snapshotMetadata.agentPort=0", "at '/snapshotMetadata/agentPort'"},
	} {
		t.Run(test.set, func(t *testing.T) {
			_, stderr, err := helm(t, "template", "weft", chart, "--namespace", namespace, "--kube-version", "1.32.0", "--set", test.set)
			if err == nil {
				t.Fatal("was accepted")
			}
			if !strings.Contains(stderr, test.message) {
				t.Errorf("got %q, want it to contain %q", stderr, test.message)
			}
		})
	}
}

func TestOlderKubernetesIsRefused(t *testing.T) {
	_, stderr, err := helm(t, "template", "weft", chart, "--kube-version", "1.31.9")
	if err == nil || !strings.Contains(stderr, "kubeVersion") {
		t.Errorf("1.31: got %v, %q", err, stderr)
	}
	// Providers add to the version.
	if _, stderr, err := helm(t, "template", "weft", chart, "--kube-version", "v1.32.1-gke.100"); err != nil {
		t.Errorf("1.32.1-gke.100: %v, %q", err, stderr)
	}
}

func TestLint(t *testing.T) {
	if stdout, stderr, err := helm(t, "lint", "--strict", chart); err != nil {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
}

// kubectl weft report shows the values of a release: all of them, and none of another chart's.
func TestValuesAreInAConfigMap(t *testing.T) {
	objects := render(t, "--set", "logLevel=debug,global.another.password=hidden")
	maps := of[*corev1.ConfigMap](objects)
	i := slices.IndexFunc(maps, func(m *corev1.ConfigMap) bool { return m.Name == "weft-values" && m.Namespace == namespace })
	if i < 0 {
		t.Fatal("there is no ConfigMap weft-values")
	}
	var have, want map[string]any
	if err := yaml.Unmarshal([]byte(maps[i].Data["values.yaml"]), &have); err != nil {
		t.Fatal(err)
	}
	load(t, chart+"/values.yaml", &want)
	want["logLevel"] = "debug"
	delete(want, "global")
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
}
