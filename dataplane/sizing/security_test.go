// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"slices"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestWithSecurity(t *testing.T) {
	for name, tt := range map[string]struct {
		wish *v1alpha1.Security
		want *v1alpha1.PlannedAuthentication
	}{
		"nothing wished":   {want: &v1alpha1.PlannedAuthentication{Mode: v1alpha1.AuthenticationPreferred, DHGroup: v1alpha1.DHGroupNone}},
		"mode left out":    {wish: &v1alpha1.Security{DHGroup: v1alpha1.DHGroupFFDHE2048}, want: &v1alpha1.PlannedAuthentication{Mode: v1alpha1.AuthenticationPreferred, DHGroup: v1alpha1.DHGroupFFDHE2048}},
		"disabled":         {wish: &v1alpha1.Security{Authentication: v1alpha1.AuthenticationDisabled}},
		"required":         {wish: &v1alpha1.Security{Authentication: v1alpha1.AuthenticationRequired}, want: &v1alpha1.PlannedAuthentication{Mode: v1alpha1.AuthenticationRequired, DHGroup: v1alpha1.DHGroupNone}},
		"preferred, group": {wish: &v1alpha1.Security{Authentication: v1alpha1.AuthenticationPreferred, DHGroup: v1alpha1.DHGroupFFDHE4096}, want: &v1alpha1.PlannedAuthentication{Mode: v1alpha1.AuthenticationPreferred, DHGroup: v1alpha1.DHGroupFFDHE4096}},
	} {
		plan := withSecurity(v1alpha1.NvmfTargetSpec{Security: tt.wish}, &v1alpha1.Plan{Choices: []v1alpha1.Choice{{Setting: "a"}, {Setting: "z"}}})
		switch {
		case tt.want == nil && (plan.Authentication != nil || len(plan.Choices) != 2):
			t.Errorf("%s: planned %+v", name, plan)
		case tt.want != nil && (plan.Authentication == nil || *plan.Authentication != *tt.want):
			t.Errorf("%s: planned %+v", name, plan.Authentication)
		case tt.want != nil && (len(plan.Choices) != 4 || !slices.IsSortedFunc(plan.Choices, func(a, b v1alpha1.Choice) int { return cmp.Compare(a.Setting, b.Setting) })):
			t.Errorf("%s: explained by %+v", name, plan.Choices)
		}
		if none := withSecurity(v1alpha1.NvmfTargetSpec{Security: tt.wish}, nil); none != nil {
			t.Errorf("%s: a plan from none: %+v", name, none)
		}
	}
}
