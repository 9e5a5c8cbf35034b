// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// DefaultPollInterval is how often SPDK looks at its RPC socket (lib/event/app.c of 26.05).
const DefaultPollInterval = 4 * time.Millisecond

// Options say how a fake target is started.
type Options struct {
	// Socket is the path of the Unix socket, at most 107 bytes. Next to it, as with SPDK, lies <Socket>.lock.
	Socket string
	// WaitForRPC starts as with --wait-for-rpc: start-up methods only, until framework_start_init.
	WaitForRPC bool
	// CoreMask is -m: hex ("0x3") or a list ("[0,2-3]"). Default 0x1.
	CoreMask string
	// InterruptMode is --interrupt-mode: all cores sleep until there is work.
	InterruptMode bool
	// PollInterval between looks at the socket; 0 means as soon as something comes in, for tests that measure nothing.
	// For the pace of a real target give DefaultPollInterval.
	PollInterval time.Duration
	// LvolTime is how long an operation on a logical volume takes; an lvstore does one after another. Default 0.
	LvolTime time.Duration
	// RDMADevices are the RDMA devices the target sees. Without one, an RDMA transport cannot be created.
	RDMADevices []string
	// WithoutRDMA is a target that was built without RDMA: to it, RDMA is no transport.
	WithoutRDMA bool
	// Root of the filesystem in which bdev_aio_create finds files and devices, and the keyring the files of keys.
	// Default: the machine's.
	Root string
	// Drives are what bdev_nvme_attach_controller finds on the PCI bus.
	Drives []Drive
	// OwnsAddress says whether a listener can be bound to an address, such as 127.0.0.1 and 4420. Default: every
	// address that is an IP address. The fake binds none.
	OwnsAddress func(trtype, traddr, trsvcid string) bool
	// Version is what spdk_get_version answers, such as "26.05"; default 26.05. An older one takes and shows what 25.05
	// was seen to, of what weft sends: settings of transports, limits of subsystems, hosts that are gone only after the
	// answer.
	Version string
	// Without are methods this target does not have, as a build without some feature, or --rpcs-allowed, would leave.
	Without []string
}

// A Drive is a local NVMe drive, whose content is a file.
type Drive struct {
	// Address on the PCI bus, such as 0000:01:00.0.
	Address string
	// Path of the file, whose size is the drive's.
	Path string
	// Model and Serial as the drive would tell them.
	Model, Serial string
	// NGUID of its namespace; the zero UUID is none.
	NGUID uuid.UUID
	// BlockSize in bytes; default 512.
	BlockSize uint32
	// WriteCache that it has; default VolatileWriteCache.
	WriteCache WriteCache
	// Health that it logs.
	Health DriveHealth
	// Mute drives answer admin commands and nothing else.
	Mute bool
}

// WWID is the world-wide id that Linux gives the drive's namespace.
func (d Drive) WWID() string {
	if d.NGUID != uuid.Nil {
		return fmt.Sprintf("eui.%x", d.NGUID[:])
	}
	return fmt.Sprintf("nvme.%04x-%x-%x-00000001", nvmeVendor, d.Serial, d.Model)
}

// A Target is a running fake. Its methods are safe for concurrent use.
type Target struct {
	app      *app
	listener *net.UnixListener
	lock     *os.File
	socket   string
	stop     context.CancelFunc
	calls    chan func()
	wake     chan struct{}
	accepted chan *conn
	slots    chan struct{}
	dying    chan bool // whether cleanly
	done     chan struct{}
	failed   error // what went wrong at the end; read after done
	wait     sync.WaitGroup

	afterwards sync.Mutex // stands in for the loop once it has ended
}

// Listen starts a fake target, which lives until ctx is done, Close or Kill. It fails, as SPDK does, when another
// target holds the socket; a socket file left behind by a dead one is replaced.
func Listen(ctx context.Context, o Options) (*Target, error) {
	app, err := newApp(o)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(o.Socket+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the socket's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s is in use by another target: %w", o.Socket, err), lock.Close())
	}
	if err := os.Remove(o.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove the old socket: %w", err), lock.Close())
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Socket, Net: "unix"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", o.Socket, err), lock.Close())
	}
	l.SetUnlinkOnClose(false) // what Kill leaves behind
	ctx, stop := context.WithCancel(ctx)
	t := &Target{
		app: app, listener: l, lock: lock, socket: o.Socket, stop: stop,
		calls: make(chan func()), wake: make(chan struct{}, 1), accepted: make(chan *conn),
		slots: make(chan struct{}, maxConnections), dying: make(chan bool, 1), done: make(chan struct{}),
	}
	if !o.WaitForRPC {
		app.initialize()
		app.drain()
	}
	t.wait.Go(func() { t.accept(ctx) })
	go t.loop(ctx)
	return t, nil
}

// Socket is the path of the target's socket.
func (t *Target) Socket() string { return t.socket }

// Done is closed when the target has ended.
func (t *Target) Done() <-chan struct{} { return t.done }

// Close ends the target as SIGTERM does: the socket's file goes. It returns when everything has stopped.
func (t *Target) Close() error { return t.end(true) }

// Kill ends it as kill -9 does: connections are cut, and the socket's file stays.
func (t *Target) Kill() { _ = t.end(false) }

func (t *Target) end(clean bool) error {
	select {
	case t.dying <- clean:
	default:
	}
	<-t.done
	return t.failed
}

// do has f run by the loop, which owns all state, or at once when that has ended.
func (t *Target) do(f func()) {
	ran := make(chan struct{})
	select {
	case t.calls <- func() { f(); close(ran) }:
		<-ran
	case <-t.done:
		t.afterwards.Lock()
		defer t.afterwards.Unlock()
		f()
	}
}

// ErrEnded is what I/O fails with when the target has ended.
var ErrEnded = errors.New("the target has ended")

// io has f run by the loop, as what a host asks for: a target that has ended answers none.
func (t *Target) io(f func() error) (err error) {
	ran := make(chan struct{})
	select {
	case t.calls <- func() { err = f(); close(ran) }:
		<-ran
		return err
	case <-t.done:
		return ErrEnded
	}
}

// accept takes connections while there are fewer than 64; the next ones wait in the kernel's queue.
func (t *Target) accept(ctx context.Context) {
	for {
		select {
		case t.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		nc, err := t.listener.Accept()
		if err != nil {
			return // the loop has closed the listener
		}
		c := newConn(nc, t.nudge)
		t.wait.Go(c.read)
		t.wait.Go(c.write)
		select {
		case t.accepted <- c:
		case <-ctx.Done():
			c.cut()
			return
		}
	}
}

// nudge asks for a poll; when the target polls by the clock it has no effect.
func (t *Target) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *Target) loop(ctx context.Context) {
	defer t.finish()
	var clock <-chan time.Time
	var coming <-chan *conn = t.accepted
	if d := t.app.opts.PollInterval; d > 0 {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		clock = ticker.C
		coming = nil // taken at polls, one at each
	}
	for {
		timer := t.app.timer()
		select {
		case <-ctx.Done():
			t.app.clean = true
			return
		case clean := <-t.dying:
			t.app.die(clean)
			return
		case f := <-t.calls:
			f()
			t.app.drain()
		case c := <-coming:
			t.app.conns = append(t.app.conns, c)
			t.poll() // it may have woken us before we knew it
		case <-timer:
			t.app.due()
			t.app.drain()
		case <-clock:
			select {
			case c := <-t.accepted:
				t.app.conns = append(t.app.conns, c)
			default:
			}
			t.poll()
		case <-t.wake:
			if clock == nil {
				t.poll()
			}
		}
		if t.app.dead {
			return
		}
		if clock == nil {
			t.flush()
		}
	}
}

// poll is one look at the sockets: answers out, requests in.
func (t *Target) poll() {
	live := t.app.conns[:0]
	for _, c := range t.app.conns {
		if t.pollConn(c) {
			live = append(live, c)
		} else {
			<-t.slots
		}
	}
	t.app.conns = live
	t.app.drain()
}

// pollConn returns false when the connection is over.
func (t *Target) pollConn(c *conn) bool {
	c.flush()
	if c.isClosing() {
		return false
	}
	in, ended := c.take()
	for len(in) > 0 && !c.isClosing() && !t.app.dead {
		value, n, err := nextValue(in)
		if err != nil {
			c.cut() // the stream cannot be followed any more; SPDK's error answer is lost with the connection
			return false
		}
		if n == 0 {
			break
		}
		in = in[n:]
		t.app.receive(c, value)
	}
	if len(in) >= maxRequestBytes {
		c.cut() // no room for the rest of this request
		return false
	}
	c.keep(in)
	if ended && c.outstanding == 0 && len(c.ready) == 0 {
		c.finish()
		return false
	}
	return !c.isClosing()
}

func (t *Target) flush() {
	for _, c := range t.app.conns {
		c.flush()
	}
}

func (t *Target) finish() {
	t.stop()
	errs := []error{t.listener.Close()}
	for _, c := range t.app.conns {
		c.cut()
	}
	for _, s := range t.app.subsystems {
		s.disconnect(func(*Connection) bool { return true })
	}
	if t.app.powerless {
		errs = append(errs, t.app.loseCaches())
	}
	t.app.closeDisks()
	if t.app.clean {
		errs = append(errs, os.Remove(t.socket), os.Remove(t.socket+".lock"))
	}
	// Closing is not enough: a child that is being started has the file, too, until it runs its program.
	errs = append(errs, syscall.Flock(int(t.lock.Fd()), syscall.LOCK_UN))
	t.failed = errors.Join(append(errs, t.lock.Close())...)
	t.wait.Wait()
	close(t.done)
}

func (o *Options) check() error {
	switch {
	case o.Socket == "":
		return errors.New("no socket path: set Options.Socket")
	case len(o.Socket) > 107:
		return fmt.Errorf("socket path %s is longer than 107 bytes", o.Socket)
	case o.PollInterval < 0 || o.LvolTime < 0:
		return errors.New("negative times: PollInterval and LvolTime must be 0 or more")
	}
	for _, d := range o.Drives {
		if d.Address == "" || d.Path == "" {
			return errors.New("a drive needs Address and Path")
		}
	}
	if o.CoreMask == "" {
		o.CoreMask = "0x1"
	}
	if o.Version == "" {
		o.Version = "26.05"
	}
	return nil
}
