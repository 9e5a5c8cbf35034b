// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

const (
	// driveSize has room for a volume of labSize.
	driveSize = 512 << 20
	// refusedWithin is what a refusal may take on an emulated machine. A call that waited for the kernel would take all
	// of labTimeout.
	refusedWithin = 5 * time.Second
)

// hang of the kernel over a volume whose drive hangs.
type hang struct {
	capability *csi.VolumeCapability
	prepare    func(*lab)
	// begin makes the drive hang, with something on its way to it. release lets the drive go on.
	begin func(v *volume, drive string, p *port) (release func())
	// call that hangs then in the kernel, and seen waits until it does.
	call func(*volume) error
	seen func(*volume)
	// words of the report.
	words func(*volume) string
	// after it was released and is gone.
	after func(*volume)
}

// overdue waits until it is said what hangs for the volume, and for it alone.
func (v *volume) overdue() string {
	v.Helper()
	v.clock.SetTime(time.Now().Add(2 * doing.Limit))
	v.Eventually(v.service.Overdue).Should(And(HaveKey(v.id), HaveLen(1)))
	return v.service.Overdue()[v.id].String()
}

// A drive of the target hangs: the target answers, and no write to its volumes ends. Tasks that wait for one cannot be
// killed. It is said what hangs for that volume, and volumes of other drives go on, come and go.
func TestLabDriveThatHangs(t *testing.T) {
	for name, h := range map[string]hang{"an unmount that waits": hungUnmount(), "a controller that is not deleted": hungDeletion()} {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			if h.prepare != nil {
				h.prepare(l)
			}
			p, drive := l.port(4420, v1alpha1.TransportTCP), l.drive()
			hung := l.volumeIn(drive, "lab-hung", labSize, guid(1), p)
			well, late := l.volume("lab-well", labSize, guid(2), p), l.volume("lab-late", labSize, guid(3), p)
			hung.up(h.capability)
			well.up(mountCapability("ext4"))
			writer := well.startWriter("pod/written")

			release := h.begin(hung, drive, p)
			must(t, hung.unpublish())
			ended := make(chan error, 1)
			go func() { ended <- h.call(hung) }()
			h.seen(hung)

			what := hung.overdue()
			t.Log(what)
			l.Expect(what).To(HavePrefix(h.words(hung)))
			l.Expect(hung.health()).To(ContainElement(ContainSubstring("KernelCallOverdue")))
			want(t, hung.stage(h.capability), codes.Aborted, "still in progress")
			// What is there goes on.
			writer.goesOn()
			must(t, put(well.path("pod/file"), "hello"))
			l.Expect(readDirect(well.path("pod/file"))).To(HavePrefix("hello"))
			must(t, well.stage(mountCapability("ext4")))
			l.Expect(well.health()).To(BeEmpty())
			must(t, l.service.MendPaths(well.timeout()))
			// More comes and goes.
			l.Expect(l.initiator.HeldUp()).To(BeNil())
			late.up(mountCapability("ext4"))
			late.down()
			l.Expect(ended).NotTo(Receive())

			release()
			l.Eventually(ended).Should(Receive(Succeed()))
			must(t, hung.unstage())
			hung.gone()
			l.Eventually(l.service.Overdue).Should(BeEmpty())
			writer.goesOn()
			writer.end()
			h.after(hung)
		})
	}
}

// A program that waits for such a write hangs as the kernel's own calls do: no signal ends it.
func TestLabProgramThatHangs(t *testing.T) {
	l := setUpLab(t)
	p, drive := l.port(4420, v1alpha1.TransportTCP), l.drive()
	hung, late := l.volumeIn(drive, "lab-hung", labSize, guid(1), p), l.volume("lab-late", labSize, guid(2), p)
	for _, v := range []*volume{hung, late} {
		t.Cleanup(v.down)
	}
	hung.begun("ext4") // else its header would be the first that hangs
	release := l.freeze(drive)
	ended := make(chan error, 1)
	go func() { ended <- hung.stage(mountCapability("ext4")) }()
	l.Eventually(uninterruptible).WithArguments("/proc", "mkfs.ext4").Should(BeTrue())

	what := hung.overdue()
	t.Log(what)
	l.Expect(what).To(MatchRegexp(`running mkfs\.ext4 .* has not returned since`))
	must(t, late.stage(mountCapability("ext4")))
	l.Expect(ended).NotTo(Receive())

	release()
	l.Eventually(ended).Should(Receive(Succeed()))
	l.Expect(l.service.Overdue()).To(BeEmpty())
}

// silent is a target that takes a connection and says hello (ICResp, NVMe/TCP 3.6.2.3), and no more until it hangs up.
type silent struct {
	net.Listener
	hello, hangUp chan struct{}
}

func (s silent) serve() error {
	probe, err := s.Accept() // which only asks whether anybody listens
	if err != nil {
		return err
	}
	host, err := s.Accept()
	if err := errors.Join(err, probe.Close()); err != nil {
		return err
	}
	hello := make([]byte, 128)
	if _, err := io.ReadFull(host, hello); err != nil {
		return err
	}
	clear(hello)
	hello[0], hello[2], hello[4] = 1, 128, 128 // ICResp, its header's length, its length
	binary.LittleEndian.PutUint32(hello[12:], 128<<10)
	_, err = host.Write(hello)
	close(s.hello)
	<-s.hangUp
	return errors.Join(err, host.Close())
}

// A target takes the connection and does not answer. The kernel waits for it, a minute even when the target hangs up,
// with the lock that every other connection needs, and that reading /dev/nvme-fabrics needs.
func TestLabConnectionThatHangs(t *testing.T) {
	l := setUpLab(t)
	// Not the minute: long enough for what is looked at meanwhile.
	l.parameter("nvme_core", "admin_timeout", "20")
	p := l.port(4420, v1alpha1.TransportTCP)
	hung, well, late := l.volume("lab-hung", labSize, guid(1), p), l.volume("lab-well", labSize, guid(2), p), l.volume("lab-late", labSize, guid(3), p)
	well.up(blockCapability())
	var listening net.ListenConfig
	listener, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:4499")
	must(t, err)
	target, served, ended := silent{listener, make(chan struct{}), make(chan struct{})}, make(chan error, 1), make(chan error, 1)
	go func() { served <- target.serve() }()
	hung.context.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 4499}}
	go func() { ended <- hung.stage(blockCapability()) }()
	l.Eventually(target.hello).Should(BeClosed())

	// Another process that begins now finds it out.
	other := fabrics.New(l.initiator.Config)
	brief, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	l.Expect(other.Ready(brief)).To(MatchError(context.DeadlineExceeded))
	l.clock.SetTime(time.Now().Add(2 * doing.Limit))
	begun := time.Now()
	want(t, late.stage(blockCapability()), codes.Unavailable, "accepts no more volumes", "connecting to "+hung.context.NQN)
	l.Expect(time.Since(begun)).To(BeNumerically("<", refusedWithin))
	must(t, well.stage(blockCapability()))
	l.Expect(other.HeldUp()).NotTo(BeNil())

	close(target.hangUp)
	must(t, errors.Join(<-served, listener.Close()))
	var answer error
	l.Eventually(ended).Should(Receive(&answer))
	l.Expect(answer).To(MatchError(ContainSubstring("connect to " + hung.context.NQN)))
	l.Eventually(l.initiator.HeldUp).Should(BeNil())
	l.Eventually(other.HeldUp).Should(BeNil())
	late.up(blockCapability())
}

// hungUnmount waits for what was written and is not on the drive.
func hungUnmount() hang {
	data := bytes.Repeat([]byte("weft"), 1<<20)
	return hang{
		capability: mountCapability("ext4"),
		begin: func(v *volume, drive string, _ *port) func() {
			must(v, os.WriteFile(v.path("pod/file"), data, 0o600))
			return v.freeze(drive)
		},
		call:  (*volume).unstage,
		seen:  func(v *volume) { v.Eventually(uninterruptible).WithArguments("/proc", "umount").Should(BeTrue()) },
		words: func(v *volume) string { return "unmounting " + v.path("staging") + " has not returned since" },
		after: func(v *volume) { v.comesBackWith("pod/file", data) },
	}
}

// hungDeletion is that of an earlier attachment's controller with a write in flight: the kernel waits for it as long as
// for any other.
func hungDeletion() hang {
	written := make(chan error, 1)
	var former volume
	return hang{
		capability: blockCapability(),
		// Others raise it, up to the 49 days that are recommended for some clouds' own drives. Here it is what the test
		// takes at most.
		prepare: func(l *lab) { l.parameter("nvme_core", "io_timeout", "60") },
		begin: func(v *volume, drive string, p *port) func() {
			// A container has a device node of its own, so that the one bound for the pod is not in use while it
			// writes.
			path := v.device().Path
			former = *v
			v.context.Blank = false
			v.attach("b2b2b2b2-2222-4333-8444-555555555555", p)
			release := v.freeze(drive)
			go func() { written <- writeDirect(path, "hello") }()
			v.Eventually(uninterruptible).WithArguments("/proc/self/task", filepath.Base(os.Args[0])).Should(BeTrue())
			return release
		},
		call:  func(v *volume) error { return v.stage(blockCapability()) },
		seen:  func(v *volume) { v.Eventually(former.paths).Should(ConsistOf(HavePrefix("deleting"))) },
		words: func(*volume) string { return "deleting nvme" },
		after: func(v *volume) {
			former.gone()
			var err error
			v.Eventually(written).Should(Receive(&err))
			v.Log("the write that was in flight:", err)
			if err == nil {
				v.Expect(v.head(5)).To(Equal("hello"))
			}
		},
	}
}

// drive of the target, as the engine has them: XFS, on which volumes are files.
func (l *lab) drive() string {
	l.Helper()
	image, dir := filepath.Join(l.dir, "drive.img"), filepath.Join(l.dir, "drive")
	must(l, os.WriteFile(image, nil, 0o600))
	must(l, os.Truncate(image, driveSize))
	must(l, os.Mkdir(dir, 0o700))
	l.program("mkfs.xfs", "-q", image)
	l.program("mount", "-o", "loop", image, dir)
	l.Cleanup(func() { l.program("umount", dir) })
	return dir
}

// freeze a drive: writes to it wait until it is released.
func (l *lab) freeze(drive string) (release func()) {
	l.Helper()
	l.program("fsfreeze", "--freeze", drive)
	release = sync.OnceFunc(func() { l.program("fsfreeze", "--unfreeze", drive) })
	l.Cleanup(release)
	return release
}

// parameter of a kernel module, until the test ends.
func (l *lab) parameter(module, name, value string) {
	l.Helper()
	path := filepath.Join("/sys/module", module, "parameters", name)
	was, err := os.ReadFile(path)
	must(l, err)
	l.write(path, value)
	l.Cleanup(func() { l.write(path, string(was)) })
}

func (l *lab) program(name string, args ...string) {
	l.Helper()
	if out, err := exec.CommandContext(context.WithoutCancel(l.Context()), name, args...).CombinedOutput(); err != nil {
		l.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// uninterruptible tells whether a task of this name, of those in a folder, is in a sleep that no signal ends (state D
// in proc(5)).
func uninterruptible(dir, name string) (bool, error) {
	all, err := filepath.Glob(filepath.Join(dir, "[0-9]*/stat"))
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(stat), "("+name+") D ") {
			return true, nil
		}
	}
	return false, err
}

// direct is the unit of direct I/O here, and its alignment.
const direct = 4096

// directly opens a file past the page cache and gives it memory to read into or write from.
func directly(path string, flags int, do func(f *os.File, block []byte) error) error {
	f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	block, err := unix.Mmap(-1, 0, direct, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		err = errors.Join(do(f, block), unix.Munmap(block))
	}
	return errors.Join(err, f.Close())
}

// readDirect gives the first block of a file as the device has it.
func readDirect(path string) (text string, err error) {
	err = directly(path, os.O_RDONLY, func(f *os.File, block []byte) error {
		n, err := f.ReadAt(block, 0)
		text = string(block[:n])
		if n > 0 {
			err = nil // the end of the file
		}
		return err
	})
	return text, err
}

// writeDirect writes one block that begins with the text.
func writeDirect(path, text string) error {
	return directly(path, os.O_WRONLY, func(f *os.File, block []byte) error {
		copy(block, text)
		_, err := f.WriteAt(block, 0)
		return err
	})
}
