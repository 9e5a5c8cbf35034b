// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"fmt"

	"github.com/weft-storage/weft/dataplane/engine"
)

// An lvstore has its metadata pages from the day it was made. Each lvol takes one, and one for each 512 clusters of
// it in which something was written. A snapshot takes over its volume's, and the volume takes new ones as hosts write
// it again. When none is left, these writes fail, long after the snapshot was made; so it is refused while there is
// still room for all of them.
const (
	pageBytes = 4096
	// extentClusters are mapped by one page.
	extentClusters = 512
	// extentsPerPage of an lvol's own pages, 8 bytes for each; its first page also has names and flags.
	extentsPerPage, extentsInFirst = 500, 470
	// oldestPages of a pool file that was made small and grew: how many it began with is not known any more. A file of
	// 1 GiB has so many.
	oldestPages = 256
)

// metadataPages that the lvstore was made with, or somewhat less.
func (p *pool) metadataPages() int64 {
	clusters := int64(p.base.Blocks*p.base.BlockBytes) / p.ClusterBytes
	// Of these clusters metadata takes what is not data, whatever the device grew to since.
	taken, perCluster := clusters-p.clusters, p.ClusterBytes/pageBytes
	asMade := int64(metadataPercent(p.base, p.ClusterBytes)) * clusters / 100
	masks := 4 + clusters/(8*pageBytes)
	if most := taken * perCluster; asMade <= most {
		return asMade
	}
	return max(oldestPages, (taken-1)*perCluster-masks)
}

// pagesOf an lvol at most: of a volume once all of it was written, of a snapshot for what it has.
func pagesOf(sizeBytes, ownBytes, clusterBytes int64, writable bool) int64 {
	extents := extentsOf(sizeBytes, clusterBytes)
	own := 1 + rewrittenPages(sizeBytes, clusterBytes)
	if writable {
		return own + extents
	}
	return own + min(ownBytes/clusterBytes, extents)
}

func extentsOf(sizeBytes, clusterBytes int64) int64 {
	return (sizeBytes/clusterBytes + extentClusters - 1) / extentClusters
}

// rewrittenPages are the pages of an lvol that SPDK writes to free ones each time, at most. The first stays where it
// is.
func rewrittenPages(sizeBytes, clusterBytes int64) int64 {
	return (max(0, extentsOf(sizeBytes, clusterBytes)-extentsInFirst) + extentsPerPage - 1) / extentsPerPage
}

// promisedPages are those that the lvols of a pool have or may still need.
func (p *pool) promisedPages() int64 {
	held := holdBytes / p.ClusterBytes                       // clusters of one lvol
	sum := 1 + p.clusters/extentClusters + 2*p.clusters/held // the lvstore's own, and to hold all that is free
	for _, l := range p.lvols {
		if l.kind == freeLvol {
			continue
		}
		sum += pagesOf(l.sizeBytes, l.ownBytes, p.ClusterBytes, l.kind == volumeLvol)
	}
	return sum
}

const (
	// mostBelow are the lvols that a volume may lie on, one on another. To read what was never rewritten, SPDK goes
	// through all of them at once, with a request set for each, of 512 that all volumes of a pool share on a core. From
	// 512 on such a read never ends, and those of other volumes wait for it. A start of the target leaves such a volume
	// out.
	mostBelow = 64
	// mapBytes of an lvol for each of its clusters, written or not, which the target holds in memory.
	mapBytes = 16
	// mappedTimes the size of a drive is what sizes may add up to, and leastMapBytes for each pool: what memory is
	// planned for with clusters of 4 MiB (podMapped and podLeastDrive of dataplane/sizing).
	mappedTimes, leastMapBytes = 8, 16 << 20
)

// below is how many lvols one lies on.
func (l *lvol) below() int {
	n := 0
	for at := l.pool.lvols[l.base]; at != nil && n <= len(l.pool.lvols); at = l.pool.lvols[at.base] {
		n++
	}
	return n
}

// maps of all lvols of a pool, in bytes of the target's memory.
func (p *pool) maps() int64 {
	sum := int64(0)
	for _, l := range p.lvols {
		sum += p.mapOf(l.sizeBytes)
	}
	return sum
}

func (p *pool) mapOf(sizeBytes int64) int64 { return sizeBytes / p.ClusterBytes * mapBytes }

// reserveMap of a new lvol, in a call that makes several, or say that the target may not have the memory for it: it
// would be killed, and killed again when it starts.
func (p *pool) reserveMap(sizeBytes int64) error {
	if p.mapped == 0 {
		p.mapped = p.maps()
	}
	need, most := p.mapOf(sizeBytes), max(leastMapBytes, p.mapOf(int64(p.base.Blocks*p.base.BlockBytes))*mappedTimes)
	if p.mapped+need > most {
		return fmt.Errorf("%w: the sizes of volumes and snapshots in pool %s, written or not, may add up to %d GiB, and would to %d; delete snapshots, or use another pool",
			engine.ErrNoSpace, p.Device, most/mapBytes*p.ClusterBytes>>30, (p.mapped+need)/mapBytes*p.ClusterBytes>>30)
	}
	p.mapped += need
	return nil
}

// reserveSnapshot of a volume, in a call that makes several, or say that there may not be metadata pages enough. A
// second one of the same volume counts as much as the first, though it may come out smaller; clones that share one
// count each, for what they may write.
func (p *pool) reserveSnapshot(source *lvol) error {
	if p.reserved == 0 {
		p.reserved = p.promisedPages()
	}
	total := p.metadataPages()
	// Some are left for what the engine itself makes.
	room := total - max(8, total/64)
	need := pagesOf(source.sizeBytes, source.ownBytes, p.ClusterBytes, false)
	if p.reserved+need > room {
		return fmt.Errorf("%w: pool %s has %d metadata pages, its volumes and snapshots need up to %d, and this snapshot needs %d; delete snapshots, or use another pool",
			engine.ErrNoSpace, p.Device, total, p.reserved, need)
	}
	if below := source.below() + source.snapped; below >= mostBelow {
		return fmt.Errorf("%w: volume %s consists of %d snapshots, one on another, and of what was written since; SPDK reads through all of them, so there may be %d; delete snapshots, or volumes that were cloned from it",
			engine.ErrNoSpace, source.id, below, mostBelow)
	}
	if err := p.reserveMap(source.sizeBytes); err != nil {
		return err
	}
	p.reserved += need
	return nil
}

// mergeReserve of metadata pages, which hosts may take while an lvol is merged: one for each core that writes at once.
const mergeReserve = 64

// roomToMerge a deleted lvol into what was made of it, or say that there may not be metadata pages enough. SPDK 26.05
// writes all but the first page of both to free ones, and without these it may answer that it has merged what it did
// not write (blob_persist_complete_cb of lib/blob/blobstore.c). The pool is as SPDK lists it now.
func (l *lvol) roomToMerge() error {
	p, need := l.pool, int64(0)
	for _, into := range l.clonesOf() {
		need += rewrittenPages(into.sizeBytes, p.ClusterBytes)
	}
	if l.clones != nil {
		need += rewrittenPages(l.sizeBytes, p.ClusterBytes)
	}
	if need == 0 {
		return nil
	}
	unlisted := max(0, p.TotalBytes-p.FreeBytes-p.ownBytes()) / p.ClusterBytes // of lvols that SPDK deletes, say
	held := 1 + unlisted
	for _, of := range p.lvols {
		held += pagesOf(of.sizeBytes, of.ownBytes, p.ClusterBytes, false)
	}
	if total := p.metadataPages(); held+need+mergeReserve > total {
		return fmt.Errorf("pool %s has %d metadata pages, its volumes and snapshots have up to %d, and to delete snapshot %s, SPDK needs %d that are free; delete volumes, or snapshots of smaller volumes",
			p.Device, total, held, l.id, need)
	}
	return nil
}
