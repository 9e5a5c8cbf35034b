// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// holds is a node of 100 bytes, of which so many are promised, that receives replicas.
func holds(name string, promised int64) weighed {
	return weighed{node: name, totalBytes: 100, promisedBytes: promised, receives: true, pools: []roomy{{freeBytes: 100 - promised}}}
}

func cordonedOne(w weighed) weighed {
	w.receives = false
	return w
}

// of a node, a load of a volume of this name.
func loadOn(node, volume string, bytes int64, others ...string) load {
	return load{volume: volume, replica: volume + "-" + node, node: node, bytes: bytes, others: others}
}

func classed(l load, class string) load {
	l.class = class
	return l
}

func TestBalance(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []weighed
		loads []load
		most  int
		want  []string
		// usage afterwards, in percent.
		usage []int
	}{
		"nothing there":              {nil, nil, 4, nil, nil},
		"even":                       {[]weighed{holds("a", 50), holds("b", 50)}, []load{loadOn("a", "v", 10)}, 4, nil, []int{50, 50}},
		"within":                     {[]weighed{holds("a", 54), holds("b", 45)}, []load{loadOn("a", "v", 5)}, 4, nil, []int{54, 45}},
		"to the emptiest":            {[]weighed{holds("a", 60), holds("b", 40), holds("c", 20)}, []load{loadOn("a", "v", 20)}, 4, []string{"v a c"}, []int{40, 40, 40}},
		"the one that levels":        {[]weighed{holds("a", 60), holds("b", 20)}, []load{loadOn("a", "big", 35), loadOn("a", "fit", 20), loadOn("a", "tiny", 1)}, 4, []string{"fit a b"}, []int{40, 40}},
		"no swap of places":          {[]weighed{holds("a", 60), holds("b", 20)}, []load{loadOn("a", "v", 40)}, 4, nil, []int{60, 20}},
		"several":                    {[]weighed{holds("a", 80), holds("b", 20)}, []load{loadOn("a", "u", 10), loadOn("a", "v", 10), loadOn("a", "w", 10), loadOn("a", "x", 10)}, 9, []string{"u a b", "v a b", "w a b"}, []int{50, 50}},
		"at most":                    {[]weighed{holds("a", 80), holds("b", 20)}, []load{loadOn("a", "u", 10), loadOn("a", "v", 10), loadOn("a", "w", 10)}, 1, []string{"u a b"}, []int{70, 30}},
		"none more":                  {[]weighed{holds("a", 80), holds("b", 20)}, []load{loadOn("a", "u", 10)}, -1, nil, []int{80, 20}},
		"cordoned":                   {[]weighed{holds("a", 80), cordonedOne(holds("b", 0)), holds("c", 40)}, []load{loadOn("a", "v", 20)}, 4, []string{"v a c"}, []int{60, 0, 60}},
		"a cordoned one gives":       {[]weighed{cordonedOne(holds("a", 80)), holds("b", 40)}, []load{loadOn("a", "v", 20)}, 4, []string{"v a b"}, []int{60, 60}},
		"not beside another replica": {[]weighed{holds("a", 80), holds("b", 0), holds("c", 40)}, []load{loadOn("a", "v", 20, "b")}, 4, []string{"v a c"}, []int{60, 0, 60}},
		"each volume once":           {[]weighed{holds("a", 90), holds("b", 80), holds("c", 0), holds("d", 0)}, []load{loadOn("a", "v", 30, "b"), loadOn("b", "v", 30, "a")}, 4, []string{"v a d"}, []int{60, 80, 0, 30}},
		"from the next fullest":      {[]weighed{holds("a", 90), holds("b", 80), holds("c", 0)}, []load{loadOn("b", "v", 40)}, 4, []string{"v b c"}, []int{90, 40, 40}},
		"no room in one pool": {[]weighed{holds("a", 80), {node: "b", totalBytes: 100, promisedBytes: 0, receives: true, pools: []roomy{{freeBytes: 15}, {freeBytes: 15}}}},
			[]load{loadOn("a", "v", 20)}, 4, nil, []int{80, 0}},
		"room is taken": {[]weighed{holds("a", 80), {node: "b", totalBytes: 100, promisedBytes: 0, receives: true, pools: []roomy{{freeBytes: 15}, {freeBytes: 12}}}},
			[]load{loadOn("a", "u", 12), loadOn("a", "v", 12), loadOn("a", "w", 12)}, 4, []string{"u a b", "v a b"}, []int{56, 24}},
		"class": {[]weighed{holds("a", 80), holds("b", 0), {node: "c", totalBytes: 100, promisedBytes: 40, receives: true, pools: []roomy{{"qlc", 60}}}},
			[]load{classed(loadOn("a", "v", 20), "qlc")}, 4, []string{"v a c"}, []int{60, 0, 60}},
		"over-provisioned": {[]weighed{holds("a", 250), {node: "b", totalBytes: 100, promisedBytes: 50, receives: true, pools: []roomy{{freeBytes: 250}}}},
			[]load{loadOn("a", "v", 100)}, 4, []string{"v a b"}, []int{150, 150}},
		"of other sizes": {[]weighed{{node: "a", totalBytes: 1000, promisedBytes: 500}, holds("b", 0)}, []load{loadOn("a", "v", 45), loadOn("a", "w", 90)}, 4, []string{"v a b"}, []int{45, 45}},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprint(c.nodes)
			shifts, after := balance(c.nodes, c.loads, 0.10, c.most)
			var got []string
			for _, s := range shifts {
				got = append(got, strings.Join([]string{s.volume, s.node, s.to}, " "))
			}
			var usage []int
			for _, n := range after {
				usage = append(usage, int(n.usage()*100))
			}
			if !slices.Equal(got, c.want) || !slices.Equal(usage, c.usage) {
				t.Errorf("got %q and %v, want %q and %v", got, usage, c.want, c.usage)
			}
			if fmt.Sprint(c.nodes) != before {
				t.Error("the input was changed")
			}
		})
	}
}

// promised of a node's pool, as its agent reports it.
func (r *rig) promised(node, bytes string) {
	n := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: node}, n))
	n.Status.Pools[0].Promised = new(resource.MustParse(bytes))
	r.do(r.api.Update(r.ctx, n))
}

func (r *rig) rebalance(o rebalanceOptions) string {
	r.t.Helper()
	r.out.Reset()
	r.do(rebalance(r.ctx, r.watcher(), "fast", o))
	return spaces.ReplaceAllString(r.out.String(), " ")
}

func TestRebalance(t *testing.T) {
	r := newRig(t, volumesOnA("one", "two", "three", "four")...)
	r.promised("a", "600Gi")
	o := rebalanceOptions{dryRun: true, max: 2, within: 10}
	table := "NODE GETS REPLICAS USAGE NOW USAGE AFTERWARDS\na yes 59 % 39 %\nb yes 0 % 10 %\nc yes 0 % 10 %\n"
	if out := r.rebalance(o); !strings.Contains(out, table) || !strings.Contains(out, "moving replica v-four-0 (100.0Gi) from node a to node c (dry run)") || r.moves() != 0 {
		t.Fatalf("%d moves:\n%s", r.moves(), out)
	}
	o.dryRun = false
	if out := r.rebalance(o); !strings.Contains(out, table) || r.moves() != 2 {
		t.Fatalf("%d moves:\n%s", r.moves(), out)
	}
	for name, to := range map[string]string{"v-four": "c", "v-one": "b"} {
		if got := r.volume(name).Spec.Move; got == nil || *got != (v1alpha1.VolumeMove{Replica: name + "-0", Node: to}) {
			t.Errorf("%s: got %+v, want a move to %s", name, got, to)
		}
	}
	// What runs counts, and as if it were complete.
	table = "NODE GETS REPLICAS USAGE NOW USAGE AFTERWARDS\na yes 39 % 39 %\nb yes 10 % 10 %\nc yes 10 % 10 %\n"
	if out := r.rebalance(o); !strings.Contains(out, "2 moves are running, and --max is 2; repeat the command later\n"+table) {
		t.Errorf("got:\n%s", out)
	}
	r.add("v-one", "b")
	r.promised("b", "103083Mi") // 100Gi, with the header and some more
	o.max = 3
	if out := r.rebalance(o); !strings.Contains(out, "a yes 39 % 29 %\n") || r.moves() != 3 {
		t.Errorf("%d moves:\n%s", r.moves(), out)
	}
	o.max, o.within = 9, 20
	if out := r.rebalance(o); !strings.Contains(out, "nothing to move: the usage of the nodes is within 20 percentage points") {
		t.Errorf("got:\n%s", out)
	}
}

// A volume that no pod ever used moves as well.
func TestRebalanceMovesVolumesThatWereNeverUsed(t *testing.T) {
	idle, objects := volume("idle", "a")
	idle.Spec.Attachments = nil
	r := newRig(t, objects...)
	r.promised("a", "600Gi")
	if out := r.rebalance(rebalanceOptions{max: 1, within: 10}); r.moves() != 1 {
		t.Errorf("%d moves:\n%s", r.moves(), out)
	}
}

// Volumes that require a zone move to its nodes alone.
func TestRebalanceStaysInTheZonesOfVolumes(t *testing.T) {
	objects := append(volumesOnA("one", "two"), inZone("a", "rack", "1"), inZone("b", "rack", "2"), inZone("c", "rack", "1"))
	for _, o := range objects {
		if v, is := o.(*v1alpha1.NvmfVolume); is {
			v.Spec.Zones, v.Spec.ZoneLabel = []string{"1"}, "rack"
		}
	}
	r := newRig(t, objects...)
	r.promised("a", "600Gi")
	r.promised("c", "100Gi")
	out := r.rebalance(rebalanceOptions{max: 4, within: 10})
	for _, name := range []string{"v-one", "v-two"} {
		if move := r.volume(name).Spec.Move; move == nil || move.Node != "c" {
			t.Errorf("%s: got %+v, want a move to c:\n%s", name, move, out)
		}
	}
}

func TestRebalanceErrors(t *testing.T) {
	r := newRig(t)
	for want, o := range map[string]rebalanceOptions{
		"--max is 0":      {within: 10},
		"--within is 0":   {max: 1},
		"--within is 101": {max: 1, within: 101},
	} {
		if err := rebalance(r.ctx, r.watcher(), "fast", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := rebalance(r.ctx, r.watcher(), "other", rebalanceOptions{max: 1, within: 10}); err == nil || !strings.Contains(err.Error(), "NvmfTarget other not found; existing NvmfTargets: fast") {
		t.Errorf("got %v", err)
	}
}

// A node's room is what its plan lets be promised of each pool that takes something new, less what is.
func TestWeigh(t *testing.T) {
	r := newRig(t)
	n := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "a"}, n))
	n.Spec.Unschedulable, n.Spec.Plan.OverProvisioningPercent = true, 200
	pool := func(class, promised, reason string, ready bool) v1alpha1.PoolStatus {
		return v1alpha1.PoolStatus{Device: class + promised, DeviceClass: class, Ready: ready, Reason: reason, Total: new(resource.MustParse("1000")), Promised: new(resource.MustParse(promised))}
	}
	n.Status.Pools = []v1alpha1.PoolStatus{pool("tlc", "1500", "", true), pool("", "900", v1alpha1.ReasonPoolNearlyFull, true), pool("", "1", "", false)}
	r.do(r.api.Update(r.ctx, n))
	n = &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "b"}, n))
	n.Status.Conditions = nil
	r.do(r.api.Update(r.ctx, n))
	f, err := lookAtFleet(r.ctx, r.api, noon)
	r.do(err)
	const tib = 1 << 40
	want := []weighed{
		{node: "a", totalBytes: 2000, promisedBytes: 2400, pools: []roomy{{"tlc", 500}}},
		{node: "c", totalBytes: tib, receives: true, pools: []roomy{{"", tib}}},
	}
	if got := f.weigh("fast"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
