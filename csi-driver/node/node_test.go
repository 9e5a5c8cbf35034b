// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

func TestInfo(t *testing.T) {
	s := setUp(t)
	info, err := s.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	must(t, err)
	if info.GetNodeId() != "n1" || info.GetMaxVolumesPerNode() != 7 {
		t.Errorf("got %v", info)
	}
	// csi-provisioner publishes capacity only of drivers with a topology key; a value that differs between nodes would
	// bind volumes to some of them.
	if got := info.GetAccessibleTopology().GetSegments(); !maps.Equal(got, map[string]string{"weft.storage/reaches": "volumes"}) {
		t.Errorf("topology is %v", got)
	}
}

func TestLifeOfAFilesystemVolume(t *testing.T) {
	s := setUp(t)
	c := mountCapability("", "noatime")
	must(t, s.stage(c))
	s.wantMounts("staging ext4 rw")
	must(t, s.publish(c, "pods/a", false))
	must(t, s.publish(c, "pods/b", true))
	s.wantMounts("staging ext4 rw; pods/a ext4 rw; pods/b ext4 ro")

	// Again: the same answers, and nothing twice.
	must(t, s.stage(c))
	must(t, s.publish(c, "pods/a", false))
	must(t, s.publish(c, "pods/b", true))
	s.wantMounts("staging ext4 rw; pods/a ext4 rw; pods/b ext4 ro")
	if got := s.kernel.Creations(); len(got) != 1 {
		t.Errorf("connected %d times", len(got))
	}

	for range 2 {
		must(t, s.unpublish("pods/a"))
		must(t, s.unpublish("pods/b"))
	}
	if _, err := os.Lstat(s.path("pods/a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target path still exists: %v", err)
	}
	for range 2 {
		must(t, s.unstage())
		s.wantGone()
	}
}

func TestLifeOfABlockVolume(t *testing.T) {
	s := setUp(t)
	c := blockCapability()
	for range 2 {
		must(t, s.stage(c))
		must(t, s.publish(c, "pods/dev/a", false))
		s.wantMounts("staging/device devtmpfs rw; pods/dev/a devtmpfs rw")
	}
	stats, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("pods/dev/a")})
	must(t, err)
	if u := stats.GetUsage(); len(u) != 1 || u[0].GetTotal() != size {
		t.Errorf("stats %v", stats)
	}
	for range 2 {
		must(t, s.unpublish("pods/dev/a"))
	}
	for range 2 {
		must(t, s.unstage())
		s.wantGone()
	}
	if left, err := os.ReadDir(s.path("staging")); err != nil || len(left) != 0 {
		t.Errorf("staging path holds %v, %v", left, err)
	}
}

func TestStagedReadOnly(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	} {
		c := mountCapability("ext4")
		c.AccessMode.Mode = mode
		must(t, s.stage(c))
		must(t, s.publish(c, "pods/a", false))
		s.wantMounts("staging ext4 ro; pods/a ext4 ro")
		s.wantDevice("dm-0", true) // else the kernel may replay a journal
		must(t, s.unpublish("pods/a"))
		must(t, s.unstage())
	}
}

// readers are the access modes in which nobody writes.
func readers() []*csi.VolumeCapability {
	var all []*csi.VolumeCapability
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	} {
		c := blockCapability()
		c.AccessMode.Mode = mode
		all = append(all, c)
	}
	return all
}

// binding tells of a device that is bound, before it is.
type binding struct {
	node.Filesystems
	seen func(device string)
}

func (b binding) BindDevice(ctx context.Context, device, target string, readOnly bool) error {
	b.seen(device)
	return b.Filesystems.BindDevice(ctx, device, target, readOnly)
}

// A container may write to any device node that it is given, so the kernel must refuse, before anybody has one.
func TestBlockVolumeReadOnly(t *testing.T) {
	for _, c := range readers() {
		s := setUp(t)
		must(t, s.stage(blockCapability()))
		must(t, s.unstage())
		s.service.Filesystems = binding{s.service.Filesystems, func(device string) { s.wantDevice(device, true) }}
		for range 2 {
			must(t, s.stage(c))
			must(t, s.publish(c, "pods/a", false))
		}
		s.wantMounts("staging/device devtmpfs ro; pods/a devtmpfs ro")
		want(t, s.stage(blockCapability()), codes.AlreadyExists, "read-only true")
		must(t, s.publish(blockCapability(), "pods/b", false)) // staged so, it stays so
		s.wantDevice("dm-0", true)
	}
}

// One device, and so one flag, for all pods of a node.
func TestBlockVolumePublishedReadOnly(t *testing.T) {
	s := setUp(t)
	c := blockCapability()
	must(t, s.stage(c))
	for _, step := range []struct {
		target   string
		readOnly bool
		want     bool
	}{
		{"pods/reads", true, true}, {"pods/reads-too", true, true}, {"pods/writes", false, false}, {"pods/reads-as-well", true, false},
	} {
		must(t, s.publish(c, step.target, step.readOnly))
		s.wantDevice("dm-0", step.want)
	}
}

// What kept writes from a volume does not outlive its stage.
func TestStagedForWritingAfterItWasReadOnly(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.kernel.Serve(nodetest.Subsystem{
				NQN: s.context.NQN, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.context.HostNQN()},
				Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: v1alpha1.WithOverhead(size)}, {NGUID: neighbour, SizeBytes: v1alpha1.WithOverhead(size)}},
			}))
			must(t, s.stage(c))
			must(t, s.unstage())
			reader := mountCapability("ext4")
			if c.GetBlock() != nil {
				reader = blockCapability()
			}
			reader.AccessMode = readers()[0].AccessMode
			must(t, s.stage(reader))
			s.wantDevice("dm-0", true)
			// Another volume of the same connection, which is in use.
			must(t, os.Mkdir(s.path("other"), 0o750))
			must(t, s.mounter.Mount(filepath.Join(s.kernel.Root, "dev/nvme0n2"), s.path("other"), "ext4", nil))
			must(t, s.unstage())
			must(t, s.stage(c))
			s.wantDevice("dm-0", false)
		})
	}
}

func TestFormatFence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*suite)
		fsType string
		words  []string
	}{
		"not blank": {
			func(s *suite) { s.context.Blank = false }, "ext4",
			[]string{"weft.storage/allow-format", "NvmfVolume pvc-1"},
		},
		"blank, but written since": {
			func(s *suite) {
				must(s, os.WriteFile(s.kernel.Backing(nguid), []byte(strings.Repeat("x", size)), 0o600))
			}, "ext4",
			[]string{"weft.storage/allow-format", "NvmfVolume pvc-1"},
		},
		"another filesystem": {
			func(s *suite) {
				must(s, s.stage(mountCapability("ext4")))
				must(s, s.unstage())
			}, "xfs", []string{"holds ext4", "xfs was asked for"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			before, err := os.ReadFile(s.kernel.Backing(nguid))
			must(t, err)
			want(t, s.stage(mountCapability(c.fsType)), codes.FailedPrecondition, c.words...)
			after, err := os.ReadFile(s.kernel.Backing(nguid))
			must(t, err)
			if string(before) != string(after) {
				t.Error("the volume was written to")
			}
			s.wantGone() // the kubelet will not unstage after such an error
		})
	}
}

func TestFormatAllowedByAnAdministrator(t *testing.T) {
	s := setUp(t)
	must(t, os.WriteFile(s.kernel.Backing(nguid), []byte(strings.Repeat("x", size)), 0o600))
	s.context.Blank, s.context.AllowFormat = false, true
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
}

func TestStageRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*suite)
		capability *csi.VolumeCapability
		code       codes.Code
		words      string
	}{
		"no capability":         {func(*suite) {}, nil, codes.InvalidArgument, "volume_capability"},
		"no access type":        {func(*suite) {}, &csi.VolumeCapability{AccessMode: blockCapability().AccessMode}, codes.InvalidArgument, "neither block nor mount"},
		"an unknown filesystem": {func(*suite) {}, mountCapability("btrfs"), codes.InvalidArgument, "use ext4 or xfs"},
		"a dangerous option":    {func(*suite) {}, mountCapability("ext4", "noatime", "nobarrier"), codes.InvalidArgument, "remove nobarrier"},
		"too small for xfs":     {func(*suite) {}, mountCapability("xfs"), codes.InvalidArgument, "at least 314572800 bytes"},
		"no publish context":    {func(s *suite) { s.context.Attachment = "" }, blockCapability(), codes.InvalidArgument, "attachment is missing"},
		"another replica's NQN": {func(s *suite) { s.context.NQN = v1alpha1.SubsystemNQN("pvc-2-r1", attachment) }, blockCapability(), codes.Unavailable, "NvmfReplica pvc-1-r1 has subsystem"},
		"a host not admitted":   {func(s *suite) { s.context.Attachment = "b2b2b2b2-2222-4333-8444-555555555555" }, blockCapability(), codes.PermissionDenied, "does not admit this host"},
		"nothing that listens":  {func(s *suite) { s.context.Portals[0].Port = 4499 }, blockCapability(), codes.Unavailable, "nothing listens"},
		"many nodes that write": {
			func(*suite) {}, &csi.VolumeCapability{
				AccessType: mountCapability("ext4").AccessType,
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			}, codes.InvalidArgument, "only for block volumes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			want(t, s.stage(c.capability), c.code, c.words)
			s.wantGone()
		})
	}
}

// Identity and size come before anything that touches the device, and the caller
// is told before its deadline what was missing.
func TestStageWaitsForTheRightNamespace(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*suite)
		words  string
	}{
		"another namespace": {func(s *suite) { s.context.NGUID = strings.Repeat("f", 32) }, "serves other namespaces: " + nguid},
		"too small":         {func(s *suite) { s.context.SizeBytes = 2 * size }, "25165824 bytes, and 41943040 were expected"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			c.change(s)
			must(t, os.Mkdir(s.path("staging"), 0o750))
			wantInTime(t, func(ctx context.Context) error {
				_, err := s.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
					VolumeId: vol, StagingTargetPath: s.path("staging"), VolumeCapability: mountCapability("ext4"), PublishContext: s.context.Encode(),
				})
				return err
			}, c.words)
			s.wantMounts("")
			must(t, s.unstage()) // which the kubelet does after this code
			s.wantGone()
		})
	}
}

func TestStagedTwiceInDifferentWays(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	want(t, s.stage(mountCapability("xfs")), codes.AlreadyExists, "ext4")
	s.wantMounts("staging ext4 rw")
	if len(s.kernel.Controllers()) != 1 {
		t.Error("a refused second staging disconnected the first")
	}
}

func TestPublishRefuses(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	want(t, s.publish(blockCapability(), "pods/a", false), codes.AlreadyExists, "another volume mode")
	s.wantMounts("staging ext4 rw")
	must(t, s.publish(mountCapability("ext4"), "pods/a", false))
	want(t, s.publish(mountCapability("ext4"), "pods/a", true), codes.AlreadyExists, "read-only")

	single := mountCapability("ext4")
	single.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	must(t, s.publish(single, "pods/a", false))
	want(t, s.publish(single, "pods/b", false), codes.FailedPrecondition, "pods/a")
}

func TestUnstageRefusesWhatIsStillPublished(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.publish(mountCapability("ext4"), "pods/a", false))
	for range 2 {
		want(t, s.unstage(), codes.FailedPrecondition, "pods/a")
	}
	if len(s.kernel.Controllers()) != 1 {
		t.Fatal("a volume in use was disconnected")
	}
	must(t, s.unpublish("pods/a"))
	must(t, s.unstage())
	s.wantGone()
}

func TestUnstageTakesAwayWhatEarlierAttachmentsConnected(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			s.attach()
			release := s.kernel.Stick("nvme0")
			wantInTime(t, func(ctx context.Context) error {
				_, err := s.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: s.path("staging")})
				return err
			}, "nvme0", "deleting")
			release()
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// The volume was taken from this node by force, and comes back to it. What is mounted still is out of date, and what
// was written to it must not reach the volume any more. The kubelet that has not unstaged the volume asks for no stage.
func TestAttachedAgainAfterAnEarlierAttachment(t *testing.T) {
	for name, c := range map[string]struct {
		capability *csi.VolumeCapability
		staged     bool // by the kubelet
	}{
		"filesystem":                     {mountCapability("ext4"), true},
		"block":                          {blockCapability(), true},
		"filesystem, which is published": {mountCapability("ext4"), false},
		"block, which is published":      {blockCapability(), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c.capability))
			must(t, s.publish(c.capability, "pods/a", false))
			must(t, s.kernel.SetState("nvme0", "connecting"))
			before := s.context
			s.attach()

			release := s.kernel.Stick("nvme0")
			made, mounts := len(s.kernel.Creations()), s.mounts()
			wantCodeInTime(t, codes.Aborted, func(ctx context.Context) error {
				if !c.staged {
					return s.publishIn(ctx, c.capability, "pods/b", false)
				}
				return s.stageIn(ctx, c.capability)
			}, "an earlier attachment of the volume is not gone", "nvme0")
			if got := s.kernel.Creations()[made:]; len(got) != 0 || s.mounts() != mounts {
				t.Errorf("created %q, mounted %s", got, s.mounts())
			}
			release()

			if c.staged {
				must(t, s.stage(c.capability))
			}
			must(t, s.publish(c.capability, "pods/b", false))
			s.wantShown(2)
			if len(s.kernel.Controllers()) != 1 {
				t.Errorf("it is connected through %v", s.kernel.Controllers())
			}
			// A late call for the attachment that has ended disturbs nothing.
			now := s.context
			s.objects[vol], s.context = &now, before
			want(t, s.publish(c.capability, "pods/c", false), codes.FailedPrecondition, before.Attachment, "has ended")
			s.context = now
			s.wantShown(2)
		})
	}
}

// The connections of the attachment that was revoked are given up, and with them all that was known of it goes.
func TestPublishAfterTheRevokedAttachmentWasGivenUp(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			must(t, s.kernel.SetState("nvme0", "connecting"))
			s.context.Revoked = true
			must(t, s.service.GiveUpRevoked(t.Context()))
			s.context.Revoked = false
			s.attach()
			must(t, s.publish(c, "pods/a", false))
			s.wantShown(2)
			must(t, s.unpublish("pods/a"))
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// Those who share a volume keep its subsystem, so that the device has the same name in the next attachment.
func TestPublishOfASharedVolumeStagesForItsOwnAttachment(t *testing.T) {
	s := setUp(t)
	c := blockCapability()
	must(t, s.stage(c))
	s.context.Attachment = "b2b2b2b2-2222-4333-8444-555555555555"
	s.serve(size)
	must(t, s.publish(c, "pods/a", false))
	s.wantShown(2)
	if got := s.kernel.Creations(); len(got) != 2 || !strings.Contains(got[1], "hostnqn="+s.context.HostNQN()) {
		t.Errorf("created %q", got)
	}
}

// The volume is attached to another machine that had this one's name, and may use it still.
func TestStageRefusesTheAttachmentOfAnotherMachine(t *testing.T) {
	s := setUp(t)
	s.context.NodeUID = "99999999-2222-4333-8444-555555555555"
	want(t, s.stage(mountCapability("ext4")), codes.FailedPrecondition, "UID 99999999", "this Node has UID "+uid)
	s.service.NodeUID = func(context.Context) (string, error) { return "", errors.New("no answer") }
	want(t, s.stage(mountCapability("ext4")), codes.Unavailable, "no answer")
	if got := s.kernel.Creations(); len(got) != 0 {
		t.Errorf("created %q", got)
	}
}

func TestUnstageRefusesAnotherVolumesPath(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	_, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "pvc-2", StagingTargetPath: s.path("staging")})
	want(t, err, codes.FailedPrecondition, "volume pvc-1")
	s.wantMounts("staging ext4 rw")
}

// A target that answers a reconnect with "do not retry" makes Linux 6.10 and later drop the controller.
func TestBackAfterTheConnectionWasLost(t *testing.T) {
	// Another volume may get the device's name meanwhile; else the volume gets it again.
	other := nodetest.Subsystem{
		NQN: v1alpha1.SubsystemNQN("pvc-2", attachment), Portals: []string{"10.0.0.1:4420"},
		Namespaces: []nodetest.Namespace{{NGUID: strings.Repeat("f", 32), SizeBytes: v1alpha1.WithOverhead(size)}},
	}
	for name, c := range map[string]struct {
		capability        *csi.VolumeCapability
		nameTaken, staged bool // staged by the kubelet, which asks for it only once
	}{
		"filesystem":             {mountCapability("ext4"), false, true},
		"filesystem, name taken": {mountCapability("ext4"), true, false},
		"block":                  {blockCapability(), false, false},
		"block, name taken":      {blockCapability(), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c.capability))
			must(t, s.publish(c.capability, "pods/a", false))
			before := s.mounts()
			must(t, s.kernel.Drop("nvme0"))
			if c.nameTaken {
				other.Hosts = []string{s.context.HostNQN()}
				must(t, s.kernel.Serve(other))
				_, err := s.kernel.Create("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + other.NQN + ",hostnqn=" + s.context.HostNQN())
				must(t, err)
			}
			if c.staged {
				must(t, s.stage(c.capability))
			}
			must(t, s.publish(c.capability, "pods/a", false))
			if s.mounts() != before {
				t.Errorf("mounts were %q and are %q", before, s.mounts())
			}
			table, err := s.mounter.Table()
			must(t, err)
			if strings.Contains(table, "deleted") || strings.Contains(table, " 253:0 ") {
				t.Errorf("the lost device is still mounted:\n%s", table)
			}
			if left := s.kernel.Mapped(); len(left) != 1 {
				t.Errorf("there are %v", left)
			}
			must(t, s.unpublish("pods/a"))
			must(t, s.unstage())
			s.wantMounts("")
		})
	}
}

func TestUnstageAfterTheConnectionWasLost(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.Drop("nvme0"))
	must(t, s.unstage())
	s.wantGone()
}

func TestUnstageSucceedsOnlyWhenTheLastPathIsGone(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	release := s.kernel.Stick("nvme0")
	for range 2 {
		wantInTime(t, func(ctx context.Context) error {
			_, err := s.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: s.path("staging")})
			return err
		}, "nvme0", "deleting")
	}
	release()
	must(t, s.unstage())
	s.wantGone()
}

// A mount on a device without a path cannot be broken off.
func TestCallThatHangsLocksItsOwnVolumeOnly(t *testing.T) {
	s := setUp(t)
	release := s.mounter.Block(s.path("staging"))
	must(t, os.Mkdir(s.path("staging"), 0o750))
	r := &csi.NodeStageVolumeRequest{
		VolumeId: vol, StagingTargetPath: s.path("staging"), VolumeCapability: mountCapability("ext4"), PublishContext: s.context.Encode(),
	}
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-s.kernel.Hanging
		giveUp()
	}()
	_, err := s.service.NodeStageVolume(ctx, r)
	want(t, err, codes.Canceled, "staging of volume pvc-1 (mounting ", "/staging has not returned since ")
	want(t, s.stage(mountCapability("ext4")), codes.Aborted, "staging of volume pvc-1 (mounting ", "/staging has not returned since ", " is still in progress")
	_, err = s.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "pvc-2", TargetPath: s.path("other")})
	must(t, err)
	release()
	must(t, s.service.Wait(t.Context()))
	must(t, s.stage(mountCapability("ext4")))
	s.wantMounts("staging ext4 rw")
}

func TestExpand(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(c))
			must(t, s.publish(c, "pods/a", false))
			s.serve(2 * size)
			r := &csi.NodeExpandVolumeRequest{
				VolumeId: vol, VolumePath: s.path("pods/a"), StagingTargetPath: s.path("staging"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
			}
			for range 2 {
				got, err := s.NodeExpandVolume(t.Context(), r)
				must(t, err)
				if got.GetCapacityBytes() != 2*size {
					t.Errorf("got %v", got)
				}
			}
			r.CapacityRange.RequiredBytes = 4 * size
			wantInTime(t, func(ctx context.Context) error {
				_, err := s.NodeExpandVolume(ctx, r)
				return err
			}, "75497472 were expected")
			r.CapacityRange = &csi.CapacityRange{LimitBytes: size}
			_, err := s.NodeExpandVolume(t.Context(), r)
			want(t, err, codes.InvalidArgument, "limit")
			r.VolumePath, r.StagingTargetPath = s.path("absent"), ""
			_, err = s.NodeExpandVolume(t.Context(), r)
			want(t, err, codes.NotFound)
		})
	}
}

func TestGrownWhileNotAttached(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.serve(2 * size)
	s.context.SizeBytes = 2 * size
	must(t, s.stage(mountCapability("ext4")))
	data, err := os.ReadFile(s.kernel.Backing(nguid))
	must(t, err)
	// ext4's superblock, at 1 KiB: the low half of its count of blocks at offset 4, log2(block size) - 10 at offset 24.
	blocks := int64(data[1028]) | int64(data[1029])<<8 | int64(data[1030])<<16 | int64(data[1031])<<24
	if got := blocks << (10 + data[1048]); got != 2*size {
		t.Errorf("the filesystem has %d bytes, want %d", got, 2*size)
	}
}

func TestStatsRefuse(t *testing.T) {
	s := setUp(t)
	for path, code := range map[string]codes.Code{"": codes.InvalidArgument, s.path("absent"): codes.NotFound, s.dir: codes.NotFound} {
		_, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: path})
		want(t, err, code)
	}
}

func TestStatsOfAFilesystem(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	got, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("staging")})
	must(t, err)
	if u := got.GetUsage(); len(u) != 2 || u[0].GetTotal() < u[0].GetUsed()+u[0].GetAvailable() || u[1].GetUnit() != csi.VolumeUsage_INODES {
		t.Errorf("got %v", got)
	}
}

func TestRequestsWithoutTheirFields(t *testing.T) {
	s := setUp(t)
	ctx := t.Context()
	for _, call := range map[string]func() error{
		"stage":    func() error { _, err := s.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: vol}); return err },
		"stage id": func() error { _, err := s.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{}); return err },
		"unstage": func() error {
			_, err := s.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: vol})
			return err
		},
		"publish": func() error {
			_, err := s.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: vol})
			return err
		},
		"unpublish": func() error {
			_, err := s.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: vol})
			return err
		},
		"expand": func() error {
			_, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: vol})
			return err
		},
	} {
		want(t, call(), codes.InvalidArgument, "is missing")
	}
}

func TestCallsAtOnce(t *testing.T) {
	s := setUp(t)
	c := mountCapability("ext4")
	results := make(chan error)
	const n = 8
	for range n {
		go func() { results <- s.stage(c) }()
	}
	done := 0
	for range n {
		switch err := <-results; status.Code(err) {
		case codes.OK:
			done++
		case codes.Aborted:
		default:
			t.Error(err)
		}
	}
	if done == 0 {
		t.Error("none succeeded")
	}
	s.wantMounts("staging ext4 rw")
	if _, err := os.Stat(filepath.Join(s.dir, "staging")); err != nil {
		t.Error(err)
	}
}
