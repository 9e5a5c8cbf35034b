// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// keysGrace is how much older than their lifetime keys may be: a rotation by age takes some minutes, and its turn may
// come later.
const keysGrace = time.Hour

// printOldKeys tells of the attachments whose keys were not replaced in time. They work, and are as safe as they were,
// so that this is no problem by itself.
func (s *status) printOldKeys(t *table, concern func(*v1alpha1.NvmfVolume) bool) {
	old := s.oldKeys(concern)
	if len(old) == 0 {
		return
	}
	t.line("")
	t.line("Attached volumes whose keys are older than security.keyLifetimeHours:")
	for _, words := range firstFew(slices.Collect(slices.Chunk(old, 1)), "(spec.hosts[].keysCreated of the NvmfReplicas)") {
		t.line("- %s", words)
	}
}

// oldKeys are the volumes that have such attachments, in words: each with its oldest keys.
func (s *status) oldKeys(concern func(*v1alpha1.NvmfVolume) bool) []string {
	var old []string
	for i := range s.volumes {
		v := &s.volumes[i]
		target := find(s.targets, func(t *v1alpha1.NvmfTarget) bool { return t.Name == v.Spec.Target })
		if target == nil || !concern(v) {
			continue
		}
		host, age := s.oldestKeys(v)
		if age <= target.KeyLifetime()+keysGrace {
			continue
		}
		todo := "to see what their rotation waits for, run: kubectl weft rotate " + s.arguments(v) + " --dry-run"
		old = append(old, fmt.Sprintf("%s on node %s: %s old; %s", s.titled(v.Name), host.Node, duration.HumanDuration(age), todo))
	}
	return old
}

// oldestKeys of a volume's hosts, and their age. A host that is being replaced does not count.
func (s *status) oldestKeys(v *v1alpha1.NvmfVolume) (host v1alpha1.VolumeHost, age time.Duration) {
	for i := range s.replicas {
		r := &s.replicas[i]
		if r.Spec.Volume.Name != v.Name || r.Rotating() || !slices.ContainsFunc(v.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.Name == r.Name }) {
			continue
		}
		for _, h := range r.Spec.Hosts {
			if h.SealedKeys == "" || h.KeysCreated == nil {
				continue
			}
			if is := s.now.Sub(h.KeysCreated.Time); is > age {
				host, age = h, is
			}
		}
	}
	return host, age
}
