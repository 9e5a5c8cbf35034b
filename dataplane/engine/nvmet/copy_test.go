// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// copies is an engine with one pool, whose one volume is served, and takes as long to copy as the test says.
type copies struct {
	*Engine
	*testing.T
	pool string
	// end has the outcome of each copy.
	end chan error
	// began gets a word from each copy.
	began chan struct{}
}

func newCopies(t *testing.T) copies {
	t.Helper()
	h := folders(t)
	c := copies{New(Options{Root: h.root, StateDir: "state"}), t, filepath.Join(h.poolsDir(), "p"), make(chan error), make(chan struct{}, 8)}
	c.guard.tried = true
	c.copyPatience = 0
	c.share = func(f *os.File, source string) error {
		c.began <- struct{}{}
		data, err := os.ReadFile(source)
		if err == nil {
			_, err = f.Write(data)
		}
		return errors.Join(err, <-c.end)
	}
	var on unix.Stat_t
	mkdir(t, filepath.Join(c.pool, snapshotsFolder))
	if err := unix.Stat(c.pool, &on); err != nil {
		t.Fatal(err)
	}
	put(t, h.path("proc/self/mountinfo"), fmt.Sprintf("21 1 %d:%d / %s rw shared:1 - xfs /dev/loop0 rw", unix.Major(on.Dev), unix.Minor(on.Dev), c.pool))
	mkdir(t, h.path("sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(on.Dev), unix.Minor(on.Dev))))
	put(t, c.volume(volumeA), "data")
	c.admitting(t, nqnA, "host-1")
	put(t, c.space(nqnA, 1, "device_path"), c.volume(volumeA))
	return c
}

func (c copies) volume(id engine.ID) string { return filepath.Join(c.pool, volumesFolder, string(id)) }

// snapshot asks for volumeB, a snapshot of volumeA.
func (c copies) snapshot() error {
	c.Helper()
	return oneOf(c.T, c.CreateSnapshots(c.Context(), []engine.SnapshotSpec{{ID: volumeB, Volume: volumeA}}))
}

// ends waits for the copy, which has its outcome.
func (c copies) ends(outcome error) {
	c.Helper()
	c.end <- outcome
	for _, is := range c.copies {
		<-is.done
	}
}

// A snapshot of a file with millions of extents takes minutes, in which XFS keeps the file locked. All that concerns
// other volumes goes on, and what would wait for the file's lock is refused.
func TestCallsDoNotWaitForACopy(t *testing.T) {
	c := newCopies(t)
	const other = "0b3c1d7e-7a0f-4c1e-9a57-111111111111"
	put(t, c.volume(other), "")
	c.opened(t)
	for range 2 {
		if err := c.snapshot(); !errors.Is(err, engine.ErrBusy) {
			t.Fatalf("a copy that goes on: %v", err)
		}
	}
	<-c.began
	for what, err := range map[string]error{
		"grow":   oneOf(t, c.GrowVolumes(t.Context(), []engine.VolumeSize{{ID: volumeA, SizeBytes: engine.SizeUnit}})),
		"export": oneOf(t, c.Export(t.Context(), []engine.Export{{NQN: nqnA, Serial: "serial", Model: "weft", MaxIOQueues: 8, Namespaces: []engine.Namespace{{NSID: 1, Volume: volumeA}}}})),
		"replace": oneOf(t, c.Export(t.Context(), []engine.Export{{
			NQN: nqnA, Serial: "serial", Model: "weft", MaxIOQueues: 8, Namespaces: []engine.Namespace{{NSID: 1, Volume: volumeA}}, Hosts: []string{v1alpha1.HostNQN(volumeB)},
		}})),
		"unexport": oneOf(t, c.Unexport(t.Context(), []string{nqnA})),
		"snapshot": oneOf(t, c.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: other, Volume: volumeA}})),
	} {
		if !errors.Is(err, engine.ErrBusy) {
			t.Errorf("%s of what is being copied: %v", what, err)
		}
	}
	if s := c.read(t, nqnA); len(s.hosts) != 1 || !s.namespaces[1].enabled {
		t.Errorf("the volume is served as %+v", s)
	}
	if err := os.RemoveAll(c.config("subsystems", nqnA)); err != nil {
		t.Fatal(err)
	}
	if err := oneOf(t, c.DeleteVolumes(t.Context(), []engine.ID{volumeA})); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("deletion of what is being copied: %v", err)
	}
	if err := oneOf(t, c.ClosePortals(t.Context(), []v1alpha1.Portal{portalA.Portal})); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a portal that hosts of the volume use: %v", err)
	}
	if err := oneOf(t, c.DeleteVolumes(t.Context(), []engine.ID{other})); err != nil {
		t.Errorf("deletion of another volume: %v", err)
	}
	state, err := c.Gather(t.Context())
	if err != nil || len(state.Snapshots) > 0 || len(state.Volumes) != 1 {
		t.Errorf("before it is whole: %+v, %v", state, err)
	}

	c.ends(nil)
	if err := c.snapshot(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(c.pool, snapshotsFolder, volumeB))
	if err != nil || string(data) != "data\n" {
		t.Errorf("the snapshot has %q, %v", data, err)
	}
	if err := oneOf(t, c.DeleteVolumes(t.Context(), []engine.ID{volumeA})); err != nil {
		t.Errorf("deletion after the copy: %v", err)
	}
	if len(c.began) > 0 || len(c.copies) > 0 {
		t.Errorf("%d more copies began, and %d are remembered", len(c.began), len(c.copies))
	}
}

// The next call for what could not be copied has the error, and the one after it tries again.
func TestCopyThatFails(t *testing.T) {
	c := newCopies(t)
	for range 2 {
		if err := c.snapshot(); !errors.Is(err, engine.ErrBusy) {
			t.Fatalf("a copy that goes on: %v", err)
		}
		<-c.began
		c.ends(unix.ENOSPC)
		if err := c.snapshot(); !errors.Is(err, engine.ErrNoSpace) || errors.Is(err, engine.ErrBusy) {
			t.Fatalf("a copy that failed: %v", err)
		}
	}
}

// What was copied for nobody, because its object was deleted meanwhile, never gets a name, and does not stay.
func TestCopyThatNobodyAskedForAgain(t *testing.T) {
	c := newCopies(t)
	if err := c.snapshot(); !errors.Is(err, engine.ErrBusy) {
		t.Fatalf("a copy that goes on: %v", err)
	}
	<-c.began
	if err := oneOf(t, c.DeleteSnapshots(t.Context(), []engine.ID{volumeB})); err != nil {
		t.Errorf("deletion of what is being made: %v", err)
	}
	is := c.copies[filepath.Join(c.pool, snapshotsFolder, volumeB)]
	c.ends(nil)
	for _, after := range []struct {
		ended time.Duration
		kept  int
	}{{copyKept / 2, 1}, {2 * copyKept, 0}} {
		is.ended = time.Now().Add(-after.ended)
		if _, err := c.Gather(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := is.made.Stat(); len(c.copies) != after.kept || (err == nil) != (after.kept > 0) {
			t.Errorf("%s after its end: %d copies are remembered, the file: %v", after.ended, len(c.copies), err)
		}
	}
}

// A host that is to be dismissed waits for one copy, and not for the next ones, too.
func TestNoCopyBeginsBeforeAChangeThatWaits(t *testing.T) {
	c := newCopies(t)
	if err := c.snapshot(); !errors.Is(err, engine.ErrBusy) {
		t.Fatalf("a copy that goes on: %v", err)
	}
	<-c.began
	if err := oneOf(t, c.Unexport(t.Context(), []string{nqnA})); !errors.Is(err, engine.ErrBusy) {
		t.Fatalf("unexport of what is being copied: %v", err)
	}
	c.ends(nil)
	if err := c.snapshot(); err != nil {
		t.Errorf("a copy that has ended: %v", err)
	}
	another := func() error {
		return oneOf(t, c.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: "0b3c1d7e-7a0f-4c1e-9a57-111111111111", Volume: volumeA}}))
	}
	if err := another(); !errors.Is(err, engine.ErrBusy) || len(c.began) > 0 {
		t.Errorf("the next copy, before the subsystem is gone: %v", err)
	}
	c.heldOff[c.volume(volumeA)] = time.Now().Add(-2 * copyHeldOff)
	if err := another(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a copy that goes on: %v", err)
	}
	<-c.began // it does now
	c.ends(nil)
}

// What was copied is taken for what it was made of alone.
func TestCopyOfAnotherSource(t *testing.T) {
	c := newCopies(t)
	const other = "0b3c1d7e-7a0f-4c1e-9a57-111111111111"
	put(t, c.volume(other), "other data")
	if err := c.snapshot(); !errors.Is(err, engine.ErrBusy) {
		t.Fatalf("a copy that goes on: %v", err)
	}
	<-c.began
	c.ends(nil)
	if err := oneOf(t, c.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: volumeB, Volume: other}})); !errors.Is(err, engine.ErrBusy) || len(c.copies) > 0 {
		t.Errorf("a copy of another source: %v", err)
	}
}
