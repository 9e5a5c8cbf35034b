// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

const (
	mib = int64(1) << 20
	// PoolBytes that a device of the harness has at least: the smallest that every engine takes, with room for these
	// tests.
	PoolBytes = 512 * mib
	// BlockBytes is the unit of I/O in these tests, and that in which the engine in memory keeps and allocates data.
	BlockBytes = 4096
	// patience with a host or a target, far longer than any of it takes: a slow machine must not fail these tests.
	patience = 90 * time.Second
	soon     = 20 * time.Millisecond
)

// Harness is the machine under test. What its methods make is taken away by
// t.Cleanup.
type Harness interface {
	// Reset takes away all that the target holds and serves. Every case begins with it, and the suite ends with it:
	// on a slow machine it takes longer than most cases.
	Reset(t *testing.T)
	// Engine as a process that has just started would see it.
	Engine(t *testing.T) engine.Engine
	// BlankDevice of PoolBytes or more.
	BlankDevice(t *testing.T) engine.Device
	// ForeignDevice with something on it that weft did not write, and words that name it.
	ForeignDevice(t *testing.T) (engine.Device, string)
	// File that does not exist yet.
	File(t *testing.T, bytes int64) engine.Device
	// Portals that the target can open, one for each transport.
	Portals(t *testing.T) []engine.Portal
	// Lose takes the device of an open pool away from the target, as when a drive dies while it serves: the pool
	// cannot be read until Restart, which brings the device back with what was on it.
	Lose(t *testing.T, d engine.Device)
	// Restart is a reboot of the target's machine, not of its hosts.
	Restart(t *testing.T)
	// Plan that the target runs by; its pools and portals are not looked at.
	Plan(t *testing.T) v1alpha1.Plan
	// Traits of the engine and the machine that the cases must know.
	Traits() Traits
	// Connect a host to a subsystem. A host that loses its target goes on trying. One with keys proves that it has them
	// when it is asked, and wants the same of its target.
	Connect(ctx context.Context, t *testing.T, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (Connection, error)
	// Kept are folders with all that the target and its engine keep in files, but for what lies in pools.
	Kept(t *testing.T) []string
}

// Complainer is a Harness whose target goes on, and says so, when it finds itself to be wrong, as a kernel does.
type Complainer interface {
	// Complaints since the last call.
	Complaints() ([]string, error)
}

// Traits are what engines, and machines that tests run on, may differ in.
type Traits struct {
	// NoHosts says why no host can connect on this machine, and what machine would do. The cases that need
	// one are skipped, with this as the reason. Empty where hosts connect.
	NoHosts string
	// FixedTransports: queue depth, in-capsule data and I/O queues are the whole target's, as its plan
	// says. Other ones need a restart, and Gather answers 0 for an export's MaxIOQueues.
	FixedTransports bool
	// NoAuthentication says why no host can prove itself to this target, and the target to it. Export refuses keys with
	// ErrUnsupported then.
	NoAuthentication string
	// HangsUnproved are the transports over which this machine's hosts hang for minutes after a proof that was wrong.
	HangsUnproved []v1alpha1.TransportType
	// NoWire says why nobody can speak NVMe/TCP to this target by a socket, and what target would listen. The cases of
	// intruders, who need no initiator, are skipped then.
	NoWire string
	// Lingers: this release of the target does not end every connection that its host has ended.
	Lingers bool
	// RepeatsReads: this release of the target does a Read or an Identify that has data in its capsule again and again,
	// as long as its connection has something to be read.
	RepeatsReads bool
	// NoNotes: the engine has no place for notes in its pools, and is no engine.NoteKeeper.
	NoNotes bool
	// NoBlockLists: the engine does not know which blocks were written, and is no engine.BlockLister.
	NoBlockLists bool
	// RetryEvery so long a host that lost its target tries again; 0 where it does at once.
	RetryEvery time.Duration
}

// Connection of a host to a subsystem through one portal.
type Connection interface {
	// Namespace that serves a volume, once the host sees it.
	Namespace(ctx context.Context, id engine.ID) (Namespace, error)
	// Gone says whether the target ended the connection and it will not come back.
	Gone() bool
	// LosePatience: with the next attempt that fails the host gives up.
	LosePatience() error
	// IOQueues of the controller.
	IOQueues() (int, error)
	// Controller is the number that the target gave this connection, another one once the host had to connect again.
	Controller() int
	// Disconnect from the host's side.
	Disconnect()
}

// Namespace as a host sees it. I/O is of whole blocks, passes no cache, and
// waits as long as the host still hopes to reach its target.
type Namespace interface {
	io.ReaderAt
	io.WriterAt
	SizeBytes() (int64, error)
	Identity() (Identity, error)
	// ANAState of its path, as Linux names it; empty without ANA reporting.
	ANAState() string
}

// Identity of a namespace, as a host sees it.
type Identity struct {
	NQN, Serial, Model string
	NSID               uint32
	// UUID and NGUID in lower case; the NGUID without hyphens.
	UUID, NGUID string
	// BlockBytes of its logical blocks; 0 of an engine that does not know them.
	BlockBytes int32
}

// suite of one test.
type suite struct {
	Harness
	*WithT
	t   *testing.T
	ctx context.Context
	// engine is a process that goes on; fresh makes another.
	engine engine.Engine
	// others than engine were called, too: engine may not know of that.
	others bool
}

// Run the whole suite.
func Run(t *testing.T, h Harness) {
	if reason := h.Traits().NoHosts; reason != "" {
		t.Logf("cases with hosts are skipped: %s", reason)
	}
	t.Cleanup(func() { h.Reset(t) })
	groups := []struct {
		name  string
		cases map[string]func(*suite)
	}{
		{"Start", startCases()},
		{"Pools", poolCases()},
		{"Volumes", volumeCases()},
		{"QoS", qosCases()},
		{"Snapshots", snapshotCases()},
		{"Exports", exportCases()},
		{"Portals", portalCases()},
		{"Hosts", hostCases()},
		{"Authentication", authenticationCases()},
		{"Restart", restartCases()},
		{"Intruders", intruderCases()},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, name := range sorted(group.cases) {
				t.Run(name, func(t *testing.T) { run(t, h, group.cases[name]) })
			}
		})
	}
}

func run(t *testing.T, h Harness, do func(*suite)) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(soon)
	h.Reset(t)
	do(&suite{Harness: h, WithT: g, t: t, ctx: ctx, engine: h.Engine(t)})
}

// fresh is the engine of a process that has just started.
func (s *suite) fresh() engine.Engine {
	s.others = true
	return s.Engine(s.t)
}

// one is the error of a call with one item.
func (s *suite) one(errs []error) error {
	s.t.Helper()
	s.Expect(errs).To(HaveLen(1), "a call answers with one error for each item")
	return errs[0]
}

// done expects that every item of a call was done.
func (s *suite) done(errs []error) {
	s.t.Helper()
	for i, err := range errs {
		s.Expect(err).NotTo(HaveOccurred(), "item %d", i)
	}
}

// state as a process that has just started gathers it.
func (s *suite) state() engine.State {
	s.t.Helper()
	var called engine.Engine
	if !s.others {
		called = s.engine
	}
	state, err := Look(s.ctx, s.t, called, s.Engine(s.t))
	s.Expect(err).NotTo(HaveOccurred())
	return state
}

// clear what was deleted, where the engine does not do so at once.
func (s *suite) clear() {
	s.t.Helper()
	s.Expect(Clear(s.ctx, s.fresh())).To(Succeed())
}

// Clear what was deleted in all pools of an engine, one after another, as far as it can be now, where the engine does
// not do so at once.
func Clear(ctx context.Context, e engine.Engine) error {
	state, err := e.Gather(ctx) // which sees what another process has left
	clearer, ok := e.(engine.Clearer)
	if err != nil || !ok {
		return err
	}
	var errs []error
	for _, p := range state.Pools {
		_, err := clearer.Clear(ctx, p.Device)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *suite) volume(id engine.ID) *engine.Volume {
	s.t.Helper()
	return find(s.state().Volumes, func(v engine.Volume) bool { return v.ID == id })
}

func (s *suite) snapshot(id engine.ID) *engine.Snapshot {
	s.t.Helper()
	return find(s.state().Snapshots, func(v engine.Snapshot) bool { return v.ID == id })
}

func (s *suite) export(nqn string) *engine.Export {
	s.t.Helper()
	return find(s.state().Exports, func(x engine.Export) bool { return x.NQN == nqn })
}

func (s *suite) pool(device string) *engine.Pool {
	s.t.Helper()
	return find(s.state().Pools, func(p engine.Pool) bool { return p.Device == device })
}

// openPool on a blank device.
func (s *suite) openPool() engine.Device {
	s.t.Helper()
	d := s.BlankDevice(s.t)
	s.Expect(s.one(s.engine.OpenPools(s.ctx, []engine.Device{d}))).To(Succeed())
	return d
}

// create a blank volume.
func (s *suite) create(pool string, sizeBytes int64) engine.ID {
	s.t.Helper()
	id := newID()
	s.Expect(s.one(s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{{ID: id, Pool: pool, SizeBytes: sizeBytes}}))).To(Succeed())
	return id
}

// clone a source into a volume of that size.
func (s *suite) clone(source engine.Source, sizeBytes int64) engine.ID {
	s.t.Helper()
	id := newID()
	s.Expect(s.one(s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{{ID: id, SizeBytes: sizeBytes, Source: source}}))).To(Succeed())
	return id
}

func (s *suite) snap(volume engine.ID) engine.ID {
	s.t.Helper()
	id := newID()
	s.Expect(s.one(s.engine.CreateSnapshots(s.ctx, []engine.SnapshotSpec{{ID: id, Volume: volume}}))).To(Succeed())
	return id
}

// exportOf one volume as namespace 1, as weft's agent makes it.
func exportOf(id engine.ID, hosts ...string) engine.Export {
	return engine.Export{
		NQN:         v1alpha1.NQNPrefix + "pvc-" + string(id),
		Serial:      id.NGUID()[:20],
		Model:       "weft",
		MaxIOQueues: 2,
		Namespaces:  []engine.Namespace{{NSID: 1, Volume: id}},
		Hosts:       hosts,
	}
}

// served is an export as Gather answers it.
func (s *suite) served(x engine.Export) engine.Export {
	if s.Traits().FixedTransports {
		x.MaxIOQueues = 0
	}
	return x
}

func (s *suite) exportAs(x engine.Export) {
	s.t.Helper()
	s.Expect(s.one(s.engine.Export(s.ctx, []engine.Export{x}))).To(Succeed())
}

func (s *suite) openPortals() []engine.Portal {
	s.t.Helper()
	portals := s.Portals(s.t)
	s.done(s.engine.OpenPortals(s.ctx, portals))
	return portals
}

// try to connect a host, with the keys that the export gives it, if it does.
func (s *suite) try(portal engine.Portal, x engine.Export, host string) (Connection, error) {
	s.t.Helper()
	if reason := s.Traits().NoHosts; reason != "" {
		s.t.Skip(reason)
	}
	return s.Connect(s.ctx, s.t, portal.Portal, x.NQN, host, x.Authentication[host].Keys)
}

// attach a host to the export of a volume.
func (s *suite) attach(portal engine.Portal, x engine.Export, host string) (Connection, Namespace) {
	s.t.Helper()
	c, err := s.try(portal, x, host)
	s.Expect(err).NotTo(HaveOccurred())
	return c, s.namespace(c, x.Namespaces[0].Volume)
}

func (s *suite) namespace(c Connection, id engine.ID) Namespace {
	s.t.Helper()
	ns, err := c.Namespace(s.ctx, id)
	s.Expect(err).NotTo(HaveOccurred())
	return ns
}

func (s *suite) write(ns Namespace, block int64, text string) {
	s.t.Helper()
	_, err := ns.WriteAt(blockOf(text), block*BlockBytes)
	s.Expect(err).NotTo(HaveOccurred())
}

func (s *suite) read(ns Namespace, block int64) string {
	s.t.Helper()
	p := make([]byte, BlockBytes)
	_, err := ns.ReadAt(p, block*BlockBytes)
	s.Expect(err).NotTo(HaveOccurred())
	return textOf(p)
}

// turnedAway is a host that is served no more. It would go on trying, and loses patience here and now: the case would
// wait for that.
func (s *suite) turnedAway(c Connection) {
	s.t.Helper()
	s.Expect(c.LosePatience()).To(Succeed())
}

func blockOf(text string) []byte {
	p := make([]byte, BlockBytes)
	copy(p, text)
	return p
}

func textOf(p []byte) string { return strings.TrimRight(string(p), "\x00") }

func newID() engine.ID { return engine.ID(uuid.NewString()) }

func newHost() string { return v1alpha1.HostNQNPrefix + uuid.NewString() }

func find[T any](all []T, is func(T) bool) *T {
	for i := range all {
		if is(all[i]) {
			return &all[i]
		}
	}
	return nil
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func portalName(p engine.Portal) string { return fmt.Sprint(p.Transport) }
