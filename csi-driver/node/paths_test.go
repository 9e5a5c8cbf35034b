// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// wantPaths checks the number of the volume's controllers, and its health.
func (s *suite) wantPaths(n int, health string) {
	s.Helper()
	s.untilNothingIsOverdue()
	if got := s.kernel.Controllers(); len(got) != n {
		s.Errorf("controllers %v, want %d", got, n)
	}
	if got := s.health(); got != health {
		s.Errorf("health %q, want %q", got, health)
	}
}

func TestMissingPathIsConnectedLater(t *testing.T) {
	s := setUp(t)
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	s.wantPaths(1, "DEGRADED PathLost")
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "DEGRADED PathLost")

	s.listen(firstPortal, secondPortal)
	// The plugin was started anew.
	again := &node.Service{
		NodeName: s.service.NodeName, NodeUID: s.service.NodeUID, Initiator: s.service.Initiator, Mapper: s.service.Mapper, Filesystems: s.service.Filesystems, Records: s.service.Records, Volumes: s.service.Volumes,
	}
	must(t, again.MendPaths(t.Context()))
	s.wantPaths(2, "")
	made := len(s.kernel.Creations())
	must(t, s.service.MendPaths(t.Context()))
	if got := len(s.kernel.Creations()); got != made {
		t.Errorf("connected %d times more", got-made)
	}

	// A path that the kernel gave up.
	must(t, s.kernel.Drop("nvme1"))
	s.wantPaths(1, "DEGRADED PathLost")
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")

	must(t, s.unstage())
	must(t, s.service.MendPaths(t.Context()))
	s.wantGone()
}

// overBoth gives the volume a portal of each transport.
func (s *suite) overBoth() {
	s.Helper()
	s.listen("10.0.0.1:4420", "10.0.0.1:4421")
	s.context.Portals = []v1alpha1.Portal{
		{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4421}, {Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
	}
}

func TestVolumeOverBothTransports(t *testing.T) {
	s := setUp(t)
	s.overBoth()
	must(t, s.stage(mountCapability("ext4")))
	s.wantPaths(2, "")
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.wantPaths(2, "DEGRADED PathLost")
	must(t, s.kernel.SetState("nvme1", "connecting"))
	s.wantPaths(2, "INACCESSIBLE PathDown")
	must(t, s.kernel.SetState("nvme0", "live"))
	must(t, s.kernel.SetState("nvme1", "live"))
	s.wantPaths(2, "")
	must(t, s.unstage())
	s.wantGone()
}

// A node without an RDMA device uses the volume over TCP, says so, and takes the device once it has one.
func TestVolumeOverBothTransportsWithoutRDMA(t *testing.T) {
	s := setUp(t)
	s.kernel.SetRDMA(false)
	s.overBoth()
	must(t, s.stage(mountCapability("ext4")))
	s.wantPaths(1, "DEGRADED PathLost")
	for range 2 {
		made := len(s.kernel.Creations())
		must(t, s.service.MendPaths(t.Context()))
		if got := s.kernel.Creations()[made:]; len(got) != 1 || !strings.HasPrefix(got[0], "transport=rdma,") {
			t.Errorf("created %q", got)
		}
		s.wantPaths(1, "DEGRADED PathLost")
	}
	s.kernel.SetRDMA(true)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")
}

// The kernel makes one connection after the other: of all volumes that lack a path, one asks it for a portal over RDMA.
func TestPortalOverRDMAIsTriedOnceForAllVolumes(t *testing.T) {
	s := setUp(t)
	s.kernel.SetRDMA(false)
	s.overBoth()
	must(t, s.stage(blockCapability()))
	const other, otherNGUID = "pvc-2", "1a0b0c0d0e0f40018203040506070809"
	second := nodetest.New(other, otherNGUID)
	second.NodeUID, second.SizeBytes, second.Portals = uid, size, s.context.Portals
	second.Attach(attachment)
	must(t, s.kernel.Serve(nodetest.Subsystem{
		NQN: second.NQN, Portals: []string{"10.0.0.1:4420", "10.0.0.1:4421"}, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: otherNGUID, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	s.objects[other] = &second
	must(t, os.MkdirAll(s.path("other"), 0o750))
	_, err := s.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: other, StagingTargetPath: s.path("other"), VolumeCapability: blockCapability(), PublishContext: second.Encode(),
	})
	must(t, err)
	made := len(s.kernel.Creations())
	must(t, s.service.MendPaths(t.Context()))
	if got := s.kernel.Creations()[made:]; len(got) != 1 || !strings.HasPrefix(got[0], "transport=rdma,") {
		t.Errorf("created %q", got)
	}
	s.kernel.SetRDMA(true)
	must(t, s.service.MendPaths(t.Context()))
	if got := s.kernel.Controllers(); len(got) != 4 {
		t.Errorf("controllers %v, want 4", got)
	}
}

func TestStageWithoutAnyPathFails(t *testing.T) {
	s := setUp(t)
	s.listen()
	want(t, s.stage(mountCapability("ext4")), codes.Unavailable, firstPortal, secondPortal)
	must(t, s.service.MendPaths(t.Context()))
	s.wantGone()
}

// A portal that does not answer is asked once for all volumes, and the kernel, which makes one connection after the
// other, not at all.
func TestSilentPortalIsAskedOnce(t *testing.T) {
	s := setUp(t)
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	made, asked := len(s.kernel.Creations()), 0
	s.service.Initiator.(*fabrics.Host).Reachable = func(context.Context, string) error {
		asked++
		return os.NewSyscallError("connect", syscall.EHOSTUNREACH)
	}
	must(t, s.service.MendPaths(t.Context()))
	if asked != 1 || len(s.kernel.Creations()) != made {
		t.Errorf("asked %d times, created %q", asked, s.kernel.Creations()[made:])
	}
}

// The target admits the host no more.
func TestMendingSaysWhyNot(t *testing.T) {
	s := setUp(t)
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.Serve(nodetest.Subsystem{NQN: s.context.NQN, Portals: []string{firstPortal, secondPortal}}))
	want(t, s.service.MendPaths(t.Context()), codes.PermissionDenied, "volume pvc-1", "does not admit this host")
	s.wantPaths(1, "DEGRADED PathLost")
}

// What is not connected any more is not connected again behind the back of whoever has it now.
func TestRecordOfAVolumeThatWentAwayIsForgotten(t *testing.T) {
	s := setUp(t)
	s.listen(firstPortal, secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	record := filepath.Join(s.service.Records, vol+".json")
	if _, err := os.Stat(record); err != nil {
		t.Fatal(err)
	}
	must(t, s.kernel.Drop("nvme0"))
	must(t, s.kernel.Drop("nvme1"))
	must(t, s.service.MendPaths(t.Context()))
	if left := s.kernel.Controllers(); len(left) != 0 {
		t.Errorf("controllers %v", left)
	}
	if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("record: %v", err)
	}
}

// A connection would wait behind what the kernel does not finish.
func TestMendingWaitsForTheKernel(t *testing.T) {
	s := setUp(t)
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	s.listen(firstPortal, secondPortal)
	release := s.kernel.Hold()
	other := make(chan error, 1)
	go func() {
		_, err := s.kernel.Create("nqn=other")
		other <- err
	}()
	<-s.kernel.Hanging
	s.clock.Step(doing.Limit)
	mend := func(limit time.Duration) error {
		limited, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return s.service.MendPaths(limited)
	}
	err := mend(time.Second)
	for limit := 2 * time.Second; status.Code(err) == codes.DeadlineExceeded && limit < time.Minute; limit *= 2 { // on a busy machine
		must(t, s.service.Wait(t.Context()))
		err = mend(limit)
	}
	must(t, err)
	s.wantPaths(1, "DEGRADED PathLost")
	release()
	if err := <-other; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err) // nobody serves that
	}
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")
}

// A volume that another call works on is left to the next time.
func TestMendingWaitsForNoCall(t *testing.T) {
	s := setUp(t)
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	s.listen(firstPortal, secondPortal)
	release := s.mounter.Block(s.path("pod"))
	left, leave := context.WithCancel(t.Context())
	leave()
	_, err := s.service.NodePublishVolume(left, &csi.NodePublishVolumeRequest{
		VolumeId: vol, StagingTargetPath: s.path("staging"), TargetPath: s.path("pod"), VolumeCapability: mountCapability("ext4"), PublishContext: s.context.Encode(),
	})
	want(t, err, codes.Canceled)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "DEGRADED PathLost")
	release()
	must(t, s.service.Wait(t.Context()))
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")
}
