// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// An NvmfVolume says what a volume is to be. Agents know its replicas only, which are written from it. Two of this
// service may run, and either may stop between the two writes. So whoever writes a replica reads the replica first,
// then the volume, and writes the replica only as it was read, with the volume's generation: a write from an older
// state of the volume is refused, and one that was never made is made by the next call, or by Settle.

// replicatedVolume is an NvmfVolume with its replicas, as they were read.
type replicatedVolume struct {
	*v1alpha1.NvmfVolume
	// replicas, in the order of the members; nil for one that has no object.
	replicas []*v1alpha1.NvmfReplica
}

// member number n of a volume on a node. The first replica has the volume's own UUID, so that what an agent keeps when
// all objects are lost can be matched with a PersistentVolume.
func member(name, volumeUUID string, n int, node string) v1alpha1.VolumeMember {
	m := v1alpha1.VolumeMember{Name: name + "-" + strconv.Itoa(n), UUID: volumeUUID, Node: node}
	if n > 0 {
		m.UUID = uuid.NewString()
	}
	return m
}

// newReplica is the object of a member that has none.
func newReplica(vol *v1alpha1.NvmfVolume, m v1alpha1.VolumeMember, source *v1alpha1.ReplicaSource) *v1alpha1.NvmfReplica {
	rep := &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: vol.Labels, Annotations: map[string]string{}, Finalizers: []string{v1alpha1.EngineFinalizer}},
		Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: vol.Name, UUID: vol.Spec.UUID},
			UUID:   m.UUID, Target: vol.Spec.Target, Node: m.Node, Source: source, DeviceClass: vol.Spec.DeviceClass, BlockSizeBytes: vol.Spec.BlockSizeBytes, Connection: vol.Spec.Connection,
		},
	}
	for _, key := range []string{v1alpha1.PVCNameKey, v1alpha1.PVCNamespaceKey} {
		if value := vol.Annotations[key]; value != "" {
			rep.Annotations[key] = value
		}
	}
	rep.Spec = derive(vol, nil, rep)
	return rep
}

// derive a replica's spec from what its volume is to be, and the record of its mirror if there is one.
func derive(vol *v1alpha1.NvmfVolume, record *mirror.Record, rep *v1alpha1.NvmfReplica) v1alpha1.NvmfReplicaSpec {
	spec := *rep.Spec.DeepCopy()
	spec.VolumeUID, spec.VolumeGeneration = string(vol.UID), vol.Generation
	if spec.Size.Cmp(vol.Spec.Size) < 0 {
		spec.Size = vol.Spec.Size.DeepCopy()
	}
	spec.QoS = vol.Spec.QoS.DeepCopy()
	spec.Description = description(vol)
	spec.Used = spec.Used || vol.Spec.Used
	if vol.DeletionTimestamp == nil {
		spec.DeletionMark = "" // of a deletion that was not carried through
	}
	spec.Hosts = nil
	if len(vol.Spec.Attachments) == 0 {
		return spec
	}
	if vol.Replicated() {
		spec.Hosts, spec.SubsystemNQN = legOf(vol, record, rep)
		return spec
	}
	nqn := v1alpha1.SubsystemNQN(rep.Name, vol.Spec.Session)
	if len(rep.Spec.Hosts) > 0 && rep.Spec.SubsystemNQN != nqn {
		return spec // the hosts of the former session leave first
	}
	spec.SubsystemNQN = nqn
	for _, attached := range vol.Spec.Attachments {
		spec.Hosts = append(spec.Hosts, hostsOf(vol, attached, rep)...)
	}
	return spec
}

// hostsOf an attachment that may connect to the replica of a volume that is not mirrored: those that it lists, with
// their keys, or one that has the attachment's own NQN. Of an attachment whose keys were rotated, that NQN was
// dismissed: where the replica's object is another than then, it gets one that is new.
func hostsOf(vol *v1alpha1.NvmfVolume, attached v1alpha1.VolumeHost, rep *v1alpha1.NvmfReplica) []v1alpha1.VolumeHost {
	var hosts []v1alpha1.VolumeHost
	for _, listed := range rep.HostsOf(attached.AttachmentUUID()) {
		h := attached
		h.NQN, h.Attachment, h.KeyRotation, h.Retired = listed.NQN, listed.Attachment, listed.KeyRotation, listed.Retired
		h.SealedKeys, h.SealedTo, h.KeysCreated = listed.SealedKeys, listed.SealedTo, listed.KeysCreated.DeepCopy()
		hosts = append(hosts, h)
	}
	if len(hosts) > 0 {
		return hosts
	}
	if attached.KeyRotation != vol.Spec.KeyRotation {
		attached = successor(vol, attached)
	}
	return []v1alpha1.VolumeHost{attached}
}

// successor of a host: another one of its attachment, with an NQN that none had before, and no keys yet.
func successor(vol *v1alpha1.NvmfVolume, of v1alpha1.VolumeHost) v1alpha1.VolumeHost {
	of.Attachment, of.NQN = of.AttachmentUUID(), v1alpha1.HostNQN(uuid.NewString())
	of.SealedKeys, of.SealedTo, of.KeysCreated, of.KeyRotation, of.Retired = "", "", nil, vol.Spec.KeyRotation, ""
	return of
}

// legOf a mirrored volume: the host that may connect to a replica, or two while its keys are rotated, by a subsystem
// with an identity of its own, which is never used again: commands that were sent to it may be under way when the
// replica has been given up, and must not be carried out after what was written since. So a replica that is out of
// sync, of which its holder's kernel has nothing any more, gets another subsystem than the one that it was connected
// to, after all hosts of that have left.
func legOf(vol *v1alpha1.NvmfVolume, record *mirror.Record, rep *v1alpha1.NvmfReplica) (hosts []v1alpha1.VolumeHost, subsystem string) {
	if retired(rep) {
		return nil, rep.Spec.SubsystemNQN
	}
	attached := vol.Spec.Attachments[0]
	switch h := rep.HostOf(attached.AttachmentUUID()); {
	case h != nil && (record == nil || !outworn(*record, rep)):
		return rep.Spec.Hosts, rep.Spec.SubsystemNQN // without a record, too, which somebody deleted
	case record == nil || len(rep.Spec.Hosts) > 0:
		return nil, rep.Spec.SubsystemNQN
	}
	identity := uuid.NewString()
	attached.NQN, attached.Attachment, attached.KeyRotation = v1alpha1.HostNQN(identity), attached.AttachmentUUID(), vol.Spec.KeyRotation
	return []v1alpha1.VolumeHost{attached}, v1alpha1.SubsystemNQN(rep.Name, identity)
}

// outworn tells whether a replica that is out of sync was connected to by its subsystem, of which no kernel has
// anything now.
func outworn(record mirror.Record, rep *v1alpha1.NvmfReplica) bool {
	m, ok := mirror.Get(record, rep.Name)
	return ok && m.Identity == v1alpha1.SessionOfSubsystem(rep.Spec.SubsystemNQN) && mirror.Free(record, m)
}

// recordOf a volume's mirror; nil for a volume without one.
func (s *Service) recordOf(ctx context.Context, from client.Reader, vol *v1alpha1.NvmfVolume) (*mirror.Record, error) {
	if !vol.Replicated() {
		return nil, nil
	}
	m, err := s.mirrors.get(ctx, from, vol.Name)
	if err != nil || m == nil {
		return nil, err
	}
	return &m.Spec, nil
}

// replicasOf a volume, read from the API server.
func (s *Service) replicasOf(ctx context.Context, vol *v1alpha1.NvmfVolume) ([]*v1alpha1.NvmfReplica, error) {
	reps := make([]*v1alpha1.NvmfReplica, len(vol.Spec.Members))
	for i, m := range vol.Spec.Members {
		rep, err := s.replicas.read(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		if rep != nil && !isOf(rep, vol, m) {
			if vol.DeletionTimestamp != nil {
				continue // it is not this volume's, and stays
			}
			return nil, errForeign(rep, vol)
		}
		reps[i] = rep
	}
	return reps, nil
}

func isOf(rep *v1alpha1.NvmfReplica, vol *v1alpha1.NvmfVolume, m v1alpha1.VolumeMember) bool {
	return rep.Spec.UUID == m.UUID && rep.Spec.Volume.UUID == vol.Spec.UUID
}

func errForeign(rep *v1alpha1.NvmfReplica, vol *v1alpha1.NvmfVolume) error {
	return failf(inUse, "NvmfReplica %s is not the replica that NvmfVolume %s lists: it has UUID %s and belongs to volume %s (UUID %s)",
		rep.Name, vol.Name, rep.Spec.UUID, rep.Spec.Volume.Name, rep.Spec.Volume.UUID)
}

// withReplicas reads a volume and its replicas from the API server.
func (s *Service) withReplicas(ctx context.Context, id string) (*replicatedVolume, error) {
	vol, err := s.volume(ctx, id)
	if err != nil {
		return nil, err
	}
	reps, err := s.replicasOf(ctx, vol)
	return &replicatedVolume{NvmfVolume: vol, replicas: reps}, err
}

// follow makes a volume's replicas what the volume says, and returns them as they were written. A replica of a used
// volume that has no object gets one again: the agent finds its data, or reports it lost, and never creates it. The
// replica of a volume that was never used is made by CreateVolume alone.
func (s *Service) follow(ctx context.Context, vol *v1alpha1.NvmfVolume) (*replicatedVolume, error) {
	for {
		reps, err := s.replicasOf(ctx, vol)
		if err != nil {
			return nil, err
		}
		now, err := s.volume(ctx, vol.Name)
		if err != nil {
			return nil, err
		}
		same := now.UID == vol.UID && slices.Equal(now.Spec.Members, vol.Spec.Members)
		vol = now
		if !same {
			continue
		}
		record, err := s.recordOf(ctx, s.live, vol)
		if err != nil {
			return nil, err
		}
		again := false
		for i, m := range vol.Spec.Members {
			if reps[i], err = s.bring(ctx, vol, record, m, reps[i]); apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
				again = true
				break
			} else if err != nil {
				return nil, err
			}
			again = again || reps[i] != nil && !equality.Semantic.DeepEqual(derive(vol, record, reps[i]), reps[i].Spec)
		}
		if !again {
			return &replicatedVolume{NvmfVolume: vol, replicas: reps}, nil
		}
	}
}

// bring a replica in line with its volume, provided that nothing has changed since it was read; else the API server
// answers Conflict or AlreadyExists.
func (s *Service) bring(ctx context.Context, vol *v1alpha1.NvmfVolume, record *mirror.Record, m v1alpha1.VolumeMember, rep *v1alpha1.NvmfReplica) (*v1alpha1.NvmfReplica, error) {
	switch {
	case rep == nil && vol.DeletionTimestamp != nil:
		return nil, nil
	case rep == nil && !vol.Spec.Used:
		return nil, failf(waiting, "volume %s is not created yet: NvmfReplica %s does not exist; if somebody deleted it, set spec.used of the NvmfVolume to true, and its node looks for the data", vol.Name, m.Name)
	case rep == nil:
		rep = newReplica(vol, m, nil)
		if err := s.sealNew(ctx, &v1alpha1.NvmfReplica{}, &rep.Spec); err != nil {
			return nil, err
		}
		if err := s.client.Create(ctx, rep, client.FieldOwner(fieldManager)); err != nil {
			return nil, fmt.Errorf("store NvmfReplica %s: %w", m.Name, err)
		}
		klog.FromContext(ctx).Info("The replica has no object; creating it for the data that its node may have", "volume", vol.Name, "replica", m.Name, "node", m.Node)
		return rep, nil
	}
	changed := rep.DeepCopy()
	changed.Spec = derive(vol, record, rep)
	delete(changed.Annotations, joinsAnnotation)
	if follows(rep, changed.Spec) {
		return rep, nil
	}
	namespace, claim := v1alpha1.ClaimOf(vol)
	v1alpha1.SetNames(&changed.ObjectMeta, "", namespace, claim)
	if err := s.sealNew(ctx, rep, &changed.Spec); err != nil {
		return nil, err
	}
	if err := s.patch(ctx, rep, changed); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("nvmfreplicas").GroupResource(), rep.Name, err)
		}
		return nil, fmt.Errorf("write NvmfReplica %s: %w", m.Name, err)
	}
	return changed, nil
}

// follows tells whether a replica that its volume lists is as derived from it.
func follows(rep *v1alpha1.NvmfReplica, derived v1alpha1.NvmfReplicaSpec) bool {
	return !joins(rep) && equality.Semantic.DeepEqual(derived, rep.Spec)
}

// await until done says so of each replica, and keep them as done saw them last. It gets the generation of what was
// written, since the cache may show an older state first. await fails with a description of the first that was late for
// what is awaited.
func (s *Service) await(ctx context.Context, vol *replicatedVolume, awaited string, done func(rep *v1alpha1.NvmfReplica, generation int64) (bool, error)) error {
	for i, rep := range vol.replicas {
		if rep == nil {
			continue
		}
		generation := rep.Generation
		last, err := s.replicas.wait(ctx, rep, func(rep *v1alpha1.NvmfReplica) (bool, error) { return done(rep, generation) })
		if errors.Is(err, errLate) {
			return s.late(ctx, vol.Name, last, awaited)
		}
		if err != nil {
			return err
		}
		vol.replicas[i] = last
	}
	return nil
}
