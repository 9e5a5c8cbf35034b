// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// outcome of one setting that was written.
type outcome struct {
	value string
	got   Reading
	err   error
}

// act makes the writes and reads back what became of them, by setting. A group that is refused as a whole is tried one
// by one, so that what the driver does not have keeps nothing else from being set.
func act(ctx context.Context, host Host, writes []Write) map[string]outcome {
	outcomes := map[string]outcome{}
	for _, w := range writes {
		names := slices.Sorted(maps.Keys(w.Values))
		errs := map[string]error{}
		if err := host.Write(ctx, w.Place, w.Values); err != nil {
			for _, name := range names {
				errs[name] = err
				if len(names) > 1 && ctx.Err() == nil {
					errs[name] = host.Write(ctx, w.Place, map[string]string{name: w.Values[name]})
				}
			}
		}
		readings, err := host.Read(ctx, w.Place, names)
		for _, name := range names {
			o := outcome{value: w.Values[name], got: readings[name], err: errs[name]}
			if err != nil && o.err == nil {
				o.err = fmt.Errorf("it was written, but could not be read back: %w", err)
			}
			outcomes[w.Place.setting(name)] = o
		}
	}
	return outcomes
}

// settle a record with what became of its settings.
func settle(record v1alpha1.TuningStatus, outcomes map[string]outcome) v1alpha1.TuningStatus {
	settled := v1alpha1.TuningStatus{BootID: record.BootID, NICs: record.NICs}
	for _, t := range record.Settings {
		o, written := outcomes[t.Setting]
		if !written {
			settled.Settings = append(settled.Settings, t)
			continue
		}
		if o.got.Value != "" {
			t.Value = o.got.Value
		}
		back := t.Wanted != o.value // not wanted any more, or not with this value
		if back {
			t.Wanted = ""
		}
		place, _, _ := parse(t.Setting)
		switch {
		case o.got.Value == o.value && back:
			continue
		case o.got.Value == o.value:
			t.State, t.Message = v1alpha1.TuningApplied, ""
		case back:
			t.State, t.Message = v1alpha1.TuningNotPutBack, fmt.Sprintf("its previous value %s could not be restored: %s", o.value, explain(place, o))
		case o.err != nil:
			t.State, t.Message = v1alpha1.TuningRefused, explain(place, o)
		default:
			t.State, t.Message = v1alpha1.TuningClamped, explain(place, o)
		}
		settled.Settings = append(settled.Settings, t)
	}
	return settled
}

// explain what the kernel answered, and what to write instead.
func explain(place Place, o outcome) string {
	if o.err == nil && o.got.Fixed {
		return fmt.Sprintf("requested %s, but the driver has a fixed value of %s; remove it from spec.tuning", o.value, o.got.Value)
	}
	if o.err == nil {
		return fmt.Sprintf("requested %s, but the kernel set %s; use %s%s", o.value, o.got.Value, o.got.Value, atMost(o))
	}
	return fmt.Sprintf("requested %s, but the kernel answered: %v; it is %s%s", o.value, o.err, o.got.Value, advice(place, o))
}

func atMost(o outcome) string {
	if o.got.Most > 0 {
		return fmt.Sprintf(" (the maximum of the driver is %d)", o.got.Most)
	}
	return ""
}

func advice(place Place, o outcome) string {
	n, err := strconv.ParseInt(o.value, 10, 64)
	switch {
	case err == nil && o.got.Most > 0 && n > o.got.Most:
		return fmt.Sprintf("; use at most %d, the maximum of the driver", o.got.Most)
	case errors.Is(o.err, syscall.EOPNOTSUPP):
		return "; the driver does not support it: remove it from spec.tuning"
	case errors.Is(o.err, fs.ErrNotExist):
		return "; load the kernel module that provides it, or choose another value"
	case errors.Is(o.err, syscall.EIO) && place.Group == Interrupts:
		return "; the kernel manages this interrupt itself: remove interrupts from spec.tuning"
	case errors.Is(o.err, syscall.EINVAL):
		return "; use another value, or remove it from spec.tuning"
	}
	return ""
}
