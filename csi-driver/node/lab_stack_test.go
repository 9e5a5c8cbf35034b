// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	stackBytes   = 64 << 20
	stackVolume  = "0f0e0d0c-0b0a-4001-8203-040506070809"
	stackAttach  = "b1b1b1b1-2222-4333-8444-555555555555"
	stackReturns = "b2b2b2b2-2222-4333-8444-555555555555"
)

// stack is a volume with replicas on this machine: legs over NVMe/TCP, the mirror over them, and what pods see.
type stack struct {
	*lab
	devices *mapper.Host
	mirrors *md.Host
	array   md.Array
	top     mapper.Device
	legs    []*stackLeg
}

// stackLeg is a replica, its path and its slice.
type stackLeg struct {
	*volume
	stack *stack
	ns    fabrics.Namespace
	slice mapper.Device
}

func setUpStack(t *testing.T) *stack {
	l := setUpLab(t)
	return l.stackIn(l.dir)
}

// stackIn has the replicas' files in a folder.
func (l *lab) stackIn(dir string) *stack {
	l.Helper()
	s := &stack{lab: l, devices: l.service.Mapper.(*mapper.Host), mirrors: l.mirrors()}
	for n := range 2 {
		port := l.port(int32(4420+n), v1alpha1.TransportTCP)
		s.legs = append(s.legs, &stackLeg{volume: l.volumeIn(dir, fmt.Sprintf("lab-leg%d", n), stackBytes, guid(n+1), port), stack: s})
	}
	l.Cleanup(s.takeDown) // while the targets serve
	for _, leg := range s.legs {
		leg.connect()
	}
	return s
}

// takeDown what is left, from the top on.
func (s *stack) takeDown() {
	if _, mounted, err := s.service.Filesystems.At(s.legs[0].path("pod")); err == nil && mounted {
		s.run("umount", s.legs[0].path("pod"))
	}
	s.remove()
	for _, leg := range s.legs {
		leg.down()
	}
}

// remove the volume's device and the mirror.
func (s *stack) remove() {
	s.Helper()
	ctx := s.legs[0].timeout()
	if s.top.Name != "" {
		must(s, s.devices.Remove(ctx, s.top))
		s.top = mapper.Device{}
	}
	if s.array.Name != "" {
		must(s, s.mirrors.Stop(ctx, s.array))
		s.array = md.Array{}
	}
}

func (leg *stackLeg) id() fabrics.ID {
	return fabrics.ID{NQN: leg.context.NQN, NGUID: leg.context.NGUID}
}

func (leg *stackLeg) connect() {
	leg.Helper()
	c := fabrics.Connection{NQN: leg.context.NQN, HostNQN: leg.context.HostNQN(), Portals: leg.context.Portals, Connection: leg.context.Connection}
	must(leg, leg.initiator.Connect(leg.timeout(), c))
	var err error
	leg.ns, err = leg.initiator.WaitNamespace(leg.timeout(), leg.id(), v1alpha1.WithOverhead(stackBytes))
	must(leg, err)
}

func (leg *stackLeg) head() mapper.Lower {
	return mapper.Lower{Name: leg.ns.Name, Number: leg.ns.Device}
}

func (leg *stackLeg) spec() mapper.Spec {
	return mapper.Spec{
		Owner: mapper.Owner{Replica: uuid.MustParse(leg.context.NGUID).String()}, Attachment: leg.context.Attachment, Lower: leg.head(),
		OffsetBytes: md.RecordBytes, SizeBytes: leg.ns.SizeBytes - md.RecordBytes,
	}
}

func (leg *stackLeg) build() {
	leg.Helper()
	var err error
	leg.slice, err = leg.stack.devices.Build(leg.timeout(), leg.spec())
	must(leg, err)
}

func (leg *stackLeg) member() md.Slice {
	return md.Slice{Name: leg.slice.Name, Number: leg.slice.Number}
}

// cut the leg's paths, and delete its controllers: what waits for I/O on it fails.
func (leg *stackLeg) cut() {
	leg.Helper()
	must(leg, leg.initiator.GiveUp(leg.timeout(), leg.context.NQN, func(fabrics.Controller) bool { return true }))
}

func (leg *stackLeg) down() {
	if leg.slice.Name != "" {
		must(leg, leg.stack.devices.Remove(leg.timeout(), leg.slice))
		leg.slice = mapper.Device{}
	}
	must(leg, leg.initiator.Disconnect(leg.timeout(), leg.id()))
}

// overLeg puts the volume's device over a replica alone, and overMirror over the mirror.
func (s *stack) overLeg(leg *stackLeg) mapper.Spec {
	return mapper.Spec{
		Owner: mapper.Owner{Volume: stackVolume}, Attachment: stackAttach, Lower: leg.head(), OffsetBytes: v1alpha1.HeaderBytes, SizeBytes: stackBytes,
	}
}

func (s *stack) overMirror() mapper.Spec {
	return mapper.Spec{
		Owner: mapper.Owner{Volume: stackVolume}, Attachment: stackAttach, Lower: mapper.Lower{Name: s.array.Name, Number: s.array.Number},
		OffsetBytes: md.FrontBytes, SizeBytes: stackBytes,
	}
}

func (s *stack) build(spec mapper.Spec) {
	s.Helper()
	var err error
	s.top, err = s.devices.Build(s.legs[0].timeout(), spec)
	must(s, err)
}

func (s *stack) exchange(spec mapper.Spec) {
	s.Helper()
	var err error
	s.top, err = s.devices.Exchange(s.legs[0].timeout(), s.top, spec)
	must(s, err)
}

func (s *stack) create(members ...md.Slice) {
	s.Helper()
	var err error
	s.array, err = s.mirrors.Create(s.legs[0].timeout(), md.Spec{Volume: stackVolume, Members: members, DataBytes: stackBytes + v1alpha1.TrailerBytes})
	must(s, err)
}

// mount a new filesystem on the volume's device, where the first leg's writer writes.
func (s *stack) mount() {
	s.Helper()
	must(s, os.MkdirAll(s.legs[0].path("pod"), 0o750))
	s.run("mkfs.ext4", "-q", s.top.Path)
	s.run("mount", s.top.Path, s.legs[0].path("pod"))
}

func (s *stack) whole() {
	s.Helper()
	_, err := s.mirrors.Wait(s.legs[0].timeout(), s.array, func(st md.State) bool { return st.Idle() && st.Degraded == 0 })
	must(s, err)
}

// forgets waits until the bitmap of a mirror, by the device of a member, has no region of what was written so far: the
// kernel clears regions some seconds after they were written, and until then they are copied to a member that returns.
func (l *lab) forgets(device string) {
	l.Helper()
	l.run("sync")
	l.Eventually(func() string { return l.run("mdadm", "--examine-bitmap", device) }).
		WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(ContainSubstring(" 0 dirty"))
}

// clean unmounts, and fails when the filesystem is not.
func (s *stack) clean() {
	s.Helper()
	s.run("umount", s.legs[0].path("pod"))
	s.run("fsck.ext4", "-f", "-n", s.top.Path)
}

// A volume that is mounted and written becomes a mirror, is copied, and lives on the other leg alone: there and back,
// without an I/O error.
func TestLabStackMoves(t *testing.T) {
	s := setUpStack(t)
	from, to := s.legs[0], s.legs[1]
	s.build(s.overLeg(from))
	s.mount()
	w := from.startWriter("pod/written")
	w.goesOn()
	for range 2 {
		from.build()
		to.build()
		s.create(from.member(), md.Missing)
		s.exchange(s.overMirror())
		w.goesOn()
		must(s, s.mirrors.Add(from.timeout(), s.array, to.member()))
		w.goesOn()
		s.whole()
		s.exchange(s.overLeg(to))
		must(s, s.mirrors.Stop(from.timeout(), s.array))
		for _, leg := range s.legs {
			must(s, s.mirrors.Zero(from.timeout(), leg.member()))
			must(s, s.devices.Remove(from.timeout(), leg.slice))
			leg.slice = mapper.Device{}
		}
		w.goesOn()
		from, to = to, from
	}
	w.end()
	s.clean()
}

// A leg hangs, and leaves; it returns under another identity, and gets what it missed.
func TestLabStackLegReturns(t *testing.T) {
	s := setUpStack(t)
	a, b := s.legs[0], s.legs[1]
	a.build()
	b.build()
	s.create(a.member(), b.member())
	s.build(s.overMirror())
	s.mount()
	s.forgets("/dev/" + s.legs[0].slice.Name)
	w := a.startWriter("pod/written")
	w.goesOn()

	b.refuse()
	s.portOf(b).close(b.volume)
	l := s.lab
	l.Eventually(b.paths).Should(Equal([]string{"connecting"}))
	// Nothing is given up by itself, and the state can be read all the while.
	st, err := s.mirrors.State(s.array)
	must(s, err)
	l.Expect(st.InSync()).To(HaveLen(2))
	b.cut()
	w.goesOn()
	_, err = s.mirrors.Wait(a.timeout(), s.array, func(st md.State) bool {
		m, ok := st.Member(b.member())
		return ok && m.Faulty && !m.Blocked
	})
	must(s, err)
	w.end()
	before := writtenTo(t, a.slice.Name)
	s.fill("pod/meanwhile", 3<<20)
	meanwhile := writtenTo(t, a.slice.Name) - before

	// All of it is found by a process that knows nothing but the volume.
	again := l.mirrors()
	array, err := again.Of(stackVolume)
	must(s, err)
	l.Expect(array).To(Equal(s.array))
	st, err = again.State(array)
	must(s, err)
	faulty, ok := st.Member(b.member())
	l.Expect(ok).To(BeTrue())
	owner, attachment, ours := mapper.Parse(faulty.UUID)
	l.Expect(ours).To(BeTrue())
	l.Expect(owner.Replica).To(Equal(b.slice.Replica))
	l.Expect(attachment).To(Equal(b.context.Attachment))
	tops, err := s.devices.Of(stackVolume)
	must(s, err)
	l.Expect(tops).To(ConsistOf(HaveField("Lower", mapper.Lower{Name: array.Name, Number: array.Number})))

	must(s, again.Remove(a.timeout(), array, faulty.Slice))
	old, err := s.devices.Slices(b.slice.Replica)
	must(s, err)
	l.Expect(old).To(HaveLen(1))
	l.Expect(old[0].Lost()).To(BeTrue())
	must(s, s.devices.Discard(a.timeout(), old[0]))
	b.attach(stackReturns, l.port(4422, v1alpha1.TransportTCP))
	b.connect()
	b.build()
	copied := writtenTo(t, b.slice.Name)
	must(s, again.ReAdd(a.timeout(), array, b.member()))
	s.whole()
	copied = writtenTo(t, b.slice.Name) - copied
	t.Logf("%d bytes were written meanwhile, and %d copied: ratio %.2f", meanwhile, copied, float64(copied)/float64(meanwhile))
	l.Expect(copied).To(BeNumerically("<=", 2*meanwhile))
	s.clean()
	s.remove()
	s.equal()
}

// portOf the target through which a leg is served at first.
func (s *stack) portOf(leg *stackLeg) *port {
	return &port{lab: s.lab, dir: filepath.Join(nvmet, "ports", fmt.Sprint(leg.context.Portals[0].Port)), portal: leg.context.Portals[0]}
}

// fill a file with so many bytes, past the page cache.
func (s *stack) fill(name string, size int) {
	s.Helper()
	s.run("dd", "if=/dev/urandom", "of="+s.legs[0].path(name), "bs=64K", fmt.Sprintf("count=%d", size/(64<<10)), "oflag=direct", "status=none")
	s.run("sync")
}

// equal fails when the legs' data are not.
func (s *stack) equal() {
	s.Helper()
	s.run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
	s.run("cmp", "-i", fmt.Sprint(v1alpha1.HeaderBytes), "-n", fmt.Sprint(stackBytes), s.legs[0].file, s.legs[1].file)
}

// What the kernel lost comes back under another name, below a mounted filesystem of a volume with one replica.
func TestLabStackDeviceComesBack(t *testing.T) {
	s := setUpStack(t)
	leg, other := s.legs[0], s.legs[1]
	s.build(s.overLeg(leg))
	must(t, os.MkdirAll(leg.path("pod"), 0o750))
	before := leg.ns.Name
	leg.cut()
	top, err := s.devices.Find(s.top.Number)
	must(t, err)
	s.Expect(top.Lost()).To(BeTrue())
	s.Expect(writeRegion(s.top.Path, 0, 5)).NotTo(Succeed())
	_, err = s.devices.Exchange(leg.timeout(), top, mapper.Spec{Owner: mapper.Owner{Volume: uuid.NewString()}, Attachment: stackAttach, Lower: other.head()})
	s.Expect(err).To(MatchError(mapper.ErrForeign))
	leg.connect()
	s.Expect(leg.ns.Name).NotTo(Equal(before))
	s.top = top
	small := s.overLeg(leg)
	small.SizeBytes -= 4 << 20
	_, err = s.devices.Exchange(leg.timeout(), s.top, small)
	s.Expect(err).To(MatchError(mapper.ErrUnfit))
	s.exchange(s.overLeg(leg))
	s.Expect(s.top.Lower).To(Equal(leg.head()))
	must(t, writeRegion(s.top.Path, 0, 5))
	s.Expect(readRegion(s.top.Path, 0)).To(BeEquivalentTo(5))
}

// Nothing on the host takes up slices, mirror or top, whatever a pod wrote: not when they are made, nor when the kernel
// announces them once more.
func TestLabScannersLeaveMirrorsAlone(t *testing.T) {
	for name, c := range allScanned() {
		t.Run(name, func(t *testing.T) {
			s := setUpStack(t)
			l := s.lab
			image := l.image(c, "labofmirror")
			others := l.image(c, "labofhost")
			a, b := s.legs[0], s.legs[1]
			a.build()
			b.build()
			s.create(a.member(), b.member())
			s.build(s.overMirror())
			copyTo(l, s.top.Path, image)
			s.remove()
			for _, leg := range s.legs {
				leg.down()
				leg.connect()
				l.run("udevadm", "settle")
				l.Expect(l.holders(leg.ns.Name)).To(BeEmpty())
				leg.build()
			}
			l.run("udevadm", "settle")
			var err error
			s.array, err = s.mirrors.Assemble(a.timeout(), stackVolume, []md.Slice{a.member(), b.member()})
			must(t, err)
			l.run("udevadm", "settle")
			l.Expect(l.holders(s.array.Name)).To(BeEmpty())
			s.build(s.overMirror())
			for _, action := range []string{"add", "change"} {
				l.run("udevadm", "trigger", "--action="+action, "--subsystem-match=block")
				l.run("udevadm", "settle")
			}
			host := l.mapped(others)
			l.Eventually(func() bool { return c.taken(l, host, "labofhost") }).Should(BeTrue())
			c.release(l, host, "labofhost")
			for device, holders := range map[string][]string{
				a.ns.Name: {a.slice.Name}, b.ns.Name: {b.slice.Name}, a.slice.Name: {s.array.Name}, b.slice.Name: {s.array.Name},
				s.array.Name: {s.top.Name}, s.top.Name: nil,
			} {
				l.Expect(l.holders(device)).To(Equal(holders), "holders of %s", device)
			}
			l.Expect(c.taken(l, s.top.Name, "labofmirror")).To(BeFalse())
		})
	}
}

// A member that hangs holds up whatever writes superblocks, and nothing that reads state.
func TestLabStackHangs(t *testing.T) {
	s := setUpStack(t)
	l, a, b := s.lab, s.legs[0], s.legs[1]
	a.build()
	b.build()
	s.create(a.member(), b.member())
	b.refuse()
	s.portOf(b).close(b.volume)
	l.Eventually(b.paths).Should(Equal([]string{"connecting"}))
	written, failed := make(chan error, 1), make(chan error, 1)
	go func() { written <- writeRegion(s.array.Path, md.FrontBytes, 3) }()
	// The write waits for the superblock that marks the array dirty, or for the leg's own data.
	l.Eventually(func() string { return sysfs(t, b.slice.Name, "inflight") }).ShouldNot(MatchRegexp(`^0\s+0$`))
	go func() { failed <- s.mirrors.Fail(a.timeout(), s.array, b.member()) }()
	begun := time.Now()
	st, err := s.mirrors.State(s.array)
	must(t, err)
	t.Logf("the state was read in %v while a leg hung: %+v", time.Since(begun), st)
	l.Expect(written).NotTo(Receive())
	b.cut()
	l.Eventually(written).Should(Receive(Succeed()))
	l.Eventually(failed).Should(Receive(Succeed()))
	_, err = s.mirrors.Wait(a.timeout(), s.array, func(st md.State) bool { return st.Degraded == 1 })
	must(t, err)
}

// A mirror whose making was cut off has no bitmap yet, and is told from one that is finished.
func TestLabUnfinishedMirror(t *testing.T) {
	s := setUpStack(t)
	a, b := s.legs[0], s.legs[1]
	a.build()
	b.build()
	s.create(a.member(), b.member())
	unfinished := func() bool {
		state, err := s.lab.mirrors().State(s.array)
		must(t, err)
		return state.Unfinished
	}
	if unfinished() {
		t.Error("a mirror with a bitmap is said to be unfinished")
	}
	s.run("mdadm", "--grow", "/dev/"+s.array.Name, "--bitmap=none")
	if !unfinished() {
		t.Error("a mirror without a bitmap is said to be finished")
	}
}
