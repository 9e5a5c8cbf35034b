// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// poolRows are the pools of a node, with their classes where there are any.
func poolRows(node v1alpha1.NvmfNode) [][]string {
	rows := [][]string{{"POOL", "PATH", "READY", "TOTAL", "UNWRITTEN", "PROMISED", "CLEARING", "DRIVE'S CACHE", "PROBLEM"}}
	for _, p := range node.Status.Pools {
		rows = append(rows, []string{p.Device, orDash(p.Path), yes(p.Ready), size(p.Total), size(p.Free), size(p.Promised), size(p.Clearing), orDash(string(driveCache(node, p.Device))), strings.TrimSpace(p.Reason + " " + p.Message)})
	}
	if !slices.ContainsFunc(node.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.DeviceClass != "" }) {
		return rows
	}
	rows[0] = slices.Insert(rows[0], 1, "CLASS")
	for i, p := range node.Status.Pools {
		rows[i+1] = slices.Insert(rows[i+1], 1, orDash(p.DeviceClass))
	}
	return rows
}

// printClasses adds up the pools of nodes by their class, where there are classes.
func (s *status) printClasses(t *table, nodes []v1alpha1.NvmfNode) {
	type sum struct {
		pools, ready    int
		total, promised resource.Quantity
	}
	sums := map[string]*sum{}
	for _, n := range nodes {
		for _, p := range n.Status.Pools {
			if sums[p.DeviceClass] == nil {
				sums[p.DeviceClass] = &sum{}
			}
			of := sums[p.DeviceClass]
			of.pools++
			if !p.Ready {
				continue
			}
			of.ready++
			if p.Total != nil {
				of.total.Add(*p.Total)
			}
			if p.Promised != nil {
				of.promised.Add(*p.Promised)
			}
		}
	}
	rows := [][]string{{"CLASS", "POOLS READY", "TOTAL", "PROMISED"}}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		of := sums[name]
		rows = append(rows, []string{orDash(name), fmt.Sprintf("%d of %d", of.ready, of.pools), size(&of.total), size(&of.promised)})
	}
	delete(sums, "")
	if len(sums) > 0 {
		t.line("")
		t.columns(rows)
	}
}

// printCordoned tells of nodes and drives that get no new volumes because somebody wants it so. That is no harm.
func (s *status) printCordoned(t *table, nodes []v1alpha1.NvmfNode) {
	first := true
	for _, n := range nodes {
		c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionSchedulable)
		reason, message := n.Unschedulable(c != nil && c.Reason == v1alpha1.ReasonKubernetesNodeCordoned)
		retired := slices.DeleteFunc(slices.Clone(n.Spec.UnschedulableDrives), n.Spec.Drops)
		if n.Spec.Target == "" || reason == "" && len(retired) == 0 {
			continue
		}
		if first {
			t.line("")
			t.line("Nodes and drives that get no new volumes:")
			first = false
		}
		if reason != "" {
			t.line("- NvmfNode %s: %s: %s", n.Name, reason, message)
		}
		for _, drive := range retired {
			t.line("- drive %s of NvmfNode %s: it is being retired; to place volumes on it again, run: kubectl weft retire %s %s --undo", drive, n.Name, n.Name, drive)
		}
	}
}

// printMoves tells of the replicas that move to other nodes. That is work, not harm.
func (s *status) printMoves(t *table, concern func(*v1alpha1.NvmfVolume, progress) bool) {
	rows := [][]string{{"VOLUME", "FROM", "TO", "STATE", "COPIED", "RATE", "LEFT", "WAITING"}}
	for i := range s.volumes {
		if p, is := s.moving(&s.volumes[i]); is && concern(&s.volumes[i], p) {
			rows = append(rows, p.row())
		}
	}
	if len(rows) == 1 {
		return
	}
	t.line("")
	t.line("Moves:")
	t.columns(rows)
}

// printWaiting tells of the volumes that do not get the number of replicas that their spec requests, or whose lost
// replica is not replaced, and why. That is work, not harm.
func (s *status) printWaiting(t *table, concern func(*v1alpha1.NvmfVolume) bool) {
	rows := [][]string{{"VOLUME", "REPLICAS", "REQUESTED", "WAITING"}}
	for i := range s.volumes {
		if v := &s.volumes[i]; v.Spec.Waiting != "" && concern(v) {
			rows = append(rows, []string{s.called(v), fmt.Sprint(len(v.Spec.Members)), fmt.Sprint(max(v.Spec.Replicas, 1)), v.Spec.Waiting})
		}
	}
	if len(rows) == 1 {
		return
	}
	t.line("")
	t.line("Volumes that wait for a replica:")
	t.columns(rows)
}

// printRecoveries of volumes that concern somebody.
func (s *status) printRecoveries(t *table, concern func(*v1alpha1.NvmfVolume) bool) {
	rows := [][]string{{"VOLUME", "CURRENT", "WAITING"}}
	for i := range s.volumes {
		if v := &s.volumes[i]; v.Spec.Recovery != nil && concern(v) {
			s.unwell = true
			rows = append(rows, []string{s.called(v), orDash(v.Spec.Recovery.Current), orDash(v.Spec.Recovery.Waiting)})
		}
	}
	if len(rows) == 1 {
		return
	}
	t.line("")
	t.line("Volumes whose record of replicas is being recovered, and which cannot be attached meanwhile:")
	t.columns(rows)
}

// takesPart tells whether a replica moves, or replaces one that does.
func takesPart(v *v1alpha1.NvmfVolume, replica string) bool {
	return v.Spec.Move != nil && (replica == v.Spec.Move.Replica || replica == v.Spec.Move.Replacement)
}

// asMoved tells whether a member of a mirror is not in sync because of a move: it is being filled, or it is to leave.
func (s *status) asMoved(volume string, m v1alpha1.MirrorMember) bool {
	if m.Retired {
		return true
	}
	v := s.volume(volume)
	return v != nil && v.Spec.Move != nil && m.Replica == v.Spec.Move.Replacement && m.State == v1alpha1.MemberFilling
}
