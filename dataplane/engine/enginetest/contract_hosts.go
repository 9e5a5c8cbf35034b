// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// hostFixture is a volume of 64 MiB, exported, with a host attached.
type hostFixture struct {
	*suite
	device engine.Device
	portal engine.Portal
	id     engine.ID
	x      engine.Export
	host   string
	c      Connection
	ns     Namespace
}

// withHost runs a test once for each portal, each time with a volume of its own. A short run has one portal, and which
// one depends on the name of the test.
func (s *suite) withHost(do func(*hostFixture)) {
	device := s.openPool()
	portals := s.openPortals()
	if testing.Short() {
		portals = portals[int(crc32.ChecksumIEEE([]byte(s.t.Name())))%len(portals):][:1]
	}
	for _, portal := range portals {
		s.t.Run(portalName(portal), func(t *testing.T) {
			h := s.fixture(t, device, portal)
			h.x = exportOf(h.id, h.host)
			h.exportAs(h.x)
			h.c, h.ns = h.attach(portal, h.x, h.host)
			do(h)
		})
	}
}

// fixture of a test for one portal: a new volume and a host that is not attached.
func (s *suite) fixture(t *testing.T, device engine.Device, portal engine.Portal) *hostFixture {
	t.Helper()
	inner := *s
	inner.t = t
	inner.WithT = NewWithT(t)
	inner.SetDefaultEventuallyTimeout(patience)
	inner.SetDefaultEventuallyPollingInterval(soon)
	h := &hostFixture{suite: &inner, device: device, portal: portal, host: newHost()}
	h.id = h.create(device.ID, 64*mib)
	return h
}

// detach the host and take the export away.
func (h *hostFixture) detach() {
	h.t.Helper()
	h.c.Disconnect()
	h.done(h.engine.Unexport(h.ctx, []string{h.x.NQN}))
}

// use a volume from another host for a moment.
func (h *hostFixture) use(id engine.ID, do func(Namespace)) {
	h.t.Helper()
	host := newHost()
	x := exportOf(id, host)
	h.exportAs(x)
	c, ns := h.attach(h.portal, x, host)
	do(ns)
	c.Disconnect()
	h.done(h.engine.Unexport(h.ctx, []string{x.NQN}))
}

// writer writes 1, 2, 3, ... into one block until it fails or is stopped.
type writer struct {
	acknowledged atomic.Int64
	stop         atomic.Bool
	ended        chan error
}

func startWriter(ns Namespace, block int64) *writer {
	w := &writer{ended: make(chan error, 1)}
	go func() {
		for n := int64(1); !w.stop.Load(); n++ {
			if _, err := ns.WriteAt(blockOf(strconv.FormatInt(n, 10)), block*BlockBytes); err != nil {
				w.ended <- err
				return
			}
			w.acknowledged.Store(n)
		}
		w.ended <- nil
	}()
	return w
}

// goesOn expects that writes are acknowledged from now on.
func (s *suite) goesOn(w *writer) {
	s.t.Helper()
	at := w.acknowledged.Load()
	s.Eventually(func() (int64, error) {
		select {
		case err := <-w.ended:
			return 0, StopTrying("the writer ended").Wrap(err)
		default:
			return w.acknowledged.Load(), nil
		}
	}).Should(BeNumerically(">", at+3))
}

// finish expects that no write failed, and that the last one is there.
func (s *suite) finish(w *writer, ns Namespace, block int64) {
	s.t.Helper()
	w.stop.Store(true)
	s.Eventually(w.ended).Should(Receive(BeNil()))
	s.Expect(s.number(ns, block)).To(Equal(w.acknowledged.Load()))
}

func (s *suite) number(ns Namespace, block int64) int64 {
	s.t.Helper()
	text := s.read(ns, block)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	s.Expect(err).NotTo(HaveOccurred())
	return n
}

func hostCases() map[string]func(*suite) {
	cases := map[string]func(*hostFixture){
		"only a listed host connects":                                   onlyListedHosts,
		"a host sees what it was promised":                              hostSees,
		"a host that is listed no more is gone, and writes nothing":     hostIsGone,
		"when one host goes, the others go on":                          othersGoOn,
		"a dismissed host keeps trying, also after a restart":           dismissedKeepsTrying,
		"a retired host goes, and the others stay connected":            retiredDisturbsNobody,
		"a dismissal disconnects retired hosts, too":                    retiredAreDismissed,
		"a host is shut out of what cannot be read, too":                shutOutOfLost,
		"unexporting disconnects":                                       unexportDisconnects,
		"calls about other exports disturb nobody":                      disturbsNobody,
		"a larger size is seen while connected":                         seesSize,
		"namespaces come and go while connected":                        namespacesComeAndGo,
		"a volume is blank until its first write":                       blankUntilWritten,
		"a new volume reads zeroes where a deleted one had data":        volumeLeavesNothing,
		"a new volume reads zeroes where a deleted clone had data":      cloneLeavesNothing,
		"a closed portal disconnects, and open again it is as it was":   closedPortal,
		"what is asked again while connected disturbs nobody":           repeatDisturbsNobody,
		"a limit of queues takes effect with the next connection":       queueLimit,
		"a host may come back, and another may take its place, at once": comesBack,
	}
	wrapped := map[string]func(*suite){}
	for name, do := range cases {
		wrapped[name] = func(s *suite) { s.withHost(do) }
	}
	return wrapped
}

func onlyListedHosts(h *hostFixture) {
	stranger, missing := newHost(), h.x
	missing.NQN += "-missing"
	_, err := h.try(h.portal, h.x, stranger)
	h.Expect(err).To(HaveOccurred())
	_, err = h.try(h.portal, missing, h.host)
	h.Expect(err).To(HaveOccurred())

	both := h.x
	both.Hosts = []string{h.host, stranger}
	h.exportAs(both)
	_, ns := h.attach(h.portal, h.x, stranger)
	h.write(ns, 1, "by the other")
	h.Expect(h.read(h.ns, 1)).To(Equal("by the other"))

	nobody := exportOf(h.create(h.device.ID, 4*mib))
	h.exportAs(nobody)
	_, err = h.try(h.portal, nobody, h.host)
	h.Expect(err).To(HaveOccurred())
}

func hostSees(h *hostFixture) {
	h.Expect(h.ns.SizeBytes()).To(Equal(64 * mib))
	h.Expect(h.ns.Identity()).To(Equal(h.identity()))
	h.Expect(h.ns.ANAState()).To(Equal("optimized"), "ANA is reported, and every path is alike")
}

// identity that the fixture's namespace must have, whatever happens to it.
func (h *hostFixture) identity() Identity {
	return Identity{
		NQN: h.x.NQN, Serial: h.x.Serial, Model: h.x.Model,
		NSID: 1, UUID: string(h.id), NGUID: strings.ReplaceAll(string(h.id), "-", ""),
		BlockBytes: h.pool(h.device.ID).BlockBytes,
	}
}

func hostIsGone(h *hostFixture) {
	w := startWriter(h.ns, 0)
	h.goesOn(w)

	x := h.x
	x.Hosts = []string{newHost()}
	h.exportAs(x)
	// What is in the volume when the call answers is in the snapshot.
	snapshot := h.snap(h.id)
	acknowledged := w.acknowledged.Load()
	h.turnedAway(h.c)
	h.Eventually(w.ended).Should(Receive(HaveOccurred()))
	h.Eventually(h.c.Gone).Should(BeTrue())
	_, err := h.try(h.portal, h.x, h.host)
	h.Expect(err).To(HaveOccurred())

	_, ns := h.attach(h.portal, x, x.Hosts[0])
	last := h.number(ns, 0)
	h.Expect(last).To(BeNumerically(">=", acknowledged), "an acknowledged write is not lost")
	h.Expect(w.acknowledged.Load()).To(BeNumerically("<=", last))
	h.use(h.clone(engine.Source{Snapshot: snapshot}, 64*mib), func(then Namespace) {
		h.Expect(h.number(then, 0)).To(Equal(last), "nothing was written afterwards")
	})
}

func othersGoOn(h *hostFixture) {
	stays := newHost()
	x := h.x
	x.Hosts = []string{h.host, stays}
	h.exportAs(x)
	c, ns := h.attach(h.portal, x, stays)
	w := startWriter(ns, 2)
	h.goesOn(w)

	x.Hosts = []string{stays}
	h.exportAs(x)
	h.goesOn(w)
	h.turnedAway(h.c)
	h.Eventually(h.c.Gone).Should(BeTrue())
	h.finish(w, ns, 2)
	h.Expect(c.Gone()).To(BeFalse())
}

// dismissedKeepsTrying: first another host stays, then none, then the subsystem goes, then the target restarts. Its
// write waits all the time. Somebody listens on the portal, so the host could be told to give up.
func dismissedKeepsTrying(h *hostFixture) {
	// Another export has the portals listen for hosts that are refused. Over RDMA there is none: nothing hides the
	// moment in which a portal serves one export and not yet, or no longer, another.
	var others []engine.Export
	if h.portal.Transport == v1alpha1.TransportTCP {
		others = append(others, exportOf(h.create(h.device.ID, 4*mib), newHost()))
		h.exportAs(others[0])
	}
	stays := newHost()
	x := h.x
	x.Hosts = []string{h.host, stays}
	h.exportAs(x)
	second, ns := h.attach(h.portal, x, stays)
	first, then := startWriter(h.ns, 0), startWriter(ns, 1)
	h.goesOn(first)

	x.Hosts = []string{stays}
	h.exportAs(x)
	h.keepsTrying(h.c, first)
	h.goesOn(then)
	x.Hosts = nil
	h.exportAs(x)
	h.Expect(h.export(x.NQN)).To(And(HaveField("Hosts", BeEmpty()), HaveField("Namespaces", x.Namespaces)))
	h.keepsTrying(second, then)
	h.done(h.fresh().Unexport(h.ctx, []string{x.NQN}))
	h.Expect(h.export(x.NQN)).To(BeNil())
	h.keepsTrying(second, then)

	h.closePortals() // a target that ends has no moment in which it serves half
	h.Restart(h.t)
	e := h.fresh()
	h.done(e.OpenPools(h.ctx, []engine.Device{h.device}))
	h.clear()
	h.done(e.Export(h.ctx, others))
	h.done(e.OpenPortals(h.ctx, h.Portals(h.t)))
	h.Expect(h.state().Exports).To(HaveLen(len(others)))
	h.keepsTrying(h.c, first)
	h.keepsTrying(second, then)
	h.closePortals()
	h.done(e.OpenPortals(h.ctx, h.Portals(h.t)))
	h.keepsTrying(second, then)

	// Under the same name, the volume is served to another.
	x.Hosts = []string{newHost()}
	h.exportAs(x)
	_, ns = h.attach(h.portal, x, x.Hosts[0])
	h.Expect(h.number(ns, 1)).To(BeNumerically(">=", then.acknowledged.Load()))
	h.keepsTrying(second, then)
	for c, w := range map[Connection]*writer{h.c: first, second: then} {
		h.turnedAway(c)
		h.Eventually(w.ended).Should(Receive(HaveOccurred()))
		h.Eventually(c.Gone).Should(BeTrue())
	}
}

func (h *hostFixture) closePortals() {
	h.t.Helper()
	for _, portal := range h.Portals(h.t) {
		h.done(h.fresh().ClosePortals(h.ctx, []v1alpha1.Portal{portal.Portal}))
	}
}

// keepsTrying expects that a host is refused, several times, and neither gives up nor fails its write.
func (h *hostFixture) keepsTrying(c Connection, w *writer) {
	h.t.Helper()
	h.Consistently(c.Gone).WithTimeout(3 * h.Traits().RetryEvery).WithPolling(soon).Should(BeFalse())
	h.Expect(w.ended).NotTo(Receive())
}

// retiredDisturbsNobody, neither where all is well nor where the volume cannot be found, and again and again.
func retiredDisturbsNobody(h *hostFixture) {
	// So that somebody listens all the time, and could tell a host to give up.
	h.exportAs(exportOf(h.create(h.device.ID, 4*mib), newHost()))
	d := h.openPool()
	x := exportOf(h.create(d.ID, 16*mib), newHost(), newHost())
	h.exportAs(x)
	former, _ := h.attach(h.portal, x, x.Hosts[0])
	c, ns := h.attach(h.portal, x, x.Hosts[1])
	w := startWriter(ns, 0)
	h.goesOn(w)
	connected := c.Controller()
	former.Disconnect()

	x.Hosts, x.Retired = x.Hosts[1:], x.Hosts[:1]
	for range 2 {
		h.done(h.fresh().Export(h.ctx, []engine.Export{x}))
		h.Expect(h.export(x.NQN)).To(And(HaveField("Hosts", x.Hosts), HaveField("Retired", BeEmpty())))
		_, err := h.try(h.portal, x, x.Retired[0])
		h.Expect(err).To(HaveOccurred())
		h.goesOn(w)
	}
	h.Expect(c.Controller()).To(Equal(connected), "it did not have to connect again")
	h.finish(w, ns, 0)

	// Another one is retired when the file cannot be opened.
	x.Hosts = []string{x.Hosts[0], newHost()}
	h.exportAs(x)
	h.Lose(h.t, d)
	x.Hosts, x.Retired = x.Hosts[:1], x.Hosts[1:]
	h.Expect(h.one(h.engine.Export(h.ctx, []engine.Export{x}))).To(MatchError(engine.ErrUnavailable))
	h.Expect(h.export(x.NQN)).To(HaveField("Hosts", x.Hosts))
	h.Expect(c.Controller()).To(Equal(connected), "it did not have to connect again")
	h.Expect(c.Gone()).To(BeFalse())
}

// retiredAreDismissed: one that its node was wrong about writes nothing after the next dismissal.
func retiredAreDismissed(h *hostFixture) {
	h.exportAs(exportOf(h.create(h.device.ID, 4*mib), newHost()))
	x := h.x
	x.Hosts = []string{h.host, newHost()}
	h.exportAs(x)
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	x.Hosts, x.Retired = x.Hosts[1:], x.Hosts[:1]
	h.exportAs(x)
	x.Hosts = []string{newHost()}
	h.exportAs(x)
	h.turnedAway(h.c)
	h.Eventually(w.ended).Should(Receive(HaveOccurred()))
	h.Eventually(h.c.Gone).Should(BeTrue())
	_, ns := h.attach(h.portal, x, x.Hosts[0])
	h.Expect(h.number(ns, 0)).To(BeNumerically(">=", w.acknowledged.Load()))
}

// shutOutOfLost, in a pool of its own. The fixture's host is still served, so somebody listens, and refuses the other.
func shutOutOfLost(h *hostFixture) {
	d := h.openPool()
	x := exportOf(h.create(d.ID, 16*mib), newHost(), newHost())
	h.exportAs(x)
	leaves := x.Hosts[0]
	c, ns := h.attach(h.portal, x, leaves)
	h.attach(h.portal, x, x.Hosts[1])
	w := startWriter(ns, 0)
	h.goesOn(w)
	h.Lose(h.t, d)

	x.Hosts = x.Hosts[1:]
	h.Expect(h.one(h.engine.Export(h.ctx, []engine.Export{x}))).To(MatchError(engine.ErrUnavailable))
	h.Expect(h.state().Exports).NotTo(ContainElement(HaveField("Hosts", ContainElement(leaves))))
	h.turnedAway(c)
	h.Eventually(w.ended).Should(Receive(HaveOccurred()))
	h.Eventually(c.Gone).Should(BeTrue())
	_, err := h.try(h.portal, x, leaves)
	h.Expect(err).To(HaveOccurred())
	h.write(h.ns, 0, "the others go on")
}

func unexportDisconnects(h *hostFixture) {
	// So that somebody still listens, and refuses the host.
	h.exportAs(exportOf(h.create(h.device.ID, 4*mib), newHost()))
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	h.done(h.engine.Unexport(h.ctx, []string{h.x.NQN}))
	h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{h.id}))
	h.turnedAway(h.c)
	h.Eventually(w.ended).Should(Receive(HaveOccurred()))
	h.Eventually(h.c.Gone).Should(BeTrue())
	h.Expect(h.volume(h.id)).To(BeNil())
}

func disturbsNobody(h *hostFixture) {
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	before, err := h.c.IOQueues()
	h.Expect(err).NotTo(HaveOccurred())
	for range 3 {
		other := exportOf(h.create(h.device.ID, 4*mib), newHost())
		h.exportAs(other)
		other.Hosts = []string{newHost()}
		h.exportAs(other)
		h.snap(other.Namespaces[0].Volume)
		h.done(h.engine.OpenPools(h.ctx, []engine.Device{h.device}))
		h.done(h.engine.Unexport(h.ctx, []string{other.NQN}))
		h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{other.Namespaces[0].Volume}))
		h.clear()
		h.goesOn(w)
	}
	h.Expect(h.c.IOQueues()).To(Equal(before))
	h.finish(w, h.ns, 0)
}

func seesSize(h *hostFixture) {
	h.write(h.ns, 0, "before")
	h.done(h.fresh().GrowVolumes(h.ctx, []engine.VolumeSize{{ID: h.id, SizeBytes: 96 * mib}}))
	h.Eventually(h.ns.SizeBytes).Should(Equal(96 * mib))
	h.write(h.ns, 96*mib/BlockBytes-1, "the last block")
	h.Expect(h.read(h.ns, 96*mib/BlockBytes-1)).To(Equal("the last block"))
	h.Expect(h.read(h.ns, 0)).To(Equal("before"))
}

func namespacesComeAndGo(h *hostFixture) {
	h.detach()
	second := h.create(h.device.ID, 8*mib)
	both := h.x
	both.Namespaces = append(slices.Clone(both.Namespaces), engine.Namespace{NSID: 5, Volume: second})
	h.exportAs(both) // which makes room for them
	h.c, h.ns = h.attach(h.portal, both, h.host)
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	ns := h.namespace(h.c, second)
	h.write(ns, 0, "second")
	h.Expect(h.read(ns, 0)).To(Equal("second"))
	identity, err := ns.Identity()
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(identity).To(And(HaveField("NSID", uint32(5)), HaveField("UUID", string(second)), HaveField("NQN", both.NQN)))

	goes := func() {
		h.exportAs(h.x)
		h.Eventually(func() error { _, err := ns.ReadAt(make([]byte, BlockBytes), 0); return err }).Should(HaveOccurred())
		h.goesOn(w)
	}
	goes()
	h.exportAs(both)
	ns = h.namespace(h.c, second)
	h.Expect(h.read(ns, 0)).To(Equal("second"))
	goes()
	h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{second}))
	h.finish(w, h.ns, 0)
}

func blankUntilWritten(h *hostFixture) {
	h.Expect(h.read(h.ns, 7)).To(BeEmpty())
	h.Expect(h.volume(h.id).AllocatedBytes).To(BeZero(), "reading does not write")
	h.write(h.ns, 7, "first")
	h.Expect(h.volume(h.id).AllocatedBytes).To(BeNumerically(">", 0))
}

const (
	// secretBytes are written to each volume of whose data nothing may be left: all of a unit that a target allocates.
	secretBytes = engine.SizeUnit
	chunkBytes  = 16 * BlockBytes
)

func volumeLeavesNothing(h *hostFixture) {
	h.writeSecret(h.ns)
	h.detach()
	h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{h.id}))
	h.readsNoSecret(2 * secretBytes)
}

// cloneLeavesNothing, nor does a snapshot that has what the clone overwrote.
func cloneLeavesNothing(h *hostFixture) {
	h.write(h.ns, 0, "of the source")
	clone := h.clone(engine.Source{Volume: h.id}, 64*mib)
	h.use(clone, h.writeSecret)
	snapshot := h.snap(clone)
	h.use(clone, h.writeSecret)
	h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{clone}))
	h.done(h.engine.DeleteSnapshots(h.ctx, []engine.ID{snapshot}))
	h.readsNoSecret(3 * secretBytes)
	h.Expect(h.read(h.ns, 0)).To(Equal("of the source"))
}

func (h *hostFixture) writeSecret(ns Namespace) {
	h.t.Helper()
	chunk := bytes.Repeat([]byte("secret"), chunkBytes/6+1)[:chunkBytes]
	for off := int64(0); off < secretBytes; off += chunkBytes {
		_, err := ns.WriteAt(chunk, off)
		h.Expect(err).NotTo(HaveOccurred())
	}
}

// readsNoSecret in the first so many bytes of new volumes, before the deleted ones are cleared and after.
func (h *hostFixture) readsNoSecret(sizeBytes int64) {
	h.t.Helper()
	h.newVolumeReadsNoSecret(sizeBytes)
	h.clear()
	h.Expect(h.pool(h.device.ID).ClearingBytes).To(BeZero())
	h.newVolumeReadsNoSecret(sizeBytes)
}

// newVolumeReadsNoSecret: a target allocates space in units, and what the host did not write of one is not what was
// there before.
func (h *hostFixture) newVolumeReadsNoSecret(sizeBytes int64) {
	h.t.Helper()
	h.use(h.create(h.device.ID, 64*mib), func(ns Namespace) {
		for off := int64(0); off < sizeBytes; off += mib {
			h.write(ns, off/BlockBytes, "new")
		}
		got := make([]byte, chunkBytes)
		for off := int64(0); off < sizeBytes; off += chunkBytes {
			_, err := ns.ReadAt(got, off)
			h.Expect(err).NotTo(HaveOccurred())
			h.Expect(bytes.Contains(got, []byte("secret"))).To(BeFalse(), "at %d", off)
		}
	})
}

func closedPortal(h *hostFixture) {
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	h.done(h.engine.ClosePortals(h.ctx, []v1alpha1.Portal{h.portal.Portal}))
	_, err := h.try(h.portal, h.x, h.host)
	h.Expect(err).To(HaveOccurred())
	h.done(h.fresh().OpenPortals(h.ctx, []engine.Portal{h.portal}))
	h.goesOn(w)
	h.finish(w, h.ns, 0)
	h.Expect(h.ns.Identity()).To(Equal(h.identity()))
}

func repeatDisturbsNobody(h *hostFixture) {
	w := startWriter(h.ns, 0)
	h.goesOn(w)
	for range 5 {
		e := h.fresh()
		h.done(e.OpenPools(h.ctx, []engine.Device{h.device}))
		h.done(e.CreateVolumes(h.ctx, []engine.VolumeSpec{{ID: h.id, Pool: h.device.ID, SizeBytes: 64 * mib}}))
		h.done(e.GrowVolumes(h.ctx, []engine.VolumeSize{{ID: h.id, SizeBytes: 64 * mib}}))
		h.done(e.Export(h.ctx, []engine.Export{h.x}))
		h.done(e.OpenPortals(h.ctx, []engine.Portal{h.portal}))
		h.goesOn(w)
	}
	h.finish(w, h.ns, 0)
	h.Expect(h.c.Gone()).To(BeFalse())
}

func queueLimit(h *hostFixture) {
	h.Expect(h.c.IOQueues()).To(BeNumerically("<=", h.x.MaxIOQueues))
	h.c.Disconnect()
	x := h.x
	x.MaxIOQueues = 1
	h.exportAs(x)
	want := 1
	if h.Traits().FixedTransports {
		// The plan's limit holds, which the harness has as low as the fixture's.
		want = h.x.MaxIOQueues
	}
	c, ns := h.attach(h.portal, x, h.host)
	h.Expect(c.IOQueues()).To(Equal(want))
	h.write(ns, 0, "one queue")
}

func comesBack(h *hostFixture) {
	h.write(h.ns, 0, "first")
	h.c.Disconnect()
	x := h.x
	for i := range 3 {
		x.Hosts = []string{newHost()}
		h.exportAs(x)
		c, ns := h.attach(h.portal, x, x.Hosts[0])
		h.write(ns, int64(i)+1, "next")
		h.Expect(h.read(ns, 0)).To(Equal("first"))
		c.Disconnect()
	}
	h.exportAs(h.x)
	_, ns := h.attach(h.portal, h.x, h.host)
	h.Expect(h.read(ns, 3)).To(Equal("next"))
	h.Expect(ns.Identity()).To(Equal(h.identity()))
}
