// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// minExt4Bytes of a filesystem: mke2fs leaves the journal out of very small ones, and below 16 MiB what remains for
// data is no longer worth it.
const minExt4Bytes = 16 << 20

// checkCapabilities returns the smallest size that a volume used in all these ways can have, with the
// reason, or why it cannot be used so. paramFSType is the StorageClass's, empty when the provisioner has taken it out.
func checkCapabilities(caps []*csi.VolumeCapability, paramFSType string) (minBytes int64, why string, err error) {
	if len(caps) == 0 {
		return 0, "", failf(invalid, "volume_capabilities is required")
	}
	minBytes, why = sizeStep, "volume sizes are multiples of 4Mi"
	for _, c := range caps {
		if _, err := access(c); err != nil {
			return 0, "", err
		}
		least, what, err := checkAccessType(c, paramFSType)
		if err != nil {
			return 0, "", err
		}
		if least > minBytes {
			minBytes, why = least, what
		}
	}
	return minBytes, why, nil
}

// access that a way of use asks for, or why it cannot be had.
func access(c *csi.VolumeCapability) (v1alpha1.HostAccess, error) {
	const use = "use ReadWriteOnce, or ReadWriteOncePod (CSI: SINGLE_NODE_WRITER, SINGLE_NODE_MULTI_WRITER, SINGLE_NODE_SINGLE_WRITER)"
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return v1alpha1.AccessExclusive, nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return v1alpha1.AccessSharedRead, nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if c.GetBlock() != nil {
			return v1alpha1.AccessSharedWrite, nil
		}
		return "", failf(invalid, "access mode %s (ReadWriteMany) is supported only with volumeMode: Block, because ext4 and xfs are corrupted if two nodes write to them; %s", mode, use)
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return "", failf(invalid, "a volume capability has no access mode; %s", use)
	default:
		return "", failf(invalid, "access mode %s is not supported; %s, and mount the volume read-only in the pod if required", mode, use)
	}
}

// needsData says that a volume used in all these ways is never written, so that without a source it would stay empty.
func needsData(caps []*csi.VolumeCapability) bool {
	return !slices.ContainsFunc(caps, func(c *csi.VolumeCapability) bool {
		return c.GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	})
}

func checkAccessType(c *csi.VolumeCapability, paramFSType string) (minBytes int64, why string, err error) {
	if c.GetBlock() != nil {
		return sizeStep, "volume sizes are multiples of 4Mi", nil
	}
	if c.GetMount() == nil {
		return 0, "", failf(invalid, "a volume capability is neither block nor mount")
	}
	fsType := c.GetMount().GetFsType()
	if paramFSType != "" && paramFSType != fsType {
		return 0, "", failf(invalid, "%s is %s, but fs_type of the volume capability is %q; they must be equal", parameters.FSType, paramFSType, fsType)
	}
	if fsType == "" {
		fsType = parameters.Ext4
	}
	if err := parameters.CheckFSType(fsType); err != nil {
		return 0, "", failf(invalid, "%s", err)
	}
	if err := publishcontext.CheckMountOptions(c.GetMount().GetMountFlags()); err != nil {
		return 0, "", failf(invalid, "%s", err)
	}
	if fsType == parameters.XFS {
		return v1alpha1.MinXFSBytes, "xfs requires at least 300Mi; request more, or use ext4", nil
	}
	return minExt4Bytes, fmt.Sprintf("%s requires at least 16Mi", fsType), nil
}
