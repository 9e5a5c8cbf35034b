// SPDX-License-Identifier: Apache-2.0

package header

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

const volume = "0a0b0c0d-0e0f-4001-8203-040506070809"

// volumeWith the records, written one after the other.
func volumeWith(t *testing.T, records ...Record) []byte {
	t.Helper()
	start := make([]byte, Bytes)
	for _, r := range records {
		write(t, start, r)
	}
	return start
}

func write(t *testing.T, start []byte, r Record) {
	t.Helper()
	offset, slot, err := parse(t, start).Next(r)
	if err != nil {
		t.Fatal(err)
	}
	copy(start[offset:], slot)
}

func parse(t *testing.T, start []byte) Header {
	t.Helper()
	h, err := Parse(start)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var (
	begun = Record{Volume: volume, State: Formatting, Type: "ext4"}
	ended = Record{Volume: volume, State: Formatted, Type: "ext4", FormatUsedBy: "a1"}
	last  = Record{Volume: volume, State: Formatted, Type: Block}

	encrypted = Record{Volume: volume, State: Formatted, Type: Block, Encryption: "LUKS2"}
)

func TestNothingWasWritten(t *testing.T) {
	if h := parse(t, make([]byte, Bytes)); !h.None() {
		t.Errorf("got %+v", h)
	}
}

func TestRecordsTakeTurns(t *testing.T) {
	start := make([]byte, Bytes)
	for i, r := range []Record{begun, ended, last} {
		before := slices.Clone(start)
		write(t, start, r)
		if h := parse(t, start); h.Generation != uint64(i+1) || !h.Is(r) {
			t.Errorf("wrote %+v, and read %+v", r, h)
		}
		same := 0
		for _, at := range []int{0, SlotBytes} {
			if bytes.Equal(before[at:at+SlotBytes], start[at:at+SlotBytes]) {
				same++
			}
		}
		if same != 1 {
			t.Errorf("generation %d left %d slots alone", i+1, same)
		}
	}
}

// Two hosts that share a volume write the same.
func TestTheSameRecordIsTheSameBytes(t *testing.T) {
	if !bytes.Equal(volumeWith(t, last), volumeWith(t, last)) {
		t.Error("they differ")
	}
}

// Whatever part of a write arrives, the record before it counts, or the new one.
func TestWriteThatIsTorn(t *testing.T) {
	const sector = 512
	for _, records := range [][]Record{{begun, ended}, {begun, ended, last}} {
		before, after := volumeWith(t, records[:len(records)-1]...), volumeWith(t, records...)
		old, next := records[len(records)-2], records[len(records)-1]
		for mask := range 1 << (SlotBytes / sector) {
			torn := slices.Clone(before)
			for s := range Bytes / sector {
				if mask&(1<<(s%(SlotBytes/sector))) != 0 {
					copy(torn[s*sector:(s+1)*sector], after[s*sector:])
				}
			}
			if h := parse(t, torn); !h.Is(old) && !h.Is(next) {
				t.Fatalf("sectors %b: read %+v", mask, h)
			}
		}
	}
}

func TestAnyBitThatFlipsIsFound(t *testing.T) {
	good := volumeWith(t, begun, ended)
	for at := range SlotBytes {
		start := slices.Clone(good)
		start[at] ^= 1
		h, err := Parse(start)
		if at >= versionAt && at < lengthAt {
			if !errors.Is(err, ErrUnusable) {
				t.Errorf("byte %d: %+v, %v", at, h, err)
			}
		} else if err != nil || !h.Is(begun) {
			t.Errorf("byte %d: %+v, %v", at, h, err)
		}
	}
}

func TestUnusable(t *testing.T) {
	change := func(records []Record, change func(start []byte)) []byte {
		start := volumeWith(t, records...)
		change(start)
		return start
	}
	put := func(at int, text string) func([]byte) { return func(start []byte) { copy(start[at:], text) } }
	// sealed changes a slot and gives it the checksum that fits.
	sealed := func(slot int, change func([]byte)) func([]byte) {
		return func(start []byte) {
			s := start[slot*SlotBytes : (slot+1)*SlotBytes]
			change(s)
			binary.LittleEndian.PutUint32(s[sumAt:], checksum(s))
		}
	}
	for name, c := range map[string]struct {
		start []byte
		words string
	}{
		"both slots are damaged":           {change([]Record{begun, ended}, func(s []byte) { s[40]++; s[SlotBytes+40]++ }), "slot 0 has checksum"},
		"the only slot is damaged":         {change([]Record{begun}, func(s []byte) { s[SlotBytes+40]++ }), "slot 1 has checksum"},
		"ext4":                             {change(nil, put(1080, "\x53\xef")), "starts with an ext2, ext3 or ext4 filesystem"},
		"XFS":                              {change(nil, put(0, "XFSB")), "starts with an XFS filesystem"},
		"LUKS":                             {change(nil, put(0, "LUKS\xba\xbe")), "LUKS"},
		"LVM":                              {change(nil, put(512, "LABELONE")), "LVM"},
		"gpt":                              {change(nil, func(s []byte) { put(510, "\x55\xaa")(s); put(512, "EFI PART")(s) }), "gpt"},
		"dos":                              {change(nil, put(510, "\x55\xaa")), "dos"},
		"something else":                   {change(nil, put(0, "hello")), "slot 0 begins with 68656c6c6f"},
		"something in the last byte":       {change(nil, put(Bytes-1, "x")), "slot 1 begins with 00"},
		"another version":                  {change([]Record{begun, ended}, func(s []byte) { s[versionAt] = 3 }), "slot 0 has version 3, but this build supports 1 and 2"},
		"an older slot of another version": {change([]Record{begun, ended}, func(s []byte) { s[SlotBytes+versionAt] = 7 }), "slot 1 has version 7"},
		"a slot that is in the other's place": {change([]Record{begun}, func(s []byte) {
			copy(s, s[SlotBytes:])
			clear(s[SlotBytes:])
		}), "slot 0 has generation 1"},
		"a payload that is too long": {change([]Record{begun}, sealed(1, func(s []byte) { s[lengthAt+3] = 1 })), "a payload of"},
		"no JSON":                    {change([]Record{begun}, sealed(1, func(s []byte) { s[payloadAt] = '[' })), "payload"},
		"a state that is not known": {change([]Record{begun}, sealed(1, func(s []byte) {
			copy(s, bytes.Replace(s, []byte("Formatting"), []byte("Formatless"), 1))
		})), `state "Formatless" is unknown`},
		"the version of what is encrypted, without that": {change([]Record{begun}, sealed(1, func(s []byte) { s[versionAt] = 2 })), `slot 1 has version 2, and encryption ""`},
		"encrypted, with the version of what is not":     {change([]Record{encrypted}, sealed(1, func(s []byte) { s[versionAt] = 1 })), `slot 1 has version 1, and encryption "LUKS2"`},
		"a part of it": {make([]byte, SlotBytes), "4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if h, err := Parse(c.start); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %+v, %v", h, err)
			}
		})
	}
}

func TestIncompleteRecordsAreNotWritten(t *testing.T) {
	for _, r := range []Record{{}, {Volume: volume, State: Formatted}, {Volume: volume, Type: Block}, {State: Formatted, Type: Block}, {Volume: volume, State: Formatted, Type: strings.Repeat("x", SlotBytes)}} {
		if _, _, err := (Header{}).Next(r); err == nil {
			t.Errorf("%+v was encoded", r)
		}
	}
}

// What a later version adds is kept by this one.
func TestKeysThatAreNotKnownAreKept(t *testing.T) {
	start := volumeWith(t, begun)
	slot := start[SlotBytes:]
	payload := `{"epoch":7,"members":["x","y"],"state":"Formatting","type":"ext4","volume":"` + volume + `"}`
	clear(slot[payloadAt:])
	copy(slot[payloadAt:], payload)
	binary.LittleEndian.PutUint32(slot[lengthAt:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(slot[sumAt:], checksum(slot))
	h := parse(t, start)
	if h.Volume != volume || h.Is(begun) {
		t.Errorf("got %+v", h)
	}
	r := h.Record
	r.State = Formatted
	write(t, start, r)
	if want := strings.Replace(payload, "Formatting", "Formatted", 1); !strings.Contains(string(start[:SlotBytes]), want) {
		t.Errorf("got %s", bytes.TrimRight(start[payloadAt:SlotBytes], "\x00"))
	}
}

// A build that knows nothing of encryption takes version 1 only, and so refuses a volume whose data are encrypted.
func TestEncryptedVolumesHaveAVersionOfTheirOwn(t *testing.T) {
	for version, r := range map[uint32]Record{1: last, 2: encrypted} {
		start := volumeWith(t, r)
		if got := binary.LittleEndian.Uint32(start[SlotBytes+versionAt:]); got != version || !parse(t, start).Is(r) {
			t.Errorf("wrote %+v with version %d, and read %+v", r, got, parse(t, start))
		}
	}
	if bytes.Contains(volumeWith(t, last), []byte("encryption")) {
		t.Error("the header of a volume that is not encrypted speaks of encryption")
	}
}

// The mirror's part is read as it was written, and takes none of the other keys with it.
func TestTheMirrorsPart(t *testing.T) {
	mirrored := ended
	mirrored.Mirror = `{"epoch":7,"members":{"x":"InSync","y":"Out"}}`
	start := volumeWith(t, begun, mirrored)
	if h := parse(t, start); !h.Is(mirrored) {
		t.Errorf("wrote %+v, and read %+v", mirrored, h)
	}
	if !bytes.Equal(start, volumeWith(t, begun, mirrored)) {
		t.Error("the same record gave different bytes")
	}
	write(t, start, last)
	if h := parse(t, start); h.Mirror != "" {
		t.Errorf("the mirror's part is still there: %+v", h)
	}
	mirrored.Mirror = "{"
	if _, _, err := (Header{}).Next(mirrored); err == nil {
		t.Error("a mirror's part that is no JSON was encoded")
	}
}
