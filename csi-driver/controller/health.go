// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
)

// listVolumeHealth lists the volumes with which something is wrong, as the cache shows them.
func (s *Service) listVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if err := s.listable(); err != nil {
		return nil, err
	}
	resp := &csi.ControllerListVolumeHealthResponse{}
	var err error
	resp.NextToken, err = pageOf(&s.volumes.names, req.GetStartingToken(), req.GetMaxEntries(), func(name string) (int, error) {
		vol, p, err := s.look(ctx, name)
		if vol == nil || len(p) == 0 || err != nil {
			return 0, err
		}
		entry := p.Volume(name)
		resp.Entries = append(resp.Entries, entry)
		return proto.Size(entry), nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (s *Service) getVolumeHealth(ctx context.Context, id string) (*csi.ControllerGetVolumeHealthResponse, error) {
	vol, err := s.withReplicas(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := s.problems(ctx, vol)
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: p.Volume(id)}, err
}

// cachedReplicas are a volume's replicas as the cache shows them, which is soon enough to tell what is wrong with them.
func (s *Service) cachedReplicas(ctx context.Context, vol *v1alpha1.NvmfVolume) (*replicatedVolume, error) {
	v := &replicatedVolume{NvmfVolume: vol, replicas: make([]*v1alpha1.NvmfReplica, len(vol.Spec.Members))}
	var err error
	for i, m := range vol.Spec.Members {
		if v.replicas[i], err = s.replicas.get(ctx, s.client, m.Name); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// peekReplicas is cachedReplicas with the cache's own objects: not to be changed.
func (s *Service) peekReplicas(ctx context.Context, vol *v1alpha1.NvmfVolume) (*replicatedVolume, error) {
	v := &replicatedVolume{NvmfVolume: vol, replicas: make([]*v1alpha1.NvmfReplica, len(vol.Spec.Members))}
	var err error
	for i, m := range vol.Spec.Members {
		if v.replicas[i], err = s.replicas.peek(ctx, m.Name); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// problems of a volume, by what the agents say of its replicas and the operator of their nodes.
func (s *Service) problems(ctx context.Context, vol *replicatedVolume) (server.Problems, error) {
	var all server.Problems
	for i := range vol.replicas {
		p, err := s.problemsOfMember(ctx, vol, i)
		if err != nil {
			return nil, err
		}
		all = append(all, p...)
	}
	return all, nil
}

// problemsOfMember are those of one of a volume's replicas.
func (s *Service) problemsOfMember(ctx context.Context, vol *replicatedVolume, i int) (server.Problems, error) {
	rep := vol.replicas[i]
	if rep == nil {
		var p server.Problems
		if m := vol.Spec.Members[i]; vol.Spec.Used && vol.DeletionTimestamp == nil {
			p.Add(server.Degraded, v1alpha1.ReasonVolumeLost, "there is no NvmfReplica "+m.Name+"; it is created again, and its agent then reports whether its data exists")
		}
		return p, nil
	}
	node := &v1alpha1.NvmfNode{}
	if err := s.client.Get(ctx, keyOf(rep.Spec.Node), node, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil {
		return nil, fmt.Errorf("read NvmfNode %s: %w", rep.Spec.Node, err)
	}
	return problemsOf(rep, node), nil
}

// problemsOf a replica on its node, nil when there is no such NvmfNode. One that is being made or deleted has none.
func problemsOf(rep *v1alpha1.NvmfReplica, node *v1alpha1.NvmfNode) server.Problems {
	if rep.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(rep.Status.Conditions, v1alpha1.ConditionCreated) {
		return nil
	}
	var p server.Problems
	if c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionDegraded); c != nil && c.Status == metav1.ConditionTrue {
		p.Add(kindOf(c.Reason), c.Reason, c.Message)
	}
	// A volume that nobody uses need not be served.
	if c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionExported); c != nil && c.Status != metav1.ConditionTrue && len(rep.Spec.Hosts) > 0 {
		p.Add(server.Inaccessible, c.Reason, c.Message)
	}
	if node == nil {
		p.Add(server.Degraded, v1alpha1.ReasonAgentSilent, "there is no NvmfNode "+rep.Spec.Node+", so that no agent manages the volume")
		return p
	}
	// It may well be served: the data path does not need the agent. But nobody knows.
	if c := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionAgentAlive); c != nil && c.Status != metav1.ConditionTrue {
		p.Add(server.Degraded, v1alpha1.ReasonAgentSilent, "node "+rep.Spec.Node+" has not reported its state: "+c.Message)
	}
	for _, pool := range node.Status.Pools {
		switch {
		case pool.Device != rep.Status.Device:
		case pool.Reason == v1alpha1.ReasonPoolNearlyFull:
			p.Add(server.Degraded, pool.Reason, "pool "+pool.Device+": "+pool.Message)
		case pool.Reason == v1alpha1.ReasonPoolFull:
			p.Add(server.Inaccessible, pool.Reason, "pool "+pool.Device+": "+pool.Message)
		case !pool.Ready:
			p.Add(server.Inaccessible, pool.Reason, "pool "+pool.Device+": "+pool.Message)
		}
	}
	return p
}

// kindOf what a volume that is Degraded for a reason has.
func kindOf(reason string) csi.VolumeHealthErrorType {
	switch reason {
	case v1alpha1.ReasonVolumeLost:
		return server.DataLoss
	case v1alpha1.ReasonPoolFailed:
		return server.Inaccessible
	default: // it could not be grown, and serves at the size it has
		return server.Degraded
	}
}
