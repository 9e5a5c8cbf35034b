// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Identity is CSI's identity service.
type Identity struct {
	csi.UnimplementedIdentityServer

	// Version of weft.
	Version string
	// SnapshotMetadata says that this process serves that service.
	SnapshotMetadata bool
	// Ready tells whether calls can be served now. Safe for concurrent use.
	Ready func() bool
}

// GetPluginInfo gives the driver's name and version.
func (s *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: v1alpha1.DriverName, VendorVersion: s.Version}, nil
}

// GetPluginCapabilities says what the driver as a whole can do, whichever of its processes is asked, except for
// SnapshotMetadata, which only the sidecar beside the CSI controller asks for. The driver's topology has one segment,
// all nodes that the driver runs on: a volume is used from any of them.
func (s *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}
	if s.SnapshotMetadata {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE,
		}}})
	}
	return resp, nil
}

// Probe tells whether the driver is ready.
func (s *Identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.Ready())}, nil
}
