// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

// copying counts what a cache copies for those who read from it.
type copying struct {
	client.Client
	copied int
}

func (c *copying) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	o := client.GetOptions{}
	if o.ApplyOptions(opts); o.UnsafeDisableDeepCopy == nil || !*o.UnsafeDisableDeepCopy {
		c.copied++
	}
	return c.Client.Get(ctx, key, obj, opts...)
}

func (c *copying) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.copied++ // the values at least
	return c.Client.List(ctx, list, opts...)
}

// While no keys are due, looking at all volumes and their replicas copies none of them, and asks the API server for
// nothing.
func TestLookingForKeysToRotateCopiesNothing(t *testing.T) {
	st := newSecure(t, v1alpha1.AuthenticationRequired)
	var asked apiserver.Requests
	s, _ := newServiceOn(t, asked.Of(restConfig))
	seen(t, s, st)
	node := newHost(t, "host")
	plugin(t, node)
	id := newVolume(t, s, st, "v")
	publish(t, s, id, node)
	cached := &copying{Client: s.client}
	s.client, s.volumes.cached, s.replicas.cached = cached, cached, cached
	asked.Reset()
	if err := s.rotateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if counts, _ := asked.Reset(); cached.copied > 0 || apiserver.Total(counts) > 0 {
		t.Errorf("it copied %d objects, and asked for %v", cached.copied, counts)
	}
}
