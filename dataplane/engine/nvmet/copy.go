// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	// copyPatience is how long a call waits for all files that share the extents of others. One takes milliseconds, or
	// minutes if its source has millions of extents. Then the call fails with engine.ErrBusy for those that are left,
	// and so do later ones, at once, until one finds it done.
	copyPatience = 5 * time.Second
	// copyKept is how long a copy waits to be asked for again. Agents ask every 30 seconds, and as long later as their
	// other calls take.
	copyKept = 10 * time.Minute
	// copyHeldOff is how long no copy of a file begins after another change of it was refused because of the one
	// before: agents try that again, and each copy would keep it waiting.
	copyHeldOff = 2 * time.Minute
	// mostCopies go on at once, each of another file and in a thread of its own.
	mostCopies = 8
)

// copying is a file that is made beside the engine's calls, with the extents of another. It has no name yet, so it is
// gone with the process, or when it is closed.
type copying struct {
	source    string
	sizeBytes int64
	began     time.Time
	// done is closed at the end, when made, err and ended are known.
	done  chan struct{}
	made  *os.File
	err   error
	ended time.Time
}

func (c *copying) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *copying) close() {
	if c.made != nil {
		_ = c.made.Close() // it has no name
	}
}

// copyExtents has the file of a name made from a source, and waits for it until patience ends. Then it goes on, and a
// later call for the same name has its outcome.
func (e *Engine) copyExtents(patience context.Context, name string, source file, sizeBytes int64, makeIt func() (*os.File, error)) (*os.File, error) {
	c := e.copies[name]
	if c == nil {
		if err := e.mayCopy(source.path); err != nil {
			return nil, err
		}
		c = &copying{source: source.path, sizeBytes: sizeBytes, began: time.Now(), done: make(chan struct{})}
		e.copies[name] = c
		go func() {
			c.made, c.err = makeIt()
			c.ended = time.Now()
			close(c.done)
		}()
		select {
		case <-c.done:
		case <-patience.Done():
		}
	}
	if c.running() {
		return nil, fmt.Errorf("%w: the list of its source's extents is being copied, since %s", engine.ErrBusy, c.began.UTC().Format(time.RFC3339))
	}
	delete(e.copies, name)
	if c.err == nil && (c.source != source.path || c.sizeBytes != sizeBytes) {
		c.close()
		return nil, fmt.Errorf("%w: it was begun from another source, or with another size", engine.ErrBusy)
	}
	return c.made, c.err
}

// running copies.
func (e *Engine) running() iter.Seq[*copying] {
	return func(yield func(*copying) bool) {
		for _, c := range e.copies {
			if c.running() && !yield(c) {
				return
			}
		}
	}
}

// mayCopy fails with engine.ErrBusy while a file cannot be copied.
func (e *Engine) mayCopy(source string) error {
	running := 0
	for c := range e.running() {
		running++
		if c.source == source {
			return fmt.Errorf("%w: another copy of its source is being made", engine.ErrBusy)
		}
	}
	switch {
	case running >= mostCopies:
		return fmt.Errorf("%w: %d other copies are being made", engine.ErrBusy, running)
	case time.Since(e.heldOff[source]) < copyHeldOff:
		return fmt.Errorf("%w: its source waits for another change", engine.ErrBusy)
	}
	return nil
}

// uncopied fails with engine.ErrBusy while a file is copied: XFS locks it, so whatever changes it, or waits for writes
// to it, would wait, and with it all other calls. No further copy of it begins until that was tried again.
func (e *Engine) uncopied(path string) error {
	for c := range e.running() {
		if c.source == path {
			e.heldOff[path] = time.Now()
			return fmt.Errorf("%w: the list of its extents is being copied for a snapshot or a clone, since %s", engine.ErrBusy, c.began.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// unservedCopies fails with engine.ErrBusy while what a subsystem serves is copied.
func (e *Engine) unservedCopies(s *subsystem) error {
	if s == nil {
		return nil
	}
	for _, ns := range s.namespaces {
		if err := e.uncopied(ns.path); err != nil {
			return fmt.Errorf("volume %s: %w", ns.volume(), err)
		}
	}
	return nil
}

// noCopies fails with engine.ErrBusy while any file is copied.
func (e *Engine) noCopies() error {
	for c := range e.running() {
		return fmt.Errorf("%w: the list of extents of %s is being copied", engine.ErrBusy, c.source)
	}
	return nil
}

// forgetCopies that nobody asked for again, because their objects were deleted.
func (e *Engine) forgetCopies() {
	maps.DeleteFunc(e.copies, func(_ string, c *copying) bool {
		old := !c.running() && time.Since(c.ended) > copyKept
		if old {
			c.close()
		}
		return old
	})
	maps.DeleteFunc(e.heldOff, func(_ string, since time.Time) bool { return time.Since(since) > copyHeldOff })
}

// share makes the file's data the source's, at one moment: XFS locks the source, waits for direct I/O in flight, and
// copies the list of its extents. Writes wait for that, and reads before Linux 6.7, and behind a write that waits.
func share(f *os.File, source string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	err = unix.Fdatasync(int(from.Fd()))
	if err == nil {
		err = unix.IoctlFileClone(int(f.Fd()), int(from.Fd()))
	}
	if closeErr := from.Close(); err == nil {
		err = closeErr
	}
	return err
}
