// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	admissionapply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// olderChart is a copy of this chart whose CRDs lack the short names.
func olderChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "weft")
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	for name, content := range files(t, chart+"/files/crds") {
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
	config := apiServer(t).Config
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
		if len(crds.Items) != 6 {
			t.Fatalf("there are %d CRDs, want 6", len(crds.Items))
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
	writeAsTheOperator(t, c)
	run("upgrade", "weft", chart)
	keepsWhatTheOperatorWrote(t, c)
	run("upgrade", "weft", chart, "--set", "operator.webhook.failurePolicy=Fail")
	keepsWhatTheOperatorWrote(t, c)
	if n := shortNames(); n != 6 {
		t.Errorf("after the upgrade the CRDs have %d short names, want 5: they were not upgraded", n)
	}
	run("uninstall", "weft")
	shortNames() // the CRDs are still there
	if n := deployments(); n != 0 {
		t.Errorf("%d Deployments are left", n)
	}
	run("install", "weft", chart)
	if n := deployments(); n != 2 {
		t.Errorf("installing again gives %d Deployments, want 2", n)
	}
}

// The webhook's Secret and the authorities that the API server trusts come empty; the operator fills them.
var (
	webhookSecret = client.ObjectKey{Namespace: namespace, Name: "weft-operator-webhook"}
	webhookConfig = client.ObjectKey{Name: "weft-nvmftargets"}
	written       = []byte("-----BEGIN CERTIFICATE-----\n")
)

func writeAsTheOperator(t *testing.T, c client.Client) {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), webhookSecret, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{"tls.crt": written}
	if err := c.Update(t.Context(), secret, client.FieldOwner(v1alpha1.OperatorFieldManager)); err != nil {
		t.Fatal(err)
	}
	authorities := selfSigned(t)
	apply := admissionapply.ValidatingWebhookConfiguration(webhookConfig.Name).WithWebhooks(admissionapply.ValidatingWebhook().
		WithName("nvmftargets.weft.storage").WithClientConfig(admissionapply.WebhookClientConfig().WithCABundle(authorities...)))
	if err := c.Apply(t.Context(), apply, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

func keepsWhatTheOperatorWrote(t *testing.T, c client.Client) {
	t.Helper()
	secret, configuration := &corev1.Secret{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := errors.Join(c.Get(t.Context(), webhookSecret, secret), c.Get(t.Context(), webhookConfig, configuration)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(secret.Data["tls.crt"], written) {
		t.Error("the upgrade took the webhook's certificate away")
	}
	if len(configuration.Webhooks[0].ClientConfig.CABundle) == 0 {
		t.Error("the upgrade took the webhook's authorities away")
	}
}

// selfSigned is a certificate that the API server takes as an authority.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
