// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/tracing"
)

// tracedClient records its writes as spans, and leaves the context's span on what others act on, in the same write: by
// that, agents go on with the trace. A write outside of a trace takes away what an earlier one left.
type tracedClient struct{ client.Client }

// Create implements client.Client.
func (c tracedClient) Create(ctx context.Context, obj client.Object, options ...client.CreateOption) error {
	ctx, span := c.start(ctx, "create", obj)
	leaveTrace(ctx, obj)
	err := c.Client.Create(ctx, obj, options...)
	tracing.End(span, err)
	return err
}

// Patch implements client.Client.
func (c tracedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, options ...client.PatchOption) error {
	ctx, span := c.start(ctx, "patch", obj)
	leaveTrace(ctx, obj)
	err := c.Client.Patch(ctx, obj, patch, options...)
	tracing.End(span, err)
	return err
}

// Update implements client.Client.
func (c tracedClient) Update(ctx context.Context, obj client.Object, options ...client.UpdateOption) error {
	ctx, span := c.start(ctx, "update", obj)
	err := c.Client.Update(ctx, obj, options...)
	tracing.End(span, err)
	return err
}

// Delete implements client.Client.
func (c tracedClient) Delete(ctx context.Context, obj client.Object, options ...client.DeleteOption) error {
	ctx, span := c.start(ctx, "delete", obj)
	err := c.Client.Delete(ctx, obj, options...)
	tracing.End(span, err)
	return err
}

func (c tracedClient) start(ctx context.Context, verb string, obj client.Object) (context.Context, trace.Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return tracing.Start(ctx, verb)
	}
	kind := "object"
	if gvk, err := apiutil.GVKForObject(obj, c.Scheme()); err == nil {
		kind = gvk.Kind
	}
	return tracing.Start(ctx, verb+" "+kind, tracing.ObjectKey.String(obj.GetName()))
}

// leaveTrace on an object that an agent or a node plugin acts on.
func leaveTrace(ctx context.Context, obj client.Object) {
	switch obj.(type) {
	case *v1alpha1.NvmfVolume, *v1alpha1.NvmfReplica, *v1alpha1.NvmfSnapshot:
	default:
		return
	}
	parent := tracing.Parent(ctx)
	if parent == obj.GetAnnotations()[v1alpha1.TraceParentKey] {
		return
	}
	annotations := map[string]string{} // of its own: others may share the object's
	maps.Copy(annotations, obj.GetAnnotations())
	if annotations[v1alpha1.TraceParentKey] = parent; parent == "" {
		delete(annotations, v1alpha1.TraceParentKey)
	}
	obj.SetAnnotations(annotations)
}

// traceClaim names the claim of a volume, replica or snapshot in the context's span.
func traceClaim(ctx context.Context, of metav1.Object) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if claim, ok := tracing.Claim(v1alpha1.ClaimOf(of)); ok {
		span.SetAttributes(claim)
	}
}
