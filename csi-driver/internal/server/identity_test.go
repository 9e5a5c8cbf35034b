// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/csi-driver/internal/server"
)

func TestIdentity(t *testing.T) {
	g := NewWithT(t)
	ready := false
	s := &server.Identity{Version: "1.2.3", Ready: func() bool { return ready }}
	info, err := s.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.GetName()).To(Equal("csi.weft.storage"))
	g.Expect(info.GetVendorVersion()).To(Equal("1.2.3"))

	caps, err := s.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(caps.GetCapabilities()).To(HaveLen(3))
	g.Expect(caps.GetCapabilities()[0].GetService().GetType()).To(Equal(csi.PluginCapability_Service_CONTROLLER_SERVICE))
	g.Expect(caps.GetCapabilities()[1].GetService().GetType()).To(Equal(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	g.Expect(caps.GetCapabilities()[2].GetVolumeExpansion().GetType()).To(Equal(csi.PluginCapability_VolumeExpansion_ONLINE))

	s.SnapshotMetadata = true
	caps, err = s.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(caps.GetCapabilities()).To(HaveLen(4))
	g.Expect(caps.GetCapabilities()[3].GetService().GetType()).To(Equal(csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE))

	for _, ready = range []bool{false, true} {
		probe, err := s.Probe(t.Context(), &csi.ProbeRequest{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(probe.GetReady().GetValue()).To(Equal(ready))
	}
}
