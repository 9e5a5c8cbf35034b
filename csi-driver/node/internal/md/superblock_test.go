// SPDX-License-Identifier: Apache-2.0

package md

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

const volume = "0a0b0c0d-0e0f-4001-8203-040506070809"

// recorded is the start of a block that Linux 6.12 and mdadm 4.4 wrote: super and bitmap of the second member of a new
// mirror, its superblock after the first was dropped (degraded), and one of an array with a log of bad blocks (logged).
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/recorded.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if encoded, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			start, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				t.Fatal(err)
			}
			return append(start, make([]byte, blockBytes-len(start))...)
		}
	}
	t.Fatalf("no block %s was recorded", name)
	return nil
}

// with a change, and a checksum that is right again.
func with(block []byte, change func(b []byte)) []byte {
	b := slices.Clone(block)
	change(b)
	binary.LittleEndian.PutUint32(b[offSum:], checksum(b, int(min(maxRoles, binary.LittleEndian.Uint32(b[offMaxRoles:])))))
	return b
}

func put32(at int, v uint32) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
}

func put64(at int, v uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
}

func TestParseSuperblock(t *testing.T) {
	block := recorded(t, "super")
	s, err := ParseSuperblock(block)
	if err != nil {
		t.Fatal(err)
	}
	if s.Array != volume || s.Role != 1 || s.Disks != 2 || !slices.Equal(s.Roles, []Role{0, 1}) || s.SizeBytes != 32<<20 || s.Dirty || s.Filling || !s.Bitmap || s.Events != 1 {
		t.Errorf("a new mirror's is %+v", s)
	}
	s, err = ParseSuperblock(recorded(t, "degraded"))
	if err != nil || s.Role != 1 || !slices.Equal(s.Roles, []Role{1}) || s.Events <= 1 {
		t.Errorf("after the other was dropped, it is %+v: %v", s, err)
	}
	s, err = ParseSuperblock(with(block, put64(offResync, 0)))
	if err != nil || !s.Dirty {
		t.Errorf("of an unclean end, it is %+v: %v", s, err)
	}
	filling := func(b []byte) {
		put32(offFeatures, featureBitmap|featureRecoveryOffset)(b)
		put64(offRecovery, 8)(b)
	}
	s, err = ParseSuperblock(with(block, filling))
	if err != nil || !s.Filling || s.FillingByBitmap {
		t.Errorf("of what is copied to, it is %+v: %v", s, err)
	}
}

func TestParseSuperblockRefuses(t *testing.T) {
	block := recorded(t, "super")
	damaged := slices.Clone(block)
	damaged[offEvents]++
	for name, c := range map[string]struct {
		block []byte
		want  error
	}{
		"zeroes":                       {make([]byte, blockBytes), ErrNoSuperblock},
		"a short block":                {block[:512], ErrNoSuperblock},
		"damage":                       {damaged, ErrUnusable},
		"another format":               {with(block, put32(offMajor, 0)), ErrUnusable},
		"a feature that is not known":  {with(block, put32(offFeatures, featureBitmap|1<<9)), ErrUnusable},
		"a reshape":                    {with(block, put32(offFeatures, featureBitmap|4)), ErrUnusable},
		"another level":                {with(block, put32(offLevel, 5)), ErrUnusable},
		"another place":                {with(block, put64(offSuperOffset, 0)), ErrUnusable},
		"another offset of the data":   {with(block, put64(offDataOffset, 2048)), ErrUnusable},
		"another offset of the bitmap": {with(block, put32(offBitmap, 16)), ErrUnusable},
		"failfast":                     {with(block, func(b []byte) { b[offFlags] = 2 }), ErrUnusable},
		"a log of bad blocks":          {recorded(t, "logged"), ErrUnusable},
		"more roles than fit":          {with(block, put32(offMaxRoles, maxRoles+1)), ErrUnusable},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := ParseSuperblock(c.block); !errors.Is(err, c.want) {
				t.Errorf("got %+v, %v; want %v", s, err, c.want)
			}
		})
	}
}

func TestSpareLike(t *testing.T) {
	block := recorded(t, "degraded")
	binary.LittleEndian.PutUint16(block[offRoles:], 0xfffe) // a member that was removed just now is still called faulty
	numbers := freeNumbers(block)
	if numbers[0] != 0 || slices.Contains(numbers, 1) {
		t.Errorf("free are %v, and 1 is the member's", numbers)
	}
	id := uuid.New()
	s, err := ParseSuperblock(spareLike(block, numbers[0], id, 64<<20))
	if err != nil || s.Role != Spare || s.Array != volume || s.Device != id.String() || s.Filling {
		t.Errorf("it is %+v: %v", s, err)
	}
	if _, err := ParseSuperblock(spareLike(recorded(t, "logged"), 2, id, 64<<20)); err != nil {
		t.Errorf("the log of bad blocks is handed on: %v", err)
	}
}

func TestParseBitmap(t *testing.T) {
	block := recorded(t, "bitmap")
	b, err := parseBitmap(block)
	if err != nil || b.array != volume || b.stale || b.chunkBytes != minChunkBytes {
		t.Errorf("it is %+v: %v", b, err)
	}
	binary.LittleEndian.PutUint32(block[offMapState:], bitmapStale)
	if b, err = parseBitmap(block); err != nil || !b.stale {
		t.Errorf("of one that says nothing, it is %+v: %v", b, err)
	}
	if _, err := parseBitmap(make([]byte, blockBytes)); !errors.Is(err, ErrUnusable) {
		t.Errorf("zeroes are a bitmap: %v", err)
	}
}

func TestChunkBytes(t *testing.T) {
	for size, want := range map[int64]int64{1 << 20: 64 << 10, 256 << 30: 64 << 10, 257 << 30: 128 << 10, 1 << 40: 256 << 10, 16 << 40: 4 << 20} {
		if got := chunkBytes(size); got != want {
			t.Errorf("%d bytes have chunks of %d, want %d", size, got, want)
		}
	}
}

// agreeing are the reports of a mirror's two members.
func agreeing() []Report {
	report := func(name string, role Role) Report {
		return Report{Slice: Slice{Name: name}, Superblock: Superblock{Array: volume, Role: role, Roles: []Role{0, 1}, Events: 10, Bitmap: true}}
	}
	return []Report{report("dm-1", 0), report("dm-2", 1)}
}

func TestAgree(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r []Report)
		want   error
	}{
		"equal":                     {func([]Report) {}, nil},
		"one event less":            {func(r []Report) { r[0].Events = 9 }, nil},
		"dirty":                     {func(r []Report) { r[0].Dirty = true }, nil},
		"two events less":           {func(r []Report) { r[0].Events = 8 }, ErrDisagree},
		"one went on without other": {func(r []Report) { r[1].Roles = []Role{1} }, ErrDisagree},
		"the same role":             {func(r []Report) { r[1].Role = 0 }, ErrDisagree},
		"another volume's":          {func(r []Report) { r[1].Array = uuid.NewString() }, ErrUnusable},
		"no bitmap":                 {func(r []Report) { r[0].Bitmap = false }, ErrUnusable},
		"a spare":                   {func(r []Report) { r[0].Role = Spare }, ErrFullCopy},
		"being copied to":           {func(r []Report) { r[0].Filling = true }, ErrFullCopy},
		"by bitmap":                 {func(r []Report) { r[0].Filling, r[0].FillingByBitmap = true, true }, ErrFullCopy},
		"unreadable":                {func(r []Report) { r[0].Err = ErrNoSuperblock }, ErrNoSuperblock},
	} {
		t.Run(name, func(t *testing.T) {
			reports := agreeing()
			c.change(reports)
			err := Agree(volume, reports)
			if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
