// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// notesAtOnce are written in one call.
	notesAtOnce = 64
	// maxUndescribedBytes is the API's bound.
	maxUndescribedBytes = 256
)

// Notes keeps a note about each replica and snapshot with its data, and reads those of orphans: beside all that the
// Reconciler does, which never waits for it. An engine that has no place for notes in its pools has them on the node.
// Only what changed is written. It is safe for concurrent use.
type Notes struct {
	node    engine.NoteKeeper
	next    chan notesWork
	changed chan event.GenericEvent

	mu    sync.Mutex
	found map[engine.ID]decide.FoundNote

	// Start's alone: which version of which object is noted where, and what failed last.
	noted   map[engine.ID]noted
	failing string
}

type notesWork struct {
	keeper engine.NoteKeeper
	notes  decide.Notes
}

type noted struct {
	pool       string
	uid        types.UID
	generation int64
}

// NewNotes writes nothing until it is started. node keeps the notes of engines that cannot.
func NewNotes(node engine.NoteKeeper) *Notes {
	return &Notes{
		node: node, next: make(chan notesWork, 1), changed: make(chan event.GenericEvent, 1),
		found: map[engine.ID]decide.FoundNote{}, noted: map[engine.ID]noted{},
	}
}

// Use these notes from now on, of an engine, which may be nil. One goroutine may call it.
func (n *Notes) Use(e engine.Engine, notes decide.Notes) {
	if e == nil {
		return
	}
	keeper, ok := e.(engine.NoteKeeper)
	if !ok {
		keeper = n.node
	}
	select {
	case <-n.next: // what was not begun is out of date
	default:
	}
	n.next <- notesWork{keeper, notes}
}

// Found notes about orphans.
func (n *Notes) Found() map[engine.ID]decide.FoundNote {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.found)
}

// Start reads and writes until ctx ends.
func (n *Notes) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case w := <-n.next:
			n.pass(ctx, w)
		}
	}
}

// pass once over all notes. What fails is tried again by the next one.
func (n *Notes) pass(ctx context.Context, w notesWork) {
	if n.read(ctx, w) {
		select {
		case n.changed <- event.GenericEvent{}:
		default: // one is waiting already
		}
	}
	err := n.write(ctx, w)
	if err == nil || ctx.Err() != nil {
		n.failing = ""
		return
	}
	if n.failing != err.Error() {
		n.failing = err.Error()
		log.FromContext(ctx).Error(err, "Cannot store descriptions of volumes with their data; they are needed only if the objects are lost")
	}
}

// read the notes about orphans that were not read yet, and forget those about what is no orphan any more. It tells
// whether anything is new.
func (n *Notes) read(ctx context.Context, w notesWork) bool {
	known, kept := n.Found(), map[engine.ID]decide.FoundNote{}
	var missing []engine.Note
	for _, ref := range w.notes.Show {
		if found, ok := known[ref.ID]; ok {
			kept[ref.ID] = found
			continue
		}
		missing = append(missing, engine.Note{ID: ref.ID, Pool: ref.Pool})
	}
	before := len(kept)
	for i, err := range readNotes(ctx, w.keeper, missing) {
		if errors.Is(err, engine.ErrUnavailable) || ctx.Err() != nil {
			continue // another time
		}
		kept[missing[i].ID] = foundNote(missing[i].Text, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found = kept
	return len(kept) > before
}

func readNotes(ctx context.Context, keeper engine.NoteKeeper, notes []engine.Note) []error {
	if len(notes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return keeper.ReadNotes(ctx, notes)
}

func foundNote(stored []byte, err error) decide.FoundNote {
	if errors.Is(err, engine.ErrNotFound) {
		return decide.FoundNote{Err: "no description was stored with the data"}
	}
	var note decide.Note
	if err == nil {
		note, err = decide.DecodeNote(stored)
	}
	if err != nil {
		return decide.FoundNote{Err: text.Clip(err.Error(), maxUndescribedBytes)}
	}
	return decide.FoundNote{Note: note, Bytes: len(stored)}
}

// write what the drives do not say yet.
func (n *Notes) write(ctx context.Context, w notesWork) error {
	var errs []error
	var due []decide.NoteRef
	there := make(map[engine.ID]noted, len(w.notes.Keep))
	for _, ref := range w.notes.Keep {
		uid, generation := ref.Version()
		if is := (noted{ref.Pool, uid, generation}); n.noted[ref.ID] == is {
			there[ref.ID] = is
		} else {
			due = append(due, ref)
		}
	}
	n.noted = there
	for len(due) > 0 && ctx.Err() == nil {
		some := due[:min(len(due), notesAtOnce)]
		due = due[len(some):]
		errs = append(errs, n.writeSome(ctx, w.keeper, some)...)
	}
	return firstFew(errs)
}

// writeSome notes, those that say something else than what is stored.
func (n *Notes) writeSome(ctx context.Context, keeper engine.NoteKeeper, refs []decide.NoteRef) []error {
	stored := make([]engine.Note, len(refs))
	for i, ref := range refs {
		stored[i] = engine.Note{ID: ref.ID, Pool: ref.Pool}
	}
	var errs []error
	var changed []engine.Note
	var of []decide.NoteRef
	for i, err := range readNotes(ctx, keeper, stored) {
		note := refs[i].Note()
		if err == nil {
			if is, damaged := decide.DecodeNote(stored[i].Text); damaged == nil && is.Says(note) {
				n.note(refs[i])
				continue
			}
		}
		encoded, err := note.Encode()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		changed, of = append(changed, engine.Note{ID: refs[i].ID, Pool: refs[i].Pool, Text: encoded}), append(of, refs[i])
	}
	if len(changed) == 0 {
		return errs
	}
	wctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	for i, err := range keeper.WriteNotes(wctx, changed) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.note(of[i])
	}
	return errs
}

func (n *Notes) note(ref decide.NoteRef) {
	uid, generation := ref.Version()
	n.noted[ref.ID] = noted{ref.Pool, uid, generation}
}

var (
	notesBucket = []byte("notes")
	// leftBucket has the UUIDs of notes whose record was dropped, by a number that grows with each.
	leftBucket = []byte("notes-left")
)

// maxNotesLeft are kept about what has no record any more, such as that of a drive that was not in the plan for a while
// after the objects were lost: eight times what a status lists. With the usual 1 KiB each they are 4 MiB, and 48 MiB if
// all of them were as long as a description can be. Those that lost their record first go first.
const maxNotesLeft = 8 * v1alpha1.MaxOrphans

var _ engine.NoteKeeper = (*Records)(nil)

// WriteNotes implements engine.NoteKeeper: for engines that have no place for notes in their pools. The notes are on
// the node, and not on the drives. What has no record is not there.
func (r *Records) WriteNotes(ctx context.Context, notes []engine.Note) []error {
	return r.withNotes(ctx, notes, r.db.Update, func(tx *bbolt.Tx, n *engine.Note) error {
		if len(n.Text) > engine.MaxNoteBytes {
			return fmt.Errorf("%w: the note about %s has %d bytes, more than %d", engine.ErrInvalid, n.ID, len(n.Text), engine.MaxNoteBytes)
		}
		if tx.Bucket(itemsBucket).Get([]byte(n.ID)) == nil {
			return fmt.Errorf("record of %s: %w", n.ID, engine.ErrNotFound)
		}
		return tx.Bucket(notesBucket).Put([]byte(n.ID), n.Text)
	})
}

// ReadNotes implements engine.NoteKeeper.
func (r *Records) ReadNotes(ctx context.Context, notes []engine.Note) []error {
	return r.withNotes(ctx, notes, r.db.View, func(tx *bbolt.Tx, n *engine.Note) error {
		stored := tx.Bucket(notesBucket).Get([]byte(n.ID))
		if stored == nil {
			return fmt.Errorf("note about %s: %w", n.ID, engine.ErrNotFound)
		}
		n.Text = append([]byte{}, stored...) // it is bbolt's until the transaction ends
		return nil
	})
}

func (r *Records) withNotes(ctx context.Context, notes []engine.Note, transaction func(func(*bbolt.Tx) error) error, do func(*bbolt.Tx, *engine.Note) error) []error {
	errs := make([]error, len(notes))
	err := ctx.Err()
	if err == nil {
		err = transaction(func(tx *bbolt.Tx) error {
			for i := range notes {
				if errs[i] = notes[i].ID.Validate(); errs[i] == nil {
					errs[i] = do(tx, &notes[i])
				}
			}
			return nil
		})
	}
	for i := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("notes on this node: %w", err)
		}
	}
	return errs
}

// DropNotes about what was deleted. It writes nothing where there are none.
func (r *Records) DropNotes(ids []engine.ID) error {
	var there []engine.ID
	err := r.db.View(func(tx *bbolt.Tx) error {
		for _, id := range ids {
			if tx.Bucket(notesBucket).Get([]byte(id)) != nil {
				there = append(there, id)
			}
		}
		return nil
	})
	if err == nil && len(there) > 0 {
		err = r.db.Update(func(tx *bbolt.Tx) error {
			for _, id := range there {
				if err := tx.Bucket(notesBucket).Delete([]byte(id)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("drop notes on this node: %w", err)
	}
	return nil
}

// leaveNotes about what has no record from now on, and drop the oldest such notes that are too many. What has a record
// again, or no note, is not counted.
func leaveNotes(tx *bbolt.Tx, dropped []engine.ID) error {
	if len(dropped) == 0 {
		return nil
	}
	items, notes, left := tx.Bucket(itemsBucket), tx.Bucket(notesBucket), tx.Bucket(leftBucket)
	var counted, stale [][]byte
	if err := left.ForEach(func(number, id []byte) error {
		if items.Get(id) != nil || notes.Get(id) == nil || slices.Contains(dropped, engine.ID(id)) {
			stale = append(stale, bytes.Clone(number))
		} else {
			counted = append(counted, bytes.Clone(number))
		}
		return nil
	}); err != nil {
		return err
	}
	for _, id := range dropped {
		if notes.Get([]byte(id)) == nil {
			continue
		}
		next, err := left.NextSequence()
		if err != nil {
			return err
		}
		number := binary.BigEndian.AppendUint64(nil, next)
		if err := left.Put(number, []byte(id)); err != nil {
			return err
		}
		counted = append(counted, number)
	}
	for _, number := range counted[:max(0, len(counted)-maxNotesLeft)] {
		if err := notes.Delete(left.Get(number)); err != nil {
			return err
		}
		stale = append(stale, number)
	}
	for _, number := range stale {
		if err := left.Delete(number); err != nil {
			return err
		}
	}
	return nil
}
