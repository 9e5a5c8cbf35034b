// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// noting reconciles, and lets the notes be read and written that follow from it, as Notes.Start does; then the status
// has what was read.
func (l *lab) noting(r *Reconciler) {
	l.t.Helper()
	for range 2 {
		l.reconcile(r)
		r.Notes.handOut(l.t.Context(), <-r.Notes.next)
		r.Notes.running.Wait()
	}
	l.reconcile(r)
}

// written notes since calls were forgotten, by UUID.
func (l *lab) written() []string {
	var ids []string
	for _, c := range l.target.Calls() {
		if c.Method == enginetest.WriteNotes {
			ids = append(ids, c.Items...)
		}
	}
	return ids
}

func (l *lab) orphan(n int) v1alpha1.Orphan {
	l.t.Helper()
	var found v1alpha1.Orphan
	l.Expect(l.nvmfNode().Status.Orphans).To(ContainElement(HaveField("UUID", uuid(n)), &found))
	return found
}

// described by the CSI controller: claim databases/data, bound to a PersistentVolume.
func described(v *v1alpha1.NvmfReplica) {
	v.Spec.VolumeUID, v.Spec.VolumeGeneration = "volume-uid", 4
	v.Spec.Description = &v1alpha1.VolumeDescription{
		Replicas: 1, Members: []v1alpha1.VolumeMember{{Name: v.Name, UUID: v.Spec.UUID, Node: nodeName}}, Encryption: v1alpha1.EncryptionLUKS2, Trailer: true,
		PersistentVolume: &v1alpha1.PersistentVolumeDescription{Name: "pv-data", ClaimNamespace: "databases", ClaimName: "data", StorageClass: "fast",
			AccessModes: []string{"ReadWriteOnce"}, VolumeMode: "Filesystem", FSType: "xfs", StageSecret: &v1alpha1.DescribedSecret{Namespace: "secrets", Name: "key"}},
	}
}

// wiped: the objects are gone with etcd, so nobody sees them go.
func (l *lab) wiped(objects ...client.Object) {
	l.t.Helper()
	for _, o := range objects {
		l.Expect(l.admin.Patch(l.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		l.Expect(client.IgnoreNotFound(l.admin.Delete(l.t.Context(), o))).To(Succeed())
	}
}

func (l *lab) snapshot(n int) *v1alpha1.NvmfSnapshot {
	l.t.Helper()
	var s v1alpha1.NvmfSnapshot
	l.Expect(l.admin.Get(l.t.Context(), client.ObjectKey{Name: l.name(n)}, &s)).To(Succeed())
	return &s
}

// newNoted has volume 1 with snapshot 3, and volume 2 without a description, all with their notes.
func newNoted(t *testing.T) (*lab, *Reconciler) {
	t.Helper()
	l := newLab(t)
	r := l.agent()
	l.create(1, described)
	l.create(2)
	l.reconcile(r)
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Used = true })
	l.createSnapshot(3, l.name(1), func(s *v1alpha1.NvmfSnapshot) { s.Spec.Trailer = true })
	l.noting(r)
	return l, r
}

func TestWhatIsLostIsDescribed(t *testing.T) {
	l, r := newNoted(t)
	hostNQN := v1alpha1.HostNQN(uuid(1000))
	l.change(1, func(v *v1alpha1.NvmfReplica) {
		v.Spec.VolumeGeneration = 5
		withHosts(hostNQN)(v)
		v.Spec.Hosts[0].SealedKeys, v.Spec.Hosts[0].SealedTo = "c2VhbGVk", strings.Repeat("0", 32)
		v.Spec.Hosts = nil
	})
	l.target.ForgetCalls()
	l.noting(r)
	l.Expect(l.written()).To(BeEmpty(), "nothing else is said than before")
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Description.PersistentVolume.ClaimName = "moved" })
	l.noting(r)
	l.Expect(l.written()).To(Equal([]string{uuid(1)}), "one change is one write")

	l.wiped(l.volume(1), l.volume(2), l.snapshot(3))
	r = l.agent() // one that never saw them
	l.noting(r)
	l.Expect(l.nvmfNode().Status.OrphanCount).To(Equal(int32(3)))
	data, plain, snap := l.orphan(1), l.orphan(2), l.orphan(3)
	l.Expect(data).To(And(HaveField("Name", l.name(1)), HaveField("Undescribed", "")))
	l.Expect(*data.Description).To(And(
		HaveField("Volume", volumeOf("v1")), HaveField("VolumeUUID", uuid(1)), HaveField("VolumeUID", "volume-uid"), HaveField("Target", "fast"),
		HaveField("Used", true), HaveField("Encryption", v1alpha1.EncryptionLUKS2), HaveField("Trailer", true), HaveField("Replicas", int32(1)), HaveField("Members", HaveLen(1)),
		HaveField("PersistentVolume.ClaimName", "moved"), HaveField("PersistentVolume.StageSecret.Name", "key")))
	l.Expect(data.Description.Size.String()).To(Equal("10Gi"))
	l.Expect(plain).To(And(HaveField("Name", l.name(2)), HaveField("Description.Volume", volumeOf("v2")), HaveField("Description.Trailer", false), HaveField("Description.PersistentVolume", BeNil())))
	l.Expect(snap).To(And(HaveField("Kind", v1alpha1.OrphanSnapshot), HaveField("Name", l.name(3)), HaveField("Replica", l.name(1)), HaveField("Description.Volume", volumeOf(l.name(1))), HaveField("Description.Trailer", true)))
	l.Expect(l.state().Exports).To(BeEmpty(), "nobody asked for it")
	l.target.ForgetCalls()
	l.noting(r)
	l.Expect(l.target.Calls()).NotTo(ContainElement(HaveField("Method", enginetest.ReadNotes)), "what was read is not read again")
}

// What cannot be said is not guessed: the data stays listed with what is known without its description.
func TestUndescribed(t *testing.T) {
	l, _ := newNoted(t)
	l.wiped(l.volume(1), l.volume(2), l.snapshot(3))
	later, err := decide.Note{Kind: v1alpha1.OrphanReplica, Name: "v"}.Encode()
	l.Expect(err).NotTo(HaveOccurred())
	l.target.SetNote(id(1), []byte(strings.Replace(string(later), `"v"`, `"w"`, 1)))
	l.target.SetNote(id(2), nil)
	l.target.SetNote(id(3), []byte(strings.Replace(string(later), `"format":1`, `"format":2`, 1)))
	l.noting(l.agent())
	l.Expect(l.orphan(1)).To(And(HaveField("Undescribed", ContainSubstring("is damaged")), HaveField("Description", BeNil())))
	l.Expect(l.orphan(2)).To(HaveField("Undescribed", ContainSubstring("no description was stored")))
	l.Expect(l.orphan(3)).To(HaveField("Undescribed", ContainSubstring("of a later version")))
}

// noteErrors that were counted, by labels.
func (l *lab) noteErrors(r *Reconciler) map[string]float64 {
	l.t.Helper()
	registry := prometheus.NewRegistry()
	l.Expect(registry.Register(r.metrics.noteErrors)).To(Succeed())
	return samples(l.WithT, registry, "weft_agent_note_errors_total")
}

// A drive that fails to read, or is slow, does so for a while.
func TestNotesThatCannotBeReadNow(t *testing.T) {
	l, _ := newNoted(t)
	l.wiped(l.volume(1), l.volume(2), l.snapshot(3))
	l.target.FailItem(enginetest.ReadNotes, uuid(1), unix.EIO)
	r, clock := l.agent(), clocktesting.NewFakeClock(now)
	r.Notes.clock = clock
	l.noting(r)
	failed := HaveField("Undescribed", And(HavePrefix(v1alpha1.UndescribedNotRead), ContainSubstring(unix.EIO.Error())))
	l.Expect(l.orphan(1)).To(failed)
	l.Expect(l.orphan(2)).To(HaveField("Description", Not(BeNil())))
	l.Expect(l.noteErrors(r)).To(HaveKeyWithValue(`{op="read"}`, 1.0))
	l.target.FailItem(enginetest.ReadNotes, uuid(1), nil)
	l.noting(r)
	l.Expect(l.orphan(1)).To(failed, "it is left alone for a while")
	clock.Step(readAgain)
	l.noting(r)
	l.Expect(l.orphan(1)).To(And(HaveField("Undescribed", ""), HaveField("Description", Not(BeNil()))))
}

func TestNotesThatCannotBeWrittenAreCounted(t *testing.T) {
	l, r := newNoted(t)
	l.target.FailItem(enginetest.WriteNotes, uuid(1), unix.EIO)
	l.change(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Description.PersistentVolume.ClaimName = "moved" })
	l.noting(r)
	l.Expect(l.noteErrors(r)).To(HaveKeyWithValue(`{op="write"}`, 2.0), "once for each time that it was tried")
}

// stalled is a keeper with a drive that does not answer until it is closed.
type stalled struct {
	engine.NoteKeeper
	pool   string
	closed chan struct{}
}

func (s stalled) ReadNotes(ctx context.Context, notes []engine.Note) []error {
	for _, n := range notes {
		if n.Pool == s.pool {
			<-s.closed
		}
	}
	return s.NoteKeeper.ReadNotes(ctx, notes)
}

// A drive that hangs keeps the notes of the others neither unread nor unwritten.
func TestNotesBesideADriveThatHangs(t *testing.T) {
	l := newLab(t)
	n := l.agent().Notes
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Start(ctx) }()
	keeper := stalled{NoteKeeper: l.records, pool: "a", closed: make(chan struct{})}
	show := []decide.NoteRef{{ID: id(1), Pool: "a"}, {ID: id(2), Pool: "b"}}
	n.next <- notesWork{keeper, decide.Notes{Show: show}}
	l.Eventually(n.Found).Should(And(HaveLen(1), HaveKey(id(2))))
	n.next <- notesWork{keeper, decide.Notes{Show: append(show, decide.NoteRef{ID: id(3), Pool: "b"}, decide.NoteRef{ID: id(4), Pool: "a"})}}
	l.Eventually(n.Found).Should(And(HaveLen(2), HaveKey(id(3))))
	close(keeper.closed)
	l.Eventually(n.Found).Should(HaveLen(4), "it does what it was told last")
	cancel()
	l.Eventually(ended).Should(Receive(BeNil()))
}

// A drive that is carried to another node says there what is on it, and nothing is served before a person asks.
func TestDriveThatIsCarriedElsewhere(t *testing.T) {
	l, _ := newNoted(t)
	pool := l.volume(1).Status.Device
	path := map[string]string{"a": drivePathA, "b": drivePathB}[pool]
	there := enginetest.New()
	l.target.Unplug(path, there)
	t.Run("there", func(t *testing.T) {
		other := newLab(t)
		for _, unused := range []string{drivePathA, drivePathB} {
			if unused != path {
				there.AddDevice(enginetest.Device{Path: unused, SizeBytes: 50 * gib})
			}
		}
		other.target = there
		other.noting(other.agent())
		other.Expect(other.orphan(1)).To(And(HaveField("Name", l.name(1)), HaveField("Device", pool), HaveField("Description.PersistentVolume.Name", "pv-data")))
	})
}

// Two drives can have the same data, as when one is a copy of the other.
func TestDataThatIsThereTwice(t *testing.T) {
	l, _ := newNoted(t)
	l.wiped(l.volume(1), l.volume(2), l.snapshot(3))
	l.Expect(l.target.CloneDevice(drivePathA, drivePathB)).To(Succeed())
	l.noting(l.agent())
	l.Expect(l.orphan(1)).To(And(HaveField("Device", "a"), HaveField("OtherDevices", ConsistOf("b"))))
}

// noteless is an agent whose engine has no place for notes.
func (l *lab) noteless() *Reconciler {
	r := l.agent()
	r.Engines = func(v1alpha1.Engine) (engine.Engine, error) { return struct{ engine.Engine }{l.target}, nil }
	return r
}

// notesHere are the errors of reading notes on the node.
func (l *lab) notesHere(numbers ...int) []error {
	notes := make([]engine.Note, len(numbers))
	for i, n := range numbers {
		notes[i].ID = id(n)
	}
	return l.records.ReadNotes(l.t.Context(), notes)
}

// An engine without a place for notes has them on its node.
func TestNotesOnTheNode(t *testing.T) {
	l := newLab(t)
	l.create(1, described)
	l.create(2, described)
	l.noting(l.noteless())
	l.closeRecords()
	l.openRecords()
	l.delete(2)
	l.noting(l.noteless())
	l.wiped(l.volume(1))
	l.noting(l.noteless())
	l.Expect(l.orphan(1)).To(And(HaveField("Name", l.name(1)), HaveField("Description.PersistentVolume.ClaimName", "data")))
	l.Expect(l.written()).To(BeEmpty())
	l.Expect(l.notesHere(2)).To(HaveExactElements(MatchError(engine.ErrNotFound)), "what was deleted is described no more")
}

// After etcd was lost, a target can be made with fewer drives than before: what is on the others is not gone.
func TestNotesOfADriveThatIsOutOfSight(t *testing.T) {
	l := newLab(t)
	l.create(1, described)
	l.noting(l.noteless())
	pool := l.volume(1).Status.Device
	path := map[string]string{"a": drivePathA, "b": drivePathB}[pool]
	plan := func(drives ...v1alpha1.PlannedDrive) {
		node := l.nvmfNode()
		node.Spec.Plan.Drives = drives
		l.Expect(l.admin.Update(t.Context(), node)).To(Succeed())
	}
	both := l.nvmfNode().Spec.Plan.Drives
	l.wiped(l.volume(1))
	elsewhere := enginetest.New()
	l.target.Unplug(path, elsewhere)
	plan(slices.DeleteFunc(slices.Clone(both), func(d v1alpha1.PlannedDrive) bool { return d.ID == pool })...)
	l.noting(l.noteless())
	l.Expect(l.records.Current().Items).To(BeEmpty(), "it has no record any more")

	elsewhere.Unplug(path, l.target)
	plan(both...)
	l.noting(l.noteless())
	l.Expect(l.orphan(1)).To(And(HaveField("Name", l.name(1)), HaveField("Description.PersistentVolume.ClaimName", "data")))
}

// Notes about what may never come back are bounded.
func TestNotesThatAreLeft(t *testing.T) {
	l := newLab(t)
	all, put := make([]engine.Note, maxNotesLeft+2), map[engine.ID]decide.Record{}
	var rest []engine.ID
	for n := range all {
		all[n] = engine.Note{ID: id(n), Text: []byte("text")}
		put[id(n)] = decide.Record{UID: "1"}
		if n > 1 {
			rest = append(rest, id(n))
		}
	}
	l.Expect(l.records.WriteNotes(t.Context(), all[:1])).To(HaveExactElements(MatchError(engine.ErrNotFound)), "without a record")
	l.Expect(l.records.Write(decide.RecordChanges{Put: put})).To(Succeed())
	l.Expect(l.records.WriteNotes(t.Context(), all)).To(HaveEach(BeNil()))
	for _, drop := range [][]engine.ID{{id(0)}, {id(1)}, rest[:len(rest)-1]} {
		l.Expect(l.records.Write(decide.RecordChanges{Drop: drop})).To(Succeed())
	}
	l.Expect(l.notesHere(0, 1)).To(HaveExactElements(MatchError(engine.ErrNotFound), BeNil()), "the oldest one goes")
	l.Expect(l.records.Write(decide.RecordChanges{Put: map[engine.ID]decide.Record{id(1): put[id(1)]}})).To(Succeed())
	l.Expect(l.records.Write(decide.RecordChanges{Drop: rest[len(rest)-1:]})).To(Succeed())
	l.Expect(l.notesHere(1, 2, len(all)-1)).To(HaveEach(BeNil()), "one that has a record again does not count")
}
