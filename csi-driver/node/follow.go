// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

const (
	// followInterval is how often each NvmfReplica of a staged volume is read, at least, while all its paths are live,
	// so that a portal that is added gets a path, and new keys are used. With a path that is not live, it is read each
	// time paths are looked at: the replica's node may have another address.
	followInterval = 5 * time.Minute
	// followPace is how often this node reads a replica, where it has so many that followInterval would be more often,
	// up to longestFollow for each. The API server answers as much as all nodes ask: with 200,000 replicas on 5,000
	// nodes, that is 380 reads a second, instead of 760. The longest time is short enough that rotations of keys, of
	// which each waits for such a read, keep pace with the age of keys (mostRotations of the CSI controller).
	followPace    = 15 * time.Second
	longestFollow = 10 * time.Minute
)

// followed remembers when each replica of the staged volumes is to be read again, by its name.
type followed struct {
	mu   sync.Mutex
	next map[string]time.Time
}

// due tells whether a replica is to be read; one that was not read yet is.
func (f *followed) due(replica string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !now.Before(f.next[replica])
}

// read notes that a replica was read. It is due again within the interval, at a moment of its own in the last quarter:
// what was read together, as after an outage of the API server, comes apart.
func (f *followed) read(replica string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = map[string]time.Time{}
	}
	f.next[replica] = now // counts among those that there are
	interval := min(max(followInterval, time.Duration(len(f.next))*followPace), longestFollow)
	f.next[replica] = now.Add(wait.Jitter(interval*3/4, 1.0/3))
}

// keep what is remembered of these replicas only.
func (f *followed) keep(replicas []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.next, func(replica string, _ time.Time) bool { return !slices.Contains(replicas, replica) })
}

// followPortals takes over, into the records of staged volumes, the portals that their NvmfReplicas list now. It ends
// when the API server does not answer: the portals are those that were known last.
func (s *Service) followPortals(ctx context.Context) []error {
	volumes, err := s.records().volumes()
	if err != nil {
		return []error{err}
	}
	var replicas []string
	var errs []error
	for _, volume := range volumes {
		was, err := s.records().get(volume)
		if err != nil {
			if err = ignoreMissing(err); err != nil {
				errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
			}
			continue
		}
		for _, r := range was.Replicas {
			replicas = append(replicas, r.Name)
			if r.NQN == "" {
				continue // it was not connected to yet
			}
			err := s.follow(ctx, volume, was, r)
			switch {
			case apierrors.IsNotFound(err): // nobody says where it is, so it stays where it was
			case errors.Is(err, errUnread):
				logr.FromContextOrDiscard(ctx).Error(err, "Cannot read the portals of staged volumes; keeping the known ones", "volume", volume)
				return errs
			case err != nil && !busy(err):
				errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
			}
		}
	}
	s.followed.keep(replicas)
	return errs
}

// follow is followPortals for one replica of a volume. One that is not attached to this node any more is left to
// GiveUpRevoked.
func (s *Service) follow(ctx context.Context, volume string, was attached, r replica) error {
	controllers, err := s.Initiator.Controllers(r.NQN)
	if err != nil {
		return err
	}
	ailing := func(c fabrics.Controller) bool { return !c.Live() }
	healthy := !slices.ContainsFunc(controllers, ailing) && len(fabrics.Unreached(r.Portals, fabrics.ControllersOf(was.host(r), controllers))) == 0
	if healthy && r.Next == "" && r.Former == "" && !s.followed.due(r.Name, s.now()) {
		return nil
	}
	is, err := s.readReplica(ctx, r.Name)
	if err != nil {
		return err
	}
	now := was.turned(r, is)
	switch listed := is.Listed(was.host(r)) != nil; {
	case listed && served(is, was.host(r)) == nil:
		s.followed.read(r.Name, s.now())
		now.Portals, now.Sealed = is.Paths(), r.sealedFor(is, was.host(r)).Sealed
	case listed || now.Next == "":
		return nil
	}
	same := is.Spec.Volume.UUID == was.UUID && nguidOf(is.Spec.UUID) == r.NGUID && is.Spec.SubsystemNQN == r.NQN
	if !same || slices.Equal(now.Portals, r.Portals) && now.Sealed == r.Sealed && now.Next == r.Next && now.Former == r.Former {
		return nil
	}
	_, err = call(ctx, s, "following the portals", volume, func(ctx context.Context) (*struct{}, error) {
		// It may have been unstaged, or staged for another attachment, meanwhile.
		err := s.editRecord(volume, was.Attachment, func(recorded *attached) bool {
			i := slices.IndexFunc(recorded.Replicas, func(x replica) bool { return x.id() == r.id() && x.Identity == r.Identity })
			if i < 0 {
				return false
			}
			logr.FromContextOrDiscard(ctx).Info("The volume's portals or keys have changed", "volume", volume, "replica", r.Name, "from", recorded.Replicas[i].Portals, "to", now.Portals, "next", now.Next)
			recorded.Replicas[i].Portals, recorded.Replicas[i].Sealed = now.Portals, now.Sealed
			recorded.Replicas[i].Next, recorded.Replicas[i].Former, recorded.Replicas[i].Beside = now.Next, now.Former, now.Beside
			return true
		})
		return nil, ignoreMissing(err)
	})
	return err
}

// dropFormerPaths takes away the paths of staged volumes that lead to none of their portals any more, once another path
// to the same replica is live.
func (s *Service) dropFormerPaths(ctx context.Context) []error {
	volumes, err := s.records().volumes()
	errs := []error{err}
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil {
			continue // lostPaths has said so
		}
		former, err := s.former(at)
		if err == nil && len(former) > 0 {
			_, err = call(ctx, s, "removing former paths", volume, func(ctx context.Context) (*struct{}, error) {
				return nil, s.dropFormer(ctx, volume)
			})
		}
		if err != nil && !busy(err) {
			errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
		}
	}
	return errs
}

// former paths of a volume's replicas.
func (s *Service) former(at attached) ([]fabrics.Controller, error) {
	var all []fabrics.Controller
	for _, r := range at.connected() {
		former, err := s.Initiator.Former(at.connection(r), r.id())
		if err != nil {
			return nil, err
		}
		strays, err := s.strays(at, r)
		if err != nil {
			return nil, err
		}
		all = append(append(all, former...), strays...)
	}
	return all, nil
}

func (s *Service) dropFormer(ctx context.Context, volume string) error {
	at, err := s.records().get(volume)
	if err != nil {
		return ignoreMissing(err)
	}
	former, err := s.former(at)
	if err != nil || len(former) == 0 {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Removing paths to former portals of the volume", "volume", volume, "paths", former)
	ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
	defer cancel()
	for _, r := range at.connected() {
		err = errors.Join(err, s.Initiator.GiveUp(ctx, r.NQN, func(c fabrics.Controller) bool {
			return slices.ContainsFunc(former, func(f fabrics.Controller) bool { return f.Name == c.Name && f.HostNQN == c.HostNQN })
		}))
	}
	return err
}
