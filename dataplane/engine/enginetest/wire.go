// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// pduType of NVMe/TCP (NVMe TCP Transport Specification, "PDU Type").
type pduType byte

// The types that hosts and targets send.
const (
	pduICReq       pduType = 0x00
	pduICResp      pduType = 0x01
	pduHostTerm    pduType = 0x02
	pduTargetTerm  pduType = 0x03
	pduCommand     pduType = 0x04
	pduResponse    pduType = 0x05
	pduHostData    pduType = 0x06
	pduTargetData  pduType = 0x07
	pduReadyToSend pduType = 0x09
)

const (
	commonBytes = 8
	// largestPDU that a target may send: its largest I/O, and room for the header.
	largestPDU = 2 << 20
	// flagSuccess of a PDU with data: no response follows.
	flagSuccess = 0x08
	// wirePatience with an answer, or with the end of a connection.
	wirePatience = 10 * time.Second
)

// le is the order of all numbers of NVMe.
var le = binary.LittleEndian

// pdu as it was read. header is what follows the common one.
type pdu struct {
	kind         pduType
	flags        byte
	header, data []byte
}

// frame makes a PDU whose lengths are what its parts have. What sends wrong ones changes bytes: flags are in 1, the
// header's length in 2, the data's offset in 3, and the whole length in 4 to 7.
func frame(kind pduType, header, data []byte) []byte {
	b := []byte{byte(kind), 0, byte(commonBytes + len(header)), 0, 0, 0, 0, 0}
	if len(data) > 0 && kind != pduHostTerm {
		b[3] = b[2]
	}
	b = append(append(b, header...), data...)
	le.PutUint32(b[4:], uint32(len(b)))
	return b
}

// icReq begins a connection: format 0, no digests, one R2T at a time.
func icReq() []byte { return frame(pduICReq, make([]byte, 120), nil) }

// hostData for a command that the target is ready for.
func hostData(cid, tag uint16, offset uint32, data []byte) []byte {
	h := le.AppendUint16(le.AppendUint16(nil, cid), tag)
	h = le.AppendUint32(le.AppendUint32(h, offset), uint32(len(data)))
	b := frame(pduHostData, le.AppendUint32(h, 0), data)
	b[1] = 4 // the last one
	return b
}

// entry is a submission queue entry.
type entry [64]byte

// Opcodes of administration, of I/O, and of Fabrics, with its kinds.
const (
	adminGetLogPage, adminIdentify, adminSetFeatures, adminKeepAlive            = 0x02, 0x06, 0x09, 0x18
	ioFlush, ioWrite, ioRead                                                    = 0x00, 0x01, 0x02
	fabrics                                                                     = 0x7f
	fabricsSet, fabricsConnect, fabricsGet, fabricsAuthSend, fabricsAuthReceive = 0x00, 0x01, 0x04, 0x05, 0x06
)

// Types of a data pointer: data that follow in other PDUs, and data in the capsule.
const (
	sglTransport, sglCapsule = 0x5a, 0x01
	sglLength, sglType       = 32, 39
)

func commandOf(opcode byte, namespace uint32) entry {
	c := entry{opcode, 0x40}
	le.PutUint32(c[4:], namespace)
	return c
}

func fabricsOf(kind byte) entry { return commandOf(fabrics, uint32(kind)) }

// with a value in one of its 16 words, such as 10.
func (c entry) with(word int, value uint32) entry {
	le.PutUint32(c[4*word:], value)
	return c
}

func (c entry) numbered(cid uint16) entry {
	le.PutUint16(c[2:], cid)
	return c
}

func (c entry) pointer(kind byte, length int) entry {
	le.PutUint32(c[sglLength:], uint32(length))
	c[sglType] = kind
	return c
}

// capsule of a command, and of data that its pointer says are in it.
func (c entry) capsule(data []byte) []byte {
	if len(data) > 0 {
		c = c.pointer(sglCapsule, len(data))
	}
	return frame(pduCommand, c[:], data)
}

// Places in Connect, and in its data.
const (
	connectQueue, connectSize                  = 42, 44
	connectDataBytes                           = 1024
	connectController, connectNQN, connectHost = 16, 256, 512
	// anyController is asked for by a host that begins.
	anyController = 0xffff
)

// connectOf a queue of so many entries.
func connectOf(queue, entries uint16) entry {
	c := fabricsOf(fabricsConnect)
	le.PutUint16(c[connectQueue:], queue)
	le.PutUint16(c[connectSize:], entries-1)
	return c
}

func connectData(hostID [16]byte, controller uint16, nqn, host string) []byte {
	d := make([]byte, connectDataBytes)
	copy(d, hostID[:])
	le.PutUint16(d[connectController:], controller)
	copy(d[connectNQN:], nqn)
	copy(d[connectHost:], host)
	return d
}

// Properties of a controller.
const (
	propertyConfiguration, propertyStatus = 0x14, 0x1c
	// enabled with entries of 64 and 16 bytes.
	enabled = 1 | 6<<16 | 4<<20
)

func setProperty(offset, value uint32) entry {
	return fabricsOf(fabricsSet).with(11, offset).with(12, value)
}

func getProperty(offset uint32) entry { return fabricsOf(fabricsGet).with(11, offset) }

func transfer(opcode byte, namespace uint32, block uint64, blocks int) entry {
	return commandOf(opcode, namespace).with(10, uint32(block)).with(11, uint32(block>>32)).with(12, uint32(blocks-1))
}

// completion of a command: what it answers, and its status without the phase bit, 0 for success.
type completion struct {
	cid    uint16
	result uint32
	status uint16
}

func (c completion) err() error {
	if c.status == 0 {
		return nil
	}
	return statusError(c.status)
}

// statusError is a status that is not success: its code in the lowest byte, the code's type above.
type statusError uint16

const (
	// errAuthRequired is the status of a command before a proof.
	errAuthRequired = statusError(0x191)
	// errInaccessible is the status of I/O through a listener that is, for as long as it is.
	errInaccessible = statusError(0x302)
	statusCodeMask  = 0x7ff
)

func (e statusError) Error() string { return fmt.Sprintf("status 0x%03x", uint16(e&statusCodeMask)) }

// Is the same but for whether it may be tried again.
func (e statusError) Is(other error) bool {
	o, ok := errors.AsType[statusError](other)
	return ok && o&statusCodeMask == e&statusCodeMask
}

// IsInaccessible says whether a host was told to send the same again, once the path is accessible (ANA).
func IsInaccessible(err error) bool { return errors.Is(err, errInaccessible) }

// StatusOf an error that a target answered a command with: the status's code in the lowest byte, and its type above.
func StatusOf(err error) (status uint16, is bool) {
	e, is := errors.AsType[statusError](err)
	return uint16(e & statusCodeMask), is
}

// errTerminated says that the target ended the connection with a PDU that says why.
var errTerminated = errors.New("the target terminated the connection")

// wire is one NVMe/TCP connection of a host that is no kernel's: it sends what it is told to, right or wrong. Only one
// goroutine uses it.
type wire struct {
	conn net.Conn
	// in is what comes from conn.
	in  io.Reader
	cid uint16
	// maxData that the target takes in one PDU.
	maxData uint32
	// patience with what is to come.
	patience time.Duration
}

// dialWire connects, and says nothing yet. heard gets all that the target sends, if it is not nil.
func dialWire(ctx context.Context, portal v1alpha1.Portal, heard io.Writer) (*wire, error) {
	dialer := net.Dialer{Timeout: wirePatience}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(portal.Address, strconv.Itoa(int(portal.Port))))
	if err != nil {
		return nil, err
	}
	w := &wire{conn: conn, in: conn, patience: wirePatience}
	if heard != nil {
		w.in = io.TeeReader(conn, heard)
	}
	return w, nil
}

func (w *wire) close() { _ = w.conn.Close() }

// send bytes as they are.
func (w *wire) send(b []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(wirePatience)); err != nil {
		return err
	}
	_, err := w.conn.Write(b)
	return err
}

// receive a PDU. It fails with io.EOF where the target ended the connection between two.
func (w *wire) receive() (pdu, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.patience)); err != nil {
		return pdu{}, err
	}
	var common [commonBytes]byte
	if _, err := io.ReadFull(w.in, common[:]); err != nil {
		return pdu{}, err
	}
	hlen, offset, plen := int(common[2]), int(common[3]), int(le.Uint32(common[4:]))
	if hlen < commonBytes || plen < hlen || plen > largestPDU || offset > plen {
		return pdu{}, fmt.Errorf("the target sent the header % x", common)
	}
	rest := make([]byte, plen-commonBytes)
	if _, err := io.ReadFull(w.in, rest); err != nil {
		return pdu{}, fmt.Errorf("in a PDU of type 0x%02x: %w", common[0], err)
	}
	p := pdu{kind: pduType(common[0]), flags: common[1], header: rest[:hlen-commonBytes]}
	p.data = rest[max(offset, hlen)-commonBytes:]
	return p, nil
}

// initialize the connection.
func (w *wire) initialize() error {
	if err := w.send(icReq()); err != nil {
		return err
	}
	p, err := w.receive()
	if err != nil {
		return err
	}
	if p.kind != pduICResp || len(p.header) < 8 {
		return fmt.Errorf("ICReq was answered by a PDU of type 0x%02x", p.kind)
	}
	w.maxData = le.Uint32(p.header[4:])
	return nil
}

// next number of a command.
func (w *wire) next() uint16 {
	w.cid++
	return w.cid
}

// do a command that sends out, in its capsule, or gets up to want bytes.
func (w *wire) do(c entry, out []byte, want int) (completion, []byte, error) {
	if want > 0 {
		c = c.pointer(sglTransport, want)
	}
	c = c.numbered(w.next())
	if err := w.send(c.capsule(out)); err != nil {
		return completion{}, nil, err
	}
	return w.answer(nil, want)
}

// doWhenReady does a command whose data it sends when the target asks for them.
func (w *wire) doWhenReady(c entry, out []byte) error {
	c = c.numbered(w.next()).pointer(sglTransport, len(out))
	if err := w.send(c.capsule(nil)); err != nil {
		return err
	}
	_, _, err := w.answer(out, 0)
	return err
}

// answer to the only command that is under way, with up to want bytes. out is what the target may ask for.
func (w *wire) answer(out []byte, want int) (completion, []byte, error) {
	in := make([]byte, want)
	for {
		p, err := w.receive()
		if err != nil {
			return completion{}, nil, err
		}
		switch p.kind {
		case pduResponse:
			done, err := completionOf(p)
			if err == nil {
				err = done.err()
			}
			return done, in, err
		case pduTargetData:
			at := le.Uint32(p.header[4:])
			if int(at)+len(p.data) > want {
				return completion{}, nil, fmt.Errorf("%d bytes were sent at %d; %d were asked for", len(p.data), at, want)
			}
			copy(in[at:], p.data)
			if p.flags&flagSuccess != 0 {
				return completion{cid: le.Uint16(p.header)}, in, nil
			}
		case pduReadyToSend:
			if err := w.deliver(p, out); err != nil {
				return completion{}, nil, err
			}
		case pduTargetTerm:
			return completion{}, nil, fmt.Errorf("%w: status %d", errTerminated, le.Uint16(p.header))
		default:
			return completion{}, nil, fmt.Errorf("the target sent a PDU of type 0x%02x", p.kind)
		}
	}
}

// ready is what an R2T asks for.
type ready struct {
	cid, tag       uint16
	offset, length uint32
}

func readyOf(p pdu) ready {
	return ready{
		cid: le.Uint16(p.header), tag: le.Uint16(p.header[2:]),
		offset: le.Uint32(p.header[4:]), length: le.Uint32(p.header[8:]),
	}
}

// deliver what an R2T asks for.
func (w *wire) deliver(p pdu, out []byte) error {
	r := readyOf(p)
	if int(r.offset)+int(r.length) > len(out) {
		return fmt.Errorf("the target is ready for %d bytes at %d, of %d", r.length, r.offset, len(out))
	}
	for sent := uint32(0); sent < r.length; {
		n := min(r.length-sent, w.maxData)
		b := hostData(r.cid, r.tag, r.offset+sent, out[r.offset+sent:][:n])
		sent += n
		if sent < r.length {
			b[1] = 0
		}
		if err := w.send(b); err != nil {
			return err
		}
	}
	return nil
}

func completionOf(p pdu) (completion, error) {
	if p.kind != pduResponse || len(p.header) < 16 {
		return completion{}, fmt.Errorf("a PDU of type 0x%02x is no response", p.kind)
	}
	return completion{cid: le.Uint16(p.header[12:]), result: le.Uint32(p.header), status: le.Uint16(p.header[14:]) >> 1}, nil
}
