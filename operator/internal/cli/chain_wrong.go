// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// wrong with the volume, from the claim down to the drives, and then up to the pods.
func (c *chain) wrong() []Problem {
	said := slices.Concat(c.wrongClaim(), c.wrongVolume())
	if c.v != nil {
		for _, m := range c.members {
			said = append(said, c.wrongReplica(m)...)
		}
		said = append(said, c.wrongNodes()...)
		for i := range c.v.Spec.Attachments {
			said = append(said, c.wrongAttachment(&c.v.Spec.Attachments[i])...)
		}
	}
	for i := range c.attached {
		said = append(said, wrongRequest(&c.attached[i])...)
	}
	for i := range c.pods {
		p := reportPod(&c.pods[i])
		switch container, why := lacksImage(&c.pods[i]); {
		case container != "":
			said = append(said, Problem{Message: fmt.Sprintf("pod %s waits: the image of container %s cannot be pulled (this is not a problem of the volume): %s", p.Name, container, why)})
		case p.Waiting != "":
			said = append(said, Problem{fmt.Sprintf("pod %s waits: %s", p.Name, p.Waiting), "see " + pagePod})
		}
	}
	return said
}

// wrongClaim tells of a claim without its PersistentVolume, or the other way round.
func (c *chain) wrongClaim() []Problem {
	if c.claim == nil {
		if c.claimKey.Name == "" || c.pv == nil || c.pv.Status.Phase != corev1.VolumeReleased {
			return nil
		}
		return []Problem{{fmt.Sprintf("claim %s was deleted, and its volume was kept", c.claimKey), "see docs/tasks/reuse-a-volume.md, or docs/tasks/delete-a-volume.md"}}
	}
	switch {
	case c.claim.DeletionTimestamp != nil:
		return []Problem{{fmt.Sprintf("claim %s is being deleted", c.claimKey), "see " + pageTerminating}}
	case c.claim.Status.Phase == corev1.ClaimLost || c.claim.Spec.VolumeName != "" && c.pv == nil:
		return []Problem{{fmt.Sprintf("the PersistentVolume %s of claim %s does not exist", c.claim.Spec.VolumeName, c.claimKey), "see " + pageRecover}}
	case c.claim.Status.Phase != corev1.ClaimBound:
		return []Problem{{fmt.Sprintf("claim %s is not bound to a volume yet%s", c.claimKey, c.whyUnbound()), "see " + pagePending}}
	}
	for _, condition := range c.claim.Status.Conditions {
		if condition.Type == corev1.PersistentVolumeClaimFileSystemResizePending || condition.Type == corev1.PersistentVolumeClaimResizing {
			return []Problem{{fmt.Sprintf("claim %s: %s since %s", c.claimKey, condition.Type, duration.HumanDuration(c.now.Sub(condition.LastTransitionTime.Time))), "see docs/tasks/grow-a-volume.md"}}
		}
	}
	return nil
}

// whyUnbound is the claim without a volume, after a colon; "" if nothing says it.
func (c *chain) whyUnbound() string {
	why := ""
	if c.classes != nil {
		why = lacksClass(c.claim, c.classes.Items)
	}
	return cmp.Or(why, restoring(c.claim), lastFailure(c.events, c.claim.UID))
}

// wrongVolume tells what the NvmfVolume itself lacks.
func (c *chain) wrongVolume() []Problem {
	v := c.v
	if v == nil {
		if c.pv == nil {
			return nil
		}
		return []Problem{{fmt.Sprintf("NvmfVolume %s of PersistentVolume %s does not exist", c.pv.Spec.CSI.VolumeHandle, c.pv.Name), "see " + pageRecover}}
	}
	var said []Problem
	switch {
	case v.DeletionTimestamp != nil && !v.Marked():
		said = append(said, Problem{fmt.Sprintf("NvmfVolume %s was deleted without a deletion mark: its data stays on its nodes", v.Name), "see " + pageRecover})
	case v.DeletionTimestamp != nil:
		said = append(said, Problem{fmt.Sprintf("NvmfVolume %s is being deleted", v.Name), "see " + pageTerminating})
	}
	if v.Spec.Waiting != "" {
		said = append(said, Problem{fmt.Sprintf("the volume has %d of %d replicas, and waits: %s", len(v.Spec.Members), v.Spec.Replicas, v.Spec.Waiting), "see " + pageReplicas})
	}
	if v.Spec.Move != nil && v.Spec.Move.Waiting != "" {
		said = append(said, Problem{fmt.Sprintf("the move of replica %s waits: %s", v.Spec.Move.Replica, v.Spec.Move.Waiting), "see " + pageMove})
	}
	if m := find(c.mirrors, func(m *v1alpha1.NvmfMirror) bool { return m.Name == v.Name }); m != nil && m.Spec.MoverWaiting != "" {
		said = append(said, Problem{fmt.Sprintf("node %s, which copies between replicas, waits: %s", m.Spec.HolderNode, m.Spec.MoverWaiting), "see " + pageReplicas})
	}
	return said
}

// wrongReplica tells of a replica that does not exist, is not as it should be, or lacks data.
func (c *chain) wrongReplica(m v1alpha1.VolumeMember) []Problem {
	r := c.replica(m.Name)
	if r == nil {
		return []Problem{{fmt.Sprintf("replica %s on node %s does not exist", m.Name, m.Node), advice(v1alpha1.ReasonVolumeLost)}}
	}
	var said []Problem
	for _, condition := range amiss(r.Status.Conditions) {
		said = append(said, Problem{fmt.Sprintf("replica %s on node %s: %s is %s: %s: %s", m.Name, m.Node, condition.Type, condition.Status, condition.Reason, condition.Message), advice(condition.Reason)})
	}
	if member := c.mirrorMember(c.v.Name, m.Name); member != nil && member.State != v1alpha1.MemberInSync && !c.asMoved(c.v.Name, *member) {
		state, detail := c.dataOf(m.Name)
		said = append(said, Problem{strings.TrimSpace(fmt.Sprintf("replica %s on node %s is %s %s", m.Name, m.Node, state, detail)), "see " + pageReplicas})
	}
	if p := c.poolOf(r); p != nil && p.Reason != "" {
		said = append(said, Problem{fmt.Sprintf("pool %s of node %s, which stores replica %s: %s: %s", p.Device, m.Node, m.Name, p.Reason, p.Message), advice(p.Reason)})
	}
	return said
}

// wrongNodes tells of storage nodes that do not serve as they should, each once.
func (c *chain) wrongNodes() []Problem {
	var said []Problem
	var seen []string
	for _, m := range c.members {
		if slices.Contains(seen, m.Node) {
			continue
		}
		seen = append(seen, m.Node)
		n := c.node(m.Node)
		if n == nil {
			said = append(said, Problem{fmt.Sprintf("storage node %s has no NvmfNode: its agent has not reported", m.Node), advice(v1alpha1.ReasonAgentSilent)})
			continue
		}
		for _, condition := range amiss(relevant(*n)) {
			said = append(said, Problem{fmt.Sprintf("storage node %s: %s is %s: %s: %s", n.Name, condition.Type, condition.Status, condition.Reason, condition.Message), advice(condition.Reason)})
		}
		said = append(said, c.wrongMachine(m.Node, "storage node")...)
	}
	return said
}

// conditionsOfUsers are the conditions of a Kubernetes Node that keep its pods from volumes while they are True.
var conditionsOfUsers = []corev1.NodeConditionType{v1alpha1.ConditionInitiatorStuck, v1alpha1.ConditionNodeVersionSkew}

// wrongMachine tells of a Kubernetes Node that is gone or not ready.
func (c *chain) wrongMachine(name, as string) []Problem {
	node := c.machines[name]
	if node == nil {
		if slices.ContainsFunc(c.unread, func(u string) bool { return strings.HasPrefix(u, "Node "+name+":") }) {
			return nil
		}
		return []Problem{{fmt.Sprintf("%s %s: the Kubernetes Node does not exist", as, name), "see " + pageLostNode}}
	}
	ready := v1alpha1.NodeCondition(node, corev1.NodeReady)
	if ready != nil && ready.Status != corev1.ConditionTrue {
		return []Problem{{fmt.Sprintf("%s %s: the Kubernetes Node is not Ready: %s: %s", as, name, ready.Reason, ready.Message), "see " + pageLostNode}}
	}
	return nil
}

// wrongAttachment tells what keeps a node from the volume that is attached to it.
func (c *chain) wrongAttachment(h *v1alpha1.VolumeHost) []Problem {
	said := c.wrongMachine(h.Node, "node")
	if node := c.machines[h.Node]; node != nil {
		for _, kind := range c.conditionsThatMatter() {
			if is := v1alpha1.NodeCondition(node, kind); is != nil && is.Status == corev1.ConditionTrue {
				said = append(said, Problem{fmt.Sprintf("node %s: %s: %s", h.Node, kind, is.Message), advice(is.Reason)})
			}
		}
		if string(node.UID) != h.NodeUID && node.UID != "" && h.NodeUID != "" {
			said = append(said, Problem{fmt.Sprintf("node %s is another machine than the one that the volume was attached to", h.Node), "see " + pageLostNode})
		}
	}
	if h.VolumeAttachment != "" && !slices.ContainsFunc(c.attached, func(a storagev1.VolumeAttachment) bool { return string(a.UID) == h.VolumeAttachment }) && len(c.unread) == 0 {
		said = append(said, Problem{fmt.Sprintf("the VolumeAttachment of node %s is gone, and the volume is still attached", h.Node), "see " + pageTerminating})
	}
	for _, m := range c.members {
		r := c.replica(m.Name)
		if r == nil {
			continue
		}
		host := r.HostOf(h.AttachmentUUID())
		if host == nil || r.Admitted(host.NQN) != nil {
			continue
		}
		why := "the agent has not reported it"
		if is := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionExported); is != nil && is.Status != metav1.ConditionTrue {
			why = is.Reason + ": " + is.Message
		}
		said = append(said, Problem{fmt.Sprintf("node %s is not admitted to replica %s on node %s: %s", h.Node, m.Name, m.Node, why), "see " + pageIOHangs})
	}
	return said
}

// conditionsThatMatter to a node that uses the volume.
func (c *chain) conditionsThatMatter() []corev1.NodeConditionType {
	kinds := slices.Clone(conditionsOfUsers)
	if c.v.Replicated() {
		kinds = append(kinds, v1alpha1.ConditionMirrorsUnavailable)
	}
	return kinds
}

// wrongRequest tells why a volume cannot be attached or detached.
func wrongRequest(a *storagev1.VolumeAttachment) []Problem {
	var said []Problem
	if e := a.Status.AttachError; e != nil && !a.Status.Attached {
		said = append(said, Problem{fmt.Sprintf("attaching to node %s fails: %s", a.Spec.NodeName, oneLine(e.Message)), "see " + pagePod})
	}
	if e := a.Status.DetachError; e != nil {
		said = append(said, Problem{fmt.Sprintf("detaching from node %s fails: %s", a.Spec.NodeName, oneLine(e.Message)), "see " + pageTerminating})
	}
	return said
}
