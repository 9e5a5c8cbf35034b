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

	"github.com/weft-storage/weft/api/v1alpha1"
)

// volumes reads NvmfVolumes and waits for them to change.
//
// Each call of the service starts from a live read, since what this replica's cache shows may be older than
// what another replica has answered. Waits look at the cache each time the watch says that the volume
// has changed; that it is gone is believed of the API server only.
type volumes struct {
	cached, live client.Reader

	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{}
}

// errLate says that a wait has ended with its context.
var errLate = errors.New("not in time")

// read a volume from the API server; nil when it is not there.
func (v *volumes) read(ctx context.Context, name string) (*v1alpha1.NvmfVolume, error) {
	return get(ctx, v.live, name)
}

func get(ctx context.Context, from client.Reader, name string) (*v1alpha1.NvmfVolume, error) {
	var vol v1alpha1.NvmfVolume
	err := from.Get(ctx, types.NamespacedName{Name: name}, &vol)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read NvmfVolume %s: %w", name, err)
	}
	return &vol, nil
}

// wait until done says so of the volume, or of what it has become. A volume that is gone is given to done as
// nil, and ends the wait. It returns what done saw last, with errLate (wrapped) when ctx ended first, or done's error.
func (v *volumes) wait(ctx context.Context, vol *v1alpha1.NvmfVolume, done func(*v1alpha1.NvmfVolume) (bool, error)) (*v1alpha1.NvmfVolume, error) {
	changed, cancel := v.subscribe(vol.Name)
	defer cancel()
	name, uid := vol.Name, vol.UID
	for {
		if ok, err := done(vol); ok || err != nil || vol == nil {
			return vol, err
		}
		now, err := v.current(ctx, name, uid)
		if err != nil && ctx.Err() != nil {
			return vol, tooLate(ctx, name)
		}
		if err != nil {
			return vol, err
		}
		if now != nil && now.ResourceVersion == vol.ResourceVersion {
			// It is what was just judged; only an event makes another look worth while.
			select {
			case <-changed:
			case <-ctx.Done():
				return vol, tooLate(ctx, name)
			}
			continue
		}
		vol = now
	}
}

func tooLate(ctx context.Context, name string) error {
	return fmt.Errorf("volume %s: %w: %w", name, errLate, context.Cause(ctx))
}

// current state of the volume with this uid; nil when it is gone.
func (v *volumes) current(ctx context.Context, name string, uid types.UID) (*v1alpha1.NvmfVolume, error) {
	vol, err := get(ctx, v.cached, name)
	if err == nil && (vol == nil || vol.UID != uid) {
		vol, err = get(ctx, v.live, name)
	}
	if vol == nil || vol.UID != uid {
		return nil, err
	}
	return vol, err
}

// subscribe returns a channel that has something to read when the volume has changed since it was last read.
func (v *volumes) subscribe(name string) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waiters == nil {
		v.waiters = map[string]map[chan struct{}]struct{}{}
	}
	if v.waiters[name] == nil {
		v.waiters[name] = map[chan struct{}]struct{}{}
	}
	v.waiters[name][changed] = struct{}{}
	return changed, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.waiters[name], changed)
		if len(v.waiters[name]) == 0 {
			delete(v.waiters, name)
		}
	}
}

// changed is called after the cache has taken in an event of the volume.
func (v *volumes) changed(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for c := range v.waiters[name] {
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
