// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	utilexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/header"
	"github.com/weft-storage/weft/test/agenttest"
)

// The clusters of a volume's data, which lie behind that with its header. A filesystem's first two are what it is, and
// the size that it was made or grown for.
const (
	superblock, sizeWord = 0, 1
	firstData            = 2
	ext4Magic            = 0xef53
	halfMade             = 0xbad
)

// rdmaPortal of the storage node, as hosts address it.
var rdmaPortal = net.JoinHostPort(agenttest.RDMA.Address, strconv.Itoa(int(agenttest.RDMA.Port)))

// host is a node where pods run: its kernel and mounts outlive its node plugin, and its folder, where records are,
// both.
type host struct {
	*world
	name, uid string
	dir       string
	boots     int
	// noRDMA: its way to the target over RDMA is broken.
	noRDMA  bool
	kernel  *nodetest.Kernel
	mounter *nodetest.Mounter
	life    *nodeLife
	// queued writes, which a pod made while the host was cut off, and its kernel has not let go of.
	queue  sync.Mutex
	queued []queuedWrite
}

// nodeLife is one process of the node plugin.
type nodeLife struct {
	fuse
	ctx     context.Context
	service *node.Service
}

func (l *nodeLife) killable() *fuse       { return &l.fuse }
func (l *nodeLife) over() context.Context { return l.ctx }

// records of what was staged; they outlive a process.
func (h *host) records() string { return filepath.Join(h.dir, "staged") }

// process of the node plugin that is alive.
func (h *host) process() *nodeLife {
	if h.life != nil && !h.life.isDead() {
		return h.life
	}
	h.must(h.ended())
	l := &nodeLife{}
	l.ctx, l.end = context.WithCancel(h.ctx)
	l.service = nodetest.NewService(nodetest.Config{
		Node: h.name, UID: h.uid, Root: h.kernel.Root, Records: h.records(),
		Kernel: kernel{h.kernel, h, l}, Mounter: mounter{h.mounter, l}, DeviceMapper: deviceMapper{h.kernel.DeviceMapper(), l}, Mirrors: h.kernel.Mirrors(),
		Programs: programs{host: h, life: l}, Volumes: api,
	})
	h.life = l
	return l
}

// ended waits for the end of a node plugin that was killed. What it was at ends at its next crossing, and a process
// ends when its threads have left the kernel.
func (h *host) ended() error {
	if h.life == nil {
		return nil
	}
	err := h.life.service.Wait(h.ctx)
	h.life.crossing.Wait()
	return err
}

// kernel that a node plugin may be killed at, and that sees what the target serves.
type kernel struct {
	*nodetest.Kernel
	host *host
	life *nodeLife
}

// Create implements nodetest.Config's Kernel.
func (k kernel) Create(options string) (answer string, err error) {
	if err := k.host.look(); err != nil {
		return "", err
	}
	err = k.life.cross(func() error {
		var err error
		answer, err = k.Kernel.Create(options)
		return err
	})
	return answer, err
}

// Rescan implements nodetest.Config's Kernel.
func (k kernel) Rescan(controller string) error {
	if err := k.host.look(); err != nil {
		return err
	}
	return k.life.cross(func() error { return k.Kernel.Rescan(controller) })
}

// Delete implements nodetest.Config's Kernel.
func (k kernel) Delete(c *nodetest.Controller) error {
	if err := k.host.look(); err != nil {
		return err
	}
	return k.life.cross(func() error { return k.Kernel.Delete(c) })
}

// target as it serves now, if it answers.
func (w *world) serving() (engine.State, bool) {
	state, err := w.storage.Gather(w.ctx)
	return state, err == nil
}

// look at what the target serves now, as a host does that connects or scans.
func (h *host) look() error {
	state, answers := h.serving()
	if !answers {
		return nil // what was known of it stays
	}
	h.deliver(state)
	served := map[string]bool{}
	for _, s := range agenttest.Subsystems(state) {
		served[s.NQN] = true
		if h.noRDMA {
			s.Portals = slices.DeleteFunc(s.Portals, func(p string) bool { return p == rdmaPortal })
		}
		if err := h.kernel.Serve(s); err != nil {
			return err
		}
		for _, ns := range s.Namespaces {
			if err := h.mirror(ns.NGUID); err != nil {
				return err
			}
		}
	}
	return h.forget(served)
}

// forget the subsystems that are not served any more.
func (h *host) forget(served map[string]bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for nqn := range h.served[h.name] {
		if !served[nqn] {
			if err := h.kernel.Serve(nodetest.Subsystem{NQN: nqn}); err != nil {
				return err
			}
		}
	}
	h.served[h.name] = served
	return nil
}

// mirror what a volume begins with into the file that stands for its device: the fence reads that.
func (h *host) mirror(nguid string) error {
	word, there := h.onDrive(uuidOf(nguid), superblock)
	if !there {
		return nil
	}
	f, err := os.OpenFile(h.kernel.Backing(nguid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, word), 0)
	return errors.Join(err, f.Close())
}

// onDrive is what a volume has in a cluster, unless it is deleted or its target away.
func (w *world) onDrive(volume string, cluster uint64) (uint64, bool) {
	word, err := w.readWord(volume, cluster)
	return word, err == nil
}

// readWord of a volume's data, or of a snapshot's.
func (w *world) readWord(volume string, cluster uint64) (uint64, error) {
	return w.storage.Target().ReadWord(volume, cluster+1)
}

func (w *world) writeWord(volume string, cluster, word uint64) error {
	return w.storage.Target().WriteWord(volume, cluster+1, word)
}

// uuidOf an NGUID, which is a volume's UUID without hyphens.
func uuidOf(nguid string) string {
	return nguid[:8] + "-" + nguid[8:12] + "-" + nguid[12:16] + "-" + nguid[16:20] + "-" + nguid[20:]
}

// mounter that a node plugin may be killed at.
type mounter struct {
	*nodetest.Mounter
	life *nodeLife
}

// BindReadOnly implements nodetest.Config's Mounter.
func (m mounter) BindReadOnly(source, target string) error {
	return m.life.cross(func() error { return m.Mounter.BindReadOnly(source, target) })
}

// Mount implements nodetest.Config's Mounter.
func (m mounter) Mount(source, target, fsType string, options []string) error {
	return m.life.cross(func() error { return m.Mounter.Mount(source, target, fsType, options) })
}

// Unmount implements nodetest.Config's Mounter.
func (m mounter) Unmount(target string) error {
	return m.life.cross(func() error { return m.Mounter.Unmount(target) })
}

// deviceMapper that a node plugin may be killed at.
type deviceMapper struct {
	kernel nodetest.DeviceMapper
	life   *nodeLife
}

// Create implements nodetest.DeviceMapper.
func (d deviceMapper) Create(label, uuid string) error {
	return d.life.cross(func() error { return d.kernel.Create(label, uuid) })
}

// Load implements nodetest.DeviceMapper.
func (d deviceMapper) Load(label string, t nodetest.Table) error {
	return d.life.cross(func() error { return d.kernel.Load(label, t) })
}

// Resume implements nodetest.DeviceMapper.
func (d deviceMapper) Resume(label string) error {
	return d.life.cross(func() error { return d.kernel.Resume(label) })
}

// Table implements nodetest.DeviceMapper.
func (d deviceMapper) Table(label string) (t nodetest.Table, err error) {
	err = d.life.cross(func() (err error) {
		t, err = d.kernel.Table(label)
		return err
	})
	return t, err
}

// Types implements nodetest.DeviceMapper.
func (d deviceMapper) Types() (types []string, err error) {
	err = d.life.cross(func() (err error) {
		types, err = d.kernel.Types()
		return err
	})
	return types, err
}

// Suspend implements nodetest.DeviceMapper.
func (d deviceMapper) Suspend(label string) error {
	return d.life.cross(func() error { return d.kernel.Suspend(label) })
}

// Rename implements nodetest.DeviceMapper.
func (d deviceMapper) Rename(label, to string) error {
	return d.life.cross(func() error { return d.kernel.Rename(label, to) })
}

// Remove implements nodetest.DeviceMapper.
func (d deviceMapper) Remove(label string) error {
	return d.life.cross(func() error { return d.kernel.Remove(label) })
}

// RemoveLater implements nodetest.DeviceMapper.
func (d deviceMapper) RemoveLater(label string) error {
	return d.life.cross(func() error { return d.kernel.RemoveLater(label) })
}

// programs that make and grow filesystems, in words.
type programs struct {
	utilexec.Interface
	host *host
	life *nodeLife
}

// Command implements exec.Interface.
func (p programs) Command(name string, args ...string) utilexec.Cmd {
	return &program{programs: p, name: name, device: args[len(args)-1]}
}

// CommandContext implements exec.Interface.
func (p programs) CommandContext(_ context.Context, name string, args ...string) utilexec.Cmd {
	return p.Command(name, args...)
}

type program struct {
	utilexec.Cmd
	programs
	name, device string
}

// SetEnv and SetStderr implement exec.Cmd.
func (*program) SetEnv([]string)     {}
func (*program) SetStderr(io.Writer) {}

// CombinedOutput implements exec.Cmd.
func (p *program) CombinedOutput() ([]byte, error) { return p.Output() }

// Output implements exec.Cmd.
func (p *program) Output() ([]byte, error) {
	found, err := p.host.readDevice(p.device, superblock)
	if err != nil {
		return nil, err
	}
	write := func(cluster, word uint64) error {
		return p.life.cross(func() error { return p.host.writeDevice(p.device, cluster, word) })
	}
	switch p.name {
	case "blkid":
		if found != ext4Magic {
			return nil, utilexec.CodeExitError{Err: errors.New("nothing found"), Code: 2}
		}
		return []byte("TYPE=ext4\n"), nil
	case "mkfs.ext4":
		if err := p.host.mayFormat(p.device, found); err != nil {
			p.host.Error(err)
			return nil, err
		}
		size, err := p.host.sizeOf(p.device)
		return nil, errors.Join(err, write(superblock, halfMade), write(sizeWord, uint64(size)), write(superblock, ext4Magic))
	case "fsck.ext4":
		return nil, nil
	case "resize2fs":
		size, err := p.host.sizeOf(p.device)
		return nil, errors.Join(err, write(sizeWord, uint64(size)))
	}
	return nil, fmt.Errorf("%s: %w", p.name, syscall.ENOENT)
}

// mayFormat a device that begins with a word: one that is blank, or where a filesystem is half made, of a volume whose
// header says that its formatting has begun.
func (h *host) mayFormat(device string, found uint64) error {
	volume, err := h.volumeOf(device)
	if err != nil {
		return err
	}
	head, err := h.headerOf(volume)
	if err == nil && (head.Volume != volume || head.State != header.Formatting || found != 0 && found != halfMade) {
		err = fmt.Errorf("volume %s is formatted on %s, begins with %#x, and has the header %+v", volume, h.name, found, head)
	}
	return err
}

// volumeOf a device: its UUID.
func (h *host) volumeOf(device string) (string, error) {
	file, err := os.Readlink(device)
	if err != nil {
		return "", err
	}
	nguid, _, _ := strings.Cut(filepath.Base(file), ".")
	if len(nguid) != 32 {
		return "", fmt.Errorf("%s of %s has lost its namespace: %w", device, h.name, syscall.EIO)
	}
	return uuidOf(nguid), nil
}

func (h *host) sizeOf(device string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(h.kernel.Root, "sys/class/block", filepath.Base(device), "size"))
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return sectors * 512, err
}

func (h *host) readDevice(device string, cluster uint64) (word uint64, err error) {
	err = h.io(device, func(volume string) error {
		word, err = h.readWord(volume, cluster)
		return err
	})
	return word, err
}

func (h *host) writeDevice(device string, cluster, word uint64) error {
	return h.io(device, func(volume string) error {
		if err := h.writeWord(volume, cluster, word); err != nil {
			return err
		}
		if cluster != superblock {
			return nil
		}
		return h.mirror(strings.ReplaceAll(volume, "-", ""))
	})
}

// io on a device waits while its target is away, or does not admit the host yet. It fails once the target serves, and
// the volume is not attached to the host any more.
func (h *host) io(device string, do func(volume string) error) error {
	volume, err := h.volumeOf(device)
	if err != nil {
		return err
	}
	number := h.kernel.Number(filepath.Base(device))
	return h.until("I/O on "+device, func() (bool, error) {
		state, answers := h.serving()
		if !answers || len(state.Portals) == 0 {
			return false, nil
		}
		if len(h.admitted(state, number)) == 0 {
			if h.attached(volume) {
				return false, nil // its export is made again, or held back until free space of its pool is cleared
			}
			return false, fmt.Errorf("%s of %s: no path is admitted: %w", device, h.name, syscall.EIO)
		}
		err := do(volume)
		if errors.Is(err, syscall.ENOSPC) {
			return false, err
		}
		return err == nil, nil // else the target ended just now
	})
}

// attached says that a volume is to be admitted to the host: the kernel tries again until it is.
func (h *host) attached(uuid string) bool {
	return slices.ContainsFunc(h.volumes, func(v *volume) bool { return v.uuid == uuid && slices.Contains(v.hosts, h) })
}

func serves(state engine.State, volume string) bool {
	return slices.ContainsFunc(state.Exports, func(x engine.Export) bool {
		return slices.ContainsFunc(x.Namespaces, func(ns engine.Namespace) bool { return string(ns.Volume) == volume })
	})
}

// admitted paths of the device with a number.
func (h *host) admitted(state engine.State, number string) []nodetest.Path {
	return slices.DeleteFunc(h.kernel.Paths(number), func(p nodetest.Path) bool { return !admits(state, p) })
}

func admits(state engine.State, p nodetest.Path) bool {
	return slices.ContainsFunc(state.Exports, func(x engine.Export) bool { return x.NQN == p.NQN && slices.Contains(x.Hosts, p.HostNQN) })
}
