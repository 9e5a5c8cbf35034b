// SPDX-License-Identifier: Apache-2.0

// Package controller is the CSI controller service. It talks to the
// Kubernetes API only: it writes NvmfVolumes and their NvmfReplicas, and waits on a watch for the agents' word that
// these are as asked.
//
// It keeps nothing that a restart would lose, and two replicas may run: each
// call starts from what the API server has stored, and writes only what it has read. What a node
// does not say is unknown; a call then fails with Unavailable, and the object stays as it is.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// fieldManager of what this service writes.
const fieldManager = "weft-csi-controller"

// Service is the CSI controller service. It is safe for concurrent use.
type Service struct {
	csi.UnimplementedControllerServer

	// client reads from the cache, live from the API server, cordoned the Nodes that are.
	client       client.Client
	live         client.Reader
	cordoned     client.Reader
	volumes      *objects[v1alpha1.NvmfVolume, *v1alpha1.NvmfVolume]
	replicas     *objects[v1alpha1.NvmfReplica, *v1alpha1.NvmfReplica]
	mirrors      *objects[v1alpha1.NvmfMirror, *v1alpha1.NvmfMirror]
	snapshots    *objects[v1alpha1.NvmfSnapshot, *v1alpha1.NvmfSnapshot]
	reservations *reservations
	// grace is confirmGrace, delay settleDelay, reportAge the constant of that name, and suffix randomSuffix, but in
	// tests.
	grace, delay, reportAge time.Duration
	suffix                  func() string
	clock                   clock.PassiveClock
	// users are the Nodes that sealAllAgain has looked at last, by name.
	users map[string]userNode
	// refused are nodes that could not create a replica which was to be added.
	refused refusedNodes
	// asked are the movers that were asked to stop.
	asked moverTimes
	// given are the movers that have a volume, and unfit the nodes of those that did not begin, or got nowhere.
	given moverTimes
	unfit refusedNodes
	locks locks
	// unsettled are the names of volumes that Settle has to look at.
	unsettled workqueue.TypedRateLimitingInterface[string]
	// describes bounds how many volumes Settle describes again.
	describes flowcontrol.RateLimiter
	// states of volumes that are written.
	states states
	// untold is what TellEvents has to write Events about.
	untold workqueue.TypedRateLimitingInterface[happening]
	// filled tells of each cache, and of what is kept from its events, whether it is complete.
	filled []toolscache.InformerSynced
	// requestsKnown tells whether the cache of VolumeAttachments is complete. Only takeBackAll waits for it.
	requestsKnown toolscache.InformerSynced
}

var _ csi.ControllerServer = (*Service)(nil)

// New returns the service on a cluster from NewCluster. Call it before the cluster is started; calls of the service
// are answered once Synced is true, and with Unavailable or after a wait before.
func New(ctx context.Context, c *Cluster) (*Service, error) {
	s := &Service{
		client:    tracedClient{c.GetClient()},
		live:      c.GetAPIReader(),
		cordoned:  c.cordoned,
		volumes:   &objects[v1alpha1.NvmfVolume, *v1alpha1.NvmfVolume]{kind: "NvmfVolume", cached: c.GetClient(), live: c.GetAPIReader()},
		replicas:  &objects[v1alpha1.NvmfReplica, *v1alpha1.NvmfReplica]{kind: "NvmfReplica", cached: c.GetClient(), live: c.GetAPIReader()},
		mirrors:   &objects[v1alpha1.NvmfMirror, *v1alpha1.NvmfMirror]{kind: "NvmfMirror", cached: c.GetClient(), live: c.GetAPIReader()},
		snapshots: &objects[v1alpha1.NvmfSnapshot, *v1alpha1.NvmfSnapshot]{kind: "NvmfSnapshot", cached: c.GetClient(), live: c.GetAPIReader()},
		grace:     confirmGrace,
		delay:     settleDelay,
		reportAge: reportAge,
		suffix:    randomSuffix,
		clock:     clock.RealClock{},
		unsettled: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		describes: flowcontrol.NewTokenBucketRateLimiter(describesPerSecond, describesPerSecond),
		states:    newStates(),
		untold:    newUntold(),
	}
	s.reservations = &reservations{cached: c.GetClient(), clock: s.clock, synced: s.Synced}
	for field, value := range map[string]func(*v1alpha1.NvmfReplica) string{
		volumeNameField: func(rep *v1alpha1.NvmfReplica) string { return rep.Spec.Volume.Name },
		nodeField:       func(rep *v1alpha1.NvmfReplica) string { return rep.Spec.Node },
	} {
		err := c.GetFieldIndexer().IndexField(ctx, &v1alpha1.NvmfReplica{}, field, func(obj client.Object) []string { return []string{value(obj.(*v1alpha1.NvmfReplica))} })
		if err != nil {
			return nil, fmt.Errorf("index NvmfReplicas by %s: %w", field, err)
		}
	}
	request := &metav1.PartialObjectMetadata{}
	request.SetGroupVersionKind(requestGVK)
	requests, err := c.GetCache().GetInformer(ctx, request, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch VolumeAttachments: %w", err)
	}
	s.requestsKnown = requests.HasSynced
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(nodeGVK)
	for _, watch := range []struct {
		in      cache.Cache
		obj     client.Object
		changed func(obj any, gone bool)
	}{
		{c.GetCache(), &v1alpha1.NvmfVolume{}, s.volumeChanged},
		{c.GetCache(), &v1alpha1.NvmfReplica{}, s.replicaChanged},
		{c.GetCache(), &v1alpha1.NvmfMirror{}, s.mirrorChanged},
		{c.GetCache(), &v1alpha1.NvmfSnapshot{}, s.snapshotChanged},
		{c.GetCache(), &v1alpha1.NvmfNode{}, func(obj any, gone bool) { s.nodeChanged(ctx, obj, gone) }}, {c.GetCache(), &v1alpha1.NvmfTarget{}, nil}, {c.GetCache(), node, nil},
		{c.cordoned, node, nil},
	} {
		informer, err := watch.in.GetInformer(ctx, watch.obj, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", watch.obj, err)
		}
		s.filled = append(s.filled, informer.HasSynced)
		if watch.changed == nil {
			continue
		}
		handled, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { watch.changed(obj, false) },
			UpdateFunc: func(was, now any) {
				if mirror.OnlyProgress(was, now) {
					s.noticeProgress(ctx, was, now)
					return
				}
				watch.changed(now, false)
				s.notice(was, now)
			},
			DeleteFunc: func(obj any) {
				if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
					obj = gone.Obj
				}
				watch.changed(obj, true)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", watch.obj, err)
		}
		s.filled = append(s.filled, handled.HasSynced)
	}
	return s, nil
}

// volumeChanged runs after the cache has taken in the change.
func (s *Service) volumeChanged(obj any, gone bool) {
	if vol, ok := obj.(*v1alpha1.NvmfVolume); ok {
		s.volumes.changed(vol.Name, gone)
		s.unsettled.AddAfter(vol.Name, s.delay)
	}
}

// replicaChanged runs after the cache has taken in the change.
func (s *Service) replicaChanged(obj any, gone bool) {
	if rep, ok := obj.(*v1alpha1.NvmfReplica); ok {
		s.reservations.replicaChanged(rep, gone)
		s.replicas.changed(rep.Name, gone)
		s.unsettled.AddAfter(rep.Spec.Volume.Name, s.delay)
	}
}

// mirrorChanged runs after the cache has taken in the change. A replica that left its mirror gets a fresh identity, by
// which it can return.
func (s *Service) mirrorChanged(obj any, gone bool) {
	if m, ok := obj.(*v1alpha1.NvmfMirror); ok {
		s.mirrors.changed(m.Name, gone)
		s.unsettled.Add(m.Name)
	}
}

// snapshotChanged runs after the cache has taken in the change.
func (s *Service) snapshotChanged(obj any, gone bool) {
	if snap, ok := obj.(*v1alpha1.NvmfSnapshot); ok {
		s.reservations.snapshotChanged(snap, gone)
		s.snapshots.changed(snap.Name, gone)
	}
}

// nodeChanged runs after the cache has taken in the change.
func (s *Service) nodeChanged(ctx context.Context, obj any, gone bool) {
	if node, ok := obj.(*v1alpha1.NvmfNode); ok {
		s.reservations.nodeChanged(node, gone)
		s.nodeJudged(ctx, node, gone)
	}
}

// Synced says that the cache has been filled, so that the service can work.
func (s *Service) Synced() bool {
	for _, filled := range s.filled {
		if !filled() {
			return false
		}
	}
	return true
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (s *Service) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		server.ControllerVolumeCondition,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return resp, nil
}

// CreateVolume implements csi.ControllerServer: it answers once the volume exists on its node.
func (s *Service) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	resp, err := s.createVolume(ctx, req)
	if err == nil {
		s.volumes.show(ctx, resp.Volume.VolumeId, func(v *v1alpha1.NvmfVolume) bool { return v != nil })
	}
	return resp, toStatus(err)
}

// DeleteVolume implements csi.ControllerServer: it answers once the node's engine no longer has the volume.
func (s *Service) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	err := s.deleteVolume(ctx, req.GetVolumeId())
	if err == nil {
		s.volumes.showGone(ctx, req.GetVolumeId())
	}
	return &csi.DeleteVolumeResponse{}, toStatus(err)
}

// CreateSnapshot implements csi.ControllerServer: it answers once the snapshot exists, ready to be used.
func (s *Service) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	resp, err := s.createSnapshot(ctx, req)
	if err == nil {
		s.snapshots.show(ctx, resp.Snapshot.SnapshotId, func(snap *v1alpha1.NvmfSnapshot) bool {
			return snap != nil && csiSnapshot(snap).ReadyToUse == resp.Snapshot.ReadyToUse
		})
	}
	return resp, toStatus(err)
}

// DeleteSnapshot implements csi.ControllerServer: it answers once the node's engine no longer has the snapshot.
func (s *Service) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	err := s.deleteSnapshot(ctx, req.GetSnapshotId())
	if err == nil {
		s.snapshots.showGone(ctx, req.GetSnapshotId())
	}
	return &csi.DeleteSnapshotResponse{}, toStatus(err)
}

// ListSnapshots implements csi.ControllerServer.
func (s *Service) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	resp, err := s.listSnapshots(ctx, req)
	return resp, toStatus(err)
}

// GetSnapshot implements csi.ControllerServer.
func (s *Service) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	resp, err := s.getSnapshot(ctx, req.GetSnapshotId())
	return resp, toStatus(err)
}

// ListVolumes implements csi.ControllerServer.
func (s *Service) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	resp, err := s.listVolumes(ctx, req)
	return resp, toStatus(err)
}

// ControllerGetVolume implements csi.ControllerServer.
func (s *Service) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	resp, err := s.getVolume(ctx, req)
	return resp, toStatus(err)
}

// ControllerGetVolumeHealth implements csi.ControllerServer.
func (s *Service) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	resp, err := s.getVolumeHealth(ctx, req.GetVolumeId())
	return resp, toStatus(err)
}

// ControllerListVolumeHealth implements csi.ControllerServer.
func (s *Service) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	resp, err := s.listVolumeHealth(ctx, req)
	return resp, toStatus(err)
}

// ControllerPublishVolume implements csi.ControllerServer: it answers once the target admits the host.
func (s *Service) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	resp, err := s.publishVolume(ctx, req)
	if err == nil {
		s.volumes.show(ctx, req.GetVolumeId(), func(v *v1alpha1.NvmfVolume) bool { return v == nil || find(v, req.GetNodeId()) != nil })
	}
	return resp, toStatus(err)
}

// ControllerUnpublishVolume implements csi.ControllerServer: it answers once the target no longer admits the host.
func (s *Service) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	err := s.unpublishVolume(ctx, req.GetVolumeId(), req.GetNodeId())
	if err == nil {
		s.volumes.show(ctx, req.GetVolumeId(), func(v *v1alpha1.NvmfVolume) bool {
			return v == nil || !slices.ContainsFunc(published(v), func(node string) bool { return req.GetNodeId() == "" || node == req.GetNodeId() })
		})
	}
	return &csi.ControllerUnpublishVolumeResponse{}, toStatus(err)
}

// ControllerExpandVolume implements csi.ControllerServer: it answers once the target serves the new size.
func (s *Service) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	resp, err := s.expandVolume(ctx, req)
	return resp, toStatus(err)
}

// ControllerModifyVolume implements csi.ControllerServer: it answers once the target holds the volume to the limits.
func (s *Service) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	return &csi.ControllerModifyVolumeResponse{}, toStatus(s.modifyVolume(ctx, req))
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (s *Service) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	resp, err := s.validateVolumeCapabilities(ctx, req)
	return resp, toStatus(err)
}

// GetCapacity implements csi.ControllerServer. A volume can be used from
// every node, so the answer does not depend on the topology in the request.
func (s *Service) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	resp, err := s.getCapacity(ctx, req)
	return resp, toStatus(err)
}

// volume by its id, from the API server.
func (s *Service) volume(ctx context.Context, id string) (*v1alpha1.NvmfVolume, error) {
	if id == "" {
		return nil, failf(invalid, "volume_id is required")
	}
	if !validID(id) {
		return nil, errNoVolume(id)
	}
	vol, err := s.volumes.read(ctx, id)
	if err == nil && vol == nil {
		err = errNoVolume(id)
	}
	return vol, err
}

func errNoVolume(id string) error { return failf(notFound, "volume %s not found", id) }

func isNoVolume(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.reason == notFound
}
