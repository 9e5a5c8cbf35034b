// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// A replica that has been lost for long is replaced: the service requests that it moves, as a person can at any time,
// and marks the request as its own. What follows is a move: another replica joins and is filled, and only when it has
// everything does the lost one leave. So a judgement that was wrong costs a copy, and never the only replica that has
// everything. If the lost one is served again before, it stays.
//
// What a person would look at before is looked at here. A replica that its holder has refused, because a kernel went on
// with it alone (mirror.ErrForeign), is left to a person, also when its node is down since. So is one that is out
// although its node serves it: it may be refused, and the record not say so yet. Nothing is begun, and no lost replica
// leaves, while an agent suspects that the API was restored.

// replacementInterval is how often a volume is looked at that has a replica which is not in sync: that its node is down
// is no event of the volume.
const replacementInterval = time.Minute

// lostAnnotation of a replica says since when the service has seen that it is lost, and what it has seen. The service
// measures by its own clock alone: the times in what it sees are those of the clocks of agents, nodes and the operator,
// and only tell whether it is the same loss as before. It is in the object, so that it survives the service.
const lostAnnotation = "weft.storage/lost"

// loss of a replica.
type loss struct {
	replica, node string
	// seen is what the loss is told from another one by: what the record says, and what says that it is down.
	seen string
	// since when the service has seen the same; zero if that is not noted yet.
	since time.Time
	// forGood: its data is gone, as its agent says.
	forGood bool
}

func (l loss) String() string {
	if l.forGood {
		return fmt.Sprintf("replica %s on node %s has lost its data", l.replica, l.node)
	}
	return fmt.Sprintf("replica %s on node %s has been lost since %s", l.replica, l.node, l.since.UTC().Format(time.RFC3339))
}

// due tells whether the volume is not to wait for the replica any longer.
func (l loss) due(limit time.Duration, now time.Time) bool {
	return l.forGood || !l.since.IsZero() && !now.Before(l.since.Add(limit))
}

// noted tells whether it is known since when the replica has been lost, if that matters.
func (l loss) noted() bool { return l.forGood || !l.since.IsZero() }

// lossOf a volume's replica, if that is lost and is not leaving.
func (s *Service) lossOf(ctx context.Context, v *replicatedVolume, record mirror.Record, replica string) (loss, bool) {
	i := indexOf(v.NvmfVolume, replica)
	m, is := mirror.Get(record, replica)
	if i < 0 || !is || isLeaving(v, &record, i) {
		return loss{}, false
	}
	rep := v.replicas[i]
	if rep == nil || string(rep.UID) != m.ReplicaUID || rep.DeletionTimestamp != nil {
		return loss{}, false
	}
	l := loss{replica: replica, node: rep.Spec.Node, forGood: lostData(rep)}
	if l.forGood {
		return l, true
	}
	if m.State == v1alpha1.MemberInSync || m.Foreign {
		return loss{}, false
	}
	since, down := s.downSince(ctx, rep)
	if !down {
		return loss{}, false
	}
	l.seen = stamp(m.Since) + "/" + stamp(&since)
	if when, seen, _ := strings.Cut(rep.Annotations[lostAnnotation], " "); seen == l.seen {
		// One that is yet to come was noted by a clock that was wrong.
		if at, err := time.Parse(time.RFC3339, when); err == nil && !at.After(s.clock.Now()) {
			l.since = at
		}
	}
	return l, true
}

// stamp of a time, in a text without spaces.
func stamp(t *metav1.Time) string {
	if t.IsZero() {
		return "-"
	}
	return strconv.FormatInt(t.Unix(), 10)
}

// unnoted is a lost replica of which it is not noted since when it is lost.
func (s *Service) unnoted(ctx context.Context, v *replicatedVolume, record *mirror.Record) (loss, bool) {
	if _, ever := v.ReplaceLostAfter(); !ever || record == nil || v.DeletionTimestamp != nil {
		return loss{}, false
	}
	for _, m := range v.Spec.Members {
		if l, is := s.lossOf(ctx, v, *record, m.Name); is && !l.noted() {
			return l, true
		}
	}
	return loss{}, false
}

// noteLoss of a replica that was not seen to be lost before.
func (s *Service) noteLoss(ctx context.Context, a *arrangement) (outcome, error) {
	l, is := s.unnoted(ctx, &a.replicatedVolume, a.record)
	if !is {
		return outcome{}, nil
	}
	rep := a.replicas[indexOf(a.NvmfVolume, l.replica)]
	noted := rep.DeepCopy()
	if noted.Annotations == nil {
		noted.Annotations = map[string]string{}
	}
	noted.Annotations[lostAnnotation] = s.clock.Now().UTC().Format(time.RFC3339) + " " + l.seen
	if err := s.patch(ctx, rep, noted); err != nil {
		return outcome{}, fmt.Errorf("write NvmfReplica %s: %w", rep.Name, err)
	}
	klog.FromContext(ctx).Info("A replica is lost", "volume", a.Name, "replica", l.replica, "node", l.node)
	return changed, nil
}

// lostData tells whether a replica's agent says that the data is gone, as that of a drive that was given up.
func lostData(rep *v1alpha1.NvmfReplica) bool {
	c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionDegraded)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ReasonVolumeLost
}

// downSince tells whether a replica cannot be used as far as weft knows, and since when, by the clock of whoever says
// so. The time is zero if its node is gone.
func (s *Service) downSince(ctx context.Context, rep *v1alpha1.NvmfReplica) (since metav1.Time, down bool) {
	since, down, err := downBy(ctx, s.client, rep)
	return since, down && err == nil
}

// downBy is downSince by what a reader has of the replica's node: its agent is silent, its drive cannot be opened, or
// the replica is not exported.
func downBy(ctx context.Context, from client.Reader, rep *v1alpha1.NvmfReplica) (since metav1.Time, down bool, err error) {
	var node v1alpha1.NvmfNode
	if err := from.Get(ctx, keyOf(rep.Spec.Node), &node, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return metav1.Time{}, true, nil
	} else if err != nil {
		return metav1.Time{}, false, fmt.Errorf("read NvmfNode %s: %w", rep.Spec.Node, err)
	}
	add := func(conditions []metav1.Condition, kind string, bad func(metav1.Condition) bool) {
		if c := meta.FindStatusCondition(conditions, kind); c != nil && bad(*c) && (!down || c.LastTransitionTime.Before(&since)) {
			since, down = c.LastTransitionTime, true
		}
	}
	add(node.Status.Conditions, v1alpha1.ConditionAgentAlive, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	add(rep.Status.Conditions, v1alpha1.ConditionDegraded, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ReasonPoolFailed
	})
	add(rep.Status.Conditions, v1alpha1.ConditionExported, func(c metav1.Condition) bool {
		return c.Status != metav1.ConditionTrue && len(rep.Spec.Hosts) > 0
	})
	return since, down, nil
}

// suspectsRestore tells whether the agent of a volume's replica found that the API may have been restored: what the
// record says of the replicas may be wrong then.
func suspectsRestore(v *replicatedVolume) bool {
	return slices.ContainsFunc(v.replicas, func(rep *v1alpha1.NvmfReplica) bool { return rep != nil && rep.RestoreSuspected() })
}

// toReplace is the replica of a volume that is to be replaced now.
func (s *Service) toReplace(ctx context.Context, v *replicatedVolume, record *mirror.Record) (loss, bool) {
	limit, ever := v.ReplaceLostAfter()
	if !ever || record == nil || record.Recovering || v.Spec.Recovery != nil || v.Spec.Move != nil || replicasOf(v.NvmfVolume) < 2 || surplus(v, record) != 0 {
		return loss{}, false
	}
	for _, m := range v.Spec.Members {
		if l, is := s.lossOf(ctx, v, *record, m.Name); is && l.due(limit, s.clock.Now()) {
			return l, true
		}
	}
	return loss{}, false
}

// replacementDue tells, by what the cache shows, whether a replica of a volume is to be replaced now, or its loss to be
// noted. A volume with a replica that may be soon is looked at again.
func (s *Service) replacementDue(ctx context.Context, v *replicatedVolume, record *mirror.Record) bool {
	if limit, ever := v.ReplaceLostAfter(); ever && record != nil && !mirror.Whole(*record) && v.DeletionTimestamp == nil {
		again := min(limit, replacementInterval)
		for _, m := range v.Spec.Members {
			if l, is := s.lossOf(ctx, v, *record, m.Name); is && !l.since.IsZero() && !l.due(limit, s.clock.Now()) {
				again = min(again, l.since.Add(limit).Sub(s.clock.Now()))
			}
		}
		s.unsettled.AddAfter(v.Name, again)
	}
	_, due := s.toReplace(ctx, v, record)
	_, unnoted := s.unnoted(ctx, v, record)
	return due || unnoted
}

// replaceLost requests that a replica that is lost for long moves, if another one has everything and is served, and a
// node can take the new one.
func (s *Service) replaceLost(ctx context.Context, a *arrangement) (outcome, error) {
	lost, is := s.toReplace(ctx, &a.replicatedVolume, a.record)
	if !is {
		return outcome{}, nil
	}
	cannot := func(why string) (outcome, error) {
		return outcome{waiting: fmt.Sprintf("%s, and cannot be replaced: %s", lost, why)}, nil
	}
	switch {
	case suspectsRestore(&a.replicatedVolume):
		return cannot("the agent of a replica suspects that the API was restored to an earlier state")
	case !s.served(ctx, a, lost.replica):
		return cannot("no other replica is in sync and served by its node")
	}
	if down, err := s.lostIndeed(ctx, a, lost); err != nil || !down {
		return outcome{}, err
	}
	move := &v1alpha1.VolumeMove{Replica: lost.replica, Reason: v1alpha1.MoveReplicaLost}
	moved := *a
	moved.NvmfVolume = a.DeepCopy()
	moved.Spec.Move = move
	rep, why, err := s.placeNext(ctx, &moved)
	if err != nil {
		return outcome{}, err
	}
	if why != "" {
		return cannot(why)
	}
	s.reservations.release(rep.Name, rep.Spec.UUID, a.Spec.Size.Value()) // join places it when the request is stored
	err = s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Move, vol.Spec.Waiting = move, "" })
	if err == nil {
		klog.FromContext(ctx).Info("Replacing a lost replica", "volume", a.Name, "replica", lost.replica, "node", lost.node, "reason", lost.String())
	}
	return changed, err
}

// lostIndeed tells whether the API server says so, too: the cache, by which the time was measured, may have stopped.
func (s *Service) lostIndeed(ctx context.Context, a *arrangement, lost loss) (bool, error) {
	if lost.forGood {
		return true, nil // by the replica, which was read live
	}
	_, down, err := downBy(ctx, s.live, a.replicas[indexOf(a.NvmfVolume, lost.replica)])
	return down, err
}

// served tells whether another replica has everything, stays, and is served by its node as far as weft knows.
func (s *Service) served(ctx context.Context, a *arrangement, but string) bool {
	return slices.ContainsFunc(a.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		if rep == nil || rep.Name == but || retired(rep) || lostData(rep) {
			return false
		}
		_, down := s.downSince(ctx, rep)
		m, is := mirror.Get(*a.record, rep.Name)
		return is && m.ServesAlone(rep) && !down
	})
}

// endReplacement of a lost replica that is in sync or served again, or by one that is lost itself: the volume is then
// as it was before, and the new replica leaves. Once the new one is in sync, or the lost one is leaving, it goes on.
func (s *Service) endReplacement(ctx context.Context, a *arrangement) (outcome, error) {
	move := a.Spec.Move
	if move == nil || move.Reason != v1alpha1.MoveReplicaLost || a.record == nil {
		return outcome{}, nil
	}
	i := indexOf(a.NvmfVolume, move.Replica)
	if i < 0 || isLeaving(&a.replicatedVolume, a.record, i) {
		return outcome{}, nil
	}
	limit, ever := a.ReplaceLostAfter()
	by, lost := s.lossOf(ctx, &a.replicatedVolume, *a.record, move.Replacement)
	inSync := mirror.StateOf(*a.record, move.Replica) == v1alpha1.MemberInSync
	var why string
	switch {
	case mirror.StateOf(*a.record, move.Replacement) == v1alpha1.MemberInSync:
		return outcome{}, nil
	case inSync && a.replicas[i] != nil && !lostData(a.replicas[i]):
		why = "it is in sync again"
	case s.isBack(ctx, a, i):
		why = "its node serves it again, and it lacks less than its replacement"
	case foreign(*a.record, move.Replica):
		why = "the node that uses the volume has refused it, because it may have data that no other replica has"
	case !ever:
		why = "lost replicas of the volume are not to be replaced any more"
	case suspectsRestore(&a.replicatedVolume):
		why = "the agent of a replica suspects that the API was restored to an earlier state"
	case lost && by.due(limit, s.clock.Now()):
		why = "its replacement: " + by.String()
	default:
		return outcome{}, nil
	}
	err := s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Move = nil })
	if err == nil {
		klog.FromContext(ctx).Info("Not replacing a lost replica", "volume", a.Name, "replica", move.Replica, "reason", why)
	}
	return changed, err
}

// foreign tells whether a replica was refused by a holder of the mirror, and may have data that no other one has.
func foreign(record mirror.Record, replica string) bool {
	m, is := mirror.Get(record, replica)
	return is && m.Foreign
}

// isBack tells whether a lost replica is served again and returns by its bitmap. Its holder takes one replica back at a
// time, so it would wait until its replacement has a full copy.
func (s *Service) isBack(ctx context.Context, a *arrangement, i int) bool {
	rep := a.replicas[i]
	m, is := mirror.Get(*a.record, a.Spec.Members[i].Name)
	if rep == nil || !is || string(rep.UID) != m.ReplicaUID || m.LastInSyncEpoch == 0 || lostData(rep) {
		return false
	}
	_, down := s.downSince(ctx, rep)
	return !down
}

// sharesZone tells whether a node is in the zone of another member, although the replica that is lost was not: as long
// as its zone is down, all volumes would gather in one. Once the Node of the lost replica is gone, its zone is not
// known. Then it was another one, if the target has nodes in others.
func (s *Service) sharesZone(ctx context.Context, a *arrangement, node string) (bool, error) {
	zones, err := s.zoneOf(ctx, a.Spec.ZoneKey())
	if err != nil {
		return false, err
	}
	lost := a.Spec.Members[indexOf(a.NvmfVolume, a.Spec.Move.Replica)].Node
	was := []string{zones[lost]}
	if _, known := zones[lost]; !known {
		if was, err = s.zonesOf(ctx, a.Spec.Target, zones); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(a.Spec.Members, func(m v1alpha1.VolumeMember) bool {
		zone := zones[m.Node]
		another := func(other string) bool { return other != "" && other != zone }
		return m.Node != lost && zone != "" && zone == zones[node] && slices.ContainsFunc(was, another)
	}), nil
}
