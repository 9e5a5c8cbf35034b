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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// awaitGuard: a policy acts a moment after it was created.
func awaitGuard(ctx context.Context, api client.Client) error {
	volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "guarded"}, Spec: v1alpha1.NvmfVolumeSpec{
		UUID: "00000000-0000-4000-8000-000000000000", Target: "none", Node: "none", Size: resource.MustParse("1Gi"),
	}}
	if err := api.Create(ctx, volume); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := api.Delete(ctx, volume, client.DryRunAll)
		if apierrors.IsInvalid(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("wait until unmarked deletions are refused: %w", err)
	}
	volume.Mark()
	if err := api.Update(ctx, volume); err != nil {
		return err
	}
	return api.Delete(ctx, volume)
}
