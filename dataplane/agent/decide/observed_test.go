// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// How much was written lately matters to what grows, goes, or is made of something else.
func TestGlanceIsEnough(t *testing.T) {
	made := func(v *v1alpha1.NvmfReplica) {
		isCreatedOn("a")(v)
		v.Status.Size = new(v.Spec.Size.DeepCopy())
	}
	grows := func(v *v1alpha1.NvmfReplica) { v.Spec.Size = resource.MustParse("99Gi") }
	for name, test := range map[string]struct {
		volume   *v1alpha1.NvmfReplica
		snapshot *v1alpha1.NvmfSnapshot
		want     bool
	}{
		"another host":                   {testVolume(1, made, withHosts(hostA)), testSnapshot(2, "v1", snapshotCreated), true},
		"a new volume":                   {testVolume(1), testSnapshot(2, "v1", snapshotCreated), true},
		"a new volume with a source":     {testVolume(1, fromSnapshot("s2")), testSnapshot(2, "v1", snapshotCreated), false},
		"a new volume that is deleted":   {testVolume(1, isDeleting), testSnapshot(2, "v1", snapshotCreated), false},
		"a volume that grows":            {testVolume(1, made, grows), testSnapshot(2, "v1", snapshotCreated), false},
		"a volume that is deleted":       {testVolume(1, made, isDeleting), testSnapshot(2, "v1", snapshotCreated), false},
		"a new snapshot":                 {testVolume(1, made), testSnapshot(2, "v1"), false},
		"a snapshot that is deleted":     {testVolume(1, made), testSnapshot(2, "v1", snapshotCreated, snapshotDeleting), false},
		"a volume whose size is unknown": {testVolume(1, isCreatedOn("a"), func(v *v1alpha1.NvmfReplica) { v.Status.Size = nil }), testSnapshot(2, "v1", snapshotCreated), false},
	} {
		s := Observed{Volumes: []*v1alpha1.NvmfReplica{test.volume}, Snapshots: []*v1alpha1.NvmfSnapshot{test.snapshot}}
		if got := s.GlanceIsEnough(); got != test.want {
			t.Errorf("%s: a glance is enough: %t", name, got)
		}
	}
}
