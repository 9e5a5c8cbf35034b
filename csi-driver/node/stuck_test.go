// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// stageOther stages another volume than the suite's, pvc- and a digit, for raw use.
func (s *suite) stageOther(id string) error {
	s.Helper()
	guid := strings.Repeat(strings.TrimPrefix(id, "pvc-"), 32)
	at := nodetest.New(id, guid)
	at.NodeUID, at.SizeBytes, at.Portals = uid, size, s.context.Portals
	at.Attach(attachment)
	must(s, s.kernel.Serve(nodetest.Subsystem{
		NQN: at.NQN, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: guid, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	s.objects[id] = &at
	_, err := s.NodeStageVolume(s.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: s.path("staging-" + id), VolumeCapability: blockCapability(), PublishContext: at.Encode(),
	})
	return err
}

// hold makes a program hang, until release is called.
func (s *suite) hold(program string) (release func()) {
	s.Helper()
	until := s.path("until")
	must(s, syscall.Mkfifo(until, 0o600))
	s.programs.instead = func(name string, args []string) (string, []string) {
		if name != program {
			return name, args
		}
		return "sh", append([]string{"-c", `read -r word < "$0"; exec "$@"`, until, name}, args...)
	}
	released, done := make(chan struct{}), make(chan error, 1)
	go func() {
		f, err := os.OpenFile(until, os.O_WRONLY, 0) // when the process has opened it, too
		s.kernel.Hanging <- struct{}{}
		<-released
		s.programs.instead = nil
		done <- errors.Join(err, f.Close())
	}()
	return func() {
		close(released)
		must(s, <-done)
	}
}

// untilNothingIsOverdue waits for the ends of system calls, which may come after what they did shows.
func (s *suite) untilNothingIsOverdue() {
	s.Helper()
	must(s, wait.PollUntilContextTimeout(s.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return len(s.service.Overdue()) == 0, nil
	}))
}

// What the kernel does not finish for one volume is said of that volume, by its calls, its health and to whom it is
// reported, and holds up no other.
func TestWhatHangsConcernsItsOwnVolumeOnly(t *testing.T) {
	for name, c := range map[string]struct {
		// hang makes a call for the suite's volume hang until it is released.
		hang  func(s *suite) (release func(), call func() error)
		words []string
	}{
		"a mount": {
			func(s *suite) (func(), func() error) {
				return s.mounter.Block(s.path("staging")), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"mounting ", "/dev/dm-1 at ", "/staging"},
		},
		"an unmount": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(mountCapability("ext4")))
				return s.mounter.Block(s.path("staging")), s.unstage
			},
			[]string{"unmounting ", "/staging"},
		},
		"a bind mount": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(mountCapability("ext4")))
				return s.mounter.Block(s.path("pod")), func() error { return s.publish(mountCapability("ext4"), "pod", false) }
			},
			[]string{"binding ", "/staging at ", "/pod"},
		},
		"a namespace that does not open": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Opening, "nvme1n1"), func() error { return s.stage(blockCapability()) }
			},
			[]string{"opening ", "/dev/nvme1n1"},
		},
		"a namespace that does not open when it is disconnected": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(blockCapability()))
				return s.kernel.Block(nodetest.Opening, "nvme1n1"), s.unstage
			},
			[]string{"opening ", "/dev/nvme1n1"},
		},
		"a namespace that does not read": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Reading, "nvme1n1"), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"reading ", "/dev/nvme1n1"},
		},
		"a device that does not open": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Opening, "dm-1"), func() error { return s.stage(blockCapability()) }
			},
			[]string{"opening ", "/dev/dm-1"},
		},
		"a device that does not read": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Reading, "dm-1"), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"reading ", "/dev/dm-1"},
		},
		"a probe": {
			func(s *suite) (func(), func() error) {
				return s.hold("blkid"), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"running blkid --probe ", "/dev/dm-1"},
		},
		"a mkfs": {
			func(s *suite) (func(), func() error) {
				return s.hold("mkfs.ext4"), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"running mkfs.ext4 ", "/dev/dm-1"},
		},
		"a growth": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(mountCapability("ext4")))
				must(s, s.unstage())
				s.serve(2 * size)
				s.context.SizeBytes = 2 * size
				return s.hold("resize2fs"), func() error { return s.stage(mountCapability("ext4")) }
			},
			[]string{"growing the filesystem at ", "/staging"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stageOther("pvc-2")) // nvme0
			s.clock.Step(time.Hour)        // far from the machine's own clock
			release, call := c.hang(s)
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			<-s.kernel.Hanging

			if overdue := s.service.Overdue(); len(overdue) != 0 {
				t.Errorf("overdue at once: %v", overdue)
			}
			s.clock.Step(2 * doing.Limit)
			step, is := s.service.Overdue()[vol]
			for _, w := range append(c.words, " has not returned since ") {
				if !is || !strings.Contains(step.String(), w) {
					t.Errorf("overdue is %q, want %q in it", step, w)
				}
			}
			if got := s.health(); got != "DEGRADED KernelCallOverdue" {
				t.Errorf("health is %s", got)
			}
			for range 3 {
				want(t, s.stage(mountCapability("ext4")), codes.Aborted, append(c.words, "still in progress")...)
			}
			if len(s.kernel.Hanging) != 0 {
				t.Error("more than one thread hangs for the volume")
			}
			// Others go on, and come.
			if overdue := s.service.Overdue(); len(overdue) != 1 {
				t.Errorf("overdue is %v", overdue)
			}
			must(t, s.stageOther("pvc-2"))
			must(t, s.stageOther("pvc-3"))
			select {
			case err := <-ended:
				t.Fatalf("the call that hangs answered %v", err)
			default:
			}

			release()
			must(t, <-ended)
			s.untilNothingIsOverdue()
		})
	}
}

// A controller that the kernel does not take away concerns its own volume only, too. The call that waits for it ends.
func TestDeletionThatHangsConcernsItsOwnVolumeOnly(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	release := s.kernel.Stick("nvme0")
	ended := make(chan error, 1)
	go func() { ended <- s.unstage() }()
	<-s.kernel.Hanging
	s.clock.Step(2 * doing.Limit)
	if overdue := s.service.Overdue(); len(overdue) != 1 || overdue[vol].What != "deleting nvme0" {
		t.Errorf("overdue is %v", overdue)
	}
	if got := s.health(); !strings.Contains(got, "DEGRADED KernelCallOverdue") {
		t.Errorf("health is %s", got)
	}
	must(t, s.stageOther("pvc-3"))
	release()
	must(t, <-ended)
	s.untilNothingIsOverdue()
}

// A connection that the kernel does not finish is in the way of every other: that is refused at once, with the reason,
// and what is connected is not.
func TestConnectionThatHangsTakesNoFurtherVolume(t *testing.T) {
	s := setUp(t)
	must(t, s.stageOther("pvc-2"))
	release := s.kernel.Hold()
	ended := make(chan error, 1)
	go func() { ended <- s.stage(blockCapability()) }()
	<-s.kernel.Hanging
	s.clock.Step(2 * doing.Limit)
	const words = "connecting to " + v1alpha1.NQNPrefix + "pvc-1-r1:" + attachment + " over TCP at 10.0.0.1:4420 has not returned since"
	want(t, s.stageOther("pvc-3"), codes.Unavailable, "this node accepts no more volumes until its kernel has finished: "+words)
	must(t, s.stageOther("pvc-2"))
	if overdue := s.service.Overdue(); len(overdue) != 0 {
		t.Errorf("%v is said of a volume, too", overdue)
	}
	release()
	must(t, <-ended)
	must(t, s.stageOther("pvc-3"))
}
