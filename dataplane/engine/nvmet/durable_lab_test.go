// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
)

// losePower of the node: pools stop where they are, and nothing of the target is left.
func (h harness) losePower(t *testing.T) {
	t.Helper()
	for _, dir := range glob(t, stateDir+"/pools/*") {
		check(t, enginetest.CutPower(dir))
	}
	h.Restart(t)
}

// comeBack with the node's power, as the agent brings a target into service.
func (h fullHost) comeBack(v served) {
	h.Helper()
	check(h.T, h.engine.Start(h.Context(), v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}))
	done(h.T, h.engine.OpenPools(h.Context(), []engine.Device{h.pool}))
	done(h.T, h.engine.Export(h.Context(), []engine.Export{v.export}))
	done(h.T, h.engine.OpenPortals(h.Context(), []engine.Portal{h.portal}))
}

// volumeFile in its pool.
func volumeFile(t *testing.T, v served) string {
	t.Helper()
	return glob(t, stateDir+"/pools/*/volumes/"+string(v.id))[0]
}

// TestAcknowledgedSurvivesPowerLoss: the power of the storage node goes between a host's writes and its flush, again
// and again. The host waits, its flush succeeds, so what it wrote must be there; also what it zeroed, and what it wrote
// to a block that a snapshot shares.
func TestAcknowledgedSurvivesPowerLoss(t *testing.T) {
	e, h := fresh(t)
	pool := h.BlankDevice(t)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	v := host.serve(engine.SizeUnit)
	survivesPowerLoss(t, host, h, v, 3)
}

// TestServedBeforeUpgradeSurvivesPowerLoss: an earlier version left a volume served whose file is not synchronous. It
// is as soon as the next process brings the target into service, and its host notices nothing.
func TestServedBeforeUpgradeSurvivesPowerLoss(t *testing.T) {
	e, h := fresh(t)
	pool := h.BlankDevice(t)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	v := host.serve(engine.SizeUnit)
	program(t, "chattr", "-S", volumeFile(t, v))
	host.engine = nvmet.New(nvmet.Options{StateDir: stateDir})
	check(t, host.engine.Start(t.Context(), v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}))
	survivesPowerLoss(t, host, h, v, 1)
}

// survivesPowerLoss in rounds. The device has room for a mebibyte more in each.
func survivesPowerLoss(t *testing.T, host fullHost, h harness, v served, rounds int64) {
	t.Helper()
	var want []byte
	for round := range rounds {
		done(t, host.engine.GrowVolumes(t.Context(), []engine.VolumeSize{{ID: v.id, SizeBytes: (round + 2) * engine.SizeUnit}}))
		want = append(want, random(mib)...)
		check(t, writePieces(v.device, want[round*mib:], round*mib))
		if round > 0 { // of what was durable before
			snapshot := engine.SnapshotSpec{ID: engine.ID(uuid.NewString()), Volume: v.id}
			done(t, host.engine.CreateSnapshots(t.Context(), []engine.SnapshotSpec{snapshot}))
			copy(want, random(piece))
			check(t, writePieces(v.device, want[:piece], 0))
			clear(want[piece : 2*piece])
			program(t, "blkdiscard", "--zeroout", "--offset", strconv.Itoa(piece), "--length", strconv.Itoa(piece), v.device)
		}
		h.losePower(t)
		host.comeBack(v)
		check(t, directly(v.device, os.O_RDWR, func(f *os.File, memory []byte) error {
			if err := f.Sync(); err != nil {
				return err
			}
			_, err := f.ReadAt(memory[:len(want)], 0)
			if kept := same(memory, want); err == nil && kept < len(want) {
				t.Fatalf("round %d: of %d bytes that were acknowledged %d are there, and the host's flush succeeded", round+1, len(want), kept)
			}
			return err
		}))
	}
}

// piece that a host writes at a time.
const piece = 64 << 10

// writePieces at an offset of a device, one after the other.
func writePieces(device string, data []byte, at int64) error {
	return directly(device, os.O_WRONLY, func(f *os.File, memory []byte) error {
		for p := range slices.Chunk(data, piece) {
			if _, err := f.WriteAt(memory[:copy(memory, p)], at); err != nil {
				return err
			}
			at += piece
		}
		return nil
	})
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// same is how many bytes are in blocks that are as wanted.
func same(is, want []byte) (bytesThere int) {
	for at := 0; at < len(want); at += block {
		if bytes.Equal(is[at:at+block], want[at:at+block]) {
			bytesThere += block
		}
	}
	return bytesThere
}

// TestMeasureDurableWrites says what synchronous files cost a host that writes 4 KiB at a time and waits for each, on
// the node's second NVMe drive; it fails when a write does. make bench-kernel runs it.
func TestMeasureDurableWrites(t *testing.T) {
	const drive, writes = "/dev/nvme1n1", 1000
	e, h := fresh(t)
	link := filepath.Join(scratch, "by-id")
	check(t, os.Symlink(drive, link))
	pool := engine.Device{ID: wwid(t, drive), Path: link}
	if err := one(t, e.OpenPools(t.Context(), []engine.Device{pool})); err != nil {
		t.Fatalf("%v; this test needs a blank %s", err, drive)
	}
	t.Cleanup(func() {
		h.Restart(t)
		program(t, "blkdiscard", "-f", drive)
	})
	host := newFullHost(t, e, h, pool)
	for _, tt := range []struct{ name, attribute string }{{"written through", "+S"}, {"kept until a flush", "-S"}} {
		v := host.serve(64 * mib)
		program(t, "chattr", tt.attribute, volumeFile(t, v))
		for _, blocks := range []string{"new blocks", "overwrites"} {
			check(t, directly(v.device, os.O_WRONLY, func(f *os.File, memory []byte) error {
				copy(memory, bytes.Repeat([]byte{'x'}, block))
				var err error
				timed(t, "writes of 4 KiB to "+blocks+", "+tt.name, writes, func() {
					for n := int64(0); n < writes && err == nil; n++ {
						_, err = f.WriteAt(memory[:block], n*block)
					}
				})
				return err
			}))
		}
	}
}
