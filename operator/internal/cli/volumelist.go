// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// States of a volume.
const (
	volumeReady    = "Ready"    // every replica is ready, and has all data
	volumeDegraded = "Degraded" // a replica that has all data is ready, and another one is not, or lacks data
	volumeNotReady = "NotReady" // no replica is ready and has all data
	volumeUnknown  = "Unknown"  // the same, but of a replica it is not known: its agent does not answer, or has not reported it
	volumeDeleting = "Deleting"
)

// A VolumeRow is one volume in the list of volumes; -o json prints it.
type VolumeRow struct {
	// Claim as NAMESPACE/NAME; nv/NAME of a volume without one.
	Claim  string            `json:"claim"`
	Volume string            `json:"volume"`
	Target string            `json:"target"`
	Size   resource.Quantity `json:"size"`
	// Replicas that are requested, and those that are ready and have all data.
	Replicas int32    `json:"replicas"`
	InSync   int      `json:"inSync"`
	Nodes    []string `json:"nodes"`
	// AttachedTo are the nodes that use the volume.
	AttachedTo []string `json:"attachedTo,omitempty"`
	// State: Ready, Degraded, NotReady, Unknown or Deleting.
	State string `json:"state"`
	// Problem of the first replica that has one, or what the volume waits for.
	Problem string `json:"problem,omitempty"`
}

func volumesCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes [NODE...]",
		Short: "List all volumes by claim, with where they are, who uses them, and their state",
		Long: `List the volumes of all namespaces, or those with a replica on the nodes named, sorted by claim. With -n, list only the claims of
a namespace. The states are:

  Ready     every replica is ready, and has all data
  Degraded  a replica that has all data is ready; another one is not, or lacks data
  NotReady  no replica is ready and has all data
  Unknown   the same, but of a replica it is not known: its agent does not answer, or has not reported it
  Deleting  the volume is being deleted

To see everything about one of them, use kubectl weft volume.`,
		Example: `  kubectl weft volumes
  kubectl weft volumes -n databases
  kubectl weft volumes storage-1 -o wide`,
	}
	namespace := namespaceFlags(cmd)
	return listingCommand(at, now, cmd, shownAs(func(f *fleet, nodes []string) listing[VolumeRow] {
		return f.listVolumes(nodes).in(*namespace, VolumeRow.in)
	}))
}

// in tells whether the claim is in a namespace.
func (r VolumeRow) in(namespace string) bool {
	return r.Claim != volumePrefix+r.Volume && strings.HasPrefix(r.Claim, namespace+"/")
}

// listVolumes with a replica on nodes, sorted by claim.
func (f *fleet) listVolumes(nodes []string) listing[VolumeRow] {
	l := listing[VolumeRow]{kind: "volumes", head: []string{"CLAIM", "SIZE", "REPLICAS", "ON", "ATTACHED TO", "STATE", "PROBLEM"}, wide: []string{"TARGET", "VOLUME"}, row: VolumeRow.row}
	for i := range f.volumes {
		v := &f.volumes[i]
		if slices.ContainsFunc(v.Spec.Members, func(m v1alpha1.VolumeMember) bool { return chosen(nodes, m.Node) }) {
			l.items = append(l.items, f.rowOf(v))
		}
	}
	slices.SortStableFunc(l.items, func(a, b VolumeRow) int {
		return cmp.Or(cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Volume, b.Volume))
	})
	return l
}

func (f *fleet) rowOf(v *v1alpha1.NvmfVolume) VolumeRow {
	r := VolumeRow{Claim: f.called(v), Volume: v.Name, Target: v.Spec.Target, Size: v.Spec.Size, Replicas: max(v.Spec.Replicas, 1), State: volumeReady, Problem: v.Spec.Waiting}
	for _, h := range v.Spec.Attachments {
		if !h.Mover {
			r.AttachedTo = append(r.AttachedTo, h.Node)
		}
	}
	allKnown := true
	for _, m := range v.Spec.Members {
		r.Nodes = append(r.Nodes, m.Node)
		problem, known := f.lacks(v, m.Name)
		allKnown = allKnown && known
		if problem == "" {
			r.InSync++
		} else {
			r.State, r.Problem = volumeDegraded, cmp.Or(r.Problem, m.Name+": "+problem)
		}
	}
	switch {
	case v.DeletionTimestamp != nil:
		r.State = volumeDeleting
	case r.InSync == 0 && !allKnown:
		r.State = volumeUnknown
	case r.InSync == 0:
		r.State = volumeNotReady
	case r.InSync < int(r.Replicas):
		r.State = volumeDegraded
	}
	return r
}

// lacks says what a replica lacks, and whether that is known; empty: it is ready, and has all data.
func (f *fleet) lacks(v *v1alpha1.NvmfVolume, replica string) (problem string, known bool) {
	r := f.replica(replica)
	if r == nil {
		return "does not exist", true
	}
	if n := f.node(r.Spec.Node); n == nil || silent(n) {
		return v1alpha1.ReasonAgentSilent, false
	}
	switch c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady); {
	case c == nil:
		return "not reported yet", false
	case c.Status != "True":
		return c.Reason, true
	}
	if !v.Replicated() {
		return "", true
	}
	switch m := f.mirrorMember(v.Name, replica); {
	case m == nil:
		return "not in the NvmfMirror", true
	case m.State != v1alpha1.MemberInSync:
		return string(m.State), true
	}
	return "", true
}

func (r VolumeRow) row(wide bool) []string {
	row := []string{r.Claim, size(&r.Size), fmt.Sprintf("%d of %d", r.InSync, r.Replicas), strings.Join(r.Nodes, ", "), orDash(strings.Join(r.AttachedTo, ", ")), r.State, orDash(r.Problem)}
	if wide {
		row = append(row, r.Target, r.Volume)
	}
	return row
}
