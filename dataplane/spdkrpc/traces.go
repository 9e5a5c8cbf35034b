// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope of the spans of calls.
const scope = "github.com/weft-storage/weft/dataplane/spdkrpc"

// startSpan of a call below the context's span; nil when that is not recorded. It has the call's method and none of its
// parameters, some of which are keys. OpenTelemetry's API alone is used, not its SDK: the launcher of targets, which
// calls SPDK too, needs none.
func startSpan(ctx context.Context, method string) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return nil
	}
	_, span := parent.TracerProvider().Tracer(scope).Start(ctx, "SPDK "+method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("rpc.system.name", "jsonrpc"), attribute.String("rpc.method", method),
	))
	return span
}

// endSpan of a call when its answer came, which may be before somebody waited for it. The call is nil when it was not
// sent.
func endSpan(span trace.Span, of *call, err error) {
	if span == nil {
		return
	}
	var refused *Error
	if errors.As(err, &refused) {
		span.SetAttributes(attribute.String("rpc.response.status_code", strconv.Itoa(refused.Code)))
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	if of == nil {
		span.End()
		return
	}
	span.End(trace.WithTimestamp(of.ended))
}
