// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

func TestNodeWithoutPlan(t *testing.T) {
	l := newLab(t)
	node := l.nvmfNode()
	l.Expect(node.Status.Inventory.Drives).To(HaveLen(2))
	l.Expect(node.Status.AgentVersion).To(Equal("1.2.3"))
	l.Expect(said(node.Status.Conditions)).To(HaveKeyWithValue("Ready", "False/NotClaimed"))
	l.Expect(l.target.Calls()).To(BeEmpty())
}

func TestVolumeFromCreationToDeletion(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.create(1)
	l.reconcile(r)
	l.Expect(l.says(1)).To(Equal(map[string]string{"Created": "True/AsExpected", "Exported": "True/AsExpected", "Degraded": "False/AsExpected", "QoSApplied": "True/NotNeeded", "Ready": "True/AsExpected"}))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(Equal(map[string]string{"Ready": "True/AsExpected", "PoolReady": "True/AsExpected", "PortalsReady": "True/AsExpected", "RestartNeeded": "False/AsExpected", "RestoreSuspected": "False/AsExpected", "BuffersSufficient": "True/NotNeeded", "WritesDurable": "True/AsExpected"}))
	status := l.volume(1).Status
	l.Expect(status.Device).To(Equal("a"), "the pool with the most room")
	l.Expect(status.Portals).To(Equal([]v1alpha1.Portal{tcp}))
	l.Expect(status.Hosts).To(BeEmpty())
	_, err := l.target.Connect(t.Context(), tcp, status.NQN, hostA)
	l.Expect(err).To(MatchError(enginetest.ErrRefused), "nobody may connect yet")

	l.change(1, withHosts(hostA))
	l.reconcile(r)
	l.Expect(l.volume(1).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}))
	host, err := l.target.Connect(t.Context(), tcp, status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(host.WriteAt(id(1), []byte("data"), 0)).To(Equal(4))

	l.change(1, ofSize("20Gi"))
	l.reconcile(r)
	l.Expect(l.volume(1).Status.Size.Value()).To(Equal(int64(20 * gib)))
	l.Expect(l.volume(1).Status.Hosts[0].Blank).To(BeTrue(), "what a host was told stays")

	l.delete(1)
	l.reconcile(r)
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "False/HostsStillAdmitted"))
	l.Expect(host.Disconnected()).To(BeFalse())

	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	l.reconcile(r)
	l.Expect(host.Disconnected()).To(BeTrue())
	l.Expect(l.state().Volumes).To(BeEmpty())
	l.Expect(l.state().Exports).To(BeEmpty())
	err = l.admin.Get(t.Context(), client.ObjectKey{Name: l.name(1)}, &v1alpha1.NvmfReplica{})
	l.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	l.Expect(l.events).To(ContainElement(HavePrefix("Warning HostsStillAdmitted ")))
}

func TestChainOfSources(t *testing.T) {
	l := newLab(t)
	// Made in the wrong order: the clone first.
	l.create(3, fromSnapshot(l.name(2)))
	l.createSnapshot(2, l.name(1))
	r := l.agent()
	l.reconcile(r)
	l.Expect(l.says(3)).To(HaveKeyWithValue("Created", "False/SourceNotReady"))
	l.create(1)
	l.reconcile(r)
	l.Expect(l.says(3)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.volume(3).Status.Device).To(Equal(l.volume(1).Status.Device))
	var snap v1alpha1.NvmfSnapshot
	l.Expect(l.admin.Get(t.Context(), client.ObjectKey{Name: l.name(2)}, &snap)).To(Succeed())
	l.Expect(snap.Status.Ready).To(BeTrue())
	l.Expect(snap.Status.Size.Value()).To(Equal(int64(10 * gib)))

	l.change(3, withHosts(hostA))
	l.reconcile(r)
	l.Expect(l.volume(3).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}), "nothing was written to what it came from")

	snap.Mark()
	l.Expect(l.admin.Update(t.Context(), &snap)).To(Succeed())
	l.Expect(l.admin.Delete(t.Context(), &snap)).To(Succeed())
	l.reconcile(r)
	l.Expect(l.state().Snapshots).To(BeEmpty())
	l.Expect(apierrors.IsNotFound(l.admin.Get(t.Context(), client.ObjectKey{Name: l.name(2)}, &snap))).To(BeTrue())
	l.Expect(l.state().Volumes).To(HaveLen(2))
}

// An agent is killed at every place where it can be: each time another starts, and in the end
// every volume was made once.
func TestKilledAnywhere(t *testing.T) {
	const count = 100
	for _, at := range []struct {
		name string
		kill func(l *lab, cancel context.CancelFunc)
	}{
		{"before it opens pools", func(l *lab, cancel context.CancelFunc) {
			l.target.Before(enginetest.OpenPools, func(context.Context) { cancel() })
		}},
		{"before it creates volumes", func(l *lab, cancel context.CancelFunc) {
			l.target.Before(enginetest.CreateVolumes, func(context.Context) { cancel() })
		}},
		{"in the middle of creating volumes", func(l *lab, cancel context.CancelFunc) {
			for n := 1; n <= count/2; n++ {
				l.target.FailItem(enginetest.CreateVolumes, uuid(2*n), context.Canceled)
			}
			l.target.Before(enginetest.Export, func(context.Context) { cancel() })
		}},
		{"before it exports", func(l *lab, cancel context.CancelFunc) {
			l.target.Before(enginetest.Export, func(context.Context) { cancel() })
		}},
		{"before it opens portals", func(l *lab, cancel context.CancelFunc) {
			l.target.Before(enginetest.OpenPortals, func(context.Context) { cancel() })
		}},
		{"while it writes statuses", func(l *lab, cancel context.CancelFunc) { l.killAtWrite(count/2, cancel) }},
	} {
		t.Run(at.name, func(t *testing.T) {
			l := newLab(t)
			for n := 1; n <= count; n++ {
				l.create(n, ofSize("1Gi"))
			}
			ctx, cancel := context.WithCancel(t.Context())
			at.kill(l, cancel)
			_, err := l.agent().Reconcile(ctx, reconcile.Request{})
			l.Expect(err).To(MatchError(context.Canceled))

			l.getWell(count)
			l.reconcile(l.agent())
			made := map[string]string{}
			for _, v := range l.state().Volumes {
				l.Expect(made).NotTo(HaveKey(string(v.ID)), "made twice")
				made[string(v.ID)] = v.Pool
			}
			l.Expect(made).To(HaveLen(count))
			for n := 1; n <= count; n++ {
				v := l.volume(n)
				l.Expect(said(v.Status.Conditions)).To(HaveKeyWithValue("Ready", "True/AsExpected"), v.Name)
				l.Expect(v.Status.Device).To(Equal(made[uuid(n)]))
			}
		})
	}
}

// A new volume costs one status, besides what the node's own takes.
func TestNewVolumesAreWrittenOnce(t *testing.T) {
	const count = 10
	l := newLab(t)
	r := l.agent()
	l.reconcile(r)
	for n := 1; n <= count; n++ {
		l.create(n, ofSize("1Gi"))
	}
	r = l.agent() // whose cache shows them
	l.writes = 0
	l.reconcile(r)
	l.reconcile(r)
	l.Expect(l.says(count)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.writes).To(BeNumerically("<=", count+1))
	l.Expect(l.writes).To(BeNumerically(">=", count))
}

// killAtWrite ends the agent at its nth write to the API server.
func (l *lab) killAtWrite(nth int, cancel context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = 0
	l.beforeWrite = func(ctx context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.writes >= nth {
			cancel()
		}
		return ctx.Err()
	}
}

// getWell takes all faults back.
func (l *lab) getWell(count int) {
	for _, m := range []enginetest.Method{enginetest.OpenPools, enginetest.CreateVolumes, enginetest.Export, enginetest.OpenPortals} {
		l.target.Before(m, nil)
	}
	for n := 1; n <= count; n++ {
		l.target.FailItem(enginetest.CreateVolumes, uuid(n), nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beforeWrite = nil
}

// A drive that dies between the making of a volume and its status must not bring a second one.
func TestNotMadeTwiceWhenItsDriveDies(t *testing.T) {
	l := newLab(t)
	l.create(1)
	ctx, cancel := context.WithCancel(t.Context())
	l.target.Before(enginetest.Export, func(context.Context) { cancel() })
	_, err := l.agent().Reconcile(ctx, reconcile.Request{})
	l.Expect(err).To(MatchError(context.Canceled))
	l.Expect(l.state().Volumes).To(HaveLen(1), "it was made, and no status says so")
	l.getWell(0)

	l.target.BreakDevice(drivePathA, errors.New("input/output error"))
	l.reconcile(l.agent())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "False/PoolFailed"))
	l.Expect(l.state().Volumes).To(BeEmpty())

	l.target.BreakDevice(drivePathA, nil)
	l.reconcile(l.agent())
	l.Expect(l.state().Volumes).To(HaveLen(1))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
}

// A host that is dismissed is shut out, whether its volume can be read or not; the others stay.
func TestShutOutOfWhatCannotBeRead(t *testing.T) {
	l := newLab(t)
	l.create(1, func(v *v1alpha1.NvmfReplica) {
		withHosts(hostA, hostB)(v)
		for i := range v.Spec.Hosts {
			v.Spec.Hosts[i].Access = v1alpha1.AccessSharedWrite
		}
	})
	l.reconcile(l.agent())
	leaves, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	l.target.BreakDevice(drivePathA, errors.New("input/output error"))
	l.change(1, func(v *v1alpha1.NvmfReplica) {
		v.Spec.Hosts = slices.DeleteFunc(v.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return h.NQN == hostA })
	})
	l.reconcile(l.agent())
	l.Expect(leaves.Disconnected()).To(BeTrue())
	l.Expect(l.volume(1).Status.Hosts).To(ConsistOf(HaveField("NQN", hostB)))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Degraded", "True/PoolFailed"))
}

func TestRestartedAgentChangesNothing(t *testing.T) {
	l := newLab(t)
	for n := 1; n <= 5; n++ {
		l.create(n, withHosts(hostA))
	}
	l.createSnapshot(6, l.name(1))
	l.reconcile(l.agent())
	l.reconcile(l.agent())
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())

	l.target.ForgetCalls()
	l.writes = 0
	events := len(l.events)
	r := l.anotherProcess()
	recorded := l.lastRecorded()
	l.reconcile(r)
	for range 3 {
		l.reconcile(l.agent())
	}
	l.Expect(l.lastRecorded()).To(Equal(recorded))
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(l.writes).To(BeZero())
	l.Expect(l.events).To(HaveLen(events))
	l.Expect(host.Disconnected()).To(BeFalse())
}

func TestRefillAfterReboot(t *testing.T) {
	l := newLab(t)
	const count = 20
	for n := 1; n <= count; n++ {
		l.create(n, ofSize("1Gi"), withHosts(hostA))
	}
	l.reconcile(l.agent())
	before := l.state().Exports
	host, err := l.target.Connect(t.Context(), tcp, l.volume(7).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(host.WriteAt(id(7), []byte("kept"), 0)).To(Equal(4))

	l.target.Restart()
	l.target.ForgetCalls()
	exportsAtOpening := -1
	l.target.Before(enginetest.OpenPortals, func(context.Context) {
		exportsAtOpening = 0
		for _, c := range l.changes() {
			if c.Method == enginetest.Export {
				exportsAtOpening += len(c.Items)
			}
		}
	})
	l.reconcile(l.agent())
	l.Expect(exportsAtOpening).To(Equal(count), "every export comes before the first portal")
	methods := []enginetest.Method{}
	for _, c := range l.changes() {
		methods = append(methods, c.Method)
	}
	l.Expect(methods).To(Equal([]enginetest.Method{enginetest.OpenPools, enginetest.Export, enginetest.OpenPortals}), "in bulk, and nothing else")
	l.Expect(l.state().Exports).To(Equal(before), "the same identities as before")
	data := make([]byte, 4)
	_, err = host.ReadAt(id(7), data, 0)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(string(data)).To(Equal("kept"))
}

func TestRefillWithOneVolumeThatCannotBe(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	l.create(2, withHosts(hostA))
	l.reconcile(l.agent())
	l.target.Restart()
	l.target.FailItem(enginetest.Export, l.volume(1).CurrentSubsystem(), engine.ErrBusy)

	settling := l.agent()
	settling.Settle = defaultSettle
	result := l.reconcile(settling)
	l.Expect(l.state().Portals).To(BeEmpty(), "it may yet come")
	l.Expect(result.RequeueAfter).To(BeNumerically("<=", retryFirst))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("PortalsReady", "False/Pending"))

	l.reconcile(l.agent()) // one that does not settle any more
	l.Expect(l.state().Portals).To(HaveLen(1), "the other is served without it")
	l.Expect(l.says(1)).To(HaveKeyWithValue("Exported", "False/ExportFailed"))
	l.Expect(l.says(2)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.volume(1).Status.Hosts).To(BeEmpty())

	l.target.FailItem(enginetest.Export, l.volume(1).CurrentSubsystem(), nil)
	l.reconcile(l.agent())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.events).To(ContainElements(HavePrefix("Warning ExportFailed "), HavePrefix("Normal AsExpected Ready is True")))
}

func TestVolumeLost(t *testing.T) {
	l := newLab(t)
	l.create(1)
	r := l.agent()
	l.reconcile(r)
	l.Expect(l.target.Unexport(t.Context(), []string{l.volume(1).CurrentSubsystem()})).To(HaveExactElements(BeNil()))
	l.target.Lose(id(1))
	l.reconcile(r)
	l.Expect(l.says(1)).To(Equal(map[string]string{"Created": "True/AsExpected", "Exported": "False/VolumeLost", "Degraded": "True/VolumeLost", "QoSApplied": "Unknown/VolumeLost", "Ready": "False/VolumeLost"}))
	l.Expect(l.events).To(ContainElement(HavePrefix("Warning VolumeLost ")))
	l.reconcile(l.agent())
	l.Expect(l.state().Volumes).To(BeEmpty(), "is not created again")
}

func TestForeignDevice(t *testing.T) {
	l := newLab(t)
	l.target.AddDevice(enginetest.Device{Path: drivePathA, SizeBytes: 100 * gib, Content: v1alpha1.ContentForeign, Signature: "ext4 filesystem"})
	l.create(1)
	l.reconcile(l.agent())
	node := l.nvmfNode()
	l.Expect(said(node.Status.Conditions)).To(And(HaveKeyWithValue("PoolReady", "False/ForeignSignature"), HaveKeyWithValue("Ready", "True/AsExpected")))
	l.Expect(l.events).To(ContainElement(And(HavePrefix("Warning ForeignSignature "), ContainSubstring("ext4 filesystem"), ContainSubstring(drivePathA))))
	l.Expect(l.volume(1).Status.Device).To(Equal("b"))
	content, _ := l.target.Content(drivePathA)
	l.Expect(content).To(Equal(v1alpha1.ContentForeign))
}

func TestEngineSilent(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	r := l.agent()
	l.reconcile(r)
	before := l.volume(1)
	l.target.FailCall(enginetest.Gather, engine.ErrUnavailable)
	l.delete(1)
	l.target.ForgetCalls()
	l.reconcile(r)
	l.Expect(r.Ready()).To(MatchError(engine.ErrUnavailable))
	node := l.nvmfNode()
	l.Expect(said(node.Status.Conditions)).To(Equal(map[string]string{"Ready": "False/EngineNotAnswering", "PoolReady": "Unknown/EngineNotAnswering", "PortalsReady": "Unknown/EngineNotAnswering", "RestartNeeded": "Unknown/EngineNotAnswering", "RestoreSuspected": "Unknown/EngineNotAnswering", "BuffersSufficient": "Unknown/EngineNotAnswering", "WritesDurable": "Unknown/EngineNotAnswering"}))
	l.Expect(node.Status.Pools).To(HaveLen(2), "what was last seen stays")
	l.Expect(l.volume(1).Status).To(Equal(before.Status))
	l.Expect(l.volume(1).Finalizers).NotTo(BeEmpty())
	l.Expect(l.changes()).To(BeEmpty())
}

func TestOrphansAreReportedOnceAndLeftAlone(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.reconcile(r)
	orphan := engine.VolumeSpec{ID: id(99), Pool: "a", SizeBytes: gib}
	l.Expect(l.target.CreateVolumes(t.Context(), []engine.VolumeSpec{orphan})).To(HaveExactElements(BeNil()))
	export := engine.Export{
		NQN: v1alpha1.SubsystemNQN("v99", uuid(99)), Serial: id(99).NGUID()[:20], Model: "weft", MaxIOQueues: 8,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id(99)}}, Hosts: []string{hostA},
	}
	l.Expect(l.target.Export(t.Context(), []engine.Export{export})).To(HaveExactElements(BeNil()))
	for range 3 {
		l.reconcile(r)
	}
	l.Expect(l.state().Volumes).To(HaveLen(1))
	l.Expect(l.state().Exports).To(HaveLen(1))
	reported := slices.DeleteFunc(slices.Clone(l.events), func(e string) bool { return !ContainsReason(e, reasonOrphans) })
	l.Expect(reported).To(HaveExactElements(ContainSubstring(uuid(99))))
}

// ContainsReason of an event as the lab writes it.
func ContainsReason(event, reason string) bool {
	var kind, is string
	if _, err := fmt.Sscan(event, &kind, &is); err != nil {
		return false
	}
	return is == reason
}

// A cache that lags behind the agent's own writes must not make it judge again.
func TestStaleCacheDoesNotUndoBlank(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	r := l.agent()
	stale := l.volume(1)
	l.reconcile(r)
	l.Expect(l.volume(1).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}))
	l.Expect(l.target.MarkWritten(id(1), 4096)).To(Succeed())

	l.Expect(newest(&r.own, stale).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}))
	fresh := l.volume(1)
	l.Expect(newest(&r.own, fresh)).To(BeIdenticalTo(fresh), "a cache that caught up counts")
	l.Expect(newest(&r.own, stale)).To(BeIdenticalTo(stale), "and the memory is gone")
}

func TestManyVolumesAreFewCalls(t *testing.T) {
	l := newLab(t)
	const count = 300
	l.target.AddDevice(enginetest.Device{Path: drivePathA, SizeBytes: 2000 * gib})
	for n := 1; n <= count; n++ {
		l.create(n, ofSize("1Gi"), withHosts(hostA))
	}
	l.target.ForgetCalls()
	l.reconcile(l.agent())
	l.Expect(len(l.target.Calls())).To(BeNumerically("<", 20))
	l.Expect(l.state().Exports).To(HaveLen(count))
	capacity := l.nvmfNode().Status.Capacity
	l.Expect(capacity.Allocated.Value()).To(Equal(int64(count * (gib + v1alpha1.OverheadBytes))))
}
