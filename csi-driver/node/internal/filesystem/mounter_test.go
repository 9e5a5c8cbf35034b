// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"io/fs"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const ownNamespace = "WEFT_TEST_OWN_NAMESPACE"

// inOwnNamespace runs a test again with mounts of its own, and as root there. It is true in that other process.
func inOwnNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNamespace) != "" {
		return true
	}
	cmd := osexec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), ownNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in a user namespace (if they are turned off here, allow them: sysctl user.max_user_namespaces): %v\n%s", err, out)
	}
	return false
}

// tmpfs makes a filesystem with a directory and a file in it.
func tmpfs(t *testing.T, dir, file string) string {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	if err := errors.Join(os.Mkdir(filepath.Join(root, dir), 0o700), os.WriteFile(filepath.Join(root, file), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return root
}

// A pod that is given a volume read-only cannot write to it, not even in the moment in which it is bound.
func TestReadOnlyBindIsNeverWritable(t *testing.T) {
	if !inOwnNamespace(t) {
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	source, target := tmpfs(t, "dir", "file"), tmpfs(t, "dir", "file")
	// Nothing can be written where the target is, until something is bound there.
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	h := Host{Mounter: NewLinuxMounter(), MountInfo: "/proc/self/mountinfo"}
	for name, c := range map[string]struct {
		bind  func() error
		write string
	}{
		"dir": {func() error {
			return h.BindDirectory(t.Context(), filepath.Join(source, "dir"), filepath.Join(target, "dir"), true)
		}, "dir/written"},
		"file": {func() error {
			return h.bind(t.Context(), filepath.Join(source, "file"), filepath.Join(target, "file"), true)
		}, "file"},
	} {
		t.Run(name, func(t *testing.T) {
			stop, wrote := make(chan struct{}), make(chan error, 1)
			go func() { wrote <- writeUntil(stop, filepath.Join(target, c.write)) }()
			for range 20 {
				if err := c.bind(); err != nil {
					t.Fatal(err)
				}
				m, mounted, err := h.At(filepath.Join(target, name))
				if err != nil || !mounted || !m.ReadOnly {
					t.Errorf("bound is %+v, %t, %v", m, mounted, err)
				}
				if err := unix.Unmount(filepath.Join(target, name), unix.MNT_DETACH); err != nil {
					t.Fatal(err)
				}
			}
			close(stop)
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		})
	}
	// What it is bound from can be written.
	if err := os.WriteFile(filepath.Join(source, "dir/file"), nil, 0o600); err != nil {
		t.Error(err)
	}
}

// writeUntil tries to write to a file again and again, and fails when it could.
func writeUntil(stop <-chan struct{}, path string) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			return errors.Join(errors.New("written while it was bound"), f.Close())
		}
		if !errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// What the kernel says is passed on.
func TestReadOnlyBindFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	err := NewLinuxMounter().BindReadOnly(missing, missing)
	if !slices.ContainsFunc([]error{fs.ErrNotExist, fs.ErrPermission}, func(e error) bool { return errors.Is(err, e) }) || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v", err)
	}
}
