// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// FuzzPlan holds Plan to what its comment promises, on any input: it answers
// with a plan or with reasons, never both; the same whatever the order of the
// inventory; it leaves its input alone; and a plan of it keeps every drive it
// had, and takes no new one that is not blank or ours.
func FuzzPlan(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, seed*7919, "10.0.0.0/8", "nvme-*", "S*")
	}
	f.Add(uint64(1), uint64(2), "", "**", "")
	f.Add(uint64(3), uint64(4), "::/0", "*a*b*", "\xff")
	f.Fuzz(func(t *testing.T, a, b uint64, network, byID, model string) {
		node, s := randomInput(rand.New(rand.NewPCG(a, b)), network, byID, model)
		beforeNode, beforeSpec := node.Inventory.DeepCopy(), s.DeepCopy()
		plan, reasons := sizing.Plan(node, s)
		if (plan == nil) == (len(reasons) == 0) {
			t.Fatalf("plan %v with reasons %v", plan, reasons)
		}
		for _, r := range reasons {
			if r.Reason == "" || r.Message == "" {
				t.Errorf("a reason is empty: %+v", r)
			}
		}
		if diff := cmp.Diff(beforeNode, node.Inventory); diff != "" {
			t.Errorf("the inventory was changed:\n%s", diff)
		}
		if diff := cmp.Diff(beforeSpec, &s); diff != "" {
			t.Errorf("the spec was changed:\n%s", diff)
		}
		if plan != nil {
			checkPlan(t, node, plan)
		}

		shuffle(rand.New(rand.NewPCG(b, a)), node.Inventory)
		again, why := sizing.Plan(node, s)
		if diff := cmp.Diff(plan, again); diff != "" {
			t.Errorf("another order of the inventory gives another plan:\n%s", diff)
		}
		if diff := cmp.Diff(reasons, why); diff != "" {
			t.Errorf("another order of the inventory gives other reasons:\n%s", diff)
		}
	})
}

func checkPlan(t *testing.T, node sizing.Node, plan *v1alpha1.Plan) {
	t.Helper()
	if (plan.File == nil) == (len(plan.Drives) == 0) {
		t.Errorf("the pool is not exactly one of file and drives: %v", plan)
	}
	had := map[string]bool{}
	if node.Current != nil {
		for _, d := range node.Current.Drives {
			had[d.ID] = true
			if !slices.ContainsFunc(plan.Drives, func(p v1alpha1.PlannedDrive) bool { return p.ID == d.ID }) {
				t.Errorf("drive %s was dropped", d.ID)
			}
		}
	}
	for _, d := range plan.Drives {
		if had[d.ID] {
			continue
		}
		i := slices.IndexFunc(node.Inventory.Drives, func(have v1alpha1.Drive) bool { return have.ID == d.ID })
		if c := node.Inventory.Drives[i].Content; c != v1alpha1.ContentBlank && c != v1alpha1.ContentWeft {
			t.Errorf("drive %s was taken though its content is %s", d.ID, c)
		}
	}
	seen := map[v1alpha1.Portal]bool{}
	for _, p := range plan.Portals {
		if _, err := netip.ParseAddr(p.Address); err != nil {
			t.Errorf("portal %v: %v", p, err)
		}
		if seen[p.Portal] {
			t.Errorf("portal %v is there twice", p)
		}
		seen[p.Portal] = true
	}
}

func pick[T any](r *rand.Rand, items ...T) T { return items[r.IntN(len(items))] }

func randomInput(r *rand.Rand, network, byID, model string) (sizing.Node, v1alpha1.NvmfTargetSpec) {
	node := sizing.Node{Name: "n", InternalIPs: pick(r, nil, []string{"10.0.0.1"}, []string{"", "fd00::1", "10.0.0.1"})}
	if r.IntN(16) > 0 {
		node.Inventory = randomInventory(r, model)
	}
	if r.IntN(3) == 0 {
		node.Current = &v1alpha1.Plan{Engine: pick(r, v1alpha1.EngineNvmet, v1alpha1.EngineNvmet, v1alpha1.EngineSPDK)}
		for range r.IntN(3) {
			node.Current.Drives = append(node.Current.Drives, v1alpha1.PlannedDrive{ID: pick(r, "a", "b", "gone")})
		}
		if r.IntN(4) == 0 {
			node.Current.File = &v1alpha1.DeviceFile{Path: "/var/lib/weft/p"}
		}
	}
	s := v1alpha1.NvmfTargetSpec{Engine: pick(r, v1alpha1.EngineNvmet, v1alpha1.EngineNvmet, v1alpha1.EngineNvmet, v1alpha1.EngineSPDK, "")}
	for range r.IntN(4) {
		t := v1alpha1.Transport{Type: pick(r, v1alpha1.TransportTCP, v1alpha1.TransportRDMA, ""), Port: r.Int32N(3)}
		t.Network = pick(r, nil, nil, &v1alpha1.Network{CIDR: network}, &v1alpha1.Network{Interface: pick(r, "e0", "e1", network)})
		if r.IntN(2) == 0 {
			t.InCapsuleDataSize = resource.NewQuantity(r.Int64(), resource.BinarySI)
		}
		s.Transports = append(s.Transports, t)
	}
	if r.IntN(3) > 0 {
		s.Devices.Selector = &v1alpha1.DeviceSelector{MinSize: pick(r, nil, resource.NewQuantity(r.Int64(), resource.BinarySI))}
		if r.IntN(2) == 0 {
			s.Devices.Selector.ByID = []string{byID}
		}
		if r.IntN(2) == 0 {
			s.Devices.Selector.Models = []string{model, byID}
		}
	}
	if r.IntN(3) == 0 {
		s.Devices.Paths = []string{"/dev/disk/by-id/" + byID, "/dev/disk/by-id/nvme-a", model}
	}
	if r.IntN(4) == 0 {
		s.Devices.File = &v1alpha1.DeviceFile{Path: pick(r, "/var/lib/weft/p", "/var/lib/weft/q"), Size: *resource.NewQuantity(r.Int64(), resource.BinarySI)}
	}
	return node, s
}

func randomInventory(r *rand.Rand, model string) *v1alpha1.Inventory {
	inv := &v1alpha1.Inventory{}
	for _, m := range []string{"nvmet", "nvmet_tcp", "nvmet_rdma", "xfs", "loop"} {
		if r.IntN(8) > 0 {
			inv.Modules = append(inv.Modules, m)
		}
	}
	for _, name := range []string{"e0", "e1", "e0.1"} {
		if r.IntN(4) > 0 {
			inv.NICs = append(inv.NICs, v1alpha1.NIC{Name: name, Up: r.IntN(2) == 0,
				Addresses: pick(r, nil, []string{"10.0.0.1/8"}, []string{"10.0.1.1/8", "fd00::1/64"}, []string{"nonsense"}),
				// A loop of interfaces cannot be; the walk must end all the same.
				Lower: pick(r, nil, []string{"e0"}, []string{"e0.1", "e1"}, []string{name})})
		}
	}
	for _, name := range []string{"mlx5_0", "rxe0"} {
		if r.IntN(2) == 0 {
			inv.RDMADevices = append(inv.RDMADevices, v1alpha1.RDMADevice{Name: name, Netdev: pick(r, "", "e0", "e1"), Active: r.IntN(2) == 0})
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if r.IntN(3) > 0 {
			inv.Drives = append(inv.Drives, v1alpha1.Drive{ID: id, Name: "nvme" + id, NVMe: r.IntN(4) > 0, Model: pick(r, model, "SAMSUNG"), Serial: pick(r, "", "S"+id),
				ByID: pick(r, nil, []string{"nvme-" + id, "nvme-x"}), SizeBytes: r.Int64N(1 << 41),
				Content: pick(r, v1alpha1.ContentBlank, v1alpha1.ContentWeft, v1alpha1.ContentForeign, v1alpha1.ContentUnknown, "")})
		}
	}
	return inv
}

func shuffle(r *rand.Rand, inv *v1alpha1.Inventory) {
	if inv == nil {
		return
	}
	r.Shuffle(len(inv.Modules), func(i, j int) { inv.Modules[i], inv.Modules[j] = inv.Modules[j], inv.Modules[i] })
	r.Shuffle(len(inv.NICs), func(i, j int) { inv.NICs[i], inv.NICs[j] = inv.NICs[j], inv.NICs[i] })
	r.Shuffle(len(inv.RDMADevices), func(i, j int) {
		inv.RDMADevices[i], inv.RDMADevices[j] = inv.RDMADevices[j], inv.RDMADevices[i]
	})
	r.Shuffle(len(inv.Drives), func(i, j int) { inv.Drives[i], inv.Drives[j] = inv.Drives[j], inv.Drives[i] })
}
