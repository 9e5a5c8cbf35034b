// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"slices"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/internal/header"
)

// failing makes programs fail. For blkid, the device holds the filesystem: it is not made here.
func (s *suite) failing(fsType string, names ...string) {
	s.programs.instead = func(name string, args []string) (string, []string) {
		switch {
		case slices.Contains(names, name):
			return "false", nil
		case name == "blkid":
			return "echo", []string{"TYPE=" + fsType}
		default:
			return name, args
		}
	}
}

// After such an answer the kubelet does not unstage.
func TestStageThatCannotGrowTheFilesystemLeavesNothing(t *testing.T) {
	for fsType, grow := range map[string]string{"ext4": "resize2fs", "xfs": "xfs_growfs"} {
		t.Run(fsType, func(t *testing.T) {
			s := setUp(t)
			if fsType == "ext4" {
				must(t, s.stage(mountCapability(fsType)))
				must(t, s.unstage())
			}
			if fsType == "xfs" {
				s.writeHeader(header.Record{Volume: volumeUUID, State: header.Formatted, Type: fsType})
			}
			s.serve(2 * size)
			s.failing(fsType, grow)
			want(t, s.stage(mountCapability(fsType)), codes.Internal)
			s.wantGone()
		})
	}
}

// A volume that is mounted already may be in use. The kubelet may not know it, if the call that mounted it was cut off:
// by this code it unstages.
func TestStageThatCannotGrowTheFilesystemLeavesWhatWasMounted(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	s.serve(2 * size)
	s.failing("ext4", "resize2fs")
	want(t, s.stage(mountCapability("ext4")), codes.Aborted, "an earlier call made it")
	s.wantMounts("staging ext4 rw")
	if left := s.kernel.Controllers(); len(left) != 1 {
		t.Errorf("controllers %v", left)
	}
	must(t, s.unstage())
	s.wantGone()
}

// stubborn does not unmount.
type stubborn struct{ filesystem.Mounter }

func (stubborn) Unmount(string) error { return syscall.EBUSY }

func TestStageThatCannotTakeBackItsMountSaysSo(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.failing("ext4", "resize2fs")
	s.serve(2 * size)
	host := s.service.Filesystems.(*filesystem.Host)
	mounter := host.Mounter
	host.Mounter = stubborn{mounter}
	want(t, s.stage(mountCapability("ext4")), codes.Aborted, "resize2fs", "mount could not be undone")
	host.Mounter = mounter
	must(t, s.unstage()) // which the kubelet does after this code
	s.wantGone()
}
