// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// giveUpTimeout bounds one volume's part of GiveUpRevoked: connections that the kernel does not take away in that time
// are waited for the next time.
const giveUpTimeout = 2 * readTimeout

// An attachment that was revoked (a forced detach, a node taken for lost) never gets a path again, and what was not
// written cannot be written any more: I/O waits for nothing, and so does an unmount. The connections are given up then,
// so that both fail at once, as after a power failure.
//
// A target that is merely away must not cost its volume the connections, or data that could still be written is lost.
// So they are given up only when no path is live, and the API server itself says that this host is not listed. Where it
// does not answer, or has no such object (which is also what it says when somebody removed the CRD), nothing is known.

// GiveUpRevoked gives up, once, the connections of all staged volumes whose attachment was revoked. It waits for no
// call that is under way: that may be an unmount that waits for those connections. Nor does one volume hold up the
// others for longer than 10 s.
func (s *Service) GiveUpRevoked(ctx context.Context) error {
	volumes, err := s.records().volumes()
	nqns, listErr := s.Initiator.Subsystems()
	errs := []error{err, listErr}
	for _, volume := range volumes {
		ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
		err := s.giveUpRevoked(ctx, volume, nqns[volume])
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

// giveUpRevoked connections of a volume, and return when they are gone. That its attachment is not known to be revoked
// is no error.
func (s *Service) giveUpRevoked(ctx context.Context, volume string, nqns []string) error {
	for _, nqn := range nqns {
		if err := s.giveUpSubsystem(ctx, volume, nqn); err != nil {
			return err
		}
	}
	return nil
}

// giveUpSubsystem is giveUpRevoked for one of a volume's subsystems.
func (s *Service) giveUpSubsystem(ctx context.Context, volume, nqn string) error {
	controllers, err := s.Initiator.Controllers(nqn)
	if err != nil || len(controllers) == 0 || slices.ContainsFunc(controllers, fabrics.Controller.Live) {
		return err
	}
	hosts, err := s.hosts(ctx, volume)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "Unknown whether the volume is still attached to this node; keeping its connections", "volume", volume)
		return nil
	}
	// Only those that were there before the list was read: an attachment that has begun since is not in it, and may
	// share the subsystem.
	var revoked []string
	for _, c := range controllers {
		if !slices.Contains(hosts, c.HostNQN) {
			revoked = append(revoked, c.HostNQN)
		}
	}
	if len(revoked) == 0 {
		return nil
	}
	logr.FromContextOrDiscard(ctx).Info("The volume is no longer attached to this node and has no path; removing its connections", "volume", volume)
	return s.Initiator.GiveUp(ctx, nqn, func(c fabrics.Controller) bool { return slices.Contains(revoked, c.HostNQN) })
}

// hosts that may use a volume, by the API server's word of this moment.
func (s *Service) hosts(ctx context.Context, volume string) ([]string, error) {
	v, err := s.read(ctx, volume)
	if err != nil {
		return nil, err
	}
	if at, err := s.records().get(volume); err == nil && at.NGUID != nguidOf(v.Spec.UUID) {
		return nil, fmt.Errorf("NvmfVolume %s with UUID %s is another volume than the one staged here", volume, v.Spec.UUID)
	}
	hosts := make([]string, len(v.Spec.Hosts))
	for i, h := range v.Spec.Hosts {
		hosts[i] = h.NQN
	}
	return hosts, nil
}
