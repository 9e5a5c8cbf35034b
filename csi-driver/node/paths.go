// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

const (
	// mendInterval is how often lost paths are looked for. The kernel reconnects by itself what was connected once;
	// this is for a portal that did not answer when its volume was staged, for a path that the kernel gave up, and for
	// a device (RDMA) that this node got later.
	mendInterval = 30 * time.Second
	// maxProbes of portals at once.
	maxProbes = 8
)

// Keep mends paths, and gives up the connections of volumes that are not attached any more, again and again until the
// context ends.
func (s *Service) Keep(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.MendPaths(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot restore the paths")
		}
		if err := s.GiveUpRevoked(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot remove connections of volumes that are no longer attached")
		}
		if err := s.NameVolumes(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).V(1).Info("Cannot read the claims of staged volumes; their metrics lack them", "reason", err.Error())
		}
	}, mendInterval)
}

// MendPaths looks once at all staged volumes: it follows the portals that their NvmfReplicas list, connects those that
// a volume has no path through, and takes away paths to portals that are not listed any more, once another is live. A
// volume whose last path is gone is left to be staged again, and one with a call under way to the next time. A portal
// that does not answer, or whose transport this node lacks, is tried once for all volumes, without holding up any; it
// is no error, for the volume's condition tells of it.
func (s *Service) MendPaths(ctx context.Context) error {
	if held := s.Initiator.HeldUp(); held != nil {
		return nil //nolint:nilerr // a connection more would wait behind it; the Node's condition tells of it
	}
	errs := s.followPortals(ctx)
	lost, more := s.lostPaths(ctx)
	errs = append(errs, more...)
	silent := s.silentPortals(ctx, lost)
	for volume, portals := range lost {
		if len(without(portals, silent)) == 0 {
			continue
		}
		unreachable, err := call(ctx, s, "restoring the paths", volume, func(ctx context.Context) (*[]v1alpha1.Portal, error) {
			return s.mend(ctx, volume, silent)
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
	errs = append(errs, s.rotateKeys(ctx)...)
	return errors.Join(append(errs, s.dropFormerPaths(ctx)...)...)
}

// mend connects those of a volume's portals that have no path and are not silent. It gives those at which, after all,
// nothing answered, or that this node has no device for. What the volume was staged with is read again, now that no
// other call for it is under way: it may have been staged for another attachment meanwhile.
func (s *Service) mend(ctx context.Context, volume string, silent map[v1alpha1.Portal]bool) (unreachable *[]v1alpha1.Portal, err error) {
	if m := s.mirrors.of(volume); m != nil {
		if !m.legs.connecting.TryLock() {
			return nil, nil // a replica is being connected to, or goes: the next time
		}
		defer m.legs.connecting.Unlock()
	}
	at, err := s.records().get(volume)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was unstaged meanwhile
	}
	if err != nil {
		return nil, err
	}
	unreachable = &[]v1alpha1.Portal{}
	var errs []error
	for _, r := range at.connected() {
		c, err := s.connection(at, r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c.Portals, err = s.Initiator.Lost(c); err != nil {
			errs = append(errs, err)
			continue
		}
		if c.Portals = without(c.Portals, silent); len(c.Portals) == 0 {
			continue
		}
		err = s.Initiator.Connect(ctx, c)
		if errors.Is(err, fabrics.ErrUnreachable) || errors.Is(err, fabrics.ErrUnsupported) {
			*unreachable = append(*unreachable, c.Portals...)
		} else if err != nil {
			errs = append(errs, err)
		}
	}
	return unreachable, errors.Join(errs...)
}

// lostPaths gives, for each volume that lacks paths, the portals to which there is none.
func (s *Service) lostPaths(ctx context.Context) (map[string][]v1alpha1.Portal, []error) {
	lost := map[string][]v1alpha1.Portal{}
	volumes, err := s.records().volumes()
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
		portals, err := s.lost(at)
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(portals) > 0:
			lost[volume] = portals
		default:
			errs = append(errs, s.forgetStale(ctx, volume, at))
		}
	}
	return lost, errs
}

// lost portals of a volume's replicas.
func (s *Service) lost(at attached) ([]v1alpha1.Portal, error) {
	var all []v1alpha1.Portal
	for _, r := range at.connected() {
		portals, err := s.Initiator.Lost(at.connection(r))
		if err != nil {
			return nil, err
		}
		all = append(all, portals...)
	}
	return all, nil
}

// connected tells whether this machine has a controller of one of a volume's replicas.
func (s *Service) connected(volume string, at attached) (bool, error) {
	if s.mirrors.of(volume) != nil {
		return true, nil
	}
	for _, r := range at.connected() {
		if controllers, err := s.Initiator.Controllers(r.NQN); err != nil || len(controllers) > 0 {
			return true, err
		}
	}
	return false, nil
}

// forgetStale removes the record of a volume of which nothing is connected: this machine was restarted, and the volume
// went elsewhere. A device that was built for it has lost its namespace, and goes with its last user.
func (s *Service) forgetStale(ctx context.Context, volume string, at attached) error {
	if connected, err := s.connected(volume, at); err != nil || connected {
		return err
	}
	_, err := call(ctx, s, "forgetting", volume, func(ctx context.Context) (*struct{}, error) {
		if connected, err := s.connected(volume, at); err != nil || connected {
			return nil, err
		}
		if err := s.takeDown(ctx, at.UUID); err != nil {
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
func (s *Service) silentPortals(ctx context.Context, of map[string][]v1alpha1.Portal) map[v1alpha1.Portal]bool {
	answers := map[v1alpha1.Portal]*error{}
	var group errgroup.Group
	group.SetLimit(maxProbes)
	for _, portals := range of {
		for _, p := range portals {
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
