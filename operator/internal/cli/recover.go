// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// acceptLossFor so long a person's word counts that data may be lost: a request that comes back with a backup of the
// API must not be one that still permits that.
const acceptLossFor = time.Hour

// recoverOptions are the flags of recover.
type recoverOptions struct {
	namespace, current       string
	output                   output
	all, acceptLoss, detach  bool
	wait, dryRun             bool
	lost, claims, incomplete bool
}

func recoverCommand(at *cluster) *cobra.Command {
	var o recoverOptions
	var format *output
	cmd := &cobra.Command{
		Use:   "recover (CLAIM | --all | --lost [CLAIM | --all])",
		Short: "Recover the record of which replicas of a volume are current, or volumes that lost their objects",
		Long: `Recover the record of a volume's replicas, its NvmfMirror, which says which of them have every acknowledged write. Use
the command if the record is lost or not true, as after a restore of the API from a backup, or if nobody knows which
replica is current.

The command shows what is known of each replica, and sets spec.recovery of the NvmfVolume. The CSI controller then has
a node read the headers of all replicas, and stores the record that follows from them. The volume cannot be attached
meanwhile. Nothing is changed in the replicas: those that are not current are filled when the volume is used.

The record is recovered only if nothing can be lost. If a replica cannot be read, or if replicas were used one without
the other, the command says so, and you choose the replica to go on with: --current REPLICA --accept-loss. Writes that
only other replicas have are lost then. Your permission is valid for one hour.

CLAIM is the name of a PersistentVolumeClaim, or nv/NAME with the name of an NvmfVolume. --all recovers the records of
all volumes with replicas that are not attached.

--lost is for data without objects, as after the loss of etcd, or on drives from another cluster. Without CLAIM and --all, the
command lists what the nodes found on their drives, and what is in doubt. With CLAIM, nv/NAME or a volume's UUID, or
with --all, it creates the NvmfVolumes, their PersistentVolumes, and NvmfSnapshots. --claims also creates the
PersistentVolumeClaims. Nothing is formatted or deleted. What the command lists is what the nodes say: check it.
The record of a volume with several replicas is recovered from their headers, as described above.

You can interrupt and repeat the command. Each time, the headers are read again.

Exit codes:
  0  the record is recovered, or its recovery is requested
  1  error, or interrupted
  2  refused: the volume is attached; or with --lost: something could not be recovered, or was left out by --all`,
		Example: `  kubectl weft recover data -n databases --dry-run
  kubectl weft recover data -n databases --wait
  kubectl weft recover nv/pvc-0d5f1c3a --current storage-2 --accept-loss --wait
  kubectl weft recover --all --wait
  kubectl weft recover --lost
  kubectl weft recover --lost --all --claims`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case o.lost && (len(args) > 1 || o.all && len(args) > 0):
				return errors.New("specify one CLAIM, nv/NAME or UUID, or --all, or neither to list what is lost")
			case !o.lost && (o.all == (len(args) > 0) || len(args) > 1):
				return errors.New("specify one CLAIM or nv/NAME, or --all")
			case o.claims && !o.lost:
				return errors.New("--claims requires --lost")
			case o.incomplete && (!o.lost || !o.all):
				return errors.New("--incomplete requires --lost --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.acceptLoss && o.current == "" {
				return errors.New("--accept-loss requires --current REPLICA: choose the replica whose data to keep")
			}
			o.output = *format
			api, err := at.client()
			if err != nil {
				return err
			}
			w := newWatcher(api, cmd.OutOrStdout())
			if o.all && !o.lost {
				return recoverAll(cmd.Context(), w, o)
			}
			namespace, err := at.namespaceOf(o.namespace)
			if err != nil {
				return err
			}
			if o.lost {
				return recoverLost(cmd.Context(), w, cmd.ErrOrStderr(), namespace, args, o)
			}
			return recoverOne(cmd.Context(), w, namespace, args[0], o)
		},
	}
	format = outputFlag(cmd)
	o.addFlags(cmd)
	return cmd
}

func (o *recoverOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of CLAIM (default: that of the kubeconfig context)")
	flags.BoolVar(&o.all, "all", false, "recover the records of all volumes with replicas that are not attached; with --lost, all that can be recovered")
	flags.BoolVar(&o.lost, "lost", false, "list data on drives that has no objects, or recover it")
	flags.BoolVar(&o.claims, "claims", false, "with --lost: create the PersistentVolumeClaims, too")
	flags.BoolVar(&o.incomplete, "incomplete", false, "with --lost --all: recover although nodes may have more, or newer, data that they do not list")
	flags.StringVar(&o.current, "current", "", "replica to take for the current one, by its name or its node; all others are filled from it")
	flags.BoolVar(&o.acceptLoss, "accept-loss", false, "permit that writes are lost which the replica of --current does not have; valid for one hour")
	flags.BoolVar(&o.detach, "detach", false, "end the attachment of the volume; processes that still use the volume are killed")
	flags.BoolVar(&o.wait, "wait", false, "show the progress until the record is recovered")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what is known and what would be requested; change nothing")
	for _, other := range []string{"current", "accept-loss", "detach"} {
		cmd.MarkFlagsMutuallyExclusive("all", other)
	}
	for _, other := range []string{"current", "accept-loss", "detach", "wait"} {
		cmd.MarkFlagsMutuallyExclusive("lost", other)
	}
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	cmd.MarkFlagsMutuallyExclusive("output", "wait")
}

// recoverOne asks for the recovery of a claim's volume, and waits for it if that is wanted.
func recoverOne(ctx context.Context, w *watcher, namespace, arg string, o recoverOptions) error {
	name, err := resolve(ctx, w.api, namespace, arg)
	if err != nil {
		return err
	}
	asked := ""
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		f, err := w.look(ctx)
		if err != nil {
			return err
		}
		v := f.volume(name)
		if v == nil {
			return fmt.Errorf("NvmfVolume %s not found; existing volumes: kubectl get nv", name)
		}
		wish, err := f.wishFor(v, o)
		if err != nil {
			return err
		}
		r := f.recordOf(v)
		if o.output.forPeople() {
			r.print(w.table)
		}
		if nodes := attachedTo(v); len(nodes) > 0 && !o.detach {
			return refusal(w, o, r, nodes)
		}
		if err := writeRecovery(ctx, w.api, v, wish, o.dryRun); err != nil {
			return err
		}
		asked = wish.ID
		if done, err := o.output.encode(w.out, r); done {
			return err
		}
		w.line("%s", requestedRecovery(f, v, wish, o))
		return nil
	})
	var exit *ExitError
	switch {
	case errors.As(err, &exit):
		return err
	case err != nil:
		return fmt.Errorf("volume %s: %w", arg, err)
	case !o.wait:
		return w.err
	}
	return w.untilRecovered(ctx, map[string]string{name: asked})
}

// refusal of a volume that is attached: a request would keep it from being attached again, and wait.
func refusal(w *watcher, o recoverOptions, r recordView, nodes []string) error {
	if done, err := o.output.encode(w.out, r); err != nil {
		return err
	} else if done {
		return w.ends(CodeUnwell)
	}
	w.line("volume %s is attached to node %s; nothing was requested", r.Volume, strings.Join(nodes, ", "))
	w.line("  end the pods that use it, and repeat the command. If the volume stays attached, add --detach: what still uses it on the node is killed")
	return w.ends(CodeUnwell)
}

// requestedRecovery says what was written.
func requestedRecovery(f *fleet, v *v1alpha1.NvmfVolume, wish *v1alpha1.VolumeRecovery, o recoverOptions) string {
	text := "volume " + f.called(v) + ": recovery of the record is requested"
	if o.dryRun {
		text = "volume " + f.called(v) + ": recovery of the record would be requested (dry run)"
	}
	if wish.Current != "" {
		text += fmt.Sprintf(", with replica %s on node %s as the current one", wish.Current, memberOf(v, wish.Current).Node)
	}
	switch {
	case wish.AcceptLossUntil != nil:
		text += "; writes that only other replicas have are lost"
	case wish.Current != "":
		text += "; only if nothing is lost with it"
	}
	if wish.Attachments == v1alpha1.RecoveryEnds && len(attachedTo(v)) > 0 {
		text += "; what still uses the volume on node " + strings.Join(attachedTo(v), ", ") + " is killed"
	}
	return text
}

// recoverAll asks for the recovery of all volumes with replicas that are not attached.
func recoverAll(ctx context.Context, w *watcher, o recoverOptions) error {
	f, err := w.look(ctx)
	if err != nil {
		return err
	}
	asked, used := map[string]string{}, false
	var views []recordView
	for i := range f.volumes {
		v := &f.volumes[i]
		if !v.Replicated() || v.DeletionTimestamp != nil {
			continue
		}
		views = append(views, f.recordOf(v))
		if nodes := attachedTo(v); len(nodes) > 0 {
			if used = true; o.output.forPeople() {
				w.line("volume %s: skipped, because it is attached to node %s", f.called(v), strings.Join(nodes, ", "))
			}
			continue
		}
		wish := &v1alpha1.VolumeRecovery{ID: uuid.NewString()}
		if v.Spec.Recovery != nil {
			// It may be a person's decision about this volume, which this one does not take back.
			wish = v.Spec.Recovery
		} else if err := writeRecovery(ctx, w.api, v, wish, o.dryRun); err != nil {
			return fmt.Errorf("volume %s: %w", f.called(v), err)
		}
		if asked[v.Name] = wish.ID; o.output.forPeople() {
			w.line("%s", requestedRecovery(f, v, wish, o))
		}
	}
	if done, err := o.output.encode(w.out, views); done {
		return err
	}
	switch {
	case len(views) == 0:
		w.line("no volume has a record of its replicas")
	case used:
		w.line("the nodes that use attached volumes compare the records with the replicas themselves, and report what does not fit (Event MirrorWaits of the pod)")
	}
	if !o.wait {
		return w.err
	}
	return w.untilRecovered(ctx, asked)
}

// wishFor a volume. It fails if its record cannot be recovered.
func (f *fleet) wishFor(v *v1alpha1.NvmfVolume, o recoverOptions) (*v1alpha1.VolumeRecovery, error) {
	switch {
	case v.DeletionTimestamp != nil:
		return nil, errors.New("the volume is being deleted")
	case !v.Replicated():
		return nil, errors.New("the volume has one replica, and no record of replicas; there is nothing to recover")
	}
	wish := &v1alpha1.VolumeRecovery{ID: uuid.NewString()}
	if o.detach {
		wish.Attachments = v1alpha1.RecoveryEnds
	}
	if o.detach || o.acceptLoss {
		wish.DeclaredRestores = f.declaredRestores(v)
	}
	if o.current == "" {
		return wish, nil
	}
	m := memberOf(v, o.current)
	if m == nil {
		m = memberOn(v, o.current)
	}
	if m == nil {
		var all []string
		for _, m := range v.Spec.Members {
			all = append(all, m.Name+" (node "+m.Node+")")
		}
		return nil, fmt.Errorf("it has no replica %s, nor one on a node of that name; its replicas: %s", o.current, strings.Join(all, ", "))
	}
	wish.Current = m.Name
	if o.acceptLoss {
		until := metav1.NewTime(f.now.Add(acceptLossFor).Truncate(time.Second))
		wish.AcceptLossUntil = &until
	}
	return wish, nil
}

// declaredRestores on the nodes of a volume's replicas: after a later one, what is permitted now is permitted no more.
func (f *fleet) declaredRestores(v *v1alpha1.NvmfVolume) []v1alpha1.DeclaredRestore {
	var all []v1alpha1.DeclaredRestore
	for _, m := range v.Spec.Members {
		n := f.node(m.Node)
		if n == nil || n.DeclaredRestore() == "" {
			continue
		}
		if is := (v1alpha1.DeclaredRestore{Node: n.Name, ID: n.DeclaredRestore()}); !slices.Contains(all, is) {
			all = append(all, is)
		}
	}
	return all
}

// attachedTo are the nodes that a volume is attached to, but for movers'.
func attachedTo(v *v1alpha1.NvmfVolume) []string {
	var nodes []string
	for _, h := range v.Spec.Attachments {
		if !h.Mover {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes
}

// writeRecovery into a volume's spec, only if nobody has changed the volume since it was looked at. A dry run goes as
// far as the API server, which checks it.
func writeRecovery(ctx context.Context, api client.Client, v *v1alpha1.NvmfVolume, wish *v1alpha1.VolumeRecovery, dryRun bool) error {
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	changed := v.DeepCopy()
	changed.Spec.Recovery = wish
	return api.Patch(ctx, changed, client.MergeFromWithOptions(v, client.MergeFromWithOptimisticLock{}), options...)
}

// recordView is what is known of the record of a volume, and of its replicas.
type recordView struct {
	// Volume as people call it, and Name of the NvmfVolume.
	Volume string `json:"volume"`
	Name   string `json:"name"`
	// Record: Missing, Recovering, Held or Free.
	Record string `json:"record"`
	Epoch  int64  `json:"epoch,omitempty"`
	// Dirty: the last holder has not ended cleanly, or there is one.
	Dirty      bool     `json:"dirty,omitempty"`
	HolderNode string   `json:"holderNode,omitempty"`
	AttachedTo []string `json:"attachedTo,omitempty"`
	// Recovery that is requested.
	Recovery *v1alpha1.VolumeRecovery `json:"recovery,omitempty"`
	Replicas []replicaView            `json:"replicas"`
}

// States of a record.
const (
	recordMissing    = "Missing"
	recordRecovering = "Recovering"
	recordHeld       = "Held"
	recordFree       = "Free"
)

// replicaView is what is known of a replica.
type replicaView struct {
	Name string `json:"name"`
	Node string `json:"node"`
	// State by the record, empty for none, and since when.
	State  string       `json:"state,omitempty"`
	Reason string       `json:"reason,omitempty"`
	Since  *metav1.Time `json:"since,omitempty"`
	// Header, as it was read when the record was recovered.
	Header *v1alpha1.MirrorHeader `json:"header,omitempty"`
	// Agent says whether the replica can be asked.
	Agent string `json:"agent"`
}

func (s *status) recordOf(v *v1alpha1.NvmfVolume) recordView {
	r := recordView{Volume: s.called(v), Name: v.Name, Record: recordMissing, AttachedTo: attachedTo(v), Recovery: v.Spec.Recovery}
	if m := find(s.mirrors, func(m *v1alpha1.NvmfMirror) bool { return m.Name == v.Name }); m != nil {
		r.Epoch, r.Dirty, r.HolderNode, r.Record = m.Spec.Epoch, m.Spec.Dirty, m.Spec.HolderNode, recordFree
		switch {
		case m.Spec.Recovering:
			r.Record = recordRecovering
		case m.Spec.Holder != "":
			r.Record = recordHeld
		}
	}
	for _, m := range v.Spec.Members {
		is := replicaView{Name: m.Name, Node: m.Node, Agent: s.answers(m)}
		if of := s.mirrorMember(v.Name, m.Name); of != nil {
			is.State, is.Reason, is.Since, is.Header = string(of.State), of.Reason, of.Since, of.Header
		}
		r.Replicas = append(r.Replicas, is)
	}
	return r
}

// answers says whether a replica can be asked, in words.
func (s *status) answers(m v1alpha1.VolumeMember) string {
	n, rep := s.node(m.Node), s.replica(m.Name)
	switch {
	case rep == nil:
		return "NvmfReplica does not exist"
	case n == nil:
		return "NvmfNode does not exist"
	}
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAgentAlive); c != nil && c.Status == metav1.ConditionFalse {
		return "does not answer since " + c.LastTransitionTime.UTC().Format(time.RFC3339)
	}
	if rep.RestoreSuspected() {
		return "suspects a restore: declare it first"
	}
	if c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		return "not ready: " + c.Reason
	}
	return "answers"
}

// print the record as a table.
func (r recordView) print(t *table) {
	switch r.Record {
	case recordMissing:
		t.line("volume %s: the record of its replicas (NvmfMirror %s) does not exist", r.Volume, r.Name)
	case recordRecovering:
		t.line("volume %s: the record of its replicas is being recovered; what it says of them may be wrong", r.Volume)
	case recordHeld:
		t.line("volume %s: record of epoch %d, held by node %s", r.Volume, r.Epoch, cmp.Or(r.HolderNode, "unknown"))
	default:
		t.line("volume %s: record of epoch %d, held by nobody; the last node %s", r.Volume, r.Epoch,
			map[bool]string{false: "stopped cleanly", true: "did not stop cleanly, or the record was recovered"}[r.Dirty])
	}
	rows := [][]string{{"REPLICA", "NODE", "RECORD", "SINCE", "HEADER", "IN SYNC BY HEADER", "AGENT"}}
	for _, is := range r.Replicas {
		state := is.State
		if is.Reason != "" {
			state += " (" + is.Reason + ")"
		}
		since := ""
		if is.Since != nil {
			since = is.Since.UTC().Format(time.RFC3339)
		}
		header, by := headerWords(is.Header)
		rows = append(rows, []string{is.Name, is.Node, orDash(state), orDash(since), header, orDash(by), is.Agent})
	}
	t.columns(rows)
	if r.Recovery != nil && r.Recovery.Waiting != "" {
		t.line("a recovery was requested, and waits: %s", r.Recovery.Waiting)
	}
}

// headerWords about a header: which it is, and which replicas are in sync by it.
func headerWords(h *v1alpha1.MirrorHeader) (is, inSync string) {
	switch {
	case h == nil:
		return "not read", ""
	case h.Error != "":
		return "unreadable: " + h.Error, ""
	case h.Mark == "" && h.Blank:
		return "none, blank", ""
	case h.Mark == "":
		return "never used in a mirror", ""
	}
	var names []string
	for _, m := range h.Members {
		if m.State == v1alpha1.MemberInSync {
			names = append(names, m.Replica)
		}
	}
	return fmt.Sprintf("epoch %d, mark %.8s", h.Epoch, h.Mark), strings.Join(names, ", ")
}

// untilRecovered shows the progress of recoveries, by volume the ID of the request, until all have ended.
func (w *watcher) untilRecovered(ctx context.Context, asked map[string]string) error {
	const goesOn = "the recovery goes on; to see its progress, repeat the command with --dry-run"
	told := map[string]string{}
	began, all := w.now(), len(asked)
	for {
		f, err := w.look(ctx)
		if err != nil {
			return w.interrupted(ctx, err, goesOn)
		}
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			v := f.volume(name)
			switch {
			case v == nil:
				w.stamped("%s%s: the volume was deleted", volumePrefix, name)
			case v.Spec.Recovery != nil && v.Spec.Recovery.ID == asked[name]:
				if waiting := v.Spec.Recovery.Waiting; waiting != "" && waiting != told[name] {
					w.stamped("%s: waiting: %s", f.called(v), waiting)
					told[name] = waiting
				}
				continue
			case v.Spec.Recovery != nil:
				w.stamped("%s: another recovery was requested", f.called(v))
			default:
				w.stamped("%s: the record is recovered after %s", f.called(v), duration.HumanDuration(w.now().Sub(began)))
				f.recordOf(v).print(w.table)
			}
			delete(asked, name)
		}
		if len(asked) == 0 {
			return w.err
		}
		w.drawCount(all-len(asked), all)
		if err := w.pause(ctx); err != nil {
			return w.interrupted(ctx, err, goesOn)
		}
	}
}
