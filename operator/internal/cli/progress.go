// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// lookEvery so often at moves that are waited for.
	lookEvery = 2 * time.Second
	// defaultMoves that run at once: each copies up to 200 MB/s from the node that uses the volume.
	defaultMoves = 4
	// percentStep between two lines about the same copy, where no bar shows it.
	percentStep = 5
	// barWidth of a full bar, in characters.
	barWidth = 30
)

// States of a move that the mirror's record does not name.
const (
	moveRequested = "Requested" // the controller has not added the new replica yet
	moveAdding    = "Adding"    // the new replica is not in the mirror yet
	moveRemoving  = "Removing"  // the new replica is in sync, and the former one is removed
)

// progress of a move, as people see it.
type progress struct {
	volume, called string
	// replica that moves, its node, and the node that it moves to; empty while that is not chosen.
	replica, from, to string
	// reason for which the controller requested the move; empty if a person did.
	reason v1alpha1.MoveReason
	state  string
	copied
	// lasts since the state began; 0: not known.
	lasts   time.Duration
	waiting string
}

// copied is how far the copy to a replica is, as its mirror's record says.
type copied struct {
	// percent of the volume's size; -1: nothing is being copied.
	percent int
	// rate in bytes a second, on average since the copy began, and the time left at that rate; 0: not known.
	rate float64
	left time.Duration
}

var notCopied = copied{percent: -1}

// copyTo a member of a mirror of this size.
func copyTo(m v1alpha1.MirrorMember, sizeBytes int64, now time.Time) copied {
	if m.State != v1alpha1.MemberFilling && m.State != v1alpha1.MemberReturning || sizeBytes <= 0 {
		return notCopied
	}
	done := min(m.CopiedBytes, sizeBytes)
	c := copied{percent: int(float64(done) / float64(sizeBytes) * 100)}
	if m.Since == nil || done <= 0 {
		return c
	}
	if lasts := now.Sub(m.Since.Time); lasts > 0 {
		c.rate = float64(done) / lasts.Seconds()
		c.left = time.Duration(float64(sizeBytes-done) / c.rate * float64(time.Second))
	}
	return c
}

// columns of a table: COPIED, RATE and LEFT.
func (c copied) columns() []string {
	columns := []string{"-", "-", "-"}
	if c.percent >= 0 {
		columns[0] = fmt.Sprintf("%d %%", c.percent)
	}
	if c.rate > 0 {
		columns[1], columns[2] = fmt.Sprintf("%.1f MB/s", c.rate/1e6), duration.HumanDuration(c.left)
	}
	return columns
}

// speed in words, in brackets; empty when it is not known.
func (c copied) speed() string {
	if c.rate <= 0 {
		return ""
	}
	columns := c.columns()
	return fmt.Sprintf(" (%s, %s left)", columns[1], columns[2])
}

// moving is the progress of a volume's move; false: there is none.
func (s *status) moving(v *v1alpha1.NvmfVolume) (progress, bool) {
	move := v.Spec.Move
	if move == nil {
		return progress{}, false
	}
	p := progress{volume: v.Name, called: s.called(v), replica: move.Replica, to: move.Node, reason: move.Reason, state: moveRequested, copied: notCopied, waiting: move.Waiting}
	if m := memberOf(v, move.Replica); m != nil {
		p.from = m.Node
	} else if r := s.replica(move.Replica); r != nil {
		p.from = r.Spec.Node
	}
	if move.Replacement == "" {
		return p, true
	}
	if m := memberOf(v, move.Replacement); m != nil {
		p.to = m.Node
	}
	p.state = moveAdding
	m := s.mirrorMember(v.Name, move.Replacement)
	if m == nil {
		return p, true
	}
	if m.Since != nil {
		p.lasts = s.now.Sub(m.Since.Time)
	}
	p.copied = copyTo(*m, v.Spec.Size.Value(), s.now)
	switch p.state = string(m.State); m.State {
	case v1alpha1.MemberInSync:
		p.state = moveRemoving
	case v1alpha1.MemberOut:
		p.waiting = cmp.Or(p.waiting, m.Reason)
	}
	return p, true
}

// row of a table of moves.
func (p progress) row() []string {
	state := p.state
	if state == string(v1alpha1.MemberOut) && p.lasts > 0 {
		state += " for " + duration.HumanDuration(p.lasts)
	}
	row := append([]string{p.called, p.source(), orDash(p.to), state}, p.columns()...)
	return append(row, orDash(p.waiting))
}

// source is the node that the replica moves from, and whether it is lost there.
func (p progress) source() string {
	if p.reason == v1alpha1.MoveReplicaLost {
		return orDash(p.from) + " (lost)"
	}
	return orDash(p.from)
}

// words about a move, as a line.
func (p progress) words() string {
	text := fmt.Sprintf("%s: %s to %s: %s", p.called, p.source(), cmp.Or(p.to, "a node of the controller's choice"), p.state)
	if p.percent >= 0 {
		text += " " + p.columns()[0]
	}
	if p.lasts > 0 {
		text += " for " + duration.HumanDuration(p.lasts)
	}
	text += p.speed()
	if p.waiting != "" {
		text += "; waiting: " + p.waiting
	}
	return text
}

// changed tells whether the move is at another step than before.
func (p progress) changed(last progress) bool {
	return p.state != last.state || p.to != last.to || p.waiting != last.waiting || p.percent < last.percent
}

// news tells whether the progress is worth another line after the last one.
func (p progress) news(last progress) bool {
	return p.changed(last) || p.percent >= last.percent+percentStep
}

// bar of what is copied; the move's name is last, because it may be cut.
func (p progress) bar() string { return barOf(p.percent, p.speed()+"  "+p.called) }

// barsOf the moves of which something is being copied.
func barsOf(moves []progress) []string {
	var bars []string
	for _, p := range moves {
		if p.percent >= 0 {
			bars = append(bars, p.bar())
		}
	}
	return bars
}

// countBar of how many are done, of all.
func countBar(done, all int, what string) string {
	return barOf(done*100/max(all, 1), fmt.Sprintf("  %d of %d %s", done, all, what))
}

func barOf(percent int, about string) string {
	full := percent * barWidth / 100
	return fmt.Sprintf("[%s%s] %3d %%%s", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), percent, about)
}

// watcher looks at the cluster again and again.
type watcher struct {
	api client.Client
	*table
	now func() time.Time
	// pause between two looks. It fails when ctx ends.
	pause func(ctx context.Context) error
	last  map[string]progress
	// bars of copies, or of how many volumes are done, below all lines; on a terminal only.
	bars *screen
	// results go here for programs; nil: the lines are all.
	results func(any) error
}

func newWatcher(api client.Client, out io.Writer) *watcher {
	return &watcher{api: api, table: newTable(out), now: time.Now, last: map[string]progress{}, bars: newScreen(out, io.Discard), pause: func(ctx context.Context) error {
		return pauseFor(ctx, lookEvery)
	}}
}

// verb is the watcher of a command that changes something. If its output is for programs, lines go to standard error.
func verb(api client.Client, cmd *cobra.Command, format *output) *watcher {
	if format.forPeople() {
		return newWatcher(api, cmd.OutOrStdout())
	}
	w := newWatcher(api, cmd.ErrOrStderr())
	w.results = func(v any) error {
		_, err := format.encode(cmd.OutOrStdout(), v)
		return err
	}
	return w
}

// did prints for programs what a command did, unless it failed.
func (w *watcher) did(v any, err error) error {
	var exit *ExitError
	if w.results == nil || err != nil && !errors.As(err, &exit) {
		return err
	}
	if failed := w.results(v); failed != nil {
		return failed
	}
	return err
}

// line takes the place of the bars: the next look draws them below it.
func (w *watcher) line(format string, args ...any) {
	w.drawBars(nil)
	w.table.line(format, args...)
}

// drawBars in place of those drawn before.
func (w *watcher) drawBars(bars []string) {
	if w.err == nil {
		w.err = w.bars.bars(bars)
	}
}

// drawCount of volumes that are done, if there are several. What a single one waits for is told in a line.
func (w *watcher) drawCount(done, all int) {
	if all > 1 {
		w.drawBars([]string{countBar(done, all, "volumes")})
	}
}

// pauseFor a time. It fails when ctx ends before.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// look at everything, as of now.
func (w *watcher) look(ctx context.Context) (*fleet, error) { return lookAtFleet(ctx, w.api, w.now()) }

// tell a line about each move that got on since the last time, and of those that ended how they did. On a terminal,
// bars show how far copies are, and lines only what else changes.
func (w *watcher) tell(f *fleet, moves []progress) {
	still := map[string]progress{}
	news := progress.news
	if _, _, terminal := w.bars.size(); terminal {
		news = progress.changed
	}
	for _, p := range moves {
		still[p.volume] = p
		if last, told := w.last[p.volume]; told && !news(p, last) {
			still[p.volume] = last
			continue
		}
		w.stamped("%s", p.words())
	}
	for _, name := range slices.Sorted(maps.Keys(w.last)) {
		if _, runs := still[name]; !runs {
			w.stamped("%s", f.ended(w.last[name]))
		}
	}
	w.last = still
	w.drawBars(barsOf(moves))
}

// stamped is a line that begins with the time.
func (w *watcher) stamped(format string, args ...any) {
	w.line("%s  %s", w.now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// ended says how a move ended that runs no longer.
func (f *fleet) ended(p progress) string {
	v := f.volume(p.volume)
	switch {
	case v == nil:
		return p.called + ": the volume was deleted"
	case memberOf(v, p.replica) != nil:
		return fmt.Sprintf("%s: the move was cancelled; replica %s stays on node %s", p.called, p.replica, p.from)
	}
	return fmt.Sprintf("%s: moved from %s to %s", p.called, p.from, orDash(p.to))
}

// interrupted says what goes on after the person stopped waiting; the error of a wait that ended for another reason is
// passed on.
func (w *watcher) interrupted(ctx context.Context, err error, goesOn string) error {
	if ctx.Err() == nil {
		return fmt.Errorf("%w (%s)", err, goesOn)
	}
	w.line("interrupted; %s", goesOn)
	return w.ends(CodeError)
}
