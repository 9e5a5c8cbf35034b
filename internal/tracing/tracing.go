// SPDX-License-Identifier: Apache-2.0

// Package tracing records what weft does as OpenTelemetry spans. It is off unless Setup finds the standard environment
// variables; then nothing here costs more than a look into a context.
//
// Spans are begun below one that is recorded: what no request has asked for, such as a look at statistics, has none.
// Whoever begins a trace takes the context's Provider, which is nil while tracing is off.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weft-storage/weft/internal/text"
)

// Scope of weft's own spans.
const Scope = "github.com/weft-storage/weft"

// Attributes of spans. Logs have the same words without the prefix.
const (
	// VolumeKey is the name of the NvmfVolume, which is the CSI volume ID and, as a rule, the PersistentVolume's name.
	VolumeKey = attribute.Key("weft.volume")
	// ClaimKey is the PersistentVolumeClaim that the volume was created for, as namespace/name.
	ClaimKey = attribute.Key("weft.claim")
	// ReplicaKey is the name of the NvmfReplica.
	ReplicaKey = attribute.Key("weft.replica")
	// SnapshotKey is the name of the NvmfSnapshot, which is the CSI snapshot ID.
	SnapshotKey = attribute.Key("weft.snapshot")
	// ObjectKey is the name of an object of the Kubernetes API that is waited for or written.
	ObjectKey = attribute.Key("weft.object")
	// NQNKey is the NQN of a subsystem.
	NQNKey = attribute.Key("weft.nqn")
	// ItemsKey is the number of items in a bulk call.
	ItemsKey = attribute.Key("weft.items")
	// FailedKey is how many of these items failed.
	FailedKey = attribute.Key("weft.failed")
	// ErrorKey is why something failed.
	ErrorKey = attribute.Key("weft.error")
	// StepKey is what the node's kernel was asked for, such as "unmounting /mnt/x".
	StepKey = attribute.Key("weft.step")
)

// maxErrorBytes of an error's text in a span.
const maxErrorBytes = 512

type providerKey struct{}

// NewContext in which traces begin with a provider.
func NewContext(ctx context.Context, provider trace.TracerProvider) context.Context {
	return context.WithValue(ctx, providerKey{}, provider)
}

// Provider of the context; nil while tracing is off.
func Provider(ctx context.Context) trace.TracerProvider {
	provider, _ := ctx.Value(providerKey{}).(trace.TracerProvider)
	return provider
}

// Start a span below the context's, and give the context for what belongs to it. End the span. When the context's is
// not recorded, neither is the span.
func Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, noop.Span{} // not the parent: that is not the caller's to end
	}
	return parent.TracerProvider().Tracer(Scope).Start(ctx, name, trace.WithAttributes(attributes...))
}

// End a span with the error that its work ended with, or nil. The error's text is exported: like one that is logged, it
// has no secret in it.
func End(span trace.Span, err error, options ...trace.SpanEndOption) {
	if err != nil {
		span.SetStatus(codes.Error, ErrorText(err))
	}
	span.End(options...)
}

// ErrorText is an error's text as spans have it.
func ErrorText(err error) string { return text.Clip(err.Error(), maxErrorBytes) }

// Claim of a volume as an attribute; ok is false when it has none.
func Claim(namespace, name string) (attribute.KeyValue, bool) {
	return ClaimKey.String(namespace + "/" + name), namespace != "" && name != ""
}

// traceparent is the name of W3C's header, and of the field in which the propagator keeps it.
const traceparent = "traceparent"

// Parent is the context's span as W3C writes it in a traceparent header, so that another process can go on below it.
// It is empty when the context has no span. One that is not recorded has one too: what goes on from it is not either.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// FromParent reads what Parent gave. It is not valid when the text is not a traceparent.
func FromParent(ctx context.Context, value string) trace.SpanContext {
	if value == "" {
		return trace.SpanContext{}
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // or it would be the answer to what cannot be read
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: value}))
}
