// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// ZoneKey is the key of the node label whose values are the volume's zones.
func (s *NvmfVolumeSpec) ZoneKey() string { return cmp.Or(s.ZoneLabel, corev1.LabelTopologyZone) }
