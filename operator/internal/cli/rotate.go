// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// rotateOptions are the flags of rotate.
type rotateOptions struct {
	namespace, target string
	all, wait, dryRun bool
}

// A RotateResult is what `kubectl weft rotate -o json` prints.
type RotateResult struct {
	DryRun  bool            `json:"dryRun"`
	Volumes []RotatedVolume `json:"volumes"`
}

// A RotatedVolume is one attached volume whose keys were to be rotated.
type RotatedVolume struct {
	// Volume by its claim, NAMESPACE/NAME, or nv/NAME; and the NvmfVolume.
	Volume string `json:"volume"`
	Name   string `json:"name"`
	// Result: Requested, Running if a rotation was running already, or Refused. With --wait, Rotated, or Detached if
	// the volume was detached or deleted meanwhile.
	Result string `json:"result"`
	// Reason why the volume was refused, or what its rotation waits for.
	Reason string `json:"reason,omitempty"`
}

// Results of rotate beside those of move.
const (
	resultRefused  = "Refused"
	resultRotated  = "Rotated"
	resultDetached = "Detached"
)

func rotateCommand(at *cluster) *cobra.Command {
	var o rotateOptions
	var format *output
	cmd := &cobra.Command{
		Use:   "rotate CLAIM | --target TARGET | --all",
		Short: "Replace the keys of attached volumes",
		Long: `Replace the keys by which the hosts of attached volumes and their targets authenticate each other, without an
interruption of I/O. The command sets spec.keyRotation of the NvmfVolume to a new value. The CSI controller then gives
each host a second identity with new keys, the node connects with it, and the former identity is dismissed.

CLAIM is the name of a PersistentVolumeClaim, or nv/NAME with the name of an NvmfVolume. With --target or --all, volumes
that cannot be rotated are listed with the reason. The replicas of a mirrored volume are rotated one after the other.

If a rotation is running, the command says so and requests no other; --wait waits for it.

Exit codes:
  0  the rotations are requested, or with --wait complete
  1  error, refused, or the wait was interrupted`,
		Example: `  kubectl weft rotate data -n databases --wait
  kubectl weft rotate --target fast`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) > 0) == (o.all || o.target != "") {
				return errors.New("name a CLAIM, or use --target or --all")
			}
			api, err := at.client()
			if err != nil {
				return err
			}
			w := verb(api, cmd, format)
			if len(args) == 0 {
				return rotateVolumes(cmd.Context(), w, "", o)
			}
			namespace, err := at.namespaceOf(o.namespace)
			if err != nil {
				return err
			}
			name, err := resolve(cmd.Context(), api, namespace, args[0])
			if err != nil {
				return err
			}
			return rotateVolumes(cmd.Context(), w, name, o)
		},
	}
	format = resultFlag(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of CLAIM (default: that of the kubeconfig context)")
	flags.StringVar(&o.target, "target", "", "rotate all volumes of this NvmfTarget")
	flags.BoolVar(&o.all, "all", false, "rotate all volumes of the cluster")
	flags.BoolVar(&o.wait, "wait", false, "wait until the rotations are complete")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would happen; change nothing")
	cmd.MarkFlagsMutuallyExclusive("all", "target")
	return cmd
}

// rotateVolumes requests new keys of the volume with a name, or of all that the options mean if it is empty, and waits
// for them if that is wanted. A volume that was named is refused with an error, others are told and left out.
func rotateVolumes(ctx context.Context, w *watcher, name string, o rotateOptions) error {
	f, err := w.look(ctx)
	if err != nil {
		return err
	}
	if o.target != "" && !slices.ContainsFunc(f.targets, func(t v1alpha1.NvmfTarget) bool { return t.Name == o.target }) {
		return fmt.Errorf("NvmfTarget %s not found; existing targets: kubectl get nt", o.target)
	}
	if name != "" && f.volume(name) == nil {
		return fmt.Errorf("NvmfVolume %s not found; existing volumes: kubectl get nv", name)
	}
	value := uuid.NewString()
	result := RotateResult{DryRun: o.dryRun, Volumes: []RotatedVolume{}}
	requested := 0
	for i := range f.volumes {
		v := &f.volumes[i]
		if name != "" && v.Name != name || o.target != "" && v.Spec.Target != o.target || name == "" && !v.InUse() {
			continue
		}
		switch err := f.rotatable(v); {
		case err != nil && name != "":
			return fmt.Errorf("volume %s: %w", f.called(v), err)
		case err != nil:
			w.line("volume %s: not rotated: %v", f.called(v), err)
			result.Volumes = append(result.Volumes, RotatedVolume{Volume: f.called(v), Name: v.Name, Result: resultRefused, Reason: err.Error()})
			continue
		}
		one, err := f.requestRotation(ctx, w, v, value, o.dryRun)
		if err != nil {
			return fmt.Errorf("volume %s: %w", f.called(v), err)
		}
		result.Volumes = append(result.Volumes, one)
		requested++
	}
	if requested == 0 {
		w.line("no volume to rotate")
	}
	if !o.wait || o.dryRun {
		return w.did(result, w.err)
	}
	return w.did(result, w.untilRotated(ctx, result.Volumes))
}

// rotatable refuses a volume whose keys cannot be rotated, and says what to do.
func (f *fleet) rotatable(v *v1alpha1.NvmfVolume) error {
	target := find(f.targets, func(t *v1alpha1.NvmfTarget) bool { return t.Name == v.Spec.Target })
	keyed := target != nil && target.Spec.Authentication() != v1alpha1.AuthenticationDisabled
	for _, m := range v.Spec.Members {
		r := f.replica(m.Name)
		keyed = keyed || r != nil && slices.ContainsFunc(r.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return h.SealedKeys != "" })
	}
	switch {
	case v.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	case !v.InUse():
		return errors.New("it is not attached; it gets new keys when it is attached")
	case !v.Replicated() && (v.Spec.Move != nil || v.Spec.Replicas > 1):
		return errors.New("it is about to be mirrored, because it is moving or gets another replica; restart its pod afterwards")
	case !keyed:
		return fmt.Errorf("its hosts have no keys, and its target %s does not ask for any (security.authentication)", v.Spec.Target)
	}
	return nil
}

// requestRotation of a volume's keys, unless one is running, which is only told. A dry run goes as far as the API
// server, which checks it.
func (f *fleet) requestRotation(ctx context.Context, w *watcher, v *v1alpha1.NvmfVolume, value string, dryRun bool) (RotatedVolume, error) {
	one := RotatedVolume{Volume: f.called(v), Name: v.Name, Result: resultRequested}
	if waits := f.rotating(v); waits != "" {
		one.Result, one.Reason = resultRunning, waits
		w.line("volume %s: its keys are already being rotated: %s", f.called(v), waits)
		return one, nil
	}
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	suffix := ""
	if dryRun {
		options, suffix = append(options, client.DryRunAll), " (dry run)"
	}
	changed := v.DeepCopy()
	changed.Spec.KeyRotation = value
	if err := w.api.Patch(ctx, changed, client.MergeFrom(v), options...); err != nil {
		return one, err
	}
	w.line("volume %s: rotating its keys%s", f.called(v), suffix)
	return one, nil
}

// rotating says what the rotation of a volume's keys waits for; empty when none is running. Of a mirrored volume, the
// replica that is being rotated comes before those that wait for their turn.
func (f *fleet) rotating(v *v1alpha1.NvmfVolume) string {
	for _, m := range v.Spec.Members {
		r := f.replica(m.Name)
		if r == nil || !r.Rotating() {
			continue
		}
		for _, h := range r.Spec.Hosts {
			switch all := r.HostsOf(h.AttachmentUUID()); {
			case len(all) < 2:
			case r.Admitted(all[len(all)-1].NQN) == nil:
				return fmt.Sprintf("node %s does not admit the new identity yet", r.Spec.Node)
			default:
				return fmt.Sprintf("node %s has not connected with the new keys yet", h.Node)
			}
		}
	}
	for _, m := range v.Spec.Members {
		r := f.replica(m.Name)
		if r == nil {
			continue
		}
		for _, h := range r.Spec.Hosts {
			switch latest := r.HostOf(h.AttachmentUUID()); {
			case latest.KeyRotation != v.Spec.KeyRotation && f.outOfSync(v, m.Name):
				return fmt.Sprintf("replica %s is not in sync; it gets new keys when it is", m.Name)
			case latest.KeyRotation != v.Spec.KeyRotation && !unwritten(r, latest):
				return "the CSI controller has not made new keys yet; both nodes must be able to authenticate, and the target needs a place for another attachment"
			case latest.KeyRotation != v.Spec.KeyRotation:
				return "nothing was written to the volume yet"
			case slices.ContainsFunc(r.Status.Hosts, func(a v1alpha1.AdmittedHost) bool { return r.Listed(a.NQN) == nil }):
				return fmt.Sprintf("node %s has not dismissed the former identity yet", r.Spec.Node)
			}
		}
	}
	return ""
}

// outOfSync tells whether a volume's mirror does not have a replica in sync.
func (f *fleet) outOfSync(v *v1alpha1.NvmfVolume, replica string) bool {
	m := f.mirrorMember(v.Name, replica)
	return v.Replicated() && (m == nil || m.State != v1alpha1.MemberInSync)
}

// unwritten tells whether nothing was written to a replica, so that its host may have to format it.
func unwritten(r *v1alpha1.NvmfReplica, h *v1alpha1.VolumeHost) bool {
	a := r.Admitted(h.NQN)
	return a != nil && a.Blank && !r.Status.Written
}

// untilRotated shows what rotations wait for, until there is none, and notes how each ended.
func (w *watcher) untilRotated(ctx context.Context, volumes []RotatedVolume) error {
	last, all := map[string]string{}, 0
	for _, one := range volumes {
		if one.Result != resultRefused {
			all++
		}
	}
	for {
		f, err := w.look(ctx)
		if err != nil {
			return w.interrupted(ctx, err, "the rotation goes on")
		}
		var left []string
		for i := range volumes {
			one := &volumes[i]
			v := f.volume(one.Name)
			switch {
			case one.Result == resultRefused:
				continue
			case v == nil || !v.InUse():
				one.Result, one.Reason = resultDetached, "" // its keys are gone
				continue
			}
			one.Reason = f.rotating(v)
			if one.Reason != "" {
				left = append(left, one.Name)
			} else {
				one.Result = resultRotated
			}
			if was, told := last[one.Name]; !told || was != one.Reason {
				w.stamped("volume %s: %s", one.Volume, cmp.Or(one.Reason, "its keys are rotated"))
			}
			last[one.Name] = one.Reason
		}
		if len(left) == 0 {
			w.drawBars(nil)
			return w.err
		}
		w.drawCount(all-len(left), all)
		if err := w.pause(ctx); err != nil {
			return w.interrupted(ctx, err, "the rotation goes on: "+text.Few(left, maxNamed, ", "))
		}
	}
}
