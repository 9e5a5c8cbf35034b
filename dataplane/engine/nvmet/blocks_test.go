// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
)

// at most so many extents at a time, as the kernel lists those that overlap with a range.
func (all extents) lister(most int, within engine.Range) ([]extent, error) {
	var list []extent
	for _, x := range all {
		if int64(x.logical+x.length) > within.Offset && int64(x.logical) < within.End() && len(list) < most {
			list = append(list, x)
		}
	}
	return list, nil
}

type extents []extent

func written(logical, physical, length uint64) extent {
	return extent{logical: logical, physical: physical, length: length}
}

func flagged(x extent, flags uint32) extent {
	x.flags = flags
	return x
}

// differing ranges of two files.
func differing(t *testing.T, snapshot, base extents, within engine.Range) []engine.Range {
	t.Helper()
	var all []engine.Range
	for most := 1; most <= 3; most++ {
		var list []engine.Range
		err := differences(
			pieces(t.Context(), func(w engine.Range) ([]extent, error) { return snapshot.lister(most, w) }, within),
			pieces(t.Context(), func(w engine.Range) ([]extent, error) { return base.lister(4-most, w) }, within),
			func(r engine.Range) error { list = append(list, r); return nil },
		)
		if err != nil {
			t.Fatal(err)
		}
		if most > 1 && !slices.Equal(all, list) {
			t.Fatalf("%v with extents one by one, but %v with %d at a time", all, list, most)
		}
		all = list
	}
	return all
}

func TestDifferences(t *testing.T) {
	const unwritten, shared, last = extentUnwritten, extentShared, extentLast
	whole := engine.Range{Bytes: 100}
	for name, c := range map[string]struct {
		snapshot, base extents
		within         engine.Range
		differ         []engine.Range
	}{
		"nothing":                      {nil, nil, whole, nil},
		"no range":                     {extents{written(0, 500, 100)}, nil, engine.Range{Offset: 50}, nil},
		"written, and a hole before":   {extents{written(10, 500, 20)}, nil, whole, []engine.Range{{Offset: 10, Bytes: 20}}},
		"a hole, and written before":   {nil, extents{written(10, 500, 20)}, whole, []engine.Range{{Offset: 10, Bytes: 20}}},
		"the same":                     {extents{written(10, 500, 20)}, extents{written(10, 500, 20)}, whole, nil},
		"split otherwise":              {extents{written(0, 500, 30), written(30, 530, 70)}, extents{written(0, 500, 70), written(70, 570, 30)}, whole, nil},
		"somewhere else":               {extents{written(0, 500, 100)}, extents{written(0, 501, 100)}, whole, []engine.Range{{Bytes: 100}}},
		"one block in between":         {extents{written(0, 500, 40), written(40, 900, 10), written(50, 550, 50)}, extents{written(0, 500, 100)}, whole, []engine.Range{{Offset: 40, Bytes: 10}}},
		"moved within the file":        {extents{written(10, 500, 10)}, extents{written(0, 500, 10)}, whole, []engine.Range{{Bytes: 20}}},
		"unwritten reads as a hole":    {extents{flagged(written(0, 500, 50), unwritten|last)}, nil, whole, nil},
		"written where it was not":     {extents{written(0, 500, 50)}, extents{flagged(written(0, 500, 50), unwritten)}, whole, []engine.Range{{Bytes: 50}}},
		"unwritten where it was":       {extents{flagged(written(0, 500, 50), unwritten)}, extents{written(0, 500, 50)}, whole, []engine.Range{{Bytes: 50}}},
		"flags that say nothing":       {extents{flagged(written(0, 500, 50), shared)}, extents{flagged(written(0, 500, 50), last|extentMerged)}, whole, nil},
		"not allocated yet":            {extents{flagged(written(0, 0, 50), 4|2)}, extents{flagged(written(0, 0, 50), 4|2)}, whole, []engine.Range{{Bytes: 50}}},
		"not allocated, and unwritten": {extents{flagged(written(0, 0, 50), 4|unwritten)}, nil, whole, []engine.Range{{Bytes: 50}}},
		"encoded":                      {extents{flagged(written(0, 500, 50), 8)}, extents{flagged(written(0, 500, 50), 8)}, whole, []engine.Range{{Bytes: 50}}},
		"inline":                       {extents{flagged(written(0, 0, 50), 0x200)}, extents{flagged(written(0, 0, 50), 0x200)}, whole, []engine.Range{{Bytes: 50}}},
		"a flag of a later kernel":     {extents{flagged(written(0, 500, 50), 0x4000)}, extents{flagged(written(0, 500, 50), 0x4000)}, whole, []engine.Range{{Bytes: 50}}},
		"beyond the range on both ends": {
			extents{written(0, 500, 100)}, extents{written(0, 500, 30), written(30, 800, 70)},
			engine.Range{Offset: 20, Bytes: 30}, []engine.Range{{Offset: 30, Bytes: 20}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(differing(t, c.snapshot, c.base, c.within)).To(Equal(c.differ))
		})
	}
}

// model of a file: the place on the drive of each of its blocks; none is nowhere.
type model []int64

// extents of the model, cut at random, and some of its holes unwritten.
func (m model) extents() extents {
	var all extents
	for at, place := range m {
		x := written(uint64(at), uint64(place), 1)
		if place < 0 {
			if rand.IntN(2) > 0 {
				continue
			}
			x.physical, x.flags = uint64(1e6+at), extentUnwritten
		}
		if n := len(all) - 1; n >= 0 && rand.IntN(8) > 0 && all[n].flags == x.flags && all[n].logical+all[n].length == x.logical && all[n].physical+all[n].length == x.physical {
			all[n].length++
		} else {
			all = append(all, x)
		}
	}
	return all
}

// TestDifferencesOfRandomWrites: whatever was written, and however the kernel divides it, no more and no less is listed
// than the blocks that have another place.
func TestDifferencesOfRandomWrites(t *testing.T) {
	g := NewWithT(t)
	for range 2000 {
		volume, free := make(model, 64), int64(1000)
		for at := range volume {
			volume[at] = nowhere
		}
		change := func() {
			for range rand.IntN(6) {
				at := rand.IntN(len(volume))
				discard := rand.IntN(4) == 0
				for n := at; n < min(at+1+rand.IntN(12), len(volume)); n++ {
					if volume[n] = free; discard {
						volume[n] = nowhere
					}
					free++
				}
			}
		}
		change()
		base := slices.Clone(volume)
		change()
		within := engine.Range{Offset: rand.Int64N(32), Bytes: rand.Int64N(33)}
		truth := make([]bool, len(volume))
		for at := within.Offset; at < within.End(); at++ {
			truth[at] = volume[at] != base[at]
		}
		listed := make([]bool, len(volume))
		end := int64(-1)
		for _, r := range differing(t, volume.extents(), base.extents(), within) {
			g.Expect(r.Offset).To(BeNumerically(">", end), "in order, and apart")
			for end = r.Offset; end < r.End(); end++ {
				listed[end] = true
			}
		}
		g.Expect(listed).To(Equal(truth), "%v and then %v", base, volume)
	}
}

func TestDifferencesFail(t *testing.T) {
	g := NewWithT(t)
	failed, whole := errors.New("failed"), engine.Range{Bytes: 100}
	list := func(engine.Range) ([]extent, error) { return extents{written(0, 500, 100)}, nil }
	fails := func(engine.Range) ([]extent, error) { return nil, failed }
	ignore := func(engine.Range) error { return nil }
	g.Expect(differences(pieces(t.Context(), list, whole), pieces(t.Context(), fails, whole), ignore)).To(MatchError(failed))
	g.Expect(differences(pieces(t.Context(), fails, whole), pieces(t.Context(), list, whole), ignore)).To(MatchError(failed))
	g.Expect(differences(pieces(t.Context(), list, whole), pieces(t.Context(), zeros, whole), func(engine.Range) error { return failed })).To(MatchError(failed))
	nonsense := func(engine.Range) ([]extent, error) { return extents{written(0, 500, 0)}, nil }
	g.Expect(differences(pieces(t.Context(), nonsense, whole), pieces(t.Context(), zeros, whole), ignore)).To(MatchError(ContainSubstring("not there")), "and no hole")
}

// TestExtentsOfAFile has the kernel list those of a file of this machine.
func TestExtentsOfAFile(t *testing.T) {
	g := NewWithT(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(f.Close()).To(Succeed()) }()
	const at, bytes = 1 << 20, 64 << 10
	_, err = f.WriteAt(make([]byte, bytes), at)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.Truncate(1 << 24)).To(Succeed())
	list, err := extentsOf(f)(engine.Range{Bytes: 1 << 24})
	if err != nil {
		t.Skipf("the filesystem of %s does not list extents: %v", f.Name(), err)
	}
	g.Expect(list).NotTo(BeEmpty())
	g.Expect(list[0].logical).To(BeEquivalentTo(at))
	g.Expect(list[len(list)-1].logical + list[len(list)-1].length).To(BeEquivalentTo(at + bytes))
	g.Expect(list[len(list)-1].flags & extentLast).NotTo(BeZero())
}
