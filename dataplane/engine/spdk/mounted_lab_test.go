// SPDX-License-Identifier: Apache-2.0

//go:build lab

package spdk_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// TestMountedFilesystem goes on over kill -9 of the target, as a pod's volume does; and what its host discards stays.
func TestMountedFilesystem(t *testing.T) {
	address, err := enginetest.LabAddress()
	check(t, err)
	for _, transport := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		t.Run(string(transport), func(t *testing.T) {
			m := newMachine(t)
			m.plan, m.address = planOf(transport), address
			if transport == v1alpha1.TransportRDMA {
				m.fitRDMA(t)
			}
			mountedFilesystem(t, newBenchOn(t, m))
		})
	}
}

func mountedFilesystem(t *testing.T, x *bench) {
	t.Cleanup(enginetest.DisconnectKernel)
	all := x.things(1)
	all.volumes[0].SizeBytes = 128 << 20
	x.all(x.engine.CreateVolumes(x.ctx, all.volumes))
	x.all(x.engine.Export(x.ctx, all.exports))
	e := all.exports[0]
	c, err := enginetest.ConnectKernel(x.portals()[0].Portal, e.NQN, e.Hosts[0])
	check(t, err)
	ns, err := c.Namespace(x.ctx, all.ids[0])
	check(t, err)
	block := enginetest.BlockDevice(ns)
	discardsNothing(t, x, ns, block)
	program(t, "mke2fs", "-q", "-t", "ext4", block)
	dir := t.TempDir()
	program(t, "mount", block, dir)
	t.Cleanup(func() { program(t, "umount", dir) })
	want := bytes.Repeat([]byte("weft"), 1<<18)
	check(t, os.WriteFile(filepath.Join(dir, "before"), want, 0o600))
	unix.Sync()

	x.target.Kill()
	written := make(chan error, 1)
	go func() {
		f, err := os.Create(filepath.Join(dir, "meanwhile"))
		if err == nil {
			_, err = f.Write(want)
			err = errors.Join(err, f.Sync(), f.Close()) // closed, so that it can be unmounted
		}
		written <- err
	}()
	x.launch(t)
	x.connect()
	x.refill(all)
	select {
	case err := <-written:
		check(t, err)
	case <-time.After(2 * time.Minute):
		t.Fatal("a write that waited for the target did not go on")
	}
	for _, name := range []string{"before", "meanwhile"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		check(t, err)
		if !bytes.Equal(data, want) {
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
	if state, err := x.engine.Gather(x.ctx); err != nil || len(state.Exports) != 1 || state.Volumes[0].AllocatedBytes < engine.SizeUnit {
		t.Errorf("Gather: %+v, %v", state, err)
	}
}

// discardsNothing, whether the target does not offer it or refuses it: another volume would be given what is freed.
func discardsNothing(t *testing.T, x *bench, ns enginetest.Namespace, block string) {
	t.Helper()
	want := bytes.Repeat([]byte("kept"), enginetest.BlockBytes/4)
	_, err := ns.WriteAt(want, 0)
	check(t, err)
	// Where it is not offered this fails. Where it is refused it does not: Linux takes that for done.
	out, err := exec.CommandContext(t.Context(), "blkdiscard", "--force", block).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("blkdiscard: %v %s", err, out)
	got := make([]byte, len(want))
	_, err = ns.ReadAt(got, 0)
	check(t, err)
	state, err := x.engine.Gather(x.ctx)
	check(t, err)
	if !bytes.Equal(got, want) || state.Volumes[0].AllocatedBytes < engine.SizeUnit {
		t.Errorf("a discard had an effect: %+v", state.Volumes)
	}
}

// TestMountedSnapshots: while Linux writes to a volume, on several cores, it is snapshotted and grown, and its last
// snapshot is deleted. No I/O fails, and after the target's next start everything is there.
func TestMountedSnapshots(t *testing.T) {
	const rounds, places, writers = 8, 1024, 4
	m := newMachine(t)
	var err error
	m.address, err = enginetest.LabAddress()
	check(t, err)
	m.plan = planOf(v1alpha1.TransportTCP)
	x := newBenchOn(t, m)
	t.Cleanup(enginetest.DisconnectKernel)
	all := x.things(1)
	all.volumes[0].SizeBytes = 64 << 20
	volume := all.ids[0]
	x.all(x.engine.CreateVolumes(x.ctx, all.volumes))
	x.all(x.engine.Export(x.ctx, all.exports))
	c, err := enginetest.ConnectKernel(x.portals()[0].Portal, all.exports[0].NQN, all.exports[0].Hosts[0])
	check(t, err)
	ns, err := c.Namespace(x.ctx, volume)
	check(t, err)

	// Each writer has places of its own, spread over all clusters.
	last := make([][places]byte, writers)
	place := func(writer, n int) int64 { return int64(n*writers+writer) * 16384 }
	var stop atomic.Bool
	var longest atomic.Int64
	writes := make([]atomic.Int64, writers)
	errs := make([]error, writers)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			block := make([]byte, enginetest.BlockBytes)
			for value := byte(1); !stop.Load() && errs[w] == nil; value++ {
				n := rand.IntN(places)
				block[0] = value
				began := time.Now()
				if _, errs[w] = ns.WriteAt(block, place(w, n)); errs[w] == nil {
					last[w][n] = value
					writes[w].Add(1)
				}
				longest.Store(max(longest.Load(), int64(time.Since(began))))
			}
		})
	}
	onward := func() {
		t.Helper()
		g := NewWithT(t)
		for w := range writers {
			before := writes[w].Load()
			g.Eventually(writes[w].Load).WithTimeout(2 * time.Minute).Should(BeNumerically(">", before+8))
		}
	}
	for round := range rounds {
		onward()
		merged := newID()
		x.all(x.engine.CreateSnapshots(x.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: volume}}))
		onward()
		x.all(x.engine.CreateSnapshots(x.ctx, []engine.SnapshotSpec{{ID: merged, Volume: volume}}))
		onward()
		x.all(x.engine.DeleteSnapshots(x.ctx, []engine.ID{merged}))
		check(t, enginetest.Clear(x.ctx, x.engine))
		onward()
		x.all(x.engine.GrowVolumes(x.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: int64(64+4*(round+1)) << 20}}))
	}
	onward()
	stop.Store(true)
	writing.Wait()
	check(t, errors.Join(errs...))
	t.Logf("the longest write took %v", time.Duration(longest.Load()).Round(time.Millisecond))

	x.target.Kill()
	x.launch(t)
	x.connect()
	x.refill(all)
	block := make([]byte, enginetest.BlockBytes)
	for w := range writers {
		for n, want := range last[w] {
			if want == 0 {
				continue
			}
			_, err := ns.ReadAt(block, place(w, n))
			check(t, err)
			if block[0] != want {
				t.Fatalf("writer %d, place %d: %d is not there, but %d", w, n, want, block[0])
			}
		}
	}
}
