// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// legTimeout of one try to connect to a replica.
const legTimeout = 30 * time.Second

// givingUpInterval after which it is looked again for paths that another call makes to a replica that goes.
const givingUpInterval = 100 * time.Millisecond

// replicaNames are the replicas of a mirrored volume that this node knows, by their names, with their UUIDs. A member
// that is added later is learnt when it is connected to.
type replicaNames struct {
	mu    sync.Mutex
	uuids map[string]string
}

func newReplicaNames(at attached) *replicaNames {
	n := &replicaNames{uuids: map[string]string{}}
	for _, r := range at.Replicas {
		n.learn(r)
	}
	return n
}

func (n *replicaNames) learn(r replica) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.uuids[r.Name] = uuidOf(r.NGUID)
}

func (n *replicaNames) all() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.uuids)
}

// of a slice, by its device mapper UUID: the replica that it lies on. It is false for one of another's.
func (n *replicaNames) of(slice string) (string, bool) {
	owner, _, ours := mapper.Parse(slice)
	for name, id := range n.all() {
		if ours && id == owner.Replica {
			return name, true
		}
	}
	return "", false
}

// uuid of a replica. It fails with errMismatch for one that was never connected to.
func (n *replicaNames) uuid(name string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, ok := n.uuids[name]
	if !ok {
		return "", fmt.Errorf("%w: %s was never a replica of the volume on this node", errMismatch, name)
	}
	return id, nil
}

// uuidOf an NGUID.
func uuidOf(nguid string) string {
	id, err := uuid.Parse(nguid)
	if err != nil {
		return nguid
	}
	return id.String()
}

// mirrorSlices finds the replicas' namespaces, and the slices on them that are the mirror's members.
type mirrorSlices struct {
	*Service
	names *replicaNames
	// changing is held while a replica's slices are made or dropped.
	changing locks
}

// locks by names.
type locks struct {
	mu  sync.Mutex
	all map[string]*sync.Mutex
}

// lock a name. It is unlocked by what is returned.
func (l *locks) lock(name string) (unlock func()) {
	l.mu.Lock()
	if l.all == nil {
		l.all = map[string]*sync.Mutex{}
	}
	if l.all[name] == nil {
		l.all[name] = &sync.Mutex{}
	}
	is := l.all[name]
	l.mu.Unlock()
	is.Lock()
	return is.Unlock
}

// controllers of the replicas, whatever their identity.
func (s *mirrorSlices) controllers() (map[string][]fabrics.Controller, error) {
	nqns, err := s.Initiator.Subsystems()
	if err != nil {
		return nil, err
	}
	all := map[string][]fabrics.Controller{}
	for name := range s.names.all() {
		for _, nqn := range nqns[name] {
			controllers, err := s.Initiator.Controllers(nqn)
			if err != nil {
				return nil, err
			}
			all[name] = append(all[name], controllers...)
		}
	}
	return all, nil
}

// namespace of a replica, through controllers of one identity, which it gives: they are of one subsystem.
func (s *mirrorSlices) namespace(name string) (fabrics.Namespace, string, error) {
	id, err := s.names.uuid(name)
	if err != nil {
		return fabrics.Namespace{}, "", err
	}
	all, err := s.controllers()
	if err != nil {
		return fabrics.Namespace{}, "", err
	}
	identity := ""
	for _, c := range all[name] {
		is := v1alpha1.SessionOfSubsystem(c.NQN)
		if identity != "" && is != identity {
			return fabrics.Namespace{}, "", fmt.Errorf("%w: %s is connected as %s and as %s", fabrics.ErrPast, name, identity, is)
		}
		identity = is
	}
	if identity == "" {
		return fabrics.Namespace{}, "", fmt.Errorf("%s is not connected: %w", name, fabrics.ErrNotFound)
	}
	ns, err := s.Initiator.FindNamespace(fabrics.ID{NQN: all[name][0].NQN, NGUID: nguidOf(id)})
	return ns, identity, err
}

// slice of a replica on its present namespace. It is made if it is not there. Others, which have lost their namespace,
// are discarded: all their I/O fails.
func (s *mirrorSlices) slice(ctx context.Context, name string) (mapper.Device, error) {
	defer s.changing.lock(name)()
	ns, identity, err := s.namespace(name)
	if err != nil {
		return mapper.Device{}, err
	}
	id, _ := s.names.uuid(name)
	lower := base{ns: ns}.lower()
	all, err := s.Mapper.Slices(id)
	if err != nil {
		return mapper.Device{}, err
	}
	size := ns.SizeBytes - md.RecordBytes
	for _, d := range all {
		switch {
		case d.Lower == lower && d.Attachment == identity:
			return s.Mapper.Grow(ctx, d, md.RecordBytes, size)
		case d.Lost():
			if err := s.Mapper.Discard(ctx, d); err != nil {
				return mapper.Device{}, err
			}
		default:
			return mapper.Device{}, fmt.Errorf("%w: %s is made of %s for %s", fabrics.ErrPast, d.Name, d.Lower.Name, d.Attachment)
		}
	}
	opened, err := s.Initiator.Open(ns)
	if err != nil {
		return mapper.Device{}, err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	return s.Mapper.Build(ctx, mapper.Spec{
		Owner: mapper.Owner{Replica: id}, Attachment: identity, Lower: lower, OffsetBytes: md.RecordBytes, SizeBytes: size,
	})
}

// member is a slice as what a mirror is made of.
func member(d mapper.Device) md.Slice { return md.Slice{Name: d.Name, Number: d.Number} }

// drop the slices of a replica: at once those that nobody has, else they fail from now on, and go with their user.
func (s *mirrorSlices) drop(ctx context.Context, name string) error {
	defer s.changing.lock(name)()
	id, err := s.names.uuid(name)
	if err != nil {
		return err
	}
	all, err := s.Mapper.Slices(id)
	for _, d := range all {
		if d.Lost() {
			err = errors.Join(err, s.Mapper.Discard(ctx, d))
			continue
		}
		err = errors.Join(err, s.Mapper.Remove(ctx, d))
	}
	return err
}

// mirrorLegs connects to the replicas of a mirrored volume.
type mirrorLegs struct {
	*mirrorSlices
	volume string
	at     attached
	// connecting is held while a replica is connected to, its paths are mended or its keys rotated: the identity that
	// is recorded is the one that is used.
	connecting sync.Mutex
}

// All implements keeper.Legs. Without a namespace a leg does not answer.
func (l *mirrorLegs) All() (map[string]keeper.Leg, error) {
	controllers, err := l.controllers()
	if err != nil {
		return nil, err
	}
	legs := map[string]keeper.Leg{}
	for name, all := range controllers {
		if len(all) == 0 {
			continue
		}
		leg := keeper.Leg{State: keeper.LegHanging}
		for _, c := range all {
			identity := v1alpha1.SessionOfSubsystem(c.NQN)
			if c.Live() {
				leg = keeper.Leg{State: keeper.LegLive, Identity: identity}
				break
			}
			leg.Identity = identity
		}
		legs[name] = leg
	}
	return legs, nil
}

// Connect implements keeper.Legs.
func (l *mirrorLegs) Connect(ctx context.Context, name, identity string) error {
	l.connecting.Lock()
	defer l.connecting.Unlock()
	ctx, cancel := context.WithTimeout(ctx, legTimeout)
	defer cancel()
	r, err := l.readReplica(ctx, name)
	if err != nil {
		return err
	}
	if r.Spec.Volume.UUID != l.at.UUID {
		return fmt.Errorf("%w: NvmfReplica %s is of volume %s", errMismatch, name, r.Spec.Volume.UUID)
	}
	m := memberOf(r, l.at.Attachment)
	if m.leg() != identity || len(m.Portals) == 0 {
		return fmt.Errorf("%w: NvmfReplica %s does not admit %s", errNotServed, name, identity)
	}
	c, err := l.connection(l.at, m)
	if err != nil {
		return err
	}
	if err := l.alone(name, c); err != nil {
		return err
	}
	l.names.learn(m)
	if err := l.record(m); err != nil {
		return err
	}
	if err := l.Initiator.Connect(ctx, c); err != nil {
		return err
	}
	if _, err := l.Initiator.WaitNamespace(ctx, m.id(), l.at.served(r.ServedSize())); err != nil {
		return err
	}
	_, err = l.slice(ctx, name)
	return err
}

// alone fails with fabrics.ErrPast when there is a controller of a replica that is not of this connection.
func (l *mirrorLegs) alone(name string, of fabrics.Connection) error {
	all, err := l.controllers()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all[name], func(c fabrics.Controller) bool { return c.NQN != of.NQN || c.HostNQN != of.HostNQN })
	if i >= 0 {
		return fmt.Errorf("%w: %s is %s", fabrics.ErrPast, name, all[name][i])
	}
	return nil
}

// record by what a replica is connected to, so that paths that it lacks are connected under the same identity.
func (l *mirrorLegs) record(m replica) error {
	return l.editRecord(l.volume, l.at.Attachment, func(at *attached) bool {
		i := slices.IndexFunc(at.Replicas, func(r replica) bool { return r.Name == m.Name })
		if i < 0 {
			at.Replicas = append(at.Replicas, m)
		} else {
			at.Replicas[i] = m
		}
		return true
	})
}

// Delete implements keeper.Legs. What the mirror has of the replica's slice fails from then on. A path that was being
// made meanwhile goes, too: the leg would answer, and its slice would not.
func (l *mirrorLegs) Delete(ctx context.Context, name string) error {
	err := wait.PollUntilContextCancel(ctx, givingUpInterval, true, func(ctx context.Context) (bool, error) {
		if l.connecting.TryLock() {
			return true, nil
		}
		return false, l.takeDown(ctx, name)
	})
	if err != nil {
		return err
	}
	defer l.connecting.Unlock()
	if err := l.takeDown(ctx, name); err != nil {
		return err
	}
	nqns, err := l.Initiator.Subsystems()
	if err != nil {
		return err
	}
	for _, nqn := range nqns[name] {
		if err := l.Initiator.Settled(ctx, nqn); err != nil {
			return err
		}
	}
	return l.takeDown(ctx, name)
}

// takeDown a replica's controllers, and then its slices.
func (l *mirrorLegs) takeDown(ctx context.Context, name string) error {
	nqns, err := l.Initiator.Subsystems()
	if err != nil {
		return err
	}
	for _, nqn := range nqns[name] {
		if err := l.Initiator.GiveUp(ctx, nqn, func(fabrics.Controller) bool { return true }); err != nil {
			return err
		}
	}
	return l.drop(ctx, name)
}

// tellOfControllers tells the keepers of mirrors whose controllers change state, until the context ends.
func (s *Service) tellOfControllers(ctx context.Context) {
	var last map[string]fabrics.ControllerState
	ticker := time.NewTicker(legsInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		kept := s.mirrors.list()
		if len(kept) == 0 {
			last = nil
			continue
		}
		now, err := s.Initiator.States()
		if err != nil {
			continue // what each keeper looks for says so
		}
		touched := changedReplicas(last, now)
		last = now
		for _, m := range kept {
			if slices.ContainsFunc(touched, func(name string) bool { _, err := m.replicas.uuid(name); return err == nil }) {
				m.notify(ctx)
			}
		}
	}
}

// changedReplicas are those with a controller that came, went, or has another state.
func changedReplicas(was, is map[string]fabrics.ControllerState) []string {
	var touched []string
	add := func(c fabrics.ControllerState) {
		if name, ours := v1alpha1.ReplicaOfSubsystem(c.NQN); ours {
			touched = append(touched, name)
		}
	}
	for name, c := range is {
		if was[name] != c {
			add(c)
		}
	}
	for name, c := range was {
		if _, there := is[name]; !there {
			add(c)
		}
	}
	slices.SortFunc(touched, strings.Compare)
	return slices.Compact(touched)
}
