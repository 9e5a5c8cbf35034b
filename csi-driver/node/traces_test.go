// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/tracing"
)

// traced serves the node service again, to be traced.
func (s *suite) traced() *nodetest.Spans {
	s.Helper()
	ctx, spans := nodetest.NewSpans(s.Context())
	s.NodeClient = csi.NewNodeClient(s.dial(tracing.Provider(ctx)))
	return spans
}

// traceOf the one call of a method: its span, and those below it.
func traceOf(t *testing.T, spans *nodetest.Spans, method string) (call tracetest.SpanStub, below tracetest.SpanStubs) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call, err := spans.Await(ctx, method, nodetest.Any)
	must(t, err)
	return call, nodetest.Below(spans.Ended(), call)
}

// A call is traced with the steps by which a volume's stack is built, and without the keys by which it is connected
// and opened; be it that a step fails.
func TestCallsAreTracedWithoutKeys(t *testing.T) {
	s, keys := keyed(t)
	s.context.Encryption, s.secrets = v1alpha1.EncryptionLUKS2, map[string]string{"passphrase": firstKey}
	s.context.Claim, s.context.ClaimNamespace = "data", "shop"
	s.context.TraceParent = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"
	spans := s.traced()

	must(t, s.stage(mountCapability("ext4")))
	call, steps := traceOf(t, spans, "NodeStageVolume")
	for _, step := range []string{
		"read attachment", "connect", "wait for namespace", "prepare encryption", "running cryptsetup", "build device", "prepare filesystem",
		"running mkfs.ext4", "mounting",
	} {
		if !slices.Contains(nodetest.Names(steps), step) {
			t.Errorf("no step %q among %q", step, nodetest.Names(steps))
		}
	}
	for _, want := range []attribute.KeyValue{tracing.VolumeKey.String(vol), tracing.ClaimKey.String("shop/data"), attribute.String("rpc.response.status_code", "OK")} {
		if !slices.Contains(call.Attributes, want) {
			t.Errorf("no %v in %v", want, call.Attributes)
		}
	}
	if len(call.Links) != 1 || call.Links[0].SpanContext.TraceID().String() != "0102030405060708090a0b0c0d0e0f10" {
		t.Errorf("it is linked to %v, not to the call that attached the volume", call.Links)
	}

	must(t, s.publish(mountCapability("ext4"), "pod", false))
	must(t, s.unpublish("pod"))
	must(t, s.unstage())
	for method, step := range map[string]string{
		"NodePublishVolume": "binding", "NodeUnpublishVolume": "unmounting", "NodeUnstageVolume": "disconnect",
	} {
		if _, steps := traceOf(t, spans, method); !slices.Contains(nodetest.Names(steps), step) {
			t.Errorf("%s: no step %q among %q", method, step, nodetest.Names(steps))
		}
	}

	s.secrets = map[string]string{"passphrase": secondKey}
	if err := s.stage(mountCapability("ext4")); status.Code(err) == codes.OK {
		t.Error("it is staged with another key")
	}
	all := fmt.Sprintf("%+v", spans.Ended())
	if !strings.Contains(all, "shop/data") {
		t.Error("this does not show what spans have")
	}
	for _, key := range []string{firstKey, secondKey, secretOf(keys.Host.Text()), secretOf(keys.Controller.Text())} {
		if strings.Contains(all, key) {
			t.Errorf("a span has the key %q", key)
		}
	}
}

// secretOf a key in its text form.
func secretOf(key string) string { return strings.Split(key, ":")[2] }

// Calls that only look are not traced: there are many of them.
func TestCallsThatLookAreNotTraced(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	spans := s.traced()
	if _, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: vol, VolumePath: s.path("staging")}); err != nil {
		t.Fatal(err)
	}
	must(t, s.unstage())
	traceOf(t, spans, "NodeUnstageVolume") // by now, an earlier one would have ended
	for _, span := range spans.Ended() {
		if strings.HasSuffix(span.Name, "NodeGetVolumeStats") {
			t.Errorf("got %v", span)
		}
	}
}
