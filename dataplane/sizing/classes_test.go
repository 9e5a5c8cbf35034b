// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

func classes(c ...v1alpha1.DeviceClass) func(*v1alpha1.NvmfTargetSpec) {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Devices = v1alpha1.Devices{Classes: c} }
}

func byModel(name string, models ...string) v1alpha1.DeviceClass {
	return v1alpha1.DeviceClass{Name: name, Selector: &v1alpha1.DeviceSelector{Models: models}}
}

func byPath(name string, paths ...string) v1alpha1.DeviceClass {
	return v1alpha1.DeviceClass{Name: name, Paths: paths}
}

// twoKinds is server with a blank drive of another model.
func twoKinds(n *sizing.Node) {
	n.Inventory.Drives = append(n.Inventory.Drives,
		v1alpha1.Drive{ID: "eui.q", Name: "nvme9n1", NVMe: true, Model: "SOLIDIGM D5", SizeBytes: 15360 * gib, Content: v1alpha1.ContentBlank, ByID: []string{"nvme-SOLIDIGM_D5_Q"}})
}

func TestPlanNamesClasses(t *testing.T) {
	tlc, qlc := byModel("tlc", "SAMSUNG*"), byModel("qlc", "SOLIDIGM*")
	for name, test := range map[string]struct {
		edit    func(*v1alpha1.NvmfTargetSpec)
		current []v1alpha1.PlannedDrive
		// want has the class of each drive.
		want map[string]string
	}{
		"one of each":                             {classes(tlc, qlc), nil, map[string]string{"eui.a": "tlc", "eui.b": "tlc", "eui.q": "qlc"}},
		"a class that this node lacks":            {classes(tlc, byModel("slc", "MICRON*")), nil, map[string]string{"eui.a": "tlc", "eui.b": "tlc"}},
		"the first of several that match":         {classes(byPath("journal", "/dev/disk/by-id/nvme-eui.b"), tlc, byModel("rest", "*")), nil, map[string]string{"eui.a": "tlc", "eui.b": "journal", "eui.q": "rest"}},
		"the other order":                         {classes(byModel("rest", "*"), tlc), nil, map[string]string{"eui.a": "rest", "eui.b": "rest", "eui.q": "rest"}},
		"a drive for which there is no class any": {classes(qlc), []v1alpha1.PlannedDrive{{ID: "eui.a", DeviceClass: "tlc"}}, map[string]string{"eui.a": "", "eui.q": "qlc"}},
		"classes of a target that had none":       {classes(tlc, qlc), []v1alpha1.PlannedDrive{{ID: "eui.a"}}, map[string]string{"eui.a": "tlc", "eui.b": "tlc", "eui.q": "qlc"}},
		"no classes of a target that had some":    {selector(v1alpha1.DeviceSelector{Models: []string{"SAMSUNG*"}}), []v1alpha1.PlannedDrive{{ID: "eui.a", DeviceClass: "tlc"}, {ID: "eui.gone", DeviceClass: "tlc"}}, map[string]string{"eui.a": "", "eui.b": "", "eui.gone": ""}},
		"another class for a drive":               {classes(byModel("new", "SAMSUNG*")), []v1alpha1.PlannedDrive{{ID: "eui.a", DeviceClass: "tlc"}}, map[string]string{"eui.a": "new", "eui.b": "new"}},
		"what the inventory does not show":        {classes(tlc, qlc), []v1alpha1.PlannedDrive{{ID: "eui.gone", DeviceClass: "qlc"}, {ID: "eui.late"}}, map[string]string{"eui.a": "tlc", "eui.b": "tlc", "eui.q": "qlc", "eui.gone": "qlc", "eui.late": ""}},
		"a class that is gone, of what is":        {classes(tlc), []v1alpha1.PlannedDrive{{ID: "eui.gone", DeviceClass: "qlc"}}, map[string]string{"eui.a": "tlc", "eui.b": "tlc", "eui.gone": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			node := server()
			twoKinds(&node)
			if test.current != nil {
				node.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Drives: test.current}
			}
			plan, reasons := sizing.Plan(node, spec(test.edit))
			if plan == nil {
				t.Fatalf("no plan: %v", reasons)
			}
			got := map[string]string{}
			for _, d := range plan.Drives {
				got[d.ID] = d.DeviceClass
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("classes (-want +got):\n%s", diff)
			}
			// A plan that is followed is the one that would be made again.
			node.Current = plan
			again, _ := sizing.Plan(node, spec(test.edit))
			if diff := cmp.Diff(plan.Drives, again.Drives); diff != "" {
				t.Errorf("planned again (-first +second):\n%s", diff)
			}
		})
	}
}

func TestPlanOfClassesSaysWhyNot(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*v1alpha1.NvmfTargetSpec)
		want []refusal
	}{
		"no drive of any class": {
			classes(byModel("tlc", "KIOXIA*"), byModel("qlc", "INTEL*"), byPath("slc", "/dev/disk/by-id/nvme-none")),
			[]refusal{
				{v1alpha1.ReasonNoDevice, []string{"devices.classes[tlc].selector matches none of the node's NVMe drives"}},
				{v1alpha1.ReasonForeignSignature, []string{"no drive that devices.classes[qlc].selector matches can be used", "ext4 filesystem"}},
				{v1alpha1.ReasonNoDevice, []string{"the node has none of devices.classes[slc].paths (/dev/disk/by-id/nvme-none)"}},
			},
		},
		"a path of a foreign drive": {
			classes(byModel("tlc", "SAMSUNG*"), byPath("qlc", "/dev/disk/by-id/nvme-INTEL_P4510_I1")),
			[]refusal{{v1alpha1.ReasonForeignSignature, []string{"devices.classes[qlc].paths contains /dev/disk/by-id/nvme-INTEL_P4510_I1, but", "ext4 filesystem"}}},
		},
	} {
		t.Run(name, func(t *testing.T) { expectReasons(t, nil, test.edit, test.want) })
	}
	// What a selector of an earlier class matches and cannot be used does not fall to a later one, which names it.
	node := server()
	if plan, reasons := sizing.Plan(node, spec(classes(byModel("all", "*"), byPath("qlc", "/dev/disk/by-id/nvme-INTEL_P4510_I1")))); plan == nil {
		t.Errorf("no plan: %v", reasons)
	}
}
