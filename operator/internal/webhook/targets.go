// SPDX-License-Identifier: Apache-2.0

// Package webhook judges NvmfTargets before they are stored, by what only the cluster shows: whether a node can hold
// them. What the object alone shows is for the CEL rules of the API.
//
// A target that no matching node can hold is refused; one that some cannot hold, or that is not known of
// some, is stored with a warning. So is a change of one that no node could hold before: it makes nothing worse, and may
// mend a part. Nodes may come, and agents report later: what is not known is never read as "cannot". What the webhook
// cannot judge is left to the failurePolicy of its configuration. Only a new spec is looked at, so nothing stands in
// the way of a status, a finalizer or a deletion.
//
// It also makes and renews the webhook's certificate (see Decide).
package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

const (
	// maxTold bounds the groups of nodes whose reasons are told; maxNamed the nodes that each names.
	maxTold, maxNamed = 3, 3
	// maxReasons bounds, in bytes, what is said of one group. The API server cuts warnings when they are over 4096
	// together.
	maxReasons = 900
)

// Targets judges NvmfTargets. It only reads.
type Targets struct {
	// Reader of the cache, as the reconciler's.
	Reader client.Reader
}

var _ admission.Validator[*v1alpha1.NvmfTarget] = &Targets{}

// path that the API server asks at.
const path = "/validate-weft-storage-v1alpha1-nvmftarget"

// SetupWithManager serves it.
func (v *Targets) SetupWithManager(mgr ctrl.Manager) error {
	mgr.GetWebhookServer().Register(path, serve(mgr.GetScheme(), v))
	return nil
}

func serve(scheme *runtime.Scheme, v *Targets) http.Handler {
	return failing(admission.WithValidator(scheme, v))
}

// ValidateCreate judges a new target.
func (v *Targets) ValidateCreate(ctx context.Context, target *v1alpha1.NvmfTarget) (admission.Warnings, error) {
	return v.judge(ctx, nil, target)
}

// ValidateUpdate judges a changed spec.
func (v *Targets) ValidateUpdate(ctx context.Context, old, target *v1alpha1.NvmfTarget) (admission.Warnings, error) {
	if !target.DeletionTimestamp.IsZero() || equality.Semantic.DeepEqual(old.Spec, target.Spec) {
		return nil, nil
	}
	return v.judge(ctx, old, target)
}

// ValidateDelete lets every target go.
func (v *Targets) ValidateDelete(context.Context, *v1alpha1.NvmfTarget) (admission.Warnings, error) {
	return nil, nil
}

// judge a target; old is what it was, nil for a new one.
func (v *Targets) judge(ctx context.Context, old, target *v1alpha1.NvmfTarget) (admission.Warnings, error) {
	targets, nodes, err := v.gather(ctx, old, target)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("cannot check whether a node can serve NvmfTarget %s, because the nodes could not be read: %v", target.Name, err))
	}
	after := claim.Prospects(target, targets, nodes)
	warnings, err := response(target, after, func() bool { // only where no node can hold the target does it matter how it was before
		return old == nil || claim.Worse(claim.Prospects(old, targets, nodes), after)
	})
	if err == nil && old != nil && target.Spec.OverProvisioningPercent < old.Spec.OverProvisioningPercent {
		warnings = append(warnings, overPromised(target, nodes)...)
	}
	return warnings, err
}

// gather all targets, and the nodes that the answer is about: those that the selector chooses, or chose, and those that
// serve the target. It reads all nodes only while a target is being deleted, because whether that keeps an empty node
// depends on whether any other holds data of it.
func (v *Targets) gather(ctx context.Context, old, target *v1alpha1.NvmfTarget) ([]v1alpha1.NvmfTarget, []claim.Node, error) {
	var targets v1alpha1.NvmfTargetList
	if err := v.Reader.List(ctx, &targets); err != nil {
		return nil, nil, fmt.Errorf("list NvmfTargets: %w", err)
	}
	if slices.ContainsFunc(targets.Items, func(t v1alpha1.NvmfTarget) bool { return !t.DeletionTimestamp.IsZero() }) {
		all, err := gather.All(ctx, v.Reader)
		if err != nil {
			return nil, nil, err
		}
		return all.Targets, gather.Claims(all.Nodes), nil
	}
	var selectors []labels.Selector
	for _, t := range []*v1alpha1.NvmfTarget{old, target} {
		if t == nil {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(&t.Spec.NodeSelector); err == nil { // one that cannot be read chooses nothing
			selectors = append(selectors, s)
		}
	}
	some, err := gather.Some(ctx, v.Reader, func(kube *corev1.Node, nvmf *v1alpha1.NvmfNode) bool {
		return nvmf != nil && nvmf.Spec.Target == target.Name ||
			kube != nil && slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(kube.Labels)) })
	})
	return targets.Items, gather.Claims(some), err
}

// overPromised warns of pools of which more is promised already than a lowered percentage allows.
func overPromised(target *v1alpha1.NvmfTarget, nodes []claim.Node) admission.Warnings {
	var pools []string
	for _, n := range nodes {
		if n.Nvmf != nil && n.Nvmf.Spec.Target == target.Name {
			pools = append(pools, n.OverPromised(target.Spec.OverProvisioningPercent)...)
		}
	}
	if len(pools) == 0 {
		return nil
	}
	return admission.Warnings{fmt.Sprintf("spec.overProvisioningPercent %d is less than what is already promised in %d pool(s): %s; volumes there stay available, but the pools accept nothing new",
		target.Spec.OverProvisioningPercent, len(pools), text.Few(pools, maxNamed, ", "))}
}

// response to a target, from how each node would fare with it. It asks whether that is worse than what is stored only
// when this decides.
func response(target *v1alpha1.NvmfTarget, prospects []claim.Prospect, worse func() bool) (admission.Warnings, error) {
	matching := slices.DeleteFunc(slices.Clone(prospects), func(p claim.Prospect) bool { return !p.Matches })
	if len(matching) == 0 {
		return admission.Warnings{"no node matches spec.nodeSelector yet " + claim.LabelNodes(&target.Spec.NodeSelector)}, nil
	}
	cannot, unknown := with(matching, claim.CannotHold), with(matching, claim.Unknown)
	if len(cannot) == len(matching) && worse() {
		return nil, errors.New("no matching node can serve this target: " + strings.Join(told(cannot), "; ") +
			"; run kubectl weft plan -f FILE for details")
	}
	var warnings admission.Warnings
	if len(cannot) == len(matching) {
		warnings = append(warnings, "no matching node can serve this target, and none could serve it before; the change is accepted, and nodes that serve the target keep their plan")
	}
	for _, words := range told(cannot) {
		warnings = append(warnings, fmt.Sprintf("%d of %d matching nodes cannot serve this target: %s", len(cannot), len(matching), words))
	}
	for _, words := range told(unknown) {
		warnings = append(warnings, fmt.Sprintf("it is unknown whether %d of %d matching nodes can serve this target: %s", len(unknown), len(matching), words))
	}
	return warnings, nil
}

func with(prospects []claim.Prospect, v claim.Verdict) []claim.Prospect {
	return slices.DeleteFunc(slices.Clone(prospects), func(p claim.Prospect) bool { return p.Verdict != v })
}

// told says why, once for the nodes that have the same reasons; of the first few such groups, and then how many nodes
// more.
func told(prospects []claim.Prospect) []string {
	var order []string
	nodes := map[string][]string{}
	for _, p := range prospects {
		why := reasons(p)
		if nodes[why] == nil {
			order = append(order, why)
		}
		nodes[why] = append(nodes[why], p.Node)
	}
	var words []string
	rest := len(prospects)
	for _, why := range order[:min(len(order), maxTold)] {
		words = append(words, text.Few(nodes[why], maxNamed, ", ")+": "+why)
		rest -= len(nodes[why])
	}
	if rest > 0 {
		words = append(words, fmt.Sprintf("and %d more, for other reasons", rest))
	}
	return words
}

func reasons(p claim.Prospect) string {
	words := make([]string, len(p.Reasons))
	for i, r := range p.Reasons {
		// Sizing names the node where that helps; nodes are told together here.
		words[i] = r.Reason + ": " + strings.ReplaceAll(r.Message, "node "+p.Node, "the node")
	}
	return text.Clip(strings.Join(words, "; "), maxReasons)
}
