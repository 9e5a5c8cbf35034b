// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// fieldManager of what this program writes.
const fieldManager = "kubectl-weft"

// A DeleteResult is what `kubectl weft delete -o json` prints.
type DeleteResult struct {
	// Kind: volume or snapshot.
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

func deleteCommand(at *cluster) *cobra.Command {
	var format *output
	cmd := &cobra.Command{
		Use:   "delete (volume | snapshot) NAME",
		Short: "Delete a volume or snapshot that has no claim, including its data",
		Long: `Delete an NvmfVolume or NvmfSnapshot including its data. This cannot be undone.

Use this command for volumes and snapshots that no longer have a claim or VolumeSnapshot, or that you recovered.
To delete any other volume or snapshot, delete its claim or VolumeSnapshot. The command refuses to delete a volume
that is attached or that a PersistentVolume refers to. The CSI controller then deletes the volume's NvmfReplicas.`,
		Example: `  kubectl weft delete volume pvc-0d5f1c3a`,
		Args:    takes(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var obj data
			switch args[0] {
			case "volume":
				obj = &v1alpha1.NvmfVolume{}
			case "snapshot":
				obj = &v1alpha1.NvmfSnapshot{}
			default:
				return fmt.Errorf("unknown kind %q: specify volume NAME or snapshot NAME", args[0])
			}
			api, err := at.client()
			if err != nil {
				return err
			}
			obj.SetName(args[1])
			if err := erase(cmd.Context(), api, obj); err != nil {
				return fmt.Errorf("cannot delete %s %s: %w", args[0], args[1], err)
			}
			w := verb(api, cmd, format)
			w.line("deleting %s %s and its data", args[0], args[1])
			return w.did(DeleteResult{Kind: args[0], Name: args[1], UID: obj.GetUID()}, w.err)
		},
	}
	format = resultFlag(cmd)
	return cmd
}

// data is an NvmfVolume or an NvmfSnapshot.
type data interface {
	client.Object
	Mark()
	Marked() bool
}

// erase marks an object by its name, then deletes it; each only if nobody has changed it since it was looked at.
func erase(ctx context.Context, api client.Client, obj data) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if vol, ok := obj.(*v1alpha1.NvmfVolume); ok {
			if err := inUse(ctx, api, vol); err != nil {
				return err
			}
		}
		if !obj.Marked() {
			read := obj.DeepCopyObject().(client.Object)
			obj.Mark()
			if err := api.Patch(ctx, obj, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager)); err != nil {
				return err
			}
		}
		uid, version := obj.GetUID(), obj.GetResourceVersion()
		err := api.Delete(ctx, obj, client.Preconditions{UID: &uid, ResourceVersion: &version})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// inUse says who still needs a volume; nil when nobody does.
func inUse(ctx context.Context, api client.Reader, vol *v1alpha1.NvmfVolume) error {
	attached := len(vol.Spec.Attachments) > 0
	for _, m := range vol.Spec.Members {
		var replica v1alpha1.NvmfReplica
		if err := api.Get(ctx, client.ObjectKey{Name: m.Name}, &replica); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get NvmfReplica %s: %w", m.Name, err)
		}
		attached = attached || len(replica.Spec.Hosts)+len(replica.Status.Hosts) > 0
	}
	if attached && vol.Mover() != nil {
		return errors.New("its data is being copied to another replica; wait until kubectl weft status lists no move of it")
	}
	if attached {
		return errors.New("it is attached; delete the pods that use it first (kubectl get volumeattachments)")
	}
	var volumes corev1.PersistentVolumeList
	if err := api.List(ctx, &volumes); err != nil {
		return fmt.Errorf("list PersistentVolumes: %w", err)
	}
	for _, pv := range volumes.Items {
		if csi := pv.Spec.CSI; csi != nil && csi.Driver == v1alpha1.DriverName && csi.VolumeHandle == vol.Name {
			return fmt.Errorf("PersistentVolume %s refers to it; delete its claim or the PersistentVolume first", pv.Name)
		}
	}
	return nil
}
