// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

const (
	// mostBesideDeletion is how many times as long attaching may take beside the deletion of 1 TiB as alone.
	mostBesideDeletion = 1.2
	// leastZeroed beside it is enough to say that the deletion was going on.
	leastZeroed = 256 * mib
	// samples of each, of which the median counts.
	samples = 100
)

// BenchmarkAttachBesideDeletion admits hosts to exports before a volume of 1 TiB, all of which is allocated, is
// cleared, and meanwhile, in one run; it fails over mostBesideDeletion. Afterwards is not measured: SPDK goes on
// clearing when nobody waits. The pool is a loop device: SPDK's core waits for writes to holes of a file, and not for
// those to a drive. It needs a real target, root, and some GiB of disk for what is cleared meanwhile.
func BenchmarkAttachBesideDeletion(b *testing.B) {
	spdktest.RealTarget(b)
	x := newBench(b)
	pool, file := x.loop(1100 << 30)
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{pool}))
	lvstores, err := spdkrpc.Call(x.ctx, x.conn, spdkrpc.BdevLvolGetLvstores{})
	check(b, err)
	large := slices.IndexFunc(lvstores, func(l spdkrpc.Lvstore) bool { return l.BaseBdev == "weft:"+pool.ID })
	id := newID()
	_, err = spdkrpc.Call(x.ctx, x.conn, spdkrpc.BdevLvolCreate{
		LvstoreName: lvstores[large].Name, Name: string(id), SizeMiB: 1 << 20, Clear: spdkrpc.ClearWriteZeroes, // thick
	})
	check(b, err)
	t := x.things(1)
	x.all(x.engine.CreateVolumes(x.ctx, t.volumes))
	attach := func(enough func() bool) float64 {
		var took []float64
		for len(took) < samples || !enough() {
			start := time.Now()
			x.all(x.engine.Export(x.ctx, t.exports))
			took = append(took, time.Since(start).Seconds())
			x.all(x.engine.Unexport(x.ctx, t.nqns))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	// SPDK frees all clusters at the end, but writes zeroes to the file as it goes.
	zeroed := func() int64 {
		var stat unix.Stat_t
		check(b, unix.Stat(file, &stat))
		return stat.Blocks * 512
	}
	alone := attach(func() bool { return true })
	start := time.Now()
	x.all(x.engine.DeleteVolumes(x.ctx, []engine.ID{id}))
	deleted := time.Since(start)
	begun := zeroed()
	ctx, cancel := context.WithCancel(x.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = x.engine.Clear(ctx, pool.ID) // which is cut off
	}()
	beside := attach(func() bool { return zeroed() > begun+leastZeroed })
	cleared := zeroed() - begun
	select {
	case <-ended:
		b.Fatal("the deletion ended before all was measured beside it")
	default:
	}
	cancel()
	<-ended
	b.Logf("attaching takes %.1f ms alone and %.1f ms beside the deletion, of which %.1f GiB were cleared meanwhile",
		alone*1e3, beside*1e3, float64(cleared)/(1<<30))
	if beside > mostBesideDeletion*alone {
		b.Errorf("that is %.2f times as long as alone, and at most %.1f times is right", beside/alone, mostBesideDeletion)
	}
	b.ReportMetric(deleted.Seconds()*1e3, "delete-ms")
	b.ReportMetric(alone*1e3, "attach-ms")
	b.ReportMetric(beside/alone, "beside-x-alone")
	b.ReportMetric(float64(cleared)/(1<<30), "cleared-GiB")
	b.ReportMetric(0, "ns/op")
}

// loop device of a file without data.
func (x *bench) loop(sizeBytes int64) (pool engine.Device, file string) {
	x.Helper()
	file = filepath.Join(x.dir, "loop.img")
	check(x, os.WriteFile(file, nil, 0o600))
	check(x, os.Truncate(file, sizeBytes))
	losetup := func(args ...string) string {
		out, err := exec.CommandContext(context.WithoutCancel(x.ctx), "losetup", args...).CombinedOutput()
		if err != nil {
			x.Fatalf("losetup %v, which needs root and the module loop: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	path := losetup("--find", "--show", "--sector-size", "4096", file)
	x.Cleanup(func() { losetup("--detach", path) }) // the target has it still: it goes when that ends
	return engine.Device{ID: device.ByPathPrefix + filepath.Base(path) + "." + uuid.NewString()[:8], Path: path}, file
}
