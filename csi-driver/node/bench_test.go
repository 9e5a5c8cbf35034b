// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// BenchmarkStageBesideOthers stages one volume on a node that has none, and one on a node that has 300, each staged and
// published. It gives the medians of both and their ratio, which is to be 1.3 at most:
//
//	go test ./csi-driver/node -run '^$' -bench StageBesideOthers -benchtime 200x
//
// The kernel is fabricstest's, whose own work does not depend on how many volumes there are. It connects at once; on a
// real one each connection takes some 100 ms more, on either node.
func BenchmarkStageBesideOthers(b *testing.B) {
	const others = 300
	for name, c := range map[string]*csi.VolumeCapability{"block": blockCapability(), "ext4": mountCapability("ext4")} {
		b.Run(name, func(b *testing.B) {
			alone, beside := setUp(b), setUp(b)
			for i := range others {
				v := beside.nth(i)
				must(b, v.stage(blockCapability()))
				must(b, v.publish())
			}
			var first, more []time.Duration
			for b.Loop() {
				first = append(first, alone.nth(others).measure(c))
				more = append(more, beside.nth(others).measure(c))
			}
			one, another := median(first), median(more)
			b.ReportMetric(0, "ns/op") // of both together, with what surrounds them
			b.ReportMetric(float64(one.Microseconds()), "first-µs")
			b.ReportMetric(float64(another.Microseconds()), "after-300-µs")
			b.ReportMetric(float64(another)/float64(one), "ratio")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// numbered is one of many volumes on the suite's node.
type numbered struct {
	*suite
	id, staging string
	at          *nodetest.Attached
}

func (s *suite) nth(i int) numbered {
	id := fmt.Sprintf("pvc-n%03d", i)
	at := nodetest.New(id, fmt.Sprintf("%032x", i+1))
	at.NodeUID, at.SizeBytes, at.Portals = uid, size, s.context.Portals
	v := numbered{suite: s, id: id, staging: s.path("staging-" + id), at: &at}
	s.objects[id] = v.at
	v.attach()
	must(s, os.MkdirAll(v.staging, 0o750))
	return v
}

// attach the volume to the node again.
func (v *numbered) attach() {
	v.at.Attach(uuid.NewString())
	must(v, v.kernel.Serve(nodetest.Subsystem{
		NQN: v.at.NQN, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{v.at.HostNQN()},
		Namespaces: []nodetest.Namespace{{NGUID: v.at.NGUID, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
}

func (v numbered) stage(c *csi.VolumeCapability) error {
	_, err := v.service.NodeStageVolume(v.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: c, PublishContext: v.at.Encode(),
	})
	return err
}

func (v numbered) publish() error {
	_, err := v.service.NodePublishVolume(v.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.path("pod-" + v.id), VolumeCapability: blockCapability(), PublishContext: v.at.Encode(),
	})
	return err
}

// measure stages what is blank in this attachment, tells how long that took, and takes everything back.
func (v numbered) measure(c *csi.VolumeCapability) time.Duration {
	v.attach()
	begun := time.Now()
	err := v.stage(c)
	took := time.Since(begun)
	must(v, err)
	_, err = v.service.NodeUnstageVolume(v.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	must(v, err)
	must(v, errors.Join(os.Remove(v.kernel.Backing(v.at.NGUID)), os.Remove(v.kernel.Header(v.at.NGUID))))
	return took
}
