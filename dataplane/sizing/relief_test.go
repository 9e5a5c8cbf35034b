// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"cmp"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// TestReliefIsAPlan feeds what RelieveBuffers says back: it must be accepted, and hold more of what ran out.
func TestReliefIsAPlan(t *testing.T) {
	for name, s := range map[string]v1alpha1.NvmfTargetSpec{
		"4 cores": spdk(count(4)), "1 core": spdk(count(1)), "a mask": spdk(mask("0xf0")), "interrupts": spdk(coreMode(v1alpha1.CoresInterrupt)),
		"pools that all share": spdk(count(4), transports(tcp(4420, iface("ens2f0")))),
	} {
		for _, pool := range []struct {
			name         string
			small, large bool
		}{{"small", true, false}, {"large", false, true}, {"both", true, true}} {
			t.Run(name+", "+pool.name, func(t *testing.T) {
				was := planned(t, bigServer(), s)
				for range 2 { // a relief may need relief
					r, ok := sizing.RelieveBuffers(*was.SPDK, pool.small, pool.large)
					if !ok {
						t.Fatal("nothing more is possible")
					}
					s.Buffers = &r.Buffers
					is := planned(t, bigServer(), s)
					if pool.small && is.SPDK.SmallBuffers <= was.SPDK.SmallBuffers || pool.large && is.SPDK.LargeBuffers <= was.SPDK.LargeBuffers {
						t.Errorf("%s gives no more than before: %d small, %d large", r, was.SPDK.SmallBuffers, was.SPDK.LargeBuffers)
					}
					groups := int32(bits.OnesCount64(maskBits(t, was.SPDK)))
					for _, c := range []struct{ count, wasCount, cache, wasCache int32 }{
						{is.SPDK.SmallBuffers, was.SPDK.SmallBuffers, is.SPDK.Transports[0].SmallCache, was.SPDK.Transports[0].SmallCache},
						{is.SPDK.LargeBuffers, was.SPDK.LargeBuffers, is.SPDK.Transports[0].LargeCache, was.SPDK.Transports[0].LargeCache},
					} {
						if c.count-c.wasCount < groups*(c.cache-c.wasCache) {
							t.Errorf("%s: caches grow by %d each, and the pool from %d to %d: less is left for all", r, c.cache-c.wasCache, c.wasCount, c.count)
						}
					}
					if r.MoreBytes <= 0 {
						t.Errorf("it takes %d bytes more", r.MoreBytes)
					}
					was = is
				}
			})
		}
	}
}

// maskBits of the cores with poll groups.
func maskBits(t *testing.T, p *v1alpha1.SPDKPlan) uint64 {
	t.Helper()
	groups, err := strconv.ParseUint(cmp.Or(p.PollGroupMask, p.CoreMask), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

func TestReliefHasAnEnd(t *testing.T) {
	p := *planned(t, bigServer(), spdk(count(4))).SPDK
	for range 40 {
		r, ok := sizing.RelieveBuffers(p, true, true)
		if !ok {
			return
		}
		p.SmallBuffers, p.LargeBuffers = r.Buffers.Small.Count, r.Buffers.Large.Count
		for i := range p.Transports {
			p.Transports[i].SmallCache, p.Transports[i].LargeCache = r.Buffers.Small.CachePerCore, r.Buffers.Large.CachePerCore
		}
	}
	t.Error("the pools grow for ever")
}

func TestReliefSaysWhetherItFits(t *testing.T) {
	r, _ := sizing.RelieveBuffers(*planned(t, bigServer(), spdk(count(4))).SPDK, false, true)
	inv := &v1alpha1.Inventory{NUMANodes: []v1alpha1.NUMANode{{Hugepages: []v1alpha1.HugepagePool{{SizeBytes: 2 << 20, Total: 10000, Free: 9000}}}}}
	if words := r.Room(inv, v1alpha1.Hugepages2Mi); !strings.Contains(words, "enough free hugepages") {
		t.Error(words)
	}
	inv.NUMANodes[0].Hugepages[0].Free = 3
	if words := r.Room(inv, v1alpha1.Hugepages2Mi); !strings.Contains(words, "is not available now: the node has 3 free hugepages of 2Mi") {
		t.Error(words)
	}
	if words := r.Room(inv, v1alpha1.HugepagesDisabled); !strings.Contains(words, "memory.limit") {
		t.Error(words)
	}
}

// More large buffers than the cache holds the data of cost bandwidth, as the published measurement of I/O pacing shows:
// that is told with the relief.
func TestReliefSaysWhenTheCacheIsTooSmall(t *testing.T) {
	node := pacingServer()
	p := *planned(t, node, pacingSpec(count(16))).SPDK
	large, _ := sizing.RelieveBuffers(p, false, true)
	small, _ := sizing.RelieveBuffers(p, true, false)
	unknown := node.Inventory.DeepCopy()
	ample := node.Inventory.DeepCopy()
	for i := range unknown.NUMANodes {
		unknown.NUMANodes[i].LLCBytes = 0
		ample.NUMANodes[i].LLCBytes = 256 << 20
	}
	says(t, "warning", large.Cache(node.Inventory, p), "24.0 MiB of data in flight", "room for 14.0 MiB", "do not add buffers")
	for name, words := range map[string]string{
		"the small ones alone": small.Cache(node.Inventory, p), "a cache that is not known": large.Cache(unknown, p),
		"no inventory": large.Cache(nil, p), "a larger cache": large.Cache(ample, p),
	} {
		if words != "" {
			t.Errorf("%s: unexpected warning %q", name, words)
		}
	}
}
