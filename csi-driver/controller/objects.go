// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/internal/tracing"
)

// object is a pointer to one of our API's types.
type object[T any] interface {
	*T
	client.Object
}

// objects reads NvmfVolumes, NvmfReplicas or NvmfSnapshots, and waits for them to change.
//
// Each call of the service starts from a live read, since what this replica's cache shows may be older than
// what another replica has answered. Waits look at the cache each time the watch says that the object
// has changed; that it is gone is believed of the API server only.
type objects[T any, P object[T]] struct {
	// kind of the objects, for errors.
	kind         string
	cached, live client.Reader

	// names of those that the cache shows.
	names order

	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{}
}

// errLate says that a wait has ended with its context.
var errLate = errors.New("not in time")

// read an object from the API server; nil when it is not there.
func (o *objects[T, P]) read(ctx context.Context, name string) (P, error) {
	obj, err := o.get(ctx, o.live, name)
	if obj != nil {
		traceClaim(ctx, obj)
	}
	return obj, err
}

func (o *objects[T, P]) get(ctx context.Context, from client.Reader, name string) (P, error) {
	obj := P(new(T))
	err := from.Get(ctx, types.NamespacedName{Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", o.kind, name, err)
	}
	return obj, nil
}

// patch an object that was read into what changed says, provided that nothing has changed since; else the API server
// answers Conflict.
func (s *Service) patch(ctx context.Context, read, changed client.Object) error {
	return s.client.Patch(ctx, changed, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
}

// wait until done says so of the object, or of what it has become. An object that is gone is given to done as
// nil, and ends the wait. It returns what done saw last, with errLate (wrapped) when ctx ended first, or done's error.
func (o *objects[T, P]) wait(ctx context.Context, obj P, done func(P) (bool, error)) (P, error) {
	changed, cancel := o.subscribe(obj.GetName())
	defer cancel()
	return o.await(ctx, obj, changed, false, done)
}

// await is wait with a subscription of the caller's. With complete it began before obj was read: then a cache that does
// not show obj has not seen it yet rather than seen it go, for its end would have been told.
func (o *objects[T, P]) await(ctx context.Context, obj P, changed <-chan struct{}, complete bool, done func(P) (bool, error)) (_ P, err error) {
	name, uid := obj.GetName(), obj.GetUID()
	ctx, span := tracing.Start(ctx, "wait for "+o.kind, tracing.ObjectKey.String(name))
	defer func() { tracing.End(span, err) }()
	late := func() error { return fmt.Errorf("%s %s: %w: %w", o.kind, name, errLate, context.Cause(ctx)) }
	for {
		if ok, err := done(obj); ok || err != nil || obj == nil {
			return obj, err
		}
		now, err := o.current(ctx, name, uid, !complete)
		if err != nil && ctx.Err() != nil {
			return obj, late()
		}
		if err != nil {
			return obj, err
		}
		if complete && now == nil || now != nil && now.GetResourceVersion() == obj.GetResourceVersion() {
			// It is what was just judged, or not seen yet; only an event makes another look worth while.
			select {
			case <-changed:
				complete = false
			case <-ctx.Done():
				return obj, late()
			}
			continue
		}
		obj = now
	}
}

// current state of the object with this uid; nil when it is gone. Unless sure, nil is only what the cache shows.
func (o *objects[T, P]) current(ctx context.Context, name string, uid types.UID, sure bool) (P, error) {
	obj, err := o.get(ctx, o.cached, name)
	if sure && err == nil && (obj == nil || obj.GetUID() != uid) {
		obj, err = o.get(ctx, o.live, name)
	}
	if obj == nil || obj.GetUID() != uid {
		return nil, err
	}
	return obj, err
}

// subscribe returns a channel that has something to read when the object has changed since it was last read.
func (o *objects[T, P]) subscribe(name string) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiters == nil {
		o.waiters = map[string]map[chan struct{}]struct{}{}
	}
	if o.waiters[name] == nil {
		o.waiters[name] = map[chan struct{}]struct{}{}
	}
	o.waiters[name][changed] = struct{}{}
	return changed, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.waiters[name], changed)
		if len(o.waiters[name]) == 0 {
			delete(o.waiters, name)
		}
	}
}

// peek at an object in the cache, which is the cache's own: not to be changed. Nil when the cache shows none.
func (o *objects[T, P]) peek(ctx context.Context, name string) (P, error) {
	obj := P(new(T))
	err := o.cached.Get(ctx, types.NamespacedName{Name: name}, obj, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", o.kind, name, err)
	}
	return obj, nil
}

// showLimit is how long a call waits at most until the cache shows what it has written.
const showLimit = time.Second

// show waits until the cache, and with it a list, shows what a call has written, as far as is tells: then who lists
// after the call's answer misses nothing of it. Is gets nil when the cache shows no such object. There is no error:
// after showLimit the answer is as true as before, and a list is merely behind.
func (o *objects[T, P]) show(ctx context.Context, name string, is func(P) bool) {
	ctx, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	changed, unsubscribe := o.subscribe(name)
	defer unsubscribe()
	for {
		obj, err := o.peek(ctx, name)
		if err != nil || is(obj) && o.names.has(name) == (obj != nil) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// showGone is show of a deletion.
func (o *objects[T, P]) showGone(ctx context.Context, name string) {
	o.show(ctx, name, func(obj P) bool { return obj == nil })
}

// changed is called after the cache has taken in an event of the object; gone says that the cache shows it no more.
func (o *objects[T, P]) changed(name string, gone bool) {
	o.names.set(name, !gone)
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.waiters[name] {
		select {
		case c <- struct{}{}:
		default: // A signal waits there already; whoever reads it looks at the newest state.
		}
	}
}

// Limits of waits. The margin leaves time for an answer that says what was waited for: past its
// deadline, a caller only learns that the deadline has passed.
const (
	longestWait   = 2 * time.Minute
	longestMargin = time.Second
)

// waitContext is ctx for waits: it ends shortly before ctx does, and in any case.
func waitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, longestWait)
	}
	margin := min(time.Until(deadline)/10, longestMargin)
	return context.WithDeadline(ctx, deadline.Add(-margin))
}
