// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

const crdDir = "../../config/crd"

// The API server that all tests of this package share, and a client for it.
var (
	config    *rest.Config
	apiClient client.Client
)

func TestMain(m *testing.M) {
	os.Exit(apiserver.Run(context.Background(), m, func(_ context.Context, s *apiserver.Server) error {
		config, apiClient = s.Config, s.Admin
		return nil
	}))
}

// bases are valid objects, by the name that cases use. A case is an edit of one.
var bases = map[string]string{
	"NvmfTarget": `
kind: NvmfTarget
spec:
  engine: Nvmet
  nodeSelector: {matchLabels: {weft.storage/target: fast}}
  transports: [{type: TCP}]
  devices: {file: {path: /var/lib/weft/pool.img, size: 20Gi}}`,
	"NvmfTarget SPDK": `
kind: NvmfTarget
spec:
  engine: SPDK
  nodeSelector: {}
  transports: [{type: RDMA}]
  devices: {selector: {models: ["SAMSUNG*"]}}`,
	"NvmfNode": `
kind: NvmfNode
spec:
  target: fast
  plan:
    engine: Nvmet
    portals: [{transport: TCP, address: 10.20.0.5, port: 4420, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096}]
    drives: [{id: eui.1, serial: S1}]`,
	"NvmfNode SPDK": `
kind: NvmfNode
spec:
  target: fast
  plan:
    engine: SPDK
    portals: [{transport: RDMA, address: 10.20.0.5, port: 4420, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096}]
    drives: [{id: eui.1, serial: S1, pciAddress: "0000:5e:00.0"}]
    spdk:
      coreMask: "0x3c"
      pollGroupMask: "0x38"
      mode: Dynamic
      scheduler: {periodMicroseconds: 1000000, loadLimit: 20, coreLimit: 80, coreBusy: 95}
      hugepages: 2Mi
      memoryBytes: 1073741824
      podMemoryBytes: 536870912
      bdevIOPoolSize: 65535
      smallBuffers: 8192
      largeBuffers: 1024
      maxSubsystems: 1024
      transports: [{type: RDMA, queueDepth: 128, maxIOQueues: 8, inCapsuleDataSize: 4096, maxIOSize: 131072, smallCache: 128, largeCache: 16, srqDepth: 1024}]
      driver: VFIO
    choices: [{setting: coreMask, value: "0x3c", source: Computed, why: four cores beside the network card}]
    memory: [{use: large buffers, bytes: 138412032, how: 1024 x 135168}]`,
	"NvmfVolume": `
kind: NvmfVolume
metadata: {name: pvc-1}
spec:
  uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
  target: fast
  members: [{name: pvc-1-0, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, node: storage-1}]
  size: 1Gi`,
	"NvmfReplica": `
kind: NvmfReplica
metadata: {name: pvc-1-0}
spec:
  volume: {name: pvc-1, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001}
  uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001
  target: fast
  node: storage-1
  size: 1Gi`,
	"NvmfSnapshot": `
kind: NvmfSnapshot
spec:
  uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002
  volume: pvc-1
  replica: pvc-1-0
  node: storage-1`,
	"NvmfMirror": `
kind: NvmfMirror
spec:
  epoch: 3
  members:
  - {replica: pvc-1-a, replicaUID: u-a, state: InSync}
  - {replica: pvc-1-b, replicaUID: u-b, state: InSync}`,
}

// object makes the base's object with the edit, a JSON merge patch written as YAML.
func object(t *testing.T, base, edit string) *unstructured.Unstructured {
	t.Helper()
	text, ok := bases[base]
	if !ok {
		t.Fatalf("no base object %q", base)
	}
	var o unstructured.Unstructured
	if err := json.Unmarshal(merge(t, toJSON(t, text), edit), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetAPIVersion(v1alpha1.GroupVersion.String())
	if o.GetName() == "" {
		o.SetGenerateName("test-")
	}
	return &o
}

// patched applies an edit to what the API server holds.
func patched(t *testing.T, o *unstructured.Unstructured, edit string) *unstructured.Unstructured {
	t.Helper()
	stored, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	changed := &unstructured.Unstructured{}
	if err := changed.UnmarshalJSON(merge(t, stored, edit)); err != nil {
		t.Fatal(err)
	}
	return changed
}

func merge(t *testing.T, doc []byte, edit string) []byte {
	t.Helper()
	if edit == "" {
		return doc
	}
	merged, err := jsonpatch.MergePatch(doc, toJSON(t, edit))
	if err != nil {
		t.Fatalf("edit %s: %v", edit, err)
	}
	return merged
}

func toJSON(t *testing.T, text string) []byte {
	t.Helper()
	doc, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("YAML %s: %v", text, err)
	}
	return doc
}

// create stores an object until the test ends.
func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := apiClient.Create(t.Context(), o); err != nil {
		t.Fatalf("creating: %v", err)
	}
	t.Cleanup(func() {
		if err := apiClient.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting: %v", err)
		}
	})
}

// causes are the single complaints of a rejection; none when the object was accepted.
func causes(t *testing.T, err error) []metav1.StatusCause {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
		t.Fatalf("not a validation error: %v", err)
	}
	return status.Status().Details.Causes
}

func describe(found []metav1.StatusCause) string {
	var s []string
	for _, c := range found {
		s = append(s, fmt.Sprintf("%s: %s (%s)", c.Field, c.Message, c.Type))
	}
	return strings.Join(s, "\n")
}
