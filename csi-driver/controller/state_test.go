// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

func TestStateOfMember(t *testing.T) {
	created := func(is metav1.ConditionStatus, reason string) *v1alpha1.NvmfReplica {
		return &v1alpha1.NvmfReplica{Status: v1alpha1.NvmfReplicaStatus{
			Conditions: []metav1.Condition{condition(v1alpha1.ConditionCreated, is, reason, "")},
		}}
	}
	exists := created(metav1.ConditionTrue, v1alpha1.ReasonAsExpected)
	silent := server.Problem{Kind: server.Degraded, Reason: v1alpha1.ReasonAgentSilent}
	full := server.Problem{Kind: server.Inaccessible, Reason: v1alpha1.ReasonPoolFull}
	for name, c := range map[string]struct {
		replica  *v1alpha1.NvmfReplica
		used     bool
		problems server.Problems
		want     v1alpha1.NvmfVolumeStatus
	}{
		"well":                   {exists, true, nil, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeReady}},
		"nothing yet":            {nil, false, nil, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeCreating}},
		"not reported yet":       {&v1alpha1.NvmfReplica{}, false, nil, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeCreating}},
		"no room":                {created(metav1.ConditionFalse, v1alpha1.ReasonNoSpace), false, nil, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeCreating, Reason: v1alpha1.ReasonNoSpace}},
		"its object is gone":     {nil, true, server.Problems{{Kind: server.Degraded, Reason: v1alpha1.ReasonVolumeLost}}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnknown, Reason: v1alpha1.ReasonVolumeLost}},
		"nearly full":            {exists, true, server.Problems{{Kind: server.Degraded, Reason: v1alpha1.ReasonPoolNearlyFull}}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeDegraded, Reason: v1alpha1.ReasonPoolNearlyFull}},
		"agent is silent":        {exists, true, server.Problems{silent}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnknown, Reason: v1alpha1.ReasonAgentSilent}},
		"full, then silent":      {exists, true, server.Problems{full, silent}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnavailable, Reason: v1alpha1.ReasonPoolFull}},
		"silent, and known full": {exists, true, server.Problems{silent, full}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnavailable, Reason: v1alpha1.ReasonPoolFull}},
		"lost":                   {exists, true, server.Problems{full, {Kind: server.DataLoss, Reason: v1alpha1.ReasonVolumeLost}}, v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeLost, Reason: v1alpha1.ReasonVolumeLost}},
	} {
		vol := &replicatedVolume{
			NvmfVolume: &v1alpha1.NvmfVolume{Spec: v1alpha1.NvmfVolumeSpec{Used: c.used}}, replicas: []*v1alpha1.NvmfReplica{c.replica},
		}
		if got := stateOfMember(vol, 0, c.problems); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestStateOfSeveralMembers(t *testing.T) {
	type states = []v1alpha1.NvmfVolumeStatus
	type sync = []v1alpha1.MirrorMemberState
	const in, out, returning, filling = v1alpha1.MemberInSync, v1alpha1.MemberOut, v1alpha1.MemberReturning, v1alpha1.MemberFilling
	is := func(state v1alpha1.VolumeState, reason string) v1alpha1.NvmfVolumeStatus {
		return v1alpha1.NvmfVolumeStatus{State: state, Reason: reason}
	}
	ready, creating := is(v1alpha1.VolumeReady, ""), is(v1alpha1.VolumeCreating, "")
	unknown, unavailable := is(v1alpha1.VolumeUnknown, v1alpha1.ReasonAgentSilent), is(v1alpha1.VolumeUnavailable, v1alpha1.ReasonPoolFull)
	nearly := is(v1alpha1.VolumeDegraded, v1alpha1.ReasonPoolNearlyFull)
	lost := is(v1alpha1.VolumeLost, v1alpha1.ReasonVolumeLost)
	for name, c := range map[string]struct {
		requested int32
		used      bool
		members   states
		// record is absent until the volume is attached.
		record sync
		want   v1alpha1.NvmfVolumeStatus
	}{
		"no member yet":                       {2, false, nil, nil, creating},
		"one is not created yet":              {2, false, states{ready, creating}, nil, creating},
		"never attached":                      {2, false, states{ready, ready}, nil, ready},
		"both in sync":                        {2, true, states{ready, ready}, sync{in, in}, ready},
		"one lost":                            {2, true, states{ready, ready}, sync{in, out}, is(v1alpha1.VolumeDegraded, v1alpha1.ReasonReplicaLost)},
		"one returns":                         {2, true, states{ready, ready}, sync{returning, in}, is(v1alpha1.VolumeDegraded, v1alpha1.ReasonReplicaReturning)},
		"one is filled":                       {2, true, states{ready, creating}, sync{in, filling}, is(v1alpha1.VolumeDegraded, v1alpha1.ReasonReplicaCopying)},
		"one is to be added":                  {2, true, states{ready}, sync{in}, is(v1alpha1.VolumeDegraded, reasonReplicaMissing)},
		"one of two is silent":                {2, true, states{ready, unknown}, sync{in, in}, is(v1alpha1.VolumeDegraded, v1alpha1.ReasonAgentSilent)},
		"both silent":                         {2, true, states{unknown, unknown}, sync{in, in}, unknown},
		"the one in sync is silent":           {2, true, states{ready, unknown}, sync{out, in}, unknown},
		"the one in sync is not served":       {2, true, states{ready, unavailable}, sync{out, in}, unavailable},
		"the one in sync is lost":             {2, true, states{ready, lost}, sync{returning, in}, lost},
		"one lost, the other is nearly full":  {2, true, states{nearly, ready}, sync{in, out}, nearly},
		"none in sync":                        {2, true, states{ready, ready}, sync{out, out}, is(v1alpha1.VolumeUnavailable, v1alpha1.ReasonReplicaLost)},
		"moves: one more is filled":           {2, true, states{ready, ready, ready}, sync{in, in, filling}, ready},
		"moves, with one replica":             {1, true, states{ready, creating}, sync{in, filling}, ready},
		"moves, and the source does not tell": {1, true, states{unknown, ready}, sync{in, filling}, unknown},
	} {
		vol := &replicatedVolume{NvmfVolume: &v1alpha1.NvmfVolume{Spec: v1alpha1.NvmfVolumeSpec{Replicas: c.requested, Used: c.used, Mirrored: c.record != nil}}}
		var record *mirror.Record
		if c.record != nil {
			record = &mirror.Record{}
		}
		for i := range c.members {
			member := string(rune('a' + i))
			vol.Spec.Members = append(vol.Spec.Members, v1alpha1.VolumeMember{Name: member})
			if record != nil {
				record.Members = append(record.Members, mirror.Member{Replica: member, State: c.record[i]})
			}
		}
		if got := combined(vol, record, c.members); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if record != nil {
			record.Recovering = true
			if got, want := combined(vol, record, c.members), is(v1alpha1.VolumeUnavailable, v1alpha1.ReasonRecoveryWaiting); got != want {
				t.Errorf("%s, while the record is recovered: got %v, want %v", name, got, want)
			}
		}
	}
}

// The state follows what agents report, what the operator says of a node whose agent is silent, and its end.
func TestState(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	go s.Settle(t.Context())
	g := NewWithT(t)

	id := newVolume(t, s, st, "v")
	becomes := func(state v1alpha1.VolumeState, reason string) {
		t.Helper()
		g.Eventually(func() v1alpha1.NvmfVolumeStatus { return volume(t, id).Status }).WithTimeout(enough).
			Should(Equal(v1alpha1.NvmfVolumeStatus{State: state, Reason: reason}))
	}
	becomes(v1alpha1.VolumeReady, "")
	was := volume(t, id)

	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Pools[0].Reason, n.Pools[0].Message = v1alpha1.ReasonPoolNearlyFull, "less than 5 % of it is free"
	})
	becomes(v1alpha1.VolumeDegraded, v1alpha1.ReasonPoolNearlyFull)
	silence(t, st.nodes[0])
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Pools[0].Reason = ""
		n.Conditions = []metav1.Condition{condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no report")}
	})
	becomes(v1alpha1.VolumeUnknown, v1alpha1.ReasonAgentSilent)

	g.Expect(volume(t, id).Generation).To(Equal(was.Generation), "a state is no change of what is requested")
	deleteByHand(t, volume(t, id))
	becomes(v1alpha1.VolumeDeleting, "")
}

// One state is written for each volume, however many changes there are that make no difference.
func TestStateIsWrittenOnce(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	g := NewWithT(t)
	id := newVolume(t, s, st, "v")
	g.Eventually(func() v1alpha1.VolumeState {
		g.Expect(s.settle(t.Context(), id)).To(Succeed())
		return volume(t, id).Status.State
	}).WithTimeout(enough).Should(Equal(v1alpha1.VolumeReady))
	was := volume(t, id)
	g.Eventually(func() (*v1alpha1.NvmfVolume, error) { return s.volumes.peek(t.Context(), id) }).WithTimeout(enough).
		Should(HaveField("ResourceVersion", was.ResourceVersion))
	g.Expect(s.settle(t.Context(), id)).To(Succeed())
	g.Expect(volume(t, id).ResourceVersion).To(Equal(was.ResourceVersion))

	// With many that change at once, it is written later.
	s.states.RateLimiter = flowcontrol.NewFakeNeverRateLimiter()
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) { n.Pools[0].Reason = v1alpha1.ReasonPoolNearlyFull })
	seen(t, s, st)
	g.Expect(s.settle(t.Context(), id)).To(Succeed())
	g.Expect(volume(t, id).Status.State).To(Equal(v1alpha1.VolumeReady))
	s.states.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	g.Expect(s.settle(t.Context(), id)).To(Succeed())
	g.Expect(volume(t, id).Status.State).To(Equal(v1alpha1.VolumeDegraded))
}
