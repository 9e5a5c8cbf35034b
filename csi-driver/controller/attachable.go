// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// attachable fails with full when the node that holds a volume has no place for another attachment. The cache says
// whether to ask the API server, which alone has a volume refused: one that was detached a moment ago counts no more.
// What neither shows, since two calls come together, the node's agent holds back.
func (s *Service) attachable(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	err := checkPlaces(ctx, s.client, vol, client.UnsafeDisableDeepCopy)
	if err == nil {
		return nil
	}
	return checkPlaces(ctx, s.live, vol, client.MatchingFields{"spec.node": vol.Spec.Node})
}

// checkPlaces among the volumes of a node that a reader lists.
func checkPlaces(ctx context.Context, reader client.Reader, vol *v1alpha1.NvmfVolume, of client.ListOption) error {
	var node v1alpha1.NvmfNode
	err := reader.Get(ctx, keyOf(vol.Spec.Node), &node)
	if apierrors.IsNotFound(err) {
		return nil // whoever waits for its agent is told so
	}
	if err != nil {
		return fmt.Errorf("read NvmfNode %s: %w", vol.Spec.Node, err)
	}
	possible, limited := node.AttachmentLimit()
	if !limited {
		return nil
	}
	var volumes v1alpha1.NvmfVolumeList
	if err := reader.List(ctx, &volumes, of); err != nil {
		return fmt.Errorf("list NvmfVolumes of node %s: %w", vol.Spec.Node, err)
	}
	var used int64
	for i := range volumes.Items {
		if v := &volumes.Items[i]; v.Spec.Node == vol.Spec.Node {
			used += node.AttachmentPlaces(v.Spec.Connection) * int64(len(v.Spec.Hosts)+len(lingering(v)))
		}
	}
	takes := node.AttachmentPlaces(vol.Spec.Connection)
	if used+takes <= possible {
		return nil
	}
	return failf(full, "cannot attach volume %s: storage node %s has %d of %d planned attachments, and this one needs %d; %s, or detach other volumes of that node",
		vol.Name, node.Name, used, possible, takes, node.MoreAttachments(possible))
}
