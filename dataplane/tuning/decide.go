// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// maxSettings of a record, the API's bound.
const maxSettings = 2048

const (
	adaptiveRX = "adaptiveRX"
	adaptiveTX = "adaptiveTX"
)

// Decision is what follows from what was observed.
type Decision struct {
	// Record to be stored before Writes are made. Its settings are sorted.
	Record v1alpha1.TuningStatus
	// Writes in the order in which they are to be made.
	Writes []Write
	// Drifted settings: they were as wanted, and somebody else changed them.
	Drifted []string
	// Problems that keep a setting from being tried, each a sentence.
	Problems []string
}

// Write is what one place is to be given, by name.
type Write struct {
	Place  Place
	Values map[string]string
}

// Decide what is to be recorded and what is to be written. It is pure: the same Observed gives the same Decision.
func Decide(s Observed) Decision {
	d := decider{Observed: s, record: map[string]v1alpha1.TunedSetting{}, writes: map[Place]map[string]string{}}
	for _, t := range s.Record.Settings {
		d.record[t.Setting] = t
	}
	wanted := map[string]bool{}
	// Channels before interrupts: these are new ones after the channels changed.
	sorted := slices.Clone(s.Wanted)
	slices.SortFunc(sorted, func(a, b v1alpha1.PlannedSetting) int { return byGroup(a.Setting, b.Setting) })
	for _, w := range sorted {
		for _, setting := range d.want(w) {
			wanted[setting] = true
		}
	}
	for _, setting := range slices.SortedFunc(maps.Keys(d.record), byGroup) {
		if !wanted[setting] {
			d.putBack(d.record[setting])
		}
	}
	return d.decision()
}

type decider struct {
	Observed
	record   map[string]v1alpha1.TunedSetting
	writes   map[Place]map[string]string
	drifted  []string
	problems []string
}

func byGroup(a, b string) int {
	place, _, _ := parse(a)
	other, _, _ := parse(b)
	return cmp.Or(cmp.Compare(slices.Index(groups, place.Group), slices.Index(groups, other.Group)), cmp.Compare(a, b))
}

func (d *decider) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

// want a planned setting, and answers the settings that it stands for.
func (d *decider) want(w v1alpha1.PlannedSetting) []string {
	place, name, ok := parse(w.Setting)
	if !ok {
		d.problem("setting %s is unknown to this agent; update the agent", w.Setting)
		return []string{w.Setting}
	}
	if _, there := d.NICs[place.NIC]; place.NIC != "" && !there {
		d.problem("%s: the node has no interface %s", w.Setting, place.NIC)
		return nil
	}
	look := d.Looks[place]
	if look.Err != nil {
		d.problem("%s could not be read: %v", w.Setting, look.Err)
		return d.recorded(place)
	}
	if place.Group == Interrupts && name == "" {
		return d.wantInterrupts(place, w.Value)
	}
	reading, has := look.Settings[name]
	if !has {
		d.problem("%s: %s; remove it from spec.tuning", w.Setting, missing(place))
		return []string{w.Setting}
	}
	d.give(place, name, w.Value, reading)
	return []string{w.Setting}
}

func missing(place Place) string {
	if place.NIC == "" {
		return "the node's kernel has no such parameter"
	}
	return "the driver of " + place.NIC + " has no such setting"
}

// recorded settings of a place.
func (d *decider) recorded(place Place) []string {
	var settings []string
	for setting := range d.record {
		if p, _, _ := parse(setting); p == place {
			settings = append(settings, setting)
		}
	}
	return settings
}

// wantInterrupts gives each interrupt of a NIC one of the CPUs, by turns in the order of their numbers: drivers number
// them as their queues.
func (d *decider) wantInterrupts(place Place, list string) []string {
	if d.writes[Place{NIC: place.NIC, Group: Channels}] != nil {
		return d.recorded(place)
	}
	set, err := cpuset.Parse(list)
	if err != nil || set.IsEmpty() {
		d.problem("%s/interrupts: %q is not a list of CPUs such as 0-3,8", place.NIC, list)
		return d.recorded(place)
	}
	numbers := slices.SortedFunc(maps.Keys(d.Looks[place].Settings), byNumber)
	if len(numbers) == 0 {
		d.problem("%s/interrupts: %s has no interrupts of its own (MSI); remove interrupts from spec.tuning", place.NIC, place.NIC)
	}
	cpus := set.List()
	var settings []string
	for i, name := range numbers {
		d.give(place, name, strconv.Itoa(cpus[i%len(cpus)]), d.Looks[place].Settings[name])
		settings = append(settings, place.setting(name))
	}
	return settings
}

func byNumber(a, b string) int {
	m, _ := strconv.Atoi(a)
	n, _ := strconv.Atoi(b)
	return cmp.Or(cmp.Compare(m, n), cmp.Compare(a, b))
}

// give a setting its value, once it is on record what it was.
func (d *decider) give(place Place, name, value string, is Reading) {
	setting := place.setting(name)
	t, known := d.record[setting]
	if !known {
		if len(d.record) >= maxSettings {
			d.problem("%s was not changed: weft can record no more than %d settings of a node", setting, maxSettings)
			return
		}
		t = v1alpha1.TunedSetting{Setting: setting, Former: is.Value, State: v1alpha1.TuningRecorded}
	}
	before := t
	t.Wanted, t.Value = value, is.Value
	switch asked := before.Wanted == value; {
	case is.Value == value:
		t.State, t.Message = v1alpha1.TuningApplied, ""
		d.record[setting] = t
		return
	case asked && failed(before) && d.Tried[setting],
		// What a driver made of a value it makes of it again, and may reset the link each time.
		asked && before.State == v1alpha1.TuningClamped && before.Value == is.Value:
		d.record[setting] = t
		return
	case asked && before.State == v1alpha1.TuningApplied && !d.Tried[setting]:
		d.drifted = append(d.drifted, fmt.Sprintf("%s (was %s, had become %s)", setting, value, is.Value))
	case !asked:
		t.State, t.Message = v1alpha1.TuningRecorded, ""
	}
	d.record[setting] = t
	d.write(place, name, value)
}

func failed(t v1alpha1.TunedSetting) bool {
	return t.State == v1alpha1.TuningClamped || t.State == v1alpha1.TuningRefused || t.State == v1alpha1.TuningNotPutBack
}

// putBack what a setting was, and forget it once it is that.
func (d *decider) putBack(t v1alpha1.TunedSetting) {
	place, name, _ := parse(t.Setting)
	look := d.Looks[place]
	if look.Err != nil {
		d.problem("%s should be restored to %s, but could not be read: %v", t.Setting, t.Former, look.Err)
		return
	}
	is, has := look.Settings[name]
	switch {
	case !has || is.Value == t.Former || d.adapts(place, name):
		delete(d.record, t.Setting)
	case place.Group == Interrupts && d.writes[Place{NIC: place.NIC, Group: Channels}] != nil:
	case t.State == v1alpha1.TuningNotPutBack && d.Tried[t.Setting]:
	default:
		d.write(place, name, t.Former)
	}
}

// adapts: the driver chooses this value itself, by the traffic, so it is not what it was, nor should it be.
func (d *decider) adapts(place Place, name string) bool {
	if place.Group != Coalescing || name == adaptiveRX || name == adaptiveTX {
		return false
	}
	return d.Looks[place].Settings["adaptive"+map[byte]string{'r': "RX", 't': "TX"}[name[0]]].Value == On
}

func (d *decider) write(place Place, name, value string) {
	if d.writes[place] == nil {
		d.writes[place] = map[string]string{}
	}
	d.writes[place][name] = value
}

func (d *decider) decision() Decision {
	result := Decision{Drifted: d.drifted, Problems: d.problems}
	for _, setting := range slices.Sorted(maps.Keys(d.record)) {
		result.Record.Settings = append(result.Record.Settings, d.record[setting])
	}
	result.Record = complete(result.Record, d.BootID, d.NICs)
	for place, values := range d.writes {
		result.Writes = append(result.Writes, Write{Place: place, Values: values})
	}
	slices.SortFunc(result.Writes, func(a, b Write) int {
		return cmp.Or(cmp.Compare(a.Place.NIC, b.Place.NIC), cmp.Compare(slices.Index(groups, a.Place.Group), slices.Index(groups, b.Place.Group)))
	})
	return result
}
