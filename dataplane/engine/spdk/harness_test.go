// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// target that a machine runs: the fake, or a real nvmf_tgt.
type target interface {
	// Kill it as kill -9 does.
	Kill()
}

// machine with a target and files that are its devices.
type machine struct {
	// real is the path of nvmf_tgt, and release which one it is, such as 25.05; empty for the fake.
	real, release string
	// fake has the fake's options.
	fake  spdktest.Options
	flags []string
	plan  v1alpha1.Plan
	// address that the target listens on.
	address string
	// port of the first portal; the others follow.
	port int32
	dir  string

	target  target
	engines []*spdk.Engine
}

// newMachine whose target is the one that WEFT_SPDK_TARGET names, else the fake. Its target waits for Start.
func newMachine(t testing.TB) *machine {
	t.Helper()
	// A socket's path has at most 107 bytes, which t.TempDir may exceed.
	dir, err := os.MkdirTemp("", "weft-spdk-")
	check(t, err)
	m := &machine{real: os.Getenv(spdktest.TargetVariable), dir: dir, address: "127.0.0.1", plan: planOf(v1alpha1.TransportTCP, v1alpha1.TransportRDMA)}
	t.Cleanup(func() {
		m.kill()
		check(t, os.RemoveAll(dir))
	})
	m.port = freePort(t)
	m.fake = spdktest.Options{RDMADevices: []string{"rxe0"}}
	if m.real != "" {
		m.plan = planOf(v1alpha1.TransportTCP)
		m.release = spdktest.Release(t, m.real)
		t.Logf("on the real target %s, SPDK %s", m.real, m.release)
	} else {
		t.Logf("on the fake: %s names no real nvmf_tgt", spdktest.TargetVariable)
	}
	return m
}

// freePort of this machine: a real target of another run may hold any fixed one.
func freePort(t testing.TB) int32 {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	check(t, l.Close())
	return int32(port)
}

// planOf a small target on one core.
func planOf(transports ...v1alpha1.TransportType) v1alpha1.Plan {
	plan := v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{
		CoreMask: "0x1", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 640 << 20, PodMemoryBytes: 1 << 30,
		BdevIOPoolSize: 8192, SmallBuffers: 4096, LargeBuffers: 512, MaxSubsystems: 1024, Placement: v1alpha1.PlacementNone,
	}}
	for _, t := range transports {
		p := v1alpha1.PlannedTransport{Type: t, QueueDepth: 64, MaxIOQueues: 2, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 256, LargeCache: 32}
		if t == v1alpha1.TransportRDMA {
			depth := int32(1024)
			p.SRQDepth = &depth
		}
		plan.SPDK.Transports = append(plan.SPDK.Transports, p)
	}
	return plan
}

// withoutPipes of sockets, as weft plans by default: with them, a stranger overwrites what other hosts write.
func (m *machine) withoutPipes() {
	m.plan.SPDK.Sockets = &v1alpha1.PlannedSockets{
		ZeroCopySend: v1alpha1.SwitchEnabled, ReceivePipe: v1alpha1.SwitchDisabled, QuickAck: v1alpha1.SwitchDisabled,
		SendBufferSize: 2 << 20, ReceiveBufferSize: 2 << 20,
	}
}

// interrupts have the target sleep while there is nothing to do, where its release can: on a small machine, and more on
// an emulated one, a core that polls takes what its hosts need.
func (m *machine) interrupts() {
	if m.release >= "26.01" {
		m.flags, m.plan.SPDK.Mode = []string{"--interrupt-mode"}, v1alpha1.CoresInterrupt
	}
}

func (m *machine) socket() string { return filepath.Join(m.dir, "spdk.sock") }

// launch the target, which waits for its settings.
func (m *machine) launch(t testing.TB) {
	t.Helper()
	// It outlives the test's context, whose cleanups still talk to it.
	ctx := context.WithoutCancel(t.Context())
	if m.real != "" {
		flags := append([]string{"--wait-for-rpc", "-m", "0x1"}, m.flags...)
		if m.plan.SPDK.Hugepages != v1alpha1.HugepagesDisabled {
			flags = append(flags, spdktest.Hugepages)
		}
		r, err := spdktest.RunReal(ctx, m.real, m.socket(), flags...)
		check(t, err)
		m.target = r
		return
	}
	options := m.fake
	options.Socket, options.WaitForRPC = m.socket(), true
	f, err := spdktest.Listen(ctx, options)
	check(t, err)
	m.target = f
}

func (m *machine) kill() {
	for _, e := range m.engines {
		e.Close()
	}
	m.engines = nil
	if m.target != nil {
		m.target.Kill()
		m.target = nil
	}
}

// Engine of a process that has just started.
func (m *machine) Engine(t *testing.T) engine.Engine { return m.engine(t) }

func (m *machine) engine(t testing.TB) *spdk.Engine {
	t.Helper()
	e, err := spdk.New(spdk.Config{Socket: m.socket(), StateDir: filepath.Join(m.dir, "state")})
	check(t, err)
	m.engines = append(m.engines, e)
	return e
}

// Restart implements enginetest.Harness: the target ends, comes back empty, and is given its settings.
func (m *machine) Restart(t *testing.T) { m.restart(t) }

func (m *machine) restart(t testing.TB) {
	t.Helper()
	if m.target != nil {
		m.target.Kill()
	}
	m.launch(t)
	check(t, m.engine(t).Start(t.Context(), m.plan))
}

// Lose implements enginetest.Harness: SPDK takes a bdev away when its drive is gone, and all that lies on it.
func (m *machine) Lose(t *testing.T, d engine.Device) {
	t.Helper()
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	defer client.Close()
	bdevs, err := spdkrpc.Call(t.Context(), client, spdkrpc.BdevGetBdevs{})
	check(t, err)
	for _, b := range bdevs {
		if b.Driver.AIO != nil && b.Driver.AIO.Path == d.Path {
			_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevAioDelete{Name: b.Name})
			check(t, err)
			return
		}
	}
	t.Fatalf("no bdev on %s", d.Path)
}

// Reset implements enginetest.Harness.
func (m *machine) Reset(t *testing.T) {
	t.Helper()
	m.kill()
	all, err := filepath.Glob(filepath.Join(m.dir, "*"))
	check(t, err)
	for _, path := range all {
		check(t, os.RemoveAll(path))
	}
	m.launch(t)
	e := m.engine(t)
	// The test's own context is over when this is its cleanup.
	check(t, e.Start(context.WithoutCancel(t.Context()), m.plan))
}

// BlankDevice implements enginetest.Harness: a file, because SPDK treats it as it does a block device.
func (m *machine) BlankDevice(t *testing.T) engine.Device { return m.File(t, enginetest.PoolBytes) }

// ForeignDevice implements enginetest.Harness.
func (m *machine) ForeignDevice(t *testing.T) (engine.Device, string) {
	t.Helper()
	d := m.BlankDevice(t)
	f, err := os.Create(d.Path)
	check(t, err)
	check(t, errors.Join(f.Truncate(d.FileBytes), f.Close()))
	out, err := exec.CommandContext(t.Context(), "mke2fs", "-q", "-t", "ext4", d.Path).CombinedOutput()
	if err != nil {
		t.Fatalf("mke2fs: %v: %s", err, out)
	}
	return d, "ext4"
}

// File implements enginetest.Harness.
func (m *machine) File(_ *testing.T, bytes int64) engine.Device { return m.file(bytes) }

func (m *machine) file(bytes int64) engine.Device {
	path := filepath.Join(m.dir, uuid.NewString()+".img")
	return engine.Device{ID: path, Path: path, FileBytes: bytes}
}

// Portals implements enginetest.Harness.
func (m *machine) Portals(*testing.T) []engine.Portal { return m.portals() }

func (m *machine) portals() []engine.Portal {
	var portals []engine.Portal
	for i, t := range m.plan.SPDK.Transports {
		portals = append(portals, engine.Portal{
			Portal:     v1alpha1.Portal{Transport: t.Type, Address: m.address, Port: m.port + int32(i)},
			QueueDepth: int(t.QueueDepth), InCapsuleDataBytes: int(t.InCapsuleDataSize),
		})
	}
	return portals
}

// lingers: SPDK 26.05 does not end every connection that its host has ended. Later releases are tried.
func (m *machine) lingers() bool { return m.real != "" && m.release <= "26.05" }

// Kept implements enginetest.Harness. Files that are pools lie there as well.
func (m *machine) Kept(*testing.T) []string { return []string{m.dir} }

// Plan implements enginetest.Harness.
func (m *machine) Plan(*testing.T) v1alpha1.Plan { return m.plan }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
