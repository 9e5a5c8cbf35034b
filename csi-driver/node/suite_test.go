// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	testingclock "k8s.io/utils/clock/testing"
	utilexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/tracing"
)

const (
	uid = "11111111-2222-4333-8444-555555555555"
	// attachment of the volume to this node, the first one.
	attachment = "a1a1a1a1-2222-4333-8444-555555555555"
	vol        = "pvc-1"
	// volumeUUID is that of the volume, and nguid that of its replica.
	volumeUUID = "5a5b5c5d-5e5f-4051-9253-545556575859"
	nguid      = "0a0b0c0d0e0f40018203040506070809"
	size       = 16 << 20 // of the data
)

// suite is a node plugin on a constructed kernel, with the machine's own filesystem programs, behind its gRPC socket.
type suite struct {
	testing.TB
	csi.NodeClient
	kernel   *nodetest.Kernel
	mounter  *nodetest.Mounter
	programs *programs
	devices  *devices
	service  *node.Service
	dir      string
	context  nodetest.Attached
	secrets  map[string]string // that the kubelet sends with a stage and a publish
	objects  nodetest.Objects
	clock    *testingclock.FakeClock
}

func setUp(t testing.TB) *suite {
	t.Helper()
	for _, name := range []string{"blkid", "mkfs.ext4", "fsck.ext4", "resize2fs", "cryptsetup"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: install util-linux, cryptsetup-bin, and e2fsprogs 1.47 or later, and have /usr/sbin in PATH", err)
		}
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	k, err := nodetest.NewKernel(filepath.Join(dir, "root"))
	must(t, err)
	m, err := nodetest.NewMounter(k)
	must(t, err)
	clock := testingclock.NewFakeClock(time.Now())
	programs := &programs{Programs: nodetest.Programs{Interface: utilexec.New(), Kernel: k}}
	devices := &devices{DeviceMapper: k.DeviceMapper()}
	service := nodetest.NewService(nodetest.Config{
		Node: "n1", UID: uid, Root: k.Root, Records: filepath.Join(dir, "staged"),
		Kernel: k, Mounter: m, DeviceMapper: devices, Mirrors: k.Mirrors(), Programs: programs, Clock: clock, Events: k.Events,
	})
	service.MaxVolumes = 7
	s := &suite{
		TB: t, kernel: k, mounter: m, programs: programs, devices: devices, dir: dir, clock: clock, service: service,
		context: nodetest.New(vol, nguid),
	}
	s.context.UUID, s.context.NodeUID, s.context.SizeBytes = volumeUUID, uid, size
	s.context.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}}
	s.context.Attach(attachment)
	s.objects = nodetest.Objects{vol: &s.context}
	service.Volumes = s.objects
	s.serve(size)
	s.NodeClient = csi.NewNodeClient(s.dial(nil))
	t.Cleanup(func() { s.wantNoArgument("planted key", "DHHC-1:", "AGE-SECRET-KEY-") }) // what all keys of tests have
	return s
}

// dial serves the node service on a socket, to be traced unless there is no provider, and connects to it.
func (s *suite) dial(traces trace.TracerProvider) *grpc.ClientConn {
	s.Helper()
	dir, err := os.MkdirTemp("", "weft") // a socket's path has at most 107 bytes
	must(s, err)
	ctx, stop := context.WithCancel(tracing.NewContext(context.Background(), traces))
	listener, err := server.Listen(ctx, "unix://"+dir+"/csi.sock")
	must(s, err)
	done := make(chan error, 1)
	go func() {
		done <- server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) { csi.RegisterNodeServer(r, s.service) })
	}()
	conn, err := grpc.NewClient("unix://"+dir+"/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(s, err)
	s.Cleanup(func() {
		stop()
		err := errors.Join(conn.Close(), <-done, s.service.Wait(context.Background()), os.RemoveAll(dir))
		must(s, err)
	})
	return conn
}

// serve makes the target serve the volume with so many bytes of data.
func (s *suite) serve(sizeBytes int64) {
	s.Helper()
	s.serveAll(v1alpha1.WithOverhead(sizeBytes))
}

// serveAll is serve with the size of the namespace.
func (s *suite) serveAll(bytes int64) {
	s.Helper()
	must(s, s.kernel.Serve(nodetest.Subsystem{
		NQN: s.context.NQN, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.context.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: bytes}},
	}))
}

// attach the volume to this node again: the target serves it through another subsystem, and admits nobody to the
// former.
func (s *suite) attach() {
	s.Helper()
	must(s, s.kernel.Serve(nodetest.Subsystem{NQN: s.context.NQN}))
	s.context.Attach(uuid.NewString())
	s.serve(size)
}

func (s *suite) path(name string) string { return filepath.Join(s.dir, name) }

// capabilities of a volume that is mounted and of one that is not, by what they show to pods.
func capabilities() map[string]*csi.VolumeCapability {
	return map[string]*csi.VolumeCapability{"filesystem": mountCapability("ext4"), "block": blockCapability()}
}

func mountCapability(fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func (s *suite) stage(c *csi.VolumeCapability) error { return s.stageIn(s.Context(), c) }

func (s *suite) stageIn(ctx context.Context, c *csi.VolumeCapability) error {
	_, err := s.NodeStageVolume(ctx, s.stageRequest(c))
	return err
}

func (s *suite) stageRequest(c *csi.VolumeCapability) *csi.NodeStageVolumeRequest {
	s.Helper()
	must(s, os.MkdirAll(s.path("staging"), 0o750))
	return &csi.NodeStageVolumeRequest{
		VolumeId: vol, StagingTargetPath: s.path("staging"), VolumeCapability: c, PublishContext: s.context.Encode(), Secrets: s.secrets,
	}
}

func (s *suite) unstage() error { return s.unstageIn(s.Context()) }

func (s *suite) unstageIn(ctx context.Context) error {
	_, err := s.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: s.path("staging")})
	return err
}

func (s *suite) publish(c *csi.VolumeCapability, target string, readOnly bool) error {
	return s.publishIn(s.Context(), c, target, readOnly)
}

func (s *suite) publishIn(ctx context.Context, c *csi.VolumeCapability, target string, readOnly bool) error {
	_, err := s.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: vol, StagingTargetPath: s.path("staging"), TargetPath: s.path(target), VolumeCapability: c,
		PublishContext: s.context.Encode(), Readonly: readOnly, Secrets: s.secrets,
	})
	return err
}

func (s *suite) unpublish(target string) error {
	_, err := s.NodeUnpublishVolume(s.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: vol, TargetPath: s.path(target)})
	return err
}

// mounts gives what is mounted below the test's folder: path, type and ro or rw.
func (s *suite) mounts() string {
	s.Helper()
	data, err := s.mounter.Table()
	must(s, err)
	var all []string
	for line := range strings.Lines(data) {
		f := strings.Fields(line)
		mode, _, _ := strings.Cut(f[5], ",")
		all = append(all, strings.TrimPrefix(f[4], s.dir+"/")+" "+f[8]+" "+mode)
	}
	return strings.Join(all, "; ")
}

func (s *suite) wantMounts(want string) {
	s.Helper()
	if got := s.mounts(); got != want {
		s.Errorf("mounts %q, want %q", got, want)
	}
}

// wantShown wants the device of the volume that is attached now to be mounted, or bound, at so many places.
func (s *suite) wantShown(places int) {
	s.Helper()
	ns, err := s.service.Initiator.FindNamespace(fabrics.ID{NQN: s.context.NQN, NGUID: nguid})
	must(s, err)
	devices, err := s.service.Mapper.Over(ns.Name)
	must(s, err)
	if len(devices) != 1 || devices[0].Label != "weft-"+volumeUUID || devices[0].Attachment != s.context.Attachment {
		s.Fatalf("of %s is made %+v", ns.Name, devices)
	}
	shown, err := s.service.Filesystems.MountsOf(devices[0].Number, devices[0].Name)
	must(s, err)
	if len(shown) != places {
		s.Errorf("the volume is shown at %v", shown)
	}
}

// wantDevice to take no writes, or to take them.
func (s *suite) wantDevice(device string, readOnly bool) {
	s.Helper()
	got, err := s.kernel.ReadOnly(device)
	must(s, err)
	if got != readOnly {
		s.Errorf("%s: read-only %t, want %t", device, got, readOnly)
	}
}

func (s *suite) wantGone() {
	s.Helper()
	s.wantMounts("")
	if left := s.kernel.Mapped(); len(left) != 0 {
		s.Errorf("devices %v are left", left)
	}
	if left := s.kernel.Controllers(); len(left) != 0 {
		s.Errorf("controllers %v are left", left)
	}
}

func want(t testing.TB, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %v", err, code)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want %q in it", err, w)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantInTime wants a call to say, before its deadline, what it waited for. On a machine that is busy the answer may
// come after the caller has gone: it is given ever more time, up to half a minute.
func wantInTime(t testing.TB, call func(context.Context) error, words ...string) {
	t.Helper()
	wantCodeInTime(t, codes.DeadlineExceeded, call, words...)
}

// wantCodeInTime is wantInTime for a call that is answered with another code.
func wantCodeInTime(t testing.TB, code codes.Code, call func(context.Context) error, words ...string) {
	t.Helper()
	for limit := time.Second; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := call(ctx)
		told := err != nil && strings.Contains(err.Error(), words[0])
		if !told && status.Code(err) == codes.Aborted {
			<-ctx.Done() // what the call before left behind may end in this time
		}
		cancel()
		busy := status.Code(err) == codes.Aborted || status.Code(err) == codes.DeadlineExceeded
		if told || !busy || limit > 16*time.Second {
			want(t, err, code, words...)
			return
		}
	}
}

// devices of device mapper, of which some cannot be changed.
type devices struct {
	nodetest.DeviceMapper
	// fail gives the error of a step, by the name of its method; nil, or without an error, the step is done.
	fail func(step string) error
}

func (d *devices) failing(step string) error {
	if d.fail == nil {
		return nil
	}
	return d.fail(step)
}

// Load implements nodetest.DeviceMapper.
func (d *devices) Load(label string, t nodetest.Table) error {
	if err := d.failing("Load"); err != nil {
		return err
	}
	return d.DeviceMapper.Load(label, t)
}

// Resume implements nodetest.DeviceMapper. A kernel that is interrupted here forgets the table that was loaded.
func (d *devices) Resume(label string) error {
	if err := d.failing("Resume"); err != nil {
		return err
	}
	return d.DeviceMapper.Resume(label)
}

// programs of which some can be made to fail.
type programs struct {
	nodetest.Programs
	// instead gives what is run in the place of a program; nil runs the program.
	instead func(name string, args []string) (string, []string)

	mu sync.Mutex
	// asked for so far, a line each: names and arguments, which every process of a machine can read.
	asked []string
}

func (p *programs) CommandContext(ctx context.Context, name string, args ...string) utilexec.Cmd {
	p.mu.Lock()
	p.asked = append(p.asked, strings.Join(append([]string{name}, args...), " "))
	p.mu.Unlock()
	if p.instead != nil {
		name, args = p.instead(name, args)
	}
	return p.Programs.CommandContext(ctx, name, args...)
}

// Command implements exec.Interface. Nothing of weft's runs a program that it could not end.
func (p *programs) Command(name string, _ ...string) utilexec.Cmd {
	panic(name + " is run without a context")
}

// with are the lines of programs that had a text among their arguments.
func (p *programs) with(text string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.asked), func(line string) bool { return !strings.Contains(line, text) })
}

// wantNoArgument fails when any program was given one of the keys as an argument, or in one.
func (s *suite) wantNoArgument(keys ...string) {
	s.Helper()
	for _, key := range keys {
		if lines := s.programs.with(key); len(lines) > 0 {
			s.Errorf("%d programs were run with a key as an argument, the first is %s", len(lines), strings.Fields(lines[0])[0])
		}
	}
}
