// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// What weft does with a drive.
const (
	driveReady    = "Ready"    // its pool stores replicas
	driveRetiring = "Retiring" // the same, but it gets no new ones
	driveNotReady = "NotReady" // its pool cannot be used
	drivePlanned  = "Planned"  // it has no pool yet
	driveDropped  = "Dropped"  // it was given up
	driveUnused   = "Unused"   // weft does not use it
)

// A DriveReport is one drive of one node; -o json prints it. What is absent was not reported.
type DriveReport struct {
	Node  string `json:"node"`
	Drive string `json:"drive"`
	// Name of the block device. A drive that another driver than the kernel's has may be without one.
	Name  string `json:"name,omitempty"`
	Model string `json:"model,omitempty"`
	// Serial number of the drive.
	Serial     string             `json:"serial,omitempty"`
	Size       *resource.Quantity `json:"size,omitempty"`
	PCIAddress string             `json:"pciAddress,omitempty"`
	WriteCache string             `json:"writeCache,omitempty"`
	// Content that the agent found: Blank, Weft, Foreign or Unknown, with a detail.
	Content       string `json:"content,omitempty"`
	ContentDetail string `json:"contentDetail,omitempty"`
	// State: Ready, Retiring, NotReady, Planned, Dropped or Unused.
	State       string   `json:"state"`
	Target      string   `json:"target,omitempty"`
	DeviceClass string   `json:"deviceClass,omitempty"`
	AgentSilent bool     `json:"agentSilent,omitempty"`
	Problem     string   `json:"problem,omitempty"`
	Replicas    int      `json:"replicas"`
	Snapshots   int      `json:"snapshots"`
	Claims      []string `json:"claims,omitempty"`
}

func drivesCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	return listingCommand(at, now, &cobra.Command{
		Use:   "drives [NODE...]",
		Short: "List the drives of all nodes, with the claims on them",
		Long: `List the drives of all nodes, or of those named: what weft does with each, what is on it, the claims that are stored there, and problems. Drives
that weft does not use are listed, too. The states are:

  Ready     its pool stores replicas
  Retiring  the same, but it gets no new replicas (kubectl weft retire)
  NotReady  its pool cannot be used; PROBLEM says why
  Planned   the node's plan has it, and its pool has not been reported yet
  Dropped   it was given up (kubectl weft drop)
  Unused    weft does not use it`,
		Example: `  kubectl weft drives
  kubectl weft drives storage-1 -o wide`,
	}, shownAs((*fleet).listDrives))
}

// listDrives of nodes, sorted by node, name and ID.
func (f *fleet) listDrives(nodes []string) listing[DriveReport] {
	l := listing[DriveReport]{kind: "drives", head: []string{"NODE", "DRIVE", "NAME", "MODEL", "SIZE", "CONTENT", "STATE", "TARGET", "REPLICAS", "CLAIMS", "PROBLEM"},
		wide: []string{"CLASS", "SERIAL", "PCI", "CACHE", "SNAPSHOTS", "FOUND ON IT"}, row: DriveReport.row}
	contents := f.contents()
	for i := range f.nodes {
		n := &f.nodes[i]
		if !chosen(nodes, n.Name) {
			continue
		}
		for _, id := range drivesOf(n) {
			r := reportDrive(n, id)
			if s := contents[place{n.Name, id}]; s != nil {
				r.Replicas, r.Snapshots, r.Claims = s.replicas, s.snapshots, s.claims
			}
			l.items = append(l.items, r)
		}
	}
	slices.SortStableFunc(l.items, func(a, b DriveReport) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Drive, b.Drive))
	})
	return l
}

// drivesOf a node: those that it has, that are planned, and that have a pool. A pool file is no drive.
func drivesOf(n *v1alpha1.NvmfNode) []string {
	var ids []string
	if n.Status.Inventory != nil {
		for _, d := range n.Status.Inventory.Drives {
			ids = append(ids, d.ID)
		}
	}
	if n.Spec.Plan != nil {
		for _, d := range n.Spec.Plan.Drives {
			ids = append(ids, d.ID)
		}
	}
	for _, p := range n.Status.Pools {
		if n.Spec.Plan == nil || n.Spec.Plan.File == nil {
			ids = append(ids, p.Device)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func reportDrive(n *v1alpha1.NvmfNode, id string) DriveReport {
	r := DriveReport{Node: n.Name, Drive: id, State: driveUnused, AgentSilent: silent(n)}
	if n.Status.Inventory != nil {
		if d := find(n.Status.Inventory.Drives, func(d *v1alpha1.Drive) bool { return d.ID == id }); d != nil {
			r.Name, r.Model, r.Serial, r.PCIAddress, r.WriteCache = d.Name, d.Model, d.Serial, d.PCIAddress, string(d.WriteCache)
			r.Size, r.Content, r.ContentDetail = resource.NewQuantity(d.SizeBytes, resource.BinarySI), string(d.Content), d.ContentDetail
		}
	}
	if n.Spec.Plan != nil {
		if d := find(n.Spec.Plan.Drives, func(d *v1alpha1.PlannedDrive) bool { return d.ID == id }); d != nil {
			r.State, r.Target, r.DeviceClass = drivePlanned, n.Spec.Target, d.DeviceClass
			r.Serial, r.PCIAddress = cmp.Or(r.Serial, d.Serial), cmp.Or(r.PCIAddress, d.PCIAddress)
		}
	}
	if p := find(n.Status.Pools, func(p *v1alpha1.PoolStatus) bool { return p.Device == id }); p != nil {
		r.Target, r.DeviceClass, r.Problem = n.Spec.Target, cmp.Or(r.DeviceClass, p.DeviceClass), strings.TrimSpace(p.Reason+" "+p.Message)
		if r.Name == "" && p.Path != "" {
			r.Name = path.Base(p.Path)
		}
		switch {
		case !p.Ready:
			r.State = driveNotReady
		case n.Spec.Cordons(id):
			r.State = driveRetiring
		default:
			r.State = driveReady
		}
	}
	if n.Spec.Drops(id) {
		r.State = driveDropped
	}
	return r
}

func (r DriveReport) row(wide bool) []string {
	problem := r.Problem
	if r.AgentSilent {
		problem = strings.TrimSpace(v1alpha1.ReasonAgentSilent + " " + problem)
	}
	row := []string{r.Node, r.Drive, orDash(r.Name), orDash(r.Model), size(r.Size), orDash(r.Content), r.State, orDash(r.Target),
		fmt.Sprint(r.Replicas), claimsIn(r.Claims, wide), orDash(problem)}
	if wide {
		row = append(row, orDash(r.DeviceClass), orDash(r.Serial), orDash(r.PCIAddress), orDash(r.WriteCache), fmt.Sprint(r.Snapshots), orDash(r.ContentDetail))
	}
	return row
}
