// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// What hosts write is kept as one word for each cluster, on disk with the rest of the lvstore: enough to tell whose
// data a volume reads after snapshots, clones, deletions, and the target's end.

// WriteWord writes to one cluster of a volume, named by its UUID, as lvstore/volume, or as volume where one lvstore has
// it. See Write for how it fails.
func (t *Target) WriteWord(volume string, cluster, word uint64) error {
	return t.io(func() error {
		name := t.app.aliasOf(volume)
		if err := t.app.write(name, cluster, 1); err != nil {
			return err
		}
		v, _ := t.app.findLvol(name)
		if v.data == nil {
			v.data = map[uint64]uint64{}
		}
		v.data[cluster] = word
		v.store.save(v)
		return nil
	})
}

// ReadWord reads a cluster of a volume, named as in WriteWord: what was last written to it, by itself or before it was
// derived from another. Where nothing was, it is 0.
func (t *Target) ReadWord(volume string, cluster uint64) (uint64, error) {
	var word uint64
	err := t.io(func() error {
		v, e := t.app.findLvol(t.app.aliasOf(volume))
		switch {
		case e != 0:
			return fmt.Errorf("%w: %s", ErrNoVolume, volume)
		case cluster >= v.clusters:
			return fmt.Errorf("read past the end of %s, which has %d clusters: %w", volume, v.clusters, syscall.EIO)
		}
		word = v.word(cluster)
		if v.bdev != nil {
			v.bdev.io.bytesRead += v.store.ClusterSize
			v.bdev.io.readOps++
			v.bdev.tally(1)
		}
		return nil
	})
	return word, err
}

// Lvols are the names of all logical volumes, in order.
func (t *Target) Lvols() []string {
	var names []string
	t.do(func() {
		for _, s := range t.app.lvstores {
			for _, v := range s.lvols {
				names = append(names, v.name)
			}
		}
	})
	slices.Sort(names)
	return names
}

// aliasOf a volume that is named without its lvstore.
func (a *app) aliasOf(name string) string {
	for _, s := range a.lvstores {
		for _, v := range s.lvols {
			if v.name == name {
				return v.alias()
			}
		}
	}
	return name
}

// word that a cluster reads as. A clone that is larger than its parent reads nothing past the parent's end.
func (v *lvol) word(cluster uint64) uint64 {
	for ; v != nil && cluster < v.clusters; v = v.parent {
		if v.alloc.has(cluster) {
			return v.data[cluster]
		}
	}
	return 0
}

// inherit what v reads from others in the clusters that it is about to have itself.
func (v *lvol) inherit(clusters clusters) {
	for from := v.parent; from != nil; from = from.parent {
		for cluster := range from.data {
			if !clusters.has(cluster) || v.alloc.has(cluster) {
				continue
			}
			if v.data == nil {
				v.data = map[uint64]uint64{}
			}
			v.data[cluster] = v.word(cluster)
		}
	}
}

// words lists what is in the clusters as pairs, in order.
func (v *lvol) words() [][2]uint64 {
	var pairs [][2]uint64
	for _, cluster := range slices.Sorted(maps.Keys(v.data)) {
		pairs = append(pairs, [2]uint64{cluster, v.data[cluster]})
	}
	return pairs
}
