// SPDX-License-Identifier: Apache-2.0

// Package header is the record with which each volume begins, in front of its data: which volume it is, and whether its
// data was formatted. The package encodes, decodes and chooses; who calls it reads and writes.
//
// The record lies in two slots of one block each, which are written in turn, so that a write that is cut off leaves the
// record before it. A slot, numbers in little endian:
//
//	 0   8  magic
//	 8   4  version of the format: 1, or 2 of a volume whose data are encrypted
//	12   4  length of the payload
//	16   8  generation: the slot with the highest counts, and the next one goes to slot generation modulo 2
//	24   4  CRC-32C of the whole slot, with these four bytes zero
//	28   4  zero
//	32      payload: JSON, then zeroes
package header

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	// SlotBytes of each slot: a block of the largest size that drives have.
	SlotBytes = 4096
	// Bytes at the start of a volume in which the slots lie. What follows them up to 1 MiB is kept for the record, and
	// from there to 4 MiB for a mirror's metadata.
	Bytes = 2 * SlotBytes
	// Version of the format. Keys may be added to the payload without another one.
	Version = 1
	// VersionEncrypted is that of a record with Encryption, and differs in nothing else. A build that knows Version
	// alone would hand out, or format, the data as they are stored; so it refuses the volume.
	VersionEncrypted = 2

	magic      = "WEFTHEAD"
	versionAt  = 8
	lengthAt   = 12
	generation = 16
	sumAt      = 24
	payloadAt  = 32

	keyMirror       = "mirror"
	keyFormatUsedBy = "formatUsedBy"
	keyEncryption   = "encryption"
)

// State of a volume's data.
type State string

const (
	// Formatting was begun, and is not known to have ended. Nothing was ever mounted, so it may be begun anew.
	Formatting State = "Formatting"
	// Formatted says that the data may be of use. It is never formatted again unless an administrator gives it up.
	Formatted State = "Formatted"
)

// Block is the Type of a volume that is used as a raw block device.
const Block = "block"

// Record is what a header says. The keys that this version does not know stay with it.
type Record struct {
	// Volume is the volume's UUID.
	Volume string
	State  State
	// Type of filesystem, or Block.
	Type string
	// FormatUsedBy is the attachment, by its UUID, that used up an administrator's permission to format; empty when
	// none did.
	FormatUsedBy string
	// Encryption of the data, as in the spec of an NvmfVolume; empty for none.
	Encryption string
	// Mirror is what the volume's mirror record said when the header was written, as JSON; empty for a volume that was
	// never replicated. Package csi-driver/mirror encodes and decodes it.
	Mirror string

	others string // JSON of the keys that are not known
}

// Is tells whether two records say the same.
func (r Record) Is(o Record) bool { return r == o }

// Header as it was found. The zero value stands for none.
type Header struct {
	Record
	// Generation of the record; 0 for none.
	Generation uint64
}

// None tells whether there is no header: nothing was ever written there.
func (h Header) None() bool { return h.Generation == 0 }

// ErrUnusable says that what a volume begins with is neither a header that can be used nor nothing.
var ErrUnusable = errors.New("the volume's header cannot be used")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Parse the first Bytes of a volume. It fails with ErrUnusable, and what was found instead, unless there is a valid
// slot or both are all zeroes.
func Parse(start []byte) (Header, error) {
	if len(start) != Bytes {
		return Header{}, fmt.Errorf("%w: %d bytes of it were read, not %d", ErrUnusable, len(start), Bytes)
	}
	var best Header
	var problems []error
	for n := range Bytes / SlotBytes {
		slot := start[n*SlotBytes : (n+1)*SlotBytes]
		if empty(slot) {
			continue
		}
		if v := binary.LittleEndian.Uint32(slot[versionAt:]); bytes.HasPrefix(slot, []byte(magic)) && v != Version && v != VersionEncrypted {
			return Header{}, fmt.Errorf("%w: slot %d has version %d, but this build supports %d and %d; use a newer version of weft", ErrUnusable, n, v, Version, VersionEncrypted)
		}
		h, err := parseSlot(slot, n)
		switch {
		case err != nil:
			problems = append(problems, err)
		case h.Generation > best.Generation:
			best = h
		}
	}
	if best.None() && len(problems) > 0 {
		if what := signature(start); what != "" {
			return Header{}, fmt.Errorf("%w: the volume starts with %s", ErrUnusable, what)
		}
		return Header{}, fmt.Errorf("%w: %w", ErrUnusable, errors.Join(problems...))
	}
	if best.None() {
		return Header{}, nil
	}
	return best, best.check()
}

// check what the payload says. A record of this version that says what is not known must not be taken for another.
func (r Record) check() error {
	switch {
	case r.Volume == "":
		return fmt.Errorf("%w: it contains no volume name", ErrUnusable)
	case r.State != Formatting && r.State != Formatted:
		return fmt.Errorf("%w: state %q is unknown", ErrUnusable, r.State)
	case r.Type == "":
		return fmt.Errorf("%w: it does not record what was formatted", ErrUnusable)
	}
	return nil
}

func parseSlot(slot []byte, n int) (Header, error) {
	if !bytes.HasPrefix(slot, []byte(magic)) {
		return Header{}, fmt.Errorf("slot %d begins with %x", n, slot[:16])
	}
	if sum := binary.LittleEndian.Uint32(slot[sumAt:]); sum != checksum(slot) {
		return Header{}, fmt.Errorf("slot %d has checksum %08x instead of %08x", n, checksum(slot), sum)
	}
	h := Header{Generation: binary.LittleEndian.Uint64(slot[generation:])}
	length := binary.LittleEndian.Uint32(slot[lengthAt:])
	if length > SlotBytes-payloadAt || h.Generation == 0 || h.Generation%2 != uint64(n) {
		return Header{}, fmt.Errorf("slot %d has generation %d and a payload of %d bytes", n, h.Generation, length)
	}
	if err := h.decode(slot[payloadAt : payloadAt+length]); err != nil {
		return Header{}, fmt.Errorf("slot %d: %w", n, err)
	}
	if v := binary.LittleEndian.Uint32(slot[versionAt:]); v != h.version() {
		return Header{}, fmt.Errorf("slot %d has version %d, and encryption %q", n, v, h.Encryption)
	}
	return h, nil
}

// Next encodes the record that shall follow a header, and where it goes.
func (h Header) Next(r Record) (offset int64, slot []byte, err error) {
	if err := r.check(); err != nil {
		return 0, nil, err
	}
	payload, err := r.encode()
	if err != nil {
		return 0, nil, err
	}
	if len(payload) > SlotBytes-payloadAt {
		return 0, nil, fmt.Errorf("a header's record of %d bytes is too long", len(payload))
	}
	next := h.Generation + 1
	slot = make([]byte, SlotBytes)
	copy(slot, magic)
	binary.LittleEndian.PutUint32(slot[versionAt:], r.version())
	binary.LittleEndian.PutUint32(slot[lengthAt:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(slot[generation:], next)
	copy(slot[payloadAt:], payload)
	binary.LittleEndian.PutUint32(slot[sumAt:], checksum(slot))
	return int64(next%2) * SlotBytes, slot, nil
}

// version of the format in which a record is written.
func (r Record) version() uint32 {
	if r.Encryption != "" {
		return VersionEncrypted
	}
	return Version
}

// checksum of a slot, but for the bytes that hold it.
func checksum(slot []byte) uint32 {
	sum := crc32.Update(0, castagnoli, slot[:sumAt])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, slot[sumAt+4:])
}

// known keys of the payload.
func (r *Record) known() map[string]*string {
	return map[string]*string{"volume": &r.Volume, "state": (*string)(&r.State), "type": &r.Type, keyFormatUsedBy: &r.FormatUsedBy, keyEncryption: &r.Encryption}
}

func (r *Record) decode(payload []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(payload, &all); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	for key, value := range r.known() {
		if err := json.Unmarshal(all[key], value); all[key] != nil && err != nil {
			return fmt.Errorf("payload: %s: %w", key, err)
		}
		delete(all, key)
	}
	if mirror := all[keyMirror]; mirror != nil {
		r.Mirror = string(mirror)
		delete(all, keyMirror)
	}
	if len(all) == 0 {
		return nil
	}
	others, err := json.Marshal(all)
	r.others = string(others)
	return err
}

// encode gives the same bytes for the same record.
func (r Record) encode() ([]byte, error) {
	all := map[string]json.RawMessage{}
	if r.others != "" {
		if err := json.Unmarshal([]byte(r.others), &all); err != nil {
			return nil, err
		}
	}
	known := map[string]string{}
	for key, value := range r.known() {
		known[key] = *value
	}
	for _, key := range []string{keyFormatUsedBy, keyEncryption} {
		if known[key] == "" {
			delete(known, key)
		}
	}
	for key, value := range known {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		all[key] = text
	}
	if r.Mirror != "" {
		all[keyMirror] = json.RawMessage(r.Mirror)
	}
	return json.Marshal(all)
}

func empty(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

// signatures of what else a device may begin with.
var signatures = []struct {
	at          int
	bytes, what string
}{
	{0, "XFSB", "an XFS filesystem"},
	{0, "LUKS\xba\xbe", "LUKS encryption"},
	{512, "LABELONE", "an LVM physical volume"},
	{512, "EFI PART", "a partition table (gpt)"},
	{1080, "\x53\xef", "an ext2, ext3 or ext4 filesystem"},
	{4086, "SWAPSPACE2", "swap space"},
	{4096, "\xfc\x4e\x2b\xa9", "a member of an MD array"},
	{510, "\x55\xaa", "a partition table (dos)"},
}

// signature of what a volume begins with, in words; empty when it is not known.
func signature(start []byte) string {
	for _, s := range signatures {
		if bytes.HasPrefix(start[s.at:], []byte(s.bytes)) {
			return s.what
		}
	}
	return ""
}
