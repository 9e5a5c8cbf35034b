// SPDX-License-Identifier: Apache-2.0

package stuck

import (
	"path/filepath"
	"strings"

	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// Kernel is k, with its calls seen by the watch.
func (w *Watch) Kernel(k fabrics.Kernel) fabrics.Kernel { return kernel{k, w} }

type kernel struct {
	fabrics.Kernel
	watch *Watch
}

// Create is named by the subsystem and the portal.
func (k kernel) Create(options string) (string, error) {
	var words []string
	for o := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "nqn", "traddr", "trsvcid":
			words = append(words, key+" "+value)
		}
	}
	defer k.watch.begin(&call{what: "connecting to " + strings.Join(words, ", ")})()
	return k.Kernel.Create(options)
}

// WriteAttribute is named by the controller and the attribute, such as delete_controller.
func (k kernel) WriteAttribute(path, value string) error {
	attribute, controller := filepath.Base(path), filepath.Base(filepath.Dir(path))
	c := &call{what: "writing " + attribute + " of " + controller}
	if attribute == "delete_controller" {
		c.deletes = controller
	}
	defer k.watch.begin(c)()
	return k.Kernel.WriteAttribute(path, value)
}

// Claimed is named by the device.
func (k kernel) Claimed(path string) (bool, error) {
	defer k.watch.begin(&call{what: "opening " + path})()
	return k.Kernel.Claimed(path)
}

// Open is named by the device, and so are reads of it.
func (k kernel) Open(path string) (fabrics.Device, error) {
	defer k.watch.begin(&call{what: "opening " + path})()
	d, err := k.Kernel.Open(path)
	if err != nil {
		return nil, err
	}
	return device{d, path, k.watch}, nil
}

type device struct {
	fabrics.Device
	path  string
	watch *Watch
}

// ReadAt is named by the device.
func (d device) ReadAt(p []byte, offset int64) (int, error) {
	defer d.watch.begin(&call{what: "reading " + d.path})()
	return d.Device.ReadAt(p, offset)
}

// Mounter is m, with its calls seen by the watch.
func (w *Watch) Mounter(m mount.Interface) mount.Interface { return mounter{m, w} }

type mounter struct {
	mount.Interface
	watch *Watch
}

// Mount is named by the place.
func (m mounter) Mount(source, target, fsType string, options []string) error {
	defer m.watch.begin(&call{what: "mounting at " + target})()
	return m.Interface.Mount(source, target, fsType, options)
}

// Unmount is named by the place.
func (m mounter) Unmount(target string) error {
	defer m.watch.begin(&call{what: "unmounting " + target})()
	return m.Interface.Unmount(target)
}
