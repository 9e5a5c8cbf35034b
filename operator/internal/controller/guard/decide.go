// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// SingleReplica says whether volumes that are to have one replica keep their node from being drained.
type SingleReplica string

const (
	// SingleReplicaBlock means that they do, like any volume whose only in-sync replica is there.
	SingleReplicaBlock SingleReplica = "Block"
	// SingleReplicaAllow means that they do not. Their I/O waits until the node is back.
	SingleReplicaAllow SingleReplica = "Allow"
)

// maxNamed bounds the volumes that a message names; the rest is counted.
const maxNamed = 5

// view is all that is decided from.
type view struct {
	node *v1alpha1.NvmfNode
	// exists: there is a Kubernetes Node.
	exists bool
	// cordoned Kubernetes Node: drains cordon a node before they evict.
	cordoned bool
	copies   []copied
	// guards: nodes have guards. The pod is what has the name of this node's, or nil.
	guards bool
	guard  *corev1.Pod
	// single says whether volumes with one replica hold the node.
	single SingleReplica
}

// copied is a replica on the node, and the others of its volume.
type copied struct {
	replica *v1alpha1.NvmfReplica
	// single: the volume is to have one replica. A volume that is not known is taken to have more.
	single bool
	// mirror of the volume, or nil when it has none: then the replica is the only one, as far as is known.
	mirror *v1alpha1.NvmfMirror
	// others are the volume's other replicas, by name, on any node.
	others map[string]other
}

// other replica of a volume.
type other struct {
	replica *v1alpha1.NvmfReplica
	// alive: its Kubernetes Node exists, and its node's agent renews its lease.
	alive bool
	// open: its node may be drained now, or was drained and is still cordoned.
	open bool
}

// decision about a node's guard.
type decision struct {
	// needed: the node has a guard pod and a budget.
	needed bool
	// open: the budget allows evictions.
	open      bool
	condition metav1.Condition
}

// decide is pure. A node is opened only when nothing that a volume needs is on it, and while it is cordoned; with
// annotation AllowEvictionAnnotation always.
func decide(v view) decision {
	is := metav1.Condition{Type: v1alpha1.ConditionEvictable, Status: metav1.ConditionTrue, ObservedGeneration: v.node.Generation}
	switch {
	case len(v.copies) == 0:
		is.Reason, is.Message = v1alpha1.ReasonNotNeeded, "the node stores no replica"
		return decision{condition: is}
	case !v.exists:
		is.Reason, is.Message = v1alpha1.ReasonNotNeeded, "the Kubernetes Node does not exist, so that nothing can be evicted from it"
		return decision{condition: is}
	}
	held, wait, needed := v.held()
	if reason, allowed := v.node.Annotations[v1alpha1.AllowEvictionAnnotation]; allowed {
		is.Reason = v1alpha1.ReasonEvictionAllowed
		is.Message = clip("annotation %s allows evictions (%s), and %s would wait for the node; remove the annotation when the node is back",
			v1alpha1.AllowEvictionAnnotation, text.Clip(reason, 256), text.Plural(len(held)+wait, "volume"))
		return decision{needed: true, open: true, condition: is}
	}
	if len(held) > 0 {
		is.Status, is.Reason = metav1.ConditionFalse, v1alpha1.ReasonOnlyReplica
		if needed {
			is.Reason = v1alpha1.ReasonOnlyInSyncReplica
		}
		is.Message = clip("%s%s would wait for the node if it were drained; to move them, run kubectl weft drain %s; to let them wait, annotate the NvmfNode with %s: %s",
			v.unguarded(), text.Plural(len(held), "volume"), v.node.Name, v1alpha1.AllowEvictionAnnotation, text.Few(held, maxNamed, ", "))
		return decision{needed: true, condition: is}
	}
	is.Reason, is.Message = v1alpha1.ReasonAsExpected, "each volume has an in-sync replica on another node; evictions are allowed while the Kubernetes Node is cordoned"
	if wait > 0 {
		is.Message = clip("%s with one replica would wait for the node, which is allowed; each other volume has an in-sync replica on another node; "+
			"evictions are allowed while the Kubernetes Node is cordoned", text.Plural(wait, "volume"))
	}
	return decision{needed: true, open: v.cordoned, condition: is}
}

// unguarded says that a drain would not be refused, although it should be: Kubernetes evicts pods that do not run, or
// that are being deleted, whatever their budget says.
func (v view) unguarded() string {
	if !v.guards || v.guard != nil && v.guard.Status.Phase == corev1.PodRunning && v.guard.DeletionTimestamp.IsZero() {
		return ""
	}
	return "its guard pod does not run, so that drains are not refused yet; "
}

func clip(format string, args ...any) string {
	return text.Clip(fmt.Sprintf(format, args...), text.MaxEventNote)
}

// held are the volumes that hold the node, each with the reason, in the order of their names, and how many more would
// wait for it but may. It is needed now if one of them is a mirror that is used, and has no other replica in sync.
func (v view) held() (held []string, wait int, needed bool) {
	for _, c := range v.copies {
		waiting, alone := c.waiting(v.node.Name)
		needed = needed || alone && !c.single && c.mirror.Spec.Holder != ""
		switch why := c.holds(waiting); {
		case why == "":
		case c.single && v.single == SingleReplicaAllow:
			wait++
		default:
			held = append(held, c.replica.Spec.Volume.Name+" ("+why+")")
		}
	}
	slices.Sort(held)
	return held, wait, needed
}

// deleted with its data.
func (c copied) deleted() bool { return !c.replica.DeletionTimestamp.IsZero() && c.replica.Marked() }

// own member of the mirror, or nil. One with another UID counts too: objects that were restored have new ones.
func (c copied) own() *v1alpha1.MirrorMember {
	if c.mirror == nil {
		return nil
	}
	at := slices.IndexFunc(c.mirror.Spec.Members, func(m v1alpha1.MirrorMember) bool { return m.Replica == c.replica.Name })
	if at < 0 {
		return nil
	}
	return &c.mirror.Spec.Members[at]
}

// waiting says of a replica in sync why no other one can take its place if the node is drained, or "". It is alone if
// no other one can serve at all.
func (c copied) waiting(node string) (waiting string, alone bool) {
	if own := c.own(); c.deleted() || own == nil || own.State != v1alpha1.MemberInSync {
		return "", false
	}
	waiting, alone = "no other replica is in sync", true
	for i := range c.mirror.Spec.Members {
		m := &c.mirror.Spec.Members[i]
		o := c.others[m.Replica]
		switch {
		case m.Replica == c.replica.Name, !m.ServesAlone(o.replica), o.replica.Spec.Node == node:
		case !o.alive, !meta.IsStatusConditionTrue(o.replica.Status.Conditions, v1alpha1.ConditionReady):
			waiting = "its replica on node " + o.replica.Spec.Node + " is not ready"
		case o.open:
			waiting, alone = "node "+o.replica.Spec.Node+", which has the other replica, is being drained or was not uncordoned", false
		default:
			return "", false
		}
	}
	return waiting, alone
}

// holds says why a replica must stay, or "": another replica has all data and serves it, or this one lacks data, or is
// being deleted with its data. Unknown is not absent: what has no record holds, and so does what may have data that the
// record does not know of.
func (c copied) holds(waiting string) string {
	own := c.own()
	switch {
	case c.deleted():
		return ""
	case c.mirror == nil:
		return "its only replica"
	case own == nil && c.replica.Status.Written:
		return "it may have data, and the record of its mirror does not know it"
	case own == nil:
		return ""
	case waiting != "":
		return waiting
	case own.Foreign:
		return "the node that uses it has refused this replica, which may have data that no other has"
	case c.mirror.Spec.Dirty && c.mirror.Spec.Holder == "" && own.MayBeAhead():
		return "it was not detached cleanly, and needs all its replicas until a pod has used it"
	case own.Suspect:
		return "this replica may have data that no other has, until they have been compared"
	}
	return ""
}
