// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// reported is what a node plugin that has just begun tells of its kernel.
type reported struct {
	*testing.T
	client client.Client
	clock  *testingclock.FakeClock
	// ready gets what the kernel answers at first, and looks what each look finds.
	ready chan error
	looks chan found
	// found by the look that is under way.
	found
}

type found struct {
	held    *fabrics.HeldUpError
	overdue map[string]doing.Step
	missing map[string]string
}

func (w *reported) Ready(ctx context.Context) error {
	select {
	case err := <-w.ready:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HeldUp is asked at the beginning of each look, when the last has been reported.
func (w *reported) HeldUp() *fabrics.HeldUpError {
	w.found = <-w.looks
	return w.held
}

// look once, and wait until what was found is reported: until the next look begins, which finds the same.
func (w *reported) look(f found) {
	w.looks <- f
	w.clock.Step(node.ReportInterval)
	w.looks <- f
	w.clock.Step(node.ReportInterval)
}

// lookUntil the condition says so.
func (w *reported) lookUntil(message string) {
	w.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; {
		if w.look(found{}); w.condition().Message == message {
			return
		}
	}
	w.Fatalf("the condition does not say %q", message)
}

const well = "no connection of this node is stuck"

const condition = v1alpha1.ConditionInitiatorStuck

func begin(t *testing.T, was corev1.ConditionStatus) *reported {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, eventsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: condition, Status: was, Reason: "Before", Message: "before"}},
	}}
	volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", UID: "2"}}
	w := &reported{
		T: t, clock: testingclock.NewFakeClock(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)), ready: make(chan error, 1), looks: make(chan found),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine, volume).WithStatusSubresource(machine).Build(),
	}
	r := node.Reporter{Client: w.client, Node: "node1", UID: "1", Clock: w.clock}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, w, func() map[string]doing.Step { return w.overdue }, func() map[string]string { return w.missing })
	}()
	t.Cleanup(func() {
		stop()
		close(w.looks)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *reported) condition() *corev1.NodeCondition {
	w.Helper()
	var node corev1.Node
	if err := w.client.Get(w.Context(), client.ObjectKey{Name: "node1"}, &node); err != nil {
		w.Fatal(err)
	}
	return v1alpha1.InitiatorStuck(&node)
}

func (w *reported) want(status corev1.ConditionStatus, message string) {
	w.Helper()
	if c := w.condition(); c.Status != status || c.Message != message {
		w.Errorf("%s is %s (%s), want %s (%s)", condition, c.Status, c.Message, status, message)
	}
}

// wantEvents in the order of their words.
func (w *reported) wantEvents(want ...string) {
	w.Helper()
	var events eventsv1.EventList
	if err := w.client.List(w.Context(), &events); err != nil {
		w.Fatal(err)
	}
	var got []string
	for _, e := range events.Items {
		got = append(got, e.Regarding.Kind+" "+e.Regarding.Name+" "+string(e.Regarding.UID)+" "+e.Type+" "+e.Reason+": "+e.Note)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.Errorf("events %q, want %q", got, want)
	}
}

var since = time.Date(2026, 11, 22, 9, 58, 0, 0, time.UTC)

// A process that has just begun does not say that all is well, nor that anything hangs, before it knows.
func TestConditionStaysUntilTheKernelHasAnswered(t *testing.T) {
	for _, was := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
		t.Run(string(was), func(t *testing.T) {
			w := begin(t, was)
			w.look(found{})
			w.want(was, "before")
			w.ready <- nil
			w.lookUntil(well)
			w.want(corev1.ConditionFalse, well)
		})
	}
}

func TestWhatHoldsUpConnectionsIsReported(t *testing.T) {
	w := begin(t, corev1.ConditionFalse)
	held := found{held: &fabrics.HeldUpError{Step: doing.Step{What: "connecting to a over TCP", Since: since}}}
	w.look(held)
	const words = "connecting to a over TCP has not returned since 2026-11-22T09:58:00Z"
	w.want(corev1.ConditionTrue, words)
	w.look(held)
	w.look(found{})
	w.want(corev1.ConditionFalse, well)
	w.wantEvents("Node node1 1 Normal AsExpected: "+well, "Node node1 1 Warning ConnectStuck: "+words)
}

// What concerns one volume leaves the Node's condition alone, and is said once for each.
func TestWhatConcernsAVolumeIsAnEventOfIt(t *testing.T) {
	w := begin(t, corev1.ConditionFalse)
	w.ready <- nil
	w.lookUntil(well)
	w.look(found{overdue: map[string]doing.Step{"pvc-1": {What: "unmounting /a", Since: since}, "pvc-gone": {What: "unmounting /b", Since: since}}})
	const first = "NvmfVolume pvc-1 2 Warning KernelCallOverdue: node node1: unmounting /a has not returned since 2026-11-22T09:58:00Z"
	w.wantEvents(first)
	w.look(found{overdue: map[string]doing.Step{"pvc-1": {What: "unmounting /a", Since: since.Add(time.Second)}}})
	w.wantEvents(first, "NvmfVolume pvc-1 2 Warning KernelCallOverdue: node node1: unmounting /a has not returned since 2026-11-22T09:58:01Z")
	w.want(corev1.ConditionFalse, well)
}
