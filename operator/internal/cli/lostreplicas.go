// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// unlistedReplicas that nodes have of a volume that exists; nil if there are none. While the record of the volume waits
// to be recovered, such a replica can still be added: the headers of all are read again then, and the newest one wins.
// Later it could only be filled from the others, whatever it has.
func (f *fleet) unlistedReplicas(v *lostVolume, vol *v1alpha1.NvmfVolume, d v1alpha1.OrphanDescription, found []foundOrphan) *lostVolume {
	found = slices.DeleteFunc(slices.Clone(found), func(o foundOrphan) bool {
		return slices.ContainsFunc(vol.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.UUID == o.UUID && m.Node == o.node.Name })
	})
	if len(found) == 0 {
		return nil // the CSI controller creates them
	}
	v.volume, v.Size = vol, vol.Spec.Size.String()
	if pv := cmp.Or(vol.Spec.PersistentVolume, d.PersistentVolume); pv != nil {
		v.nameClaim(pv)
	}
	waits := vol.Spec.Used && vol.Spec.Mirrored && vol.Spec.Recovery != nil && vol.Spec.Recovery.AcceptLossUntil == nil &&
		len(vol.Spec.Attachments) == 0 && vol.DeletionTimestamp == nil
	for i, o := range found {
		name := cmp.Or(o.Name, o.UUID)
		v.Replicas = append(v.Replicas, lostReplica{Name: name, UUID: o.UUID, Node: o.node.Name, Device: o.Device, Size: o.Size.String()})
		is := fmt.Sprintf("replica %s (%s)", name, o.at())
		twice := slices.ContainsFunc(found[:i], func(other foundOrphan) bool { return other.UUID == o.UUID || other.Name == o.Name }) || len(o.OtherDevices) > 0
		switch listed := find(vol.Spec.Members, func(m *v1alpha1.VolumeMember) bool { return m.UUID == o.UUID || m.Name == o.Name }); {
		case listed != nil && listed.UUID == o.UUID:
			v.Refused = append(v.Refused, fmt.Sprintf("%s is listed by its NvmfVolume on node %s: the drive was moved; put it back into node %s. Until then, it may have later data than the others, so do not accept a loss",
				is, listed.Node, listed.Node))
		case !waits:
			v.Refused = append(v.Refused, is+" is not listed by its NvmfVolume, which does not wait for the recovery of its record, or is attached: the replica left the volume, or was not found when the volume was recovered, "+
				"and then it may have later data; its data is kept")
		case listed != nil || o.Name == "" || twice || o.node.Spec.Target != vol.Spec.Target || f.replica(o.Name) != nil:
			v.Refused = append(v.Refused, is+" is not listed by its NvmfVolume and may have later data, but cannot be added: it is of another NvmfTarget, on several drives, or its name is unknown or taken; do not accept a loss before that is resolved")
		default:
			v.joins = append(v.joins, v1alpha1.VolumeMember{Name: o.Name, UUID: o.UUID, Node: o.node.Name})
			v.ByName = append(v.ByName, is+" is not listed by its NvmfVolume, and may have later data, or older: do not accept a loss before it is added, by name; the headers of all replicas decide then")
		}
	}
	if len(vol.Spec.Members)+len(v.joins) > v1alpha1.MaxVolumeMembers {
		v.Refused = append(v.Refused, fmt.Sprintf("with them, it would have more than %d replicas", v1alpha1.MaxVolumeMembers))
	}
	return v
}

// join lost replicas to their volume, and request its recovery again: the former request may be about to be decided
// without them.
func (m *maker) join(ctx context.Context, v *lostVolume) {
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	if m.o.dryRun {
		options = append(options, client.DryRunAll)
	}
	changed := v.volume.DeepCopy()
	changed.Spec.Members = append(changed.Spec.Members, v.joins...)
	changed.Spec.Recovery = &v1alpha1.VolumeRecovery{ID: uuid.NewString(), Attachments: v1alpha1.RecoveryWaits}
	if err := m.api.Patch(ctx, changed, client.MergeFromWithOptions(v.volume, client.MergeFromWithOptimisticLock{}), options...); err != nil {
		m.fails("NvmfVolume %s: %v", v.Name, err)
		return
	}
	for _, r := range v.joins {
		m.say("replica %s on node %s added to NvmfVolume %s%s", r.Name, r.Node, v.Name, m.would())
	}
	m.say("  the record of its replicas is recovered from their headers; see how far that is: kubectl weft recover %s%s --dry-run", volumePrefix, v.Name)
}
