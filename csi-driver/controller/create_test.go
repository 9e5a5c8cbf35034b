// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestCreateStoresWhatWasAskedFor(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	req := createRequest(st, own(t, "v"), gi+1)
	req.Parameters = map[string]string{
		"target": st.target, "transport": "RDMA", "ioQueues": "4", "queueDepth": "64", "ctrlLossTimeout": "10m",
		"csi.storage.k8s.io/pv/name": "pvc-1", "csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "shop",
	}
	resp, err := s.CreateVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Volume.VolumeId != req.Name || resp.Volume.CapacityBytes != gi+4<<20 {
		t.Errorf("got %v", resp.Volume)
	}
	vol := volume(t, req.Name)
	rep := replica(t, req.Name)
	if !slices.Equal(vol.Finalizers, []string{v1alpha1.ReplicasFinalizer}) || !slices.Equal(rep.Finalizers, []string{v1alpha1.EngineFinalizer}) {
		t.Errorf("finalizers: %v, %v", vol.Finalizers, rep.Finalizers)
	}
	for _, key := range []string{v1alpha1.PVNameKey, v1alpha1.PVCNameKey, v1alpha1.PVCNamespaceKey} {
		if vol.Labels[key] == "" || vol.Labels[key] != vol.Annotations[key] {
			t.Errorf("%s: label %q, annotation %q", key, vol.Labels[key], vol.Annotations[key])
		}
	}
	if namespace, name := v1alpha1.ClaimOf(rep); namespace != vol.Annotations[v1alpha1.PVCNamespaceKey] || name != vol.Annotations[v1alpha1.PVCNameKey] || len(rep.Annotations) != 2 {
		t.Errorf("the replica is of claim %s/%s: %v", namespace, name, rep.Annotations)
	}
	want := v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportRDMA}, IOQueues: 4, QueueDepth: 64, CtrlLossTimeoutSeconds: 600}
	if diff := cmp.Diff(want, vol.Spec.Connection); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(vol.Spec.Members, []v1alpha1.VolumeMember{{Name: req.Name + "-0", UUID: vol.Spec.UUID, Node: st.nodes[0]}}) || vol.Spec.Target != st.target || len(vol.Spec.Attachments) != 0 || len(vol.Spec.UUID) != 36 {
		t.Errorf("spec: %+v", vol.Spec)
	}
	if is := rep.Spec; is.Node != st.nodes[0] || is.UUID != vol.Spec.UUID || is.Volume != (v1alpha1.ReplicaOf{Name: vol.Name, UUID: vol.Spec.UUID}) ||
		is.Size.Cmp(vol.Spec.Size) != 0 || !cmp.Equal(is.Connection, want) || is.VolumeGeneration != vol.Generation {
		t.Errorf("replica: %+v", is)
	}
	ours := func(m metav1.ManagedFieldsEntry) bool { return m.Manager == fieldManager }
	if !slices.ContainsFunc(vol.ManagedFields, ours) {
		t.Errorf("field managers: %v", vol.ManagedFields)
	}
}

// A target of engine Nvmet takes a queueDepth of 1024 over RDMA, and its nodes serve 256: what a class asks for is held
// to the plans.
func TestCreateAsksForNoMoreThanNodesServe(t *testing.T) {
	st := newStorageOf(t, func(target *v1alpha1.NvmfTarget) { target.Spec.Transports[0].QueueDepth = 1024 }, 2, 10*gi, v1alpha1.TransportRDMA)
	for _, n := range st.nodes {
		setPlan(t, n, func(p *v1alpha1.Plan) { p.Portals[0].QueueDepth = 256 })
	}
	s, _ := newService(t)
	seen(t, s, st)
	req := createRequest(st, own(t, "v"), gi)
	req.Parameters["queueDepth"] = "512"
	_, err := s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.FailedPrecondition, st.nodes[0]+": it supports a queue depth of 256 over RDMA, but queueDepth is 512", st.nodes[1])
	capacity, err := s.GetCapacity(within(t, enough), &csi.GetCapacityRequest{Parameters: req.Parameters})
	if err != nil || capacity.AvailableCapacity != 0 {
		t.Errorf("capacity %v, %v", capacity, err)
	}
	setPlan(t, st.nodes[1], func(p *v1alpha1.Plan) { p.Portals[0].QueueDepth = 512 })
	seen(t, s, st)
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Fatal(err)
	}
	if vol := replica(t, req.Name); vol.Spec.Node != st.nodes[1] || vol.Spec.Connection.QueueDepth != 512 {
		t.Errorf("node %s, depth %d", vol.Spec.Node, vol.Spec.Connection.QueueDepth)
	}
}

func TestCreateRefusesBadInput(t *testing.T) {
	st := newStorage(t, 1, 10*gi+overhead, v1alpha1.TransportTCP)
	s, _ := newService(t)
	seen(t, s, st)
	for name, tc := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		says   []string
	}{
		"no name":           {func(r *csi.CreateVolumeRequest) { r.Name = "" }, codes.InvalidArgument, []string{"name of the volume is required"}},
		"no target":         {func(r *csi.CreateVolumeRequest) { r.Parameters = nil }, codes.InvalidArgument, []string{"target is required"}},
		"unknown target":    {func(r *csi.CreateVolumeRequest) { r.Parameters["target"] = "quick" }, codes.InvalidArgument, []string{`NvmfTarget "quick" not found; existing targets: `, st.target}},
		"unknown parameter": {func(r *csi.CreateVolumeRequest) { r.Parameters["copies"] = "3" }, codes.InvalidArgument, []string{`"copies" is unknown; supported parameters: target`, "ioQueues"}},
		"both transports on a target with one": {func(r *csi.CreateVolumeRequest) { r.Parameters["transport"] = "RDMA,TCP" }, codes.InvalidArgument,
			[]string{"has no RDMA; use TCP, or add RDMA"}},
		"RDMA on a target without": {func(r *csi.CreateVolumeRequest) { r.Parameters["transport"] = "RDMA" }, codes.InvalidArgument,
			[]string{"has no RDMA; use TCP, or add RDMA"}},
		"more queues than the target takes": {func(r *csi.CreateVolumeRequest) { r.Parameters["ioQueues"] = "9" }, codes.InvalidArgument,
			[]string{"9 is greater than 8"}},
		"dangerous mount option": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].GetMount().MountFlags = []string{"noatime", "barrier=0"}
		}, codes.InvalidArgument, []string{"mountOptions: remove barrier=0", "would be lost"}},
		"no capability": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument, []string{"is required"}},
		"ReadWriteMany": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, []string{"ReadWriteMany", "only with volumeMode: Block", "use ReadWriteOnce"}},
		"one writer among readers": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
		}, codes.InvalidArgument, []string{"not supported", "use ReadWriteOnce"}},
		"ReadOnlyMany": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		}, codes.InvalidArgument, []string{"ReadOnlyMany", "dataSource"}},
		"btrfs": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = mount("btrfs") }, codes.InvalidArgument, []string{"btrfs", "ext4 or xfs"}},
		"two filesystems": {func(r *csi.CreateVolumeRequest) { r.Parameters["csi.storage.k8s.io/fstype"] = "xfs" }, codes.InvalidArgument,
			[]string{"they must be equal"}},
		"neither block nor mount":    {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }, codes.InvalidArgument, []string{"neither block nor mount"}},
		"no access mode":             {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode = nil }, codes.InvalidArgument, []string{"no access mode"}},
		"an unknown snapshot":        {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = ofSnapshot("unknown") }, codes.NotFound, []string{"snapshot unknown not found"}},
		"a source volume unknown":    {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = ofVolume("unknown") }, codes.NotFound, []string{"volume unknown not found"}},
		"a snapshot with a bad name": {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = ofSnapshot("A B") }, codes.NotFound, nil},
		"a source without an id":     {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = ofSnapshot("") }, codes.InvalidArgument, []string{"snapshot_id"}},
		"a source of neither kind": {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument,
			[]string{"neither a snapshot nor a volume"}},
		"mutable parameters":            {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} }, codes.InvalidArgument, []string{"VolumeAttributesClass parameters", "supported parameters: replicas, replaceLostReplicaAfter, iops"}},
		"limits on the kernel's target": {func(r *csi.CreateVolumeRequest) { r.Parameters["iops"] = "1000" }, codes.InvalidArgument, []string{"engine Nvmet"}},
		"size zero":                     {func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} }, codes.InvalidArgument, []string{"size is zero", "4Mi"}},
		"a negative size":               {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 }, codes.InvalidArgument, []string{"negative"}},
		"a limit below the size": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = gi - 1 }, codes.InvalidArgument,
			[]string{"required_bytes (1Gi) is greater than limit_bytes"}},
		"no step within the limit": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: gi + 1, LimitBytes: gi + 2}
		}, codes.OutOfRange, []string{"multiples of 4Mi"}},
		"a huge size": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1<<63 - 1 }, codes.OutOfRange, nil},
		"a small xfs": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = mount("xfs")
			r.CapacityRange.RequiredBytes = 295 << 20
		}, codes.OutOfRange, []string{"296Mi is too small", "300Mi", "ext4"}},
		"a small ext4": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 11 << 20 }, codes.OutOfRange, []string{"16Mi"}},
		"no room":      {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 11 * gi }, codes.ResourceExhausted, []string{"11Gi", st.nodes[0] + ": at most 10Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			req := createRequest(st, own(t, "v"), gi)
			tc.change(req)
			_, err := s.CreateVolume(within(t, enough), req)
			expectError(t, err, tc.code, tc.says...)
			if req.Name != "" && volume(t, req.Name) != nil {
				t.Error("an object was made")
			}
		})
	}
}

func TestCreateWithoutNodes(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed, "the drive is gone")}
	})
	seen(t, s, st)
	_, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "v"), gi))
	expectError(t, err, codes.FailedPrecondition, st.nodes[0], "PoolFailed", "the drive is gone")

	// A target that no node can serve: the user learns what the operator found.
	var target v1alpha1.NvmfTarget
	if err := api.Get(t.Context(), keyOf(st.target), &target); err != nil {
		t.Fatal(err)
	}
	bare := target.DeepCopy()
	bare.ObjectMeta = metav1.ObjectMeta{Name: own(t, "bare")}
	create(t, bare)
	bare.Status.NotCapable = []v1alpha1.NotCapableNode{{Node: "worker-1", Reason: v1alpha1.ReasonNoRDMADevice, Message: "no RDMA device; use TCP"}}
	if err := api.Status().Update(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	NewWithT(t).Eventually(func() error {
		_, err := s.CreateVolume(within(t, enough), createRequest(storage{target: bare.Name}, own(t, "w"), gi))
		return err
	}).WithTimeout(enough).Should(MatchError(And(ContainSubstring("worker-1: not capable (NoRDMADevice: no RDMA device; use TCP)"), ContainSubstring("FailedPrecondition"))))
}

func TestCreateAgain(t *testing.T) {
	st := newStorageOf(t, onSPDK, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name := own(t, "v")
	req := createRequest(st, name, gi)
	req.Parameters["ioQueues"], req.Parameters["iops"] = "4", "1000"
	first, err := s.CreateVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	uuid := volume(t, name).Spec.UUID
	for what, change := range map[string]func(*csi.CreateVolumeRequest){
		"the same":           func(*csi.CreateVolumeRequest) {},
		"any size up to it":  func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = gi - 5 },
		"no size":            func(r *csi.CreateVolumeRequest) { r.CapacityRange = nil },
		"default parameters": func(r *csi.CreateVolumeRequest) { delete(r.Parameters, "ioQueues") },
		"its limits from a class": func(r *csi.CreateVolumeRequest) {
			delete(r.Parameters, "iops")
			r.MutableParameters = map[string]string{"iops": "1000"}
		},
		"its transport said": func(r *csi.CreateVolumeRequest) { r.Parameters["transport"] = "TCP" },
		"as a block device": func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
		},
	} {
		again := createRequest(st, name, gi)
		again.Parameters["ioQueues"], again.Parameters["iops"] = "4", "1000"
		change(again)
		resp, err := s.CreateVolume(within(t, enough), again)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if diff := cmp.Diff(first.Volume.VolumeContext, resp.Volume.VolumeContext); diff != "" || resp.Volume.CapacityBytes != gi || volume(t, name).Spec.UUID != uuid {
			t.Errorf("%s: %s %v", what, diff, resp)
		}
	}
	for says, change := range map[string]func(*csi.CreateVolumeRequest){
		"its size is 1Gi":                 func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 2 * gi },
		"which is not the requested size": func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: gi / 2} },
		"not RDMA,TCP":                    func(r *csi.CreateVolumeRequest) { r.Parameters["transport"] = "TCP,RDMA" },
		"transport is TCP":                func(r *csi.CreateVolumeRequest) { r.Parameters["transport"] = "RDMA" },
		"ioQueues is 4, not 2":            func(r *csi.CreateVolumeRequest) { r.Parameters["ioQueues"] = "2" },
		"not another":                     func(r *csi.CreateVolumeRequest) { r.Parameters["target"] = "another" },
		"ctrlLossTimeout is -1,":          func(r *csi.CreateVolumeRequest) { r.Parameters["ctrlLossTimeout"] = "60" },
		"iops=1000, not none":             func(r *csi.CreateVolumeRequest) { delete(r.Parameters, "iops") },
		"not iops=2000":                   func(r *csi.CreateVolumeRequest) { r.Parameters["iops"] = "2000" },
		"not iops=1000,bandwid":           func(r *csi.CreateVolumeRequest) { r.Parameters["bandwidth"] = "10Mi" },
		"not readBandwidth=1Mi,writeBandwidth=1Mi": func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"writeBandwidth": "1Mi", "readBandwidth": "1Mi"}
		},
	} {
		other := createRequest(st, name, gi)
		other.Parameters["iops"] = "1000"
		change(other)
		_, err := s.CreateVolume(within(t, enough), other)
		expectError(t, err, codes.AlreadyExists, says)
	}

	// A late answer is no other one because the limits were changed meanwhile.
	changed := map[string]string{"iops": "2000"}
	if _, err := s.ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: name, MutableParameters: changed}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Error(err)
	}
	req.MutableParameters = changed
	_, err = s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.AlreadyExists, "limits iops=1000, not iops=2000")
}

func TestCreateUnderAnyName(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	for _, name := range []string{"Some Name_" + own(t, ""), own(t, strings.Repeat("n", 129)), "ünïcode\n" + own(t, "v")} {
		resp, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi))
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		id := resp.Volume.VolumeId
		if !validID(id) || volume(t, id).Annotations[requestNameAnnotation] != name {
			t.Errorf("%q became %q", name, id)
		}
		// The id itself is another name, although it leads to the same object.
		_, err = s.CreateVolume(within(t, enough), createRequest(st, id, gi))
		expectError(t, err, codes.AlreadyExists, "created for the name")
	}
}

func TestCreateOnASilentNode(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	silence(t, st.nodes[0])
	name := own(t, "v")
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, createRequest(st, name, gi))
		return err
	})
	expectError(t, err, codes.Unavailable, name, st.nodes[0], "Created", "not reported")
	before := volume(t, name)
	if before == nil || before.DeletionTimestamp != nil {
		t.Fatalf("the object did not stay: %+v", before)
	}
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Conditions = append(n.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "no sign for a minute"))
	})
	seen(t, s, st)
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, createRequest(st, name, gi))
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0]+" is not AgentAlive", "no sign for a minute")

	done := make(chan error, 1)
	go func() {
		_, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi))
		done <- err
	}()
	agents[st.nodes[0]].Start(t.Context())
	if err := <-done; err != nil {
		t.Error(err)
	}
	if after := volume(t, name); after.UID != before.UID || after.Spec.UUID != before.Spec.UUID {
		t.Error("the volume was made twice")
	}
}

func TestCreateOneAtATime(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	silence(t, st.nodes[0])
	name := own(t, "v")
	done := make(chan error, 1)
	go func() {
		_, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi))
		done <- err
	}()
	NewWithT(t).Eventually(func() *v1alpha1.NvmfVolume { return volume(t, name) }).WithTimeout(enough).ShouldNot(BeNil())
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, createRequest(st, name, gi))
		return err
	})
	expectError(t, err, codes.Aborted, "another operation on volume ", "in progress")
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: name})
		return err
	})
	expectError(t, err, codes.Aborted, "another operation on volume ", "in progress")
	agents[st.nodes[0]].Start(t.Context())
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCreateElsewhereWhenTheAgentHasNoRoom(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	// What the node says it has is more than what its agent finds.
	agents[st.nodes[0]].NoRoom(true)
	seen(t, s, st)
	name := own(t, "v")
	resp, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi))
	if err != nil {
		t.Fatal(err)
	}
	if got := replica(t, resp.Volume.VolumeId).Spec.Node; got != st.nodes[1] {
		t.Errorf("placed on %s", got)
	}
	agents[st.nodes[1]].NoRoom(true)
	_, err = s.CreateVolume(within(t, enough), createRequest(st, own(t, "w"), gi))
	expectError(t, err, codes.ResourceExhausted, st.nodes[0]+": its agent found no space", st.nodes[1]+": its agent found no space")
	if volume(t, own(t, "w")) != nil {
		t.Error("the volume that nobody has room for is still there")
	}
}

func TestCreateWaitsForTheDeletionOfItsPredecessor(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name := newVolume(t, s, st, "v")
	first := volume(t, name)
	silence(t, st.nodes[0])
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: name})
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0])
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, createRequest(st, name, gi))
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0], "Deleted")
	agents[st.nodes[0]].Start(t.Context())
	if _, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi)); err != nil {
		t.Fatal(err)
	}
	if volume(t, name).Spec.UUID == first.Spec.UUID {
		t.Error("a deleted volume came back")
	}
}

// A target has subsystems for so many volumes. The next one goes elsewhere, and is refused when there is nowhere.
func TestCreateCountsVolumes(t *testing.T) {
	st := newStorage(t, 2, 100*gi)
	s, _ := newService(t)
	planSPDK(t, st.nodes[0], 3) // for two volumes
	planSPDK(t, st.nodes[1], 2)
	seen(t, s, st)
	placed := map[string]int{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 3 {
		wg.Go(func() {
			resp, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			placed[replica(t, resp.Volume.VolumeId).Spec.Node]++
		})
	}
	wg.Wait()
	if placed[st.nodes[0]] != 2 || placed[st.nodes[1]] != 1 {
		t.Errorf("placed %v", placed)
	}
	_, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "one-more"), gi))
	expectError(t, err, codes.ResourceExhausted, st.nodes[0]+": it has 2 volumes, the maximum number of its target", st.nodes[1]+": it has 1 volume, the maximum")

	// A volume that is gone leaves its place.
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: own(t, "0")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "one-more"), gi)); err != nil {
		t.Error(err)
	}
}

func TestCreateTwoHundredAtOnce(t *testing.T) {
	const nodes, each = 4, 50
	st := newStorage(t, nodes, each*(gi+overhead))
	s, _ := newService(t)
	seen(t, s, st)
	errs := make([]error, nodes*each)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = s.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	for _, n := range st.nodes {
		volumes, _ := holds(t, n)
		if made := agents[n].Made(); len(volumes) != each || len(made) != each {
			t.Errorf("%s holds %d volumes and made %d, want %d", n, len(volumes), len(made), each)
		}
	}
	_, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "one-more"), gi))
	expectError(t, err, codes.ResourceExhausted, "at most 0")
}

func TestCreateSurvivesARestart(t *testing.T) {
	const count = 10
	st := newStorage(t, 2, 100*gi)
	s, kill := newService(t)
	seen(t, s, st)
	for _, n := range st.nodes {
		silence(t, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			_, err := s.CreateVolume(ctx, createRequest(st, own(t, fmt.Sprint(i)), gi)) //nolint:contextcheck // what was left is swept away with the test's context
			if err == nil {
				t.Error("created by nobody")
			}
		})
	}
	uuids := map[string]string{}
	NewWithT(t).Eventually(func() int {
		for i := range count {
			if v := volume(t, own(t, fmt.Sprint(i))); v != nil {
				uuids[v.Name] = v.Spec.UUID
			}
		}
		return len(uuids)
	}).WithTimeout(enough).Should(Equal(count))
	cancel()
	kill()
	wg.Wait()

	s, _ = newService(t)
	for i := range count {
		wg.Go(func() {
			if _, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi)); err != nil {
				t.Error(err)
			}
		})
	}
	for _, n := range st.nodes {
		agents[n].Start(t.Context())
	}
	wg.Wait()
	made := 0
	for _, n := range st.nodes {
		made += len(agents[n].Made())
	}
	if made != count {
		t.Errorf("%d volumes were made, want %d", made, count)
	}
	for name, uuid := range uuids {
		if volume(t, name).Spec.UUID != uuid {
			t.Errorf("%s was made anew", name)
		}
	}
}

func TestCreateByTwoReplicasAtOnce(t *testing.T) {
	st := newStorage(t, 2, 100*gi)
	a, _ := newService(t)
	b, _ := newService(t)
	seen(t, a, st)
	seen(t, b, st)
	var wg sync.WaitGroup
	for i := range 20 {
		for _, s := range []*Service{a, b} {
			wg.Go(func() {
				if _, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	made := 0
	for _, n := range st.nodes {
		made += len(agents[n].Made())
	}
	if made != 20 {
		t.Errorf("%d volumes were made, want 20", made)
	}
}

func TestCreateWithoutADeadlineEndsWithTheCaller(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	silence(t, st.nodes[0])
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.CreateVolume(ctx, createRequest(st, own(t, "v"), gi)) //nolint:contextcheck // what was left is swept away with the test's context
		done <- err
	}()
	NewWithT(t).Eventually(func() *v1alpha1.NvmfVolume { return volume(t, own(t, "v")) }).WithTimeout(enough).ShouldNot(BeNil())
	cancel()
	select {
	case err := <-done:
		if c := status.Code(err); c != codes.Unavailable && c != codes.Canceled {
			t.Errorf("got %v", err)
		}
	case <-time.After(enough):
		t.Fatal("the call goes on without its caller")
	}
}

func TestCreateInAZone(t *testing.T) {
	st := newStorage(t, 3, 10*gi)
	for i, zone := range []string{"east", "west"} {
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[i], Labels: map[string]string{corev1.LabelTopologyZone: zone}}})
	}
	s, _ := newService(t)
	seen(t, s, st)
	for i := range 3 {
		req := createRequest(st, own(t, fmt.Sprint("v", i)), gi)
		req.Parameters["zones"] = "west"
		if _, err := s.CreateVolume(within(t, enough), req); err != nil {
			t.Fatal(err)
		}
		if got := replica(t, req.Name).Spec.Node; got != st.nodes[1] {
			t.Errorf("made on %s", got)
		}
	}
	capacity, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target, "zones": "east,west"}})
	if err != nil || capacity.AvailableCapacity != 17*gi-5*overhead {
		t.Errorf("got %v, %v", capacity, err)
	}
	req := createRequest(st, own(t, "v"), gi)
	req.Parameters["zones"] = "north"
	_, err = s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.FailedPrecondition, `it is in zone "east", not in north`)
}

// blind shows no volume, as the cache of a replica that is behind.
type blind struct{ client.Client }

func (b blind) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, ok := obj.(*v1alpha1.NvmfVolume); ok {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("nvmfvolumes").GroupResource(), key.Name)
	}
	return b.Client.Get(ctx, key, obj, opts...)
}

// A replica whose cache does not show a volume answers as the others do, be it that it could not make it any more.
func TestCreateBehindTheCache(t *testing.T) {
	st := newStorage(t, 1, gi+overhead)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "vol")
	s.client = blind{s.client}
	again := func(size int64) (*csi.CreateVolumeResponse, error) {
		return s.CreateVolume(within(t, enough), createRequest(st, id, size))
	}
	for _, change := range []func(){
		func() {},
		func() { setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) { n.Pools = nil }) },
	} {
		change()
		seen(t, s, st)
		resp, err := again(gi)
		if err != nil || resp.Volume.VolumeId != id {
			t.Errorf("got %v, %v", resp, err)
		}
		_, err = again(2 * gi)
		expectError(t, err, codes.AlreadyExists, "its size is 1Gi")
	}
	if made, uuid := agents[st.nodes[0]].Made(), volume(t, id).Spec.UUID; len(made) != 1 || made[uuid] != 1 {
		t.Errorf("made %v, want %s once", made, uuid)
	}
}
