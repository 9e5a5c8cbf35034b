// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// BenchmarkRelease decides what a node does once all its volumes and snapshots were deleted: each object is let go.
func BenchmarkRelease(b *testing.B) {
	const each = v1alpha1.MaxAttachments
	s := Observed{
		Now: now, Refresh: true, Records: Records{Items: map[engine.ID]Record{}, Next: "next"}, Node: testNode(), Inventory: testInventory(),
		Target: Target{State: engine.State{Pools: openPools()}},
	}
	for n := range each {
		volume, snapshot := testVolume(n, isCreatedOn("a"), isDeleting), testSnapshot(each+n, "v0", snapshotCreated, snapshotDeleting)
		s.Volumes, s.Snapshots = append(s.Volumes, volume), append(s.Snapshots, snapshot)
		for _, i := range []int{n, each + n} {
			s.Records.Items[id(i)] = Record{UID: uid(i), ResourceVersion: "7", Generation: 1}
		}
	}
	for b.Loop() {
		if d := Decide(s); len(d.ReleaseVolumes) != each || len(d.ReleaseSnapshots) != each {
			b.Fatalf("released %d volumes and %d snapshots of %d each", len(d.ReleaseVolumes), len(d.ReleaseSnapshots), each)
		}
	}
}
