// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// indexOf nodes, of which a ledger says what was promised.
func indexOf(nodes []v1alpha1.NvmfNode, ledger *Ledger) *Index {
	x := &Index{}
	if ledger != nil {
		x.ledger = *ledger
	}
	for i := range nodes {
		x.SetNode(&nodes[i])
	}
	return x
}

func choose(req Request, nodes []v1alpha1.NvmfNode, ledger *Ledger) (string, error) {
	return indexOf(nodes, ledger).Choose(req)
}

func candidates(req Request, nodes []v1alpha1.NvmfNode, ledger *Ledger) ([]Candidate, []Refusal) {
	return indexOf(nodes, ledger).Candidates(req)
}

// chooseFromAll is Choose without anything that was kept: it judges each node, and compares all that fit.
func chooseFromAll(req Request, nodes []v1alpha1.NvmfNode, ledger *Ledger) (string, error) {
	can, refusals := judgeAll(req, nodes, ledger)
	full := slices.ContainsFunc(refusals, func(r Refusal) bool { return r.Full })
	if len(can) == 0 && len(req.Avoid) == 0 && !full {
		return "", &NoNodeError{Request: req, Refusals: refusals}
	}
	fit := slices.DeleteFunc(slices.Clone(can), func(c Candidate) bool { return c.LargestBytes < req.SizeBytes })
	if len(fit) == 0 {
		noRoom := &NoRoomError{Request: req, Candidates: can, Refusals: refusals}
		for i := range nodes {
			if slices.ContainsFunc(can, func(c Candidate) bool { return c.Node == nodes[i].Name }) {
				noRoom.DriveBytes = max(noRoom.DriveBytes, largestDrive(&nodes[i], req, ledger))
			}
		}
		return "", noRoom
	}
	return slices.MinFunc(fit, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(req.together(a.Node), req.together(b.Node)), cmp.Compare(req.distance(a.Node), req.distance(b.Node)),
			cmp.Compare(b.FreeBytes, a.FreeBytes), cmp.Compare(a.Node, b.Node))
	}).Node, nil
}

func judgeAll(req Request, nodes []v1alpha1.NvmfNode, ledger *Ledger) (can []Candidate, refusals []Refusal) {
	for i := range nodes {
		n := &nodes[i]
		if n.Spec.Plan == nil || slices.Contains(req.Avoid, n.Name) || (req.Node != "" && n.Name != req.Node) {
			continue
		}
		if req.Target != "" && n.Spec.Target != req.Target {
			if req.Node != "" {
				refusals = append(refusals, Refusal{Node: n.Name, Reason: fmt.Sprintf(
					"it belongs to target %q, and a copy is stored on the node of its source; use a StorageClass of that target", n.Spec.Target)})
			}
			continue
		}
		if reason := cmp.Or(req.elsewhere(n.Name), refusal(n, req), noPool(n, req)); reason != "" {
			refusals = append(refusals, Refusal{Node: n.Name, Reason: reason})
		} else if reason := atLimit(n, ledger); reason != "" {
			refusals = append(refusals, Refusal{Node: n.Name, Reason: reason, Full: true})
		} else {
			can = append(can, room(n, req, ledger))
		}
	}
	slices.SortFunc(can, func(a, b Candidate) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(refusals, func(a, b Refusal) int { return cmp.Compare(a.Node, b.Node) })
	return can, refusals
}

// history is a cluster that changes at random, with an index that is told of each change.
type history struct {
	*rand.Rand
	nodes []v1alpha1.NvmfNode
	index Index
	steps int
}

func oneOf[T any](h *history, of ...T) T { return of[h.IntN(len(of))] }

// some of those, each as likely as not.
func some[T any](h *history, of ...T) (chosen []T) {
	for _, o := range of {
		if h.IntN(2) == 0 {
			chosen = append(chosen, o)
		}
	}
	return chosen
}

// name of a node. There are more names than nodes.
func (h *history) name() string { return fmt.Sprint("node-", h.IntN(12)) }

// anyNode as it may be.
func (h *history) anyNode(name string) v1alpha1.NvmfNode {
	status := func() metav1.ConditionStatus {
		return oneOf(h, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionFalse)
	}
	n := node(name, serving(), portal(v1alpha1.TransportTCP, oneOf[int32](h, 2, 8), 128),
		condition(v1alpha1.ConditionReady, status(), v1alpha1.ReasonPoolFailed, ""),
		condition(v1alpha1.ConditionAgentAlive, status(), v1alpha1.ReasonAgentSilent, "no lease"))
	if h.IntN(2) == 0 {
		portal(v1alpha1.TransportRDMA, 8, 128)(&n)
	}
	for _, device := range some(h, "d", "e", "f") {
		pool(device, int64(h.IntN(8))*10*gi)(&n)
		p := &n.Status.Pools[len(n.Status.Pools)-1]
		p.DeviceClass, p.Ready = oneOf(h, "", "ssd", "ssd"), h.IntN(8) > 0
		if h.IntN(8) == 0 {
			nearlyFull(&n)
		}
	}
	if h.IntN(4) == 0 {
		subsystems(int32(h.IntN(6)))(&n)
	}
	n.Spec.Target = oneOf(h, "fast", "fast", "slow")
	n.Spec.Unschedulable, n.Spec.Leaving = h.IntN(10) == 0, h.IntN(20) == 0
	n.Spec.UnschedulableDrives = oneOf(h, nil, nil, nil, []string{"d"})
	if h.IntN(10) == 0 {
		n.Spec.Plan = nil
	}
	if h.IntN(20) == 0 {
		n.DeletionTimestamp = new(metav1.Now())
	}
	h.steps++
	n.ResourceVersion = fmt.Sprint(h.steps)
	return n
}

func (h *history) change() {
	volume := oneOf(h, "", SnapshotPrefix) + fmt.Sprint(h.IntN(30))
	switch name := h.name(); h.IntN(8) {
	case 0:
		h.index.Withdraw(volume)
	case 1:
		h.nodes = slices.DeleteFunc(h.nodes, func(n v1alpha1.NvmfNode) bool { return n.Name == name })
		h.index.RemoveNode(name)
	case 2, 3, 4:
		n := h.anyNode(name)
		if i := slices.IndexFunc(h.nodes, func(n v1alpha1.NvmfNode) bool { return n.Name == name }); i >= 0 {
			h.nodes[i] = n
		} else {
			h.nodes = append(h.nodes, n)
		}
		h.index.SetNode(n.DeepCopy())
	default:
		h.index.Promise(Promise{
			Volume: volume, Node: name, Device: oneOf(h, "", "d", "e"), DeviceClass: oneOf(h, "", "", "ssd"), SizeBytes: int64(h.IntN(20)+1) * gi,
		})
	}
}

func (h *history) request() Request {
	req := Request{
		Target: oneOf(h, "fast", "fast", "slow", ""), DeviceClass: oneOf(h, "", "ssd", "hdd"), SizeBytes: int64(h.IntN(30)+1) * gi,
		Connection: v1alpha1.Connection{
			Transports: some(h, v1alpha1.TransportTCP, v1alpha1.TransportRDMA), IOQueues: oneOf[int32](h, 0, 4), QueueDepth: oneOf[int32](h, 0, 64, 256),
		},
	}
	if h.IntN(3) == 0 {
		req.Avoid, req.Apart = some(h, h.name(), h.name()), some(h, h.name(), h.name())
	}
	if h.IntN(3) == 0 {
		req.Cordoned = map[string]bool{h.name(): true, h.name(): true}
	}
	if h.IntN(2) == 0 {
		req.ZoneOf = map[string]string{}
		for i := range 12 {
			req.ZoneOf[fmt.Sprint("node-", i)] = oneOf(h, "east", "west", "")
		}
		req.Zones = oneOf(h, nil, []string{"east"}, []string{"east", "north"})
	}
	req.Near = oneOf(h, Near{}, Near{Node: h.name()}, Near{Zone: "west"}, Near{Node: h.name(), Zone: "east"})
	if h.IntN(6) == 0 {
		req.Node, req.Device = h.name(), oneOf(h, "", "d", "e")
	}
	return req
}

// Whatever changed, in whatever order, and whatever was asked before: an index chooses the node, and gives the reasons,
// that one gets who judges all nodes.
func TestIndexChoosesAsOneWhoJudgesAllNodes(t *testing.T) {
	h := &history{Rand: rand.New(rand.NewPCG(7, 11))}
	chosen, questions := 0, map[question]bool{}
	for range 20000 {
		h.change()
		req := h.request()
		questions[questionOf(req)] = true
		want, wantErr := chooseFromAll(req, h.nodes, &h.index.ledger)
		got, err := h.index.Choose(req)
		if got != want || fmt.Sprintf("%T %v", err, err) != fmt.Sprintf("%T %v", wantErr, wantErr) {
			t.Fatalf("change %d: chose %q (%v), want %q (%v) for %+v", h.steps, got, err, want, wantErr, req)
		}
		if got != "" {
			chosen++
		}
		can, refusals := h.index.Candidates(req)
		wantCan, wantRefusals := judgeAll(req, h.nodes, &h.index.ledger)
		if diff := gocmp.Diff(wantCan, can) + gocmp.Diff(wantRefusals, refusals); diff != "" {
			t.Fatalf("change %d: %s for %+v", h.steps, diff, req)
		}
	}
	if chosen < 2000 || len(questions) <= mostViews || len(h.index.views) > mostViews {
		t.Errorf("%d were placed, %d different things asked, and %d views kept: the histories show too little", chosen, len(questions), len(h.index.views))
	}
}

// A choice judges the nodes that have changed since the last one, and no others.
func TestIndexJudgesOnlyWhatChanged(t *testing.T) {
	x, req := fleet(1000), Request{Target: "fast", SizeBytes: gi}
	on, err := x.Choose(req)
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]*verdict{}
	for name, is := range x.view(req).verdicts {
		was[name] = is
	}
	x.Promise(PromiseTo("new", on, "", "", gi))
	if _, err := x.Choose(req); err != nil {
		t.Fatal(err)
	}
	var judged []string
	for name, is := range x.view(req).verdicts {
		if is != was[name] {
			judged = append(judged, name)
		}
	}
	if len(judged) != 1 || judged[0] != on {
		t.Errorf("judged %v again, want %s", judged, on)
	}
}

// fleet of nodes with 20 volumes each.
func fleet(count int) *Index {
	x := &Index{}
	for i := range count {
		n := node(fmt.Sprintf("node-%05d", i), pool("d", 10000*gi))
		n.ResourceVersion = "1"
		x.SetNode(&n)
		for v := range 20 {
			x.Promise(PromiseTo(fmt.Sprintf("%d-%d", i, v), n.Name, "d", "", 10*gi))
		}
	}
	return x
}

// BenchmarkChoose has a volume placed among nodes with 20 volumes each, and promised to one, while the one before it
// goes: as the index does it, and with all nodes judged at each choice.
func BenchmarkChoose(b *testing.B) {
	req := Request{Target: "fast", SizeBytes: gi}
	for _, count := range []int{100, 1000, 5000} {
		x := fleet(count)
		var nodes []v1alpha1.NvmfNode
		for _, n := range x.nodes {
			nodes = append(nodes, *n)
		}
		for _, by := range []struct {
			name   string
			choose func() (string, error)
		}{
			{"all-nodes", func() (string, error) { return chooseFromAll(req, nodes, &x.ledger) }},
			{"index", func() (string, error) { return x.Choose(req) }},
		} {
			b.Run(fmt.Sprintf("%d/%s", count, by.name), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					on, err := by.choose()
					if err != nil {
						b.Fatal(err)
					}
					x.Withdraw(fmt.Sprint("new-", i-1))
					x.Promise(PromiseTo(fmt.Sprint("new-", i), on, "d", "", gi))
				}
			})
		}
	}
}
