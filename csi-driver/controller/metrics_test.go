// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// Each volume has one state, and each mirror has. What waits is told from what runs.
func TestCountsOfVolumes(t *testing.T) {
	g := NewWithT(t)
	const target = "fast"
	pod, mover := v1alpha1.VolumeHost{NQN: v1alpha1.HostNQN("1")}, v1alpha1.VolumeHost{NQN: v1alpha1.HostNQN("2"), Mover: true}
	volume := func(name string, change func(*v1alpha1.NvmfVolumeSpec)) v1alpha1.NvmfVolume {
		v := v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.Target, v.Spec.Replicas, v.Spec.Members = target, 1, []v1alpha1.VolumeMember{{Name: name + "-0"}}
		change(&v.Spec)
		return v
	}
	used := func(also func(*v1alpha1.NvmfVolumeSpec)) func(*v1alpha1.NvmfVolumeSpec) {
		return func(s *v1alpha1.NvmfVolumeSpec) { s.Used = true; also(s) }
	}
	deleted := volume("deleted", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Move = &v1alpha1.VolumeMove{} }))
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	volumes := []v1alpha1.NvmfVolume{
		deleted,
		volume("new", func(s *v1alpha1.NvmfVolumeSpec) { s.Waiting = "its replica is not created" }),
		volume("made", func(*v1alpha1.NvmfVolumeSpec) {}),
		volume("attached", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Attachments = []v1alpha1.VolumeHost{pod} })),
		volume("moves", used(func(s *v1alpha1.NvmfVolumeSpec) {
			s.Attachments, s.Move = []v1alpha1.VolumeHost{mover}, &v1alpha1.VolumeMove{Replica: "moves-0"}
			s.Members = append(s.Members, v1alpha1.VolumeMember{Name: "moves-1"})
		})),
		volume("waits", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Move = &v1alpha1.VolumeMove{Waiting: "no room"} })),
		volume("grows", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Replicas = 2 })),
		volume("alone", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Replicas, s.Waiting = 2, "no room" })),
		volume("doubted", used(func(s *v1alpha1.NvmfVolumeSpec) { s.Recovery = &v1alpha1.VolumeRecovery{Waiting: "a person"} })),
	}
	replicas := []v1alpha1.NvmfReplica{{}, {}, {}}
	replicas[0].Spec.Volume.Name, replicas[0].Spec.Target = "made", target
	replicas[0].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionCreated, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")}
	for i, since := range []time.Duration{time.Minute, time.Hour} {
		rep := &replicas[i+1]
		rep.Spec.Volume.Name, rep.Spec.Target = "attached", target
		next := v1alpha1.VolumeHost{NQN: v1alpha1.HostNQN("3"), Attachment: "1", KeysCreated: &metav1.Time{Time: time.Now().Add(-since)}}
		rep.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN("1"), Attachment: "1"}, next}
	}
	record := func(name, holder string, states ...v1alpha1.MirrorMemberState) v1alpha1.NvmfMirror {
		m := v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: mirror.Record{Holder: holder}}
		for _, state := range states {
			m.Spec.Members = append(m.Spec.Members, mirror.Member{State: state})
		}
		return m
	}
	const in, out, filling, returning = v1alpha1.MemberInSync, v1alpha1.MemberOut, v1alpha1.MemberFilling, v1alpha1.MemberReturning
	leaving := record("alone", "h", in, out)
	leaving.Spec.Members[1].Retired = true
	waits := record("waits", "h", in, returning)
	waits.Spec.MoverWaiting = "no module"
	mirrors := []v1alpha1.NvmfMirror{
		record("attached", "h", in, in), record("moves", "h", in, filling), record("grows", "", in, filling), record("doubted", "h", in, out), leaving, waits, record("gone", "", in, out),
	}
	counts := countsOf([]v1alpha1.NvmfTarget{{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}}, volumes, replicas, mirrors)
	g.Expect(maps.Keys(counts)).To(ConsistOf("empty", target))
	g.Expect(counts["empty"]).To(Equal(&targetCounts{volumes: map[string]int{}, mirrors: map[string]int{}, tasks: map[[2]string]int{}}))
	g.Expect(counts[target].volumes).To(Equal(map[string]int{"deleting": 1, "creating": 1, "attached": 1, "unattached": 6}))
	g.Expect(counts[target].mirrors).To(Equal(map[string]int{"whole": 1, "copying": 1, "degraded": 4}))
	g.Expect(counts[target].tasks).To(Equal(map[[2]string]int{
		{"move", "running"}: 1, {"move", "waiting"}: 1, {"replicas", "running"}: 1, {"replicas", "waiting"}: 1, {"recovery", "waiting"}: 1,
		{"fill", "running"}: 1, {"fill", "waiting"}: 3, {"rotation", "running"}: 1, {"rotation", "waiting"}: 1,
	}))
}

// The service's metrics follow its cache.
func TestMetricsFollowTheCache(t *testing.T) {
	g := NewWithT(t)
	s, _ := newService(t)
	st := newStorage(t, 1, 10*gi)
	value := func(series string) func() (float64, error) {
		return func() (float64, error) {
			all, err := nodetest.Series(NewMetrics(t.Context(), s))
			return all[series], err
		}
	}
	id := newVolume(t, s, st, "v")
	g.Eventually(value(`weft_csi_volumes{state="unattached",target="` + st.target + `"}`)).WithTimeout(enough).Should(Equal(1.0))
	_, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(value(`weft_csi_volumes{state="unattached",target="` + st.target + `"}`)).WithTimeout(enough).Should(BeZero())
	all, err := nodetest.Series(NewMetrics(t.Context(), s))
	g.Expect(err).NotTo(HaveOccurred())
	of := 0
	for series := range all {
		if strings.Contains(series, `target="`+st.target+`"`) {
			of++
		}
	}
	g.Expect(of).To(Equal(17), "what docs/reference/metrics.md says of each target")
}
