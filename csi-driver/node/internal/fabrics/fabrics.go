// SPDX-License-Identifier: Apache-2.0

// Package fabrics drives the kernel's NVMe-oF initiator: it connects to
// subsystems through /dev/nvme-fabrics and finds their controllers and namespaces in sysfs. It
// uses no nvme-cli, no discovery and no udev links.
//
// A volume is a namespace, found by its subsystem's NQN and its NGUID. A subsystem may
// hold several namespaces, and may be reached through several controllers, one for each portal.
//
// How sysfs shows them (Linux 5.15 to 6.12), N a controller's number, S a subsystem's:
//
//	/sys/class/nvme-subsystem/nvme-subsysS/subsysnqn
//	/sys/class/nvme-subsystem/nvme-subsysS/nvmeN      link to the controller
//	/sys/class/nvme-subsystem/nvme-subsysS/nvmeSnM    the namespace; its paths are nvmeN/nvmeScNnM
//	/sys/class/nvme/nvmeN/nvmeSnM                     the namespace, with nvme_core.multipath=N
//
// A controller is linked there only when its handshake is done, so what is found there is connected or was.
package fabrics

import (
	"context"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/internal/dhchap"
)

// pollInterval is how often sysfs is looked at while waiting. Connecting takes the kernel about 100 ms, and a look
// costs some 20 µs.
const pollInterval = 20 * time.Millisecond

// silence is how long a portal that did not answer is not waited for by volumes that have another path. Over RDMA each
// try takes the kernel seconds (NVME_RDMA_CM_TIMEOUT_MS, 3 s), and one connection is made after the other: a node with
// a hundred volumes would need minutes.
const silence = 30 * time.Second

// Kernel is what this package asks of the kernel besides reading sysfs. Safe for concurrent use.
type Kernel interface {
	// Options reads which connect options the kernel knows, as /dev/nvme-fabrics
	// prints them. It fails with an error that is syscall.EINVAL on kernels that cannot say. It waits for creations.
	Options() (string, error)
	// Create writes connect options to /dev/nvme-fabrics and reads the answer, such as instance=3,cntlid=1.
	// It returns when the controller is connected, or failed. Creations run one after the other in the kernel.
	Create(options string) (answer string, err error)
	// Rescan asks a controller, by its directory in sysfs, for its namespaces again. It returns before that is done.
	Rescan(controller string) error
	// Delete a controller. It may block for as long as the device does.
	Delete(c *own.Controller) error
	// Open a block device for reading. It may block, and so may reads, for as long as the device does.
	Open(device string) (Device, error)
	// OpenDirect opens a block device past its cache, to read and, with write, to write. What is written is durable
	// when the write returns. It may block, as Open.
	OpenDirect(device string, write bool) (DirectDevice, error)
	// Claimed tells whether a block device is held exclusively: mounted in any mount namespace,
	// used by device mapper, or as swap.
	Claimed(device string) (bool, error)
}

// Device that is open.
type Device = interface {
	io.ReaderAt
	io.Closer
}

// DirectDevice that is open. Offsets and lengths are multiples of the device's blocks.
type DirectDevice = interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// Config of a Host.
type Config struct {
	// Root under which /sys and /dev are found; "/" on a real host.
	Root string
	// Kernel to drive.
	Kernel Kernel
	// LoadModule loads a kernel module; loading one that is there already is no error.
	LoadModule func(ctx context.Context, name string) error
	// MountsOf tells where a block device, by its number and name, is mounted, or bound as a file.
	MountsOf func(device, name string) ([]string, error)
	// Reachable fails when a TCP connection to an address cannot be made. The kernel makes
	// connections one after the other, so that one to a dead portal would hold up all others for seconds.
	Reachable func(ctx context.Context, address string) error
	// Clock to tell how long ago a portal did not answer; nil for the machine's.
	Clock clock.PassiveClock
	// Events opens the kernel's uevents: each read gives one. Closing it ends a read.
	Events func() (io.ReadCloser, error)
}

// Host is this machine as an NVMe-oF host. Safe for concurrent use.
type Host struct {
	Config

	// flights are connections that are being made, and deletions controllers that are being taken away.
	flights, deletions flights
	turns              turns
	reconnects         reconnects

	// names remembers where a subsystem was found last, by NQN. It is
	// a hint that is checked at each use: it makes a look-up independent of the number of other volumes.
	mu    sync.Mutex
	names map[string]string
	// known options of the kernel; nil when they were not read yet, and nil in there when it does not say.
	known *map[string]bool
	// silent portals, with the time when nothing answered there.
	silent      map[v1alpha1.Portal]time.Time
	addressesMu sync.Mutex
	// addresses of controllers as they were read last, by the controller's name; see addressOf.
	addresses map[string]lastAddress
}

// lastAddress is a controller's address, with what tells that controller from a later one of the same name.
type lastAddress struct {
	nqn, host, address string
	dir                fs.FileInfo
}

// New makes a Host.
func New(config Config) *Host {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Host{
		Config: config, names: map[string]string{}, silent: map[v1alpha1.Portal]time.Time{},
		addresses: map[string]lastAddress{}, turns: newTurns(),
	}
}

// ID of a volume on a host.
type ID struct {
	// NQN of the subsystem.
	NQN string
	// NGUID of the namespace, 32 lower-case hexadecimal digits.
	NGUID string
}

// Connection says how to reach a subsystem.
type Connection struct {
	// NQN of the subsystem, and HostNQN that this machine connects with: the attachment's own, whose UUID is also the
	// host id.
	NQN, HostNQN string
	// Beside is another host NQN of the same attachment, whose controllers are left alone: its keys are rotated. Empty:
	// there is none.
	Beside string
	// Portals to connect to, at least one.
	Portals []v1alpha1.Portal
	// KeepAlive timeout in whole seconds; 0 for DefaultKeepAlive. What is connected already keeps the one it was made
	// with, through all of the kernel's reconnects.
	KeepAlive time.Duration
	// Keys by which this machine and the target prove themselves to each other; none: nobody asks for them.
	Keys dhchap.Pair
	// Connection settings; Portals alone say which transports are used.
	v1alpha1.Connection
}

// Namespace is a block device that a subsystem serves.
type Namespace struct {
	ID
	// Name of the block device, such as nvme0n1. It may change from one connection to the next.
	Name string
	// Path of the device node, such as /dev/nvme0n1, under the root.
	Path string
	// Device number as major:minor. It is not used again as long as something holds the device.
	Device string
	// SizeBytes of the device.
	SizeBytes int64
}

// Controller is one connection to a subsystem: a path.
type Controller struct {
	// Name such as nvme3.
	Name string
	// State as the kernel names it: new, live, resetting, connecting, deleting, deleting (no IO), dead.
	State string
	// Transport, Address and Port of the portal.
	Transport v1alpha1.TransportType
	Address   string
	Port      string
	// HostNQN it was connected with, and NQN of the subsystem.
	HostNQN, NQN string

	dir string
}

// going tells whether the kernel is taking the controller away: it carries no more I/O, and does not stop a new
// connection to the same portal.
func (c Controller) going() bool {
	return strings.HasPrefix(c.State, "deleting") || c.State == "dead"
}

// Live tells whether the controller carries I/O now.
func (c Controller) Live() bool { return c.State == "live" }

func (c Controller) String() string {
	return c.Name + " (" + string(c.Transport) + " " + c.Address + " port " + c.Port + ", " + c.State + ")"
}

var (
	subsystemName  = regexp.MustCompile(`^nvme-subsys[0-9]+$`)
	controllerName = regexp.MustCompile(`^nvme[0-9]+$`)
	pathName       = regexp.MustCompile(`^nvme[0-9]+c[0-9]+n[0-9]+$`)
	namespaceName  = regexp.MustCompile(`^nvme[0-9]+n[0-9]+$`)
)

func (h *Host) sys(elem ...string) string {
	return filepath.Join(append([]string{h.Root, "sys"}, elem...)...)
}
