// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
)

func (s *Service) validateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	caps := req.GetVolumeCapabilities()
	if len(caps) == 0 {
		return nil, failf(invalid, "volume_capability is required")
	}
	vol, err := s.volume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	no := func(why string) *csi.ValidateVolumeCapabilitiesResponse {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}
	}
	var params parameters.Parameters
	if len(req.GetParameters()) > 0 {
		if params, err = parameters.Parse(req.GetParameters()); err != nil {
			return no(err.Error()), nil
		}
		if d := params.Differences(vol.Spec); len(d) > 0 {
			return no(d[0]), nil
		}
	}
	minBytes, why, err := checkCapabilities(caps, params.FSType)
	if err != nil {
		return no(err.Error()), nil
	}
	if vol.Spec.Encryption != "" && slices.ContainsFunc(caps, sharedWrite) {
		return no(errSharedEncrypted(vol.Name).Error()), nil
	}
	if capacity(vol) < minBytes {
		return no(why), nil
	}
	if err := checkContext(vol, req.GetVolumeContext()); err != nil {
		return no(err.Error()), nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: maps.Clone(req.GetVolumeContext()), VolumeCapabilities: caps, Parameters: maps.Clone(req.GetParameters()),
	}}, nil
}

// checkContext holds a PersistentVolume's attributes against the volume. A PersistentVolume that was written by hand
// may leave them out, but what it does say must be so: else it is of another volume than its author believes.
func checkContext(vol *v1alpha1.NvmfVolume, given map[string]string) error {
	is := volumeContext(vol)
	for _, k := range slices.Sorted(maps.Keys(given)) {
		switch want, known := is[k]; {
		case strings.HasPrefix(k, "csi.storage.k8s.io/") || k == provisionerIdentity:
		case !known:
			return failf(invalid, "volume attributes: %q is unknown; supported attributes (all optional): target, transport, uuid", k)
		case given[k] != want && (k != parameters.Transport || !sameTransports(given[k], want)):
			return failf(invalid, "volume attributes: %s is %s, but that of volume %s is %s", k, given[k], vol.Name, want)
		}
	}
	return nil
}

// sameTransports are the same in whatever order they were written.
func sameTransports(given, want string) bool {
	list, err := parameters.ParseTransports(given)
	return err == nil && parameters.FormatTransports(list) == want
}

// provisionerIdentity is what csi-provisioner adds to the attributes of volumes that it makes.
const provisionerIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
