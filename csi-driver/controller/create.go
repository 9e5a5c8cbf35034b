// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// The agent says that it has not made the volume.
var (
	// errNoSpace: for want of room.
	errNoSpace = errors.New("no space")
	// errNoSource: for want of its source, which does not exist any more.
	errNoSource = errors.New("no source")
)

func (s *Service) createVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	want, err := newVolumeRequest(req)
	if err != nil {
		return nil, err
	}
	unlock, err := s.locks.lock("volume", want.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	about := want.object()
	traceClaim(ctx, &about)
	vol, err := s.ensureVolume(ctx, want)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(vol)}, nil
}

// uuidAttribute of a PersistentVolume. With it, a volume whose object was lost can be found among the data that its
// node kept, and is not mistaken for another one of its name.
const uuidAttribute = "uuid"

// volumeContext is for people who read a PersistentVolume; checkContext holds it against the volume.
func volumeContext(vol *v1alpha1.NvmfVolume) map[string]string {
	return map[string]string{
		parameters.Target: vol.Spec.Target, parameters.Transport: parameters.FormatTransports(vol.Spec.Connection.Transports), uuidAttribute: vol.Spec.UUID,
	}
}

// ensureVolume returns the volume once it exists on its node. Where an agent has no room for it after all,
// the object is withdrawn and another node is tried; where its source is gone, that is found out anew without it.
func (s *Service) ensureVolume(ctx context.Context, want volumeRequest) (*v1alpha1.NvmfVolume, error) {
	wctx, cancel := waitContext(ctx)
	defer cancel()
	// Most volumes are new. One that the cache does not show is stored without asking whether it is there: if it is,
	// the API server refuses, and whatever else goes wrong is believed only after a look.
	vol, err := s.volumes.get(ctx, s.client, want.id)
	if err != nil {
		return nil, err
	}
	fresh := vol == nil
	var full []string
	for ; ; fresh = false {
		if !fresh {
			if vol, err = s.volumes.read(ctx, want.id); err != nil {
				return nil, err
			}
		}
		if vol != nil && vol.DeletionTimestamp != nil {
			if err := s.waitGone(wctx, vol); err != nil {
				return nil, err
			}
			continue
		}
		var stored time.Time
		if vol == nil {
			stored = time.Now()
			vol, err = s.makeVolume(ctx, want, full)
			if apierrors.IsAlreadyExists(err) || fresh && err != nil && ctx.Err() == nil {
				continue
			}
		} else {
			err = want.checkExisting(vol)
		}
		if err != nil {
			return nil, err
		}
		node, cause := s.makeReplicas(ctx, wctx, vol, stored)
		if cause == nil {
			if vol, err = s.unmark(ctx, vol); apierrors.IsConflict(err) {
				continue
			}
			return vol, err
		}
		if !errors.Is(cause, errNoSpace) && !errors.Is(cause, errNoSource) {
			return nil, cause
		}
		withdrawn, err := s.withdraw(wctx, vol, cause)
		if err != nil {
			return nil, err
		}
		if withdrawn && errors.Is(cause, errNoSpace) {
			full = append(full, node)
		}
	}
}

// makeVolume places the volume and stores its NvmfVolume.
func (s *Service) makeVolume(ctx context.Context, want volumeRequest, avoid []string) (*v1alpha1.NvmfVolume, error) {
	target, err := s.target(ctx, want.params.Target)
	if err != nil {
		return nil, err
	}
	connection, err := want.params.ConnectionTo(target.Name, target.Spec.Transports)
	if err != nil {
		return nil, err
	}
	if err := s.checkLimits(ctx, target.Name, want.params.QoS); err != nil {
		return nil, err
	}
	if err := checkDeviceClass(want.params, target); err != nil {
		return nil, err
	}
	if err := s.checkSecret(ctx, want.params); err != nil {
		return nil, err
	}
	req := placement.Request{Target: target.Name, Connection: asked(want.params, connection), DeviceClass: want.params.DeviceClass, Avoid: avoid}
	if err = s.nodesFor(ctx, &req, want.params); err != nil {
		return nil, err
	}
	var from origin
	if want.source == nil {
		if req.Near, err = s.near(ctx, want.params, req.ZoneOf); err != nil {
			return nil, err
		}
		req.SizeBytes, err = want.sizes.choose(want.minBytes, want.why)
	} else {
		if from, err = s.origin(ctx, want.source); err == nil {
			req.Node, req.Device = from.node, from.device
			req.SizeBytes, err = copySize(want, from)
			err = cmp.Or(from.copyableInto(want.params), err)
		}
	}
	if err != nil {
		return nil, err
	}
	req.SizeBytes += want.params.Encryption.HeaderBytes()
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("create a UUID: %w", err)
	}
	members, blockBytes, err := s.place(ctx, req, want, id.String())
	if err != nil {
		return nil, withTargetsReasons(err, target)
	}
	vol := &v1alpha1.NvmfVolume{
		ObjectMeta: want.object(),
		Spec: v1alpha1.NvmfVolumeSpec{
			UUID: id.String(), Target: target.Name, Members: members, Mirrored: len(members) > 1,
			Replicas: max(want.params.Replicas, 1), ReplaceLostReplicaAfterMinutes: want.params.ReplaceLostReplicaAfterMinutes,
			Size: *resource.NewQuantity(req.SizeBytes, resource.BinarySI), Source: want.source, Encryption: want.params.Encryption, Trailer: want.source == nil || from.trailer,
			DeviceClass: req.DeviceClass, BlockSizeBytes: blockBytes, Zones: want.params.Zones, ZoneLabel: want.params.ZoneLabel, Connection: connection, QoS: want.params.QoS,
		},
	}
	if from.proof != "" {
		vol.Annotations[sourceProofAnnotation] = from.proof
	}
	err = s.client.Create(ctx, vol, client.FieldOwner(fieldManager))
	if err != nil {
		if refused(err) || apierrors.IsAlreadyExists(err) {
			s.reservations.releaseAll(members, req.SizeBytes)
		}
		return nil, fmt.Errorf("store NvmfVolume %s: %w", want.id, err)
	}
	klog.FromContext(ctx).Info("Placed volume", "volume", vol.Name, "members", members, "target", target.Name, "size", quantity(req.SizeBytes))
	return vol, nil
}

// place the replicas of a volume, each on another node. A copy begins with one: the others are created and filled once
// that has the data. That there is room for them is checked before anything is copied.
func (s *Service) place(ctx context.Context, req placement.Request, want volumeRequest, uuid string) (members []v1alpha1.VolumeMember, blockBytes int32, err error) {
	members = make([]v1alpha1.VolumeMember, max(int(want.params.Replicas), 1))
	for n := range members {
		members[n] = member(want.id, uuid, n, "")
	}
	if blockBytes, err = s.reservations.place(ctx, req, members); err != nil {
		return nil, 0, err
	}
	if want.source != nil {
		s.reservations.releaseAll(members[1:], req.SizeBytes)
		members = members[:1]
	}
	return members, blockBytes, nil
}

// asked of a node: what the StorageClass gives, and the transports in any case. What is settled by default is lowered
// by the kernel to what a node serves.
func asked(p parameters.Parameters, settled v1alpha1.Connection) v1alpha1.Connection {
	c := p.Connection
	c.Transports = settled.Transports
	return c
}

// withTargetsReasons adds, where no node serves the target, why the operator found none capable.
func withTargetsReasons(err error, target *v1alpha1.NvmfTarget) error {
	var none *placement.NoNodeError
	if !errors.As(err, &none) || len(none.Refusals) > 0 {
		return err
	}
	with := *none
	for _, n := range target.Status.NotCapable {
		with.Refusals = append(with.Refusals, placement.Refusal{Node: n.Node, Reason: fmt.Sprintf("not capable (%s: %s)", n.Reason, n.Message)})
	}
	return &with
}

// makeReplicas creates the objects of the volume's replicas that have none, and waits until each exists on its node:
// their agents make them at the same time. It fails with errNoSpace or errNoSource, and the node, when an agent says
// that it could not make the replica there. stored is when this call began to store the volume; zero if it did not.
func (s *Service) makeReplicas(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume, stored time.Time) (node string, err error) {
	if vol.Spec.Source != nil && vol.Replicated() {
		return "", s.makeMirror(ctx, vol, nil) // it became mirrored after it was created
	}
	reps := make([]*v1alpha1.NvmfReplica, len(vol.Spec.Members))
	changes := make([]<-chan struct{}, len(vol.Spec.Members))
	for i, m := range vol.Spec.Members {
		changed, unsubscribe := s.replicas.subscribe(m.Name)
		defer unsubscribe()
		changes[i] = changed
		if reps[i], err = s.makeReplica(ctx, vol, m); err != nil {
			return m.Node, err
		}
	}
	recorded := false
	if slices.Contains(reps, nil) {
		err = s.findReplicas(ctx, vol, reps)
	} else {
		recorded, err = s.firstMirror(ctx, vol, reps, stored)
	}
	if err != nil {
		return "", err
	}
	for i, m := range vol.Spec.Members {
		if reps[i], err = s.awaitCreated(ctx, wctx, vol, reps[i], changes[i]); err != nil {
			return m.Node, err
		}
	}
	if recorded {
		return "", nil
	}
	if err := s.checkCopy(ctx, wctx, vol); err != nil {
		return "", err
	}
	return "", s.makeMirror(ctx, vol, reps)
}

// awaitCreated waits until a replica exists on its node, and returns it as it is then.
func (s *Service) awaitCreated(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica, changed <-chan struct{}) (*v1alpha1.NvmfReplica, error) {
	last, err := s.replicas.await(wctx, rep, changed, true, func(rep *v1alpha1.NvmfReplica) (bool, error) {
		done, err := created(rep)
		if errors.Is(err, errNoSource) {
			return false, s.sourceGone(ctx, vol.Spec.Source)
		}
		return done, err
	})
	if errors.Is(err, errLate) {
		err = s.late(ctx, vol.Name, last, v1alpha1.ConditionCreated)
	}
	return last, err
}

// makeReplica stores the object of a replica; nil if there is one, of an earlier call. A used volume's is never made
// here: its data is not to be created a second time.
func (s *Service) makeReplica(ctx context.Context, vol *v1alpha1.NvmfVolume, m v1alpha1.VolumeMember) (*v1alpha1.NvmfReplica, error) {
	if vol.Spec.Used {
		return nil, nil
	}
	source, err := s.replicaSource(ctx, vol)
	if isNoVolume(err) || errors.Is(err, errNoSource) {
		// What is made needs it no more.
		rep, err := s.replicas.read(ctx, m.Name)
		if err == nil && rep == nil {
			err = errNoSource
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	rep := newReplica(vol, m, source)
	err = s.client.Create(ctx, rep, client.FieldOwner(fieldManager))
	if apierrors.IsAlreadyExists(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store NvmfReplica %s: %w", m.Name, err)
	}
	return rep, nil
}

// findReplicas that earlier calls made: those that reps lacks, in the order of the members. It comes after all others
// were made, since a volume that lacks one cannot be followed.
func (s *Service) findReplicas(ctx context.Context, vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica) error {
	now, err := s.follow(ctx, vol)
	if err != nil {
		return err
	}
	if !slices.Equal(now.Spec.Members, vol.Spec.Members) || slices.Contains(now.replicas, nil) {
		return failf(busy, "volume %s was changed while it was being created; try again", vol.Name)
	}
	copy(reps, now.replicas)
	return nil
}

func created(rep *v1alpha1.NvmfReplica) (bool, error) {
	if rep == nil || rep.DeletionTimestamp != nil {
		return false, failf(busy, "the volume was deleted while it was being created; try again")
	}
	c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionCreated)
	if c == nil {
		return false, nil
	}
	if c.Status == metav1.ConditionFalse && rep.Status.ObservedGeneration >= rep.Generation {
		switch c.Reason {
		case v1alpha1.ReasonNoSpace:
			return false, errNoSpace
		case v1alpha1.ReasonSourceNotReady:
			return false, errNoSource
		}
	}
	return c.Status == metav1.ConditionTrue, nil
}

// withdraw deletes the objects of a volume that an agent could not make. This loses nothing: the resource version makes
// sure that nobody was admitted, and the agent's finalizer keeps a replica's object until the engine has nothing of it.
// It returns false when the object has changed meanwhile and must be looked at again.
func (s *Service) withdraw(ctx context.Context, vol *v1alpha1.NvmfVolume, cause error) (bool, error) {
	if vol.Spec.Used {
		return false, fmt.Errorf("volume %s was attached before, and is not withdrawn: %w", vol.Name, cause)
	}
	klog.FromContext(ctx).Info("A node could not create the volume", "volume", vol.Name, "members", vol.Spec.Members, "reason", cause)
	err := s.erase(ctx, vol)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("remove NvmfVolume %s: %w", vol.Name, err)
	}
	return true, s.waitGone(ctx, vol)
}

// unmark a volume that is handed out, and its replicas. A withdrawal, or a deletion, that was not carried through
// leaves its mark, and then whoever deletes the object by mistake would delete the data.
func (s *Service) unmark(ctx context.Context, vol *v1alpha1.NvmfVolume) (*v1alpha1.NvmfVolume, error) {
	if vol.Spec.DeletionMark == "" {
		return vol, nil
	}
	kept := vol.DeepCopy()
	kept.Spec.DeletionMark = ""
	if err := s.patch(ctx, vol, kept); err != nil {
		return nil, fmt.Errorf("remove the deletion mark of NvmfVolume %s: %w", vol.Name, err)
	}
	now, err := s.follow(ctx, kept)
	if err != nil {
		return nil, err
	}
	return now.NvmfVolume, nil
}
