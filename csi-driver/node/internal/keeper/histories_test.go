// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	defaultSeed      = 1
	defaultSequences = 300
	// disturbances of a sequence, and steps after each.
	disturbances = 25
	stepsBetween = 120
	// stepsToSettle is how many steps everything may take to be right again once nothing disturbs it.
	stepsToSettle = 20000
)

// run a sequence, and give what was wrong. Most of its disturbances are those that are named, if any are.
func run(seed uint64, f faults, often ...int) *world {
	w := newWorld(seed, f)
	w.often, w.slow = often, true
	w.copying = f.acceptsUnconfirmed || f.acceptsEarlier || f == (faults{}) && seed%2 == 0
	for range disturbances {
		for range w.rng.IntN(2 * stepsBetween) {
			if w.step(); w.problem != "" {
				return w
			}
		}
		w.disturb()
	}
	w.settle()
	return w
}

// step does one thing that anything in the cluster may do next.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(100)) * time.Millisecond)
	switch w.rng.IntN(10) {
	case 0, 1:
		for _, name := range sorted(w.nodes) {
			n := w.nodes[name]
			if len(n.tasks) > 0 && w.chance(70) {
				f := n.tasks[0]
				n.tasks = n.tasks[1:]
				f()
			}
			n.step()
		}
	case 2:
		w.controller()
		if w.copying {
			w.snapshots()
		}
		name := []string{"a", "b", "c"}[w.rng.IntN(3)]
		if t := w.targets[name]; t != nil {
			t.agent()
		}
	case 3:
		for _, name := range sorted(w.nodes) {
			if a := w.nodes[name].array; a != nil {
				for range 1 + w.rng.IntN(regions/3) {
					a.copy()
				}
			}
		}
	case 4:
		for _, name := range sorted(w.nodes) {
			if p := w.nodes[name].pod; p != nil {
				for range 1 + w.rng.IntN(regions/4) {
					p.issue()
				}
				w.tally["deepest queue"] = max(w.tally["deepest queue"], len(p.outstanding))
			}
		}
	default:
		w.traffic()
	}
	w.refresh()
	if w.steps++; w.steps%8 == 0 {
		w.inSync()
	}
}

// traffic moves commands on: from a host to a target, or into the target's disk.
func (w *world) traffic() {
	for _, name := range sorted(w.nodes) {
		for _, replica := range sorted(w.nodes[name].legs) {
			for range w.rng.IntN(6) {
				switch l := w.nodes[name].legs[replica]; {
				case l == nil:
				case l.deleting:
					l.fade()
				case l.live && len(l.queue) > 0:
					l.deliver()
				}
			}
		}
	}
	for _, name := range sorted(w.targets) {
		t := w.targets[name]
		for range w.rng.IntN(6) {
			if t.powered && len(t.inFlight) > 0 {
				t.execute(w.rng.IntN(len(t.inFlight)))
			}
		}
	}
}

// Disturbances that a sequence can have more often.
const (
	cuts     = 1
	heals    = 4
	fails    = 8
	attaches = 11
	moves    = 12
	restores = 13
)

// disturb the cluster in one way.
func (w *world) disturb() {
	nodes, replicas := sorted(w.nodes), sorted(w.targets)
	node, replica := nodes[w.rng.IntN(len(nodes))], replicas[w.rng.IntN(len(replicas))]
	t, n := w.targets[replica], w.nodes[node]
	// A kubelet that is away asks for nothing, while its node and the node plugin go on.
	pairs := [][2]string{{node, replica}, {"api", node}, {"api", replica}, {"kubelet", node}}
	pair := pairs[w.rng.IntN(len(pairs))]
	choice := w.rng.IntN(14)
	if len(w.often) > 0 && w.chance(70) {
		choice = w.often[w.rng.IntN(len(w.often))]
	}
	switch choice {
	case 0, cuts:
		w.say("cut %v", pair)
		w.cut[pair] = true
	case 2, 3, heals:
		w.say("all networks are whole")
		w.cut = map[[2]string]bool{}
	case 5:
		w.say("%s loses its power", replica)
		t.crash()
	case 6, 7:
		for _, name := range replicas {
			w.targets[name].powered = true
		}
	case fails:
		t.failing = 1 + w.rng.IntN(3)
		w.say("%s answers %d errors", replica, t.failing)
	case 9:
		w.say("the node plugin of %s ends", node)
		n.kill()
	case 10:
		w.say("%s loses its power", node)
		n.crash()
	case attaches:
		to := append(nodes, "")[w.rng.IntN(3)]
		w.say("attach to %q", to)
		w.attach(to)
		w.api.mover = to != "" && (w.faults == (faults{}) || w.faults.takesForBlank) && w.chance(30)
	case moves:
		w.api.moving = true
	case restores:
		switch {
		case w.api.mover && w.api.mirror.Holder == "":
			// A backup of the moment in which agents say that nothing was ever written says so whenever it is restored:
			// see docs/design/mirror-limits.md.
		case w.backup == nil || w.chance(30):
			w.backup = w.api.clone()
		default:
			w.restore()
		}
	}
	w.refresh()
	w.tally["disturbances"]++
}

// settle everything, and look whether what was acknowledged is there.
func (w *world) settle() {
	w.say("nothing disturbs it any more")
	w.cut, w.calm = map[[2]string]bool{}, true
	for _, name := range sorted(w.targets) {
		w.targets[name].powered, w.targets[name].failing = true, 0
		w.targets[name].agent()
	}
	if w.restored {
		// What the restored API makes of it in the meantime must do no harm either.
		for range 5 * stepsBetween {
			if w.step(); w.problem != "" {
				return
			}
		}
		if w.recover(); w.over {
			return
		}
	}
	if w.api.node == "" || w.api.mover {
		w.attach("n1")
	}
	for i := range stepsToSettle {
		if w.step(); w.problem != "" {
			return
		}
		if i%2000 == 1999 && (w.nodes[w.api.node].needsPerson || w.needsPerson) {
			if w.tally["needs a person"]++; w.allFailed() {
				w.tally["ended by a double fault"]++
				return
			}
			if w.promote(); w.over {
				return
			}
		}
		if i%2000 == 1999 && w.nodes[w.api.node].alone {
			w.tally["replaced"]++
			if w.replace(); w.noneStays() {
				w.tally["needs a fourth replica"]++
				w.compare()
				return
			}
		}
		if i%2000 == 1999 && w.dead() {
			w.tally["dead after a double fault"]++
			w.attach(w.api.node)
		}
		if w.quiet() {
			w.compare()
			return
		}
	}
	w.wrong("it does not settle: %s; %s", mirror.String(w.api.mirror.Record), w.describe())
}

func (w *world) describe() string {
	var all []string
	for _, name := range sorted(w.nodes) {
		n := w.nodes[name]
		legs, _ := kernelLegs{n}.All()
		text := fmt.Sprintf("%s: attachment %q legs %v top %+v stopping %v", name, n.attachment, legs, n.top, n.stopping)
		if n.array != nil {
			text += fmt.Sprintf(" array %v resyncing %v writing %v writes %d", n.array.members, n.array.resyncing, n.array.writing, len(n.array.writes))
		}
		if n.plugin != nil {
			text += fmt.Sprintf(" running %v", n.plugin.tasks.running)
		}
		all = append(all, text)
	}
	for _, name := range sorted(w.api.replicas) {
		all = append(all, fmt.Sprintf("%s: %+v, admitted %v", name, *w.api.replicas[name], w.targets[name].admitted))
	}
	return strings.Join(all, "; ")
}

// dead tells whether an array has lost its last member: another one was given up, and this one answered an error before
// the kernel was told. Its pod gets errors, and has to be started again.
func (w *world) dead() bool {
	n := w.nodes[w.api.node]
	if n.array == nil {
		return false
	}
	for _, name := range n.array.inSync() {
		if n.legs[name] != nil {
			return false
		}
	}
	return true
}

// quiet tells whether the volume is attached to the intended node, and all its replicas are in sync.
func (w *world) quiet() bool {
	n := w.nodes[w.api.node]
	return n != nil && n.pod != nil && n.pod.attachment == w.api.wish && w.api.mirror.Holder == w.api.wish &&
		mirror.Whole(w.api.mirror.Record) && n.array != nil && len(n.array.inSync()) == len(w.api.mirror.Members)
}

// compare all members: each has what was acknowledged, and nothing else.
func (w *world) compare() {
	n := w.nodes[w.api.node]
	for _, name := range n.array.inSync() {
		for region, value := range w.targets[name].disk.data {
			if !w.allowed[region][value] {
				w.wrong("in the end %s has write %d in region %d, where only %v can be", name, value, region, sorted2(w.allowed[region]))
			}
		}
	}
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no positive number", name, text)
	}
	return n
}

// Random sequences of what can happen to a mirror, its holders, its replicas and the API. WEFT_SEED and WEFT_SEQUENCES
// choose others; WEFT_SEQUENCES=1 shows the sequence of a seed.
func TestHistories(t *testing.T) {
	seed, count := number(t, "WEFT_SEED", defaultSeed), number(t, "WEFT_SEQUENCES", defaultSequences)
	t.Logf("%d sequences from WEFT_SEED=%d", count, seed)
	tally := map[string]int{}
	for s := seed; s < seed+count; s++ {
		w := run(uint64(s), faults{})
		for what, n := range w.tally {
			if what == "deepest queue" {
				tally[what] = max(tally[what], n)
				continue
			}
			tally[what] += n
		}
		tally["copied regions"] += w.copied
		if w.problem != "" {
			t.Errorf("WEFT_SEED=%d WEFT_SEQUENCES=1: %s\n%s", s, w.problem, strings.Join(last(w.log, 80), "\n"))
			return
		}
		if count == 1 {
			t.Log(strings.Join(w.log, "\n"))
		}
	}
	for _, what := range sorted(tally) {
		t.Logf("%s: %d", what, tally[what])
	}
}

func last(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

// The checker finds each rule that is left out within this many sequences.
const sequencesToFind = 1200

func TestFindWhatIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		faults
		often []int
	}{
		"acknowledge before the record":                           {faults{acknowledgesFirst: true}, nil},
		"count a swap that timed out as stored":                   {faults{countsTimeouts: true}, []int{cuts, heals, fails}},
		"forget the former holder":                                {faults{forgetsFormer: true}, []int{attaches}},
		"take a member back by bitmap that was only being filled": {faults{returnsFilling: true}, []int{moves, fails, cuts, heals}},
		"trust a stale member after a restore of the API":         {faults{trustsStale: true}, []int{restores, attaches, cuts, heals}},
		"let a fenced keeper release its array":                   {faults{releasesFenced: true}, []int{attaches, cuts, heals}},
		"accept a copy without the confirmation":                  {faults{acceptsUnconfirmed: true}, []int{cuts, fails, heals}},
		"take a replica for blank without asking":                 {faults{takesForBlank: true}, []int{attaches, moves}},
		"accept a confirmation from before the copy":              {faults{acceptsEarlier: true}, []int{cuts, fails, heals}},
		"answer a dismissed host with do not retry":               {faults{refusesForGood: true}, []int{attaches, cuts, heals}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(defaultSeed); seed < defaultSeed+sequencesToFind; seed++ {
				w := run(seed, c.faults, c.often...)
				if w.problem != "" && !strings.HasPrefix(w.problem, "it does not settle") {
					t.Logf("found by sequence %d: %s", seed, w.problem)
					return
				}
			}
			t.Errorf("no sequence of %d finds it", sequencesToFind)
		})
	}
}
