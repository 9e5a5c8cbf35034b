// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// confirmGrace is how long an attachment waits for replicas that do not confirm that the former holder is off, once one
// has: a target pod that restarts has its exports again within a few seconds, and a replica that is left behind costs a
// copy of what is written meanwhile. It is less than the ten seconds that csi-attacher gives a call.
const confirmGrace = 6 * time.Second

// makeMirror stores the record of a volume with several replicas, all of which exist on their nodes: they are blank,
// and so equal. The record is made once: it alone tells whose data is current, so that one that is missing later is
// never made again.
func (s *Service) makeMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica) error {
	if !vol.Replicated() {
		return nil
	}
	if vol.Spec.Used {
		_, err := s.mirrorOf(ctx, vol) // its members may be changing
		return err
	}
	var all []mirror.Replica
	for i, rep := range reps {
		if rep == nil {
			return failf(waiting, "volume %s is not created yet: NvmfReplica %s does not exist", vol.Name, vol.Spec.Members[i].Name)
		}
		all = append(all, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
	}
	record, err := mirror.New("", all, nil, time.Now())
	if err != nil {
		return err
	}
	// Most volumes have no record yet: it is stored without asking for one, which the API server would refuse.
	if err := s.storeMirror(ctx, vol, record); !apierrors.IsAlreadyExists(err) {
		return err
	}
	is, err := s.mirrors.read(ctx, vol.Name)
	if err != nil {
		return err
	}
	if is != nil && sameMembers(is.Spec, record) {
		return nil
	}
	if is != nil {
		if err := s.unchanged(ctx, vol); err != nil {
			return err
		}
		// Of a creation that was withdrawn: nobody was ever admitted to these replicas.
		if err := s.client.Delete(ctx, is, asRead(is)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete NvmfMirror %s: %w", vol.Name, err)
		}
	}
	err = s.storeMirror(ctx, vol, record)
	if apierrors.IsAlreadyExists(err) {
		return failf(busy, "NvmfMirror %s was created at the same time; try again", vol.Name)
	}
	return err
}

// storeMirror stores the first record of a volume to which nobody was admitted.
func (s *Service) storeMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, record mirror.Record) error {
	if err := s.unchanged(ctx, vol); err != nil {
		return err
	}
	err := s.client.Create(ctx, &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: vol.Name, Labels: vol.Labels}, Spec: record}, client.FieldOwner(fieldManager))
	if err != nil {
		return fmt.Errorf("store NvmfMirror %s: %w", vol.Name, err)
	}
	return nil
}

// unchanged fails when a volume that is being created is not as it was: while it is, nobody was admitted, and its
// members are the same. A record that is to be replaced is read before.
func (s *Service) unchanged(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	now, err := s.volume(ctx, vol.Name)
	if err != nil {
		return err
	}
	if now.UID != vol.UID || now.ResourceVersion != vol.ResourceVersion {
		return failf(busy, "volume %s was changed while it was being created; try again", vol.Name)
	}
	return nil
}

func sameMembers(a, b mirror.Record) bool {
	return slices.EqualFunc(a.Members, b.Members, func(a, b mirror.Member) bool { return a.Replica == b.Replica && a.ReplicaUID == b.ReplicaUID })
}

// errCopied explains why a copy has one replica: what its data begins with is the mirror of another volume, or may be.
func errCopied(volume string) error {
	return failf(invalid, "volume %s cannot be a copy and have more than one replica in this version; use a StorageClass with replicas: \"1\" for it", volume)
}

func errNoMirror(vol *v1alpha1.NvmfVolume) error {
	return failf(inUse, "volume %s has %d replicas, but NvmfMirror %s, which records which of them are current, does not exist; restore it from a backup while the nodes of all replicas are up",
		vol.Name, len(vol.Spec.Members), vol.Name)
}

// mirrorOf a volume with several replicas, read from the API server. Without one, nobody guesses which is current.
func (s *Service) mirrorOf(ctx context.Context, vol *v1alpha1.NvmfVolume) (*v1alpha1.NvmfMirror, error) {
	is, err := s.mirrors.read(ctx, vol.Name)
	if err == nil && is == nil {
		err = errNoMirror(vol)
	}
	return is, err
}

// changeMirror of a volume by compare and swap: change gets the record as the API server has it. A write of which it is
// not known whether it was stored is read again and changed again.
func (s *Service) changeMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, change func(mirror.Record) (mirror.Record, error)) (mirror.Record, error) {
	for {
		is, err := s.mirrorOf(ctx, vol)
		if err != nil {
			return mirror.Record{}, err
		}
		next, err := change(*is.Spec.DeepCopy())
		if err != nil {
			return mirror.Record{}, err
		}
		if equality.Semantic.DeepEqual(next, is.Spec) {
			return next, nil
		}
		is.Spec = next
		err = s.client.Update(ctx, is, client.FieldOwner(fieldManager))
		if err == nil {
			return next, nil
		}
		if !apierrors.IsConflict(err) {
			return mirror.Record{}, fmt.Errorf("write NvmfMirror %s: %w", vol.Name, err)
		}
	}
}

// fence the holder of a volume's mirror if its attachment has ended. The volume is read after the record, and the
// record written only as it was read: a holder is in the volume's attachments before it is in the record.
func (s *Service) fence(ctx context.Context, vol *v1alpha1.NvmfVolume) (mirror.Record, error) {
	return s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		if r.Holder == "" {
			return r, nil
		}
		now, err := s.volume(ctx, vol.Name)
		if err != nil {
			return r, err
		}
		if now.UID == vol.UID && now.Listed(v1alpha1.HostNQN(r.Holder)) != nil {
			return r, nil
		}
		return mirror.Begin(r), nil
	})
}

// hold gives a volume's mirror to an attachment, once the replicas that are in sync have confirmed that every earlier
// host is off. Those that do not within the grace are dropped, as long as one has.
func (s *Service) hold(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume, attachment string) error {
	record, err := s.fence(ctx, vol)
	if err != nil || record.Holder == attachment {
		return err
	}
	host := vol.Listed(v1alpha1.HostNQN(attachment))
	if host == nil {
		return failf(busy, "volume %s was detached while it was being attached; try again", vol.Name)
	}
	now, err := s.follow(ctx, vol)
	if err != nil {
		return err
	}
	confirmed, last, err := s.confirm(wctx, now, record, func(rep *v1alpha1.NvmfReplica, generation int64) (bool, error) {
		if h := rep.HostOf(attachment); h != nil {
			return exportedTo(rep, h.NQN, generation)
		}
		return exportedTo(rep, v1alpha1.HostNQN(attachment), generation)
	})
	if err != nil {
		return err
	}
	record, err = s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		if r.Holder == attachment {
			return r, nil
		}
		next, err := mirror.Admit(r, attachment, confirmed, time.Now())
		next.HolderNode = host.Node // its node plugin alone may write the record from here on
		return next, err
	})
	switch {
	case errors.Is(err, mirror.ErrUnconfirmed) && last != nil:
		return s.late(ctx, vol.Name, last, v1alpha1.ConditionExported)
	case errors.Is(err, mirror.ErrNeedsPerson), errors.Is(err, mirror.ErrUnconfirmed):
		return failf(waiting, "volume %s cannot be attached yet: %v", vol.Name, err)
	case errors.Is(err, mirror.ErrHeld):
		return failf(busy, "volume %s is being attached by another call; try again", vol.Name)
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Holding mirror", "volume", vol.Name, "record", mirror.String(record))
	return nil
}

// confirm waits until done says so of each replica that is in sync; once it has of one, for confirmGrace more. It
// returns those of which it does, and one of which it does not.
func (s *Service) confirm(ctx context.Context, vol *replicatedVolume, record mirror.Record, done func(rep *v1alpha1.NvmfReplica, generation int64) (bool, error)) ([]mirror.Confirmation, *v1alpha1.NvmfReplica, error) {
	type answer struct {
		rep *v1alpha1.NvmfReplica
		err error
	}
	answers := make(chan answer)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waiting := 0
	for _, rep := range vol.replicas {
		if rep == nil {
			continue
		}
		if m, is := mirror.Get(record, rep.Name); !is || !mirror.Compared(m) {
			continue
		}
		waiting++
		go func() {
			generation := rep.Generation
			last, err := s.replicas.wait(ctx, rep, func(rep *v1alpha1.NvmfReplica) (bool, error) { return done(rep, generation) })
			answers <- answer{last, err}
		}()
	}
	var confirmed []mirror.Confirmation
	var silent *v1alpha1.NvmfReplica
	var failed error
	for ; waiting > 0; waiting-- {
		a := <-answers
		switch {
		case a.err == nil && a.rep != nil && isMember(record, a.rep):
			confirmed = append(confirmed, mirror.Confirmation{Replica: mirror.Replica{Name: a.rep.Name, UID: string(a.rep.UID)}})
			time.AfterFunc(confirmGrace, cancel)
		case errors.Is(a.err, errLate):
			silent = a.rep
		case a.err != nil:
			failed = a.err
		}
	}
	if len(confirmed) == 0 && failed != nil {
		return nil, silent, failed
	}
	past, err := s.restored(ctx, vol, record)
	return append(confirmed, past...), silent, err
}

// isMember tells whether a replica is the one that the record means, and not another that got its name later.
func isMember(record mirror.Record, rep *v1alpha1.NvmfReplica) bool {
	m, ok := mirror.Get(record, rep.Name)
	return ok && m.ReplicaUID == string(rep.UID)
}

// restored are the members whose agents know later states of their objects: the API was restored to an earlier state,
// and the record with it. Nobody is dropped then before a person has decided.
func (s *Service) restored(ctx context.Context, vol *replicatedVolume, record mirror.Record) ([]mirror.Confirmation, error) {
	reps, err := s.replicasOf(context.WithoutCancel(ctx), vol.NvmfVolume)
	if err != nil {
		return nil, err
	}
	var past []mirror.Confirmation
	for _, rep := range reps {
		if rep != nil && isMember(record, rep) && rep.RestoreSuspected() {
			past = append(past, mirror.Confirmation{Replica: mirror.Replica{Name: rep.Name, UID: string(rep.UID)}, Past: true})
		}
	}
	return past, nil
}

// release a volume's mirror: its holder is fenced, and the replicas that are in sync confirm that it is off, at least
// one of them. What the others say is asked before anybody holds it again.
func (s *Service) release(ctx, wctx context.Context, vol *replicatedVolume) error {
	record, err := s.mirrors.read(ctx, vol.Name)
	if err != nil {
		return err
	}
	if record == nil || vol.DeletionTimestamp != nil {
		return s.await(wctx, vol, detached, dismissed)
	}
	confirmed, last, err := s.confirm(wctx, vol, record.Spec, dismissed)
	confirmed = slices.DeleteFunc(confirmed, func(c mirror.Confirmation) bool { return c.Past })
	if err == nil && len(confirmed) == 0 && last != nil {
		return s.late(ctx, vol.Name, last, detached)
	}
	return err
}

// sourceProofAnnotation of a copy says what must still be true of the source volume once the copy is made: else it may
// be a copy of a replica that was left behind meanwhile.
const sourceProofAnnotation = "weft.storage/source-proof"

// Proofs, beside the epoch of the source's record.
const (
	// proofPlain: the volume is not mirrored, and has one replica.
	proofPlain = "plain"
	// proofOnly begins the proof that the record has one member, and ends in its UID: nothing else can be current.
	proofOnly = "only "
)

// copyable gives the replica that a copy of a volume is made of, and the proof that stillProven takes afterwards. While
// a volume with several replicas is attached, or after an unclean end, only its node can tell what is current.
func (s *Service) copyable(ctx context.Context, vol *v1alpha1.NvmfVolume) (v1alpha1.VolumeMember, string, error) {
	if !vol.Replicated() {
		return vol.Spec.Members[0], proofPlain, nil
	}
	is, err := s.mirrorOf(ctx, vol)
	if err != nil {
		return v1alpha1.VolumeMember{}, "", err
	}
	inSync := mirror.InSync(is.Spec)
	i := slices.IndexFunc(vol.Spec.Members, func(m v1alpha1.VolumeMember) bool { return slices.Contains(inSync, m.Name) })
	if i < 0 {
		return v1alpha1.VolumeMember{}, "", failf(inUse, "no replica of volume %s that is in sync is a member of it", vol.Name)
	}
	if len(is.Spec.Members) == 1 {
		return vol.Spec.Members[i], proofOnly + is.Spec.Members[0].ReplicaUID, nil
	}
	if is.Spec.Holder != "" || is.Spec.Dirty {
		return v1alpha1.VolumeMember{}, "", failf(inUse, "volume %s has more than one replica, and can be copied only while it is detached after a clean unmount; delete the pod that uses it", vol.Name)
	}
	return vol.Spec.Members[i], strconv.FormatInt(is.Spec.Epoch, 10), nil
}

// stillProven tells whether a copy is of what was current, by the proof that was given when it was asked for: nobody
// has held the volume's mirror since, or it has had one replica all the time.
func (s *Service) stillProven(ctx context.Context, volume, proof string) (bool, error) {
	switch proof {
	case "":
		return true, nil
	case proofPlain:
		vol, err := s.volumes.read(ctx, volume)
		return err == nil && (vol == nil || !vol.Replicated()), err
	}
	is, err := s.mirrors.read(ctx, volume)
	if err != nil || is == nil {
		return false, err
	}
	if uid, only := strings.CutPrefix(proof, proofOnly); only {
		return len(is.Spec.Members) == 1 && is.Spec.Members[0].ReplicaUID == uid, nil
	}
	return !is.Spec.Dirty && strconv.FormatInt(is.Spec.Epoch, 10) == proof, nil
}

// checkCopy of a volume, before it is handed out. It fails with errNoSource when the source was attached, or its
// replicas changed, while it was copied, so that another one may have become the current one. The annotation goes with
// the check: what happens to the source later is of no concern.
func (s *Service) checkCopy(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	proof := vol.Annotations[sourceProofAnnotation]
	if proof == "" {
		return nil
	}
	same, err := s.stillProven(ctx, vol.Spec.Source.Volume, proof)
	if err != nil {
		return err
	}
	if !same {
		return errNoSource
	}
	checked := vol.DeepCopy()
	delete(checked.Annotations, sourceProofAnnotation)
	if err := s.patch(ctx, vol, checked); err != nil {
		return fmt.Errorf("write NvmfVolume %s: %w", vol.Name, err)
	}
	*vol = *checked
	return nil
}

// mayGrow fails while a replica of a volume is not in sync: the copy is of the size with which it began.
func (s *Service) mayGrow(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	if !vol.Replicated() {
		return nil
	}
	is, err := s.mirrorOf(ctx, vol)
	if err != nil {
		return err
	}
	if !mirror.Whole(is.Spec) || len(is.Spec.Members) != len(vol.Spec.Members) {
		return failf(waiting, "volume %s is expanded when all its replicas are in sync; now in sync: %s", vol.Name, strings.Join(mirror.InSync(is.Spec), ", "))
	}
	return nil
}

// deleteMirror of a volume that is being deleted, and whose replicas are gone.
func (s *Service) deleteMirror(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	if !vol.Replicated() && vol.Annotations[convertAnnotation] == "" || !vol.Marked() {
		return nil // what stays on the nodes is of no use without it
	}
	is, err := s.mirrors.read(ctx, vol.Name)
	if err != nil || is == nil {
		return err
	}
	// The record is that of this volume only if the volume is still there after it was read.
	now, err := s.volumes.read(ctx, vol.Name)
	if err != nil || now == nil || now.UID != vol.UID {
		return err
	}
	if err := s.client.Delete(ctx, is, asRead(is)); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete NvmfMirror %s: %w", vol.Name, err)
	}
	return nil
}
