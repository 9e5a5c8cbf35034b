// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so
)

// strangerCases need no name but a portal's address.
func strangerCases() map[string]func(*intruded) {
	return map[string]func(*intruded){
		"a host that is not listed is refused":                                  unlistedHosts,
		"names of subsystems are not told to strangers":                         namesAreNotTold,
		"many idle connections disturb nobody":                                  manyIdle,
		"headers that are wrong disturb nobody":                                 wrongHeaders,
		"PDUs out of place disturb nobody":                                      outOfPlace,
		"PDUs that end too early disturb nobody":                                cutShort,
		"data that nobody asked for disturb nobody, before a host is connected": unaskedDataEarly,
		"data that Connect did not announce disturb nobody":                     connectWrongData,
		"data that begin beyond the header of a PDU disturb nobody":             dataOffsets,
		"Connect of other sizes and formats disturbs nobody":                    oddConnects,
		"random bytes, and PDUs with random changes, disturb nobody":            randomPDUs,
		"commands before Connect are refused":                                   beforeConnect,
	}
}

// connectPDU is a right Connect of an administrative queue.
func (i identityOnWire) connectPDU() []byte {
	return connectOf(0, queueEntries).numbered(1).capsule(connectData(i.hostID(), anyController, i.nqn, i.host))
}

// goodPDUs of each type that a host sends.
func (h *intruded) goodPDUs() map[string][]byte {
	return map[string][]byte{
		"ICReq":   icReq(),
		"Connect": h.outsider().connectPDU(),
		"command": commandOf(adminIdentify, 1).numbered(1).pointer(sglTransport, 4096).capsule(nil),
		"data":    hostData(1, 1, 0, make([]byte, 512)),
		"end":     frame(pduHostTerm, make([]byte, 16), make([]byte, 72)),
	}
}

func wrongHeaders(h *intruded) {
	all := attempts{}
	for kind, good := range h.goodPDUs() {
		hlen := good[2]
		for name, bad := range map[string][]byte{
			"no length": edited(good, 4, le32(0)...), "length 1": edited(good, 4, le32(1)...), "length 7": edited(good, 4, le32(7)...),
			"less than the header": edited(good, 4, le32(uint32(hlen)-1)...), "all lengths": edited(good, 4, le32(0xffffffff)...),
			"just negative": edited(good, 4, le32(0x80000000)...), "two bytes less": edited(good, 4, le32(uint32(len(good))-2)...),
			"more":      edited(good, 4, le32(uint32(len(good))+4096)...),
			"no header": edited(good, 2, 0), "header of 7": edited(good, 2, 7), "header of 8": edited(good, 2, 8),
			"header of 255": edited(good, 2, 255), "another header": edited(good, 2, hlen+1),
			"all flags": edited(good, 1, 0xff), "with digests": edited(good, 1, 3),
		} {
			all[kind+", "+name] = func() {
				if kind == "ICReq" {
					h.says(h.dial(), bad)
				} else {
					h.says(h.open(), bad)
				}
			}
		}
	}
	for _, kind := range []byte{1, 3, 5, 7, 8, 9, 10, 11, 0x40, 0x80, 0xff} {
		bad := edited(h.goodPDUs()["data"], 0, kind)
		all[fmt.Sprintf("type %d, first", kind)] = func() { h.says(h.dial(), bad) }
		all[fmt.Sprintf("type %d, then", kind)] = func() { h.says(h.open(), bad) }
	}
	h.each(all)
}

func outOfPlace(h *intruded) {
	good := h.goodPDUs()
	all := attempts{
		"a second ICReq":             func() { h.says(h.open(), icReq()) },
		"two at once":                func() { h.says(h.dial(), icReq(), icReq()) },
		"format 9":                   func() { h.says(h.dial(), edited(icReq(), 8, 9)) },
		"all bits of ICReq":          func() { h.says(h.dial(), edited(icReq(), 8, bytes.Repeat([]byte{0xff}, 120)...)) },
		"alignment 255":              func() { h.says(h.dial(), edited(icReq(), 10, 255)) },
		"digests that do not follow": func() { h.says(h.dial(), edited(icReq(), 11, 3), good["Connect"]) },
		"everything at once":         func() { h.says(h.dial(), icReq(), good["Connect"], good["Connect"], good["command"]) },
		"after the end":              func() { h.says(h.open(), good["end"], good["Connect"]) },
		"an end of no words":         func() { h.says(h.open(), frame(pduHostTerm, make([]byte, 16), nil)) },
		"an end of too many words":   func() { h.says(h.open(), frame(pduHostTerm, make([]byte, 16), make([]byte, 65536))) },
		"an end for no reason":       func() { h.says(h.open(), edited(good["end"], 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)) },
	}
	for _, status := range []byte{0, 1, 6, 7, 64} {
		all[fmt.Sprintf("an end with status %d", status)] = func() { h.says(h.open(), edited(good["end"], 8, status)) }
	}
	for kind, b := range good {
		all[kind+" before ICReq"] = func() { h.says(h.dial(), b) }
	}
	h.each(all)
}

func cutShort(h *intruded) {
	all := attempts{}
	connect := h.outsider().connectPDU()
	for _, n := range []int{1, 7, 8, 9, 71, 72, 73, 500, len(connect) - 1} {
		all[fmt.Sprintf("Connect of %d bytes", n)] = func() { h.says(h.open(), connect[:n]) }
	}
	for _, n := range []int{1, 7, 8, 9, 127} {
		all[fmt.Sprintf("ICReq of %d bytes", n)] = func() { h.says(h.dial(), icReq()[:n]) }
	}
	h.each(all)
	// They stay, and say no more.
	for _, n := range []int{1, 8, 72, 500} {
		h.Expect(h.open().send(connect[:n])).To(Succeed())
		h.unharmed(fmt.Sprintf("after %d bytes of Connect", n))
	}
}

// unaskedDataEarly with every tag that is a limit: 0 is before the first, and what follows the last is no tag.
func unaskedDataEarly(h *intruded) {
	all := attempts{}
	for _, tag := range []uint16{0, 1, 2, 63, 64, 65, 127, 128, 129, 0x7fff, 0x8000, 0xffff} {
		all[fmt.Sprintf("tag %d", tag)] = func() { h.says(h.open(), hostData(1, tag, 0, make([]byte, 512))) }
	}
	h.each(all)
}

// announced is a Connect whose data follow when the target asks for them, and what it asks for.
func (h *intruded) announced(size int) (*wire, ready) {
	h.t.Helper()
	w := h.open()
	h.Expect(w.send(connectOf(0, queueEntries).numbered(1).pointer(sglTransport, size).capsule(nil))).To(Succeed())
	p, err := w.receive()
	if err != nil || p.kind != pduReadyToSend {
		return w, ready{} // it takes them in the capsule only
	}
	return w, readyOf(p)
}

// connectWrongData: nobody has said yet who it is, and has a buffer of the target.
func connectWrongData(h *intruded) {
	first := make([]byte, 512)
	all := attempts{}
	for name, second := range map[string][]byte{
		"more than is left": hostData(1, 0, 512, make([]byte, 1024)),
		"before the rest":   hostData(1, 0, 0, make([]byte, 1024)),
		"with a gap":        hostData(1, 0, 768, make([]byte, 256)),
		"beyond":            hostData(1, 0, 0x80000000, make([]byte, 256)),
		"another command's": hostData(2, 0, 512, make([]byte, 512)),
		"nothing":           hostData(1, 0, 512, nil),
	} {
		all[name] = func() {
			w, r := h.announced(connectDataBytes)
			tagged := func(b []byte) []byte { return edited(b, 10, byte(r.tag), byte(r.tag>>8)) }
			begin := tagged(hostData(1, 0, 0, first))
			begin[1] = 0
			h.says(w, begin, tagged(second))
		}
	}
	h.each(all)
}

// dataOffsets that leave too much between header and data.
func dataOffsets(h *intruded) {
	all := attempts{}
	for kind, good := range h.goodPDUs() {
		for _, offset := range []byte{24, 25, 72, 73, 76, 127, 128, 129, 160, 161, 200, 254, 255} {
			if offset < good[2] {
				continue
			}
			bad := append(edited(good, 3, offset), bytes.Repeat([]byte{0xee}, 512)...)
			all[fmt.Sprintf("%s, data at %d", kind, offset)] = func() { h.says(h.open(), bad) }
		}
	}
	h.each(all)
}

func oddConnects(h *intruded) {
	all := attempts{}
	data := connectData(h.outsider().hostID(), anyController, h.victim.NQN, h.victim.Hosts[0])
	connect := func(name string, c entry, data []byte) {
		all[name] = func() {
			w := h.open()
			h.says(w, c.numbered(1).capsule(data))
		}
	}
	right := connectOf(0, queueEntries)
	for _, n := range []int{1, 16, 255, 256, 511, 512, 767, 1023, 1025, 4096, 4097, 8192, 8193, 65536} {
		connect(fmt.Sprintf("%d bytes", n), right, slices.Concat(data, make([]byte, 65536))[:n])
	}
	for _, size := range []uint32{1, 1024, 131072, 131073, 0x7fffffff, 0xffffffff} {
		connect(fmt.Sprintf("announces %d bytes", size), right.pointer(sglTransport, int(size)), nil)
	}
	connect("all bits of the command", edit(right, 40, bytes.Repeat([]byte{0xff}, 24)...), data)
	connect("all bits of the data", right, bytes.Repeat([]byte{0xff}, connectDataBytes))
	connect("all zero", right, make([]byte, connectDataBytes))
	connect("another format", edit(right, 40, 1), data)
	connect("controller 0", right, edited(data, connectController, 0, 0))
	connect("a name that does not end", right, edited(data, connectNQN, bytes.Repeat([]byte{'n'}, 256)...))
	connect("a host that does not end", right, edited(data, connectHost, bytes.Repeat([]byte{'n'}, 512)...))
	for queue, sizes := range map[uint16][]uint16{0: {1, 2, 33}, 1: {1, 2, 33, 0x7fff, 0xffff, 0}, 0xffff: {1, 0x7fff, 0xffff, 0}} { // 0 is 65536
		for _, entries := range sizes {
			connect(fmt.Sprintf("queue %d of %d entries", queue, entries), connectOf(queue, entries), data)
		}
	}
	h.each(all)
}

// edit a command's bytes from a place on.
func edit(c entry, at int, with ...byte) entry {
	copy(c[at:], with)
	return c
}

func beforeConnect(h *intruded) {
	for name, c := range everyday() {
		w := h.open()
		h.refused(w, c.entry, nil, c.want, name)
		h.hangUp()
	}
	h.unharmed("commands")
	all := attempts{}
	for _, kind := range []byte{fabricsSet, fabricsGet, fabricsAuthSend, fabricsAuthReceive, 0x02, 0x03, 0x07, 0x08, 0x7f, 0x80, 0xff} {
		for _, length := range []int{0, 16, 4096} {
			all[fmt.Sprintf("fabrics 0x%02x with %d bytes", kind, length)] = func() {
				h.says(h.open(), fabricsOf(kind).numbered(1).pointer(sglTransport, length).capsule(nil))
			}
		}
	}
	h.each(all)
}

const (
	randomSeed = 1
	// randomSequences take few seconds.
	randomSequences = 100
	// witnessEvery so many of them.
	witnessEvery = 20
)

// randomPDUs by WEFT_SEED, and WEFT_SEQUENCES of them.
func randomPDUs(h *intruded) {
	seed, count := numberOf(h.t, "WEFT_SEED", randomSeed), numberOf(h.t, "WEFT_SEQUENCES", randomSequences)
	h.t.Logf("WEFT_SEED=%d WEFT_SEQUENCES=%d", seed, count)
	for n := range count {
		h.sayRandom(rand.New(rand.NewPCG(uint64(seed+n), 0))) //nolint:gosec // a sequence that can be repeated
		h.hangUp()
		if (n+1)%witnessEvery == 0 || n+1 == count {
			h.unharmed(fmt.Sprintf("the sequences until WEFT_SEED=%d, with WEFT_SEQUENCES=1 for one of the last %d", seed+n, witnessEvery))
		}
	}
}

// sayRandom what a host says from the first word to a read and a write, with changes, or only noise.
func (h *intruded) sayRandom(random *rand.Rand) {
	i := h.insider()
	if random.IntN(2) == 0 {
		i = h.outsider()
	}
	said := [][]byte{
		i.connectPDU(),
		setProperty(propertyConfiguration, enabled).numbered(2).capsule(nil),
		commandOf(adminIdentify, 1).numbered(3).pointer(sglTransport, 4096).capsule(nil),
		hostData(3, 1, 0, make([]byte, 512)),
		authSendOf(72).numbered(4).capsule(negotiation(1)),
		authReceiveOf(authReceiveBytes).numbered(5).pointer(sglTransport, authReceiveBytes).capsule(nil),
		commandOf(adminGetLogPage, 0).numbered(6).with(10, 2|127<<16).pointer(sglTransport, 512).capsule(nil),
		frame(pduHostTerm, make([]byte, 16), make([]byte, 72)),
	}
	w := h.dial()
	if random.IntN(8) > 0 {
		if w.initialize() != nil {
			return
		}
	} else {
		said = slices.Insert(said, 0, icReq())
	}
	if random.IntN(16) == 0 {
		noise := make([]byte, 1+random.IntN(4096))
		for n := range noise {
			noise[n] = byte(random.Uint32())
		}
		said = slices.Insert(said, 0, noise)
	}
	changed := random.IntN(len(said))
	good := said[changed]
	said[changed] = bytes.Clone(good)
	for range 1 + random.IntN(4) {
		said[changed][random.IntN(min(len(good), 128))] = byte(random.Uint32())
	}
	// Where data begin, how many they are, and how many entries a queue has, is for cases of their own.
	for _, kept := range []struct{ at, size int }{{3, 1}, {commonBytes + sglLength, 4}, {commonBytes + connectSize, 2}} {
		if len(good) >= kept.at+kept.size {
			copy(said[changed][kept.at:], good[kept.at:][:kept.size])
		}
	}
	h.says(w, said...)
}
