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
	"syscall"

	utilexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/test/agenttest"
)

// A filesystem's first clusters: what it is, and the size that it was made or grown for.
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

func (h *host) nqn() string { return v1alpha1.HostNQN(h.uid) }

// process of the node plugin that is alive.
func (h *host) process() *nodeLife {
	if h.life != nil && !h.life.isDead() {
		return h.life
	}
	h.must(h.ended())
	l := &nodeLife{}
	l.ctx, l.end = context.WithCancel(h.ctx)
	l.service = nodetest.NewService(nodetest.Config{
		UID: h.uid, Root: h.kernel.Root, Records: h.records(),
		Kernel: kernel{h.kernel, h, l}, Mounter: mounter{h.mounter, l}, Programs: programs{host: h, life: l},
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

// WriteAttribute implements nodetest.Config's Kernel.
func (k kernel) WriteAttribute(path, value string) error {
	if err := k.host.look(); err != nil {
		return err
	}
	return k.life.cross(func() error { return k.Kernel.WriteAttribute(path, value) })
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
	word, err := w.storage.Target().ReadWord(volume, cluster)
	return word, err == nil
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

// Mount implements mount.Interface.
func (m mounter) Mount(source, target, fsType string, options []string) error {
	return m.life.cross(func() error { return m.Mounter.Mount(source, target, fsType, options) })
}

// Unmount implements mount.Interface.
func (m mounter) Unmount(target string) error {
	return m.life.cross(func() error { return m.Mounter.Unmount(target) })
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

// mayFormat a device that begins with a word: one that is blank, or where a filesystem is half made and was given up.
func (h *host) mayFormat(device string, found uint64) error {
	volume, err := h.volumeOf(device)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if found != 0 && (found != halfMade || !h.givenUp[volume]) {
		return fmt.Errorf("volume %s is formatted on %s, and begins with %#x", volume, h.name, found)
	}
	return nil
}

// volumeOf a device: its UUID.
func (h *host) volumeOf(device string) (string, error) {
	file, err := os.Readlink(device)
	if err != nil {
		return "", err
	}
	return uuidOf(filepath.Base(file)), nil
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
		word, err = h.storage.Target().ReadWord(volume, cluster)
		return err
	})
	return word, err
}

func (h *host) writeDevice(device string, cluster, word uint64) error {
	return h.io(device, func(volume string) error {
		if err := h.storage.Target().WriteWord(volume, cluster, word); err != nil {
			return err
		}
		if cluster != superblock {
			return nil
		}
		return h.mirror(strings.ReplaceAll(volume, "-", ""))
	})
}

// io on a device waits while its target is away, and fails once the target serves and does not admit this host.
func (h *host) io(device string, do func(volume string) error) error {
	volume, err := h.volumeOf(device)
	if err != nil {
		return err
	}
	return h.until("I/O on "+device, func() (bool, error) {
		state, answers := h.serving()
		if !answers || len(state.Portals) == 0 {
			return false, nil
		}
		i := slices.IndexFunc(state.Exports, func(x engine.Export) bool {
			return len(x.Namespaces) == 1 && string(x.Namespaces[0].Volume) == volume
		})
		if i < 0 || !slices.Contains(state.Exports[i].Hosts, h.nqn()) {
			return false, fmt.Errorf("%s: host %s is not admitted: %w", device, h.name, syscall.EIO)
		}
		err := do(volume)
		if errors.Is(err, syscall.ENOSPC) {
			return false, err
		}
		return err == nil, nil // else the target ended just now
	})
}
