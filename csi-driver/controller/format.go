// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// givePermission to format to a host before it is admitted, if there is one that no other host was given. It is for one
// attachment: an annotation that somebody forgot must not let a volume be formatted that lost its data later. So one
// whose host is not listed, taken off by hand say, is over.
func givePermission(vol *v1alpha1.NvmfVolume, nqn string) {
	endUnlisted(vol)
	if vol.Annotations[v1alpha1.AllowFormatAnnotation] == vol.Spec.UUID {
		vol.Annotations[v1alpha1.AllowFormatAnnotation] = vol.FormatPermission(nqn)
	}
}

// endUnlisted takes the permission from a host that is not listed.
func endUnlisted(vol *v1alpha1.NvmfVolume) {
	nqn, given := strings.CutPrefix(vol.Annotations[v1alpha1.AllowFormatAnnotation], vol.FormatPermission(""))
	if given && vol.Listed(nqn) == nil {
		delete(vol.Annotations, v1alpha1.AllowFormatAnnotation)
	}
}
