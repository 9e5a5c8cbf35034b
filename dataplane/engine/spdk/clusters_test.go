// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// TestClusters: a pool is made with the clusters that are asked for and keeps them, whatever is asked for later.
// Volumes and their growth are whole clusters, or refused with the size to give.
func TestClusters(t *testing.T) {
	for _, cluster := range []int64{1 * mib, 2 * mib, 4 * mib, 8 * mib, 16 * mib} {
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
