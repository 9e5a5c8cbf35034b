// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/internal/text"
)

// The replicas of a volume change while it is used: spec.replicas says how many there are to be, and spec.move asks for
// one more until it has replaced another, which may be lost. Settle brings the members there by steps. Each is one
// write of one object as it was read, so that it can be interrupted, repeated, and tried by two replicas of this
// service at once.
//
// A replica joins in this order: its object is created, marked with joinsAnnotation, and its agent creates it, blank;
// the volume lists it, and the mark goes; it is added to the mirror's record, and the holder fills it. So what a used
// volume lists was created before: when it is missing, it is lost, and never created again.
//
// A replica leaves in this order: it is retired in the record; the holder takes it out and releases it, or, if nothing
// was ever written to it, this service does; its object is marked with retiredAnnotation; it is removed from the
// record, then from the volume's members; its hosts are dismissed, and it is deleted with its data. Only a replica with
// that mark that neither the volume nor the record has is deleted.

const (
	// volumeNameField and nodeField of an NvmfReplica can be selected by, in the API server and in the cache.
	volumeNameField = "spec.volume.name"
	nodeField       = "spec.node"
	// joinsAnnotation is on a replica that was created for a used volume and is not listed by it yet. Its value changes
	// with each attempt to list it, so that who deletes it as one that nobody needs deletes it only as it was then.
	joinsAnnotation = "weft.storage/joins"
	// retiredAnnotation, with the replica's own metadata.uid as its value, is on a replica that has left the record of
	// its volume's mirror, or is about to, and is deleted once it has.
	retiredAnnotation     = "weft.storage/retired"
	lastReplicaAnnotation = v1alpha1.LastReplicaKey
	// waitingInterval is how often a volume is looked at whose members wait for what is not told by an event, such as
	// room on a node.
	waitingInterval = 30 * time.Second
)

func joins(rep *v1alpha1.NvmfReplica) bool { return rep.Annotations[joinsAnnotation] != "" }

func retired(rep *v1alpha1.NvmfReplica) bool {
	return rep.UID != "" && rep.Annotations[retiredAnnotation] == string(rep.UID)
}

// arrangement is what is known of a volume's members: its replicas were read first, then the volume, then the record.
type arrangement struct {
	replicatedVolume
	// record of the mirror; nil for a volume without one.
	record *mirror.Record
	// unlisted replicas of the volume that are to join it, or have left it.
	unlisted []*v1alpha1.NvmfReplica
	// names of all replicas that are or were the volume's.
	names []string
}

// outcome of a step: either it has changed something, or the members wait for something; the zero value is that there
// is nothing to do, or that an event will tell when there is.
type outcome struct {
	changed bool
	waiting string
	// again: no event tells when there is something to do, although nothing waits.
	again bool
}

var changed = outcome{changed: true}

// arranged tells whether a volume has the members that it is to have, all of them in its mirror and none marked to be
// deleted, and does not say that it waits; and whether a restore that an agent suspects is in its record.
func arranged(vol *replicatedVolume, record *mirror.Record) bool {
	marked := func(rep *v1alpha1.NvmfReplica) bool { return rep != nil && retired(rep) }
	switch {
	case vol.Spec.Recovery != nil || record != nil && record.Recovering:
		return false
	case vol.Spec.Move != nil || vol.Spec.Waiting != "" || len(vol.Spec.Members) != replicasOf(vol.NvmfVolume):
		return false
	case record == nil:
		return true
	case mayBePast(vol, record):
		return false
	case vol.Mover() != nil || record.Holder == "" && !mirror.Whole(*record):
		return false
	case record.Holder != "" && len(vol.Spec.Attachments) == 0:
		return false
	case record.Holder != "" && record.HolderNode == "" || len(record.Members) != len(vol.Spec.Members):
		return false
	case slices.ContainsFunc(vol.replicas, marked):
		return false
	}
	return !slices.ContainsFunc(record.Members, func(m mirror.Member) bool { return m.Retired || indexOf(vol.NvmfVolume, m.Replica) < 0 })
}

func replicasOf(vol *v1alpha1.NvmfVolume) int { return max(int(vol.Spec.Replicas), 1) }

// indexOf a member by its name; -1 when the volume does not list it.
func indexOf(vol *v1alpha1.NvmfVolume, replica string) int {
	return slices.IndexFunc(vol.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.Name == replica })
}

// arrange takes all steps that can be taken now, and says in the volume what it waits for then.
func (s *Service) arrange(ctx context.Context, id string) error {
	for {
		did, err := s.step(ctx, id)
		switch {
		case isNoVolume(err):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err):
			continue
		case err != nil:
			return err
		case did.changed:
			continue
		}
		if did.waiting != "" || did.again {
			s.unsettled.AddAfter(id, waitingInterval)
		}
		if err = s.tellWaiting(ctx, id, did.waiting); !apierrors.IsConflict(err) {
			return client.IgnoreNotFound(err)
		}
	}
}

// step is the first of the steps that has something to do. What a new member waits for keeps no mover from what the
// others lack.
func (s *Service) step(ctx context.Context, id string) (outcome, error) {
	a, err := s.survey(ctx, id)
	if err != nil || a.DeletionTimestamp != nil {
		return outcome{}, err
	}
	for _, try := range []func(context.Context, *arrangement) (outcome, error){
		s.recover, s.doubtRestored, s.keepPromoted, s.eraseRetired, s.endMove, s.adopt, s.noteLoss, s.endReplacement, s.mayChange, s.convert, s.changeRecord, s.retire, s.unlist,
	} {
		if did, err := try(ctx, a); err != nil || did != (outcome{}) {
			return did, err
		}
	}
	replacing, err := s.replaceLost(ctx, a)
	if err != nil || replacing.changed {
		return replacing, err
	}
	joining, err := s.join(ctx, a)
	if err != nil || joining.changed {
		return joining, err
	}
	moving, err := s.mover(ctx, a)
	if err != nil || moving.changed {
		return moving, err
	}
	// Of a mover's node that is lost there is no event, nor of that of a replica that is to replace a lost one.
	again := joining.again || a.Mover() != nil || a.Spec.Move != nil && a.Spec.Move.Reason != ""
	return outcome{waiting: cmp.Or(replacing.waiting, joining.waiting, moving.waiting, waitingFor(a)), again: again}, nil
}

// survey reads what a step is decided by.
func (s *Service) survey(ctx context.Context, id string) (*arrangement, error) {
	var reps v1alpha1.NvmfReplicaList
	if err := s.live.List(ctx, &reps, client.MatchingFields{volumeNameField: id}); err != nil {
		return nil, fmt.Errorf("list NvmfReplicas of volume %s: %w", id, err)
	}
	vol, err := s.volume(ctx, id)
	if err != nil {
		return nil, err
	}
	a := &arrangement{replicatedVolume: replicatedVolume{NvmfVolume: vol, replicas: make([]*v1alpha1.NvmfReplica, len(vol.Spec.Members))}}
	for i := range reps.Items {
		rep := &reps.Items[i]
		a.names = append(a.names, rep.Name)
		switch n := indexOf(vol, rep.Name); {
		case n >= 0 && !isOf(rep, vol, vol.Spec.Members[n]):
			return nil, errForeign(rep, vol)
		case n >= 0:
			a.replicas[n] = rep
		case isUnlisted(rep, vol):
			a.unlisted = append(a.unlisted, rep)
		}
	}
	for _, m := range vol.Spec.Members {
		a.names = append(a.names, m.Name)
	}
	if !vol.Replicated() {
		return a, nil
	}
	is, err := s.mirrors.read(ctx, vol.Name)
	switch {
	case err != nil:
		return nil, err
	case is == nil && vol.Spec.Recovery != nil:
		return a, nil
	case is == nil:
		return nil, errNoMirror(vol)
	}
	a.record = &is.Spec
	for _, m := range a.record.Members {
		a.names = append(a.names, m.Replica)
	}
	return a, nil
}

// isUnlisted tells whether a replica is to join a volume, or has left it: its volume does not list it.
func isUnlisted(rep *v1alpha1.NvmfReplica, vol *v1alpha1.NvmfVolume) bool {
	return rep.Spec.Volume.UUID == vol.Spec.UUID && indexOf(vol, rep.Name) < 0 && (joins(rep) || retired(rep))
}

// unlisted replicas of a volume.
func (s *Service) unlisted(ctx context.Context, from client.Reader, vol *v1alpha1.NvmfVolume) ([]*v1alpha1.NvmfReplica, error) {
	var reps v1alpha1.NvmfReplicaList
	if err := from.List(ctx, &reps, client.MatchingFields{volumeNameField: vol.Name}); err != nil {
		return nil, fmt.Errorf("list NvmfReplicas of volume %s: %w", vol.Name, err)
	}
	var unlisted []*v1alpha1.NvmfReplica
	for i := range reps.Items {
		if isUnlisted(&reps.Items[i], vol) {
			unlisted = append(unlisted, &reps.Items[i])
		}
	}
	return unlisted, nil
}

// promoted tells whether a replica with retiredAnnotation is to stay: the record has it in sync, and not as one that is
// to leave. A person declared it current after it had left.
func promoted(record *mirror.Record, replica string) bool {
	if record == nil {
		return false
	}
	m, is := mirror.Get(*record, replica)
	return is && m.State == v1alpha1.MemberInSync && !m.Retired
}

// keepPromoted takes retiredAnnotation off a replica that is to stay. Whether any is to leave is decided again.
func (s *Service) keepPromoted(ctx context.Context, a *arrangement) (outcome, error) {
	for _, rep := range a.replicas {
		if rep == nil || !retired(rep) || !promoted(a.record, rep.Name) {
			continue
		}
		return s.keepRetired(ctx, rep, "it was declared current")
	}
	return outcome{}, nil
}

// keepRetired takes retiredAnnotation off a replica.
func (s *Service) keepRetired(ctx context.Context, rep *v1alpha1.NvmfReplica, why string) (outcome, error) {
	kept := rep.DeepCopy()
	delete(kept.Annotations, retiredAnnotation)
	if err := s.patch(ctx, rep, kept); err != nil {
		return outcome{}, fmt.Errorf("write NvmfReplica %s: %w", rep.Name, err)
	}
	klog.FromContext(ctx).Info("A replica that was to leave its volume stays", "volume", rep.Spec.Volume.Name, "replica", rep.Name, "reason", why)
	return changed, nil
}

// eraseRetired replicas that neither the volume nor the record has any more. One whose node does not answer stays until
// it does, and keeps nothing else from going on.
func (s *Service) eraseRetired(ctx context.Context, a *arrangement) (outcome, error) {
	for _, rep := range a.unlisted {
		if !retired(rep) || a.record == nil || rep.DeletionTimestamp != nil && rep.Marked() {
			continue
		}
		if _, is := mirror.Get(*a.record, rep.Name); is {
			continue // it was added while it was being removed, and leaves the record first
		}
		if rep.RestoreSuspected() {
			// By what its agent knows, the record may be old, and the replica the one that has everything.
			return s.keepRetired(ctx, rep, "its agent suspects that the API was restored")
		}
		if suspectsRestore(&a.replicatedVolume) {
			continue // until the restore is declared
		}
		if err := s.dismissAll(ctx, rep); err != nil {
			return outcome{}, err
		}
		if off, err := dismissed(rep, rep.Generation); err != nil || !off {
			continue
		}
		if err := s.erase(ctx, rep); err != nil {
			return outcome{}, fmt.Errorf("delete NvmfReplica %s: %w", rep.Name, err)
		}
		klog.FromContext(ctx).Info("Deleting a replica that has left its volume", "volume", a.Name, "replica", rep.Name, "node", rep.Spec.Node)
	}
	return outcome{}, nil
}

// dismissAll hosts of a replica.
func (s *Service) dismissAll(ctx context.Context, rep *v1alpha1.NvmfReplica) error {
	if len(rep.Spec.Hosts) == 0 {
		return nil
	}
	was := rep.DeepCopy()
	rep.Spec.Hosts = nil
	if err := s.patch(ctx, was, rep); err != nil {
		return fmt.Errorf("write NvmfReplica %s: %w", rep.Name, err)
	}
	return nil
}

// deleteUnlisted replicas of a volume that is being deleted, as its others, and return those that were still there.
func (s *Service) deleteUnlisted(ctx context.Context, vol *v1alpha1.NvmfVolume) ([]*v1alpha1.NvmfReplica, error) {
	if !vol.Replicated() {
		return nil, nil
	}
	unlisted, err := s.unlisted(ctx, s.live, vol)
	if err != nil {
		return nil, err
	}
	for _, rep := range unlisted {
		if err := s.dismissAll(ctx, rep); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err := s.deleteWith(ctx, vol, rep); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete NvmfReplica %s: %w", rep.Name, err)
		}
	}
	return unlisted, nil
}

// eraseLeft replicas that were to join a volume that is gone. They are blank, unless the API was restored to a time
// before they had joined it: then they stay.
func (s *Service) eraseLeft(ctx context.Context, id string) error {
	var reps v1alpha1.NvmfReplicaList
	if err := s.client.List(ctx, &reps, client.MatchingFields{volumeNameField: id}); err != nil {
		return fmt.Errorf("list NvmfReplicas of volume %s: %w", id, err)
	}
	for i := range reps.Items {
		rep := &reps.Items[i]
		if !joins(rep) || rep.DeletionTimestamp != nil || mayHaveData(rep) {
			continue
		}
		if vol, err := s.volumes.read(ctx, id); err != nil || vol != nil {
			return err
		}
		if err := s.erase(ctx, rep); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete NvmfReplica %s: %w", rep.Name, err)
		}
	}
	return nil
}

// endMove whose replica the volume does not list any more: somebody took it off by hand.
func (s *Service) endMove(ctx context.Context, a *arrangement) (outcome, error) {
	if a.Spec.Move == nil || indexOf(a.NvmfVolume, a.Spec.Move.Replica) >= 0 {
		return outcome{}, nil
	}
	return changed, s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Move = nil })
}

// write a volume, provided that nothing has changed since it was read.
func (s *Service) write(ctx context.Context, vol *v1alpha1.NvmfVolume, change func(*v1alpha1.NvmfVolume)) error {
	next := vol.DeepCopy()
	change(next)
	if err := s.patch(ctx, vol, next); err != nil {
		return fmt.Errorf("write NvmfVolume %s: %w", vol.Name, err)
	}
	return nil
}

// mayChange says whether a volume's members may change: it is created, and recorded as used, since from then on what it
// lists is never created again.
func (s *Service) mayChange(ctx context.Context, a *arrangement) (outcome, error) {
	if a.Spec.Used || a.surplus() == 0 {
		return outcome{}, nil
	}
	for i, rep := range a.replicas {
		if rep == nil || rep.DeletionTimestamp != nil {
			return outcome{waiting: fmt.Sprintf("the volume is not created yet: NvmfReplica %s does not exist", a.Spec.Members[i].Name)}, nil
		}
		if !isCreated(rep) {
			return outcome{waiting: fmt.Sprintf("the volume is not created yet: node %s has not created replica %s", rep.Spec.Node, rep.Name)}, nil
		}
	}
	if a.Annotations[sourceProofAnnotation] != "" {
		return outcome{waiting: "the volume is not created yet: it is being copied"}, nil
	}
	return changed, s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Used = true })
}

// surplus of members: how many are to leave, or, below 0, to join. Those that are leaving already do not count.
func (a *arrangement) surplus() int { return surplus(&a.replicatedVolume, a.record) }

func surplus(v *replicatedVolume, record *mirror.Record) int {
	n := -replicasOf(v.NvmfVolume)
	if move := v.Spec.Move; move != nil && !isLeaving(v, record, indexOf(v.NvmfVolume, move.Replica)) {
		n--
	}
	for i := range v.Spec.Members {
		if !isLeaving(v, record, i) {
			n++
		}
	}
	return n
}

// isLeaving tells whether the member with this index is retired; none is with index -1.
func isLeaving(v *replicatedVolume, record *mirror.Record, i int) bool {
	if i < 0 || record == nil {
		return false
	}
	m, _ := mirror.Get(*record, v.Spec.Members[i].Name)
	return m.Retired || v.replicas[i] != nil && retired(v.replicas[i]) && !promoted(record, m.Replica)
}

// changeRecord takes the record's next step. The volume and its replicas are read after the record, which is written
// only as it was read.
func (s *Service) changeRecord(ctx context.Context, a *arrangement) (outcome, error) {
	if a.record == nil {
		return outcome{}, nil
	}
	next, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		now, err := s.withReplicas(ctx, a.Name)
		if err != nil || now.UID != a.UID || now.DeletionTimestamp != nil {
			return r, err
		}
		return nextRecord(now, r, time.Now())
	})
	if err != nil || equality.Semantic.DeepEqual(next, *a.record) {
		return outcome{}, err
	}
	klog.FromContext(ctx).Info("Changed mirror", "volume", a.Name, "record", mirror.String(next))
	return changed, nil
}

// nextRecord is the record after its next step, or as it is.
func nextRecord(v *replicatedVolume, r mirror.Record, now time.Time) (mirror.Record, error) {
	if host := v.Listed(v1alpha1.HostNQN(r.Holder)); r.Holder != "" && r.HolderNode == "" && host != nil {
		r.HolderNode = host.Node // of an attachment that is older than this field
		return r, nil
	}
	if suspectsRestore(v) {
		return r, nil // nobody joins or leaves by a record that may be old
	}
	for _, m := range r.Members {
		if mirror.Idle(r, m) {
			return mirror.Withdraw(r, m.Replica, now)
		}
		i := indexOf(v.NvmfVolume, m.Replica)
		if hasLeft(r, m) && (i < 0 || v.replicas[i] != nil && retired(v.replicas[i])) {
			return mirror.Remove(r, m.Replica)
		}
	}
	if name := toLeave(v, r); name != "" {
		if m, is := mirror.Get(r, name); is && !m.Retired && mayRetire(v, r, name) {
			return mirror.Retire(r, name)
		}
	}
	if surplus(v, &r) > 0 {
		return r, nil
	}
	for i, m := range v.Spec.Members {
		if rep := v.replicas[i]; !joined(&r, m.Name) && mayJoin(v.NvmfVolume, rep) {
			return mirror.Add(r, mirror.Replica{Name: rep.Name, UID: string(rep.UID)}, now)
		}
	}
	return r, nil
}

func joined(record *mirror.Record, replica string) bool {
	_, is := mirror.Get(*record, replica)
	return is
}

// mayJoin tells whether a replica that the volume lists can be added to its mirror.
func mayJoin(vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica) bool {
	if rep == nil || joins(rep) || retired(rep) {
		return false
	}
	return isCreated(rep) && rep.Status.Size != nil && rep.Status.Size.Cmp(vol.Spec.Size) >= 0
}

func isCreated(rep *v1alpha1.NvmfReplica) bool {
	done, err := created(rep)
	return err == nil && done
}

// retire marks the replicas that have left the mirror, or never were in it. One that never was by the record and has
// data all the same stays: the API was restored to a time before it joined.
func (s *Service) retire(ctx context.Context, a *arrangement) (outcome, error) {
	if a.record == nil {
		return outcome{}, nil
	}
	next := toLeave(&a.replicatedVolume, *a.record)
	for _, rep := range a.replicas {
		if rep == nil || retired(rep) {
			continue
		}
		m, is := mirror.Get(*a.record, rep.Name)
		if is && !hasLeft(*a.record, m) || !is && (rep.Name != next || mayHaveData(rep)) {
			continue
		}
		marked := rep.DeepCopy()
		if marked.Annotations == nil {
			marked.Annotations = map[string]string{}
		}
		marked.Annotations[retiredAnnotation] = string(rep.UID)
		if err := s.patch(ctx, rep, marked); err != nil {
			return outcome{}, fmt.Errorf("mark NvmfReplica %s: %w", rep.Name, err)
		}
		return changed, nil
	}
	return outcome{}, nil
}

// unlist a member that is retired and that the record does not have. The record was read after the volume.
func (s *Service) unlist(ctx context.Context, a *arrangement) (outcome, error) {
	i := slices.IndexFunc(a.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		return rep != nil && retired(rep) && a.record != nil && !joined(a.record, rep.Name)
	})
	if i < 0 || len(a.Spec.Members) == 1 {
		return outcome{}, nil
	}
	name := a.Spec.Members[i].Name
	klog.FromContext(ctx).Info("Removing a replica from its volume", "volume", a.Name, "replica", name)
	return changed, s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) {
		if vol.Annotations == nil {
			vol.Annotations = map[string]string{}
		}
		vol.Annotations[lastReplicaAnnotation] = strconv.Itoa(lastReplica(a))
		spec := &vol.Spec
		spec.Members, spec.Mirrored = slices.Delete(spec.Members, i, i+1), true
		switch {
		case spec.Move == nil:
		case spec.Move.Replica == name:
			spec.Move = nil
		case spec.Move.Replacement == name:
			spec.Move.Replacement = ""
		}
	})
}

// waitingFor says what a change of the replicas waits for that no step can change; empty while it makes progress.
func waitingFor(a *arrangement) string {
	if a.record == nil {
		return ""
	}
	for i, m := range a.Spec.Members {
		is, in := mirror.Get(*a.record, m.Name)
		switch {
		case a.replicas[i] == nil:
			return fmt.Sprintf("NvmfReplica %s does not exist", m.Name)
		case !in && a.replicas[i].Status.Written && a.surplus() > 0:
			return fmt.Sprintf("replica %s may have data, and is not in the mirror's record: recover the volume (docs/tasks/recover-lost-objects.md)", m.Name)
		case !in:
		case is.State == v1alpha1.MemberInSync || is.Retired:
		case is.State == v1alpha1.MemberOut && a.Spec.Move != nil && m.Name == a.Spec.Move.Replacement:
			return fmt.Sprintf("replica %s is not in the mirror now (%s); it is taken back automatically when its node can be reached", m.Name, is.Reason)
		}
	}
	if suspectsRestore(&a.replicatedVolume) && (a.Spec.Move != nil || a.surplus() != 0) {
		return "the agent of a replica suspects that the API was restored to an earlier state; declare that first (docs/troubleshooting/restore-suspected.md)"
	}
	if name := keptForeign(a); name != "" {
		return fmt.Sprintf("replica %s stays: the node that uses the volume has refused it, because it may have data that no other replica has; "+
			"decide what becomes of it (docs/troubleshooting/replica-missing.md)", name)
	}
	if name := toLeave(&a.replicatedVolume, *a.record); name != "" && !mayRetire(&a.replicatedVolume, *a.record, name) {
		return fmt.Sprintf("no replica beside %s is in sync", name)
	}
	return ""
}

// tellWaiting writes what a change of a volume's replicas waits for, if that is something else than before: into its
// move, or, without one, into the volume.
func (s *Service) tellWaiting(ctx context.Context, id, why string) error {
	vol, err := s.volume(ctx, id)
	if isNoVolume(err) {
		return nil
	}
	why = text.Clip(why, v1alpha1.MaxWaiting)
	if err != nil || vol.DeletionTimestamp != nil {
		return err
	}
	tell := func(spec *v1alpha1.NvmfVolumeSpec) {
		switch {
		case spec.Recovery != nil:
			spec.Recovery.Waiting = why
		case spec.Move != nil:
			spec.Move.Waiting, spec.Waiting = why, ""
		default:
			spec.Waiting = why
		}
	}
	told := vol.Spec.DeepCopy()
	if tell(told); equality.Semantic.DeepEqual(*told, vol.Spec) {
		return nil
	}
	if why != "" {
		klog.FromContext(ctx).Info("A change of a volume's replicas waits", "volume", id, "reason", why)
	}
	return s.write(ctx, vol, func(vol *v1alpha1.NvmfVolume) { tell(&vol.Spec) })
}
