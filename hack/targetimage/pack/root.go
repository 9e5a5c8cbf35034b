// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-storage/weft/hack/imagefile"
)

// root is a folder with what an image has. Everything is where it is on this machine, because libraries, and what they
// load, have the names of folders compiled in.
type root struct {
	dir string
	// folders that have libraries, by their paths in the image.
	folders map[string]bool
}

// has says whether the image has a file at this path.
func (r *root) has(path string) bool {
	_, err := os.Lstat(filepath.Join(r.dir, path))
	return err == nil
}

// file copies a file of this machine to a path of the image.
func (r *root) file(from, path string, mode fs.FileMode) error {
	to := filepath.Join(r.dir, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	return os.WriteFile(to, data, mode)
}

// program copies a program to a path, and all of its libraries that the image has not got.
func (r *root) program(ctx context.Context, from, path string) error {
	libraries, _, err := Libraries(ctx, from)
	if err != nil {
		return err
	}
	for _, l := range libraries {
		r.folders[filepath.Dir(l)] = true
		if r.has(l) {
			continue
		}
		if err := r.file(l, l, 0o755); err != nil {
			return err
		}
	}
	return r.file(from, path, 0o755)
}

// verbs copies the plug-ins for RDMA devices of a program with these libraries, and their names.
func (r *root) verbs(ctx context.Context, libraries []string) error {
	plugins, err := VerbsPlugins(libraries)
	if err != nil || len(plugins) == 0 {
		return err
	}
	for _, p := range plugins {
		if err := r.program(ctx, p, p); err != nil {
			return err
		}
	}
	names, err := filepath.Glob(filepath.Join(verbsDrivers, "*.driver"))
	for _, n := range names {
		if err == nil {
			err = r.file(n, n, 0o644)
		}
	}
	return err
}

// libraryPath is where a loader is told to look, in order.
func (r *root) libraryPath() []string { return slices.Sorted(maps.Keys(r.folders)) }

// layer of all that is in the folder, in order of names, and of folders that programs expect.
func (r *root) layer() ([]byte, error) {
	var layer imagefile.Layer
	for _, dir := range []string{"dev", "proc", "run", "sys"} {
		layer.Folder(dir, 0o755)
	}
	layer.Folder("tmp", 0o1777)
	layer.Folder("var", 0o755)
	layer.Folder("var/tmp", 0o1777)
	layer.Link("var/run", "/run")
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == r.dir {
			return err
		}
		name := strings.TrimPrefix(path, r.dir+"/")
		if d.IsDir() {
			layer.Folder(name, 0o755)
			return nil
		}
		info, err := d.Info()
		if err == nil {
			layer.File(name, path, int64(info.Mode().Perm()))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return layer.Bytes()
}
