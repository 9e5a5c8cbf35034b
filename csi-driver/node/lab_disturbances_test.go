// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

type disturbance struct {
	name string
	do   func(*history)
}

// disturbances of a history. Each ends with nothing disturbed, though the replicas may be out of sync.
var disturbances = []disturbance{
	{"a target is away for less than the grace", func(h *history) { h.awayFor(h.any(), rigGrace/4, rigGrace/2) }},
	{"a target is away for more than the grace", func(h *history) { h.awayFor(h.any(), rigGrace, 2*rigGrace) }},
	{"both targets are away", (*history).bothAway},
	{"the controllers of a replica are deleted", (*history).controllersDeleted},
	{"a drive answers errors", (*history).errors},
	{"a drive hangs", (*history).hangs},
	{"the API server is away, and a target", (*history).apiGoes},
	{"the API server's answers are lost, and a target is away", (*history).answersLost},
	{"the node plugin is killed", (*history).restarted},
	{"the node plugin is killed at one of its steps", (*history).killedAtStep},
	{"the writers are killed", (*history).writersKilled},
	{"the volume is detached and attached", (*history).attachedAgain},
	{"the node loses its power", (*history).powerLost},
	{"the holder is fenced", (*history).fenced},
	{"the holder is fenced, and the API server is away for it", (*history).fencedApart},
	{"the holder is fenced while a drive hangs", (*history).fencedHanging},
	{"a replica moves", (*history).moves},
	{"the keys of a replica are rotated", func(h *history) { h.rotated(func(*rigLeg) {}) }},
	{"the keys of a replica are rotated, and its target is away", func(h *history) {
		h.rotated(func(g *rigLeg) { h.awayFor(g, rigGrace/4, 2*rigGrace) })
	}},
	{"the keys of a replica are rotated, and the node plugin is killed", func(h *history) { h.rotated(func(*rigLeg) { h.restarted() }) }},
}

func (h *history) any() *rigLeg { return h.legs[h.rng.IntN(len(h.legs))] }

// pass some time.
func (h *history) pass(from, to time.Duration) {
	<-time.After(from + time.Duration(h.rng.Int64N(int64(to-from))))
}

func (h *history) awayFor(g *rigLeg, from, to time.Duration) {
	g.away()
	h.pass(from, to)
	g.back()
}

func (h *history) bothAway() {
	h.legs[0].away()
	h.pass(time.Millisecond, rigGrace)
	h.legs[1].away()
	h.pass(time.Millisecond, 2*rigGrace)
	h.legs[0].back()
	h.pass(time.Millisecond, rigGrace)
	h.legs[1].back()
}

// controllersDeleted as an administrator can, behind the node plugin's back. The kernel drops the replica by itself,
// but it fails all writes when there is no other.
func (h *history) controllersDeleted() {
	h.settle()
	g := h.any()
	g.untold.Store(true)
	h.deleteControllers(g)
}

func (h *history) deleteControllers(g *rigLeg) {
	h.lab.Helper()
	all, err := filepath.Glob("/sys/class/nvme/nvme*/subsysnqn")
	must(h.lab, err)
	for _, path := range all {
		nqn, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(nqn)) == g.nqn() {
			// The node plugin may be faster.
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), "delete_controller"), []byte("1"), 0); err != nil {
				h.lab.Logf("deleting %s: %v", path, err)
			}
		}
	}
}

// errors of a replica, while there is another.
func (h *history) errors() {
	h.settle()
	g := h.any()
	g.fail(faults[h.rng.IntN(len(faults))])
	h.pass(200*time.Millisecond, 2*rigGrace)
	g.mend()
}

func (h *history) hangs() {
	g := h.any()
	g.freeze()
	h.pass(200*time.Millisecond, 2*rigGrace)
	g.thaw()
}

// apiGoes, and comes back before the target or after it.
func (h *history) apiGoes() {
	h.apiAway.Store(true)
	g := h.any()
	h.awayFor(g, rigGrace/2, 2*rigGrace)
	if h.rng.IntN(2) == 0 {
		g.away()
		h.pass(time.Millisecond, rigGrace)
		h.apiAway.Store(false)
		h.pass(rigGrace, 2*rigGrace)
		g.back()
		return
	}
	h.pass(time.Millisecond, rigGrace)
	h.apiAway.Store(false)
}

// answersLost of the API server, which stores what the node plugin sends.
func (h *history) answersLost() {
	h.deaf.Store(true)
	h.awayFor(h.any(), rigGrace, 2*rigGrace)
	h.pass(time.Millisecond, rigGrace)
	h.deaf.Store(false)
}

func (h *history) restarted() {
	h.kill()
	h.pass(time.Millisecond, rigGrace)
	h.start()
}

func (h *history) killedAtStep() {
	h.gate.last.Store(h.gate.passed.Load() + int64(h.rng.IntN(40)))
	h.awayFor(h.any(), rigGrace, 2*rigGrace)
	h.pass(time.Millisecond, rigGrace)
	h.restarted()
}

func (h *history) writersKilled() {
	must(h.lab, h.killWriting())
	h.killed()
	h.write()
}

// attachedAgain after a clean stop.
func (h *history) attachedAgain() {
	h.stopped()
	h.fence()
	h.attachNext()
	h.stage()
	h.write()
}

// fenced holder: its writers are killed, and it leaves, before another one begins.
func (h *history) fenced() {
	h.fence()
	h.killed()
	h.attachNext()
	h.attached()
}

// fencedApart is a holder that learns late that it was fenced: there is another one already. One target dismisses it
// after the other.
func (h *history) fencedApart() {
	h.apiAway.Store(true)
	h.pass(time.Millisecond, rigGrace)
	h.fence()
	h.admit(h.legs[0], false)
	h.pass(time.Millisecond, 2*rigGrace)
	h.attachNext()
	h.pass(time.Millisecond, 2*rigGrace)
	h.apiAway.Store(false)
	h.killed()
	h.attached()
}

func (h *history) fencedHanging() {
	g := h.any()
	g.freeze()
	h.pass(time.Millisecond, rigGrace)
	h.fence()
	h.pass(time.Millisecond, 2*rigGrace)
	g.thaw()
	h.killed()
	h.attachNext()
	h.attached()
}

// powerLost leaves what the targets have at that moment. The node plugin does not see it go.
func (h *history) powerLost() {
	h.kill()
	must(h.lab, h.killWriting())
	for _, g := range h.legs {
		g.away()
	}
	for _, g := range h.legs {
		h.deleteControllers(g)
	}
	tops, err := h.service.Mapper.Of(volumeUUID)
	must(h.lab, err)
	for _, d := range tops {
		h.lab.run("dmsetup", "wipe_table", "--noflush", "--nolockfs", d.Label)
	}
	h.killed()
	for _, d := range tops {
		h.lab.run("dmsetup", "remove", "--retry", d.Label)
	}
	if a, err := h.mirrors().Of(volumeUUID); err == nil {
		must(h.lab, h.mirrors().Stop(h.legs[0].timeout(), a))
	}
	for _, g := range h.legs {
		slicesOf, err := h.service.Mapper.Slices(g.uuid)
		must(h.lab, err)
		for _, d := range slicesOf {
			h.lab.run("dmsetup", "remove", "--retry", d.Label)
		}
	}
	h.start()
	h.fence()
	h.attachNext()
	h.attached()
}

// rotated are the keys of a replica, in the middle of which something happens. The node plugin looks for the next host
// at once, as one does that was just started. What is not retired by then is the next time, if the replica is not given
// up before.
func (h *history) rotated(middle func(*rigLeg)) {
	g := h.any()
	if g.rotating == "" {
		former := g.next
		if former == "" {
			former = g.identity
		}
		g.rotating, g.next = former, uuid.NewString()
		g.listNext(h.store, g.next, "", "")
	}
	h.restarted()
	mended, plugin := make(chan error), h.plugin
	mend := func() error {
		ctx, cancel := context.WithTimeout(h.logged(context.Background()), labTimeout)
		defer cancel()
		return plugin.MendPaths(ctx)
	}
	go func() { mended <- mend() }()
	h.pass(time.Millisecond, rigGrace/4)
	middle(g)
	err := <-mended
	plugin = h.plugin
	if err = errors.Join(err, mend()); err != nil {
		h.lab.Logf("the paths cannot be mended: %v", err)
	}
	retired, err := h.plugin.RetiredIdentities()
	must(h.lab, err)
	if slices.Contains(retired, g.rotating) {
		g.dismissFormer(h.store)
		g.rotating = ""
		h.rotations++
	}
}

// moves a replica to another target.
func (h *history) moves() {
	h.settle()
	from, to := h.legs[0], h.newLeg()
	h.legs = append(h.legs, to)
	h.add(to.leg, rigBytes)
	h.admit(to, true)
	must(h.lab, h.changed(h.lab.Context(), vol))
	h.settle()
	h.retire(h.lab, from.leg)
	from.dismiss()
	h.legs = h.legs[1:]
}
