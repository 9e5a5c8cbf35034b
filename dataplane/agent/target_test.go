// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// apart is an engine whose target runs on its own, like SPDK's.
type apart struct {
	*enginetest.Engine
	ends chan struct{}
}

func (e *apart) Watch(ctx context.Context, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.ends:
			changed()
		}
	}
}

func TestStart(t *testing.T) {
	acting := []enginetest.Method{enginetest.OpenPools, enginetest.OpenPortals}
	for _, c := range []struct {
		name  string
		err   error
		says  map[string]string
		does  []enginetest.Method
		ready bool
		// alone: ready when the target runs on its own.
		alone bool
	}{
		{
			"as planned", nil,
			map[string]string{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected", "PortalsReady": "True/AsExpected", "RestartNeeded": "False/AsExpected", "RestoreSuspected": "False/AsExpected", "BuffersSufficient": "True/NotNeeded", "WritesDurable": "True/AsExpected"},
			acting, true, true,
		},
		{
			"serving otherwise than planned", fmt.Errorf("start: %w", &engine.RestartNeededError{Differences: []string{"core mask is 0x3, but should be 0xf"}}),
			map[string]string{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected", "PortalsReady": "True/AsExpected", "RestartNeeded": "True/SettingsDiffer", "RestoreSuspected": "False/AsExpected", "BuffersSufficient": "True/NotNeeded", "WritesDurable": "True/AsExpected"},
			acting, true, true,
		},
		{
			"unable to keep the plan", fmt.Errorf("transport RDMA: %w", engine.ErrUnsupported),
			map[string]string{"Ready": "False/PlanUnsupported", "PoolReady": "Unknown/PlanUnsupported", "PortalsReady": "Unknown/PlanUnsupported", "RestartNeeded": "Unknown/PlanUnsupported", "RestoreSuspected": "Unknown/PlanUnsupported", "BuffersSufficient": "Unknown/PlanUnsupported", "WritesDurable": "Unknown/PlanUnsupported"},
			nil, true, true,
		},
		{
			"not there", engine.ErrUnavailable,
			map[string]string{"Ready": "False/EngineNotAnswering", "PoolReady": "Unknown/EngineNotAnswering", "PortalsReady": "Unknown/EngineNotAnswering", "RestartNeeded": "Unknown/EngineNotAnswering", "RestoreSuspected": "Unknown/EngineNotAnswering", "BuffersSufficient": "Unknown/EngineNotAnswering", "WritesDurable": "Unknown/EngineNotAnswering"},
			nil, false, true,
		},
		{
			"refusing a setting", fmt.Errorf("iobuf_set_options: %w", engine.ErrInvalid),
			map[string]string{"Ready": "False/InvalidSetting", "PoolReady": "Unknown/InvalidSetting", "PortalsReady": "Unknown/InvalidSetting", "RestartNeeded": "Unknown/InvalidSetting", "RestoreSuspected": "Unknown/InvalidSetting", "BuffersSufficient": "Unknown/InvalidSetting", "WritesDurable": "Unknown/InvalidSetting"},
			nil, false, false,
		},
		{
			"failing", errors.New("framework_start_init: out of memory"),
			map[string]string{"Ready": "False/EngineUnavailable", "PoolReady": "Unknown/EngineUnavailable", "PortalsReady": "Unknown/EngineUnavailable", "RestartNeeded": "Unknown/EngineUnavailable", "RestoreSuspected": "Unknown/EngineUnavailable", "BuffersSufficient": "Unknown/EngineUnavailable", "WritesDurable": "Unknown/EngineUnavailable"},
			nil, false, false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			l.target.FailCall(enginetest.Start, c.err)
			r := l.agent()
			result := l.reconcile(r)
			l.Expect(said(l.nvmfNode().Status.Conditions)).To(Equal(c.says))
			l.Expect(methods(l.changes())).To(Equal(c.does))
			l.Expect(r.Ready() == nil).To(Equal(c.ready), "%v", r.Ready())
			if len(c.does) == 0 {
				l.Expect(result.RequeueAfter).To(BeNumerically("<=", retryFirst), "tried again")
			}

			alone := l.agent()
			alone.Engines = func(v1alpha1.Engine) (engine.Engine, error) { return &apart{Engine: l.target}, nil }
			l.reconcile(alone)
			l.Expect(alone.Ready() == nil).To(Equal(c.alone), "%v", alone.Ready())
		})
	}
}

func methods(calls []enginetest.Call) []enginetest.Method {
	var all []enginetest.Method
	for _, c := range calls {
		all = append(all, c.Method)
	}
	return all
}

func TestRestartNeededIsAnEventOnce(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	r := l.agent()
	l.reconcile(r)
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())

	differs := &engine.RestartNeededError{Differences: []string{"large buffers are 1024, but should be 2048", "core mask is 0x3, but should be 0xf"}}
	l.target.FailCall(enginetest.Start, differs)
	for range 3 {
		l.reconcile(r)
	}
	slices.Reverse(differs.Differences)
	l.reconcile(l.agent())
	var reported []string
	for _, e := range l.events {
		if ContainsReason(e, v1alpha1.ReasonSettingsDiffer) {
			reported = append(reported, e)
		}
	}
	l.Expect(reported).To(HaveExactElements(And(HavePrefix("Warning "), HaveSuffix("core mask is 0x3, but should be 0xf; large buffers are 1024, but should be 2048"))))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.create(2)
	l.reconcile(r)
	l.Expect(l.says(2)).To(HaveKeyWithValue("Ready", "True/AsExpected"), "it goes on serving")
	l.Expect(host.Disconnected()).To(BeFalse())

	l.target.FailCall(enginetest.Start, nil)
	l.reconcile(r)
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("RestartNeeded", "False/AsExpected"))
}

// A plan that the target cannot keep stops nothing that serves.
func TestPlanUnsupportedLeavesServing(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	r := l.agent()
	l.reconcile(r)
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	before := l.volume(1)

	l.target.FailCall(enginetest.Start, engine.ErrUnsupported)
	l.target.ForgetCalls()
	l.create(2)
	l.reconcile(r)
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(host.Disconnected()).To(BeFalse())
	l.Expect(l.volume(1)).To(Equal(before))
	l.Expect(l.says(2)).To(HaveKeyWithValue("Ready", "False/PlanUnsupported"))
	l.Expect(l.nvmfNode().Status.Engine.Version).To(Equal("enginetest"))
}

// What failed before the target came back does not keep it waiting.
func TestReturnResetsBackOff(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.target.FailCall(enginetest.Start, engine.ErrUnavailable)
	for range 6 {
		l.reconcile(r)
	}
	l.Expect(l.reconcile(r).RequeueAfter).To(Equal(retryMost))
	r.Targets.note()
	l.Expect(l.reconcile(r).RequeueAfter).To(Equal(retryFirst))
}

// An API server that hangs does not keep a target that came back empty.
func TestReturnInterruptsWriting(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	r := l.agent()
	l.reconcile(r)
	l.target.FailCall(enginetest.Start, engine.ErrUnavailable)
	hangs := make(chan struct{})
	l.beforeWrite = func(ctx context.Context) error {
		close(hangs)
		<-ctx.Done()
		return ctx.Err()
	}
	type outcome struct {
		result reconcile.Result
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		ended <- outcome{result, err}
	}()
	l.Eventually(hangs, patience).Should(BeClosed())
	l.target.FailCall(enginetest.Start, nil)
	l.target.Restart()
	r.Targets.note()
	l.Eventually(ended, writeTimeout/2).Should(Receive(Equal(outcome{reconcile.Result{RequeueAfter: time.Millisecond}, nil})))

	l.getWell(0)
	l.reconcile(r)
	l.Expect(l.state().Exports).To(HaveLen(1))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
}

func TestTargetWatch(t *testing.T) {
	g := NewWithT(t)
	w := NewTargetWatch(clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()

	first, second := &apart{ends: make(chan struct{})}, &apart{ends: make(chan struct{})}
	w.Use(first)
	w.Use(first)
	g.Eventually(first.ends, patience).Should(BeSent(struct{}{}))
	g.Eventually(w.changed, patience).Should(Receive())
	changes, at := w.Changes()
	g.Expect(changes).To(Equal(uint64(1)))
	g.Expect(at).To(BeTemporally("~", time.Now(), patience))

	unchanged, stop := w.UntilChanged(ctx, changes)
	defer stop()
	g.Expect(unchanged.Err()).NotTo(HaveOccurred())
	// Two changes that nobody took yet are one event.
	first.ends <- struct{}{}
	first.ends <- struct{}{}
	g.Eventually(unchanged.Done(), patience).Should(BeClosed())
	g.Eventually(func() uint64 { changes, _ := w.Changes(); return changes }, patience).Should(Equal(uint64(3)))
	g.Expect(w.changed).To(Receive())
	g.Expect(w.changed).NotTo(Receive())
	late, stopLate := w.UntilChanged(ctx, changes)
	defer stopLate()
	g.Expect(late.Err()).To(HaveOccurred(), "what changed before it was asked for counts")

	// Only the engine in use is watched, and one whose target cannot end by itself is not.
	w.Use(second)
	g.Eventually(second.ends, patience).Should(BeSent(struct{}{}))
	g.Expect(first.ends).NotTo(BeSent(struct{}{}))
	w.Use(enginetest.New())
	w.Use(nil)
	g.Eventually(func() int { return len(w.next) }, patience).Should(BeZero())

	cancel()
	g.Eventually(ended, patience).Should(Receive(BeNil()))
	g.Expect(second.ends).NotTo(BeSent(struct{}{}))
}
