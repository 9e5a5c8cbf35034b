// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
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
// So they are given up only when no path is live, and the API server itself says that the NvmfVolume is gone or going,
// or does not list this host. Where it does not answer, or does not serve the kind (somebody removed the CRD), or
// another volume has the name, nothing is known.

// GiveUpRevoked gives up, once, the connections of all staged volumes whose attachment was revoked. It waits for no
// call that is under way: that may be an unmount that waits for those connections. Nor does one volume hold up the
// others for longer than 10 s.
func (s *Service) GiveUpRevoked(ctx context.Context) error {
	volumes, err := s.records().volumes()
	nqns, listErr := s.Initiator.Subsystems()
	errs := []error{err, listErr}
	for _, volume := range volumes {
		ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
		is, err := s.identify(ctx, volume)
		if err == nil && !is.mirrored { // else its keeper reads the mirror's record, and leaves
			err = s.giveUpRevoked(ctx, volume, is, nqns)
		}
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

// giveUpRevoked connections of a volume, among all NQNs of this host, and return when they are gone. That its
// attachment is not known to be revoked is no error.
func (s *Service) giveUpRevoked(ctx context.Context, volume string, is identity, nqns map[string][]string) error {
	for _, id := range is.subsystems(nqns) {
		if err := s.giveUpSubsystem(ctx, volume, is, id.NQN); err != nil {
			return err
		}
	}
	return nil
}

// giveUpSubsystem is giveUpRevoked for one of a volume's subsystems.
func (s *Service) giveUpSubsystem(ctx context.Context, volume string, is identity, nqn string) error {
	controllers, err := s.Initiator.Controllers(nqn)
	if err != nil || len(controllers) == 0 || slices.ContainsFunc(controllers, fabrics.Controller.Live) {
		return err
	}
	hosts, err := s.hosts(ctx, volume, is)
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

// hosts that may use a volume, by the API server's word of this moment. An NvmfVolume that is being deleted keeps its
// attachments until they end; of one that is gone, its replicas may still list them.
func (s *Service) hosts(ctx context.Context, volume string, is identity) ([]string, error) {
	v, err := s.readVolume(ctx, volume)
	if gone(err) {
		return s.hostsOfReplicas(ctx, is)
	}
	if err != nil {
		return nil, err
	}
	if v.Spec.UUID != is.uuid {
		return nil, fmt.Errorf("NvmfVolume %s with UUID %s is another volume than the one staged here", volume, v.Spec.UUID)
	}
	hosts := make([]string, len(v.Spec.Attachments))
	for i, h := range v.Spec.Attachments {
		hosts[i] = h.NQN
	}
	// Those whose keys were rotated have another NQN than the attachment's own.
	switch at, err := s.records().get(volume); {
	case err == nil && v.Listed(v1alpha1.HostNQN(at.Attachment)) != nil:
		return append(hosts, at.hostsOf()...), nil
	case err == nil || len(hosts) == 0:
		return hosts, nil
	case !unrecorded(err):
		return nil, err
	}
	for name := range is.replicas {
		r, err := s.readReplica(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, h := range r.Spec.Hosts {
			if v.Listed(v1alpha1.HostNQN(h.AttachmentUUID())) != nil {
				hosts = append(hosts, h.NQN)
			}
		}
	}
	return hosts, nil
}

// hostsOfReplicas that the replicas of a volume list.
func (s *Service) hostsOfReplicas(ctx context.Context, is identity) ([]string, error) {
	var hosts []string
	for name := range is.replicas {
		r, err := s.readReplica(ctx, name)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, h := range r.Spec.Hosts {
			hosts = append(hosts, h.NQN)
		}
	}
	return hosts, nil
}
