// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	// MirrorBytes of data of the mirrors that TestMirrors makes.
	MirrorBytes = 32 << 20
	// RegionBytes of a mirror's bitmap, and of what the tests write at once.
	RegionBytes = 64 << 10

	mirrorTimeout = 60 * time.Second
	trickle       = 64 << 10 // bytes a second that are copied to keep a copy from ending
)

// MirrorMachine is what TestMirrors runs on: a kernel, with block devices that stand for replicas.
type MirrorMachine struct {
	Mirrors md.Mirrors
	Mapper  *mapper.Host
	// Replica makes another block device of a size, which reads as zeroes.
	Replica func(t *testing.T, sizeBytes int64) mapper.Lower
	// Enlarge one.
	Enlarge func(t *testing.T, l mapper.Lower, sizeBytes int64)
	// Write and Read a byte, repeated, at an offset of a block device, past all caches.
	Write func(path string, offset int64, value byte) error
	Read  func(path string, offset int64) (byte, error)
	// Written are the bytes that a device of device mapper was given so far.
	Written func(t *testing.T, device string) int64
}

// mirrorTest has legs and the mirror over them.
type mirrorTest struct {
	*testing.T
	Gomega
	MirrorMachine
	volume string
	legs   []*leg
	array  md.Array
}

type leg struct {
	md.Slice
	device mapper.Device
	lower  mapper.Lower
}

func replicaBytes(data int64) int64 { return data + 4<<20 }

// TestMirrors states what a kernel's mirrors do. It runs on this machine's, and on the constructed one.
func TestMirrors(t *testing.T, machine func(t *testing.T) MirrorMachine) {
	for name, test := range map[string]func(*mirrorTest){
		"is made, found, stopped and assembled":            (*mirrorTest).madeAndFound,
		"is made of one member, and filled":                (*mirrorTest).filled,
		"takes a leg back by bitmap":                       (*mirrorTest).takenBack,
		"drops a leg that answers errors":                  (*mirrorTest).errorsDrop,
		"keeps its last leg":                               (*mirrorTest).lastStays,
		"is broken when its last leg answers errors":       (*mirrorTest).broken,
		"does not copy everything when asked for a bitmap": (*mirrorTest).refusals,
		"takes no leg back that went on alone":             (*mirrorTest).wentOnAlone,
		"is assembled of the members that are named":       (*mirrorTest).named,
		"grows without copying":                            (*mirrorTest).grows,
		"gets a third member, and gives one up":            (*mirrorTest).third,
		"tells of changes":                                 (*mirrorTest).watched,
		"is told apart from others":                        (*mirrorTest).apart,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.SetDefaultEventuallyTimeout(mirrorTimeout)
			m := &mirrorTest{T: t, Gomega: g, MirrorMachine: machine(t), volume: uuid.NewString()}
			t.Cleanup(m.cleanUp)
			m.leg()
			m.leg()
			test(m)
		})
	}
}

// leg makes a slice over another replica.
func (m *mirrorTest) leg() *leg {
	m.Helper()
	l := &leg{lower: m.Replica(m.T, replicaBytes(MirrorBytes))}
	var err error
	l.device, err = m.Mapper.Build(m.Context(), m.spec(uuid.NewString(), l.lower, MirrorBytes))
	m.Expect(err).NotTo(HaveOccurred())
	l.Slice = md.Slice{Name: l.device.Name, Number: l.device.Number}
	m.legs = append(m.legs, l)
	return l
}

func (m *mirrorTest) spec(replica string, lower mapper.Lower, data int64) mapper.Spec {
	return mapper.Spec{
		Owner: mapper.Owner{Replica: replica}, Attachment: "0a0b0c0d-0e0f-4001-8203-000000000001", Lower: lower,
		OffsetBytes: md.RecordBytes, SizeBytes: replicaBytes(data) - md.RecordBytes,
	}
}

func (m *mirrorTest) cleanUp() {
	ctx := context.WithoutCancel(m.Context())
	for _, l := range m.legs {
		m.mend(l)
	}
	if m.array.Name != "" {
		m.Expect(m.Mirrors.Stop(ctx, m.array)).To(Succeed())
	}
	for _, l := range m.legs {
		m.Expect(m.Mapper.Remove(ctx, l.device)).To(Succeed())
	}
}

// fail makes a leg answer errors: its replica is lost.
func (m *mirrorTest) fail(l *leg) {
	m.Helper()
	m.Expect(m.Mapper.Control.Load(l.device.Label, mapper.Table{SizeBytes: l.device.SizeBytes})).To(Succeed())
	m.Expect(m.Mapper.Control.Resume(l.device.Label)).To(Succeed())
}

// mend a leg: its replica is back.
func (m *mirrorTest) mend(l *leg) {
	m.Helper()
	var err error
	l.device, err = m.Mapper.Exchange(context.WithoutCancel(m.Context()), l.device, m.spec(l.device.Replica, l.lower, l.device.SizeBytes+md.RecordBytes-4<<20))
	m.Expect(err).NotTo(HaveOccurred())
}

// create a mirror of the first two legs.
func (m *mirrorTest) create() {
	m.Helper()
	m.make(m.legs[0].Slice, m.legs[1].Slice)
}

func (m *mirrorTest) make(members ...md.Slice) {
	m.Helper()
	var err error
	m.array, err = m.Mirrors.Create(m.Context(), md.Spec{Volume: m.volume, Members: members, DataBytes: MirrorBytes})
	m.Expect(err).NotTo(HaveOccurred())
	for _, s := range members {
		if s != md.Missing {
			// The kernel writes that there is a bitmap a moment later. A member that fails before has to be filled.
			m.Eventually(func() (md.Superblock, error) { return m.Mirrors.Superblock(m.Context(), s) }).Should(HaveField("Bitmap", true))
		}
	}
}

func (m *mirrorTest) assemble(legs ...*leg) {
	m.Helper()
	var members []md.Slice
	for _, l := range legs {
		members = append(members, l.Slice)
	}
	var err error
	m.array, err = m.Mirrors.Assemble(m.Context(), m.volume, members)
	m.Expect(err).NotTo(HaveOccurred())
}

func (m *mirrorTest) stop() {
	m.Helper()
	m.Expect(m.Mirrors.Stop(m.Context(), m.array)).To(Succeed())
}

// put a byte into a number of regions of the mirror.
func (m *mirrorTest) put(value byte, from, count int) {
	m.Helper()
	for n := from; n < from+count; n++ {
		m.Expect(m.Write(m.array.Path, md.FrontBytes+int64(n)*RegionBytes, value)).To(Succeed())
	}
}

// has fails when a leg has not a byte in regions.
func (m *mirrorTest) has(l *leg, value byte, from, count int) {
	m.Helper()
	for n := from; n < from+count; n++ {
		got, err := m.Read(l.device.Path, 4<<20-md.RecordBytes+int64(n)*RegionBytes)
		m.Expect(err).NotTo(HaveOccurred())
		m.Expect(got).To(Equal(value), "region %d of %s", n, l.Name)
	}
}

func (m *mirrorTest) state() md.State {
	m.Helper()
	s, err := m.Mirrors.State(m.array)
	m.Expect(err).NotTo(HaveOccurred())
	return s
}

func (m *mirrorTest) member(l *leg) md.Member {
	m.Helper()
	got, ok := m.state().Member(l.Slice)
	m.Expect(ok).To(BeTrue(), "%s is a member", l.Name)
	return got
}

func (m *mirrorTest) wait(until func(md.State) bool) md.State {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), mirrorTimeout)
	defer cancel()
	s, err := m.Mirrors.Wait(ctx, m.array, until)
	m.Expect(err).NotTo(HaveOccurred(), "it is %+v", s)
	return s
}

func whole(s md.State) bool { return s.Idle() && s.Degraded == 0 }

// without waits until a leg is dropped.
func (m *mirrorTest) without(l *leg) {
	m.Helper()
	m.wait(func(s md.State) bool { got, ok := s.Member(l.Slice); return ok && got.Faulty && !got.Blocked })
}

func (m *mirrorTest) madeAndFound() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.Expect(m.array.Volume).To(Equal(m.volume))
	m.Expect(m.array.DataBytes).To(BeEquivalentTo(MirrorBytes))
	found, err := m.Mirrors.Of(m.volume)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(found).To(Equal(m.array))
	m.Expect(m.Mirrors.All()).To(ContainElement(m.array))
	s := m.state()
	m.Expect(s.Writable()).To(BeTrue())
	m.Expect(whole(s)).To(BeTrue())
	m.Expect(s.InSync()).To(HaveLen(2))
	m.Expect(m.member(a).Role).To(BeEquivalentTo(0))
	m.Expect(m.member(b).Role).To(BeEquivalentTo(1))
	owner, _, ours := mapper.Parse(m.member(b).UUID)
	m.Expect(ours).To(BeTrue())
	m.Expect(owner).To(Equal(b.device.Owner))
	m.put(7, 0, 3)
	m.has(a, 7, 0, 3)
	m.has(b, 7, 0, 3)
	_, err = m.Mirrors.Create(m.Context(), md.Spec{Volume: m.volume, Members: []md.Slice{a.Slice, b.Slice}, DataBytes: MirrorBytes})
	m.Expect(err).To(MatchError(md.ErrState))
	m.stop()
	m.stop()
	_, err = m.Mirrors.Of(m.volume)
	m.Expect(err).To(MatchError(md.ErrNotFound))
	_, err = m.Mirrors.State(m.array)
	m.Expect(err).To(MatchError(md.ErrNotFound))
	super, err := m.Mirrors.Superblock(m.Context(), b.Slice)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(super.Array).To(Equal(m.volume))
	m.Expect(super.Role).To(BeEquivalentTo(1))
	m.Expect(super.Roles).To(Equal([]md.Role{0, 1}))
	m.Expect(super.Dirty).To(BeFalse())
	m.assemble(a, b)
	m.Expect(whole(m.wait(md.State.Idle))).To(BeTrue())
	m.Expect(m.state().Writable()).To(BeTrue())
	m.has(a, 7, 0, 3)
}

func (m *mirrorTest) filled() {
	a, b := m.legs[0], m.legs[1]
	m.make(md.Missing, b.Slice)
	m.put(3, 0, 8)
	m.put(4, MirrorBytes/RegionBytes-1, 1)
	m.Expect(m.state().Degraded).To(Equal(1))
	m.Expect(m.member(b).Role).To(BeEquivalentTo(1))
	m.Expect(m.Mirrors.Add(m.Context(), m.array, a.Slice)).To(Succeed())
	m.put(5, 2, 1)
	m.wait(whole)
	m.Expect(m.member(a).Role).To(BeEquivalentTo(0))
	m.stop()
	for _, l := range m.legs {
		m.has(l, 3, 0, 2)
		m.has(l, 5, 2, 1)
		m.has(l, 3, 3, 5)
		m.has(l, 4, MirrorBytes/RegionBytes-1, 1)
	}
	// Every member is one that can be assembled alone.
	m.assemble(a)
	m.stop()
}

func (m *mirrorTest) takenBack() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 32)
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(Succeed())
	m.put(2, 4, 16)
	before := m.Written(m.T, a.Name)
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, a.Slice)).To(MatchError(md.ErrState))
	m.wait(whole)
	copied := m.Written(m.T, a.Name) - before
	m.Expect(copied).To(And(BeNumerically(">=", 16*RegionBytes), BeNumerically("<=", 2*16*RegionBytes)), "bytes copied")
	m.stop()
	for _, l := range []*leg{a, b} {
		m.has(l, 1, 0, 4)
		m.has(l, 2, 4, 16)
		m.has(l, 1, 20, 12)
	}
}

func (m *mirrorTest) errorsDrop() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 4)
	m.fail(b)
	m.put(2, 0, 2)
	m.without(b)
	m.Expect(m.state().Degraded).To(Equal(1))
	m.Expect(m.state().InSync()).To(HaveLen(1))
	super, err := m.Mirrors.Superblock(m.Context(), a.Slice)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(super.Roles).To(Equal([]md.Role{0}), "whoever looks at one leg sees that it went on without the other")
	m.mend(b)
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, b.Slice)).To(MatchError(md.ErrState), "it is a member still")
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, b.Slice)).To(Succeed())
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, b.Slice)).To(Succeed())
	m.wait(whole)
	m.stop()
	m.has(b, 2, 0, 2)
	m.has(b, 1, 2, 2)
}

func (m *mirrorTest) lastStays() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(MatchError(md.ErrState))
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, b.Slice)).To(MatchError(md.ErrLast))
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, md.Slice{Name: "dm-9999", Number: "253:9999"})).To(MatchError(md.ErrNotFound))
	m.put(6, 0, 1)
	m.has(b, 6, 0, 1)
}

func (m *mirrorTest) broken() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.fail(b)
	m.Expect(m.Write(m.array.Path, md.FrontBytes, 9)).NotTo(Succeed())
	m.wait(func(s md.State) bool { return s.Array == md.Broken })
	m.mend(b)
	m.Expect(m.Write(m.array.Path, md.FrontBytes, 9)).NotTo(Succeed())
	m.stop()
	m.assemble(b)
	m.put(9, 0, 1)
}

func (m *mirrorTest) refusals() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 4)
	m.Expect(m.Mirrors.Zero(m.Context(), a.Slice)).To(MatchError(md.ErrState), "of a member")
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Add(m.Context(), m.array, a.Slice)).To(MatchError(md.ErrState), "which has a superblock")
	m.Expect(m.Mirrors.Zero(m.Context(), a.Slice)).To(Succeed())
	_, err := m.Mirrors.Superblock(m.Context(), a.Slice)
	m.Expect(err).To(MatchError(md.ErrNoSuperblock))
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, a.Slice)).To(MatchError(md.ErrFullCopy))
	// What was only being filled has not what the bitmap no longer marks.
	m.Expect(m.Mirrors.SetSpeed(m.array, trickle, trickle)).To(Succeed())
	m.Expect(m.Mirrors.Add(m.Context(), m.array, a.Slice)).To(Succeed())
	m.wait(func(s md.State) bool { got, ok := s.Member(a.Slice); return ok && got.Recovering() })
	m.Expect(m.state().Idle()).To(BeFalse())
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, a.Slice)).To(MatchError(md.ErrFullCopy))
	m.Expect(m.Mirrors.SetSpeed(m.array, 0, 0)).To(Succeed())
	m.Expect(m.Mirrors.Zero(m.Context(), a.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Add(m.Context(), m.array, a.Slice)).To(Succeed())
	m.wait(whole)
	m.stop()
	m.has(a, 1, 0, 4)
	m.has(b, 1, 0, 4)
}

func (m *mirrorTest) wentOnAlone() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 2)
	m.stop()
	m.assemble(b) // another node, which was fenced since
	m.put(8, 0, 2)
	m.stop()
	m.assemble(a)
	m.put(2, 4, 1)
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, b.Slice)).To(MatchError(md.ErrFullCopy))
	m.Expect(m.Mirrors.Zero(m.Context(), b.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Add(m.Context(), m.array, b.Slice)).To(Succeed())
	m.wait(whole)
	m.stop()
	m.has(b, 1, 0, 2)
	m.has(b, 2, 4, 1)
}

func (m *mirrorTest) named() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.put(1, 0, 2)
	m.stop()
	_, err := m.Mirrors.Assemble(m.Context(), m.volume, []md.Slice{a.Slice, b.Slice})
	m.Expect(err).To(MatchError(md.ErrDisagree))
	var members *md.MembersError
	m.Expect(errors.As(err, &members)).To(BeTrue())
	m.Expect(members.Reports).To(HaveLen(2))
	m.Expect(members.Reports[0].Events).To(BeNumerically("<", members.Reports[1].Events))
	_, err = m.Mirrors.Of(m.volume)
	m.Expect(err).To(MatchError(md.ErrNotFound), "nothing was started")
	// The one that the record names is started, though the other has the higher counter.
	m.assemble(a)
	m.Expect(m.state().InSync()).To(ConsistOf(HaveField("Name", a.Name)))
	m.stop()
	_, err = m.Mirrors.Assemble(m.Context(), uuid.NewString(), []md.Slice{b.Slice})
	m.Expect(err).To(MatchError(md.ErrUnusable), "of another volume")
}

func (m *mirrorTest) grows() {
	const larger = MirrorBytes + 16<<20
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 2)
	for _, l := range m.legs {
		m.Enlarge(m.T, l.lower, replicaBytes(larger))
		var err error
		l.device, err = m.Mapper.Grow(m.Context(), l.device, md.RecordBytes, replicaBytes(larger)-md.RecordBytes)
		m.Expect(err).NotTo(HaveOccurred())
	}
	before := m.Written(m.T, b.Name)
	var err error
	m.array, err = m.Mirrors.Grow(m.Context(), m.array, larger)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(m.array.DataBytes).To(BeEquivalentTo(larger))
	m.wait(whole)
	m.Expect(m.Written(m.T, b.Name)-before).To(BeNumerically("<", 4<<20), "bytes written to a leg")
	m.put(2, larger/RegionBytes-1, 1)
	m.stop()
	for _, l := range []*leg{a, b} {
		m.has(l, 1, 0, 2)
		m.has(l, 2, larger/RegionBytes-1, 1)
	}
	m.assemble(a, b)
	m.Expect(m.array.DataBytes).To(BeEquivalentTo(larger))
}

func (m *mirrorTest) third() {
	a, b := m.legs[0], m.legs[1]
	m.create()
	m.put(1, 0, 4)
	c := m.leg()
	m.Expect(m.Mirrors.SetDisks(m.Context(), m.array, 3)).To(Succeed())
	m.Expect(m.Mirrors.Add(m.Context(), m.array, c.Slice)).To(Succeed())
	m.wait(whole)
	m.Expect(m.state().InSync()).To(HaveLen(3))
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, c.Slice)).To(Succeed())
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, c.Slice)).To(Succeed())
	m.Expect(m.Mirrors.SetDisks(m.Context(), m.array, 2)).To(Succeed())
	m.wait(whole)
	m.stop()
	m.has(c, 1, 0, 4)
	m.assemble(a, b)
	m.Expect(whole(m.state())).To(BeTrue())
}

func (m *mirrorTest) watched() {
	a := m.legs[0]
	m.create()
	states := make(chan md.State, 64)
	ended := make(chan error, 1)
	go func() { ended <- m.Mirrors.Watch(m.Context(), m.array, func(s md.State) { states <- s }) }()
	m.Eventually(states).Should(Receive(HaveField("Degraded", 0)))
	m.Expect(m.Mirrors.Fail(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Eventually(states).Should(Receive(HaveField("Degraded", 1)))
	m.Expect(m.Mirrors.Remove(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Eventually(states).Should(Receive(HaveField("Members", HaveLen(1))))
	m.Expect(m.Mirrors.ReAdd(m.Context(), m.array, a.Slice)).To(Succeed())
	m.Eventually(states).Should(Receive(Satisfy(whole)))
	m.stop()
	m.Eventually(ended).Should(Receive(MatchError(md.ErrNotFound)))

	m.assemble(m.legs[0], m.legs[1])
	ctx, cancel := context.WithCancel(m.Context())
	go func() { ended <- m.Mirrors.Watch(ctx, m.array, func(md.State) {}) }()
	cancel()
	m.Eventually(ended).Should(Receive(BeNil()))
}

func (m *mirrorTest) apart() {
	m.create()
	all, err := m.Mirrors.All()
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(m.Mirrors.Clean(m.Context())).To(Succeed())
	m.Expect(m.Mirrors.All()).To(Equal(all), "what has members stays")
	other := m.array
	other.Volume = uuid.NewString()
	_, err = m.Mirrors.State(other)
	m.Expect(err).To(MatchError(md.ErrNotFound), fmt.Sprintf("%s is of another volume", other.Name))
	m.Expect(m.Mirrors.Fail(m.Context(), other, m.legs[0].Slice)).To(MatchError(md.ErrNotFound))
	m.Expect(m.state().Degraded).To(BeZero())
}
