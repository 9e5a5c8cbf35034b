// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// reservations are replicas that were placed, or that grew, and that the cache does not show so yet. Without them,
// calls that come together would all see the same free space and choose the same node.
//
// What the cache shows is entered into the index with each event, so that a call does not have to look at all nodes and
// replicas. An event that shows what was kept takes that back in the same step.
type reservations struct {
	cached client.Reader
	clock  clock.PassiveClock
	// synced tells whether shown is complete.
	synced func() bool

	mu   sync.Mutex
	made map[string]reservation
	// shown replicas, by name, and the most that they can have written.
	shown map[string]shownReplica
	// making are the snapshots, by name, whose node has not reported yet what they hold: until then, they are taken to
	// hold what their replica has written.
	making map[string]*v1alpha1.NvmfSnapshot
	// index has the nodes as the cache shows them, or showed them an event ago, and for each replica what is kept for
	// it, else what the cache shows, and the snapshots.
	index placement.Index
}

type shownReplica struct {
	placement.Promise
	writtenBytes int64
}

type reservation struct {
	placement.Promise
	uuid  string
	until time.Time
}

// reservationTime is how long space is kept for a volume of which nobody knows whether the API server
// has stored it. It only has to outlast the delay of the watch.
const reservationTime = 2 * time.Minute

// place chooses a node for each of a volume's replicas, sets it, and keeps the space there until the cache shows the
// replica. The first may have to be where the request says; each is on another node than those before it. With an error
// no space is kept. If the drives of the target differ in their logical blocks, it answers those of all the replicas;
// else 0.
func (r *reservations) place(ctx context.Context, req placement.Request, members []v1alpha1.VolumeMember) (blockBytes int32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ready(); err != nil {
		return 0, err
	}
	// What earlier calls kept for these replicas is no obstacle to them.
	before := map[string]reservation{}
	for _, m := range members {
		if made, is := r.made[m.Name]; is {
			before[m.Name] = made
			r.drop(m.Name)
		}
	}
	sizes, err := r.blockSizes(ctx, req, len(members))
	if err != nil {
		return 0, err
	}
	var failed error
	for _, req.BlockBytes = range sizes {
		if err := r.placeAll(ctx, req, members); err == nil {
			return req.BlockBytes, nil
		} else if failed == nil {
			failed = err
		}
	}
	for _, made := range before {
		r.enter(made)
	}
	return 0, failed
}

// blockSizes are the logical blocks that a volume's replicas can have, in the order in which they are tried: first what
// the drive has on which a single replica would be.
func (r *reservations) blockSizes(ctx context.Context, req placement.Request, replicas int) ([]int32, error) {
	of := r.index.BlockSizes(req.Target)
	if req.BlockBytes > 0 || replicas < 2 || len(of) < 2 {
		return []int32{req.BlockBytes}, nil
	}
	name, err := r.choose(ctx, req)
	if err != nil {
		return []int32{0}, nil //nolint:nilerr // it is found again, and told, when the first replica is placed
	}
	node, err := r.node(ctx, name)
	if err != nil || node == nil {
		return of, err
	}
	first := req.BlockSizes(node)
	if req.Device != "" && len(first) > 0 {
		return first, nil
	}
	return append(first, slices.DeleteFunc(of, func(bytes int32) bool { return slices.Contains(first, bytes) })...), nil
}

// placeAll of a volume's replicas, or none.
func (r *reservations) placeAll(ctx context.Context, req placement.Request, members []v1alpha1.VolumeMember) (err error) {
	for i := range members {
		m := &members[i]
		if m.Node, err = r.choose(ctx, req); err != nil {
			for _, m := range members {
				r.drop(m.Name)
			}
			return err
		}
		r.keep(placement.PromiseTo(m.Name, m.Node, req.Device, req.DeviceClass, req.SizeBytes), m.UUID)
		req.Apart, req.Node, req.Device = append(req.Apart, m.Node), "", ""
	}
	return nil
}

// choose a node, as the cache shows them. An event that tells of a change there may not have been handled yet, so the
// node is looked at once more; if there is none, all are, once. The caller holds the lock.
func (r *reservations) choose(ctx context.Context, req placement.Request) (string, error) {
	for caughtUp := false; ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		name, err := r.index.Choose(req)
		if err != nil {
			if caughtUp {
				return "", err
			}
			caughtUp = true
			changed, listErr := r.catchUp(ctx)
			if listErr != nil {
				return "", listErr
			}
			if changed {
				continue
			}
			return "", err
		}
		node, err := r.node(ctx, name)
		switch {
		case err != nil:
			return "", err
		case node == nil:
			r.index.RemoveNode(name)
		case !r.index.Shows(node):
			r.index.SetNode(node)
		default:
			return name, nil
		}
	}
}

// node of this name, which is the cache's own: not to be changed. Nil when the cache shows none.
func (r *reservations) node(ctx context.Context, name string) (*v1alpha1.NvmfNode, error) {
	node := &v1alpha1.NvmfNode{}
	err := r.cached.Get(ctx, keyOf(name), node, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read NvmfNode %s: %w", name, err)
	}
	return node, nil
}

// catchUp with what the cache shows of the nodes, and tell whether that is something else. The caller holds the lock:
// so nothing that an event has told is replaced by what is older.
func (r *reservations) catchUp(ctx context.Context) (changed bool, err error) {
	var nodes v1alpha1.NvmfNodeList
	if err := r.cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list NvmfNodes: %w", err)
	}
	exists := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		n := &nodes.Items[i]
		exists[n.Name] = true
		if !r.index.Shows(n) {
			changed = true
			r.index.SetNode(new(*n)) // not one of an array, which it would keep in memory
		}
	}
	for _, name := range r.index.Names() {
		if !exists[name] {
			changed = true
			r.index.RemoveNode(name)
		}
	}
	return changed, nil
}

// nodeChanged enters what the cache shows of a node; gone says that it shows it no more.
func (r *reservations) nodeChanged(node *v1alpha1.NvmfNode, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gone {
		r.index.RemoveNode(node.Name)
	} else {
		r.index.SetNode(node)
	}
}

// keep space. The caller holds the lock.
func (r *reservations) keep(p placement.Promise, uuid string) {
	r.enter(reservation{Promise: p, uuid: uuid, until: r.clock.Now().Add(reservationTime)})
}

// enter what is kept. It counts before what the cache shows: a volume before it grew. The caller holds the lock.
func (r *reservations) enter(made reservation) {
	if r.made == nil {
		r.made = map[string]reservation{}
	}
	r.made[made.Volume] = made
	r.index.Promise(made.Promise)
}

// drop what is kept for a replica; what the cache shows of it counts again. The caller holds the lock.
func (r *reservations) drop(replica string) {
	delete(r.made, replica)
	if is, ok := r.shown[replica]; ok {
		r.index.Promise(is.Promise)
	} else {
		r.index.Withdraw(replica)
	}
}

// grow keeps space for a volume of the new size. If the pool of a replica has less, it keeps nothing, and its error
// says how much there is. It also fails, for now, while it is not known what a pool has: a size that is written can
// never be taken back.
func (r *reservations) grow(ctx context.Context, vol *replicatedVolume, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ready(); err != nil {
		return err
	}
	for i, rep := range vol.replicas {
		if rep == nil {
			return failf(waiting, "volume %s stays at %s: NvmfReplica %s does not exist", vol.Name, &vol.Spec.Size, vol.Spec.Members[i].Name)
		}
		if err := r.hasRoom(ctx, rep, size); err != nil {
			return err
		}
	}
	for _, rep := range vol.replicas {
		r.keep(placement.PromiseTo(rep.Name, rep.Spec.Node, rep.Status.Device, rep.Spec.DeviceClass, size), rep.Spec.UUID)
	}
	return nil
}

// hasRoom tells whether a replica's pool has room for this size of it. The caller holds the lock.
func (r *reservations) hasRoom(ctx context.Context, rep *v1alpha1.NvmfReplica, size int64) error {
	node, err := r.node(ctx, rep.Spec.Node)
	if err != nil {
		return err
	}
	if node == nil {
		return roomUnknown(rep, size, "has no NvmfNode")
	}
	room, known := r.index.Room(node, rep.Status.Device, rep.Name)
	if !known {
		return roomUnknown(rep, size, lastWordOfPool(node.Status.Pools, rep.Status.Device))
	}
	if room = room / sizeStep * sizeStep; room < size {
		return failf(outOfRange, "size: cannot expand volume %s from %s to %s: its drive, %s on node %s, has space for at most %s",
			rep.Spec.Volume.Name, &rep.Spec.Size, quantity(size), rep.Status.Device, rep.Spec.Node, quantity(max(room, rep.Spec.Size.Value())))
	}
	return nil
}

// roomUnknown explains that a volume stays as it is until its node says what room there is.
func roomUnknown(rep *v1alpha1.NvmfReplica, size int64, why string) error {
	return failf(waiting, "volume %s stays at %s, because it is unknown whether its drive has space for %s: node %s %s; it is expanded automatically once that is known",
		rep.Spec.Volume.Name, &rep.Spec.Size, quantity(size), rep.Spec.Node, why)
}

// lastWordOfPool is what an agent said of a pool whose room it did not say.
func lastWordOfPool(pools []v1alpha1.PoolStatus, device string) string {
	if device == "" {
		return "has not reported yet which drive the volume is on"
	}
	i := slices.IndexFunc(pools, func(p v1alpha1.PoolStatus) bool { return p.Device == device })
	if i < 0 {
		return fmt.Sprintf("does not report drive %s", device)
	}
	if pools[i].Reason == "" {
		return fmt.Sprintf("has not reported the size of drive %s", device)
	}
	return fmt.Sprintf("reports about drive %s: %s: %s", device, pools[i].Reason, pools[i].Message)
}

// release the space kept for the replica with this uuid, up to this size of its data: the cache shows it, or it was
// certainly not written.
func (r *reservations) release(replica, uuid string, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseHeld(replica, uuid, size)
}

// releaseHeld is release for a caller who holds the lock.
func (r *reservations) releaseHeld(replica, uuid string, size int64) {
	if made := r.made[replica]; made.uuid == uuid && made.SizeBytes <= v1alpha1.WithOverhead(size) {
		r.drop(replica)
	}
}

// replicaChanged enters what the cache shows of a replica; gone says that it shows it no more.
func (r *reservations) replicaChanged(rep *v1alpha1.NvmfReplica, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown == nil {
		r.shown = map[string]shownReplica{}
	}
	if gone {
		delete(r.shown, rep.Name)
	} else {
		is := shownReplica{Promise: placement.PromiseTo(rep.Name, rep.Spec.Node, rep.Status.Device, rep.Spec.DeviceClass, rep.Spec.Size.Value())}
		if written := rep.Status.Allocated; written != nil && written.Sign() > 0 {
			size := v1alpha1.WithOverhead(rep.Spec.Size.Value())
			is.writtenBytes = min(written.Value()+v1alpha1.AllocatedStep(size), size)
		}
		r.shown[rep.Name] = is
	}
	if _, kept := r.made[rep.Name]; !kept {
		r.drop(rep.Name)
	}
	r.releaseHeld(rep.Name, rep.Spec.UUID, rep.Spec.Size.Value())
	for _, snap := range r.making {
		if snap.Spec.Replica == rep.Name {
			r.index.Promise(r.snapshotPromise(snap))
		}
	}
}

// snapshotChanged enters what the cache shows of a snapshot; gone says that it shows it no more.
func (r *reservations) snapshotChanged(snap *v1alpha1.NvmfSnapshot, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.making == nil {
		r.making = map[string]*v1alpha1.NvmfSnapshot{}
	}
	delete(r.making, snap.Name)
	if gone {
		r.index.Withdraw(placement.SnapshotPrefix + snap.Name)
		return
	}
	if snap.Status.Device == "" || snap.Status.Allocated == nil {
		r.making[snap.Name] = snap
	}
	r.index.Promise(r.snapshotPromise(snap))
}

// releaseAll that is kept for these replicas.
func (r *reservations) releaseAll(members []v1alpha1.VolumeMember, size int64) {
	for _, m := range members {
		r.release(m.Name, m.UUID, size)
	}
}

// candidates that can take volumes, with the room that they have.
func (r *reservations) candidates(ctx context.Context, req placement.Request) ([]placement.Candidate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ready(); err != nil {
		return nil, err
	}
	if _, err := r.catchUp(ctx); err != nil {
		return nil, err
	}
	candidates, _ := r.index.Candidates(req)
	return candidates, nil
}

// ready says that what is promised is complete, and forgets what is kept no longer. The caller holds the lock.
func (r *reservations) ready() error {
	if !r.synced() {
		return failf(waiting, "it is not known yet what all volumes take; try again")
	}
	now := r.clock.Now()
	for name, made := range r.made {
		if now.After(made.until) {
			r.drop(name)
		}
	}
	return nil
}

// snapshotPromise is what a snapshot holds; one that is still being made, what its replica has written so far. The
// caller holds the lock.
func (r *reservations) snapshotPromise(s *v1alpha1.NvmfSnapshot) placement.Promise {
	of := r.shown[s.Spec.Replica]
	p := placement.Promise{Volume: placement.SnapshotPrefix + s.Name, Node: s.Spec.Node, Device: cmp.Or(s.Status.Device, of.Device), SizeBytes: of.writtenBytes}
	if s.Status.Allocated != nil {
		p.SizeBytes = s.Status.Allocated.Value()
	}
	return p
}
