// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// followInterval is that of the node plugin.
const followInterval = 5 * time.Minute

// restarted is a node plugin that has just started on the same machine.
func (s *suite) restarted() *node.Service {
	return &node.Service{
		NodeName: s.service.NodeName, NodeUID: s.service.NodeUID, Initiator: s.service.Initiator, Mapper: s.service.Mapper, Filesystems: s.service.Filesystems,
		Records: s.service.Records, Volumes: s.service.Volumes, Clock: s.clock,
		Mirrors: s.service.Mirrors, Processes: s.service.Processes, MirrorRecords: s.service.MirrorRecords, MirrorGrace: s.service.MirrorGrace,
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
	s.kernel.ScanLate() // the other controller is live before the kernel has found the namespace through it
	s.clock.Step(time.Minute)
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(2, "")
	must(t, s.kernel.ScanNow())
	must(t, s.service.MendPaths(t.Context()))
	s.wantPaths(1, "")
}

// counting tells what is read.
type counting struct {
	client.Reader
	reads []string
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	c.reads = append(c.reads, fmt.Sprintf("%T %s", into, key.Name))
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
	if len(api.reads) != 1 {
		t.Errorf("it was asked for %v", api.reads)
	}
}

// What is staged costs the API server a read of each replica in followInterval, and one of the volume only while no
// path is live.
func TestWhatIsReadOfAStagedVolume(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	api := &counting{Reader: s.objects}
	s.service.Volumes = api
	keep := func(want ...string) {
		t.Helper()
		api.reads = nil
		must(t, s.service.MendPaths(t.Context()))
		must(t, s.service.GiveUpRevoked(t.Context()))
		if !slices.Equal(api.reads, want) {
			t.Errorf("read %q, want %q", api.reads, want)
		}
	}
	const volume, replica = "*v1alpha1.NvmfVolume pvc-1", "*v1alpha1.NvmfReplica pvc-1-r1"
	keep(replica)
	keep()
	s.clock.Step(followInterval)
	keep(replica)
	must(t, s.kernel.SetState("nvme0", "connecting"))
	keep(replica, volume)
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
		"another volume":     func(s *suite) { s.context.UUID = sourceUUID },
		"another replica":    func(s *suite) { s.context.NGUID = strings.Repeat("f", 32) },
		"another session":    func(s *suite) { s.context.NQN = v1alpha1.SubsystemNQN(s.context.Replica, uid) },
		"revoked":            func(s *suite) { s.context.Revoked = true },
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

// A node connects to what the volume's objects say when it is staged, not to what it said when it was published.
func TestStageReadsTheObjects(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*suite)
		code   codes.Code
		words  string
	}{
		"the API server does not answer": {func(s *suite) { s.service.Volumes = silentAPI{} }, codes.Unavailable, "connection refused"},
		"no such volume":                 {func(s *suite) { delete(s.objects, vol) }, codes.FailedPrecondition, "NvmfVolume pvc-1 is deleted"},
		"the CRD is gone":                {func(s *suite) { s.service.Volumes = withoutCRD{} }, codes.Unavailable, "could not find the requested resource"},
		"no such replica": {
			func(s *suite) { s.service.Volumes = apiWith(s, s.context.Volume(vol)) }, codes.Unavailable, "NvmfReplica pvc-1-r1: nvmfreplicas",
		},
		"the attachment has ended": {
			func(s *suite) { s.service.Volumes = apiWith(s, volumeOf(volumeUUID, anotherHost)) }, codes.FailedPrecondition, "has ended; delete the pod",
		},
		"not admitted yet": {
			edit(func(r *v1alpha1.NvmfReplica) { r.Status.Hosts = nil }), codes.Unavailable, "does not admit attachment " + attachment + " to NvmfReplica pvc-1-r1",
		},
		"the replica of another volume": {
			edit(func(r *v1alpha1.NvmfReplica) { r.Spec.Volume.Name = "pvc-2" }), codes.FailedPrecondition, "NvmfReplica pvc-1-r1 has UUID 0a0b0c0d-0e0f-4001-8203-040506070809 and is of volume pvc-2",
		},
		"the replica of a volume that had the name": {
			edit(func(r *v1alpha1.NvmfReplica) { r.Spec.Volume.UUID = sourceUUID }), codes.FailedPrecondition, "is of volume pvc-1 (" + sourceUUID + ")",
		},
		"another replica of the name": {
			edit(func(r *v1alpha1.NvmfReplica) { r.Spec.UUID = sourceUUID }), codes.FailedPrecondition, "lists it as a member with UUID 0a0b0c0d",
		},
		"the replica is of the session before": {
			edit(func(v *v1alpha1.NvmfVolume) { v.Spec.Session = sourceUUID }), codes.Unavailable, "but session " + sourceUUID + " of NvmfVolume pvc-1",
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
	t.Run("the volume is going", func(t *testing.T) { // it is served to whom it is attached to until that ends
		s := setUp(t)
		s.service.Volumes = apiWith(s, going(s.context.Volume(vol)), s.context.NvmfReplica(vol))
		must(t, s.stage(mountCapability("ext4")))
		s.wantPaths(1, "")
	})
	t.Run("the volume's node has moved", func(t *testing.T) {
		s := setUp(t)
		s.serveAt(secondPortal)
		s.context.Portals = []v1alpha1.Portal{second}
		must(t, s.stage(mountCapability("ext4")))
		s.wantPaths(1, "")
	})
}

// edited is an API server with one kind of object otherwise than Objects has it.
type edited[T client.Object] struct {
	client.Reader
	edit func(T)
}

func (e edited[T]) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	err := e.Reader.Get(ctx, key, into, options...)
	if object, is := into.(T); is && err == nil {
		e.edit(object)
	}
	return err
}

func edit[T client.Object](change func(T)) func(*suite) {
	return func(s *suite) { s.service.Volumes = edited[T]{s.service.Volumes, change} }
}

// The connection's settings are the volume's, and the size is what the replica's node serves of it: one that cannot
// grow is mounted all the same.
func TestWhoSaysWhatOfAVolume(t *testing.T) {
	s := setUp(t)
	edit(func(v *v1alpha1.NvmfVolume) { v.Spec.Connection.IOQueues, v.Spec.Size = 5, resource.MustParse("1Gi") })(s)
	edit(func(r *v1alpha1.NvmfReplica) {
		r.Spec.Connection.IOQueues, r.Spec.Size = 7, resource.MustParse("1Gi")
		r.Status.Size = resource.NewQuantity(size, resource.BinarySI)
	})(s)
	must(t, s.stage(mountCapability("ext4")))
	if made := s.kernel.Creations(); len(made) != 1 || !strings.Contains(made[0], "nr_io_queues=5") {
		t.Errorf("created %q", made)
	}
}

// A volume whose replica was replaced while its former attachment was cut off leaves nothing of the former replica.
func TestStageLeavesAFormerReplica(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.context.Replica, s.context.NGUID = "pvc-1-r2", strings.Repeat("f", 32)
	s.context.Attach(attachment)
	want(t, s.stage(mountCapability("ext4")), codes.AlreadyExists, "pvc-1-r1:"+attachment+", which is not a member any more")
	s.wantMounts("staging ext4 rw")

	s.context.Attach("b2b2b2b2-2222-4333-8444-555555555555")
	must(t, s.kernel.Serve(nodetest.Subsystem{
		NQN: s.context.NQN, Portals: []string{firstPortal}, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: s.context.NGUID, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	must(t, s.stage(mountCapability("ext4")))
	if left, err := s.service.Initiator.Subsystems(); err != nil || len(left) != 1 || len(left["pvc-1-r2"]) != 1 {
		t.Errorf("connected are %v (%v)", left, err)
	}
	must(t, s.unstage())
	s.wantGone()
}

// Without its record, a volume is identified by its object; nothing of it is here when all that is connected is of
// others.
func TestUnstageWithoutARecord(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	record := filepath.Join(s.service.Records, vol+".json")
	text, err := os.ReadFile(record)
	must(t, err)
	must(t, os.Remove(record))
	s.service.Volumes = silentAPI{}
	want(t, s.unstage(), codes.Unavailable, "NvmfVolume pvc-1: connection refused")
	s.service.Volumes = apiWith(t)
	want(t, s.unstage(), codes.FailedPrecondition, "shows volume "+volumeUUID)
	s.wantMounts("staging ext4 rw")

	s.service.Volumes = silentAPI{}
	must(t, os.WriteFile(record, text, 0o600))
	_, err = s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "pvc-2", StagingTargetPath: s.path("staging-pvc-2")})
	must(t, err)

	must(t, os.Remove(record))
	s.service.Volumes = s.objects
	must(t, s.unstage())
	s.wantGone()
}

// disconnects tells what was to be disconnected.
type disconnects struct {
	node.Initiator
	ids []fabrics.ID
}

func (d *disconnects) Disconnect(ctx context.Context, id fabrics.ID) error {
	d.ids = append(d.ids, id)
	return d.Initiator.Disconnect(ctx, id)
}

// What may not be in use when a volume is disconnected is its replica, by the record or, without one, by the
// NvmfVolume.
func TestUnstageDisconnectsTheReplica(t *testing.T) {
	for name, forget := range map[string]func(*suite){
		"with a record":    func(*suite) {},
		"without a record": func(s *suite) { must(s, os.Remove(filepath.Join(s.service.Records, vol+".json"))) },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(blockCapability()))
			forget(s)
			seen := &disconnects{Initiator: s.service.Initiator}
			s.service.Initiator = seen
			must(t, s.unstage())
			if want := []fabrics.ID{{NQN: s.context.NQN, NGUID: nguid}}; !slices.Equal(seen.ids, want) {
				t.Errorf("disconnected %v, want %v", seen.ids, want)
			}
			s.wantGone()
		})
	}
}

// What this build and those before wrote. Add what is written when the format changes; never change what is here.
func TestRecordsOfEarlierBuilds(t *testing.T) {
	for name, text := range map[string]string{
		"version 2": `{"version":2,"uuid":"0a0b0c0d-0e0f-4001-8203-040506070809","attachment":"` + attachment + `","sizeBytes":16777216,` +
			`"replicas":[{"name":"pvc-1","nqn":"nqn.2026-11.storage.weft:pvc-1:` + attachment + `","nguid":"` + nguid + `",` +
			`"portals":[{"transport":"TCP","address":"10.0.0.1","port":4420},{"transport":"TCP","address":"10.0.0.2","port":4420}]}],` +
			`"connection":{"ioQueues":4,"queueDepth":64,"ctrlLossTimeoutSeconds":600},"staging":"/var/lib/kubelet/plugins/kubernetes.io/csi/csi.weft.storage/a/globalmount"}`,
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
			s.context.UUID, s.context.Replica = "0a0b0c0d-0e0f-4001-8203-040506070809", vol // as of a volume that version 1 knew
			s.context.Attach(attachment)
			s.serveAt(firstPortal, secondPortal)
			must(t, s.stage(mountCapability("ext4")))
			must(t, os.WriteFile(filepath.Join(s.service.Records, vol+".json"), []byte(text), 0o600))
			must(t, s.publish(mountCapability("ext4"), "pods/a", false))
			s.service.Volumes = silentAPI{}
			must(t, s.service.MendPaths(t.Context()))
			s.wantPaths(2, "")
			must(t, s.unpublish("pods/a"))
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

func TestRecordsThatCannotBeUnderstood(t *testing.T) {
	for text, words := range map[string]string{
		`{"version":3}`: "version 3, but this node plugin supports 2",
		`{"version":2,"uuid":"` + volumeUUID + `","attachment":"` + attachment + `"}`: "is incomplete",
		`{"version":2,"uuid":"` + volumeUUID + `","attachment":"` + attachment + `","replicas":[{"name":"pvc-1-r2","nqn":"nqn.2026-11.storage.weft:pvc-1-r1:` + attachment +
			`","nguid":"` + nguid + `","portals":[{"transport":"TCP","address":"10.0.0.1","port":4420}]}]}`: "belongs to another volume",
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

// The access modes of a PersistentVolume can be changed while its attachments stay: a filesystem that several nodes may
// use is not mounted for writing.
func TestStageHoldsToTheAccessOfItsAttachment(t *testing.T) {
	reading := mountCapability("ext4")
	reading.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	for access, use := range map[v1alpha1.HostAccess]*csi.VolumeCapability{
		v1alpha1.AccessExclusive: mountCapability("ext4"), v1alpha1.AccessSharedRead: reading, v1alpha1.AccessSharedWrite: blockCapability(),
	} {
		s := setUp(t)
		must(t, s.stage(mountCapability("ext4"))) // there is a filesystem to read
		must(t, s.unstage())
		s.attach()
		s.context.Access = access
		if access != v1alpha1.AccessExclusive {
			want(t, s.stage(mountCapability("ext4")), codes.AlreadyExists, "delete the pods that use it on all nodes")
			s.wantGone()
		}
		must(t, s.stage(use))
	}
}
