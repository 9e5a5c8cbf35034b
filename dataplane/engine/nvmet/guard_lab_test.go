// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
)

const manyExports = 100

// manyVolumes exported to one host each, in a new pool, and no portal open.
func manyVolumes(t *testing.T, e engine.Engine, h harness) []engine.Export {
	t.Helper()
	device := h.BlankDevice(t)
	done(t, e.OpenPools(t.Context(), []engine.Device{device}))
	var volumes []engine.VolumeSpec
	var exports []engine.Export
	for range manyExports {
		id := engine.ID(uuid.NewString())
		volumes = append(volumes, engine.VolumeSpec{ID: id, Pool: device.ID, SizeBytes: 8 << 20})
		exports = append(exports, engine.Export{
			NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 1,
			Namespaces: []engine.Namespace{{NSID: 1, Volume: id}},
			Hosts:      []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
		})
	}
	timed(t, "create volumes", len(volumes), func() { done(t, e.CreateVolumes(t.Context(), volumes)) })
	timed(t, "export", len(exports), func() { done(t, e.Export(t.Context(), exports)) })
	return exports
}

// TestNobodyComesInWhileTheTargetFills: connections are tried as fast as they can be
// while the portal opens. None may be made before the last subsystem is served.
func TestNobodyComesInWhileTheTargetFills(t *testing.T) {
	h := harness{}
	h.Reset(t)
	t.Cleanup(func() { h.Reset(t) })
	e := nvmet.New(nvmet.Options{StateDir: stateDir})
	exports := manyVolumes(t, e, h)
	portal := h.Portals(t)[0]
	all := map[string]bool{}
	for _, x := range exports {
		all[x.NQN] = true
	}

	ctx, stop := context.WithCancel(t.Context())
	var hosts sync.WaitGroup
	var tried, early, in atomic.Int64
	for range 4 {
		hosts.Go(func() {
			dialer := net.Dialer{Timeout: 100 * time.Millisecond}
			for ; ctx.Err() == nil; tried.Add(1) {
				conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(portal.Address, strconv.Itoa(int(portal.Port))))
				if err != nil {
					continue
				}
				in.Add(1)
				if links, _ := filepath.Glob(configfs + "/ports/*/subsystems/*"); len(links) < len(all) {
					early.Add(1)
				}
				_ = conn.Close()
			}
		})
	}
	waitFor(t, func() bool { return tried.Load() > 10 })
	timed(t, "open a portal and link", len(exports), func() { done(t, e.OpenPortals(t.Context(), []engine.Portal{portal})) })
	waitFor(t, func() bool { return in.Load() > 10 })
	stop()
	hosts.Wait()
	if n := early.Load(); n > 0 {
		t.Errorf("%d connections were made before the last subsystem was served", n)
	}
	last := exports[len(exports)-1]
	c, err := enginetest.ConnectKernel(portal.Portal, last.NQN, last.Hosts[0])
	check(t, err)
	c.Disconnect()
	if out := program(t, "nft", "list", "tables"); strings.Contains(out, "weft-guard") {
		t.Errorf("the guard is left behind: %s", out)
	}
	timed(t, "close a portal with", len(exports), func() {
		done(t, e.ClosePortals(t.Context(), []v1alpha1.Portal{portal.Portal}))
	})
}

// TestGuardOfAProcessThatWasKilled is removed by the next, and ends by itself.
func TestGuardOfAProcessThatWasKilled(t *testing.T) {
	h := harness{}
	h.Reset(t)
	t.Cleanup(func() { h.Reset(t) })
	e := nvmet.New(nvmet.Options{StateDir: stateDir})
	exports := manyVolumes(t, e, h)[:2]
	portal := h.Portals(t)[0]
	program(t, "nft", "add table inet weft-guard; add chain inet weft-guard input { type filter hook input priority raw; }; add rule inet weft-guard input tcp dport 4430 drop")
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "nft", "delete", "table", "inet", "weft-guard").Run()
	})
	done(t, e.OpenPortals(t.Context(), []engine.Portal{portal}))
	c, err := enginetest.ConnectKernel(portal.Portal, exports[1].NQN, exports[1].Hosts[0])
	check(t, err)
	c.Disconnect()
}

// TestMountedFilesystem goes on over a restart of the target, through the
// initiator's multipath and two portals, as a pod's volume does.
func TestMountedFilesystem(t *testing.T) {
	h := harness{}
	h.Reset(t)
	t.Cleanup(func() { h.Reset(t) })
	e := nvmet.New(nvmet.Options{StateDir: stateDir})
	device := h.BlankDevice(t)
	id := engine.ID(uuid.NewString())
	x := engine.Export{
		NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 2,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}},
		Hosts:      []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
	}
	portals := h.Portals(t)
	fill := func() {
		done(t, e.OpenPools(t.Context(), []engine.Device{device}))
		done(t, e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: device.ID, SizeBytes: 128 << 20}}))
		done(t, e.Export(t.Context(), []engine.Export{x}))
		done(t, e.OpenPortals(t.Context(), portals))
	}
	fill()
	var block string
	for _, portal := range portals {
		c, err := enginetest.ConnectKernel(portal.Portal, x.NQN, x.Hosts[0])
		check(t, err)
		ns, err := c.Namespace(t.Context(), id)
		check(t, err)
		block = enginetest.BlockDevice(ns)
	}
	program(t, "mke2fs", "-q", "-t", "ext4", block)
	dir := t.TempDir()
	program(t, "mount", block, dir)
	t.Cleanup(func() { program(t, "umount", dir) })
	check(t, os.WriteFile(filepath.Join(dir, "before"), bytes.Repeat([]byte("weft"), 1<<18), 0o600))
	f, err := os.Create(filepath.Join(dir, "meanwhile"))
	check(t, err)
	unix.Sync()

	h.Restart(t)
	begun, written := make(chan struct{}), make(chan error, 1)
	go func() {
		close(begun)
		_, err := f.Write(bytes.Repeat([]byte("weft"), 1<<18))
		written <- errors.Join(err, f.Sync(), f.Close())
	}()
	<-begun
	fill()
	select {
	case err := <-written:
		check(t, err)
	case <-time.After(time.Minute):
		t.Fatal("a write that waited for the target did not go on")
	}
	for _, name := range []string{"before", "meanwhile"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		check(t, err)
		if !bytes.Equal(data, bytes.Repeat([]byte("weft"), 1<<18)) {
			t.Errorf("%s has other data", name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	check(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.HasPrefix(line, block+" ") && !strings.Contains(line, " rw") {
			t.Errorf("the filesystem went read-only: %s", line)
		}
	}
}

func done(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
	}
}

func timed(t *testing.T, what string, n int, do func()) {
	t.Helper()
	start := time.Now()
	do()
	took := time.Since(start)
	t.Logf("%s: %d in %v, %.0f/s", what, n, took.Round(time.Millisecond), float64(n)/took.Seconds())
}

func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(time.Minute)
	for !is() {
		select {
		case <-deadline:
			t.Fatal("waited for a minute")
		case <-ticker.C:
		}
	}
}

// TestMeasureCalls says how long calls with many items take; it fails when an item does. make bench-kernel runs it.
func TestMeasureCalls(t *testing.T) {
	h := harness{}
	h.Reset(t)
	t.Cleanup(func() { h.Reset(t) })
	e := nvmet.New(nvmet.Options{StateDir: stateDir})
	exports := manyVolumes(t, e, h)
	portals := h.Portals(t)
	var snapshots []engine.SnapshotSpec
	var clones []engine.VolumeSpec
	var ids []engine.ID
	var nqns []string
	for _, x := range exports {
		snapshot := engine.SnapshotSpec{ID: engine.ID(uuid.NewString()), Volume: x.Namespaces[0].Volume}
		clone := engine.VolumeSpec{ID: engine.ID(uuid.NewString()), SizeBytes: 8 << 20, Source: engine.Source{Snapshot: snapshot.ID}}
		snapshots, clones = append(snapshots, snapshot), append(clones, clone)
		ids, nqns = append(ids, x.Namespaces[0].Volume, clone.ID), append(nqns, x.NQN)
	}
	timed(t, "snapshot", len(snapshots), func() { done(t, e.CreateSnapshots(t.Context(), snapshots)) })
	timed(t, "clone", len(clones), func() { done(t, e.CreateVolumes(t.Context(), clones)) })
	timed(t, "open two portals and link", len(exports), func() { done(t, e.OpenPortals(t.Context(), portals)) })
	links := glob(t, configfs+"/ports/*/subsystems/*")
	timed(t, "the bare links, off and on again", 2*len(links), func() {
		for _, link := range links {
			check(t, os.Remove(link))
		}
		for _, link := range links {
			check(t, os.Symlink(filepath.Join(configfs, "subsystems", filepath.Base(link)), link))
		}
	})
	timed(t, "gather, with volumes and exports", len(exports), func() {
		_, err := e.Gather(t.Context())
		check(t, err)
	})
	timed(t, "export again", len(exports), func() { done(t, e.Export(t.Context(), exports)) })
	timed(t, "unexport", len(nqns), func() { done(t, e.Unexport(t.Context(), nqns)) })
	timed(t, "delete volumes", len(ids), func() { done(t, e.DeleteVolumes(t.Context(), ids)) })
}
