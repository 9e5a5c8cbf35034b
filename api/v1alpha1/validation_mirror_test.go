// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
)

// mirrorRules are those of an NvmfMirror.
func mirrorRules() []validation {
	const (
		first  = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a001"
		second = "8b5d2f43-2d0b-4b3e-9d2a-0c4b1de0a002"
		raise  = "must raise epoch"
	)
	// record has members "name state ...".
	record := func(head string, members ...string) string {
		var list []string
		for _, m := range members {
			name, state, _ := strings.Cut(m, " ")
			list = append(list, fmt.Sprintf("{replica: pvc-1-%s, replicaUID: u-%s, state: %s}", name, name, state))
		}
		return fmt.Sprintf("spec: {%s, members: [%s]}", head, strings.Join(list, ", "))
	}
	one := func(fields string) string {
		return `spec: {members: [{replica: pvc-1-a, replicaUID: u-a, state: InSync}, {replica: pvc-1-b, replicaUID: u-b, ` + fields + `}]}`
	}
	member := func(f string) string {
		return `spec: {members: [{replica: a, replicaUID: a, state: InSync, ` + f + `: %s}]}`
	}
	held := `spec: {holder: ` + first + `}`
	rules := []validation{
		{name: "as it is", base: mirror},
		{name: "no spec", base: mirror, edit: `spec: null`, field: "spec", want: "Required value"},
		{name: "no epoch", base: mirror, edit: `spec: {epoch: null}`, field: "spec.epoch", want: "Required value"},
		{name: "no members", base: mirror, edit: `spec: {members: null}`, field: "spec.members", want: "Required value"},
		{name: "a member twice", base: mirror, edit: record("epoch: 3", "a InSync", "a InSync"), field: "spec.members[1]", want: "Duplicate value"},
		{name: "none in sync", base: mirror, edit: record("epoch: 3", "a Out", "b Filling"), field: "spec", want: "at least one member must be InSync"},
		{name: "a lower epoch", base: mirror, update: `spec: {epoch: 2}`, field: "spec", want: "epoch can grow but not fall"},
		{name: "a holder in the same epoch", base: mirror, update: held, field: "spec", want: raise},
		{name: "a holder in the next epoch", base: mirror, update: `spec: {epoch: 4, holder: ` + first + `}`},
		{name: "no holder in the same epoch", base: mirror, edit: held, update: `spec: {holder: null}`, field: "spec", want: raise},
		{name: "no holder in the next epoch", base: mirror, edit: held, update: `spec: {epoch: 4, holder: null}`},
		{name: "from holder to holder", base: mirror, edit: held, update: `spec: {epoch: 4, holder: ` + second + `}`, field: "spec", want: "holder must be removed before another one is set"},
		{name: "the node of no holder", base: mirror, edit: `spec: {holderNode: compute-1}`, field: "spec", want: "holderNode requires holder"},
		{name: "a mover without a holder", base: mirror, edit: `spec: {mover: Copy}`, field: "spec", want: "mover requires holder"},
		{name: "a mover that does something else", base: mirror, edit: `spec: {holder: ` + first + `, mover: Rest}`, field: "spec.mover", want: "Unsupported value"},
		{name: "a reason for a mover that waits that is too long", base: mirror, edit: `spec: {moverWaiting: ` + long(1025) + `}`, field: "spec.moverWaiting", want: "Too long"},
		{name: "the node of a holder later", base: mirror, edit: held, update: `spec: {holderNode: compute-1}`},
		{name: "dirty in the same epoch", base: mirror, edit: held, update: `spec: {dirty: true}`},
		{name: "a member lost in the same epoch", base: mirror, update: record("epoch: 3", "a InSync", "b Out"), field: "spec", want: raise},
		{name: "a member lost in the next epoch", base: mirror, update: record("epoch: 4", "a InSync", "b Out")},
		{name: "a member added in the same epoch", base: mirror, update: record("epoch: 3", "a InSync", "b InSync", "c Filling"), field: "spec", want: raise},
		{name: "a member added in the next epoch", base: mirror, update: record("epoch: 4", "a InSync", "b InSync", "c Filling")},
		{name: "a member exchanged in the same epoch", base: mirror, update: record("epoch: 3", "a InSync", "c InSync"), field: "spec", want: raise},
		{name: "a member added in sync", base: mirror, update: record("epoch: 4", "a InSync", "b InSync", "c InSync"), field: "spec", want: "a member becomes InSync only from Returning or Filling"},
		{name: "in sync at once", base: mirror, edit: record("epoch: 3", "a InSync", "b Out"), update: record("epoch: 4", "a InSync", "b InSync"),
			field: "spec", want: "a member becomes InSync only from Returning or Filling"},
		{name: "in sync once it is filled", base: mirror, edit: record("epoch: 3", "a InSync", "b Filling"), update: record("epoch: 4", "a InSync", "b InSync")},
		{name: "another is in sync instead", base: mirror, edit: record("epoch: 3", "a InSync", "b Filling"), update: record("epoch: 4", "a Out", "b InSync"),
			field: "spec", want: "at least one member must stay InSync"},
		{name: "another replica with the name", base: mirror, update: one("replicaUID: u-c, state: InSync"), field: "spec", want: "replicaUID of a member is immutable"},
		{name: "a return by bitmap", base: mirror, edit: one("state: Returning, lastInSyncEpoch: 2")},
		{name: "a return of one never in sync", base: mirror, edit: one("state: Returning"), field: "spec.members[1]", want: "state Returning requires lastInSyncEpoch"},
		{name: "a copy to be confirmed in the same epoch", base: mirror, edit: `spec: {confirmRequested: 2, confirmed: 2}`, update: `spec: {confirmRequested: 3}`},
		{name: "confirmed in the same epoch", base: mirror, edit: `spec: {confirmRequested: 3, confirmed: 2}`, update: `spec: {confirmed: 3}`},
		{name: "fewer requests", base: mirror, edit: `spec: {confirmRequested: 3, confirmed: 1}`, update: `spec: {epoch: 4, confirmRequested: 2}`, field: "spec", want: "confirmRequested can grow but not fall"},
		{name: "fewer confirmations", base: mirror, edit: `spec: {confirmRequested: 3, confirmed: 2}`, update: `spec: {epoch: 4, confirmed: 1}`, field: "spec", want: "confirmed can grow but not fall"},
		{name: "confirmed before it was requested", base: mirror, edit: `spec: {confirmRequested: 3, confirmed: 4}`, field: "spec", want: "only what was requested can be confirmed"},
		{name: "confirmed and never requested", base: mirror, edit: `spec: {confirmed: 1}`, field: "spec", want: "only what was requested can be confirmed"},
		{name: "recovering", base: mirror, update: `spec: {epoch: 4, recovering: true, recovery: ` + first + `}`},
		{name: "recovering in the same epoch", base: mirror, update: `spec: {recovering: true}`, field: "spec", want: "a change of recovering must raise epoch"},
		{name: "recovering with a holder", base: mirror, edit: held, update: `spec: {epoch: 4, recovering: true}`, field: "spec", want: "only a mover that reads headers may be the holder"},
		{name: "recovering with a mover that copies", base: mirror, edit: `spec: {recovering: true}`, update: `spec: {epoch: 4, holder: ` + first + `, mover: Copy}`,
			field: "spec", want: "only a mover that reads headers may be the holder"},
		{name: "recovering with a mover that reads", base: mirror, edit: `spec: {recovering: true}`, update: `spec: {epoch: 4, holder: ` + first + `, mover: Read}`},
		{name: "recovered to a member that was out", base: mirror, edit: record("epoch: 3, recovering: true", "a InSync", "b Out"), update: record("epoch: 4, recovering: null", "a Out", "b InSync")},
		{name: "recovering with another replica of the name", base: mirror, edit: `spec: {recovering: true}`,
			update: `spec: {epoch: 4, recovering: true, members: [{replica: pvc-1-a, replicaUID: u-c, state: InSync}, {replica: pvc-1-b, replicaUID: u-b, state: InSync}]}`},
		{name: "recovered to none", base: mirror, edit: record("epoch: 3, recovering: true", "a InSync", "b Out"), update: record("epoch: 4, recovering: null", "a Out", "b Out"),
			field: "spec", want: "at least one member must be InSync"},
		// It must be able to record a lost member.
		{name: "a node plugin that knows neither field", base: mirror, edit: `spec: {confirmRequested: 3, confirmed: 2}`, update: `spec: {confirmRequested: null, confirmed: null}`},
		{name: "a member without name", base: mirror, edit: `spec: {members: [{replicaUID: a, state: InSync}]}`, field: "spec.members[0].replica", want: "Required value"},
		{name: "a member without UID", base: mirror, edit: `spec: {members: [{replica: a, state: InSync}]}`, field: "spec.members[0].replicaUID", want: "Required value"},
		{name: "a header with a member twice", base: mirror, edit: fmt.Sprintf(member("header"), "{members: [{replica: a, state: Out}, {replica: a, state: Out}]}"),
			field: "spec.members[0].header.members[1]", want: "Duplicate value"},
		{name: "a header with a member without name", base: mirror, edit: fmt.Sprintf(member("header"), "{members: [{state: Out}]}"), field: "spec.members[0].header.members[0].replica", want: "Required value"},
		{name: "a header with a member without state", base: mirror, edit: fmt.Sprintf(member("header"), "{members: [{replica: a}]}"), field: "spec.members[0].header.members[0].state", want: "Required value"},
		{name: "a member without state", base: mirror, edit: `spec: {members: [{replica: a, replicaUID: a}]}`, field: "spec.members[0].state", want: "Required value"},
	}
	return slices.Concat(rules, fields(
		field{base: mirror, path: "spec.epoch", edit: `spec: {epoch: %s}`, good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.holder", edit: `spec: {holder: %s}`, good: []string{first}, bad: map[string]string{"node-1": "should match", long(37): "may not be more than 36"}},
		field{base: mirror, path: "spec.holderNode", edit: `spec: {holder: ` + first + `, holderNode: %s}`, good: []string{long(253)}, bad: map[string]string{long(254): "may not be more than 253"}},
		field{base: mirror, path: "spec.confirmRequested", edit: `spec: {confirmRequested: %s}`, good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.confirmed", edit: `spec: {confirmRequested: 1, confirmed: %s}`, good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.members", edit: `spec: {members: %s}`, good: []string{many(6, `{replica: a%d, replicaUID: a, state: InSync}`)},
			bad: map[string]string{"[]": "should have at least 1 items", many(7, `{replica: a%d, replicaUID: a, state: InSync}`): "must have at most 6 items"}},
		field{base: mirror, path: "spec.members[0].replica", edit: `spec: {members: [{replica: %s, replicaUID: a, state: InSync}]}`, good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: mirror, path: "spec.members[0].replicaUID", edit: `spec: {members: [{replica: a, replicaUID: %s, state: InSync}]}`, good: []string{long(128)},
			bad: map[string]string{`""`: "at least 1 chars long", long(129): "may not be more than 128"}},
		field{base: mirror, path: "spec.members[0].state", edit: `spec: {members: [{replica: a, replicaUID: a, state: %s}]}`, good: []string{"InSync"},
			bad: map[string]string{"Away": `supported values: "InSync", "Returning", "Filling", "Out"`}},
		field{base: mirror, path: "spec.members[0].reason", edit: member("reason"), good: []string{long(64)}, bad: map[string]string{long(65): "may not be more than 64"}},
		field{base: mirror, path: "spec.members[0].lastInSyncEpoch", edit: member("lastInSyncEpoch"), good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.members[0].identity", edit: member("identity"), good: []string{first}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: mirror, path: "spec.members[0].copiedBytes", edit: member("copiedBytes"), good: []string{"0"}, bad: map[string]string{"-1": "greater than or equal to 0"}},
		field{base: mirror, path: "spec.members[0].declaredCurrent", edit: member("declaredCurrent"), good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.recovery", edit: `spec: {recovery: %s}`, good: []string{first}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: mirror, path: "spec.members[0].header.epoch", edit: fmt.Sprintf(member("header"), "{epoch: %s}"), good: []string{"1"}, bad: map[string]string{"0": "greater than or equal to 1"}},
		field{base: mirror, path: "spec.members[0].header.mark", edit: fmt.Sprintf(member("header"), "{mark: %s}"), good: []string{first}, bad: map[string]string{long(37): "may not be more than 36"}},
		field{base: mirror, path: "spec.members[0].header.error", edit: fmt.Sprintf(member("header"), "{error: %s}"), good: []string{long(256)}, bad: map[string]string{long(257): "may not be more than 256"}},
		field{base: mirror, path: "spec.members[0].header.members", edit: fmt.Sprintf(member("header"), "{members: %s}"), good: []string{many(6, `{replica: a%d, state: Out}`)},
			bad: map[string]string{many(7, `{replica: a%d, state: Out}`): "must have at most 6 items"}},
		field{base: mirror, path: "spec.members[0].header.members[0].replica", edit: fmt.Sprintf(member("header"), "{members: [{replica: %s, state: Out}]}"), good: []string{long(253)},
			bad: map[string]string{`""`: "at least 1 chars long", long(254): "may not be more than 253"}},
		field{base: mirror, path: "spec.members[0].header.members[0].state", edit: fmt.Sprintf(member("header"), "{members: [{replica: a, state: %s}]}"), good: []string{"Filling"},
			bad: map[string]string{"Away": `supported values: "InSync", "Returning", "Filling", "Out"`}},
		field{base: mirror, path: "spec.members[0].marks", edit: member("marks"), good: []string{"[a, b]"}, bad: map[string]string{"[a, b, c]": "must have at most 2 items"}},
		field{base: mirror, path: "spec.members[0].marks[0]", edit: `spec: {members: [{replica: a, replicaUID: a, state: InSync, marks: [%s]}]}`, good: []string{long(36)}, bad: map[string]string{long(37): "may not be more than 36"}},
	))
}
