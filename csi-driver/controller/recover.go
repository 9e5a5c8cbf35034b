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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// A record that is lost or not true is recovered because a person asked for it, by spec.recovery of the volume. The
// record is put in doubt, so that nobody can hold it, and all attachments are ended. Then a mover reads the headers of
// the replicas: a replica admits it only when every earlier host is off, so that what it reads is final. The record
// that follows is stored, and the request removed. Each step is one write of one object as it was read.

// readerAdmits is how long a reader waits for replicas whose agents answer, but do not admit it yet.
const readerAdmits = 20 * time.Second

// errRecovering is what an attachment is told while the volume's record is being recovered.
func errRecovering(volume string) error {
	return failf(waiting, "volume %s is attached when the record of its replicas is recovered; see how far that is with: kubectl weft recover %s --dry-run", volume, commandName(volume))
}

// errSuspected is what an attachment is told at once while the agent of a replica suspects a restore of the API.
func errSuspected(rep *v1alpha1.NvmfReplica) error {
	return failf(waiting, "volume %s cannot be attached: node %s found that the API may have been restored to an earlier state, and changes nothing of replica %s; "+
		"check the objects, and declare the restore (docs/troubleshooting/restore-suspected.md): see what to run with: kubectl describe nvmfnode %s",
		rep.Spec.Volume.Name, rep.Spec.Node, rep.Name, rep.Spec.Node)
}

// commandName of a volume is what kubectl weft takes for its name.
func commandName(volume string) string { return "nv/" + volume }

// unsuspected fails if the agent of a replica suspects a restore of the API: it admits nobody until a person has
// declared that, and it would be waited for in vain.
func unsuspected(vol *replicatedVolume) error {
	for _, rep := range vol.replicas {
		if rep != nil && rep.RestoreSuspected() {
			return errSuspected(rep)
		}
	}
	return nil
}

// recover takes the next step of a recovery. Nothing else is done to the members of a volume while it lasts.
func (s *Service) recover(ctx context.Context, a *arrangement) (outcome, error) {
	wish := a.Spec.Recovery
	switch {
	case wish == nil && (a.record == nil || !a.record.Recovering):
		return outcome{}, nil
	case wish == nil:
		return outcome{waiting: "the record of the replicas is being recovered, but its request was removed; run: kubectl weft recover " + commandName(a.Name)}, nil
	case !a.Replicated(), a.record != nil && a.record.Recovery == wish.ID && !a.record.Recovering:
		return changed, s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Recovery = nil })
	}
	for _, rep := range a.replicas {
		if rep == nil || !rep.RestoreSuspected() || s.silent(ctx, rep.Spec.Node) {
			continue
		}
		if permits(wish) {
			return changed, s.permitNothing(ctx, a)
		}
		return outcome{waiting: fmt.Sprintf("node %s suspects a restore of the API, and blocks access to replica %s; declare the restore first: kubectl describe nvmfnode %s says how",
			rep.Spec.Node, rep.Name, rep.Spec.Node)}, nil
	}
	switch past, err := s.restoredSince(ctx, a); {
	case err != nil:
		return outcome{}, err
	case past:
		return changed, s.permitNothing(ctx, a)
	}
	if a.Mover() != nil && (a.record == nil || !a.record.Recovering) {
		return changed, s.endMover(ctx, a.NvmfVolume) // it copies, by the record that is in doubt
	}
	if used := published(a.NvmfVolume); len(used) > 0 {
		if wish.Attachments != v1alpha1.RecoveryEnds {
			return outcome{waiting: fmt.Sprintf("the volume is attached to node %s; end the pods that use it. If it stays attached, end the attachment with --detach, "+
				"which kills what still uses the volume there", strings.Join(used, ", "))}, nil
		}
		if a.record != nil && a.record.Recovering {
			return s.endAll(ctx, a)
		}
	}
	if a.record == nil || !a.record.Recovering {
		return s.doubt(ctx, a)
	}
	return s.readHeaders(ctx, a)
}

// permits tells whether a request may destroy something: writes, or what uses the volume.
func permits(wish *v1alpha1.VolumeRecovery) bool {
	return wish.AcceptLossUntil != nil || wish.Attachments == v1alpha1.RecoveryEnds
}

// permitNothing any more by a request that may be as old as a backup.
func (s *Service) permitNothing(ctx context.Context, a *arrangement) error {
	klog.FromContext(ctx).Info("The API may have been restored since the recovery of a record was requested: a person has to repeat what it permits", "volume", a.Name)
	return s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) {
		if wish := vol.Spec.Recovery; wish != nil {
			wish.AcceptLossUntil, wish.Attachments = nil, v1alpha1.RecoveryWaits
		}
	})
}

// restoredSince tells whether a request permits something, and a restore was declared on the node of a replica since it
// was made: nobody may have seen the suspicion while the service was away. It reads live, because an agent that has
// admitted a reader after it must not be seen before the declaration.
func (s *Service) restoredSince(ctx context.Context, a *arrangement) (bool, error) {
	if !permits(a.Spec.Recovery) {
		return false, nil
	}
	for _, m := range a.Spec.Members {
		var node v1alpha1.NvmfNode
		switch err := s.live.Get(ctx, keyOf(m.Node), &node); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, fmt.Errorf("read NvmfNode %s: %w", m.Node, err)
		case a.Spec.Recovery.RestoredSince(&node):
			return true, nil
		}
	}
	return false, nil
}

// doubt puts the record of a volume in doubt, or makes one that is. The volume is read after the record: who was
// attached since it was asked for is not ended without that.
func (s *Service) doubt(ctx context.Context, a *arrangement) (outcome, error) {
	if a.record == nil {
		var members []mirror.Replica
		for i, rep := range a.replicas {
			if rep == nil {
				return outcome{waiting: fmt.Sprintf("NvmfReplica %s does not exist", a.Spec.Members[i].Name)}, nil
			}
			members = append(members, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
		}
		record, err := mirror.NewDoubt(members, time.Now())
		if err != nil {
			return outcome{}, err
		}
		klog.FromContext(ctx).Info("Recovering a record that is lost", "volume", a.Name)
		return changed, s.createMirror(ctx, a.NvmfVolume, record)
	}
	_, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		now, err := s.volume(ctx, a.Name)
		if err != nil {
			return r, err
		}
		wish := now.Spec.Recovery
		if now.UID != a.UID || wish == nil || now.Mover() != nil || len(published(now)) > 0 && wish.Attachments != v1alpha1.RecoveryEnds {
			return r, errMoverLeft
		}
		return mirror.Doubt(r), nil
	})
	if errors.Is(err, errMoverLeft) {
		return changed, nil
	}
	klog.FromContext(ctx).Info("Recovering a record", "volume", a.Name, "was", mirror.String(*a.record))
	return changed, err
}

// mayBePast tells whether an agent suspects a restore, and the record does not say so yet.
func mayBePast(v *replicatedVolume, record *mirror.Record) bool {
	return suspectsRestore(v) && !mirror.IsUncertain(*record)
}

// doubtRestored records that the record may be the past, as long as an agent says so: when the restore is declared, it
// says so no longer, and a member that has data that the record does not know of could leave.
func (s *Service) doubtRestored(ctx context.Context, a *arrangement) (outcome, error) {
	if a.record == nil || !mayBePast(&a.replicatedVolume, a.record) {
		return outcome{}, nil
	}
	klog.FromContext(ctx).Info("An agent suspects a restore of the API: the next start compares the replicas", "volume", a.Name)
	_, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) { return mirror.Uncertain(r), nil })
	return changed, err
}

// endAll attachments of a volume, by which nobody holds the record any more.
func (s *Service) endAll(ctx context.Context, a *arrangement) (outcome, error) {
	klog.FromContext(ctx).Info("Ending the attachments of a volume whose record is recovered", "volume", a.Name, "nodes", published(a.NvmfVolume))
	written, err := s.withoutHosts(ctx, a.NvmfVolume, func(v1alpha1.VolumeHost) bool { return true })
	if err == nil {
		_, err = s.follow(ctx, written)
	}
	return changed, err
}

// readHeaders has a mover read the headers for each request, and again for one that cannot be carried out by them, once
// there may be more to read.
func (s *Service) readHeaders(ctx context.Context, a *arrangement) (outcome, error) {
	h := a.Mover()
	switch {
	case h == nil && a.record.Holder != "":
		record, err := s.fence(ctx, a.NvmfVolume)
		return outcome{changed: err == nil && record.Holder == ""}, err
	case h == nil && !a.known():
		return s.renew(ctx, a)
	case h == nil && (a.record.Recovery != a.Spec.Recovery.ID || !slices.ContainsFunc(a.record.Members, wasRead)):
		return s.giveMover(ctx, a)
	case h == nil:
		return s.decide(ctx, a)
	case a.record.Holder != h.AttachmentUUID():
		return s.admitReader(ctx, a, h)
	case a.record.Mover == v1alpha1.MoverRead:
		may, err := s.mayMove(ctx, h.Node, h.NodeUID)
		if err != nil {
			return outcome{}, err
		}
		reads := h.NQN + " reads"
		s.given.begin(a.Name, reads)
		if may && s.given.since(a.Name, reads) < moverStarts {
			if why := a.record.MoverWaiting; why != "" {
				return outcome{waiting: fmt.Sprintf("node %s cannot read the headers of the replicas: %s", h.Node, why)}, nil
			}
			return outcome{again: true}, nil
		}
		klog.FromContext(ctx).Info("Giving up a node that does not read the headers of a volume's replicas", "volume", a.Name, "host", h.Node)
		s.unfit.add(a.Name, h.Node)
	}
	return changed, s.endMover(ctx, a.NvmfVolume)
}

// present replicas of a volume, whose headers can be read.
func (a *arrangement) present() []mirror.Replica {
	var all []mirror.Replica
	for _, rep := range a.replicas {
		if rep != nil && rep.DeletionTimestamp == nil {
			all = append(all, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
		}
	}
	return all
}

// known tells whether the record has all replicas that are present.
func (a *arrangement) known() bool {
	return !slices.ContainsFunc(a.present(), func(is mirror.Replica) bool {
		m, in := mirror.Get(*a.record, is.Name)
		return !in || m.ReplicaUID != is.UID
	})
}

// renew the members of a record in doubt.
func (s *Service) renew(ctx context.Context, a *arrangement) (outcome, error) {
	_, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		if r.Epoch != a.record.Epoch {
			return r, errMoverLeft
		}
		return mirror.Renew(r, a.present(), time.Now())
	})
	switch {
	case errors.Is(err, errMoverLeft):
		return changed, nil
	case errors.Is(err, mirror.ErrMember):
		return outcome{waiting: err.Error()}, nil
	}
	return changed, err
}

func wasRead(m mirror.Member) bool { return m.Header != nil }

// admitReader lets a mover read the headers of those replicas that have admitted it. The others are waited for as long
// as their agents answer.
func (s *Service) admitReader(ctx context.Context, a *arrangement, h *v1alpha1.VolumeHost) (outcome, error) {
	may, err := s.mayMove(ctx, h.Node, h.NodeUID)
	if err != nil {
		return outcome{}, err
	}
	if !may {
		return changed, s.endMover(ctx, a.NvmfVolume)
	}
	record, confirmed, err := s.confirmMover(ctx, a, h)
	if err != nil {
		return outcome{}, err
	}
	admits := h.NQN + " admitted"
	s.given.begin(a.Name, admits)
	confirmed = slices.DeleteFunc(confirmed, func(c mirror.Confirmation) bool { return c.Past })
	for _, m := range a.Spec.Members {
		switch {
		case slices.ContainsFunc(confirmed, func(c mirror.Confirmation) bool { return c.Name == m.Name }):
		case !s.silent(ctx, m.Node) && s.given.since(a.Name, admits) < readerAdmits:
			return outcome{again: true}, nil
		case len(confirmed) == 0:
			return outcome{waiting: fmt.Sprintf("no replica can be read; the agent of node %s has not let a node read replica %s", m.Node, m.Name)}, nil
		}
	}
	id := a.Spec.Recovery.ID
	_, err = s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		now, err := s.volume(ctx, a.Name)
		if err != nil {
			return r, err
		}
		if r.Epoch != record.Epoch || now.UID != a.UID || now.Listed(h.NQN) == nil {
			return r, errMoverLeft
		}
		next, err := mirror.AdmitReader(r, h.AttachmentUUID(), h.Node)
		next.Recovery = id
		return next, err
	})
	if errors.Is(err, errMoverLeft) {
		err = nil
	}
	return changed, err
}

// decide what the record is to be, by the headers that were read. Where a person has to decide, it waits.
func (s *Service) decide(ctx context.Context, a *arrangement) (outcome, error) {
	var lost []string
	next, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		if r.Epoch != a.record.Epoch || r.Holder != "" {
			return r, errMoverLeft
		}
		next, given, err := recordFor(r, *a.Spec.Recovery, time.Now())
		lost = given
		return next, err
	})
	switch {
	case errors.Is(err, errMoverLeft):
		return changed, nil
	case errors.Is(err, mirror.ErrUnasked), errors.Is(err, mirror.ErrNeedsPerson), errors.Is(err, mirror.ErrMember), errors.Is(err, errLosesData):
		read := "headers " + strconv.FormatInt(a.record.Epoch, 10)
		s.given.begin(a.Name, read)
		if s.given.since(a.Name, read) >= waitingInterval && s.moreToRead(ctx, a) {
			return s.giveMover(ctx, a)
		}
		return outcome{waiting: err.Error() + personDecides(a, err)}, nil
	case err != nil:
		return outcome{}, err
	}
	klog.FromContext(ctx).Info("Recovered a record", "volume", a.Name, "record", mirror.String(next), "lost", lost)
	s.untold.Add(happening{volume: a.Name, notice: recordRecovered(a.NvmfVolume, next, lost)})
	return changed, nil
}

// errLosesData says that what a person asked for gives up data, and that this was not permitted.
var errLosesData = errors.New("writes could be lost")

// recordFor is the record that follows from a request and the headers that were read, and what is given up with it.
// With a valid permission to lose data, the person has decided, also where the headers say something else.
func recordFor(r mirror.Record, wish v1alpha1.VolumeRecovery, now time.Time) (mirror.Record, []string, error) {
	headers := mirror.Headers(r)
	next, err := mirror.Recover(r, headers, now)
	permitted := wish.AcceptLossUntil != nil && now.Before(wish.AcceptLossUntil.Time)
	if wish.Current == "" || !permitted && err == nil && mirror.StateOf(next, wish.Current) == v1alpha1.MemberInSync {
		return next, nil, err
	}
	chosen, err := mirror.Choose(r, wish.Current, headers, now)
	if err != nil {
		return chosen, nil, err
	}
	lacks := mirror.Lacking(chosen, headers)
	if own := headers[wish.Current]; own.Members[wish.Current] != v1alpha1.MemberInSync {
		lacks = append(lacks, wish.Current+" itself was not in sync by its own header")
	}
	if !permitted {
		return chosen, nil, fmt.Errorf("%w with replica %s as the current one: %s", errLosesData, wish.Current, strings.Join(lacks, "; "))
	}
	return chosen, lacks, nil
}

// personDecides is what a person can do about a record that the headers do not tell.
func personDecides(a *arrangement, err error) string {
	command := "kubectl weft recover " + commandName(a.Name)
	switch {
	case errors.Is(err, errLosesData):
		return fmt.Sprintf("; to give them up, run: %s --current %s --accept-loss", command, a.Spec.Recovery.Current)
	case errors.Is(err, mirror.ErrUnasked):
		return fmt.Sprintf("; start the nodes of all replicas. If one is lost for good, choose the replica to go on with: %s --current REPLICA --accept-loss", command)
	}
	return fmt.Sprintf("; choose the replica to go on with: %s --current REPLICA --accept-loss", command)
}

// personChooses is what a person can do if nobody knows which replica is current; empty for other errors.
func personChooses(volume string, err error) string {
	if !errors.Is(err, mirror.ErrNeedsPerson) {
		return ""
	}
	return fmt.Sprintf("; to go on with one of them, run: kubectl weft recover %s --current REPLICA --accept-loss --detach", commandName(volume))
}

// moreToRead tells whether a replica that was not read may be now.
func (s *Service) moreToRead(ctx context.Context, a *arrangement) bool {
	for i, m := range a.Spec.Members {
		is, in := mirror.Get(*a.record, m.Name)
		if in && (is.Header == nil || is.Header.Error != "") && a.replicas[i] != nil && !s.silent(ctx, m.Node) {
			return true
		}
	}
	return false
}

// recordRecovered tells what the record of a volume says now.
func recordRecovered(vol *v1alpha1.NvmfVolume, record mirror.Record, lost []string) notice {
	at := places(vol.Spec.Members)
	n := notice{
		kind: corev1.EventTypeNormal, reason: v1alpha1.ReasonRecordRecovered,
		note: fmt.Sprintf("the record of the volume's replicas was recovered; current: %s. All others are filled", at.replicas(mirror.InSync(record))),
		key:  strings.Join([]string{string(vol.UID), v1alpha1.ReasonRecordRecovered, strconv.FormatInt(record.Epoch, 10)}, " "),
	}
	if len(lost) > 0 {
		n.kind, n.note = corev1.EventTypeWarning, n.note+". Given up is what others had more: "+strings.Join(lost, "; ")
	}
	return n
}

// recoveryNotices of a volume whose recovery waits for something else than before.
func recoveryNotices(was, is *v1alpha1.NvmfVolume) []notice {
	now := is.Spec.Recovery
	if now == nil || now.Waiting == "" || was.Spec.Recovery != nil && was.Spec.Recovery.Waiting == now.Waiting {
		return nil
	}
	return []notice{{
		kind: corev1.EventTypeWarning, reason: v1alpha1.ReasonRecoveryWaiting, note: "recovery of the record of the volume's replicas waits: " + now.Waiting,
		key: strings.Join([]string{string(is.UID), v1alpha1.ReasonRecoveryWaiting, strconv.FormatInt(is.Generation, 10)}, " "),
	}}
}
