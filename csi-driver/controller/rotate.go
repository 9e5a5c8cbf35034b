// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	// rotateInterval is how often keys are looked at that are to be rotated, or are being rotated.
	rotateInterval = 30 * time.Second
	// mostRotations is how many replicas are rotated at once in the cluster: each takes the place of an attachment more
	// at its target. A rotation waits up to ten minutes for its node plugin to look, so these are more than a thousand
	// a day: as many as the keys of 100,000 volumes need that live for 90 days.
	mostRotations = 8
	// rotationTime is how long a rotation counts among these: what lasts longer waits for a node that is away, or that
	// cannot (nvme_core.multipath=N), and must not keep others from being rotated.
	rotationTime = 15 * time.Minute
)

// Keys of a host that is attached cannot be changed under it: Linux gives up a path for good when a reconnect meets
// others. So an attachment gets another host beside the first one, with an NQN and keys of its own:
//
//  1. A person, or this service once keys are old, sets spec.keyRotation of the NvmfVolume.
//  2. This service adds the host to the replica, and the agent admits it.
//  3. The node plugin connects as that host, to the same subsystem, so that the kernel has two paths to one device.
//     Once the new one works, it drops the former one, and says so in the condition WeftIdentitiesRetired of its Node.
//  4. This service removes the former host, and says in the new one's entry that it is retired. The agent dismisses it
//     without disturbing the new one, and never admits it again.
//
// Each step is found in the objects, so that any process can be restarted in between. An attachment that ends in the
// middle loses both hosts.
//
// The replicas of a mirrored volume are rotated one after the other, each while the mirror's record has it in sync and
// connected. The record knows a leg by its subsystem, and does not change. A replica that is given up in the middle
// loses both hosts with that subsystem, and returns by another one, with keys that are new.

// rotateAll goes on with the rotations that are under way, and begins others. It looks at what the cache has, without
// copying it, and reads from the API server only what is rotated, or is to be.
func (s *Service) rotateAll(ctx context.Context) error {
	if !s.Synced() {
		return nil // what is under way is not known yet
	}
	var errs []error
	var due []string
	running := 0
	for _, name := range s.volumes.names.after("") {
		vol, err := s.volumes.peek(ctx, name)
		if err != nil {
			return err
		}
		if vol == nil || vol.DeletionTimestamp != nil || len(vol.Spec.Attachments) == 0 {
			continue
		}
		seen, err := s.peekReplicas(ctx, vol)
		if err != nil {
			return err
		}
		for _, rep := range seen.replicas {
			if rep != nil && rep.Rotating() {
				if rotatesSince(rep) < rotationTime {
					running++
				}
				if err := s.dismissFormer(ctx, name, rep.Name); err != nil {
					errs = append(errs, fmt.Errorf("volume %s: %w", name, err))
				}
			}
		}
		switch todo, err := s.rotates(ctx, seen, s.lazyRecord(ctx, s.client, seen)); {
		case err != nil:
			errs = append(errs, fmt.Errorf("volume %s: %w", name, err))
		case len(todo) > 0:
			due = append(due, name)
		}
	}
	for _, name := range due {
		if running >= mostRotations {
			break
		}
		// One that cannot proceed now takes nobody's turn.
		begun, err := s.rotate(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("rotate the keys of volume %s: %w", name, err))
		}
		if begun {
			running++
		}
	}
	return errors.Join(errs...)
}

// rotatesSince is how long ago a host was added to a replica.
func rotatesSince(rep *v1alpha1.NvmfReplica) time.Duration {
	latest := time.Duration(math.MaxInt64)
	for _, h := range rep.Spec.Hosts {
		if h.KeysCreated != nil && len(rep.HostsOf(h.AttachmentUUID())) > 1 {
			latest = min(latest, time.Since(h.KeysCreated.Time))
		}
	}
	return latest
}

// turn of a replica to have the keys of some of its hosts rotated.
type turn struct {
	replica *v1alpha1.NvmfReplica
	hosts   []v1alpha1.VolumeHost
}

// rotates gives the replicas of a volume whose keys are to be rotated, and can be now: any one of them. While a volume
// is about to become mirrored, nothing is begun; should both begin at the same moment, the mirror waits for the end of
// the rotation. Nor is anything begun for a mover, which ends sooner than keys are old. Volume and replicas may be the
// cache's own.
func (s *Service) rotates(ctx context.Context, vol *replicatedVolume, record func() (*mirror.Record, error)) ([]turn, error) {
	becomesMirrored := !vol.Replicated() && (vol.Spec.Replicas > 1 || vol.Spec.Move != nil || vol.Annotations[convertAnnotation] != "")
	rotating := func(rep *v1alpha1.NvmfReplica) bool { return rep != nil && rep.Rotating() }
	if becomesMirrored || vol.Mover() != nil || vol.Spec.Recovery != nil || slices.ContainsFunc(vol.replicas, rotating) {
		return nil, nil
	}
	var target v1alpha1.NvmfTarget
	if err := s.client.Get(ctx, keyOf(vol.Spec.Target), &target, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	var turns []turn
	for _, rep := range vol.replicas {
		due := rotatable(vol.NvmfVolume, rep, &target)
		if len(due) == 0 {
			continue
		}
		is, err := record()
		if err != nil {
			return nil, err
		}
		if worksInMirror(vol.NvmfVolume, is, rep) {
			turns = append(turns, turn{rep, due})
		}
	}
	return turns, nil
}

// worksInMirror tells whether the record of a volume's mirror has a replica in sync, and connected by its subsystem.
// One that does not work returns with other keys. Of a volume without a mirror, every replica works.
func worksInMirror(vol *v1alpha1.NvmfVolume, record *mirror.Record, rep *v1alpha1.NvmfReplica) bool {
	if record == nil {
		return !vol.Replicated()
	}
	m, is := mirror.Get(*record, rep.Name)
	return is && m.State == v1alpha1.MemberInSync && !m.Suspect && !m.Retired && !record.Recovering && record.Holder != "" &&
		m.Identity == v1alpha1.SessionOfSubsystem(rep.Spec.SubsystemNQN)
}

// lazyRecord of a volume's mirror: it is read at the first call, if there is one.
func (s *Service) lazyRecord(ctx context.Context, from client.Reader, vol *replicatedVolume) func() (*mirror.Record, error) {
	return sync.OnceValues(func() (*mirror.Record, error) { return s.recordOf(ctx, from, vol.NvmfVolume) })
}

// rotatable are the hosts of a replica whose keys are to be rotated, and can be now. Until something is written to a
// replica, its host may have to format it, which another host beside it would forbid.
func rotatable(vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica, target *v1alpha1.NvmfTarget) []v1alpha1.VolumeHost {
	if rep == nil || rep.DeletionTimestamp != nil || retired(rep) || len(rep.Spec.Hosts) >= v1alpha1.MaxHosts || rep.RestoreSuspected() || rep.Status.ObservedGeneration < rep.Generation {
		return nil
	}
	var due []v1alpha1.VolumeHost
	for _, h := range rep.Spec.Hosts {
		admitted := rep.Admitted(h.NQN)
		if admitted == nil || admitted.Blank && !rep.Status.Written {
			continue
		}
		requested := h.KeyRotation != vol.Spec.KeyRotation && (h.SealedKeys != "" || target.Spec.Authentication() != v1alpha1.AuthenticationDisabled)
		old := h.SealedKeys != "" && h.KeysCreated != nil && time.Since(h.KeysCreated.Time) >= target.KeyLifetime()
		if requested || old {
			due = append(due, h)
		}
	}
	return due
}

// rotate the keys of one of a volume's hosts: add another host to its attachment. That an attachment has had several is
// recorded in the volume first: should its replica's object be created again, the first one's NQN is not used again.
// What cannot be done now is left to the next time. It tells whether a host was added.
func (s *Service) rotate(ctx context.Context, volume string) (begun bool, err error) {
	vol, turns, err := s.rotatesNow(ctx, volume)
	if err != nil || len(turns) == 0 {
		return false, err
	}
	requested := func(h v1alpha1.VolumeHost) bool { return h.KeyRotation != vol.Spec.KeyRotation }
	if !slices.ContainsFunc(turns, func(t turn) bool { return slices.ContainsFunc(t.hosts, requested) }) {
		aged := vol.DeepCopy()
		aged.Spec.KeyRotation = uuid.NewString()
		klog.FromContext(ctx).Info("Keys of the volume's hosts are old; rotating them", "volume", volume)
		if err := s.patch(ctx, vol.NvmfVolume, aged); err != nil {
			return false, ignoreChanged(err)
		}
		if vol, turns, err = s.rotatesNow(ctx, volume); err != nil {
			return false, err
		}
	}
	for _, t := range turns {
		if begun, err := s.rotateReplica(ctx, vol.NvmfVolume, t.replica, t.hosts); begun || err != nil {
			return begun, err
		}
	}
	return false, nil
}

// rotateReplica is rotate for one of these hosts of a replica.
func (s *Service) rotateReplica(ctx context.Context, vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica, todo []v1alpha1.VolumeHost) (begun bool, err error) {
	if err := checkPlaces(ctx, s.live, vol, rep.Spec.Node); err != nil {
		klog.FromContext(ctx).V(2).Info("The rotation of keys waits for a place at the target", "volume", vol.Name, "reason", err)
		return false, nil // the node has room another time
	}
	next := rep.DeepCopy()
	next.Spec.VolumeUID, next.Spec.VolumeGeneration, next.Spec.Hosts = string(vol.UID), vol.Generation, nil
	for _, h := range rep.Spec.Hosts {
		next.Spec.Hosts = append(next.Spec.Hosts, h)
		if next.Rotating() || !slices.ContainsFunc(todo, func(t v1alpha1.VolumeHost) bool { return t.NQN == h.NQN }) {
			continue // one after the other: each needs a place at the target
		}
		e, err := s.endsOf(ctx, rep.Spec.Node, h)
		if err != nil {
			return false, err
		}
		if e.unable != "" {
			klog.FromContext(ctx).V(2).Info("The rotation of keys waits", "volume", vol.Name, "host", h.Node, "reason", e.unable)
			continue
		}
		n := successor(vol, h)
		if err := seal(&n, e); err != nil {
			return false, err
		}
		klog.FromContext(ctx).Info("Rotating the keys of a host", "volume", vol.Name, "replica", rep.Name, "host", h.Node, "former", h.NQN, "nqn", n.NQN)
		next.Spec.Hosts = append(next.Spec.Hosts, n)
	}
	if len(next.Spec.Hosts) == len(rep.Spec.Hosts) {
		return false, nil
	}
	err = s.patch(ctx, rep, next)
	return err == nil, ignoreChanged(err)
}

// rotatesNow is rotates with what the API server has: the replicas, then the volume, and then the record of its mirror.
// Replicas that do not follow them have no turn.
func (s *Service) rotatesNow(ctx context.Context, volume string) (*replicatedVolume, []turn, error) {
	vol, err := s.withReplicas(ctx, volume)
	if err == nil {
		vol.NvmfVolume, err = s.volume(ctx, volume)
	}
	if isNoVolume(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if vol.DeletionTimestamp != nil || len(vol.Spec.Attachments) == 0 {
		return nil, nil, nil
	}
	lazy := s.lazyRecord(ctx, s.live, vol)
	turns, err := s.rotates(ctx, vol, lazy)
	if err != nil || len(turns) == 0 {
		return nil, nil, err
	}
	record, err := lazy()
	turns = slices.DeleteFunc(turns, func(t turn) bool {
		return indexOf(vol.NvmfVolume, t.replica.Name) < 0 || !sameHosts(derive(vol.NvmfVolume, record, t.replica), t.replica.Spec)
	})
	return vol, turns, err
}

// sameHosts tells whether two specs of a replica list the same, under the same subsystem.
func sameHosts(a, b v1alpha1.NvmfReplicaSpec) bool {
	return a.SubsystemNQN == b.SubsystemNQN && equality.Semantic.DeepEqual(a.Hosts, b.Hosts)
}

// dismissFormer hosts of a replica whose nodes say that they never connect as them again.
func (s *Service) dismissFormer(ctx context.Context, volume, name string) error {
	rep, err := s.replicas.read(ctx, name)
	if err != nil || rep == nil || rep.DeletionTimestamp != nil {
		return err
	}
	vol, err := s.volume(ctx, volume)
	if isNoVolume(err) {
		return nil
	}
	if err != nil {
		return err
	}
	next := rep.DeepCopy()
	next.Spec.VolumeUID, next.Spec.VolumeGeneration, next.Spec.Hosts = string(vol.UID), vol.Generation, nil
	former := map[string]string{} // that are retired, by their attachments
	for _, h := range rep.Spec.Hosts {
		if of := rep.HostsOf(h.AttachmentUUID()); of[len(of)-1].NQN == h.NQN {
			h.Retired = cmp.Or(former[h.AttachmentUUID()], h.Retired)
			next.Spec.Hosts = append(next.Spec.Hosts, h)
			continue
		}
		retired, err := s.retiredBy(ctx, h)
		if err != nil {
			return err
		}
		if !retired {
			next.Spec.Hosts = append(next.Spec.Hosts, h)
			continue
		}
		former[h.AttachmentUUID()], _ = v1alpha1.AttachmentOfHost(h.NQN)
		klog.FromContext(ctx).Info("The keys of a host are rotated; dismissing the former one", "volume", volume, "replica", name, "host", h.Node, "nqn", h.NQN)
	}
	if len(next.Spec.Hosts) == len(rep.Spec.Hosts) {
		return nil
	}
	return ignoreChanged(s.patch(ctx, rep, next))
}

// retiredBy tells whether the node of a host says that it never connects as that host again. Another machine of the
// node's name says nothing of it.
func (s *Service) retiredBy(ctx context.Context, h v1alpha1.VolumeHost) (bool, error) {
	var node corev1.Node
	if err := s.live.Get(ctx, keyOf(h.Node), &node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	identity, _ := v1alpha1.AttachmentOfHost(h.NQN)
	return string(node.UID) == h.NodeUID && slices.Contains(v1alpha1.RetiredIdentities(&node), identity), nil
}

// ignoreChanged takes it for no error that an object changed, or went, after it was read: it is looked at again.
func ignoreChanged(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
