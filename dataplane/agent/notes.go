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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
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
	// readAgain is how long after a note could not be read it is tried again: a drive that is slow gets no load from
	// it, and whoever waits for a description sees it within minutes.
	readAgain = time.Minute
	// notesPatience with drives that do not answer, when the agent ends.
	notesPatience = 5 * time.Second
)

// Notes keeps a note about each replica and snapshot with its data, and reads those of orphans: beside all that the
// Reconciler does, which never waits for it. An engine that has no place for notes in its pools has them on the node.
// Each pool has a goroutine of its own while there is work for it, so that a drive that hangs keeps no other one's
// notes waiting. Only what changed is written. It is safe for concurrent use.
type Notes struct {
	node    engine.NoteKeeper
	clock   clock.PassiveClock
	failed  *prometheus.CounterVec
	next    chan notesWork
	changed chan event.GenericEvent
	running sync.WaitGroup

	mu sync.Mutex
	// pools by their device; notes on the node are those of the pool without a name.
	pools map[string]*poolNotes
}

// poolNotes is what is known of the notes in a pool.
type poolNotes struct {
	// What follows is guarded by Notes.mu. Found is replaced, and never changed.
	found map[engine.ID]decide.FoundNote
	next  *notesWork
	busy  bool

	// What follows is of the one goroutine that is busy: which version of which object is noted where, when to read
	// again what could not be read, and what failed last.
	noted   map[engine.ID]noted
	again   map[engine.ID]time.Time
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
func NewNotes(node engine.NoteKeeper, m *Metrics) *Notes {
	return &Notes{
		node: node, clock: clock.RealClock{}, failed: m.noteErrors, next: make(chan notesWork, 1), changed: make(chan event.GenericEvent, 1),
		pools: map[string]*poolNotes{},
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
	all := map[engine.ID]decide.FoundNote{}
	for _, p := range n.pools {
		maps.Copy(all, p.found)
	}
	return all
}

// Start reads and writes until ctx ends. Then it waits for what was begun, but not for a drive that hangs.
func (n *Notes) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			done := make(chan struct{})
			go func() {
				n.running.Wait()
				close(done)
			}()
			select {
			case <-done:
			case <-time.After(notesPatience):
			}
			return nil
		case w := <-n.next:
			n.handOut(ctx, w)
		}
	}
}

// handOut the work to a goroutine for each pool: as many as there are pools, at most. One that is busy does it next,
// instead of what it had next before.
func (n *Notes) handOut(ctx context.Context, w notesWork) {
	parts := n.split(w)
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, p := range n.pools {
		switch {
		case parts[name] != nil:
		case p.busy:
			// What it knows may now be known of another pool.
			parts[name], p.found = &notesWork{keeper: w.keeper}, nil
		default:
			delete(n.pools, name)
		}
	}
	for name, part := range parts {
		p := n.pools[name]
		if p == nil {
			p = &poolNotes{}
			n.pools[name] = p
		}
		p.next = part
		if !p.busy {
			p.busy = true
			n.running.Go(func() { n.work(ctx, p) })
		}
	}
}

// split the work by pools.
func (n *Notes) split(w notesWork) map[string]*notesWork {
	parts := map[string]*notesWork{}
	of := func(ref decide.NoteRef) *decide.Notes {
		name := ref.Pool
		if w.keeper == n.node {
			name = ""
		}
		if parts[name] == nil {
			parts[name] = &notesWork{keeper: w.keeper}
		}
		return &parts[name].notes
	}
	for _, ref := range w.notes.Keep {
		part := of(ref)
		part.Keep = append(part.Keep, ref)
	}
	for _, ref := range w.notes.Show {
		part := of(ref)
		part.Show = append(part.Show, ref)
	}
	return parts
}

// work for a pool until there is none.
func (n *Notes) work(ctx context.Context, p *poolNotes) {
	for {
		n.mu.Lock()
		w := p.next
		p.next = nil
		p.busy = w != nil && ctx.Err() == nil
		busy := p.busy
		n.mu.Unlock()
		if !busy {
			return
		}
		n.pass(ctx, p, *w)
	}
}

// pass once over all notes of a pool. What fails is tried again by a later one.
func (n *Notes) pass(ctx context.Context, p *poolNotes, w notesWork) {
	if n.read(ctx, p, w) {
		select {
		case n.changed <- event.GenericEvent{}:
		default: // one is waiting already
		}
	}
	err := n.write(ctx, p, w)
	if err == nil || ctx.Err() != nil {
		p.failing = ""
		return
	}
	if p.failing != err.Error() {
		p.failing = err.Error()
		log.FromContext(ctx).Error(err, "Cannot store descriptions of volumes with their data; they are needed only if the objects are lost")
	}
}

// read the notes about orphans that were not read yet, and forget those about what is no orphan any more. It tells
// whether anything is new.
func (n *Notes) read(ctx context.Context, p *poolNotes, w notesWork) bool {
	n.mu.Lock()
	known := p.found
	n.mu.Unlock()
	found, again := map[engine.ID]decide.FoundNote{}, map[engine.ID]time.Time{}
	var missing []engine.Note
	for _, ref := range w.notes.Show {
		was, ok := known[ref.ID]
		at, failed := p.again[ref.ID]
		if !ok || failed && !n.clock.Now().Before(at) {
			missing = append(missing, engine.Note{ID: ref.ID, Pool: ref.Pool})
			continue
		}
		found[ref.ID] = was
		if failed {
			again[ref.ID] = at
		}
	}
	changed := false
	for i, err := range readNotes(ctx, w.keeper, missing) {
		id := missing[i].ID
		if errors.Is(err, engine.ErrUnavailable) || ctx.Err() != nil {
			continue // another time
		}
		is := foundNote(missing[i].Text, err)
		if err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrInvalid) {
			// It says nothing about the note: a drive can be slow, or fail to read, for a while.
			n.failed.WithLabelValues("read").Inc()
			is.Err = text.Clip(v1alpha1.UndescribedNotRead+": "+err.Error(), maxUndescribedBytes)
			again[id] = n.clock.Now().Add(readAgain)
		}
		was, ok := known[id]
		changed = changed || !ok || was.Err != is.Err
		found[id] = is
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.found, p.again = found, again
	return changed
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
	return decide.FoundNote{Note: note}
}

// write what the drives do not say yet.
func (n *Notes) write(ctx context.Context, p *poolNotes, w notesWork) error {
	var errs []error
	var due []decide.NoteRef
	there := make(map[engine.ID]noted, len(w.notes.Keep))
	for _, ref := range w.notes.Keep {
		uid, generation := ref.Version()
		if is := (noted{ref.Pool, uid, generation}); p.noted[ref.ID] == is {
			there[ref.ID] = is
		} else {
			due = append(due, ref)
		}
	}
	p.noted = there
	for len(due) > 0 && ctx.Err() == nil {
		some := due[:min(len(due), notesAtOnce)]
		due = due[len(some):]
		errs = append(errs, n.writeSome(ctx, p, w.keeper, some)...)
	}
	if ctx.Err() == nil {
		n.failed.WithLabelValues("write").Add(float64(len(errs)))
	}
	return firstFew(errs)
}

// writeSome notes, those that say something else than what is stored. What is gone meanwhile needs none.
func (n *Notes) writeSome(ctx context.Context, p *poolNotes, keeper engine.NoteKeeper, refs []decide.NoteRef) []error {
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
				p.note(refs[i])
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
			if !errors.Is(err, engine.ErrNotFound) {
				errs = append(errs, err)
			}
			continue
		}
		p.note(of[i])
	}
	return errs
}

func (p *poolNotes) note(ref decide.NoteRef) {
	uid, generation := ref.Version()
	p.noted[ref.ID] = noted{ref.Pool, uid, generation}
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
