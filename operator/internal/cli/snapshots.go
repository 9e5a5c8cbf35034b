// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// snapshotContents are the objects of external-snapshotter that refer to NvmfSnapshots.
var snapshotContents = schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshotContent"}

// A SnapshotReport is one NvmfSnapshot; -o json prints it. What is absent is not known.
type SnapshotReport struct {
	Name string `json:"name"`
	// VolumeSnapshot as NAMESPACE/NAME, from its content.
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	Content        string `json:"volumeSnapshotContent,omitempty"`
	// Claim whose volume the snapshot was taken of, as NAMESPACE/NAME; nv/NAME of a volume without a claim.
	Claim     string             `json:"claim,omitempty"`
	Volume    string             `json:"volume"`
	Replica   string             `json:"replica"`
	Node      string             `json:"node"`
	Device    string             `json:"device,omitempty"`
	Ready     bool               `json:"ready"`
	Size      *resource.Quantity `json:"size,omitempty"`
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	CreatedAt *metav1.Time       `json:"createdAt,omitempty"`
	Problem   string             `json:"problem,omitempty"`
	// age of the snapshot.
	age string
}

func snapshotsCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshots [NODE...]",
		Short: "List all snapshots, with their claims and drives",
		Long: `List the snapshots on all nodes, or on those named: the claim that each was taken of, its VolumeSnapshot, where it is stored, how large it is, and
problems. The snapshots are sorted by claim and age, the oldest first. With -n, list only those whose claim or VolumeSnapshot is in a namespace.

A snapshot without a VolumeSnapshot outlived it, or its VolumeSnapshotContent could not be read.`,
		Example: `  kubectl weft snapshots
  kubectl weft snapshots -n databases
  kubectl weft snapshots -o wide`,
	}
	namespace := namespaceFlags(cmd)
	return listingCommand(at, now, cmd, func(ctx context.Context, api client.Reader, f *fleet, nodes []string, out io.Writer, format *output) error {
		return f.listSnapshots(nodes, readContents(ctx, api)).in(*namespace, SnapshotReport.in).show(out, format)
	})
}

// in tells whether the claim or the VolumeSnapshot is in a namespace.
func (r SnapshotReport) in(namespace string) bool {
	return claimIn(r.Claim, r.Volume, namespace) || strings.HasPrefix(r.VolumeSnapshot, namespace+"/")
}

// content of a snapshot: names of its VolumeSnapshotContent and VolumeSnapshot.
type content struct{ name, snapshot string }

// readContents of all snapshots, by the name of the NvmfSnapshot. Clusters without snapshots' CRDs, and people who may
// not read them, have none.
func readContents(ctx context.Context, api client.Reader) map[string]content {
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(snapshotContents)
	found := map[string]content{}
	if err := api.List(ctx, all); err != nil {
		return found
	}
	for _, c := range all.Items {
		if driver, _, _ := unstructured.NestedString(c.Object, "spec", "driver"); driver != v1alpha1.DriverName {
			continue
		}
		namespace, _, _ := unstructured.NestedString(c.Object, "spec", "volumeSnapshotRef", "namespace")
		name, _, _ := unstructured.NestedString(c.Object, "spec", "volumeSnapshotRef", "name")
		is := content{name: c.GetName()}
		if name != "" {
			is.snapshot = namespace + "/" + name
		}
		for _, field := range [][]string{{"status", "snapshotHandle"}, {"spec", "source", "snapshotHandle"}} {
			if handle, _, _ := unstructured.NestedString(c.Object, field...); handle != "" {
				found[handle] = is
			}
		}
	}
	return found
}

// listSnapshots of nodes, sorted by claim and age.
func (f *fleet) listSnapshots(nodes []string, contents map[string]content) listing[SnapshotReport] {
	l := listing[SnapshotReport]{kind: "snapshots", head: []string{"CLAIM", "VOLUMESNAPSHOT", "SNAPSHOT", "NODE", "DRIVE", "READY", "SIZE", "ALLOCATED", "AGE", "PROBLEM"},
		wide: []string{"VOLUME", "REPLICA", "VOLUMESNAPSHOTCONTENT"}, row: SnapshotReport.row}
	for i := range f.snapshots {
		if s := &f.snapshots[i]; chosen(nodes, s.Spec.Node) {
			l.items = append(l.items, f.reportSnapshot(s, contents[s.Name]))
		}
	}
	slices.SortStableFunc(l.items, func(a, b SnapshotReport) int {
		return cmp.Or(cmp.Compare(a.Claim, b.Claim), taken(a).Compare(taken(b)), cmp.Compare(a.Name, b.Name))
	})
	return l
}

func taken(r SnapshotReport) time.Time {
	if r.CreatedAt == nil {
		return time.Time{}
	}
	return r.CreatedAt.Time
}

func (f *fleet) reportSnapshot(s *v1alpha1.NvmfSnapshot, is content) SnapshotReport {
	r := SnapshotReport{
		Name: s.Name, VolumeSnapshot: is.snapshot, Content: is.name, Volume: s.Spec.Volume, Replica: s.Spec.Replica, Node: s.Spec.Node, Device: s.Status.Device,
		Ready: s.Status.Ready, Size: s.Status.Size, Allocated: s.Status.Allocated, CreatedAt: s.Status.CreatedAt, age: "-",
	}
	if v := f.volume(s.Spec.Volume); v != nil {
		r.Claim = f.called(v)
	}
	if r.CreatedAt != nil {
		r.age = duration.HumanDuration(f.now.Sub(r.CreatedAt.Time))
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
		r.Problem = c.Reason + " " + c.Message
	}
	return r
}

func (r SnapshotReport) row(wide bool) []string {
	row := []string{cmp.Or(r.Claim, "unknown"), orDash(r.VolumeSnapshot), r.Name, r.Node, orDash(r.Device), yes(r.Ready), size(r.Size), size(r.Allocated), r.age, orDash(r.Problem)}
	if wide {
		row = append(row, r.Volume, r.Replica, orDash(r.Content))
	}
	return row
}
