// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/internal/tracing"
)

// recordSpans gives a context in which spans are recorded.
func recordSpans(t *testing.T) (context.Context, *tracetest.InMemoryExporter) {
	exporter := tracetest.NewInMemoryExporter()
	return tracing.NewContext(t.Context(), sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))), exporter
}

// callOf number n, whose trace's ID begins with it.
func callOf(n int) string {
	return fmt.Sprintf("00-%02x00000000000000000000000000000a-000000000000000b-01", n)
}

func traceOf(n int) string { return callOf(n)[3:35] }

// askedBy call n, which has changed the replica just now.
func askedBy(n int) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		v.UID = types.UID(v.Name)
		v.Generation++
		v.Status.ObservedGeneration = v.Generation - 1
		v.Annotations = map[string]string{v1alpha1.TraceParentKey: callOf(n), v1alpha1.PVCNamespaceKey: "shop", v1alpha1.PVCNameKey: "data"}
	}
}

// toldOf the change.
func toldOf(v *v1alpha1.NvmfReplica) { v.Status.ObservedGeneration = v.Generation }

func observing(volumes ...*v1alpha1.NvmfReplica) *decide.Observed {
	return &decide.Observed{Now: now, Node: testNode(), Volumes: volumes}
}

// byName are spans, by name; of those with one name, the last.
func byName(spans tracetest.SpanStubs) map[string]tracetest.SpanStub {
	m := map[string]tracetest.SpanStub{}
	for _, span := range spans {
		m[span.Name] = span
	}
	return m
}

func TestARoundGoesOnWithTheTraceOfTheOneCallThatAskedForIt(t *testing.T) {
	g := NewWithT(t)
	ctx, exporter := recordSpans(t)
	r := &Reconciler{Config: Config{NodeName: nodeName}}
	n := r.newRound(ctx, observing(testVolume(1, askedBy(1)), testVolume(2)))
	ctx = n.begin(ctx, []string{uuid(1)})
	g.Expect(n.note(decide.VerbCreateVolume, uuid(1), nil)).To(Equal(volumeOf("v1")))
	g.Expect(n.note(decide.VerbExport, v1alpha1.SubsystemNQN("v1", "s"), errors.New("no room"))).To(Equal(volumeOf("v1")))
	g.Expect(n.note(decide.VerbOpenPool, "a", nil)).To(BeEmpty())
	n.end(ctx, decide.Decision{Volumes: map[string]v1alpha1.NvmfReplicaStatus{"v1": {Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonExportFailed},
	}}}})
	spans := byName(exporter.GetSpans())
	g.Expect(slices.Sorted(maps.Keys(spans))).To(Equal([]string{"reconcile node", "reconcile replica"}))
	node, rep := spans["reconcile node"], spans["reconcile replica"]
	g.Expect(node.SpanContext.TraceID().String()).To(Equal(traceOf(1)))
	g.Expect(rep.Parent.SpanID()).To(Equal(node.SpanContext.SpanID()))
	g.Expect(rep.Attributes).To(ContainElements(
		tracing.VolumeKey.String(volumeOf("v1")), tracing.ReplicaKey.String("v1"), tracing.ClaimKey.String("shop/data"),
	))
	g.Expect(fmt.Sprint(rep.Attributes)).To(ContainSubstring("Ready=False/ExportFailed"))
	g.Expect(rep.Events).To(HaveLen(2))
	g.Expect(rep.Events[1].Name).To(Equal("Export"))
	g.Expect(rep.Events[1].Attributes).To(ContainElement(tracing.ErrorKey.String("no room")))
	g.Expect(rep.Status.Description).To(Equal("no room"))
}

// What several calls have asked for is done in a trace of its own, to which each of theirs is linked.
func TestARoundForSeveralCallsIsLinkedToTheirTraces(t *testing.T) {
	g := NewWithT(t)
	ctx, exporter := recordSpans(t)
	r := &Reconciler{Config: Config{NodeName: nodeName}}
	n := r.newRound(ctx, observing(testVolume(1, askedBy(1)), testVolume(2, askedBy(2))))
	n.note(decide.VerbCreateVolume, uuid(1), nil)
	n.end(ctx, decide.Decision{})
	var node tracetest.SpanStub
	links := map[string]trace.SpanID{}
	for _, span := range exporter.GetSpans() {
		if span.Name == "reconcile node" {
			node = span
			continue
		}
		g.Expect(span.Links).To(HaveLen(1))
		links[span.SpanContext.TraceID().String()] = span.Links[0].SpanContext.SpanID()
	}
	g.Expect(node.Parent.IsValid()).To(BeFalse())
	g.Expect(node.Links).To(HaveLen(2))
	g.Expect(links).To(Equal(map[string]trace.SpanID{traceOf(1): node.SpanContext.SpanID(), traceOf(2): node.SpanContext.SpanID()}))
}

// What an agent does for reasons of its own belongs to no call, although the objects still have what calls left.
func TestWhenARoundBelongsToACall(t *testing.T) {
	was := func(r *Reconciler, v *v1alpha1.NvmfReplica, at time.Time) {
		r.seen = map[types.UID]change{v.UID: {generation: v.Generation, at: at}}
	}
	for name, c := range map[string]struct {
		volume *v1alpha1.NvmfReplica
		seen   time.Time
		begins bool
		call   bool
	}{
		"a change that was not told of":                  {volume: testVolume(1, askedBy(1)), begins: true, call: true},
		"told of by an earlier agent":                    {volume: testVolume(1, askedBy(1), toldOf)},
		"told of by this one, and still being worked on": {volume: testVolume(1, askedBy(1), toldOf), seen: now.Add(-time.Minute), call: true},
		"no call waits for it any more":                  {volume: testVolume(1, askedBy(1)), seen: now.Add(-causeLimit)},
		"changed outside of a trace":                     {volume: testVolume(1, askedBy(1), func(v *v1alpha1.NvmfReplica) { delete(v.Annotations, v1alpha1.TraceParentKey) })},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx, exporter := recordSpans(t)
			r := &Reconciler{Config: Config{NodeName: nodeName}}
			if !c.seen.IsZero() {
				was(r, c.volume, c.seen)
			}
			n := r.newRound(ctx, observing(c.volume))
			g.Expect(n.span != nil).To(Equal(c.begins), "it begins without an operation")
			ctx = n.begin(ctx, []string{uuid(1)})
			n.end(ctx, decide.Decision{})
			got := byName(exporter.GetSpans())["reconcile node"].SpanContext.TraceID().String()
			g.Expect(got == traceOf(1)).To(Equal(c.call), got)
		})
	}
}

// A target that comes back with all its volumes does not flood the exporter.
func TestSpansOfALargeRoundAreBounded(t *testing.T) {
	g := NewWithT(t)
	ctx, exporter := recordSpans(t)
	const many = maxTracedItems + 10
	var volumes []*v1alpha1.NvmfReplica
	var keys []string
	for i := range many {
		volumes = append(volumes, testVolume(i, toldOf))
		keys = append(keys, uuid(i))
	}
	n := (&Reconciler{Config: Config{NodeName: nodeName}}).newRound(ctx, observing(volumes...))
	ctx = n.begin(ctx, keys)
	inside, span := n.call(ctx, decide.VerbExport, many)
	_, call := tracing.Start(inside, "SPDK call")
	call.End()
	tracing.End(span, nil)
	for _, key := range keys {
		n.note(decide.VerbExport, key, nil)
	}
	n.end(ctx, decide.Decision{})
	count := map[string]int{}
	for _, span := range exporter.GetSpans() {
		count[span.Name]++
	}
	g.Expect(count).To(Equal(map[string]int{"engine Export": 1, "reconcile node": 1, "reconcile replica": maxTracedItems}))
}

// Each volume is named in the log, one key for all: alone, or in lists that lines have room for.
func TestVolumesInTheLog(t *testing.T) {
	g := NewWithT(t)
	lines := func(volumes ...string) [][]any { return slices.Collect(eachLine(volumes)) }
	g.Expect(lines()).To(BeEmpty())
	g.Expect(lines("", "")).To(Equal([][]any{nil}), "devices")
	g.Expect(lines("v1")).To(Equal([][]any{{"volume", "v1"}}))
	g.Expect(lines("v2", "", "v1", "v2")).To(Equal([][]any{{"volume", []string{"v1", "v2"}}}))
	var many []string
	for i := range volumesPerLine + 1 {
		many = append(many, fmt.Sprintf("v%03d", i))
	}
	g.Expect(lines(many...)).To(Equal([][]any{{"volume", many[:volumesPerLine]}, {"volume", "v100"}}))
}
