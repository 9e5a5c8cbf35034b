// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// realTarget is a real nvmf_tgt, without PCI devices and without hugepages.
type realTarget struct {
	t      *testing.T
	socket string
	log    *os.File
	cmd    *exec.Cmd
}

func newRealTarget(t *testing.T) *realTarget {
	t.Helper()
	if os.Getenv("WEFT_SPDK_TARGET") == "" {
		t.Skip("skipped because WEFT_SPDK_TARGET is not set: set it to the path of a real nvmf_tgt (26.05 or later) to call it")
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	r := &realTarget{t: t, socket: filepath.Join(dir, "spdk.sock"), log: log}
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the target's log:\n%s", text)
		}
	})
	return r
}

func (r *realTarget) start() {
	r.t.Helper()
	r.cmd = exec.CommandContext(r.t.Context(), os.Getenv("WEFT_SPDK_TARGET"), "-r", r.socket, "--wait-for-rpc", "-m", "0x1", "-s", "768",
		"--no-pci", "--no-huge", "--interrupt-mode", "--disable-cpumask-locks", "--num-trace-entries", "0")
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *realTarget) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.cmd = nil
	}
}

func must[R any](t *testing.T) func(R, error) R {
	return func(result R, err error) R {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

func mustAll(t *testing.T, what string, begin time.Time, errs []error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %.0f a second", what, float64(len(errs))/time.Since(begin).Seconds())
}

// A thousand volumes on a real target: made, exported, found again after kill -9, deleted.
func TestRealTarget(t *testing.T) {
	target := newRealTarget(t)
	disk := filepath.Join(filepath.Dir(target.socket), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 4<<30); err != nil {
		t.Fatal(err)
	}
	client, err := New(target.socket, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	target.start()
	conn := must[*Conn](t)(client.Connect(ctx))
	t.Log(must[Version](t)(Call(ctx, client, SpdkGetVersion{})).Text)
	_, err = Call(ctx, client, BdevGetBdevs{})
	wantClass(t, err, ErrWrongState)
	initialize(ctx, t, client)
	checkMethods(ctx, t, client)

	aio := BdevAioCreate{Name: "disk0", Path: disk, BlockBytes: 4096}
	must[string](t)(Call(ctx, client, aio))
	must[string](t)(Call(ctx, client, BdevLvolCreateLvstore{Bdev: "disk0", Name: "pool0", ClusterBytes: 1 << 20}))
	_, err = Call(ctx, client, BdevLvolCreateLvstore{Bdev: "disk0", Name: "pool1"})
	wantClass(t, err, ErrExists)

	const volumes = 1000
	creates := make([]BdevLvolCreate, volumes)
	deletes := make([]BdevLvolDelete, volumes)
	for i := range volumes {
		creates[i] = BdevLvolCreate{Name: fmt.Sprintf("vol-%d", i), SizeMiB: 64, Thin: true, LvstoreName: "pool0"}
		deletes[i] = BdevLvolDelete{Name: "pool0/" + creates[i].Name}
	}
	begin := time.Now()
	uuids, errs := Each(ctx, client, creates)
	mustAll(t, "volumes created", begin, errs)
	_, err = Call(ctx, client, creates[0])
	wantClass(t, err, ErrExists)

	exportAll(ctx, t, client, uuids)
	target.kill()
	<-conn.Lost()
	_, err = Call(ctx, client, SpdkGetVersion{})
	wantUnanswered(t, err, ErrUnavailable, false)

	target.start()
	again := must[*Conn](t)(client.Connect(ctx))
	if again == conn {
		t.Fatal("the lost connection came back")
	}
	initialize(ctx, t, again)
	must[string](t)(Call(ctx, again, aio))
	lvols := must[[]Lvol](t)(Call(ctx, again, BdevLvolGetLvols{LvstoreName: "pool0"}))
	if len(lvols) != volumes || !slices.ContainsFunc(lvols, func(l Lvol) bool { return l.UUID == uuids[volumes-1] }) {
		t.Errorf("%d volumes are back", len(lvols))
	}
	exportAll(ctx, t, again, uuids)
	if all := must[[]Subsystem](t)(Call(ctx, again, NvmfGetSubsystems{})); len(all) != volumes+1 {
		t.Errorf("%d subsystems", len(all))
	}
	for i := range volumes {
		Start(ctx, again, NvmfDeleteSubsystem{NQN: nqn(i)})
	}
	begin = time.Now()
	_, errs = Each(ctx, again, deletes)
	mustAll(t, "subsystems and volumes deleted", begin, errs)
	_, err = Call(ctx, again, deletes[0])
	wantClass(t, err, ErrNotFound)
}

func wantClass(t *testing.T, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("got %v, want %v", err, class)
	}
}

// initialize with the settings that come before it.
func initialize(ctx context.Context, t *testing.T, on Caller) {
	t.Helper()
	for _, p := range []interface{ Err() error }{
		Start(ctx, on, IobufSetOptions{SmallPoolCount: 2048, LargePoolCount: 256}),
		Start(ctx, on, BdevSetOptions{IOPoolSize: 8192, IOCacheSize: 128}),
		Start(ctx, on, NvmfSetMaxSubsystems{Max: 2048}),
		Start(ctx, on, SockImplSetOptions{Impl: SockPosix, EnableZeroCopySendServer: new(false), Placement: new(PlacementCPU)}),
		Start(ctx, on, FrameworkStartInit{}),
	} {
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
	}
	version := must[Version](t)(Call(ctx, on, SpdkGetVersion{})).Fields
	tcp := NvmfCreateTransport{Type: TransportTCP, IobufSmallCacheSize: new(uint32(64)), IobufLargeCacheSize: new(uint32(16))}
	older := version.Major < 26 || version.Major == 26 && version.Minor < 5
	if older {
		tcp = NvmfCreateTransport{Type: TransportTCP, CacheSize: new(uint32(16)), SharedBuffers: new(uint32(256))}
	}
	must[Done](t)(Call(ctx, on, tcp))
	transports := must[[]Transport](t)(Call(ctx, on, NvmfGetTransports{}))
	if len(transports) != 1 || older && transports[0].CacheSize != 16 || !older && transports[0].IobufLargeCacheSize != 16 {
		t.Errorf("transports: %+v", transports)
	}
}

// checkMethods: the target has every call that the package can make.
func checkMethods(ctx context.Context, t *testing.T, on Caller) {
	t.Helper()
	have := must[[]string](t)(Call(ctx, on, RPCGetMethods{}))
	for _, m := range Methods() {
		if !slices.Contains(have, m) {
			t.Errorf("the target has no %s", m)
		}
	}
}

func nqn(i int) string { return fmt.Sprintf("nqn.2026-11.storage.weft:%d", i) }

// exportAll volumes, each with a subsystem, a namespace, a host and a listener, sent together.
func exportAll(ctx context.Context, t *testing.T, on Caller, uuids []string) {
	t.Helper()
	begin := time.Now()
	var calls []interface{ Err() error }
	for i, uuid := range uuids {
		calls = append(calls,
			Start(ctx, on, NvmfCreateSubsystem{NQN: nqn(i), Serial: "WEFT", Model: "weft", MaxNamespaces: 1, ANAReporting: true}),
			Start(ctx, on, NvmfSubsystemAddNs{NQN: nqn(i), Namespace: Namespace{NSID: 1, Bdev: uuid, UUID: uuid}}),
			Start(ctx, on, NvmfSubsystemAddHost{NQN: nqn(i), Host: "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"}),
			Start(ctx, on, NvmfSubsystemAddListener{NQN: nqn(i), Address: Address{TransportTCP, FamilyIPv4, "127.0.0.1", "44321"}}))
	}
	errs := make([]error, len(calls))
	for i, c := range calls {
		errs[i] = c.Err()
	}
	mustAll(t, "calls for exports", begin, errs)
}
