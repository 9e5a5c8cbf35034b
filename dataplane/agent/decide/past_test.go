// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	attachmentA = "00000000-0000-4000-8000-00000000000a"
	attachmentB = "00000000-0000-4000-8000-00000000000b"
)

// onRecord replaces what is on record of volume 1.
func onRecord(s *Observed, r Record) { s.Records.Items[id(1)] = r }

// TestDecideOnThePast: volume 1 is served to host A. Its object asks for host B and another size, and may be from the
// past: then nothing of that is done.
func TestDecideOnThePast(t *testing.T) {
	acted := Record{UID: uid(1), ResourceVersion: "7", Generation: 1, Attachments: []string{attachmentA}}
	for _, c := range []struct {
		name   string
		change func(*Observed, *v1alpha1.NvmfReplica)
		why    string // empty: it is acted on
	}{
		{name: "a newer object", change: func(_ *Observed, v *v1alpha1.NvmfReplica) { v.ResourceVersion, v.Generation = "10", 2 }},
		{name: "the object that was acted on", change: func(*Observed, *v1alpha1.NvmfReplica) {}},
		{"an older resourceVersion, compared as a number", func(s *Observed, _ *v1alpha1.NvmfReplica) {
			onRecord(s, Record{UID: uid(1), ResourceVersion: "10", Generation: 1})
		}, "its resourceVersion 7 is older than the recorded 10"},
		{"an older generation, whatever the version", func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.ResourceVersion = "1000000007"
			onRecord(s, Record{UID: uid(1), ResourceVersion: "7", Generation: 2})
		}, "its generation 1 is older than the recorded 2"},
		{"a status from before, whatever was written to the object since", func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.ResourceVersion, v.Generation = "1000000007", 9
			acted := acted
			acted.Observed = 2
			onRecord(s, acted)
		}, "its status is of generation 1, but was of generation 2 before"},
		{"a version that is no number", func(_ *Observed, v *v1alpha1.NvmfReplica) { v.ResourceVersion = "abc" }, "cannot be compared"},
		{"another object", func(_ *Observed, v *v1alpha1.NvmfReplica) { v.UID, v.ResourceVersion = "other", "99" }, "UID is other"},
		{"no record", func(s *Observed, _ *v1alpha1.NvmfReplica) { delete(s.Records.Items, id(1)) }, "no record of it"},
		{"an attachment that was dismissed", func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.ResourceVersion, v.Generation = "10", 2
			acted := acted
			acted.Dismissed = []string{attachmentB}
			onRecord(s, acted)
		}, "it lists attachments that have ended: " + attachmentB},
		{name: "another object, after the first was gone", change: func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.UID, v.ResourceVersion = "other", "1"
			acted := acted
			acted.Gone, acted.ResourceVersion, acted.Generation = true, "99", 9
			onRecord(s, acted)
		}},
		{"one that was suspect before, at any version", func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.ResourceVersion, v.Generation = "99", 9
			acted := acted
			acted.Suspect = "said before"
			onRecord(s, acted)
		}, "said before"},
		{"the declaration of an earlier one", func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.UID = "other"
			s.Records.Suspicion = "second"
			s.Node.Annotations = map[string]string{v1alpha1.RestoredAnnotation: "first"}
		}, "UID is other"},
		{name: "a declared restore", change: func(s *Observed, v *v1alpha1.NvmfReplica) {
			v.UID = "other"
			s.Records.Suspicion = "this"
			s.Node.Annotations = map[string]string{v1alpha1.RestoredAnnotation: "this"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			onRecord(&s, acted)
			v := testVolume(1, isCreatedOn("a"), withHosts(hostB), ofSize("20Gi"))
			v.Status.ObservedGeneration = 1
			s.Volumes = []*v1alpha1.NvmfReplica{v}
			s.Target.State.Volumes = []engine.Volume{engineVolume(1, "a")}
			s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			c.change(&s, v)
			d := Decide(s)
			is := d.Records.Put[id(1)]
			if c.why == "" {
				g.Expect(written(d.Operations)).To(Equal([]string{"GrowVolumes 1 to 20Gi", "Export v1 to 1"}))
				g.Expect(said(d.Node.Conditions)).To(HaveKeyWithValue("RestoreSuspected", "False/AsExpected"))
				g.Expect(is.UID).To(Equal(v.UID))
				g.Expect(is.ResourceVersion).To(Equal(v.ResourceVersion))
				g.Expect(is.Generation).To(Equal(v.Generation))
				g.Expect(is.Observed).To(BeEquivalentTo(1))
				g.Expect(is.Suspect).To(BeEmpty())
				g.Expect(is.Attachments).To(ConsistOf(attachmentB))
				g.Expect(is.Dismissed).To(ConsistOf(attachmentA))
				g.Expect(is.Export.Hosts).To(ConsistOf(hostB))
				g.Expect(d.Records.Suspicion).To(BeEmpty())
				return
			}
			g.Expect(written(d.Operations)).To(BeEmpty())
			g.Expect(said(d.Node.Conditions)).To(HaveKeyWithValue("RestoreSuspected", "True/RestoreSuspected"))
			g.Expect(said(d.Volumes["v1"].Conditions)).To(And(
				HaveKeyWithValue("Ready", "False/RestoreSuspected"), HaveKeyWithValue("Degraded", "True/RestoreSuspected"), HaveKeyWithValue("Exported", "True/AsExpected")))
			g.Expect(d.Volumes["v1"].Hosts).To(ConsistOf(v1alpha1.AdmittedHost{NQN: hostA}), "what is served is told as it is")
			g.Expect(d.Volumes["v1"].ObservedGeneration).To(BeEquivalentTo(1), "it was not acted on")
			g.Expect(d.Node.SuspectedRestore).To(Equal(d.Records.Suspicion))
			g.Expect(d.Records.Suspicion).NotTo(BeEmpty())
			onRecord(&s, merged(s.Records.Items[id(1)], is))
			g.Expect(s.Records.Items[id(1)].Suspect).To(ContainSubstring(c.why))
			v.ResourceVersion, v.Generation = "1000", 10
			s.Records.Suspicion = d.Records.Suspicion
			again := Decide(s)
			g.Expect(written(again.Operations)).To(BeEmpty(), "a later write makes it no better")
			g.Expect(again.Records.Suspicion).To(Equal(d.Records.Suspicion))
		})
	}
}

// merged is what is on record after a decision that may have left it as it was.
func merged(was, put Record) Record {
	if put.Suspect == "" {
		return was
	}
	return put
}

// TestDecideWithoutARecord: what shows no sign of having been made is new; of what may be in a pool that cannot be read
// nothing is known, and nothing recorded.
func TestDecideWithoutARecord(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	s.Records = Records{Next: "next"}
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1), testVolume(2, isCreatedOn("a")), testVolume(3, recordedOn("a"))}
	s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(4, "v2", snapshotCreated, snapshotDeleting)}
	holds(engineVolume(2, "a"))(&s)
	s.Target.State.Snapshots = []engine.Snapshot{{ID: id(4), Pool: "a"}}
	d := Decide(s)
	g.Expect(written(d.Operations)).To(Equal([]string{"CreateVolumes 1 on a", "CreateVolumes 3 on a"}))
	g.Expect(d.Records.Put).To(HaveLen(4))
	for n, suspect := range map[int]bool{1: false, 2: true, 3: false, 4: true} {
		g.Expect(d.Records.Put[id(n)].Suspect != "").To(Equal(suspect), "%d", n)
	}
	g.Expect(d.Records.Suspicion).To(Equal("next"))

	brokenA(&s)
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, withHosts(hostA))}
	s.Snapshots, s.Target.State.Volumes, s.Target.State.Snapshots = nil, nil, nil
	g.Expect(Decide(s).Records.Put).To(BeEmpty())
}

// TestDecideOnAnotherHistory: etcd came back from a backup with its revision raised, and a volume that was in use was
// asked to be deleted before the agent looked, in as many changes as there had been since the backup.
func TestDecideOnAnotherHistory(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	had := exported(1, hostA)
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "1000", Generation: 5, Observed: 5, Attachments: []string{attachmentA}, Export: &had})
	v := testVolume(1, isCreatedOn("a"), isDeleting)
	v.ResourceVersion, v.Generation, v.Status.ObservedGeneration = "1000000901", 5, 3
	s.Volumes = []*v1alpha1.NvmfReplica{v}
	holds(engineVolume(1, "a"))(&s)
	s.Target.State.Exports = []engine.Export{had}
	d := Decide(s)
	g.Expect(written(d.Operations)).To(BeEmpty())
	g.Expect(said(d.Node.Conditions)).To(HaveKeyWithValue("RestoreSuspected", "True/RestoreSuspected"))

	v.Status.ObservedGeneration = 5
	g.Expect(written(Decide(s).Operations)).To(Equal([]string{"Unexport v1"}), "it is the agent's own word")
}

// TestDecideInPlaceOfWhatIsGone: an object that says nothing of data, made anew by hand or by a tool, stands for the
// data of the one that is gone. While that may be in a pool that cannot be read, no other is made.
func TestDecideInPlaceOfWhatIsGone(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	brokenA(&s)
	onRecord(&s, Record{UID: "former", ResourceVersion: "5", Generation: 2, Dismissed: []string{attachmentA}, Gone: true})
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
	for range 3 {
		d := Decide(s)
		g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
		g.Expect(said(d.Volumes["v1"].Conditions)).To(HaveKeyWithValue("Created", "Unknown/PoolFailed"))
		if is, changed := d.Records.Put[id(1)]; changed {
			onRecord(&s, is)
		}
	}
	s.Target.State.Pools = openPools()
	found := s
	found.Target.State.Volumes = []engine.Volume{engineVolume(1, "a")}
	d := Decide(found)
	g.Expect(said(d.Volumes["v1"].Conditions)).To(And(HaveKeyWithValue("Created", "True/AsExpected"), HaveKeyWithValue("Degraded", "False/AsExpected")))
	g.Expect(d.Volumes["v1"].Device).To(Equal("a"))
	g.Expect(d.Volumes["v1"].Written).To(BeTrue())
	g.Expect(d.Records.Put[id(1)]).To(And(HaveField("Gone", false), HaveField("UID", uid(1)), HaveField("Dismissed", ConsistOf(attachmentA))))
	g.Expect(Decide(s).Operations.CreateVolumes).To(HaveLen(1), "nowhere is there anything of it")
}

// TestDecideOnWhatIsBeingMade: the record names the pool before the engine is asked, and stands for the object's status
// until that does.
func TestDecideOnWhatIsBeingMade(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), wasWritten), testVolume(2, fromVolume("v1"))}
	holds(engineVolume(1, "a"))(&s)
	s.Target.State.Exports = []engine.Export{exported(1)}
	d := Decide(s)
	g.Expect(written(d.Operations)).To(Equal([]string{"CreateVolumes 2 on a from 1"}))
	is := d.Records.Put[id(2)]
	g.Expect(is).To(And(HaveField("UID", uid(2)), HaveField("Pool", "a"), HaveField("Written", true)))
	s.Records.Items[id(2)] = is

	// It was made, and the agent killed: nothing of what it copied counts as allocated to it.
	made := s
	copied := engineVolume(2, "a")
	copied.AllocatedBytes = 0
	made.Target.State.Volumes = append(slices.Clone(s.Target.State.Volumes), copied)
	d = Decide(made)
	g.Expect(d.Volumes["v2"]).To(And(HaveField("Device", "a"), HaveField("Written", true)))
	s.Volumes[0].Status.Written = false // that of its source says nothing any more
	g.Expect(Decide(made).Volumes["v2"].Written).To(BeTrue())
	blank := made
	blank.Records = acted()
	blank.Records.Items[id(2)] = Record{UID: uid(2), ResourceVersion: "7", Generation: 1, Pool: "a"}
	g.Expect(Decide(blank).Volumes["v2"].Written).To(BeFalse(), "nothing was written since it was made")

	// Its drive died meanwhile: it may be there.
	dead := s
	brokenA(&dead)
	d = Decide(dead)
	g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
	g.Expect(said(d.Volumes["v2"].Conditions)).To(HaveKeyWithValue("Created", "Unknown/PoolFailed"))

	// What the record of another object says is not of this one.
	other := dead
	other.Volumes = []*v1alpha1.NvmfReplica{testVolume(2)}
	other.Target.State.Volumes, other.Target.State.Exports = nil, nil
	other.Records = acted()
	other.Records.Items[id(2)] = Record{UID: "former", ResourceVersion: "5", Generation: 1, Pool: "a"}
	g.Expect(said(Decide(other).Volumes["v2"].Conditions)).To(HaveKeyWithValue("Ready", "False/RestoreSuspected"))
	other.Records.Items[id(2)] = Record{UID: uid(2), ResourceVersion: "5", Generation: 1}
	g.Expect(written(Decide(other).Operations)).To(Equal([]string{"CreateVolumes 2 on b"}), "it was never made")

	// Once the status says it, the record does not.
	s.Volumes[1] = testVolume(2, isCreatedOn("a"), wasWritten)
	s.Target.State.Volumes = made.Target.State.Volumes
	g.Expect(Decide(s).Records.Put[id(2)]).To(And(HaveField("UID", uid(2)), HaveField("Pool", ""), HaveField("Written", false)))
}

// TestCreationStaysWhereItWasBegun: what got no answer may be carried out later, so another pool is asked only when the
// first one has refused.
func TestCreationStaysWhereItWasBegun(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(2)}
	s.Records.Items[id(2)] = Record{UID: uid(2), ResourceVersion: "7", Generation: 1, Pool: "a"}
	s.Node.Spec.UnschedulableDrives = []string{"a"}
	g.Expect(written(Decide(s).Operations)).To(Equal([]string{"CreateVolumes 2 on a"}))

	unplanned := s
	unplanned.Node = s.Node.DeepCopy()
	unplanned.Node.Spec.Plan.Drives = slices.DeleteFunc(unplanned.Node.Spec.Plan.Drives, func(d v1alpha1.PlannedDrive) bool { return d.ID == "a" })
	d := Decide(unplanned)
	g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
	g.Expect(said(d.Volumes["v2"].Conditions)).To(HaveKeyWithValue("Created", "False/NoSpace"), "the CSI controller asks another node")

	s.Attempts.Record(VerbCreateVolume, string(id(2)), context.DeadlineExceeded)
	d = Decide(s)
	g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
	g.Expect(d.Records.Put[id(2)]).To(HaveField("Pool", "a"))

	s.Attempts = Attempts{}
	s.Attempts.Record(VerbCreateVolume, string(id(2)), engine.ErrNoSpace)
	d = Decide(s)
	g.Expect(said(d.Volumes["v2"].Conditions)).To(HaveKeyWithValue("Created", "False/NoSpace"))
	g.Expect(d.Records.Put[id(2)]).To(HaveField("Pool", ""))
	g.Expect(d.Volumes["v2"].Device).To(BeEmpty())
	s.Records.Items[id(2)], s.Attempts = d.Records.Put[id(2)], Attempts{}
	g.Expect(written(Decide(s).Operations)).To(Equal([]string{"CreateVolumes 2 on b"}))
}

// TestRivalOfWhatIsBeingMade: of two objects with one UUID, the data is that of the one for which it is being made.
func TestRivalOfWhatIsBeingMade(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	rival := testVolume(2)
	rival.Spec.UUID = uuid(1)
	rival.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1), rival}
	s.Volumes[0].CreationTimestamp = metav1.NewTime(now)
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "7", Generation: 1, Pool: "a"})
	holds(engineVolume(1, "a"))(&s)
	d := Decide(s)
	g.Expect(said(d.Volumes["v1"].Conditions)).To(HaveKeyWithValue("Created", "True/AsExpected"))
	g.Expect(said(d.Volumes["v2"].Conditions)).To(HaveKeyWithValue("Created", "False/UUIDInUse"))
}

// TestDecideOnWhatWasAttachedBefore: the backup is from between the creation of the object and its first status, and a
// person has declared the restore. That hosts were admitted shows that it was made: while it may be in a pool that
// cannot be read, it is not made again.
func TestDecideOnWhatWasAttachedBefore(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	had := exported(1, hostA)
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "9", Generation: 4, Observed: 4, Attachments: []string{attachmentA}, Export: &had})
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
	brokenA(&s)
	d := Decide(s)
	g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
	s.Records.Suspicion = d.Records.Suspicion
	s.Node.Annotations = map[string]string{v1alpha1.RestoredAnnotation: d.Records.Suspicion}
	d = Decide(s)
	g.Expect(d.Operations.CreateVolumes).To(BeEmpty())
	g.Expect(said(d.Volumes["v1"].Conditions)).To(HaveKeyWithValue("Created", "Unknown/PoolFailed"))
	onRecord(&s, d.Records.Put[id(1)]) // it has dismissed what is not listed
	g.Expect(Decide(s).Operations.CreateVolumes).To(BeEmpty())

	s.Target.State.Pools = openPools()
	s.Target.State.Volumes = []engine.Volume{engineVolume(1, "a")}
	g.Expect(Decide(s).Volumes["v1"]).To(And(HaveField("Device", "a"), HaveField("Written", true)))
}

// TestDecideServesOn: a target that came back empty is given what it had, not what the object of the past says.
func TestDecideServesOn(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	had := exported(1, hostA)
	had.Portals = nil
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "10", Generation: 1, Export: &had})
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostB))}
	holds(engineVolume(1, "a"))(&s)
	g.Expect(Decide(s).Operations.Export).To(ConsistOf(had))
}

// TestDismissedForGood: a restore that was declared does not bring an attachment back that was dismissed.
func TestDismissedForGood(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "10", Generation: 3, Dismissed: []string{attachmentA}, Suspect: "older"})
	s.Records.Suspicion = "this"
	s.Node.Annotations = map[string]string{v1alpha1.RestoredAnnotation: "this"}
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
	holds(engineVolume(1, "a"))(&s)
	d := Decide(s)
	g.Expect(d.Operations.Export).To(ConsistOf(HaveField("Hosts", BeEmpty())))
	s.Records.Items[id(1)], s.Records.Suspicion = d.Records.Put[id(1)], ""
	g.Expect(Decide(s).Operations.Export).To(ConsistOf(HaveField("Hosts", BeEmpty())), "nor later")
	s.Target.State.Exports = []engine.Export{exported(1)}
	d = Decide(s)
	g.Expect(d.Records.Suspicion).To(BeEmpty(), "which is no news")
	g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionExported).Message).To(ContainSubstring("not for attachments that have ended and cannot be admitted again: " + attachmentA))
}

// TestForget what is no more, and only that.
func TestForget(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	s.Records.Items = map[engine.ID]Record{}
	for n := 1; n <= 4; n++ {
		s.Records.Items[id(n)] = Record{UID: uid(n), ResourceVersion: "7", Generation: 1}
	}
	x := exported(4, hostA)
	s.Records.Items[id(4)] = Record{UID: uid(4), ResourceVersion: "7", Generation: 1, Export: &x}
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
	holds(engineVolume(2, "a"))(&s)
	s.Target.State.Exports = []engine.Export{x}
	d := Decide(s)
	g.Expect(d.Records.Drop).To(Equal([]engine.ID{id(3)}))
	g.Expect(d.Records.Put).To(And(HaveKeyWithValue(id(2), HaveField("Gone", true)), HaveKeyWithValue(id(4), HaveField("Gone", true)), HaveLen(3)))
	brokenA(&s)
	g.Expect(Decide(s).Records.Drop).To(BeEmpty(), "it may be in a pool that cannot be read")
	s.Target.Err = engine.ErrUnavailable
	g.Expect(Decide(s).Records).To(BeNil(), "nothing is known")
}

// TestLetGoAgainAndAgain: a cache that lags shows for a while what was let go. It stays on record as gone, so that the
// object that takes it back is none from the past.
func TestLetGoAgainAndAgain(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	v := testVolume(1, isCreatedOn("a"), deletedByHand)
	s.Volumes = []*v1alpha1.NvmfReplica{v}
	holds(engineVolume(1, "a"))(&s)
	listed(orphan(1, "v1"))(&s)
	decided := func() Decision {
		d := Decide(s)
		maps.Copy(s.Records.Items, d.Records.Put)
		g.Expect(s.Records.Items[id(1)].Gone).To(BeTrue())
		return d
	}
	for range 3 {
		g.Expect(decided().ReleaseVolumes).To(HaveExactElements("v1"))
	}
	brokenA(&s)
	s.Target.State.Volumes = nil
	g.Expect(decided().ReleaseVolumes).To(BeEmpty(), "nothing is let go while its pool cannot be read")
	again := testVolume(1)
	again.UID = "again"
	s.Volumes = []*v1alpha1.NvmfReplica{again}
	g.Expect(said(Decide(s).Node.Conditions)).To(HaveKeyWithValue("RestoreSuspected", "False/AsExpected"))
}

// TestTheSubsystemOfThePast: an object from before the last attachment names another subsystem. The one that is served
// is not taken for one of an attachment that has ended.
func TestTheSubsystemOfThePast(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	had := former(1, hostA)
	onRecord(&s, Record{UID: uid(1), ResourceVersion: "10", Generation: 1, Export: &had})
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostB))}
	holds(engineVolume(1, "a"))(&s)
	s.Target.State.Exports = []engine.Export{had}
	d := Decide(s)
	g.Expect(written(d.Operations)).To(BeEmpty())
	g.Expect(d.Volumes["v1"].Hosts).To(ConsistOf(v1alpha1.AdmittedHost{NQN: hostA}))
}

// A host is told with its node: from the spec, or of one that was dismissed and is still admitted, as before.
func TestAdmittedHostsHaveNodes(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	onNodes := func(v *v1alpha1.NvmfReplica) {
		v.Spec.Hosts[0].Node = "compute-a"
		v.Status.Hosts[0].Node = "compute-b"
	}
	there(&s, testVolume(1, isCreatedOn("a"), withHosts(hostA), reportedHost(hostB, false), onNodes), exported(1, hostA), former(1, hostB, hostC))
	g.Expect(Decide(s).Volumes["v1"].Hosts).To(ConsistOf(
		v1alpha1.AdmittedHost{NQN: hostA, Node: "compute-a"}, v1alpha1.AdmittedHost{NQN: hostB, Node: "compute-b"}, v1alpha1.AdmittedHost{NQN: hostC}))
}
