// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// intruderCases are what somebody may try who reaches a portal. They speak NVMe/TCP themselves, so they need no
// initiator, but a target that listens on a socket.
func intruderCases() map[string]func(*suite) {
	cases := map[string]func(*suite){}
	for _, group := range []map[string]func(*intruded){strangerCases(), unprovedCases(), admittedCases()} {
		for name, do := range group {
			cases[name] = func(s *suite) { s.withIntruder(do) }
		}
	}
	return cases
}

const (
	// secretBlocks at the victim's beginning have the marker, and nothing else.
	secretBlocks = 16
	// witnessBlock is the first that the witness writes in each round; blocks before it never change.
	witnessBlock = 8
)

// intruded is a target that serves three volumes: one that the intruder may not have, one of a witness, who must not
// notice anything, and one of the intruder's own.
type intruded struct {
	*suite
	device engine.Device
	portal v1alpha1.Portal
	// victim is exported to a host with keys, or not at all, where no target can ask for them.
	victim, own engine.Export
	witness     *witness
	// heard is all that the target says to the intruder.
	heard *listener
	// attempt that is under way, and its connections, which are closed after it.
	attempt string
	wires   []*wire
}

// listener looks for a marker in all that is written to it.
type listener struct {
	marker, last []byte
	found        bool
}

// Write implements io.Writer.
func (l *listener) Write(p []byte) (int, error) {
	all := slices.Concat(l.last, p)
	l.found = l.found || bytes.Contains(all, l.marker)
	l.last = bytes.Clone(all[max(0, len(all)-len(l.marker)+1):])
	return len(p), nil
}

func (s *suite) withIntruder(do func(*intruded)) {
	if reason := s.Traits().NoWire; reason != "" {
		s.t.Skip(reason)
	}
	portals := s.openPortals()
	at := slices.IndexFunc(portals, func(p engine.Portal) bool { return p.Transport == v1alpha1.TransportTCP })
	s.Expect(at).To(BeNumerically(">=", 0))
	h := &intruded{
		suite: s, device: s.openPool(), portal: portals[at].Portal,
		heard: &listener{marker: []byte("only the victim may read " + uuid.NewString())},
	}
	h.own = exportOf(h.create(h.device.ID, 64*mib), newHost())
	h.exportAs(h.own)
	h.plant()
	h.newWitness()
	h.t.Cleanup(h.hangUp)
	if c, is := h.Harness.(Complainer); is {
		_, err := c.Complaints() // of former cases
		h.Expect(err).NotTo(HaveOccurred())
	}
	do(h)
	h.hangUp()
	h.unharmed("in the end")
	h.noComplaints("in the end")
	h.witness.old.Close()
	h.Expect(h.heard.found).To(BeFalse(), "the intruder got what only the victim may read")
	h.done(h.engine.Unexport(h.ctx, []string{h.victim.NQN}))
	h.Expect(h.contentOf(h.victim.Namespaces[0].Volume)).To(Equal(h.secret()), "the victim's volume")
}

// secret that the victim's volume has.
func (h *intruded) secret() []byte {
	return bytes.Repeat(h.heard.marker, secretBlocks*BlockBytes/len(h.heard.marker)+1)[:secretBlocks*BlockBytes]
}

// plant the secret through a host that has no keys, and export the volume to one that has.
func (h *intruded) plant() {
	h.t.Helper()
	volume := h.create(h.device.ID, 64*mib)
	h.useWire(volume, func(host *WireHost) {
		_, err := host.WriteAt(h.secret(), 0)
		h.Expect(err).NotTo(HaveOccurred())
	})
	h.victim = exportOf(volume, newHost())
	if h.Traits().NoAuthentication == "" {
		h.victim = withKeys(h.victim, h.newKeys())
		h.exportAs(h.victim)
	}
}

// useWire serves a volume to a new host for a moment.
func (h *intruded) useWire(volume engine.ID, do func(*WireHost)) {
	h.t.Helper()
	x := exportOf(volume, newHost())
	h.exportAs(x)
	host, err := connectWire(h.ctx, h.identity(x))
	h.Expect(err).NotTo(HaveOccurred())
	do(host)
	host.Close()
	h.done(h.engine.Unexport(h.ctx, []string{x.NQN}))
}

func (h *intruded) contentOf(volume engine.ID) []byte {
	h.t.Helper()
	content := make([]byte, secretBlocks*BlockBytes)
	h.useWire(volume, func(host *WireHost) {
		_, err := host.ReadAt(content, 0)
		h.Expect(err).NotTo(HaveOccurred())
	})
	return content
}

// identity of an export's first host, with its keys.
func (h *intruded) identity(x engine.Export) identityOnWire {
	return identityOnWire{portal: h.portal, nqn: x.NQN, host: x.Hosts[0], keys: x.Authentication[x.Hosts[0]].Keys}
}

// outsider knows the names of the victim, and no key.
func (h *intruded) outsider() identityOnWire {
	return identityOnWire{portal: h.portal, nqn: h.victim.NQN, host: h.victim.Hosts[0], heard: h.heard}
}

// insider is the host that the intruder's own volume admits.
func (h *intruded) insider() identityOnWire {
	i := h.identity(h.own)
	i.heard = h.heard
	return i
}

// witness is a host that goes on using its volume.
type witness struct {
	who   identityOnWire
	old   *WireHost
	round int64
	kept  []byte
}

func (h *intruded) newWitness() {
	h.t.Helper()
	x := exportOf(h.create(h.device.ID, 64*mib), newHost())
	if h.Traits().NoAuthentication == "" {
		x = withKeys(x, h.newKeys())
	}
	h.exportAs(x)
	w := &witness{who: h.identity(x), kept: bytes.Repeat([]byte("of the witness, "), witnessBlock*BlockBytes/16)}
	var err error
	w.old, err = connectWire(h.ctx, w.who)
	h.Expect(err).NotTo(HaveOccurred())
	_, err = w.old.WriteAt(w.kept, 0)
	h.Expect(err).NotTo(HaveOccurred())
	h.witness = w
}

// goesOn on a connection: what is kept is there, and what is written is read.
func (w *witness) goesOn(host *WireHost) error {
	read := make([]byte, len(w.kept))
	if _, err := host.ReadAt(read, 0); err != nil {
		return err
	}
	if !bytes.Equal(read, w.kept) {
		return errors.New("its data are others")
	}
	w.round++
	for _, text := range [][]byte{blockOf(fmt.Sprint(w.round)), append(blockOf(fmt.Sprint(w.round)), blockOf("and more")...)} {
		at := witnessBlock*BlockBytes + int64(len(text))
		if _, err := host.WriteAt(text, at); err != nil {
			return err
		}
		read := make([]byte, len(text))
		if _, err := host.ReadAt(read, at); err != nil {
			return err
		}
		if !bytes.Equal(read, text) {
			return errors.New("it reads another thing than it wrote")
		}
	}
	return nil
}

// unharmed: the witness goes on, on its connection of all the time and on a new one, and the target answers.
func (h *intruded) unharmed(after string) {
	h.t.Helper()
	h.Expect(h.witness.goesOn(h.witness.old)).To(Succeed(), "the witness, connected all the time: "+after)
	host, err := connectWire(h.ctx, h.witness.who)
	h.Expect(err).NotTo(HaveOccurred(), "the witness connects: "+after)
	err = h.witness.goesOn(host)
	host.Close()
	h.Expect(err).NotTo(HaveOccurred(), "the witness, newly connected: "+after)
	state, err := h.engine.Gather(h.ctx)
	h.Expect(err).NotTo(HaveOccurred(), "Gather: "+after)
	h.Expect(state.Volumes).To(HaveLen(3), after)
}

// noComplaints of the target about itself.
func (h *intruded) noComplaints(when string) {
	h.t.Helper()
	if c, is := h.Harness.(Complainer); is {
		said, err := c.Complaints()
		h.Expect(err).NotTo(HaveOccurred())
		h.Expect(said).To(BeEmpty(), when)
	}
}

// attempts by name.
type attempts map[string]func()

// each attempt by itself. The witness goes on after each, and after all nobody is harmed.
func (h *intruded) each(all attempts) {
	h.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h.attempt = name
		all[name]()
		h.hangUp()
		h.Expect(h.witness.goesOn(h.witness.old)).To(Succeed(), "the witness: "+name)
		h.noComplaints(name)
	}
	h.unharmed("all attempts")
}

// hangUp all that the attempt connected.
func (h *intruded) hangUp() {
	for _, w := range h.wires {
		w.close()
	}
	h.wires = nil
}

// dial, and say nothing.
func (h *intruded) dial() *wire {
	h.t.Helper()
	w, err := dialWire(h.ctx, h.portal, h.heard)
	h.Expect(err).NotTo(HaveOccurred())
	h.wires = append(h.wires, w)
	return w
}

// open a connection that no host has used yet.
func (h *intruded) open() *wire {
	h.t.Helper()
	w := h.dial()
	h.Expect(w.initialize()).To(Succeed())
	return w
}

// queue that a host connects, without a proof.
func (h *intruded) queue(i identityOnWire, number, controller uint16) (*wire, uint16, error) {
	w, _, controller, err := i.unproved(h.ctx, number, controller)
	if err == nil {
		h.wires = append(h.wires, w)
	}
	return w, controller, err
}

// admitted is an administrative queue of the intruder's own volume.
func (h *intruded) admitted() *wire {
	h.t.Helper()
	w, _, err := h.queue(h.insider(), 0, anyController)
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(w.enable()).To(Succeed())
	return w
}

// attached is the intruder with its own volume.
func (h *intruded) attached() *WireHost {
	h.t.Helper()
	host, err := connectWire(h.ctx, h.insider())
	h.Expect(err).NotTo(HaveOccurred())
	h.wires = append(h.wires, host.admin, host.io)
	return host
}

// lingering is how long the end of a connection is waited for where some do not end.
const lingering = 20 * time.Millisecond

// mostAnswers are more than any attempt asks for: a target that repeats what it has done goes on until it is hung up
// on.
const mostAnswers = 10_000

// ended waits until the target has ended the connection, or said that it does, after the host said its last word.
func (h *intruded) ended(w *wire) {
	h.t.Helper()
	// It may be over already.
	_ = w.conn.(*net.TCPConn).CloseWrite()
	traits := h.Traits()
	if traits.Lingers {
		w.patience = lingering
	}
	for answers := 0; answers < mostAnswers || !traits.RepeatsReads; answers++ {
		p, err := w.receive()
		if isTimeout(err) && !traits.Lingers {
			h.t.Fatalf("%s: the target neither answers nor ends the connection", h.attempt)
		}
		if err != nil || p.kind == pduTargetTerm {
			return
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// says sends bytes, and waits until the target is done with them.
func (h *intruded) says(w *wire, sent ...[]byte) {
	h.t.Helper()
	for _, b := range sent {
		if err := w.send(b); err != nil {
			break // the target ended it before
		}
	}
	h.ended(w)
}

// refused expects that the target does not do a command: it says so, or ends the connection.
func (h *intruded) refused(w *wire, c entry, out []byte, want int, why string) {
	h.t.Helper()
	_, _, err := w.do(c, out, want)
	h.Expect(err).To(HaveOccurred(), why)
	h.Expect(isTimeout(err)).To(BeFalse(), "%s: no answer", why)
}

// edited is a PDU with other bytes from a place on.
func edited(b []byte, at int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], with)
	return b
}

func le32(v uint32) []byte { return le.AppendUint32(nil, v) }

func unlistedHosts(h *intruded) {
	stranger := h.outsider()
	refuse := func(i identityOnWire) func() {
		return func() {
			_, _, err := h.queue(i, 0, anyController)
			h.Expect(err).To(HaveOccurred())
		}
	}
	all := attempts{}
	for name, host := range map[string]string{
		"another": newHost(), "nobody": "", "a part": stranger.host[:len(stranger.host)-1], "more": stranger.host + "0",
		"in capitals": strings.ToUpper(stranger.host), "too long": strings.Repeat("n", 256), "a witness": h.witness.who.host,
		"any": "*", "the subsystem": stranger.nqn,
	} {
		i := stranger
		i.host = host
		all["host: "+name] = refuse(i)
	}
	for name, nqn := range map[string]string{
		"none": "", "a part": stranger.nqn[:len(stranger.nqn)-1], "more": stranger.nqn + "0", "too long": strings.Repeat("n", 256),
		"another's": h.witness.who.nqn,
	} {
		i := stranger
		i.nqn = nqn
		all["subsystem: "+name] = refuse(i)
	}
	h.each(all)
}

// discoveryNQN is the same everywhere.
const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// namesAreNotTold to somebody who asks for what there is.
func namesAreNotTold(h *intruded) {
	told := &listener{marker: []byte(v1alpha1.NQNPrefix)}
	i := identityOnWire{portal: h.portal, nqn: discoveryNQN, host: newHost(), heard: io.MultiWriter(h.heard, told)}
	w, _, err := h.queue(i, 0, anyController)
	if err != nil {
		return
	}
	h.Expect(w.enable()).To(Succeed())
	const discoveryLog, logBytes = 0x70, 4096
	for at := uint32(0); at < 4*logBytes; at += logBytes {
		_, _, _ = w.do(commandOf(adminGetLogPage, 0).with(10, discoveryLog|(logBytes/4-1)<<16).with(12, at), nil, logBytes)
	}
	h.Expect(told.found).To(BeFalse(), "a stranger is told the names of subsystems")
}

// manyIdle connections: some have said nothing, some half a word, some their first.
func manyIdle(h *intruded) {
	const connections = 200
	for n := range connections {
		w := h.dial()
		switch n % 3 {
		case 1:
			h.Expect(w.send(icReq()[:5])).To(Succeed())
		case 2:
			h.Expect(w.initialize()).To(Succeed())
		}
	}
	h.unharmed("with idle connections")
}

// numberOf an environment's variable, such as WEFT_SEED.
func numberOf(t *testing.T, name string, otherwise int) int {
	t.Helper()
	n := otherwise
	if text := strings.TrimSpace(os.Getenv(name)); text != "" {
		if _, err := fmt.Sscanf(text, "%d", &n); err != nil || n < 1 {
			t.Fatalf("%s=%s is no positive number", name, text)
		}
	}
	return n
}
