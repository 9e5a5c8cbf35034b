// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
	"github.com/weft-storage/weft/csi-driver/internal/server"
)

func TestCapabilities(t *testing.T) {
	resp, err := (&Service{}).ControllerGetCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range resp.Capabilities {
		got = append(got, c.GetRpc().Type.String())
	}
	NewWithT(t).Expect(got).To(ConsistOf("CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_CAPACITY", "EXPAND_VOLUME", "MODIFY_VOLUME", "CREATE_DELETE_SNAPSHOT", "CLONE_VOLUME",
		"LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES", "GET_VOLUME", "LIST_SNAPSHOTS", "GET_SNAPSHOT",
		"GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH", server.ControllerVolumeCondition.String()))
}

func TestCapacity(t *testing.T) {
	g := NewWithT(t)
	st := newStorage(t, 2, 10*gi, v1alpha1.TransportTCP)
	s, _ := newService(t)
	seen(t, s, st)
	req := &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target}}
	resp, err := s.GetCapacity(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.AvailableCapacity).To(Equal(20*gi - 2*overhead))
	g.Expect(resp.MaximumVolumeSize.Value).To(Equal(10*gi - overhead))
	g.Expect(resp.MinimumVolumeSize.Value).To(Equal(int64(4 << 20)))
	newVolume(t, s, st, "v")
	// As csi-provisioner asks: with a segment of the topology, and all that is in the StorageClass.
	req.AccessibleTopology = &csi.Topology{Segments: map[string]string{v1alpha1.ReachesLabel: v1alpha1.ReachesVolumes}}
	req.Parameters["csi.storage.k8s.io/fstype"], req.Parameters["csi.storage.k8s.io/node-stage-secret-name"] = "xfs", "some"
	resp, err = s.GetCapacity(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.AvailableCapacity).To(Equal(19*gi - 3*overhead))
	g.Expect(resp.MaximumVolumeSize.Value).To(Equal(10*gi-overhead), "the drive of the node without the volume")
	for _, name := range st.nodes {
		setPlan(t, name, func(p *v1alpha1.Plan) { p.OverProvisioningPercent = 300 })
	}
	g.Eventually(func(g Gomega) {
		resp, err := s.GetCapacity(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.AvailableCapacity).To(Equal(59*gi - 3*overhead))
		g.Expect(resp.MaximumVolumeSize.Value).To(Equal(10*gi-overhead), "no volume is larger than its drive")
	}).WithTimeout(enough).Should(Succeed())
	resp, err = s.GetCapacity(t.Context(), &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{mount("xfs")}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.AvailableCapacity).To(BeNumerically(">=", 59*gi-3*overhead), "all targets together")
	g.Expect(resp.MinimumVolumeSize.Value).To(Equal(int64(300 << 20)))

}

// The scheduler lets claims of a class with wrong parameters through, and CreateVolume says what is wrong with it.
func TestCapacityOfAWrongClass(t *testing.T) {
	st := newStorage(t, 1, 10*gi, v1alpha1.TransportTCP)
	s, _ := newService(t)
	seen(t, s, st)
	for words, wrong := range map[string]map[string]string{
		"has no RDMA": {"target": st.target, "transport": "RDMA"}, st.target: {"target": "quick"}, `"size" is unknown; supported `: {"target": st.target, "size": "1"},
		"has no device classes; remove deviceClass, or set devices.classes of the target": {"target": st.target, "deviceClass": "qlc"},
	} {
		resp, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: wrong})
		if err != nil || resp.AvailableCapacity != 0 || resp.MaximumVolumeSize.GetValue() != 8<<50 {
			t.Errorf("%v: got %v, %v", wrong, resp, err)
		}
		req := createRequest(st, own(t, "v"), gi)
		req.Parameters = wrong
		_, err = s.CreateVolume(within(t, enough), req)
		expectError(t, err, codes.InvalidArgument, words)
	}
}

// A claim of all that is published is bound, be it to the last drive; then nothing is published, and the smallest claim
// finds no room.
func TestCapacityCanBeHad(t *testing.T) {
	st := newStorage(t, 2, 10*gi+1) // drives are not made in steps of volumes
	s, _ := newService(t)
	seen(t, s, st)
	capacity := func() (available, largest int64) {
		t.Helper()
		resp, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.AvailableCapacity, resp.MaximumVolumeSize.Value
	}
	asBlock := func(name string, size int64) *csi.CreateVolumeRequest {
		req := createRequest(st, own(t, name), size)
		req.VolumeCapabilities = []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}
		return req
	}
	for _, name := range []string{"a", "b"} {
		_, largest := capacity()
		if largest != 10*gi-overhead {
			t.Errorf("the largest volume has %d bytes, want %d", largest, 10*gi-overhead)
		}
		_, err := s.CreateVolume(within(t, enough), asBlock(name+"-larger", largest+sizeStep))
		expectError(t, err, codes.ResourceExhausted, "at most")
		resp, err := s.CreateVolume(within(t, enough), asBlock(name, largest))
		if err != nil {
			t.Fatal(err)
		}
		if vol := replica(t, resp.Volume.VolumeId); resp.Volume.CapacityBytes != largest || vol.Status.Size.Value() != largest {
			t.Errorf("asked for %d, got %v, and its node serves %s", largest, resp.Volume, vol.Status.Size)
		}
	}
	if available, largest := capacity(); available != 0 || largest != 0 {
		t.Errorf("%d are published, and %d for one", available, largest)
	}
	_, err := s.CreateVolume(within(t, enough), asBlock("smallest", sizeStep))
	expectError(t, err, codes.ResourceExhausted, "at most 0")

	// Where a header alone has room, nothing is published either.
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: own(t, "a")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateVolume(within(t, enough), asBlock("leaves-little", 10*gi-2*overhead)); err != nil {
		t.Fatal(err)
	}
	if available, largest := capacity(); available > 1 || largest != 0 {
		t.Errorf("%d are published, and %d for one", available, largest)
	}
}

// The smallest volume is as large as its header.
func TestTheSmallestVolume(t *testing.T) {
	st := newStorage(t, 1, sizeStep+overhead)
	s, _ := newService(t)
	seen(t, s, st)
	req := createRequest(st, own(t, "v"), 1)
	req.VolumeCapabilities = []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}
	resp, err := s.CreateVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	if vol := replica(t, resp.Volume.VolumeId); resp.Volume.CapacityBytes != 4<<20 || vol.Status.Size.Value() != 4<<20 {
		t.Errorf("got %v, and its node serves %s", resp.Volume, vol.Status.Size)
	}
	_, err = s.ControllerExpandVolume(within(t, enough), expandRequest(req.Name, 2*sizeStep))
	expectError(t, err, codes.OutOfRange, "has space for at most 4Mi")
}

func TestValidate(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	resp, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "v"), 100<<20))
	if err != nil {
		t.Fatal(err)
	}
	id := resp.Volume.VolumeId
	base := func() *csi.ValidateVolumeCapabilitiesRequest {
		return &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeContext: resp.Volume.VolumeContext, Parameters: map[string]string{"target": st.target},
			VolumeCapabilities: []*csi.VolumeCapability{mount("ext4"), block(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)},
		}
	}
	got, err := s.ValidateVolumeCapabilities(t.Context(), base())
	if err != nil || got.Confirmed == nil || len(got.Confirmed.VolumeCapabilities) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for says, change := range map[string]func(*csi.ValidateVolumeCapabilitiesRequest){
		"ReadWriteMany": func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		},
		"300Mi":                              func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities[0] = mount("xfs") },
		"volume attributes: target is other": func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext = map[string]string{"target": "other"} },
		"transport is TCP":                   func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters["transport"] = "RDMA" },
		`"copies" is unknown; supported `:    func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters["copies"] = "2" },
		"replicas is 1, not 2":               func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters["replicas"] = "2" },
	} {
		req := base()
		change(req)
		got, err := s.ValidateVolumeCapabilities(t.Context(), req)
		if err != nil || got.Confirmed != nil {
			t.Errorf("%s: got %v, %v", says, got, err)
		}
		NewWithT(t).Expect(got.GetMessage()).To(ContainSubstring(says))
	}
	_, err = s.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id})
	expectError(t, err, codes.InvalidArgument)
	req := base()
	req.VolumeId = ""
	_, err = s.ValidateVolumeCapabilities(t.Context(), req)
	expectError(t, err, codes.InvalidArgument)
	req.VolumeId = "unknown"
	_, err = s.ValidateVolumeCapabilities(t.Context(), req)
	expectError(t, err, codes.NotFound)
}

// A caller whose deadline is over hears only that; the explanation must come before.
func TestExplanationsArriveBeforeTheDeadline(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	silence(t, st.nodes[0])
	socket := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	err = inVain(t, func(ctx context.Context) error {
		_, err := csi.NewControllerClient(conn).CreateVolume(ctx, createRequest(st, own(t, "v"), gi)) //nolint:contextcheck // what was left is swept away with the test's context
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0])
}

func TestCodes(t *testing.T) {
	nv := schema.GroupResource{Group: "weft.storage", Resource: "nvmfvolumes"}
	for _, tc := range []struct {
		err  error
		want codes.Code
	}{
		{failf(invalid, "x"), codes.InvalidArgument},
		{failf(outOfRange, "x"), codes.OutOfRange},
		{failf(notFound, "x"), codes.NotFound},
		{failf(exists, "x"), codes.AlreadyExists},
		{failf(inUse, "x"), codes.FailedPrecondition},
		{failf(busy, "x"), codes.Aborted},
		{failf(full, "x"), codes.ResourceExhausted},
		{failf(waiting, "x"), codes.Unavailable},
		{&parameters.Error{}, codes.InvalidArgument},
		{&placement.NoNodeError{}, codes.FailedPrecondition},
		{&placement.NoRoomError{}, codes.ResourceExhausted},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		// The API server has said no: nothing was made.
		{apierrors.NewForbidden(nv, "v", nil), codes.Internal},
		{apierrors.NewInvalid(schema.GroupKind{}, "v", nil), codes.Internal},
		// It may have been made: the provisioner must ask again.
		{apierrors.NewTimeoutError("slow", 1), codes.Unavailable},
		{apierrors.NewInternalError(errors.New("etcd")), codes.Unavailable},
		{apierrors.NewTooManyRequests("busy", 1), codes.Unavailable},
		{errors.New("connection reset by peer"), codes.Unavailable},
	} {
		if got := code(fmt.Errorf("wrapped: %w", tc.err)); got != tc.want {
			t.Errorf("%T %v: got %s, want %s", tc.err, tc.err, got, tc.want)
		}
	}
	if toStatus(nil) != nil {
		t.Error("no error became one")
	}
}

func TestSizes(t *testing.T) {
	const step = sizeStep
	for name, tc := range map[string]struct {
		in   *csi.CapacityRange
		want int64
	}{
		"default":                  {nil, gi},
		"default within the limit": {&csi.CapacityRange{LimitBytes: 5*step + 7}, 5 * step},
		"default below the limit":  {&csi.CapacityRange{LimitBytes: 2 * gi}, gi},
		"a whole step":             {&csi.CapacityRange{RequiredBytes: 7 * step}, 7 * step},
		"rounded up":               {&csi.CapacityRange{RequiredBytes: 7*step + 1}, 8 * step},
		"exactly the limit":        {&csi.CapacityRange{RequiredBytes: 7*step + 1, LimitBytes: 8 * step}, 8 * step},
		"one byte":                 {&csi.CapacityRange{RequiredBytes: 1}, step},
	} {
		r, err := newSizeRange(tc.in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := r.choose(step, ""); err != nil || got != tc.want {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, tc.want)
		}
	}
}
