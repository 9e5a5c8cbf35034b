// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
	"github.com/weft-storage/weft/operator/internal/claim"
)

const (
	// maxNamedVolumes and maxNamedNodes bound what a message names; the rest is counted.
	maxNamedVolumes = 10
	maxNamedNodes   = 3
)

// rule gives a condition that has no type and no time yet, or nil when it has nothing to say.
type rule func(observation) *metav1.Condition

func isTrue(reason, message string) *metav1.Condition {
	return &metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func isFalse(reason, message string) *metav1.Condition {
	return &metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// conditions are all that an NvmfTarget owns, always: Ready and AuthenticationReady (True is well), Progressing and
// Degraded (False is well).
func conditions(o observation) []metav1.Condition {
	return []metav1.Condition{
		condition(v1alpha1.ConditionReady, o, deletingNotReady, selectorNotReady, nothingMatches, nothingCapable, someNotReady, servesAsExpected),
		condition(v1alpha1.ConditionProgressing, o, dataRemains, lettingGo, rollingOut, waitsForNodes, podsOutdated, nothingUnderWay),
		condition(v1alpha1.ConditionDegraded, o, someDegraded, someNotTuned, someOverPromised, nothingDegraded),
		condition(v1alpha1.ConditionAuthenticationReady, o, authenticationDisabled, someCannotAuthenticate, allAuthenticate),
	}
}

// condition asks the rules in order; the last one always answers.
func condition(kind string, o observation, rules ...rule) metav1.Condition {
	for _, r := range rules {
		if c := r(o); c != nil {
			c.Type = kind
			return *c
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPending}
}

func deletingNotReady(o observation) *metav1.Condition {
	if o.target.DeletionTimestamp.IsZero() {
		return nil
	}
	return isFalse(v1alpha1.ReasonDeleting,
		"the target is being deleted; its volumes stay available until they are deleted")
}

func selectorNotReady(o observation) *metav1.Condition {
	if o.placed.SelectorError == nil {
		return nil
	}
	return isFalse(v1alpha1.ReasonInvalidSelector,
		fmt.Sprintf("spec.nodeSelector is not valid, so no node is claimed or released; use the syntax of a Deployment's selector: %v", o.placed.SelectorError))
}

func nothingMatches(o observation) *metav1.Condition {
	if len(o.placed.Matching) > 0 {
		return nil
	}
	return isFalse(v1alpha1.ReasonNoNodeMatches,
		"no node matches spec.nodeSelector "+claim.LabelNodes(&o.target.Spec.NodeSelector)+keptNote(o))
}

func nothingCapable(o observation) *metav1.Condition {
	switch {
	case len(o.placed.Capable) > 0:
		return nil
	case len(o.unreported()) == len(o.placed.Matching):
		return isFalse(v1alpha1.ReasonPending,
			"waiting for the first report of the agents on "+text.Few(o.unreported(), maxNamedNodes, ", "))
	}
	return isFalse(v1alpha1.ReasonNoNodeCapable,
		fmt.Sprintf("none of %s is capable: %s", text.Plural(len(o.placed.Matching), "matching node"), o.whyNotCapable()))
}

func someNotReady(o observation) *metav1.Condition {
	failed, waiting := o.with(failing), o.with(pending)
	switch {
	case len(failed) > 0:
		return isFalse(v1alpha1.ReasonNodesNotReady,
			fmt.Sprintf("%d of %s not ready: %s", len(failed)+len(waiting), text.Plural(len(o.placed.Capable), "capable node"), whyNotReady(slices.Concat(failed, waiting))))
	case len(waiting) > 0:
		return isFalse(v1alpha1.ReasonPending,
			fmt.Sprintf("%d of %s not ready yet: %s", len(waiting), text.Plural(len(o.placed.Capable), "capable node"), whyNotReady(waiting)))
	}
	return nil
}

func servesAsExpected(o observation) *metav1.Condition {
	return isTrue(v1alpha1.ReasonAsExpected,
		fmt.Sprintf("%d of %s serving", len(o.placed.Capable), text.Plural(len(o.placed.Matching), "matching node"))+keptNote(o))
}

func dataRemains(o observation) *metav1.Condition {
	if o.target.DeletionTimestamp.IsZero() || len(o.volumes)+len(o.snapshots) == 0 {
		return nil
	}
	var parts []string
	if n := len(o.volumes); n > 0 {
		parts = append(parts, fmt.Sprintf("%s: %s", text.Plural(n, "volume"), text.Few(o.volumes, maxNamedVolumes, ", ")))
	}
	if n := len(o.snapshots); n > 0 {
		parts = append(parts, fmt.Sprintf("%s: %s", text.Plural(n, "snapshot"), text.Few(o.snapshots, maxNamedVolumes, ", ")))
	}
	return isTrue(v1alpha1.ReasonVolumesRemain,
		fmt.Sprintf("cannot delete the target while %s exist; delete their PersistentVolumeClaims and VolumeSnapshots", strings.Join(parts, ", and ")))
}

func lettingGo(o observation) *metav1.Condition {
	if o.target.DeletionTimestamp.IsZero() {
		return nil
	}
	return isTrue(v1alpha1.ReasonDeleting, "no volumes left; releasing the nodes")
}

func waitsForNodes(o observation) *metav1.Condition {
	names := o.unreported()
	for _, n := range o.nodes {
		if n.health.state == pending {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return isTrue(v1alpha1.ReasonPending,
		"waiting for the agents or target pods of "+text.Few(slices.Compact(names), maxNamedNodes, ", "))
}

// rollingOut: nodes have a turn, or wait for one. What keeps a turn from ending, or from being given, is told.
func rollingOut(o observation) *metav1.Condition {
	var tell []string
	for name, c := range o.gate.Conditions {
		switch c.Reason {
		case v1alpha1.ReasonUpdating, v1alpha1.ReasonWaitingForTurn, v1alpha1.ReasonRolloutPaused:
			tell = append(tell, name)
		}
	}
	slices.Sort(tell)
	told := map[string][]string{}
	for _, name := range tell {
		c := o.gate.Conditions[name]
		told[c.Reason] = append(told[c.Reason], fmt.Sprintf("%s (%s)", name, c.Message))
	}
	updating, waiting, paused := told[v1alpha1.ReasonUpdating], told[v1alpha1.ReasonWaitingForTurn], told[v1alpha1.ReasonRolloutPaused]
	var unwell []string
	for _, name := range slices.Sorted(maps.Keys(o.gate.Unwell)) {
		unwell = append(unwell, fmt.Sprintf("%s (%s)", name, o.gate.Unwell[name]))
	}
	parts := []string{fmt.Sprintf("%d of %s updated", o.gate.Updated, text.Plural(len(o.gate.Conditions), "node"))}
	for _, list := range []struct {
		words string
		nodes []string
	}{{"in turn", updating}, {"not serving", unwell}, {"waiting", waiting}, {"paused", paused}} {
		if len(list.nodes) > 0 {
			parts = append(parts, list.words+": "+text.Few(list.nodes, maxNamedNodes, ", "))
		}
	}
	message := strings.Join(parts, "; ")
	switch {
	case len(paused) > 0:
		return isTrue(v1alpha1.ReasonRolloutPaused, message)
	case len(updating) > 0:
		return isTrue(v1alpha1.ReasonUpdating, message)
	case len(waiting) > 0:
		return isTrue(v1alpha1.ReasonWaitingForTurn, message)
	}
	return nil
}

// podsOutdated: they serve, and are the user's to delete.
func podsOutdated(o observation) *metav1.Condition {
	var names []string
	for _, n := range o.nodes {
		if n.podOutdated {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return isTrue(v1alpha1.ReasonPodOutdated,
		fmt.Sprintf("%d of %s with an outdated plan or image: %s; delete the pods when a short I/O pause is acceptable (updateStrategy OnDelete)",
			len(names), text.Plural(len(o.nodes), "target pod"), text.Few(names, maxNamedNodes, ", ")))
}

func nothingUnderWay(observation) *metav1.Condition {
	return isFalse(v1alpha1.ReasonAsExpected, "no changes in progress")
}

func someDegraded(o observation) *metav1.Condition {
	unready := slices.Concat(o.with(failing), o.with(pending))
	var parts []string
	reason := v1alpha1.ReasonNodesNotReady
	if n := len(o.placed.NotCapable); n > 0 {
		reason = v1alpha1.ReasonNodesNotCapable
		parts = append(parts, fmt.Sprintf("%d of %s not capable: %s", n, text.Plural(len(o.placed.Matching), "matching node"), o.whyNotCapable()))
	}
	if len(unready) > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s not ready: %s", len(unready), text.Plural(len(o.placed.Capable), "capable node"), whyNotReady(unready)))
	}
	if len(parts) == 0 {
		return nil
	}
	if len(o.with(failing)) == 0 && len(o.unreported()) == len(o.placed.NotCapable) {
		reason = v1alpha1.ReasonPending // only agents are waited for
	}
	return isTrue(reason, strings.Join(parts, "; "))
}

// someNotTuned: they serve, but not with the settings of spec.tuning.
func someNotTuned(o observation) *metav1.Condition {
	var names []string
	reason := ""
	for _, n := range o.nodes {
		if n.untuned != nil {
			reason = cmp.Or(reason, n.untuned.Reason)
			names = append(names, fmt.Sprintf("%s (%s: %s)", n.name, n.untuned.Reason, n.untuned.Message))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return isTrue(reason,
		fmt.Sprintf("%d of %s without the requested tuning: %s", len(names), text.Plural(len(o.nodes), "serving node"), text.Few(names, maxNamedNodes, ", ")))
}

// someOverPromised: they serve what they have, and take nothing new.
func someOverPromised(o observation) *metav1.Condition {
	if len(o.overPromised) == 0 {
		return nil
	}
	return isTrue(v1alpha1.ReasonOverPromised,
		fmt.Sprintf("%s promised more than spec.overProvisioningPercent allows: %s; existing volumes are not affected, but nothing new is accepted: delete volumes or snapshots, add a drive, or raise the percentage",
			text.Plural(len(o.overPromised), "pool"), text.Few(o.overPromised, maxNamedNodes, ", ")))
}

func authenticationDisabled(o observation) *metav1.Condition {
	if o.target.Spec.Authentication() != v1alpha1.AuthenticationDisabled {
		return nil
	}
	return isTrue(v1alpha1.ReasonNotNeeded, "security.authentication is Disabled")
}

// someCannotAuthenticate: where that is required, volumes are not attached there; else they are, without it.
func someCannotAuthenticate(o observation) *metav1.Condition {
	var parts []string
	if n := len(o.unable.storage); n > 0 {
		parts = append(parts, fmt.Sprintf("%s cannot authenticate hosts: %s", text.Plural(n, "storage node"), text.Few(o.unable.storage, maxNamedNodes, ", ")))
	}
	if n := len(o.unable.hosts); n > 0 {
		parts = append(parts, fmt.Sprintf("%s cannot authenticate when using volumes: %s", text.Plural(n, "node"), text.Few(o.unable.hosts, maxNamedNodes, ", ")))
	}
	if len(parts) == 0 {
		return nil
	}
	message := strings.Join(parts, "; ")
	if o.target.Spec.Authentication() == v1alpha1.AuthenticationRequired {
		return isFalse(v1alpha1.ReasonNodesCannotAuthenticate, message+"; no volumes are attached there (security.authentication is Required)")
	}
	return isTrue(v1alpha1.ReasonNodesCannotAuthenticate, message+"; volumes are attached there without authentication")
}

func allAuthenticate(observation) *metav1.Condition {
	return isTrue(v1alpha1.ReasonAsExpected, "all nodes that serve the target or use volumes can authenticate")
}

func nothingDegraded(o observation) *metav1.Condition {
	if len(o.placed.Matching) == 0 {
		return isFalse(v1alpha1.ReasonAsExpected, "no node matches, so none is degraded")
	}
	return isFalse(v1alpha1.ReasonAsExpected, "all matching nodes are capable and ready")
}

// unreported lists the matching nodes whose agent has not told their inventory.
func (o observation) unreported() []string {
	var names []string
	for _, n := range o.placed.NotCapable {
		if n.Reason == v1alpha1.ReasonNoInventory {
			names = append(names, n.Node)
		}
	}
	return names
}

// whyNotCapable names the first nodes with their reasons; status.notCapable has the messages.
func (o observation) whyNotCapable() string {
	var parts []string
	for _, n := range o.placed.NotCapable {
		parts = append(parts, fmt.Sprintf("%s (%s)", n.Node, n.Reason))
	}
	return text.Few(parts, maxNamedNodes, ", ")
}

func whyNotReady(nodes []servingNode) string {
	var parts []string
	for _, n := range nodes {
		parts = append(parts, fmt.Sprintf("%s (%s: %s)", n.name, n.health.reason, n.health.message))
	}
	return text.Few(parts, maxNamedNodes, ", ")
}

// keptNote tells of nodes that serve without matching.
func keptNote(o observation) string {
	if len(o.placed.Kept) == 0 {
		return ""
	}
	return fmt.Sprintf("; also serving until their last volume is deleted, although they no longer match: %s", text.Few(o.placed.Kept, maxNamedNodes, ", "))
}
