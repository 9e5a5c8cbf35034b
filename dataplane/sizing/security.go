// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// withSecurity adds how hosts prove themselves to the plan of either engine; nil stays nil. Whether a node's engine can
// is not known before it runs, and which hosts can only when they attach a volume: that is where it is refused.
func withSecurity(spec v1alpha1.NvmfTargetSpec, plan *v1alpha1.Plan) *v1alpha1.Plan {
	mode := spec.Authentication()
	if plan == nil || mode == v1alpha1.AuthenticationDisabled {
		return plan
	}
	group := v1alpha1.DHGroupNone
	if spec.Security != nil {
		group = cmp.Or(spec.Security.DHGroup, group)
	}
	plan.Authentication = &v1alpha1.PlannedAuthentication{Mode: mode, DHGroup: group}
	why := explanation{choices: plan.Choices}
	if spec.Security == nil {
		why.byDefault("authentication.mode", string(mode), "hosts are authenticated where both nodes can, and attached without where one cannot")
	} else {
		why.given("authentication.mode", string(mode), "security.authentication of the target")
	}
	if group == v1alpha1.DHGroupNone {
		why.byDefault("authentication.dhGroup", string(group), "keys are random and as long as their hash, so that an exchange makes them no safer")
	} else {
		why.given("authentication.dhGroup", string(group), "security.dhGroup of the target", "each connection takes longer")
	}
	why.sort()
	plan.Choices = why.choices
	return plan
}
