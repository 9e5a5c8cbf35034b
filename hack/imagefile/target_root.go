// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLinks on the way to a file, as the kernel has it.
const maxLinks = 40

// root is a folder with what an image has. Libraries are where they are on this machine, links included: they have
// names of folders compiled in, and one that is loaded by two names must be one file.
type root struct {
	dir string
	// folders that have libraries, by their paths.
	folders map[string]bool
	// files of this machine that are in the image, by their paths without links.
	files map[string]bool
}

// newRoot in an empty folder, with the folders that programs expect.
func newRoot(dir string) (*root, error) {
	r := &root{dir: dir, folders: map[string]bool{}, files: map[string]bool{}}
	for _, d := range []string{"dev", "proc", "run", "sys", "tmp", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(dir, d), 0o777|fs.ModeSticky); err != nil {
			return nil, err
		}
	}
	return r, os.Symlink("/run", filepath.Join(dir, "var/run"))
}

// copy a file of this machine to a path of the image.
func (r *root) copy(from, path string, mode fs.FileMode) error {
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

// mirror a file of this machine at its own path, with the links on the way to it.
func (r *root) mirror(path string, mode fs.FileMode) error {
	at, rest := "/", strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return fmt.Errorf("pack %s: %w", path, err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("pack %s: too many links", path)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return fmt.Errorf("pack %s: %w", path, err)
		}
		if err := r.link(next, target); err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(strings.TrimPrefix(filepath.Clean(target), "/"), "/"), rest...)
	}
	if r.files[at] {
		return nil
	}
	r.files[at] = true
	return r.copy(at, at, mode)
}

// link at a path of the image, unless there is one.
func (r *root) link(path, target string) error {
	at := filepath.Join(r.dir, path)
	if _, err := os.Lstat(at); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, at)
}

// libraries that a program or library is linked with.
func (r *root) libraries(ctx context.Context, of string) error {
	libraries, _, err := Libraries(ctx, of)
	if err != nil {
		return err
	}
	for _, l := range libraries {
		r.folders[filepath.Dir(l)] = true
		if err := r.mirror(l, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// loaded library at its own path, and at that by which others look for it. Those that it needs are loaded too.
func (r *root) loaded(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil {
		return fmt.Errorf("pack %s: %w", path, err)
	}
	r.folders[filepath.Dir(path)] = true
	for _, name := range names {
		link := filepath.Join(filepath.Dir(path), name)
		if _, err := os.Lstat(link); err != nil {
			continue // it was found by another name
		}
		if err := r.mirror(link, 0o755); err != nil {
			return err
		}
	}
	return r.mirror(path, 0o755)
}

// linked file at its own path, with its libraries.
func (r *root) linked(ctx context.Context, path string) error {
	if err := r.libraries(ctx, path); err != nil {
		return err
	}
	return r.mirror(path, 0o755)
}

// verbs plug-ins for RDMA devices of a program with these libraries, and their names.
func (r *root) verbs(ctx context.Context, libraries []string) error {
	plugins, err := VerbsPlugins(libraries)
	if err != nil || len(plugins) == 0 {
		return err
	}
	for _, p := range plugins {
		if err := r.linked(ctx, p); err != nil {
			return err
		}
	}
	names, err := filepath.Glob(filepath.Join(verbsDrivers, "*.driver"))
	for _, n := range names {
		if err == nil {
			err = r.mirror(n, 0o644)
		}
	}
	return err
}

// libraryPath is where a loader is told to look, in order.
func (r *root) libraryPath() []string { return slices.Sorted(maps.Keys(r.folders)) }

// layer of all that is in the folder, in order of names.
func (r *root) layer() ([]byte, error) {
	var layer Layer
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == r.dir {
			return err
		}
		name := strings.TrimPrefix(path, r.dir+"/")
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := int64(info.Mode().Perm())
		switch {
		case d.IsDir() && info.Mode()&fs.ModeSticky != 0:
			layer.Folder(name, mode|0o1000)
		case d.IsDir():
			layer.Folder(name, mode)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			layer.Link(name, target)
		default:
			layer.File(name, path, mode)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return layer.Bytes()
}
