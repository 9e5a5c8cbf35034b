// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownWrites are the objects as the agent's own writes left them, for as long as the
// cache lags behind. Without them a reconciliation could read a status from before the last one: it would judge again
// whether a volume was blank, after its host began to write.
type ownWrites struct {
	mu      sync.Mutex
	objects map[types.UID]client.Object
}

// remember an object as the API server answered it.
func (w *ownWrites) remember(obj client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects == nil {
		w.objects = map[types.UID]client.Object{}
	}
	w.objects[obj.GetUID()] = obj
}

// newest of a cached object and the agent's own write. A cache that has caught up lets the memory go.
func newest[T client.Object](w *ownWrites, cached T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	written, ok := w.objects[cached.GetUID()].(T)
	if !ok {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), written.GetResourceVersion())
	if err != nil || order >= 0 {
		delete(w.objects, cached.GetUID())
		return cached
	}
	return written
}

// keepOnly what still exists.
func (w *ownWrites) keepOnly(exists map[types.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range w.objects {
		if !exists[uid] {
			delete(w.objects, uid)
		}
	}
}
