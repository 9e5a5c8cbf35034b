// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/dhchap"
)

// WireHost is a host that speaks NVMe/TCP itself: it needs no kernel's initiator, and keeps nothing of what it reads.
// It has an administrative queue, and does its I/O over the first of its I/O queues. Only one goroutine uses it.
type WireHost struct {
	admin, io *wire
	// more I/O queues, which are only connected.
	more []*wire
	// controller that the target gave it.
	controller uint16
	// lbaBytes and blocks of namespace 1.
	lbaBytes int
	blocks   uint64
}

// identityOnWire of a host, and what it has to prove itself.
type identityOnWire struct {
	portal    v1alpha1.Portal
	nqn, host string
	keys      dhchap.Pair
	// heard gets all that the target sends, if it is not nil.
	heard io.Writer
}

// hostID is the UUID in the host's NQN.
func (i identityOnWire) hostID() [16]byte {
	id, err := uuid.Parse(strings.TrimPrefix(i.host, v1alpha1.HostNQNPrefix))
	if err != nil {
		return [16]byte{}
	}
	return id
}

// ConnectWire connects a host over NVMe/TCP with so many I/O queues, one at least. With keys it proves that it has them
// when it is asked, and wants the same of its target.
func ConnectWire(ctx context.Context, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair, ioQueues int) (*WireHost, error) {
	i := identityOnWire{portal: portal, nqn: nqn, host: hostNQN, keys: keys}
	h, err := connectWire(ctx, i)
	if err != nil {
		return nil, err
	}
	for number := 2; number <= ioQueues; number++ {
		w, _, err := i.queue(ctx, uint16(number), h.controller)
		if err != nil {
			h.Close()
			return nil, err
		}
		h.more = append(h.more, w)
	}
	return h, nil
}

// Close all connections, as a host does whose power goes.
func (h *WireHost) Close() {
	for _, w := range append([]*wire{h.io, h.admin}, h.more...) {
		if w != nil {
			w.close()
		}
	}
}

// connectWire connects both queues, proves itself on each if that is asked for, and enables the controller.
func connectWire(ctx context.Context, i identityOnWire) (*WireHost, error) {
	h := &WireHost{}
	var err error
	if h.admin, h.controller, err = i.queue(ctx, 0, anyController); err != nil {
		return nil, err
	}
	if err := h.enable(ctx, i); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *WireHost) enable(ctx context.Context, i identityOnWire) error {
	if err := h.admin.enable(); err != nil {
		return err
	}
	_, ns, err := h.admin.do(commandOf(adminIdentify, 1), nil, 4096)
	if err != nil {
		return fmt.Errorf("identify namespace 1: %w", err)
	}
	h.blocks = le.Uint64(ns)
	h.lbaBytes = 1 << ns[128+4*int(ns[26]&0xf)+2]
	h.io, _, err = i.queue(ctx, 1, h.controller)
	return err
}

// enable the controller, and wait for it.
func (w *wire) enable() error {
	if _, _, err := w.do(setProperty(propertyConfiguration, enabled), nil, 0); err != nil {
		return fmt.Errorf("enable the controller: %w", err)
	}
	const questions = 10000
	for range questions {
		status, _, err := w.do(getProperty(propertyStatus), nil, 0)
		if err != nil {
			return err
		}
		if status.result&1 != 0 {
			return nil
		}
	}
	return errors.New("the controller does not become ready")
}

// queueEntries of all queues here, which every target has.
const queueEntries = 32

// queue of a controller: a connection that is proved, if that is asked for.
func (i identityOnWire) queue(ctx context.Context, number, controller uint16) (*wire, uint16, error) {
	w, required, controller, err := i.unproved(ctx, number, controller)
	if err != nil {
		return nil, 0, err
	}
	if required {
		if err := w.prove(i, nil); err != nil {
			w.close()
			return nil, 0, err
		}
	}
	return w, controller, nil
}

// unproved queue, and whether a proof is asked for.
func (i identityOnWire) unproved(ctx context.Context, number, controller uint16) (*wire, bool, uint16, error) {
	w, err := dialWire(ctx, i.portal, i.heard)
	if err != nil {
		return nil, false, 0, err
	}
	done, err := completion{}, w.initialize()
	if err == nil {
		done, _, err = w.do(connectOf(number, queueEntries), connectData(i.hostID(), controller, i.nqn, i.host), 0)
	}
	if err != nil {
		w.close()
		return nil, false, 0, fmt.Errorf("connect queue %d: %w", number, err)
	}
	return w, done.result>>16 != 0, uint16(done.result), nil
}

// SizeBytes of the namespace, when it was connected.
func (h *WireHost) SizeBytes() int64 { return int64(h.blocks) * int64(h.lbaBytes) }

const (
	// transferBytes that every target takes at once.
	transferBytes = 128 << 10
	// transfersAtOnce of one call.
	transfersAtOnce = queueEntries / 2
)

// ReadAt implements io.ReaderAt, of whole blocks.
func (h *WireHost) ReadAt(p []byte, off int64) (int, error) { return h.transferAt(ioRead, p, off) }

// WriteAt implements io.WriterAt, of whole blocks: in the capsule up to BlockBytes, else when the target asks for them.
func (h *WireHost) WriteAt(p []byte, off int64) (int, error) { return h.transferAt(ioWrite, p, off) }

// transferAt of any size, with several commands at once. It fails with the error of the first that failed.
func (h *WireHost) transferAt(opcode byte, p []byte, off int64) (int, error) {
	var all []*wireCommand
	for at := 0; at < len(p); at += transferBytes {
		all = append(all, h.command(opcode, p[at:min(at+transferBytes, len(p))], off+int64(at)))
	}
	// As Linux does, what is inaccessible is sent until it is not any more.
	for left := all; len(left) > 0; {
		if err := h.io.doAll(left); err != nil {
			return 0, err
		}
		left = slices.DeleteFunc(slices.Clone(left), func(c *wireCommand) bool { return !errors.Is(c.done.err(), errInaccessible) })
	}
	for n, c := range all {
		if err := c.done.err(); err != nil {
			return n * transferBytes, err
		}
	}
	return len(p), nil
}

// WriteEach writes the same at each of these offsets, several at once. It answers with an error for each of them; the
// other one is that of the connection.
func (h *WireHost) WriteEach(p []byte, offsets []int64) ([]error, error) {
	all := make([]*wireCommand, len(offsets))
	errs := make([]error, len(offsets))
	for n, off := range offsets {
		all[n] = h.command(ioWrite, p, off)
	}
	if err := h.io.doAll(all); err != nil {
		return nil, err
	}
	for n, c := range all {
		errs[n] = c.done.err()
	}
	return errs, nil
}

// wireCommand reads to in, or writes out.
type wireCommand struct {
	entry   entry
	in, out []byte
	done    completion
}

func (h *WireHost) command(opcode byte, p []byte, off int64) *wireCommand {
	c := &wireCommand{entry: transfer(opcode, 1, uint64(off)/uint64(h.lbaBytes), len(p)/h.lbaBytes)}
	if opcode == ioRead {
		c.in = p
	} else {
		c.out = p
	}
	return c
}

// doAll commands, with up to transfersAtOnce under way.
func (w *wire) doAll(all []*wireCommand) error {
	under := map[uint16]*wireCommand{}
	for next := 0; next < len(all) || len(under) > 0; {
		if next < len(all) && len(under) < transfersAtOnce {
			c := all[next]
			next++
			under[w.cid+1] = c
			if err := w.begin(c); err != nil {
				return err
			}
			continue
		}
		p, err := w.receive()
		if err != nil {
			return err
		}
		if err := w.goOn(under, p); err != nil {
			return err
		}
	}
	return nil
}

// begin a command.
func (w *wire) begin(c *wireCommand) error {
	switch e := c.entry.numbered(w.next()); {
	case len(c.in) > 0:
		return w.send(e.pointer(sglTransport, len(c.in)).capsule(nil))
	case len(c.out) > BlockBytes:
		return w.send(e.pointer(sglTransport, len(c.out)).capsule(nil))
	default:
		return w.send(e.capsule(c.out))
	}
}

// goOn with the command that a PDU is about.
func (w *wire) goOn(under map[uint16]*wireCommand, p pdu) error {
	if p.kind == pduTargetTerm {
		return fmt.Errorf("%w: status %d", errTerminated, le.Uint16(p.header))
	}
	at := 0
	if p.kind == pduResponse {
		at = 12
	}
	if len(p.header) < 16 {
		return fmt.Errorf("a PDU of type 0x%02x has a header of %d bytes", p.kind, len(p.header))
	}
	cid := le.Uint16(p.header[at:])
	c := under[cid]
	if c == nil {
		return fmt.Errorf("the target sent a PDU of type 0x%02x about command %d", p.kind, cid)
	}
	switch p.kind {
	case pduResponse:
		var err error
		c.done, err = completionOf(p)
		delete(under, cid)
		return err
	case pduTargetData:
		offset := int(le.Uint32(p.header[4:]))
		if offset+len(p.data) > len(c.in) {
			return fmt.Errorf("%d bytes were sent at %d; %d were asked for", len(p.data), offset, len(c.in))
		}
		copy(c.in[offset:], p.data)
		if p.flags&flagSuccess != 0 {
			delete(under, cid)
		}
		return nil
	case pduReadyToSend:
		return w.deliver(p, c.out)
	default:
		return fmt.Errorf("the target sent a PDU of type 0x%02x", p.kind)
	}
}

// write sends data in the capsule up to BlockBytes, else when the target asks for them.
func (w *wire) write(c entry, p []byte) error {
	if len(p) > BlockBytes {
		return w.doWhenReady(c, p)
	}
	_, _, err := w.do(c, p, 0)
	return err
}

// Messages of authentication, by type and number, and their places.
const (
	authCommon, authDHCHAP                                             = 0x00, 0x01
	authNegotiate                                                      = 0x00
	authChallenge, authReply, authSuccess1, authSuccess2               = 0x01, 0x02, 0x03, 0x04
	authFailure2, authFailure1                                         = 0xf0, 0xf1
	authTransaction, authHashBytes, authValid, authSequence, authValue = 4, 6, 8, 12, 16
	authGroup                                                          = 9 // of a challenge
	// authReceiveBytes is room for every answer: a challenge with a value of the largest group has 1,072 or more.
	authReceiveBytes = 2048
	hashSHA256       = 1
	// noGroup is the null one, and unknownGroup is reserved (NVMe Base Specification, "DH-HMAC-CHAP DH Group
	// Identifiers").
	noGroup, unknownGroup = 0, 0xff
)

// authMessage with its transaction's number, of so many bytes.
func authMessage(kind, number byte, transaction uint16, size int) []byte {
	m := make([]byte, size)
	m[0], m[1] = kind, number
	le.PutUint16(m[authTransaction:], transaction)
	return m
}

// Places in a negotiation of its list of groups, and of their number.
const authGroupCount, authGroups = 11, 42

// negotiation of DH-HMAC-CHAP with SHA-256 and no group. Linux 6.12's target is content with its own group, which is no
// group, only where a host offers another one as well (nvmet_auth_negotiate). SPDK takes no notice of one that it does
// not know.
func negotiation(transaction uint16) []byte {
	m := authMessage(authCommon, authNegotiate, transaction, 8+64)
	m[7] = 1 // protocol
	copy(m[8:], []byte{authDHCHAP, 0, 1, 0, hashSHA256})
	return offering(m, unknownGroup, noGroup)
}

// offering these groups in a negotiation, and no others.
func offering(negotiation []byte, groups ...byte) []byte {
	return edited(edited(negotiation, authGroupCount, byte(len(groups))), authGroups, groups...)
}

// authSendOf so many bytes.
func authSendOf(size int) entry {
	return fabricsOf(fabricsAuthSend).with(10, 0xe9010100).with(11, uint32(size))
}

func authReceiveOf(size int) entry {
	return fabricsOf(fabricsAuthReceive).with(10, 0xe9010100).with(11, uint32(size))
}

func (w *wire) authSend(message []byte) error {
	_, _, err := w.do(authSendOf(len(message)), message, 0)
	return err
}

func (w *wire) authReceive() ([]byte, error) {
	_, m, err := w.do(authReceiveOf(authReceiveBytes), nil, authReceiveBytes)
	return m, err
}

// exchange is what a host sent to prove itself.
type exchange struct{ negotiate, reply, success []byte }

// errUnproved says that the target did not take the proof, or did not give its own.
var errUnproved = errors.New("not authenticated")

// prove itself, and have the target prove itself. said gets what the host sends, if it is not nil.
func (w *wire) prove(i identityOnWire, said *exchange) error {
	if said == nil {
		said = &exchange{}
	}
	const transaction = 0x77
	said.negotiate = negotiation(transaction)
	if err := w.authSend(said.negotiate); err != nil {
		return err
	}
	challenge, err := w.authReceive()
	if err != nil {
		return err
	}
	if challenge[1] != authChallenge || int(challenge[authHashBytes]) != sha256.Size {
		return fmt.Errorf("%w: the challenge is % x", errUnproved, challenge[:authValue])
	}
	var mine [sha256.Size]byte
	_, _ = rand.Read(mine[:]) // never fails
	sequence := le.Uint32(challenge[authSequence:])
	said.reply = replyOf(transaction, i.proof("HostHost", challenge[authValue:][:sha256.Size], sequence, transaction), mine[:])
	if err := w.authSend(said.reply); err != nil {
		return err
	}
	success, err := w.authReceive()
	if err != nil {
		return err
	}
	theirs := i.proof("Controller", mine[:], 1, transaction)
	if success[0] != authDHCHAP || success[1] != authSuccess1 || success[authValid] != 1 ||
		subtle.ConstantTimeCompare(success[authValue:][:sha256.Size], theirs) != 1 {
		return fmt.Errorf("%w: the target answers % x", errUnproved, success[:authValue])
	}
	said.success = authMessage(authDHCHAP, authSuccess2, transaction, 16)
	return w.authSend(said.success)
}

// replyOf a proof, with a challenge of sequence number 1 for the target.
func replyOf(transaction uint16, proof, challenge []byte) []byte {
	m := authMessage(authDHCHAP, authReply, transaction, authValue)
	m[authHashBytes], m[authValid] = sha256.Size, 1
	le.PutUint32(m[authSequence:], 1)
	return append(append(m, proof...), challenge...)
}

// proof of a host ("HostHost") or of a controller, for a challenge (NVMe Base Specification, "DH-HMAC-CHAP_Reply").
func (i identityOnWire) proof(role string, challenge []byte, sequence uint32, transaction uint16) []byte {
	mine, theirs, key := i.host, i.nqn, i.keys.Host
	if role == "Controller" {
		mine, theirs, key = i.nqn, i.host, i.keys.Controller
	}
	mac := hmac.New(sha256.New, secretOn(key, mine))
	mac.Write(challenge)
	mac.Write(le.AppendUint16(le.AppendUint32(nil, sequence), transaction))
	mac.Write([]byte("\x00" + role + mine + "\x00" + theirs))
	return mac.Sum(nil)
}

// secretOn the wire of a key with SHA-256, for a host or a subsystem.
func secretOn(key dhchap.Key, nqn string) []byte {
	sealed, err := base64.StdEncoding.DecodeString(strings.Split(key.Text()+"::", ":")[2])
	if err != nil || len(sealed) < crc32.Size {
		return nil // no key
	}
	mac := hmac.New(sha256.New, sealed[:len(sealed)-crc32.Size])
	mac.Write([]byte(nqn + "NVMe-over-Fabrics"))
	return mac.Sum(nil)
}
