// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
)

var _ engine.NoteKeeper = (*Engine)(nil)

// WriteNotes implements engine.NoteKeeper. Each is a file of its own, so that one change is one small write. It has its
// name only once it is on the drive, and the folder is synced once for all.
func (e *Engine) WriteNotes(ctx context.Context, notes []engine.Note) []error {
	return e.withNotes(ctx, notes, true, func(pool *os.Root, n *engine.Note) error {
		if len(n.Text) > engine.MaxNoteBytes {
			return fmt.Errorf("%w: it has %d bytes, more than %d", engine.ErrInvalid, len(n.Text), engine.MaxNoteBytes)
		}
		_, err := pool.Lstat(filepath.Join(volumesFolder, string(n.ID)))
		if isMissing(err) {
			_, err = pool.Lstat(filepath.Join(snapshotsFolder, string(n.ID)))
		}
		if err != nil {
			return err
		}
		return replace(pool, string(n.ID), n.Text)
	})
}

// replace a note. What a process left that was killed while it did so goes: it is not opened, since a drive can come
// from anywhere, and bring a link to a volume under that name.
func replace(pool *os.Root, name string, content []byte) error {
	temporary := filepath.Join(notesFolder, ".new-"+name)
	if err := pool.Remove(temporary); err != nil && !isMissing(err) {
		return err
	}
	f, err := pool.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = pool.Rename(temporary, filepath.Join(notesFolder, name))
	}
	if err != nil {
		return errors.Join(err, pool.Remove(temporary))
	}
	return nil
}

// ReadNotes implements engine.NoteKeeper.
func (e *Engine) ReadNotes(ctx context.Context, notes []engine.Note) []error {
	return e.withNotes(ctx, notes, false, func(pool *os.Root, n *engine.Note) error {
		f, err := openFile(pool, filepath.Join(notesFolder, string(n.ID)))
		if err != nil {
			return err
		}
		n.Text, err = io.ReadAll(io.LimitReader(f, engine.MaxNoteBytes+1))
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err == nil && len(n.Text) > engine.MaxNoteBytes {
			err = fmt.Errorf("%w: it has more than %d bytes", engine.ErrInvalid, engine.MaxNoteBytes)
		}
		if err != nil {
			n.Text = nil
		}
		return err
	})
}

// openFile of a pool to read it. A drive can come from anywhere: what is no file is damaged, and opening it must not
// wait, as that of a FIFO does.
func openFile(pool *os.Root, name string) (*os.File, error) {
	check := func(is fs.FileInfo, err error) error {
		if err == nil && !is.Mode().IsRegular() {
			return fmt.Errorf("%w: it is not a file: %s", engine.ErrInvalid, is.Mode().Type())
		}
		return err
	}
	if err := check(pool.Lstat(name)); err != nil {
		return nil, err
	}
	f, err := pool.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := check(f.Stat()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// withNotes does something to notes, each in its pool. It takes no lock of the engine's: a drive that hangs keeps
// nobody else waiting.
func (e *Engine) withNotes(ctx context.Context, notes []engine.Note, change bool, do func(*os.Root, *engine.Note) error) []error {
	errs := make([]error, len(notes))
	pools, failed := map[string]*os.Root{}, map[string]error{}
	for i := range notes {
		n := &notes[i]
		if errs[i] = errors.Join(n.ID.Validate(), ctx.Err()); errs[i] != nil {
			continue
		}
		if pools[n.Pool] == nil && failed[n.Pool] == nil {
			pools[n.Pool], failed[n.Pool] = e.mountedPool(n.Pool, change)
		}
		err := failed[n.Pool]
		if err == nil {
			err = mapErrno(do(pools[n.Pool], n))
		}
		if isMissing(err) {
			err = engine.ErrNotFound
		}
		if err != nil {
			errs[i] = fmt.Errorf("note about %s in pool %s: %w", n.ID, n.Pool, err)
		}
	}
	for device, pool := range pools {
		if pool == nil {
			continue
		}
		err := closePool(pool, change)
		for i, n := range notes {
			if n.Pool == device && err != nil && errs[i] == nil {
				errs[i] = fmt.Errorf("notes of pool %s: %w", device, mapErrno(err))
			}
		}
	}
	return errs
}

// mountedPool is the folder of a pool, on the pool's own filesystem. While it is open, that stays. With
// change it has a folder for notes, which pools of earlier versions lack.
func (e *Engine) mountedPool(device string, change bool) (*os.Root, error) {
	dir, err := e.poolDir(device)
	if err != nil {
		return nil, err
	}
	pool, err := os.OpenRoot(dir)
	if isMissing(err) {
		return nil, fmt.Errorf("pool %s is not open: %w", device, engine.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	mounted, err := e.isMounted(pool)
	if err == nil && !mounted {
		err = fmt.Errorf("pool %s is not mounted: %w", device, engine.ErrUnavailable)
	}
	if err == nil && change {
		if err = pool.Mkdir(notesFolder, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		} else if err == nil {
			err = syncFolder(pool, ".")
		}
	}
	if err == nil {
		err = checkNotesFolder(pool)
	}
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return pool, nil
}

// checkNotesFolder fails if a pool has something else by that name, such as a link to where its volumes are.
func checkNotesFolder(pool *os.Root) error {
	is, err := pool.Lstat(notesFolder)
	switch {
	case isMissing(err):
		return nil
	case err != nil:
		return err
	case !is.IsDir():
		return fmt.Errorf("%w: %s of the pool is not a directory: %s", engine.ErrInvalid, notesFolder, is.Mode().Type())
	}
	return nil
}

// removeNote about what was in a pool. What is in place of its folder of notes stays.
func removeNote(dir string, id engine.ID) error {
	pool, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	if err = checkNotesFolder(pool); err == nil {
		err = pool.Remove(filepath.Join(notesFolder, string(id)))
	}
	if isMissing(err) || errors.Is(err, engine.ErrInvalid) {
		err = nil
	}
	return errors.Join(err, pool.Close())
}

// isMounted tells whether a folder is on another filesystem than the folder of all pools.
func (e *Engine) isMounted(folder *os.Root) (bool, error) {
	var above, is unix.Stat_t
	if err := unix.Stat(e.poolsDir(), &above); err != nil {
		return false, err
	}
	f, err := folder.Open(".")
	if err != nil {
		return false, err
	}
	err = unix.Fstat(int(f.Fd()), &is)
	return is.Dev != above.Dev, errors.Join(err, f.Close())
}

// closePool, whose notes are on the drive then.
func closePool(pool *os.Root, changed bool) error {
	var err error
	if changed {
		err = syncFolder(pool, notesFolder)
	}
	return errors.Join(err, pool.Close())
}

func syncFolder(pool *os.Root, name string) error {
	f, err := pool.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
