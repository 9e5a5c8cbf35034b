// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"context"
	"fmt"

	"github.com/weft-storage/weft/dataplane/engine"
)

var _ engine.NoteKeeper = (*Engine)(nil)

// Methods of engine.NoteKeeper.
const (
	WriteNotes Method = "WriteNotes"
	ReadNotes  Method = "ReadNotes"
)

// WriteNotes implements engine.NoteKeeper.
func (e *Engine) WriteNotes(ctx context.Context, notes []engine.Note) []error {
	return each(ctx, e, WriteNotes, notes, func(n engine.Note) string { return string(n.ID) }, func(n engine.Note) error {
		d, err := e.noted(n)
		switch {
		case err != nil:
			return err
		case len(n.Text) > engine.MaxNoteBytes:
			return fmt.Errorf("%w: the note about %s has %d bytes, more than %d", engine.ErrInvalid, n.ID, len(n.Text), engine.MaxNoteBytes)
		case d.volumes[n.ID] == nil && d.snapshots[n.ID] == nil:
			return fmt.Errorf("%s in pool %s: %w", n.ID, n.Pool, engine.ErrNotFound)
		}
		d.notes[n.ID] = bytes.Clone(n.Text)
		return nil
	})
}

// ReadNotes implements engine.NoteKeeper.
func (e *Engine) ReadNotes(ctx context.Context, notes []engine.Note) []error {
	into := make([]*engine.Note, len(notes))
	for i := range notes {
		into[i] = &notes[i]
	}
	return each(ctx, e, ReadNotes, into, func(n *engine.Note) string { return string(n.ID) }, func(n *engine.Note) error {
		d, err := e.noted(*n)
		if err != nil {
			return err
		}
		text, ok := d.notes[n.ID]
		if !ok {
			return fmt.Errorf("note about %s in pool %s: %w", n.ID, n.Pool, engine.ErrNotFound)
		}
		n.Text = bytes.Clone(text)
		return nil
	})
}

// noted device of a note.
func (e *Engine) noted(n engine.Note) (*disk, error) {
	if err := n.ID.Validate(); err != nil {
		return nil, err
	}
	p := e.pools[n.Pool]
	if p == nil {
		return nil, fmt.Errorf("pool %s: %w", n.Pool, engine.ErrUnavailable)
	}
	return p.device, p.readable()
}

// SetNote puts something else in the place of a note, or takes it away if text is nil, behind the engine's back.
func (e *Engine) SetNote(id engine.ID, text []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		if _, there := d.notes[id]; there {
			d.notes[id] = text
		}
		if text == nil {
			delete(d.notes, id)
		}
	}
}

// Unplug a device from the machine, with all that is on it, and plug it into another one, whose pools do not know it.
func (e *Engine) Unplug(path string, into *Engine) {
	e.mu.Lock()
	d := e.devices[path]
	delete(e.devices, path)
	for id, p := range e.pools {
		if p.device == d {
			delete(e.pools, id)
		}
	}
	e.mu.Unlock()
	into.mu.Lock()
	defer into.mu.Unlock()
	into.devices[path] = d
}

// CloneDevice writes all that is on a device to another one, as dd does. It fails if one is missing.
func (e *Engine) CloneDevice(from, to string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	source, target := e.devices[from], e.devices[to]
	if source == nil || target == nil {
		return fmt.Errorf("%s or %s: %w", from, to, engine.ErrNotFound)
	}
	for _, of := range []func(*disk) map[engine.ID]*data{volumesOf, snapshotsOf} {
		for id, d := range of(source) {
			of(target)[id] = d.clone(d.sizeBytes, d.createdAt)
		}
	}
	for id, text := range source.notes {
		target.notes[id] = bytes.Clone(text)
	}
	return nil
}
