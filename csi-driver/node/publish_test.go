// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The attachment is the same, so the controller is not asked again: the kernel gave up the connection, somebody edited
// the PersistentVolume's mountOptions, and the next pod comes before the volume is unstaged.
func TestPublishThatStagesChecksMountOptions(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.Drop("nvme0"))
	before := s.mounts()
	want(t, s.publish(mountCapability("ext4", "nobarrier"), "pods/b", false), codes.InvalidArgument, "nobarrier")
	s.wantMounts(before)
}

// Two PersistentVolumes may name one volume, each with a staging path of its own. The kubelet unstages it once.
func TestStagedAtOnePath(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			must(t, s.publish(c, "pods/a", false))
			before := s.mounts()
			must(t, os.MkdirAll(s.path("another"), 0o750))
			_, err := s.NodePublishVolume(s.Context(), &csi.NodePublishVolumeRequest{
				VolumeId: vol, StagingTargetPath: s.path("another"), TargetPath: s.path("pods/b"), VolumeCapability: c, PublishContext: s.context.Encode(),
			})
			want(t, err, codes.AlreadyExists, "staged at "+s.path("staging"))
			s.wantMounts(before)
			must(t, s.unpublish("pods/a"))
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// A kubelet that was restarted publishes once more what it has published. Meanwhile it has mounts of the volume of its
// own: a subPath, or what a container was given.
func TestPublishAgainForASingleWriter(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
			must(t, s.stage(c))
			must(t, s.publish(c, "pods/a", false))
			source, own := s.path("pods/a"), s.path("kubelet")
			if c.GetBlock() == nil {
				must(t, os.MkdirAll(own, 0o700))
			} else {
				var err error
				source, err = s.mounter.DeviceAt(source)
				must(t, err)
				must(t, os.WriteFile(own, nil, 0o600))
			}
			must(t, s.mounter.Mount(source, own, "", []string{"bind"}))
			must(t, s.stage(c))
			must(t, s.publish(c, "pods/a", false))
			want(t, s.publish(c, "pods/b", false), codes.FailedPrecondition, "pods/a")
		})
	}
}

// What staging does for the next pod does not make a device writable that is published read-only.
func TestPublishAgainKeepsADeviceReadOnly(t *testing.T) {
	s := setUp(t)
	c := blockCapability()
	must(t, s.stage(c))
	must(t, s.publish(c, "pods/a", true))
	s.wantDevice("dm-0", true)
	must(t, s.mounter.Unmount(s.path("staging/device")))
	must(t, s.publish(c, "pods/a", true))
	s.wantDevice("dm-0", true)
}
