// SPDX-License-Identifier: Apache-2.0

// Package nodetest has a node plugin for tests, on a constructed kernel: a folder that looks like /sys and
// /dev, which connecting and disconnecting change the way Linux 6.12 does. What it answers was recorded there with an
// nvmet target: the errno of each failure, the names, links and files of sysfs.
package nodetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// options that Linux 6.12 knows, as /dev/nvme-fabrics prints them.
const options = "instance=-1,cntlid=-1,transport=%s,traddr=%s,trsvcid=%s,nqn=%s,queue_size=%d,nr_io_queues=%d,reconnect_delay=%d," +
	"ctrl_loss_tmo=%d,keep_alive_tmo=%d,hostnqn=%s,host_traddr=%s,host_iface=%s,hostid=%s,duplicate_connect,disable_sqflow," +
	"hdr_digest,data_digest,nr_write_queues=%d,nr_poll_queues=%d,tos=%d,keyring=%d,tls_key=%d,fast_io_fail_tmo=%d,discovery," +
	"dhchap_secret=%s,dhchap_ctrl_secret=%s,tls\n"

// Namespace that a subsystem serves.
type Namespace struct {
	// NGUID, 32 hexadecimal digits.
	NGUID string
	// SizeBytes of the namespace, which is also the size of its file.
	SizeBytes int64
}

// Subsystem on the other side of the wire. Change it with Kernel.Serve.
type Subsystem struct {
	NQN string
	// Portals that listen, as address:port; RDMA and TCP alike.
	Portals []string
	// Hosts that are admitted.
	Hosts      []string
	Namespaces []Namespace
}

// Kernel implements fabrics.Kernel. Safe for concurrent use.
type Kernel struct {
	// Root folder.
	Root string
	// Known are the options that the kernel prints; empty for one that is too old to.
	Known string
	// Hanging gets a value for each call that has begun to hang.
	Hanging chan struct{}

	mu          sync.Mutex
	multipath   bool
	noRDMA      bool
	subsystems  map[string]Subsystem
	controllers map[string]*controller // by name
	heads       map[string]*head       // by device name
	stuck       map[string]chan struct{}
	held        chan struct{}
	blocked     map[Access]chan struct{}
	creations   []string
	minors      int
	users       func(device string) bool
	onGone      func(device string)
}

type controller struct {
	name, nqn, portal, transport, host, subsystem string
}

type head struct {
	name, subsystem, nguid string
	device                 string
	paths                  map[string]bool
}

// NewKernel in a root folder.
func NewKernel(root string) (*Kernel, error) {
	k := &Kernel{
		Root: root, Known: options, Hanging: make(chan struct{}, 64), multipath: true, subsystems: map[string]Subsystem{}, controllers: map[string]*controller{},
		heads: map[string]*head{}, stuck: map[string]chan struct{}{}, blocked: map[Access]chan struct{}{},
		users: func(string) bool { return false }, onGone: func(string) {},
	}
	for _, dir := range []string{
		"dev", "backing", "sys/class/nvme", "sys/class/nvme-subsystem", "sys/class/block", "sys/dev/block",
		"sys/module/nvme_tcp", "sys/module/nvme_rdma", "sys/devices/virtual/nvme-fabrics/ctl", "sys/devices/virtual/nvme-subsystem",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	return k, errors.Join(k.write("dev/nvme-fabrics", ""), k.write("sys/module/nvme_core/parameters/multipath", "Y"))
}

// DisableMultipath makes the kernel as one with nvme_core.multipath=N.
func (k *Kernel) DisableMultipath() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.multipath = false
	return k.write("sys/module/nvme_core/parameters/multipath", "N")
}

// SetRDMA says whether the kernel has an RDMA device, as it does at first.
func (k *Kernel) SetRDMA(present bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noRDMA = !present
}

// Serve makes a subsystem as given. Hosts that are connected see another size after a rescan.
func (k *Kernel) Serve(s Subsystem) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.subsystems[s.NQN] = s
	for _, ns := range s.Namespaces {
		f, err := os.OpenFile(k.Backing(ns.NGUID), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(ns.SizeBytes), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Backing is the path of the file that holds a namespace's data.
func (k *Kernel) Backing(nguid string) string { return filepath.Join(k.Root, "backing", nguid) }

// Creations lists the option strings that were written, in order.
func (k *Kernel) Creations() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.creations...)
}

// Controllers lists the names of those that exist.
func (k *Kernel) Controllers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.controllers {
		names = append(names, name)
	}
	return names
}

// Hold makes connecting wait, as with a target that accepts and does not answer, until release is called.
func (k *Kernel) Hold() (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := make(chan struct{})
	k.held = held
	return func() {
		k.mu.Lock()
		k.held = nil
		k.mu.Unlock()
		close(held)
	}
}

// Stick makes the deletion of a controller hang, until release is called.
func (k *Kernel) Stick(name string) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stuck := make(chan struct{})
	k.stuck[name] = stuck
	return func() { close(stuck) }
}

// Access to a device.
type Access string

// What may be done with one.
const (
	Opening Access = "opening"
	Reading Access = "reading"
)

// Block makes an access to devices hang, as it does without a path, until release is called.
func (k *Kernel) Block(a Access) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	blocked := make(chan struct{})
	k.blocked[a] = blocked
	return func() {
		k.mu.Lock()
		delete(k.blocked, a)
		k.mu.Unlock()
		close(blocked)
	}
}

func (k *Kernel) waitUnblocked(a Access) {
	k.mu.Lock()
	blocked := k.blocked[a]
	k.mu.Unlock()
	k.hang(blocked)
}

// Open implements fabrics.Kernel.
func (k *Kernel) Open(path string) (fabrics.Device, error) {
	k.waitUnblocked(Opening)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return device{f, k}, nil
}

type device struct {
	*os.File
	kernel *Kernel
}

// ReadAt implements io.ReaderAt.
func (d device) ReadAt(p []byte, offset int64) (int, error) {
	d.kernel.waitUnblocked(Reading)
	return d.File.ReadAt(p, offset)
}

// hang until a channel is closed; nil is none to wait for.
func (k *Kernel) hang(until <-chan struct{}) {
	if until == nil {
		return
	}
	k.Hanging <- struct{}{}
	<-until
}

// SetState sets a controller's state, such as connecting when its target is away.
func (k *Kernel) SetState(name, state string) error {
	return k.write(filepath.Join("sys/class/nvme", name, "state"), state)
}

// SetReadOnly sets a device's flag, as BLKROSET does.
func (k *Kernel) SetReadOnly(device string, readOnly bool) error {
	text := "0"
	if readOnly {
		text = "1"
	}
	return k.write(filepath.Join("sys/class/block", filepath.Base(device), "ro"), text)
}

// ReadOnly tells whether a device takes no writes.
func (k *Kernel) ReadOnly(device string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(k.Root, "sys/class/block", filepath.Base(device), "ro"))
	return strings.TrimSpace(string(text)) == "1", err
}

// Drop takes a controller away, as the kernel does by itself when its target answers a reconnect with "do not retry".
func (k *Kernel) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.remove(name)
}

// Options implements fabrics.Kernel.
func (k *Kernel) Options() (string, error) {
	if k.Known == "" {
		return "", syscall.EINVAL
	}
	return k.Known, nil
}

// Create implements fabrics.Kernel.
func (k *Kernel) Create(text string) (string, error) {
	k.mu.Lock()
	held := k.held
	k.mu.Unlock()
	k.hang(held)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.creations = append(k.creations, text)
	o := map[string]string{}
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		if k.Known != "" && !strings.Contains(","+k.Known, ","+key+"=") {
			return "", syscall.EINVAL
		}
		o[key] = value
	}
	portal := o["traddr"] + ":" + o["trsvcid"]
	for _, c := range k.controllers {
		if c.nqn != o["nqn"] || c.portal != portal || c.host != o["hostnqn"] || c.transport != o["transport"] {
			continue
		}
		state, err := os.ReadFile(filepath.Join(k.Root, "sys/class/nvme", c.name, "state"))
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(string(state), "deleting") {
			return "", syscall.EALREADY
		}
	}
	if k.noRDMA && o["transport"] == "rdma" {
		return "", syscall.ENODEV
	}
	if !k.listens(portal) {
		if o["transport"] == "rdma" {
			return "", syscall.ECONNRESET
		}
		return "", syscall.ECONNREFUSED
	}
	s, ok := k.subsystems[o["nqn"]]
	if !ok || !contains(s.Hosts, o["hostnqn"]) || !contains(s.Portals, portal) {
		return "", syscall.EIO
	}
	return k.add(controller{nqn: s.NQN, portal: portal, transport: o["transport"], host: o["hostnqn"]}, o["hostid"])
}

func (k *Kernel) listens(portal string) bool {
	for _, s := range k.subsystems {
		if contains(s.Portals, portal) {
			return true
		}
	}
	return false
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// WriteAttribute implements fabrics.Kernel: it knows delete_controller and rescan_controller.
func (k *Kernel) WriteAttribute(path, _ string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	name := filepath.Base(filepath.Dir(path))
	switch filepath.Base(path) {
	case "rescan_controller":
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.scan(name)
	case "delete_controller":
		if err := k.SetState(name, "deleting"); err != nil {
			return err
		}
		k.mu.Lock()
		stuck := k.stuck[name]
		k.mu.Unlock()
		k.hang(stuck)
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.remove(name)
	default:
		return fmt.Errorf("%s: %w", path, syscall.EACCES)
	}
}

// Claimed implements fabrics.Kernel.
func (k *Kernel) Claimed(device string) (bool, error) {
	if _, err := os.Stat(device); err != nil {
		return false, err
	}
	return k.users(filepath.Base(device)), nil
}

func (k *Kernel) write(path, text string) error {
	path = filepath.Join(k.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o600)
}

// nguidAsUUID is how sysfs prints an NGUID.
func nguidAsUUID(s string) string {
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

func (k *Kernel) freeName(prefix string, taken func(string) bool) string {
	for n := 0; ; n++ {
		if name := prefix + strconv.Itoa(n); !taken(name) {
			return name
		}
	}
}
