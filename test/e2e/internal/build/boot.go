// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

// Boot is what a virtual machine starts from.
type Boot struct {
	// Kernel and Initrd are files.
	Kernel, Initrd string
}

// initrdModules are needed to mount the root filesystem, with those that they
// depend on. ext4 asks for crc32c by name, which modules.dep does not show.
func initrdModules() []string {
	return []string{"virtio_pci", "virtio_blk", "crc32c_generic", "ext4"}
}

// nodeInit returns the static init program of the nodes.
func (b *Builder) nodeInit(ctx context.Context) (string, error) {
	key, err := b.sourceKey("cmd/weft-node-init", "internal/nodeconfig")
	if err != nil {
		return "", err
	}
	return b.ensureStep(ctx, "node-init-"+key, "node init program", func(ctx context.Context, tmp string) error {
		return b.goBuild(ctx, b.moduleDir(), "-s -w", tmp, "./cmd/weft-node-init")
	})
}

// sourceKey hashes folders of this module together with its dependencies.
func (b *Builder) sourceKey(folders ...string) (string, error) {
	parts := []string{filepath.Join(b.moduleDir(), "go.mod")}
	for _, f := range folders {
		parts = append(parts, filepath.Join(b.moduleDir(), f))
	}
	return Key(parts...)
}

// Boot returns kernel and initial RAM disk for the given root filesystem.
func (b *Builder) boot(ctx context.Context, rootfs, init string) (Boot, error) {
	key, err := Key(filepath.Base(rootfs), init, strings.Join(initrdModules(), " "), recipe)
	if err != nil {
		return Boot{}, err
	}
	dir, err := b.Cache.Ensure(ctx, "boot-"+key, func(_ context.Context, tmp string) error {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			return err
		}
		release, err := kernelRelease(rootfs)
		if err != nil {
			return err
		}
		if err := copyFile(filepath.Join(rootfs, "boot/vmlinuz-"+release), filepath.Join(tmp, "vmlinuz"), 0o644); err != nil {
			return err
		}
		return writeInitrd(filepath.Join(tmp, "initrd"), filepath.Join(rootfs, "usr/lib/modules", release), init)
	})
	return Boot{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}, err
}

// writeInitrd makes an uncompressed initial RAM disk with the init program and
// the modules that it has to load.
func writeInitrd(path, modulesDir, init string) error {
	dep, err := os.ReadFile(filepath.Join(modulesDir, "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(modulesDir, "modules.builtin"))
	if err != nil {
		return err
	}
	files, err := moduleClosure(string(dep), string(builtin), initrdModules())
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := cpioWriter{w: &out}
	for _, dir := range []string{"dev", "proc", "sys", "newroot", "modules"} {
		w.add(dir, 0o40755, nil)
	}
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	w.add("init", 0o100755, program)
	var list strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(modulesDir, f))
		if err != nil {
			return err
		}
		at := "modules/" + filepath.Base(f)
		w.add(at, 0o100644, data)
		_, _ = fmt.Fprintf(&list, "/%s\n", at)
	}
	w.add(strings.TrimPrefix(nodeconfig.InitrdModules, "/"), 0o100644, []byte(list.String()))
	if err := w.close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// moduleClosure returns the files of the named modules and of what they need,
// in the order in which they have to be loaded. dep is modules.dep, builtin is
// modules.builtin; a name that is built in needs no file.
func moduleClosure(dep, builtin string, names []string) ([]string, error) {
	needs := map[string][]string{}
	byName := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(dep))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		file, deps, ok := strings.Cut(lines.Text(), ":")
		if ok {
			needs[file] = strings.Fields(deps)
			byName[modprobeName(file)] = file
		}
	}
	var out []string
	var visit func(file string)
	visit = func(file string) {
		if slices.Contains(out, file) {
			return
		}
		for _, d := range needs[file] {
			visit(d)
		}
		out = append(out, file)
	}
	for _, name := range names {
		file, ok := byName[name]
		if !ok {
			if strings.Contains(builtin, "/"+name+".ko") {
				continue
			}
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		visit(file)
	}
	return out, lines.Err()
}

// modprobeName is the name under which modprobe knows the module in file.
func modprobeName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// cpioWriter writes the "newc" format that the kernel unpacks as its initial
// RAM disk (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w     io.Writer
	inode int
	err   error
}

func (c *cpioWriter) add(name string, mode uint32, data []byte) {
	if c.err != nil {
		return
	}
	c.inode++
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	var buf bytes.Buffer
	buf.WriteString(head)
	buf.Write(make([]byte, padding(buf.Len())))
	buf.Write(data)
	buf.Write(make([]byte, padding(buf.Len())))
	_, c.err = c.w.Write(buf.Bytes())
}

func (c *cpioWriter) close() error {
	c.add("TRAILER!!!", 0, nil)
	return c.err
}

// padding is what is missing to a multiple of four.
func padding(n int) int { return (4 - n%4) % 4 }

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return out.Close()
}
