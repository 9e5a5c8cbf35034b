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

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// followInterval is how often the object of a staged volume is read while all its paths are live, so that a portal that
// is added gets a path. With a path that is not live, it is read each time paths are looked at: the volume's node may
// have another address.
const followInterval = 5 * time.Minute

// followed remembers when the object of each staged volume was read last.
type followed struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// due tells whether a volume was not read within followInterval.
func (f *followed) due(volume string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.last[volume]
	return !ok || now.Sub(last) >= followInterval
}

func (f *followed) read(volume string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		f.last = map[string]time.Time{}
	}
	f.last[volume] = now
}

// keep what is remembered of these volumes only.
func (f *followed) keep(volumes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.last, func(volume string, _ time.Time) bool { return !slices.Contains(volumes, volume) })
}

// followPortals takes over, into the records of staged volumes, the portals that the volumes' objects list now. It ends
// when the API server does not answer: the portals are those that were known last.
func (s *Service) followPortals(ctx context.Context) []error {
	volumes, err := s.records().volumes()
	if err != nil {
		return []error{err}
	}
	s.followed.keep(volumes)
	var errs []error
	for _, volume := range volumes {
		err := s.follow(ctx, volume)
		switch {
		case apierrors.IsNotFound(err): // nobody says where it is, so it stays where it was
		case errors.Is(err, errUnread):
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot read the portals of staged volumes; keeping the known ones", "volume", volume)
			return errs
		case err != nil && !busy(err):
			errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
		}
	}
	return errs
}

// follow is followPortals for one volume. One that is not attached to this node any more is left to GiveUpRevoked.
func (s *Service) follow(ctx context.Context, volume string) error {
	was, err := s.records().get(volume)
	if err != nil {
		return ignoreMissing(err)
	}
	controllers, err := s.Initiator.Controllers(was.NQN)
	if err != nil {
		return err
	}
	ailing := func(c fabrics.Controller) bool { return !c.Live() }
	healthy := !slices.ContainsFunc(controllers, ailing) && len(fabrics.Unreached(was.Portals, controllers)) == 0
	if healthy && !s.followed.due(volume, s.now()) {
		return nil
	}
	is, err := s.attached(ctx, volume, was.Attachment)
	switch {
	case errors.Is(err, errNotAttached) || errors.Is(err, errNotServed):
		return nil
	case err != nil:
		return err
	}
	s.followed.read(volume, s.now())
	if is.NGUID != was.NGUID || is.NQN != was.NQN || slices.Equal(is.Portals, was.Portals) {
		return nil
	}
	_, err = call(ctx, s, "following the portals", volume, func(ctx context.Context) (*struct{}, error) {
		now, err := s.records().get(volume) // it may have been unstaged, or staged for another attachment, meanwhile
		if err != nil || now.Attachment != is.Attachment {
			return nil, ignoreMissing(err)
		}
		logr.FromContextOrDiscard(ctx).Info("The volume's portals have changed", "volume", volume, "from", now.Portals, "to", is.Portals)
		now.Portals = is.Portals
		return nil, s.records().put(volume, now)
	})
	return err
}

// dropFormerPaths takes away the paths of staged volumes that lead to none of their portals any more, once another path
// is live.
func (s *Service) dropFormerPaths(ctx context.Context) []error {
	volumes, err := s.records().volumes()
	errs := []error{err}
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil {
			continue // lostPaths has said so
		}
		former, err := s.Initiator.Former(at.connection())
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

func (s *Service) dropFormer(ctx context.Context, volume string) error {
	at, err := s.records().get(volume)
	if err != nil {
		return ignoreMissing(err)
	}
	former, err := s.Initiator.Former(at.connection())
	if err != nil || len(former) == 0 {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Removing paths to former portals of the volume", "volume", volume, "paths", former)
	ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
	defer cancel()
	return s.Initiator.GiveUp(ctx, at.NQN, func(c fabrics.Controller) bool {
		return slices.ContainsFunc(former, func(f fabrics.Controller) bool { return f.Name == c.Name })
	})
}
