// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// mostBesideDeletion is how many times as long attaching may take beside the deletion of 1 TiB as alone.
const mostBesideDeletion = 1.2

// BenchmarkAttachBesideDeletion admits hosts to exports while a volume of 1 TiB is cleared, all of which is allocated,
// and before and after that, in one run; it fails over mostBesideDeletion. It needs a real target, and some GiB of disk
// for what is cleared meanwhile.
func BenchmarkAttachBesideDeletion(b *testing.B) {
	spdktest.RealTarget(b)
	x := newBench(b)
	device := x.file(1100 << 30)
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{device}))
	lvstores, err := spdkrpc.Call(x.ctx, x.conn, spdkrpc.BdevLvolGetLvstores{})
	check(b, err)
	large := slices.IndexFunc(lvstores, func(l spdkrpc.Lvstore) bool { return l.BaseBdev == "weft:"+device.ID })
	id := newID()
	_, err = spdkrpc.Call(x.ctx, x.conn, spdkrpc.BdevLvolCreate{
		LvstoreName: lvstores[large].Name, Name: string(id), SizeMiB: 1 << 20, Clear: spdkrpc.ClearWriteZeroes, // thick
	})
	check(b, err)
	t := x.things(1)
	x.all(x.engine.CreateVolumes(x.ctx, t.volumes))
	attach := func() float64 {
		var took []float64
		for range 50 {
			start := time.Now()
			x.all(x.engine.Export(x.ctx, t.exports))
			took = append(took, time.Since(start).Seconds())
			x.all(x.engine.Unexport(x.ctx, t.nqns))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	clearing := func() int64 {
		state, err := x.engine.Gather(x.ctx)
		check(b, err)
		var sum int64
		for _, p := range state.Pools {
			sum += p.ClearingBytes
		}
		return sum
	}
	before := attach()
	start := time.Now()
	x.all(x.engine.DeleteVolumes(x.ctx, []engine.ID{id}))
	deleted := time.Since(start)
	begun := clearing()
	ctx, cancel := context.WithCancel(x.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = x.engine.Clear(ctx) // which is cut off
	}()
	beside := attach()
	left := clearing()
	cancel()
	<-ended
	after := attach()
	alone := (before + after) / 2
	if begun == left || left == 0 {
		b.Fatalf("%d bytes were to be cleared, and %d are left: nothing was measured beside it", begun, left)
	}
	b.Logf("attaching takes %.1f ms before, %.1f ms beside and %.1f ms after the deletion, of which %.1f GiB were cleared meanwhile",
		before*1e3, beside*1e3, after*1e3, float64(begun-left)/(1<<30))
	if beside > mostBesideDeletion*alone {
		b.Errorf("that is %.2f times as long as alone, and at most %.1f times is right", beside/alone, mostBesideDeletion)
	}
	b.ReportMetric(deleted.Seconds()*1e3, "delete-ms")
	b.ReportMetric(alone*1e3, "attach-ms")
	b.ReportMetric(beside/alone, "beside-x-alone")
	b.ReportMetric(float64(begun-left)/(1<<30), "cleared-GiB")
	b.ReportMetric(0, "ns/op")
}
