// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SizeFile makes a file at least that large, sparsely; its folder too, when it is missing. It says whether it changed
// it, and whether it made it, and answers when that survives a loss of power.
func SizeFile(path string, bytes int64) (changed, created bool, err error) {
	info, err := os.Stat(path)
	created = errors.Is(err, os.ErrNotExist)
	if err != nil && !created {
		return false, false, err
	}
	if !created && info.Size() >= bytes {
		return false, false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, created, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return false, created, err
	}
	err = f.Truncate(bytes)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil && created {
		err = syncDir(filepath.Dir(path))
	}
	return true, created, err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// RoomOfFile is what a regular file takes of its filesystem, and what that has left for it, in bytes. It fails with
// os.ErrInvalid for anything else than a regular file.
func RoomOfFile(path string) (taken, left int64, err error) {
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return 0, 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, 0, &os.PathError{Op: "stat", Path: path, Err: os.ErrInvalid}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return file.Blocks * 512, int64(fs.Bavail) * fs.Bsize, nil
}
