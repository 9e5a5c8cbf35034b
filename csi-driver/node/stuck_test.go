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
	testingclock "k8s.io/utils/clock/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/stuck"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// looks gives what each look of the watch found: it waits until the test has taken it.
type looks chan *stuck.Error

func (l looks) Stuck(context.Context) (bool, error) { return false, nil }

func (l looks) Write(ctx context.Context, what *stuck.Error) error {
	select {
	case l <- what:
	case <-ctx.Done():
	}
	return nil
}

// watching is a watch that looks when the test says so.
type watching struct {
	testing.TB
	looks
	clock *testingclock.FakeClock
}

// runWatch starts a watch with its clock, and takes its first look, which finds nothing.
func runWatch(t testing.TB, w *stuck.Watch, clock *testingclock.FakeClock, going stuck.Controllers) watching {
	t.Helper()
	l := make(looks)
	done := make(chan error)
	ctx, stop := context.WithCancel(context.Background())
	go func() { done <- w.Run(ctx, going, l) }()
	t.Cleanup(func() {
		stop()
		must(t, <-done)
	})
	if what := <-l; what != nil {
		t.Fatalf("the first look found %v", what)
	}
	return watching{t, l, clock}
}

// until looks until one finds something stuck, or nothing any more. The time in between is the watch's clock's.
func (w watching) until(isStuck bool) *stuck.Error {
	w.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; {
		w.clock.Step(stuck.Interval)
		if what := <-w.looks; (what != nil) == isStuck {
			return what
		}
	}
	w.Fatalf("stuck is not %t within a minute", isStuck)
	return nil
}

// stageOther stages another volume than the suite's, pvc- and a digit, for raw use.
func (s *suite) stageOther(id string) error {
	s.Helper()
	guid := strings.Repeat(strings.TrimPrefix(id, "pvc-"), 32)
	must(s, s.kernel.Serve(nodetest.Subsystem{
		NQN: v1alpha1.SubsystemNQN(id), Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.service.HostNQN},
		Namespaces: []nodetest.Namespace{{NGUID: guid, SizeBytes: size}},
	}))
	at := publishcontext.Context{NQN: v1alpha1.SubsystemNQN(id), NGUID: guid, SizeBytes: size, Portals: s.context.Portals, Connection: v1alpha1.Connection{IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1}}
	_, err := s.NodeStageVolume(s.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: s.path("staging-" + id), VolumeCapability: blockCapability(), PublishContext: at.Encode(),
	})
	return err
}

// hanging runs the words after the first two, when it is released.
const hanging = `mkdir "$0/$$"; printf '\nState:\tD\nvoluntary_ctxt_switches:\t1\n' > "$0/$$/status"; read -r word < "$1"; shift; exec "$@"`

// hold makes a program's processes hang in an uninterruptible sleep, as far as proc shows it, until release is called.
func (s *suite) hold(program string) (release func()) {
	s.Helper()
	until := s.path("until")
	must(s, syscall.Mkfifo(until, 0o600))
	s.programs.instead = func(name string, args []string) (string, []string) {
		if name != program {
			return name, args
		}
		return "sh", append([]string{"-c", hanging, s.path("proc"), until, name}, args...)
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

// What the kernel does not finish keeps further volumes away, with the reason, and nothing else.
func TestStuckKernelTakesNoFurtherVolume(t *testing.T) {
	for name, c := range map[string]struct {
		// hang makes a call for the suite's volume hang until it is released.
		hang   func(s *suite) (release func(), call func() error)
		reason string
		words  []string
	}{
		"a controller that stays in deleting": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(blockCapability()))
				return s.kernel.Stick("nvme1"), s.unstage
			},
			v1alpha1.ReasonControllerStuck, []string{"nvme1 (TCP 10.0.0.1 port 4420, deleting) is being deleted since 2026-11-22T00:"},
		},
		"a mount": {
			func(s *suite) (func(), func() error) {
				return s.mounter.Block(), func() error { return s.stage(mountCapability("ext4")) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"mounting at ", "/staging has not returned since 2026-11-22T00:"},
		},
		"an unmount": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(mountCapability("ext4")))
				return s.mounter.Block(), s.unstage
			},
			v1alpha1.ReasonKernelCallStuck, []string{"unmounting ", "/staging has not returned since"},
		},
		"a connect": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Hold(), func() error { return s.stage(blockCapability()) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"connecting to traddr 10.0.0.1, trsvcid 4420, nqn " + v1alpha1.SubsystemNQN(vol) + " has not returned since"},
		},
		"a device that does not open": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Opening), func() error { return s.stage(blockCapability()) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"opening ", "/dev/nvme1n1 has not returned since 2026-11-22T00:"},
		},
		"a device that does not read": {
			func(s *suite) (func(), func() error) {
				return s.kernel.Block(nodetest.Reading), func() error { return s.stage(mountCapability("ext4")) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"reading ", "/dev/nvme1n1 has not returned since 2026-11-22T00:"},
		},
		"a probe": {
			func(s *suite) (func(), func() error) {
				return s.hold("blkid"), func() error { return s.stage(mountCapability("ext4")) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"running ", " blkid --probe ", "/dev/nvme1n1 has not returned since 2026-11-22T00:"},
		},
		"a mkfs": {
			func(s *suite) (func(), func() error) {
				return s.hold("mkfs.ext4"), func() error { return s.stage(mountCapability("ext4")) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"running ", " mkfs.ext4 ", "/dev/nvme1n1 has not returned since 2026-11-22T00:"},
		},
		"a growth": {
			func(s *suite) (func(), func() error) {
				must(s, s.stage(mountCapability("ext4")))
				must(s, s.unstage())
				s.serve(2 * size)
				s.context.SizeBytes = 2 * size
				return s.hold("resize2fs"), func() error { return s.stage(mountCapability("ext4")) }
			},
			v1alpha1.ReasonKernelCallStuck, []string{"running ", " resize2fs ", "/dev/nvme1n1 has not returned since 2026-11-22T00:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stageOther("pvc-2")) // nvme0
			w := runWatch(s, s.watch, s.clock, s.going)
			release, call := c.hang(s)
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			// Before that the watch's clock must not go on: to it, what is merely on its way would have taken minutes.
			<-s.kernel.Hanging

			what := w.until(true)
			if what.Reason != c.reason {
				t.Errorf("reason %s, want %s", what.Reason, c.reason)
			}
			connections := len(s.kernel.Creations())
			want(t, s.stageOther("pvc-3"), codes.Unavailable, append(c.words, "takes no further volume")...)
			if got := len(s.kernel.Creations()); got != connections {
				t.Error("a connection was tried")
			}
			must(t, s.stageOther("pvc-2"))
			select {
			case err := <-ended:
				t.Fatalf("the call that hangs answered %v", err)
			default:
			}

			release()
			must(t, <-ended)
			if what := w.until(false); what != nil {
				t.Error(what)
			}
			must(t, s.stageOther("pvc-3"))
		})
	}
}
