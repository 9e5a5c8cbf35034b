// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// Only the node that holds a mirror copies. A volume that no pod uses gets a mover: an attachment that the service
// gives to a node by itself, by the same steps as any other, and which is no promise to anybody. It ends when nothing
// is left to copy, and a pod that needs the volume has it revoked, as that of a node that was lost: the record has no
// holder first, and then every replica confirms that the former is off. Asking it to stop comes before that only so
// that it disconnects by itself. Nothing hangs on the answer: a mover writes nothing new, and leaves the record as
// clean as it was.

const (
	// moverStops is how long a pod's attachment waits for a mover to stop: stopping an array and deleting the
	// controllers of targets that answer takes well under a second, and csi-attacher gives a call ten.
	moverStops = 4 * time.Second
	// moverEnds is how long a mover that is not needed any more has to stop before it is revoked.
	moverEnds = time.Minute
	// moverStarts is how long a mover has to start the mirror: that takes seconds. Then it is another node's turn,
	// since it keeps a place among those that are filled (mostFills), and copies of the volume wait for its word.
	moverStarts = 2 * time.Minute
	// moverCopies is how long a mover may copy without any progress, which node plugins write every ten seconds. A
	// replica that has to be compared first, or that reads slowly, takes minutes at most.
	moverCopies = 10 * time.Minute
	// moverConfirms is how long one step waits until replicas confirm the mover. The next event brings another.
	moverConfirms = 2 * time.Second
	// moverPoll is between looks at whether a mover has stopped.
	moverPoll = 100 * time.Millisecond
)

// errMoverLeft says that a mover was not made the holder, because the volume or its record has changed meanwhile.
var errMoverLeft = errors.New("the mover has ended, or the mirror has changed")

// mover takes the next step of a mover, if the volume has one, or needs one. It is the last of the steps: whatever can
// be done without is done.
func (s *Service) mover(ctx context.Context, a *arrangement) (outcome, error) {
	if a.record == nil || a.InUse() || !a.Spec.Used {
		return outcome{}, nil
	}
	h := a.Mover()
	if h == nil && a.record.Holder != "" {
		// Who dismissed it was interrupted before the record said so, and nobody else may come.
		record, err := s.fence(ctx, a.NvmfVolume)
		return outcome{changed: err == nil && record.Holder == ""}, err
	}
	blank, needed, why := !a.written(), s.moverNeeded(ctx, a), ""
	if needed && blank {
		needed, why = s.equatable(ctx, a)
	}
	switch {
	case h == nil && !needed:
		return outcome{waiting: why}, nil
	case h == nil && s.locks.taken("volume", a.Name):
		return outcome{waiting: "another call for the volume is in progress"}, nil
	case h == nil:
		return s.beginMover(ctx, a)
	case a.record.Holder != h.AttachmentUUID() && needed && blank:
		return s.equate(ctx, a, h)
	case a.record.Holder != h.AttachmentUUID():
		return s.admitMover(ctx, a, h, needed)
	case needed && a.record.Mover == v1alpha1.MoverCopy:
		may, err := s.mayMove(ctx, h.Node, h.NodeUID)
		if err != nil {
			return outcome{}, err
		}
		if may {
			did, limit := moverBegins(a, h), moverStarts
			at := h.NQN
			if did.waiting == "" {
				at, limit = progress(a, h), moverCopies
			}
			s.given.begin(a.Name, at)
			if s.given.since(a.Name, at) < limit {
				return did, nil
			}
			klog.FromContext(ctx).Info("Giving up a mover that gets nowhere", "volume", a.Name, "host", h.Node, "reason", did.waiting)
			s.unfit.add(a.Name, h.Node)
		}
	}
	if a.record.Mover == v1alpha1.MoverStopped || s.asked.since(a.Name, h.NQN) >= moverEnds {
		return changed, s.endMover(ctx, a.NvmfVolume)
	}
	if a.record.Mover == v1alpha1.MoverStop {
		s.asked.begin(a.Name, h.NQN) // by an earlier process, or another one
		return outcome{waiting: fmt.Sprintf("the mover on node %s is stopping", h.Node)}, nil
	}
	return changed, s.askMover(ctx, a.NvmfVolume, h)
}

// moverNeeded tells whether a member lacks data, or is to leave, and a holder can do something about it now.
func (s *Service) moverNeeded(ctx context.Context, a *arrangement) bool {
	todo := false
	for i, m := range a.Spec.Members {
		is, in := mirror.Get(*a.record, m.Name)
		rep := a.replicas[i]
		switch {
		case !in || rep == nil || rep.DeletionTimestamp != nil:
		case is.Retired:
			stays := func(o mirror.Member) bool { return !o.Retired && o.State == v1alpha1.MemberInSync }
			todo = todo || !hasLeft(*a.record, is) && slices.ContainsFunc(a.record.Members, stays)
		case is.State != v1alpha1.MemberInSync:
			todo = todo || !retired(rep) && isCreated(rep) && !s.silent(ctx, m.Node)
		}
	}
	return todo
}

const (
	// unwritten begins what a volume waits for that nobody has written to.
	unwritten = "nothing was written to the volume yet"
	// anyNode stands for all nodes among those that are unfit: agents did not say that replicas are blank.
	anyNode = ""
)

// written tells whether a replica that has everything was written to.
func (a *arrangement) written() bool {
	return slices.ContainsFunc(a.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		return rep != nil && rep.Status.Written && mirror.StateOf(*a.record, rep.Name) == v1alpha1.MemberInSync
	})
}

// equatable tells whether the agents of a volume to which nothing was written can say now what equate has to know. If
// not, it says what has to happen first.
func (s *Service) equatable(ctx context.Context, a *arrangement) (bool, string) {
	blank, missing := blankReplicas(&a.replicatedVolume, *a.record, func(rep *v1alpha1.NvmfReplica) bool {
		return s.canConfirm(ctx, *a.record, rep) && !rep.Status.Written
	})
	if next, err := mirror.Equate(*a.record, blank, time.Now()); err == nil && next.Epoch != a.record.Epoch {
		if slices.Contains(s.unfit.of(a.Name), anyNode) {
			return false, unwritten + ", as far as is known, but not all nodes of its replicas have confirmed it: they are asked again in some minutes"
		}
		return true, ""
	}
	if missing != "" && !mirror.Started(*a.record) {
		return false, fmt.Sprintf("%s, as far as is known: its replicas are made equal when node %s confirms it, or a pod uses it", unwritten, missing)
	}
	return false, unwritten + ": its replicas are made equal when a pod uses it"
}

// blankReplicas are the members of a volume that are blank, and the node of one that would have to be, and is not.
func blankReplicas(v *replicatedVolume, r mirror.Record, isBlank func(*v1alpha1.NvmfReplica) bool) (blank []mirror.Replica, missing string) {
	for i, m := range v.Spec.Members {
		is, in := mirror.Get(r, m.Name)
		switch rep := v.replicas[i]; {
		case in && isBlank(rep):
			blank = append(blank, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
		case is.State == v1alpha1.MemberInSync || is.State == v1alpha1.MemberFilling && !is.Retired && missing == "":
			missing = m.Node
		}
	}
	return blank, missing
}

// canConfirm tells whether a replica's agent can say what was written to it, as far as is known.
func (s *Service) canConfirm(ctx context.Context, record mirror.Record, rep *v1alpha1.NvmfReplica) bool {
	return rep != nil && rep.DeletionTimestamp == nil && !retired(rep) && isMember(record, rep) && isCreated(rep) && !rep.RestoreSuspected() &&
		!meta.IsStatusConditionTrue(rep.Status.Conditions, v1alpha1.ConditionDegraded) && !s.silent(ctx, rep.Spec.Node)
}

// beginMover gives the volume an attachment of its own.
func (s *Service) beginMover(ctx context.Context, a *arrangement) (outcome, error) {
	fills, err := s.fills(ctx, a.Name)
	if err != nil {
		return outcome{}, err
	}
	if fills >= mostFills {
		return outcome{waiting: fmt.Sprintf("%d other volumes are being filled, which is the maximum at a time", fills)}, nil
	}
	if why := s.unadmittable(ctx, a); why != "" {
		return outcome{waiting: why}, nil
	}
	return s.giveMover(ctx, a)
}

// giveMover gives the volume an attachment on a node that can be a mover.
func (s *Service) giveMover(ctx context.Context, a *arrangement) (outcome, error) {
	if err := s.attachable(ctx, &a.replicatedVolume); err != nil {
		return outcome{waiting: err.Error()}, nil //nolint:nilerr // it waits for a place
	}
	node, err := s.moverNode(ctx, a)
	if err != nil {
		return outcome{}, err
	}
	if node == nil {
		return outcome{waiting: "no node can copy the data: each is cordoned, not ready, has no node plugin that works with the installed version, or could not begin a few minutes ago"}, nil
	}
	h := v1alpha1.VolumeHost{
		NQN: v1alpha1.HostNQN(uuid.NewString()), Node: node.Name, NodeUID: string(node.UID), Access: v1alpha1.AccessExclusive, Mover: true,
	}
	_, err = s.attach(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) {
		vol.Spec.Session, _ = v1alpha1.AttachmentOfHost(h.NQN)
		vol.Spec.Attachments = []v1alpha1.VolumeHost{h}
	})
	if err == nil {
		klog.FromContext(ctx).Info("Admitting a mover", "volume", a.Name, "host", h.Node, "nqn", h.NQN)
	}
	return changed, err
}

// unadmittable says why no mover would become the holder now, before one is given to the volume: else it would be given
// and taken over and over. Admitting it without a member that may be in sync would cost the volume a replica, unless
// that is about to leave. A pod's attachment does that; a copy can wait.
func (s *Service) unadmittable(ctx context.Context, a *arrangement) string {
	var expected []mirror.Confirmation
	for i, m := range a.Spec.Members {
		is, in := mirror.Get(*a.record, m.Name)
		rep := a.replicas[i]
		if !in || !is.MayBeAhead() {
			continue
		}
		silent := rep == nil || s.silent(ctx, m.Node)
		if silent && !dispensable(a, is) {
			return fmt.Sprintf("replica %s may have everything, and the agent of its node does not answer", m.Name)
		}
		if !silent && isMember(*a.record, rep) {
			expected = append(expected, mirror.Confirmation{Replica: mirror.Replica{Name: rep.Name, UID: string(rep.UID)}, Past: rep.RestoreSuspected()})
		}
	}
	if _, err := mirror.Admit(mirror.Begin(*a.record), a.Name, expected, time.Now()); err != nil {
		return fmt.Sprintf("no node can copy from the volume's replicas: %v", err)
	}
	return ""
}

// equate the members of a volume to which nothing was written: there is nothing to copy, and no mover has to hold the
// mirror. The agents of all have admitted it by then, and nobody else. What is unwritten then is unwritten as long as
// the mover, which was not told to begin, is the only one: any other comes only after a change of the record.
func (s *Service) equate(ctx context.Context, a *arrangement, h *v1alpha1.VolumeHost) (outcome, error) {
	as, err := s.fence(ctx, a.NvmfVolume)
	if err != nil {
		return outcome{}, err
	}
	if _, err := s.follow(ctx, a.NvmfVolume); err != nil {
		return outcome{}, err
	}
	var missing string
	next, err := s.changeMirror(ctx, a.NvmfVolume, func(r mirror.Record) (mirror.Record, error) {
		now, err := s.withReplicas(ctx, a.Name)
		if err != nil {
			return r, err
		}
		if r.Epoch != as.Epoch || now.UID != a.UID || now.Listed(h.NQN) == nil || len(now.Spec.Attachments) != 1 {
			return r, errMoverLeft
		}
		var blank []mirror.Replica
		blank, missing = blankReplicas(now, r, func(rep *v1alpha1.NvmfReplica) bool { return isBlankTo(rep, h.AttachmentUUID()) })
		return mirror.Equate(r, blank, time.Now())
	})
	switch {
	case errors.Is(err, errMoverLeft):
		return changed, nil
	case err != nil && (missing == "" || !errors.Is(err, mirror.ErrUnconfirmed)):
		return outcome{}, err
	case err == nil && next.Epoch != as.Epoch:
		klog.FromContext(ctx).Info("Nothing was written to the volume, so there is nothing to copy", "volume", a.Name, "record", mirror.String(next))
		return changed, nil
	}
	s.given.begin(a.Name, h.NQN)
	if s.given.since(a.Name, h.NQN) < moverStarts {
		return outcome{waiting: fmt.Sprintf("%s, but node %s has not confirmed it yet", unwritten, missing)}, nil
	}
	klog.FromContext(ctx).Info("The agents do not confirm that nothing was written to the volume", "volume", a.Name, "node", missing)
	s.unfit.add(a.Name, anyNode)
	return changed, s.endMover(ctx, a.NvmfVolume)
}

// isBlankTo tells whether nothing was written to a replica, as its agent says of the moment when it admitted the host
// of an attachment, and that host is the only one.
func isBlankTo(rep *v1alpha1.NvmfReplica, attachment string) bool {
	if rep == nil || !isCreated(rep) || mayHaveData(rep) || len(rep.Spec.Hosts) != 1 || len(rep.Status.Hosts) != 1 {
		return false
	}
	host := rep.HostOf(attachment)
	if host == nil {
		return false
	}
	is := rep.Admitted(host.NQN)
	return is != nil && is.Blank && confirms(rep, host.NQN, rep.Generation)
}

// dispensable tells whether a member is about to leave.
func dispensable(a *arrangement, m mirror.Member) bool {
	return m.Retired || a.Spec.Move != nil && a.Spec.Move.Replica == m.Replica
}

// admitMover makes a mover the holder once all replicas that are in sync have confirmed it, but for one that is about
// to leave.
func (s *Service) admitMover(ctx context.Context, a *arrangement, h *v1alpha1.VolumeHost, needed bool) (outcome, error) {
	may, err := s.mayMove(ctx, h.Node, h.NodeUID)
	if err != nil {
		return outcome{}, err
	}
	if !needed || !may {
		return changed, s.endMover(ctx, a.NvmfVolume)
	}
	record, confirmed, err := s.confirmMover(ctx, a, h)
	if err != nil {
		return outcome{}, err
	}
	for _, m := range record.Members {
		named := func(c mirror.Confirmation) bool { return c.Name == m.Replica }
		if m.MayBeAhead() && !slices.ContainsFunc(confirmed, named) && !dispensable(a, m) {
			return outcome{waiting: fmt.Sprintf("the node of replica %s has not admitted the mover yet", m.Replica)}, nil
		}
	}
	err = s.holdByMover(ctx, a.NvmfVolume, h, record, confirmed)
	switch {
	case errors.Is(err, errMoverLeft):
		return changed, nil
	case errors.Is(err, mirror.ErrNeedsPerson), errors.Is(err, mirror.ErrUnconfirmed), errors.Is(err, mirror.ErrForeign):
		if end := s.endMover(ctx, a.NvmfVolume); end != nil {
			return outcome{}, end
		}
		return outcome{waiting: fmt.Sprintf("no node can copy from the volume's replicas: %v", err)}, nil
	case err != nil:
		return outcome{}, err
	}
	klog.FromContext(ctx).Info("A mover holds the mirror", "volume", a.Name, "host", h.Node)
	return changed, nil
}

// confirmMover waits for a moment until replicas confirm a mover, and gives those that have, with the record of before.
func (s *Service) confirmMover(ctx context.Context, a *arrangement, h *v1alpha1.VolumeHost) (mirror.Record, []mirror.Confirmation, error) {
	record, err := s.fence(ctx, a.NvmfVolume)
	if err != nil {
		return record, nil, err
	}
	now, err := s.follow(ctx, a.NvmfVolume)
	if err != nil {
		return record, nil, err
	}
	attachment := h.AttachmentUUID()
	wctx, cancel := context.WithTimeout(ctx, moverConfirms)
	defer cancel()
	confirmed, _, err := s.confirm(wctx, now, record, func(rep *v1alpha1.NvmfReplica, generation int64) (bool, error) {
		host := rep.HostOf(attachment)
		return host != nil && confirms(rep, host.NQN, generation), nil
	})
	return record, confirmed, err
}

// holdByMover makes a mover the holder, as it was confirmed with this record. No call holds the volume for that: a pod
// may have come and gone since, of which what confirmed the mover says nothing. Who comes later fences first, and finds
// the mover in the record, or changes that.
func (s *Service) holdByMover(ctx context.Context, vol *v1alpha1.NvmfVolume, h *v1alpha1.VolumeHost, as mirror.Record, confirmed []mirror.Confirmation) error {
	_, err := s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		if r.Holder == h.AttachmentUUID() {
			return r, nil
		}
		now, err := s.volume(ctx, vol.Name)
		if err != nil {
			return r, err
		}
		if r.Epoch != as.Epoch || now.UID != vol.UID || now.Listed(h.NQN) == nil {
			return r, errMoverLeft
		}
		next, err := mirror.Admit(r, h.AttachmentUUID(), confirmed, time.Now())
		next.HolderNode, next.Mover = h.Node, v1alpha1.MoverCopy
		return next, err
	})
	return err
}

// confirms is exportedTo for a mover, whose volume may change as it likes.
func confirms(rep *v1alpha1.NvmfReplica, nqn string, generation int64) bool {
	on, err := exportedTo(rep, nqn, generation)
	return err == nil && on
}

// moverBegins says why a mover that holds the mirror has not started it: until then, it is connected to no member.
func moverBegins(a *arrangement, h *v1alpha1.VolumeHost) outcome {
	if slices.ContainsFunc(a.record.Members, func(m mirror.Member) bool { return m.State == v1alpha1.MemberInSync && m.Identity != "" }) {
		return outcome{}
	}
	if why := a.record.MoverWaiting; why != "" {
		return outcome{waiting: fmt.Sprintf("node %s cannot begin to copy: %s", h.Node, why)}
	}
	return outcome{waiting: fmt.Sprintf("node %s has not begun to copy yet", h.Node)}
}

// progress of a mover, which is another text whenever it has copied more, or changed the record.
func progress(a *arrangement, h *v1alpha1.VolumeHost) string {
	var copied int64
	for _, m := range a.record.Members {
		copied += m.CopiedBytes
	}
	return fmt.Sprintf("%s epoch %d copied %d", h.NQN, a.record.Epoch, copied)
}

// askMover to stop. It stays the holder until it is fenced.
func (s *Service) askMover(ctx context.Context, vol *v1alpha1.NvmfVolume, h *v1alpha1.VolumeHost) error {
	s.asked.begin(vol.Name, h.NQN)
	_, err := s.changeMirror(ctx, vol, func(r mirror.Record) (mirror.Record, error) {
		if r.Holder == h.AttachmentUUID() && r.Mover == v1alpha1.MoverCopy {
			r.Mover = v1alpha1.MoverStop
		}
		return r, nil
	})
	return err
}

// displaceMover ends a volume's mover because somebody needs the volume: it is asked to stop, and revoked if it does
// not within moverStops. The volume has to be read again after that.
func (s *Service) displaceMover(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	h := vol.Mover()
	is, err := s.mirrors.read(ctx, vol.Name)
	if err != nil {
		return err
	}
	if is == nil || is.Spec.Holder != h.AttachmentUUID() {
		return s.endMover(ctx, vol) // it holds nothing, so there is nothing that it could leave clean
	}
	if err := s.askMover(ctx, vol, h); err != nil {
		return err
	}
	left := moverStops - s.asked.since(vol.Name, h.NQN)
	err = wait.PollUntilContextTimeout(ctx, moverPoll, max(left, 0), true, func(context.Context) (bool, error) {
		is, err := s.mirrors.read(ctx, vol.Name)
		return is == nil || is.Spec.Holder != h.AttachmentUUID() || is.Spec.Mover == v1alpha1.MoverStopped, err
	})
	if err != nil && !wait.Interrupted(err) {
		return err
	}
	if err != nil {
		klog.FromContext(ctx).Info("Revoking a mover that does not stop", "volume", vol.Name, "host", h.Node)
	}
	return s.endMover(ctx, vol)
}

// leaveMover ends the mover of a volume that is to be deleted, and waits until its replicas have confirmed that it is
// off.
func (s *Service) leaveMover(ctx, wctx context.Context, vol *v1alpha1.NvmfVolume) error {
	if err := s.displaceMover(ctx, vol); err != nil {
		return err
	}
	now, err := s.withReplicas(ctx, vol.Name)
	if err != nil {
		return err
	}
	return s.await(wctx, now, detached, dismissed)
}

// endMover takes the mover off the volume's attachments, and from then on it can record nothing. That the volume has
// changed since it was read is no error: it has to be read again anyway.
func (s *Service) endMover(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	written, err := s.withoutHosts(ctx, vol, func(h v1alpha1.VolumeHost) bool { return h.Mover })
	if err == nil && written.Replicated() && written.DeletionTimestamp == nil {
		_, err = s.fence(ctx, written)
	}
	if err == nil {
		_, err = s.follow(ctx, written)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isNoVolume(err) {
		return nil
	}
	if err == nil {
		s.asked.forget(vol.Name)
		s.given.forget(vol.Name)
		klog.FromContext(ctx).Info("Dismissed a mover", "volume", vol.Name)
	}
	return err
}

// moverNode is the node that is to copy, but for those that could not begin lately: that of the replica that lacks
// data, so that the data crosses the network once in each direction at most; else that of another replica; else any.
// Nil if none can.
func (s *Service) moverNode(ctx context.Context, a *arrangement) (*corev1.Node, error) {
	var lacking, others, rest []string
	for _, m := range a.Spec.Members {
		if mirror.StateOf(*a.record, m.Name) != v1alpha1.MemberInSync {
			lacking = append(lacking, m.Node)
		} else {
			others = append(others, m.Node)
		}
	}
	unfit := s.unfit.of(a.Name)
	able := func(name string) (*corev1.Node, error) {
		if slices.Contains(unfit, name) {
			return nil, nil
		}
		return s.ableMover(ctx, name)
	}
	for _, name := range append(lacking, others...) {
		if node, err := able(name); err != nil || node != nil {
			return node, err
		}
	}
	var all storagev1.CSINodeList
	if err := s.live.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list CSINodes: %w", err)
	}
	for i := range all.Items {
		rest = append(rest, all.Items[i].Name)
	}
	slices.Sort(rest)
	for _, name := range rest {
		if node, err := able(name); err != nil || node != nil {
			return node, err
		}
	}
	return nil, nil
}

// mayMove tells whether the node that a mover was given can go on with it.
func (s *Service) mayMove(ctx context.Context, name, uid string) (bool, error) {
	node, err := s.ableMover(ctx, name)
	return node != nil && string(node.UID) == uid, err
}

// ableMover gives a node if its node plugin can be a mover: it is registered, of a version that works with this one,
// it can hold mirrors, its kernel is not stuck, and the node is ready and not cordoned.
func (s *Service) ableMover(ctx context.Context, name string) (*corev1.Node, error) {
	var plugins storagev1.CSINode
	var node corev1.Node
	err := s.live.Get(ctx, client.ObjectKey{Name: name}, &plugins)
	if err == nil {
		err = s.live.Get(ctx, client.ObjectKey{Name: name}, &node)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	is := func(kind string) bool {
		c := v1alpha1.NodeCondition(&node, corev1.NodeConditionType(kind))
		return c != nil && c.Status == corev1.ConditionTrue
	}
	unfit := slices.ContainsFunc([]string{v1alpha1.ConditionInitiatorStuck, v1alpha1.ConditionNodeVersionSkew, v1alpha1.ConditionMirrorsUnavailable}, is)
	ours := slices.ContainsFunc(plugins.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == v1alpha1.DriverName })
	if !ours || node.Spec.Unschedulable || !is(string(corev1.NodeReady)) || unfit {
		return nil, nil
	}
	return &node, nil
}

// moverTimes say since when something is expected of movers: to begin, to get on, or to stop. By the volume.
type moverTimes struct {
	mu sync.Mutex
	at map[string]moverTime
}

// moverTime is since when it is waited for what a text names: a mover's NQN, and how far it is.
type moverTime struct {
	what string
	when time.Time
}

// begin to wait for a mover, unless that has begun.
func (m *moverTimes) begin(volume, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.at = map[string]moverTime{}
	}
	if m.at[volume].what != what {
		m.at[volume] = moverTime{what, time.Now()}
	}
}

// since begin was called for a mover; 0 if it was not, in this process.
func (m *moverTimes) since(volume, what string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at[volume].what != what {
		return 0
	}
	return time.Since(m.at[volume].when)
}

func (m *moverTimes) forget(volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.at, volume)
}
