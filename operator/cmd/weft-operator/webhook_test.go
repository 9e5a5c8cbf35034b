// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/webhook"
)

// webhooks are replicas of the operator that answer the API server, and a user who sees its warnings.
type webhooks struct {
	*cluster
	user     client.Client
	warnings *warnings
	// addresses of the replicas, and what stops each.
	addresses []string
	stop      []func()
	// sent requests of ask, and what went wrong with some; failed is read once it has stopped.
	sent   atomic.Int64
	failed []string
}

type warnings struct {
	sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _ string, text string) {
	w.Lock()
	defer w.Unlock()
	w.said = append(w.said, text)
}

// take returns what was said since it was asked last.
func (w *warnings) take() []string {
	w.Lock()
	defer w.Unlock()
	said := w.said
	w.said = nil
	return said
}

// startWebhooks installs what the chart installs, but that the API server reaches the replicas by their addresses, one
// after the other, and refuses everything while one does not answer, so that no failure goes unnoticed. The Secret has
// the data.
func startWebhooks(t *testing.T, replicas int, data map[string][]byte, changes ...func(*settings)) *webhooks {
	t.Helper()
	w := &webhooks{cluster: newCluster(t), warnings: &warnings{}}
	config := rest.CopyConfig(adminConfig)
	config.WarningHandlerWithContext = w.warnings
	var err error
	w.user, err = client.New(config, client.Options{Scheme: admin.Scheme()})
	w.Expect(err).NotTo(HaveOccurred())

	configuration, secret := fromChart(t)
	secret.Data = data
	one := configuration.Webhooks[0]
	configuration.Webhooks = nil
	for i := range replicas {
		address := freeAddress(w.cluster)
		w.addresses = append(w.addresses, address)
		each := *one.DeepCopy()
		each.Name = fmt.Sprintf("replica%d.%s", i, one.Name)
		each.FailurePolicy = new(admissionv1.Fail)
		each.ClientConfig = admissionv1.WebhookClientConfig{URL: new("https://" + strings.Replace(address, "127.0.0.1", "localhost", 1) + *one.ClientConfig.Service.Path)}
		configuration.Webhooks = append(configuration.Webhooks, each)
	}
	w.create(secret)
	for _, address := range w.addresses {
		_, stop := startOperator(t, func(o *settings) {
			o.LeaderElect = replicas > 1
			o.WebhookBindAddress, o.WebhookNames = address, []string{"localhost"}
			for _, change := range changes {
				change(o)
			}
		})
		w.stop = append(w.stop, stop)
	}
	w.create(configuration)
	return w
}

// fromChart reads the chart's default rendering.
func fromChart(t *testing.T) (*admissionv1.ValidatingWebhookConfiguration, *corev1.Secret) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "default", "weft.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	configuration, secret := &admissionv1.ValidatingWebhookConfiguration{}, &corev1.Secret{}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for kind, into := range map[string]any{"\nkind: ValidatingWebhookConfiguration\n": configuration, "\nkind: Secret\n": secret} {
			if strings.Contains(string(doc), kind) {
				if err := yaml.UnmarshalStrict(doc, into); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if configuration.Name != webhook.ConfigurationName || secret.Name != webhook.SecretName || secret.Namespace != namespace {
		t.Fatalf("the chart has configuration %q and Secret %s/%s; run make generate", configuration.Name, secret.Namespace, secret.Name)
	}
	return configuration, secret
}

// proposal is a target that is not stored yet.
func proposal(name, pool string, edits ...func(*v1alpha1.NvmfTarget)) *v1alpha1.NvmfTarget {
	target := newTarget(name, pool)
	for _, edit := range edits {
		edit(target)
	}
	return target
}

func overRDMA(t *v1alpha1.NvmfTarget) {
	t.Spec.Transports = []v1alpha1.Transport{{Type: v1alpha1.TransportRDMA}}
}

// dry asks without storing.
func (w *webhooks) dry(target *v1alpha1.NvmfTarget) error {
	return w.user.Create(w.ctx, target, client.DryRunAll)
}

// answering waits until the API server calls the webhooks, and every replica has a certificate that it trusts and has
// seen the nodes. One refusal hides what the other replica says, so they are asked for something that they all must
// allow, too.
func (w *webhooks) answering(pool string) {
	w.t.Helper()
	w.Eventually(func() error { return w.dry(proposal("answering", pool, overRDMA)) }).Should(MatchError(ContainSubstring("no matching node can serve this target")))
	w.Eventually(func() ([]string, error) {
		w.warnings.take()
		err := w.dry(proposal("answering", pool))
		return w.warnings.take(), err
	}).Should(BeEmpty())
}

func TestAdmission(t *testing.T) {
	w := startWebhooks(t, 1, nil)
	w.node("adm-1", "adm", capableModules...)
	w.answering("adm")

	w.Expect(w.dry(proposal("adm", "adm"))).To(Succeed())
	w.Expect(w.warnings.take()).To(BeEmpty())

	err := w.dry(proposal("adm", "adm", overRDMA))
	w.Expect(err).To(MatchError(And(ContainSubstring("denied the request: no matching node can serve this target: adm-1: "),
		ContainSubstring(v1alpha1.ReasonModuleMissing), ContainSubstring("nvmet_rdma"), ContainSubstring(v1alpha1.ReasonNoRDMADevice))))

	w.Expect(w.dry(proposal("adm", "nowhere"))).To(Succeed())
	w.Expect(w.warnings.take()).To(ConsistOf(ContainSubstring("no node matches spec.nodeSelector yet")))

	w.node("adm-2", "adm", "nvmet")
	w.Eventually(func() []string {
		w.Expect(w.dry(proposal("adm", "adm"))).To(Succeed())
		return w.warnings.take()
	}).Should(ConsistOf(And(ContainSubstring("1 of 2 matching nodes cannot serve this target: adm-2: "), ContainSubstring("nvmet_tcp"))))

	w.node("adm-3", "adm")
	w.Eventually(func() []string {
		w.Expect(w.dry(proposal("adm", "adm", overRDMA))).To(Succeed(), "adm-3 has not reported: it may have RDMA")
		return w.warnings.take()
	}).Should(ContainElement(And(ContainSubstring("it is unknown whether 1 of 3 matching nodes can serve this target"), ContainSubstring("adm-3"))))

	var stored v1alpha1.NvmfTargetList
	w.Expect(admin.List(w.ctx, &stored)).To(Succeed())
	w.Expect(stored.Items).To(BeEmpty(), "a dry run stores nothing")
}

func TestAdmissionOfChanges(t *testing.T) {
	w := startWebhooks(t, 1, nil)
	w.node("change-1", "change", capableModules...)
	w.answering("change")
	w.target("change", "change")
	w.Eventually(w.claimant("change-1")).Should(Equal("change"))

	change := func(edit func(*v1alpha1.NvmfTarget)) error {
		var err error
		w.Eventually(func() bool { // the operator writes too; what was judged in vain may have been warned of
			w.warnings.take()
			target := w.nvmfTarget("change")
			edit(target)
			err = w.user.Update(w.ctx, target)
			return apierrors.IsConflict(err)
		}).Should(BeFalse())
		return err
	}
	w.Expect(change(overRDMA)).To(MatchError(ContainSubstring("no matching node can serve this target: change-1")))
	w.Expect(change(func(t *v1alpha1.NvmfTarget) { t.Spec.Transports[0].Port = 4421 })).To(Succeed())
	w.Eventually(func() int32 { return w.nvmfNode("change-1").Spec.Plan.Portals[0].Port }).Should(Equal(int32(4421)))

	// The node loses what the target needs: what is not a new spec is nobody's business, and a new spec makes it no
	// worse.
	w.report("change-1", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory.Modules = nil })
	w.Eventually(func() error { return w.dry(proposal("change-too", "change")) }).Should(MatchError(ContainSubstring("no matching node can serve this target")), "a new one is refused")
	w.Expect(change(func(t *v1alpha1.NvmfTarget) { t.Labels = map[string]string{"a": "b"} })).To(Succeed())
	w.Expect(w.warnings.take()).To(BeEmpty())
	w.Expect(change(func(t *v1alpha1.NvmfTarget) { t.Spec.Transports[0].Port = 4422 })).To(Succeed())
	w.Expect(w.warnings.take()).To(ConsistOf(ContainSubstring("no matching node can serve this target, and none could serve it before"),
		And(ContainSubstring("1 of 1 matching nodes cannot serve this target: change-1: "), ContainSubstring(v1alpha1.ReasonModuleMissing))))
	w.Consistently(func() int32 { return w.nvmfNode("change-1").Spec.Plan.Portals[0].Port }).Should(Equal(int32(4421)), "it keeps the plan that it has")
	w.Expect(admin.Delete(w.ctx, w.nvmfTarget("change"))).To(Succeed())
	w.Eventually(func() error {
		return admin.Get(w.ctx, client.ObjectKey{Name: "change"}, &v1alpha1.NvmfTarget{})
	}).ShouldNot(Succeed(), "its finalizer is taken off")
}

// madeAt is a Secret's data as it was made some time ago, and looked at daily until long ago.
func madeAt(t *testing.T, ago, until time.Duration) map[string][]byte {
	t.Helper()
	var data map[string][]byte
	now := time.Now()
	for at := ago; at >= until; at -= 24 * time.Hour {
		d, err := webhook.Decide(data, []string{"localhost"}, now.Add(-at))
		if err != nil {
			t.Fatal(err)
		}
		data = d.Data
	}
	return data
}

func (w *webhooks) secret() *corev1.Secret {
	secret := &corev1.Secret{}
	w.Expect(admin.Get(w.ctx, client.ObjectKey{Namespace: namespace, Name: webhook.SecretName}, secret)).To(Succeed())
	return secret
}

func (w *webhooks) configuration() *admissionv1.ValidatingWebhookConfiguration {
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	w.Expect(admin.Get(w.ctx, client.ObjectKey{Name: webhook.ConfigurationName}, configuration)).To(Succeed())
	return configuration
}

// ask sends requests that every replica must allow, one after the other, until the returned function is called.
func (w *webhooks) ask(pool string) (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := w.user.Create(context.WithoutCancel(ctx), proposal("asked", pool), client.DryRunAll); err != nil { // the last one is answered too
				w.failed = append(w.failed, err.Error())
			}
			w.sent.Add(1)
		}
	}()
	return func() {
		w.Eventually(w.sent.Load).Should(BeNumerically(">", w.sent.Load()+3))
		cancel()
		<-done
	}
}

const day = 24 * time.Hour

// The clock goes from three days ago to now; all that is made on the way is valid today, so that the API server takes
// it.
func TestRotationFailsNoRequest(t *testing.T) {
	now := time.Now()
	data := madeAt(t, 187*day, 3*day)
	clock := testingclock.NewFakePassiveClock(now.Add(-3 * day))
	w := startWebhooks(t, 2, data, func(o *settings) { o.CertificateClock = clock })
	w.node("rotate-1", "rotate", capableModules...)
	w.answering("rotate")
	stop := w.ask("rotate")
	was := w.secret().Data
	w.Expect(was).To(Equal(data), "nothing is due yet")

	// A new authority, that signs nothing yet.
	clock.SetTime(now.Add(-day - time.Hour))
	w.poke()
	w.Eventually(func() []byte { return w.secret().Data[webhook.AuthorityKeyKey] }).ShouldNot(Equal(was[webhook.AuthorityKeyKey]))
	w.Expect(w.secret().Data[webhook.CertificateKey]).To(Equal(was[webhook.CertificateKey]))
	both := w.secret().Data[webhook.AuthoritiesKey]
	w.Expect(both).To(HaveSuffix(string(was[webhook.AuthoritiesKey])))
	w.Eventually(func() []byte { return w.configuration().Webhooks[0].ClientConfig.CABundle }).Should(Equal(both))
	w.heard("rotate") // in a cluster it has a day

	// It has settled, and signs.
	clock.SetTime(now)
	w.poke()
	w.Eventually(func() []byte { return w.secret().Data[webhook.CertificateKey] }).ShouldNot(Equal(was[webhook.CertificateKey]))
	for _, address := range w.addresses {
		w.Eventually(func() ([]byte, error) { return served(w.ctx, address, both) }).Should(Equal(w.secret().Data[webhook.CertificateKey]))
	}
	stop()
	w.Expect(w.failed).To(BeEmpty(), "of %d requests", w.sent.Load())
}

// heard waits until the API server calls the webhooks as they are configured now. It learns of changes in order: one
// more webhook, which nobody serves, shows that it knows of what was there before.
func (w *webhooks) heard(pool string) {
	w.t.Helper()
	w.Eventually(func() error {
		configuration := w.configuration()
		last := *configuration.Webhooks[0].DeepCopy()
		last.Name, last.ClientConfig.URL = "heard."+last.Name, new("https://localhost:1/")
		last.MatchConditions = []admissionv1.MatchCondition{{Name: "heard", Expression: "object.metadata.name == 'heard'"}}
		configuration.Webhooks = append(configuration.Webhooks, last)
		return admin.Update(w.ctx, configuration)
	}).Should(Succeed())
	w.Eventually(func() error { return w.dry(proposal("heard", pool)) }).Should(MatchError(ContainSubstring(`failed calling webhook "heard.`)))
}

// served is the certificate that a new connection gets, when it trusts the authorities.
func served(ctx context.Context, address string, authorities []byte) ([]byte, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	state := conn.(*tls.Conn).ConnectionState()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: state.PeerCertificates[0].Raw}), nil
}

// poke makes the operator look again, as it does by itself after a day.
func (w *webhooks) poke() {
	w.Eventually(func() error {
		secret := w.secret()
		secret.Annotations = map[string]string{"poked": time.Now().String()}
		return admin.Update(w.ctx, secret)
	}).Should(Succeed())
}

// trust lets the API server know authorities before replicas serve with them, as the day of settling does.
func (w *webhooks) trust(authorities []byte) {
	w.Eventually(func() error {
		configuration := w.configuration()
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.CABundle = authorities
		}
		return admin.Update(w.ctx, configuration)
	}).Should(Succeed())
}

func TestAWrongCertificateIsMended(t *testing.T) {
	w := startWebhooks(t, 2, nil)
	w.node("mend-1", "mend", capableModules...)
	w.answering("mend")

	w.trust([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	w.answering("mend")

	for name, data := range map[string]map[string][]byte{
		"another's": madeFor(t, "elsewhere.svc"),
		"garbage":   {webhook.CertificateKey: []byte("garbage"), webhook.PrivateKeyKey: []byte("garbage")},
		"nothing":   nil,
		"long over": madeAt(t, 500*day, 500*day),
	} {
		t.Log(name)
		w.Eventually(func() error {
			secret := w.secret()
			secret.Data = data
			return admin.Update(w.ctx, secret)
		}).Should(Succeed())
		w.Eventually(func() error {
			d, err := webhook.Decide(w.secret().Data, []string{"localhost"}, time.Now())
			if err == nil && d.Why != "" {
				err = errors.New(d.Why)
			}
			return err
		}).Should(Succeed())
		w.answering("mend")
	}
}

func madeFor(t *testing.T, name string) map[string][]byte {
	t.Helper()
	d, err := webhook.Decide(nil, []string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return d.Data
}

func TestMetricsSayWhenTheCertificateExpires(t *testing.T) {
	w := startWebhooks(t, 1, nil, func(o *settings) { o.MetricsBindAddress = "127.0.0.1:0" })
	w.node("expiry-1", "expiry", capableModules...)
	w.answering("expiry")
	block, _ := pem.Decode(w.secret().Data[webhook.CertificateKey])
	certificate, err := x509.ParseCertificate(block.Bytes)
	w.Expect(err).NotTo(HaveOccurred())
	families, err := ctrlmetrics.Registry.Gather()
	w.Expect(err).NotTo(HaveOccurred())
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "weft_webhook_certificate_expiration_timestamp_seconds"
	})
	w.Expect(at).NotTo(Equal(-1))
	w.Expect(families[at].GetMetric()[0].GetGauge().GetValue()).To(BeEquivalentTo(certificate.NotAfter.Unix()))
}

// The leader goes; the other replica answers on, and keeps the certificate.
func TestAReplicaAnswersWithoutTheLead(t *testing.T) {
	w := startWebhooks(t, 2, nil)
	w.node("alone-1", "alone", capableModules...)
	w.answering("alone")
	w.stop[0]()
	w.Eventually(func() error { return w.dry(proposal("alone", "alone")) }).Should(MatchError(ContainSubstring("replica0.")), "closed: nobody answers for it")
	w.Eventually(func() error {
		configuration := w.configuration()
		configuration.Webhooks = configuration.Webhooks[1:]
		return admin.Update(w.ctx, configuration)
	}).Should(Succeed())
	w.answering("alone")
	w.Expect(w.dry(proposal("alone", "alone"))).To(Succeed())
}
