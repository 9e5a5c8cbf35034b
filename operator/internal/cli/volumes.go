// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/capacity"
)

// volumesForm is the short form of volumes that are alike, with the names of a StorageClass's parameters.
type volumesForm struct {
	// Target is the name of an NvmfTarget of the plan. Default: the only one.
	Target string `json:"target"`
	// Count of volumes. Default 1.
	Count int64 `json:"count"`
	// Size of each. Required.
	Size resource.Quantity `json:"size"`
	// Replicas of each, 1 or 2. Default 1.
	Replicas int `json:"replicas"`
	// DeviceClass of the target's drives. Default: any.
	DeviceClass string `json:"deviceClass"`
	// Zones whose nodes may store replicas. Default: all.
	Zones []string `json:"zones"`
	// ZoneLabel of nodes whose values are zones. Default: topology.kubernetes.io/zone.
	ZoneLabel string `json:"zoneLabel"`
	// Transports that hosts connect over. Default: the target's first.
	Transports []v1alpha1.TransportType `json:"transports"`
	// IOQueues on each path. Default 2, or what the target allows.
	IOQueues int32 `json:"ioQueues"`
	// Hosts that use each volume at once. Default 1, which is all that replicas allow.
	Hosts int64 `json:"hosts"`
	// Writes to each volume in bytes a second. Default: not known.
	Writes resource.Quantity `json:"writes"`
}

// maxPlannedVolumes of a plan in all, so that it takes seconds; maxPlannedHosts of each.
const (
	maxPlannedVolumes = 100_000
	maxPlannedHosts   = 1000
)

// wanted volumes, and the document that says so.
type wanted struct {
	from, target string
	capacity.Volumes
}

// volumesOf reads the volumes of a file, for these targets.
func volumesOf(docs []document, targets []*v1alpha1.NvmfTarget) ([]wanted, error) {
	var (
		all   []wanted
		errs  []error
		total int64
	)
	for _, doc := range docs {
		if gvk := doc.GroupVersionKind(); gvk != kindless {
			return nil, fmt.Errorf("%s: unexpected object %s %s; a file of volumes contains the short form in docs/kubectl-weft/plan.md", doc.from, doc.GetAPIVersion(), doc.GetKind())
		}
		var f volumesForm
		if err := decode(doc, &f); err != nil {
			return nil, err
		}
		w, err := f.wanted(targets)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doc.from, err))
			continue
		}
		w.from = doc.from
		total += w.Count
		all = append(all, w)
	}
	if total > maxPlannedVolumes {
		errs = append(errs, fmt.Errorf("%d volumes; no more than %d can be planned at once", total, maxPlannedVolumes))
	}
	return all, errors.Join(errs...)
}

func (f volumesForm) wanted(targets []*v1alpha1.NvmfTarget) (wanted, error) {
	names := make([]string, len(targets))
	for i, t := range targets {
		names[i] = t.Name
	}
	if f.Target == "" && len(targets) > 1 {
		return wanted{}, fmt.Errorf("the target is missing; use one of %s", strings.Join(names, ", "))
	}
	f.Target = cmp.Or(f.Target, names[0])
	at := slices.Index(names, f.Target)
	if at < 0 {
		return wanted{}, fmt.Errorf("target is %q, which is not planned; use one of %s", f.Target, strings.Join(names, ", "))
	}
	f.Count, f.Replicas, f.Hosts = cmp.Or(f.Count, 1), cmp.Or(f.Replicas, 1), cmp.Or(f.Hosts, 1)
	spec := &targets[at].Spec
	if len(f.Transports) == 0 {
		f.Transports = []v1alpha1.TransportType{spec.Transports[0].Type}
	}
	if err := errors.Join(f.check(), f.checkWith(spec)); err != nil {
		return wanted{}, err
	}
	size := f.Size.Value()
	return wanted{target: f.Target, Volumes: capacity.Volumes{
		Count: f.Count, SizeBytes: (size + v1alpha1.VolumeSizeStep - 1) / v1alpha1.VolumeSizeStep * v1alpha1.VolumeSizeStep, Replicas: f.Replicas,
		Class: f.DeviceClass, Zones: f.Zones, ZoneLabel: cmp.Or(f.ZoneLabel, corev1.LabelTopologyZone),
		Transports: f.Transports, IOQueues: cmp.Or(f.IOQueues, min(v1alpha1.DefaultAttachmentIOQueues, maxQueues(spec, f.Transports))),
		Hosts: f.Hosts, WriteBytes: f.Writes.Value(),
	}}, nil
}

// check what can be wrong whatever the target.
func (f volumesForm) check() error {
	var errs []error
	say := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	say(f.Count < 1 || f.Count > maxPlannedVolumes, "count is %d; must be from 1 to %d", f.Count, maxPlannedVolumes)
	say(f.Size.IsZero(), "the size is missing; set it, such as 100Gi")
	say(!f.Size.IsZero() && outside(f.Size, minVolume, maxDrive), "size is %s; must be from %s to %s", &f.Size, &minVolume, &maxDrive)
	say(f.Replicas < 1 || f.Replicas > v1alpha1.MaxReplicas, "replicas is %d; must be 1 or %d", f.Replicas, v1alpha1.MaxReplicas)
	say(f.Hosts < 1 || f.Hosts > maxPlannedHosts, "hosts is %d; must be from 1 to %d", f.Hosts, maxPlannedHosts)
	say(f.Hosts > 1 && f.Replicas > 1, "hosts is %d and replicas is %d; a volume with several replicas is used by one node at a time: use replicas: 1, or hosts: 1", f.Hosts, f.Replicas)
	say(f.Writes.Sign() < 0 || f.Writes.Cmp(maxWrites) > 0, "writes is %s; set the bytes a second that are written to each volume, such as 50Mi", &f.Writes)
	say(f.ZoneLabel != "" && len(f.Zones) == 0 && f.Replicas < 2, "zoneLabel has no effect without zones or replicas: 2; add one of them, or remove it")
	return errors.Join(errs...)
}

// checkWith what the target has.
func (f volumesForm) checkWith(spec *v1alpha1.NvmfTargetSpec) error {
	var errs []error
	for _, t := range f.Transports {
		if !slices.ContainsFunc(spec.Transports, func(has v1alpha1.Transport) bool { return has.Type == t }) {
			errs = append(errs, fmt.Errorf("transports: NvmfTarget %s has no transport %s", f.Target, t))
		}
	}
	if most := maxQueues(spec, f.Transports); f.IOQueues < 0 || f.IOQueues > most {
		errs = append(errs, fmt.Errorf("ioQueues is %d; must be from 1 to %d, the maximum of NvmfTarget %s", f.IOQueues, most, f.Target))
	}
	classes := spec.Devices.Classes
	if f.DeviceClass != "" && !slices.ContainsFunc(classes, func(c v1alpha1.DeviceClass) bool { return c.Name == f.DeviceClass }) {
		names := make([]string, len(classes))
		for i, c := range classes {
			names[i] = c.Name
		}
		errs = append(errs, fmt.Errorf("deviceClass: NvmfTarget %s has no device class %q; its device classes: %s", f.Target, f.DeviceClass, orNone(names)))
	}
	return errors.Join(errs...)
}

// maxQueues of a controller over any of the transports.
func maxQueues(spec *v1alpha1.NvmfTargetSpec, transports []v1alpha1.TransportType) int32 {
	most := int32(v1alpha1.MaxIOQueues)
	for _, t := range spec.Transports {
		if slices.Contains(transports, t.Type) {
			most = min(most, cmp.Or(t.MaxIOQueues, v1alpha1.DefaultMaxIOQueues))
		}
	}
	return most
}

var (
	minVolume = resource.MustParse("1")
	maxWrites = resource.MustParse("1Ti")
)
