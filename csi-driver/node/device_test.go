// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// mapped makes a device with a table, as somebody else may, or a process that is killed after that.
func (s *suite) mapped(label, uuid string, t mapper.Table) {
	s.Helper()
	control := s.kernel.DeviceMapper()
	must(s, control.Create(label, uuid))
	must(s, control.Load(label, t))
	must(s, control.Resume(label))
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
	const ours, theirs = "WEFT-" + volumeUUID + "-" + attachment, "WEFT-" + volumeUUID + "-" + former
	failing := mapper.Table{SizeBytes: size}
	for name, leave := range map[string]func(s *suite, table mapper.Table){
		"without a table": func(s *suite, _ mapper.Table) { must(s, s.kernel.DeviceMapper().Create(label, ours)) },
		"without a table, for an earlier attachment": func(s *suite, _ mapper.Table) {
			must(s, s.kernel.DeviceMapper().Create(label, theirs))
		},
		"with a table that is not in force": func(s *suite, table mapper.Table) {
			must(s, s.kernel.DeviceMapper().Create(label, ours))
			must(s, s.kernel.DeviceMapper().Load(label, table))
		},
		"whole":                     func(s *suite, table mapper.Table) { s.mapped(label, ours, table) },
		"for an earlier attachment": func(s *suite, table mapper.Table) { s.mapped(label, theirs, table) },
		"half discarded": func(s *suite, table mapper.Table) {
			s.mapped(label, theirs, table)
			must(s, s.kernel.DeviceMapper().Load(label, failing))
		},
		"discarded, and not renamed": func(s *suite, _ mapper.Table) { s.mapped(label, theirs, failing) },
		"renamed, and not removed":   func(s *suite, _ mapper.Table) { s.mapped(label+"-dm-0", theirs, failing) },
		"smaller than the volume by now": func(s *suite, table mapper.Table) {
			table.SizeBytes /= 2
			s.mapped(label, ours, table)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.service.Initiator.Connect(t.Context(), fabrics.Connection{
				NQN: s.context.NQN, HostNQN: s.context.HostNQN(), Portals: s.context.Portals, Connection: s.context.Connection,
			}))
			leave(s, mapper.Table{SizeBytes: size, Lower: "259:1", OffsetBytes: v1alpha1.HeaderBytes})
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

// A discarded device goes when its last user lets go of it, which may be while others discard it again.
func TestDiscardOfADeviceThatIsGoneByThen(t *testing.T) {
	s := setUp(t)
	s.mapped(label, "WEFT-"+volumeUUID+"-"+attachment, mapper.Table{SizeBytes: size})
	d, err := s.service.Mapper.Find("dm-0")
	must(t, err)
	must(t, s.service.Mapper.Discard(t.Context(), d))
	s.wantMapped()
	d.Label += "-dm-0"
	must(t, s.service.Mapper.Discard(t.Context(), d))
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
	want(t, s.unstage(), codes.Internal, "may have open", "device or resource busy")
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
	s.mapped("vg-lv", "LVM-abc", mapper.Table{SizeBytes: 4096})
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.wantMapped("vg-lv")
	s.mapped(label, "", mapper.Table{SizeBytes: 4096})
	want(t, s.stage(mountCapability("ext4")), codes.Internal, "device mapper", label)
	s.wantMapped("vg-lv", label)
	if len(s.kernel.Controllers()) != 0 {
		t.Error("it is connected still")
	}
}

// An expansion that is cut off is done when it is asked for again.
func TestExpansionThatIsCutOff(t *testing.T) {
	for _, step := range []string{"Load", "Resume"} {
		t.Run(step, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(mountCapability("ext4")))
			s.serve(2 * size)
			s.devices.fail = func(at string) error {
				if at == step {
					return syscall.ENOMEM
				}
				return nil
			}
			r := &csi.NodeExpandVolumeRequest{VolumeId: vol, VolumePath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}}
			_, err := s.NodeExpandVolume(t.Context(), r)
			want(t, err, codes.Internal, "cannot allocate memory")
			if d, err := s.service.Mapper.Find("dm-0"); err != nil || d.SizeBytes != size {
				t.Errorf("the device is %+v, %v", d, err)
			}
			s.devices.fail = nil
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

// A signal that comes while the kernel waits for what is on its way ends the wait, and the growth is done all the same.
func TestExpansionThatASignalInterrupts(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	s.serve(2 * size)
	interrupted := 0
	s.devices.fail = func(at string) error {
		if at != "Resume" || interrupted == 2 {
			return nil
		}
		interrupted++
		return syscall.EINTR
	}
	_, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: vol, VolumePath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
	})
	must(t, err)
	if d, err := s.service.Mapper.Find("dm-0"); err != nil || d.SizeBytes != 2*size || interrupted != 2 {
		t.Errorf("interrupted %d times, the device is %+v, %v", interrupted, d, err)
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
