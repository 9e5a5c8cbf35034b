// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

const (
	// mostFills is how many volumes of the cluster are filled at once because of a move or of another replica: each
	// copies as fast as its nodes can, and takes that from the volumes in use. What the cache does not show yet may add
	// one or two. It is a choice, not measured.
	mostFills = 8
	// refusedTime is how long a node is avoided whose agent found no room for a replica. Its pools tell sooner as a
	// rule; this is for those that do not.
	refusedTime = 5 * time.Minute
	// creationPatience with a node that creates a replica, before the volume says that it waits for that.
	creationPatience = time.Minute
)

// join adds a member if the volume has too few, and deletes a replica that was created for that and is not needed.
func (s *Service) join(ctx context.Context, a *arrangement) (outcome, error) {
	needed := a.Replicated() && a.surplus() < 0
	for _, rep := range a.unlisted {
		switch {
		case !joins(rep) || retired(rep) || rep.DeletionTimestamp != nil:
		case !needed || rep.Marked() || !fits(a, rep):
			return s.forgo(ctx, rep)
		default:
			return s.enlist(ctx, a, rep)
		}
	}
	if !needed {
		return outcome{}, nil
	}
	if len(a.Spec.Members) >= v1alpha1.MaxVolumeMembers {
		return outcome{waiting: fmt.Sprintf("the volume has %d replicas, of which some have to be removed first", len(a.Spec.Members))}, nil
	}
	return s.begin(ctx, a)
}

// fits tells whether a replica that was created is where the next member is to be.
func fits(a *arrangement, rep *v1alpha1.NvmfReplica) bool {
	if move := a.Spec.Move; move != nil && move.Node != "" && move.Node != rep.Spec.Node {
		return false
	}
	return !slices.ContainsFunc(a.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.Node == rep.Spec.Node })
}

// mayHaveData tells whether a replica that is blank by the volume, or its record, may have data all the same: it was
// written, or its agent suspects that the API was restored.
func mayHaveData(rep *v1alpha1.NvmfReplica) bool { return rep.RestoreSuspected() || rep.Status.Written }

// forgo deletes a replica that the volume does not list: it was blank ever since. It was read before the volume, and is
// deleted only as it was read; enlist changes it before it writes the volume. So either finds out about the other.
//
// Data may have been written to it all the same, if the API was restored to a time before it was listed: then it stays.
func (s *Service) forgo(ctx context.Context, rep *v1alpha1.NvmfReplica) (outcome, error) {
	if mayHaveData(rep) {
		return outcome{waiting: fmt.Sprintf("replica %s on node %s is not listed, and may have data: recover the volume, or delete the NvmfReplica", rep.Name, rep.Spec.Node)}, nil
	}
	klog.FromContext(ctx).Info("Deleting a replica that is not needed", "volume", rep.Spec.Volume.Name, "replica", rep.Name, "node", rep.Spec.Node)
	if err := s.erase(ctx, rep); err != nil {
		return outcome{}, fmt.Errorf("delete NvmfReplica %s: %w", rep.Name, err)
	}
	return changed, nil
}

// enlist a replica among the members once its node has created it.
func (s *Service) enlist(ctx context.Context, a *arrangement, rep *v1alpha1.NvmfReplica) (outcome, error) {
	done, err := created(rep)
	switch {
	case errors.Is(err, errNoSpace):
		s.refused.add(a.Name, rep.Spec.Node)
		return s.forgo(ctx, rep)
	case err != nil:
		return outcome{}, err
	case !done && s.silent(ctx, rep.Spec.Node):
		return s.forgo(ctx, rep)
	case !done && s.clock.Since(rep.CreationTimestamp.Time) >= creationPatience:
		return outcome{waiting: fmt.Sprintf("node %s has not created replica %s yet; see its conditions: kubectl describe nvmfreplica %s", rep.Spec.Node, rep.Name, rep.Name)}, nil
	case !done:
		return outcome{again: true}, nil
	}
	touched := rep.DeepCopy()
	touched.Annotations[joinsAnnotation] = uuid.NewString()
	if err := s.patch(ctx, rep, touched); err != nil {
		return outcome{}, fmt.Errorf("write NvmfReplica %s: %w", rep.Name, err)
	}
	err = s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) {
		spec := &vol.Spec
		spec.Members = append(spec.Members, v1alpha1.VolumeMember{Name: rep.Name, UUID: rep.Spec.UUID, Node: rep.Spec.Node})
		spec.Waiting = ""
		if spec.Move != nil {
			spec.Move.Replacement, spec.Move.Waiting = rep.Name, ""
		}
	})
	if err != nil {
		return outcome{}, err
	}
	klog.FromContext(ctx).Info("Adding a replica to its volume", "volume", a.Name, "replica", rep.Name, "node", rep.Spec.Node)
	if _, err := s.follow(ctx, a.NvmfVolume); err != nil {
		return outcome{}, err
	}
	return changed, nil
}

// silent tells whether the operator has found a node's agent silent.
func (s *Service) silent(ctx context.Context, name string) bool {
	var node v1alpha1.NvmfNode
	return s.client.Get(ctx, keyOf(name), &node) == nil && meta.IsStatusConditionFalse(node.Status.Conditions, v1alpha1.ConditionAgentAlive)
}

// begin creates the object of a new replica, on the node where it is to be.
func (s *Service) begin(ctx context.Context, a *arrangement) (outcome, error) {
	rep, why, err := s.placeNext(ctx, a)
	if err != nil || why != "" {
		return outcome{waiting: why}, err
	}
	rep.Annotations[joinsAnnotation] = uuid.NewString()
	rep.Spec.Used, rep.Spec.Hosts, rep.Spec.SubsystemNQN = false, nil, ""
	if err := s.client.Create(ctx, rep, client.FieldOwner(fieldManager)); err != nil {
		if refused(err) || apierrors.IsAlreadyExists(err) {
			s.reservations.release(rep.Name, rep.Spec.UUID, a.Spec.Size.Value())
		}
		return outcome{}, fmt.Errorf("store NvmfReplica %s: %w", rep.Name, err)
	}
	klog.FromContext(ctx).Info("Creating another replica", "volume", a.Name, "replica", rep.Name, "node", rep.Spec.Node)
	return changed, nil
}

// blocksOf a volume: the logical blocks of the drives that have its replicas; 0 where they are not known.
func (s *Service) blocksOf(ctx context.Context, a *arrangement) (int32, error) {
	if a.Spec.BlockSizeBytes > 0 {
		return a.Spec.BlockSizeBytes, nil
	}
	for _, rep := range a.replicas {
		if rep == nil || rep.Status.Device == "" {
			continue
		}
		var node v1alpha1.NvmfNode
		if err := s.client.Get(ctx, keyOf(rep.Spec.Node), &node); client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("read NvmfNode %s: %w", rep.Spec.Node, err)
		}
		for _, p := range node.Status.Pools {
			if p.Device == rep.Status.Device && p.BlockSizeBytes > 0 {
				return p.BlockSizeBytes, nil
			}
		}
	}
	return 0, nil
}

// placeNext chooses the node of a volume's next replica, keeps space there, and answers its object, which is not stored
// yet; or it says why there is no node now.
func (s *Service) placeNext(ctx context.Context, a *arrangement) (rep *v1alpha1.NvmfReplica, why string, err error) {
	fills, err := s.fills(ctx, a.Name)
	if err != nil {
		return nil, "", err
	}
	if fills >= mostFills {
		return nil, fmt.Sprintf("%d other volumes are being filled, which is the maximum at a time", fills), nil
	}
	req, why, err := s.requestFor(ctx, a)
	if err != nil || why != "" {
		return nil, why, err
	}
	m, err := s.newMember(ctx, a)
	if err != nil {
		return nil, "", err
	}
	placed := []v1alpha1.VolumeMember{m}
	_, err = s.reservations.place(ctx, req, placed)
	var noNode *placement.NoNodeError
	var noRoom *placement.NoRoomError
	if errors.As(err, &noNode) || errors.As(err, &noRoom) {
		return nil, err.Error(), nil
	}
	if err != nil {
		return nil, "", err
	}
	rep = newReplica(a.NvmfVolume, placed[0], nil)
	rep.Spec.BlockSizeBytes = req.BlockBytes
	if a.Spec.Move == nil || a.Spec.Move.Reason != v1alpha1.MoveReplicaLost {
		return rep, "", nil
	}
	shares, err := s.sharesZone(ctx, a, rep.Spec.Node)
	if err == nil && shares {
		why = "no node in another zone than that of the other replica can take it"
	}
	if err != nil || shares {
		s.reservations.release(rep.Name, rep.Spec.UUID, req.SizeBytes)
	}
	return rep, why, err
}

// fills are the volumes, but for this one, that are being filled, or are about to be. A volume that is not attached is
// not filled, however long it waits.
func (s *Service) fills(ctx context.Context, but string) (int, error) {
	names := map[string]bool{}
	var mirrors v1alpha1.NvmfMirrorList
	if err := s.client.List(ctx, &mirrors, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list NvmfMirrors: %w", err)
	}
	for i := range mirrors.Items {
		m := &mirrors.Items[i]
		names[m.Name] = m.Spec.Holder != "" && slices.ContainsFunc(m.Spec.Members, func(m v1alpha1.MirrorMember) bool {
			return m.State == v1alpha1.MemberFilling && !m.Retired
		})
	}
	var reps v1alpha1.NvmfReplicaList
	if err := s.client.List(ctx, &reps, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list NvmfReplicas: %w", err)
	}
	for i := range reps.Items {
		if rep := &reps.Items[i]; joins(rep) && rep.DeletionTimestamp == nil {
			names[rep.Spec.Volume.Name] = true
		}
	}
	delete(names, but)
	maps.DeleteFunc(names, func(_ string, is bool) bool { return !is })
	return len(names), nil
}

// requestFor the place of a volume's next member, or why there is none. As for a new volume, it is in one of the zones
// that the StorageClass named, and preferably in another one than the members that stay.
func (s *Service) requestFor(ctx context.Context, a *arrangement) (req placement.Request, why string, err error) {
	req = placement.Request{
		Target: a.Spec.Target, Connection: v1alpha1.Connection{Transports: a.Spec.Connection.Transports},
		SizeBytes: a.Spec.Size.Value(), DeviceClass: a.Spec.DeviceClass, Zones: a.Spec.Zones, Avoid: s.refused.of(a.Name),
	}
	if req.BlockBytes, err = s.blocksOf(ctx, a); err != nil {
		return req, "", err
	}
	if req.Cordoned, err = s.cordonedNodes(ctx); err != nil {
		return req, "", err
	}
	if req.ZoneOf, err = s.zoneOf(ctx, a.Spec.ZoneKey()); err != nil {
		return req, "", err
	}
	for _, m := range a.Spec.Members {
		req.Apart = append(req.Apart, m.Node)
		if a.Spec.Move != nil && m.Name == a.Spec.Move.Replica {
			delete(req.ZoneOf, m.Node) // its zone is free when it has moved
		}
	}
	if a.Spec.Move == nil || a.Spec.Move.Node == "" {
		return req, "", nil
	}
	req.Node = a.Spec.Move.Node
	var node v1alpha1.NvmfNode
	err = s.client.Get(ctx, keyOf(req.Node), &node)
	if err == nil && node.Spec.Target == req.Target && node.Spec.Plan != nil {
		return req, "", nil
	}
	return req, fmt.Sprintf("node %s does not serve target %q", req.Node, req.Target), client.IgnoreNotFound(err)
}

// newMember with a number that is greater than that of any replica that the volume has or had, as far as the API server
// knows, and a name that no NvmfReplica has. A part of the name is random: if the API is restored to a time before a
// replica was created, its name must not be given to another one. Headers tell replicas apart by their names, and that
// one may be the only replica that has everything.
func (s *Service) newMember(ctx context.Context, a *arrangement) (v1alpha1.VolumeMember, error) {
	for n := lastReplica(a) + 1; ; n++ {
		m := member(a.Name, "", n, "")
		m.Name += s.suffix()
		if rep, err := s.replicas.read(ctx, m.Name); err != nil || rep == nil {
			return m, err
		}
	}
}

// randomSuffix of a replica's name.
func randomSuffix() string { return "-" + uuid.NewString()[:6] }

// lastReplica is the highest number among the replicas that a volume has or had.
func lastReplica(a *arrangement) int {
	last, _ := strconv.Atoi(a.Annotations[lastReplicaAnnotation])
	for _, name := range a.names {
		if rest, is := strings.CutPrefix(name, a.Name+"-"); is {
			number, _, _ := strings.Cut(rest, "-")
			n, _ := strconv.Atoi(number)
			last = max(last, n)
		}
	}
	return last
}

// refusedNodes are, for each volume, nodes that are not tried for refusedTime: their agents found no room for its next
// replica, or their node plugins did not begin to copy.
type refusedNodes struct {
	mu    sync.Mutex
	until map[string]map[string]time.Time
}

func (r *refusedNodes) add(volume, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]map[string]time.Time{}
	}
	if r.until[volume] == nil {
		r.until[volume] = map[string]time.Time{}
	}
	r.until[volume][node] = time.Now().Add(refusedTime)
}

// of a volume, sorted.
func (r *refusedNodes) of(volume string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.until[volume], func(_ string, until time.Time) bool { return now.After(until) })
	if len(r.until[volume]) == 0 {
		delete(r.until, volume)
	}
	return slices.Sorted(maps.Keys(r.until[volume]))
}
