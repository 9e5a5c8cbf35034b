// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
)

// unprovedCases are those of somebody who knows the names of an attachment, and not its keys.
func unprovedCases() map[string]func(*intruded) {
	cases := map[string]func(*intruded){
		"a host that has not proved itself is refused all commands":                    unprovedCommands,
		"a host that has not proved itself gets no I/O from its own controller":        unprovedQueues,
		"a host that has not proved itself gets no I/O from the controllers of others": othersControllers,
		"messages of authentication out of order let nobody in":                        authOutOfOrder,
		"messages of authentication that are wrong let nobody in":                      authWrong,
		"replies that are wrong let nobody in":                                         repliesWrong,
		"messages of an earlier authentication let nobody in":                          authReplayed,
	}
	for name, do := range cases {
		cases[name] = func(h *intruded) {
			if reason := h.Traits().NoAuthentication; reason != "" {
				h.t.Skip(reason)
			}
			do(h)
		}
	}
	return cases
}

// asked is a command and how many bytes it answers.
type asked struct {
	entry
	want int
}

// everyday commands of administration and of I/O. What a queue does not know it refuses in any case.
func everyday() map[string]asked {
	return map[string]asked{
		"Identify of the namespace":  {commandOf(adminIdentify, 1), 4096},
		"Identify of the controller": {commandOf(adminIdentify, 0).with(10, 1), 4096},
		"Identify of the list":       {commandOf(adminIdentify, 0).with(10, 2), 4096},
		"Get Log Page":               {commandOf(adminGetLogPage, 0).with(10, 2|127<<16), 512},
		"Set Features":               {commandOf(adminSetFeatures, 0).with(10, 7), 0},
		"Keep Alive":                 {commandOf(adminKeepAlive, 0), 0},
		"Read":                       {transfer(ioRead, 1, 0, 1), BlockBytes},
		"Flush":                      {commandOf(ioFlush, 1), 0},
	}
}

// victimQueue without a proof.
func (h *intruded) victimQueue() (*wire, uint16) {
	h.t.Helper()
	w, controller, err := h.queue(h.outsider(), 0, anyController)
	h.Expect(err).NotTo(HaveOccurred())
	return w, controller
}

// shutOut expects that a queue of the victim's does nothing.
func (h *intruded) shutOut(w *wire, why string) {
	h.t.Helper()
	h.refused(w, commandOf(adminIdentify, 0).with(10, 1), nil, 4096, why)
}

func unprovedCommands(h *intruded) {
	all := attempts{}
	for name, c := range everyday() {
		all[name] = func() {
			w, _ := h.victimQueue()
			h.refused(w, c.entry, nil, c.want, name)
		}
		all[name+", once the controller was told to begin"] = func() {
			w, _ := h.victimQueue()
			_ = w.enable() // which may be refused
			h.refused(w, c.entry, nil, c.want, name)
		}
	}
	all["Write"] = func() {
		w, _ := h.victimQueue()
		h.refused(w, transfer(ioWrite, 1, 0, 1), blockOf("by the intruder"), 0, "Write")
	}
	h.each(all)
}

// noIO on a queue, if it can be connected at all.
func (h *intruded) noIO(i identityOnWire, number, controller uint16) {
	h.t.Helper()
	for name, c := range everyday() {
		w, _, err := h.queue(i, number, controller)
		if err != nil {
			return
		}
		h.refused(w, c.entry, nil, c.want, name)
		h.goodbye(w)
	}
	w, _, err := h.queue(i, number, controller)
	if err == nil {
		h.refused(w, transfer(ioWrite, 1, 0, 1), blockOf("by the intruder"), 0, "Write")
		h.goodbye(w)
	}
}

// goodbye on one connection, and wait until the target has noticed: the number of its queue is free again.
func (h *intruded) goodbye(w *wire) {
	h.t.Helper()
	h.ended(w)
	w.close()
}

func unprovedQueues(h *intruded) {
	h.each(attempts{
		"at once": func() {
			_, controller := h.victimQueue()
			h.noIO(h.outsider(), 1, controller)
		},
		"once the controller was told to begin": func() {
			w, controller := h.victimQueue()
			_ = w.enable()
			h.noIO(h.outsider(), 1, controller)
		},
		"with a number that is no queue's": func() {
			_, controller := h.victimQueue()
			h.noIO(h.outsider(), 0xffff, controller)
		},
		"of the witness's name": func() {
			_, controller := h.victimQueue()
			i := h.outsider()
			i.host = h.witness.who.host
			h.noIO(i, 1, controller)
		},
	})
}

// owner of the victim's volume, attached.
func (h *intruded) owner() *WireHost {
	h.t.Helper()
	owner, err := connectWire(h.ctx, h.identity(h.victim))
	h.Expect(err).NotTo(HaveOccurred())
	h.t.Cleanup(owner.Close)
	return owner
}

// reads expects that the owner still reads what is its own.
func (h *intruded) reads(owner *WireHost, why string) {
	h.t.Helper()
	content := make([]byte, secretBlocks*BlockBytes)
	_, err := owner.ReadAt(content, 0)
	h.Expect(err).NotTo(HaveOccurred(), why)
	h.Expect(bytes.Equal(content, h.secret())).To(BeTrue(), why)
}

// firstControllers whose numbers are tried, beside those that are known.
const firstControllers = 40

func othersControllers(h *intruded) {
	owner := h.owner()
	another := h.outsider()
	another.host = newHost()
	asWitness := h.outsider()
	asWitness.host = h.witness.who.host
	throughWitness := h.outsider()
	throughWitness.nqn = h.witness.who.nqn
	numbers := []uint16{owner.controller, h.witness.old.controller, 0xfffe, anyController}
	for n := range uint16(firstControllers) {
		numbers = append(numbers, n)
	}
	all := attempts{}
	for name, i := range map[string]identityOnWire{
		"by the owner's name": h.outsider(), "by another name": another, "by the witness's name": asWitness, "of the witness": throughWitness,
	} {
		all[name] = func() {
			for _, number := range numbers {
				h.noIO(i, 2, number)
			}
			h.reads(owner, name)
		}
	}
	h.each(all)
}

func authOutOfOrder(h *intruded) {
	const transaction = 1
	send := func(message []byte) func(*wire) { return func(w *wire) { _ = w.authSend(message) } }
	receive := func(w *wire) { _, _ = w.authReceive() }
	negotiate := send(negotiation(transaction))
	reply := send(replyOf(transaction, make([]byte, sha256.Size), make([]byte, sha256.Size)))
	success := send(authMessage(authDHCHAP, authSuccess2, transaction, 16))
	failure := send(authMessage(authCommon, authFailure2, transaction, 8))
	all := attempts{}
	for name, steps := range map[string][]func(*wire){
		"success":                                      {success},
		"success, received":                            {success, receive},
		"reply":                                        {reply},
		"reply, received":                              {reply, receive},
		"failure":                                      {failure},
		"failure, received":                            {failure, receive},
		"received":                                     {receive},
		"received twice":                               {receive, receive},
		"negotiated twice":                             {negotiate, negotiate, receive},
		"negotiated, then success":                     {negotiate, success, receive},
		"negotiated, then reply":                       {negotiate, reply, receive},
		"negotiated, then failure":                     {negotiate, failure, receive},
		"challenged, then success":                     {negotiate, receive, success},
		"challenged, then success, received":           {negotiate, receive, success, receive},
		"challenged, then failure":                     {negotiate, receive, failure, receive},
		"challenged twice":                             {negotiate, receive, receive, receive},
		"challenged, negotiated again":                 {negotiate, receive, negotiate, receive},
		"replied, then success":                        {negotiate, receive, reply, success},
		"replied, received, then success":              {negotiate, receive, reply, receive, success},
		"replied twice":                                {negotiate, receive, reply, reply, receive, success},
		"replied, negotiated again and replied":        {negotiate, receive, reply, negotiate, receive, reply, receive, success},
		"replied, failed, received, received, success": {negotiate, receive, reply, failure, receive, receive, success},
	} {
		all[name] = func() {
			w, _ := h.victimQueue()
			for _, step := range steps {
				step(w)
			}
			h.shutOut(w, name)
		}
	}
	h.each(all)
}

// authWrong are commands and negotiations as no host sends them.
func authWrong(h *intruded) {
	good := negotiation(1)
	offer := bytes.Repeat([]byte{0xff}, 60)
	all := attempts{}
	try := func(name string, c entry, message []byte) {
		all[name] = func() {
			w, _ := h.victimQueue()
			_, _, _ = w.do(c, message, 0)
			_, _ = w.authReceive()
			h.shutOut(w, name)
		}
	}
	message := func(name string, m []byte) { try(name, authSendOf(len(m)), m) }
	message("no protocols", edited(good, 7, 0)[:8])
	message("no protocols, but one", edited(good, 7, 0))
	message("255 protocols", edited(good, 7, 255))
	message("255 protocols, all of them", append(edited(good, 7, 255), make([]byte, 254*64)...)[:8192-64])
	message("another protocol", edited(good, 8, 2))
	message("no hashes", edited(good, 10, 0))
	message("255 hashes", edited(good, 10, append([]byte{255, 1}, offer...)...))
	message("255 groups", edited(good, 10, append([]byte{1, 255}, offer...)...))
	message("255 of both", edited(good, 10, append([]byte{255, 255}, offer...)...))
	message("30 unknown ones", edited(good, 10, append([]byte{30, 30}, offer...)...))
	message("31 of both", edited(good, 10, 31, 31))
	message("a secure channel", edited(good, 6, 1))
	message("an unknown secure channel", edited(good, 6, 255))
	for _, n := range []int{1, 2, 5, 6, 7, 8, 9, 71, 73, 8192} {
		message(fmt.Sprintf("%d bytes", n), append(bytes.Clone(good), make([]byte, 8192)...)[:n])
	}
	for _, kind := range []byte{0, 1, 2, 0xff} {
		for _, number := range []byte{0, 1, 2, 3, 4, 5, 0x7f, authFailure2, authFailure1, 0xff} {
			if kind != authCommon || number != authNegotiate {
				message(fmt.Sprintf("message %d of type %d", number, kind), edited(good, 0, kind, number))
			}
		}
	}
	for _, n := range []uint32{0, 1, 71, 73, 8192, 0x7fffffff, 0xffffffff} {
		try(fmt.Sprintf("a length of %d", n), authSendOf(0).with(11, n), good)
		all[fmt.Sprintf("an answer of %d bytes", n)] = func() {
			w, _ := h.victimQueue()
			h.Expect(w.authSend(good)).To(Succeed())
			_, _, _ = w.do(authReceiveOf(0).with(11, n), nil, authReceiveBytes)
			h.shutOut(w, "a wrong length")
		}
		all[fmt.Sprintf("room of %d bytes", n)] = func() {
			w, _ := h.victimQueue()
			h.Expect(w.authSend(good)).To(Succeed())
			h.says(w, authReceiveOf(int(n)).numbered(9).pointer(sglTransport, int(n)).capsule(nil))
		}
	}
	try("another security protocol", authSendOf(len(good)).with(10, 0x00010100), good)
	try("another protocol of it", authSendOf(len(good)).with(10, 0xe9ffff00), good)
	h.each(all)
}

// repliesWrong to a challenge that the target made, then to one with a group.
func repliesWrong(h *intruded) {
	negotiate := negotiation(1)
	h.each(h.wrongReplies(negotiate, false))
	// The kernel's target takes the group that its host has, whatever is offered; SPDK the largest that is offered.
	x := withKeys(h.victim, h.newKeys())
	a := x.Authentication[x.Hosts[0]]
	a.Group = v1alpha1.DHGroupFFDHE2048
	x.Authentication[x.Hosts[0]] = a
	h.exportAs(x)
	h.victim = x
	h.each(h.wrongReplies(offering(negotiate, 1, 2, 3, 4, 5), true))
}

func (h *intruded) wrongReplies(negotiate []byte, grouped bool) attempts {
	zero := replyOf(1, make([]byte, sha256.Size), make([]byte, sha256.Size))
	long := func(n int) []byte {
		return append(edited(zero, 10, byte(n), byte(n>>8)), bytes.Repeat([]byte{0xff}, n)...)
	}
	replies := map[string][]byte{
		"all zero": zero, "another transaction": edited(zero, 4, 2), "no hash": edited(zero, 6, 0), "a hash of 255": edited(zero, 6, 255),
		"a hash of 64": edited(zero, 6, 64), "validity 2": edited(zero, 8, 2), "validity 255": edited(zero, 8, 255),
		"no challenge": edited(zero, 8, 0), "sequence 0": edited(zero, 12, 0, 0, 0, 0), "too short": zero[:len(zero)-1],
		"only a header": zero[:16], "half a header": zero[:7], "a value announced": edited(zero, 10, 0xfc, 0xff),
		"a value of odd size": edited(zero, 10, 3), "a value of 4": long(4), "a value of 256": long(256), "a value of 1028": long(1028),
		"a value of 8000": long(8000),
	}
	for _, bits := range []int{2048, 8192} {
		for value := range byte(2) {
			reply := long(bits / 8)
			clear(reply[len(zero):])
			reply[len(reply)-1] = value
			replies[fmt.Sprintf("a value of %d in %d bits", value, bits)] = reply
		}
	}
	all := attempts{}
	for name, reply := range replies {
		all[name] = func() {
			w, _ := h.victimQueue()
			h.Expect(w.authSend(negotiate)).To(Succeed())
			challenge, err := w.authReceive()
			h.Expect(err).NotTo(HaveOccurred())
			h.Expect(challenge[1]).To(BeEquivalentTo(authChallenge))
			h.Expect(challenge[authGroup] != noGroup).To(Equal(grouped))
			_ = w.authSend(reply)
			_, _ = w.authReceive()
			_ = w.authSend(authMessage(authDHCHAP, authSuccess2, 1, 16))
			h.shutOut(w, name)
		}
	}
	return all
}

// authReplayed are the messages by which the owner was let in a moment ago.
func authReplayed(h *intruded) {
	var said exchange
	i := h.identity(h.victim)
	w, _ := h.victimQueue()
	h.Expect(w.prove(i, &said)).To(Succeed())
	_, _, err := w.do(commandOf(adminKeepAlive, 0), nil, 0)
	h.Expect(err).NotTo(MatchError(errAuthRequired), "the owner is in")
	all := attempts{}
	for name, steps := range map[string][][]byte{
		"all of it":       {said.negotiate, nil, said.reply, nil, said.success},
		"unheard":         {said.negotiate, said.reply, said.success},
		"from the reply":  {said.reply, nil, said.success},
		"its last":        {said.success},
		"its reply twice": {said.negotiate, nil, said.reply, said.reply, nil, said.success},
	} {
		all[name] = func() {
			w, _ := h.victimQueue()
			for _, message := range steps {
				if message == nil {
					_, _ = w.authReceive()
				} else {
					_ = w.authSend(message)
				}
			}
			h.shutOut(w, name)
		}
	}
	all["by another host"] = func() {
		other := h.outsider()
		other.host = h.witness.who.host
		_, _, err := h.queue(other, 0, anyController)
		h.Expect(err).To(HaveOccurred())
	}
	h.each(all)
}
