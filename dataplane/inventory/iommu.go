// SPDX-License-Identifier: Apache-2.0

package inventory

import "github.com/weft-storage/weft/api/v1alpha1"

// IOMMU says what lies between a PCI function and the memory of the machine whose filesystem is at root; "" when that
// is not told. device is the function's folder in sysfs, which must be there, relative to root.
func IOMMU(root, device string) (v1alpha1.IOMMU, error) {
	t := tree{root: root}
	behind, err := t.exists(device, "iommu_group")
	if err != nil {
		return "", err
	}
	if !behind {
		return v1alpha1.IOMMUNone, nil
	}
	// vfio makes a group of this name when it is told to do without.
	name, err := t.readIfSaid(device, "iommu_group/name")
	if err != nil || name == "vfio-noiommu" {
		return v1alpha1.IOMMUNone, err
	}
	kind, err := t.readIfSaid(device, "iommu_group/type")
	switch kind {
	case "DMA", "DMA-FQ":
		return v1alpha1.IOMMUTranslated, err
	case "identity":
		return v1alpha1.IOMMUPassThrough, err
	}
	return "", err
}
