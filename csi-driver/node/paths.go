// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

const (
	// mendInterval is how often lost paths are looked for. The kernel reconnects by itself what was connected once;
	// this is for a portal that did not answer when its volume was staged, for a path that the kernel gave up, and for
	// a device (RDMA) that this node got later.
	mendInterval = 30 * time.Second
	// maxProbes of portals at once.
	maxProbes = 8
)

func connection(at publishcontext.Context) fabrics.Connection {
	return fabrics.Connection{NQN: at.NQN, Portals: at.Portals, Connection: at.Connection}
}

// Keep mends paths, and forgets what is of no use any more, again and again until the context ends.
func (s *Service) Keep(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.MendPaths(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Paths could not be mended")
		}
		if err := s.ForgetPermissions(ctx, time.Now().Add(-permissionKept)); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Permissions to format that were used up cannot be forgotten; they are in nobody's way")
		}
	}, mendInterval)
}

// ForgetPermissions to format that were used up, of volumes that have had no record since a time: their attachments
// have ended.
func (s *Service) ForgetPermissions(ctx context.Context, since time.Time) error {
	volumes, err := s.records().volumes(usedSuffix)
	errs := []error{err}
	for _, volume := range volumes {
		is, err := s.records().forgettable(volume, since)
		if is {
			_, err = call(ctx, &s.calls, "forgetting", volume, func(context.Context) (*struct{}, error) {
				is, err := s.records().forgettable(volume, since) // it may have been staged meanwhile
				if is {
					err = removeFile(s.records().path(volume, usedSuffix))
				}
				return nil, err
			})
		}
		if !busy(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// MendPaths looks once at all staged volumes, and connects the portals that a volume has no path through. A volume
// whose last path is gone is left to be staged anew, and one with a call under way to the next time. A portal that does
// not answer, or whose transport this node lacks, is tried once for all volumes, without holding up any; it is no
// error, for the volume's condition tells of it.
func (s *Service) MendPaths(ctx context.Context) error {
	if obstacle := s.Obstacle.Check(); obstacle != nil {
		return nil //nolint:nilerr // a connection more would wait behind it; the Node's condition tells of it
	}
	lost, errs := s.lostPaths(ctx)
	silent := s.silentPortals(ctx, lost)
	for volume, c := range lost {
		c.Portals = without(c.Portals, silent)
		if len(c.Portals) == 0 {
			continue
		}
		unreachable, err := call(ctx, &s.calls, "mending the paths", volume, func(ctx context.Context) (*[]v1alpha1.Portal, error) {
			return s.mend(ctx, c)
		})
		if unreachable != nil {
			for _, p := range *unreachable {
				silent[p] = true
			}
		}
		if err != nil && !busy(err) {
			errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

// mend connects those of the portals that have no path still. It gives those at which, after all, nothing answered, or
// that this node has no device for.
func (s *Service) mend(ctx context.Context, c fabrics.Connection) (unreachable *[]v1alpha1.Portal, err error) {
	if c.Portals, err = s.Initiator.Lost(c); err != nil || len(c.Portals) == 0 {
		return nil, err // it was unstaged meanwhile
	}
	err = s.Initiator.Connect(ctx, c)
	if errors.Is(err, fabrics.ErrUnreachable) || errors.Is(err, fabrics.ErrUnsupported) {
		return &c.Portals, nil
	}
	return nil, err
}

// lostPaths gives, for each volume that lacks paths, its connection with the portals to which there is none.
func (s *Service) lostPaths(ctx context.Context) (map[string]fabrics.Connection, []error) {
	lost := map[string]fabrics.Connection{}
	volumes, err := s.records().volumes(recordSuffix)
	if err != nil {
		return nil, []error{err}
	}
	var errs []error
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := connection(at)
		if c.Portals, err = s.Initiator.Lost(c); err != nil {
			errs = append(errs, err)
		} else if len(c.Portals) > 0 {
			lost[volume] = c
		} else {
			errs = append(errs, s.forgetStale(ctx, volume, at.NQN))
		}
	}
	return lost, errs
}

// forgetStale removes the record of a volume of which nothing is connected: this machine was started anew, and the
// volume went elsewhere.
func (s *Service) forgetStale(ctx context.Context, volume, nqn string) error {
	if controllers, err := s.Initiator.Controllers(nqn); err != nil || len(controllers) > 0 {
		return err
	}
	_, err := call(ctx, &s.calls, "forgetting", volume, func(context.Context) (*struct{}, error) {
		controllers, err := s.Initiator.Controllers(nqn)
		if err != nil || len(controllers) > 0 {
			return nil, err
		}
		return nil, s.records().remove(volume)
	})
	if busy(err) {
		return nil
	}
	return err
}

// silentPortals asks each portal once.
func (s *Service) silentPortals(ctx context.Context, of map[string]fabrics.Connection) map[v1alpha1.Portal]bool {
	answers := map[v1alpha1.Portal]*error{}
	var group errgroup.Group
	group.SetLimit(maxProbes)
	for _, c := range of {
		for _, p := range c.Portals {
			if answers[p] != nil {
				continue
			}
			answer := new(error)
			answers[p] = answer
			group.Go(func() error {
				*answer = s.Initiator.Answers(ctx, p)
				return nil
			})
		}
	}
	_ = group.Wait() // none fails
	silent := map[v1alpha1.Portal]bool{}
	for p, err := range answers {
		silent[p] = *err != nil
	}
	return silent
}

func without(portals []v1alpha1.Portal, silent map[v1alpha1.Portal]bool) []v1alpha1.Portal {
	var rest []v1alpha1.Portal
	for _, p := range portals {
		if !silent[p] {
			rest = append(rest, p)
		}
	}
	return rest
}
