// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// Mounter is a filesystem.Mounter that keeps the kernel's mount table in a file, as /proc/self/mountinfo shows it.
type Mounter struct {
	*mount.FakeMounter
	kernel *Kernel
	path   string

	mu      sync.Mutex
	entries []entry
	blocked map[string]chan struct{} // by target
}

type entry struct {
	path, device, root, fsType string
	readOnly                   bool
	// failed: the filesystem itself is read-only.
	failed bool
}

// NewMounter makes the mounter that belongs to a kernel: devices that it mounts are claimed.
func NewMounter(k *Kernel) (*Mounter, error) {
	m := &Mounter{FakeMounter: mount.NewFakeMounter(nil), kernel: k, path: mountInfo(k.Root), blocked: map[string]chan struct{}{}}
	k.users = m.uses
	k.onGone = m.gone
	return m, m.save()
}

// mountInfo is the path of the table.
func mountInfo(root string) string { return filepath.Join(root, "mountinfo") }

// Table of what is mounted, as /proc/self/mountinfo shows it.
func (m *Mounter) Table() (string, error) {
	text, err := os.ReadFile(m.path)
	return string(text), err
}

// DeviceAt is the device that is mounted or bound at a path; empty when none is.
func (m *Mounter) DeviceAt(path string) (string, error) {
	found, mounted, err := (&filesystem.Host{MountInfo: m.path}).At(path)
	if err != nil || !mounted {
		return "", err
	}
	if found.Node != "" {
		return filepath.Join(m.kernel.Root, "dev", found.Node), nil
	}
	link, err := os.Readlink(filepath.Join(m.kernel.Root, "sys/dev/block", found.Device))
	if err != nil {
		return "", fmt.Errorf("what is mounted at %s: %w", path, err)
	}
	return filepath.Join(m.kernel.Root, "dev", filepath.Base(link)), nil
}

// Block makes mounts and unmounts at a target hang, as they do on a device without a path, until release is called.
func (m *Mounter) Block(target string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	blocked := make(chan struct{})
	m.blocked[target] = blocked
	return func() {
		m.mu.Lock()
		delete(m.blocked, target)
		m.mu.Unlock()
		close(blocked)
	}
}

// FailWrites makes what is mounted for writing read-only, as ext4 does when it meets an error.
func (m *Mounter) FailWrites() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.entries {
		m.entries[i].failed = true
	}
	return m.save()
}

func (m *Mounter) waitUnblocked(target string) {
	m.mu.Lock()
	blocked := m.blocked[target]
	m.mu.Unlock()
	m.kernel.hang(blocked)
}

// BindReadOnly implements filesystem.Mounter.
func (m *Mounter) BindReadOnly(source, target string) error {
	return m.Mount(source, target, "", []string{"bind", "ro"})
}

// Mount implements filesystem.Mounter.
func (m *Mounter) Mount(source, target, fsType string, options []string) error {
	m.waitUnblocked(target)
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	if err := m.kernel.readable(filepath.Base(source)); err != nil && fsType != "" {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := entry{path: target, fsType: fsType, root: "/", readOnly: slices.Contains(options, "ro")}
	device, isDevice := strings.CutPrefix(source, filepath.Join(m.kernel.Root, "dev")+"/")
	switch {
	case isDevice && slices.Contains(options, "bind"):
		if info.IsDir() {
			return fmt.Errorf("bind %s: %w", source, syscall.ENOTDIR)
		}
		e.device, e.root, e.fsType = "0:6", "/"+device, "devtmpfs"
	case isDevice:
		number, err := os.ReadFile(filepath.Join(m.kernel.Root, "sys/class/block", device, "dev"))
		if err != nil {
			return err
		}
		e.device, e.failed = strings.TrimSpace(string(number)), e.readOnly
	default:
		from, ok := m.at(source)
		if !ok {
			return fmt.Errorf("mount %s: %w", source, syscall.EINVAL)
		}
		e.device, e.root, e.fsType, e.readOnly = from.device, from.root, from.fsType, from.readOnly || e.readOnly
		e.failed = from.failed
	}
	m.entries = append(m.entries, e)
	f, err := os.OpenFile(m.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(e.line(len(m.entries) - 1))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return m.FakeMounter.Mount(source, target, fsType, options)
}

// Unmount implements filesystem.Mounter.
func (m *Mounter) Unmount(target string) error {
	m.waitUnblocked(target)
	if device := m.lastOf(target); device != "" {
		m.kernel.waitWritten(device)
	}
	return errors.Join(m.unmount(target), m.kernel.released())
}

func (m *Mounter) unmount(target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.entries) - 1; i >= 0; i-- {
		if m.entries[i].path == target {
			m.entries = slices.Delete(m.entries, i, i+1)
			return m.save()
		}
	}
	return fmt.Errorf("umount %s: %w", target, syscall.EINVAL)
}

// lastOf gives the device of a filesystem that is mounted for writing at a target, and nowhere else: unmounting it
// there writes to it.
func (m *Mounter) lastOf(target string) (device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, mounted := m.at(target)
	others := slices.ContainsFunc(m.entries, func(o entry) bool { return o.device == e.device && o.path != target })
	if !mounted || e.fsType == "devtmpfs" || e.readOnly || others {
		return ""
	}
	return e.device
}

func (m *Mounter) at(path string) (entry, bool) {
	for i := len(m.entries) - 1; i >= 0; i-- {
		if m.entries[i].path == path {
			return m.entries[i], true
		}
	}
	return entry{}, false
}

// uses tells whether a device holds a mounted filesystem.
func (m *Mounter) uses(device string) bool {
	number, err := os.ReadFile(filepath.Join(m.kernel.Root, "sys/class/block", device, "dev"))
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.entries, func(e entry) bool { return e.device == strings.TrimSpace(string(number)) })
}

// gone marks bound nodes of a device as the kernel does when a file is removed.
func (m *Mounter) gone(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.entries {
		if m.entries[i].root == "/"+device {
			m.entries[i].root += "//deleted"
		}
	}
	_ = m.save()
}

// save writes the whole table.
func (m *Mounter) save() error {
	var table strings.Builder
	for i, e := range m.entries {
		table.WriteString(e.line(i))
	}
	return os.WriteFile(m.path, []byte(table.String()), 0o600)
}

// line of the table.
func (e entry) line(i int) string {
	mode := map[bool]string{false: "rw", true: "ro"}
	return fmt.Sprintf("%d 1 %s %s %s %s,relatime shared:1 - %s none %s\n",
		i+100, e.device, e.root, e.path, mode[e.readOnly], e.fsType, mode[e.failed])
}
