// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/operator/internal/claim"
)

func fits(node string) claim.Prospect {
	return claim.Prospect{Node: node, Matches: true, Verdict: claim.Fits}
}

func cannot(node, message string) claim.Prospect {
	return claim.Prospect{Node: node, Matches: true, Verdict: claim.CannotHold,
		Reasons: []sizing.Reason{{Reason: v1alpha1.ReasonNotEnoughCPUs, Message: message}}}
}

func unknown(node string) claim.Prospect {
	return claim.Prospect{Node: node, Matches: true, Verdict: claim.Unknown,
		Reasons: []sizing.Reason{{Reason: v1alpha1.ReasonNoInventory, Message: "the agent of node " + node + " has not reported"}}}
}

func elsewhere(p claim.Prospect) claim.Prospect {
	p.Matches = false
	return p
}

func TestVerdict(t *testing.T) {
	var many, different, long []claim.Prospect
	for i := range 3 {
		long = append(long, cannot(fmt.Sprintf("n%02d", i), strings.Repeat(fmt.Sprint("a", i, " long "), 1000)))
	}
	for i := range 50 {
		many = append(many, cannot(fmt.Sprintf("n%02d", i), "two cores"))
		different = append(different, cannot(fmt.Sprintf("n%02d", i), fmt.Sprintf("%d cores", i)))
	}
	for name, c := range map[string]struct {
		prospects []claim.Prospect
		// noWorse: what is stored is as bad.
		noWorse bool
		// refused and warned are what is said, each in part.
		refused string
		warned  []string
	}{
		"all fit":                      {prospects: []claim.Prospect{fits("n1"), fits("n2")}},
		"one fits, others do not care": {prospects: []claim.Prospect{fits("n1"), elsewhere(cannot("n2", "two cores"))}},
		"no node at all":               {warned: []string{"no node matches"}},
		"no node matches":              {prospects: []claim.Prospect{elsewhere(fits("n1"))}, warned: []string{"no node matches"}},
		"none can": {prospects: []claim.Prospect{cannot("n1", "two cores"), cannot("n2", "one core")},
			refused: "no matching node can serve this target: n1: NotEnoughCPUs: two cores; n2: NotEnoughCPUs: one core; run kubectl weft plan"},
		"none can, as before": {prospects: []claim.Prospect{cannot("n1", "two cores"), cannot("n2", "one core")}, noWorse: true,
			warned: []string{"no matching node can serve this target, and none could serve it before", "2 of 2 matching nodes cannot serve this target: n1: NotEnoughCPUs: two cores", "n2: NotEnoughCPUs: one core"}},
		"many different, as before": {prospects: different, noWorse: true,
			warned: []string{"and none could serve it before", "50 of 50", "50 of 50", "50 of 50", "and 47 more, for other reasons"}},
		"long stories, as before": {prospects: long, noWorse: true, warned: []string{"and none could serve it before", "...", "...", "..."}},
		"some can": {prospects: []claim.Prospect{cannot("n1", "two cores"), fits("n2")},
			warned: []string{"1 of 2 matching nodes cannot serve this target: n1: NotEnoughCPUs: two cores"}},
		"one has not reported": {prospects: []claim.Prospect{unknown("n1")},
			warned: []string{"unknown whether 1 of 1 matching nodes can serve this target: n1: NoInventory: the agent of the node has not reported"}},
		"none can, but one has not reported": {prospects: []claim.Prospect{cannot("n1", "two cores"), unknown("n2"), unknown("n3")},
			warned: []string{"1 of 3 matching nodes cannot", "unknown whether 2 of 3 matching nodes can serve this target: n2, n3: NoInventory"}},
		"many alike":     {prospects: many, refused: "this target: n00, n01, n02 and 47 more: NotEnoughCPUs: two cores; run kubectl"},
		"many different": {prospects: different, refused: "n02: NotEnoughCPUs: 2 cores; and 47 more, for other reasons; run kubectl"},
		"many different, and one fits": {prospects: append([]claim.Prospect{fits("a")}, different...),
			warned: []string{"50 of 51", "50 of 51", "50 of 51", "and 47 more, for other reasons"}},
		"a long story": {prospects: []claim.Prospect{cannot("n1", strings.Repeat("long ", 1000))}, refused: "long lo...; run kubectl"},
	} {
		t.Run(name, func(t *testing.T) {
			warnings, err := response(&v1alpha1.NvmfTarget{}, c.prospects, func() bool { return !c.noWorse })
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("refused with %v, want %q", err, c.refused)
			}
			if len(warnings) != len(c.warned) {
				t.Fatalf("got %q, want %q", warnings, c.warned)
			}
			together := 0
			for i, w := range warnings {
				together += len(w)
				if !strings.Contains(w, c.warned[i]) {
					t.Errorf("got %q, want %q", w, c.warned[i])
				}
			}
			if together > 4096 {
				t.Errorf("the warnings are %d bytes; the API server cuts them at 4096", together)
			}
		})
	}
}

func TestALoweredPercentageWarnsOfWhatIsPromised(t *testing.T) {
	node := func(name, target, promised string) claim.Node {
		nn := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: target}}
		nn.Status.Pools = []v1alpha1.PoolStatus{{Device: "d", Ready: true, Total: new(resource.MustParse("10Gi")), Promised: new(resource.MustParse(promised))}}
		return claim.Node{Name: name, Nvmf: nn}
	}
	target := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Spec: v1alpha1.NvmfTargetSpec{OverProvisioningPercent: 150}}
	nodes := []claim.Node{node("n1", "fast", "16Gi"), node("n2", "fast", "15Gi"), node("n3", "slow", "30Gi"), {Name: "n4"}}
	got := overPromised(target, nodes)
	if len(got) != 1 || !strings.Contains(got[0], "in 1 pool(s): n1 (16Gi promised of pool d, 15Gi allowed)") {
		t.Errorf("got %q", got)
	}
	target.Spec.OverProvisioningPercent = 160
	if got := overPromised(target, nodes); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}
