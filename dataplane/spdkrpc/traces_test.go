// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A call is a span below the one of whoever makes it, with its method and how it ended, and none of its parameters.
func TestCallsAreTracedWithoutTheirParameters(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer("test")
	c, s := pair(t, 4)

	untraced := Start(t.Context(), c, named("hunter2"))
	s.answer(s.next().ID, `"hunter2"`)
	wantName(t, untraced, "hunter2")
	ctx, parent := tracer.Start(t.Context(), "engine")
	done, refused := Start(ctx, c, named("hunter2")), Start(ctx, c, named("hunter2"))
	s.answer(s.next().ID, `"hunter2"`)
	s.send(`{"jsonrpc":"2.0","id":%d,"error":{"code":-17,"message":"File exists"}}`+"\n", s.next().ID)
	wantName(t, done, "hunter2")
	if _, err := refused.Wait(); !errors.Is(err, ErrExists) {
		t.Errorf("got %v", err)
	}
	_, _ = refused.Wait() // it ends once
	c.close(ErrClosed)
	if _, err := Call(ctx, c, named("hunter2")); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}

	spans := exporter.GetSpans()
	if len(spans) != 3 {
		t.Fatalf("%d spans: %v", len(spans), spans)
	}
	for _, span := range spans {
		if span.Name != "SPDK "+named("").method() || span.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("got %v", span)
		}
	}
	if spans[0].Status.Code != codes.Unset || spans[1].Status.Code != codes.Error || !slices.Contains(spans[1].Attributes, attribute.String("rpc.response.status_code", "-17")) ||
		!strings.Contains(spans[2].Status.Description, "not sent") {
		t.Errorf("they ended with %v %v, %v %v, %v", spans[0].Status, spans[0].Attributes, spans[1].Status, spans[1].Attributes, spans[2].Status)
	}
	if all := fmt.Sprintf("%+v", spans); strings.Contains(all, "hunter2") {
		t.Errorf("a parameter is in %s", all)
	}
}
