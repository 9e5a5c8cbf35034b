// SPDX-License-Identifier: Apache-2.0

//go:build lab

package enginetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

const (
	lbaBytes = 4096
	// poll is how often the initiator's state is looked at.
	poll = 5 * time.Millisecond
	// hostPatience of a host that lost its target: no test outlasts it.
	hostPatience = 10 * time.Minute
	// KernelRetries is how often a host that lost its target tries again.
	KernelRetries = time.Second
)

// controller is one connection of the kernel's initiator.
type controller struct {
	name string // nvme3
	nqn  string
	host string
	dev  *os.File
}

// ConnectKernel connects the kernel's initiator by one write to /dev/nvme-fabrics, as weft's node plugin does. A host
// that lost its target tries again until its connection ends, and gives up at once when it is told to.
func ConnectKernel(portal v1alpha1.Portal, nqn, hostNQN string) (Connection, error) {
	c, err := connectKernel(portal, nqn, hostNQN, dhchap.Pair{})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ConnectKernelWith keys is ConnectKernel of a host that proves itself, if there are keys. Until the test ends, the
// kernel waits less long for an answer, also while a host reconnects: see hurry. A test that fails logs what became of
// the connection.
func ConnectKernelWith(t *testing.T, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (Connection, error) {
	t.Helper()
	if !keys.IsZero() {
		hurry(t)
	}
	log, err := OpenKernelLog()
	if err != nil {
		return nil, err
	}
	c, err := connectKernel(portal, nqn, hostNQN, keys)
	if err != nil {
		return nil, errors.Join(err, log.close())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.account(log))
		}
		_ = log.close()
	})
	return c, nil
}

func connectKernel(portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (*controller, error) {
	f, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	options := fmt.Sprintf("nqn=%s,transport=%s,traddr=%s,trsvcid=%d,hostnqn=%s,hostid=%s,nr_io_queues=4,reconnect_delay=%d,ctrl_loss_tmo=%d,keep_alive_tmo=30",
		nqn, strings.ToLower(string(portal.Transport)), portal.Address, portal.Port, hostNQN, strings.TrimPrefix(hostNQN, v1alpha1.HostNQNPrefix), int(KernelRetries.Seconds()), int(hostPatience.Seconds()))
	if !keys.IsZero() {
		options += ",dhchap_secret=" + keys.Host.Text() + ",dhchap_ctrl_secret=" + keys.Controller.Text()
	}
	if _, err := f.WriteString(options); err != nil {
		return nil, fmt.Errorf("connect %s to %s: %w", hostNQN, nqn, err)
	}
	answer := make([]byte, 256)
	n, err := f.Read(answer)
	if err != nil {
		return nil, err
	}
	found := regexp.MustCompile(`instance=(\d+)`).FindSubmatch(answer[:n])
	if found == nil {
		return nil, fmt.Errorf("/dev/nvme-fabrics answered %q", answer[:n])
	}
	c := &controller{name: "nvme" + string(found[1]), nqn: nqn, host: hostNQN}
	if c.dev, err = os.OpenFile("/dev/"+c.name, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	return c, nil
}

// SlowProofs is the variable with which wrong proofs are tried over RDMA, too, each of which takes most of a minute.
const SlowProofs = "WEFT_SLOW_PROOFS"

// HangsUnproved is this kernel's trait.
func HangsUnproved() []v1alpha1.TransportType {
	if os.Getenv(SlowProofs) != "" {
		return nil
	}
	return []v1alpha1.TransportType{v1alpha1.TransportRDMA}
}

// adminTimeout is how many seconds the kernel waits for the answer to an administrative command, 60 unless set.
const adminTimeout = "/sys/module/nvme_core/parameters/admin_timeout"

// hurry has the kernel wait 5 s for an answer until the test ends: Linux 6.12 sometimes waits for one in vain after a
// proof that was wrong, and reads the limit again for each command.
func hurry(t *testing.T) {
	t.Helper()
	before, err := os.ReadFile(adminTimeout)
	if err == nil {
		err = os.WriteFile(adminTimeout, []byte("5"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(adminTimeout, before, 0) })
}

func (c *controller) attr(name string) string {
	b, err := os.ReadFile(filepath.Join("/sys/class/nvme", c.name, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// account of a connection that a test failed with: its state, and what the kernel said of it.
func (c *controller) account(log *KernelLog) string {
	said, err := log.lines()
	said = slices.DeleteFunc(said, func(line string) bool {
		return !strings.Contains(line, c.name+":") && !strings.Contains(line, c.nqn) || strings.Contains(line, "deprecated NVME_IOCTL_IO_CMD")
	})
	return fmt.Sprintf("%s of host %s: %s\n%s\n%v", c.name, c.host, cmp.Or(c.attr("state"), "not there"), strings.Join(said, "\n"), err)
}

// Gone implements Connection. Another controller may have taken the name.
func (c *controller) Gone() bool {
	if c.attr("subsysnqn") != c.nqn || c.attr("hostnqn") != c.host {
		return true
	}
	return strings.HasPrefix(c.attr("state"), "deleting")
}

// LosePatience implements Connection. The kernel counts attempts, of which it makes one each second; one
// that is gone already has none left.
func (c *controller) LosePatience() error {
	err := os.WriteFile(filepath.Join("/sys/class/nvme", c.name, "ctrl_loss_tmo"), []byte("1"), 0o200)
	if err != nil && c.Gone() {
		return nil
	}
	return err
}

// Controller implements Connection.
func (c *controller) Controller() int {
	id, err := strconv.Atoi(c.attr("cntlid"))
	if err != nil {
		return -1
	}
	return id
}

// Disconnect implements Connection.
func (c *controller) Disconnect() {
	if !c.Gone() {
		_ = os.WriteFile(filepath.Join("/sys/class/nvme", c.name, "delete_controller"), []byte("1"), 0o200)
	}
	_ = c.dev.Close()
}

// IOQueues implements Connection.
func (c *controller) IOQueues() (int, error) {
	n, err := strconv.Atoi(c.attr("queue_count"))
	return n - 1, err // one is the admin queue
}

// Namespace implements Connection.
func (c *controller) Namespace(ctx context.Context, id engine.ID) (Namespace, error) {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if path := c.find(id); path != "" {
			ns := &namespace{c: c, id: id, path: path, head: regexp.MustCompile(`c\d+n`).ReplaceAllString(filepath.Base(path), "n")}
			// The path comes before the device that the host uses.
			if _, err := os.Stat("/dev/" + ns.head); err == nil && ns.ready() {
				return ns, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("namespace %s of %s does not come: %w", id, c.name, ctx.Err())
		case <-ticker.C:
		}
	}
}

// find the folder in sysfs of the path to a namespace.
func (c *controller) find(id engine.ID) string {
	paths, _ := filepath.Glob(filepath.Join("/sys/class/nvme", c.name, "nvme*n*", "nguid"))
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "") == id.NGUID() {
			return filepath.Dir(path)
		}
	}
	return ""
}

// namespace through one controller. Two hosts of these tests live in one
// kernel, whose multipath takes them for two paths of one host: so I/O goes through the controller's
// own device, and through the block device only where a controller has several namespaces.
type namespace struct {
	c    *controller
	id   engine.ID
	path string
	head string
}

// BlockDevice of a namespace, over all its paths.
func BlockDevice(ns Namespace) string { return "/dev/" + ns.(*namespace).head }

func (n *namespace) attr(name string) string {
	b, err := os.ReadFile(filepath.Join(n.path, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ready: the kernel tells the size of a device before it describes its queue. It creates the attributes of a path one
// by one, the number after those that the path is found by, when the device may be there already, with another path.
func (n *namespace) ready() bool {
	size, err := n.SizeBytes()
	_, unknown := n.number(queueBlock)
	return err == nil && unknown == nil && size > 0 && n.nsid() != 0
}

func (n *namespace) nsid() uint32 {
	nsid, _ := strconv.ParseUint(n.attr("nsid"), 10, 32)
	return uint32(nsid)
}

// SizeBytes implements Namespace.
func (n *namespace) SizeBytes() (int64, error) {
	sectors, err := n.number("size")
	return sectors * 512, err
}

// queueBlock is the file with the bytes of a logical block.
const queueBlock = "queue/logical_block_size"

// number that the kernel says of the block device.
func (n *namespace) number(file string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/class/block", n.head, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Identity implements Namespace.
func (n *namespace) Identity() (Identity, error) {
	blockBytes, err := n.number(queueBlock)
	return Identity{
		NQN: n.c.attr("subsysnqn"), Serial: n.c.attr("serial"), Model: n.c.attr("model"), NSID: n.nsid(),
		UUID: n.attr("uuid"), NGUID: strings.ReplaceAll(n.attr("nguid"), "-", ""), BlockBytes: int32(blockBytes),
	}, err
}

// ANAState implements Namespace.
func (n *namespace) ANAState() string {
	return n.attr("ana_state")
}

// command of NVME_IOCTL_IO_CMD: struct nvme_passthru_cmd in linux/nvme_ioctl.h.
type command struct {
	opcode, flags       uint8
	_                   uint16
	nsid                uint32
	_, _                uint32
	metadata, addr      uint64
	metadataLen, length uint32
	cdw10, cdw11, cdw12 uint32
	_, _, _             uint32
	timeoutMS, result   uint32
}

const (
	ioctlIOCommand = 3<<30 | 72<<16 | 'N'<<8 | 0x43
	opWrite        = 1
	opRead         = 2
	// Path related status codes, on which a host tries again (NVMe Base Specification, "Path Related Status").
	statusPathMask, statusPath = 0x700, 0x300
)

// ReadAt implements Namespace.
func (n *namespace) ReadAt(p []byte, off int64) (int, error) { return n.io(opRead, p, off) }

// WriteAt implements Namespace.
func (n *namespace) WriteAt(p []byte, off int64) (int, error) { return n.io(opWrite, p, off) }

// io as long as the initiator hopes: until the controller is gone.
func (n *namespace) io(op uint8, p []byte, off int64) (int, error) {
	buffer, free := aligned(len(p))
	defer free()
	if op == opWrite {
		copy(buffer, p)
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for {
		err := n.try(op, buffer, off)
		if err == nil {
			if op == opRead {
				copy(p, buffer)
			}
			return len(p), nil
		}
		if !errors.Is(err, errTransient) {
			return 0, err
		}
		if n.c.Gone() {
			return 0, fmt.Errorf("%s is gone: %w", n.c.name, err)
		}
		select {
		case <-deadline.C:
			return 0, fmt.Errorf("%s does not answer: %w", n.c.name, err)
		case <-ticker.C:
		}
	}
}

var errTransient = errors.New("path is away")

func (n *namespace) try(op uint8, p []byte, off int64) error {
	nsid := n.nsid()
	if nsid == 0 {
		if n.c.attr("state") == "live" {
			return fmt.Errorf("namespace %s: %w", n.id, engine.ErrNotFound)
		}
		return errTransient
	}
	cmd := command{
		opcode: op, nsid: nsid, addr: uint64(uintptr(unsafe.Pointer(&p[0]))), length: uint32(len(p)), //nolint:gosec // the kernel reads or fills it
		cdw10: uint32(off / lbaBytes), cdw11: uint32(off / lbaBytes >> 32), cdw12: uint32(len(p)/lbaBytes - 1), timeoutMS: 60_000,
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, n.c.dev.Fd(), ioctlIOCommand, uintptr(unsafe.Pointer(&cmd))) //nolint:gosec // the kernel reads it
	switch {
	case errno == unix.EINVAL:
		return n.tryBlock(op, p, off)
	case errno != 0:
		return fmt.Errorf("%w: %w", errTransient, errno)
	case status&statusPathMask == statusPath:
		return fmt.Errorf("%w: status %#x", errTransient, status)
	case status != 0:
		return fmt.Errorf("%s: status %#x", n.c.name, status)
	}
	return nil
}

// tryBlock through the block device.
func (n *namespace) tryBlock(op uint8, p []byte, off int64) error {
	f, err := os.OpenFile("/dev/"+n.head, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if op == opWrite {
		_, err = f.WriteAt(p, off)
	} else {
		_, err = f.ReadAt(p, off)
	}
	return err
}

// aligned memory of whole pages: direct I/O takes nothing else.
func aligned(n int) ([]byte, func()) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return b, sync.OnceFunc(func() { _ = unix.Munmap(b) })
}

// LabAddress of the interface that has the lab's soft RDMA device.
func LabAddress() (string, error) {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", err
	}
	all, err := eth0.Addrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil {
			return ip.String(), nil
		}
	}
	return "", errors.New("eth0 has no IPv4 address: run this on a node of the lab (weft-lab up)")
}

// DisconnectKernel takes away all controllers that are connected to weft's subsystems.
func DisconnectKernel() {
	all, _ := filepath.Glob("/sys/class/nvme/nvme*")
	for _, dir := range all {
		if b, err := os.ReadFile(filepath.Join(dir, "subsysnqn")); err == nil && strings.HasPrefix(string(b), v1alpha1.NQNPrefix) {
			_ = os.WriteFile(filepath.Join(dir, "delete_controller"), []byte("1"), 0o200)
		}
	}
}

const (
	// goingDown and noLogFlush are XFS_IOC_GOINGDOWN and XFS_FSOP_GOING_FLAGS_NOLOGFLUSH of xfs/xfs_fs.h.
	goingDown  = 0x8004587d
	noLogFlush = 2
)

// CutPower of an XFS, by its mount point: it stops as with a loss of power, and what it has not logged yet is lost.
func CutPower(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), goingDown, noLogFlush), f.Close())
}

// KernelLog is what this machine's kernel says from the time on at which it was opened.
type KernelLog struct{ fd int }

// OpenKernelLog for as long as the test runs.
func OpenKernelLog() (*KernelLog, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &KernelLog{fd: fd}, nil
}

// complaint of a kernel that found itself to be wrong, and goes on.
var complaint = regexp.MustCompile(`WARNING: |BUG: |Oops|general protection fault|refcount_t|hung_task|blocked for more than`)

// warnOnce is a file of debugfs. Who writes to it has the kernel say again what it says once.
const warnOnce = "/sys/kernel/debug/clear_warn_once"

// Complaints since the last call, a line each. Those that a kernel has only once in its life, it has again after this.
func (k *KernelLog) Complaints() ([]string, error) {
	if err := os.WriteFile(warnOnce, []byte("1"), 0o200); err != nil {
		return nil, fmt.Errorf("debugfs has to be mounted: %w", err)
	}
	said, err := k.lines()
	return slices.DeleteFunc(said, func(line string) bool { return !complaint.MatchString(line) }), err
}

// lines that were said since the last call, each after its time in microseconds.
func (k *KernelLog) lines() ([]string, error) {
	var found []string
	record := make([]byte, 8192)
	for {
		n, err := unix.Read(k.fd, record)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return found, nil
		case errors.Is(err, unix.EPIPE): // the oldest were overwritten
			continue
		case err != nil:
			return found, err
		}
		about, line, _ := strings.Cut(string(record[:n]), ";")
		line, _, _ = strings.Cut(line, "\n")
		if fields := strings.Split(about, ","); len(fields) > 2 {
			line = fields[2] + " " + line
		}
		found = append(found, line)
	}
}

func (k *KernelLog) close() error { return unix.Close(k.fd) }
