// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// NewCluster returns the connection to the Kubernetes API that New needs: a client whose reads come from a cache
// that watches. Give it to New, then Start it; it stops with Start's context.
func NewCluster(config *rest.Config) (cluster.Cluster, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := storagev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if config.QPS == 0 {
		// The API server's priority and fairness paces clients better than a fixed rate here,
		// which would make the last of a hundred volumes wait for the first.
		config = rest.CopyConfig(config)
		config.QPS = -1
	}
	return cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&v1alpha1.NvmfNode{}: {Transform: stripInventory},
		}
	})
}

// stripInventory keeps out of memory what placement never looks at; a large machine's inventory is tens of kilobytes.
func stripInventory(obj any) (any, error) {
	if n, ok := obj.(*v1alpha1.NvmfNode); ok {
		n.Status.Inventory = nil
		n.ManagedFields = nil
	}
	return obj, nil
}
