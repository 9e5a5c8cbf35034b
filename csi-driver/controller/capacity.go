// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// getCapacity of the target in the parameters, or of all targets together when there are none.
//
// Parameters with which no volume can be created are no error here. Csi-provisioner has nobody to tell of one: it logs
// it, asks again within seconds, forever, and publishes nothing, so that the scheduler tells of pods whose claims wait
// for their first consumer that there is not enough free storage. So the answer is that nothing is free, and that no
// size is too large: CreateVolume is then called for such a claim, and its error is shown on the claim.
func (s *Service) getCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	of, params, err := s.ofClass(ctx, req.GetParameters())
	if err != nil {
		if code(err) == codes.InvalidArgument {
			return &csi.GetCapacityResponse{MinimumVolumeSize: wrapperspb.Int64(sizeStep), MaximumVolumeSize: wrapperspb.Int64(maxVolumeBytes)}, nil
		}
		return nil, err
	}
	if err := s.nodesFor(ctx, &of, params); err != nil {
		return nil, err
	}
	least := int64(sizeStep)
	if caps := req.GetVolumeCapabilities(); len(caps) > 0 {
		var err error
		if least, _, err = checkCapabilities(caps, params.FSType); err != nil {
			return nil, err
		}
	}
	candidates, err := s.reservations.candidates(ctx, of)
	if err != nil {
		return nil, err
	}
	resp := &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0), MinimumVolumeSize: wrapperspb.Int64(least)}
	// Each replica goes to another node: the largest volume is what the last of them can take, and a node holds one
	// replica of a volume at most.
	replicas := max(int(params.Replicas), 1)
	if len(candidates) < replicas {
		return resp, nil
	}
	slices.SortFunc(candidates, func(a, b placement.Candidate) int { return cmp.Compare(b.LargestBytes, a.LargestBytes) })
	resp.MaximumVolumeSize.Value = max(0, candidates[replicas-1].LargestBytes/sizeStep*sizeStep-params.Encryption.HeaderBytes())
	resp.AvailableCapacity = pairs(candidates, replicas)
	return resp, nil
}

// ofClass is what a StorageClass asks of placement: its target, connection and drives. Without parameters, nothing.
func (s *Service) ofClass(ctx context.Context, class map[string]string) (placement.Request, parameters.Parameters, error) {
	if len(class) == 0 {
		return placement.Request{}, parameters.Parameters{}, nil
	}
	params, err := parameters.Parse(parameters.OfClass(class))
	if err != nil {
		return placement.Request{}, params, err
	}
	target, err := s.target(ctx, params.Target)
	if err != nil {
		return placement.Request{}, params, err
	}
	connection, err := params.ConnectionTo(target.Name, target.Spec.Transports)
	if err != nil {
		return placement.Request{}, params, err
	}
	if err := checkDeviceClass(params, target); err != nil {
		return placement.Request{}, params, err
	}
	return placement.Request{Target: target.Name, Connection: asked(params, connection), DeviceClass: params.DeviceClass}, params, nil
}

// pairs is how much data the candidates can store with so many replicas on different nodes: a node that has more free
// than all others together cannot use what is more.
func pairs(candidates []placement.Candidate, replicas int) int64 {
	var total, most int64
	for _, c := range candidates {
		total += c.FreeBytes
		most = max(most, c.FreeBytes)
	}
	if replicas == 1 {
		return total
	}
	return min(total/int64(replicas), (total-most)/int64(replicas-1))
}
