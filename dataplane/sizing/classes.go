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

// classesOf a target's drives; one without a name where it has none.
func classesOf(d v1alpha1.Devices) []v1alpha1.DeviceClass {
	if len(d.Classes) > 0 {
		return d.Classes
	}
	return []v1alpha1.DeviceClass{{Selector: d.Selector, Paths: d.Paths}}
}

// classAt is the index of the first class that matches a drive: of several it has that one, used or not, so that a
// class never gets what was meant for another. -1 for none.
func classAt(classes []v1alpha1.DeviceClass, d *v1alpha1.Drive) int {
	return slices.IndexFunc(classes, func(c v1alpha1.DeviceClass) bool {
		if c.Selector != nil {
			return d.NVMe && matches(*c.Selector, d)
		}
		return pathOf(c, d) != ""
	})
}

// pathOf a drive in a class, the first of them; "" for none.
func pathOf(c v1alpha1.DeviceClass, d *v1alpha1.Drive) string {
	for _, path := range slices.Sorted(slices.Values(c.Paths)) {
		if answersTo(d, path) {
			return path
		}
	}
	return ""
}

// field of a class's drives, as the user finds it in the target.
func field(c v1alpha1.DeviceClass) string {
	name := "paths"
	if c.Selector != nil {
		name = "selector"
	}
	if c.Name == "" {
		return "devices." + name
	}
	return fmt.Sprintf("devices.classes[%s].%s", c.Name, name)
}

// chooseDrives takes every drive that a class matches and that is free. What a selector matches and cannot be used is
// left out; it is a reason only when the node has no drive at all. What a path names and cannot be used is one always:
// the user meant it.
func chooseDrives(inv *v1alpha1.Inventory, engine v1alpha1.Engine, kept map[string]v1alpha1.PlannedDrive, classes []v1alpha1.DeviceClass) (chosen []*v1alpha1.Drive, reasons []Reason) {
	leftOut := make([][]Reason, len(classes))
	// Where no drive has names, the node has no udev, and there will be none.
	named := slices.ContainsFunc(inv.Drives, func(d v1alpha1.Drive) bool { return len(d.ByID)+len(d.ByPath) > 0 })
	for _, d := range byName(inv.Drives) {
		at := classAt(classes, d)
		if _, isKept := kept[d.ID]; isKept || at < 0 || named && nameless(d, classes) {
			continue
		}
		c := classes[at]
		switch why := unusable(d, engine); {
		case why == nil:
			chosen = append(chosen, d)
		case c.Selector != nil:
			leftOut[at] = append(leftOut[at], *why)
		default:
			reasons = append(reasons, reasonf(why.Reason, "%s contains %s, but %s", field(c), pathOf(c, d), why.Message))
		}
	}
	if len(chosen) > 0 || len(kept) > 0 || len(reasons) > 0 {
		return chosen, reasons
	}
	for i, c := range classes {
		reasons = append(reasons, noDrive(inv, c, leftOut[i]))
	}
	return nil, reasons
}

// noDrive says why a node has no drive of a class: those that were left out, if any.
func noDrive(inv *v1alpha1.Inventory, c v1alpha1.DeviceClass, leftOut []Reason) Reason {
	reason := v1alpha1.ReasonNoDevice
	messages := make([]string, len(leftOut))
	for i, why := range leftOut {
		messages[i] = why.Message
		if why.Reason == v1alpha1.ReasonForeignSignature {
			reason = v1alpha1.ReasonForeignSignature
		}
	}
	switch {
	case len(messages) > 0:
		return reasonf(reason, "no drive that %s matches can be used: %s", field(c), text.Few(messages, maxListed, "; "))
	case c.Selector != nil:
		return reasonf(reason, "%s matches none of the node's NVMe drives (%s); change models, minSize or byID, or choose drives with paths",
			field(c), describeDrives(inv.Drives, true))
	}
	return reasonf(reason, "the node has none of %s (%s), only %s; use paths of whole disks, as shown by ls -l /dev/disk/by-id /dev/disk/by-path on the node",
		field(c), list(slices.Sorted(slices.Values(c.Paths))), describeDrives(inv.Drives, false))
}

// nameClasses of planned drives. One that the inventory does not show keeps the class that it had, while the target has
// that: it may be SPDK's own, or back tomorrow. So does one that has no names yet, where classes go by names: udev
// makes them a moment after the drive is there.
func nameClasses(inv *v1alpha1.Inventory, classes []v1alpha1.DeviceClass, drives []v1alpha1.PlannedDrive) {
	for i := range drives {
		planned := &drives[i]
		at := slices.IndexFunc(classes, func(c v1alpha1.DeviceClass) bool { return c.Name == planned.DeviceClass })
		if d := driveOf(inv, planned.ID); d != nil && (at < 0 || !nameless(d, classes)) {
			at = classAt(classes, d)
		}
		planned.DeviceClass = ""
		if at >= 0 {
			planned.DeviceClass = classes[at].Name
		}
	}
}

// nameless reports whether a drive lacks the names that some class goes by: which class it has is unknown then.
func nameless(d *v1alpha1.Drive, classes []v1alpha1.DeviceClass) bool {
	return len(d.ByID)+len(d.ByPath) == 0 && slices.ContainsFunc(classes, func(c v1alpha1.DeviceClass) bool {
		return len(c.Paths) > 0 || c.Selector != nil && len(c.Selector.ByID) > 0
	})
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
