// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Observed is all that Decide judges from.
type Observed struct {
	// BootID of the running kernel, and NICs by name.
	BootID string
	NICs   map[string]int32
	// Wanted settings, as planned.
	Wanted []v1alpha1.PlannedSetting
	// Record of what was changed in this boot of the kernel, of NICs that are still there.
	Record v1alpha1.TuningStatus
	// Looks at the places of what is wanted or on record.
	Looks map[Place]Look
	// Tried settings, in this run: one that failed is not tried again.
	Tried map[string]bool
}

// Look at a place.
type Look struct {
	Settings map[string]Reading
	Err      error
}

// Gather looks at the settings that are wanted or on record. A place that cannot be read does not keep others from
// being.
func Gather(ctx context.Context, host Host, wanted []v1alpha1.PlannedSetting, record v1alpha1.TuningStatus, tried map[string]bool) (Observed, error) {
	boot, err := host.BootID(ctx)
	if err != nil {
		return Observed{}, fmt.Errorf("read the boot's id: %w", err)
	}
	nics, err := host.NICs(ctx)
	if err != nil {
		return Observed{}, fmt.Errorf("list the NICs: %w", err)
	}
	s := Observed{BootID: boot, NICs: nics, Wanted: wanted, Record: carryOver(record, boot, nics), Looks: map[Place]Look{}, Tried: tried}
	names := map[Place][]string{}
	note := func(setting string) {
		place, name, ok := parse(setting)
		if _, there := nics[place.NIC]; ok && (there || place.NIC == "") {
			names[place] = append(names[place], name)
		}
	}
	for _, w := range wanted {
		note(w.Setting)
	}
	for _, t := range s.Record.Settings {
		note(t.Setting)
		// Whether a driver adapts says whether its times can be put back at all.
		if place, _, _ := parse(t.Setting); place.Group == Coalescing {
			names[place] = append(names[place], adaptiveRX, adaptiveTX)
		}
	}
	for place, asked := range names {
		if err := ctx.Err(); err != nil {
			return Observed{}, err
		}
		slices.Sort(asked)
		settings, err := host.Read(ctx, place, slices.Compact(asked))
		s.Looks[place] = Look{Settings: settings, Err: err}
	}
	return s, nil
}

// carryOver moves what is on record to where it is now. Another boot of the kernel, and a NIC that went, took the
// settings with them. A NIC that was renamed is still the one with its index.
func carryOver(record v1alpha1.TuningStatus, boot string, nics map[string]int32) v1alpha1.TuningStatus {
	now := v1alpha1.TuningStatus{}
	if record.BootID != boot {
		return now
	}
	names := map[int32]string{}
	for name, index := range nics {
		names[index] = name
	}
	renamed := map[string]string{}
	for _, nic := range record.NICs {
		if name, there := names[nic.Index]; there {
			renamed[nic.Name] = name
		}
	}
	for _, t := range record.Settings {
		place, name, ok := parse(t.Setting)
		if !ok {
			continue
		}
		if place.NIC != "" {
			if place.NIC, ok = renamed[place.NIC]; !ok {
				continue
			}
			t.Setting = place.setting(name)
		}
		now.Settings = append(now.Settings, t)
	}
	return complete(now, boot, nics)
}

// complete a record with the boot and the NICs that its settings belong to.
func complete(record v1alpha1.TuningStatus, boot string, nics map[string]int32) v1alpha1.TuningStatus {
	if len(record.Settings) == 0 {
		return v1alpha1.TuningStatus{}
	}
	of := map[string]bool{}
	for _, t := range record.Settings {
		if place, _, _ := parse(t.Setting); place.NIC != "" {
			of[place.NIC] = true
		}
	}
	record.BootID, record.NICs = boot, nil
	for _, name := range slices.Sorted(maps.Keys(of)) {
		record.NICs = append(record.NICs, v1alpha1.TunedNIC{Name: name, Index: nics[name]})
	}
	return record
}
