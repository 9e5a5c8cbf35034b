// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// followInterval is that of the node plugin.
const followInterval = 5 * time.Minute

// restarted is a node plugin that has just started on the same machine.
func (s *suite) restarted() *node.Service {
	return &node.Service{
		NodeName: s.service.NodeName, NodeUID: s.service.NodeUID, Initiator: s.service.Initiator, Mapper: s.service.Mapper, Filesystems: s.service.Filesystems,
		Records: s.service.Records, Volumes: s.service.Volumes, Clock: s.clock,
	}
}

// The volume's node got another address: its connections wait for the former one.
func TestPathsFollowANodeThatGetsAnotherAddress(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.service.MendPaths(t.Context()))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.serveAt(secondPortal)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "INACCESSIBLE PathDown")

	s.context.Portals = []v1alpha1.Portal{second}
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "")
	if made := s.kernel.Creations(); len(made) != 2 || !strings.Contains(made[1], "traddr=10.0.0.2") {
		t.Errorf("created %q", made)
	}
	must(t, s.unstage())
	s.wantGone()
}

// A portal that is added gets a path, and one that is taken away loses its own, within followInterval; a node plugin
// that was restarted looks at once.
func TestPathsFollowThePortalsOfAHealthyVolume(t *testing.T) {
	s := setUp(t)
	s.serveAt(firstPortal, secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.service.MendPaths(t.Context()))
	s.context.Portals = []v1alpha1.Portal{first, second}
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "")
	s.clock.Step(followInterval)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")

	s.context.Portals = []v1alpha1.Portal{second}
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")
	must(t, s.restarted().MendPaths(t.Context()))
	s.wantPaths(1, "")
}

// Nobody knows whether a portal that cannot be reached ever will be: the path that there is stays.
func TestFormerPathStaysUntilAnotherIsLive(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	s.context.Portals = []v1alpha1.Portal{second}
	reachable := s.service.Initiator.(*fabrics.Host).Reachable
	s.service.Initiator.(*fabrics.Host).Reachable = func(context.Context, string) error { return os.NewSyscallError("connect", syscall.EHOSTUNREACH) }
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "DEGRADED PathLost")

	s.service.Initiator.(*fabrics.Host).Reachable = reachable
	s.serveAt(firstPortal, secondPortal)
	s.clock.Step(time.Minute)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "")
}

// counting counts what is read.
type counting struct {
	client.Reader
	reads int
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	c.reads++
	return c.Reader.Get(ctx, key, into, options...)
}

// While the API server does not answer, what is known is mended, and it is asked once for all volumes.
func TestKnownPortalsAreMendedWithoutTheAPIServer(t *testing.T) {
	s := setUp(t)
	must(t, s.stageOther("pvc-2"))
	s.listen(secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	api := &counting{Reader: silentAPI{}}
	s.service.Volumes = api
	s.listen(firstPortal, secondPortal)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(3, "")
	if api.reads != 1 {
		t.Errorf("it was asked %d times", api.reads)
	}
}

// An object that was removed by force, its finalizers with it, says nothing about other volumes.
func TestVolumeWithoutAnObjectKeepsNoOtherFromBeingFollowed(t *testing.T) {
	s := setUp(t)
	must(t, s.stageOther("pvc-0"))
	must(t, s.stage(mountCapability("ext4")))
	delete(s.objects, "pvc-0")
	s.serveAt(secondPortal)
	must(t, s.kernel.SetState("nvme1", "connecting"))
	s.context.Portals = []v1alpha1.Portal{second}
	must(t, s.service.MendPaths(t.Context()))
	if left := s.kernel.Controllers(); len(left) != 2 {
		t.Errorf("controllers %v", left)
	}
	if got := s.health(); got != "" {
		t.Errorf("health %q", got)
	}
}

// A volume that is attached elsewhere by now, or that another volume has taken the name of, is not followed.
func TestOtherAttachmentsAreNotFollowed(t *testing.T) {
	for name, change := range map[string]func(*suite){
		"attached elsewhere": func(s *suite) { s.context.Attachment = "b2b2b2b2-2222-4333-8444-555555555555" },
		"another volume":     func(s *suite) { s.context.NGUID = strings.Repeat("f", 32) },
		"not admitted yet":   func(s *suite) { s.objects[vol].Portals = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.serveAt(firstPortal, secondPortal)
			must(t, s.stage(mountCapability("ext4")))
			s.context.Portals = []v1alpha1.Portal{second}
			change(s)
			must(t, s.service.MendPaths(t.Context()))
			if made := s.kernel.Creations(); len(made) != 1 || len(s.kernel.Controllers()) != 1 {
				t.Errorf("created %q", made)
			}
		})
	}
}

// A node connects to what the volume's object says when it is staged, not to what it said when it was published.
func TestStageReadsTheObject(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*suite)
		code   codes.Code
		words  string
	}{
		"the API server does not answer": {func(s *suite) { s.service.Volumes = silentAPI{} }, codes.Unavailable, "connection refused"},
		"no such volume":                 {func(s *suite) { delete(s.objects, vol) }, codes.Unavailable, "not found"},
		"the attachment has ended": {
			func(s *suite) { s.service.Volumes = apiWith(s, volumeOf(volumeUUID, anotherHost)) }, codes.FailedPrecondition, "has ended; delete the pod",
		},
		"not admitted yet": {
			func(s *suite) { s.service.Volumes = apiWith(s, volumeOf(volumeUUID, s.context.HostNQN())) }, codes.Unavailable, "does not admit attachment",
		},
		"no portal": {func(s *suite) { s.context.Portals = nil }, codes.Unavailable, "has no portal"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			want(t, s.stage(mountCapability("ext4")), c.code, c.words)
			s.wantGone()
		})
	}
	t.Run("the volume's node has moved", func(t *testing.T) {
		s := setUp(t)
		s.serveAt(secondPortal)
		s.context.Portals = []v1alpha1.Portal{second}
		must(t, s.stage(mountCapability("ext4")))
		s.wantPaths(1, "")
	})
}

// What this build and those before wrote. Add what is written when the format changes; never change what is here.
func TestRecordsOfEarlierBuilds(t *testing.T) {
	for name, text := range map[string]string{
		"version 1": `{"version":1,"nqn":"nqn.2026-11.storage.weft:pvc-1:` + attachment + `","nguid":"` + nguid + `","attachment":"` + attachment +
			`","sizeBytes":16777216,"portals":[{"transport":"TCP","address":"10.0.0.1","port":4420},{"transport":"TCP","address":"10.0.0.2","port":4420}],` +
			`"connection":{"ioQueues":4,"queueDepth":64,"ctrlLossTimeoutSeconds":600}}`,
		"version 1, with the staging path": `{"version":1,"nqn":"nqn.2026-11.storage.weft:pvc-1:` + attachment + `","nguid":"` + nguid + `","attachment":"` +
			attachment + `","sizeBytes":16777216,"portals":[{"transport":"TCP","address":"10.0.0.1","port":4420},{"transport":"TCP","address":"10.0.0.2","port":4420}],` +
			`"connection":{"ioQueues":4,"queueDepth":64,"ctrlLossTimeoutSeconds":600},"staging":"/var/lib/kubelet/plugins/kubernetes.io/csi/csi.weft.storage/a/globalmount"}`,
		"version 1, without settings, and with a key that was added later": `{"version":1,"nqn":"nqn.2026-11.storage.weft:pvc-1:` + attachment +
			`","nguid":"` + nguid + `","attachment":"` + attachment + `","sizeBytes":16777216,"addedLater":{"x":1},` +
			`"portals":[{"transport":"TCP","address":"10.0.0.1","port":4420},{"transport":"TCP","address":"10.0.0.2","port":4420}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.serveAt(firstPortal, secondPortal)
			must(t, s.stage(mountCapability("ext4")))
			must(t, os.WriteFile(filepath.Join(s.service.Records, vol+".json"), []byte(text), 0o600))
			must(t, s.publish(mountCapability("ext4"), "pods/a", false))
			s.service.Volumes = silentAPI{}
			must(t, s.service.MendPaths(t.Context()))
			s.wantPaths(2, "")
		})
	}
}

func TestRecordsThatCannotBeUnderstood(t *testing.T) {
	for text, words := range map[string]string{
		`{"version":2}`: "version 2, but this node plugin supports 1",
		`{"version":1,"nqn":"nqn.2026-11.storage.weft:pvc-2:` + attachment + `"}`: "belongs to another volume",
		`{"version":1,"nqn":"nqn.2026-11.storage.weft:pvc-1:` + attachment + `"}`: "is incomplete",
		`{`: "unexpected end",
	} {
		s := setUp(t)
		must(t, s.stage(blockCapability()))
		must(t, os.WriteFile(filepath.Join(s.service.Records, vol+".json"), []byte(text), 0o600))
		if err := s.service.MendPaths(t.Context()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q in it", err, words)
		}
		must(t, s.publish(blockCapability(), "pods/a", false)) // which stages it, and so writes it again
		must(t, s.service.MendPaths(t.Context()))
		s.wantShown(2)
	}
}
