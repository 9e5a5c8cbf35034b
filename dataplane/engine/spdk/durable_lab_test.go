// SPDX-License-Identifier: Apache-2.0

//go:build lab

package spdk_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// TestAcknowledgedSurvivesPowerLoss: the power of the storage node goes between a host's writes and its flush, again
// and again. The pool is a file on XFS. The host waits, its flush succeeds, so what it wrote must be there.
func TestAcknowledgedSurvivesPowerLoss(t *testing.T) {
	const rounds, mib, piece = 3, 1 << 20, 64 << 10
	m := newMachine(t)
	var err error
	m.address, err = enginetest.LabAddress()
	check(t, err)
	m.plan = planOf(v1alpha1.TransportTCP)
	image, drive := filepath.Join(m.dir, "drive.img"), filepath.Join(m.dir, "drive")
	check(t, os.WriteFile(image, nil, 0o600))
	check(t, os.Truncate(image, 4<<30))
	check(t, os.Mkdir(drive, 0o700))
	program(t, "mkfs.xfs", "-q", image)
	mount := func() { program(t, "mount", "-o", "loop", image, drive) }
	unmount := func() { program(t, "umount", drive) }
	mount()
	t.Cleanup(func() {
		m.kill()
		unmount()
	})
	path := filepath.Join(drive, "pool.img")
	x := &bench{machine: m, TB: t, ctx: t.Context(), device: engine.Device{ID: path, Path: path, FileBytes: 2 << 30}}
	x.restarted()
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	x.all(x.engine.OpenPortals(x.ctx, m.portals()))
	t.Cleanup(enginetest.DisconnectKernel)
	all := x.things(1)
	all.volumes[0].SizeBytes = 64 * mib
	x.all(x.engine.CreateVolumes(x.ctx, all.volumes))
	x.all(x.engine.Export(x.ctx, all.exports))
	e := all.exports[0]
	c, err := enginetest.ConnectKernel(m.portals()[0].Portal, e.NQN, e.Hosts[0])
	check(t, err)
	ns, err := c.Namespace(x.ctx, all.ids[0])
	check(t, err)

	want := make([]byte, rounds*mib)
	_, _ = rand.Read(want) // never fails
	for round := range int64(rounds) {
		for at := round * mib; at < (round+1)*mib; at += piece {
			_, err := ns.WriteAt(want[at:at+piece], at)
			check(t, err)
		}
		check(t, enginetest.CutPower(drive))
		m.kill()
		unmount()
		mount()
		x.launch(t)
		x.connect()
		x.refill(all)
		check(t, flush(enginetest.BlockDevice(ns)))
		for at := int64(0); at < (round+1)*mib; at += piece {
			got := make([]byte, piece)
			_, err := ns.ReadAt(got, at)
			check(t, err)
			if !bytes.Equal(got, want[at:at+piece]) {
				t.Fatalf("round %d: what was acknowledged at %d is not there, and the host's flush succeeded", round+1, at)
			}
		}
	}
}

// flush a block device, as a host's fsync does.
func flush(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing is left to be written
	return f.Sync()
}
