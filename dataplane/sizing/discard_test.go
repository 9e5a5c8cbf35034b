// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// Hosts may discard where each drive of the node guarantees zeroes or is vouched for, and SPDK drives it itself. What
// is not known of a drive is no guarantee, and what was known of one that SPDK has taken stays.
func TestPlanOfDiscard(t *testing.T) {
	says := func(all v1alpha1.Deallocated, last v1alpha1.Deallocated) func(*sizing.Node) {
		return func(n *sizing.Node) {
			drives := n.Inventory.Drives
			for i := range drives {
				drives[i].Deallocated = all
			}
			drives[len(drives)-1].Deallocated = last
		}
	}
	const zeroes, undefined = v1alpha1.DeallocatedZeroes, v1alpha1.DeallocatedUndefined
	discard := func(p v1alpha1.DiscardPolicy) edit {
		return func(s *v1alpha1.NvmfTargetSpec) { s.Devices.Discard = p }
	}
	own := driver(v1alpha1.DriverVFIO)
	for name, test := range map[string]struct {
		node  func(*sizing.Node)
		edits []edit
		trust v1alpha1.DiscardTrust // of the first drive
		want  v1alpha1.Switch
		why   string
	}{
		"all guarantee it":              {says(zeroes, zeroes), []edit{own}, v1alpha1.TrustGuaranteed, v1alpha1.SwitchEnabled, "all drives guarantee zeroes"},
		"one does not":                  {says(zeroes, undefined), []edit{own}, v1alpha1.TrustGuaranteed, "", "give them to another NvmfTarget, or vouch for them"},
		"of one it is not known":        {says(zeroes, ""), []edit{own}, v1alpha1.TrustGuaranteed, "", "do not guarantee zeroes"},
		"vouched for":                   {says(undefined, ""), []edit{own, discard(v1alpha1.DiscardAssumeZeroes)}, v1alpha1.TrustVouched, v1alpha1.SwitchEnabled, "vouches for the drives"},
		"not wanted":                    {says(zeroes, zeroes), []edit{own, discard(v1alpha1.DiscardDisabled)}, "", "", "hosts cannot discard"},
		"driven by the kernel":          {says(zeroes, zeroes), nil, "", "", "with devices.driver VFIO or UIO hosts may discard"},
		"driven by the kernel, vouched": {says(zeroes, zeroes), []edit{discard(v1alpha1.DiscardAssumeZeroes)}, "", "", "with devices.driver VFIO or UIO"},
	} {
		t.Run(name, func(t *testing.T) {
			p := planned(t, bigServer(test.node), spdk(test.edits...))
			if p.SPDK.Discard != test.want || p.Drives[0].Discard != test.trust {
				t.Errorf("discard %q, of drives %+v", p.SPDK.Discard, p.Drives)
			}
			for _, c := range p.Choices {
				if c.Setting == "discard" && !strings.Contains(c.Why, test.why) {
					t.Errorf("why: %s", c.Why)
				}
			}
		})
	}
	node := bigServer(says(zeroes, zeroes))
	node.Current = planned(t, node, spdk(own))
	node.Inventory.Drives = nil // SPDK has them
	if p := planned(t, node, spdk(own)); p.SPDK.Discard != v1alpha1.SwitchEnabled {
		t.Errorf("what was known of the drives is forgotten: %+v", p.Drives)
	}
	node.Pools = []v1alpha1.PoolStatus{{Device: node.Current.Drives[0].ID, Deallocated: undefined}}
	if p := planned(t, node, spdk(own)); p.SPDK.Discard == v1alpha1.SwitchEnabled || p.Drives[0].Discard != "" {
		t.Errorf("what the target tells of a drive does not count: %+v", p.Drives)
	}
}
