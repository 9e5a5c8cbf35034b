// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
)

func newSkewReporter(t *testing.T, installed string) (*node.SkewReporter, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, eventsv1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}}
	machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.ConditionInitiatorStuck, Status: corev1.ConditionFalse}}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName, Labels: map[string]string{v1alpha1.VersionLabel: installed}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine, driver).WithStatusSubresource(machine).Build()
	clock := testingclock.NewFakeClock(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC))
	writer := &node.ConditionWriter{Client: c, Node: "node1", UID: "1", Clock: clock, Type: v1alpha1.ConditionNodeVersionSkew, FieldManager: node.SkewFieldManager}
	return &node.SkewReporter{Client: c, Version: "0.2.0", Writer: writer, Clock: clock}, c
}

func skewOf(t *testing.T, c client.Client) *corev1.NodeCondition {
	t.Helper()
	var node corev1.Node
	if err := c.Get(t.Context(), client.ObjectKey{Name: "node1"}, &node); err != nil {
		t.Fatal(err)
	}
	if v1alpha1.InitiatorStuck(&node) == nil {
		t.Error("the Node's other condition is gone")
	}
	return v1alpha1.NodeCondition(&node, v1alpha1.ConditionNodeVersionSkew)
}

func TestConditionSaysWhetherVersionsWorkTogether(t *testing.T) {
	for installed, want := range map[string]string{
		"0.2.0": "False AsExpected the node plugin's version 0.2.0 works with the installed one, 0.2.0",
		"0.3.1": "False AsExpected the node plugin's version 0.2.0 works with the installed one, 0.3.1",
		"0.4.0": "True VersionSkew the node plugin has version 0.2.0 and weft 0.4.0 is installed, which are not supported together",
		"1.0.0": "True VersionSkew the node plugin has version 0.2.0 and weft 1.0.0 is installed",
		"dev":   `False AsExpected the versions were not compared: node plugin 0.2.0, installed "dev"`,
		"":      "Unknown Pending CSIDriver csi.weft.storage has no label app.kubernetes.io/version",
	} {
		r, c := newSkewReporter(t, installed)
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		condition := skewOf(t, c)
		if got := string(condition.Status) + " " + condition.Reason + " " + condition.Message; !strings.HasPrefix(got, want) {
			t.Errorf("installed %q: %s; want %s", installed, got, want)
		}
	}
}

// An upgrade of what is installed is seen while the plugin runs, and each change of the condition is an Event with its
// reason.
func TestUpgradeIsSeen(t *testing.T) {
	r, c := newSkewReporter(t, "0.2.0")
	clock, ok := r.Clock.(*testingclock.FakeClock)
	if !ok {
		t.Fatal("the clock is not the test's")
	}
	ctx, stop := context.WithCancel(t.Context())
	looks := make(chan struct{})
	r.Client = looked{c, looks}
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	var reasons []string
	for _, installed := range []string{"0.2.0", "0.4.0", "0.3.0"} {
		driver := &storagev1.CSIDriver{}
		if err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, driver); err != nil {
			t.Fatal(err)
		}
		driver.Labels[v1alpha1.VersionLabel] = installed
		if err := c.Update(ctx, driver); err != nil {
			t.Fatal(err)
		}
		<-looks // it reads what is installed now
		// The look that was under way has been reported when the next begins, which finds the same.
		clock.Step(node.SkewInterval)
		<-looks
		reasons = append(reasons, skewOf(t, c).Reason)
		clock.Step(node.SkewInterval)
	}
	go func() {
		for range looks { // those that no longer count
		}
	}()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(looks)
	if !slices.Equal(reasons, []string{v1alpha1.ReasonAsExpected, v1alpha1.ReasonVersionSkew, v1alpha1.ReasonAsExpected}) {
		t.Errorf("reasons %v", reasons)
	}
	var events eventsv1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range events.Items {
		told = append(told, e.Type+" "+e.Reason+" "+e.Regarding.Kind)
	}
	slices.Sort(told)
	if !slices.Equal(told, []string{"Normal AsExpected Node", "Warning VersionSkew Node"}) {
		t.Errorf("Events %q", told)
	}
}

// looked says when the CSIDriver is read.
type looked struct {
	client.Reader
	looks chan struct{}
}

func (l looked) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	l.looks <- struct{}{}
	return l.Reader.Get(ctx, key, into, options...)
}
