// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// infoOfVolumes is the metric of node plugins that names devices.
const infoOfVolumes = "weft_volume_info"

// namedDevice of the volume on a node: its path, or why that is not known. Both are empty if there is none.
type namedDevice struct{ path, unknown string }

// readDevices asks the node plugins of the nodes that use the volume what its device is there. No object records it:
// the kernel gives out these names, and gives them to other devices later.
func (c *chain) readDevices(ctx context.Context, ask func(context.Context, []exporter) (answers, error)) {
	c.devices = map[string]namedDevice{}
	if c.v == nil {
		return
	}
	var plugins []exporter
	for _, h := range c.v.Spec.Attachments {
		if _, known := c.devices[h.Node]; known { // while keys are rotated, a node is listed twice
			continue
		}
		is := namedDevice{unknown: "the Kubernetes Node is not Ready"}
		if node := c.machines[h.Node]; node == nil {
			is.unknown = "the Kubernetes Node does not exist, or could not be read"
		} else if ready := v1alpha1.NodeCondition(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
			is.unknown = ""
			plugins = append(plugins, exporter{componentNodePlugin, h.Node})
		}
		c.devices[h.Node] = is
	}
	got, err := ask(ctx, plugins)
	for _, e := range plugins {
		if err := cmp.Or(err, got.failures[e]); err != nil {
			c.devices[e.node] = namedDevice{unknown: err.Error()}
			continue
		}
		c.devices[e.node] = got.readings[e].device(c.v.Name)
	}
}

// device of a volume, as its node plugin names it.
func (r *reading) device(volume string) (is namedDevice) {
	r.each(infoOfVolumes, func(of labelSet, _ float64) {
		if of["volume"] == volume {
			is.path = "/dev/" + of["device"]
		}
	})
	if unread, _ := r.only("weft_node_unread_volumes"); is.path == "" && unread > 0 {
		is.unknown = "the node plugin cannot read all of its volumes; its log says why"
	}
	return is
}

// device in a table.
func (a AttachReport) device() string {
	if a.DeviceUnknown != "" {
		return "unknown"
	}
	return cmp.Or(a.Device, "none")
}
