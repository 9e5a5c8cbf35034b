// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"fmt"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so
)

// admittedCases are those of a host that a target admits to its own volume.
func admittedCases() map[string]func(*intruded) {
	return map[string]func(*intruded){
		"reads and writes beyond the end, and of other namespaces, are refused": beyond,
		"every opcode may be sent":                                       everyOpcode,
		"every kind of Fabrics command and every property may be sent":   everyFabrics,
		"data pointers that are wrong disturb nobody":                    wrongPointers,
		"more data in a capsule than may be there disturb nobody":        largeCapsules,
		"data that nobody asked for disturb nobody":                      unaskedData,
		"data that are not what was asked for disturb nobody":            wrongData,
		"commands with one number disturb nobody":                        sameNumbers,
		"more commands than a queue has entries disturb nobody":          tooManyCommands,
		"queues connected twice, and with other numbers, disturb nobody": oddQueues,
	}
}

func beyond(h *intruded) {
	host := h.attached()
	const most = 32
	refuse := func(name string, c entry, blocks int) {
		for _, opcode := range []byte{ioRead, ioWrite} {
			c[0] = opcode
			size := blocks * host.lbaBytes
			if opcode == ioRead {
				h.refused(host.io, c, nil, size, name)
				continue
			}
			// As hosts send them: the kernel's target asks for no data that fit into a capsule.
			err := host.io.write(c, make([]byte, size))
			h.Expect(err).To(HaveOccurred(), name)
			h.Expect(isTimeout(err)).To(BeFalse(), "%s: no answer", name)
		}
		_, err := host.ReadAt(make([]byte, BlockBytes), 0)
		h.Expect(err).NotTo(HaveOccurred(), "the queue is still there: "+name)
	}
	for name, block := range map[string]uint64{"the first after the end": host.blocks, "far beyond": host.blocks << 20} {
		refuse(name, transfer(ioRead, 1, block, 1), 1)
		refuse(name+", many", transfer(ioRead, 1, block, most), most)
	}
	refuse("across the end", transfer(ioRead, 1, host.blocks-1, 2), 2)
	for _, namespace := range []uint32{0, 2, 3, 1024, 0xfffffffe, 0xffffffff} {
		refuse(fmt.Sprintf("namespace %d", namespace), transfer(ioRead, namespace, 0, 1), 1)
	}
	h.unharmed("beyond the end")
	all := attempts{}
	// The place in bytes has more than 64 bits: a target may take it for one in the volume, and for no other.
	for name, block := range map[string]uint64{"half of all blocks": 1 << 63, "the last of all": 1<<64 - 1} {
		for _, blocks := range []int{1, 2, most} {
			for _, opcode := range []byte{ioRead, ioWrite} {
				all[fmt.Sprintf("opcode %d of %d at %s", opcode, blocks, name)] = func() {
					h.provoke(h.attached().io, transfer(opcode, 1, block, blocks).pointer(sglTransport, blocks*host.lbaBytes), commandOf(ioFlush, 1))
				}
			}
		}
	}
	// A length that is not that of the data: what there is may be read, and no more.
	for _, blocks := range []int{2, 256, 65536} {
		for _, opcode := range []byte{ioRead, ioWrite} {
			all[fmt.Sprintf("opcode %d of %d blocks for one", opcode, blocks)] = func() {
				h.says(h.attached().io, transfer(opcode, 1, 0, blocks).numbered(1).pointer(sglTransport, host.lbaBytes).capsule(nil))
			}
			all[fmt.Sprintf("opcode %d of %d blocks for one, in the capsule", opcode, blocks)] = func() {
				h.says(h.attached().io, transfer(opcode, 1, 0, blocks).numbered(1).capsule(make([]byte, host.lbaBytes)))
			}
		}
	}
	h.each(all)
}

// provoke sends a command that may or may not be answered, gives what the target asks for, and waits for the answer to
// the next one. It answers false when the target ended the connection.
func (h *intruded) provoke(w *wire, c, next entry) bool {
	h.t.Helper()
	c, next = c.numbered(w.next()), next.numbered(w.next())
	if w.send(c.capsule(nil)) != nil || w.send(next.capsule(nil)) != nil {
		return false
	}
	for {
		p, err := w.receive()
		switch {
		case isTimeout(err):
			h.t.Fatalf("after opcode 0x%02x nothing is answered", c[0])
		case err != nil || p.kind == pduTargetTerm:
			return false
		case p.kind == pduReadyToSend:
			if r := readyOf(p); w.send(hostData(r.cid, r.tag, r.offset, make([]byte, min(r.length, 1<<17)))) != nil {
				return false
			}
		case p.kind == pduResponse:
			if done, err := completionOf(p); err == nil && done.cid == le.Uint16(next[2:]) {
				return true
			}
		}
	}
}

func everyOpcode(h *intruded) {
	variants := map[string]func(entry) entry{
		"bare":      func(c entry) entry { return c },
		"with data": func(c entry) entry { return c.pointer(sglTransport, 16) },
		"all bits, with data": func(c entry) entry {
			return edit(c, 40, bytes.Repeat([]byte{0xff}, 24)...).pointer(sglTransport, 4096)
		},
	}
	for name, variant := range variants {
		var admin, io *wire
		for opcode := range 256 {
			for _, namespace := range []uint32{0, 1, 0xffffffff} {
				if admin == nil {
					admin = h.admitted()
				}
				if io == nil {
					io = h.attached().io
				}
				c := variant(commandOf(byte(opcode), namespace))
				// It may have disabled its controller, and the next is refused: but answered.
				if !h.provoke(admin, c, commandOf(adminKeepAlive, 0)) {
					admin = nil
				}
				if !h.provoke(io, c, commandOf(ioFlush, 1)) {
					io = nil
				}
			}
		}
		h.hangUp()
		h.unharmed("every opcode, " + name)
	}
}

func everyFabrics(h *intruded) {
	var admin *wire
	for kind := range 256 {
		if kind == fabricsConnect {
			continue
		}
		for _, c := range []entry{
			fabricsOf(byte(kind)), fabricsOf(byte(kind)).pointer(sglTransport, 64),
			edit(fabricsOf(byte(kind)), 40, bytes.Repeat([]byte{0xff}, 24)...),
		} {
			if admin == nil {
				admin = h.admitted()
			}
			if !h.provoke(admin, c, getProperty(propertyStatus)) {
				admin = nil
			}
		}
	}
	h.hangUp()
	h.unharmed("every kind")
	admin = nil
	for offset := range uint32(0x80) {
		for _, size := range []uint32{0, 1, 7} {
			for _, c := range []entry{getProperty(offset), setProperty(offset, 0xffffffff), setProperty(offset, 0)} {
				if admin == nil {
					admin = h.admitted()
				}
				if !h.provoke(admin, c.with(10, size), getProperty(propertyStatus)) {
					admin = nil
				}
			}
		}
	}
	h.hangUp()
	h.unharmed("every property")
}

func wrongPointers(h *intruded) {
	all := attempts{}
	for _, kind := range []byte{0x00, 0x01, 0x0a, 0x10, 0x30, 0x4f, 0x50, 0x5a, 0xff} {
		all[fmt.Sprintf("type 0x%02x", kind)] = func() {
			for _, length := range []int{0, 4096, 131073, 0xffffffff} {
				for _, opcode := range []byte{ioRead, ioWrite} {
					h.says(h.attached().io, transfer(opcode, 1, 0, 1).numbered(1).pointer(kind, length).capsule(nil))
					h.hangUp()
				}
			}
		}
	}
	for _, flags := range []byte{0x00, 0x80, 0xc0, 0x41, 0x42, 0x43, 0xff} {
		all[fmt.Sprintf("flags 0x%02x", flags)] = func() {
			for _, opcode := range []byte{ioRead, ioWrite} {
				c := transfer(opcode, 1, 0, 1).numbered(1)
				h.says(h.attached().io, edit(c, 1, flags).pointer(sglTransport, 4096).capsule(nil))
				h.says(h.attached().io, edit(c, 1, flags).capsule(make([]byte, 4096)))
			}
		}
	}
	for _, address := range []byte{1, 0x80, 0xff} {
		all[fmt.Sprintf("offset 0x%02x", address)] = func() {
			c := transfer(ioWrite, 1, 0, 1).numbered(1)
			for _, at := range []int{24, 27, 31} {
				h.says(h.attached().io, edit(c, at, address).capsule(make([]byte, 4096)))
			}
		}
	}
	h.each(all)
}

func largeCapsules(h *intruded) {
	all := attempts{}
	for _, n := range []int{1, 4097, 8193, 131073} {
		data := make([]byte, n)
		all[fmt.Sprintf("%d bytes", n)] = func() {
			for _, c := range []entry{transfer(ioWrite, 1, 0, 1), transfer(ioRead, 1, 0, 1), commandOf(ioFlush, 1)} {
				h.says(h.attached().io, c.numbered(1).capsule(data))
			}
			h.says(h.admitted(), commandOf(adminIdentify, 1).numbered(9).capsule(data))
			h.says(h.admitted(), commandOf(adminSetFeatures, 0).numbered(9).with(10, 0x81).capsule(data))
		}
		all[fmt.Sprintf("%d bytes, and another length in the pointer", n)] = func() {
			for _, length := range []int{0, n - 1, n + 1, 0xffffffff} {
				c := transfer(ioWrite, 1, 0, 1).numbered(1).pointer(sglCapsule, length)
				b := frame(pduCommand, c[:], data)
				h.says(h.attached().io, b)
				h.hangUp()
			}
		}
	}
	h.each(all)
}

func unaskedData(h *intruded) {
	all := attempts{}
	for _, tag := range []uint16{0, 1, 2, 64, 65, 128, 129, 0xffff} {
		all[fmt.Sprintf("tag %d", tag)] = func() {
			h.says(h.attached().io, hostData(1, tag, 0, make([]byte, 512)))
			h.says(h.admitted(), hostData(1, tag, 0, make([]byte, 512)))
		}
	}
	h.each(all)
}

// asks for the data of a Write of so many bytes.
func (h *intruded) asks(size int) (*wire, ready) {
	h.t.Helper()
	host := h.attached()
	c := transfer(ioWrite, 1, 0, size/host.lbaBytes).numbered(host.io.next()).pointer(sglTransport, size)
	h.Expect(host.io.send(c.capsule(nil))).To(Succeed())
	p, err := host.io.receive()
	h.Expect(err).NotTo(HaveOccurred())
	h.Expect(p.kind).To(Equal(pduReadyToSend))
	return host.io, readyOf(p)
}

func wrongData(h *intruded) {
	const size = 2 * BlockBytes
	block := blockOf("by the intruder")
	data := func(r ready, cid, tag uint16, offset uint32, with []byte) [][]byte {
		return [][]byte{hostData(r.cid+cid, r.tag+tag, r.offset+offset, with)}
	}
	whole := append(bytes.Clone(block), block...)
	all := attempts{}
	for name, f := range map[string]func(ready) [][]byte{
		"another tag":          func(r ready) [][]byte { return data(r, 0, 1, 0, whole) },
		"tag 0":                func(r ready) [][]byte { return data(r, 0, -r.tag, 0, whole) },
		"tag 65535":            func(r ready) [][]byte { return data(r, 0, ^r.tag, 0, whole) },
		"another command":      func(r ready) [][]byte { return data(r, 1, 0, 0, whole) },
		"later than asked for": func(r ready) [][]byte { return data(r, 0, 0, BlockBytes, block) },
		"beyond":               func(r ready) [][]byte { return data(r, 0, 0, size, block) },
		"far beyond":           func(r ready) [][]byte { return data(r, 0, 0, 0x80000000, block) },
		"too many":             func(r ready) [][]byte { return data(r, 0, 0, 0, append(bytes.Clone(whole), block...)) },
		"none":                 func(r ready) [][]byte { return data(r, 0, 0, 0, nil) },
		"too few, the last":    func(r ready) [][]byte { return data(r, 0, 0, 0, block) },
		"twice":                func(r ready) [][]byte { return append(data(r, 0, 0, 0, whole), data(r, 0, 0, 0, whole)...) },
		"half of it twice":     func(r ready) [][]byte { return append(data(r, 0, 0, 0, block), data(r, 0, 0, 0, block)...) },
		"a length that lies": func(r ready) [][]byte {
			return [][]byte{edited(data(r, 0, 0, 0, block)[0], 16, le32(size)...)}
		},
		"a length that lies the other way": func(r ready) [][]byte {
			return [][]byte{edited(data(r, 0, 0, 0, whole)[0], 16, le32(512)...)}
		},
		"in between another command": func(r ready) [][]byte {
			return [][]byte{data(r, 0, 0, 0, block)[0], transfer(ioRead, 1, 0, 1).numbered(r.cid).pointer(sglTransport, BlockBytes).capsule(nil)}
		},
	} {
		all[name] = func() {
			w, r := h.asks(size)
			h.says(w, f(r)...)
		}
	}
	h.each(all)
}

func sameNumbers(h *intruded) {
	read := transfer(ioRead, 1, 0, 1).numbered(7).pointer(sglTransport, BlockBytes).capsule(nil)
	write := transfer(ioWrite, 1, 0, 2).numbered(7).pointer(sglTransport, 2*BlockBytes).capsule(nil)
	identify := commandOf(adminIdentify, 1).numbered(7).pointer(sglTransport, 4096).capsule(nil)
	event := commandOf(0x0c, 0).numbered(7).capsule(nil) // Asynchronous Event Request
	abort := commandOf(0x08, 0).numbered(7).with(10, 7<<16).capsule(nil)
	h.each(attempts{
		"reads":              func() { h.says(h.attached().io, read, read, read, read) },
		"writes":             func() { h.says(h.attached().io, write, write, write) },
		"a read and a write": func() { h.says(h.attached().io, write, read, write, read) },
		"administration":     func() { h.says(h.admitted(), identify, identify, event, identify, event, event) },
		"aborted":            func() { h.says(h.admitted(), event, abort, abort, event, event, event, event, event, event, abort) },
	})
}

func tooManyCommands(h *intruded) {
	const many = 600
	read := transfer(ioRead, 1, 0, 1).numbered(7).pointer(sglTransport, BlockBytes).capsule(nil)
	write := transfer(ioWrite, 1, 0, 2).numbered(7).pointer(sglTransport, 2*BlockBytes).capsule(nil)
	event := commandOf(0x0c, 0).numbered(7).capsule(nil)
	half := transfer(ioWrite, 1, 0, 1).numbered(7).capsule(make([]byte, BlockBytes))
	all := attempts{}
	for name, b := range map[string][]byte{"reads": read, "writes": write, "writes with data": half} {
		all[name] = func() { h.says(h.attached().io, bytes.Repeat(b, many)) }
	}
	all["events"] = func() { h.says(h.admitted(), bytes.Repeat(event, many)) }
	h.each(all)
}

func oddQueues(h *intruded) {
	i := h.insider()
	connect := func(queue, controller uint16) []byte {
		return connectOf(queue, queueEntries).numbered(99).capsule(connectData(i.hostID(), controller, i.nqn, i.host))
	}
	all := attempts{
		"queue 0 twice": func() { h.says(h.admitted(), connect(0, anyController)) },
		"queue 0 of the same controller": func() {
			host := h.attached()
			h.says(h.open(), connect(0, host.controller))
		},
		"an I/O queue on the same connection": func() {
			host := h.attached()
			h.says(host.admin, connect(2, host.controller))
		},
		"an I/O queue twice on one connection": func() {
			host := h.attached()
			h.says(host.io, connect(1, host.controller))
		},
		"an I/O queue twice": func() {
			host := h.attached()
			h.says(h.open(), connect(1, host.controller))
		},
		"an I/O queue of no controller": func() { h.says(h.open(), connect(1, anyController)) },
		"an I/O queue of a controller that goes": func() {
			host := h.attached()
			host.admin.close()
			h.says(h.open(), connect(2, host.controller))
		},
		"a controller that is reset under I/O": func() {
			host := h.attached()
			read := transfer(ioRead, 1, 0, 1).numbered(7).pointer(sglTransport, BlockBytes).capsule(nil)
			h.Expect(host.io.send(bytes.Repeat(read, 16))).To(Succeed())
			for _, value := range []uint32{0, enabled, enabled | 1<<14, enabled | 2<<14, 0xffffffff, 0} {
				_, _, _ = host.admin.do(setProperty(propertyConfiguration, value), nil, 0)
			}
			h.says(host.io, read)
		},
	}
	for _, queue := range []uint16{3, 127, 128, 1024, 0x7fff, 0xffff} {
		all[fmt.Sprintf("I/O queue %d", queue)] = func() {
			host := h.attached()
			h.says(h.open(), connect(queue, host.controller))
		}
	}
	h.each(all)
}
