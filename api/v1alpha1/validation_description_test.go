// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import "slices"

// descriptionRules are those of what is stored about a volume: in the NvmfVolume, in its NvmfReplicas, and of what was
// found without an object.
func descriptionRules() []validation {
	const (
		limits  = "iops must be a multiple of 1000, such as 2000 or 3000 instead of 2500; remove iops for no limit"
		timeout = "ctrlLossTimeoutSeconds must be -1 (never give up) or from 1 to 86400: with 0, I/O would fail when the first connection is lost"
		orphan  = "status.orphans[0].description."
		uuid    = `8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001`
	)
	found := func(description string) string {
		return `status: {orphans: [{uuid: ` + uuid + `, kind: NvmfReplica, device: eui.1, size: 1Gi, description: {` + description + `}}]}`
	}
	member := func(text string) string { return `spec: {description: {members: [{` + text + `}]}}` }
	described := func(text string) string { return `spec: {description: {` + text + `}}` }
	const members = "spec.description.members"
	return slices.Concat([]validation{
		{name: "found with limits", base: node, status: found(`qos: {iops: 2000}, connection: {ctrlLossTimeoutSeconds: 1}`)},
		{name: "found with half a limit", base: node, status: found(`qos: {iops: 2500}`), field: orphan + "qos.iops", want: limits},
		{name: "found without patience", base: node, status: found(`connection: {ctrlLossTimeoutSeconds: 0}`),
			field: orphan + "connection.ctrlLossTimeoutSeconds", want: timeout},
		{name: "described without a member's name", base: replica, edit: member(`uuid: ` + uuid + `, node: b`), field: members + "[0].name", want: "Required value"},
		{name: "described without a member's uuid", base: replica, edit: member(`name: a, node: b`), field: members + "[0].uuid", want: "Required value"},
		{name: "described without a member's node", base: replica, edit: member(`name: a, uuid: ` + uuid), field: members + "[0].node", want: "Required value"},
	}, fields(
		bounds(replica, "spec.description.replicas", described(`replicas: %s`), 0, 2),
		field{base: replica, path: members, edit: described(`members: %s`), good: []string{many(4, `{name: a%d, uuid: `+uuid+`, node: b}`)},
			bad: map[string]string{many(5, `{name: a%d, uuid: `+uuid+`, node: b}`): "must have at most 4 items"}},
		field{base: replica, path: members + "[0].name", edit: member(`name: %s, uuid: ` + uuid + `, node: b`), good: []string{long(140)},
			bad: map[string]string{`""`: "at least 1 chars long", long(141): "may not be more than 140"}},
		field{base: replica, path: members + "[0].node", edit: member(`name: a, uuid: ` + uuid + `, node: %s`), good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: replica, path: members + "[0].uuid", edit: member(`name: a, uuid: %s, node: b`), good: []string{uuid},
			bad: map[string]string{"8B5D2F43-2D0B-4B3E-9D2A-0C4B1DE0A001": "should match", long(37): "may not be more than 36"}},
		longest(replica, "spec.description.sourceVolume", described(`sourceVolume: %s`), 253),
		longest(replica, "spec.description.sourceSnapshot", described(`sourceSnapshot: %s`), 253),
		longest(replica, "spec.description.zoneLabel", described(`zoneLabel: %s`), 317),
		longest(replica, "spec.description.zones[0]", described(`zones: [%s]`), 63),
		field{base: replica, path: "spec.description.zones", edit: described(`zones: %s`), good: []string{many(64, "zone-%d")},
			bad: map[string]string{many(65, "zone-%d"): "must have at most 64 items"}},
		enum(replica, "spec.description.encryption", described(`encryption: %s`), "LUKS2"),
	), persistentVolumeRules(volume, "spec.persistentVolume", func(text string) string { return `spec: {persistentVolume: {` + text + `}}` }),
		persistentVolumeRules(replica, "spec.description.persistentVolume", func(text string) string { return described(`persistentVolume: {` + text + `}`) }))
}

// persistentVolumeRules are those of a described PersistentVolume at a path of an object. An edit has these fields of
// it.
func persistentVolumeRules(base, path string, edit func(fields string) string) []validation {
	path += "."
	named := func(text string) string { return edit(`name: pv, ` + text) }
	rules := []validation{{name: "a PersistentVolume without a name", base: base, edit: edit(`claimName: a`), field: path + "name", want: "Required value"}}
	all := []field{
		{base: base, path: path + "name", edit: edit(`name: %s`), good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		{base: base, path: path + "accessModes", edit: named(`accessModes: %s`), good: []string{many(4, "Mode%d")}, bad: map[string]string{many(5, "Mode%d"): "must have at most 4 items"}},
		{base: base, path: path + "mountOptions", edit: named(`mountOptions: %s`), good: []string{many(16, "o%d")}, bad: map[string]string{many(17, "o%d"): "must have at most 16 items"}},
		longest(base, path+"accessModes[0]", named(`accessModes: [%s]`), 32),
		longest(base, path+"mountOptions[0]", named(`mountOptions: [%s]`), 128),
	}
	for name, n := range map[string]int{"claimNamespace": 63, "claimName": 253, "storageClass": 253, "reclaimPolicy": 16, "volumeMode": 16, "fsType": 16} {
		all = append(all, longest(base, path+name, named(name+`: %s`), n))
	}
	for _, secret := range []string{"stageSecret", "publishSecret"} {
		rules = append(rules,
			validation{name: secret + " without a name", base: base, edit: named(secret + `: {namespace: a}`), field: path + secret + ".name", want: "Required value"},
			validation{name: secret + " without a namespace", base: base, edit: named(secret + `: {name: a}`), field: path + secret + ".namespace", want: "Required value"})
		all = append(all, longest(base, path+secret+".name", named(secret+`: {namespace: a, name: %s}`), 253),
			longest(base, path+secret+".namespace", named(secret+`: {name: a, namespace: %s}`), 63))
	}
	return append(rules, fields(all...)...)
}
