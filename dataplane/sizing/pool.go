// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// minDriveBytes is the smallest drive of a pool: mkfs.xfs refuses to make anything smaller than 300 MiB.
	minDriveBytes = 300 << 20
	// maxListed bounds what a message lists, so that it stays readable in an Event.
	maxListed = 6
)

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
	for _, has := range []bool{spec.Devices.File != nil, len(spec.Devices.Paths) > 0, spec.Devices.Selector != nil} {
		if has {
			given++
		}
	}
	if given != 1 {
		return pool{}, []Reason{reasonf(v1alpha1.ReasonNoDevice, "devices must have exactly one of selector, paths and file, but has %d", given)}
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
	var chosen []*v1alpha1.Drive
	var reasons []Reason
	if spec.Devices.Selector != nil {
		chosen, reasons = selectDrives(inv, spec.Engine, kept, *spec.Devices.Selector)
	} else {
		chosen, reasons = namedDrives(inv, spec.Engine, kept, spec.Devices.Paths)
	}
	if len(reasons) > 0 {
		return pool{}, reasons
	}
	drives := join(kept, chosen)
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

// selectDrives takes every NVMe drive that the selector matches and that is
// free; those that are not are left out, and are reasons only when no drive remains.
func selectDrives(inv *v1alpha1.Inventory, engine v1alpha1.Engine, kept map[string]v1alpha1.PlannedDrive, sel v1alpha1.DeviceSelector) ([]*v1alpha1.Drive, []Reason) {
	var chosen []*v1alpha1.Drive
	var leftOut []string
	reason := v1alpha1.ReasonNoDevice
	for _, d := range byName(inv.Drives) {
		if _, ok := kept[d.ID]; ok || !d.NVMe || !matches(sel, d) {
			continue
		}
		if why := unusable(d, engine); why != nil {
			leftOut = append(leftOut, why.Message)
			if why.Reason == v1alpha1.ReasonForeignSignature {
				reason = v1alpha1.ReasonForeignSignature
			}
			continue
		}
		chosen = append(chosen, d)
	}
	switch {
	case len(chosen) > 0 || len(kept) > 0:
		return chosen, nil
	case len(leftOut) > 0:
		return nil, []Reason{reasonf(reason, "no drive that devices.selector matches can be used: %s", text.Few(leftOut, maxListed, "; "))}
	}
	return nil, []Reason{reasonf(v1alpha1.ReasonNoDevice,
		"devices.selector matches none of the node's NVMe drives (%s); change models, minSize or byID, or choose drives with devices.paths", describeDrives(inv.Drives, true))}
}

// namedDrives takes the drives that the paths name. One that is named and
// cannot be used is a reason: the user meant it.
func namedDrives(inv *v1alpha1.Inventory, engine v1alpha1.Engine, kept map[string]v1alpha1.PlannedDrive, paths []string) ([]*v1alpha1.Drive, []Reason) {
	named := map[string]string{} // drive's ID to the first path that names it
	for _, path := range slices.Sorted(slices.Values(paths)) {
		for i := range inv.Drives {
			d := &inv.Drives[i]
			if _, seen := named[d.ID]; !seen && answersTo(d, path) {
				named[d.ID] = path
			}
		}
	}
	var chosen []*v1alpha1.Drive
	var reasons []Reason
	for _, d := range byName(inv.Drives) {
		path, ok := named[d.ID]
		if _, isKept := kept[d.ID]; !ok || isKept {
			continue
		}
		if why := unusable(d, engine); why != nil {
			reasons = append(reasons, reasonf(why.Reason, "devices.paths contains %s, but %s", path, why.Message))
			continue
		}
		chosen = append(chosen, d)
	}
	if len(chosen) == 0 && len(kept) == 0 && len(reasons) == 0 {
		reasons = append(reasons, reasonf(v1alpha1.ReasonNoDevice,
			"the node has none of devices.paths (%s), only %s; use paths of whole disks, as shown by ls -l /dev/disk/by-id /dev/disk/by-path on the node",
			list(slices.Sorted(slices.Values(paths))), describeDrives(inv.Drives, false)))
	}
	return chosen, reasons
}

// unusable says why a drive cannot become part of a pool, or nil.
func unusable(d *v1alpha1.Drive, engine v1alpha1.Engine) *Reason {
	switch d.Content {
	case v1alpha1.ContentBlank:
	case v1alpha1.ContentWeft:
		if other := poolOf(d); other != engine {
			return new(reasonf(v1alpha1.ReasonForeignSignature,
				"%s contains a pool of engine %s (%s), which engine %s cannot read; if its volumes can be lost, erase it (blkdiscard -f /dev/%s on the node)",
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
	if d.SizeBytes < minDriveBytes {
		return new(reasonf(v1alpha1.ReasonNoDevice, "%s has only %d bytes; use a drive of at least %d bytes", d.Name, d.SizeBytes, minDriveBytes))
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

func matches(sel v1alpha1.DeviceSelector, d *v1alpha1.Drive) bool {
	if len(sel.Models) > 0 && !slices.ContainsFunc(sel.Models, func(p string) bool { return glob(p, d.Model) }) {
		return false
	}
	if sel.MinSize != nil && sel.MinSize.CmpInt64(d.SizeBytes) > 0 {
		return false
	}
	if len(sel.ByID) > 0 && !slices.ContainsFunc(sel.ByID, func(p string) bool {
		return slices.ContainsFunc(d.ByID, func(name string) bool { return glob(p, name) })
	}) {
		return false
	}
	return true
}

// answersTo reports whether a path under /dev/disk is one of the drive's names.
func answersTo(d *v1alpha1.Drive, path string) bool {
	if name, ok := strings.CutPrefix(path, "/dev/disk/by-id/"); ok {
		return slices.Contains(d.ByID, name)
	}
	if name, ok := strings.CutPrefix(path, "/dev/disk/by-path/"); ok {
		return slices.Contains(d.ByPath, name)
	}
	return false
}

// glob matches s as a whole, with * for any run of characters. It is greedy over
// the literal parts, so its time is bounded by len(pattern) × len(s).
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(s, first) {
		return false
	}
	s = s[len(first):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return strings.HasSuffix(s, last)
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

func describeDrives(drives []v1alpha1.Drive, nvmeOnly bool) string {
	var s []string
	for _, d := range byName(drives) {
		if nvmeOnly && !d.NVMe {
			continue
		}
		name := d.Name
		if len(d.ByID) > 0 {
			name = slices.Min(d.ByID)
		}
		s = append(s, fmt.Sprintf("%s (%s, %d GiB)", name, cmp.Or(d.Model, "unknown model"), d.SizeBytes>>30))
	}
	return list(s)
}

// list joins the first few, or says "none".
func list(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return text.Few(items, maxListed, ", ")
}
