// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weft-storage/weft/internal/tracing"
)

func TestSpansBeginBelowOneThatIsRecorded(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer(tracing.Scope)

	_, none := tracing.Start(t.Context(), "nobody asked for it")
	tracing.End(none, errors.New("in vain"))
	ctx, root := tracer.Start(t.Context(), "root")
	_, child := tracing.Start(ctx, "child", tracing.VolumeKey.String("pvc-1"))
	tracing.End(child, errors.New(strings.Repeat("x", 1000)))
	if !root.IsRecording() {
		t.Error("the parent was ended")
	}
	root.End()
	_, late := tracing.Start(ctx, "after its parent")
	late.End()

	spans := exporter.GetSpans()
	if len(spans) != 2 || spans[0].Name != "child" || spans[0].Parent.SpanID() != root.SpanContext().SpanID() {
		t.Fatalf("got %v", spans)
	}
	if s := spans[0].Status; s.Code != codes.Error || len(s.Description) != 512 {
		t.Errorf("its status is %v", s)
	}
}

func TestParentCrossesProcesses(t *testing.T) {
	if got := tracing.Parent(t.Context()); got != "" {
		t.Errorf("without a span: %q", got)
	}
	for name, sampler := range map[string]sdktrace.Sampler{"sampled": sdktrace.AlwaysSample(), "not sampled": sdktrace.NeverSample()} {
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)).Tracer(tracing.Scope)
		ctx, span := tracer.Start(t.Context(), "root")
		got := tracing.FromParent(t.Context(), tracing.Parent(ctx))
		is := span.SpanContext()
		if got.TraceID() != is.TraceID() || got.SpanID() != is.SpanID() || got.IsSampled() != is.IsSampled() || !got.IsRemote() {
			t.Errorf("%s: got %v from %v", name, got, is)
		}
		for _, wrong := range []string{"", "no", "00-00000000000000000000000000000000-0000000000000000-01", tracing.Parent(ctx) + "-x"} {
			if got := tracing.FromParent(ctx, wrong); got.IsValid() {
				t.Errorf("%q: got %v", wrong, got)
			}
		}
	}
}

func TestClaim(t *testing.T) {
	if got, ok := tracing.Claim("default", "data"); !ok || got.Value.AsString() != "default/data" {
		t.Errorf("got %v, %t", got, ok)
	}
	if got, ok := tracing.Claim("", "data"); ok {
		t.Errorf("got %v", got)
	}
}
