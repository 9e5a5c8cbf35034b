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
	// State as in the status of the NvmfVolume; Unknown if the CSI controller has not looked yet.
	State v1alpha1.VolumeState `json:"state"`
	// Problem of the first replica that has one, or what the volume waits for.
	Problem string `json:"problem,omitempty"`
}

func volumesCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes [NODE...]",
		Short: "List all volumes by claim, with where they are, who uses them, and their state",
		Long: `List the volumes of all namespaces, or those with a replica on the nodes named, sorted by claim. With -n, list only the claims of
a namespace. The states are those that kubectl get nvmfvolumes shows:

  Creating     its replicas are being created
  Ready        as many replicas as requested have all data, and nothing is wrong with them
  Degraded     it can be used, and something is wrong with it
  Unknown      nobody has reported lately whether a replica that has all data is served
  Unavailable  no replica that has all data is served
  Lost         the drives lack the data
  Deleting     its replicas are being deleted

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
	return claimIn(r.Claim, r.Volume, namespace)
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
	r := VolumeRow{Claim: f.called(v), Volume: v.Name, Target: v.Spec.Target, Size: v.Spec.Size, Replicas: max(v.Spec.Replicas, 1), Problem: v.Spec.Waiting}
	r.State = cmp.Or(v.Status.State, v1alpha1.VolumeUnknown)
	for _, h := range v.Spec.Attachments {
		if !h.Mover {
			r.AttachedTo = append(r.AttachedTo, h.Node)
		}
	}
	for _, m := range v.Spec.Members {
		r.Nodes = append(r.Nodes, m.Node)
		if problem := f.lacks(v, m.Name); problem == "" {
			r.InSync++
		} else {
			r.Problem = cmp.Or(r.Problem, m.Name+": "+problem)
		}
	}
	r.Problem = cmp.Or(r.Problem, v.Status.Reason)
	return r
}

// lacks says what a replica lacks; empty: it is ready, and has all data.
func (f *fleet) lacks(v *v1alpha1.NvmfVolume, replica string) string {
	r := f.replica(replica)
	if r == nil {
		return "does not exist"
	}
	if n := f.node(r.Spec.Node); n == nil || silent(n) {
		return v1alpha1.ReasonAgentSilent
	}
	switch c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady); {
	case c == nil:
		return "not reported yet"
	case c.Status != "True":
		return c.Reason
	}
	if !v.Replicated() {
		return ""
	}
	switch m := f.mirrorMember(v.Name, replica); {
	case m == nil:
		return "not in the NvmfMirror"
	case m.State != v1alpha1.MemberInSync:
		return string(m.State)
	}
	return ""
}

func (r VolumeRow) row(wide bool) []string {
	row := []string{r.Claim, size(&r.Size), fmt.Sprintf("%d of %d", r.InSync, r.Replicas), strings.Join(r.Nodes, ", "), orDash(strings.Join(r.AttachedTo, ", ")), string(r.State), orDash(r.Problem)}
	if wide {
		row = append(row, r.Target, r.Volume)
	}
	return row
}
