// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TestBlocksOfRandomChanges: a host writes, discards and zeroes at random in a file of many pieces. Each snapshot is,
// byte for byte, the one before and what is listed of it, also when it is deleted while it is listed.
func TestBlocksOfRandomChanges(t *testing.T) {
	const size, pieces, rounds = 64 * mib, 1500, 8
	e, h := fresh(t)
	pool := h.File(t, 1024*mib)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	v := host.serve(size)
	fragment(t, v, pieces)
	copied := make([]byte, size)
	of := engine.Blocks{Pool: pool.ID, Within: engine.Range{Bytes: size}}
	for round := range rounds {
		if round > 0 {
			for range 40 {
				at, length := rand.Int64N(size/block-64)*block, (1+rand.Int64N(64))*block
				switch rand.IntN(4) {
				case 0:
					program(t, "blkdiscard", "--offset", strconv.FormatInt(at, 10), "--length", strconv.FormatInt(length, 10), v.device)
				case 1:
					program(t, "blkdiscard", "--zeroout", "--offset", strconv.FormatInt(at, 10), "--length", strconv.FormatInt(length, 10), v.device)
				default:
					check(t, write(v.device, at, length, byte(rand.IntN(256))))
				}
			}
		}
		of.Snapshot = engine.ID(uuid.NewString())
		waitFor(t, func() bool {
			err := one(t, e.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: of.Snapshot, Volume: v.id}}))
			if err != nil && !errors.Is(err, engine.ErrBusy) {
				t.Fatal(err)
			}
			return err == nil
		})
		is, err := os.ReadFile(glob(t, stateDir+"/pools/*/snapshots/"+string(of.Snapshot))[0])
		check(t, err)
		ranges, listed := 0, int64(0)
		check(t, e.ListBlocks(t.Context(), of, func(r engine.Range) error {
			if r.Offset%block != 0 || r.Bytes%block != 0 {
				t.Errorf("round %d: %d bytes from %d on", round, r.Bytes, r.Offset)
			}
			if ranges == 0 && round == rounds-1 {
				done(t, e.DeleteSnapshots(t.Context(), []engine.ID{of.Snapshot, of.Base}))
			}
			ranges, listed = ranges+1, listed+r.Bytes
			copy(copied[r.Offset:r.End()], is[r.Offset:r.End()])
			return nil
		}))
		if !bytes.Equal(copied, is) {
			t.Fatalf("round %d: what was made of %d ranges with %d bytes is another snapshot", round, ranges, listed)
		}
		if round == 0 && (ranges != pieces || listed != pieces*block) {
			t.Errorf("%d ranges with %d bytes were written, and %d with %d are listed", pieces, pieces*block, ranges, listed)
		}
		t.Logf("round %d: %d ranges, %d KiB of %d", round, ranges, listed>>10, size>>10)
		of.Base = of.Snapshot
	}
}
