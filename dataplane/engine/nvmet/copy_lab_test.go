// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// fragment a volume's file: every other block is written, so each is an extent.
func fragment(t *testing.T, v served, extents int64) {
	t.Helper()
	file := volumeFile(t, v)
	program(t, "chattr", "-S", file) // else each write would wait for the drive
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	check(t, err)
	for n := range extents {
		_, err := f.WriteAt([]byte("written"), 2*n*block)
		check(t, err)
	}
	check(t, errors.Join(f.Sync(), f.Close()))
	program(t, "chattr", "+S", file)
}

// writer overwrites a served volume block by block, and tells how long its longest write took.
func (h fullHost) writer(v served, blocks int64) (stop func() time.Duration) {
	end, longest := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for n := int64(0); ; n++ {
			select {
			case <-end:
				longest <- most
				return
			default:
			}
			began := time.Now()
			if err := write(v.device, n%blocks*block, block, 'x'); err != nil {
				h.Error(err)
			}
			most = max(most, time.Since(began))
		}
	}()
	stop = sync.OnceValue(func() time.Duration {
		close(end)
		return <-longest
	})
	h.Cleanup(func() { stop() })
	return stop
}

// TestMeasureCopiesOfManyExtents says how long XFS takes for a snapshot of a file in many pieces, how long the longest
// write of its host takes meanwhile, and what else the engine does.
func TestMeasureCopiesOfManyExtents(t *testing.T) {
	e, h := fresh(t)
	e.SetCopyPatience(0)
	pool := h.File(t, 1024*mib)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	for _, extents := range []int64{1_000, 10_000, 40_000} {
		v := host.serve(2*extents*block/chunk*chunk + chunk)
		fragment(t, v, extents)
		longest := host.writer(v, 2*extents)
		snapshot := engine.SnapshotSpec{ID: engine.ID(uuid.NewString()), Volume: v.id}
		var others int
		var slowest, call time.Duration
		began := time.Now()
		for {
			at := time.Now()
			err := one(t, e.CreateSnapshots(t.Context(), []engine.SnapshotSpec{snapshot}))
			call = max(call, time.Since(at))
			if err == nil {
				break
			}
			if !errors.Is(err, engine.ErrBusy) {
				t.Fatal(err)
			}
			at = time.Now()
			other := host.serve(chunk)
			others, slowest = others+1, max(slowest, time.Since(at))
			done(t, e.Unexport(t.Context(), []string{other.export.NQN}))
			done(t, e.DeleteVolumes(t.Context(), []engine.ID{other.id}))
		}
		took := time.Since(began)
		t.Logf("%d extents: the snapshot was there after %s; the longest write took %s, the longest call %s; meanwhile %d volumes were created, served, connected and deleted, each within %s",
			extents, took.Round(time.Millisecond), longest().Round(time.Millisecond), call.Round(time.Millisecond), others, slowest.Round(time.Millisecond))
		enginetest.DisconnectKernel()
		done(t, e.Unexport(t.Context(), []string{v.export.NQN}))
		done(t, e.DeleteVolumes(t.Context(), []engine.ID{v.id}))
		done(t, e.DeleteSnapshots(t.Context(), []engine.ID{snapshot.ID}))
	}
}

// TestSnapshotThatTakesLongerThanACall is whole in the end, and has what was written before it.
func TestSnapshotThatTakesLongerThanACall(t *testing.T) {
	e, h := fresh(t)
	e.SetCopyPatience(0)
	pool := h.File(t, fullPoolBytes)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	v := host.serve(64 * mib)
	check(t, writeAt(v.device, 0, 'a'))
	snapshot, clone := engine.ID(uuid.NewString()), engine.ID(uuid.NewString())
	until := func(call func() []error) {
		t.Helper()
		waitFor(t, func() bool {
			err := one(t, call())
			if err != nil && !errors.Is(err, engine.ErrBusy) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	until(func() []error {
		return e.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: snapshot, Volume: v.id}})
	})
	check(t, writeAt(v.device, 0, 'b'))
	until(func() []error {
		return e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: clone, SizeBytes: 64 * mib, Source: engine.Source{Snapshot: snapshot}}})
	})
	path := glob(t, fmt.Sprintf("%s/pools/*/volumes/%s", stateDir, clone))[0]
	data, err := os.ReadFile(path)
	check(t, err)
	if len(data) != 64*mib || data[0] != 'a' || data[chunk-1] != 'a' || data[chunk] != 0 {
		t.Errorf("the clone has %d bytes and begins with %q", len(data), data[:1])
	}
	if out := program(t, "lsattr", path); out[2] != 'S' {
		t.Errorf("the clone is not synchronous: %s", out)
	}
}
