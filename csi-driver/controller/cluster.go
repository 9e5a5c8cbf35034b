// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Cluster is the connection to the Kubernetes API that New needs.
type Cluster struct {
	cluster.Cluster
	// cordoned holds the metadata of the Nodes that are cordoned. Whether a Node is, its metadata does not tell, and
	// whole Nodes are large and change all the time; but the API server selects by it, so that only those are sent.
	cordoned cache.Cache
}

// Start both caches; they stop with the context.
func (c *Cluster) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Cluster.Start(ctx) })
	group.Go(func() error { return c.cordoned.Start(ctx) })
	return group.Wait()
}

// NewCluster returns the connection to the Kubernetes API that New needs: a client whose reads come from a cache
// that watches. Give it to New, then Start it; it stops with Start's context.
func NewCluster(config *rest.Config) (*Cluster, error) {
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
	if err := eventsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if config.QPS == 0 {
		// The API server's priority and fairness paces clients better than a fixed rate here,
		// which would make the last of a hundred volumes wait for the first.
		config = rest.CopyConfig(config)
		config.QPS = -1
	}
	c, err := cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&v1alpha1.NvmfNode{}:          {Transform: stripInventory},
			&storagev1.VolumeAttachment{}: {Transform: stripRequest},
			&corev1.Node{}:                {Transform: stripNode},
		}
	})
	if err != nil {
		return nil, err
	}
	cordoned, err := cache.New(config, cache.Options{
		HTTPClient: c.GetHTTPClient(), Scheme: scheme, Mapper: c.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Field: fields.OneTermEqualSelector("spec.unschedulable", "true")},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cache of cordoned Nodes: %w", err)
	}
	return &Cluster{Cluster: c, cordoned: cordoned}, nil
}

// stripInventory keeps out of memory what placement never looks at; a large machine's inventory is tens of kilobytes.
func stripInventory(obj any) (any, error) {
	if n, ok := obj.(*v1alpha1.NvmfNode); ok {
		n.Status.Inventory = nil
		n.ManagedFields = nil
	}
	return obj, nil
}

// stripNode keeps of a Node's metadata what placement looks at, and keyReported.
func stripNode(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		var managed []metav1.ManagedFieldsEntry
		for _, f := range m.ManagedFields {
			if f.Manager == v1alpha1.AuthenticationFieldManager {
				managed = append(managed, metav1.ManagedFieldsEntry{Manager: f.Manager, Time: f.Time})
			}
		}
		m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels, ManagedFields: managed}
	}
	return obj, nil
}

// stripRequest keeps of a VolumeAttachment's metadata what takeBackAll looks at: there is one for each attached volume,
// of every driver.
func stripRequest(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return obj, nil
}
