// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
)

const nodeSPDK = "NvmfNode SPDK"

// planRules are those of what an NvmfNode's plan says of SPDK's target.
func planRules() []validation {
	const (
		spdk     = `spec: {plan: {spdk: {`
		path     = "spec.plan.spdk."
		together = "spdk is required when engine is SPDK, and must not be set otherwise"
		choice   = `spec: {plan: {choices: [{`
		memory   = `spec: {plan: {memory: [{`
	)
	rules := []validation{
		{name: "as it is", base: nodeSPDK},
		{name: "polling", base: nodeSPDK, edit: spdk + `pollGroupMask: null, mode: Static, scheduler: null}}}`},
		{name: "over TCP without hugepages", base: nodeSPDK, edit: spdk + `hugepages: Disabled, driver: Kernel, placement: CPU, transports: [` + plannedTransport("type: TCP", "srqDepth: null") + `]}}}`},
		{name: "engine SPDK without spdk", base: nodeSPDK, edit: `spec: {plan: {spdk: null}}`, field: "spec.plan", want: together},
		{name: "spdk with another engine", base: nodeSPDK, edit: `spec: {plan: {engine: Nvmet}}`, field: "spec.plan", want: together},
		{name: "a transport twice", base: nodeSPDK, edit: spdk + `transports: [` + plannedTransport() + `, ` + plannedTransport() + `]}}}`,
			field: path + "transports[1]", want: "Duplicate value"},
		{name: "both transports", base: nodeSPDK, edit: spdk + `transports: [` + plannedTransport() + `, ` + plannedTransport("type: TCP") + `]}}}`},
		{name: "a third transport", base: nodeSPDK, edit: spdk + `transports: [` + strings.Repeat(plannedTransport()+`, `, 2) + plannedTransport() + `]}}}`,
			field: path + "transports", want: "must have at most 2 items"},
		{name: "no transport", base: nodeSPDK, edit: spdk + `transports: []}}}`, field: path + "transports", want: "should have at least 1 items"},
		{name: "a setting chosen twice", base: nodeSPDK, edit: `spec: {plan: {choices: [{setting: a, value: b, source: Given, why: c}, {setting: a, value: c, source: Given, why: d}]}}`,
			field: "spec.plan.choices[1]", want: "Duplicate value"},
		{name: "a use of memory twice", base: nodeSPDK, edit: `spec: {plan: {memory: [{use: a, bytes: 1}, {use: a, bytes: 2}]}}`,
			field: "spec.plan.memory[1]", want: "Duplicate value"},
	}
	missing := func(where, edit string, names ...string) {
		for _, name := range names {
			rules = append(rules, validation{name: "no " + where + name, base: nodeSPDK, edit: fmt.Sprintf(edit, name), field: "spec.plan." + where + name, want: "Required value"})
		}
	}
	missing("spdk.", spdk+`%s: null}}}`, "coreMask", "mode", "hugepages", "memoryBytes", "podMemoryBytes", "bdevIOPoolSize",
		"smallBuffers", "largeBuffers", "maxSubsystems", "transports", "driver")
	const sockets = `sockets: {zeroCopySend: Enabled, zeroCopyThreshold: 0, receivePipe: Enabled, quickAck: Disabled, sendBufferSize: 1, receiveBufferSize: 1, `
	missing("spdk.sockets.", spdk+sockets+`%s: null}}}}`,
		"zeroCopySend", "zeroCopyThreshold", "receivePipe", "quickAck", "sendBufferSize", "receiveBufferSize")
	missing("spdk.scheduler.", spdk+`scheduler: {%s: null}}}}`, "periodMicroseconds", "loadLimit", "coreLimit", "coreBusy")
	for _, name := range []string{"type", "queueDepth", "maxIOQueues", "inCapsuleDataSize", "maxIOSize", "smallCache", "largeCache"} {
		rules = append(rules, validation{name: "no transports[]." + name, base: nodeSPDK, edit: spdk + `transports: [` + plannedTransport(name) + `]}}}`,
			field: path + "transports[0]." + name, want: "Required value"})
	}
	rules = append(rules,
		validation{name: "modules of the kernel's target for SPDK", base: nodeSPDK, edit: `spec: {plan: {nvmet: {}}}`, field: "spec.plan", want: "nvmet must not be set unless engine is Nvmet"},
		validation{name: "a module without idle polling", base: node, edit: `spec: {plan: {nvmet: {tcp: {socketPriority: 0}}}}`, field: "spec.plan.nvmet.tcp.idlePollPeriodMicroseconds", want: "Required value"},
		validation{name: "a module without priority", base: node, edit: `spec: {plan: {nvmet: {tcp: {idlePollPeriodMicroseconds: 0}}}}`, field: "spec.plan.nvmet.tcp.socketPriority", want: "Required value"},
		validation{name: "a choice of nothing", base: nodeSPDK, edit: choice + `value: b, source: Given, why: c}]}}`, field: "spec.plan.choices[0].setting", want: "Required value"},
		validation{name: "a choice without value", base: nodeSPDK, edit: choice + `setting: a, source: Given, why: c}]}}`, field: "spec.plan.choices[0].value", want: "Required value"},
		validation{name: "a choice without source", base: nodeSPDK, edit: choice + `setting: a, value: b, why: c}]}}`, field: "spec.plan.choices[0].source", want: "Required value"},
		validation{name: "a choice without why", base: nodeSPDK, edit: choice + `setting: a, value: b, source: Given}]}}`, field: "spec.plan.choices[0].why", want: "Required value"},
		validation{name: "memory for nothing", base: nodeSPDK, edit: memory + `bytes: 1}]}}`, field: "spec.plan.memory[0].use", want: "Required value"},
		validation{name: "memory of no size", base: nodeSPDK, edit: memory + `use: a}]}}`, field: "spec.plan.memory[0].bytes", want: "Required value"},
	)
	mask := func(name string) field {
		return field{base: nodeSPDK, path: path + name, edit: spdk + name + `: "%s"}}}`, good: []string{"0x1", "0x" + long(256)},
			bad: map[string]string{"3c": "should match", "0x": "should match", "0xF0": "should match", "[2-5]": "should match", "0x" + long(257): "may not be more than 258"}}
	}
	transport := func(name string) (where, edit string) {
		return path + "transports[0]." + name, spdk + `transports: [` + plannedTransport(name+": %s") + `]}}}`
	}
	number := func(name string, low, high int) field {
		where, edit := transport(name)
		return bounds(nodeSPDK, where, edit, low, high)
	}
	lowest := func(name string, n int) field {
		where, edit := transport(name)
		return least(nodeSPDK, where, edit, n)
	}
	typePath, typeEdit := transport("type")
	successPath, successEdit := transport("c2hSuccess")
	socket := func(name string) (where, edit string) {
		return path + "sockets." + name, spdk + sockets + name + `: %s}}}}`
	}
	toggle := func(name string) field {
		where, edit := socket(name)
		return enum(nodeSPDK, where, edit, "Enabled", "Disabled")
	}
	bytes := func(name string, n int) field {
		where, edit := socket(name)
		return least(nodeSPDK, where, edit, n)
	}
	return slices.Concat(rules, fields(
		bounds(nodeSPDK, "spec.plan.clusterBytes", `spec: {plan: {clusterBytes: %s}}`, 1<<20, 16<<20),
		mask("coreMask"),
		mask("pollGroupMask"),
		enum(nodeSPDK, path+"mode", spdk+`mode: %s}}}`, "Static", "Dynamic", "Interrupt"),
		least(nodeSPDK, path+"scheduler.periodMicroseconds", spdk+`scheduler: {periodMicroseconds: %s}}}}`, 1000),
		enum(nodeSPDK, path+"hugepages", spdk+`hugepages: %s}}}`, "2Mi", "1Gi", "Disabled"),
		least(nodeSPDK, path+"memoryBytes", spdk+`memoryBytes: %s}}}`, 64<<20),
		least(nodeSPDK, path+"podMemoryBytes", spdk+`podMemoryBytes: %s}}}`, 1),
		least(nodeSPDK, path+"bdevIOPoolSize", spdk+`bdevIOPoolSize: %s}}}`, 1),
		least(nodeSPDK, path+"smallBuffers", spdk+`smallBuffers: %s}}}`, 64),
		least(nodeSPDK, path+"largeBuffers", spdk+`largeBuffers: %s}}}`, 8),
		least(nodeSPDK, path+"maxSubsystems", spdk+`maxSubsystems: %s}}}`, 1),
		bounds(nodeSPDK, path+"attachments.expected", spdk+`attachments: {expected: %s}}}}`, 1, 4096),
		bounds(nodeSPDK, path+"attachments.ioQueues", spdk+`attachments: {ioQueues: %s}}}}`, 1, 127),
		enum(nodeSPDK, path+"placement", spdk+`placement: %s}}}`, "None", "NAPI", "CPU"),
		enum(nodeSPDK, path+"latencyHistograms", spdk+`latencyHistograms: %s}}}`, "Enabled", "Disabled"),
		enum(nodeSPDK, path+"driver", spdk+`driver: %s}}}`, "Kernel", "VFIO", "UIO"),
		least(node, "spec.plan.nvmet.tcp.idlePollPeriodMicroseconds", `spec: {plan: {nvmet: {tcp: {idlePollPeriodMicroseconds: %s, socketPriority: 0}}}}`, 0),
		bounds(node, "spec.plan.nvmet.tcp.socketPriority", `spec: {plan: {nvmet: {tcp: {idlePollPeriodMicroseconds: 0, socketPriority: %s}}}}`, 0, 15),
		bounds(node, "spec.plan.nvmet.rdma.srqDepth", `spec: {plan: {nvmet: {rdma: {srqDepth: %s}}}}`, 256, 65535),
		toggle("zeroCopySend"), toggle("receivePipe"), toggle("quickAck"),
		bytes("zeroCopyThreshold", 0), bytes("sendBufferSize", 1), bytes("receiveBufferSize", 1),
		enum(nodeSPDK, successPath, successEdit, "Enabled", "Disabled"),
		enum(nodeSPDK, typePath, typeEdit, "TCP", "RDMA"),
		number("queueDepth", 16, 1024),
		number("maxIOQueues", 1, 127),
		number("inCapsuleDataSize", 0, 65536),
		lowest("maxIOSize", 8192),
		lowest("smallCache", 1),
		lowest("largeCache", 1),
		number("srqDepth", 16, 65535),
		number("socketPriority", 0, 15),
		field{base: nodeSPDK, path: "spec.plan.drives[0].pciAddress", edit: `spec: {plan: {drives: [{id: a, pciAddress: "%s"}]}}`,
			good: []string{"0000:5e:00.0", "10000:01:00.7"},
			bad:  map[string]string{"5e:00.0": "should match", "0000:5E:00.0": "should match", "0000:5e:00.8": "should match", "../nvme0": "should match"}},
		field{base: nodeSPDK, path: "spec.plan.choices", edit: `spec: {plan: {choices: %s}}`, good: []string{many(128, `{setting: s%d, value: a, source: Default, why: b}`)},
			bad: map[string]string{many(129, `{setting: s%d, value: a, source: Default, why: b}`): "must have at most 128 items"}},
		longest(nodeSPDK, "spec.plan.choices[0].setting", choice+`value: a, source: Given, why: b, setting: %s}]}}`, 63),
		longest(nodeSPDK, "spec.plan.choices[0].value", choice+`setting: a, source: Given, why: b, value: %s}]}}`, 258),
		enum(nodeSPDK, "spec.plan.choices[0].source", choice+`setting: a, value: b, why: c, source: %s}]}}`, "Given", "Default", "Computed"),
		longest(nodeSPDK, "spec.plan.choices[0].why", choice+`setting: a, value: b, source: Given, why: %s}]}}`, 1024),
		longest(nodeSPDK, "spec.plan.choices[0].warning", choice+`setting: a, value: b, source: Given, why: c, warning: %s}]}}`, 1024),
		field{base: nodeSPDK, path: "spec.plan.memory", edit: `spec: {plan: {memory: %s}}`, good: []string{many(64, `{use: u%d, bytes: 1}`)},
			bad: map[string]string{many(65, `{use: u%d, bytes: 1}`): "must have at most 64 items"}},
		longest(nodeSPDK, "spec.plan.memory[0].use", memory+`bytes: 1, use: %s}]}}`, 63),
		longest(nodeSPDK, "spec.plan.memory[0].how", memory+`use: a, bytes: 1, how: %s}]}}`, 255),
	))
}

// plannedTransport is a transport with changes: "field: value" sets a field, "field" alone leaves it out.
func plannedTransport(changes ...string) string {
	items := []string{"type: RDMA", "queueDepth: 128", "maxIOQueues: 8", "inCapsuleDataSize: 4096", "maxIOSize: 131072", "smallCache: 128", "largeCache: 16", "srqDepth: 1024"}
	for _, change := range changes {
		name, _, sets := strings.Cut(change, ":")
		items = slices.DeleteFunc(items, func(item string) bool { return strings.HasPrefix(item, name+":") })
		if sets {
			items = append(items, change)
		}
	}
	return "{" + strings.Join(items, ", ") + "}"
}
