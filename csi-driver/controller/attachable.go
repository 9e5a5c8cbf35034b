// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// attachable fails with full when a node that holds a replica has no place for another attachment. The cache says
// whether to ask the API server, which alone has a volume refused: one that was detached a moment ago counts no more.
// What neither shows, since two calls come together, the node's agent holds back.
func (s *Service) attachable(ctx context.Context, vol *replicatedVolume) error {
	record, err := s.recordOf(ctx, s.client, vol.NvmfVolume)
	if err != nil {
		return err
	}
	for _, m := range vol.Spec.Members {
		if record != nil && mirror.StateOf(*record, m.Name) != v1alpha1.MemberInSync {
			continue // the volume can be used without it
		}
		if checkPlaces(ctx, s.client, vol.NvmfVolume, m.Node) == nil {
			continue
		}
		if err := checkPlaces(ctx, s.live, vol.NvmfVolume, m.Node); err != nil {
			return err
		}
	}
	return nil
}

// checkPlaces among the replicas of a node that a reader lists; it only reads what a cache gives it.
func checkPlaces(ctx context.Context, reader client.Reader, vol *v1alpha1.NvmfVolume, name string) error {
	var node v1alpha1.NvmfNode
	err := reader.Get(ctx, keyOf(name), &node, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil // whoever waits for its agent is told so
	}
	if err != nil {
		return fmt.Errorf("read NvmfNode %s: %w", name, err)
	}
	possible, limited := node.AttachmentLimit()
	if !limited {
		return nil
	}
	var reps v1alpha1.NvmfReplicaList
	if err := reader.List(ctx, &reps, client.MatchingFields{nodeField: name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list NvmfReplicas of node %s: %w", name, err)
	}
	var used int64
	for i := range reps.Items {
		rep := &reps.Items[i]
		used += node.AttachmentPlaces(rep.Spec.Connection) * int64(len(rep.Spec.Hosts)+len(admittedOnly(rep)))
	}
	takes := node.AttachmentPlaces(vol.Spec.Connection)
	if used+takes <= possible {
		return nil
	}
	return failf(full, "cannot attach volume %s: storage node %s has %d of %d planned attachments, and this one needs %d; %s, or detach other volumes of that node",
		vol.Name, node.Name, used, possible, takes, node.MoreAttachments(possible))
}
