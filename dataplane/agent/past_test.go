// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// now is what the API server has of volume n, to be shown later as if it still were.
func (l *lab) now(n int) []v1alpha1.NvmfReplica { return []v1alpha1.NvmfReplica{*l.volume(n)} }

// declare the restore that the node suspects, as an administrator does.
func (l *lab) declare() {
	l.t.Helper()
	node := l.nvmfNode()
	l.Expect(node.Status.SuspectedRestore).NotTo(BeEmpty())
	node.Annotations = map[string]string{v1alpha1.RestoredAnnotation: node.Status.SuspectedRestore}
	l.Expect(l.admin.Update(l.t.Context(), node)).To(Succeed())
}

func (l *lab) suspects() bool {
	l.t.Helper()
	return said(l.nvmfNode().Status.Conditions)["RestoreSuspected"] == "True/RestoreSuspected"
}

// anotherProcess of the agent, which opens the records again.
func (l *lab) anotherProcess() *Reconciler {
	l.t.Helper()
	l.closeRecords()
	l.openRecords()
	return l.agent()
}

// lastRecorded is the number of the last transaction in the records.
func (l *lab) lastRecorded() (id int) {
	l.t.Helper()
	l.Expect(l.records.db.View(func(tx *bbolt.Tx) error { id = tx.ID(); return nil })).To(Succeed())
	return id
}

// An API server that lags shows a volume with a host that was dismissed since, to an agent that has just started.
func TestALaggingAPIServerLetsNobodyInAgain(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	l.reconcile(l.agent())
	old := l.now(1)
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	l.reconcile(l.agent())
	nqn := l.volume(1).Status.NQN
	_, err := l.target.Connect(t.Context(), tcp, nqn, hostA)
	l.Expect(err).To(MatchError(enginetest.ErrRefused))

	l.target.ForgetCalls()
	l.past = old
	l.reconcile(l.anotherProcess())
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(l.suspects()).To(BeTrue())
	l.Expect(l.says(1)).To(And(HaveKeyWithValue("Ready", "False/RestoreSuspected"), HaveKeyWithValue("Degraded", "True/RestoreSuspected")))
	l.Expect(l.events).To(ContainElements(HavePrefix("Warning RestoreSuspected RestoreSuspected is True: "), HavePrefix("Warning RestoreSuspected Ready is False: ")))

	// It waits, at any later version, in any later process.
	l.past = nil
	l.change(1, withHosts(hostA))
	for range 2 {
		l.reconcile(l.anotherProcess())
		l.Expect(l.changes()).To(BeEmpty())
		l.Expect(l.suspects()).To(BeTrue())
	}
	l.declare()
	l.reconcile(l.agent())
	l.Expect(l.suspects()).To(BeFalse())
	l.Expect(l.nvmfNode().Status.SuspectedRestore).To(BeEmpty())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	_, err = l.target.Connect(t.Context(), tcp, nqn, hostA)
	l.Expect(err).To(MatchError(enginetest.ErrRefused), "an attachment that was dismissed is never admitted again")
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil; withHosts(hostB)(v) })
	l.reconcile(l.agent())
	_, err = l.target.Connect(t.Context(), tcp, nqn, hostB)
	l.Expect(err).NotTo(HaveOccurred())

	// What was declared once says nothing of the next time.
	l.past = old
	l.reconcile(l.anotherProcess())
	l.past = nil
	l.reconcile(l.agent())
	l.Expect(l.suspects()).To(BeTrue())
}

// A volume whose object went by hand is taken back; then an API server shows its former object, which is being deleted.
func TestWhatWasTakenBackIsNotDeleted(t *testing.T) {
	l := newLab(t)
	l.create(1)
	l.reconcile(l.agent())
	l.Expect(l.target.MarkWritten(id(1), 1)).To(Succeed())
	l.delete(1)
	going := l.now(1)
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Finalizers = nil })

	l.create(1, withHosts(hostA))
	l.reconcile(l.agent())
	l.Expect(l.suspects()).To(BeTrue(), "its UID is ")
	l.declare()
	l.reconcile(l.agent())
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())

	l.target.ForgetCalls()
	l.past = going
	l.reconcile(l.anotherProcess())
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(host.Disconnected()).To(BeFalse())
	l.Expect(l.state().Volumes).To(HaveLen(1))
}

// A node whose records are gone goes on serving, changes nothing, and takes new volumes.
func TestANodeWithoutRecordsServesOn(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	l.reconcile(l.agent())
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(os.Remove(filepath.Join(l.stateDir, "agent", "records.db"))).To(Succeed())
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	l.create(2)
	l.reconcile(l.anotherProcess())
	l.Expect(l.suspects()).To(BeTrue())
	l.Expect(host.Disconnected()).To(BeFalse())
	l.Expect(l.volume(1).Status.Hosts).To(ConsistOf(HaveField("NQN", hostA)))
	l.Expect(l.volume(1).Status.ObservedGeneration).To(BeNumerically("<", l.volume(1).Generation), "who dismissed it waits")
	l.Expect(l.says(2)).To(HaveKeyWithValue("Ready", "True/AsExpected"))

	l.declare()
	l.reconcile(l.agent())
	l.Expect(host.Disconnected()).To(BeTrue())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
}

// A storage node reboots while its objects may be from the past: it serves what it served, to whom it served it.
func TestARebootWhileARestoreIsSuspected(t *testing.T) {
	l := newLab(t)
	l.create(1, withHosts(hostA))
	l.reconcile(l.agent())
	host, err := l.target.Connect(t.Context(), tcp, l.volume(1).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	before := l.state().Exports
	l.past = l.now(1)
	l.past[0].ResourceVersion, l.past[0].Spec.Hosts = "1", nil
	l.target.Restart()
	l.reconcile(l.anotherProcess())
	l.Expect(l.suspects()).To(BeTrue())
	l.Expect(l.state().Exports).To(Equal(before))
	l.Expect(host.WriteAt(id(1), []byte("data"), 0)).To(Equal(4))
	l.Expect(host.Disconnected()).To(BeFalse())
}

// What cannot be recorded is not acted on.
func TestNothingIsDoneWithoutARecord(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.reconcile(r)
	l.closeRecords()
	l.target.ForgetCalls()
	l.create(1)
	l.reconcile(r)
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "False/RecordsFailed"))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("Ready", "False/RecordsFailed"))
	l.openRecords()
	l.reconcile(l.agent())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
}

func TestRecordsOutliveTheProcess(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "agent")
	r, err := OpenRecords(dir)
	g.Expect(err).NotTo(HaveOccurred())
	record := decide.Record{UID: "u", ResourceVersion: "7", Generation: 2, Dismissed: []string{"a"}, Export: &engine.Export{NQN: "nqn", Hosts: []string{hostA}}, Suspect: "why"}
	g.Expect(r.Write(decide.RecordChanges{Put: map[engine.ID]decide.Record{id(1): record, id(2): {UID: "v"}}, Suspicion: "s"})).To(Succeed())
	g.Expect(r.Write(decide.RecordChanges{Drop: []engine.ID{id(2)}, Suspicion: "s"})).To(Succeed())
	is := r.Current()
	g.Expect(r.Close()).To(Succeed())
	g.Expect(r.Write(decide.RecordChanges{Suspicion: "lost"})).NotTo(Succeed())

	r, err = OpenRecords(dir)
	g.Expect(err).NotTo(HaveOccurred())
	again := r.Current()
	g.Expect(again.Items).To(Equal(map[engine.ID]decide.Record{id(1): record}))
	g.Expect(again.Items).To(Equal(is.Items))
	g.Expect(again.Suspicion).To(Equal("s"))
	g.Expect(again.Next).NotTo(Equal(is.Next))
	g.Expect(r.Close()).To(Succeed())

	g.Expect(os.WriteFile(filepath.Join(dir, "records.db"), []byte("damaged"), 0o600)).To(Succeed())
	_, err = OpenRecords(dir)
	g.Expect(err).To(MatchError(ContainSubstring("records.db")))
}
