// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// apiServer starts etcd and kube-apiserver from KUBEBUILDER_ASSETS. Kubelets are confined there as in a cluster.
func apiServer(t *testing.T) *envtest.Environment {
	t.Helper()
	if _, err := os.Stat(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kube-apiserver")); err != nil {
		t.Fatalf("this test needs etcd and kube-apiserver: run `make envtest`, and set KUBEBUILDER_ASSETS to what `bin/weft-lab assets-dir` prints (%v)", err)
	}
	environment := &envtest.Environment{}
	environment.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "Node,RBAC").Append("enable-admission-plugins", "NodeRestriction")
	if _, err := environment.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	return environment
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: testScheme})
	if err != nil {
		t.Fatal(err)
	}
	return client.WithFieldValidation(c, metav1.FieldValidationStrict)
}

// install creates what the chart renders: the CRDs first, as helm does.
func install(ctx context.Context, t *testing.T, c client.Client, objects []runtime.Object) {
	t.Helper()
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	for _, crd := range of[*apiextensionsv1.CustomResourceDefinition](objects) {
		if err := c.Create(ctx, crd); err != nil {
			t.Fatalf("%s: %v", crd.Name, err)
		}
	}
	for _, crd := range of[*apiextensionsv1.CustomResourceDefinition](objects) {
		NewWithT(t).Eventually(func(g Gomega) {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
			g.Expect(crd.Status.Conditions).To(ContainElement(And(
				HaveField("Type", apiextensionsv1.Established), HaveField("Status", apiextensionsv1.ConditionTrue))))
		}).WithTimeout(30 * time.Second).Should(Succeed())
	}
	for _, o := range objects {
		if _, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			continue
		}
		if err := c.Create(ctx, o.(client.Object)); err != nil {
			t.Errorf("%T %s: %v", o, o.(client.Object).GetName(), err)
		}
	}
}

// agentOf gives a client with the token that the kubelet of a node gives to the agent there.
func agentOf(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client, node string) client.Client {
	t.Helper()
	return podOn(ctx, t, config, admin, "weft-agent", node)
}

// podOn gives a client with the token of a part's pod on a node.
func podOn(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client, part, node string) client.Client {
	t.Helper()
	if err := admin.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: part + "-on-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: part,
			Containers: []corev1.Container{{Name: part, Image: "weft"}},
			// Which the API server adds to pods, and without which a kubelet gets no token for them.
			Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
			}}}},
		},
	}
	if err := admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	return withToken(ctx, t, config, admin, part, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
	})
}

func withToken(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client, part string, bound *authenticationv1.BoundObjectReference) client.Client {
	t.Helper()
	return newClient(t, tokenOf(ctx, t, config, admin, part, bound))
}

// tokenOf a part's ServiceAccount, as what a client is made from.
func tokenOf(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client, part string, bound *authenticationv1.BoundObjectReference) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: part}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	if err := admin.SubResource("token").Create(ctx, account, request); err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(config)
	as.BearerToken = request.Status.Token
	return as
}

const volumeUUID = "00000000-0000-4000-8000-000000000001"

func volumeOn(node string) *v1alpha1.NvmfVolume {
	return &v1alpha1.NvmfVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-on-" + node, Finalizers: []string{v1alpha1.ReplicasFinalizer}},
		Spec: v1alpha1.NvmfVolumeSpec{
			UUID: volumeUUID, Target: "fast", Size: resource.MustParse("1Gi"),
			Members: []v1alpha1.VolumeMember{{Name: "volume-on-" + node + "-0", UUID: volumeUUID, Node: node}},
		},
	}
}

func replicaOn(node string) *v1alpha1.NvmfReplica {
	return &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-on-" + node + "-0", Finalizers: []string{v1alpha1.EngineFinalizer}},
		Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: "volume-on-" + node, UUID: volumeUUID},
			UUID:   volumeUUID, Target: "fast", Node: node, Size: resource.MustParse("1Gi"),
		},
	}
}

func snapshotOn(node string) *v1alpha1.NvmfSnapshot {
	return &v1alpha1.NvmfSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "snapshot-on-" + node},
		Spec: v1alpha1.NvmfSnapshotSpec{
			UUID: "00000000-0000-4000-8000-000000000002", Volume: "volume-on-" + node, Replica: "volume-on-" + node + "-0", Node: node,
		},
	}
}

func nodeNamed(name string) *v1alpha1.NvmfNode {
	return &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func leaseNamed(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func merge(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}

func TestInAnAPIServer(t *testing.T) {
	ctx := t.Context()
	environment := apiServer(t)
	config := environment.Config
	admin := newClient(t, config)
	install(ctx, t, admin, render(t))
	pods := operatorsPods(t)

	t.Run("samples are accepted", func(t *testing.T) {
		for _, dir := range []string{"../../config/samples", "../../config/samples/spdk"} {
			for name, content := range files(t, dir) {
				objects, err := decode([]byte(content))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, o := range objects {
					o := o.(client.Object)
					o.SetNamespace(defaultNamespaceOf(o))
					if err := admin.Create(ctx, o, client.DryRunAll); err != nil {
						t.Errorf("%s/%s: %T: %v", dir, name, o, err)
					}
				}
			}
		}
	})
	// No operator runs here, and nobody answers the webhook's Service.
	t.Run("a target is stored without an operator", func(t *testing.T) {
		for _, content := range files(t, "../../config/samples") {
			for _, target := range of[*v1alpha1.NvmfTarget](must(decode([]byte(content)))) {
				if err := admin.Create(ctx, target); err != nil {
					t.Errorf("%s: %v", target.Name, err)
				}
				if err := admin.Delete(ctx, target); err != nil {
					t.Errorf("%s: %v", target.Name, err)
				}
			}
		}
	})
	// Before others get rights that their roles do not have.
	t.Run("intruder", func(t *testing.T) { testAnIntruderGetsNoFurther(ctx, t, config, admin) })
	t.Run("intruder on a node", func(t *testing.T) { testANodesCredentialsGetNoFurther(ctx, t, environment, admin) })
	t.Run("operator's objects", func(t *testing.T) { testTheOperatorLeavesObjectsOfOthers(ctx, t, config, admin) })
	t.Run("agents", func(t *testing.T) { testAgentsAreConfined(ctx, t, config, admin) })
	t.Run("deletions", func(t *testing.T) { testDeletionsAreMeant(ctx, t, config, admin) })
	t.Run("operator's pods", func(t *testing.T) { testTheOperatorRunsItsPodsAlone(ctx, t, config, admin, pods) })
	t.Run("operator's fields", func(t *testing.T) { testTheOperatorWritesItsFieldsAlone(ctx, t, config, admin) })
	t.Run("node plugins", func(t *testing.T) { testNodePluginsAreConfined(ctx, t, config, admin) })
	t.Run("controller", func(t *testing.T) { testTheControllerWritesItsDriversObjects(ctx, t, config, admin) })
	t.Run("events", func(t *testing.T) { testEventsAreOfTheirOwnNode(ctx, t, config, admin) })
	t.Run("mirrors are watched", func(t *testing.T) { testMirrorsAreWatched(ctx, t, config, admin) })
	t.Run("recoveries", func(t *testing.T) { testRecoveriesAreAskedFor(ctx, t, config, admin) })
	t.Run("mirrors", func(t *testing.T) { testMirrorsAreConfined(ctx, t, config, admin) })
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func defaultNamespaceOf(o runtime.Object) string {
	switch o.(type) {
	case *corev1.Pod, *corev1.PersistentVolumeClaim:
		return "default"
	}
	return ""
}

// testAgentsAreConfined uses the agent's own ServiceAccount and role: what is
// denied here is denied by the admission policies, with their words, and not for want of a right; but of volumes it has
// none.
func testAgentsAreConfined(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	a, b := agentOf(ctx, t, config, admin, "a"), agentOf(ctx, t, config, admin, "b")
	unbound := withToken(ctx, t, config, admin, "weft-agent", nil)
	for _, o := range []client.Object{replicaOn("a"), replicaOn("b"), snapshotOn("a"), snapshotOn("b")} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	// A policy acts a moment after it is created.
	g := NewWithT(t)
	g.Eventually(func() error { return a.Create(ctx, nodeNamed("b"), client.DryRunAll) }).
		WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring("may not write")))
	g.Eventually(func() error {
		return a.Status().Patch(ctx, replicaOn("b"), merge(`{"status":{"nsid":1}}`), client.DryRunAll)
	}).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring("may not write")))

	claimed := nodeNamed("a")
	claimed.Spec.Target = "fast"
	claimed.Spec.Plan = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Portals: []v1alpha1.PlannedPortal{{
		Portal:      v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
		MaxIOQueues: 8, QueueDepth: 128,
	}}}
	cordoned, dropped, leaving := nodeNamed("a"), nodeNamed("a"), nodeNamed("a")
	cordoned.Spec.Unschedulable = true
	dropped.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "eui.a"}}
	leaving.Spec.Leaving = true
	const otherNode = "the agent of node a may not write"
	const metadata, replicasMetadata = "may not change labels, annotations and owners of its NvmfNode", "may not change labels, annotations, owners and others' finalizers"
	annotated := nodeNamed("a")
	annotated.Annotations = map[string]string{v1alpha1.RestoredAnnotation: "x"}
	const held = "example.org/held"
	try(t, []attempt{
		{"creates its node, restored already", metadata, func() error { return a.Create(ctx, annotated) }},
		{"creates its node, claimed already", "only the operator and administrators may change the spec", func() error { return a.Create(ctx, claimed) }},
		{"creates its node, cordoned", "only the operator and administrators may change the spec", func() error { return a.Create(ctx, cordoned) }},
		{"creates its node, without a drive", "only the operator and administrators may change the spec", func() error { return a.Create(ctx, dropped) }},
		{"creates its node, leaving", "only the operator and administrators may change the spec", func() error { return a.Create(ctx, leaving) }},
		{"creates its node", "", func() error { return a.Create(ctx, nodeNamed("a")) }},
		{"is cordoned by a person", "", func() error { return admin.Patch(ctx, nodeNamed("a"), merge(`{"spec":{"unschedulable":true}}`)) }},
		{"uncordons itself", "only the operator and administrators may change the spec", func() error {
			return a.Patch(ctx, nodeNamed("a"), merge(`{"spec":{"unschedulable":null}}`))
		}},
		{"creates another's node", otherNode, func() error { return a.Create(ctx, nodeNamed("b")) }},
		{"the other creates it itself", "", func() error { return b.Create(ctx, nodeNamed("b")) }},
		{"writes its node's status", "", func() error {
			return a.Status().Patch(ctx, nodeNamed("a"), merge(`{"status":{"engine":{"type":"Nvmet"}}}`))
		}},
		{"writes another's status", otherNode, func() error {
			return a.Status().Patch(ctx, nodeNamed("b"), merge(`{"status":{"engine":{"type":"Nvmet"}}}`))
		}},
		{"renews its lease", "", func() error { return a.Create(ctx, leaseNamed("weft-agent-a")) }},
		{"renews another's lease", otherNode, func() error { return a.Create(ctx, leaseNamed("weft-agent-b")) }},
		{"takes the operator's lease", otherNode, func() error { return a.Create(ctx, leaseNamed("weft-operator")) }},
		{"writes its replica's status", "", func() error {
			return a.Status().Patch(ctx, replicaOn("a"), merge(`{"status":{"nsid":1}}`))
		}},
		{"writes another's replica's status", otherNode, func() error {
			return a.Status().Patch(ctx, replicaOn("b"), merge(`{"status":{"nsid":1}}`))
		}},
		{"admits a host to its own replica", "only the CSI controller may change the spec of replicas and snapshots", func() error {
			return a.Patch(ctx, replicaOn("a"), merge(`{"spec":{"subsystemNQN":"nqn.2026-11.storage.weft:volume-on-a-0:00000000-0000-4000-8000-00000000000a","hosts":[{"nqn":"nqn.2014-08.org.nvmexpress:uuid:x","node":"a","nodeUID":"1"}]}}`))
		}},
		{"takes its finalizer off", "", func() error {
			return a.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"finalizers":null}}`))
		}},
		{"takes the finalizer off another's", otherNode, func() error {
			return a.Patch(ctx, replicaOn("b"), merge(`{"metadata":{"finalizers":null}}`))
		}},
		{"writes its snapshot's status", "", func() error {
			return a.Status().Patch(ctx, snapshotOn("a"), merge(`{"status":{"ready":true}}`))
		}},
		{"writes another's snapshot's status", otherNode, func() error {
			return a.Status().Patch(ctx, snapshotOn("b"), merge(`{"status":{"ready":true}}`))
		}},
		{"reads the volume of its replica", "cannot get resource", func() error {
			return a.Get(ctx, client.ObjectKey{Name: "volume-on-a"}, &v1alpha1.NvmfVolume{})
		}},
		{"with a token that names no node", "no node name", func() error {
			return unbound.Status().Patch(ctx, replicaOn("a"), merge(`{"status":{"nsid":1}}`))
		}},
		{"says that its objects were restored on purpose", metadata, func() error {
			return a.Patch(ctx, nodeNamed("a"), merge(`{"metadata":{"annotations":{%q:"x"}}}`, v1alpha1.RestoredAnnotation))
		}},
		{"lets itself be drained", metadata, func() error {
			return a.Patch(ctx, nodeNamed("a"), merge(`{"metadata":{"annotations":{%q:"x"}}}`, v1alpha1.AllowEvictionAnnotation))
		}},
		{"keeps its tuning's finalizer", "", func() error {
			return a.Patch(ctx, nodeNamed("a"), merge(`{"metadata":{"finalizers":[%q]}}`, v1alpha1.TuningFinalizer), client.DryRunAll)
		}},
		{"gives its replica to another owner", replicasMetadata, func() error {
			return a.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"y"}]}}`))
		}},
		{"marks its snapshot", replicasMetadata, func() error {
			return a.Patch(ctx, snapshotOn("a"), merge(`{"metadata":{"annotations":{"a":"b"}}}`))
		}},
		{"somebody holds its replica", "", func() error {
			return admin.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"finalizers":[%q,%q]}}`, held, v1alpha1.EngineFinalizer))
		}},
		{"takes another's finalizer off its replica", replicasMetadata, func() error {
			return a.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"finalizers":[%q]}}`, v1alpha1.EngineFinalizer))
		}},
		{"takes its own finalizer off it", "", func() error {
			return a.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"finalizers":[%q]}}`, held))
		}},
		{"nobody holds its replica", "", func() error { return admin.Patch(ctx, replicaOn("a"), merge(`{"metadata":{"finalizers":null}}`)) }},
		{"creates a replica", "cannot create resource", func() error { return a.Create(ctx, replicaOn("c")) }},
		{"deletes its replica", "cannot delete resource", func() error { return a.Delete(ctx, replicaOn("a")) }},
		{"reads a Secret", "cannot get resource", func() error {
			return a.Get(ctx, webhookSecret, &corev1.Secret{})
		}},
	})
}

func TestTheWebhookIsWiredThrough(t *testing.T) {
	for name, c := range map[string]struct {
		values  []string
		policy  admissionregistrationv1.FailurePolicyType
		timeout int32
		address string
	}{
		"default": {nil, admissionregistrationv1.Ignore, 10, ":9443"},
		"closed":  {[]string{"--set", "operator.webhook.failurePolicy=Fail,operator.webhook.timeoutSeconds=2"}, admissionregistrationv1.Fail, 2, ":9443"},
		"off":     {[]string{"--set", "operator.webhook.enabled=false"}, "", 0, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := render(t, c.values...)
			var operator *appsv1.Deployment
			for _, d := range of[*appsv1.Deployment](objects) {
				if d.Name == "weft-operator" {
					operator = d
				}
			}
			container := operator.Spec.Template.Spec.Containers[0]
			if arg := "--webhook-bind-address=" + c.address; !slices.Contains(container.Args, arg) {
				t.Errorf("%s is not in %q", arg, container.Args)
			}
			configurations, secrets := of[*admissionregistrationv1.ValidatingWebhookConfiguration](objects), of[*corev1.Secret](objects)
			if c.policy == "" {
				if len(configurations)+len(secrets) > 0 {
					t.Errorf("renders %v, %v", configurations, secrets)
				}
				return
			}
			if len(configurations) != 1 || len(secrets) != 1 || len(secrets[0].Data)+len(secrets[0].StringData) != 0 {
				t.Fatalf("want one configuration and one empty Secret, got %v, %v", configurations, secrets)
			}
			webhook := configurations[0].Webhooks[0]
			if *webhook.FailurePolicy != c.policy || *webhook.TimeoutSeconds != c.timeout || *webhook.SideEffects != admissionregistrationv1.SideEffectClassNone {
				t.Errorf("got %s, %d s, side effects %s", *webhook.FailurePolicy, *webhook.TimeoutSeconds, *webhook.SideEffects)
			}
			i := slices.IndexFunc(of[*corev1.Service](objects), func(s *corev1.Service) bool { return s.Name == webhook.ClientConfig.Service.Name })
			if i < 0 {
				t.Fatalf("there is no Service %s", webhook.ClientConfig.Service.Name)
			}
			service := of[*corev1.Service](objects)[i]
			port := service.Spec.Ports[0]
			if port.Port != *webhook.ClientConfig.Service.Port || !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.StrVal }) {
				t.Errorf("the webhook calls port %d, the Service has %+v, the container %+v", *webhook.ClientConfig.Service.Port, port, container.Ports)
			}
		})
	}
}

// testNodePluginsAreConfined: a node plugin writes weft's conditions of its own Node.
func testNodePluginsAreConfined(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	c := podOn(ctx, t, config, admin, "weft-csi-node", "c")
	podOn(ctx, t, config, admin, "weft-csi-node", "d")
	kubelets := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	for _, name := range []string{"c", "d"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := admin.Status().Patch(ctx, node, strategic(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kubelets.Type, kubelets.Status)); err != nil {
			t.Fatal(err)
		}
	}
	const own = `{"status":{"conditions":[{"type":"WeftInitiatorStuck","status":"True","reason":"ConnectStuck"}]}}`
	write := func(node, content string) error {
		return c.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, strategic("%s", content))
	}
	// A policy acts a moment after it is created.
	NewWithT(t).Eventually(func() error { return write("d", own) }).
		WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring("the node plugin of node c may not write Node d")))
	for name, test := range map[string]struct{ node, content, denied string }{
		"its own condition":           {"c", own, ""},
		"its own condition, again":    {"c", own, ""},
		"its condition of versions":   {"c", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftVersionSkew"), ""},
		"its public key":              {"c", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftAuthenticationUnavailable"), ""},
		"what it has retired":         {"c", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftIdentitiesRetired"), ""},
		"its condition of encryption": {"c", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftEncryptionUnavailable"), ""},
		"its condition of mirrors":    {"c", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftMirrorsUnavailable"), ""},
		"another Node's":              {"d", own, "may not write Node d"},
		"the kubelet's condition":     {"c", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "may change only the conditions WeftAuthenticationUnavailable, WeftEncryptionUnavailable, WeftIdentitiesRetired, WeftInitiatorStuck, WeftMirrorsUnavailable and WeftVersionSkew of its Node"},
		"a label":                     {"c", `{"metadata":{"labels":{"a":"b"}}}`, "may change only the conditions WeftAuthenticationUnavailable, WeftEncryptionUnavailable, WeftIdentitiesRetired, WeftInitiatorStuck, WeftMirrorsUnavailable and WeftVersionSkew of its Node"},
		"an annotation":               {"c", `{"metadata":{"annotations":{"a":"b"}}}`, "may change only the conditions WeftAuthenticationUnavailable, WeftEncryptionUnavailable, WeftIdentitiesRetired, WeftInitiatorStuck, WeftMirrorsUnavailable and WeftVersionSkew of its Node"},
		"what the node can hold":      {"c", `{"status":{"capacity":{"cpu":"1k"}}}`, "may change only the conditions WeftAuthenticationUnavailable, WeftEncryptionUnavailable, WeftIdentitiesRetired, WeftInitiatorStuck, WeftMirrorsUnavailable and WeftVersionSkew of its Node"},
		"which runtimes there are":    {"c", `{"status":{"runtimeHandlers":[{"name":"x","features":{"userNamespaces":true}}]}}`, "may change only the conditions"},
		"what the node has":           {"c", `{"status":{"features":{"supplementalGroupsPolicy":true}}}`, "may change only the conditions"},
		"which volumes are in use":    {"c", `{"status":{"volumesInUse":["x"]}}`, "may change only the conditions"},
		"which volumes it has":        {"c", `{"status":{"volumesAttached":[{"name":"x","devicePath":"y"}]}}`, "may change only the conditions"},
		"the node's phase":            {"c", `{"status":{"phase":"Terminated"}}`, "may change only the conditions"},
		"another Node's key":          {"d", strings.ReplaceAll(own, "WeftInitiatorStuck", "WeftAuthenticationUnavailable"), "may not write Node d"},
		"where the node is reached":   {"c", `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.9"}]}}`, "may change only the conditions WeftAuthenticationUnavailable, WeftEncryptionUnavailable, WeftIdentitiesRetired, WeftInitiatorStuck, WeftMirrorsUnavailable and WeftVersionSkew of its Node"},
	} {
		t.Run(name, func(t *testing.T) {
			err := write(test.node, test.content)
			if test.denied == "" && err != nil || test.denied != "" && (err == nil || !strings.Contains(err.Error(), test.denied)) {
				t.Errorf("got %v, want %q", err, test.denied)
			}
		})
	}
	if err := c.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, strategic(`{"spec":{"unschedulable":true}}`)); err == nil {
		t.Error("a node plugin changed its Node's spec")
	}
}

func strategic(format string, args ...any) client.Patch {
	return client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, format, args...))
}
