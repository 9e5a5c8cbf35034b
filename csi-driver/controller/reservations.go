// SPDX-License-Identifier: Apache-2.0

package controller

import (
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
type reservations struct {
	cached client.Reader
	clock  clock.PassiveClock

	mu   sync.Mutex
	made map[string]reservation
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
	nodes, promises, err := r.gather(ctx, members...)
	if err != nil {
		return err
	}
	known := len(promises)
	for i := range members {
		m := &members[i]
		if m.Node, err = placement.Choose(req, nodes, promises); err != nil {
			return err
		}
		promises = append(promises, placement.PromiseTo(m.Name, m.Node, req.Device, req.DeviceClass, req.SizeBytes))
		req.Apart, req.Node, req.Device = append(req.Apart, m.Node), "", ""
	}
	for i, m := range members {
		r.keep(promises[known+i], m.UUID)
	}
	return nil
}

// keep space. The caller holds the lock.
func (r *reservations) keep(p placement.Promise, uuid string) {
	if r.made == nil {
		r.made = map[string]reservation{}
	}
	r.made[p.Volume] = reservation{Promise: p, uuid: uuid, until: r.clock.Now().Add(reservationTime)}
}

// grow keeps the space for a volume that shall have this size. It fails, with what there is room for, when its
// pool has less; and for now while nobody knows what its pool has, since what is written then could never be taken
// back.
func (r *reservations) grow(ctx context.Context, vol *replicatedVolume, size int64) error {
	for i, rep := range vol.replicas {
		if rep == nil {
			return failf(waiting, "volume %s stays at %s: NvmfReplica %s does not exist", vol.Name, &vol.Spec.Size, vol.Spec.Members[i].Name)
		}
		if err := r.growReplica(ctx, rep, size); err != nil {
			return err
		}
	}
	return nil
}

func (r *reservations) growReplica(ctx context.Context, rep *v1alpha1.NvmfReplica, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes, promises, err := r.gather(ctx, v1alpha1.VolumeMember{Name: rep.Name})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(nodes, func(n v1alpha1.NvmfNode) bool { return n.Name == rep.Spec.Node })
	if i < 0 {
		return roomUnknown(rep, size, "has no NvmfNode")
	}
	room, known := placement.Room(&nodes[i], rep.Status.Device, rep.Name, promises)
	if !known {
		return roomUnknown(rep, size, lastWordOfPool(nodes[i].Status.Pools, rep.Status.Device))
	}
	if room = room / sizeStep * sizeStep; room < size {
		return failf(outOfRange, "size: cannot expand volume %s from %s to %s: its drive, %s on node %s, has space for at most %s",
			rep.Spec.Volume.Name, &rep.Spec.Size, quantity(size), rep.Status.Device, rep.Spec.Node, quantity(max(room, rep.Spec.Size.Value())))
	}
	r.keep(placement.PromiseTo(rep.Name, rep.Spec.Node, rep.Status.Device, rep.Spec.DeviceClass, size), rep.Spec.UUID)
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
	if made := r.made[replica]; made.uuid == uuid && made.SizeBytes <= v1alpha1.WithHeader(size) {
		delete(r.made, replica)
	}
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
	nodes, promises, err := r.gather(ctx)
	if err != nil {
		return nil, err
	}
	candidates, _ := placement.Candidates(req, nodes, promises)
	return candidates, nil
}

// gather the nodes and what was promised of them; of what is kept, not what is for these replicas. The nodes are the
// cache's own: not to be changed. The caller holds the lock, so that what was released is what the cache showed before
// it was read.
func (r *reservations) gather(ctx context.Context, but ...v1alpha1.VolumeMember) ([]v1alpha1.NvmfNode, []placement.Promise, error) {
	var nodes v1alpha1.NvmfNodeList
	if err := r.cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list NvmfNodes: %w", err)
	}
	var reps v1alpha1.NvmfReplicaList
	if err := r.cached.List(ctx, &reps, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list NvmfReplicas: %w", err)
	}
	promises := make([]placement.Promise, 0, len(reps.Items)+len(r.made))
	// What is kept comes first, and so counts, where the cache shows a volume before it grew.
	now := r.clock.Now()
	for name, made := range r.made {
		if now.After(made.until) {
			delete(r.made, name)
		} else if !slices.ContainsFunc(but, func(m v1alpha1.VolumeMember) bool { return m.Name == name }) {
			promises = append(promises, made.Promise)
		}
	}
	for i := range reps.Items {
		rep := &reps.Items[i]
		promises = append(promises, placement.PromiseTo(rep.Name, rep.Spec.Node, rep.Status.Device, rep.Spec.DeviceClass, rep.Spec.Size.Value()))
	}
	var snaps v1alpha1.NvmfSnapshotList
	if err := r.cached.List(ctx, &snaps, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list NvmfSnapshots: %w", err)
	}
	return nodes.Items, append(promises, snapshotPromises(snaps.Items, reps.Items)...), nil
}

// snapshotPromises are what snapshots hold; one that is still being made, what its replica has written so far.
func snapshotPromises(snaps []v1alpha1.NvmfSnapshot, reps []v1alpha1.NvmfReplica) []placement.Promise {
	if len(snaps) == 0 {
		return nil
	}
	byName := make(map[string]*v1alpha1.NvmfReplica, len(reps))
	for i := range reps {
		byName[reps[i].Name] = &reps[i]
	}
	promises := make([]placement.Promise, 0, len(snaps))
	for i := range snaps {
		s := &snaps[i]
		p := placement.Promise{Volume: placement.SnapshotPrefix + s.Name, Node: s.Spec.Node, Device: s.Status.Device}
		rep := byName[s.Spec.Replica]
		if p.Device == "" && rep != nil {
			p.Device = rep.Status.Device
		}
		switch {
		case s.Status.Allocated != nil:
			p.SizeBytes = s.Status.Allocated.Value()
		case rep != nil && rep.Status.Allocated != nil:
			p.SizeBytes = rep.Status.Allocated.Value()
		}
		promises = append(promises, p)
	}
	return promises
}
