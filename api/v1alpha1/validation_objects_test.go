// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
)

const (
	node     = "NvmfNode"
	volume   = "NvmfVolume"
	replica  = "NvmfReplica"
	snapshot = "NvmfSnapshot"
	mirror   = "NvmfMirror"
)

// nodeRules are those of an NvmfNode.
func nodeRules() []validation {
	const (
		portal  = `transport: TCP, address: 10.20.0.5, port: 4420, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096`
		first   = "spec.plan.portals[0]."
		inFile  = `spec: {plan: {drives: null, file: {path: /var/lib/weft/a, size: 2Gi}}}`
		address = "address must be an IPv4 or IPv6 address"
	)
	portals := func(change string) string { return `spec: {plan: {portals: [{` + portal + `, ` + change + `}]}}` }
	without := func(field string) string {
		return `spec: {plan: {portals: [{` + map[string]string{
			"transport":         `address: 10.20.0.5, port: 4420, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096`,
			"address":           `transport: TCP, port: 4420, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096`,
			"port":              `transport: TCP, address: 10.20.0.5, maxIOQueues: 8, queueDepth: 128, inCapsuleDataSize: 4096`,
			"maxIOQueues":       `transport: TCP, address: 10.20.0.5, port: 4420, queueDepth: 128, inCapsuleDataSize: 4096`,
			"queueDepth":        `transport: TCP, address: 10.20.0.5, port: 4420, maxIOQueues: 8, inCapsuleDataSize: 4096`,
			"inCapsuleDataSize": `transport: TCP, address: 10.20.0.5, port: 4420, maxIOQueues: 8, queueDepth: 128`,
		}[field] + `}]}}`
	}
	rules := []validation{
		{name: "as it is", base: node},
		{name: "as the agent makes it", base: node, edit: `spec: null`},
		{name: "a file", base: node, edit: inFile},
		{name: "a target without plan", base: node, edit: `spec: {plan: null}`, field: "spec", want: "target and plan must be set together"},
		{name: "a plan without target", base: node, edit: `spec: {target: null}`, field: "spec", want: "target and plan must be set together"},
		{name: "released", base: node, update: `spec: {target: null, plan: null}`},
		{name: "authentication without a mode", base: node, edit: `spec: {plan: {authentication: {dhGroup: None}}}`, field: "spec.plan.authentication.mode", want: "Required value"},
		{name: "authentication without a group", base: node, edit: `spec: {plan: {authentication: {mode: Required}}}`, field: "spec.plan.authentication.dhGroup", want: "Required value"},
		{name: "no engine", base: node, edit: `spec: {plan: {engine: null}}`, field: "spec.plan.engine", want: "Required value"},
		{name: "no portals", base: node, edit: `spec: {plan: {portals: null}}`, field: "spec.plan.portals", want: "Required value"},
		{name: "cordoned, and not any more", base: node, edit: `spec: {unschedulable: true, leaving: true}`, update: `spec: {unschedulable: null}`},
		{name: "a drive of a class", base: node, edit: `spec: {plan: {drives: [{id: a, deviceClass: ` + long(63) + `}]}}`},
		{name: "a drive of a class too long", base: node, edit: `spec: {plan: {drives: [{id: a, deviceClass: ` + long(64) + `}]}}`, field: "spec.plan.drives[0].deviceClass", want: "may not be more than 63"},
		{name: "a drive without id", base: node, edit: `spec: {plan: {drives: [{serial: S}]}}`, field: "spec.plan.drives[0].id", want: "Required value"},
		{name: "a dropped drive without id", base: node, edit: `spec: {droppedDrives: [{}]}`, field: "spec.droppedDrives[0].id", want: "Required value"},
		{name: "a dropped drive twice", base: node, edit: `spec: {droppedDrives: [{id: a}, {id: a}]}`, field: "spec.droppedDrives[1]", want: "Duplicate value"},
		{name: "a drive twice", base: node, edit: `spec: {plan: {drives: [{id: a}, {id: a}]}}`, field: "spec.plan.drives[1]", want: "Duplicate value"},
		{name: "a file without path", base: node, edit: `spec: {plan: {file: {size: 1Gi}}}`, field: "spec.plan.file.path", want: "Required value"},
		{name: "a file without size", base: node, edit: `spec: {plan: {file: {path: /var/lib/weft/a}}}`, field: "spec.plan.file.size", want: "Required value"},
		{name: "another file", base: node, edit: inFile, update: `spec: {plan: {file: {path: /var/lib/weft/b}}}`,
			field: "spec.plan.file.path", want: "devices.file.path is immutable: another file would be an empty pool; create a second NvmfTarget"},
		{name: "a smaller file", base: node, edit: inFile, update: `spec: {plan: {file: {size: 1Gi}}}`,
			field: "spec.plan.file.size", want: "devices.file.size can grow but not shrink"},
		{name: "a larger file", base: node, edit: inFile, update: `spec: {plan: {file: {size: 3Gi}}}`},

		{name: "a pool that is ready", base: node, status: `status: {pools: [{device: eui.1, ready: true, total: 1Ti, free: 1000}]}`},
		{name: "a pool that is not, and says why", base: node, status: `status: {pools: [{device: eui.1, ready: false, reason: DeviceMissing, message: gone}]}`},
		{name: "a pool that is not, and does not say why", base: node, status: `status: {pools: [{device: eui.1, ready: false}]}`,
			field: "status.pools[0]", want: "message is required when ready is false"},
		{name: "a served portal", base: node, status: `status: {portals: [{transport: RDMA, address: "fd00::5", port: 4420}]}`},
		{name: "a served portal that is no address", base: node, status: `status: {portals: [{transport: RDMA, address: storage-1, port: 4420}]}`,
			field: "status.portals[0].address", want: address},
		{name: "orphans", base: node, status: `status: {orphans: [{uuid: a, kind: NvmfReplica, device: eui.1, size: 1Gi}, {uuid: b, kind: NvmfSnapshot, name: s, replica: v, device: eui.1, size: 1Gi, allocated: 1Mi}]}`},
		{name: "an orphan twice", base: node, status: `status: {orphans: [{uuid: a, kind: NvmfReplica, device: eui.1, size: 1Gi}, {uuid: a, kind: NvmfReplica, device: eui.1, size: 1Gi}]}`,
			field: "status.orphans[1]", want: "Duplicate value"},
		{name: "an orphan of another kind", base: node, status: `status: {orphans: [{uuid: a, kind: Pod, device: eui.1, size: 1Gi}]}`,
			field: "status.orphans[0].kind", want: `supported values: "NvmfReplica", "NvmfSnapshot"`},
		{name: "a drive's content", base: node, status: `status: {inventory: {drives: [{id: eui.1, name: nvme0n1, sizeBytes: 1, content: Foreign, contentDetail: ext4}]}}`},
		{name: "a drive's content that nobody knows", base: node, status: `status: {inventory: {drives: [{id: eui.1, name: nvme0n1, sizeBytes: 1, content: Full}]}}`,
			field: "status.inventory.drives[0].content", want: `supported values: "Blank", "Weft", "Foreign", "Unknown"`},
	}
	for _, field := range []string{"transport", "address", "port", "maxIOQueues", "queueDepth", "inCapsuleDataSize"} {
		rules = append(rules, validation{name: "a portal without " + field, base: node, edit: without(field), field: first + field, want: "Required value"})
	}
	return slices.Concat(rules, fields(
		field{base: node, path: "spec.target", edit: `spec: {target: %s}`, good: []string{long(63)}, bad: map[string]string{long(64): "may not be more than 63"}},
		field{base: node, path: "spec.plan.engine", edit: `spec: {plan: {engine: %s}}`, good: []string{"Nvmet"}, bad: map[string]string{"Nonsense": `supported values: "SPDK", "Nvmet"`}},
		field{base: node, path: "spec.plan.portals", edit: `spec: {plan: {portals: %s}}`,
			good: []string{many(8, `{transport: TCP, address: 10.0.0.1, port: 442%d, maxIOQueues: 1, queueDepth: 16, inCapsuleDataSize: 0}`)},
			bad: map[string]string{"[]": "should have at least 1 items",
				many(9, `{transport: TCP, address: 10.0.0.1, port: 442%d, maxIOQueues: 1, queueDepth: 16, inCapsuleDataSize: 0}`): "must have at most 8 items"}},
		enum(node, first+"transport", portals(`transport: %s`), "TCP", "RDMA"),
		field{base: node, path: first + "address", edit: portals(`address: "%s"`), good: []string{"10.20.0.5", "fd00:20::5"},
			bad: map[string]string{"10.20.0.5/16": address, "storage-1": address, long(46): "may not be more than 45"}},
		bounds(node, first+"port", portals(`port: %s`), 1, 65535),
		bounds(node, first+"maxIOQueues", portals(`maxIOQueues: %s`), 1, 127),
		bounds(node, first+"queueDepth", portals(`queueDepth: %s`), 16, 1024),
		bounds(node, first+"inCapsuleDataSize", portals(`inCapsuleDataSize: %s`), 0, 65536),
		enum(node, "spec.plan.authentication.mode", `spec: {plan: {authentication: {mode: %s, dhGroup: None}}}`, "Required", "Preferred", "Disabled"),
		enum(node, "spec.plan.authentication.dhGroup", `spec: {plan: {authentication: {mode: Required, dhGroup: %s}}}`, "None", "FFDHE2048", "FFDHE3072", "FFDHE4096"),
		bounds(node, "spec.plan.overProvisioningPercent", `spec: {plan: {overProvisioningPercent: %s}}`, 100, 400),
		field{base: node, path: "spec.plan.drives", edit: `spec: {plan: {drives: %s}}`, good: []string{many(64, `{id: eui.%d}`)},
			bad: map[string]string{many(65, `{id: eui.%d}`): "must have at most 64 items"}},
		field{base: node, path: "spec.unschedulableDrives", edit: `spec: {unschedulableDrives: %s}`, good: []string{numbered(64)}, bad: map[string]string{numbered(65): "must have at most 64 items"}},
		field{base: node, path: "spec.unschedulableDrives[1]", edit: `spec: {unschedulableDrives: [a, %s]}`, good: []string{"b"}, bad: map[string]string{"a": "Duplicate value"}},
		field{base: node, path: "spec.unschedulableDrives[0]", edit: `spec: {unschedulableDrives: [%s]}`, good: []string{long(255)}, bad: map[string]string{`""`: "at least 1 chars long", long(256): "may not be more than 255"}},
		field{base: node, path: "spec.droppedDrives", edit: `spec: {droppedDrives: %s}`, good: []string{many(64, `{id: eui.%d}`)},
			bad: map[string]string{many(65, `{id: eui.%d}`): "must have at most 64 items"}},
		field{base: node, path: "spec.droppedDrives[0].id", edit: `spec: {droppedDrives: [{id: %s}]}`, good: []string{long(255)},
			bad: map[string]string{`""`: "at least 1 chars long", long(256): "may not be more than 255"}},
		field{base: node, path: "spec.plan.drives[0].id", edit: `spec: {plan: {drives: [{id: %s}]}}`, good: []string{long(255)},
			bad: map[string]string{`""`: "at least 1 chars long", long(256): "may not be more than 255"}},
		field{base: node, path: "spec.plan.drives[0].serial", edit: `spec: {plan: {drives: [{id: a, serial: %s}]}}`, good: []string{long(64)},
			bad: map[string]string{long(65): "may not be more than 64"}},
		field{base: node, path: "spec.plan.file.path", edit: `spec: {plan: {file: {size: 1Gi, path: %s}}}`, good: []string{"/var/lib/weft/a"},
			bad: map[string]string{"/etc/passwd": "must be a file under /var/lib/weft", "/var/lib/weft/pools/a": "are reserved", "/var/lib/weft/" + long(242): "may not be more than 255"}},
		field{base: node, path: "spec.plan.file.size", edit: `spec: {plan: {file: {path: /var/lib/weft/a, size: %s}}}`, good: []string{"1Gi", "1073741824"},
			bad: map[string]string{"1073741823": "devices.file.size must be at least 1Gi", "17Ti": "devices.file.size must be at most 16Ti", "much": "should match"}},
	))
}

// kindOfCopy is what NvmfVolume and NvmfReplica call alike things.
type kindOfCopy struct {
	base, noun string
	// hosts is the field of the hosts, and served what names their subsystems.
	hosts, served string
}

// one host, as a list.
const one = `[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a"}]`

// with makes an edit that lists hosts.
func (k kindOfCopy) with(hosts string) string {
	return `spec: {` + k.served + `, ` + k.hosts + `: ` + hosts + `}`
}

// rules of the spec that an NvmfReplica has from its NvmfVolume.
func (k kindOfCopy) rules() []validation {
	var (
		base              = k.base
		sourceIsImmutable = "source is immutable: it records where the " + k.noun + "'s initial data comes from"
		exactlyOne        = "source: set exactly one of snapshot and " + k.noun
	)
	const least = "size must be a multiple of 4Mi, such as 1536Mi, without a fraction, and at most 8Pi"
	return slices.Concat([]validation{
		{name: "as it is", base: base},
		{name: "no spec", base: base, edit: `spec: null`, field: "spec", want: "Required value"},
		{name: "no uuid", base: base, edit: `spec: {uuid: null}`, field: "spec.uuid", want: "Required value"},
		{name: "no target", base: base, edit: `spec: {target: null}`, field: "spec.target", want: "Required value"},
		{name: "no size", base: base, edit: `spec: {size: null}`, field: "spec.size", want: "Required value"},
		{name: "from a snapshot", base: base, edit: `spec: {source: {snapshot: s}}`},
		{name: "from another", base: base, edit: `spec: {source: {` + k.noun + `: v}}`},
		{name: "from both", base: base, edit: `spec: {source: {snapshot: s, ` + k.noun + `: v}}`, field: "spec.source", want: exactlyOne},
		{name: "from neither", base: base, edit: `spec: {source: {}}`, field: "spec.source", want: exactlyOne},
		{name: "keys without whom they are sealed to", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", sealedKeys: YWdl}]`),
			field: "spec." + k.hosts + "[0]", want: "set sealedKeys and sealedTo together, or neither"},
		{name: "keys in the clear", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", sealedKeys: "DHHC-1:01:YWdl:", sealedTo: 0123456789abcdef0123456789abcdef}]`),
			field: "spec." + k.hosts + "[0].sealedKeys", want: "should match"},
		{name: "a host without NQN", base: base, edit: k.with(`[{}]`), field: "spec." + k.hosts + "[0].nqn", want: "Required value"},
		{name: "a host twice", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a"}, {node: host, nodeUID: u, nqn: "nqn.2014-08.org:a"}]`),
			field: "spec." + k.hosts + "[1]", want: "Duplicate value"},

		{name: "two hosts that share", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", access: SharedWrite}, {node: host, nodeUID: u, nqn: "nqn.2014-08.org:b", access: SharedWrite}]`)},
		{name: "two hosts that do not share", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a"}, {node: host, nodeUID: u, nqn: "nqn.2014-08.org:b"}]`),
			field: "spec." + k.hosts, want: "must all have the same access"},
		{name: "two hosts that share otherwise", base: base, edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", access: SharedWrite}, {node: host, nodeUID: u, nqn: "nqn.2014-08.org:b", access: SharedRead}]`),
			field: "spec." + k.hosts, want: "must all have the same access"},
		{name: "a host without a node", base: base, edit: k.with(`[{nqn: "nqn.2014-08.org:a", nodeUID: u}]`), field: "spec." + k.hosts + "[0].node", want: "Required value"},
		{name: "a host without a node's UID", base: base, edit: k.with(`[{nqn: "nqn.2014-08.org:a", node: host}]`), field: "spec." + k.hosts + "[0].nodeUID", want: "Required value"},

		{name: "a transport twice", base: base, edit: `spec: {connection: {transports: [TCP, TCP]}}`, field: "spec.connection.transports[1]", want: "Duplicate value"},

		{name: "another uuid", base: base, update: `spec: {uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`, field: "spec.uuid", want: "uuid is immutable: it identifies the " + k.noun},
		{name: "another target", base: base, update: `spec: {target: slow}`, field: "spec.target", want: "target is immutable, because the data is stored there; create a new volume from a copy"},
		{name: "larger", base: base, update: `spec: {size: 2Gi}`},
		{name: "as large, in other words", base: base, update: `spec: {size: 1073741824}`},
		{name: "smaller", base: base, update: `spec: {size: 1G}`, field: "spec.size", want: "size can grow but not shrink: data beyond the new end would be lost"},
		{name: "smaller, from a number to a number", base: base, edit: `spec: {size: 1073741824}`, update: `spec: {size: 1073741823}`,
			field: "spec.size", want: "size can grow but not shrink: data beyond the new end would be lost"},
		{name: "of a class", base: base, edit: `spec: {deviceClass: qlc}`},
		{name: "another class", base: base, edit: `spec: {deviceClass: qlc}`, update: `spec: {deviceClass: tlc}`, field: "spec.deviceClass", want: "deviceClass is immutable, because the data is stored there"},
		{name: "a class later", base: base, update: `spec: {deviceClass: qlc}`, field: "spec", want: "deviceClass is immutable, because the data is stored there"},
		{name: "no class any more", base: base, edit: `spec: {deviceClass: qlc}`, update: `spec: {deviceClass: null}`, field: "spec", want: "deviceClass is immutable, because the data is stored there"},
		{name: "other blocks", base: base, edit: `spec: {blockSizeBytes: 512}`, update: `spec: {blockSizeBytes: 4096}`, field: "spec.blockSizeBytes", want: "blockSizeBytes is immutable, because the volume may be in use"},
		{name: "a source later", base: base, update: `spec: {source: {` + k.noun + `: v}}`, field: "spec", want: sourceIsImmutable},
		{name: "no source any more", base: base, edit: `spec: {source: {` + k.noun + `: v}}`, update: `spec: {source: null}`, field: "spec", want: sourceIsImmutable},
		{name: "another source", base: base, edit: `spec: {source: {` + k.noun + `: v}}`, update: `spec: {source: {` + k.noun + `: w}}`, field: "spec.source", want: sourceIsImmutable},
		{name: "limits later", base: base, update: `spec: {qos: {iops: 1000, readBandwidthMiBps: 1}}`},
		{name: "other limits", base: base, edit: `spec: {qos: {iops: 1000}}`, update: `spec: {qos: {iops: 2000, bandwidthMiBps: 1}}`},
		{name: "no limits any more", base: base, edit: `spec: {qos: {iops: 1000}}`, update: `spec: {qos: null}`},
		{name: "used", base: base, update: `spec: {used: true}`},
		{name: "used still", base: base, edit: `spec: {used: true}`, update: k.with(one)},
		{name: "not used any more", base: base, edit: `spec: {used: true}`, update: `spec: {used: false}`, field: "spec", want: "used cannot change back to false: a " + k.noun + " that may contain data"},
		{name: "used no longer said", base: base, edit: `spec: {used: true}`, update: `spec: {used: null}`, field: "spec", want: "used cannot change back to false"},
		{name: "marked", base: base, update: `spec: {deletionMark: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`},
		{name: "not marked after all", base: base, edit: `spec: {deletionMark: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`, update: `spec: {deletionMark: null}`},
		{name: "a host and other settings", base: base, edit: k.with(one), update: `spec: {connection: {ioQueues: 4}}`},
	}, fields(
		field{base: base, path: "spec.uuid", edit: `spec: {uuid: %s}`, good: []string{"00000000-0000-4000-8000-000000000000"},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", "8b5d2f432d0b4b3e9d2a0c4b1de0a001": "should match", long(37): "may not be more than 36"}},
		field{base: base, path: "spec.deviceClass", edit: `spec: {deviceClass: %s}`, good: []string{long(63)}, bad: map[string]string{long(64): "may not be more than 63"}},
		field{base: base, path: "spec.blockSizeBytes", edit: `spec: {blockSizeBytes: %s}`, good: []string{"512", "65536"}, bad: map[string]string{"511": "greater than or equal to 512", "65537": "less than or equal to 65536"}},
		field{base: base, path: "spec.deletionMark", edit: `spec: {deletionMark: %s}`, good: []string{long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: base, path: "spec.target", edit: `spec: {target: %s}`, good: []string{long(63)}, bad: map[string]string{`""`: "at least 1 chars long", long(64): "may not be more than 63"}},
		field{base: base, path: "spec.size", edit: `spec: {size: %s}`,
			good: []string{"4Mi", "4194304", `"4194304"`, "4194304k", "1Ti", "100Ti", "102400Gi", "104857604Mi", "107374186496Ki", "109951162777600", "1Pi", "8Pi"},
			bad: map[string]string{
				"0": least, "1048575": least, "1M": least, "1Mi": least, "1.5Gi": least, "1.0Gi": least, "6Mi": least, "-1Gi": least, "-100Ti": least, "much": "should match",
				"104857602Mi": least, "109951162777601": least, "100T": least, "9007199254740991": least, "8193Ti": least, "9Ei": least, "100000000000Ti": least, `"1e30"`: least, "500m": least,
			}},
		field{base: base, path: "spec.source.snapshot", edit: `spec: {source: {snapshot: %s}}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: base, path: "spec.source." + k.noun, edit: `spec: {source: {` + k.noun + `: %s}}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: base, path: "spec.qos", edit: `spec: {qos: %s}`, good: []string{"{}", "{iops: 1000, bandwidthMiBps: 200, readBandwidthMiBps: 1, writeBandwidthMiBps: 7}"}},
		bounds(base, "spec.qos.iops", `spec: {qos: {iops: %s}}`, 1000, 100000000),
		field{base: base, path: "spec.qos.iops", edit: `spec: {qos: {iops: %s}}`, good: []string{"2000"},
			bad: map[string]string{"2500": "iops must be a multiple of 1000, such as 2000 or 3000 instead of 2500; remove iops for no limit"}},
		bounds(base, "spec.qos.bandwidthMiBps", `spec: {qos: {bandwidthMiBps: %s}}`, 1, 1048576),
		bounds(base, "spec.qos.readBandwidthMiBps", `spec: {qos: {readBandwidthMiBps: %s}}`, 1, 1048576),
		bounds(base, "spec.qos.writeBandwidthMiBps", `spec: {qos: {writeBandwidthMiBps: %s}}`, 1, 1048576),
	), k.connectionRules())
}

// connectionRules are those of the hosts, and of how they connect.
func (k kindOfCopy) connectionRules() []validation {
	base := k.base
	return fields(
		enum(base, "spec.connection.transports[0]", `spec: {connection: {transports: [%s]}}`, "TCP", "RDMA"),
		field{base: base, path: "spec.connection.transports", edit: `spec: {connection: {transports: %s}}`, good: []string{"[TCP, RDMA]", "[RDMA, TCP]"},
			bad: map[string]string{"[]": "should have at least 1 items", "[TCP, RDMA, TCP]": "must have at most 2 items"}},
		bounds(base, "spec.connection.ioQueues", `spec: {connection: {ioQueues: %s}}`, 1, 127),
		bounds(base, "spec.connection.queueDepth", `spec: {connection: {queueDepth: %s}}`, 16, 1024),
		bounds(base, "spec.connection.ctrlLossTimeoutSeconds", `spec: {connection: {ctrlLossTimeoutSeconds: %s}}`, -1, 86400),
		field{base: base, path: "spec.connection.ctrlLossTimeoutSeconds", edit: `spec: {connection: {ctrlLossTimeoutSeconds: %s}}`, good: []string{"1"},
			bad: map[string]string{"0": "ctrlLossTimeoutSeconds must be -1 (never give up) or from 1 to 86400: with 0, I/O would fail when the first connection is lost"}},
		enum(base, "spec."+k.hosts+"[0].access", k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", access: %s}]`), "Exclusive", "SharedWrite", "SharedRead"),
		field{base: base, path: "spec." + k.hosts, edit: k.with(`%s`), good: []string{"[]", many(64, `{node: host, nodeUID: u, nqn: "nqn.2014-08.org:%d", access: SharedRead}`)},
			bad: map[string]string{many(65, `{node: host, nodeUID: u, nqn: "nqn.2014-08.org:%d", access: SharedRead}`): "must have at most 64 items"}},
		field{base: base, path: "spec." + k.hosts + "[0].sealedKeys", edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", sealedTo: 0123456789abcdef0123456789abcdef, sealedKeys: "%s"}]`),
			good: []string{"YWdl", long(4096)}, bad: map[string]string{long(4097): "may not be more than 4096"}},
		field{base: base, path: "spec." + k.hosts + "[0].sealedTo", edit: k.with(`[{node: host, nodeUID: u, nqn: "nqn.2014-08.org:a", sealedKeys: YWdl, sealedTo: "%s"}]`),
			bad: map[string]string{"0123456789abcdef": "should match", "0123456789ABCDEF0123456789ABCDEF": "should match", long(33): "may not be more than 32"}},
		field{base: base, path: "spec." + k.hosts + "[0].node", edit: k.with(`[{node: "%s", nodeUID: u, nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"a", long(253)}, bad: map[string]string{"": "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: base, path: "spec." + k.hosts + "[0].nodeUID", edit: k.with(`[{node: host, nodeUID: "%s", nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"a", long(128)}, bad: map[string]string{"": "at least 1 chars long", long(129): "may not be more than 128"}},
		field{base: base, path: "spec." + k.hosts + "[0].volumeAttachment", edit: k.with(`[{node: host, nodeUID: u, volumeAttachment: "%s", nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"", long(128)}, bad: map[string]string{long(129): "may not be more than 128"}},
		field{base: base, path: "spec." + k.hosts + "[0].attachment", edit: k.with(`[{node: host, nodeUID: u, attachment: "%s", nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"", long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: base, path: "spec." + k.hosts + "[0].keyRotation", edit: k.with(`[{node: host, nodeUID: u, keyRotation: "%s", nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"", long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: base, path: "spec." + k.hosts + "[0].retired", edit: k.with(`[{node: host, nodeUID: u, retired: "%s", nqn: "nqn.2014-08.org:a"}]`),
			good: []string{"", long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: base, path: "spec." + k.hosts + "[0].nqn", edit: k.with(`[{node: host, nodeUID: u, nqn: "%s"}]`),
			good: []string{"nqn.2014-08.org.nvmexpress:uuid:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", "nqn.2014-08." + long(211)},
			bad: map[string]string{"nqn.2014-08": "at least 12 chars long", "iqn.2014-08.org:a": "should match", "nqn.2014-08.a b": "should match",
				"nqn.2014-08." + long(212): "may not be more than 223"}},
	)
}

// numbered values of a list.
func numbered(n int) string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint("zone-", i)
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// volumeRules are those of an NvmfVolume.
func volumeRules() []validation {
	const (
		session     = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"
		whileListed = "session cannot change while attachments are listed"
	)
	of := kindOfCopy{volume, "volume", "attachments", `session: ` + session}
	member := func(n int, edit string) string { // n members, the first one with these fields
		members := []string{`{` + edit + `}`}
		for i := range n - 1 {
			members = append(members, fmt.Sprintf(`{name: pvc-1-%d, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a00%[1]d, node: storage-%[1]d}`, i+1))
		}
		return `spec: {members: [` + strings.Join(members, ", ") + `]}`
	}
	const uuid = `uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001`
	return slices.Concat(of.rules(), []validation{
		{name: "a name that fits an NQN", base: volume, edit: `metadata: {name: ` + long(128) + `}`},
		{name: "a name too long for an NQN", base: volume, edit: `metadata: {name: ` + long(129) + `}`,
			field: "<nil>", want: "the name of an NvmfVolume must be no more than 128 characters, because it is part of an NQN"},

		{name: "encrypted", base: volume, edit: `spec: {encryption: LUKS2}`},
		{name: "encrypted otherwise", base: volume, edit: `spec: {encryption: LUKS1}`, field: "spec.encryption", want: `supported values: "LUKS2"`},
		{name: "encrypted later", base: volume, update: `spec: {encryption: LUKS2}`, field: "spec", want: "encryption is immutable, because data that was written stays as it was written"},
		{name: "not encrypted any more", base: volume, edit: `spec: {encryption: LUKS2}`, update: `spec: {encryption: null}`, field: "spec", want: "encryption is immutable"},
		{name: "with a trailer", base: volume, edit: `spec: {trailer: true}`},
		{name: "a trailer where there was none", base: volume, update: `spec: {trailer: true}`, field: "spec", want: "trailer is immutable: the data of a volume without a trailer may reach to the end"},
		{name: "no trailer any more", base: volume, edit: `spec: {trailer: true}`, update: `spec: {trailer: null}`, field: "spec", want: "trailer is immutable"},
		{name: "no list of members", base: volume, edit: `spec: {members: null}`, field: "spec.members", want: "Required value"},
		{name: "no member", base: volume, edit: `spec: {members: []}`, field: "spec.members", want: "should have at least 1 items"},
		{name: "four members", base: volume, edit: member(4, `name: a, `+uuid+`, node: b`)},
		{name: "five members", base: volume, edit: member(5, `name: a, `+uuid+`, node: b`), field: "spec.members", want: "must have at most 4 items"},
		{name: "a member twice", base: volume, edit: member(2, `name: pvc-1-1, `+uuid+`, node: b`), field: "spec.members[1]", want: "Duplicate value"},
		{name: "a member without a name", base: volume, edit: member(1, uuid+`, node: b`), field: "spec.members[0].name", want: "Required value"},
		{name: "a member without a uuid", base: volume, edit: member(1, `name: a, node: b`), field: "spec.members[0].uuid", want: "Required value"},
		{name: "a member without a node", base: volume, edit: member(1, `name: a, `+uuid), field: "spec.members[0].node", want: "Required value"},
		{name: "another member", base: volume, update: member(2, `name: pvc-1-0, `+uuid+`, node: storage-0`)},

		{name: "mirrored", base: volume, update: `spec: {mirrored: true}`},
		{name: "mirrored no more", base: volume, edit: `spec: {mirrored: true}`, update: `spec: {mirrored: false}`, field: "spec", want: "mirrored cannot change back to false"},
		{name: "mirrored no more, by its absence", base: volume, edit: `spec: {mirrored: true}`, update: `spec: {mirrored: null}`, field: "spec", want: "mirrored cannot change back to false"},
		{name: "a move of a member", base: volume, update: `spec: {move: {replica: pvc-1-0}}`},
		{name: "a move of no member", base: volume, update: `spec: {move: {replica: pvc-1-7}}`, field: "spec", want: "move.replica must be the name of one of members"},
		{name: "a recovery", base: volume, update: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, current: pvc-1-0, acceptLossUntil: "2026-11-20T09:00:00Z"}}`},
		{name: "a recovery to no member", base: volume, update: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, current: pvc-1-7}}`, field: "spec", want: "recovery.current must be the name of one of members"},
		{name: "a recovery that may lose anything", base: volume, update: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, acceptLossUntil: "2026-11-20T09:00:00Z"}}`,
			field: "spec", want: "recovery.acceptLossUntil requires recovery.current"},
		{name: "a recovery with a node twice", base: volume, edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: [{node: a, id: b}, {node: a, id: c}]}}`,
			field: "spec.recovery.declaredRestores[1]", want: "Duplicate value"},
		{name: "a recovery with a restore of no node", base: volume, edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: [{id: b}]}}`,
			field: "spec.recovery.declaredRestores[0].node", want: "Required value"},
		{name: "a recovery with a restore without ID", base: volume, edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: [{node: a}]}}`,
			field: "spec.recovery.declaredRestores[0].id", want: "Required value"},
		{name: "a recovery without ID", base: volume, edit: `spec: {recovery: {attachments: End}}`, field: "spec.recovery.id", want: "Required value"},
		{name: "a move of nothing", base: volume, edit: `spec: {move: {node: storage-2}}`, field: "spec.move.replica", want: "Required value"},
		{name: "a move of another member", base: volume, edit: `spec: {move: {replica: pvc-1-0}}`, update: `spec: {move: {replica: pvc-1-1}}`,
			field: "spec.move.replica", want: "move.replica is immutable"},
		{name: "a move that goes on without its member", base: volume, edit: strings.TrimSuffix(member(2, `name: pvc-1-0, `+uuid+`, node: storage-0`), "}") + `, move: {replica: pvc-1-0}}`,
			update: `spec: {members: [{name: pvc-1-1, uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, node: storage-1}]}`},

		{name: "an attachment without a session", base: volume, edit: `spec: {attachments: ` + one + `}`, field: "spec", want: "session is required while attachments are listed"},
		{name: "another session", base: volume, edit: `spec: {session: ` + session + `}`, update: `spec: {session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002}`},
		{name: "another session under an attachment", base: volume, edit: of.with(one),
			update: `spec: {session: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002, attachments: []}`, field: "spec", want: whileListed},
		{name: "no session any more, nor an attachment", base: volume, edit: of.with(one), update: `spec: {session: null, attachments: null}`, field: "spec", want: whileListed},
		{name: "no attachment any more", base: volume, edit: of.with(one), update: `spec: {attachments: []}`},
	}, fields(
		bounds(volume, "spec.replicas", `spec: {replicas: %s}`, 1, 2),
		field{base: volume, path: "spec.members[0].name", edit: member(1, `name: %s, `+uuid+`, node: b`), good: []string{long(140)},
			bad: map[string]string{`""`: "at least 1 chars long", long(141): "may not be more than 140"}},
		field{base: volume, path: "spec.members[0].node", edit: member(1, `name: a, `+uuid+`, node: %s`), good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: volume, path: "spec.members[0].uuid", edit: member(1, `name: a, uuid: %s, node: b`), good: []string{session},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", long(37): "may not be more than 36"}},
		field{base: volume, path: "spec.move.replica", edit: `spec: {move: {replica: %s}}`, good: []string{long(140)},
			bad: map[string]string{`""`: "at least 1 chars long", long(141): "may not be more than 140"}},
		field{base: volume, path: "spec.recovery.id", edit: `spec: {recovery: {id: %s}}`, good: []string{"8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"}, bad: map[string]string{"again": "should match", long(37): "may not be more than 36"}},
		field{base: volume, path: "spec.recovery.current", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, current: %s}}`, good: []string{long(140)},
			bad: map[string]string{long(141): "may not be more than 140"}},
		field{base: volume, path: "spec.recovery.attachments", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, attachments: %s}}`, good: []string{"End"},
			bad: map[string]string{"Drop": `supported values: "Wait", "End"`}},
		field{base: volume, path: "spec.recovery.declaredRestores", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: %s}}`, good: []string{many(4, `{node: a%d, id: b}`)},
			bad: map[string]string{many(5, `{node: a%d, id: b}`): "must have at most 4 items"}},
		field{base: volume, path: "spec.recovery.declaredRestores[0].node", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: [{node: %s, id: b}]}}`, good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: volume, path: "spec.recovery.declaredRestores[0].id", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, declaredRestores: [{node: a, id: %s}]}}`, good: []string{long(36)},
			bad: map[string]string{`""`: "at least 1 chars long", long(37): "may not be more than 36"}},
		field{base: volume, path: "spec.recovery.waiting", edit: `spec: {recovery: {id: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001, waiting: %s}}`, good: []string{long(1024)},
			bad: map[string]string{long(1025): "may not be more than 1024"}},
		field{base: volume, path: "spec.move.reason", edit: `spec: {move: {replica: pvc-1-0, reason: %s}}`, good: []string{"ReplicaLost"}, bad: map[string]string{"Whim": "Unsupported value"}},
		field{base: volume, path: "spec.replaceLostReplicaAfterMinutes", edit: `spec: {replaceLostReplicaAfterMinutes: %s}`, good: []string{"-1", "1", "10080"},
			bad: map[string]string{"0": "must be from 1 to 10080, or -1 for never", "-2": "should be greater than or equal to -1", "10081": "should be less than or equal to 10080"}},
		field{base: volume, path: "spec.move.node", edit: `spec: {move: {replica: pvc-1-0, node: %s}}`, good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: volume, path: "spec.move.replacement", edit: `spec: {move: {replica: pvc-1-0, replacement: %s}}`, good: []string{long(140)}, bad: map[string]string{long(141): "may not be more than 140"}},
		field{base: volume, path: "spec.move.waiting", edit: `spec: {move: {replica: pvc-1-0, waiting: %s}}`, good: []string{long(1024)}, bad: map[string]string{long(1025): "may not be more than 1024"}},
		field{base: volume, path: "spec.zones", edit: `spec: {zones: %s}`, good: []string{"[]", "[a, b]", "[" + long(63) + "]", numbered(64)},
			bad: map[string]string{numbered(65): "must have at most 64 items"}},
		field{base: volume, path: "spec.zones[1]", edit: `spec: {zones: [a, %s]}`, good: []string{"b"}, bad: map[string]string{"a": "Duplicate value"}},
		field{base: volume, path: "spec.zones[0]", edit: `spec: {zones: [%s]}`, bad: map[string]string{`""`: "at least 1 chars long", long(64): "may not be more than 63"}},
		field{base: volume, path: "spec.zoneLabel", edit: `spec: {zoneLabel: %s}`, good: []string{long(317)}, bad: map[string]string{long(318): "may not be more than 317"}},
		field{base: volume, path: "spec.waiting", edit: `spec: {waiting: %s}`, good: []string{long(1024)}, bad: map[string]string{long(1025): "may not be more than 1024"}},
		field{base: volume, path: "spec.keyRotation", edit: `spec: {keyRotation: "%s"}`, good: []string{"", long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: volume, path: "spec.session", edit: `spec: {session: %s}`, good: []string{session},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", long(37): "may not be more than 36"}},
	))
}

// replicaRules are those of an NvmfReplica.
func replicaRules() []validation {
	const (
		subsystem   = "nqn.2026-11.storage.weft:pvc-1-0:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"
		another     = "nqn.2026-11.storage.weft:pvc-1-0:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002"
		malformed   = "spec.subsystemNQN must be nqn.2026-11.storage.weft:<name of the replica>:<UUID of the attachment>"
		whileListed = "subsystemNQN cannot change while hosts are listed"
		immutable   = "volume is immutable: it says whose copy this is"
		fallen      = "volumeGeneration cannot fall: the spec follows a later generation of the volume already"
	)
	of := kindOfCopy{replica, "replica", "hosts", `subsystemNQN: "` + subsystem + `"`}
	// former and next host of one attachment, of nodes, with more fields of the next.
	rotated := func(former, next string) string {
		const uuid = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a00"
		return of.with(`[{node: host, nqn: "nqn.2014-08.org.nvmexpress:uuid:` + uuid + `1", nodeUID: ` + former + `}, {node: host, nqn: "nqn.2014-08.org.nvmexpress:uuid:` + uuid + `2", nodeUID: ` + next + `}]`)
	}
	const its, not, hosts = ", attachment: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001", ", attachment: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a009", "spec.hosts"
	return slices.Concat(of.rules(), []validation{
		{name: "two hosts of an attachment", base: replica, edit: rotated("u", "u"+its)},
		{name: "two hosts of an attachment, not the first ones", base: replica, edit: rotated("u"+not, "u"+not)},
		{name: "two hosts of two attachments", base: replica, edit: rotated("u", "u"+not), field: hosts, want: "must all have the same access"},
		{name: "two hosts of another attachment each", base: replica, edit: rotated("u"+not, "u"+its), field: hosts, want: "must all have the same access"},
		{name: "two hosts of an attachment to two nodes", base: replica, edit: rotated("u", "v"+its), field: hosts, want: "must all have the same access"},
		{name: "three hosts of an attachment", base: replica, edit: strings.Replace(rotated("u"+not, "u"+not), "}]", `}, {node: host, nqn: "nqn.2014-08.org:a", nodeUID: u`+not+`}]`, 1),
			field: hosts, want: "must all have the same access"},

		{name: "a name that fits an NQN", base: replica, edit: `metadata: {name: ` + long(140) + `}`},
		{name: "a name too long for an NQN", base: replica, edit: `metadata: {name: ` + long(141) + `}`,
			field: "<nil>", want: "the name of an NvmfReplica must be no more than 140 characters, because it is part of an NQN"},

		{name: "no volume", base: replica, edit: `spec: {volume: null}`, field: "spec.volume", want: "Required value"},
		{name: "a volume without a name", base: replica, edit: `spec: {volume: {name: null}}`, field: "spec.volume.name", want: "Required value"},
		{name: "a volume without a uuid", base: replica, edit: `spec: {volume: {uuid: null}}`, field: "spec.volume.uuid", want: "Required value"},
		{name: "another volume", base: replica, update: `spec: {volume: {name: pvc-2}}`, field: "spec.volume", want: immutable},
		{name: "another volume of that name", base: replica, update: `spec: {volume: {uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}}`, field: "spec.volume", want: immutable},
		{name: "no node", base: replica, edit: `spec: {node: null}`, field: "spec.node", want: "Required value"},
		{name: "another node", base: replica, update: `spec: {node: storage-2}`, field: "spec.node", want: "node is immutable, because the data is stored there; create a new volume from a copy"},
		{name: "a later generation", base: replica, edit: `spec: {volumeGeneration: 2}`, update: `spec: {volumeGeneration: 3}`},
		{name: "the same generation", base: replica, edit: `spec: {volumeGeneration: 2}`, update: `spec: {volumeGeneration: 2, used: true}`},
		{name: "an earlier generation", base: replica, edit: `spec: {volumeGeneration: 2}`, update: `spec: {volumeGeneration: 1}`,
			field: "spec.volumeGeneration", want: fallen},
		{name: "no generation any more", base: replica, edit: `spec: {volumeGeneration: 2}`, update: `spec: {volumeGeneration: null}`, field: "spec.volumeGeneration", want: fallen},
		{name: "an earlier generation of the same volume", base: replica, edit: `spec: {volumeUID: a, volumeGeneration: 2}`, update: `spec: {volumeGeneration: 1}`, field: "spec.volumeGeneration", want: fallen},
		{name: "a later generation of the same volume", base: replica, edit: `spec: {volumeUID: a, volumeGeneration: 2}`, update: `spec: {volumeGeneration: 3}`},
		{name: "a volume that was created again", base: replica, edit: `spec: {volumeUID: a, volumeGeneration: 2}`, update: `spec: {volumeUID: b, volumeGeneration: 1}`},

		{name: "a host without a subsystem", base: replica, edit: `spec: {hosts: ` + one + `}`, field: "spec", want: "subsystemNQN is required while hosts are listed"},
		{name: "another replica's subsystem", base: replica, edit: `spec: {subsystemNQN: "nqn.2026-11.storage.weft:pvc-1-00:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"}`, field: "<nil>", want: malformed},
		{name: "the volume's subsystem", base: replica, edit: `spec: {subsystemNQN: "nqn.2026-11.storage.weft:pvc-1:8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"}`, field: "<nil>", want: malformed},
		{name: "another subsystem", base: replica, edit: `spec: {subsystemNQN: "` + subsystem + `"}`, update: `spec: {subsystemNQN: "` + another + `"}`},
		{name: "another subsystem under a host", base: replica, edit: of.with(one), update: `spec: {subsystemNQN: "` + another + `", hosts: []}`, field: "spec", want: whileListed},
		{name: "no subsystem any more, nor a host", base: replica, edit: of.with(one), update: `spec: {subsystemNQN: null, hosts: null}`, field: "spec", want: whileListed},
		{name: "no host any more", base: replica, edit: of.with(one), update: `spec: {hosts: []}`},

		{name: "a portal that is no address", base: replica, status: `status: {portals: [{transport: TCP, address: storage-1, port: 4420}]}`,
			field: "status.portals[0].address", want: "address must be an IPv4 or IPv6 address"},
		{name: "limits in force that cannot be", base: replica, status: `status: {qos: {iops: 2500}}`, field: "status.qos.iops", want: "iops must be a multiple of 1000"},
		{name: "a node with a private key", base: node, status: `status: {publicKey: AGE-SECRET-KEY-1}`, field: "status.publicKey", want: "should match"},
		{name: "a whole status", base: replica, status: `status: {qos: {iops: 2000}, nsid: 1, size: 1Gi, allocated: 0, portals: [{transport: TCP, address: 10.20.0.5, port: 4420}], hosts: [{nqn: "nqn.2014-08.org:a", blank: false}]}`},
	}, fields(
		field{base: replica, path: "spec.volume.name", edit: `spec: {volume: {name: %s}}`, good: []string{long(128)}, bad: map[string]string{`""`: "at least 1 chars long", long(129): "may not be more than 128"}},
		field{base: replica, path: "spec.volume.uuid", edit: `spec: {volume: {uuid: %s}}`, good: []string{"00000000-0000-4000-8000-000000000000"},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", long(37): "may not be more than 36"}},
		field{base: replica, path: "spec.node", edit: `spec: {node: %s}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: replica, path: "spec.volumeUID", edit: `spec: {volumeUID: %s}`, good: []string{long(128)}, bad: map[string]string{long(129): "may not be more than 128"}},
		least(replica, "spec.volumeGeneration", `spec: {volumeGeneration: %s}`, 0),
		field{base: replica, path: "spec.subsystemNQN", edit: `spec: {subsystemNQN: "%s"}`, good: []string{subsystem},
			bad: map[string]string{"nqn.2026-11.storage.weft:pvc-1-0": "should match", "nqn.2026-11.storage.weft:pvc-1-0:x": "should match",
				"nqn.2026-11.storage.weft:" + long(170) + ":8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001": "may not be more than 223"}},
	))
}

// snapshotRules are those of an NvmfSnapshot.
func snapshotRules() []validation {
	const immutable = "a snapshot's spec is immutable: delete the snapshot and create another one"
	return slices.Concat([]validation{
		{name: "as it is", base: snapshot},
		{name: "of an encrypted volume", base: snapshot, edit: `spec: {encryption: LUKS2}`},
		{name: "of a volume that is encrypted otherwise", base: snapshot, edit: `spec: {encryption: LUKS1}`, field: "spec.encryption", want: `supported values: "LUKS2"`},
		{name: "of a volume that is encrypted later", base: snapshot, update: `spec: {encryption: LUKS2}`, field: "spec", want: immutable},
		{name: "of a volume with a trailer later", base: snapshot, update: `spec: {trailer: true}`, field: "spec", want: immutable},
		{name: "of a volume without a trailer later", base: snapshot, edit: `spec: {trailer: true}`, update: `spec: {trailer: null}`, field: "spec", want: immutable},
		{name: "no spec", base: snapshot, edit: `spec: null`, field: "spec", want: "Required value"},
		{name: "no uuid", base: snapshot, edit: `spec: {uuid: null}`, field: "spec.uuid", want: "Required value"},
		{name: "no volume", base: snapshot, edit: `spec: {volume: null}`, field: "spec.volume", want: "Required value"},
		{name: "no node", base: snapshot, edit: `spec: {node: null}`, field: "spec.node", want: "Required value"},
		{name: "no replica", base: snapshot, edit: `spec: {replica: null}`, field: "spec.replica", want: "Required value"},
		{name: "another replica", base: snapshot, update: `spec: {replica: pvc-1-1}`, field: "spec", want: immutable},
		{name: "another volume", base: snapshot, update: `spec: {volume: pvc-2}`, field: "spec", want: immutable},
		{name: "another node", base: snapshot, update: `spec: {node: storage-2}`, field: "spec", want: immutable},

		{name: "another uuid", base: snapshot, update: `spec: {uuid: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`, field: "spec", want: immutable},
		{name: "taken", base: snapshot, update: `spec: {taken: true}`},
		{name: "not taken any more", base: snapshot, edit: `spec: {taken: true}`, update: `spec: {taken: false}`, field: "spec", want: "taken cannot change back to false"},
		{name: "taken no longer said", base: snapshot, edit: `spec: {taken: true}`, update: `spec: {taken: null}`, field: "spec", want: "taken cannot change back to false"},
		{name: "marked", base: snapshot, edit: `spec: {taken: true}`, update: `spec: {deletionMark: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`},
		{name: "not marked after all", base: snapshot, edit: `spec: {deletionMark: 8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0affe}`, update: `spec: {deletionMark: null}`},
		{name: "a label", base: snapshot, update: `metadata: {labels: {a: b}}`},
		{name: "a whole status", base: snapshot, status: `status: {ready: true, size: 1Gi, allocated: 4096, createdAt: "2026-11-20T10:00:00Z"}`},
	}, fields(
		field{base: snapshot, path: "spec.uuid", edit: `spec: {uuid: %s}`, good: []string{"00000000-0000-4000-8000-000000000000"},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", long(37): "may not be more than 36"}},
		field{base: snapshot, path: "spec.deletionMark", edit: `spec: {deletionMark: %s}`, good: []string{long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: snapshot, path: "spec.volume", edit: `spec: {volume: %s}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: snapshot, path: "spec.replica", edit: `spec: {replica: %s}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: snapshot, path: "spec.node", edit: `spec: {node: %s}`, good: []string{long(253)}, bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
	))
}
