// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weft-storage/weft/internal/tracing"
)

// A step in configfs is a span, named as errors name it.
func TestStepsAreTraced(t *testing.T) {
	h := &host{root: t.TempDir()}
	const nqn = "nqn.2026-11.storage.weft:v1:s"
	dir := h.config("subsystems", nqn)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "attr_qid_max"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exporter := tracetest.NewInMemoryExporter()
	ctx, _ := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer(tracing.Scope).Start(t.Context(), "engine Export")
	if err := h.apply(ctx, subsystem{nqn: nqn, queues: 4}, []step{{do: setQueues}, {do: unlinkPort, port: 1}}); err == nil {
		t.Error("a port that is not there is unlinked")
	}
	spans := exporter.GetSpans()
	if len(spans) != 2 || spans[0].Name != "nvmet set queues" || spans[0].Status.Code != codes.Unset ||
		spans[1].Name != "nvmet unlink port" || spans[1].Status.Code != codes.Error {
		t.Errorf("got %v", spans)
	}
}
