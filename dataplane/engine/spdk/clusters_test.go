// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// clusterSizes that pools can have.
var clusterSizes = []int64{1 * mib, 2 * mib, 4 * mib, 8 * mib, 16 * mib}

// TestClusters: a pool is made with the clusters that are asked for and keeps them, whatever is asked for later.
// Volumes and their growth are whole clusters, or refused with the size to give.
func TestClusters(t *testing.T) {
	for _, cluster := range clusterSizes {
		t.Run(fmt.Sprint(cluster/mib, " MiB"), func(t *testing.T) {
			r := newRig(t)
			r.device = r.file(enginetest.PoolBytes)
			r.device.ClusterBytes = cluster
			r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
			planned := &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, ClusterBytes: cluster}
			r.Expect(sizing.PoolBytes(planned, enginetest.PoolBytes)).To(BeNumerically("~", r.state().Pools[0].TotalBytes, 3*cluster), "as kubectl weft plan says")
			unit := max(engine.SizeUnit, cluster)
			volume := r.create(engine.Source{}, unit)
			snapshot := r.snap(volume)
			r.create(engine.Source{Snapshot: snapshot}, 2*unit)
			r.done(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: 3 * unit}}))

			r.device.ClusterBytes = 0 // as if the plan had another size now
			r.restarted()
			r.Expect(r.state().Pools).To(ContainElement(And(HaveField("Device", r.device.ID), HaveField("Err", BeNil()), HaveField("ClusterBytes", cluster))))
			for _, v := range r.state().Volumes {
				r.Expect(v.SizeBytes % cluster).To(BeZero())
			}
			if cluster > engine.SizeUnit {
				odd := engine.VolumeSpec{ID: newID(), Pool: r.device.ID, SizeBytes: cluster + engine.SizeUnit}
				r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{odd})).To(HaveExactElements(MatchError(engine.ErrInvalid)))
				r.Expect(r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: volume, SizeBytes: 3*unit + engine.SizeUnit}})).To(HaveExactElements(MatchError(ContainSubstring(fmt.Sprintf("give %d", 4*cluster)))))
			}
		})
	}
	r := newRig(t)
	bad := r.file(enginetest.PoolBytes)
	bad.ClusterBytes = 3 * mib
	r.Expect(r.engine.OpenPools(r.ctx, []engine.Device{bad})).To(HaveExactElements(MatchError(ContainSubstring("give a power of two from 1 MiB to 16 MiB"))))
}

// BenchmarkFirstWriteAfterSnapshot of 4 KiB to a cluster, which is copied, beside a write to one that the volume has
// for itself: the median of what a host waits that does nothing else. It needs a real target, whose drive is a file
// here, so compare cluster sizes only.
func BenchmarkFirstWriteAfterSnapshot(b *testing.B) {
	spdktest.RealTarget(b)
	for _, cluster := range clusterSizes {
		b.Run(fmt.Sprint(cluster/mib, " MiB"), func(b *testing.B) {
			const clusters = 24
			x := newBench(b)
			x.device = x.file(2 << 30)
			x.device.ClusterBytes = cluster
			x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
			all := x.things(1)
			all.volumes[0].SizeBytes = max(cluster, engine.SizeUnit) * clusters
			x.all(x.engine.CreateVolumes(x.ctx, all.volumes))
			x.all(x.engine.Export(x.ctx, all.exports))
			export := all.exports[0]
			host, err := enginetest.ConnectWire(x.ctx, x.portals()[0].Portal, export.NQN, export.Hosts[0], dhchap.Pair{}, 1)
			check(b, err)
			defer host.Close()
			piece := bytes.Repeat([]byte{1}, pieceBytes)
			for at := int64(0); at < clusters*cluster; at += pieceBytes {
				_, err := host.WriteAt(piece, at)
				check(b, err)
			}
			var first, later []float64
			for b.Loop() {
				x.all(x.engine.CreateSnapshots(x.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: all.ids[0]}}))
				for _, took := range []*[]float64{&first, &later} {
					for n := range int64(clusters) {
						began := time.Now()
						_, err := host.WriteAt(piece[:enginetest.BlockBytes], n*cluster)
						*took = append(*took, time.Since(began).Seconds()*1e3)
						check(b, err)
					}
				}
			}
			for name, took := range map[string][]float64{"first-write-ms": first, "later-write-ms": later} {
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2], name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// TestPoolsTellTheirBlocks: volumes have the logical blocks of the drive that they are on.
func TestPoolsTellTheirBlocks(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	devices := m.twoDrives(t)
	m.fake.Drives[1].BlockSize = 4096
	m.restart(t)
	e := m.engine(t)
	check(t, errors.Join(e.OpenPools(t.Context(), devices)...))
	state, err := e.Gather(t.Context())
	check(t, err)
	NewWithT(t).Expect(state.Pools).To(ConsistOf(
		And(HaveField("Device", m.fake.Drives[0].WWID()), HaveField("BlockBytes", int32(512))),
		And(HaveField("Device", m.fake.Drives[1].WWID()), HaveField("BlockBytes", int32(4096)))))
}
