// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Fleet of storage nodes that serve one NvmfTarget, with volumes of one replica that are all attached: as objects
// alone, with about as much in each as a real one has. Server.ServeFor plays the agents.
type Fleet struct {
	// Target is the name of the NvmfTarget, and begins all other names.
	Target string
	// Nodes and Volumes that there are. Volume i is on node i modulo the number of nodes, and attached to the next one.
	Nodes, Volumes int

	server *Server
	uids   []string // of the Kubernetes Nodes
}

const (
	// PoolBytes of each node of a fleet, in one pool.
	PoolBytes = int64(16) << 40
	// FleetPool is the file of that pool.
	FleetPool = "/var/lib/weft/pool.img"
	// atOnce is how many objects are made at the same time.
	atOnce = 8
)

// PaperFleet is one of so many nodes and volumes, for its objects: none of them is stored.
func PaperFleet(target string, nodes, volumes int) *Fleet {
	return &Fleet{Target: target, Nodes: nodes, Volumes: volumes, uids: make([]string, nodes)}
}

// NewFleet makes the NvmfTarget, and no node yet.
func (s *Server) NewFleet(ctx context.Context, target string) (*Fleet, error) {
	f := &Fleet{Target: target, server: s}
	return f, s.Admin.Create(ctx, f.NewTarget(target))
}

// BenchmarkSizes measures a fleet that grows to each of Sizes.
func (s *Server) BenchmarkSizes(b *testing.B, target string, measure func(*testing.B, *Fleet)) {
	b.Helper()
	fleet, err := s.NewFleet(b.Context(), target)
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range Sizes(b) {
		if err := fleet.Grow(b.Context(), size.Nodes, size.Volumes); err != nil {
			b.Fatal(err)
		}
		b.Run(size.String(), func(b *testing.B) { measure(b, fleet) })
	}
}

// NewTarget that selects all nodes of the fleet.
func (f *Fleet) NewTarget(name string) *v1alpha1.NvmfTarget {
	return &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine: v1alpha1.EngineNvmet, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/fleet": f.Target}},
			Transports: []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: 4420}},
			Devices:    v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: FleetPool, Size: *resource.NewQuantity(PoolBytes, resource.BinarySI)}},
		},
	}
}

// Node is the name of node number i.
func (f *Fleet) Node(i int) string { return fmt.Sprintf("%s-node-%05d", f.Target, i) }

// Volume is the name of volume number i.
func (f *Fleet) Volume(i int) string { return fmt.Sprintf("%s-volume-%06d", f.Target, i) }

// Grow to so many nodes and volumes.
func (f *Fleet) Grow(ctx context.Context, nodes, volumes int) error {
	f.uids = append(f.uids, make([]string, max(0, nodes-f.Nodes))...)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := f.Nodes; i < nodes; i++ {
		group.Go(func() error { return f.makeNode(gctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	f.Nodes = nodes
	group, gctx = errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := f.Volumes; i < volumes; i++ {
		group.Go(func() error { return f.makeVolume(gctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	f.Volumes = volumes
	return nil
}

func (f *Fleet) makeNode(ctx context.Context, i int) error {
	admin, kube := f.server.Admin, f.KubernetesNode(i)
	status := kube.Status
	if err := admin.Create(ctx, kube); err != nil {
		return err
	}
	f.uids[i] = string(kube.UID)
	kube.Status = status
	if err := admin.Status().Update(ctx, kube); err != nil {
		return err
	}
	name := kube.Name
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: v1alpha1.AgentLeasePrefix + name, Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(24 * 3600))},
	}
	if err := admin.Create(ctx, lease); err != nil {
		return err
	}
	node := f.NvmfNode(i)
	reported := node.Status
	if err := admin.Create(ctx, node); err != nil {
		return err
	}
	node.Status, node.Status.ObservedGeneration = reported, node.Generation
	return admin.Status().Update(ctx, node)
}

// KubernetesNode of node number i, as its kubelet has it.
func (f *Fleet) KubernetesNode(i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.Node(i), Labels: map[string]string{
			"weft.storage/fleet": f.Target, corev1.LabelHostname: f.Node(i), corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3),
		}},
		Status: kubeStatus(i),
	}
}

// NvmfNode of node number i, which serves the target.
func (f *Fleet) NvmfNode(i int) *v1alpha1.NvmfNode {
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: f.Node(i)}, Spec: v1alpha1.NvmfNodeSpec{Target: f.Target, Plan: &v1alpha1.Plan{
		Engine: v1alpha1.EngineNvmet, File: &v1alpha1.DeviceFile{Path: FleetPool, Size: *resource.NewQuantity(PoolBytes, resource.BinarySI)},
		Portals: []v1alpha1.PlannedPortal{{
			Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: address(i), Port: 4420}, MaxIOQueues: 8, QueueDepth: 128,
		}},
	}}}
	node.Status = v1alpha1.NvmfNodeStatus{
		AgentVersion: "1.2.0", Inventory: inventory(i),
		Pools: []v1alpha1.PoolStatus{{
			Device: FleetPool, Ready: true, Total: resource.NewQuantity(PoolBytes, resource.BinarySI), Free: resource.NewQuantity(PoolBytes, resource.BinarySI),
		}},
		Capacity:   v1alpha1.Capacity{Total: resource.NewQuantity(PoolBytes, resource.BinarySI), Free: resource.NewQuantity(PoolBytes, resource.BinarySI)},
		Portals:    []v1alpha1.Portal{node.Spec.Plan.Portals[0].Portal},
		Conditions: []metav1.Condition{fine(v1alpha1.ConditionReady)},
	}
	return node
}

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i/62500, i/250%250, i%250+1) }

// kubeStatus of a Node as a kubelet has it with its default of 50 images.
func kubeStatus(i int) corev1.NodeStatus {
	s := corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address(i)}},
		Capacity:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi")},
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		s.Conditions = append(s.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "KubeletReports", Message: "kubelet reports this condition", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for n := range 50 {
		s.Images = append(s.Images, corev1.ContainerImage{SizeBytes: 1 << 27, Names: []string{
			fmt.Sprintf("registry.example/team-%02d/service@sha256:%064d", n, n), fmt.Sprintf("registry.example/team-%02d/service:v1.%d", n, n),
		}})
	}
	return s
}

// inventory of a machine with two sockets and eight drives.
func inventory(i int) *v1alpha1.Inventory {
	inv := &v1alpha1.Inventory{KernelVersion: "6.12.0", Architecture: "amd64", Modules: []string{"loop", "nvmet", "nvmet_tcp", "xfs"}}
	for n := range int32(2) {
		numa := v1alpha1.NUMANode{ID: n, CPUs: fmt.Sprintf("%d-%d", n*32, n*32+31), LLCBytes: 64 << 20, MemoryBytes: 256 << 30}
		for c := range int32(16) {
			numa.Cores = append(numa.Cores, fmt.Sprintf("%d,%d", n*32+c, n*32+c+16))
		}
		inv.NUMANodes = append(inv.NUMANodes, numa)
		inv.NICs = append(inv.NICs, v1alpha1.NIC{
			Name: fmt.Sprint("eth", n), SpeedMbps: 100000, MTU: 9000, NUMANode: &n, PCIAddress: fmt.Sprintf("0000:%02d:00.0", n), Driver: "mlx5_core", RxQueues: 63, TxQueues: 63,
			Up: true, Addresses: []string{address(i)},
		})
	}
	for n := range int32(8) {
		serial := fmt.Sprintf("S%07d%02d", i, n)
		inv.Drives = append(inv.Drives, v1alpha1.Drive{
			ID: "nvme-" + serial, Name: fmt.Sprintf("nvme%dn1", n), NVMe: true, Model: "Datacenter NVMe 7.68 TB", Serial: serial, SizeBytes: 7681501126656, BlockSizeBytes: 4096,
			ByID:   []string{"nvme-Datacenter_NVMe_" + serial, "nvme-eui." + serial},
			ByPath: []string{fmt.Sprintf("pci-0000:%02d:00.0-nvme-1", n+16)}, NUMANode: new(n % 2), PCIAddress: fmt.Sprintf("0000:%02d:00.0", n+16), Content: v1alpha1.ContentBlank,
		})
	}
	return inv
}

// makeVolume that is attached, with its replica as its agent reports it.
func (f *Fleet) makeVolume(ctx context.Context, i int) error {
	admin := f.server.Admin
	vol, rep := f.NvmfVolume(i)
	reported, told := rep.Status, vol.Status
	if err := admin.Create(ctx, vol); err != nil {
		return err
	}
	vol.Status = told
	if err := admin.Status().Update(ctx, vol); err != nil {
		return err
	}
	rep.Spec.VolumeUID, rep.Spec.VolumeGeneration = string(vol.UID), vol.Generation
	if err := admin.Create(ctx, rep); err != nil {
		return err
	}
	rep.Status, rep.Status.ObservedGeneration = reported, rep.Generation
	return admin.Status().Update(ctx, rep)
}

// NvmfVolume is volume number i, attached, with its replica as its agent reports it.
func (f *Fleet) NvmfVolume(i int) (*v1alpha1.NvmfVolume, *v1alpha1.NvmfReplica) {
	name, id, session := f.Volume(i), uuid.NewString(), uuid.NewString()
	node, user := f.Node(i%f.Nodes), (i+1)%f.Nodes
	host := v1alpha1.VolumeHost{NQN: v1alpha1.HostNQN(session), Node: f.Node(user), NodeUID: f.uids[user], Access: v1alpha1.AccessExclusive}
	connection := v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1}
	size := resource.MustParse("10Gi")
	vol := &v1alpha1.NvmfVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.ReplicasFinalizer}},
		Spec: v1alpha1.NvmfVolumeSpec{
			UUID: id, Target: f.Target, Replicas: 1, Members: []v1alpha1.VolumeMember{{Name: name + "-0", UUID: id, Node: node}}, Size: size,
			Connection: connection, Session: session, Attachments: []v1alpha1.VolumeHost{host}, Used: true,
		},
		Status: v1alpha1.NvmfVolumeStatus{State: v1alpha1.VolumeReady},
	}
	rep := &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-0", Finalizers: []string{v1alpha1.EngineFinalizer}},
		Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: name, UUID: id}, UUID: id, Target: f.Target, Node: node,
			Size: size, Connection: connection, SubsystemNQN: v1alpha1.SubsystemNQN(name+"-0", session), Hosts: []v1alpha1.VolumeHost{host}, Used: true,
		},
	}
	created(rep)
	rep.Status.NQN, rep.Status.NSID, rep.Status.NGUID = rep.Spec.SubsystemNQN, 1, id
	rep.Status.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: address(i % f.Nodes), Port: 4420}}
	rep.Status.Allocated, rep.Status.Written = resource.NewQuantity(3<<30, resource.BinarySI), true
	rep.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: host.NQN, Node: host.Node}}
	return vol, rep
}

// created is what an agent reports of a replica that it made.
func created(rep *v1alpha1.NvmfReplica) {
	rep.Status.ObservedGeneration, rep.Status.Device, rep.Status.Size = rep.Generation, FleetPool, &rep.Spec.Size
	for _, kind := range []string{
		v1alpha1.ConditionCreated, v1alpha1.ConditionExported, v1alpha1.ConditionDegraded, v1alpha1.ConditionQoSApplied, v1alpha1.ConditionReady,
	} {
		c := fine(kind)
		if kind == v1alpha1.ConditionDegraded {
			c.Status = metav1.ConditionFalse
		}
		meta.SetStatusCondition(&rep.Status.Conditions, c)
	}
}

func fine(kind string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected, LastTransitionTime: metav1.NewTime(time.Now())}
}

// ServeFor plays the agents of all nodes until the test ends: a plan is taken up, a replica created and its hosts
// admitted, at once. Nothing is deleted. No fleet may grow meanwhile.
func (s *Server) ServeFor(t testing.TB) {
	t.Helper()
	objects, err := cache.New(s.Config, cache.Options{Scheme: s.Admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.SetLimit(atOnce)
	handle := func(obj any) {
		group.Go(func() error {
			if err := s.report(ctx, obj); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			return nil
		})
	}
	for _, kind := range []client.Object{&v1alpha1.NvmfNode{}, &v1alpha1.NvmfReplica{}} {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, now any) { handle(now) }})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- objects.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, group.Wait()); err != nil {
			t.Error(err)
		}
	})
	if !objects.WaitForCacheSync(ctx) {
		t.Fatal("the agents' cache does not fill")
	}
}

// report an object, if its agent has something new to say of it. The object is the cache's own.
func (s *Server) report(ctx context.Context, obj any) error {
	switch was := obj.(type) {
	case *v1alpha1.NvmfNode:
		if was.Status.ObservedGeneration != was.Generation {
			return client.IgnoreNotFound(s.Admin.Status().Patch(ctx, was.DeepCopy(), takesUp(was)))
		}
	case *v1alpha1.NvmfReplica:
		if was.Status.ObservedGeneration == was.Generation {
			return nil
		}
		rep := was.DeepCopy()
		created(rep)
		rep.Status.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}}
		rep.Status.Hosts = nil
		for _, h := range rep.Spec.Hosts {
			rep.Status.Hosts = append(rep.Status.Hosts, v1alpha1.AdmittedHost{NQN: h.NQN, Node: h.Node})
		}
		return client.IgnoreNotFound(s.Admin.Status().Patch(ctx, rep, client.MergeFrom(was)))
	}
	return nil
}

// takesUp is an agent's word that it follows the plan of this generation.
func takesUp(node *v1alpha1.NvmfNode) client.Patch {
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"observedGeneration":%d}}`, node.Generation))
}
