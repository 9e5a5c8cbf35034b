// SPDX-License-Identifier: Apache-2.0

// Package chart_test renders the chart with the real helm and holds the result to
// what an administrator expects of it; admission_test.go installs it in a real API server, and kind_test.go runs the
// script that installs it in a kind cluster.
package chart_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const namespace = "weft-system"

var testScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}()

// variations of values: what must hold for the default must hold for all of them.
var variations = map[string][]string{
	"default": nil,
	"every value set": {
		"--set", "image.repository=registry.example/weft,image.tag=v9,image.pullPolicy=Always",
		"--set", "target.image.repository=registry.example/weft-target,target.image.tag=v8,target.image.pullPolicy=Never",
		"--set", "logLevel=debug", "--set", "imagePullSecrets[0].name=pull", "--set", "kubeletDir=/var/lib/k0s/kubelet",
		"--set", "operator.replicas=3,csi.controller.replicas=1",
		"--set", "operator.nodeSelector.role=infra,agent.nodeSelector.role=storage",
		"--set", "csi.controller.nodeSelector.role=infra,csi.node.nodeSelector.role=work",
		"--set-json", `operator.tolerations=[{"key":"infra","operator":"Exists"}]`,
		"--set-json", `agent.tolerations=[{"key":"storage","operator":"Equal","value":"yes","effect":"NoSchedule"}]`,
		"--set-json", `operator.affinity={"nodeAffinity":{}}`,
		"--set-json", `agent.affinity={"nodeAffinity":{}}`,
		"--set-json", `csi.node.affinity={"nodeAffinity":{}}`,
		"--set", "operator.extraArgs[0]=--a=b,agent.extraArgs[0]=--a=b,csi.controller.extraArgs[0]=--a=b",
		"--set", "csi.node.extraArgs[0]=--a=b,csi.controller.provisioner.extraArgs[0]=--v=5",
		"--set", "agent.maxUnavailable=1,csi.node.maxUnavailable=25%,csi.node.mirrors.graceSeconds=10,csi.node.mirrors.copyKiBPerSecond=100000000",
		"--set", "guard.enabled=true,guard.singleReplica=Allow",
		"--set", "operator.webhook.failurePolicy=Fail,operator.webhook.timeoutSeconds=10",
		"--set", "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus,metrics.agents.port=9809,metrics.nodePlugins.port=9808,metrics.nodePlugins.paths=false",
		"--set", "metrics.tls.secretName=metrics",
		"--set", "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=prometheus",
		"--set", "metrics.dashboards.enabled=true,metrics.dashboards.annotations.grafana_folder=Storage",
		"--set", "networkPolicy.restrictEgress=true,networkPolicy.apiServer.ports={443},networkPolicy.apiServer.cidrs={10.96.0.1/32}",
		"--set", "tracing.endpoint=https://$(HOST_IP):4317,tracing.samplingRatio=0.5,tracing.tls.secretName=collector,tracing.tls.clientCertificate=true",
		"--set", "apiPriority.controllerShares=40,apiPriority.nodeShares=50",
	},
	"digests": {
		"--set", "image.digest=sha256:" + strings.Repeat("a", 64),
		"--set", "csi.controller.provisioner.image.digest=sha256:" + strings.Repeat("b", 64),
	},
	"changed blocks": {
		"--set", "snapshotMetadata.enabled=true,snapshotMetadata.tls.secretName=backup,snapshotMetadata.agentPort=9900,snapshotMetadata.audience=backup",
		"--set", "snapshotMetadata.tls.caCert=" + testCA,
		"--set", "networkPolicy.restrictEgress=true",
	},
	"openshift": {"--set", "openshift.securityContextConstraints=true"},
	"snapshots": {"--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshot"},
	"least": {
		"--set", "crds.install=false,admission.restrictAgents=false,admission.restrictOperator=false,admission.restrictController=false,operator.webhook.enabled=false,metrics.service.enabled=false,guard.enabled=false,networkPolicy.enabled=false,apiPriority.enabled=false",
	},
}

// testCA looks like a certificate.
const testCA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

// helm runs the helm that HELM names, else the one that the Makefile builds.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	bin := os.Getenv("HELM")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin", "helm")
	}
	if _, err := exec.LookPath(bin); err != nil {
		t.Fatalf("these tests need helm: run `make bin/helm`, or set HELM to its path (%v)", err)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// rendered objects by the arguments: most tests look at the same few renderings.
var rendered = map[string][]runtime.Object{}

// render renders the chart with further arguments of `helm template`. The objects are the test's own.
func render(t *testing.T, args ...string) []runtime.Object {
	t.Helper()
	key := strings.Join(args, "\n")
	if rendered[key] == nil {
		rendered[key] = renderNow(t, args...)
	}
	objects := slices.Clone(rendered[key])
	for i, o := range objects {
		objects[i] = o.DeepCopyObject()
	}
	return objects
}

func renderNow(t *testing.T, args ...string) []runtime.Object {
	t.Helper()
	args = append([]string{"template", "weft", chart, "--namespace", namespace, "--kube-version", "1.32.0"}, args...)
	stdout, stderr, err := helm(t, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	objects, err := decode([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// decode reads objects strictly: a field that its type does not have is an error.
func decode(manifests []byte) ([]runtime.Object, error) {
	decoder := serializer.NewCodecFactory(testScheme, serializer.EnableStrict).UniversalDeserializer()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var content map[string]any
		if err := yaml.UnmarshalStrict(document, &content); err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		if len(content) == 0 {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			object, err = &unstructured.Unstructured{Object: content}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

// appVersion is the chart's.
func appVersion(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(data, &chart); err != nil || chart.AppVersion == "" {
		t.Fatalf("Chart.yaml has no appVersion (%v)", err)
	}
	return chart.AppVersion
}

// of picks the objects of one type.
func of[T runtime.Object](objects []runtime.Object) []T {
	var picked []T
	for _, o := range objects {
		if t, ok := o.(T); ok {
			picked = append(picked, t)
		}
	}
	return picked
}

// workload is a Deployment or DaemonSet.
type workload struct {
	kind, name string
	selector   *metav1.LabelSelector
	template   corev1.PodTemplateSpec
}

func workloads(objects []runtime.Object) []workload {
	var ws []workload
	for _, d := range of[*appsv1.Deployment](objects) {
		ws = append(ws, workload{"Deployment", d.Name, d.Spec.Selector, d.Spec.Template})
	}
	for _, d := range of[*appsv1.DaemonSet](objects) {
		ws = append(ws, workload{"DaemonSet", d.Name, d.Spec.Selector, d.Spec.Template})
	}
	return ws
}

// forEachVariation runs a test on the chart rendered in every way.
func forEachVariation(t *testing.T, test func(t *testing.T, objects []runtime.Object)) {
	for name, args := range variations {
		t.Run(name, func(t *testing.T) { test(t, render(t, args...)) })
	}
}

// chart is the folder of the Helm chart.
const chart = "../../charts/weft"
