// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	idA = engine.ID("0a000000-0000-4000-8000-00000000000a")
	idB = engine.ID("0b000000-0000-4000-8000-00000000000b")
)

func TestDiff(t *testing.T) {
	bdevs := map[engine.ID]string{idA: "bdev-a", idB: "bdev-b"}
	served := func(nsid uint32, id engine.ID) spdkrpc.Namespace {
		return spdkrpc.Namespace{NSID: nsid, Bdev: bdevs[id], UUID: string(id), NGUID: id.NGUID()}
	}
	portal := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}
	want := func(change func(*engine.Export)) engine.Export {
		x := engine.Export{
			NQN: v1alpha1.NQNPrefix + "a", Serial: "s", Model: "m", Hosts: []string{"h1"},
			Namespaces: []engine.Namespace{{NSID: 1, Volume: idA}},
		}
		if change != nil {
			change(&x)
		}
		return x
	}
	is := func(change func(*spdkrpc.Subsystem)) *spdkrpc.Subsystem {
		s := &spdkrpc.Subsystem{
			Serial: "s", Model: "m", MaxNamespaces: 1, Hosts: []spdkrpc.AllowedHost{{NQN: "h1"}},
			Namespaces: []spdkrpc.Namespace{served(1, idA)}, Listeners: []spdkrpc.Address{addressOf(portal)},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	nothing := func(c *change) bool {
		return !c.takes() && c.create == nil && len(c.addNamespaces)+len(c.addHosts)+len(c.listen) == 0
	}
	for _, tt := range []struct {
		name    string
		is      *spdkrpc.Subsystem
		want    engine.Export
		check   func(*change) bool
		restart bool
	}{
		{name: "as it shall be", is: is(nil), want: want(nil), check: nothing},
		{name: "missing", want: want(nil), check: func(c *change) bool {
			return !c.takes() && c.create != nil && c.create.ANAReporting && c.create.MaxNamespaces == 1 && len(c.addNamespaces) == 1 && len(c.addHosts) == 1 && len(c.listen) == 1
		}},
		{name: "made by an earlier agent, with room for 32", is: is(func(s *spdkrpc.Subsystem) { s.MaxNamespaces = 32 }), want: want(nil), check: nothing},
		{name: "nobody listens for an export without hosts", want: want(func(x *engine.Export) { x.Hosts = nil }), check: func(c *change) bool {
			return c.create != nil && len(c.listen) == 0
		}},
		{name: "a listener is missing", is: is(func(s *spdkrpc.Subsystem) { s.Listeners = nil }), want: want(nil), check: func(c *change) bool {
			return !c.takes() && len(c.listen) == 1
		}},
		{name: "a host is another", is: is(nil), want: want(func(x *engine.Export) { x.Hosts = []string{"h2"} }), check: func(c *change) bool {
			return !c.remove && len(c.removeHosts) == 1 && c.addHosts[0].Host == "h2" && len(c.addNamespaces) == 0
		}},
		{name: "a namespace is another volume", is: is(nil), want: want(func(x *engine.Export) { x.Namespaces[0].Volume = idB }), check: func(c *change) bool {
			return c.removeNamespaces[0] == 1 && c.addNamespaces[0].Bdev == "bdev-b" && c.addNamespaces[0].UUID == string(idB) && len(c.removeHosts) == 0
		}},
		{name: "the right bdev with a wrong identity", is: is(func(s *spdkrpc.Subsystem) { s.Namespaces[0].NGUID = idB.NGUID() }), want: want(nil), check: func(c *change) bool {
			return len(c.removeNamespaces) == 1 && len(c.addNamespaces) == 1
		}},
		{name: "another serial while hosts are admitted", is: is(nil), want: want(func(x *engine.Export) { x.Serial = "other" }), restart: true},
		{name: "another serial", is: is(func(s *spdkrpc.Subsystem) { s.Hosts = nil }), want: want(func(x *engine.Export) { x.Serial = "other" }), check: func(c *change) bool {
			return c.remove && c.create.Serial == "other" && len(c.addNamespaces) == 1 && len(c.removeHosts) == 0
		}},
		{name: "more room while hosts are admitted", is: is(nil), want: want(func(x *engine.Export) { x.Namespaces[0].NSID = 100 }), restart: true},
		{name: "more room", is: is(func(s *spdkrpc.Subsystem) { s.Hosts = nil }), want: want(func(x *engine.Export) { x.Namespaces[0].NSID = 100 }), check: func(c *change) bool {
			return c.remove && c.create.MaxNamespaces == 100
		}},
		{name: "any host may connect", is: is(func(s *spdkrpc.Subsystem) { s.AllowAnyHost, s.Hosts = true, nil }), want: want(nil), check: func(c *change) bool {
			return c.remove && c.create != nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			c, err := diff(tt.is, tt.want, bdevs, []v1alpha1.Portal{portal})
			if tt.restart {
				g.Expect(err).To(MatchError(engine.ErrRestartNeeded))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(tt.check(c)).To(BeTrue(), "%+v", c)
		})
	}
}

// A snapshot is merged only into what is listed, and needed.
func TestIndependent(t *testing.T) {
	p := &pool{lvols: map[string]*lvol{}}
	for _, name := range []string{string(idA), deletedName(idA), newName(idA)} {
		kind, id, _ := parseName(name)
		p.lvols[name] = &lvol{pool: p, kind: kind, id: id, name: name}
	}
	for name, tt := range map[string]struct {
		clones []string
		want   int
		// cutOff is how many in a pool where a merge may have been cut off.
		cutOff int
	}{
		"no clone":                    {nil, 1, 1},
		"a volume":                    {[]string{string(idA)}, 1, 1},
		"two volumes":                 {[]string{string(idA), string(idA)}, 0, 0},
		"a deleted volume":            {[]string{deletedName(idA)}, 0, 1},
		"an unfinished one":           {[]string{newName(idA)}, 0, 0},
		"one that SPDK has forgotten": {[]string{}, 0, 0},
		"one that is not listed yet":  {[]string{cloneName(idA)}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			l := &lvol{pool: p, kind: cloneLvol, name: "c", clones: tt.clones}
			g.Expect(independent([]*lvol{l}, func(*pool) bool { return false })).To(HaveLen(tt.want))
			g.Expect(independent([]*lvol{l}, func(*pool) bool { return true })).To(HaveLen(tt.cutOff))
		})
	}
}

// Of a chain that was being merged, the deepest goes first: what depends on it may have its clusters.
func TestIndependentOfACutOffChain(t *testing.T) {
	p := &pool{lvols: map[string]*lvol{}}
	chain := []*lvol{
		{kind: volumeLvol, name: "v", base: "upper", condemned: true},
		{kind: cloneLvol, name: "upper", base: "lower", clones: []string{"v"}},
		{kind: cloneLvol, name: "lower", clones: []string{"upper"}},
	}
	for _, l := range chain {
		l.pool, p.lvols[l.name] = p, l
	}
	for cutOff, want := range map[bool][]int{false: {0}, true: {2}} {
		NewWithT(t).Expect(independent(chain, func(*pool) bool { return cutOff })).To(Equal(want))
	}
}

func TestNames(t *testing.T) {
	g := NewWithT(t)
	at := time.Unix(1795000000, 0)
	for name, want := range map[string]kind{
		string(idA): volumeLvol, snapshotName(idA, at): snapshotLvol, cloneName(idA): cloneLvol, markName(idA): markLvol,
		"": foreignLvol, "data": foreignLvol, "s-" + string(idA): foreignLvol, "s-" + string(idA) + "-!": foreignLvol,
		"s-" + string(idA) + "x1": foreignLvol, "c-" + string(idA) + "-1": foreignLvol, "y-" + string(idA): foreignLvol,
		deletedName(idA): deletedLvol, "x-" + string(idA) + "-1": foreignLvol,
	} {
		is, id, created := parseName(name)
		g.Expect(is).To(Equal(want), name)
		if want != foreignLvol {
			g.Expect(id).To(Equal(idA))
			g.Expect(len(name)).To(BeNumerically("<=", 63), "SPDK accepts no more")
		}
		if want == snapshotLvol {
			g.Expect(created).To(BeTemporally("==", at))
		}
	}
	g.Expect(len(lvstoreName("/a/very/long/path"))).To(BeNumerically("<=", 63))
}

// TestMetadata: enough for many volumes on a small device, and quick to recover on a large one.
func TestMetadata(t *testing.T) {
	g := NewWithT(t)
	const gib = 1 << 30
	for bytes, want := range map[uint64]uint32{gib / 2: 100, 20 * gib: 100, 100 * gib: 64, 1024 * gib: 7, 16 * 1024 * gib: 1} {
		percent := metadataPercent(spdkrpc.Bdev{BlockBytes: 512, Blocks: bytes / 512}, clusterBytes)
		g.Expect(percent).To(Equal(want), "%d GiB", bytes/gib)
	}
}
