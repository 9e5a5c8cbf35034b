// SPDX-License-Identifier: Apache-2.0

package claim_test

import (
	"slices"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

func TestProspects(t *testing.T) {
	young := target("young", "a")
	created := func(t v1alpha1.NvmfTarget) v1alpha1.NvmfTarget { // as a user writes it, before the API server has it
		t.CreationTimestamp.Reset()
		t.Finalizers = nil
		return t
	}
	tests := map[string]struct {
		target  v1alpha1.NvmfTarget
		others  []v1alpha1.NvmfTarget
		node    claim.Node
		verdict claim.Verdict
		matches bool
		reasons []string
		plan    bool
	}{
		"fits": {
			target: created(young), node: node("n1", "a"), verdict: claim.Fits, matches: true, plan: true},
		"fits, but is not chosen": {
			target: created(young), node: node("n1", "b"), verdict: claim.Fits, plan: true},
		"a module is missing": {
			target: created(young), node: node("n1", "a", modules("loop", "nvmet", "xfs")),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonModuleMissing}},
		"all reasons are told": {
			target: created(young), node: node("n1", "a", modules("nvmet")),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonModuleMissing, v1alpha1.ReasonModuleMissing, v1alpha1.ReasonModuleMissing}},
		"no agent yet": {
			target: created(young), node: node("n1", "a", noAgent),
			verdict: claim.Unknown, matches: true, reasons: []string{v1alpha1.ReasonNoInventory}},
		"no inventory yet": {
			target: created(young), node: node("n1", "a", noInventory),
			verdict: claim.Unknown, matches: true, reasons: []string{v1alpha1.ReasonNoInventory}},
		"another target has the node": {
			target: created(young), others: []v1alpha1.NvmfTarget{target("old", "a")}, node: node("n1", "a", claimedBy("old")),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonClaimedByAnother}, plan: true},
		"another target is about to have it": {
			target: created(young), others: []v1alpha1.NvmfTarget{target("old", "a", unfinalized)}, node: node("n1", "a"),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonClaimedByAnother}, plan: true},
		"another target is letting it go": {
			target: created(young), others: []v1alpha1.NvmfTarget{target("old", "a", deleting)}, node: node("n1", "a", claimedBy("old"), replicas("old", 1)),
			verdict: claim.Unknown, matches: true, reasons: []string{v1alpha1.ReasonClaimedByAnother}, plan: true},
		"data of a target that is gone": {
			target: created(young), node: node("n1", "a", claimedBy("old"), replicas("old", 1)),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonClaimedByAnother}, plan: true},
		"a change that fits": {
			target: created(target("fast", "a", func(t *v1alpha1.NvmfTarget) { t.Spec.Transports[0].Port = 4444 })),
			others: []v1alpha1.NvmfTarget{target("fast", "a"), target("old", "a", age(1))}, node: node("n1", "a", claimedBy("fast")),
			verdict: claim.Fits, matches: true, plan: true},
		"a change that does not": {
			target: created(target("fast", "a", overRDMA)),
			others: []v1alpha1.NvmfTarget{target("fast", "a")}, node: node("n1", "a", claimedBy("fast")),
			verdict: claim.CannotHold, matches: true, reasons: []string{v1alpha1.ReasonModuleMissing, v1alpha1.ReasonNoRDMADevice}},
		"a selector that cannot be read": {
			target: created(target("fast", "a", badSelector)), node: node("n1", "a"), verdict: claim.Fits, plan: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := claim.Prospects(&tt.target, tt.others, []claim.Node{tt.node})
			if len(got) != 1 || got[0].Node != "n1" {
				t.Fatalf("got %+v, want one of node n1", got)
			}
			var reasons []string
			for _, r := range got[0].Reasons {
				reasons = append(reasons, r.Reason)
			}
			if got[0].Verdict != tt.verdict || got[0].Matches != tt.matches || (got[0].Plan != nil) != tt.plan || !slices.Equal(reasons, tt.reasons) {
				t.Errorf("got %s, matches %v, plan %v, reasons %q; want %s, %v, %v, %q",
					got[0].Verdict, got[0].Matches, got[0].Plan != nil, reasons, tt.verdict, tt.matches, tt.plan, tt.reasons)
			}
			agrees(t, tt.target, tt.others, tt.node, got[0])
		})
	}
}

func TestWorse(t *testing.T) {
	const fits, cannot, unknown = claim.Fits, claim.CannotHold, claim.Unknown
	matching := func(v claim.Verdict) claim.Prospect { return claim.Prospect{Matches: true, Verdict: v} }
	serving := func(v claim.Verdict) claim.Prospect {
		return claim.Prospect{Matches: true, Serves: true, Verdict: v}
	}
	// kept: it serves, and the selector does not choose it.
	kept := func(v claim.Verdict) claim.Prospect { return claim.Prospect{Serves: true, Verdict: v} }
	other := func(v claim.Verdict) claim.Prospect { return claim.Prospect{Verdict: v} }
	type prospects = []claim.Prospect
	for name, c := range map[string]struct {
		before, after prospects
		worse         bool
	}{
		"the only one that could cannot any more":                 {prospects{matching(fits)}, prospects{matching(cannot)}, true},
		"the one that serves cannot any more":                     {prospects{serving(fits), matching(cannot)}, prospects{serving(cannot), matching(cannot)}, true},
		"one still can":                                           {prospects{serving(fits), matching(fits)}, prospects{serving(cannot), matching(fits)}, false},
		"one may still":                                           {prospects{serving(fits), matching(unknown)}, prospects{serving(cannot), matching(unknown)}, false},
		"none could serve it before":                              {prospects{serving(cannot), matching(cannot)}, prospects{serving(cannot), matching(cannot)}, false},
		"one that was not known might have":                       {prospects{matching(unknown), other(cannot)}, prospects{other(unknown), matching(cannot)}, true},
		"another node, which cannot, instead of the one that can": {prospects{serving(fits), other(cannot)}, prospects{kept(fits), matching(cannot)}, true},
		"another node, which cannot, instead of none":             {prospects{other(cannot)}, prospects{matching(cannot)}, false},
		"kept all along, and can still":                           {prospects{kept(fits), matching(cannot)}, prospects{kept(fits), matching(cannot)}, false},
		"kept all along, and cannot any more":                     {prospects{kept(fits), matching(cannot)}, prospects{kept(cannot), matching(cannot)}, true},
		"one that it has nothing to do with could":                {prospects{matching(cannot), other(fits)}, prospects{matching(cannot), other(fits)}, false},
	} {
		if got := claim.Worse(c.before, c.after); got != c.worse {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestProspectsTellWhoServes(t *testing.T) {
	fast := target("fast", "a")
	for name, c := range map[string]struct {
		node claim.Node
		want bool
	}{
		"it does":               {node("n1", "a", claimedBy("fast")), true},
		"it is no longer meant": {node("n1", "b", claimedBy("fast")), true},
		"it does not yet":       {node("n1", "a"), false},
		"it serves another":     {node("n1", "a", claimedBy("old")), false},
		"it has no agent":       {node("n1", "a", noAgent), false},
	} {
		if got := claim.Prospects(&fast, []v1alpha1.NvmfTarget{fast}, []claim.Node{c.node}); got[0].Serves != c.want {
			t.Errorf("%s: got %v", name, got[0].Serves)
		}
	}
}

// agrees: what Prospects foretells is what Decide does once the targets have their finalizers.
func agrees(t *testing.T, proposed v1alpha1.NvmfTarget, others []v1alpha1.NvmfTarget, node claim.Node, got claim.Prospect) {
	t.Helper()
	proposed.CreationTimestamp.Time = epoch.Add(1)
	targets := slices.DeleteFunc(slices.Clone(others), func(o v1alpha1.NvmfTarget) bool { return o.Name == proposed.Name })
	targets = append(targets, proposed)
	for i := range targets {
		targets[i].Finalizers = []string{v1alpha1.TargetFinalizer}
	}
	decided := claim.Decide(targets, []claim.Node{node}).Targets[proposed.Name]
	if capable := len(decided.Capable) == 1; capable != (got.Verdict == claim.Fits && got.Matches) {
		t.Errorf("Decide: capable %v; Prospects: %s", capable, got.Verdict)
	}
	if len(decided.NotCapable) == 1 && decided.NotCapable[0].Reason != got.Reasons[0].Reason {
		t.Errorf("Decide: %s; Prospects: %s", decided.NotCapable[0].Reason, got.Reasons[0].Reason)
	}
}
