// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// collectTimeout bounds one scrape's look at the cache.
const collectTimeout = 5 * time.Second

var (
	csiVolumes = prometheus.NewDesc("weft_csi_volumes",
		"Number of volumes of a target, by state: creating, unattached, attached or deleting.", []string{"target", "state"}, nil)
	csiMirrors = prometheus.NewDesc("weft_csi_mirrors",
		"Number of mirrors of a target, by state: whole, copying or degraded.", []string{"target", "state"}, nil)
	csiTasks = prometheus.NewDesc("weft_csi_tasks",
		"Work on the volumes of a target: replicas, move, fill, recovery or rotation, each running or waiting.", []string{"target", "task", "state"}, nil)
)

// What is counted, by the labels behind the target. Each is given for every target, also if it is 0.
var (
	volumeStates = []string{"creating", "unattached", "attached", "deleting"}
	mirrorStates = []string{"whole", "copying", "degraded"}
	tasks        = []string{"replicas", "move", "fill", "recovery", "rotation"}
	taskStates   = []string{"running", "waiting"}
)

// Metrics counts what the cluster's volumes are at, from the cache, at each scrape. All replicas of the service count
// the same.
type Metrics struct {
	ctx     context.Context
	service *Service
}

// NewMetrics of a service. A scrape brings no context: it ends with this one.
func NewMetrics(ctx context.Context, s *Service) *Metrics { return &Metrics{ctx, s} }

// Describe implements prometheus.Collector.
func (*Metrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- csiVolumes
	descs <- csiMirrors
	descs <- csiTasks
}

// Collect implements prometheus.Collector. Until the cache is filled there are no values: none is not the same as no
// volumes.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	if !m.service.Synced() {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, collectTimeout)
	defer cancel()
	counts, err := m.count(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(csiVolumes, err)
		return
	}
	for target, c := range counts {
		for _, state := range volumeStates {
			out <- prometheus.MustNewConstMetric(csiVolumes, prometheus.GaugeValue, float64(c.volumes[state]), target, state)
		}
		for _, state := range mirrorStates {
			out <- prometheus.MustNewConstMetric(csiMirrors, prometheus.GaugeValue, float64(c.mirrors[state]), target, state)
		}
		for _, task := range tasks {
			for _, state := range taskStates {
				out <- prometheus.MustNewConstMetric(csiTasks, prometheus.GaugeValue, float64(c.tasks[[2]string{task, state}]), target, task, state)
			}
		}
	}
}

// targetCounts of one target.
type targetCounts struct {
	volumes, mirrors map[string]int
	tasks            map[[2]string]int
}

// count by target: each that exists, and each that a volume names.
func (m *Metrics) count(ctx context.Context) (map[string]*targetCounts, error) {
	var targets v1alpha1.NvmfTargetList
	var volumes v1alpha1.NvmfVolumeList
	var replicas v1alpha1.NvmfReplicaList
	var mirrors v1alpha1.NvmfMirrorList
	for _, list := range []client.ObjectList{&targets, &volumes, &replicas, &mirrors} {
		// They are only read, and a cluster may have 100,000 of each.
		if err := m.service.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return countsOf(targets.Items, volumes.Items, replicas.Items, mirrors.Items), nil
}

func countsOf(targets []v1alpha1.NvmfTarget, volumes []v1alpha1.NvmfVolume, replicas []v1alpha1.NvmfReplica, mirrors []v1alpha1.NvmfMirror) map[string]*targetCounts {
	counts := map[string]*targetCounts{}
	of := func(target string) *targetCounts {
		if counts[target] == nil {
			counts[target] = &targetCounts{volumes: map[string]int{}, mirrors: map[string]int{}, tasks: map[[2]string]int{}}
		}
		return counts[target]
	}
	for i := range targets {
		of(targets[i].Name)
	}
	created, targetOf := map[string]int{}, make(map[string]string, len(volumes))
	for i := range replicas {
		rep := &replicas[i]
		if isCreated(rep) {
			created[rep.Spec.Volume.Name]++
		}
		if rep.Rotating() {
			of(rep.Spec.Target).task("rotation", rotatesSince(rep) >= rotationTime)
		}
	}
	for i := range volumes {
		vol := &volumes[i]
		targetOf[vol.Name] = vol.Spec.Target
		of(vol.Spec.Target).volume(vol, created[vol.Name])
	}
	for i := range mirrors {
		if target, ok := targetOf[mirrors[i].Name]; ok {
			of(target).mirror(mirrors[i].Spec)
		}
	}
	return counts
}

func (c *targetCounts) task(name string, waits bool) {
	state := "running"
	if waits {
		state = "waiting"
	}
	c.tasks[[2]string{name, state}]++
}

// volume with so many replicas that exist on their nodes.
func (c *targetCounts) volume(vol *v1alpha1.NvmfVolume, created int) {
	switch {
	case vol.DeletionTimestamp != nil:
		c.volumes["deleting"]++
		return
	case vol.InUse():
		c.volumes["attached"]++
	case !vol.Spec.Used && created < len(vol.Spec.Members):
		c.volumes["creating"]++
		return
	default:
		c.volumes["unattached"]++
	}
	switch {
	case vol.Spec.Move != nil:
		c.task("move", vol.Spec.Move.Waiting != "")
	case len(vol.Spec.Members) != replicasOf(vol) || vol.Spec.Waiting != "":
		c.task("replicas", vol.Spec.Waiting != "")
	}
	if vol.Spec.Recovery != nil {
		c.task("recovery", vol.Spec.Recovery.Waiting != "")
	}
}

// mirror by its record. Only its holder copies.
func (c *targetCounts) mirror(record mirror.Record) {
	state := "degraded"
	if mirror.Whole(record) {
		state = "whole"
	}
	for _, m := range record.Members {
		lacks := m.State != v1alpha1.MemberInSync
		copies := lacks && m.State != v1alpha1.MemberOut && record.Holder != "" && record.MoverWaiting == ""
		if copies {
			state = "copying"
		}
		if lacks && !m.Retired {
			c.task("fill", !copies)
		}
	}
	c.mirrors[state]++
}
