// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// host is the machine: its filesystem and its programs.
type host struct {
	root     string
	stateDir string
	exec     exec.Interface
	// syncs of the pools' filesystems, by their mounts; sync is syncFilesystem, but in tests.
	syncs map[string]*syncing
	sync  func(dir string) error
}

func newHost(o Options) host {
	return host{root: o.Root, stateDir: filepath.Join(o.Root, o.StateDir), exec: o.Exec, syncs: map[string]*syncing{}, sync: syncFilesystem}
}

// path under the host's root.
func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.root}, elem...)...)
}

// commandError is a program that failed, with what it said.
type commandError struct {
	name   string
	output string
	err    error
}

func (e *commandError) Error() string {
	if e.output == "" {
		return fmt.Sprintf("%s: %v", e.name, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, e.output)
}

func (e *commandError) Unwrap() error { return e.err }

// run a program and return its standard output. It fails with a *commandError.
func (h *host) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := h.exec.CommandContext(ctx, name, args...)
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C"))
	var out, errs strings.Builder
	cmd.SetStdout(&out)
	cmd.SetStderr(&errs)
	if err := cmd.Run(); err != nil {
		return out.String(), &commandError{name: name, output: strings.TrimSpace(errs.String()), err: err}
	}
	return out.String(), nil
}

// load the kernel's target and see that its configuration is there.
func (h *host) load(ctx context.Context) error {
	configfs := h.path("sys/kernel/config")
	if _, err := os.Stat(h.config()); err == nil {
		return nil
	}
	if _, err := h.run(ctx, "modprobe", "nvmet"); err != nil {
		return fmt.Errorf("%w: the kernel's target (module nvmet) cannot be loaded: %w", engine.ErrUnavailable, err)
	}
	if _, err := os.Stat(h.config()); err == nil {
		return nil
	}
	if _, err := h.run(ctx, "mount", "-t", "configfs", "configfs", configfs); err != nil {
		return fmt.Errorf("%w: configfs: %w", engine.ErrUnavailable, err)
	}
	if _, err := os.Stat(h.config()); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return nil
}

// config is the folder of the kernel's target in configfs.
func (h *host) config(elem ...string) string {
	return h.path(append([]string{"sys/kernel/config/nvmet"}, elem...)...)
}

var transportModules = map[v1alpha1.TransportType]string{
	v1alpha1.TransportTCP:  "nvmet_tcp",
	v1alpha1.TransportRDMA: "nvmet_rdma",
}

// canServe says whether the transport's module can be loaded and, for RDMA, there is a device.
func (h *host) canServe(ctx context.Context, transport v1alpha1.TransportType) bool {
	if transport == v1alpha1.TransportRDMA {
		devices, err := os.ReadDir(h.path("sys/class/infiniband"))
		if err != nil || len(devices) == 0 {
			return false
		}
	}
	if h.moduleLoaded(transport) {
		return true
	}
	_, err := h.run(ctx, "modprobe", "--dry-run", "--quiet", transportModules[transport])
	return err == nil
}

func (h *host) moduleLoaded(transport v1alpha1.TransportType) bool {
	_, err := os.Stat(h.path("sys/module", transportModules[transport]))
	return err == nil
}

func (h *host) loadTransport(ctx context.Context, transport v1alpha1.TransportType) error {
	if h.moduleLoaded(transport) {
		return nil
	}
	if _, err := h.run(ctx, "modprobe", transportModules[transport]); err != nil {
		return fmt.Errorf("%w: transport %s: module %s cannot be loaded: %w", engine.ErrUnavailable, transport, transportModules[transport], err)
	}
	return nil
}

// mounts of this process's mount namespace, the topmost last.
func (h *host) mounts() ([]mount.MountInfo, error) {
	infos, err := mount.ParseMountInfo(h.path("proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return infos, nil
}

// readAttr reads a file of sysfs or configfs without its last newline.
func (h *host) readAttr(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// writeAttr writes a file of configfs; it must be there.
func (h *host) writeAttr(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}

// names in a folder, in order.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, nil
}

// syncFilesystem that a folder lies in, with all that it holds.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// mapErrno gives the errors of a filesystem their meaning for an engine.
func mapErrno(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
