// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

// planOptions are the flags of plan.
type planOptions struct {
	file, node, inventory string
	output                *output
	// volumes is a file; empty for none.
	volumes string
	reserve bool
}

func planCommand(at *cluster) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan -f FILE [--node NODE | --inventory FILE] [--volumes FILE]",
		Short: "Show the plan of an NvmfTarget for each node before you apply it",
		Long: `Show how weft would configure each node for the NvmfTargets in a file: all settings with their source and reason, the
memory they need, and warnings. If a target does not fit on a node, the output says why and what would fit. The command
does not change anything.

By default, the command plans for the nodes of the cluster that match the target's nodeSelector. Use --node to plan
for one node. Use --inventory to plan without a cluster, for the nodes in a file: NvmfNodes as printed by
"kubectl get nvmfnode NODE -o yaml", or the short form described in docs/kubectl-weft/plan.md.

Use --volumes to count what volumes and their replicas need on these nodes: capacity, attachments, NVMe controllers and
queue pairs, memory of the targets, and write traffic. The file contains volumes in the short form described in
docs/kubectl-weft/plan.md. With replicas: 2, the plan keeps a reserve, so that the replicas of a lost node can be
created again on the remaining nodes.

Exit codes:
  0  the target fits on all nodes, and the volumes fit
  1  error, including a target that the API server would reject
  2  the target does not fit on a node, or the volumes do not fit
  3  unknown: no node matches, or a node has not reported its hardware yet`,
		Example: `  kubectl weft plan -f target.yaml
  kubectl weft plan -f target.yaml --node storage-1
  kubectl get nvmfnode storage-1 -o yaml >storage-1.yaml
  kubectl weft plan -f target.yaml --inventory storage-1.yaml -o json
  kubectl weft plan -f target.yaml --inventory servers.yaml --volumes volumes.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %s; specify a file of NvmfTargets with -f FILE", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.file == "" {
				return errors.New(`specify a file of NvmfTargets with -f FILE, or "-f -" for standard input`)
			}
			return plan(cmd, at, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", `file that contains NvmfTargets, or "-" for standard input; other objects are ignored`)
	flags.StringVar(&o.node, "node", "", "plan for this node of the cluster, even if the target's nodeSelector does not match it")
	flags.StringVar(&o.inventory, "inventory", "", "plan for the nodes in this file, without a cluster")
	o.output = outputFlag(cmd)
	flags.StringVar(&o.volumes, "volumes", "", "count what the volumes in this file need on the planned nodes")
	flags.BoolVar(&o.reserve, "reserve", true, "with --volumes: keep enough free that the replicas of any one lost node can be created again on the others")
	cmd.MarkFlagsMutuallyExclusive("node", "inventory")
	cmd.MarkFlagsMutuallyExclusive("node", "volumes")
	return cmd
}

// An Answer is what one target comes to on one node; it is what -o json prints.
type Answer struct {
	Target  string        `json:"target"`
	Node    string        `json:"node"`
	Verdict claim.Verdict `json:"verdict"`
	// Matches: the target's nodeSelector chooses the node. Absent when the node's labels are not known.
	Matches *bool `json:"matches,omitempty"`
	// Reasons why the node cannot hold the target, or why that is not known.
	Reasons []Reason       `json:"reasons,omitempty"`
	Plan    *v1alpha1.Plan `json:"plan,omitempty"`
	// Changes to the plan of the target that the node has now. Absent when it has none.
	Changes *PlanChanges `json:"changes,omitempty"`
}

// Reason is one thing that is in the way, and what would mend it.
type Reason struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Answers to all targets of a file.
type Answers struct {
	Plans []Answer `json:"plans"`
	// Volumes that were given, by target.
	Volumes []VolumesAnswer `json:"volumes,omitempty"`
	// Notes on what the answers leave open.
	Notes []string `json:"notes,omitempty"`
}

func plan(cmd *cobra.Command, at *cluster, o planOptions) error {
	docs, err := readDocuments(o.file, cmd.InOrStdin())
	if err != nil {
		return err
	}
	var volumes []document
	if o.volumes != "" {
		if volumes, err = readDocuments(o.volumes, strings.NewReader("")); err != nil {
			return err
		}
	}
	var answers Answers
	if o.inventory != "" {
		answers, err = planOffline(cmd.Context(), docs, volumes, o)
	} else {
		answers, err = planInCluster(cmd.Context(), docs, volumes, at, o)
	}
	if err != nil {
		return err
	}
	if err := answers.print(cmd.OutOrStdout(), o.output); err != nil {
		return err
	}
	return answers.exit()
}

func planOffline(ctx context.Context, docs, volumes []document, o planOptions) (Answers, error) {
	targets, err := targetsOf(ctx, docs, nil)
	if err != nil {
		return Answers{}, err
	}
	wanted, err := volumesOf(volumes, targets)
	if err != nil {
		return Answers{}, err
	}
	have, err := readDocuments(o.inventory, strings.NewReader(""))
	if err != nil {
		return Answers{}, err
	}
	nodes, notes, err := nodesOf(have)
	if err != nil {
		return Answers{}, err
	}
	answers := Answers{Notes: notes}
	for _, t := range targets {
		// A claim cannot be told from a file: whether it lasts is for the other target to say.
		prospects := claim.Prospects(t, nil, nodes)
		for _, p := range prospects {
			answers.Plans = append(answers.Plans, answer(t, p, nil))
		}
		answers.count(volumesQuestion{t, nil, nodes, prospects, wanted, o.reserve})
	}
	return answers, nil
}

func planInCluster(ctx context.Context, docs, volumes []document, at *cluster, o planOptions) (Answers, error) {
	node := o.node
	api, err := at.client()
	if err != nil {
		return Answers{}, err
	}
	all, err := gather.All(ctx, api)
	if err != nil {
		return Answers{}, unread(err)
	}
	targets, err := targetsOf(ctx, docs, all.Targets)
	if err != nil {
		return Answers{}, err
	}
	wanted, err := volumesOf(volumes, targets)
	if err != nil {
		return Answers{}, err
	}
	nodes := gather.Claims(all.Nodes)
	if node != "" && !slices.ContainsFunc(nodes, func(n claim.Node) bool { return n.Name == node }) {
		return Answers{}, fmt.Errorf("node %s not found in the cluster", node)
	}
	var answers Answers
	for _, t := range targets {
		prospects := slices.DeleteFunc(claim.Prospects(t, all.Targets, nodes), func(p claim.Prospect) bool {
			return p.Node != node && (node != "" || !p.Matches)
		})
		for _, p := range prospects {
			answers.Plans = append(answers.Plans, answer(t, p, &p.Matches))
		}
		answers.count(volumesQuestion{t, all.Targets, nodes, prospects, wanted, o.reserve})
		if len(prospects) == 0 {
			answers.Plans = append(answers.Plans, Answer{Target: t.Name, Verdict: claim.Unknown, Reasons: []Reason{{
				v1alpha1.ReasonNoNodeMatches, "no node matches spec.nodeSelector " + claim.LabelNodes(&t.Spec.NodeSelector) + "; or select a node with --node",
			}}})
		}
	}
	return answers, nil
}

// targetsOf reads the NvmfTargets among documents; those that are there already are judged as changes. Two of one name
// are refused: applied, the second would replace the first, so that the first one's plan would be none.
func targetsOf(ctx context.Context, docs []document, there []v1alpha1.NvmfTarget) ([]*v1alpha1.NvmfTarget, error) {
	var (
		targets []*v1alpha1.NvmfTarget
		errs    []error
	)
	first := map[string]string{}
	for _, doc := range docs {
		if doc.GetKind() != "NvmfTarget" {
			continue
		}
		if from, twice := first[doc.GetName()]; twice && doc.GetName() != "" {
			errs = append(errs, fmt.Errorf("%s: NvmfTarget %s is also defined in %s; names must be unique", doc.from, doc.GetName(), from))
			continue
		}
		first[doc.GetName()] = doc.from
		var old *v1alpha1.NvmfTarget
		if i := slices.IndexFunc(there, func(t v1alpha1.NvmfTarget) bool { return t.Name == doc.GetName() }); i >= 0 {
			old = &there[i]
		}
		target, err := admit(ctx, doc, old)
		if err == nil {
			if _, bad := metav1.LabelSelectorAsSelector(&target.Spec.NodeSelector); bad != nil {
				err = fmt.Errorf("%s: NvmfTarget %s: spec.nodeSelector is not valid: %w; use the syntax of a Deployment's selector", doc.from, target.Name, bad)
			}
		}
		errs = append(errs, err)
		targets = append(targets, target)
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("%s contains no NvmfTarget", docs[0].from)
	}
	return targets, errors.Join(errs...)
}

func answer(t *v1alpha1.NvmfTarget, p claim.Prospect, matches *bool) Answer {
	a := Answer{Target: t.Name, Node: p.Node, Verdict: p.Verdict, Matches: matches, Plan: p.Plan}
	for _, r := range p.Reasons {
		a.Reasons = append(a.Reasons, Reason{r.Reason, r.Message})
	}
	if p.Serves && p.Plan != nil {
		a.Changes = changesOf(p.Nvmf, p.Plan)
	}
	return a
}

func (a Answers) print(out io.Writer, format *output) error {
	if done, err := format.encode(out, a); done || err != nil {
		return err
	}
	t := newTable(out)
	for i, plan := range a.Plans {
		if i > 0 {
			t.line("")
		}
		plan.print(t)
	}
	for _, v := range a.Volumes {
		t.line("")
		v.print(t)
	}
	for _, n := range a.Notes {
		t.line("")
		t.line("note: %s", n)
	}
	return t.err
}

// exit is the worst of all, as an exit code.
func (a Answers) exit() error {
	has := func(v claim.Verdict) bool {
		return slices.ContainsFunc(a.Plans, func(p Answer) bool { return p.Verdict == v }) ||
			slices.ContainsFunc(a.Volumes, func(a VolumesAnswer) bool { return a.Verdict == v })
	}
	switch {
	case has(claim.CannotHold):
		return &ExitError{CodeCannotHold}
	case has(claim.Unknown):
		return &ExitError{CodeUnknown}
	}
	return nil
}
