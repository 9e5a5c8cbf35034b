// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// PlanChanges are what a new plan changes at a node that has one.
type PlanChanges struct {
	// Settings, portals, drives and files that differ.
	Settings []PlanChange `json:"settings,omitempty"`
	// ReplacesTargetPod: the target must be started again, and I/O of the node's volumes pauses meanwhile.
	ReplacesTargetPod bool `json:"replacesTargetPod,omitempty"`
	// ResetsLinks: NICs may reset their links when they get their new settings.
	ResetsLinks bool `json:"resetsLinks,omitempty"`
}

// PlanChange is one thing that differs.
type PlanChange struct {
	// Setting of the plan, or such as "drive eui.0025388b710116a1".
	Setting string `json:"setting"`
	// Now is its value in the plan that the node has, and Planned that in the new one. Absent: it is not in that plan.
	Now     string `json:"now,omitempty"`
	Planned string `json:"planned,omitempty"`
}

// changesOf a node's plan. An image of the target is no part of a plan, and so none of what may replace its pod.
func changesOf(node *v1alpha1.NvmfNode, planned *v1alpha1.Plan) *PlanChanges {
	has, pods := node.Spec.Plan, manifest.TargetPods{}
	c := &PlanChanges{
		ReplacesTargetPod: has.SPDK != nil && pods.Startup(node, has) != pods.Startup(node, planned),
		ResetsLinks:       rollout.ResetsLinks(has, planned),
	}
	order, now := valuesOf(has)
	after, then := valuesOf(planned)
	for _, name := range after {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	for _, name := range order {
		if now[name] != then[name] {
			c.Settings = append(c.Settings, PlanChange{name, now[name], then[name]})
		}
	}
	return c
}

// valuesOf all that a plan sets, by name, and the names in their order.
func valuesOf(p *v1alpha1.Plan) (names []string, values map[string]string) {
	values = map[string]string{}
	set := func(name, value string) {
		names = append(names, name)
		values[name] = value
	}
	set("engine", string(p.Engine))
	for _, row := range servedRows(p) {
		set(row[0]+" "+row[1], row[2])
	}
	for _, c := range p.Choices {
		set(c.Setting, c.Value)
	}
	return names, values
}

// print nothing for a node that has no plan.
func (c *PlanChanges) print(t *table) {
	if c == nil {
		return
	}
	t.line("")
	if len(c.Settings) == 0 && !c.ReplacesTargetPod && !c.ResetsLinks {
		t.line("No changes: the node has this plan already.")
		return
	}
	rows := [][]string{{"CHANGES", "NOW", "PLANNED"}}
	for _, s := range c.Settings {
		rows = append(rows, []string{s.Setting, orDash(s.Now), orDash(s.Planned)})
	}
	t.columns(rows)
	if c.ReplacesTargetPod {
		t.line("Its target pod must be replaced, and I/O of its volumes pauses meanwhile (docs/tasks/roll-out-changes.md).")
	}
	if c.ResetsLinks {
		t.line("Links of its NICs may be reset when they get their settings.")
	}
}
