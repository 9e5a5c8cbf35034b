// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// withSecurity adds how hosts prove themselves to the plan of either engine; nil stays nil. Whether a node's engine can
// is not known before it runs, and which hosts can only when they attach a volume: that is where it is refused.
func withSecurity(spec v1alpha1.NvmfTargetSpec, plan *v1alpha1.Plan) *v1alpha1.Plan {
	wish := spec.Security
	if plan == nil || wish == nil || cmp.Or(wish.Authentication, v1alpha1.AuthenticationDisabled) == v1alpha1.AuthenticationDisabled {
		return plan
	}
	group := cmp.Or(wish.DHGroup, v1alpha1.DHGroupNone)
	plan.Authentication = &v1alpha1.PlannedAuthentication{Mode: wish.Authentication, DHGroup: group}
	why := explanation{choices: plan.Choices}
	why.given("authentication.mode", string(wish.Authentication), "security.authentication of the target")
	if group == v1alpha1.DHGroupNone {
		why.byDefault("authentication.dhGroup", string(group), "keys are random and as long as their hash, so that an exchange makes them no safer")
	} else {
		why.given("authentication.dhGroup", string(group), "security.dhGroup of the target", "each connection takes longer")
	}
	why.sort()
	plan.Choices = why.choices
	return plan
}
