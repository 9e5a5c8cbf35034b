// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/tracing"
	"github.com/weft-storage/weft/test/agenttest"
)

// newSPDK is storage of one node with the real engine for SPDK, on a target that stands in for it, and an agent that is
// traced.
func newSPDK(t *testing.T, traces trace.TracerProvider) storage {
	t.Helper()
	st := storage{target: own(t, "target"), nodes: []string{own(t, "node-0")}}
	dir, err := os.MkdirTemp("", "weft") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	node, err := agenttest.New(context.WithoutCancel(t.Context()), st.nodes[0], dir, 4*gi, false)
	if err != nil {
		t.Fatal(err)
	}
	create(t, &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: st.target},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine: v1alpha1.EngineSPDK, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/target": st.target}},
			Transports: []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: agenttest.TCP.Port}, {Type: v1alpha1.TransportRDMA, Port: agenttest.RDMA.Port}},
			Devices:    v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: poolDevice, Size: resource.MustParse("1Gi")}},
		},
	})
	create(t, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[0]}, Spec: v1alpha1.NvmfNodeSpec{Target: st.target, Plan: node.Plan()}})
	ctx, stop := context.WithCancel(tracing.NewContext(t.Context(), traces))
	ended := make(chan error, 1)
	go func() { ended <- node.RunAgent(ctx, restConfig, func(do func() error) error { return do() }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		node.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	NewWithT(t).Eventually(func() bool {
		return meta.IsStatusConditionTrue(nvmfNode(t, st.nodes[0]).Status.Conditions, v1alpha1.ConditionReady)
	}).WithTimeout(enough).Should(BeTrue())
	return st
}

// dial serves the service on a socket, in a context, as its program does.
func dial(ctx context.Context, t *testing.T, s *Service) csi.ControllerClient {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	listener, err := server.Listen(ctx, "unix://"+dir+"/csi.sock")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) { csi.RegisterControllerServer(r, s) })
	}()
	conn, err := grpc.NewClient("unix://"+dir+"/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return csi.NewControllerClient(conn)
}

// sidecar makes a call in a trace of its own.
func sidecar(t *testing.T, trace string) context.Context {
	return metadata.AppendToOutgoingContext(within(t, enough), "traceparent", "00-"+trace+"-0102030405060708-01")
}

// has an attribute.
func has(want ...attribute.KeyValue) func(tracetest.SpanStub) bool {
	return func(span tracetest.SpanStub) bool {
		return !slices.ContainsFunc(want, func(a attribute.KeyValue) bool { return !slices.Contains(span.Attributes, a) })
	}
}

// One volume, from the sidecar's call to the RPCs of its node's target, and out again: each call is one trace through
// all processes. None has a key of the volume's hosts.
func TestAVolumeIsTracedFromTheCallToTheEngine(t *testing.T) {
	g := NewWithT(t)
	ctx, spans := nodetest.NewSpans(t.Context())
	st := newSPDK(t, tracing.Provider(ctx))
	s, _ := newService(t)
	client := dial(ctx, t, s)
	id, host := own(t, "vol"), newHost(t, "host")
	identity := plugin(t, host)
	claim := tracing.ClaimKey.String("shop/data")

	// traced awaits the call, and the replica in the agent's round, and tells what is below the call.
	traced := func(trace, method string, words ...string) {
		t.Helper()
		call, err := spans.Await(within(t, enough), method, has(tracing.VolumeKey.String(id)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(call.SpanContext.TraceID().String()).To(Equal(trace))
		g.Expect(call.Parent.SpanID().String()).To(Equal("0102030405060708"), "the sidecar's span")
		inTrace := func(span tracetest.SpanStub) bool { return span.SpanContext.TraceID() == call.SpanContext.TraceID() }
		rep, err := spans.Await(within(t, enough), "reconcile replica", func(span tracetest.SpanStub) bool {
			return inTrace(span) && has(tracing.VolumeKey.String(id))(span) && len(span.Events) > 0
		})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = spans.Await(within(t, enough), "reconcile node", func(span tracetest.SpanStub) bool {
			return inTrace(span) && span.SpanContext.SpanID() == rep.Parent.SpanID()
		})
		g.Expect(err).NotTo(HaveOccurred())
		names := nodetest.Names(nodetest.Below(spans.Ended(), call))
		t.Logf("%s: %d spans: %q", method, 1+len(names), names)
		for _, name := range append(words, "wait for NvmfReplica", "reconcile node", "reconcile replica", "gather", "publish") {
			g.Expect(names).To(ContainElement(name), method)
		}
	}

	const created, published, unpublished, deleted = "c0000000000000000000000000000001", "a0000000000000000000000000000002", "a0000000000000000000000000000003", "d0000000000000000000000000000004"
	req := createRequest(st, id, gi)
	req.Parameters["csi.storage.k8s.io/pvc/name"], req.Parameters["csi.storage.k8s.io/pvc/namespace"] = "data", "shop"
	_, err := client.CreateVolume(sidecar(t, created), req)
	g.Expect(err).NotTo(HaveOccurred())
	traced(created, "CreateVolume", "create NvmfVolume", "create NvmfReplica", "engine CreateVolumes", "SPDK bdev_lvol_create")
	_, err = spans.Await(within(t, enough), "CreateVolume", has(claim))
	g.Expect(err).NotTo(HaveOccurred())

	_, err = client.ControllerPublishVolume(sidecar(t, published), publishRequest(id, host))
	g.Expect(err).NotTo(HaveOccurred())
	traced(published, "ControllerPublishVolume", "patch NvmfVolume", "patch NvmfReplica", "engine Export", "SPDK keyring_file_add_key", "SPDK nvmf_create_subsystem", "SPDK nvmf_subsystem_add_host")
	keys, err := identity.Open(onlyHost(t, id).SealedKeys)
	g.Expect(err).NotTo(HaveOccurred())

	_, err = client.ControllerUnpublishVolume(sidecar(t, unpublished), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: host})
	g.Expect(err).NotTo(HaveOccurred())
	traced(unpublished, "ControllerUnpublishVolume", "patch NvmfReplica")
	_, err = client.DeleteVolume(sidecar(t, deleted), &csi.DeleteVolumeRequest{VolumeId: id})
	g.Expect(err).NotTo(HaveOccurred())
	traced(deleted, "DeleteVolume", "delete NvmfReplica", "engine DeleteVolumes")

	all := fmt.Sprintf("%+v", spans.Ended())
	g.Expect(all).To(ContainSubstring("shop/data"), "what spans have is not shown")
	for _, key := range []string{keys.Host.Text(), keys.Controller.Text()} {
		g.Expect(strings.Contains(all, strings.Split(key, ":")[2])).To(BeFalse(), "a span has a key")
	}
}

// What a call fails with is in its trace.
func TestFailedCallsAreTraced(t *testing.T) {
	g := NewWithT(t)
	ctx, spans := nodetest.NewSpans(t.Context())
	s, _ := newService(t)
	id := own(t, "vol")
	_, err := dial(ctx, t, s).CreateVolume(within(t, enough), createRequest(storage{target: "nowhere"}, id, gi))
	g.Expect(err).To(HaveOccurred())
	_, err = spans.Await(within(t, enough), "CreateVolume", has(tracing.VolumeKey.String(id), attribute.String("rpc.response.status_code", "INVALID_ARGUMENT")))
	g.Expect(err).NotTo(HaveOccurred())
}

// Outside of a trace, nothing is left on objects, and what an earlier call left there is taken away.
func TestObjectsHaveNoTraceWhileItIsOff(t *testing.T) {
	g := NewWithT(t)
	ctx, spans := nodetest.NewSpans(t.Context())
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	left := func(id string) (found []string) {
		for _, annotations := range []map[string]string{volume(t, id).Annotations, replica(t, id).Annotations} {
			if parent, ok := annotations[v1alpha1.TraceParentKey]; ok {
				found = append(found, parent)
			}
		}
		return found
	}
	off, on := own(t, "off"), own(t, "on")
	_, err := dial(t.Context(), t, s).CreateVolume(sidecar(t, "c0000000000000000000000000000001"), createRequest(st, off, gi))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left(off)).To(BeEmpty())
	g.Expect(spans.Ended()).To(BeEmpty())

	_, err = dial(ctx, t, s).CreateVolume(sidecar(t, "c0000000000000000000000000000002"), createRequest(st, on, gi))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left(on)).To(HaveLen(2))
	g.Expect(left(on)).To(HaveEach(HavePrefix("00-c0000000000000000000000000000002-")))
	_, err = s.ControllerExpandVolume(within(t, enough), &csi.ControllerExpandVolumeRequest{VolumeId: on, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gi}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left(on)).To(BeEmpty())
}
