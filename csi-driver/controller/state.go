// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	// statesPerSecond are the states of volumes that are written, and mostStates at once. When a storage node with more
	// volumes goes, the others follow after stateLater to twice that.
	statesPerSecond = 20
	mostStates      = 200
	stateLater      = 30 * time.Second
)

// states of volumes.
type states struct {
	// RateLimiter bounds how many are written.
	flowcontrol.RateLimiter
	// judged is what they are told from, of each storage node.
	judged map[string]string
}

func newStates() states {
	return states{RateLimiter: flowcontrol.NewTokenBucketRateLimiter(statesPerSecond, mostStates), judged: map[string]string{}}
}

// severity of the states of a replica, the best first.
var severity = []v1alpha1.VolumeState{
	v1alpha1.VolumeReady, v1alpha1.VolumeDegraded, v1alpha1.VolumeCreating, v1alpha1.VolumeUnknown, v1alpha1.VolumeUnavailable, v1alpha1.VolumeLost,
}

func worse(a, b v1alpha1.VolumeState) bool {
	return slices.Index(severity, a) > slices.Index(severity, b)
}

// tellState writes a volume's state, if it is another one than before. What it is told from is in the cache, and each
// change of that brings the volume here.
func (s *Service) tellState(ctx context.Context, vol *replicatedVolume, record *mirror.Record) error {
	state, err := s.stateOf(ctx, vol, record)
	if err != nil || state == vol.Status {
		return err
	}
	if s.locks.taken("volume", vol.Name) {
		s.unsettled.AddAfter(vol.Name, s.delay) // a call is about to change it
		return nil
	}
	if !s.states.TryAccept() {
		s.unsettled.AddAfter(vol.Name, wait.Jitter(stateLater, 1))
		return nil
	}
	next := vol.DeepCopy()
	next.Status = state
	err = s.client.Status().Patch(ctx, next, client.MergeFromWithOptions(vol.NvmfVolume, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
	if err != nil {
		return ignoreChanged(err)
	}
	klog.FromContext(ctx).V(2).Info("The state of the volume has changed", "volume", vol.Name, "former", vol.Status, "state", state)
	return nil
}

// stateOf a volume.
func (s *Service) stateOf(ctx context.Context, vol *replicatedVolume, record *mirror.Record) (v1alpha1.NvmfVolumeStatus, error) {
	if vol.DeletionTimestamp != nil {
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeDeleting}, nil
	}
	states := make([]v1alpha1.NvmfVolumeStatus, len(vol.replicas))
	for i := range vol.replicas {
		p, err := s.problemsOfMember(ctx, vol, i)
		if err != nil {
			return v1alpha1.NvmfVolumeStatus{}, err
		}
		states[i] = stateOfMember(vol, i, p)
	}
	return combined(vol, record, states), nil
}

// stateOfMember is the state of a volume that has no other replica.
func stateOfMember(vol *replicatedVolume, i int, problems server.Problems) v1alpha1.NvmfVolumeStatus {
	is := v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeReady}
	rep := vol.replicas[i]
	if rep == nil {
		if !vol.Spec.Used {
			is.State = v1alpha1.VolumeCreating
		}
	} else if c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionCreated); c == nil || c.Status != metav1.ConditionTrue {
		is.State = v1alpha1.VolumeCreating
		if c != nil {
			is.Reason = c.Reason
		}
	}
	for _, p := range problems {
		state := v1alpha1.VolumeDegraded
		switch {
		case p.Kind == csi.VolumeHealthErrorType_DATA_LOSS:
			state = v1alpha1.VolumeLost
		case p.Kind == csi.VolumeHealthErrorType_INACCESSIBLE:
			state = v1alpha1.VolumeUnavailable
		case p.Reason == v1alpha1.ReasonAgentSilent, rep == nil:
			state = v1alpha1.VolumeUnknown
		}
		if worse(state, is.State) {
			is = v1alpha1.NvmfVolumeStatus{State: state, Reason: p.Reason}
		}
	}
	return is
}

// reasonReplicaMissing is why a volume is Degraded that has fewer replicas than requested.
const reasonReplicaMissing = "ReplicaMissing"

// notInSync are the reasons for which a volume is Degraded that has a replica in such a state.
var notInSync = map[v1alpha1.MirrorMemberState]string{
	v1alpha1.MemberOut:       v1alpha1.ReasonReplicaLost,
	v1alpha1.MemberReturning: v1alpha1.ReasonReplicaReturning,
	v1alpha1.MemberFilling:   v1alpha1.ReasonReplicaCopying,
}

// combined is the state of a volume whose members have these. Members that are not in sync do not count: they have not
// all data. One more than requested, as while a volume is moved, makes it no worse.
func combined(vol *replicatedVolume, record *mirror.Record, members []v1alpha1.NvmfVolumeStatus) v1alpha1.NvmfVolumeStatus {
	if vol.Spec.Recovery != nil || record != nil && record.Recovering {
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnavailable, Reason: v1alpha1.ReasonRecoveryWaiting}
	}
	var best *v1alpha1.NvmfVolumeStatus
	trouble, ready := "", 0
	for i, is := range members {
		if record != nil {
			if why := notInSync[mirror.StateOf(*record, vol.Spec.Members[i].Name)]; why != "" {
				trouble = cmp.Or(trouble, why)
				continue
			}
		}
		switch {
		case is.State == v1alpha1.VolumeCreating && !vol.Spec.Used:
			return is
		case is.State == v1alpha1.VolumeReady:
			ready++
		default:
			trouble = cmp.Or(trouble, is.Reason)
		}
		if best == nil || worse(best.State, is.State) {
			best = &is
		}
	}
	switch {
	case len(members) == 0:
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeCreating}
	case best == nil:
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeUnavailable, Reason: trouble}
	case ready >= replicasOf(vol.NvmfVolume):
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeReady}
	case best.State == v1alpha1.VolumeReady:
		return v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeDegraded, Reason: cmp.Or(trouble, reasonReplicaMissing)}
	}
	return *best
}

// nodeJudged notes what the states of volumes are told from, of a node, and looks at its volumes when that has changed.
// It is called with one event after the other. What the cache has at the start, Settle looks at anyway.
func (s *Service) nodeJudged(ctx context.Context, node *v1alpha1.NvmfNode, gone bool) {
	is := "" // no NvmfNode
	if !gone {
		alive := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionAgentAlive)
		is = fmt.Sprint(alive == nil || alive.Status == metav1.ConditionTrue)
		for _, pool := range node.Status.Pools {
			is += fmt.Sprintln(pool.Device, pool.Ready, pool.Reason)
		}
	}
	if is == s.states.judged[node.Name] {
		return
	}
	if s.states.judged[node.Name] = is; gone {
		delete(s.states.judged, node.Name)
	}
	if !s.Synced() {
		return
	}
	var reps v1alpha1.NvmfReplicaList
	if err := s.client.List(ctx, &reps, client.MatchingFields{nodeField: node.Name}, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell the states of a node's volumes", "node", node.Name)
	}
	for _, rep := range reps.Items {
		s.unsettled.AddAfter(rep.Spec.Volume.Name, s.delay)
	}
}
