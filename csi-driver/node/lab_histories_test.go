// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

const (
	// labDisturbances of a sequence, which takes one to two minutes in an emulated machine.
	labDisturbances = 3
	// auditInterval is how often the replicas in sync are compared with what was acknowledged.
	auditInterval = 300 * time.Millisecond
	// bitmapLag is how long a region stays in the bitmap after it was written last: the kernel looks every 5 s, and
	// clears what it found twice.
	bitmapLag = 15 * time.Second
	// bitmapBits is where a replica has the bits of the mirror's bitmap: behind the record, and two superblocks.
	bitmapBits = md.RecordBytes + 8<<10 + 256
	// otherReads of a replica's device that are no copies: its header, its superblock, its bitmap.
	otherReads = 2 << 20
)

// history is a random sequence of what can happen to a mirror on a real kernel.
type history struct {
	*rig
	rng    *rand.Rand
	seed   uint64
	counts map[string]int
	audits int
	copies copies
	// rotations of keys that came to their end.
	rotations int
	// stale is how often the kernel had called a bitmap out of date when that was measured last.
	stale int
	// bitmaps of the replicas before the present holder started.
	bitmaps map[string][]byte
}

// copies by bitmap, and the regions that were written meanwhile, in bytes.
type copies struct {
	count           int
	copied, written int64
}

func (c copies) String() string {
	ratio := 0.0
	if c.written > 0 {
		ratio = float64(c.copied) / float64(c.written)
	}
	return fmt.Sprintf("%d copies by bitmap of %.1f MiB, while regions of %.1f MiB were written: %.2f", c.count, float64(c.copied)/(1<<20), float64(c.written)/(1<<20), ratio)
}

func (h *history) fatalf(format string, args ...any) {
	h.lab.Helper()
	h.lab.Fatalf("WEFT_SEED=%d: %s", h.seed, fmt.Sprintf(format, args...))
}

// write to the volume's device from now on.
func (h *history) write() {
	h.lab.Helper()
	must(h.lab, h.startWriting(h.top(), h.rng.Uint64()))
}

// attached to the next holder, after the former one's writers have ended: the replicas have what was acknowledged, and
// what the former one had under way is there or is not, from now on.
func (h *history) attached() {
	h.lab.Helper()
	h.readBitmaps()
	h.stage()
	h.settle()
	h.compare()
	h.write()
}

// killed writers end with their writes.
func (h *history) killed() {
	h.lab.Helper()
	select {
	case err := <-h.wrote:
		h.stop = nil
		if err == nil || !strings.Contains(err.Error(), "signal: killed") {
			h.fatalf("the writers were to be killed, and ended with %v", err)
		}
	case <-time.After(settleWithin):
		h.dump()
		h.fatalf("the writers have not ended %s after they were to be killed", settleWithin)
	}
}

// stopped cleanly: no write failed, the record says so, and the replicas are the same.
func (h *history) stopped() {
	h.lab.Helper()
	h.settle()
	if err := h.stopWriting(); err != nil {
		h.fatalf("a write failed: %v", err)
	}
	h.settle()
	h.unstage()
	if record := h.record(); record.Dirty || !mirror.Whole(record) {
		h.fatalf("unstaged, the record is %s", mirror.String(record))
	}
	h.compare()
}

// compare what each replica in sync has with what was acknowledged, and with each other. Nobody writes.
func (h *history) compare() {
	h.lab.Helper()
	must(h.lab, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	var first []uint64
	for _, name := range mirror.InSync(h.record()) {
		found, err := h.check("/dev/"+h.leg(name).loop, v1alpha1.HeaderBytes)
		if err != nil {
			h.fatalf("%s, which is in sync: %v", name, err)
		}
		for block := range first {
			if first[block] != found[block] {
				h.lab.Errorf("WEFT_SEED=%d: block %d of %s has write %d, and %d elsewhere; acknowledged was %d, and %v were under way; %s",
					h.seed, block, name, found[block], first[block], h.acknowledged[block], h.open[block], h.marked(block))
			}
		}
		first = found
	}
	if h.lab.Failed() {
		h.dump()
		h.fatalf("the replicas in sync differ")
	}
	h.settleOn(first)
}

// readBitmaps of the replicas, which nobody writes now.
func (h *history) readBitmaps() {
	h.lab.Helper()
	h.bitmaps = map[string][]byte{}
	for _, g := range h.legs {
		h.bitmaps[g.name] = []byte(bytesAt(h.lab, g.image, bitmapBits, queueDepth*blocksPerWriter))
	}
}

// marked tells in which bitmaps the region of a block was when they were read.
func (h *history) marked(block int) string {
	region := (md.FrontBytes + block*blockStride) / nodetest.RegionBytes
	var text []string
	for _, name := range slices.Sorted(maps.Keys(h.bitmaps)) {
		text = append(text, fmt.Sprintf("in the bitmap of %s: %v", name, h.bitmaps[name][region/8]&(1<<(region%8)) != 0))
	}
	return strings.Join(text, ", ")
}

// audit that all replicas that the record has as in sync have what was acknowledged before the record was read.
func (h *history) audit(ctx context.Context) error {
	acked := h.acked()
	var is v1alpha1.NvmfMirror
	if err := h.store.Get(ctx, client.ObjectKey{Name: vol}, &is); err != nil {
		return err
	}
	for _, name := range mirror.InSync(is.Spec) {
		g, ok := h.everyLeg.Load(name)
		if !ok || g.(*rigLeg).untold.Load() {
			continue
		}
		// The loop device writes to it through the page cache.
		found, err := h.readBlocks(g.(*rigLeg).image, 0, v1alpha1.HeaderBytes)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for block, seq := range found {
			if seq < acked[block] {
				return fmt.Errorf("block %d of %s, which is in sync, has write %d, and %d was acknowledged; %s", block, name, seq, acked[block], mirror.String(is.Spec))
			}
		}
	}
	return nil
}

// auditing until what it returns is called.
func (h *history) auditing() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			if err := h.audit(ctx); err != nil && ctx.Err() == nil {
				h.lab.Errorf("WEFT_SEED=%d: the record was wrong: %v", h.seed, err)
				return
			}
			h.audits++
			select {
			case <-ctx.Done():
			case <-time.After(auditInterval):
			}
		}
	})
	return func() { stop(); ended.Wait() }
}

// disturb the mirror once, and measure what is copied to make it whole again.
func (h *history) disturb() {
	h.lab.Helper()
	among := slices.Clone(disturbances)
	if only := os.Getenv("WEFT_ONLY"); only != "" {
		among = slices.DeleteFunc(among, func(d disturbance) bool { return !strings.Contains(d.name, only) })
	}
	d := among[h.rng.IntN(len(among))]
	h.lab.Logf("%6.2f %s; %d writes, %s", time.Since(h.begun).Seconds(), d.name, h.written(), mirror.String(h.record()))
	h.counts[d.name]++
	d.do(h)
}

// measured gives what is copied between two calls, if it is by bitmap.
func (h *history) measured() {
	h.lab.Helper()
	var copied int64
	for _, g := range h.legs {
		now := g.readBytes()
		copied += now - g.read
		g.read = now
	}
	whole := h.filled
	then := h.settled.Add(-bitmapLag)
	outOfDate := h.stale
	h.filled, h.settled, h.stale = false, time.Now(), h.outOfDate()
	written := int64(h.blocksSince(then)) * nodetest.RegionBytes
	switch {
	case whole:
		h.counts["(a replica was copied whole)"]++
	case h.stale > outOfDate:
		h.counts["(the kernel called its bitmap out of date, and copied everything)"]++
		h.lab.Logf("the kernel called its bitmap out of date; copied %.1f MiB", float64(copied)/(1<<20))
	case copied > otherReads:
		c := copies{1, copied, written}
		h.lab.Log(c)
		h.copies.add(c)
		if copied > 2*written+otherReads {
			h.dump()
			h.lab.Errorf("WEFT_SEED=%d: %s, which is more than twice as much", h.seed, c)
		}
	}
}

// outOfDate is how often the kernel has called the bitmap of an array out of date since it was started. It does when
// the last members failed between their superblocks and their bitmaps.
func (h *history) outOfDate() int {
	h.lab.Helper()
	return strings.Count(h.lab.run("dmesg"), "bitmap file is out of date")
}

func (c *copies) add(o copies) {
	c.count, c.copied, c.written = c.count+o.count, c.copied+o.copied, c.written+o.written
}

func (h *history) run() {
	h.stage()
	h.stale = h.outOfDate() // making the array counts
	made, err := h.service.Mapper.Slices(h.legs[0].uuid)
	must(h.lab, err)
	h.forgets("/dev/" + made[0].Name) // which has all regions of a new array
	defer h.auditing()()
	h.write()
	for range labDisturbances {
		h.pass(100*time.Millisecond, time.Second)
		h.disturb()
		if h.rng.IntN(3) > 0 { // else the next comes on top of it
			h.pass(time.Millisecond, time.Second)
			h.settle()
			h.measured()
		}
	}
	h.lab.Log("stopped")
	h.stopped()
}

// Random sequences of what can happen to a mirror, on this machine's kernel. WEFT_SEQUENCES says how many, and without
// it there are none; WEFT_SEED is the first one's seed; WEFT_ONLY is a text that the disturbances have in their names.
// It ends with the first sequence that does not reach its end.
func TestLabHistories(t *testing.T) {
	if os.Getenv("WEFT_SEQUENCES") == "" {
		t.Skip("it takes one to two minutes for each of WEFT_SEQUENCES, which is not set")
	}
	seed, count := labNumber(t, "WEFT_SEED", 1), labNumber(t, "WEFT_SEQUENCES", 1)
	t.Logf("%d sequences from WEFT_SEED=%d", count, seed)
	counts, all, rotations := map[string]int{}, copies{}, 0
	defer func() {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%3d %s", counts[name], name)
		}
		t.Log(all)
		begun := 0
		for name, n := range counts {
			if strings.HasPrefix(name, "the keys of a replica are rotated") {
				begun += n
			}
		}
		if begun > 10 && rotations == 0 {
			t.Errorf("none of %d rotations came to its end", begun)
		}
	}()
	for s := seed; s < seed+count; s++ {
		ended := false
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			h := &history{rig: newRig(t), rng: rand.New(rand.NewPCG(uint64(s), 14)), seed: uint64(s), counts: counts}
			defer h.takeDown() // before the cleanups of its legs
			h.run()
			ended = true
			all.add(h.copies)
			rotations += h.rotations
			t.Logf("WEFT_SEED=%d: %d writes in %s, the longest %s; %d audits; %d rotations; %s", s, h.writes, time.Since(h.begun).Round(time.Second), h.longest.Round(time.Millisecond), h.audits, h.rotations, h.copies)
		})
		if !ended {
			t.Fatalf("WEFT_SEED=%d ended early, and may have left something behind", s)
		}
	}
}

func labNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no positive number", name, text)
	}
	return n
}
