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

// firstMirror stores the record of a volume with several replicas right after this call has stored the volume and all
// its replicas, and tells whether it did. Agents make them meanwhile, blank, and so equal. It does not read whether the
// volume is as it was, as makeMirror does: it was stored less than firstMirrorTime ago. Where that cannot be said, and
// where there is a record, which a withdrawn creation may have left, makeMirror has to do it.
func (s *Service) firstMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica, stored time.Time) (bool, error) {
	if !vol.Replicated() || stored.IsZero() || time.Since(stored) > firstMirrorTime {
		return false, nil
	}
	record, err := recordOfAll(vol, reps)
	if err != nil {
		return false, err
	}
	err = s.createMirror(ctx, vol, record)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

// firstMirrorTime after a volume was stored, it is certainly not in use yet, nor was its record lost: for that, another
// call would have had to wait for its replicas, a node to attach it, and a person to delete the record.
const firstMirrorTime = 5 * time.Second

// makeMirror stores the record of a volume with several replicas, all of which exist on their nodes: they are blank,
// and so equal. The record is made once: it alone tells whose data is current, so that one that is missing later is
// never made again.
func (s *Service) makeMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica) error {
	if !vol.Replicated() {
		return nil
	}
	if vol.Spec.Used || vol.Spec.Source != nil {
		// Its members may be changing, and are not all blank: the record began with the one that has data.
		_, err := s.mirrorOf(ctx, vol)
		return err
	}
	record, err := recordOfAll(vol, reps)
	if err != nil {
		return err
	}
	if err := s.storeMirror(ctx, vol, record); !apierrors.IsAlreadyExists(err) {
		return err
	}
	is, err := s.mirrors.read(ctx, vol.Name)
	if err != nil {
		return err
	}
	switch {
	case is != nil && sameMembers(is.Spec, record):
		return nil
	case is != nil:
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

// recordOfAll the replicas of a volume, none of which was ever written.
func recordOfAll(vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica) (mirror.Record, error) {
	var all []mirror.Replica
	for i, rep := range reps {
		if rep == nil {
			return mirror.Record{}, failf(waiting, "volume %s is not created yet: NvmfReplica %s does not exist", vol.Name, vol.Spec.Members[i].Name)
		}
		all = append(all, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
	}
	return mirror.New("", all, nil, time.Now())
}

// storeMirror stores the first record of a volume to which nobody was admitted.
func (s *Service) storeMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, record mirror.Record) error {
	if err := s.unchanged(ctx, vol); err != nil {
		return err
	}
	return s.createMirror(ctx, vol, record)
}

// createMirror, unless there is one.
func (s *Service) createMirror(ctx context.Context, vol *v1alpha1.NvmfVolume, record mirror.Record) error {
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

func errNoMirror(vol *v1alpha1.NvmfVolume) error {
	return failf(inUse, "volume %s has %d replicas, but NvmfMirror %s, which records which of them are current, does not exist; start the nodes of all replicas, and make it again from what they say: kubectl weft recover %s",
		vol.Name, len(vol.Spec.Members), vol.Name, commandName(vol.Name))
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
	if record.Recovering {
		return errRecovering(vol.Name)
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
		return exportedToOne(rep, attachment, generation)
	})
	if err != nil {
		return err
	}
	var epoch int64
	record, err = s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		if r.Holder == attachment {
			return r, nil
		}
		epoch = r.Epoch
		next, err := mirror.Admit(r, attachment, confirmed, time.Now())
		next.HolderNode = host.Node // its node plugin alone may write the record from here on
		return next, err
	})
	switch {
	case errors.Is(err, mirror.ErrUnconfirmed) && last != nil:
		return s.late(ctx, vol.Name, last, v1alpha1.ConditionExported)
	case errors.Is(err, mirror.ErrNeedsPerson), errors.Is(err, mirror.ErrUnconfirmed):
		if errors.Is(err, mirror.ErrNeedsPerson) {
			s.untold.Add(happening{volume: vol.Name, notice: currentUnknown(vol, epoch, err)})
		}
		return failf(waiting, "volume %s cannot be attached yet: %v%s", vol.Name, err, personChooses(vol.Name, err))
	case errors.Is(err, mirror.ErrRecovering):
		return errRecovering(vol.Name)
	case errors.Is(err, mirror.ErrForeign):
		return failf(waiting, "volume %s cannot be attached: %v; declare the restore (docs/troubleshooting/restore-suspected.md)", vol.Name, err)
	case errors.Is(err, mirror.ErrHeld):
		return failf(busy, "volume %s is being attached by another call; try again", vol.Name)
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Holding mirror", "volume", vol.Name, "record", mirror.String(record))
	return nil
}

// confirm waits until done says so of each replica that is in sync; once it has of one, for the grace more. It
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
		if m, is := mirror.Get(record, rep.Name); !is || !m.MayBeAhead() {
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
			time.AfterFunc(s.grace, cancel)
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
	// proofOnly begins the proof that the record has one member, and has had no other since: see soleProof.
	proofOnly = "only "
)

// soleProof of the only member of a record: nothing else is current, as long as it is what it has been since. In
// between, others may have joined, and it may have been left behind and come back.
func soleProof(m mirror.Member) string {
	since := ""
	if m.Since != nil {
		since = m.Since.UTC().Format(time.RFC3339)
	}
	return proofOnly + m.ReplicaUID + " " + since
}

// copyable gives the replica that a copy of a volume is made of, and the proof that proven takes afterwards.
func (s *Service) copyable(ctx context.Context, vol *v1alpha1.NvmfVolume) (v1alpha1.VolumeMember, string, error) {
	if !vol.Replicated() {
		return vol.Spec.Members[0], proofPlain, nil
	}
	is, err := s.mirrorOf(ctx, vol)
	if err != nil {
		return v1alpha1.VolumeMember{}, "", err
	}
	for _, m := range vol.Spec.Members {
		of, isMember := mirror.Get(is.Spec, m.Name)
		if isMember && len(is.Spec.Members) == 1 {
			return m, soleProof(of), nil
		}
		switch c, err := mirror.Copyable(is.Spec, m.Name); {
		case errors.Is(err, mirror.ErrUncopyable):
			return v1alpha1.VolumeMember{}, "", failf(inUse, "volume %s was not detached cleanly: only the next node that uses it knows which of its replicas "+
				"has all data; start a pod that uses it, and a copy is made then", vol.Name)
		case err == nil:
			return m, strconv.FormatInt(c.Epoch, 10), nil
		}
	}
	return v1alpha1.VolumeMember{}, "", failf(inUse, "no replica of volume %s that is in sync is a member of it", vol.Name)
}

// proven tells whether a copy of a volume's replica, which exists by now, is of what was current, by the proof that was
// given before it was asked for. If a node uses a volume with several replicas, it is asked, and its answer waited for
// until wctx ends; the copy can be proven by a later call then.
func (s *Service) proven(ctx, wctx context.Context, volume, replica, proof string) (bool, error) {
	if proof == "" {
		return true, nil
	}
	vol, err := s.volumes.read(ctx, volume)
	if err != nil || proof == proofPlain {
		return err == nil && (vol == nil || !vol.Replicated()), err
	}
	is, err := s.mirrors.read(ctx, volume)
	if err != nil || is == nil || vol == nil {
		return false, err
	}
	if strings.HasPrefix(proof, proofOnly) {
		return len(is.Spec.Members) == 1 && soleProof(is.Spec.Members[0]) == proof, nil
	}
	epoch, err := strconv.ParseInt(proof, 10, 64)
	if err != nil {
		return false, fmt.Errorf("annotation %s of a copy of volume %s: %w", sourceProofAnnotation, volume, err)
	}
	err = s.confirmCopy(ctx, wctx, vol, mirror.Copy{Replica: replica, Epoch: epoch})
	if errors.Is(err, mirror.ErrChanged) {
		return false, nil
	}
	return err == nil, err
}

// confirmCopy waits until the holder of a volume's mirror has confirmed that a copy has all data. That it once has, in
// the copy's epoch, is enough, so that the cache may show it.
func (s *Service) confirmCopy(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume, of mirror.Copy) error {
	asked := of
	_, err := s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		next, c, err := mirror.RequestConfirm(r, of)
		asked = c
		return next, err
	})
	if err != nil {
		return err
	}
	// While the API may have been restored to an earlier state, the record says nothing.
	rep, err := s.replicas.read(ctx, of.Replica)
	switch {
	case err != nil:
		return err
	case rep == nil:
		return fmt.Errorf("%w: NvmfReplica %s does not exist", mirror.ErrChanged, of.Replica)
	case rep.RestoreSuspected():
		return failf(waiting, "the copy of replica %s cannot be checked: the API may have been restored to an earlier state; see what NvmfReplica %s says", of.Replica, of.Replica)
	}
	is, err := s.mirrorOf(ctx, vol)
	if err != nil {
		return err
	}
	if is.Spec.ConfirmRequested < asked.Request {
		return errNeverConfirms(vol.Name, is)
	}
	last, err := s.mirrors.wait(wctx, is, func(is *v1alpha1.NvmfMirror) (bool, error) {
		switch {
		case is == nil:
			return false, errNoMirror(vol)
		case is.Spec.Epoch < asked.Epoch:
			return false, nil // the cache is behind
		}
		return mirror.Proven(is.Spec, asked)
	})
	if errors.Is(err, errLate) && last.Spec.ConfirmRequested < asked.Request {
		return errNeverConfirms(vol.Name, last)
	}
	if errors.Is(err, errLate) {
		return failf(waiting, "node %s, which uses volume %s, has not confirmed yet that replica %s had all data when it was copied; the copy is kept, and is ready once the node "+
			"confirms that. If the node is down, or its node plugin is older than this controller, the copy stays unconfirmed: detach the volume from the node, or upgrade the node plugin",
			last.Spec.HolderNode, vol.Name, of.Replica)
	}
	return err
}

// errNeverConfirms: the request is not in the record any more, or never was.
func errNeverConfirms(volume string, is *v1alpha1.NvmfMirror) error {
	return failf(waiting, "the request to node %s to confirm a copy of volume %s was removed from NvmfMirror %s: the node plugin there, or the CustomResourceDefinition, is older than this controller; "+
		"upgrade it, or detach the volume to copy it", is.Spec.HolderNode, volume, is.Name)
}

// checkCopy of a volume, before it is handed out. It fails with errNoSource when the source's replicas, or the node
// that uses it, changed while it was copied, so that another replica may have become the current one. The annotation
// goes with the check: what happens to the source later is of no concern.
func (s *Service) checkCopy(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume) error {
	proof := vol.Annotations[sourceProofAnnotation]
	if proof == "" {
		return nil
	}
	rep, err := s.replicas.read(ctx, vol.Spec.Members[0].Name)
	if err != nil {
		return err
	}
	if rep == nil || rep.Spec.Source == nil {
		return failf(busy, "volume %s was changed while it was being created; try again", vol.Name)
	}
	same, err := s.proven(ctx, wctx, vol.Spec.Source.Volume, rep.Spec.Source.Replica, proof)
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
	if is.Spec.Recovering {
		return errRecovering(vol.Name)
	}
	if !mirror.Whole(is.Spec) || len(is.Spec.Members) != len(vol.Spec.Members) {
		return failf(waiting, "volume %s is expanded when all its replicas are in sync; now in sync: %s", vol.Name, strings.Join(mirror.InSync(is.Spec), ", "))
	}
	return nil
}

// deleteMirror of a volume that is being deleted, and whose replicas are gone. It answers Conflict if the record
// changed since it was read.
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
	if err := s.client.Delete(ctx, is, asRead(is)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete NvmfMirror %s: %w", vol.Name, err)
	}
	return nil
}
