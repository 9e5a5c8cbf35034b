// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// reservations are replicas that were placed, or that grew, and that the cache does not show so yet. Without them,
// calls that come together would all see the same free space and choose the same node.
//
// What the cache shows is entered into the ledger with each event, so that a call does not have to look at all
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
	// ledger has for each replica what is kept for it, else what the cache shows, and the snapshots.
	ledger placement.Ledger
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
// no space is kept.
func (r *reservations) place(ctx context.Context, req placement.Request, members []v1alpha1.VolumeMember) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes, err := r.gather(ctx)
	if err != nil {
		return err
	}
	// What earlier calls kept for these replicas is no obstacle to them.
	before := map[string]reservation{}
	for _, m := range members {
		if made, is := r.made[m.Name]; is {
			before[m.Name] = made
			r.drop(m.Name)
		}
	}
	for i := range members {
		m := &members[i]
		if m.Node, err = placement.Choose(req, nodes, &r.ledger); err != nil {
			for _, m := range members {
				r.drop(m.Name)
			}
			for _, made := range before {
				r.enter(made)
			}
			return err
		}
		r.keep(placement.PromiseTo(m.Name, m.Node, req.Device, req.DeviceClass, req.SizeBytes), m.UUID)
		req.Apart, req.Node, req.Device = append(req.Apart, m.Node), "", ""
	}
	return nil
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
	r.ledger.Set(made.Promise)
}

// drop what is kept for a replica; what the cache shows of it counts again. The caller holds the lock.
func (r *reservations) drop(replica string) {
	delete(r.made, replica)
	if is, ok := r.shown[replica]; ok {
		r.ledger.Set(is.Promise)
	} else {
		r.ledger.Remove(replica)
	}
}

// grow keeps space for a volume of the new size. If the pool of a replica has less, it keeps nothing, and its error
// says how much there is. It also fails, for now, while it is not known what a pool has: a size that is written can
// never be taken back.
func (r *reservations) grow(ctx context.Context, vol *replicatedVolume, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes, err := r.gather(ctx)
	if err != nil {
		return err
	}
	for i, rep := range vol.replicas {
		if rep == nil {
			return failf(waiting, "volume %s stays at %s: NvmfReplica %s does not exist", vol.Name, &vol.Spec.Size, vol.Spec.Members[i].Name)
		}
		if err := r.hasRoom(nodes, rep, size); err != nil {
			return err
		}
	}
	for _, rep := range vol.replicas {
		r.keep(placement.PromiseTo(rep.Name, rep.Spec.Node, rep.Status.Device, rep.Spec.DeviceClass, size), rep.Spec.UUID)
	}
	return nil
}

// hasRoom tells whether a replica's pool has room for this size of it. The caller holds the lock.
func (r *reservations) hasRoom(nodes []v1alpha1.NvmfNode, rep *v1alpha1.NvmfReplica, size int64) error {
	i := slices.IndexFunc(nodes, func(n v1alpha1.NvmfNode) bool { return n.Name == rep.Spec.Node })
	if i < 0 {
		return roomUnknown(rep, size, "has no NvmfNode")
	}
	room, known := placement.Room(&nodes[i], rep.Status.Device, rep.Name, &r.ledger)
	if !known {
		return roomUnknown(rep, size, lastWordOfPool(nodes[i].Status.Pools, rep.Status.Device))
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
	if made := r.made[replica]; made.uuid == uuid && made.SizeBytes <= v1alpha1.WithHeader(size) {
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
			size := v1alpha1.WithHeader(rep.Spec.Size.Value())
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
			r.ledger.Set(r.snapshotPromise(snap))
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
		r.ledger.Remove(placement.SnapshotPrefix + snap.Name)
		return
	}
	if snap.Status.Device == "" || snap.Status.Allocated == nil {
		r.making[snap.Name] = snap
	}
	r.ledger.Set(r.snapshotPromise(snap))
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
	nodes, err := r.gather(ctx)
	if err != nil {
		return nil, err
	}
	candidates, _ := placement.Candidates(req, nodes, &r.ledger)
	return candidates, nil
}

// gather the nodes, which are the cache's own: not to be changed. The ledger is complete then, and without what is kept
// no longer. The caller holds the lock.
func (r *reservations) gather(ctx context.Context) ([]v1alpha1.NvmfNode, error) {
	var nodes v1alpha1.NvmfNodeList
	if err := r.cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NvmfNodes: %w", err)
	}
	if !r.synced() {
		return nil, failf(waiting, "it is not known yet what all volumes take; try again")
	}
	now := r.clock.Now()
	for name, made := range r.made {
		if now.After(made.until) {
			r.drop(name)
		}
	}
	return nodes.Items, nil
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
