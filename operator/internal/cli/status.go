// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// maxProblemVolumes bounds the volumes that are told one by one; the rest is counted.
	maxProblemVolumes = 10
	// creationTime within which a new volume may have no replicas yet.
	creationTime = time.Minute
)

func statusCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [TARGET | NODE]",
		Short: "Show the status of targets and nodes, and problems",
		Long: `Show all targets, the nodes that serve them, and all problems. Specify the name of an NvmfTarget or of a node to show
details of that object only.

Exit codes:
  0  no problems
  1  error
  2  there are problems`,
		Example: `  kubectl weft status
  kubectl weft status -o wide
  kubectl weft status storage-1`,
		Args: cobra.MaximumNArgs(1),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := at.client()
		if err != nil {
			return err
		}
		s, err := look(cmd.Context(), api, now.Now())
		if err != nil {
			return unread(err)
		}
		s.lookAround(cmd.Context(), api)
		return s.show(cmd.OutOrStdout(), format, args)
	}
	return cmd
}

// show all, or one target or node, and end with the exit code that belongs to it.
func (s *status) show(out io.Writer, format *output, args []string) error {
	t := newTable(out)
	if len(args) > 0 && !slices.Contains(s.names(), args[0]) {
		return fmt.Errorf("NvmfTarget or NvmfNode %s not found; existing objects: %s", args[0], orNone(s.names()))
	}
	s.wide = format.wide()
	switch {
	case !format.forPeople():
		if _, err := format.encode(out, s.report(args)); err != nil {
			return err
		}
	case len(args) == 0:
		s.overview(t)
	default:
		s.about(t, args[0])
	}
	if t.err == nil && s.unwell {
		return &ExitError{CodeUnwell}
	}
	return t.err
}

// status is one look at what weft has.
type status struct {
	now     time.Time
	targets []v1alpha1.NvmfTarget
	nodes   []v1alpha1.NvmfNode
	volumes []v1alpha1.NvmfVolume
	// replicas of all volumes.
	replicas []v1alpha1.NvmfReplica
	mirrors  []v1alpha1.NvmfMirror
	// claims of the volumes as NAMESPACE/NAME, from their PersistentVolumes; nil when these were not read.
	claims map[string]string
	// waiting are claims that do not get a volume of weft, unready the pods of weft that are not Ready.
	waiting []waitingClaim
	unready []unreadyPod
	// imageless says of nodes why the image of their target pod cannot be pulled.
	imageless map[string]string
	// unread is what could not be looked at, and why.
	unread []string
	// unwell: something was printed that is not well.
	unwell bool
	// wide tables are wanted.
	wide bool
}

func look(ctx context.Context, api client.Reader, now time.Time) (*status, error) {
	var (
		targets  v1alpha1.NvmfTargetList
		nodes    v1alpha1.NvmfNodeList
		volumes  v1alpha1.NvmfVolumeList
		replicas v1alpha1.NvmfReplicaList
		mirrors  v1alpha1.NvmfMirrorList
	)
	// Replicas before volumes, which are created before their replicas and go after them.
	for _, list := range []client.ObjectList{&targets, &nodes, &replicas, &volumes, &mirrors} {
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return &status{now: now, targets: targets.Items, nodes: nodes.Items, volumes: volumes.Items, replicas: replicas.Items, mirrors: mirrors.Items}, nil
}

// lookAround reads what is not weft's, but tells whether weft works: claims, and the pods that weft runs in. What may
// not be read is noted.
func (s *status) lookAround(ctx context.Context, api client.Reader) {
	s.readClaims(ctx, api)
	s.explainClaims(ctx, api)
	s.readPods(ctx, api)
	s.explainPods(ctx, api)
}

func (s *status) names() []string {
	var names []string
	for _, t := range s.targets {
		names = append(names, t.Name)
	}
	for _, n := range s.nodes {
		names = append(names, n.Name)
	}
	return names
}

func (s *status) overview(t *table) {
	s.printTargets(t, s.targets)
	t.line("")
	s.printNodes(t, s.nodes)
	s.printCordoned(t, s.nodes)
	s.printRollouts(t, s.targets, s.nodes)
	s.printMoves(t, func(*v1alpha1.NvmfVolume, progress) bool { return true })
	s.printWaiting(t, func(*v1alpha1.NvmfVolume) bool { return true })
	s.printRecoveries(t, func(*v1alpha1.NvmfVolume) bool { return true })
	s.printOldKeys(t, func(*v1alpha1.NvmfVolume) bool { return true })
	s.printProblems(t, s.problems(s.targets, s.nodes, func(string, string) bool { return true }))
}

// about prints all of the target or node of that name, or both; false: there is none.
func (s *status) about(t *table, name string) bool {
	found := false
	for _, target := range s.targets {
		if target.Name == name {
			s.aboutTarget(t, target)
			found = true
		}
	}
	for _, node := range s.nodes {
		if node.Name == name {
			s.aboutNode(t, node)
			found = true
		}
	}
	return found
}

func (s *status) aboutTarget(t *table, target v1alpha1.NvmfTarget) {
	s.printTargets(t, []v1alpha1.NvmfTarget{target})
	nodes := slices.DeleteFunc(slices.Clone(s.nodes), func(n v1alpha1.NvmfNode) bool { return n.Spec.Target != target.Name })
	t.line("")
	s.printNodes(t, nodes)
	for _, n := range target.Status.NotCapable {
		t.line("Node %s cannot serve this target: %s: %s", n.Node, n.Reason, n.Message)
	}
	t.line("")
	s.printConditions(t, target.Status.Conditions)
	s.printClasses(t, nodes)
	s.printCordoned(t, nodes)
	s.printRollouts(t, []v1alpha1.NvmfTarget{target}, nodes)
	s.printMoves(t, func(v *v1alpha1.NvmfVolume, _ progress) bool { return v.Spec.Target == target.Name })
	s.printWaiting(t, func(v *v1alpha1.NvmfVolume) bool { return v.Spec.Target == target.Name })
	s.printRecoveries(t, func(v *v1alpha1.NvmfVolume) bool { return v.Spec.Target == target.Name })
	s.printOldKeys(t, func(v *v1alpha1.NvmfVolume) bool { return v.Spec.Target == target.Name })
	s.printProblems(t, s.problems([]v1alpha1.NvmfTarget{target}, nodes, func(of, _ string) bool { return of == target.Name }))
}

func (s *status) aboutNode(t *table, node v1alpha1.NvmfNode) {
	nodes := []v1alpha1.NvmfNode{node}
	s.printNodes(t, nodes)
	t.line("")
	s.printConditions(t, node.Status.Conditions)
	if len(node.Status.Pools) > 0 {
		t.line("")
		t.columns(poolRows(node))
	}
	s.printClasses(t, nodes)
	s.printCordoned(t, nodes)
	s.printMoves(t, func(_ *v1alpha1.NvmfVolume, p progress) bool { return p.from == node.Name || p.to == node.Name })
	s.printWaiting(t, func(v *v1alpha1.NvmfVolume) bool { return memberOn(v, node.Name) != nil })
	s.printRecoveries(t, func(v *v1alpha1.NvmfVolume) bool { return memberOn(v, node.Name) != nil })
	s.printOldKeys(t, func(v *v1alpha1.NvmfVolume) bool { return memberOn(v, node.Name) != nil })
	if e := node.Status.Engine; e != nil && len(e.Settings) > 0 {
		t.line("")
		t.columns(settingRows(e.Settings))
	}
	if node.Spec.Plan != nil {
		t.line("")
		t.line("Plan of the node:")
		printPlan(t, node.Spec.Plan)
	}
	s.printProblems(t, s.problems(nil, nodes, func(_, on string) bool { return on == node.Name }))
}

// driveCache of a pool's drive; "" when it is not known.
func driveCache(node v1alpha1.NvmfNode, device string) v1alpha1.WriteCache {
	if node.Status.Inventory == nil {
		return ""
	}
	for _, d := range node.Status.Inventory.Drives {
		if d.ID == device {
			return d.WriteCache
		}
	}
	return ""
}

// settingRows are what the target said it runs with, and the plan's value where that is another one.
func settingRows(settings []v1alpha1.EngineSetting) [][]string {
	rows := [][]string{{"RUNS WITH", "VALUE", "PLANNED"}}
	for _, e := range settings {
		rows = append(rows, []string{e.Setting, e.Value, cmp.Or(e.Planned, "same")})
	}
	return rows
}

func (s *status) printTargets(t *table, targets []v1alpha1.NvmfTarget) {
	rows := [][]string{{"TARGET", "ENGINE", "READY", "NODES SERVING", "UPDATED", "VOLUMES", "TOTAL", "PROMISED", "FREE"}}
	if s.wide {
		rows[0] = append(rows[0], "TRANSPORTS", "AUTHENTICATION")
	}
	for _, target := range targets {
		volumes := 0
		for _, v := range s.volumes {
			if v.Spec.Target == target.Name {
				volumes++
			}
		}
		row := []string{
			target.Name, string(target.Spec.Engine), brief(target.Status.Conditions, v1alpha1.ConditionReady),
			fmt.Sprintf("%d of %d", target.Status.Nodes.Ready, target.Status.Nodes.Matching), updated(target), fmt.Sprint(volumes),
			size(target.Status.Capacity.Total), promised(target), size(target.Status.Capacity.Free),
		}
		if s.wide {
			row = append(row, transportsOf(target), string(target.Spec.Authentication()))
		}
		rows = append(rows, row)
	}
	if len(targets) == 0 {
		t.line("No NvmfTargets found.")
		return
	}
	t.columns(rows)
}

// transportsOf a target, in its order.
func transportsOf(target v1alpha1.NvmfTarget) string {
	var types []string
	for _, t := range target.Spec.Transports {
		types = append(types, string(t.Type))
	}
	return orDash(strings.Join(types, ", "))
}

// kernelOf a node, as its agent reported it.
func kernelOf(n v1alpha1.NvmfNode) string {
	if n.Status.Inventory == nil {
		return orUnknown("")
	}
	return orUnknown(n.Status.Inventory.KernelVersion)
}

// updated nodes of those that serve a target.
func updated(target v1alpha1.NvmfTarget) string {
	r := target.Status.Rollout
	of := fmt.Sprintf("%d of %d", r.Updated, r.Updated+r.Outdated)
	if s := target.Spec.UpdateStrategy; s != nil && s.Paused && r.Outdated > 0 {
		of += " (paused)"
	}
	return of
}

// promised of a target's pools, and how much may be where that is not just what there is.
func promised(target v1alpha1.NvmfTarget) string {
	at := size(target.Status.Capacity.Allocated)
	if percent := target.Spec.OverProvisioningPercent; percent > v1alpha1.NoOverProvisioning {
		at += fmt.Sprintf(" (up to %d %%)", percent)
	}
	return at
}

func (s *status) printNodes(t *table, nodes []v1alpha1.NvmfNode) {
	rows := [][]string{{"NODE", "TARGET", "READY", "AGENT", "ENGINE", "REPLICAS", "ATTACHMENTS", "POOLS READY", "FREE", "PORTALS"}}
	if s.wide {
		rows[0] = append(rows[0], "WEFT", "KERNEL")
	}
	for _, n := range nodes {
		replicas, pools := 0, 0
		for _, r := range s.replicas {
			if r.Spec.Node == n.Name {
				replicas++
			}
		}
		for _, p := range n.Status.Pools {
			if p.Ready {
				pools++
			}
		}
		engine := "-"
		if e := n.Status.Engine; e != nil {
			engine = strings.TrimSpace(string(e.Type) + " " + e.Version)
		}
		var portals []string
		for _, p := range n.Status.Portals {
			portals = append(portals, portalOf(p))
		}
		ready := brief(n.Status.Conditions, v1alpha1.ConditionReady)
		if n.Spec.Target == "" {
			ready = "-"
		}
		alive := map[metav1.ConditionStatus]string{metav1.ConditionTrue: "alive", metav1.ConditionFalse: "silent"}[statusOf(n.Status.Conditions, v1alpha1.ConditionAgentAlive)]
		row := []string{
			n.Name, orDash(n.Spec.Target), ready, cmp.Or(alive, "unknown"), engine, ofPossible(int64(replicas), n.Status.Volumes), attachments(n),
			fmt.Sprintf("%d of %d", pools, len(n.Status.Pools)), size(n.Status.Capacity.Free), orDash(strings.Join(portals, ", ")),
		}
		if s.wide {
			row = append(row, orUnknown(n.Status.AgentVersion), kernelOf(n))
		}
		rows = append(rows, row)
	}
	if len(nodes) == 0 {
		t.line("No nodes found.")
		return
	}
	t.columns(rows)
}

// attachments of a node as its agent counts them, and how many are possible.
func attachments(n v1alpha1.NvmfNode) string {
	if n.Status.Attachments == nil {
		return "-"
	}
	return ofPossible(n.Status.Attachments.Used, n.Status.Attachments)
}

// ofPossible is how many there are, of how many there can be.
func ofPossible(used int64, places *v1alpha1.Places) string {
	if places == nil || places.Possible == nil {
		return fmt.Sprint(used)
	}
	return fmt.Sprintf("%d of %d", used, *places.Possible)
}

func (s *status) printConditions(t *table, conditions []metav1.Condition) {
	rows := [][]string{{"CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"}}
	for _, c := range conditions {
		rows = append(rows, []string{c.Type, string(c.Status), c.Reason, duration.HumanDuration(s.now.Sub(c.LastTransitionTime.Time)), c.Message})
	}
	t.columns(rows)
}

// printRollouts tells of nodes that a change which disturbs I/O waits for, or that have their turn. That is work, not
// harm; what keeps it from going on is told among the problems.
func (s *status) printRollouts(t *table, targets []v1alpha1.NvmfTarget, nodes []v1alpha1.NvmfNode) {
	for _, target := range targets {
		is := meta.FindStatusCondition(target.Status.Conditions, v1alpha1.ConditionProgressing)
		if target.Status.Rollout.Outdated > 0 && is != nil {
			t.line("")
			t.line("NvmfTarget %s: %s: %s", target.Name, is.Reason, is.Message)
		}
	}
	first := true
	for _, n := range nodes {
		is := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionUpdated)
		if is == nil || is.Status != metav1.ConditionFalse {
			continue
		}
		if first {
			t.line("")
			t.line("Nodes that are not updated yet:")
			first = false
		}
		t.line("- NvmfNode %s: %s: %s", n.Name, is.Reason, is.Message)
	}
}

func (s *status) printProblems(t *table, problems []string) {
	s.unwell = s.unwell || len(problems) > 0
	t.line("")
	for _, u := range s.unread {
		t.line("Unknown, because it could not be read: %s", u)
	}
	if len(problems) == 0 {
		t.line("No problems found.")
		return
	}
	t.title(red, "Problems:")
	for _, p := range problems {
		t.line("- %s", p)
	}
}

// problems are all conditions that are not well: of these targets and nodes, and of the replicas whose target and node
// concern; and the claims and pods of weft that wait.
func (s *status) problems(targets []v1alpha1.NvmfTarget, nodes []v1alpha1.NvmfNode, concern func(target, node string) bool) []string {
	var said []string
	for _, t := range targets {
		said = append(said, unwell("NvmfTarget "+t.Name, t.Status.Conditions)...)
	}
	for _, n := range nodes {
		said = append(said, s.imageProblem(&n)...)
		said = append(said, unwell("NvmfNode "+n.Name, s.notFollowing(n.Name, relevant(n)))...)
		for _, p := range n.Status.Pools {
			if p.Reason != "" {
				said = append(said, fmt.Sprintf("NvmfNode %s, pool %s: %s: %s", n.Name, p.Device, p.Reason, p.Message))
			}
		}
		for _, d := range n.Status.DroppedDrives {
			if d.Message != "" {
				said = append(said, fmt.Sprintf("NvmfNode %s, spec.droppedDrives %s: %s", n.Name, d.ID, d.Message))
			}
		}
	}
	return slices.Concat(said, s.podProblems(concern), orphans(nodes), s.volumeProblems(concern), s.claimProblems(concern))
}

// volumeProblems are told of the first volumes that have some, the rest is counted.
func (s *status) volumeProblems(concern func(target, node string) bool) []string {
	byVolume := map[string][]string{}
	replicas, volumes := map[string]v1alpha1.NvmfReplica{}, map[string]bool{}
	for _, v := range s.volumes {
		volumes[v.Name] = true
	}
	for _, r := range s.replicas {
		replicas[r.Name] = r
		of := r.Spec.Volume.Name
		if !concern(r.Spec.Target, r.Spec.Node) {
			continue
		}
		if !volumes[of] {
			byVolume[of] = append(byVolume[of], fmt.Sprintf("NvmfVolume %s does not exist, but its NvmfReplica %s on node %s has its data; "+
				"recover it as described in docs/tasks/recover-a-deleted-volume.md", of, r.Name, r.Spec.Node))
		}
		byVolume[of] = append(byVolume[of], unwell(fmt.Sprintf("%s, NvmfReplica %s", s.titled(of), r.Name), s.notFollowing(r.Spec.Node, r.Status.Conditions))...)
	}
	for _, v := range s.volumes {
		deleted := !v.DeletionTimestamp.IsZero()
		isNew := s.now.Sub(v.CreationTimestamp.Time) < creationTime
		for _, m := range v.Spec.Members {
			if _, exists := replicas[m.Name]; !exists && !deleted && !isNew && !takesPart(&v, m.Name) && concern(v.Spec.Target, m.Node) {
				byVolume[v.Name] = append(byVolume[v.Name], fmt.Sprintf("%s: its NvmfReplica %s on node %s does not exist", s.titled(v.Name), m.Name, m.Node))
			}
		}
		ofOurs := func(m v1alpha1.VolumeMember) bool { return concern(v.Spec.Target, m.Node) }
		if deleted && !v.Marked() && slices.ContainsFunc(v.Spec.Members, ofOurs) {
			byVolume[v.Name] = append(byVolume[v.Name], fmt.Sprintf("%s: %s: it was deleted without a deletion mark; its data stays on the node; "+
				"when its pods have ended, recover it as described in docs/tasks/recover-a-deleted-volume.md", s.titled(v.Name), v1alpha1.ReasonNotMarked))
		}
	}
	for _, m := range s.mirrors {
		for _, member := range m.Spec.Members {
			r, exists := replicas[member.Replica]
			if member.State != v1alpha1.MemberInSync && exists && !s.asMoved(m.Name, member) && concern(r.Spec.Target, r.Spec.Node) {
				byVolume[m.Name] = append(byVolume[m.Name], s.behind(&m, r.Spec.Node, member))
			}
		}
	}
	var all [][]string
	for _, name := range slices.Sorted(maps.Keys(byVolume)) {
		if words := byVolume[name]; len(words) > 0 {
			all = append(all, words)
		}
	}
	return firstFew(all, "volumes (kubectl get nvmfreplicas)")
}

// firstFew of what may be many, each in one line or more, and how many more there are of what.
func firstFew(all [][]string, what string) []string {
	said := slices.Concat(all[:min(len(all), maxProblemVolumes)]...)
	if left := len(all) - maxProblemVolumes; left > 0 {
		said = append(said, fmt.Sprintf("and %d more %s", left, what))
	}
	return said
}

// titled is a volume in a problem: by its claim, with its NvmfVolume.
func (s *status) titled(volume string) string {
	title := "NvmfVolume " + volume
	if v := s.volume(volume); v != nil {
		if called := s.called(v); !strings.HasPrefix(called, volumePrefix) {
			return fmt.Sprintf("claim %s (%s)", called, title)
		}
	}
	return title
}

// behind says what a replica that is not in sync waits for.
func (s *status) behind(of *v1alpha1.NvmfMirror, node string, m v1alpha1.MirrorMember) string {
	since := ""
	if m.Since != nil {
		since = fmt.Sprintf(" for %s", duration.HumanDuration(s.now.Sub(m.Since.Time)))
	}
	text := fmt.Sprintf("%s: its replica %s on node %s is %s%s (%s)", s.titled(of.Name), m.Replica, node, m.State, since, m.Reason)
	goesOn := slices.ContainsFunc(of.Spec.Members, func(o v1alpha1.MirrorMember) bool { return o.State == v1alpha1.MemberInSync })
	if m.State == v1alpha1.MemberOut && !m.Foreign && !m.Retired && goesOn {
		text += "; the volume is used without it, and it returns by itself when its node answers (docs/troubleshooting/replica-missing.md)"
	}
	if v := s.volume(of.Name); v != nil {
		if c := copyTo(m, v.Spec.Size.Value(), s.now); c.percent >= 0 {
			text += fmt.Sprintf("; %s copied%s", c.columns()[0], c.speed())
		}
	}
	return text
}

// orphans are told by the node that holds them.
func orphans(nodes []v1alpha1.NvmfNode) []string {
	var all [][]string
	for _, n := range nodes {
		for _, o := range n.Status.Orphans {
			all = append(all, []string{fmt.Sprintf("NvmfNode %s stores an orphaned %s: name %s, uuid %s, %s in pool %s; to recover it, see docs/tasks/recover-a-deleted-volume.md",
				n.Name, o.Kind, cmp.Or(o.Name, "unknown"), o.UUID, size(&o.Size), o.Device)})
		}
	}
	return firstFew(all, "orphans (status.orphans of the NvmfNodes)")
}

// relevant: what a silent agent said is old, and of a node without a target only the agent matters.
func relevant(n v1alpha1.NvmfNode) []metav1.Condition {
	alive := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAgentAlive)
	if alive != nil && alive.Status != metav1.ConditionTrue {
		return []metav1.Condition{*alive}
	}
	if n.Spec.Target != "" {
		return n.Status.Conditions
	}
	ofTheAgent := []string{v1alpha1.ConditionAgentAlive, v1alpha1.ConditionVersionSkew}
	return slices.DeleteFunc(slices.Clone(n.Status.Conditions), func(c metav1.Condition) bool { return !slices.Contains(ofTheAgent, c.Type) })
}

// unwell are the words about the conditions that are amiss.
func unwell(who string, conditions []metav1.Condition) []string {
	var said []string
	for _, c := range amiss(conditions) {
		said = append(said, fmt.Sprintf("%s: %s is %s: %s: %s", who, c.Type, c.Status, c.Reason, c.Message))
	}
	return said
}

// amiss are the conditions that are not as they should be. Progressing is work, not harm, a cordon is wanted, and a
// node that stores the only replica of a volume is as that volume was made.
func amiss(conditions []metav1.Condition) []metav1.Condition {
	var found []metav1.Condition
	for _, c := range conditions {
		switch c.Type {
		case v1alpha1.ConditionProgressing, v1alpha1.ConditionUpdated, v1alpha1.ConditionSchedulable, v1alpha1.ConditionEvictable:
			continue
		case v1alpha1.ConditionTargetImageReady:
			if c.Reason == v1alpha1.ReasonPending { // it is being pulled
				continue
			}
		}
		if c.Status != v1alpha1.QuietStatus(c.Type) {
			found = append(found, c)
		}
	}
	return found
}

func statusOf(conditions []metav1.Condition, kind string) metav1.ConditionStatus {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return c.Status
	}
	return metav1.ConditionUnknown
}

// brief is a condition in a column: True, or why not.
func brief(conditions []metav1.Condition, kind string) string {
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		return string(metav1.ConditionUnknown)
	case c.Status == metav1.ConditionTrue:
		return string(c.Status)
	}
	return string(c.Status) + " (" + c.Reason + ")"
}

func size(q *resource.Quantity) string {
	if q == nil {
		return "-"
	}
	const gib = 1 << 30
	if q.Value() >= gib {
		return fmt.Sprintf("%.1fGi", float64(q.Value())/gib)
	}
	if mib := int64(1 << 20); q.Value() > mib && q.Value()%mib != 0 {
		return fmt.Sprintf("%.1fMi", float64(q.Value())/float64(mib))
	}
	return q.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orDash(s string) string { return cmp.Or(s, "-") }

func orNone(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }
