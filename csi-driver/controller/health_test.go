// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

func TestProblemsOf(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	type conditions = []metav1.Condition
	with := func(c ...metav1.Condition) conditions {
		return append(conditions{condition(v1alpha1.ConditionCreated, yes, v1alpha1.ReasonAsExpected, "")}, c...)
	}
	degraded := func(reason string) conditions {
		return with(condition(v1alpha1.ConditionDegraded, yes, reason, "why"))
	}
	hosts := []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN("1")}}
	well := &v1alpha1.NvmfNode{}
	node := func(pool v1alpha1.PoolStatus, c ...metav1.Condition) *v1alpha1.NvmfNode {
		return &v1alpha1.NvmfNode{Status: v1alpha1.NvmfNodeStatus{Conditions: c, Pools: []v1alpha1.PoolStatus{{Device: "other", Reason: "PoolFailed"}, pool}}}
	}
	for name, c := range map[string]struct {
		conditions conditions
		hosts      []v1alpha1.VolumeHost
		node       *v1alpha1.NvmfNode
		want       string
	}{
		"well":             {with(condition(v1alpha1.ConditionDegraded, no, "", ""), condition(v1alpha1.ConditionExported, yes, "", "")), hosts, well, ""},
		"not made yet":     {nil, hosts, nil, ""},
		"lost":             {degraded(v1alpha1.ReasonVolumeLost), nil, well, "DATA_LOSS VolumeLost"},
		"pool unreadable":  {degraded(v1alpha1.ReasonPoolFailed), nil, well, "INACCESSIBLE PoolFailed"},
		"did not grow":     {degraded(v1alpha1.ReasonNoSpace), nil, well, "DEGRADED NoSpace"},
		"not served":       {with(condition(v1alpha1.ConditionExported, no, v1alpha1.ReasonPortalFailed, "")), hosts, well, "INACCESSIBLE PortalFailed"},
		"perhaps served":   {with(condition(v1alpha1.ConditionExported, unknown, v1alpha1.ReasonEngineNotAnswering, "")), hosts, well, "INACCESSIBLE EngineNotAnswering"},
		"nobody to serve":  {with(condition(v1alpha1.ConditionExported, no, v1alpha1.ReasonPortalFailed, "")), nil, well, ""},
		"agent is silent":  {with(), nil, node(v1alpha1.PoolStatus{}, condition(v1alpha1.ConditionAgentAlive, no, v1alpha1.ReasonAgentSilent, "")), "DEGRADED AgentSilent"},
		"node is gone":     {with(), nil, nil, "DEGRADED AgentSilent"},
		"pool full":        {with(), nil, node(v1alpha1.PoolStatus{Device: "own", Ready: true, Reason: v1alpha1.ReasonPoolFull}), "INACCESSIBLE PoolFull"},
		"pool nearly full": {with(), nil, node(v1alpha1.PoolStatus{Device: "own", Ready: true, Reason: v1alpha1.ReasonPoolNearlyFull}), "DEGRADED PoolNearlyFull"},
		"pool failed": {
			degraded(v1alpha1.ReasonPoolFailed), nil,
			node(v1alpha1.PoolStatus{Device: "own", Reason: v1alpha1.ReasonPoolFailed}), "INACCESSIBLE PoolFailed",
		},
		"drive gone, nearly full before": {
			with(condition(v1alpha1.ConditionExported, no, v1alpha1.ReasonExportFailed, "")), hosts,
			node(v1alpha1.PoolStatus{Device: "own", Reason: v1alpha1.ReasonDeviceMissing}), "INACCESSIBLE ExportFailed; INACCESSIBLE DeviceMissing",
		},
	} {
		vol := &v1alpha1.NvmfReplica{
			Spec:   v1alpha1.NvmfReplicaSpec{Node: "n", Hosts: c.hosts},
			Status: v1alpha1.NvmfReplicaStatus{Device: "own", Conditions: c.conditions},
		}
		if got := words(problemsOf(vol, c.node).Volume("v")); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		vol.DeletionTimestamp = &metav1.Time{}
		if p := problemsOf(vol, c.node); p != nil {
			t.Errorf("%s: being deleted it has %v", name, p)
		}
	}
}

// words are the kinds and reasons.
func words(v *csi.VolumeHealth) string {
	var all []string
	for _, e := range v.GetHealthStatuses() {
		all = append(all, e.Status.String()+" "+e.Reason)
	}
	return strings.Join(all, "; ")
}

func TestHealth(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	check := func(want string) {
		t.Helper()
		got, err := s.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		if err != nil || got.VolumeHealth.VolumeId != id || words(got.VolumeHealth) != want {
			t.Errorf("got %v, %v, want %q", got, err, want)
		}
		list, err := s.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
		if err != nil {
			t.Fatal(err)
		}
		listed := ""
		for _, e := range list.Entries {
			if e.VolumeId == id {
				listed = words(e)
			}
		}
		if listed != want {
			t.Errorf("listed with %q, want %q", listed, want)
		}
		one, err := s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all.Entries, func(e *csi.ListVolumesResponse_Entry) bool { return e.Volume.VolumeId == id })
		for _, status := range []proto.Message{one.Status, all.Entries[i].Status} {
			abnormal, message, err := nodetest.Condition(status)
			if err != nil || abnormal != (want != "") || want != "" && !strings.Contains(message, "5 % of it is free") {
				t.Errorf("condition %t, %q, %v", abnormal, message, err)
			}
		}
	}
	check("")
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Pools[0].Reason, n.Pools[0].Message = v1alpha1.ReasonPoolNearlyFull, "less than 5 % of it is free"
	})
	seen(t, s, st)
	check("DEGRADED PoolNearlyFull")
	for id, want := range map[string]codes.Code{"": codes.InvalidArgument, "unknown": codes.NotFound} {
		_, err := s.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		expectError(t, err, want)
	}
	_, err := s.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{StartingToken: "invalid"})
	expectError(t, err, codes.Aborted, "start again")
}
