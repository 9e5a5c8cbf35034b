// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

const firstPortal, secondPortal = "10.0.0.1:4420", "10.0.0.2:4420"

// first and second portal as the volume's object lists them.
var first, second = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}, v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.2", Port: 4420}

// listen makes the target serve the volume through these portals, and the volume's object lists first and second.
func (s *suite) listen(portals ...string) {
	s.Helper()
	s.serveAt(portals...)
	s.context.Portals = []v1alpha1.Portal{first, second}
}

// serveAt makes the target serve the volume through these portals, whatever the volume's object lists.
func (s *suite) serveAt(portals ...string) {
	s.Helper()
	must(s, s.kernel.Serve(nodetest.Subsystem{
		NQN: s.context.NQN, Portals: portals, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
}

// sysfs overwrites a file of the volume's block device.
func (s *suite) sysfs(name, text string) {
	s.Helper()
	must(s, os.WriteFile(filepath.Join(s.kernel.Root, "sys/class/block/nvme0n1", name), []byte(text+"\n"), 0o600))
}

// health of the volume in short: kinds and reasons.
func (s *suite) health() string {
	s.Helper()
	got, err := s.NodeGetVolumeHealth(s.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: vol, StagingTargetPath: s.path("staging"), VolumePublishPath: s.path("pod")})
	must(s, err)
	var all []string
	for _, e := range got.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, e.Status.String()+" "+e.Reason)
	}
	return strings.Join(all, "; ")
}

func TestVolumeCondition(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*suite)
		want   string
		usage  bool
	}{
		"well":              {func(*suite) {}, "", true},
		"one path of two":   {func(s *suite) { must(s, s.kernel.SetState("nvme1", "connecting")) }, "DEGRADED PathLost", true},
		"one path given up": {func(s *suite) { must(s, s.kernel.Drop("nvme1")) }, "DEGRADED PathLost", true},
		"no path": {func(s *suite) {
			must(s, s.kernel.SetState("nvme0", "connecting"))
			must(s, s.kernel.SetState("nvme1", "resetting"))
		}, "INACCESSIBLE PathDown", true},
		"the device is gone": {func(s *suite) {
			must(s, s.kernel.Drop("nvme0"))
			must(s, s.kernel.Drop("nvme1"))
		}, "INACCESSIBLE PathDown; INACCESSIBLE DeviceGone", false},
		"another namespace":          {func(s *suite) { s.sysfs("nguid", strings.Repeat("f", 32)) }, "INACCESSIBLE WrongDevice", true},
		"smaller than it was":        {func(s *suite) { s.sysfs("size", "16384") }, "DATA_LOSS Shrunk", true},
		"with a part of its trailer": {func(s *suite) { s.sysfs("size", strconv.Itoa((v1alpha1.HeaderBytes+size)/512)) }, "", true},
		"read-only after an error":   {func(s *suite) { must(s, s.mounter.FailWrites()) }, "INACCESSIBLE FilesystemReadOnly", true},
		"errors of ext4, on a kernel that shows nothing else": {func(s *suite) {
			dir := filepath.Join(s.kernel.Root, "sys/fs/ext4/dm-0")
			must(s, os.MkdirAll(dir, 0o755))
			must(s, os.WriteFile(filepath.Join(dir, "errors_count"), []byte("1\n"), 0o600))
		}, "INACCESSIBLE FilesystemReadOnly", true},
		"the filesystem fails": {func(s *suite) {
			s.service.Filesystems = &usage{Filesystems: s.service.Filesystems, answer: func() error { return syscall.EIO }}
		}, "INACCESSIBLE FilesystemFailed", false},
		"not known what was staged": {func(s *suite) {
			must(s, os.WriteFile(s.path("staged/"+vol+".json"), []byte("{"), 0o600))
			s.sysfs("size", "16384")
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.listen(firstPortal, secondPortal)
			must(t, s.stage(mountCapability("ext4")))
			must(t, s.publish(mountCapability("ext4"), "pod", false))
			c.change(s)
			if got := s.health(); got != c.want {
				t.Errorf("health %q, want %q", got, c.want)
			}
			stats, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("pod")})
			must(t, err)
			abnormal, message, err := nodetest.Condition(stats)
			must(t, err)
			if abnormal != (c.want != "") || len(stats.GetUsage()) > 0 != c.usage {
				t.Errorf("abnormal %t (%s), usage %v", abnormal, message, stats.GetUsage())
			}
		})
	}
}

// Of two places that fail alike, the same is named each time: a condition's words do not change while nothing does.
func TestConditionNamesTheSamePlaceEachTime(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.publish(mountCapability("ext4"), "pod", false))
	s.service.Filesystems = &usage{Filesystems: s.service.Filesystems, answer: func() error { return syscall.EIO }}
	for range 20 {
		got, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: vol, StagingTargetPath: s.path("staging"), VolumePublishPath: s.path("pod")})
		must(t, err)
		entries := got.GetVolumeHealth().GetHealthStatuses()
		if len(entries) != 1 || !strings.Contains(entries[0].Message, "its filesystem at "+s.path("pod")+" fails") {
			t.Fatalf("got %v", entries)
		}
	}
}

func TestConditionOfABlockVolume(t *testing.T) {
	s := setUp(t)
	s.listen(firstPortal, secondPortal)
	must(t, s.stage(blockCapability()))
	must(t, s.publish(blockCapability(), "pod", false))
	if got := s.health(); got != "" {
		t.Errorf("got %q", got)
	}
	must(t, s.kernel.SetState("nvme1", "connecting"))
	if got := s.health(); got != "DEGRADED PathLost" {
		t.Errorf("got %q", got)
	}
	must(t, s.kernel.Drop("nvme0"))
	must(t, s.kernel.Drop("nvme1"))
	stats, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("pod")})
	must(t, err)
	abnormal, message, err := nodetest.Condition(stats)
	if err != nil || !abnormal || !strings.Contains(message, "DeviceGone") || stats.GetUsage() != nil {
		t.Errorf("got %t, %q, %v, %v", abnormal, message, stats, err)
	}
}

func TestReadOnlyVolumeIsWell(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	c := mountCapability("ext4")
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	must(t, s.stage(c))
	must(t, s.publish(c, "pod", true))
	if got := s.health(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestHealthRefuses(t *testing.T) {
	s := setUp(t)
	for id, code := range map[string]codes.Code{"": codes.InvalidArgument, "pvc-2": codes.NotFound} {
		_, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		want(t, err, code)
	}
}

// usage answers for a filesystem.
type usage struct {
	node.Filesystems
	answer func() error
}

func (u *usage) Usage(path string) (filesystem.Usage, error) {
	if err := u.answer(); err != nil {
		return filesystem.Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return u.Filesystems.Usage(path)
}

// A statfs on a device without a path may never return: it holds up neither its caller nor the volume's other calls,
// and however often it is asked for there is one.
func TestStatsOfAFilesystemThatDoesNotAnswer(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.publish(mountCapability("ext4"), "pod", false))
	asked, release := make(chan struct{}, 10), make(chan struct{})
	s.service.Filesystems = &usage{Filesystems: s.service.Filesystems, answer: func() error {
		asked <- struct{}{}
		<-release
		return nil
	}}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	r := &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("pod")}
	for range 3 {
		stats, err := s.service.NodeGetVolumeStats(late, r)
		must(t, err)
		abnormal, message, err := nodetest.Condition(stats)
		if err != nil || !abnormal || !strings.Contains(message, "NoAnswer") || stats.GetUsage() != nil {
			t.Errorf("got %t, %q, %v, %v", abnormal, message, stats, err)
		}
	}
	<-asked
	must(t, s.unpublish("pod"))
	must(t, s.publish(mountCapability("ext4"), "pod", false))
	if len(asked) != 0 {
		t.Errorf("%d more are asking", len(asked))
	}
	close(release)
	stats, err := s.NodeGetVolumeStats(t.Context(), r)
	must(t, err)
	if abnormal, message, err := nodetest.Condition(stats); err != nil || abnormal || len(stats.GetUsage()) != 2 {
		t.Errorf("got %t, %q, %v, %v", abnormal, message, stats, err)
	}
}
