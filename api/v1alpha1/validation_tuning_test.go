// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"slices"
)

// tuningRules are those of an NvmfTarget's tuning, and of what a plan makes of it.
func tuningRules() []validation {
	const (
		where    = "spec.tuning."
		planned  = `spec: {plan: {tuning: [{`
		rises    = "min, default and max of a TCP buffer must be in ascending order, such as 4096, 131072, 16777216"
		oneOf    = "interrupts: set exactly one of cpus, avoid and count"
		adaptive = "coalescing: with adaptive%[1]sX Enabled the driver chooses %[2]sxUsecs and %[2]sxFrames itself; remove them, or set adaptive%[1]sX to Disabled"
	)
	tuning := func(edit string) string { return `spec: {tuning: {` + edit + `}}` }
	rules := []validation{
		{name: "tuning of nothing", base: target, edit: tuning("")},
		{name: "tuning", base: targetSPDK, edit: tuning(`sysctls: {rmemMax: 16777216, rmemDefault: 16777216, tcpRmem: {min: 4096, default: 4096, max: 4096}}, interrupts: {count: 4}`)},
		{name: "interrupts nowhere", base: target, edit: tuning(`interrupts: {}`), field: where + "interrupts", want: oneOf},
		{name: "interrupts in two ways", base: target, edit: tuning(`interrupts: {cpus: "0", avoid: "1"}`), field: where + "interrupts", want: oneOf},
		{name: "a fixed time", base: target, edit: tuning(`coalescing: {rxUsecs: 16, txFrames: 8, adaptiveTX: Disabled}`)},
		{name: "a planned setting without name", base: node, edit: planned + `value: a}]}}`, field: "spec.plan.tuning[0].setting", want: "Required value"},
		{name: "a planned setting without value", base: node, edit: planned + `setting: a}]}}`, field: "spec.plan.tuning[0].value", want: "Required value"},
		{name: "a setting planned twice", base: node, edit: planned + `setting: a, value: b}, {setting: a, value: c}]}}`, field: "spec.plan.tuning[1]", want: "Duplicate value"},
	}
	for _, d := range []struct{ upper, lower string }{{"R", "r"}, {"T", "t"}} {
		buffers := map[string]string{"r": "tcpRmem", "t": "tcpWmem"}[d.lower]
		for _, name := range []string{"min", "default", "max"} {
			rules = append(rules, validation{name: buffers + " without " + name, base: target,
				edit:  tuning(fmt.Sprintf(`sysctls: {%s: {min: 4096, default: 4096, max: 4096, %s: null}}`, buffers, name)),
				field: where + "sysctls." + buffers + "." + name, want: "Required value"})
		}
		for _, what := range []string{"Usecs", "Frames"} {
			rules = append(rules, validation{name: d.lower + "x" + what + " by the driver", base: target,
				edit:  tuning(fmt.Sprintf(`coalescing: {adaptive%sX: Enabled, %sx%s: 1}`, d.upper, d.lower, what)),
				field: where + "coalescing", want: fmt.Sprintf(adaptive, d.upper, d.lower)})
		}
		rules = append(rules,
			validation{name: buffers + " that falls at the start", base: target, edit: tuning(`sysctls: {` + buffers + `: {min: 8192, default: 4096, max: 8192}}`), field: where + "sysctls." + buffers, want: rises},
			validation{name: buffers + " that falls at the end", base: target, edit: tuning(`sysctls: {` + buffers + `: {min: 4096, default: 8192, max: 4096}}`), field: where + "sysctls." + buffers, want: rises},
		)
	}
	for _, b := range []string{"rmem", "wmem"} {
		rules = append(rules, validation{name: b + " over its most", base: target, edit: tuning(fmt.Sprintf(`sysctls: {%[1]sMax: 8192, %[1]sDefault: 8193}`, b)),
			field: where + "sysctls", want: fmt.Sprintf("sysctls.%[1]sDefault must not be greater than %[1]sMax", b)})
	}
	return slices.Concat(rules, fields(tuningFields(where, tuning)...), fields(
		field{base: node, path: "spec.plan.tuning", edit: `spec: {plan: {tuning: %s}}`, good: []string{many(512, `{setting: s%d, value: a}`)},
			bad: map[string]string{many(513, `{setting: s%d, value: a}`): "must have at most 512 items"}},
		longest(node, "spec.plan.tuning[0].setting", planned+`value: a, setting: %s}]}}`, 63),
		longest(node, "spec.plan.tuning[0].value", planned+`setting: a, value: %s}]}}`, 4096),
		field{base: node, path: "spec.plan.tuning[0].setting", edit: planned + `value: a, setting: %s}]}}`, bad: map[string]string{`""`: "should be at least 1 chars long"}},
		field{base: node, path: "spec.plan.tuning[0].value", edit: planned + `setting: a, value: %s}]}}`, bad: map[string]string{`""`: "should be at least 1 chars long"}},
	))
}

// tuningFields are the values of single fields.
func tuningFields(where string, tuning func(string) string) []field {
	var all []field
	number := func(group, name string, low, high int) {
		all = append(all, bounds(target, where+group+"."+name, tuning(group+`: {`+name+`: %s}`), low, high))
	}
	const gib = 1 << 30
	for _, name := range []string{"rmemMax", "wmemMax", "rmemDefault", "wmemDefault"} {
		number("sysctls", name, 4608, gib)
	}
	for _, s := range []struct {
		name      string
		low, high int
	}{
		{"optmemMax", 4096, 16 << 20}, {"netdevBudget", 1, 100000}, {"netdevBudgetUsecs", 1, 1000000}, {"netdevMaxBacklog", 1, 10000000},
		{"devWeight", 1, 4096}, {"busyPoll", 0, 1000}, {"busyRead", 0, 1000}, {"somaxconn", 128, 65535},
	} {
		number("sysctls", s.name, s.low, s.high)
	}
	for _, buffers := range []string{"tcpRmem", "tcpWmem"} {
		for name, rest := range map[string]string{"min": "default: 1073741824, max: 1073741824", "default": "min: 4096, max: 1073741824", "max": "min: 4096, default: 4096"} {
			all = append(all, bounds(target, where+"sysctls."+buffers+"."+name, tuning(`sysctls: {`+buffers+`: {`+rest+`, `+name+`: %s}}`), 4096, gib))
		}
	}
	word := func(name, good, bad string) field {
		return field{base: target, path: where + "sysctls." + name, edit: tuning(`sysctls: {` + name + `: "%s"}`), good: []string{good, long(15)},
			bad: map[string]string{bad: "should match", long(16): "may not be more than 15"}}
	}
	all = append(all, word("defaultQdisc", "fq_codel", "../x"), word("tcpCongestionControl", "dctcp-reno", "Reno"),
		enum(target, where+"sysctls.tcpSlowStartAfterIdle", tuning(`sysctls: {tcpSlowStartAfterIdle: %s}`), "Enabled", "Disabled"))
	for _, name := range []string{"rx", "tx"} {
		number("rings", name, 16, 65536)
		number("channels", name, 1, 1024)
		number("coalescing", name+"Usecs", 0, 10000)
		number("coalescing", name+"Frames", 0, 65535)
	}
	number("channels", "combined", 1, 1024)
	number("interrupts", "count", 1, 1024)
	for group, names := range map[string][]string{"coalescing": {"adaptiveRX", "adaptiveTX"}, "offloads": {"tso", "gso", "gro", "lro"}} {
		for _, name := range names {
			all = append(all, enum(target, where+group+"."+name, tuning(group+`: {`+name+`: %s}`), "Enabled", "Disabled"))
		}
	}
	for _, name := range []string{"cpus", "avoid"} {
		all = append(all, field{base: target, path: where + "interrupts." + name, edit: tuning(`interrupts: {` + name + `: "%s"}`), good: []string{"0", "0-3,8,10-11"},
			bad: map[string]string{"0x3": "should match", "1-": "should match", "": "should match", long(256): "may not be more than 255"}})
	}
	return all
}
