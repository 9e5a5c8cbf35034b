// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SnapshotAPI installs the snapshot API and its controller, which belong to a cluster rather than to a driver. The
// chart brings the snapshotter only where it finds the API, so this comes before Steps.
func (r *Run) SnapshotAPI(ctx context.Context) error {
	api, err := r.builder.SnapshotAPI(ctx)
	if err != nil {
		return err
	}
	for _, path := range api.Manifests {
		if err := r.Cluster.ApplyFile(ctx, path, "", nil); err != nil {
			return err
		}
	}
	labels := map[string]string{"app.kubernetes.io/name": "snapshot-controller"}
	err = r.Cluster.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "snapshot-controller"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: "snapshot-controller",
					Containers: []corev1.Container{{
						Name: "snapshot-controller", Image: api.Controller, ImagePullPolicy: corev1.PullNever,
						Args: []string{"--leader-election=false"},
					}},
				},
			},
		},
	})
	if client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	kind := schema.GroupKind{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot"}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		_, err := r.Cluster.RESTMapper().RESTMapping(kind)
		var none *meta.NoKindMatchError
		if errors.As(err, &none) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up %s: %w", kind, err)
		}
		return true, nil
	})
}
