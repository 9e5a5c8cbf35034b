// SPDX-License-Identifier: Apache-2.0

package capacity_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/capacity"
)

const (
	gib   = 1 << 30
	label = "zone"
)

var tcp = []v1alpha1.TransportType{v1alpha1.TransportTCP}

// server in a zone, with drives of these sizes.
func server(name, zone string, drives ...int64) capacity.Node {
	n := capacity.Node{
		Name: name, Labels: map[string]string{label: zone},
		Portals:  []v1alpha1.PlannedPortal{{Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP}, MaxIOQueues: 8}},
		Expected: &v1alpha1.Attachments{Expected: 128, IOQueues: 2},
	}
	for _, d := range drives {
		n.Pools = append(n.Pools, capacity.Pool{PromisableBytes: d, TotalBytes: d})
	}
	return n
}

// of a size that takes a whole GiB with its header, so that the numbers are round.
func of(count, sizeGiB int64, replicas int) capacity.Volumes {
	return capacity.Volumes{
		Count: count, SizeBytes: v1alpha1.WithoutOverhead(sizeGiB * gib), Replicas: replicas, ZoneLabel: label,
		Transports: tcp, IOQueues: 2, Hosts: 1, WriteBytes: 10,
	}
}

func TestCount(t *testing.T) {
	inA := func(v capacity.Volumes) capacity.Volumes { v.Zones = []string{"a"}; return v }
	shared := of(4, 1, 1)
	shared.Hosts, shared.IOQueues = 3, 6 // 7 queue pairs where 3 are planned: 3 places
	tlc := of(2, 10, 1)
	tlc.Class = "tlc"
	classed := server("n1", "", 100*gib, 20*gib)
	classed.Pools[1].Class = "tlc"
	full := server("n1", "", 100*gib)
	full.MaxReplicas, full.Replicas = 10, 8
	used := server("n1", "", 100*gib)
	used.Attachments, used.Replicas, used.Pools[0].PromisedBytes = 7, 9, 60*gib
	clusters := server("n1", "", 100*gib)
	clusters.Pools[0].ClusterBytes = 16 << 20
	small := of(1, 1, 1)
	small.SizeBytes = 16 << 20

	for name, tt := range map[string]struct {
		nodes   []capacity.Node
		volumes []capacity.Volumes
		reserve bool
		// want are replicas/GiB/attachments/queue pairs of each node; then reserve, shortages and volumes in one zone.
		want, wantReserve, short []string
		oneZone                  int64
	}{
		"one replica is on the node with the most space": {
			nodes: []capacity.Node{server("n1", "", 50*gib), server("n2", "", 100*gib)}, volumes: []capacity.Volumes{of(5, 10, 1)},
			want: []string{"0/0/0/0", "5/50/5/15"}},
		"two replicas are on different nodes": {
			nodes: []capacity.Node{server("n1", "", 100*gib), server("n2", "", 100*gib)}, volumes: []capacity.Volumes{of(5, 10, 2)},
			want: []string{"5/50/5/15", "5/50/5/15"}},
		"and in different zones, though a node of the same zone has more space": {
			nodes: []capacity.Node{server("n1", "a", 100*gib), server("n2", "a", 90*gib), server("n3", "b", 50*gib)}, volumes: []capacity.Volumes{of(1, 10, 2)},
			want: []string{"1/10/1/3", "0/0/0/0", "1/10/1/3"}},
		"or in one zone, if no other has space": {
			nodes: []capacity.Node{server("n1", "a", 100*gib), server("n2", "a", 90*gib), server("n3", "b", 5*gib)}, volumes: []capacity.Volumes{of(2, 10, 2)},
			want: []string{"2/20/2/6", "2/20/2/6", "0/0/0/0"}, oneZone: 2},
		"the second replica needs another node": {
			nodes: []capacity.Node{server("n1", "", 100*gib)}, volumes: []capacity.Volumes{of(3, 10, 2)},
			want: []string{"3/30/3/9"}, short: []string{"0: 3 replicas"}},
		"a zone that the class names": {
			nodes: []capacity.Node{server("n1", "a", 50*gib), server("n2", "b", 100*gib)}, volumes: []capacity.Volumes{inA(of(6, 10, 1))},
			want: []string{"5/50/5/15", "0/0/0/0"}, short: []string{"0: 1 replicas"}},
		"a volume is on one drive": {
			nodes: []capacity.Node{server("n1", "", 15*gib, 15*gib)}, volumes: []capacity.Volumes{of(3, 10, 1)},
			want: []string{"2/20/2/6"}, short: []string{"0: 1 replicas"}},
		"drives of a class": {
			nodes: []capacity.Node{classed}, volumes: []capacity.Volumes{tlc, of(1, 90, 1)},
			want: []string{"3/110/3/9"}},
		"many hosts with many queues": {
			nodes: []capacity.Node{server("n1", "", 100*gib)}, volumes: []capacity.Volumes{shared},
			want: []string{"4/4/36/84"}},
		"as many volumes as its target can have": {
			nodes: []capacity.Node{full}, volumes: []capacity.Volumes{of(3, 1, 1)},
			want: []string{"10/2/2/6"}, short: []string{"0: 1 replicas, full 1"}},
		"beside what is there already": {
			nodes: []capacity.Node{used}, volumes: []capacity.Volumes{of(5, 10, 1)},
			want: []string{"13/100/11/12"}, short: []string{"0: 1 replicas"}},
		"whole clusters": {
			nodes: []capacity.Node{clusters}, volumes: []capacity.Volumes{{Count: 64, SizeBytes: small.SizeBytes, Replicas: 1, Transports: tcp, IOQueues: 2, Hosts: 1}},
			want: []string{"64/2/64/192"}},
		"a reserve on the remaining nodes": {
			nodes:   []capacity.Node{server("n1", "", 100*gib), server("n2", "", 100*gib), server("n3", "", 100*gib)},
			volumes: []capacity.Volumes{of(9, 10, 2)}, reserve: true,
			want:        []string{"6/60/6/18", "6/60/6/18", "6/60/6/18"},
			wantReserve: []string{"9/90/9/27", "9/90/9/27", "9/90/9/27"}},
		"no reserve on two nodes": {
			nodes: []capacity.Node{server("n1", "", 100*gib), server("n2", "", 100*gib)}, volumes: []capacity.Volumes{of(2, 10, 2)}, reserve: true,
			want: []string{"2/20/2/6", "2/20/2/6"}, wantReserve: []string{"2/20/2/6", "2/20/2/6"},
			short: []string{"n1 lost, 0: 2 replicas", "n2 lost, 0: 2 replicas"}},
		"too little space for the reserve": {
			nodes:   []capacity.Node{server("n1", "", 70*gib), server("n2", "", 70*gib), server("n3", "", 70*gib)},
			volumes: []capacity.Volumes{of(9, 10, 2)}, reserve: true,
			want:        []string{"6/60/6/18", "6/60/6/18", "6/60/6/18"},
			wantReserve: []string{"7/70/7/21", "7/70/7/21", "7/70/7/21"},
			short:       []string{"n1 lost, 0: 4 replicas", "n2 lost, 0: 4 replicas", "n3 lost, 0: 4 replicas"}},
		"no reserve of what does not fit": {
			nodes: []capacity.Node{server("n1", "", 100*gib), server("n2", "", 5*gib)}, volumes: []capacity.Volumes{of(1, 10, 2)}, reserve: true,
			want: []string{"1/10/1/3", "0/0/0/0"}, short: []string{"0: 1 replicas"}},
		"one replica is lost with its node, and needs no reserve": {
			nodes: []capacity.Node{server("n1", "", 20*gib), server("n2", "", 20*gib)}, volumes: []capacity.Volumes{of(4, 10, 1)}, reserve: true,
			want: []string{"2/20/2/6", "2/20/2/6"}, wantReserve: []string{"2/20/2/6", "2/20/2/6"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := capacity.Count(tt.nodes, tt.volumes, tt.reserve)
			equal(t, "loads", said(got.Loads), tt.want)
			equal(t, "reserve", said(got.Reserve), tt.wantReserve)
			var short []string
			for _, s := range got.Shortages {
				text := fmt.Sprintf("%d: %d replicas", s.Volumes, s.Replicas)
				if s.Lost != "" {
					text = s.Lost + " lost, " + text
				}
				if s.Full > 0 {
					text += fmt.Sprintf(", full %d", s.Full)
				}
				short = append(short, text)
			}
			equal(t, "shortages", short, tt.short)
			if got.OneZone != tt.oneZone {
				t.Errorf("%d volumes in one zone, want %d", got.OneZone, tt.oneZone)
			}
		})
	}
}

func said(loads []capacity.Load) []string {
	var all []string
	for _, l := range loads {
		all = append(all, fmt.Sprintf("%d/%d/%d/%d", l.Replicas, l.Bytes/gib, l.Attachments, l.QueuePairs))
	}
	return all
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// Every write goes to all replicas, and what is promised is what was asked for, wherever it lies.
func TestTwoReplicasCostTwice(t *testing.T) {
	nodes := []capacity.Node{server("n1", "a", 500*gib, 300*gib), server("n2", "b", 700*gib), server("n3", "c", 900*gib)}
	sum := func(replicas int) (s capacity.Load) {
		for _, l := range capacity.Count(nodes, []capacity.Volumes{of(20, 7, replicas)}, false).Loads {
			s = s.Add(l)
		}
		return s
	}
	one, two := sum(1), sum(2)
	if one.WriteBytes != 200 || two != (capacity.Load{2 * one.Replicas, 2 * one.Bytes, 2 * one.Attachments, 2 * one.Controllers, 2 * one.QueuePairs, 2 * one.WriteBytes}) {
		t.Errorf("one replica: %+v, two: %+v", one, two)
	}
}

// Whatever is given: no pool is promised more than it may be, no node has more replicas than it can, and a reserve that
// is not short covers the loss of any node.
func TestCountKeepsItsBounds(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		var nodes []capacity.Node
		for i := range 1 + random.IntN(5) {
			n := server(fmt.Sprint("n", i), []string{"", "a", "b"}[random.IntN(3)], 1+random.Int64N(80*gib), 1+random.Int64N(80*gib))
			n.MaxReplicas = random.Int64N(30)
			nodes = append(nodes, n)
		}
		volumes := []capacity.Volumes{of(random.Int64N(20), 1+random.Int64N(9), 1+random.IntN(2)), of(random.Int64N(20), 1+random.Int64N(9), 1+random.IntN(2))}
		got := capacity.Count(nodes, volumes, true)
		var placed, missing int64
		for i, n := range nodes {
			placed += got.Loads[i].Replicas
			loads := []capacity.Load{got.Loads[i]}
			if got.Reserve != nil {
				loads = append(loads, got.Reserve[i])
			}
			for _, l := range loads {
				if l.Bytes > n.Pools[0].PromisableBytes+n.Pools[1].PromisableBytes || n.MaxReplicas > 0 && l.Replicas > n.MaxReplicas {
					t.Fatalf("seed %d: node %d holds %+v of %+v", seed, i, l, n)
				}
			}
		}
		for _, s := range got.Shortages {
			if s.Lost == "" {
				missing += s.Replicas
			}
		}
		if asked := volumes[0].Count*int64(volumes[0].Replicas) + volumes[1].Count*int64(volumes[1].Replicas); placed+missing != asked {
			t.Fatalf("seed %d: %d replicas placed and %d short of %d", seed, placed, missing, asked)
		}
	}
}
