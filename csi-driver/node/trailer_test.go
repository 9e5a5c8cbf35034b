// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// wantDataBytes of the one device that is built for the volume.
func (s *suite) wantDataBytes(when string, want int64) {
	s.Helper()
	all, err := s.service.Mapper.Of(s.context.UUID)
	must(s, err)
	if len(all) != 1 || all[0].DataBytes() != want {
		s.Errorf("%s: built are %+v, want one device of %d bytes", when, all, want)
	}
}

// A volume's device ends before its trailer, also after it has grown. One that was made before volumes had trailers
// keeps all that it had, before its target has added one and afterwards.
func TestTrailer(t *testing.T) {
	const more = 3 * v1alpha1.VolumeSizeStep // by which a pool rounds up
	for name, c := range map[string]struct {
		none                bool
		served, has, larger int64
	}{
		"with one":                              {false, v1alpha1.WithOverhead(size), size, 2 * size},
		"with one, in a pool that rounds up":    {false, v1alpha1.WithOverhead(size) + more, size + more, 2 * size},
		"made before":                           {true, v1alpha1.HeaderBytes + size, size, 2*size + v1alpha1.TrailerBytes},
		"made before, in a pool that rounds up": {true, v1alpha1.HeaderBytes + size + more, size + more, 2*size + v1alpha1.TrailerBytes},
	} {
		for kind, capability := range capabilities() {
			t.Run(name+", "+kind, func(t *testing.T) {
				s := setUp(t)
				s.context.NoTrailer = c.none
				s.serveAll(c.served)
				must(t, s.stage(capability))
				must(t, s.publish(capability, "pods/a", false))
				s.wantDataBytes("staged", c.has)
				s.serve(2 * size)
				_, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
					VolumeId: vol, VolumePath: s.path("pods/a"), StagingTargetPath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
				})
				must(t, err)
				s.wantDataBytes("expanded", c.larger)
				must(t, s.unpublish("pods/a"))
				must(t, s.unstage())
				must(t, s.stage(capability))
				s.wantDataBytes("staged again", c.larger)
			})
		}
	}
}

// A volume with a trailer is not used before its target serves that, too: its agent has an earlier version.
func TestTrailerThatIsMissing(t *testing.T) {
	s := setUp(t)
	s.serveAll(v1alpha1.HeaderBytes + size)
	wantInTime(t, func(ctx context.Context) error { return s.stageIn(ctx, blockCapability()) }, "25165824 were expected")
}

// What is copied of a volume that was made before volumes had trailers is all that it had.
func TestMoverCopiesAVolumeWithoutATrailer(t *testing.T) {
	for name, c := range map[string]struct {
		trailer bool
		want    int64
	}{"with one": {true, size}, "made before": {false, size + v1alpha1.TrailerBytes}} {
		t.Run(name, func(t *testing.T) {
			s, m := setUpPlain(t)
			m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Trailer = c.trailer })
			must(t, s.stage(blockCapability()))
			must(t, s.unstage())
			m.mirrored(s.legs["pvc-1-r1"])
			m.add(s.legs["pvc-1-r2"], size)
			m.give(s, uuid.NewString(), v1alpha1.MoverCopy)
			s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
			array, err := s.kernel.Mirrors().Of(volumeUUID)
			must(t, err)
			if array.DataBytes != size+v1alpha1.TrailerBytes {
				t.Errorf("the mirror has %d bytes", array.DataBytes)
			}
			m.ask()
			m.give(s, attachment, "")
			must(t, s.stage(blockCapability()))
			s.wantDataBytes("staged", c.want)
			if r := m.record(); !mirror.Whole(r) {
				t.Errorf("the record is %s", mirror.String(r))
			}
			must(t, s.unstage())
			s.wantGone()
		})
	}
}
