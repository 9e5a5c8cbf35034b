// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// maxListed bounds what a message lists, so that it stays readable in an Event.
const maxListed = 6

// pool is what a node's pool is made of: drives, or a file.
type pool struct {
	drives []v1alpha1.PlannedDrive
	file   *v1alpha1.DeviceFile
	// promisePercent of its size; 0 for no more than there is, as plans had it before there was a choice.
	promisePercent int32
	// clusterBytes of pools that SPDK makes from now on.
	clusterBytes int64
}

func planPool(node Node, spec v1alpha1.NvmfTargetSpec) (pool, []Reason) {
	if why := poolMoved(node.Current, spec); why != nil {
		return pool{}, []Reason{*why}
	}
	given := 0
	for _, has := range []bool{spec.Devices.File != nil, len(spec.Devices.Paths) > 0, spec.Devices.Selector != nil, len(spec.Devices.Classes) > 0} {
		if has {
			given++
		}
	}
	if given != 1 {
		return pool{}, []Reason{reasonf(v1alpha1.ReasonNoDevice, "devices must have exactly one of selector, paths, classes and file, but has %d", given)}
	}
	percent := spec.OverProvisioningPercent
	if percent == v1alpha1.NoOverProvisioning {
		percent = 0
	}
	if spec.Devices.File != nil {
		return pool{file: spec.Devices.File.DeepCopy(), promisePercent: percent}, nil
	}

	inv := withoutDropped(node.Inventory, node.Dropped)
	kept := keptDrives(inv, node.Current)
	for _, id := range node.Dropped {
		delete(kept, id)
	}
	classes := classesOf(spec.Devices)
	chosen, reasons := chooseDrives(inv, spec.Engine, kept, classes)
	if len(reasons) > 0 {
		return pool{}, reasons
	}
	drives := join(kept, chosen)
	nameClasses(inv, classes, drives)
	if reasons = addressDrives(inv, spec, drives); len(reasons) > 0 {
		return pool{}, reasons
	}
	return pool{drives: drives, promisePercent: percent}, nil
}

// withoutDropped is an inventory without the drives that were given up: one that comes back is nobody's until a person
// says what it is to be.
func withoutDropped(inv *v1alpha1.Inventory, dropped []string) *v1alpha1.Inventory {
	if len(dropped) == 0 {
		return inv
	}
	rest := *inv
	rest.Drives = slices.DeleteFunc(slices.Clone(inv.Drives), func(d v1alpha1.Drive) bool { return slices.Contains(dropped, d.ID) })
	return &rest
}

// poolMoved says why a node's pool cannot become another kind of pool, or that
// of another engine: the volumes in it would be out of reach. The API
// refuses such changes of a target; this also holds for a node that comes
// from another one.
func poolMoved(current *v1alpha1.Plan, spec v1alpha1.NvmfTargetSpec) *Reason {
	const mend = "move its volumes away and let another NvmfTarget claim the node"
	switch {
	case current == nil:
		return nil
	case current.Engine != spec.Engine:
		return new(reasonf(v1alpha1.ReasonDeviceInUse, "the node's pool was created by engine %s, and engine %s cannot read it; %s", current.Engine, spec.Engine, mend))
	case spec.Devices.File != nil && len(current.Drives) > 0:
		return new(reasonf(v1alpha1.ReasonDeviceInUse, "the node's pool is on drives and cannot be changed to a file; %s", mend))
	case spec.Devices.File == nil && current.File != nil:
		return new(reasonf(v1alpha1.ReasonDeviceInUse, "the node's pool is the file %s and cannot be changed to drives; %s", current.File.Path, mend))
	case spec.Devices.File != nil && current.File != nil && current.File.Path != spec.Devices.File.Path:
		return new(reasonf(v1alpha1.ReasonDeviceInUse, "the node's pool is the file %s and cannot be changed to the file %s; %s", current.File.Path, spec.Devices.File.Path, mend))
	}
	return nil
}

// keptDrives are those of the current plan, whatever became of them: a drive that
// is not in the inventory, or not readable, may be back tomorrow with its volumes.
func keptDrives(inv *v1alpha1.Inventory, current *v1alpha1.Plan) map[string]v1alpha1.PlannedDrive {
	kept := map[string]v1alpha1.PlannedDrive{}
	if current == nil {
		return kept
	}
	for _, d := range current.Drives {
		if have := driveOf(inv, d.ID); have != nil && have.Serial != "" {
			d.Serial = serial(have)
		}
		kept[d.ID] = d
	}
	return kept
}

// unusable says why a drive cannot become part of a pool, or nil.
func unusable(d *v1alpha1.Drive, engine v1alpha1.Engine) *Reason {
	switch d.Content {
	case v1alpha1.ContentBlank:
	case v1alpha1.ContentWeft:
		if other := poolOf(d); other != engine {
			return new(reasonf(v1alpha1.ReasonForeignSignature,
				"%s contains a pool of engine %s (%s), which engine %s cannot read; if its volumes can be lost, unmount the pool and erase the drive (blkdiscard -f /dev/%s on the node)",
				d.Name, other, cmp.Or(d.ContentDetail, v1alpha1.DetailNvmetPool), engine, d.Name))
		}
	case v1alpha1.ContentForeign:
		return new(reasonf(v1alpha1.ReasonForeignSignature,
			"%s contains data that weft did not write (%s); if it can be lost, erase it (blkdiscard -f /dev/%s on the node)",
			d.Name, cmp.Or(d.ContentDetail, "of unknown type"), d.Name))
	default:
		return new(reasonf(v1alpha1.ReasonNoDevice,
			"the content of %s is unknown (%s); weft uses a drive only if it is certain that the drive is blank",
			d.Name, cmp.Or(d.ContentDetail, "the agent could not read it")))
	}
	if d.SizeBytes < v1alpha1.MinXFSBytes {
		return new(reasonf(v1alpha1.ReasonNoDevice, "%s has only %d bytes; use a drive of at least %d bytes", d.Name, d.SizeBytes, v1alpha1.MinXFSBytes))
	}
	return nil
}

// poolOf tells which engine made the pool on a drive of weft's own.
func poolOf(d *v1alpha1.Drive) v1alpha1.Engine {
	if d.ContentDetail == v1alpha1.DetailSPDKPool {
		return v1alpha1.EngineSPDK
	}
	return v1alpha1.EngineNvmet
}

// join makes the plan's list: what is kept, then the rest by ID as far as the
// API's bound allows; the list itself is sorted by ID.
func join(kept map[string]v1alpha1.PlannedDrive, chosen []*v1alpha1.Drive) []v1alpha1.PlannedDrive {
	drives := make([]v1alpha1.PlannedDrive, 0, len(kept)+len(chosen))
	for _, d := range kept {
		drives = append(drives, d)
	}
	slices.SortFunc(chosen, func(a, b *v1alpha1.Drive) int { return cmp.Compare(a.ID, b.ID) })
	for i, d := range chosen {
		if len(drives) >= v1alpha1.MaxPlanDrives {
			break
		}
		if i == 0 || chosen[i-1].ID != d.ID {
			drives = append(drives, v1alpha1.PlannedDrive{ID: d.ID, Serial: serial(d)})
		}
	}
	slices.SortFunc(drives, func(a, b v1alpha1.PlannedDrive) int { return cmp.Compare(a.ID, b.ID) })
	return drives
}

// serial of a drive within the API's bound.
func serial(d *v1alpha1.Drive) string {
	r := []rune(d.Serial)
	return string(r[:min(len(r), v1alpha1.MaxDriveSerial)])
}

func byName(drives []v1alpha1.Drive) []*v1alpha1.Drive {
	sorted := make([]*v1alpha1.Drive, 0, len(drives))
	for i := range drives {
		sorted = append(sorted, &drives[i])
	}
	slices.SortFunc(sorted, func(a, b *v1alpha1.Drive) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return sorted
}

// list joins the first few, or says "none".
func list(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return text.Few(items, maxListed, ", ")
}
