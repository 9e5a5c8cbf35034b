// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// classed is a pool of a device class.
func classed(device, class string, dataBytes int64) option {
	return func(n *v1alpha1.NvmfNode) {
		pool(device, dataBytes)(n)
		n.Status.Pools[len(n.Status.Pools)-1].DeviceClass = class
	}
}

func TestDeviceClasses(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{
		node("a", classed("a-tlc", "tlc", 10*gi), classed("a-qlc", "qlc", 20*gi)),
		node("b", classed("b-qlc", "qlc", 30*gi)),
		node("c", classed("c-tlc", "tlc", 5*gi), pool("c-none", 50*gi)),
	}
	onTLC := PromiseTo("v", "a", "a-tlc", "tlc", 8*gi)
	placing := PromiseTo("v", "a", "", "tlc", 8*gi) // the agent has not chosen its drive yet
	for name, tc := range map[string]struct {
		req      Request
		promises []Promise
		want     string
	}{
		"of any class":                      {Request{SizeBytes: gi}, nil, "c"},
		"of a class":                        {Request{SizeBytes: gi, DeviceClass: "qlc"}, nil, "b"},
		"of the other":                      {Request{SizeBytes: gi, DeviceClass: "tlc"}, nil, "a"},
		"one drive of the class has room":   {Request{SizeBytes: 6 * gi, DeviceClass: "tlc"}, nil, "a"},
		"what is promised of the class":     {Request{SizeBytes: 4 * gi, DeviceClass: "tlc"}, []Promise{onTLC}, "c"},
		"what is being made of the class":   {Request{SizeBytes: 4 * gi, DeviceClass: "tlc"}, []Promise{placing}, "c"},
		"that takes nothing from the other": {Request{SizeBytes: 20 * gi, DeviceClass: "qlc", Avoid: []string{"b"}}, []Promise{placing}, "a"},
		"a copy in its source's class":      {Request{SizeBytes: gi, DeviceClass: "qlc", Node: "a", Device: "a-qlc"}, nil, "a"},
		"a copy that asks for no class":     {Request{SizeBytes: gi, Node: "a", Device: "a-qlc"}, nil, "a"},
	} {
		tc.req.Target = "fast"
		if got, err := choose(tc.req, nodes, NewLedger(tc.promises...)); got != tc.want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tc.want)
		}
	}
	got, _ := candidates(Request{Target: "fast", DeviceClass: "tlc"}, nodes, NewLedger(placing))
	want := []Candidate{{Node: "a", FreeBytes: 2*gi - overhead, LargestBytes: 2*gi - overhead}, {Node: "c", FreeBytes: 5 * gi, LargestBytes: 5 * gi}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceClassesSayWhyNot(t *testing.T) {
	unready := classed("a-tlc", "tlc", gi)
	for name, tc := range map[string]struct {
		req  Request
		node v1alpha1.NvmfNode
		want string
	}{
		"no drive of the class": {Request{DeviceClass: "qlc"}, node("a", classed("a-tlc", "tlc", gi)), "a: it has no drive of device class qlc"},
		"none that is ready": {
			Request{DeviceClass: "tlc"}, node("a", func(n *v1alpha1.NvmfNode) {
				unready(n)
				p := &n.Status.Pools[0]
				p.Ready, p.Reason, p.Message = false, v1alpha1.ReasonDeviceMissing, "drive a-tlc is not on this node"
			}, classed("a-qlc", "qlc", gi)), "a: none of its drives of device class tlc is ready (DeviceMissing: drive a-tlc is not on this node)",
		},
		"nearly full": {
			Request{DeviceClass: "tlc"}, node("a", unready, nearlyFull, classed("a-qlc", "qlc", gi)), "a: its pools of device class tlc are nearly full",
		},
		"no room in the class": {
			Request{DeviceClass: "tlc", SizeBytes: 2 * gi}, node("a", unready, classed("a-qlc", "qlc", 9*gi)),
			`no drive of target "fast" has enough space for a volume of 2Gi of device class tlc: a: at most 1Gi`,
		},
		"a copy in another class": {
			Request{DeviceClass: "qlc", Node: "a", Device: "a-tlc"}, node("a", unready, classed("a-qlc", "qlc", gi)),
			"a: the source is on drive a-tlc, which has device class tlc, and a copy is stored on the drive of its source; use a StorageClass with deviceClass tlc, or without deviceClass",
		},
		"a copy of what has no class": {
			Request{DeviceClass: "qlc", Node: "a", Device: "d"}, node("a", pool("d", gi)),
			"a: the source is on drive d, which has no device class, and a copy is stored on the drive of its source; use a StorageClass without deviceClass",
		},
	} {
		tc.req.Target = "fast"
		if got, err := choose(tc.req, []v1alpha1.NvmfNode{tc.node}, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tc.want)
		}
	}
}

// Growth asks for room on the drive that the volume is on, beside what is being made of its class.
func TestRoomInAClass(t *testing.T) {
	n := node("a", classed("a-tlc", "tlc", 10*gi), classed("a-qlc", "qlc", 20*gi))
	n.Status.Pools[1].Total = resource.NewQuantity(v1alpha1.WithOverhead(20*gi), resource.BinarySI)
	making := PromiseTo("other", "a", "", "tlc", 4*gi)
	for device, want := range map[string]int64{"a-tlc": 6*gi - overhead, "a-qlc": 20 * gi} {
		if got, known := Room(&n, device, "v", NewLedger(making)); got != want || !known {
			t.Errorf("%s: got %d, %v; want %d", device, got, known, want)
		}
	}
}

func TestNear(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{node("a1", pool("d", 5*gi)), node("a2", pool("d", 10*gi)), node("b1", pool("d", 20*gi)), node("b2", pool("d", 40*gi))}
	zoneOf := map[string]string{"a1": "a", "a2": "a", "b1": "b", "b2": "b", "elsewhere": "a", "nowhere": ""}
	for name, tc := range map[string]struct {
		near  Near
		size  int64
		zones []string
		want  string
	}{
		"nowhere in particular":               {Near{}, gi, nil, "b2"},
		"on the node":                         {Near{Node: "a1", Zone: "a"}, gi, nil, "a1"},
		"in its zone, where the node is full": {Near{Node: "a1", Zone: "a"}, 6 * gi, nil, "a2"},
		"anywhere, where the zone is full":    {Near{Node: "a1", Zone: "a"}, 11 * gi, nil, "b2"},
		"in the zone: the emptiest":           {Near{Zone: "a"}, gi, nil, "a2"},
		"near a node that serves nothing":     {Near{Node: "elsewhere", Zone: "a"}, gi, nil, "a2"},
		"near a node without a zone":          {Near{Node: "nowhere"}, gi, nil, "b2"},
		"zones go before":                     {Near{Node: "a1", Zone: "a"}, gi, []string{"b"}, "b2"},
	} {
		req := Request{Target: "fast", SizeBytes: tc.size, Near: tc.near, Zones: tc.zones, ZoneOf: zoneOf}
		if got, err := choose(req, nodes, nil); got != tc.want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tc.want)
		}
	}
	// A node without a zone is not in one with other such nodes.
	if got, err := choose(Request{Target: "fast", SizeBytes: gi, Near: Near{Node: "x"}, ZoneOf: map[string]string{"a1": "", "x": ""}}, nodes, nil); got != "b2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestCordoned(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi), cordoned), node("c", pool("d", 30*gi))}
	kubernetes := map[string]bool{"c": true}
	near := Near{Node: "c"}
	if got, err := choose(Request{Target: "fast", SizeBytes: gi, Cordoned: kubernetes, Near: near}, nodes, nil); got != "a" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := choose(Request{Target: "fast", SizeBytes: gi, Cordoned: kubernetes}, nodes[1:], nil)
	for _, want := range []string{
		"b: it is cordoned; to place volumes on it again, run: kubectl weft uncordon b",
		"c: its Kubernetes Node is cordoned; to place volumes on it again, run: kubectl uncordon c",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	// A copy is a new volume, and growth is none.
	if _, err := choose(Request{Target: "fast", SizeBytes: gi, Node: "b", Device: "d"}, nodes, nil); err == nil || !strings.Contains(err.Error(), "it is cordoned") {
		t.Errorf("got %v", err)
	}
	if room, known := Room(&nodes[1], "d", "v", nil); room != 20*gi || !known {
		t.Errorf("room for %d, %v", room, known)
	}
}

// withBlocksOf is a pool whose volumes have logical blocks of so many bytes.
func withBlocksOf(device string, blockBytes int32, dataBytes int64) option {
	return func(n *v1alpha1.NvmfNode) {
		pool(device, dataBytes)(n)
		n.Status.Pools[len(n.Status.Pools)-1].BlockSizeBytes = blockBytes
	}
}

func TestBlocks(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{
		node("a", withBlocksOf("a-512", 512, 10*gi), withBlocksOf("a-4096", 4096, 50*gi)),
		node("b", withBlocksOf("b-4096", 4096, 20*gi)),
		node("c", withBlocksOf("c-512", 512, 5*gi)),
		node("d", pool("d", 8*gi)), // not known
	}
	for name, tc := range map[string]struct {
		req  Request
		want string
	}{
		"any":                       {Request{SizeBytes: gi}, "a"},
		"the only pool of a node":   {Request{SizeBytes: gi, BlockBytes: 4096, Apart: []string{"a"}}, "b"},
		"what a node has of others": {Request{SizeBytes: 20 * gi, BlockBytes: 4096}, "a"},
		"what is not known":         {Request{SizeBytes: gi, BlockBytes: 512, Apart: []string{"a"}}, "d"},
		"the last one":              {Request{SizeBytes: gi, BlockBytes: 512, Apart: []string{"a"}, Avoid: []string{"d"}}, "c"},
	} {
		tc.req.Target = "fast"
		if got, err := choose(tc.req, nodes, NewLedger()); got != tc.want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tc.want)
		}
	}
	_, err := choose(Request{Target: "fast", SizeBytes: 20 * gi, BlockBytes: 512}, nodes, NewLedger())
	if err == nil || !strings.Contains(err.Error(), "with logical blocks of 512 bytes") || !strings.Contains(err.Error(), "b: it has no drive with logical blocks of 512 bytes") {
		t.Errorf("the reason is %v", err)
	}

	var x Index
	for i := range nodes {
		x.SetNode(&nodes[i])
	}
	sizes := func(want ...int32) {
		t.Helper()
		if diff := cmp.Diff(want, x.BlockSizes("fast"), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	}
	sizes(512, 4096)
	other := nodes[2].DeepCopy()
	other.Status.Pools[0].BlockSizeBytes = 4096
	x.SetNode(other)
	sizes(4096, 512)
	x.RemoveNode("a")
	sizes(4096)
	x.RemoveNode("b")
	x.RemoveNode("c")
	sizes()
}
