// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weft-storage/weft/internal/tracing"
)

// Spans that ended, in order. It is an exporter, to which they are given at once.
type Spans struct {
	mu      sync.Mutex
	all     tracetest.SpanStubs
	changed chan struct{}
}

// NewSpans and a context in which they are recorded.
func NewSpans(ctx context.Context) (context.Context, *Spans) {
	s := &Spans{changed: make(chan struct{})}
	return tracing.NewContext(ctx, sdktrace.NewTracerProvider(sdktrace.WithSyncer(s))), s
}

// ExportSpans implements sdktrace.SpanExporter.
func (s *Spans) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, tracetest.SpanStubsFromReadOnlySpans(spans)...)
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (s *Spans) Shutdown(context.Context) error { return nil }

// Ended so far.
func (s *Spans) Ended() tracetest.SpanStubs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Await a span whose name ends so, for which is says yes: the span of a call ends a moment after its answer. It fails
// with the names of those that ended when the context ends first.
func (s *Spans) Await(ctx context.Context, name string, is func(tracetest.SpanStub) bool) (tracetest.SpanStub, error) {
	for {
		s.mu.Lock()
		changed, all := s.changed, s.all
		s.mu.Unlock()
		at := slices.IndexFunc(all, func(span tracetest.SpanStub) bool { return strings.HasSuffix(span.Name, name) && is(span) })
		if at >= 0 {
			return all[at], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return tracetest.SpanStub{}, fmt.Errorf("no span %s among %q: %w", name, Names(all), ctx.Err())
		}
	}
}

// Names of spans.
func Names(spans tracetest.SpanStubs) []string {
	names := make([]string, len(spans))
	for i, span := range spans {
		names[i] = span.Name
	}
	return names
}

// Any span will do.
func Any(tracetest.SpanStub) bool { return true }

// Below a span: those in its trace that have it as their parent, or one that does.
func Below(spans tracetest.SpanStubs, top tracetest.SpanStub) tracetest.SpanStubs {
	var below tracetest.SpanStubs
	for _, span := range spans {
		if span.Parent.SpanID() == top.SpanContext.SpanID() && span.Parent.TraceID() == top.SpanContext.TraceID() {
			below = append(append(below, span), Below(spans, span)...)
		}
	}
	return below
}
