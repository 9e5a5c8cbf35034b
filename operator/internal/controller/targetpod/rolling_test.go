// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

func volume(name string, changes ...func(*v1alpha1.NvmfVolume)) v1alpha1.NvmfVolume {
	v := v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
	v.Status.ObservedGeneration = 2
	v.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse},
	}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func snapshot(name string, status metav1.ConditionStatus) v1alpha1.NvmfSnapshot {
	s := v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status}}
	return s
}

// deadDrive is node a, whose pool "dead" is not ready for this reason.
func deadDrive(reason string) *v1alpha1.NvmfNode {
	n := nodeNamed("a", v1alpha1.ConditionAgentAlive, v1alpha1.ConditionReady)
	n.Status.Pools = []v1alpha1.PoolStatus{{Device: "dead", Reason: reason, Message: "it is gone"}, {Device: "well", Ready: true}}
	return n
}

// onDrive is volume v, which is not ready for this reason.
func onDrive(device, reason string) v1alpha1.NvmfVolume {
	return volume("v", func(v *v1alpha1.NvmfVolume) {
		v.Status.Device = device
		v.Status.Conditions[0].Status, v.Status.Conditions[0].Reason = metav1.ConditionFalse, reason
		v.Status.Conditions[1].Status = metav1.ConditionTrue
	})
}

func TestWaitsFor(t *testing.T) {
	const aliveIs, readyIs = v1alpha1.ConditionAgentAlive, v1alpha1.ConditionReady
	// three nodes that serve: the first is asked for.
	fleetOf := func(change func(*fleet)) fleet {
		f := fleet{pods: map[string]*corev1.Pod{}}
		for _, name := range []string{"a", "b", "c"} {
			f.nodes = append(f.nodes, *nodeNamed(name, aliveIs, readyIs))
			f.pods[manifest.TargetPodName(name)] = running(time.Minute)
		}
		change(&f)
		return f
	}
	pod := func(node string, p *corev1.Pod) func(*fleet) {
		return func(f *fleet) { f.pods[manifest.TargetPodName(node)] = p }
	}
	with := func(volumes ...v1alpha1.NvmfVolume) func(*fleet) { return func(f *fleet) { f.volumes = volumes } }
	for name, test := range map[string]struct {
		own   *v1alpha1.NvmfNode
		most  *int32
		fleet fleet
		says  string
		again time.Duration
	}{
		"all serve":                   {nodeNamed("a", aliveIs, readyIs), nil, fleetOf(func(*fleet) {}), "", 0},
		"itself does not":             {nodeNamed("a", aliveIs), nil, fleetOf(pod("a", running(0, unready))), "", 0},
		"its agent is silent":         {nodeNamed("a", readyIs), nil, fleetOf(func(*fleet) {}), "agent is not alive", 0},
		"another has no pod":          {nodeNamed("a", aliveIs), nil, fleetOf(pod("b", nil)), "such as b", 0},
		"another's pod is ending":     {nodeNamed("a", aliveIs), nil, fleetOf(pod("c", running(time.Minute, ending))), "such as c", 0},
		"another's pod is not ready":  {nodeNamed("a", aliveIs), nil, fleetOf(pod("b", running(0, unready))), "such as b", 0},
		"another's is ready just now": {nodeNamed("a", aliveIs), nil, fleetOf(pod("b", running(4*time.Second))), "such as b", 6 * time.Second},
		"two are ready just now":      {nodeNamed("a", aliveIs), nil, fleetOf(func(f *fleet) { pod("b", running(time.Second))(f); pod("c", running(4*time.Second))(f) }), "2 of the target's other nodes", 6 * time.Second},
		"another's node is not ready": {nodeNamed("a", aliveIs), nil, fleetOf(func(f *fleet) { f.nodes[1] = *nodeNamed("b", aliveIs) }), "such as b", 0},
		"another's agent is silent":   {nodeNamed("a", aliveIs), nil, fleetOf(func(f *fleet) { f.nodes[2] = *nodeNamed("c", readyIs) }), "such as c", 0},
		"one may be":                  {nodeNamed("a", aliveIs), new(int32(2)), fleetOf(pod("b", nil)), "", 0},
		"one may be, and two are":     {nodeNamed("a", aliveIs), new(int32(2)), fleetOf(func(f *fleet) { f.pods = nil }), "2 of the target's other nodes not ready, such as b", 0},
		"its volumes are settled":     {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v"), volume("w"))), "", 0},
		"a volume was just made":      {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v"), v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "w"}})), "such as volume w", 0},
		"a volume is not ready": {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v", func(v *v1alpha1.NvmfVolume) {
			v.Status.Conditions[0].Status = metav1.ConditionFalse
		}))), "such as volume v", 0},
		"a volume is degraded": {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v", func(v *v1alpha1.NvmfVolume) {
			v.Status.Conditions[1].Status = metav1.ConditionTrue
		}))), "such as volume v", 0},
		"a host is being admitted": {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v", func(v *v1alpha1.NvmfVolume) { v.Generation++ }))), "such as volume v", 0},
		"a volume is being deleted": {nodeNamed("a", aliveIs), nil, fleetOf(with(volume("v", func(v *v1alpha1.NvmfVolume) {
			v.DeletionTimestamp = &metav1.Time{Time: now}
		}))), "such as volume v", 0},
		"a snapshot is being made": {nodeNamed("a", aliveIs), nil, fleetOf(func(f *fleet) {
			f.snapshots = []v1alpha1.NvmfSnapshot{snapshot("s", metav1.ConditionTrue), snapshot("t", metav1.ConditionFalse)}
		}), "1 of the node's volumes and snapshots not ready, such as snapshot t", 0},
		"a volume on a dead drive":                 {deadDrive(v1alpha1.ReasonDeviceMissing), nil, fleetOf(with(onDrive("dead", "PoolFailed"), volume("w"))), "", 0},
		"a volume on a drive that cannot be read":  {deadDrive(v1alpha1.ReasonPoolFailed), nil, fleetOf(with(onDrive("dead", "PoolFailed"))), "", 0},
		"a volume on a drive that is being opened": {deadDrive(v1alpha1.ReasonPending), nil, fleetOf(with(onDrive("dead", "PoolFailed"))), "such as volume v", 0},
		"a volume on another drive beside it":      {deadDrive(v1alpha1.ReasonDeviceMissing), nil, fleetOf(with(onDrive("well", "Pending"))), "such as volume v", 0},
		"a lost volume":                            {nodeNamed("a", aliveIs), nil, fleetOf(with(onDrive("well", v1alpha1.ReasonVolumeLost))), "", 0},
		"a snapshot on a dead drive": {deadDrive(v1alpha1.ReasonDeviceSwapped), nil, fleetOf(func(f *fleet) {
			with(onDrive("dead", "PoolFailed"))(f)
			f.snapshots = []v1alpha1.NvmfSnapshot{snapshot("s", metav1.ConditionFalse)}
			f.snapshots[0].Spec.Volume = "v"
		}), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			why, again := waitsFor(test.own, test.fleet, v1alpha1.UpdateStrategy{MaxUnavailable: test.most}, now)
			if (why == "") != (test.says == "") || !strings.Contains(why, test.says) || again != test.again {
				t.Errorf("waits for %q, again after %s; want %q and %s", why, again, test.says, test.again)
			}
		})
	}
}
