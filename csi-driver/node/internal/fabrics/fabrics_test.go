// SPDX-License-Identifier: Apache-2.0

package fabrics_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

const (
	uid = "11111111-2222-4333-8444-555555555555"
	nqn = v1alpha1.NQNPrefix + "pvc-1:" + uid
	// hostNQN of the attachment.
	hostNQN = v1alpha1.HostNQNPrefix + uid
	nguid   = "0a0b0c0d0e0f40018203040506070809"
	size    = 64 << 20
)

var (
	first  = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
	second = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.2", Port: 4420}
	id     = fabrics.ID{NQN: nqn, NGUID: nguid}
)

type fixture struct {
	*testing.T
	kernel *nodetest.Kernel
	host   *fabrics.Host
	// mounts of block devices, by name.
	mounts  map[string][]string
	modules []string
}

func setUp(t *testing.T) *fixture {
	t.Helper()
	k, err := nodetest.NewKernel(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, kernel: k, mounts: map[string][]string{}}
	f.host = fabrics.New(fabrics.Config{
		Root: k.Root, Kernel: k,
		LoadModule: func(_ context.Context, name string) error { f.modules = append(f.modules, name); return nil },
		Reachable:  func(context.Context, string) error { return nil },
		MountsOf:   func(_, name string) ([]string, error) { return f.mounts[name], nil },
	})
	f.serve(nqn, nguid)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) serve(nqn string, nguids ...string) {
	f.Helper()
	s := nodetest.Subsystem{NQN: nqn, Portals: []string{"10.0.0.1:4420", "10.0.0.2:4420"}, Hosts: []string{hostNQN}}
	for _, g := range nguids {
		s.Namespaces = append(s.Namespaces, nodetest.Namespace{NGUID: g, SizeBytes: size})
	}
	f.must(f.kernel.Serve(s))
}

func connection(portals ...v1alpha1.Portal) fabrics.Connection {
	return fabrics.Connection{NQN: nqn, HostNQN: hostNQN, Portals: portals, Connection: v1alpha1.Connection{IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1}}
}

func (f *fixture) connect(portals ...v1alpha1.Portal) fabrics.Namespace {
	f.Helper()
	f.must(f.host.Connect(f.Context(), connection(portals...)))
	ns, err := f.host.WaitNamespace(f.Context(), id, size)
	f.must(err)
	return ns
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// untilItHangs gives a call up once the kernel hangs over it.
func (f *fixture) untilItHangs(call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	go func() {
		<-f.kernel.Hanging
		cancel()
	}()
	return call(ctx)
}

func TestConnectWritesTheOptions(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	want := "transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + nqn + ",hostnqn=nqn.2014-08.org.nvmexpress:uuid:" + uid + ",hostid=" + uid +
		",nr_io_queues=2,queue_size=128,ctrl_loss_tmo=-1,reconnect_delay=2,keep_alive_tmo=10"
	if got := f.kernel.Creations(); len(got) != 1 || got[0] != want {
		t.Errorf("wrote\n%q, want\n%q", got, want)
	}
}

func TestConnectWritesTheKeepAlive(t *testing.T) {
	f := setUp(t)
	c := connection(first)
	c.KeepAlive = fabrics.MirrorKeepAlive
	f.must(f.host.Connect(t.Context(), c))
	if got := f.kernel.Creations(); len(got) != 1 || !strings.HasSuffix(got[0], ",keep_alive_tmo=2") {
		t.Errorf("wrote %q", got)
	}
}

// With hundreds of volumes, a further one reads no more of the others than their names.
func TestConnectReadsNoOtherController(t *testing.T) {
	f := setUp(t)
	other := v1alpha1.SubsystemNQN("pvc-2", uid)
	f.serve(other, strings.Repeat("f", 32))
	c := connection(first)
	c.NQN = other
	f.must(f.host.Connect(t.Context(), c))
	name := filepath.Join(f.kernel.Root, "sys/class/nvme/nvme0/state")
	f.must(os.Remove(name))
	f.must(os.Mkdir(name, 0o755)) // reading it fails
	f.connect(first)
}

// A process that has just started knows of no connection, and makes none twice.
func TestConnectAfterARestart(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	config := f.host.Config
	f.host = fabrics.New(config)
	f.connect(first)
	if got := f.kernel.Controllers(); len(got) != 1 {
		t.Errorf("controllers %v", got)
	}
	// One whose target is away waits for it, and that is no error of connecting.
	config.Reachable = func(context.Context, string) error { return syscall.ETIMEDOUT }
	f.must(f.kernel.SetState("nvme0", "connecting"))
	f.host = fabrics.New(config)
	f.must(f.host.Connect(t.Context(), connection(first)))
	if err := f.host.Connect(t.Context(), connection(second)); err == nil {
		t.Error("a portal that cannot be reached is connected")
	}
}

func TestConnectLeavesOutWhatTheKernelDoesNotKnow(t *testing.T) {
	f := setUp(t)
	f.kernel.Known = strings.ReplaceAll(f.kernel.Known, ",keep_alive_tmo=%d", "")
	f.connect(first)
	if got := f.kernel.Creations()[0]; strings.Contains(got, "keep_alive_tmo") || !strings.Contains(got, "ctrl_loss_tmo") {
		t.Errorf("wrote %s", got)
	}
}

func TestConnectOnAKernelThatDoesNotListItsOptions(t *testing.T) {
	f := setUp(t)
	f.kernel.Known = ""
	f.connect(first)
	if got := f.kernel.Creations()[0]; !strings.Contains(got, "keep_alive_tmo=10") {
		t.Errorf("wrote %s", got)
	}
}

func TestConnectLoadsModules(t *testing.T) {
	f := setUp(t)
	f.must(os.Remove(filepath.Join(f.kernel.Root, "dev/nvme-fabrics")))
	f.must(os.Remove(filepath.Join(f.kernel.Root, "sys/module/nvme_tcp")))
	f.connect(first)
	if got := fmt.Sprint(f.modules); got != "[nvme_fabrics nvme_tcp]" {
		t.Errorf("loaded %s", got)
	}
}

func TestConnectIsIdempotent(t *testing.T) {
	f := setUp(t)
	before := f.connect(first, second)
	after := f.connect(first, second)
	if before != after || len(f.kernel.Creations()) != 2 || len(f.kernel.Controllers()) != 2 {
		t.Errorf("%+v became %+v, with %q", before, after, f.kernel.Creations())
	}
}

func TestConnectWithoutMultipathUsesOnePortal(t *testing.T) {
	f := setUp(t)
	f.must(f.kernel.DisableMultipath())
	ns := f.connect(first, second)
	if len(f.kernel.Controllers()) != 1 {
		t.Errorf("controllers %v: each would be a block device of its own", f.kernel.Controllers())
	}
	if got, err := f.host.NamespaceByDevice(ns.Device); err != nil || got != ns {
		t.Errorf("by device %+v, %v; want %+v", got, err, ns)
	}
}

// The first portal was dead when the volume was connected through the second, and is back.
func TestConnectAgainWithoutMultipathKeepsThePathThatIsThere(t *testing.T) {
	f := setUp(t)
	f.must(f.kernel.DisableMultipath())
	dead := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.9", Port: 4420}
	f.connect(dead, second)
	f.must(f.kernel.Serve(nodetest.Subsystem{
		NQN: nqn, Portals: []string{"10.0.0.9:4420", "10.0.0.2:4420"}, Hosts: []string{hostNQN},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: size}},
	}))
	f.connect(dead, second)
	if got := f.kernel.Controllers(); len(got) != 1 {
		t.Errorf("controllers %v: the second is a second block device", got)
	}
}

func TestLost(t *testing.T) {
	both := []v1alpha1.Portal{first, second}
	for name, c := range map[string]struct {
		change func(*fixture)
		want   []v1alpha1.Portal
	}{
		"none":                 {func(f *fixture) { f.connect(first, second) }, nil},
		"one was never made":   {func(f *fixture) { f.connect(first) }, []v1alpha1.Portal{second}},
		"one was given up":     {func(f *fixture) { f.connect(first, second); f.must(f.kernel.Drop("nvme0")) }, []v1alpha1.Portal{first}},
		"one is being deleted": {func(f *fixture) { f.connect(first, second); f.must(f.kernel.SetState("nvme1", "deleting")) }, []v1alpha1.Portal{second}},
		"one reconnects":       {func(f *fixture) { f.connect(first, second); f.must(f.kernel.SetState("nvme1", "connecting")) }, nil},
		"not connected":        {func(*fixture) {}, nil},
		"all being deleted":    {func(f *fixture) { f.connect(first); f.must(f.kernel.SetState("nvme0", "deleting")) }, nil},
		"without multipath":    {func(f *fixture) { f.must(f.kernel.DisableMultipath()); f.connect(first) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			c.change(f)
			got, err := f.host.Lost(connection(both...))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestConnectThroughThePortalsThatAnswer(t *testing.T) {
	f := setUp(t)
	dead := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.9", Port: 4420}
	f.connect(dead, second)
	controllers, err := f.host.Controllers(nqn)
	if err != nil || len(controllers) != 1 || controllers[0].Address != second.Address {
		t.Errorf("%v, %v", controllers, err)
	}
}

// A volume with portals of two transports needs one of them: a node without RDMA uses TCP.
func TestConnectOverTheTransportsThatTheHostHas(t *testing.T) {
	rdma := v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4421}
	for name, tc := range map[string]struct {
		change func(*fixture)
		words  string
	}{
		"no device": {func(f *fixture) { f.kernel.SetRDMA(false) }, "no device of this host supports the transport"},
		"no module": {func(f *fixture) {
			f.must(os.Remove(filepath.Join(f.kernel.Root, "sys/module/nvme_rdma")))
			f.host.LoadModule = func(_ context.Context, name string) error { return errors.New(name + " is not there") }
		}, "load kernel module nvme_rdma: not supported by this host's kernel: nvme_rdma is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			tc.change(f)
			err := f.host.Connect(t.Context(), connection(rdma))
			if !errors.Is(err, fabrics.ErrUnsupported) || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("RDMA alone: got %v", err)
			}
			f.connect(rdma, first)
			controllers, err := f.host.Controllers(nqn)
			if err != nil || len(controllers) != 1 || controllers[0].Transport != v1alpha1.TransportTCP {
				t.Errorf("%v, %v", controllers, err)
			}
			if lost, err := f.host.Lost(connection(rdma, first)); err != nil || !slices.Equal(lost, []v1alpha1.Portal{rdma}) {
				t.Errorf("lost %v, %v", lost, err)
			}
		})
	}
}

// Over RDMA only the kernel can ask, which takes seconds: one volume waits for a silent portal, and not all of a
// node's.
func TestConnectWaitsForASilentPortalOnce(t *testing.T) {
	f := setUp(t)
	clock := testingclock.NewFakePassiveClock(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
	f.host.Clock = clock
	silent := v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.9", Port: 4421}
	asked := func() (n int) {
		for _, c := range f.kernel.Creations() {
			if strings.HasPrefix(c, "transport=rdma,") {
				n++
			}
		}
		return n
	}
	connect := func(volume string, want int, portals ...v1alpha1.Portal) {
		t.Helper()
		f.serve(volume, strings.Repeat("f", 32))
		c := connection(portals...)
		c.NQN = volume
		if err := f.host.Connect(t.Context(), c); (err != nil) != (len(portals) == 1) {
			t.Errorf("%s: %v", volume, err)
		}
		if asked() != want {
			t.Errorf("%s: asked the silent portal %d times, want %d", volume, asked(), want)
		}
	}
	connect(v1alpha1.SubsystemNQN("pvc-2", uid), 1, silent, first)
	connect(v1alpha1.SubsystemNQN("pvc-3", uid), 1, silent, first)
	connect(v1alpha1.SubsystemNQN("pvc-3", uid), 2, silent)
	clock.SetTime(clock.Now().Add(29 * time.Second))
	connect(v1alpha1.SubsystemNQN("pvc-4", uid), 2, silent, first)
	clock.SetTime(clock.Now().Add(time.Second))
	connect(v1alpha1.SubsystemNQN("pvc-5", uid), 3, silent, first)

	// It answers again.
	f.must(f.kernel.Serve(nodetest.Subsystem{
		NQN: nqn, Portals: []string{"10.0.0.9:4421", "10.0.0.1:4420"}, Hosts: []string{hostNQN},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: size}},
	}))
	f.connect(silent)
	f.must(f.host.Disconnect(t.Context(), id))
	f.connect(silent, first)
	if controllers, err := f.host.Controllers(nqn); err != nil || len(controllers) != 2 {
		t.Errorf("%v, %v", controllers, err)
	}
}

func TestConnectSaysWhyNot(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture, *fabrics.Connection)
		kind   error
		errno  error
		words  string
	}{
		"nothing listens": {
			func(_ *fixture, c *fabrics.Connection) { c.Portals[0].Port = 4499 },
			fabrics.ErrUnreachable, syscall.ECONNREFUSED, "10.0.0.1:4499 as " + v1alpha1.HostNQNPrefix + uid + ": nothing listens on the port",
		},
		"over RDMA nothing listens": {
			func(_ *fixture, c *fabrics.Connection) {
				c.Portals[0] = v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4499}
			},
			fabrics.ErrUnreachable, syscall.ECONNRESET, "over RDMA",
		},
		// As Linux 6.12 says it, after 10 s.
		"taken and not answered": {
			func(f *fixture, _ *fabrics.Connection) { f.host.Kernel = silent{f.kernel} },
			fabrics.ErrUnreachable, syscall.EAGAIN, "does not answer",
		},
		"host not admitted": {
			func(f *fixture, _ *fabrics.Connection) {
				f.must(f.kernel.Serve(nodetest.Subsystem{NQN: nqn, Portals: []string{"10.0.0.1:4420"}}))
			},
			fabrics.ErrRefused, syscall.EIO, "does not admit this host",
		},
		"not a word": {
			func(_ *fixture, c *fabrics.Connection) { c.NQN += ",hostnqn=other" },
			fabrics.ErrInvalid, fabrics.ErrInvalid, "without a comma",
		},
		"no portal": {
			func(_ *fixture, c *fabrics.Connection) { c.Portals = nil },
			fabrics.ErrInvalid, fabrics.ErrInvalid, "has no portal",
		},
		"unknown transport": {
			func(_ *fixture, c *fabrics.Connection) { c.Portals[0].Transport = "FC" },
			fabrics.ErrInvalid, fabrics.ErrInvalid, "TCP or RDMA",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			conn := connection(first)
			c.change(f, &conn)
			err := f.host.Connect(t.Context(), conn)
			if !errors.Is(err, c.kind) || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// silent kernel: the target of each connection is.
type silent struct{ fabrics.Kernel }

func (silent) Create(string) (string, error) {
	return "", &os.PathError{Op: "write", Path: "/dev/nvme-fabrics", Err: syscall.EAGAIN}
}

func TestConnectDoesNotAskTheKernelForADeadPortal(t *testing.T) {
	f := setUp(t)
	f.host.Reachable = func(context.Context, string) error { return os.NewSyscallError("connect", syscall.EHOSTUNREACH) }
	err := f.host.Connect(t.Context(), connection(first))
	if !errors.Is(err, fabrics.ErrUnreachable) || len(f.kernel.Creations()) != 0 {
		t.Errorf("got %v, and wrote %q", err, f.kernel.Creations())
	}
}

func TestSlowConnectionIsJoinedAndAwaited(t *testing.T) {
	f := setUp(t)
	release := f.kernel.Hold()
	for range 2 {
		if err := f.host.Connect(soon(t), connection(first)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	}
	// Its controller may yet come: to answer "gone" would leave it behind.
	if err := f.host.Disconnect(soon(t), id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("disconnect answered %v", err)
	}
	if err := f.host.Settled(soon(t), nqn); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("settled: %v", err)
	}
	release()
	f.must(f.host.Settled(t.Context(), nqn))
	f.must(f.host.Disconnect(t.Context(), id))
	if len(f.kernel.Creations()) != 1 || len(f.kernel.Controllers()) != 0 {
		t.Errorf("creations %q, controllers %v", f.kernel.Creations(), f.kernel.Controllers())
	}
}

// unasked hangs when it is asked to delete a controller, before it has begun.
type unasked struct {
	fabrics.Kernel
	asked chan struct{}
	until chan struct{}
}

func (k unasked) Delete(c *own.Controller) error {
	k.asked <- struct{}{}
	<-k.until
	return k.Kernel.Delete(c)
}

// However often a volume is disconnected, one thread waits in the kernel for the same controller.
func TestDeletionThatDoesNotBeginIsAskedForOnce(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	k := unasked{f.kernel, make(chan struct{}, 10), make(chan struct{})}
	f.host.Kernel = k
	for range 3 {
		var stuck *fabrics.StuckError
		if err := f.host.Disconnect(soon(t), id); !errors.As(err, &stuck) {
			t.Errorf("got %v", err)
		}
	}
	close(k.until)
	f.must(f.host.Disconnect(t.Context(), id))
	if len(k.asked) != 1 {
		t.Errorf("the kernel was asked %d times", len(k.asked))
	}
}

// creating is a kernel whose creations wait for the test, one after the other.
type creating struct {
	fabrics.Kernel
	begun chan string
	end   chan struct{}
}

func (k creating) Create(options string) (string, error) {
	k.begun <- options
	<-k.end
	return k.Kernel.Create(options)
}

// connectOther volume than the fixture's, in the background.
func (f *fixture) connectOther(ctx context.Context, volume string) <-chan error {
	f.Helper()
	c := connection(first)
	c.NQN = v1alpha1.SubsystemNQN(volume, uid)
	f.serve(c.NQN, strings.Repeat("f", 32))
	done := make(chan error, 1)
	go func() { done <- f.host.Connect(ctx, c) }()
	return done
}

// A connection that the kernel does not finish holds up all others, since they wait for its lock; one that is there is
// not held up.
func TestConnectionThatHangsHoldsUpOthers(t *testing.T) {
	f := setUp(t)
	clock := testingclock.NewFakePassiveClock(time.Now())
	f.host.Clock = clock
	f.connect(first)
	k := creating{f.kernel, make(chan string, 10), make(chan struct{})}
	f.host.Kernel = k
	hanging := f.connectOther(t.Context(), "pvc-2")
	<-k.begun
	const words = "connecting to " + v1alpha1.NQNPrefix + "pvc-2:" + uid + " over TCP at 10.0.0.1:4420 has not returned since "

	err := <-f.connectOther(soon(t), "pvc-3")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), words) {
		t.Errorf("one that waits: got %v", err)
	}
	if held := f.host.HeldUp(); held != nil {
		t.Errorf("held up at once: %v", held)
	}
	clock.SetTime(clock.Now().Add(doing.Limit))
	var held *fabrics.HeldUpError
	if err := <-f.connectOther(t.Context(), "pvc-3"); !errors.As(err, &held) || !strings.Contains(err.Error(), words) {
		t.Errorf("one more: got %v", err)
	}
	f.must(f.host.Connect(t.Context(), connection(first)))
	if len(k.begun) != 0 {
		t.Error("another thread waits in the kernel")
	}

	k.end <- struct{}{}
	f.must(<-hanging)
	if held := f.host.HeldUp(); held != nil {
		t.Errorf("still held up: %v", held)
	}
	close(k.end)
	f.must(<-f.connectOther(t.Context(), "pvc-3"))
}

// Many connections one after the other may take long, and none hangs.
func TestManySlowConnectionsHoldUpNobody(t *testing.T) {
	f := setUp(t)
	clock := testingclock.NewFakePassiveClock(time.Now())
	f.host.Clock = clock
	k := creating{f.kernel, make(chan string, 10), make(chan struct{})}
	f.host.Kernel = k
	const volumes = 4
	var done []<-chan error
	for i := range volumes {
		done = append(done, f.connectOther(t.Context(), fmt.Sprintf("pvc-s%d", i)))
	}
	for range volumes {
		<-k.begun
		clock.SetTime(clock.Now().Add(doing.Limit - time.Second))
		if held := f.host.HeldUp(); held != nil {
			t.Error(held)
		}
		k.end <- struct{}{}
	}
	for _, d := range done {
		f.must(<-d)
	}
}

// Reading the options takes the lock, too: a process that begins finds out by that whether an earlier one's connection
// hangs.
func TestReadyWaitsForTheKernel(t *testing.T) {
	f := setUp(t)
	clock := testingclock.NewFakePassiveClock(time.Now())
	f.host.Clock = clock
	release := f.kernel.Hold()
	created := make(chan error, 1)
	go func() {
		_, err := f.kernel.Create("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + nqn + ",hostnqn=" + hostNQN)
		created <- err
	}()
	<-f.kernel.Hanging
	if err := f.host.Ready(soon(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	clock.SetTime(clock.Now().Add(doing.Limit))
	if held := f.host.HeldUp(); held == nil || !strings.Contains(held.Error(), "reading /dev/nvme-fabrics has not returned") {
		t.Errorf("got %v", held)
	}
	release()
	f.must(<-created)
	f.must(f.host.Ready(t.Context()))
	f.must(os.Remove(filepath.Join(f.kernel.Root, "dev/nvme-fabrics")))
	f.must(fabrics.New(f.host.Config).Ready(t.Context()))
}

func TestNamespaceIsFoundByBothNames(t *testing.T) {
	f := setUp(t)
	const other = "ffffffffffffffffffffffffffffffff"
	f.serve(nqn, other, nguid)
	f.serve(v1alpha1.SubsystemNQN("pvc-2", uid), strings.Repeat("e", 32))
	f.must(f.host.Connect(t.Context(), fabrics.Connection{NQN: v1alpha1.SubsystemNQN("pvc-2", uid), HostNQN: hostNQN, Portals: []v1alpha1.Portal{first}}))
	ns := f.connect(first)
	if ns.NQN != nqn || ns.NGUID != nguid || ns.Name != "nvme1n2" || ns.SizeBytes != size || ns.Path != filepath.Join(f.kernel.Root, "dev/nvme1n2") {
		t.Errorf("found %+v", ns)
	}
	for _, device := range []string{ns.Device, ns.Name} {
		if got, err := f.host.NamespaceByDevice(device); err != nil || got != ns {
			t.Errorf("by %s: %+v, %v", device, got, err)
		}
	}
}

func TestWaitSaysWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture)
		id     fabrics.ID
		bytes  int64
		want   string
	}{
		"another namespace": {func(*fixture) {}, fabrics.ID{NQN: nqn, NGUID: strings.Repeat("f", 32)}, 0, "serves other namespaces: " + nguid},
		"too small":         {func(*fixture) {}, id, size + 1, "67108864 bytes, and 67108865 were expected"},
		"no path": {
			func(f *fixture) { f.must(f.kernel.SetState("nvme0", "connecting")) }, id, 0,
			"no path is live: nvme0 (TCP 10.0.0.1 port 4420, connecting)",
		},
		"no device node": {func(f *fixture) { f.must(os.Remove(filepath.Join(f.kernel.Root, "dev/nvme0n1"))) }, id, 0, "nvme0n1 does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			f.connect(first)
			c.change(f)
			_, err := f.host.WaitNamespace(soon(t), c.id, c.bytes)
			var notReady *fabrics.NotReadyError
			if !errors.As(err, &notReady) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWaitEndsAtOnceWithoutAConnection(t *testing.T) {
	f := setUp(t)
	if _, err := f.host.WaitNamespace(t.Context(), id, 0); !errors.Is(err, fabrics.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestWaitSeesANewSize(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	f.must(f.kernel.Serve(nodetest.Subsystem{NQN: nqn, Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: 2 * size}}}))
	ns, err := f.host.WaitNamespace(t.Context(), id, 2*size)
	if err != nil || ns.SizeBytes != 2*size {
		t.Errorf("got %+v, %v", ns, err)
	}
}

func TestDisconnect(t *testing.T) {
	f := setUp(t)
	f.connect(first, second)
	f.must(f.host.Disconnect(t.Context(), id))
	if left := f.kernel.Controllers(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if _, err := f.host.FindNamespace(id); !errors.Is(err, fabrics.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	f.must(f.host.Disconnect(t.Context(), id))
}

func TestDisconnectRefusesWhatIsInUse(t *testing.T) {
	f := setUp(t)
	ns := f.connect(first)
	f.mounts[ns.Name] = []string{"/mnt/x"}
	for _, id := range []fabrics.ID{id, {NQN: nqn}} {
		err := f.host.Disconnect(t.Context(), id)
		var inUse *fabrics.InUseError
		if !errors.As(err, &inUse) || !strings.Contains(err.Error(), "/mnt/x") {
			t.Errorf("got %v", err)
		}
	}
	delete(f.mounts, ns.Name)
	f.mapped(ns, "LVM-x")
	if err := f.host.Disconnect(t.Context(), id); err == nil || !strings.Contains(err.Error(), "block device dm-0") {
		t.Errorf("got %v", err)
	}
	if len(f.kernel.Controllers()) != 1 {
		t.Error("the controller went away")
	}
}

// mapped makes a device with a device mapper UUID of a namespace.
func (f *fixture) mapped(ns fabrics.Namespace, dmUUID string) {
	f.Helper()
	devices := f.kernel.DeviceMapper()
	f.must(devices.Create("made", dmUUID))
	f.must(devices.Load("made", nodetest.Table{SizeBytes: size - v1alpha1.HeaderBytes, Lower: ns.Device, OffsetBytes: v1alpha1.HeaderBytes}))
	f.must(devices.Resume("made"))
}

// What weft itself made of a volume uses it only while somebody uses that.
func TestDisconnectSeesThroughItsOwnDevice(t *testing.T) {
	f := setUp(t)
	ns := f.connect(first)
	f.mapped(ns, "WEFT-"+uid+"-"+uid)
	f.mounts["dm-0"] = []string{"/mnt/x"}
	if err := f.host.Disconnect(t.Context(), id); err == nil || !strings.Contains(err.Error(), "/mnt/x") {
		t.Errorf("got %v", err)
	}
	delete(f.mounts, "dm-0")
	f.must(f.host.Disconnect(t.Context(), id))
	f.wantHosts()
}

// What a volume begins with is read and written in whole blocks, of the namespace that has the name.
func TestStartOfANamespace(t *testing.T) {
	f := setUp(t)
	ns := f.connect(first)
	block := bytes.Repeat([]byte("weft"), 1024)
	f.must(f.host.WriteStart(t.Context(), ns, 4096, block))
	start, err := f.host.ReadStart(t.Context(), ns, 8192)
	f.must(err)
	if !bytes.Equal(start, append(make([]byte, 4096), block...)) {
		t.Errorf("read %q", start)
	}
	if err := f.host.WriteStart(t.Context(), ns, 512, block); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v", err)
	}
	f.host.Kernel = forgetful{f.kernel}
	if err := f.host.WriteStart(t.Context(), ns, 0, block); err == nil || !strings.Contains(err.Error(), "differs from what was written") {
		t.Errorf("got %v", err)
	}
	f.host.Kernel = f.kernel
	f.must(f.kernel.Drop("nvme0"))
	if _, err := f.host.ReadStart(t.Context(), ns, 8192); !errors.Is(err, fabrics.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	other := fabrics.Connection{NQN: v1alpha1.SubsystemNQN("pvc-2", uid), HostNQN: hostNQN, Portals: []v1alpha1.Portal{first}}
	f.serve(other.NQN, strings.Repeat("f", 32))
	f.must(f.host.Connect(t.Context(), other))
	if err := f.host.WriteStart(t.Context(), ns, 0, block); !errors.Is(err, fabrics.ErrNotFound) {
		t.Errorf("another has the name: got %v", err)
	}
}

// forgetful is a kernel that loses what is written.
type forgetful struct{ *nodetest.Kernel }

func (f forgetful) OpenDirect(device string, write bool) (fabrics.DirectDevice, error) {
	d, err := f.Kernel.OpenDirect(device, write)
	return losing{d}, err
}

type losing struct{ fabrics.DirectDevice }

func (losing) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func TestDisconnectLeavesTheConnectionToAnotherVolume(t *testing.T) {
	f := setUp(t)
	f.serve(nqn, nguid, strings.Repeat("f", 32))
	ns := f.connect(first)
	f.mounts[strings.TrimSuffix(ns.Name, "1")+"2"] = []string{"/mnt/other"}
	f.must(f.host.Disconnect(t.Context(), id))
	if len(f.kernel.Controllers()) != 1 {
		t.Error("the controller went away")
	}
	delete(f.mounts, "nvme0n2")
	f.must(f.host.Disconnect(t.Context(), fabrics.ID{NQN: nqn, NGUID: strings.Repeat("f", 32)}))
	if len(f.kernel.Controllers()) != 0 {
		t.Error("the controller stayed")
	}
}

// An attachment of the volume that has ended, and its host.
const (
	formerUUID = "99999999-2222-4333-8444-555555555555"
	formerNQN  = v1alpha1.NQNPrefix + "pvc-1:" + formerUUID
	formerHost = v1alpha1.HostNQNPrefix + formerUUID
)

// connectAs connects the first portal of a subsystem, beside the host, as another; the target then admits that no more.
func (f *fixture) connectAs(nqn, hostNQN string) {
	f.Helper()
	f.must(f.kernel.Serve(nodetest.Subsystem{
		NQN: nqn, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{hostNQN}, Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: size}},
	}))
	_, err := f.kernel.Create("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + nqn + ",hostnqn=" + hostNQN)
	f.must(err)
	f.must(f.kernel.Serve(nodetest.Subsystem{NQN: nqn}))
	f.serve(id.NQN, nguid)
}

// wantHosts of the controllers that exist.
func (f *fixture) wantHosts(want ...string) {
	f.Helper()
	var got []string
	for _, name := range f.kernel.Controllers() {
		text, err := os.ReadFile(filepath.Join(f.kernel.Root, "sys/class/nvme", name, "hostnqn"))
		f.must(err)
		got = append(got, strings.TrimSpace(string(text)))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.Errorf("hosts %q are connected, want %q", got, want)
	}
}

// Whatever an earlier attachment left is gone before the volume is connected again, though it be in use: its target has
// shut it out.
func TestConnectClearsThePast(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"alone":             func(f *fixture) { f.connectAs(formerNQN, formerHost) },
		"without multipath": func(f *fixture) { f.must(f.kernel.DisableMultipath()); f.connectAs(formerNQN, formerHost) },
		"in use": func(f *fixture) {
			f.connectAs(formerNQN, formerHost)
			f.mounts["nvme0n1"] = []string{"/mnt/x"}
		},
		"of a subsystem that others shared meanwhile": func(f *fixture) { f.connectAs(nqn, formerHost) },
		"while it tries to connect again": func(f *fixture) {
			f.connectAs(formerNQN, formerHost)
			f.must(f.kernel.SetState("nvme0", "connecting"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			change(f)
			if lost, err := f.host.Lost(connection(first)); err != nil || len(lost) != 0 {
				t.Errorf("lost %v, %v", lost, err)
			}
			f.connect(first)
			f.wantHosts(hostNQN)
		})
	}
}

// Nothing is cleared away for a connection that cannot be one.
func TestConnectWithoutAHost(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	c := connection(first)
	c.HostNQN = ""
	if err := f.host.Connect(t.Context(), c); !errors.Is(err, fabrics.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	f.wantHosts(hostNQN)
}

// While the kernel has not finished with it, its writes may still go out, so nothing is connected.
func TestConnectWaitsForThePast(t *testing.T) {
	f := setUp(t)
	f.connectAs(formerNQN, formerHost) // nvme0
	release := f.kernel.Stick("nvme0")
	made := len(f.kernel.Creations())
	err := f.untilItHangs(func(ctx context.Context) error { return f.host.Connect(ctx, connection(first)) })
	if !errors.Is(err, fabrics.ErrPast) || !strings.Contains(err.Error(), "nvme0 (") {
		t.Errorf("got %v", err)
	}
	if got := f.kernel.Creations()[made:]; len(got) != 0 {
		t.Errorf("created %q", got)
	}
	release()
	f.connect(first)
	f.wantHosts(hostNQN)
}

// A connection of an earlier attachment that was under way when that ended, and is made after all.
func TestConnectLooksAgainAfterwards(t *testing.T) {
	f := setUp(t)
	f.host.Kernel = lateArrival{f.kernel, func() { f.connectAs(formerNQN, formerHost) }}
	if err := f.host.Connect(t.Context(), connection(first)); !errors.Is(err, fabrics.ErrPast) || !strings.Contains(err.Error(), formerHost) {
		t.Errorf("got %v", err)
	}
	f.host.Kernel = f.kernel
	f.connect(first)
	f.wantHosts(hostNQN)
}

// lateArrival has something happen while a connection is made.
type lateArrival struct {
	*nodetest.Kernel
	happen func()
}

func (l lateArrival) Create(options string) (string, error) {
	l.happen()
	return l.Kernel.Create(options)
}

// As Linux does: the namespace of an attachment is not taken while that of an earlier one is there.
func TestNamespaceOfTheNextAttachmentIsNotTakenBeside(t *testing.T) {
	f := setUp(t)
	f.connectAs(formerNQN, formerHost)
	f.connectAs(nqn, hostNQN)
	var notReady *fabrics.NotReadyError
	if _, err := f.host.WaitNamespace(soon(t), id, size); !errors.As(err, &notReady) || notReady.Lacks != "the subsystem serves no namespace" {
		t.Errorf("got %v", err)
	}
}

// Who disconnects a volume must wait for it: the controller would appear afterwards, and stay.
func TestSubsystemThatIsBeingConnectedIsListed(t *testing.T) {
	f := setUp(t)
	release := f.kernel.Hold()
	if err := f.untilItHangs(func(ctx context.Context) error { return f.host.Connect(ctx, connection(first)) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	got, err := f.host.Subsystems()
	if want := []string{nqn}; err != nil || !slices.Equal(got["pvc-1"], want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	release()
	f.must(f.host.Disconnect(t.Context(), id))
	f.wantHosts()
}

func TestSubsystemsOfAVolume(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	f.connectAs(formerNQN, formerHost)
	f.connectAs(v1alpha1.SubsystemNQN("pvc-10", uid), hostNQN)
	all, err := f.host.Subsystems()
	got := all["pvc-1"]
	if want := []string{nqn, formerNQN}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// One that weft did not make has another kind of name.
func TestDisconnectLeavesOtherHostsAlone(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	const other = "nqn.2026-11.example:admin"
	f.connectAs(nqn, other)
	f.connect(first)
	f.must(f.host.Disconnect(t.Context(), id))
	if got := fmt.Sprint(f.kernel.Controllers()); got != "[nvme1]" {
		t.Errorf("left %s", got)
	}
}

func TestStuckControllerIsNamedAndHoldsUpNobodyElse(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	release := f.kernel.Stick("nvme0")
	disconnect := func(ctx context.Context) error { return f.host.Disconnect(ctx, id) }
	for _, err := range []error{f.untilItHangs(disconnect), disconnect(soon(t)), disconnect(soon(t))} {
		var stuck *fabrics.StuckError
		if !errors.As(err, &stuck) || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "nvme0 (TCP 10.0.0.1 port 4420, deleting)") {
			t.Errorf("got %v", err)
		}
	}
	if deletions := f.host.Deletions(); len(deletions) != 1 || deletions[nqn].What != "deleting nvme0" {
		t.Errorf("under way are %v", deletions)
	}
	const other = v1alpha1.NQNPrefix + "pvc-2:" + uid
	f.serve(other, strings.Repeat("f", 32))
	f.must(f.host.Connect(t.Context(), fabrics.Connection{NQN: other, HostNQN: hostNQN, Portals: []v1alpha1.Portal{first}}))
	f.must(f.host.Disconnect(t.Context(), fabrics.ID{NQN: other}))
	release()
	f.must(f.host.Disconnect(t.Context(), id))
}

func TestConnectsAgainBesideAControllerThatIsGoing(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	f.must(f.kernel.SetState("nvme0", "deleting"))
	f.connect(first)
	if len(f.kernel.Creations()) != 2 {
		t.Errorf("wrote %q", f.kernel.Creations())
	}
}

func TestSubsystemThatCameBackIsFound(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	f.must(f.kernel.Drop("nvme0"))
	f.serve(v1alpha1.SubsystemNQN("pvc-2", uid), strings.Repeat("f", 32))
	// It takes the number that this one had, so that what is remembered is wrong now.
	f.must(f.host.Connect(t.Context(), fabrics.Connection{NQN: v1alpha1.SubsystemNQN("pvc-2", uid), HostNQN: hostNQN, Portals: []v1alpha1.Portal{first}}))
	if ns := f.connect(first); ns.Name != "nvme1n1" {
		t.Errorf("found %+v", ns)
	}
}

func TestNamespaceByDeviceTellsWhatItIsNot(t *testing.T) {
	f := setUp(t)
	if _, err := f.host.NamespaceByDevice("259:99"); !errors.Is(err, fabrics.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	loop := filepath.Join(f.kernel.Root, "sys/devices/virtual/block/loop0")
	f.must(os.MkdirAll(loop, 0o755))
	f.must(os.Symlink("../../devices/virtual/block/loop0", filepath.Join(f.kernel.Root, "sys/dev/block/7:0")))
	if _, err := f.host.NamespaceByDevice("7:0"); !errors.Is(err, fabrics.ErrNotNVMe) {
		t.Errorf("got %v", err)
	}
}

func TestOpenTellsThatAnotherHasTheName(t *testing.T) {
	f := setUp(t)
	other := fabrics.Connection{NQN: v1alpha1.SubsystemNQN("pvc-2", uid), HostNQN: hostNQN, Portals: []v1alpha1.Portal{first}}
	f.serve(other.NQN, strings.Repeat("f", 32))
	ns := f.connect(first)
	device, err := f.host.Open(ns)
	f.must(err)
	f.must(device.Close())

	for _, step := range []struct {
		name   string
		change func() error
	}{
		{"lost", func() error { return f.kernel.Drop("nvme0") }},
		{"another has its name", func() error { return f.host.Connect(t.Context(), other) }},
		{"it is back, with another name", func() error { return f.host.Connect(t.Context(), connection(first)) }},
	} {
		f.must(step.change())
		if device, err := f.host.Open(ns); !errors.Is(err, fabrics.ErrNotFound) {
			t.Errorf("%s: got %v, %v", step.name, device, err)
		}
	}
	found, err := f.host.FindNamespace(ns.ID)
	f.must(err)
	device, err = f.host.Open(found)
	f.must(err)
	f.must(device.Close())
}

// A kernel that takes a controller's queues down may end the thread that asks for its address: it is asked while the
// controller is live, and not again.
func TestAddressOfAControllerThatGoesIsNotAskedFor(t *testing.T) {
	f := setUp(t)
	f.connect(first)
	before, err := f.host.Controllers(nqn)
	f.must(err)
	f.must(f.kernel.SetState("nvme0", "deleting"))
	f.must(os.WriteFile(filepath.Join(f.kernel.Root, "sys/class/nvme/nvme0/address"), []byte("asked while it goes"), 0o644))
	after, err := f.host.Controllers(nqn)
	f.must(err)
	if len(before) != 1 || len(after) != 1 || after[0].Address != before[0].Address || after[0].Port != before[0].Port || after[0].Address == "" {
		t.Errorf("before %+v, while it goes %+v", before, after)
	}
}
