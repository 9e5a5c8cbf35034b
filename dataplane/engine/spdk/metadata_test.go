// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"strconv"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const tib = 1 << 40

// clusterBytes of the pools, where nothing else is said.
const clusterBytes = v1alpha1.DefaultClusterSize

// poolOf a device, with an lvstore that took so many of its clusters for metadata.
func poolOf(bytes, metadataClusters int64) *pool {
	return &pool{
		Pool: engine.Pool{ClusterBytes: clusterBytes}, clusters: bytes/clusterBytes - metadataClusters, lvols: map[string]*lvol{},
		base: spdkrpc.Bdev{Blocks: uint64(bytes / blockBytes), BlockBytes: blockBytes},
	}
}

func TestMetadataPages(t *testing.T) {
	for name, tt := range map[string]struct {
		pool *pool
		want int64
	}{
		"512 MiB":                            {poolOf(512<<20, 1), 128},
		"4 TiB":                              {poolOf(4*tib, 22), 20971},
		"made with 20 GiB, 1 TiB now":        {poolOf(tib, 6), 5*1024 - 4 - tib/clusterBytes/(8*pageBytes)},
		"made with 1 GiB or less, 1 TiB now": {poolOf(tib, 1), oldestPages},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.pool.metadataPages(); got != tt.want {
				t.Errorf("got %d pages, want %d", got, tt.want)
			}
		})
	}
}

// To merge a snapshot takes free pages for what does not fit the first page of both.
func TestRewrittenPages(t *testing.T) {
	for extents, want := range map[int64]int64{0: 0, 1: 0, 470: 0, 471: 1, 970: 1, 971: 2} {
		if got := rewrittenPages(extents*extentClusters*clusterBytes, clusterBytes); got != want {
			t.Errorf("%d extents: %d pages, want %d", extents, got, want)
		}
	}
}

// What SPDK does not list has pages too, one for each of its clusters at most.
func TestMergeCountsPagesOfWhatIsNotListed(t *testing.T) {
	const size = 2 * tib
	p := poolOf(4*tib, 22)
	p.lvols["v"] = &lvol{pool: p, kind: volumeLvol, name: "v", sizeBytes: size, ownBytes: size, base: "s"}
	p.lvols["s"] = &lvol{pool: p, kind: deletedLvol, name: "s", sizeBytes: size, ownBytes: size / 2, clones: []string{"v"}}
	p.TotalBytes = 4 * tib
	p.FreeBytes = p.TotalBytes - p.ownBytes()
	if err := p.lvols["s"].roomToMerge(); err != nil {
		t.Error(err)
	}
	p.FreeBytes -= 20_000 * clusterBytes
	if err := p.lvols["s"].roomToMerge(); err == nil {
		t.Error("merged beside 20,000 clusters that nobody knows")
	}
}

// A volume nearly as large as its pool of 4 TiB, rewritten after each snapshot, has seven of them before its pages
// would be used up.
func TestSnapshotsOfAFullVolume(t *testing.T) {
	p := poolOf(4*tib, 22)
	volume := &lvol{pool: p, kind: volumeLvol, name: "v", sizeBytes: 4*tib - 16<<30, ownBytes: 4*tib - 16<<30}
	p.lvols[volume.name] = volume
	made := 0
	for ; made < 100 && p.reserveSnapshot(volume) == nil; made++ {
	}
	if made != 7 {
		t.Errorf("%d snapshots", made)
	}
	small := &lvol{pool: p, kind: volumeLvol, name: "s", sizeBytes: 4 << 30}
	if err := p.reserveSnapshot(small); err != nil {
		t.Errorf("one of a small volume has room: %v", err)
	}
}

// SPDK reads what was never rewritten through all snapshots that a volume lies on, and hangs from 512 on.
func TestSnapshotsOnSnapshots(t *testing.T) {
	p := poolOf(4*tib, 22)
	volume := &lvol{pool: p, kind: volumeLvol, name: "v", sizeBytes: 4 << 20}
	p.lvols[volume.name] = volume
	for at, n := volume, 0; n < mostBelow-2; n++ {
		below := &lvol{pool: p, kind: snapshotLvol, name: strconv.Itoa(n), sizeBytes: 4 << 20}
		p.lvols[below.name], at.base = below, below.name
		at = below
	}
	for ; volume.snapped < 2; volume.snapped++ {
		if err := p.reserveSnapshot(volume); err != nil {
			t.Fatalf("snapshot %d of this call: %v", volume.snapped, err)
		}
	}
	if err := p.reserveSnapshot(volume); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("got %v", err)
	}
	if err := p.reserveSnapshot(&lvol{pool: p, kind: volumeLvol, name: "other", sizeBytes: 4 << 20}); err != nil {
		t.Errorf("one of another volume: %v", err)
	}
}

// Each lvol takes memory for its size, written or not, and more than is planned would have the target killed.
func TestSnapshotsOfEmptyVolumesTakeMemory(t *testing.T) {
	p := poolOf(4*tib, 22)
	p.lvols["v"] = &lvol{pool: p, kind: volumeLvol, name: "v", sizeBytes: 2 * tib}
	made := 0
	for ; made < 100 && p.reserveSnapshot(p.lvols["v"]) == nil; made++ {
	}
	// Twice the pool at the rate of clusters of 1 MiB, so eight times with 4 MiB: 16 such volumes.
	if want := 15; made != want {
		t.Errorf("%d snapshots, want %d", made, want)
	}
}

// Larger clusters leave a small device as many metadata pages as those of 4 MiB do; a large one has enough of them.
func TestMetadataPercent(t *testing.T) {
	for _, tt := range []struct {
		bytes, cluster, want int64
	}{
		{16 << 30, 1 << 20, 100}, {16 << 30, 4 << 20, 100}, {16 << 30, 16 << 20, 400},
		{4 * tib, 1 << 20, 1}, {4 * tib, 4 << 20, 2}, {4 * tib, 16 << 20, 7},
	} {
		base := spdkrpc.Bdev{Blocks: uint64(tt.bytes / blockBytes), BlockBytes: blockBytes}
		if got := int64(metadataPercent(base, tt.cluster)); got != tt.want {
			t.Errorf("%d bytes in clusters of %d: %d %%, want %d", tt.bytes, tt.cluster, got, tt.want)
		}
	}
}
