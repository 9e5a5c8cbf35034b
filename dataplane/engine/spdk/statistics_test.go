// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestStatistics of volumes and their pool, of cores and of buffers.
func TestStatistics(t *testing.T) {
	r, fake := newFakeRig(t)
	var ids []engine.ID
	for range 70 { // more than are asked for at once
		ids = append(ids, r.create(engine.Source{}, 4*engine.SizeUnit))
	}
	_, err := r.machine.engine(t).Statistics(r.ctx, ids, false)
	r.Expect(err).To(MatchError(engine.ErrUnavailable), "a process that has not looked at the target knows none of them")
	before := r.statistics(ids...)
	r.Expect(before.Volumes).To(HaveLen(len(ids)))
	r.Expect(before.Pools).To(HaveLen(1))
	r.Expect(before.Cores).To(ConsistOf(HaveField("Core", 0)))
	r.Expect(before.Buffers).NotTo(BeEmpty())

	const cluster = v1alpha1.DefaultClusterSize
	busy, gone := ids[69], ids[3]
	for at := range uint64(3) {
		check(t, fake.WriteWord(string(busy), at, 1))
	}
	_, err = fake.ReadWord(string(busy), 0)
	check(t, err)
	stats := r.statistics(ids...)
	is, was := stats.Volumes[busy], before.Volumes[busy]
	r.Expect(is.Write).To(Equal(engine.Operations{Count: was.Write.Count + 3, Bytes: was.Write.Bytes + 3*cluster, Seconds: is.Write.Seconds}))
	r.Expect(is.Write.Seconds-was.Write.Seconds).To(BeNumerically("~", 3*100e-6, 1e-9), "as long as the fake takes for three of them")
	r.Expect(is.Read.Count).To(Equal(was.Read.Count + 1))
	r.Expect(is.Errors).To(HaveValue(BeZero()))
	r.Expect(stats.Volumes[ids[0]]).To(Equal(before.Volumes[ids[0]]))

	other := r.machine.engine(t) // of another process, so that this one does not know
	r.done(other.DeleteVolumes(r.ctx, []engine.ID{gone}))
	check(t, enginetest.Clear(r.ctx, other))
	after, err := r.engine.Statistics(r.ctx, append(ids, newID()), false)
	check(t, err)
	r.Expect(after.Volumes).To(HaveLen(len(ids) - 1))
	r.Expect(after.Volumes).To(And(HaveKeyWithValue(busy, is), Not(HaveKey(gone))))

	fake.Inject(spdktest.Fault{Method: "bdev_get_iostat", Error: &spdktest.AnswerError{Code: -12, Message: "Cannot allocate memory"}})
	_, err = r.engine.Statistics(r.ctx, ids, false)
	r.Expect(err).To(MatchError(engine.ErrBusy), "no statistics are not taken for none")
	fake.Kill()
	_, err = r.engine.Statistics(r.ctx, ids, false)
	r.Expect(err).To(MatchError(engine.ErrUnavailable))
}

// TestFailedWritesAreCounted: the host of a full pool gets errors.
func TestFailedWritesAreCounted(t *testing.T) {
	r, fake := newFakeRig(t)
	pool := r.state().Pools[0]
	id, other := r.create(engine.Source{}, pool.FreeBytes), r.create(engine.Source{}, pool.FreeBytes)
	clusters := uint64(pool.FreeBytes / pool.ClusterBytes)
	check(t, fake.Write(r.lvols()[string(other)].Alias, 0, clusters))
	r.Expect(fake.WriteWord(string(id), 0, 1)).To(MatchError(syscall.ENOSPC))
	stats := r.statistics(id, other)
	r.Expect(stats.Volumes[id]).To(And(HaveField("Errors", HaveValue(BeEquivalentTo(1))), HaveField("Write.Count", BeZero())))
	r.Expect(stats.Volumes[other]).To(And(HaveField("Errors", HaveValue(BeZero())), HaveField("Write.Count", BeEquivalentTo(clusters))))
}

// TestStatisticsWaitForNothing: neither for a call that SPDK has not answered, nor it for them.
func TestStatisticsWaitForNothing(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, engine.SizeUnit)
	r.statistics(id)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	called := make(chan struct{})
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_create", Delay: time.Hour, Match: func(json.RawMessage) bool { close(called); return true }})
	ended := make(chan error)
	go func() {
		ended <- errors.Join(r.engine.CreateVolumes(ctx, []engine.VolumeSpec{{ID: newID(), Pool: r.device.ID, SizeBytes: engine.SizeUnit}})...)
	}()
	<-called
	stats, err := r.engine.Statistics(r.ctx, []engine.ID{id}, false)
	check(t, err)
	r.Expect(stats.Volumes).To(HaveKey(id))
	cancel()
	r.Expect(<-ended).To(MatchError(context.Canceled))
}

// statistics of a target as it is now.
func (r *rig) statistics(ids ...engine.ID) engine.Statistics {
	r.t.Helper()
	r.state()
	stats, err := r.engine.Statistics(r.ctx, ids, false)
	check(r.t, err)
	return stats
}

// TestDriveHealth of a drive that the target drives itself, of a dead one, and of what is no drive.
func TestDriveHealth(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	const address = "0000:01:00.0"
	drive := spdktest.Drive{
		Address: address, Path: filepath.Join(m.dir, "drive"), Model: "drive", Serial: "S1",
		Health: spdktest.DriveHealth{TemperatureKelvin: 313, SparePercent: 100, SpareThresholdPercent: 10, UsedPercent: 3, PowerOnHours: 1000},
	}
	check(t, os.WriteFile(drive.Path, nil, 0o600))
	check(t, os.Truncate(drive.Path, enginetest.PoolBytes))
	m.fake.Drives = []spdktest.Drive{drive}
	check(t, device.Records{address: {ID: drive.WWID(), Content: v1alpha1.ContentBlank}}.Write(m.socket()))
	m.restart(t)
	e := m.engine(t)
	file := m.file(enginetest.PoolBytes)
	check(t, errors.Join(e.OpenPools(t.Context(), []engine.Device{{ID: drive.WWID(), PCIAddress: address}, file})...))
	_, err := e.DriveHealth(t.Context(), drive.WWID())
	g.Expect(err).To(MatchError(engine.ErrUnavailable), "it was not looked at yet")
	_, err = e.Gather(t.Context())
	check(t, err)

	g.Expect(e.DriveHealth(t.Context(), drive.WWID())).To(Equal(device.Health{
		TemperatureCelsius: 40, SpareRatio: 1, SpareThresholdRatio: 0.1, UsedRatio: 0.03, PowerOnHours: 1000,
	}))
	check(t, m.target.(*spdktest.Target).SetHealth(address, spdktest.DriveHealth{Warnings: 1, SparePercent: 9, SpareThresholdPercent: 10, MediaErrors: 2}))
	g.Expect(e.DriveHealth(t.Context(), drive.WWID())).To(And(HaveField("Warnings", device.WarnSpare), HaveField("MediaErrors", 2.0)))
	_, err = e.DriveHealth(t.Context(), file.ID)
	g.Expect(err).To(MatchError(engine.ErrUnsupported))
	_, err = e.DriveHealth(t.Context(), "another")
	g.Expect(err).To(MatchError(engine.ErrUnavailable))

	m.target.(*spdktest.Target).Mute(address)
	waits := make(chan error)
	go func() {
		_, err := e.DriveHealth(t.Context(), drive.WWID())
		waits <- err
	}()
	_, err = e.Statistics(t.Context(), nil, false)
	check(t, err)
	m.target.Kill()
	g.Expect(<-waits).To(MatchError(engine.ErrUnavailable), "the target's end is the end of the wait")
}

// BenchmarkStatistics of a thousand volumes: how long it takes, and how long other calls wait meanwhile, which is how
// long SPDK's application thread does nothing else.
func BenchmarkStatistics(b *testing.B) {
	x := newBench(b)
	t := x.things(many)
	x.all(x.engine.CreateVolumes(x.ctx, t.volumes))
	_, err := x.engine.Gather(x.ctx)
	check(b, err)
	for b.Loop() {
		stats, err := x.engine.Statistics(x.ctx, t.ids, false)
		check(b, err)
		if len(stats.Volumes) != many {
			b.Fatalf("%d volumes", len(stats.Volumes))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*many), "µs/volume")
}
