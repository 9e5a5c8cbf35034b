// SPDX-License-Identifier: Apache-2.0

package spdktest

import "math/bits"

// clusters is a set of numbers: of the clusters that are allocated to a volume, or of a store's metadata pages.
type clusters []uint64

func (c clusters) has(i uint64) bool {
	return i/64 < uint64(len(c)) && c[i/64]>>(i%64)&1 == 1
}

func (c *clusters) add(i uint64) {
	for uint64(len(*c)) <= i/64 {
		*c = append(*c, 0)
	}
	(*c)[i/64] |= 1 << (i % 64)
}

func (c clusters) remove(i uint64) {
	if i/64 < uint64(len(c)) {
		c[i/64] &^= 1 << (i % 64)
	}
}

// firstFree is the first number that is not in the set.
func (c clusters) firstFree() uint64 {
	for i, w := range c {
		if w != ^uint64(0) {
			return uint64(i*64 + bits.TrailingZeros64(^w))
		}
	}
	return uint64(len(c)) * 64
}

// addRange adds n clusters from first on.
func (c *clusters) addRange(first, n uint64) {
	for i := first; i < first+n; i++ {
		c.add(i)
	}
}

func (c clusters) count() uint64 {
	n := 0
	for _, w := range c {
		n += bits.OnesCount64(w)
	}
	return uint64(n)
}

// truncate drops the clusters from n on.
func (c *clusters) truncate(n uint64) {
	if words := (n + 63) / 64; words < uint64(len(*c)) {
		*c = (*c)[:words]
	}
	if n%64 != 0 && n/64 < uint64(len(*c)) {
		(*c)[n/64] &= 1<<(n%64) - 1
	}
}

// union adds those of o.
func (c *clusters) union(o clusters) {
	for len(*c) < len(o) {
		*c = append(*c, 0)
	}
	for i, w := range o {
		(*c)[i] |= w
	}
}

// clustersPerPage is how many clusters one metadata page of a volume maps.
const clustersPerPage = 512

// pages counts the metadata pages that it takes to map the set.
func (c clusters) pages() uint64 {
	const words = clustersPerPage / 64
	var found uint64
	for i := 0; i < len(c); i += words {
		if c[i:min(i+words, len(c))].count() > 0 {
			found++
		}
	}
	return found
}

// runs lists the set as pairs of first and length.
func (c clusters) runs() [][2]uint64 {
	var runs [][2]uint64
	for i := uint64(0); i < uint64(len(c))*64; i++ {
		if i%64 == 0 && c[i/64] == 0 {
			i += 63
			continue
		}
		if !c.has(i) {
			continue
		}
		if last := len(runs) - 1; last >= 0 && runs[last][0]+runs[last][1] == i {
			runs[last][1]++
		} else {
			runs = append(runs, [2]uint64{i, 1})
		}
	}
	return runs
}
