// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
)

// anotherFilesystem than that of temporary files, which every Linux has.
const anotherFilesystem = "/dev/shm"

// notePool is a pool whose folder is on a filesystem of its own, with one volume.
func notePool(t *testing.T, on string) (e *Engine, dir string, volume engine.Note) {
	t.Helper()
	e = New(Options{Root: t.TempDir(), StateDir: "/state"})
	dir, err := os.MkdirTemp(on, "weft-notes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	volume = engine.Note{ID: engine.ID(uuid.NewString()), Pool: "p", Text: []byte("first")}
	for _, folder := range []string{volumesFolder, snapshotsFolder} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, volumesFolder, string(volume.ID)), nil, 0o600), os.MkdirAll(e.poolsDir(), 0o700), os.Symlink(dir, filepath.Join(e.poolsDir(), "p")))
	if err != nil {
		t.Fatal(err)
	}
	return e, dir, volume
}

func oneOf(t *testing.T, errs []error) error {
	t.Helper()
	if len(errs) != 1 {
		t.Fatalf("got %d answers", len(errs))
	}
	return errs[0]
}

func TestNotesInAPool(t *testing.T) {
	e, dir, note := notePool(t, anotherFilesystem)
	read := func() (string, error) {
		notes := []engine.Note{{ID: note.ID, Pool: note.Pool}}
		err := oneOf(t, e.ReadNotes(t.Context(), notes))
		return string(notes[0].Text), err
	}
	write := func(n engine.Note) error { return oneOf(t, e.WriteNotes(t.Context(), []engine.Note{n})) }
	if _, err := read(); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("before it is written: %v", err)
	}
	if err := write(note); err != nil {
		t.Fatal(err)
	}
	// A process that was killed left half of another one.
	leftover := filepath.Join(dir, notesFolder, ".new-"+string(note.ID))
	if err := os.WriteFile(leftover, []byte(strings.Repeat("half", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if is, err := read(); err != nil || is != "first" {
		t.Errorf("got %q, %v", is, err)
	}
	note.Text = []byte("second")
	if err := write(note); err != nil {
		t.Fatal(err)
	}
	if is, err := read(); err != nil || is != "second" {
		t.Errorf("got %q, %v", is, err)
	}
	if _, err := os.Stat(leftover); !os.IsNotExist(err) {
		t.Errorf("the leftover stays: %v", err)
	}
	for name, c := range map[string]struct {
		note engine.Note
		want error
	}{
		"no such volume": {engine.Note{ID: engine.ID(uuid.NewString()), Pool: "p"}, engine.ErrNotFound},
		"no such pool":   {engine.Note{ID: note.ID, Pool: "q"}, engine.ErrUnavailable},
		"no UUID":        {engine.Note{ID: "../volumes", Pool: "p"}, engine.ErrInvalid},
		"too long":       {engine.Note{ID: note.ID, Pool: "p", Text: make([]byte, engine.MaxNoteBytes+1)}, engine.ErrInvalid},
	} {
		if err := write(c.note); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, notesFolder, string(note.ID)), make([]byte, engine.MaxNoteBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if is, err := read(); !errors.Is(err, engine.ErrInvalid) || is != "" {
		t.Errorf("too long as it is stored: %d bytes, %v", len(is), err)
	}
}

// Where a pool is not mounted, its folder is the node's own disk: nothing is written there.
func TestNotesOfAPoolThatIsNotMounted(t *testing.T) {
	e, dir, note := notePool(t, t.TempDir())
	if err := oneOf(t, e.WriteNotes(t.Context(), []engine.Note{note})); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, notesFolder)); !os.IsNotExist(err) {
		t.Errorf("its folder was made: %v", err)
	}
	if err := oneOf(t, e.ReadNotes(t.Context(), []engine.Note{note})); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// What a crafted drive has in the place of a note is not waited for, and neither opened nor followed.
func TestNotesThatAreNoFiles(t *testing.T) {
	e, dir, note := notePool(t, anotherFilesystem)
	at := filepath.Join(dir, notesFolder, string(note.ID))
	if err := os.Mkdir(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func() error{
		"FIFO":   func() error { return unix.Mkfifo(at, 0o600) },
		"link":   func() error { return os.Symlink(filepath.Join("..", volumesFolder, string(note.ID)), at) },
		"folder": func() error { return os.Mkdir(at, 0o700) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if err := oneOf(t, e.ReadNotes(t.Context(), []engine.Note{{ID: note.ID, Pool: note.Pool}})); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
}

// What a crafted drive has where a note is written or deleted leads to no volume, and is not waited for.
func TestNotesLeadToNoVolume(t *testing.T) {
	const data = "data of a volume"
	for name, put := range map[string]func(dir, temporary, volume string) error{
		"the folder is a link to the volumes": func(dir, _, _ string) error { return os.Symlink(volumesFolder, filepath.Join(dir, notesFolder)) },
		"a link is in its place": func(_, temporary, volume string) error {
			return os.Symlink(filepath.Join("..", volumesFolder, filepath.Base(volume)), temporary)
		},
		"another name of a volume": func(_, temporary, volume string) error { return os.Link(volume, temporary) },
		"a FIFO":                   func(_, temporary, _ string) error { return unix.Mkfifo(temporary, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			e, dir, note := notePool(t, anotherFilesystem)
			volume, folder := filepath.Join(dir, volumesFolder, string(note.ID)), filepath.Join(dir, notesFolder)
			linked := name == "the folder is a link to the volumes"
			if !linked {
				if err := os.Mkdir(folder, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.WriteFile(volume, []byte(data), 0o600), put(dir, filepath.Join(folder, ".new-"+string(note.ID)), volume)); err != nil {
				t.Fatal(err)
			}
			if err := oneOf(t, e.WriteNotes(t.Context(), []engine.Note{note})); errors.Is(err, engine.ErrInvalid) != linked || !linked && err != nil {
				t.Errorf("writing: %v", err)
			}
			if err := removeNote(dir, note.ID); err != nil {
				t.Errorf("deleting: %v", err)
			}
			if is, err := os.ReadFile(volume); err != nil || string(is) != data {
				t.Errorf("the volume is %q, %v", is, err)
			}
		})
	}
}
