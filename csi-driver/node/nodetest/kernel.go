// SPDX-License-Identifier: Apache-2.0

// Package nodetest has a node plugin for tests, on a constructed kernel: a folder that looks like /sys and
// /dev, which connecting and disconnecting change the way Linux 6.12 does. What it answers was recorded there with an
// nvmet target: the errno of each failure, the names, links and files of sysfs.
//
// It also has what tests of both of CSI's services share: it runs csi-sanity, and reads a volume's condition as a
// caller of CSI 1.9 does.
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

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/internal/dhchap"
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
	// SizeBytes of the namespace: a header, and the data behind.
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
	// Keys of hosts that must prove themselves, by their NQNs.
	Keys map[string]dhchap.Pair
}

// Kernel implements fabrics.Kernel. Safe for concurrent use.
type Kernel struct {
	// Root folder.
	Root string
	// Known are the options that the kernel prints; empty for one that is too old to.
	Known string
	// Hanging gets a value for each call that has begun to hang.
	Hanging chan struct{}

	// device is nvmf_dev_mutex, which whoever reads or writes /dev/nvme-fabrics holds.
	device sync.Mutex

	mu          sync.Mutex
	multipath   bool
	scansLate   bool
	noRDMA      bool
	noCrypt     bool
	subsystems  map[string]Subsystem
	controllers map[string]*controller // by name
	heads       map[string]*head       // by device name
	mapped      map[string]*mapped     // by device name
	mirrors     map[string]*mirror     // by device name
	metadata    map[string]*metadata   // of mirrors, by the NGUID of what it is on
	written     map[string]int64       // bytes, by name of a device of device mapper
	syncMax     int64                  // bytes of data at which copies wait; below 0 for none
	blockBytes  map[string]int         // of devices of device mapper with other logical blocks than 512 bytes, by label
	stuck       map[string]chan struct{}
	held        chan struct{}
	blocked     map[blocking]chan struct{}
	creations   []string
	changed     chan struct{} // closed when a path comes or goes
	abandoned   bool          // see Abandon
	minors      int
	listeners   []*events
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
		heads: map[string]*head{}, mapped: map[string]*mapped{}, mirrors: map[string]*mirror{}, metadata: map[string]*metadata{}, written: map[string]int64{}, syncMax: -1, stuck: map[string]chan struct{}{}, blocked: map[blocking]chan struct{}{},
		changed: make(chan struct{}), users: func(string) bool { return false }, onGone: func(string) {},
	}
	for _, dir := range []string{
		"dev/mapper", "backing", "sys/class/nvme", "sys/class/nvme-subsystem", "sys/class/block", "sys/dev/block",
		"sys/module/nvme_tcp", "sys/module/nvme_rdma", "sys/devices/virtual/nvme-fabrics/ctl", "sys/devices/virtual/nvme-subsystem",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	return k, errors.Join(k.write("dev/nvme-fabrics", ""), k.write("dev/mapper/control", ""), k.write("sys/module/nvme_core/parameters/multipath", "Y"))
}

// DisableMultipath makes the kernel as one with nvme_core.multipath=N.
func (k *Kernel) DisableMultipath() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.multipath = false
	return k.write("sys/module/nvme_core/parameters/multipath", "N")
}

// ScanLate has the kernel not look for the namespaces of controllers that are made from now on, until ScanNow.
func (k *Kernel) ScanLate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scansLate = true
}

// ScanNow looks for the namespaces of all controllers.
func (k *Kernel) ScanNow() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scansLate = false
	for name := range k.controllers {
		if err := k.scan(name); err != nil {
			return err
		}
	}
	return nil
}

// SetRDMA says whether the kernel has an RDMA device, as it does at first.
func (k *Kernel) SetRDMA(present bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noRDMA = !present
}

// SetCrypt says whether the kernel has dm-crypt, as it does at first.
func (k *Kernel) SetCrypt(present bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noCrypt = !present
}

// Serve makes a subsystem as given. Hosts that are connected see another size after a rescan.
func (k *Kernel) Serve(s Subsystem) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.subsystems[s.NQN] = s
	for _, ns := range s.Namespaces {
		if err := errors.Join(k.file(k.Header(ns.NGUID), v1alpha1.HeaderBytes), k.file(k.Backing(ns.NGUID), v1alpha1.WithoutOverhead(ns.SizeBytes))); err != nil {
			return err
		}
	}
	return nil
}

// file for a namespace. It grows with the device that shows it, and shrinks at once.
func (k *Kernel) file(path string, sizeBytes int64) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = os.WriteFile(path, nil, 0o600)
	case err == nil && info.Size() <= sizeBytes:
		return nil
	}
	return errors.Join(err, os.Truncate(path, sizeBytes))
}

// Backing is the path of the file that holds a namespace's data, behind its header.
func (k *Kernel) Backing(nguid string) string { return filepath.Join(k.Root, "backing", nguid) }

// Header is the path of the file that holds what a namespace begins with.
func (k *Kernel) Header(nguid string) string { return k.Backing(nguid) + ".header" }

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

// Hold makes connecting wait, as with a target that accepts and does not answer, until release is called. Further
// connections wait behind it, and reads of the options.
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

// blocking is an access to a device by its name.
type blocking struct {
	access Access
	device string
}

// Block makes an access to a device, such as nvme0n1, hang, as it does without a path, until release is called.
func (k *Kernel) Block(a Access, device string) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, blocked := blocking{a, device}, make(chan struct{})
	k.blocked[b] = blocked
	return func() {
		k.mu.Lock()
		delete(k.blocked, b)
		k.mu.Unlock()
		close(blocked)
	}
}

func (k *Kernel) waitUnblocked(a Access, path string) {
	k.mu.Lock()
	blocked := k.blocked[blocking{a, filepath.Base(path)}]
	k.mu.Unlock()
	k.hang(blocked)
}

// Open implements fabrics.Kernel.
func (k *Kernel) Open(path string) (fabrics.Device, error) {
	k.waitUnblocked(Opening, path)
	f, err := os.Open(path)
	if lost := k.readable(filepath.Base(path)); errors.Is(err, os.ErrNotExist) && lost != nil {
		f, err = nil, nil // it opens, and fails to be read
	}
	if err != nil {
		return nil, err
	}
	k.opened(path, 1)
	return device{f, path, k}, nil
}

// opened or closed a device of device mapper.
func (k *Kernel) opened(path string, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.mapped[filepath.Base(path)]; m != nil {
		m.opens += n
	}
}

type device struct {
	file   *os.File // nil for a device that fails
	path   string
	kernel *Kernel
}

// ReadAt implements io.ReaderAt.
func (d device) ReadAt(p []byte, offset int64) (int, error) {
	d.kernel.waitUnblocked(Reading, d.path)
	if err := d.kernel.readable(filepath.Base(d.path)); err != nil {
		return 0, err
	}
	return d.file.ReadAt(p, offset)
}

// Close implements io.Closer.
func (d device) Close() error {
	d.kernel.opened(d.path, -1)
	err := d.kernel.released()
	if d.file != nil {
		err = errors.Join(err, d.file.Close())
	}
	return err
}

// OpenDirect implements fabrics.Kernel.
func (k *Kernel) OpenDirect(path string, write bool) (fabrics.DirectDevice, error) {
	k.waitUnblocked(Opening, path)
	flags := os.O_RDONLY
	if write {
		flags = os.O_RDWR
		if readOnly, err := k.ReadOnly(path); err != nil || readOnly {
			return nil, errors.Join(err, &os.PathError{Op: "open", Path: path, Err: syscall.EPERM})
		}
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return direct{f, k, k.heads[filepath.Base(path)]}, nil
}

// direct takes whole blocks only. It waits while no path answers, and fails once there is none.
type direct struct {
	*os.File
	kernel *Kernel
	head   *head // nil for another kind of device
}

// answers waits until a path of the device is live, or fails when the device is gone.
func (d direct) answers(op string) error {
	if d.head == nil {
		return nil
	}
	d.kernel.waitWritten(d.head.device)
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	if d.kernel.abandoned || d.kernel.heads[d.head.name] != d.head {
		return &os.PathError{Op: op, Path: d.Name(), Err: syscall.EIO}
	}
	return nil
}

const directBlock = 4096

func (d direct) fits(p []byte, offset int64) error {
	if len(p)%directBlock != 0 || offset%directBlock != 0 {
		return fmt.Errorf("%d bytes at %d: %w", len(p), offset, syscall.EINVAL)
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (d direct) ReadAt(p []byte, offset int64) (int, error) {
	d.kernel.waitUnblocked(Reading, d.Name())
	if err := errors.Join(d.fits(p, offset), d.answers("read")); err != nil {
		return 0, err
	}
	return d.File.ReadAt(p, offset)
}

// WriteAt implements io.WriterAt.
func (d direct) WriteAt(p []byte, offset int64) (int, error) {
	if err := errors.Join(d.fits(p, offset), d.answers("write")); err != nil {
		return 0, err
	}
	return d.File.WriteAt(p, offset)
}

// hang until a channel is closed; nil is none to wait for.
func (k *Kernel) hang(until <-chan struct{}) {
	if until == nil {
		return
	}
	k.tell()
	<-until
}

// tell of a call that hangs. Not everybody listens.
func (k *Kernel) tell() {
	select {
	case k.Hanging <- struct{}{}:
	default:
	}
}

// Path of a block device: a controller's name, its subsystem and its host.
type Path struct{ Controller, NQN, HostNQN string }

// Paths of the block device with a number, such as 259:1. Its I/O takes any of them that the target admits, whichever
// host it was made for.
func (k *Kernel) Paths(number string) []Path {
	k.mu.Lock()
	defer k.mu.Unlock()
	var paths []Path
	for _, h := range k.heads {
		if h.device != number {
			continue
		}
		for name := range h.paths {
			c := k.controllers[name]
			paths = append(paths, Path{name, c.nqn, c.host})
		}
	}
	return paths
}

// Number of the namespace's device under a block device, or that itself, by its name; empty when there is none.
func (k *Kernel) Number(device string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.heads[device]
	if m := k.mapped[device]; m != nil {
		h = k.under(m)
	}
	if h == nil {
		return ""
	}
	return h.device
}

// SetState sets a controller's state, such as connecting when its target is away.
func (k *Kernel) SetState(name, state string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	file := filepath.Join("sys/class/nvme", name, "state")
	was, err := os.ReadFile(filepath.Join(k.Root, file))
	err = errors.Join(err, k.write(file, state))
	if err == nil && state == "live" && strings.TrimSpace(string(was)) != "live" {
		k.connected(name)
	}
	k.change()
	return err
}

// Abandon what waits for a path, and what will: it fails, as when the node is switched off.
func (k *Kernel) Abandon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.abandoned = true
	k.change()
}

// change wakes those who wait for a path.
func (k *Kernel) change() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// waitWritten waits as a write to a device does, by its number: until a path is live, or the device is gone, when the
// write fails, or until Abandon.
func (k *Kernel) waitWritten(device string) {
	for told := false; ; told = true {
		k.mu.Lock()
		ends, changed := k.abandoned || k.writeEnds(device), k.changed
		if m := k.numbered(device); m != nil && ends == told {
			m.waiting += map[bool]int{false: 1, true: -1}[ends]
			if ends {
				k.change()
			}
		}
		k.mu.Unlock()
		if ends {
			return
		}
		if !told {
			k.tell()
		}
		<-changed
	}
}

func (k *Kernel) numbered(device string) *mapped {
	for _, m := range k.mapped {
		if m.number == device {
			return m
		}
	}
	return nil
}

func (k *Kernel) writeEnds(device string) bool {
	if m := k.numbered(device); m != nil {
		if m.suspended {
			return m.waiting > 0 // it was on its way before
		}
		h := k.under(m)
		if h == nil {
			return true
		}
		device = h.device
	}
	for _, h := range k.heads {
		if h.device != device {
			continue
		}
		for path := range h.paths {
			state, err := os.ReadFile(filepath.Join(k.Root, "sys/class/nvme", path, "state"))
			if err == nil && strings.TrimSpace(string(state)) == "live" {
				return true
			}
		}
		return false
	}
	return true
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
	k.device.Lock()
	defer k.device.Unlock()
	if k.Known == "" {
		return "", syscall.EINVAL
	}
	return k.Known, nil
}

// Create implements fabrics.Kernel.
func (k *Kernel) Create(text string) (string, error) {
	k.device.Lock()
	defer k.device.Unlock()
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
	if keys, asked := s.Keys[o["hostnqn"]]; asked {
		switch {
		case o["dhchap_secret"] == "":
			return "", syscall.ENOKEY
		case o["dhchap_secret"] != keys.Host.Text() || o["dhchap_ctrl_secret"] != keys.Controller.Text():
			return "", syscall.EKEYREJECTED
		}
	}
	answer, err := k.add(controller{nqn: s.NQN, portal: portal, transport: o["transport"], host: o["hostnqn"]}, o["hostid"])
	if err != nil || o["dhchap_secret"] == "" {
		return answer, err
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(answer, "instance="), ",")
	dir := filepath.Join("sys/class/nvme", "nvme"+name)
	return answer, errors.Join(k.write(filepath.Join(dir, "dhchap_secret"), o["dhchap_secret"]), k.write(filepath.Join(dir, "dhchap_ctrl_secret"), o["dhchap_ctrl_secret"]))
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

// Rescan implements fabrics.Kernel.
func (k *Kernel) Rescan(controller string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.scan(filepath.Base(controller))
}

// Delete implements fabrics.Kernel.
func (k *Kernel) Delete(c *own.Controller) error {
	name := c.Name()
	if _, err := os.Stat(filepath.Join(k.Root, "sys/class/nvme", name)); err != nil {
		return err
	}
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
}

// Claimed implements fabrics.Kernel.
func (k *Kernel) Claimed(device string) (bool, error) {
	k.waitUnblocked(Opening, device)
	if _, err := os.Lstat(device); err != nil {
		return false, err
	}
	k.mu.Lock()
	for _, m := range k.mapped {
		if h := k.under(m); h != nil && h.name == filepath.Base(device) {
			defer k.mu.Unlock()
			return true, nil
		}
	}
	k.mu.Unlock()
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
