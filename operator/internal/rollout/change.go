// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// change is what is to be done at a node that disturbs its I/O.
type change struct {
	// restart: the target pod that serves is to be replaced.
	restart bool
	// links: settings of NICs are to be written, and a driver may reset its link for a moment.
	links bool
}

func (c change) any() bool { return c.restart || c.links }

// changeOf a node, from what it has to what its target wants of it.
//
// Everything else is made at once, because nothing waits for it: portals are closed, and opened with other settings,
// only while no host is admitted to the node; the kernel's modules are loaded again only while no RDMA port is
// open; the scheduler, balancing and sysctls are followed by what runs.
func changeOf(n *Node) change {
	if n.prepared != nil {
		return *n.prepared
	}
	return change{
		restart: n.Serves && n.WantedHash != "" && n.PodHash != n.WantedHash,
		links:   ResetsLinks(planOf(n.Nvmf.Spec, n.Desired.Target), n.Desired.Plan),
	}
}

// ResetsLinks says whether a node that goes from one plan to another, of which either may be nil, gets settings of NICs
// that may reset their links.
func ResetsLinks(has, wants *v1alpha1.Plan) bool {
	return !equality.Semantic.DeepEqual(linkSettings(has), linkSettings(wants))
}

// planOf the node, as far as it is of this target.
func planOf(spec v1alpha1.NvmfNodeSpec, target string) *v1alpha1.Plan {
	if spec.Target != target {
		return nil
	}
	return spec.Plan
}

// mayResetLink: a driver may answer a change of any setting of a NIC with a reset; whether it does is its own. Only who
// takes the NIC's interrupts is no matter of the driver.
func mayResetLink(setting string) bool {
	_, of, ok := strings.Cut(setting, "/")
	return ok && of != "interrupts"
}

// nicOf a setting of a NIC.
func nicOf(setting string) string {
	nic, _, _ := strings.Cut(setting, "/")
	return nic
}

// linkSettings of a plan, which may be nil.
func linkSettings(plan *v1alpha1.Plan) []v1alpha1.PlannedSetting {
	var settings []v1alpha1.PlannedSetting
	if plan != nil {
		for _, s := range plan.Tuning {
			if mayResetLink(s.Setting) {
				settings = append(settings, s)
			}
		}
	}
	return settings
}

// Release returns the spec that the node may have: what its target wants, in its turn; else what disturbs I/O stays as
// it is. gated says whether the spec differs from that of now in a way that needs a turn.
func Release(n Node, strategy v1alpha1.UpdateStrategy, turn bool) (spec v1alpha1.NvmfNodeSpec, gated bool) {
	spec = *n.Desired.DeepCopy()
	has := planOf(n.Nvmf.Spec, n.Desired.Target)
	c := changeOf(&n)
	// With OnDelete the plan is there when somebody deletes the pod.
	restart := c.restart && n.PlannedHash != n.WantedHash && strategy.Type == v1alpha1.UpdateRollingUpdate && has != nil
	if turn || spec.Plan == nil || !restart && !c.links {
		return spec, turn && (restart || c.links)
	}
	wants := spec.Plan
	if restart {
		spec.Plan = held(has, wants)
	}
	if c.links {
		spec.Plan.Tuning = append(linkSettings(has), otherSettings(wants)...)
		slices.SortFunc(spec.Plan.Tuning, func(a, b v1alpha1.PlannedSetting) int { return strings.Compare(a.Setting, b.Setting) })
		if !restart {
			spec.Plan.Choices = heldChoices(has, wants)
		}
	}
	return spec, false
}

// held is the plan that a target pod was started with, and what of another plan needs no restart. What
// a plan may get in later versions is held until somebody has thought about it.
func held(has, wants *v1alpha1.Plan) *v1alpha1.Plan {
	plan := has.DeepCopy()
	plan.OverProvisioningPercent = wants.OverProvisioningPercent
	plan.Tuning = wants.DeepCopy().Tuning
	plan.Authentication = wants.DeepCopy().Authentication // of connections to come; its group waits for a restart by itself
	for i := range plan.Drives {                          // where new volumes go, which a target need not know
		of := func(w v1alpha1.PlannedDrive) bool { return w.ID == plan.Drives[i].ID }
		if at := slices.IndexFunc(wants.Drives, of); at >= 0 {
			plan.Drives[i].DeviceClass = wants.Drives[at].DeviceClass
		}
	}
	if has.SPDK != nil && wants.SPDK != nil && has.SPDK.Mode == wants.SPDK.Mode {
		plan.SPDK.Balance = wants.SPDK.Balance
		plan.SPDK.Scheduler = wants.SPDK.Scheduler.DeepCopy()
	}
	return plan
}

// linkChoices start the names of choices that are about settings of NICs.
var linkChoices = []string{"tuning.rings.", "tuning.channels.", "tuning.coalescing.", "tuning.offloads."}

// heldChoices explain the NICs' settings that the node has, and all else that the other plan wants.
func heldChoices(has, wants *v1alpha1.Plan) []v1alpha1.Choice {
	ofLink := func(c v1alpha1.Choice) bool {
		return slices.ContainsFunc(linkChoices, func(prefix string) bool { return strings.HasPrefix(c.Setting, prefix) })
	}
	choices := slices.DeleteFunc(slices.Clone(wants.Choices), ofLink)
	if has != nil {
		for _, c := range has.Choices {
			if ofLink(c) {
				choices = append(choices, c)
			}
		}
	}
	slices.SortFunc(choices, func(a, b v1alpha1.Choice) int { return strings.Compare(a.Setting, b.Setting) })
	return choices
}

func otherSettings(plan *v1alpha1.Plan) []v1alpha1.PlannedSetting {
	return slices.DeleteFunc(slices.Clone(plan.Tuning), func(s v1alpha1.PlannedSetting) bool { return mayResetLink(s.Setting) })
}
