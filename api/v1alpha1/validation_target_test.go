// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

const (
	target     = "NvmfTarget"
	targetSPDK = "NvmfTarget SPDK"
	// spdkInFile edits an SPDK target's devices into a file, up to the file's end.
	spdkInFile = `spec: {devices: {selector: null, file: {path: /var/lib/weft/a, size: 1Gi}, `
)

// targetRules are the rules across an NvmfTarget's fields.
var targetRules = []validation{
	{name: "as it is", base: target},
	{name: "as it is", base: targetSPDK},
	{name: "a name that fits a label", base: target, edit: `metadata: {name: ` + long(63) + `}`},
	{name: "a name too long for a label", base: target, edit: `metadata: {name: ` + long(64) + `}`,
		field: "<nil>", want: "an NvmfTarget's name has at most 63 characters: it becomes a label"},
	{name: "no spec", base: target, edit: `spec: null`, field: "spec", want: "Required value"},
	{name: "no engine", base: target, edit: `spec: {engine: null}`, field: "spec.engine", want: "Required value"},
	{name: "no node selector", base: target, edit: `spec: {nodeSelector: null}`, field: "spec.nodeSelector", want: "Required value"},
	{name: "no transports", base: target, edit: `spec: {transports: null}`, field: "spec.transports", want: "Required value"},
	{name: "no devices", base: target, edit: `spec: {devices: null}`, field: "spec.devices", want: "Required value"},
	{name: "a transport without type", base: target, edit: `spec: {transports: [{port: 1}]}`, field: "spec.transports[0].type", want: "Required value"},
	{name: "a file without path", base: target, edit: `spec: {devices: {file: {path: null}}}`, field: "spec.devices.file.path", want: "Required value"},
	{name: "a file without size", base: target, edit: `spec: {devices: {file: {size: null}}}`, field: "spec.devices.file.size", want: "Required value"},

	{name: "cores", base: target, edit: `spec: {cores: {count: 4}}`,
		field: "spec", want: "cores: the kernel's target (engine: Nvmet) has no dedicated cores; remove cores, or use engine: SPDK"},
	{name: "buffers", base: target, edit: `spec: {buffers: {}}`,
		field: "spec", want: "buffers: the kernel's target (engine: Nvmet) has no buffer pools; remove buffers, or use engine: SPDK"},
	{name: "memory", base: target, edit: `spec: {memory: {}}`,
		field: "spec", want: "memory: the kernel's target (engine: Nvmet) uses no hugepages; remove memory, or use engine: SPDK"},
	{name: "an update strategy", base: target, edit: `spec: {updateStrategy: {}}`,
		field: "spec", want: "updateStrategy: the kernel's target (engine: Nvmet) has no target pod; remove updateStrategy, or use engine: SPDK"},
	{name: "a driver", base: target, edit: `spec: {devices: {file: null, selector: {minSize: 1Ti}, driver: Kernel}}`,
		field: "spec", want: "devices.driver: the kernel's target (engine: Nvmet) uses the kernel's drivers; remove driver, or use engine: SPDK"},
	{name: "placement", base: target, edit: `spec: {transports: [{type: TCP, placement: CPU}]}`,
		field: "spec", want: "transports[].placement: connections of the kernel's target (engine: Nvmet) follow the incoming CPU by themselves; remove placement, or use engine: SPDK"},
	{name: "placement over TCP", base: targetSPDK, edit: `spec: {transports: [{type: TCP, placement: CPU}]}`},
	{name: "placement over RDMA", base: targetSPDK, edit: `spec: {transports: [{type: RDMA, placement: CPU}]}`,
		field: "spec.transports[0]", want: "placement: only TCP connections are placed by CPU or NAPI id; remove placement, or use type: TCP"},
	{name: "an SRQ over RDMA", base: target, edit: `spec: {transports: [{type: RDMA, srq: {mode: Enabled, depth: 1024}}]}`},
	{name: "an SRQ over TCP", base: target, edit: `spec: {transports: [{type: TCP, srq: {}}]}`,
		field: "spec.transports[0]", want: "srq: only RDMA has shared receive queues; remove srq, or use type: RDMA"},
	{name: "a depth without SRQ", base: target, edit: `spec: {transports: [{type: RDMA, srq: {mode: Disabled, depth: 1024}}]}`,
		field: "spec.transports[0].srq", want: "srq.depth has no effect with mode Disabled; remove it"},
	{name: "no SRQ", base: target, edit: `spec: {transports: [{type: RDMA, srq: {mode: Disabled}}]}`},

	{name: "both transports on one port", base: target, edit: `spec: {transports: [{type: TCP}, {type: RDMA}]}`},
	{name: "one transport on two ports", base: target, edit: `spec: {transports: [{type: TCP}, {type: TCP, port: 4421}]}`},
	{name: "one transport on two networks", base: target, edit: `spec: {transports: [{type: TCP, network: {cidr: 10.0.0.0/8}}, {type: TCP, network: {interface: eth1}}]}`},
	{name: "one transport twice", base: target, edit: `spec: {transports: [{type: TCP, queueDepth: 64}, {type: TCP, port: 4420}]}`,
		field: "spec", want: "transports: two of one type need different ports or different networks"},
	{name: "one transport twice in one network", base: target, edit: `spec: {transports: [{type: TCP, network: {interface: eth1}}, {type: TCP, network: {interface: eth1}}]}`,
		field: "spec", want: "transports: two of one type need different ports or different networks"},

	{name: "an empty network", base: target, edit: `spec: {transports: [{type: TCP, network: {}}]}`,
		field: "spec.transports[0].network", want: "network: give exactly one of cidr and interface"},
	{name: "a network given twice", base: target, edit: `spec: {transports: [{type: TCP, network: {cidr: 10.20.0.0/16, interface: eth1}}]}`,
		field: "spec.transports[0].network", want: "network: give exactly one of cidr and interface"},

	{name: "a core count", base: targetSPDK, edit: `spec: {cores: {count: 4}}`},
	{name: "a core mask", base: targetSPDK, edit: `spec: {cores: {mask: "0xf0", mode: Static}}`},
	{name: "no way to cores", base: targetSPDK, edit: `spec: {cores: {mode: Static}}`,
		field: "spec.cores", want: "cores: give exactly one of count and mask"},
	{name: "two ways to cores", base: targetSPDK, edit: `spec: {cores: {count: 4, mask: "0xf0"}}`,
		field: "spec.cores", want: "cores: give exactly one of count and mask"},
	{name: "knobs of the dynamic mode", base: targetSPDK, edit: `spec: {cores: {count: 4, dynamic: {loadLimit: 30}}}`},
	{name: "knobs of another mode", base: targetSPDK, edit: `spec: {cores: {count: 4, mode: Interrupt, dynamic: {loadLimit: 30}}}`,
		field: "spec.cores", want: "cores.dynamic needs mode: Dynamic"},

	{name: "buffers by hand", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {count: 512, cachePerCore: 16}, small: {count: 4096, cachePerCore: 128}}}`},
	{name: "buffers by hand, half", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {count: 512, cachePerCore: 16}}}`,
		field: "spec.buffers", want: "buffers: mode Manual needs large and small; mode Auto takes neither"},
	{name: "buffers by themselves and by hand", base: targetSPDK, edit: `spec: {buffers: {small: {count: 4096, cachePerCore: 128}}}`,
		field: "spec.buffers", want: "buffers: mode Manual needs large and small; mode Auto takes neither"},
	{name: "large buffers, bare", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {}, small: {count: 4096, cachePerCore: 128}}}`,
		field: "spec.buffers.large.count", want: "Required value"},
	{name: "large buffers without cache", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {count: 8}, small: {count: 4096, cachePerCore: 128}}}`,
		field: "spec.buffers.large.cachePerCore", want: "Required value"},
	{name: "small buffers, bare", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {count: 8, cachePerCore: 1}, small: {}}}`,
		field: "spec.buffers.small.count", want: "Required value"},
	{name: "small buffers without cache", base: targetSPDK, edit: `spec: {buffers: {mode: Manual, large: {count: 8, cachePerCore: 1}, small: {count: 64}}}`,
		field: "spec.buffers.small.cachePerCore", want: "Required value"},

	{name: "no way to devices", base: target, edit: `spec: {devices: {file: null}}`,
		field: "spec.devices", want: "devices: give exactly one of selector, paths and file"},
	{name: "a file and paths", base: target, edit: `spec: {devices: {paths: [/dev/disk/by-id/nvme-a]}}`,
		field: "spec.devices", want: "devices: give exactly one of selector, paths and file"},
	{name: "a selector and paths", base: target, edit: `spec: {devices: {file: null, selector: {minSize: 1Ti}, paths: [/dev/disk/by-id/nvme-a]}}`,
		field: "spec.devices", want: "devices: give exactly one of selector, paths and file"},
	{name: "paths", base: target, edit: `spec: {devices: {file: null, paths: [/dev/disk/by-id/nvme-a, "/dev/disk/by-path/pci-0000:5e:00.0-nvme-1"]}}`},
	{name: "a selector of everything", base: target, edit: `spec: {devices: {file: null, selector: {}}}`,
		field: "spec.devices.selector", want: "devices.selector: give at least one of models, minSize and byID"},
	{name: "a selector with all fields", base: target, edit: `spec: {devices: {file: null, selector: {models: ["A*"], minSize: 1Ti, byID: ["nvme-A*"]}}}`},

	{name: "the kernel's driver of a file", base: targetSPDK, edit: spdkInFile + `driver: Kernel}}`},
	{name: "another driver of a file", base: targetSPDK, edit: spdkInFile + `driver: VFIO}}`,
		field: "spec.devices", want: "devices.driver: a file has no drive to take from the kernel; remove driver, or give drives with selector or paths"},
	{name: "another driver of a file, later", base: targetSPDK, edit: spdkInFile + `}}`, update: `spec: {devices: {driver: UIO}}`,
		field: "spec.devices", want: "devices.driver: a file has no drive to take from the kernel; remove driver, or give drives with selector or paths"},

	{name: "a rolling update", base: targetSPDK, edit: `spec: {updateStrategy: {type: RollingUpdate, maxUnavailable: 2}}`},
	{name: "a rolling update's number without it", base: targetSPDK, edit: `spec: {updateStrategy: {maxUnavailable: 2}}`,
		field: "spec.updateStrategy", want: "updateStrategy.maxUnavailable needs type: RollingUpdate"},
}

// targetBounds are the values of an NvmfTarget's single fields.
func targetBounds() []validation {
	const (
		transport  = `spec: {transports: [{type: TCP, `
		first      = "spec.transports[0]."
		quantity   = "should match '^(\\+|-)?"
		ioSize     = "maxIOSize must be a power of two from 8Ki to 2Mi, such as 128Ki"
		inCapsule  = "inCapsuleDataSize must be from 0 to 64Ki, in steps of 16 bytes"
		notNetwork = "cidr must be a network such as 10.20.0.0/16 or fd00:20::/64"
		noFile     = `spec: {devices: {file: null, `
		pool       = `spec: {buffers: {mode: Manual, large: {count: 512, cachePerCore: 16}, small: {count: 4096, cachePerCore: 128}, `
		period     = "period must be from 1ms to 1m, such as 500ms"
	)
	return fields(
		enum(target, "spec.engine", `spec: {engine: %s}`, "SPDK", "Nvmet"),
		field{base: target, path: "spec.transports", edit: `spec: {transports: %s}`,
			good: []string{many(4, `{type: TCP, port: 442%d}`)},
			bad:  map[string]string{"[]": "should have at least 1 items", many(5, `{type: TCP, port: 442%d}`): "must have at most 4 items"}},
		enum(target, first+"type", `spec: {transports: [{type: %s}]}`, "TCP", "RDMA"),
		bounds(target, first+"port", transport+`port: %s}]}`, 1, 65535),
		bounds(target, first+"queueDepth", transport+`queueDepth: %s}]}`, 16, 1024),
		bounds(target, first+"maxIOQueues", transport+`maxIOQueues: %s}]}`, 1, 127),
		field{base: target, path: first + "inCapsuleDataSize", edit: transport + `inCapsuleDataSize: %s}]}`,
			good: []string{"0", "4Ki", "8192", `"8192"`, "64Ki", "65536", "16"},
			bad: map[string]string{"65Ki": inCapsule, "65552": inCapsule, "-16": inCapsule, "100": inCapsule, `"0.5"`: inCapsule, "1m": inCapsule, "16Ei": inCapsule,
				"much": quantity}},
		field{base: target, path: first + "maxIOSize", edit: transport + `maxIOSize: %s}]}`,
			good: []string{"8Ki", "128Ki", "131072", `"131072"`, "1Mi", "2Mi", "2048Ki"},
			bad:  map[string]string{"4Ki": ioSize, "4Mi": ioSize, "100Ki": ioSize, "131073": ioSize, "128k": ioSize, "0": ioSize, "16Ei": ioSize, "much": quantity}},
		field{base: target, path: first + "network.cidr", edit: transport + `network: {cidr: %s}}]}`,
			good: []string{"10.20.0.0/16", `"fd00:20::/64"`},
			bad:  map[string]string{"10.20.0.5": notNetwork, `"10.20.0.0/33"`: notNetwork, "storage": notNetwork, long(44): "may not be more than 43"}},
		field{base: target, path: first + "network.interface", edit: transport + `network: {interface: %s}}]}`,
			good: []string{"e", "ens1f0np0", "bond0.100", long(15)},
			bad:  map[string]string{`""`: "at least 1 chars long", long(16): "may not be more than 15", `"a b"`: "should match", "../eth0": "should match"}},
		enum(targetSPDK, first+"placement", transport+`placement: %s}]}`, "None", "NAPI", "CPU"),
		enum(target, first+"srq.mode", `spec: {transports: [{type: RDMA, srq: {mode: %s}}]}`, "Auto", "Enabled", "Disabled"),
		bounds(target, first+"srq.depth", `spec: {transports: [{type: RDMA, srq: {depth: %s}}]}`, 16, 65535),
		bounds(target, "spec.attachments.expected", `spec: {attachments: {expected: %s}}`, 1, 4096),
		bounds(target, "spec.attachments.ioQueues", `spec: {attachments: {ioQueues: %s}}`, 1, 127),

		bounds(targetSPDK, "spec.cores.count", `spec: {cores: {count: %s}}`, 1, 256),
		field{base: targetSPDK, path: "spec.cores.mask", edit: `spec: {cores: {mask: "%s"}}`,
			good: []string{"0x1", "0xF0", "0x" + long(256)},
			bad:  map[string]string{"0x0": "cores.mask must name at least one CPU", "0x000": "cores.mask must name at least one CPU", "f0": "should match", "[1,2]": "should match", "0x" + long(257): "may not be more than 258"}},
		enum(targetSPDK, "spec.cores.mode", `spec: {cores: {count: 1, mode: %s}}`, "Static", "Dynamic", "Interrupt"),
		field{base: targetSPDK, path: "spec.cores.dynamic.period", edit: `spec: {cores: {count: 1, dynamic: {period: %s}}}`,
			good: []string{"1ms", "1s", "0.5s", "60s", "1m", "1m0s"},
			bad:  map[string]string{"999us": period, "61s": period, "-1s": period, "0s": period, "soon": period, `"10"`: period, `""`: period}},
		bounds(targetSPDK, "spec.cores.dynamic.loadLimit", `spec: {cores: {count: 1, dynamic: {loadLimit: %s}}}`, 1, 99),
		bounds(targetSPDK, "spec.cores.dynamic.coreLimit", `spec: {cores: {count: 1, dynamic: {coreLimit: %s}}}`, 1, 100),
		bounds(targetSPDK, "spec.cores.dynamic.coreBusy", `spec: {cores: {count: 1, dynamic: {coreBusy: %s}}}`, 1, 100),
		field{base: targetSPDK, path: "spec.buffers.mode", edit: `spec: {buffers: {mode: %s}}`, good: []string{"Auto"}, bad: map[string]string{"Nonsense": `supported values: "Auto", "Manual"`}},
		bounds(targetSPDK, "spec.buffers.large.count", pool+`large: {count: %s, cachePerCore: 16}}}`, 8, 1048576),
		bounds(targetSPDK, "spec.buffers.large.cachePerCore", pool+`large: {count: 512, cachePerCore: %s}}}`, 1, 65535),
		bounds(targetSPDK, "spec.buffers.small.count", pool+`small: {count: %s, cachePerCore: 16}}}`, 64, 1048576),
		bounds(targetSPDK, "spec.buffers.small.cachePerCore", pool+`small: {count: 512, cachePerCore: %s}}}`, 1, 65535),
		enum(targetSPDK, "spec.memory.hugepages", `spec: {memory: {hugepages: %s}}`, "2Mi", "1Gi", "Disabled"),
		field{base: targetSPDK, path: "spec.memory.limit", edit: `spec: {memory: {limit: %s}}`,
			good: []string{"64Mi", "4Gi", "67108864", `"67108864"`},
			bad:  map[string]string{"63Mi": "memory.limit must be at least 64Mi", "67108863": "memory.limit must be at least 64Mi", "-4Gi": "memory.limit must be at least 64Mi", "much": quantity}},
		enum(targetSPDK, "spec.updateStrategy.type", `spec: {updateStrategy: {type: %s}}`, "OnDelete", "RollingUpdate"),
		bounds(targetSPDK, "spec.updateStrategy.maxUnavailable", `spec: {updateStrategy: {type: RollingUpdate, maxUnavailable: %s}}`, 1, 100),

		enum(targetSPDK, "spec.devices.driver", `spec: {devices: {driver: %s}}`, "Kernel", "VFIO", "UIO"),
		field{base: target, path: "spec.devices.paths", edit: noFile + `paths: %s}}`,
			good: []string{many(64, "/dev/disk/by-id/nvme-%d")},
			bad:  map[string]string{"[]": "should have at least 1 items", many(65, "/dev/disk/by-id/nvme-%d"): "must have at most 64 items"}},
		field{base: target, path: "spec.devices.paths[1]", edit: noFile + `paths: [/dev/disk/by-id/a, %s]}}`,
			good: []string{"/dev/disk/by-id/nvme-eui.1"},
			bad:  map[string]string{"/dev/disk/by-id/a": "Duplicate value"}},
		field{base: target, path: "spec.devices.paths[0]", edit: noFile + `paths: [%s]}}`,
			good: []string{"/dev/disk/by-id/" + long(239)},
			bad:  map[string]string{"/dev/nvme0n1": "should match", "/dev/disk/by-uuid/1": "should match", "/dev/disk/by-id/../../sda": "should match", "/dev/disk/by-id/" + long(240): "may not be more than 255"}},
		field{base: target, path: "spec.devices.selector.models", edit: noFile + `selector: {models: %s}}}`,
			good: []string{many(32, `"M%d*"`)},
			bad:  map[string]string{"[]": "should have at least 1 items", many(33, `"M%d*"`): "must have at most 32 items"}},
		field{base: target, path: "spec.devices.selector.models[1]", edit: noFile + `selector: {models: [a, %s]}}}`,
			good: []string{long(64)},
			bad:  map[string]string{"a": "Duplicate value", `""`: "at least 1 chars long", long(65): "may not be more than 64"}},
		field{base: target, path: "spec.devices.selector.byID", edit: noFile + `selector: {byID: %s}}}`,
			good: []string{many(32, `"nvme-%d*"`)},
			bad:  map[string]string{"[]": "should have at least 1 items", many(33, `"nvme-%d*"`): "must have at most 32 items"}},
		field{base: target, path: "spec.devices.selector.byID[1]", edit: noFile + `selector: {byID: [a, %s]}}}`,
			good: []string{long(255)},
			bad:  map[string]string{"a": "Duplicate value", `""`: "at least 1 chars long", long(256): "may not be more than 255"}},
		field{base: target, path: "spec.devices.selector.minSize", edit: noFile + `selector: {minSize: %s}}}`,
			good: []string{"1Ti", "500G", "1000000000", `"1000000000"`},
			bad:  map[string]string{"large": quantity}},
		field{base: target, path: "spec.devices.file.path", edit: `spec: {devices: {file: {path: %s}}}`,
			good: []string{"/var/lib/weft/a", "/var/lib/weft/pools/a.img"},
			bad: map[string]string{"/var/lib/weft/": "should match", "/etc/passwd": "should match", "/var/lib/weft/../../etc/passwd": "should match", "/var/lib/weft/.a": "should match",
				"/var/lib/weft/" + long(242): "may not be more than 255"}},
		field{base: target, path: "spec.devices.file.size", edit: `spec: {devices: {file: {size: %s}}}`,
			good: []string{"1Gi", "1073741824", `"1073741824"`, "1T"},
			bad:  map[string]string{"1G": "devices.file.size must be at least 1Gi", "1073741823": "devices.file.size must be at least 1Gi", "-2Gi": "devices.file.size must be at least 1Gi", "much": quantity}},
	)
}

// targetUpdates are changes of an NvmfTarget.
var targetUpdates = []validation{
	{name: "another engine", base: target, update: `spec: {engine: SPDK}`,
		field: "spec.engine", want: "engine is immutable: the engines lay data out differently; make a second NvmfTarget and move the volumes"},
	{name: "a larger file", base: target, update: `spec: {devices: {file: {size: 21474836481}}}`},
	{name: "the same file in other words", base: target, update: `spec: {devices: {file: {size: 21474836480}}}`},
	{name: "a smaller file", base: target, update: `spec: {devices: {file: {size: 21474836479}}}`,
		field: "spec.devices.file.size", want: "devices.file.size may grow, never shrink"},
	{name: "another file", base: target, update: `spec: {devices: {file: {path: /var/lib/weft/other.img}}}`,
		field: "spec.devices.file.path", want: "devices.file.path is immutable: another file would be an empty pool; make a second NvmfTarget"},
	{name: "a file into drives", base: target, update: `spec: {devices: {file: null, selector: {minSize: 1Ti}}}`,
		field: "spec.devices", want: "devices: a file cannot be changed into drives, nor drives into a file: the volumes would be lost; make a second NvmfTarget"},
	{name: "drives into a file", base: targetSPDK, update: `spec: {devices: {selector: null, file: {path: /var/lib/weft/a, size: 1Gi}}}`,
		field: "spec.devices", want: "devices: a file cannot be changed into drives, nor drives into a file: the volumes would be lost; make a second NvmfTarget"},
	{name: "a selector into paths", base: targetSPDK, update: `spec: {devices: {selector: null, paths: [/dev/disk/by-id/nvme-a]}}`},
	{name: "other transports and nodes", base: target, update: `spec: {nodeSelector: {matchLabels: {a: b}}, transports: [{type: RDMA, port: 4421}]}`},
}
