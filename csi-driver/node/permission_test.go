// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// wipe what the volume holds, as a target does that lost its data.
func (s *suite) wipe() {
	s.Helper()
	must(s, os.Truncate(s.kernel.Backing(nguid), 0))
	must(s, os.Truncate(s.kernel.Backing(nguid), size))
}

// wantRefused wants the volume not to be formatted again, and nothing of it left on the node.
func (s *suite) wantRefused(words ...string) {
	s.Helper()
	before, err := os.ReadFile(s.kernel.Backing(nguid))
	must(s, err)
	want(s, s.stage(mountCapability("ext4")), codes.FailedPrecondition, append(words, "weft.storage/allow-format", "NvmfVolume pvc-1")...)
	after, err := os.ReadFile(s.kernel.Backing(nguid))
	must(s, err)
	if !bytes.Equal(before, after) {
		s.Error("the volume was written to")
	}
	s.wantGone()
}

// stageAndLose a volume that may be formatted, or has a filesystem; the node plugin is started anew meanwhile.
func (s *suite) stageAndLose() {
	s.Helper()
	must(s, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
	must(s, s.unstage())
	s.wipe()
	must(s, s.service.Clean())
	must(s, s.service.MendPaths(s.Context()))
}

// A publish context outlives pods and reboots. What it said of a volume when it was attached is not true of one that
// was used.
func TestFormattedOnceInAnAttachment(t *testing.T) {
	const earlier = "held one earlier in this attachment"
	for name, prepare := range map[string]func(*suite){
		"blank": func(*suite) {},
		"format allowed": func(s *suite) {
			must(s, os.WriteFile(s.kernel.Backing(nguid), []byte(strings.Repeat("x", size)), 0o600))
			s.context.Blank, s.context.AllowFormat = false, true
		},
		"held a filesystem": func(s *suite) { // whose mkfs had ended when the node plugin was killed
			must(s, s.stage(mountCapability("ext4")))
			must(s, s.unstage())
			s.context.Attachment++
			s.context.AllowFormat = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.context.Attachment = 2
			prepare(s)
			s.stageAndLose()
			s.wantRefused(earlier)
			s.wantRefused(earlier) // as often as the kubelet asks

			s.context.Attachment++
			s.context.Blank, s.context.AllowFormat = false, true
			s.stageAndLose()
			s.wantRefused(earlier)

			s.context.Attachment++
			s.context.AllowFormat = false
			s.wantRefused()
		})
	}
}

// The machine went down without unstaging; the record of what was staged is forgotten, and the permission stays used.
func TestFormattedOnceThoughTheRecordIsForgotten(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.mounter.Unmount(s.path("staging")))
	must(t, s.kernel.Drop("nvme0"))
	must(t, s.service.MendPaths(t.Context()))
	if _, err := os.Stat(filepath.Join(s.service.Records, vol+".json")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("record: %v", err)
	}
	s.wipe()
	s.wantRefused("held one earlier in this attachment")
}

// A volume that was deleted and made again under its name is another one.
func TestPermissionOfAVolumeWithTheSameName(t *testing.T) {
	s := setUp(t)
	s.stageAndLose()
	s.context.NGUID = strings.Repeat("f", 32)
	must(t, s.kernel.Serve(nodetest.Subsystem{
		NQN: v1alpha1.SubsystemNQN(vol), Portals: []string{firstPortal}, Hosts: []string{s.service.HostNQN},
		Namespaces: []nodetest.Namespace{{NGUID: s.context.NGUID, SizeBytes: size}},
	}))
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
}

func TestUsedPermissionIsForgottenWithItsAttachment(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	used := filepath.Join(s.service.Records, vol+".used")
	if _, err := os.Stat(used); err != nil {
		t.Fatal(err)
	}
	s.context.Attachment++
	s.context.Blank = false
	must(t, s.stage(mountCapability("ext4")))
	if _, err := os.Stat(used); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the used permission: %v", err)
	}
}

// A pod must not write to a volume that could be formatted again.
func TestStageFailsWhenAUsedPermissionCannotBeWrittenDown(t *testing.T) {
	s := setUp(t)
	used := filepath.Join(s.service.Records, vol+".used")
	s.programs.instead = func(name string, args []string) (string, []string) {
		if name == "mkfs.ext4" {
			must(t, os.MkdirAll(used, 0o750))
		}
		return name, args
	}
	want(t, s.stage(mountCapability("ext4")), codes.Internal, used)
	s.wantGone()
	want(t, s.stage(mountCapability("ext4")), codes.Internal, used, "remove the file")
	s.wantGone()
	must(t, os.Remove(used))
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
}

// A volume that stayed mounted from one attachment to the next.
func TestPermissionIsUsedByWhatIsMounted(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	s.context.Attachment++
	s.stageAndLose()
	s.wantRefused("held one earlier in this attachment")
}

// Nobody tells the node when an attachment ends: what it knows of one is forgotten a week after the volume was there
// last, and not before.
func TestUsedPermissionIsForgotten(t *testing.T) {
	s := setUp(t)
	used := filepath.Join(s.service.Records, vol+".used")
	forget := func(since time.Time, want bool) {
		t.Helper()
		must(t, s.service.ForgetPermissions(t.Context(), since))
		if _, err := os.Stat(used); errors.Is(err, os.ErrNotExist) != want {
			t.Errorf("forgotten is %t, want %t: %v", !want, want, err)
		}
	}
	forget(time.Now(), true) // there is no folder yet
	must(t, s.stage(mountCapability("ext4")))
	staged := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(used, staged, staged))
	forget(time.Now(), false) // it is there
	must(t, s.unstage())
	forget(staged.Add(time.Minute), false) // it was there until now
	forget(time.Now().Add(time.Minute), true)
}
