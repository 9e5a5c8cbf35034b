// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/internal/tracing"
)

const (
	// causeLimit is how long after a change was first seen what is done for it still belongs to the trace of the call
	// that asked for it: as long as the longest call waits.
	causeLimit = 2 * time.Minute
	// maxTracedItems of one call of the engine: with more, as when a target comes back empty, there are no spans of the
	// engine's own calls, nor of each replica that no call has asked for. They would not fit into the exporter's queue
	// of 2048.
	maxTracedItems = 64
)

// change of an object, as this agent saw it first.
type change struct {
	generation int64
	at         time.Time
}

// subject is a replica or a snapshot, by what is said of it in logs and traces.
type subject struct {
	client.Object
	// volume is the name of its NvmfVolume.
	volume string
	kind   attribute.Key
	// observed is the generation that its status told of last.
	observed int64
	// cause is the span of the CSI call that asked for the object's last change, while that may still wait for it.
	cause trace.SpanContext
	// unseen: no status has told of that change.
	unseen bool
	// done are what the engine was asked for, and became of it.
	done []operation
}

type operation struct {
	verb decide.Verb
	err  error
	at   time.Time
}

// round is one reconciliation, by what is told of it: which volumes it is about, for the log; and its span, once it has
// begun. It begins at once when an object has changed, else with the first operation: one that finds nothing to do is
// not told of.
type round struct {
	node  string
	began time.Time
	// observed is what the subjects come from, when they are needed.
	observed *decide.Observed
	// byID and byReplica are the same subjects: by their UUID, and by the replica's name.
	byID, byReplica map[string]*subject

	provider trace.TracerProvider
	span     trace.Span
}

// newRound on what was observed.
func (r *Reconciler) newRound(ctx context.Context, s *decide.Observed) *round {
	n := &round{node: r.NodeName, began: time.Now(), observed: s, provider: tracing.Provider(ctx)}
	if n.provider == nil {
		return n
	}
	n.index()
	seen := map[types.UID]change{}
	changed := false
	for _, sub := range n.byID {
		sub.cause, sub.unseen = r.causeOf(ctx, sub, s.Now, seen)
		changed = changed || sub.unseen && sub.cause.IsValid()
	}
	r.seen = seen
	if changed {
		n.begin(ctx, nil)
	}
	return n
}

// index the subjects of what was observed, once they are needed.
func (n *round) index() {
	if n.byID != nil {
		return
	}
	n.byID, n.byReplica = map[string]*subject{}, map[string]*subject{}
	for _, v := range n.observed.Volumes {
		sub := &subject{Object: v, volume: v.Spec.Volume.Name, kind: tracing.ReplicaKey, observed: v.Status.ObservedGeneration}
		n.byID[v.Spec.UUID], n.byReplica[v.Name] = sub, sub
	}
	for _, v := range n.observed.Snapshots {
		n.byID[v.Spec.UUID] = &subject{Object: v, volume: v.Spec.Volume, kind: tracing.SnapshotKey, observed: v.Status.ObservedGeneration}
	}
}

// causeOf an object's last change, and whether no status has told of it. What was told of before this agent saw it has
// none: it does not belong to a call that waits. Changes that are recent are put into seen.
func (r *Reconciler) causeOf(ctx context.Context, obj *subject, now time.Time, seen map[types.UID]change) (cause trace.SpanContext, unseen bool) {
	was, known := r.seen[obj.GetUID()]
	unseen = obj.GetGeneration() != obj.observed
	if known = known && was.generation == obj.GetGeneration(); !known && !unseen {
		return cause, false
	}
	if !known {
		was = change{generation: obj.GetGeneration(), at: now}
	}
	seen[obj.GetUID()] = was
	if now.Sub(was.at) >= causeLimit {
		return cause, false
	}
	return tracing.FromParent(ctx, obj.GetAnnotations()[v1alpha1.TraceParentKey]), unseen
}

// subjectOf an operation, by its key: a UUID, or the NQN of a replica's subsystem. Nil when it is about something else.
func (n *round) subjectOf(key string) *subject {
	n.index()
	if replica, ok := v1alpha1.ReplicaOfSubsystem(key); ok {
		return n.byReplica[replica]
	}
	return n.byID[key]
}

// begin the round's span, unless it has begun or there is no tracing, and give the context with it. It goes on with the
// trace of the call that has asked for what is done. When several have, it is a trace of its own, linked to theirs.
// keys are of the operations that are begun.
func (n *round) begin(ctx context.Context, keys []string) context.Context {
	if n.provider == nil || n.span != nil {
		return n.in(ctx)
	}
	causes := map[trace.TraceID]trace.SpanContext{}
	add := func(sub *subject) {
		if sub.cause.IsValid() {
			causes[sub.cause.TraceID()] = sub.cause
		}
	}
	for _, sub := range n.byID {
		if sub.unseen {
			add(sub)
		}
	}
	for _, key := range keys {
		if sub := n.subjectOf(key); sub != nil {
			add(sub)
		}
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(n.began), trace.WithAttributes(attribute.String("weft.node", n.node))}
	var links []trace.Link
	for _, cause := range causes {
		links = append(links, trace.Link{SpanContext: cause})
	}
	if len(links) == 1 {
		ctx = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext)
	} else {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(links...))
	}
	_, n.span = n.provider.Tracer(tracing.Scope).Start(ctx, "reconcile node", options...)
	return n.in(ctx)
}

// in is the context for what belongs to the round.
func (n *round) in(ctx context.Context) context.Context {
	if n.span == nil {
		return ctx
	}
	if n.span.IsRecording() {
		ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("trace", n.span.SpanContext().TraceID().String()))
	}
	return trace.ContextWithSpan(ctx, n.span)
}

// call of the engine, on so many items: its span, and the context for what belongs to it.
func (n *round) call(ctx context.Context, verb decide.Verb, items int) (context.Context, trace.Span) {
	ctx, span := tracing.Start(ctx, "engine "+string(verb), tracing.ItemsKey.Int(items))
	if items > maxTracedItems {
		ctx = trace.ContextWithSpanContext(ctx, span.SpanContext()) // not recorded: nor is what would be below it
	}
	return ctx, span
}

// note what became of an operation, and answer the volume that it is about; empty when it is about none.
func (n *round) note(verb decide.Verb, key string, err error) (volume string) {
	sub := n.subjectOf(key)
	if sub == nil {
		return ""
	}
	if n.span != nil {
		sub.done = append(sub.done, operation{verb, err, time.Now()})
	}
	return sub.volume
}

// end the round with what was decided last: a span for each replica and snapshot that has changed, or for which
// something was done, in the trace of the call that has asked for it.
func (n *round) end(ctx context.Context, d decide.Decision) {
	if n.span == nil {
		return
	}
	others := 0
	for _, sub := range n.byID {
		if (!sub.unseen || !sub.cause.IsValid()) && len(sub.done) == 0 {
			continue
		}
		if !sub.cause.IsValid() {
			if others++; others > maxTracedItems {
				continue
			}
		}
		n.tell(ctx, sub, readyOf(sub, d))
	}
	n.span.End()
}

func readyOf(sub *subject, d decide.Decision) *metav1.Condition {
	if sub.kind == tracing.SnapshotKey {
		return meta.FindStatusCondition(d.Snapshots[sub.GetName()].Conditions, v1alpha1.ConditionCreated)
	}
	return meta.FindStatusCondition(d.Volumes[sub.GetName()].Conditions, v1alpha1.ConditionReady)
}

// tell of a subject, with the condition that says whether it is ready, or nil.
func (n *round) tell(ctx context.Context, sub *subject, ready *metav1.Condition) {
	attributes := []attribute.KeyValue{tracing.VolumeKey.String(sub.volume), sub.kind.String(sub.GetName()), attribute.String("weft.node", n.node)}
	if claim, ok := tracing.Claim(v1alpha1.ClaimOf(sub)); ok {
		attributes = append(attributes, claim)
	}
	if ready != nil {
		attributes = append(attributes, attribute.String("weft.condition", ready.Type+"="+string(ready.Status)+"/"+ready.Reason))
	}
	ctx = trace.ContextWithSpan(ctx, n.span)
	options := []trace.SpanStartOption{trace.WithTimestamp(n.began), trace.WithAttributes(attributes...)}
	if sub.cause.IsValid() && sub.cause.TraceID() != n.span.SpanContext().TraceID() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, sub.cause)
		options = append(options, trace.WithLinks(trace.Link{SpanContext: n.span.SpanContext()}))
	}
	_, span := n.provider.Tracer(tracing.Scope).Start(ctx, "reconcile "+strings.TrimPrefix(string(sub.kind), "weft."), options...)
	for _, o := range sub.done {
		var failed []attribute.KeyValue
		if o.err != nil {
			failed = []attribute.KeyValue{tracing.ErrorKey.String(tracing.ErrorText(o.err))}
			span.SetStatus(codes.Error, tracing.ErrorText(o.err))
		}
		span.AddEvent(string(o.verb), trace.WithTimestamp(o.at), trace.WithAttributes(failed...))
	}
	span.End()
}
