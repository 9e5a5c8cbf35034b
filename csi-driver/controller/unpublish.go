// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// unpublishVolume takes the host away, or all hosts when nodeID is empty. That the Node is gone, or that
// the id is not one of ours, is no obstacle: a host that is not admitted is what was asked for. See leaving for hosts
// whose Node is gone.
func (s *Service) unpublishVolume(ctx context.Context, id, nodeID string) error {
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return err
	}
	defer unlock()
	vol, matches, err := s.dismiss(ctx, id, nodeID)
	if isNoVolume(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wctx, cancel := waitContext(ctx)
	defer cancel()
	generation := vol.Generation
	last, err := s.volumes.wait(wctx, vol, func(vol *v1alpha1.NvmfVolume) (bool, error) {
		return dismissed(vol, matches, generation), nil
	})
	if errors.Is(err, errLate) {
		return s.late(ctx, last, detached)
	}
	return err
}

// dismiss takes the hosts that are leaving off the volume's hosts, and returns the volume without them and which they
// are.
func (s *Service) dismiss(ctx context.Context, id, nodeID string) (*v1alpha1.NvmfVolume, func(nqn string) bool, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		matches, err := s.leaving(ctx, vol, nodeID)
		if err != nil {
			return nil, nil, err
		}
		gone := func(h v1alpha1.VolumeHost) bool { return matches(h.NQN) }
		if !slices.ContainsFunc(vol.Spec.Hosts, gone) {
			return vol, matches, nil
		}
		vol, err = s.changeHosts(ctx, vol, func(vol *v1alpha1.NvmfVolume) {
			vol.Spec.Hosts = slices.DeleteFunc(vol.Spec.Hosts, gone)
			endPermission(vol, matches)
		})
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil, nil, errNoVolume(id)
		}
		if err == nil {
			klog.FromContext(ctx).Info("Dismissing host", "volume", id, "node", vol.Spec.Node)
		}
		return vol, matches, err
	}
}

// leaving tells which of the volume's hosts an unpublish dismisses: all when nodeID is empty, else that one, and those
// whose Node does not exist any more. A Node that is deleted and registers anew gets another UID, and so another NQN.
// csi-attacher takes the node id from CSINode, so nobody names the old one any more, and its host would keep the volume
// for ever. It may also attach the volume to the new one before it detaches it, so that both are listed.
//
// No volume is taken from a pod that needs it: those of a Node that is gone are deleted by force, and their
// VolumeAttachments with them. Should the machine run on all the same, the target shuts it out before the call returns,
// as it does any host that is dismissed: whoever is admitted next writes alone.
func (s *Service) leaving(ctx context.Context, vol *v1alpha1.NvmfVolume, nodeID string) (func(nqn string) bool, error) {
	if nodeID == "" {
		return func(string) bool { return true }, nil
	}
	others := slices.DeleteFunc(admitted(vol), func(nqn string) bool { return nqn == nodeID })
	gone, err := s.withoutNode(ctx, others)
	if err != nil {
		return nil, err
	}
	return func(nqn string) bool { return nqn == nodeID || slices.Contains(gone, nqn) }, nil
}

// dismissed says that the target admits none of the hosts that match. A status from before the spec of this
// generation does not say so, even where it lists no such host: the agent may be about to admit one that it read of
// earlier.
func dismissed(vol *v1alpha1.NvmfVolume, matches func(nqn string) bool, generation int64) bool {
	if vol == nil {
		return true
	}
	still := slices.ContainsFunc(vol.Status.Hosts, func(h v1alpha1.AdmittedHost) bool { return matches(h.NQN) })
	return !still && vol.Status.ObservedGeneration >= generation
}
