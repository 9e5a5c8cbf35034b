// SPDX-License-Identifier: Apache-2.0

package weft_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// olderChart is a copy of this chart whose CRDs lack the short names.
func olderChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "weft")
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for name, content := range files(t, "files/crds") {
		older := strings.Replace(content, "    shortNames:\n", "    x: [\n", 1)
		start := strings.Index(older, "    x: [\n")
		end := strings.Index(older, "    singular:")
		if start < 0 || end < start {
			t.Fatalf("%s has no short names before its singular", name)
		}
		older = older[:start] + older[end:]
		if err := os.WriteFile(filepath.Join(dir, "files", "crds", name), []byte(older), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestARelease(t *testing.T) {
	ctx := t.Context()
	config := apiServer(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "test",
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		args = append(args, "--kubeconfig", kubeconfig, "--namespace", namespace)
		if stdout, stderr, err := helm(t, args...); err != nil {
			t.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
		}
	}
	c := newClient(t, config)
	shortNames := func() int {
		t.Helper()
		var crds apiextensionsv1.CustomResourceDefinitionList
		if err := c.List(ctx, &crds); err != nil {
			t.Fatal(err)
		}
		if len(crds.Items) != 4 {
			t.Fatalf("there are %d CRDs, want 4", len(crds.Items))
		}
		n := 0
		for _, crd := range crds.Items {
			n += len(crd.Spec.Names.ShortNames)
		}
		return n
	}
	deployments := func() int {
		t.Helper()
		var list appsv1.DeploymentList
		if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}

	run("install", "weft", olderChart(t), "--create-namespace")
	if n := shortNames(); n != 0 {
		t.Fatalf("the older chart's CRDs have %d short names", n)
	}
	run("upgrade", "weft", ".")
	if n := shortNames(); n != 4 {
		t.Errorf("after the upgrade the CRDs have %d short names, want 4: they were not upgraded", n)
	}
	run("uninstall", "weft")
	shortNames() // the CRDs are still there
	if n := deployments(); n != 0 {
		t.Errorf("%d Deployments are left", n)
	}
	run("install", "weft", ".")
	if n := deployments(); n != 2 {
		t.Errorf("installing again gives %d Deployments, want 2", n)
	}
}
