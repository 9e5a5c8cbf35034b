// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

const label = "weft-" + volumeUUID

// wantMapped wants these devices to be there, and no other.
func (s *suite) wantMapped(labels ...string) {
	s.Helper()
	if got := s.kernel.Mapped(); !slices.Equal(got, labels) {
		s.Errorf("there are %q, want %q", got, labels)
	}
}

// dmsetup that somebody else runs.
func (s *suite) dmsetup(args ...string) {
	s.Helper()
	must(s, s.kernel.Dmsetup(append(args, "--noudevsync", "--noudevrules")))
}

// What pods see is a device of their volume's own, with the size that was asked for; the namespace has the header, too.
func TestPodsSeeTheVolumesDevice(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			must(t, s.publish(c, "pod", false))
			s.wantMapped(label)
			s.wantShown(2)
			d, err := s.service.Mapper.Find("dm-0")
			must(t, err)
			if want := "WEFT-" + volumeUUID + "-" + attachment; d.SizeBytes != size || d.UUID != want || d.Lower.Name != "nvme0n1" {
				t.Errorf("the device is %+v", d)
			}
			shown, err := s.service.Filesystems.MountsOf("259:1", "nvme0n1")
			must(t, err)
			if len(shown) != 0 {
				t.Errorf("the namespace itself is shown at %q", shown)
			}
			must(t, s.unpublish("pod"))
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// What an earlier attachment left is discarded before the next device is built: who has it mounted gets errors, and it
// goes with its last user.
func TestDeviceOfAnEarlierAttachment(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.publish(mountCapability("ext4"), "pods/a", false))
	s.attach()
	must(t, s.stage(mountCapability("ext4")))
	s.wantMapped(label, label+"-dm-0")
	s.wantShown(1)
	if err := s.mounter.Mount(filepath.Join(s.kernel.Root, "dev/dm-0"), s.path("staging"), "ext4", nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("the former device still reads: %v", err)
	}
	must(t, s.unpublish("pods/a"))
	s.wantMapped(label)
	must(t, s.unstage())
	s.wantGone()
}

// leftovers of processes that were killed, at the steps of building a device and of discarding one.
func TestDeviceThatAKilledProcessLeft(t *testing.T) {
	const former = "99999999-2222-4333-8444-555555555555"
	for name, leave := range map[string]func(s *suite, table string){
		"without a table": func(s *suite, _ string) {
			s.dmsetup("create", "--notable", "--uuid", "WEFT-"+volumeUUID+"-"+attachment, label)
		},
		"without a table, for an earlier attachment": func(s *suite, _ string) {
			s.dmsetup("create", "--notable", "--uuid", "WEFT-"+volumeUUID+"-"+former, label)
		},
		"whole": func(s *suite, table string) {
			s.dmsetup("create", "--table", table, "--uuid", "WEFT-"+volumeUUID+"-"+attachment, label)
		},
		"for an earlier attachment": func(s *suite, table string) {
			s.dmsetup("create", "--table", table, "--uuid", "WEFT-"+volumeUUID+"-"+former, label)
		},
		"half discarded": func(s *suite, table string) {
			s.dmsetup("create", "--table", table, "--uuid", "WEFT-"+volumeUUID+"-"+former, label)
			s.dmsetup("load", "--table", fmt.Sprintf("0 %d error", size/512), label)
		},
		"discarded, and not renamed": func(s *suite, _ string) {
			s.dmsetup("create", "--table", fmt.Sprintf("0 %d error", size/512), "--uuid", "WEFT-"+volumeUUID+"-"+former, label)
		},
		"renamed, and not removed": func(s *suite, _ string) {
			s.dmsetup("create", "--table", fmt.Sprintf("0 %d error", size/512), "--uuid", "WEFT-"+volumeUUID+"-"+former, label+"-dm-0")
		},
		"smaller than the volume by now": func(s *suite, table string) {
			s.dmsetup("create", "--table", strings.Replace(table, fmt.Sprint(size/512), fmt.Sprint(size/1024), 1), "--uuid", "WEFT-"+volumeUUID+"-"+attachment, label)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.service.Initiator.Connect(t.Context(), fabrics.Connection{
				NQN: s.context.NQN, HostNQN: s.context.HostNQN(), Portals: s.context.Portals, Connection: s.context.Connection,
			}))
			leave(s, fmt.Sprintf("0 %d linear 259:1 %d", size/512, v1alpha1.HeaderBytes/512))
			must(t, s.stage(mountCapability("ext4")))
			s.wantMapped(label)
			s.wantShown(1)
			if d, err := s.service.Mapper.Over("nvme0n1"); err != nil || d[0].SizeBytes != size {
				t.Errorf("the device is %+v, %v", d, err)
			}
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// A volume whose connection was lost, and came back, while pods still have it.
func TestDeviceOfTheSameAttachmentThatLostItsNamespace(t *testing.T) {
	s := setUp(t)
	c := mountCapability("ext4")
	must(t, s.stage(c))
	for i := range 3 {
		must(t, s.publish(c, fmt.Sprint("pods/", i), false))
		for _, controller := range s.kernel.Controllers() {
			must(t, s.kernel.Drop(controller))
		}
		must(t, s.stage(c))
		s.wantShown(1)
	}
	s.wantMapped(label, label+"-dm-0", label+"-dm-1", label+"-dm-2")
	for i := range 3 {
		must(t, s.unpublish(fmt.Sprint("pods/", i)))
	}
	s.wantMapped(label)
	must(t, s.unstage())
	s.wantGone()
}

// Somebody has the device open, as a scanner has for a moment, or a container for as long as it runs.
func TestUnstageOfADeviceThatIsOpen(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	d, err := s.service.Mapper.Find("dm-0")
	must(t, err)
	opened, err := s.service.Mapper.Open(d)
	must(t, err)
	want(t, s.unstage(), codes.Internal, "dmsetup", "device or resource busy")
	s.wantMapped(label)
	if len(s.kernel.Controllers()) != 1 {
		t.Fatal("a volume in use was disconnected")
	}
	must(t, opened.Close())
	must(t, s.unstage())
	s.wantGone()
}

// What weft did not make is left alone, and holds up a volume only where it is in its place.
func TestDevicesOfOthers(t *testing.T) {
	s := setUp(t)
	s.dmsetup("create", "--table", "0 8 error", "--uuid", "LVM-abc", "vg-lv")
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.wantMapped("vg-lv")
	s.dmsetup("create", "--table", "0 8 error", "--uuid", "", label)
	want(t, s.stage(mountCapability("ext4")), codes.Internal, "dmsetup", label)
	s.wantMapped("vg-lv", label)
	if len(s.kernel.Controllers()) != 0 {
		t.Error("it is connected still")
	}
}

// An expansion that is cut off is done when it is asked for again.
func TestExpansionThatIsCutOff(t *testing.T) {
	for _, step := range []string{"load", "resume"} {
		t.Run(step, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(mountCapability("ext4")))
			s.serve(2 * size)
			s.programs.instead = func(name string, args []string) (string, []string) {
				if name == "dmsetup" && args[0] == step {
					return "false", nil
				}
				return name, args
			}
			r := &csi.NodeExpandVolumeRequest{VolumeId: vol, VolumePath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}}
			_, err := s.NodeExpandVolume(t.Context(), r)
			want(t, err, codes.Internal, "dmsetup")
			if d, err := s.service.Mapper.Find("dm-0"); err != nil || d.SizeBytes != size {
				t.Errorf("the device is %+v, %v", d, err)
			}
			s.programs.instead = nil
			got, err := s.NodeExpandVolume(t.Context(), r)
			must(t, err)
			d, err := s.service.Mapper.Find("dm-0")
			must(t, err)
			info, err := os.Stat(d.Path)
			must(t, err)
			if got.GetCapacityBytes() != 2*size || d.SizeBytes != 2*size || info.Size() != 2*size {
				t.Errorf("expanded to %v, the device is %+v", got, d)
			}
		})
	}
}

// A device grows only when all that is on its way to it has arrived, and what is unmounted then waits for the target.
func TestExpansionWaitsForWhatIsOnItsWay(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	unmounted := make(chan error, 1)
	go func() { unmounted <- s.mounter.Unmount(s.path("staging")) }()
	<-s.kernel.Hanging
	d, err := s.service.Mapper.Find("dm-0")
	must(t, err)
	s.serve(2 * size)
	must(t, s.kernel.Rescan("nvme0"))
	grown := make(chan error, 1)
	go func() {
		_, err := s.service.Mapper.Grow(s.Context(), d, v1alpha1.HeaderBytes, 2*size)
		grown <- err
	}()
	<-s.kernel.Hanging
	if now, err := s.service.Mapper.Find("dm-0"); err != nil || now.SizeBytes != size {
		t.Errorf("the device is %+v, %v", now, err)
	}
	must(t, s.kernel.SetState("nvme0", "live"))
	must(t, <-unmounted)
	must(t, <-grown)
}

// A device that swapped places with another is not taken for it.
func TestDeviceIsConfirmed(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	d, err := s.service.Mapper.Find("dm-0")
	must(t, err)
	must(t, s.service.Mapper.Confirm(d))
	must(t, s.unstage())
	if err := s.service.Mapper.Confirm(d); !errors.Is(err, mapper.ErrNotFound) {
		t.Errorf("of one that is gone: %v", err)
	}
	must(t, s.stageOther("pvc-2")) // which is dm-0 now
	if err := s.service.Mapper.Confirm(d); !errors.Is(err, mapper.ErrNotFound) {
		t.Errorf("of one whose name another has: %v", err)
	}
	if _, err := s.service.Mapper.Open(d); !errors.Is(err, mapper.ErrNotFound) {
		t.Errorf("open one whose name another has: %v", err)
	}
	if _, err := s.service.Mapper.Find("nvme0n1"); !errors.Is(err, mapper.ErrForeign) {
		t.Errorf("a namespace is taken for a volume's device: %v", err)
	}
}
