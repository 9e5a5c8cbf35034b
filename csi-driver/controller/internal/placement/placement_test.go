// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	gi       = 1 << 30
	overhead = v1alpha1.OverheadBytes
)

type option func(*v1alpha1.NvmfNode)

// pool with room for one volume with so many bytes of data.
func pool(device string, dataBytes int64) option {
	return poolOf(device, v1alpha1.WithOverhead(dataBytes))
}

// poolOf so many bytes.
func poolOf(device string, bytes int64) option {
	return func(n *v1alpha1.NvmfNode) {
		n.Status.Pools = append(n.Status.Pools, v1alpha1.PoolStatus{
			Device: device, Ready: true, Total: resource.NewQuantity(bytes, resource.BinarySI),
		})
	}
}

func brokenPool(device string, size int64) option {
	return func(n *v1alpha1.NvmfNode) {
		pool(device, size)(n)
		n.Status.Pools[len(n.Status.Pools)-1].Ready = false
	}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) option {
	return func(n *v1alpha1.NvmfNode) {
		for i, c := range n.Status.Conditions {
			if c.Type == kind {
				n.Status.Conditions = append(n.Status.Conditions[:i], n.Status.Conditions[i+1:]...)
				break
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func of(target string) option { return func(n *v1alpha1.NvmfNode) { n.Spec.Target = target } }

func promising(percent int32) option {
	return func(n *v1alpha1.NvmfNode) { n.Spec.Plan.OverProvisioningPercent = percent }
}

func leaving(n *v1alpha1.NvmfNode)  { n.Spec.Leaving = true }
func cordoned(n *v1alpha1.NvmfNode) { n.Spec.Unschedulable = true }

func serving(transports ...v1alpha1.TransportType) option {
	return func(n *v1alpha1.NvmfNode) {
		n.Spec.Plan.Portals = nil
		for _, t := range transports {
			n.Spec.Plan.Portals = append(n.Spec.Plan.Portals, v1alpha1.PlannedPortal{Portal: v1alpha1.Portal{Transport: t}})
		}
	}
}

// node of target fast, ready and alive, serving TCP.
func node(name string, options ...option) v1alpha1.NvmfNode {
	n := v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{}}}
	for _, o := range append([]option{
		serving(v1alpha1.TransportTCP),
		condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, ""),
		condition(v1alpha1.ConditionAgentAlive, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, ""),
	}, options...) {
		o(&n)
	}
	return n
}

// deepRDMA asks for more than Nvmet serves over RDMA.
var deepRDMA = v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportRDMA}, IOQueues: 4, QueueDepth: 512}

func portal(t v1alpha1.TransportType, queues, depth int32) option {
	return func(n *v1alpha1.NvmfNode) {
		n.Spec.Plan.Portals = append(n.Spec.Plan.Portals, v1alpha1.PlannedPortal{Portal: v1alpha1.Portal{Transport: t}, MaxIOQueues: queues, QueueDepth: depth})
	}
}

func TestChoose(t *testing.T) {
	tcp := func(size int64) Request {
		return Request{Target: "fast", Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}}, SizeBytes: size}
	}
	for name, tc := range map[string]struct {
		req      Request
		nodes    []v1alpha1.NvmfNode
		promises []Promise
		want     string
	}{
		"most free first": {
			tcp(gi), []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi))}, nil, "b",
		},
		"promised space is not free": {
			tcp(gi), []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi))},
			[]Promise{{Volume: "v", Node: "b", Device: "d", SizeBytes: 15 * gi}}, "a",
		},
		"a volume seen twice is counted once": {
			tcp(gi), []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi))},
			[]Promise{{Volume: "v", Node: "b", SizeBytes: 8 * gi}, {Volume: "v", Node: "b", SizeBytes: 8 * gi}}, "b",
		},
		"first by name of equals": {
			tcp(gi), []v1alpha1.NvmfNode{node("b", pool("d", 10*gi)), node("a", pool("d", 10*gi))}, nil, "a",
		},
		"one drive must hold the volume": {
			tcp(6 * gi), []v1alpha1.NvmfNode{node("a", pool("d1", 5*gi), pool("d2", 5*gi)), node("b", pool("d", 7*gi))}, nil, "b",
		},
		"exactly full": {
			tcp(5 * gi), []v1alpha1.NvmfNode{node("a", pool("d1", 5*gi))}, nil, "a",
		},
		"volumes on a dead drive take nothing from the others": {
			tcp(5 * gi), []v1alpha1.NvmfNode{node("a", brokenPool("dead", 10*gi), pool("d", 5*gi))},
			[]Promise{{Volume: "v", Node: "a", Device: "dead", SizeBytes: 10 * gi}}, "a",
		},
		"volumes without a drive go where the agent would put them": {
			// 6 on d1 (8 free), then 5 on d2 (6 free): d1 has 2 left, d2 1.
			tcp(2 * gi), []v1alpha1.NvmfNode{node("a", pool("d1", 8*gi), pool("d2", 6*gi))},
			[]Promise{{Volume: "v", Node: "a", SizeBytes: 5 * gi}, {Volume: "w", Node: "a", SizeBytes: 6 * gi}}, "a",
		},
		"nodes to avoid": {
			Request{Target: "fast", SizeBytes: gi, Avoid: []string{"b"}},
			[]v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi))}, nil, "a",
		},
		"other targets' nodes": {
			tcp(gi), []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi), of("slow"))}, nil, "a",
		},
		"only who serves the transport": {
			Request{Target: "fast", Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportRDMA}}, SizeBytes: gi},
			[]v1alpha1.NvmfNode{node("a", pool("d", 20*gi)), node("b", pool("d", 10*gi), serving(v1alpha1.TransportTCP, v1alpha1.TransportRDMA))}, nil, "b",
		},
		"only who serves both transports": {
			Request{Target: "fast", Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportRDMA, v1alpha1.TransportTCP}}, SizeBytes: gi},
			[]v1alpha1.NvmfNode{
				node("a", pool("d", 30*gi)), node("b", pool("d", 20*gi), serving(v1alpha1.TransportRDMA)),
				node("c", pool("d", 10*gi), serving(v1alpha1.TransportTCP, v1alpha1.TransportRDMA)),
			}, nil, "c",
		},
		"only who serves queues as deep as asked for": {
			Request{Target: "fast", Connection: deepRDMA, SizeBytes: gi},
			[]v1alpha1.NvmfNode{node("a", pool("d", 20*gi), portal(v1alpha1.TransportRDMA, 8, 256)), node("b", pool("d", 10*gi), portal(v1alpha1.TransportRDMA, 8, 512))},
			nil, "b",
		},
		"what a transport serves that is not used": {
			Request{Target: "fast", Connection: deepRDMA, SizeBytes: gi},
			[]v1alpha1.NvmfNode{node("a", pool("d", gi), portal(v1alpha1.TransportRDMA, 8, 512), portal(v1alpha1.TransportTCP, 1, 16))}, nil, "a",
		},
		"what nobody asked for": {
			Request{Target: "fast", Connection: v1alpha1.Connection{Transports: deepRDMA.Transports}, SizeBytes: gi},
			[]v1alpha1.NvmfNode{node("a", pool("d", gi), portal(v1alpha1.TransportRDMA, 1, 16))}, nil, "a",
		},
		"a node without a plan says nothing against the others": {
			Request{Target: "fast", Connection: deepRDMA, SizeBytes: gi},
			[]v1alpha1.NvmfNode{node("a", pool("d", 20*gi), func(n *v1alpha1.NvmfNode) { n.Spec.Plan = nil }), node("b", pool("d", gi), portal(v1alpha1.TransportRDMA, 8, 512))},
			nil, "b",
		},
		"nodes that their target lets go": {
			tcp(gi), []v1alpha1.NvmfNode{node("a", pool("d", 10*gi)), node("b", pool("d", 20*gi), leaving)}, nil, "a",
		},
		"silent and unready nodes": {
			tcp(gi), []v1alpha1.NvmfNode{
				node("a", pool("d", 20*gi), condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "")),
				node("b", pool("d", 20*gi), condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed, "")),
				node("c", pool("d", 10*gi), condition(v1alpha1.ConditionAgentAlive, metav1.ConditionUnknown, v1alpha1.ReasonPending, "")),
			}, nil, "c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(tc.req, tc.nodes, NewLedger(tc.promises...))
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestChooseSaysWhyNot(t *testing.T) {
	removed := metav1.NewTime(time.Unix(0, 0))
	for name, tc := range map[string]struct {
		req    Request
		nodes  []v1alpha1.NvmfNode
		noRoom bool
		want   []string
	}{
		"no node at all":               {Request{Target: "fast"}, nil, false, []string{`target "fast" is not served by any node yet`, "NvmfTarget fast"}},
		"nodes of another target only": {Request{Target: "fast"}, []v1alpha1.NvmfNode{node("a", of("slow"))}, false, []string{"is not served by any node yet"}},
		"less than asked for": {
			// As a plan of engine Nvmet has it, whatever the target says: nvmet_rdma serves 256 at most.
			Request{Target: "fast", Connection: deepRDMA},
			[]v1alpha1.NvmfNode{node("a", portal(v1alpha1.TransportRDMA, 8, 256)), node("b", portal(v1alpha1.TransportRDMA, 2, 512)),
				node("c", portal(v1alpha1.TransportRDMA, 8, 512), portal(v1alpha1.TransportRDMA, 8, 128))}, false,
			[]string{
				"a: it supports a queue depth of 256 over RDMA, but queueDepth is 512; b: it supports 2 I/O queues over RDMA, but ioQueues is 4; " +
					"c: it supports a queue depth of 128",
			},
		},
		"a node that has no plan yet": {
			Request{Target: "fast", Connection: deepRDMA}, []v1alpha1.NvmfNode{node("a", func(n *v1alpha1.NvmfNode) { n.Spec.Plan = nil })}, false,
			[]string{"is not served by any node yet"},
		},
		"each node's reason": {
			Request{Target: "fast", Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}}},
			[]v1alpha1.NvmfNode{
				node("e"),
				node("d", func(n *v1alpha1.NvmfNode) { n.Status.Conditions = nil }),
				node("c", func(n *v1alpha1.NvmfNode) { n.DeletionTimestamp = &removed }),
				node("b", condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no lease since noon")),
				node("a", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed, "")),
			}, false,
			[]string{
				"a: not ready (PoolFailed); b: its agent is silent (AgentSilent: no lease since noon); c: it is being removed; " +
					"d: its agent has not reported yet; e: it does not serve RDMA",
			},
		},
		"no room": {
			Request{Target: "fast", SizeBytes: 6 * gi},
			[]v1alpha1.NvmfNode{
				node("a", pool("d1", 5*gi), pool("d2", 5*gi)), node("b"),
				node("c", condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "")),
			}, true,
			[]string{`no drive of target "fast" has enough space for a volume of 6Gi: a: at most 5Gi; b: at most 0; c: its agent is silent`, "; the largest drive has 5Gi, and a volume is on one drive"},
		},
		"the only node said it has no room": {
			Request{Target: "fast", SizeBytes: gi, Avoid: []string{"a"}}, []v1alpha1.NvmfNode{node("a", pool("d1", 5*gi))}, true,
			[]string{"a: its agent found no space"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(tc.req, tc.nodes, nil)
			if err == nil {
				t.Fatalf("chose %s", got)
			}
			var room *NoRoomError
			var none *NoNodeError
			if errors.As(err, &room) != tc.noRoom || errors.As(err, &none) == tc.noRoom {
				t.Errorf("got a %T", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func TestErrorsStayShortHoweverManyNodesThereAre(t *testing.T) {
	var nodes []v1alpha1.NvmfNode
	for i := range 500 {
		nodes = append(nodes, node(fmt.Sprintf("node-%03d", i)))
	}
	_, err := choose(Request{Target: "fast", SizeBytes: gi}, nodes, nil)
	if err == nil || len(err.Error()) > 1024 || !strings.Contains(err.Error(), "and 492 more") {
		t.Errorf("got %v", err)
	}
}

func TestChooseSpreadsWhatWasPromisedMeanwhile(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{node("a", pool("d", 100*gi)), node("b", pool("d", 100*gi)), node("c", pool("d", 100*gi))}
	var promises []Promise
	count := map[string]int{}
	for i := range 99 {
		n, err := choose(Request{Target: "fast", SizeBytes: gi}, nodes, NewLedger(promises...))
		if err != nil {
			t.Fatal(err)
		}
		promises = append(promises, Promise{Volume: fmt.Sprint(i), Node: n, SizeBytes: gi})
		count[n]++
	}
	if diff := cmp.Diff(map[string]int{"a": 33, "b": 33, "c": 33}, count); diff != "" {
		t.Error(diff)
	}
}

func TestCandidatesOfAllTargets(t *testing.T) {
	got, _ := candidates(Request{}, []v1alpha1.NvmfNode{
		node("b", pool("d1", 3*gi), pool("d2", 5*gi), of("slow")),
		node("a", pool("d1", 1*gi)),
		{ObjectMeta: metav1.ObjectMeta{Name: "unclaimed"}},
	}, NewLedger(Promise{Volume: "v", Node: "a", Device: "d1", SizeBytes: 2 * gi}))
	want := []Candidate{{Node: "a"}, {Node: "b", FreeBytes: 8 * gi, LargestBytes: 5 * gi}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestZones(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{node("a", pool("d", 20*gi)), node("b", pool("d", 10*gi)), node("c", pool("d", 30*gi))}
	req := Request{Target: "fast", SizeBytes: gi, ZoneOf: map[string]string{"a": "east", "b": "west"}}
	for _, tc := range []struct {
		zones []string
		want  string
	}{{nil, "c"}, {[]string{"west"}, "b"}, {[]string{"east", "west"}, "a"}, {[]string{"north"}, ""}} {
		req.Zones = tc.zones
		got, err := choose(req, nodes, nil)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%v: got %q, %v", tc.zones, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), `b: it is in zone "west", not in north`) {
			t.Error(err)
		}
	}
}

func nearlyFull(n *v1alpha1.NvmfNode) {
	n.Status.Pools[len(n.Status.Pools)-1].Reason = v1alpha1.ReasonPoolNearlyFull
}

// A drive that is being retired takes nothing new, whatever it has room for. What it stores can grow.
func TestRetiredDrives(t *testing.T) {
	retired := func(drive string) option {
		return func(n *v1alpha1.NvmfNode) { n.Spec.UnschedulableDrives = append(n.Spec.UnschedulableDrives, drive) }
	}
	one := node("one", pool("d", 100*gi), retired("d"))
	half := node("half", pool("d1", 100*gi), retired("d1"), pool("d2", 5*gi))
	nodes := []v1alpha1.NvmfNode{one, half}
	req := Request{Target: "fast", SizeBytes: gi}
	if got, err := choose(req, nodes, nil); err != nil || got != "half" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, _ := candidates(req, nodes, nil); len(got) != 1 || got[0].LargestBytes != 5*gi || got[0].FreeBytes != 5*gi {
		t.Errorf("candidates: %+v", got)
	}
	// What is being made there takes from the other drive, as its agent chooses.
	req.SizeBytes = 3 * gi
	if got, err := choose(req, nodes, NewLedger(PromiseTo("v", "half", "", "", 3*gi))); err == nil ||
		!strings.Contains(err.Error(), "one: its drives are being retired") {
		t.Errorf("got %q, %v", got, err)
	}
	req.Node, req.Device = "half", "d1"
	if _, err := choose(req, nodes, nil); err == nil || !strings.Contains(err.Error(), "its drive d1, which stores the source, is being retired; to place volumes on it again, run: kubectl weft retire half d1 --undo") {
		t.Errorf("a copy: %v", err)
	}
	if left, known := Room(&one, "d", "v", nil); left != 100*gi || !known {
		t.Errorf("room to grow: %d, %v", left, known)
	}
}

// A pool that is nearly full takes nothing, however little of it was promised.
func TestNearlyFullPools(t *testing.T) {
	full := func(n *v1alpha1.NvmfNode) { n.Status.Pools[len(n.Status.Pools)-1].Reason = v1alpha1.ReasonPoolFull }
	one := node("one", pool("d", 100*gi), nearlyFull)
	half := node("half", pool("d1", 100*gi), full, pool("d2", 5*gi))
	req := Request{Target: "fast", SizeBytes: gi}
	if got, err := choose(req, []v1alpha1.NvmfNode{one, half}, nil); err != nil || got != "half" {
		t.Errorf("got %q, %v", got, err)
	}
	req.SizeBytes = 6 * gi
	if _, err := choose(req, []v1alpha1.NvmfNode{one, half}, nil); err == nil ||
		!strings.Contains(err.Error(), "half: at most 5Gi") || !strings.Contains(err.Error(), "one: its pools are nearly full") {
		t.Error(err)
	}
	if left, known := Room(&one, "d", "v", nil); left != 0 || !known {
		t.Errorf("room to grow: %d, %v", left, known)
	}
}

// More than there is may be promised where the plan says so; no volume is larger than its drive, and a nearly full
// drive takes nothing.
func TestOverProvisioning(t *testing.T) {
	nodes := []v1alpha1.NvmfNode{
		node("once", pool("d", 100*gi), promising(100)),
		node("thrice", pool("d", 60*gi), pool("full", 500*gi), nearlyFull, promising(300)),
		node("over", pool("d", 10*gi), promising(150)),
	}
	promises := []Promise{
		{Volume: "a", Node: "once", Device: "d", SizeBytes: 70 * gi},
		{Volume: "b", Node: "thrice", Device: "d", SizeBytes: 90 * gi},
		{Volume: "c", Node: "over", Device: "d", SizeBytes: 9 * gi}, {Volume: "d", Node: "over", Device: "d", SizeBytes: 9 * gi},
	}
	got, _ := candidates(Request{Target: "fast"}, nodes, NewLedger(promises...))
	want := []Candidate{
		{Node: "once", FreeBytes: 30 * gi, LargestBytes: 30 * gi}, {Node: "over"},
		{Node: "thrice", FreeBytes: 90*gi + 2*overhead, LargestBytes: 60 * gi}, // what is left has room for two headers more
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for size, node := range map[int64]string{gi: "thrice", 60 * gi: "thrice", 61 * gi: ""} {
		if got, _ := choose(Request{Target: "fast", SizeBytes: size}, nodes, NewLedger(promises...)); got != node {
			t.Errorf("%d GiB go to %q, want %q", size/gi, got, node)
		}
	}
	for i, room := range []int64{30 * gi, 60 * gi, 0} {
		if left, known := Room(&nodes[i], "d", "new", NewLedger(promises...)); left != room || !known {
			t.Errorf("%s: room to grow is %d, %v; want %d", nodes[i].Name, left, known, room)
		}
	}
	// What has no drive yet is put where it fits, not on the drive with the most left.
	mixed := node("mixed", pool("small", 30*gi), pool("large", 80*gi), promising(300))
	got, _ = candidates(Request{Target: "fast"}, []v1alpha1.NvmfNode{mixed}, NewLedger(
		Promise{Volume: "e", Node: "mixed", Device: "large", SizeBytes: 79 * gi}, Promise{Volume: "f", Node: "mixed", Device: "large", SizeBytes: 79 * gi},
		Promise{Volume: "g", Node: "mixed", SizeBytes: 40 * gi},
	))
	if diff := cmp.Diff([]Candidate{{Node: "mixed", FreeBytes: (90+42)*gi + 4*overhead, LargestBytes: 42*gi + 2*overhead}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRoom(t *testing.T) {
	failed := func(reason string) func(*v1alpha1.NvmfNode) {
		return func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Ready, n.Status.Pools[0].Reason = false, reason }
	}
	promises := []Promise{
		{Volume: "v", Node: "n", Device: "d", SizeBytes: 10 * gi},
		{Volume: "neighbour", Node: "n", Device: "d", SizeBytes: 20 * gi},
		{Volume: "not made yet", Node: "n", SizeBytes: 30 * gi},
		{Volume: "elsewhere", Node: "m", Device: "d", SizeBytes: 40 * gi},
	}
	for name, tc := range map[string]struct {
		node  v1alpha1.NvmfNode
		room  int64
		known bool
	}{
		"ready":                          {node("n", pool("d", 100*gi)), 50 * gi, true},
		"promised more than whole":       {node("n", pool("d", 15*gi)), 0, true},
		"not reported":                   {node("n", pool("e", 100*gi)), 0, false},
		"no pools":                       {node("n"), 0, false},
		"not readable, with an old size": {node("n", pool("d", 100*gi), failed(v1alpha1.ReasonDeviceMissing)), 0, false},
		"no longer planned: no new volumes come to it": {
			node("n", pool("d", 100*gi), failed(v1alpha1.ReasonNotClaimed), pool("e", 100*gi)), 80 * gi, true},
	} {
		if room, known := Room(&tc.node, "d", "v", NewLedger(promises...)); room != tc.room || known != tc.known {
			t.Errorf("%s: got %d, %v; want %d, %v", name, room, known, tc.room, tc.known)
		}
	}
}

// A volume takes its header's bytes besides its own, wherever its size is asked for or told.
func TestHeaders(t *testing.T) {
	full := node("n", poolOf("d", 10*gi), poolOf("tiny", overhead), promising(100))
	for _, tc := range []struct {
		promises []Promise
		largest  int64
		free     int64
	}{
		{nil, 10*gi - overhead, 10*gi - overhead},
		{[]Promise{PromiseTo("v", "n", "d", "", 9*gi)}, gi - 2*overhead, gi - 2*overhead},
		{[]Promise{PromiseTo("v", "n", "", "", 9*gi)}, gi - 2*overhead, gi - 2*overhead},
		{[]Promise{PromiseTo("v", "n", "d", "", 10*gi-2*overhead)}, 0, 0}, // what is left has room for a header alone
		{[]Promise{PromiseTo("v", "n", "d", "", 10*gi-3*overhead)}, overhead, overhead},
		{[]Promise{PromiseTo("v", "n", "d", "", 10*gi-overhead)}, 0, 0},
		// Its header is among what a snapshot holds.
		{[]Promise{{Volume: SnapshotPrefix + "s", Node: "n", Device: "d", SizeBytes: 9 * gi}}, gi - overhead, gi - overhead},
	} {
		nodes := []v1alpha1.NvmfNode{full}
		got, _ := candidates(Request{Target: "fast"}, nodes, NewLedger(tc.promises...))
		if diff := cmp.Diff([]Candidate{{Node: "n", FreeBytes: tc.free, LargestBytes: tc.largest}}, got); diff != "" {
			t.Errorf("%v: %s", tc.promises, diff)
		}
		if room, known := Room(&full, "d", "new", NewLedger(tc.promises...)); room != tc.largest || !known {
			t.Errorf("%v: room for %d, %v, want %d", tc.promises, room, known, tc.largest)
		}
		for size, fits := range map[int64]bool{tc.largest: true, tc.largest + 1: false} {
			if _, err := choose(Request{Target: "fast", SizeBytes: size}, nodes, NewLedger(tc.promises...)); (err == nil) != fits {
				t.Errorf("%v: a volume of %d bytes: %v", tc.promises, size, err)
			}
		}
	}
	// What a volume has may be had again when it grows.
	if room, _ := Room(&full, "d", "v", NewLedger(PromiseTo("v", "n", "d", "", 10*gi-overhead))); room != 10*gi-overhead {
		t.Errorf("a volume that fills its drive has room for %d", room)
	}
	// However much may be promised, no volume fills more than its drive.
	over := node("n", poolOf("d", 10*gi), promising(300))
	if room, _ := Room(&over, "d", "v", nil); room != 10*gi-overhead {
		t.Errorf("with 300 %%, there is room for %d", room)
	}
}

func subsystems(n int32) option {
	return func(node *v1alpha1.NvmfNode) { node.Spec.Plan.SPDK = &v1alpha1.SPDKPlan{MaxSubsystems: n} }
}

// A target serves no more volumes than it has subsystems for, one of which it keeps free: the next goes elsewhere.
func TestChooseCountsVolumes(t *testing.T) {
	req := Request{Target: "fast", Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}}, SizeBytes: gi}
	held := []Promise{
		PromiseTo("v1", "a", "d", "", gi), PromiseTo("v2", "a", "", "", gi),
		PromiseTo("v2", "a", "", "", gi),                                       // reserved, and in the cache
		{Volume: SnapshotPrefix + "s1", Node: "a", Device: "d", SizeBytes: gi}, // which is not exported
	}
	for name, tc := range map[string]struct {
		a     option
		other []v1alpha1.NvmfNode
		want  string
	}{
		"one more fits":                         {subsystems(4), []v1alpha1.NvmfNode{node("b", pool("d", 10*gi))}, "a"},
		"no more fits":                          {subsystems(3), []v1alpha1.NvmfNode{node("b", pool("d", 10*gi))}, "b"},
		"more than fit":                         {subsystems(1), []v1alpha1.NvmfNode{node("b", pool("d", 10*gi))}, "b"},
		"the kernel's target has no such limit": {func(*v1alpha1.NvmfNode) {}, nil, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(req, append(tc.other, node("a", pool("d", 100*gi), tc.a)), NewLedger(held...))
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %s", got, err, tc.want)
			}
		})
	}
	_, err := choose(req, []v1alpha1.NvmfNode{node("a", pool("d", 100*gi), subsystems(3)), node("c", leaving)}, NewLedger(held...))
	var full *NoRoomError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "a: it has 2 volumes, the maximum number of its target") {
		t.Errorf("got %v", err)
	}
}

// Pools round volumes up to whole clusters: what is promised so is gone, and what is left takes whole ones only.
func TestRoomInClusters(t *testing.T) {
	const mi = 1 << 20
	inClusters := func(n *v1alpha1.NvmfNode) {
		n.Status.Pools[0].ClusterSize = resource.NewQuantity(16*mi, resource.BinarySI)
	}
	n := node("a", poolOf("d", gi+8*mi), inClusters)
	for name, tc := range map[string]struct {
		promises []Promise
		want     int64
	}{
		"a whole cluster is not there":    {nil, gi - overhead},
		"a promise is rounded up":         {[]Promise{PromiseTo("v", "a", "d", "", 100*mi)}, gi - 112*mi - overhead},
		"wherever the agent will put it":  {[]Promise{PromiseTo("v", "a", "", "", 100*mi)}, gi - 112*mi - overhead},
		"one of whole clusters is not":    {[]Promise{PromiseTo("v", "a", "d", "", 104*mi)}, gi - 112*mi - overhead},
		"more is promised than there is":  {[]Promise{PromiseTo("v", "a", "d", "", 2*gi)}, 0},
		"nothing is left of a cluster":    {[]Promise{PromiseTo("v", "a", "d", "", gi-overhead)}, 0},
		"a snapshot holds whole clusters": {[]Promise{{Volume: SnapshotPrefix + "s", Node: "a", Device: "d", SizeBytes: 16 * mi}}, gi - 16*mi - overhead},
	} {
		t.Run(name, func(t *testing.T) {
			if got, known := Room(&n, "d", "another", NewLedger(tc.promises...)); !known || got != tc.want {
				t.Errorf("room for %d bytes (known: %v), want %d", got, known, tc.want)
			}
		})
	}
}
