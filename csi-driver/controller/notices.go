// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// notice is an Event to be. Key tells what happened from everything else that happened to the volume, and is the same
// whoever notices it.
type notice struct{ kind, reason, note, key string }

// noticesOf a change of an NvmfMirror, NvmfVolume or NvmfReplica, in the order in which they happened. Members are
// those of the volume, which tell where a replica is; one that they lack is called by its name.
func noticesOf(was, is client.Object, members []v1alpha1.VolumeMember) []notice {
	if was.GetUID() != is.GetUID() || is.GetDeletionTimestamp() != nil {
		return nil
	}
	switch is := is.(type) {
	case *v1alpha1.NvmfMirror:
		return memberNotices(was.(*v1alpha1.NvmfMirror), is, places(members))
	case *v1alpha1.NvmfVolume:
		before := was.(*v1alpha1.NvmfVolume)
		return append(moveNotices(before, is), recoveryNotices(before, is)...)
	case *v1alpha1.NvmfReplica:
		return restoreNotices(was.(*v1alpha1.NvmfReplica), is, members)
	}
	return nil
}

// places tells where replicas are.
type places []v1alpha1.VolumeMember

// replica in words.
func (p places) replica(name string) string {
	if node := p.node(name); node != "" {
		return "the replica on node " + node
	}
	return "replica " + name
}

// replicas in words.
func (p places) replicas(names []string) string {
	words := make([]string, len(names))
	for i, name := range names {
		words[i] = p.replica(name)
	}
	return strings.Join(words, " and ")
}

func (p places) node(name string) string {
	if i := slices.IndexFunc(p, func(m v1alpha1.VolumeMember) bool { return m.Name == name }); i >= 0 {
		return p[i].Node
	}
	return ""
}

// memberNotices of a mirror's record. A member that is to leave tells nothing: the move does, of which that is a part.
func memberNotices(was, is *v1alpha1.NvmfMirror, at places) []notice {
	var all []notice
	for _, m := range is.Spec.Members {
		before, ok := mirror.Get(was.Spec, m.Replica)
		refused := m.Foreign && !before.Foreign
		if !ok || before.ReplicaUID != m.ReplicaUID || before.State == m.State && !refused || m.Retired {
			continue
		}
		n := memberNotice(before, m, is.Spec, at)
		if refused {
			n = refusedNotice(m, at)
		}
		if n.reason == "" {
			continue
		}
		// By the time when the state began rather than by the epoch: who misses states in between sees it later. Times
		// are in seconds; a member that returned within one has a fresh identity.
		since := strconv.FormatInt(is.Spec.Epoch, 10)
		if m.Since != nil {
			since = m.Since.UTC().String()
		}
		n.key = strings.Join([]string{string(is.UID), m.ReplicaUID, string(m.State), since, m.Identity}, " ")
		if refused {
			n.key += " " + n.reason
		}
		all = append(all, n)
	}
	return all
}

// progressNotices of the copies of all data to a mirror's members: that a quarter, a half or three quarters of the
// volume's size are copied. A copy by bitmap has none, because it jumps over what the member has.
func progressNotices(was, is *v1alpha1.NvmfMirror, at places, sizeBytes int64) []notice {
	if was.UID != is.UID || is.DeletionTimestamp != nil || sizeBytes <= 0 {
		return nil
	}
	quarters := func(m mirror.Member) int { return int(float64(m.CopiedBytes) / float64(sizeBytes) * 4) }
	var all []notice
	for _, m := range is.Spec.Members {
		before, ok := mirror.Get(was.Spec, m.Replica)
		n := quarters(m)
		same := ok && before.ReplicaUID == m.ReplicaUID && before.State == m.State && before.Since.Equal(m.Since)
		if !same || m.Since == nil || m.State != v1alpha1.MemberFilling || m.Retired || n < 1 || n > 3 || quarters(before) >= n {
			continue
		}
		all = append(all, notice{
			kind: corev1.EventTypeNormal, reason: v1alpha1.ReasonReplicaCopying, note: fmt.Sprintf("%d %% of the data is copied to %s", 25*n, at.replica(m.Replica)),
			key: strings.Join([]string{string(is.UID), m.ReplicaUID, v1alpha1.ReasonReplicaCopying, m.Since.UTC().String(), m.Identity, strconv.Itoa(n)}, " "),
		})
	}
	return all
}

// memberNotice of a member whose state has changed, without its key; empty if nobody needs to be told.
func memberNotice(before, m mirror.Member, record mirror.Record, at places) notice {
	replica := at.replica(m.Replica)
	switch m.State {
	case v1alpha1.MemberInSync:
		return notice{kind: corev1.EventTypeNormal, reason: v1alpha1.ReasonReplicaInSync,
			note: fmt.Sprintf("%s is in sync: it has every acknowledged write; replicas in sync: %d of %d", replica, len(mirror.InSync(record)), len(record.Members))}
	case v1alpha1.MemberOut:
		if before.State != v1alpha1.MemberInSync && m.Reason == mirror.ReasonUnconfirmed {
			return notice{} // the copy to it ended with the attachment, and begins again with the next
		}
		return notice{kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonReplicaLost,
			note: fmt.Sprintf("%s is no longer used: %s; volume goes on with %s. It is taken back automatically once node %s can be reached and its target serves it. "+
				"If the node stays down, the replica is replaced by one on another node after the time that the StorageClass sets (replaceLostReplicaAfter); "+
				"to replace it earlier, use kubectl weft move",
				replica, whyOut(m.Reason), at.replicas(mirror.InSync(record)), orThe(at.node(m.Replica)))}
	case v1alpha1.MemberReturning, v1alpha1.MemberFilling:
		gets := "it gets what was written meanwhile"
		switch {
		case m.Reason == mirror.ReasonKept:
			gets = "the node that uses the volume never disconnected it, and now has no other replica"
		case m.State == v1alpha1.MemberFilling:
			gets = "it gets a full copy, because what it lacks is not known"
		}
		return notice{kind: corev1.EventTypeNormal, reason: v1alpha1.ReasonReplicaReturning, note: replica + " returns: " + gets}
	}
	return notice{}
}

// refusedNotice of a member that the holder does not take back, without its key.
func refusedNotice(m mirror.Member, at places) notice {
	return notice{kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonReplicaRefused,
		note: at.replica(m.Replica) + " is not taken back: it has a history that the record of the volume's replicas does not know, and may have data that no other replica has. " +
			"It is not replaced automatically; decide what becomes of it (docs/troubleshooting/replica-missing.md)"}
}

func orThe(node string) string {
	if node == "" {
		return "that stores it"
	}
	return node
}

// whyOut is why a member is out, in words.
func whyOut(reason string) string {
	switch reason {
	case mirror.ReasonLost:
		return "it did not answer, or it answered with errors"
	case mirror.ReasonUnconfirmed:
		return "it did not confirm in time that the former attachment is off"
	case mirror.ReasonUndeclared:
		return "another replica was declared current"
	case mirror.ReasonBehind:
		return "the record of the replicas was recovered, and this one is not current"
	case mirror.ReasonUnreachable:
		return "the node that uses the volume could not connect to it"
	case mirror.ReasonKicked:
		return "the node that used the volume before had gone on without it"
	}
	return reason
}

// moveNotices of a volume whose move was requested, waits or has ended.
func moveNotices(was, is *v1alpha1.NvmfVolume) []notice {
	var all []notice
	add := func(kind, reason, note string) {
		key := strings.Join([]string{string(is.UID), reason, strconv.FormatInt(is.Generation, 10)}, " ")
		all = append(all, notice{kind: kind, reason: reason, note: note, key: key})
	}
	before, now := was.Spec.Move, is.Spec.Move
	if before != nil && (now == nil || now.Replica != before.Replica) {
		from := places(was.Spec.Members).replica(before.Replica)
		switch to := places(is.Spec.Members).node(before.Replacement); {
		case indexOf(is, before.Replica) >= 0:
			add(corev1.EventTypeNormal, v1alpha1.ReasonMoveCanceled, "move was canceled: "+from+" stays")
		case to != "":
			add(corev1.EventTypeNormal, v1alpha1.ReasonMoveFinished, "move is complete: "+from+" was replaced by the replica on node "+to)
		default:
			add(corev1.EventTypeNormal, v1alpha1.ReasonMoveFinished, "move is complete: "+from+" was removed")
		}
		before = nil
	}
	if now == nil {
		return all
	}
	replica := places(is.Spec.Members).replica(now.Replica)
	if before == nil || before.Node != now.Node {
		to := "another node, which the CSI controller chooses"
		if now.Node != "" {
			to = "node " + now.Node
		}
		note := replica + " moves to " + to
		if now.Reason == v1alpha1.MoveReplicaLost {
			note = replica + " is lost, and is replaced by a new one on " + to
		}
		add(corev1.EventTypeNormal, v1alpha1.ReasonMoveStarted, note)
	}
	if now.Waiting != "" && (before == nil || before.Waiting != now.Waiting) {
		add(corev1.EventTypeWarning, v1alpha1.ReasonMoveWaiting, "move of "+replica+" waits: "+now.Waiting)
	}
	return all
}

// restoreNotices of a replica whose agent found that the API may have been restored to an earlier state. One that has
// left its volume keeps nobody from using that, and is kept itself.
func restoreNotices(was, is *v1alpha1.NvmfReplica, members []v1alpha1.VolumeMember) []notice {
	if !is.RestoreSuspected() {
		return nil
	}
	i := slices.IndexFunc(is.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == v1alpha1.ReasonRestoreSuspected })
	c := meta.FindStatusCondition(is.Status.Conditions, is.Status.Conditions[i].Type)
	listed := slices.ContainsFunc(members, func(m v1alpha1.VolumeMember) bool { return m.Name == is.Name })
	var all []notice
	if !was.RestoreSuspected() {
		so := ""
		if listed {
			so = ", and the volume cannot be attached again"
		}
		all = append(all, notice{
			kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonRestoreSuspected,
			note: fmt.Sprintf("the agent of node %s changes nothing of replica %s%s: %s", is.Spec.Node, is.Name, so, c.Message),
			key:  strings.Join([]string{string(is.UID), v1alpha1.ReasonRestoreSuspected, c.LastTransitionTime.UTC().String()}, " "),
		})
	}
	if retired(was) && !retired(is) && !listed {
		all = append(all, notice{
			kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonReplicaKept,
			note: fmt.Sprintf("replica %s on node %s has left the volume, but is not deleted: the API may have been restored, and the replica may have data that no other has. "+
				"Once the restore is declared and the volume has all its data, delete the NvmfReplica (docs/troubleshooting/restore-suspected.md)", is.Name, is.Spec.Node),
			key: strings.Join([]string{string(is.UID), v1alpha1.ReasonReplicaKept}, " "), // it is never retired again
		})
	}
	return all
}

// currentUnknown tells that a volume waits for a person: in this epoch of its record, none of the replicas at hand is
// known to have all data. Later attempts in the same epoch tell nothing new.
func currentUnknown(vol *v1alpha1.NvmfVolume, epoch int64, err error) notice {
	return notice{
		kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonCurrentUnknown,
		note: fmt.Sprintf("volume cannot be attached: %v. Start the nodes of its other replicas. If these are lost for good, and you accept that the last writes may be missing, "+
			"choose the replica to go on with: kubectl weft recover %s --current REPLICA --accept-loss --detach", err, commandName(vol.Name)),
		key: strings.Join([]string{string(vol.UID), v1alpha1.ReasonCurrentUnknown, strconv.FormatInt(epoch, 10)}, " "),
	}
}
