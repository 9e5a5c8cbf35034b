// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"
)

func TestAddressesDoNotOverlap(t *testing.T) {
	plan := addresses{slot: 3}
	networks := map[string]netip.Prefix{
		"cluster":    plan.controlPlane().Masked(),
		"management": plan.management().Masked(),
		"uplink":     plan.host().Masked(),
		"pods":       plan.podRange(),
	}
	for a, p := range networks {
		if !plan.all().Overlaps(p) || p.Bits() <= plan.all().Bits() {
			t.Errorf("%s network %s is not inside %s", a, p, plan.all())
		}
		for b, q := range networks {
			if a != b && p.Overlaps(q) {
				t.Errorf("%s %s overlaps with %s %s", a, p, b, q)
			}
		}
	}
	seen := map[string]bool{}
	for i := range maxNodes {
		if !plan.podRange().Overlaps(plan.pods(i)) || plan.pods(i).Masked() != plan.pods(i) {
			t.Errorf("pods of node %d, %s, are not a network inside %s", i, plan.pods(i), plan.podRange())
		}
		for _, unique := range []string{plan.node(i).String(), plan.nodeManagement(i).String(), plan.pods(i).String(), plan.mac(i, 0), plan.mac(i, 1)} {
			if seen[unique] {
				t.Errorf("%s is used twice", unique)
			}
			seen[unique] = true
		}
	}
}

func TestChooseSlotAvoidsRoutesOfTheHost(t *testing.T) {
	free, err := chooseSlot("abc", nil)
	if err != nil {
		t.Fatal(err)
	}
	used := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.PrefixFrom(addresses{free}.addr(7, 0), 24)}
	next, err := chooseSlot("abc", used)
	if err != nil {
		t.Fatal(err)
	}
	if next == free || overlapsAny(addresses{next}.all(), used) {
		t.Errorf("slot %d overlaps with %v", next, used)
	}
	if _, err := chooseSlot("abc", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("a slot was found although the host uses all of 10.0.0.0/8")
	}
}

func TestLabIDFollowsTheFolder(t *testing.T) {
	if labID("/a/.lab") == labID("/b/.lab") {
		t.Error("two folders have the same id")
	}
	l, err := at("/a/.lab")
	if err != nil {
		t.Fatal(err)
	}
	const maxInterfaceName = 15
	if name := l.hostLink(); len(name) > maxInterfaceName {
		t.Errorf("%q is too long for an interface", name)
	}
}
