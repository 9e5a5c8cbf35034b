// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// permissionSeparator stands in AllowFormatAnnotation between the volume's UUID, which an administrator wrote, and the
// NQN of the host that the permission was given to.
const permissionSeparator = " "

// givePermission to format to a host before it is admitted, if there is one that no other host was given. It is for one
// attachment: an annotation that somebody forgot must not let a volume be formatted that lost its data later. So one
// whose host is not listed, taken off by hand say, is over.
func givePermission(vol *v1alpha1.NvmfVolume, nqn string) {
	endPermission(vol, func(given string) bool {
		return !slices.ContainsFunc(vol.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return h.NQN == given })
	})
	if vol.Annotations[v1alpha1.AllowFormatAnnotation] == vol.Spec.UUID {
		vol.Annotations[v1alpha1.AllowFormatAnnotation] += permissionSeparator + nqn
	}
}

// mayFormat tells whether a host was given the permission.
func mayFormat(vol *v1alpha1.NvmfVolume, nqn string) bool {
	return vol.Annotations[v1alpha1.AllowFormatAnnotation] == vol.Spec.UUID+permissionSeparator+nqn
}

// endPermission of the hosts that match.
func endPermission(vol *v1alpha1.NvmfVolume, matches func(nqn string) bool) {
	if _, nqn, given := strings.Cut(vol.Annotations[v1alpha1.AllowFormatAnnotation], permissionSeparator); given && matches(nqn) {
		delete(vol.Annotations, v1alpha1.AllowFormatAnnotation)
	}
}
