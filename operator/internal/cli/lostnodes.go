// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// incomplete says what may be on drives and is not listed, or not described yet.
func (f *fleet) incomplete(unlisted map[string]int32) []string {
	var why []string
	for i := range f.nodes {
		n := &f.nodes[i]
		why = append(why, unheard(n)...)
		for _, p := range n.Status.Pools {
			// A pool that is no longer planned is not ready, but can be read.
			if !p.Ready && p.Promised == nil && !n.Spec.Drops(p.Device) {
				why = append(why, fmt.Sprintf("node %s, device %s: the pool cannot be read (%s)", n.Name, p.Device, cmp.Or(p.Reason, "no reason given")))
			}
		}
		why = append(why, unplanned(n)...)
		if more := unlisted[n.Name]; more > 0 {
			why = append(why, fmt.Sprintf("node %s has %d more that it has no room to list; it lists them once others are recovered", n.Name, more))
		}
		later := 0
		for _, o := range n.Status.Orphans {
			if strings.HasPrefix(o.Undescribed, v1alpha1.UndescribedNotRead) || o.Undescribed == v1alpha1.UndescribedNoRoom {
				later++
			}
		}
		if later > 0 {
			why = append(why, fmt.Sprintf("node %s has %d whose descriptions it did not read yet, or has no room for", n.Name, later))
		}
	}
	return why
}

// unheard says why a node may have more than its status lists, as before its agent has opened all pools of its plan.
func unheard(n *v1alpha1.NvmfNode) []string {
	var why []string
	switch {
	case silent(n):
		why = append(why, fmt.Sprintf("the agent of node %s does not answer", n.Name))
	case !meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionAgentAlive):
		why = append(why, fmt.Sprintf("it is not known whether the agent of node %s runs", n.Name))
	}
	plan := n.Spec.Plan
	if plan == nil {
		return why
	}
	if n.Status.ObservedGeneration < n.Generation {
		why = append(why, fmt.Sprintf("the agent of node %s has not applied its plan yet", n.Name))
	}
	hasPools := plan.File != nil || slices.ContainsFunc(plan.Drives, func(d v1alpha1.PlannedDrive) bool { return !n.Spec.Drops(d.ID) })
	if hasPools && len(n.Status.Pools) == 0 {
		why = append(why, fmt.Sprintf("node %s lists no pool yet", n.Name))
	}
	return why
}

// unplanned are drives with a pool that no target has the node open, as before its NvmfTarget is there again.
func unplanned(n *v1alpha1.NvmfNode) []string {
	if n.Status.Inventory == nil {
		return nil
	}
	var why []string
	for _, drive := range n.Status.Inventory.Drives {
		open := slices.ContainsFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Device == drive.ID })
		if drive.Content == v1alpha1.ContentWeft && !open && !n.Spec.Drops(drive.ID) {
			name := drive.ID // which no NvmfTarget can select
			if len(drive.ByID) > 0 {
				name = slices.Min(drive.ByID)
			}
			why = append(why, fmt.Sprintf("node %s, drive %s has a pool that is not open: apply the NvmfTarget that selects it, or erase the drive", n.Name, name))
		}
	}
	return why
}
