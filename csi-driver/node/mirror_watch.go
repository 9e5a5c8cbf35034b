// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// What failed is tried again after mirrorRetry, then after twice that time, and so on up to mirrorRetryMax, and each
// time up to half as long later.
const (
	mirrorRetry    = time.Second
	mirrorRetryMax = 30 * time.Second
)

// WatchMirrors calls changed with the volume of each NvmfMirror that a node holds: for those that are there, for
// each change but those of how many bytes are copied, and when the node holds it no more. It does so until the
// context ends, and then waits for the calls. Changes that the API server made while it could not be reached are
// told together, once it can be.
//
// Calls for one volume run one at a time, and what changed meanwhile is one further call; those for different volumes
// do not wait for each other. A call that fails is logged and made again after 1 s, then less and less often, up to
// every 30 s.
func WatchMirrors(ctx context.Context, config *rest.Config, nodeName string, changed func(ctx context.Context, volume string) error) error {
	held, err := mirrorsHeldBy(config, nodeName)
	if err != nil {
		return err
	}
	informer, err := held.GetInformer(ctx, &v1alpha1.NvmfMirror{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch NvmfMirrors: %w", err)
	}
	retries := workqueue.NewTypedItemExponentialFailureRateLimiter[string](mirrorRetry, mirrorRetryMax)
	queue := workqueue.NewTypedRateLimitingQueue(retries)
	add := func(obj any) {
		if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			queue.Add(name)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: add, DeleteFunc: add,
		UpdateFunc: func(old, now any) {
			if !mirror.OnlyProgress(old, now) {
				add(now)
			}
		},
	}); err != nil {
		return fmt.Errorf("watch NvmfMirrors: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return held.Start(ctx) })
	group.Go(func() error { <-ctx.Done(); queue.ShutDown(); return nil })
	group.Go(func() error {
		for {
			volume, down := queue.Get()
			if down {
				return nil
			}
			group.Go(func() error {
				defer queue.Done(volume)
				if err := changed(ctx, volume); err != nil && ctx.Err() == nil {
					logr.FromContextOrDiscard(ctx).Error(err, "Cannot follow the mirror yet", "volume", volume)
					// Nodes that failed at the same moment do not all ask again at the same moments.
					queue.AddAfter(volume, wait.Jitter(retries.When(volume), 0.5))
				} else {
					queue.Forget(volume)
				}
				return nil
			})
		}
	})
	return group.Wait()
}

// mirrorsHeldBy a node: one watch. Nothing else is asked of the API server, not even which resources it has, so it need
// not answer yet.
func mirrorsHeldBy(config *rest.Config, nodeName string) (cache.Cache, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NvmfMirror"), meta.RESTScopeRoot)
	return cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NvmfMirror{}: {Field: fields.OneTermEqualSelector("spec.holderNode", nodeName)},
		},
	})
}

// MirrorChanged tells the keeper of a volume's mirror that its record changed, starts or stops a mover, and lets a
// volume that is staged without its mirror get it, even if there is a keeper: what failed half way can have one.
func (s *Service) MirrorChanged(ctx context.Context, volume string) error {
	if m := s.mirrors.of(volume); m != nil {
		m.notify(ctx)
	}
	return errors.Join(s.followMover(ctx, volume), s.adoptMirror(ctx, volume))
}
