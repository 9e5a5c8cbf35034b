// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// ofVolumeAttachments, the requests.
func ofVolumeAttachments(asked *apiserver.Requests) map[string]int {
	counts, _ := asked.Reset()
	maps.DeleteFunc(counts, func(what string, _ int) bool { return !strings.HasSuffix(what, " volumeattachments") })
	return counts
}

// While every attachment has its VolumeAttachment, looking for others asks the API server for nothing.
func TestLookingForAttachmentsThatAreOverAsksForNothing(t *testing.T) {
	g := NewWithT(t)
	st := newStorage(t, 1, 10*gi)
	var asked apiserver.Requests
	s, _ := newServiceOn(t, asked.Of(restConfig))
	seen(t, s, st)
	node := newHost(t, "node")
	for _, name := range []string{"a", "b"} {
		id := newVolume(t, s, st, name)
		askFor(t, id, node)
		publish(t, s, id, node)
	}
	g.Eventually(func(g Gomega) {
		ofVolumeAttachments(&asked)
		g.Expect(s.takeBackAll(t.Context())).To(Succeed())
		g.Expect(ofVolumeAttachments(&asked)).To(BeEmpty())
	}).WithTimeout(enough).Should(Succeed())
}

// lacking is a cache that has no VolumeAttachment yet, however many there are.
type lacking struct{ client.Client }

func (l lacking) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok && m.GroupVersionKind() == requestGVK {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "volumeattachments"}, key.Name)
	}
	return l.Client.Get(ctx, key, obj, opts...)
}

// That a cache lacks a VolumeAttachment does not say that it is gone.
func TestNoAttachmentEndsByTheWordOfACache(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node, id := newHost(t, "node"), newVolume(t, s, st, "v")
	askFor(t, id, node)
	publish(t, s, id, node)
	was := volume(t, id).Spec.Attachments
	if len(was) != 1 || was[0].VolumeAttachment == "" {
		t.Fatalf("attachments: %v", was)
	}
	s.client = lacking{s.client}
	if err := s.takeBackAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := volume(t, id).Spec.Attachments; len(is) != 1 || is[0].NQN != was[0].NQN {
		t.Errorf("attachments: %v", is)
	}
}
