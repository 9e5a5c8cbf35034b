// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/csi-driver/internal/parameters"
)

func (s *Service) validateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	caps := req.GetVolumeCapabilities()
	if len(caps) == 0 {
		return nil, failf(invalid, "the request has no volume capability")
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
	if vol.Spec.Size.Value() < minBytes {
		return no(why), nil
	}
	if c := req.GetVolumeContext(); len(c) > 0 {
		for k, v := range volumeContext(vol) {
			if c[k] != v {
				return no("volume context: " + k + " is " + v), nil
			}
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: maps.Clone(req.GetVolumeContext()), VolumeCapabilities: caps, Parameters: maps.Clone(req.GetParameters()),
	}}, nil
}
