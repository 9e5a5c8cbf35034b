// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/agenttest"
)

// person who has kubectl. It is a process like others: it may be killed between two requests.
type person struct {
	fuse
	ctx context.Context
	api client.Client
}

func (p *person) killable() *fuse       { return &p.fuse }
func (p *person) over() context.Context { return p.ctx }

func (w *world) newPerson() *person {
	p := &person{}
	p.ctx, p.end = context.WithCancel(w.ctx)
	config := rest.CopyConfig(restConfig)
	config.Wrap(agenttest.Boundary(p.cross).Cross)
	var err error
	p.api, err = client.New(config, client.Options{Scheme: api.Scheme(), Mapper: api.RESTMapper()})
	w.must(err)
	return p
}

// byHand has a person do something, again until it is done.
func (w *world) byHand(name string, do func(ctx context.Context, api client.Client) error) {
	w.Helper()
	w.must(w.make(call{
		name: name, on: func() process { return w.newPerson() }, again: func(codes.Code) bool { return true },
		do: func(ctx context.Context, p process) error { return do(ctx, p.(*person).api) },
	}))
}

// data is an NvmfVolume, an NvmfReplica or an NvmfSnapshot.
type data interface {
	client.Object
	Mark()
	Marked() bool
}

const (
	volumeKind   = "NvmfVolume"
	replicaKind  = string(v1alpha1.OrphanReplica)
	snapshotKind = string(v1alpha1.OrphanSnapshot)
)

// dataNamed of a kind.
func dataNamed(kind, name string) data {
	var o data
	switch kind {
	case volumeKind:
		o = &v1alpha1.NvmfVolume{}
	case replicaKind:
		o = &v1alpha1.NvmfReplica{}
	default:
		o = &v1alpha1.NvmfSnapshot{}
	}
	o.SetName(name)
	return o
}

func merge(ctx context.Context, api client.Client, o client.Object, format string, args ...any) error {
	return api.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)))
}

// deleteUnmarked an object, as by kubectl delete where the policy is not in force. With bare its finalizer is taken off
// as well.
func (w *world) deleteUnmarked(kind, name string, bare bool) {
	w.tally.deletions.Add(1)
	w.byHand(fmt.Sprintf("kubectl delete %s %s, without its finalizer: %t", kind, name, bare), func(ctx context.Context, api client.Client) error {
		o := dataNamed(kind, name)
		err := merge(ctx, api, o, `{"metadata":{"labels":{%q:"true"}}}`, unguarded)
		if err == nil {
			err = api.Delete(ctx, o)
		}
		if err == nil && bare {
			err = merge(ctx, api, o, `{"metadata":{"finalizers":null}}`)
		}
		return client.IgnoreNotFound(err)
	})
}

// mark an object: its data shall go with it.
func mark(ctx context.Context, api client.Client, o data) error {
	if err := api.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	return merge(ctx, api, o, `{"spec":{"deletionMark":%q}}`, o.GetUID())
}

// deleteMarked is how data is deleted by hand.
func (w *world) deleteMarked(kind, name string) {
	w.byHand(fmt.Sprintf("kubectl weft delete %s %s", kind, name), func(ctx context.Context, api client.Client) error {
		o := dataNamed(kind, name)
		err := mark(ctx, api, o)
		if err == nil {
			err = api.Delete(ctx, o)
		}
		return client.IgnoreNotFound(err)
	})
	w.awaitGone(kind, name)
}

func (w *world) awaitGone(kind, name string) {
	w.Helper()
	w.must(w.until(fmt.Sprintf("%s %s to go", kind, name), func() (bool, error) {
		w.controllerProcess() // takes replicas with their volume
		err := api.Get(w.ctx, client.ObjectKey{Name: name}, dataNamed(kind, name))
		return err != nil, client.IgnoreNotFound(err)
	}))
}
