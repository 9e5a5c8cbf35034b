// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// TestDefaults reads back what the API server fills in.
func TestDefaults(t *testing.T) {
	for name, test := range map[string]struct{ base, edit, want string }{
		"target": {base: target, want: `
engine: Nvmet
nodeSelector: {matchLabels: {weft.storage/target: fast}}
transports: [{type: TCP, port: 4420, queueDepth: 128, maxIOQueues: 8, inCapsuleDataSize: 4Ki}]
attachments: {expected: 128, ioQueues: 2}
overProvisioningPercent: 100
devices: {file: {path: /var/lib/weft/pool.img, size: 20Gi}}`},
		"target of SPDK": {base: targetSPDK, edit: `
spec:
  transports: [{type: RDMA, srq: {}}]
  attachments: {expected: 100}
  cores: {count: 2, dynamic: {}}
  buffers: {}
  memory: {}
  updateStrategy: {rollingUpdate: {}}`, want: `
engine: SPDK
nodeSelector: {}
transports: [{type: RDMA, port: 4420, queueDepth: 128, maxIOQueues: 8, inCapsuleDataSize: 4Ki, srq: {mode: Auto}}]
attachments: {expected: 100, ioQueues: 2}
overProvisioningPercent: 100
cores: {count: 2, mode: Dynamic, dynamic: {period: 1s, loadLimit: 20, coreLimit: 80, coreBusy: 95}}
buffers: {mode: Auto}
memory: {hugepages: 2Mi}
updateStrategy: {type: OnDelete, rollingUpdate: {maxUnavailable: 1}}
devices: {selector: {models: ["SAMSUNG*"]}}`},
		"node": {base: node, edit: `spec: null`, want: `{}`},
		"volume": {base: volume, want: `
uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
target: fast
replicas: 1
members: [{name: pvc-1-0, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, node: storage-1}]
size: 1Gi
connection: {transports: [TCP], ioQueues: 2, queueDepth: 128, ctrlLossTimeoutSeconds: -1}`},
		"an attached volume": {base: volume, edit: `spec: {session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, attachments: [{nqn: "nqn.2014-08.org:a", node: host, nodeUID: u}]}`, want: `
uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
target: fast
replicas: 1
members: [{name: pvc-1-0, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, node: storage-1}]
size: 1Gi
connection: {transports: [TCP], ioQueues: 2, queueDepth: 128, ctrlLossTimeoutSeconds: -1}
session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
attachments: [{nqn: "nqn.2014-08.org:a", node: host, nodeUID: u, access: Exclusive}]`},
		"replica": {base: replica, want: `
volume: {name: pvc-1, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001}
uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
target: fast
node: storage-1
size: 1Gi
connection: {transports: [TCP], ioQueues: 2, queueDepth: 128, ctrlLossTimeoutSeconds: -1}`},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(t, test.base, test.edit)
			if err := apiClient.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			if err := json.Unmarshal(toJSON(t, test.want), &want); err != nil {
				t.Fatal(err)
			}
			got, _, err := unstructured.NestedMap(o.Object, "spec")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(mustYAML(t, want)), string(mustYAML(t, got))); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func mustYAML(t *testing.T, v any) []byte {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What goes through the Go types comes back the same: no field is lost or
// filled in otherwise, which a controller's read-modify-write would then store.
func TestGoTypesKeepEveryField(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		typed      client.Object
		base, edit string
	}{
		{&v1alpha1.NvmfTarget{}, targetSPDK, `
spec:
  transports:
  - {type: RDMA, port: 4421, network: {cidr: 10.20.0.0/16}, queueDepth: 64, maxIOQueues: 4, inCapsuleDataSize: "0", maxIOSize: 1Mi, srq: {mode: Enabled, depth: 1024}}
  - {type: TCP, network: {interface: eth1}, placement: NAPI, c2hSuccess: Disabled}
  sockets: {zeroCopySend: Disabled, zeroCopyThreshold: 4Ki, receivePipe: Disabled, quickAck: Enabled, sendBufferSize: 64Ki, receiveBufferSize: 4Mi, priority: 6}
  cores: {mask: "0xf0", dynamic: {period: 500ms, loadLimit: 1, coreLimit: 2, coreBusy: 3}}
  buffers: {mode: Manual, large: {count: 512, cachePerCore: 16}, small: {count: 4096, cachePerCore: 128}}
  memory: {hugepages: Disabled, limit: 4Gi}
  devices: {selector: {models: ["A*"], minSize: 1Ti, byID: ["nvme-A*"]}}
  updateStrategy: {type: RollingUpdate, paused: true, rollingUpdate: {maxUnavailable: 25%}}`},
		{&v1alpha1.NvmfNode{}, node, `spec: {plan: {file: {path: /var/lib/weft/a, size: 2Gi}}}`},
		{&v1alpha1.NvmfVolume{}, volume, `spec: {source: {volume: v}, session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, attachments: [{nqn: "nqn.2014-08.org:a", node: host, nodeUID: u, volumeAttachment: v}], connection: {transports: [RDMA, TCP], ioQueues: 1, queueDepth: 16, ctrlLossTimeoutSeconds: 1}, used: true, deletionMark: a, mirrored: true, move: {replica: pvc-1-0, node: storage-2, replacement: r, waiting: w}, waiting: w}`},
		{&v1alpha1.NvmfReplica{}, replica, `spec: {volumeGeneration: 3, source: {snapshot: s}, subsystemNQN: "nqn.2026-11.storage.weft:pvc-1-0:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", hosts: [{nqn: "nqn.2014-08.org:a", node: host, nodeUID: u, volumeAttachment: v}], connection: {transports: [RDMA, TCP], ioQueues: 1, queueDepth: 16, ctrlLossTimeoutSeconds: 1}, used: true, deletionMark: a}`},
		{&v1alpha1.NvmfSnapshot{}, snapshot, `spec: {taken: true, deletionMark: a}`},
		{&v1alpha1.NvmfMirror{}, mirror, `spec: {holder: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, holderNode: compute-1, dirty: true, confirmRequested: 2, confirmed: 1, members: [{replica: a, replicaUID: a, state: InSync, marks: [none, m]}, {replica: b, replicaUID: b, state: Returning, reason: Lost, since: "2026-11-20T10:00:00Z", lastInSyncEpoch: 2, marks: [m], copiedBytes: 5, declaredCurrent: 2, identity: i, released: true, suspect: true, foreign: true, retired: true}]}`},
	} {
		t.Run(test.base, func(t *testing.T) {
			o := object(t, test.base, test.edit)
			if err := apiClient.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, test.typed, true); err != nil {
				t.Fatalf("into Go: %v", err)
			}
			back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(test.typed)
			if err != nil {
				t.Fatalf("from Go: %v", err)
			}
			if diff := cmp.Diff(string(mustYAML(t, o.Object["spec"])), string(mustYAML(t, back["spec"]))); diff != "" {
				t.Errorf("spec (-stored +through Go):\n%s", diff)
			}
		})
	}
}

// TestColumns asks for the table that kubectl get shows.
func TestColumns(t *testing.T) {
	const ready = `conditions: [{type: Ready, status: "True", reason: AsExpected, message: "", lastTransitionTime: "2026-11-20T10:00:00Z"}, ` +
		`{type: AgentAlive, status: "False", reason: AgentSilent, message: "", lastTransitionTime: "2026-11-20T10:00:00Z"}]`
	for _, test := range []struct {
		base, resource, status string
		columns                []string
		cells                  []any
		edit                   string
	}{
		{target, "nvmftargets", `status: {nodes: {matching: 3, capable: 2, ready: 1}, rollout: {updated: 1, outdated: 2, updating: [storage-1]}, capacity: {total: 1Ti, free: 1Gi}, ` + ready + `}`,
			[]string{"Name", "Engine", "Ready", "Matching", "Capable", "Serving", "Updated", "Total", "Free", "Reason", "Age"},
			[]any{"Nvmet", "True", 3.0, 2.0, 1.0, 1.0, "1Ti", "1Gi", "AsExpected"}, ""},
		{node, "nvmfnodes", `status: {agentVersion: 0.1.0, engine: {type: Nvmet, version: 6.12.0}, capacity: {total: 1Ti, free: 1Gi}, attachments: {used: 3, possible: 128}, ` + ready + `}`,
			[]string{"Name", "Target", "Ready", "Alive", "Engine", "Total", "Free", "Attachments", "Possible", "Reason", "Version", "Age"},
			[]any{"fast", "True", "False", "6.12.0", "1Ti", "1Gi", 3.0, 128.0, "AsExpected", "0.1.0"}, ""},
		// Of a path with several matches the API server shows the first, and of a list its JSON: each replica has a
		// column of its own.
		{volume, "nvmfvolumes", `status: {state: Degraded, reason: AgentSilent}`,
			[]string{"Name", "Claim namespace", "Claim", "Target", "Size", "Replicas", "On", "And on", "Attached to", "And to", "State", "Reason", "Waiting", "Age"},
			[]any{"databases", "data", "fast", "1Gi", 2.0, "storage-1", "storage-2", "compute-1", "compute-2", "Degraded", "AgentSilent", nil}, `
metadata: {annotations: {weft.storage/pvc-namespace: databases, weft.storage/pvc-name: data}}
spec:
  replicas: 2
  members: [{name: pvc-1-0, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, node: storage-1}, {name: pvc-1-1, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002, node: storage-2}]
  session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
  attachments: [{nqn: "nqn.2014-08.org:a", node: compute-1, nodeUID: u, access: SharedRead}, {nqn: "nqn.2014-08.org:b", node: compute-2, nodeUID: u, access: SharedRead}]`},
		{volume, "nvmfvolumes", "",
			[]string{"Name", "Claim namespace", "Claim", "Target", "Size", "Replicas", "On", "And on", "Attached to", "And to", "State", "Reason", "Waiting", "Age"},
			[]any{nil, nil, "fast", "1Gi", 1.0, "storage-1", nil, nil, nil, nil, nil, nil}, ""},
		{replica, "nvmfreplicas", `status: {allocated: 1Mi, hosts: [{nqn: "nqn.2014-08.org:a", node: compute-1, blank: false}], ` + ready + `}`,
			[]string{"Name", "Volume", "Target", "Node", "Size", "Allocated", "Transport", "And", "Admits", "And admits", "Ready", "Reason", "Age"},
			[]any{"pvc-1", "fast", "storage-1", "1Gi", "1Mi", "TCP", "RDMA", "compute-1", nil, "True", "AsExpected"}, `spec: {connection: {transports: [TCP, RDMA]}}`},
		{replica, "nvmfreplicas", "",
			[]string{"Name", "Volume", "Target", "Node", "Size", "Allocated", "Transport", "And", "Admits", "And admits", "Ready", "Reason", "Age"},
			[]any{"pvc-1", "fast", "storage-1", "1Gi", nil, "TCP", nil, nil, nil, nil, nil}, ""},
		{snapshot, "nvmfsnapshots", `status: {ready: true, size: 1Gi, allocated: 1Mi, ` + ready + `}`,
			[]string{"Name", "Volume", "Ready", "Size", "Allocated", "Age"},
			[]any{"pvc-1", true, "1Gi", "1Mi"}, ""},
		{mirror, "nvmfmirrors", "",
			[]string{"Name", "Epoch", "Holder", "On", "Not in sync", "Copied", "Age"},
			[]any{3.0, nil, nil, nil, nil}, ""},
		{mirror, "nvmfmirrors", "",
			[]string{"Name", "Epoch", "Holder", "On", "Not in sync", "Copied", "Age"},
			[]any{3.0, nil, nil, "pvc-1-b", "1048576"}, `
spec:
  members: [{replica: pvc-1-a, replicaUID: u-a, state: InSync}, {replica: pvc-1-b, replicaUID: u-b, state: Filling, copiedBytes: 1048576}]`},
	} {
		t.Run(test.base, func(t *testing.T) {
			o := object(t, test.base, test.edit)
			create(t, o)
			if test.status != "" {
				o = patched(t, o, test.status)
				if err := apiClient.Status().Update(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			table := getTable(t, test.resource, o.GetName())
			var columns []string
			for _, c := range table.ColumnDefinitions {
				columns = append(columns, c.Name)
			}
			if diff := cmp.Diff(test.columns, columns); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
			cells := table.Rows[0].Cells
			if diff := cmp.Diff(slices.Concat([]any{o.GetName()}, test.cells), cells[:len(cells)-1]); diff != "" {
				t.Errorf("cells (-want +got):\n%s", diff)
			}
		})
	}
}

func getTable(t *testing.T, resource, name string) *metav1.Table {
	t.Helper()
	answer, err := restClient(t).Get().Resource(resource).Name(name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(answer, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("got %d rows: %s", len(table.Rows), answer)
	}
	return &table
}

func restClient(t *testing.T) rest.Interface {
	t.Helper()
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &v1alpha1.GroupVersion, "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	rc, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

// A field that nobody knows is dropped, and its writer told; kubectl, which asks for
// strictness, is refused.
func TestUnknownFields(t *testing.T) {
	for _, base := range []string{target, node, volume, replica, snapshot, mirror} {
		t.Run(base, func(t *testing.T) {
			var warnings warnings
			c := rest.CopyConfig(config)
			c.WarningHandler = &warnings
			warned, err := client.New(c, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			o := object(t, base, `spec: {typo: 1}`)
			if err := warned.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if want := []string{`unknown field "spec.typo"`}; !slices.Equal(warnings, want) {
				t.Errorf("warnings: got %q, want %q", warnings, want)
			}
			if _, kept, err := unstructured.NestedFieldNoCopy(o.Object, "spec", "typo"); kept || err != nil {
				t.Errorf("the unknown field was kept (%v)", err)
			}

			o = object(t, base, `spec: {typo: 1}`)
			err = apiClient.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
			if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "spec.typo"`) {
				t.Errorf("strictly: got %v", err)
			}
		})
	}
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// The agent and the CSI controller watch only what concerns them.
func TestFieldSelectors(t *testing.T) {
	for _, test := range []struct {
		base     string
		selector client.MatchingFields
		other    client.MatchingFields
	}{
		{node, client.MatchingFields{"spec.target": "fast"}, client.MatchingFields{"spec.target": "slow"}},
		{volume, client.MatchingFields{"spec.target": "fast"}, client.MatchingFields{"spec.target": "slow"}},
		{replica, client.MatchingFields{"spec.node": "storage-1", "spec.target": "fast", "spec.volume.name": "pvc-1"}, client.MatchingFields{"spec.node": "storage-2"}},
		{snapshot, client.MatchingFields{"spec.node": "storage-1", "spec.volume": "pvc-1"}, client.MatchingFields{"spec.volume": "pvc-2"}},
	} {
		t.Run(test.base, func(t *testing.T) {
			o := object(t, test.base, "")
			create(t, o)
			count := func(selector client.MatchingFields) int {
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(o.GroupVersionKind().GroupVersion().WithKind(o.GetKind() + "List"))
				if err := apiClient.List(t.Context(), list, selector); err != nil {
					t.Fatal(err)
				}
				return len(list.Items)
			}
			if got := count(test.selector); got != 1 {
				t.Errorf("%v finds %d, want 1", test.selector, got)
			}
			if got := count(test.other); got != 0 {
				t.Errorf("%v finds %d, want 0", test.other, got)
			}
		})
	}
}

func TestNames(t *testing.T) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{}
	for _, r := range list.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		if r.Namespaced || !slices.Equal(r.Categories, []string{"weft"}) {
			t.Errorf("%s: namespaced %v, categories %v; want cluster-scoped, weft", r.Name, r.Namespaced, r.Categories)
		}
		short[r.Kind] = strings.Join(r.ShortNames, ",")
	}
	want := map[string]string{"NvmfTarget": "nt", "NvmfNode": "nn", "NvmfVolume": "nv", "NvmfReplica": "nr", "NvmfSnapshot": "nsnap", "NvmfMirror": "nm"}
	if diff := cmp.Diff(want, short); diff != "" {
		t.Errorf("short names (-want +got):\n%s", diff)
	}
}

// The samples are what a user applies first.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split(string(text), "\n---") {
			var o unstructured.Unstructured
			if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if gv, err := schema.ParseGroupVersion(o.GetAPIVersion()); err != nil || gv != v1alpha1.GroupVersion {
				continue
			}
			tried++
			if err := apiClient.Create(t.Context(), &o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if tried == 0 {
		t.Error("config/samples holds no object of weft.storage")
	}
}
