// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// inventoryPeriod is how often the node is looked over when no device comes or goes.
	inventoryPeriod = time.Minute
	// inventoryCalm is how long device files must be quiet before they are looked at: one drive brings several.
	inventoryCalm = time.Second
)

// InventorySource discovers what the node has. It reads only.
type InventorySource interface {
	Discover(ctx context.Context) (*v1alpha1.Inventory, error)
}

// InventoryWatch keeps the node's inventory: taken at the start, every minute, and when a
// block device comes or goes. It is safe for concurrent use.
type InventoryWatch struct {
	source  InventorySource
	devices string
	current atomic.Pointer[v1alpha1.Inventory]
	changed chan event.GenericEvent
}

// NewInventoryWatch watches the folder with the node's device files, /dev.
func NewInventoryWatch(source InventorySource, devices string) *InventoryWatch {
	return &InventoryWatch{source: source, devices: devices, changed: make(chan event.GenericEvent, 1)}
}

// Current inventory; nil until the first was taken. Not to be changed.
func (w *InventoryWatch) Current() *v1alpha1.Inventory { return w.current.Load() }

// Start watches until ctx ends. It fails when the devices' folder cannot be watched.
func (w *InventoryWatch) Start(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.devices, err)
	}
	defer func() { _ = watcher.Close() }() // nothing is lost with it
	if err := watcher.Add(w.devices); err != nil {
		return fmt.Errorf("watch %s: %w", w.devices, err)
	}
	w.take(ctx)
	period := time.NewTicker(inventoryPeriod)
	defer period.Stop()
	calm := time.NewTimer(inventoryPeriod)
	calm.Stop()
	defer calm.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-period.C:
			w.take(ctx)
		case <-calm.C:
			w.take(ctx)
		case e := <-watcher.Events:
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) {
				calm.Reset(inventoryCalm)
			}
		case err := <-watcher.Errors:
			log.FromContext(ctx).Error(err, "Cannot watch device files; the inventory is still updated every minute")
		}
	}
}

// take the inventory. When that fails, the last one stays: a drive that could not be read is not gone.
func (w *InventoryWatch) take(ctx context.Context) {
	found, err := w.source.Discover(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot take the node's inventory; keeping the last one")
		return
	}
	normalize(found)
	if old := w.current.Swap(found); equality.Semantic.DeepEqual(old, found) {
		return
	}
	select {
	case w.changed <- event.GenericEvent{}:
	default: // one is waiting already, and whoever takes it reads the current inventory
	}
}

// normalize the order, so that what did not change is not written.
func normalize(i *v1alpha1.Inventory) {
	slices.Sort(i.Modules)
	slices.SortFunc(i.NUMANodes, func(a, b v1alpha1.NUMANode) int { return int(a.ID - b.ID) })
	slices.SortFunc(i.NICs, func(a, b v1alpha1.NIC) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(i.RDMADevices, func(a, b v1alpha1.RDMADevice) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(i.Drives, func(a, b v1alpha1.Drive) int { return strings.Compare(a.ID, b.ID) })
}
