// SPDX-License-Identifier: Apache-2.0

// Package build makes what the lab runs from sources: the control plane and
// the CSI sidecars from Go modules, the nodes' kernel and root filesystem from
// Debian packages, and container images from both.
//
// Everything it makes is kept in a cache outside the repository, under a name
// that contains a hash of what went in, so that a fresh clone on the same
// machine builds nothing again and a changed pin never meets a stale result.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockSuffix of the file beside an artifact that its builder locks. Its time is that of the artifact's last use.
const lockSuffix = ".lock"

// Cache is a folder of finished artifacts. An artifact that exists is whole:
// it is made beside its final path and renamed into place.
type Cache struct {
	// Dir is the absolute path of the cache.
	Dir string
}

// DefaultCacheDir returns $XDG_CACHE_HOME/weft, or ~/.cache/weft when that
// variable is not set.
func DefaultCacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}
	return filepath.Join(base, "weft"), nil
}

// Path returns where the artifact rel lies, whether it exists or not.
func (c Cache) Path(rel string) string { return filepath.Join(c.Dir, rel) }

// Has reports whether the artifact rel is there.
func (c Cache) Has(rel string) bool {
	_, err := os.Lstat(c.Path(rel))
	return err == nil
}

// Ensure returns the path of the artifact rel and calls fn to make it if it is
// not there. fn writes a file or a folder at tmp, which does not exist yet and
// is on the same filesystem as the result. Several processes may call Ensure
// for the same artifact: one builds, the others wait for it. A build that was
// interrupted leaves only its temporary path, which the next one removes.
func (c Cache) Ensure(ctx context.Context, rel string, fn func(ctx context.Context, tmp string) error) (string, error) {
	path := c.Path(rel)
	if c.Has(rel) {
		return path, c.use(rel)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	unlock, err := lockFile(ctx, path+lockSuffix)
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.Has(rel) {
		return path, c.use(rel)
	}
	tmp := path + ".tmp"
	if err := RemoveTree(tmp); err != nil {
		return "", fmt.Errorf("remove what an interrupted build left: %w", err)
	}
	if err := fn(ctx, tmp); err != nil {
		return "", errors.Join(err, RemoveTree(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("put the finished %s in its place: %w", rel, err)
	}
	return path, nil
}

// use notes the time, for Prune.
func (c Cache) use(rel string) error {
	now := time.Now()
	if err := os.Chtimes(c.Path(rel)+lockSuffix, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note the use of %s: %w", rel, err)
	}
	return nil
}

// Prune removes the artifacts that nobody asked for since before, and answers their names. One that is being built is
// left alone; one that a running lab has open stays readable to it.
func (c Cache) Prune(before time.Time) ([]string, error) {
	var unused []string
	err := filepath.WalkDir(c.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Lstat(path + lockSuffix); err == nil || strings.HasSuffix(path, ".tmp") {
				return fs.SkipDir // an artifact, or one in the making
			}
			return nil
		}
		artifact, isLock := strings.CutSuffix(path, lockSuffix)
		if !isLock {
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.ModTime().Before(before) {
			return err
		}
		if _, err := os.Lstat(artifact); err == nil {
			unused = append(unused, artifact)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look through the cache: %w", err)
	}
	for i, artifact := range unused {
		if err := RemoveTree(artifact); err != nil {
			return unused[:i], fmt.Errorf("remove the unused %s: %w", filepath.Base(artifact), err)
		}
		unused[i] = filepath.Base(artifact)
	}
	return unused, nil
}

// lockFile takes an exclusive lock on path, waiting until it is free or ctx
// ends. The kernel drops the lock when the process dies.
func lockFile(ctx context.Context, path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		return func() { _ = f.Close() }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for lock %s: %w", path, ctx.Err())
	}
}

// RemoveTree removes path and all below it after checking that nothing is
// mounted there: a bind mount left by an interrupted build would otherwise
// take the host's files with it.
func RemoveTree(path string) error {
	mounts, err := mountsBelow(path)
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", mounts[i], err)
		}
	}
	return os.RemoveAll(path)
}

// mountsBelow lists the mount points at or below path, parents first.
func mountsBelow(path string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := fields[4]
		if at == path || strings.HasPrefix(at, path+"/") {
			out = append(out, at)
		}
	}
	return out, nil
}

// Key returns a short hash of parts. A part that names an existing file or
// folder stands for its content; any other part for itself.
func Key(parts ...string) (string, error) {
	h := sha256.New()
	add := func(name string, data []byte) {
		_, _ = fmt.Fprintf(h, "%s %d\n", name, len(data))
		_, _ = h.Write(data)
	}
	for _, part := range parts {
		if !filepath.IsAbs(part) {
			add("text", []byte(part))
			continue
		}
		err := filepath.WalkDir(part, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(part, path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path) //nolint:gosec // the checkout is the user's own
			if err != nil {
				return err
			}
			add(rel, data)
			return nil
		})
		if err != nil {
			return "", fmt.Errorf("hash %s: %w", part, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}
