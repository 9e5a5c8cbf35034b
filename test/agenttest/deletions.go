// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// GuardDeletions has an API server refuse deletions that nobody marked, as in a cluster: it installs the policy of the
// kustomize base, which is in file, and waits until it acts. For objects with a label of the key it is not in force, as
// in a cluster where it was taken out. api must know v1alpha1.
func GuardDeletions(ctx context.Context, api client.Client, file, key string) error {
	const policy = "weft-deletions"
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the kustomize base: %w", err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	found := 0
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if o.GetName() != policy {
			continue
		}
		found++
		if o.GetKind() == "ValidatingAdmissionPolicyBinding" {
			but := map[string]any{"matchExpressions": []any{map[string]any{"key": key, "operator": "DoesNotExist"}}}
			if err := unstructured.SetNestedMap(o.Object, but, "spec", "matchResources", "objectSelector"); err != nil {
				return err
			}
		}
		if err := api.Create(ctx, &o); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), policy, err)
		}
	}
	if found != 2 {
		return fmt.Errorf("%s has %d objects %s, not a policy and its binding", file, found, policy)
	}
	return awaitGuard(ctx, api)
}

// awaitGuard of each kind: a policy acts a moment after it was created.
func awaitGuard(ctx context.Context, api client.Client) error {
	const name, uuid, none = "guarded", "00000000-0000-4000-8000-000000000000", "none"
	size := resource.MustParse("1Gi")
	for _, guarded := range []interface {
		client.Object
		Mark()
	}{
		&v1alpha1.NvmfVolume{Spec: v1alpha1.NvmfVolumeSpec{UUID: uuid, Target: none, Size: size, Members: []v1alpha1.VolumeMember{{Name: name, UUID: uuid, Node: none}}}},
		&v1alpha1.NvmfReplica{Spec: v1alpha1.NvmfReplicaSpec{Volume: v1alpha1.ReplicaOf{Name: name, UUID: uuid}, UUID: uuid, Target: none, Node: none, Size: size}},
		&v1alpha1.NvmfSnapshot{Spec: v1alpha1.NvmfSnapshotSpec{UUID: uuid, Volume: name, Replica: name, Node: none}},
	} {
		guarded.SetName(name)
		if err := api.Create(ctx, guarded); err != nil {
			return err
		}
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			err := api.Delete(ctx, guarded, client.DryRunAll)
			if apierrors.IsInvalid(err) {
				return true, nil
			}
			return false, err
		})
		if err != nil {
			return fmt.Errorf("wait until unmarked deletions of %T are refused: %w", guarded, err)
		}
		guarded.Mark()
		if err := errors.Join(api.Update(ctx, guarded), api.Delete(ctx, guarded)); err != nil {
			return err
		}
	}
	return nil
}
