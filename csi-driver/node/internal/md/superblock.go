// SPDX-License-Identifier: Apache-2.0

package md

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Where things lie in a member, in bytes. A member is a slice that begins RecordBytes behind the start of its replica.
const (
	// RecordBytes at the start of a replica are not the mirror's: the record of weft's is there.
	RecordBytes = 1 << 20
	// superAt is where the superblock lies, by format 1.2, and bitmapAt the bitmap behind it.
	superAt  = 4096
	bitmapAt = 8192
	// dataAt is where the array begins.
	dataAt = 2 << 20
	// FrontBytes at the start of the array are always zero, so that neither the host's scanners nor the kernel's search
	// for partitions find what a pod wrote at the start of its volume. The volume's data follow, 4 MiB behind the start
	// of the replica, as in a volume without a mirror.
	FrontBytes = 1 << 20

	blockBytes  = 4096
	sectorBytes = 512
	// metadataBytes is what Zero overwrites: everything by which the kernel would know a member.
	metadataBytes = bitmapAt + blockBytes
)

// Format 1.2 of MD (include/uapi/linux/raid/md_p.h, struct mdp_superblock_1), little endian.
const (
	magic          = 0xa92b4efc
	offMajor       = 4
	offFeatures    = 8
	offArray       = 16
	offLevel       = 72
	offSize        = 80
	offDisks       = 92
	offBitmap      = 96
	offDataOffset  = 128
	offDataSize    = 136
	offSuperOffset = 144
	offRecovery    = 152
	offNumber      = 160
	offDevice      = 168
	offFlags       = 184
	offLogShift    = 185
	offLogSize     = 186
	offLog         = 188
	offEvents      = 200
	offResync      = 208
	offSum         = 216
	offMaxRoles    = 220
	offRoles       = 256

	featureBitmap         = 1
	featureRecoveryOffset = 2
	featureRecoveryBitmap = 128
	knownFeatures         = featureBitmap | featureRecoveryOffset | featureRecoveryBitmap

	levelRAID1 = 1
	noSector   = ^uint64(0)
	// maxRoles that fit behind the fixed part.
	maxRoles = (blockBytes - offRoles) / 2
)

// Role of a member in its array: a number from 0 on, or one of these.
type Role int

// Roles of a member that has no place.
const (
	// Spare waits for a place.
	Spare Role = -1
	// Faulty was dropped, or never was there.
	Faulty Role = -2
)

// spareRole is Spare as it is written.
const spareRole = 0xffff

func role(v uint16) Role {
	switch {
	case v == spareRole:
		return Spare
	case v >= 0xfffd: // faulty; 0xfffd is a journal, which mirrors have not
		return Faulty
	default:
		return Role(v)
	}
}

// Superblock of a member, as far as it is needed.
type Superblock struct {
	// Array that the member is of, and Device that it is, by their UUIDs. An array has its volume's.
	Array, Device string
	// Disks is how many places the array has.
	Disks int
	// SizeBytes of the array, with FrontBytes.
	SizeBytes int64
	// Role of the member, and Roles of all members that it knows, itself included. A place that is not among them is of
	// a member that was dropped, or is missing.
	Role  Role
	Roles []Role
	// Events counts changes of the superblock. A member that has fewer than another has missed something.
	Events uint64
	// Filling tells that the member was being copied to when the superblock was written, and was not in sync. With
	// FillingByBitmap, only what it had missed while it was away.
	Filling, FillingByBitmap bool
	// Dirty tells that the array was written to and not stopped: members may differ where its bitmap says so.
	Dirty bool
	// Bitmap tells whether there is one.
	Bitmap bool
}

// Errors of superblocks.
var (
	// ErrNoSuperblock: a device does not begin as a member does.
	ErrNoSuperblock = errors.New("no MD superblock")
	// ErrUnusable: there is a superblock that this package would not have written, or that is damaged.
	ErrUnusable = errors.New("MD superblock cannot be used")
)

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
}

// ParseSuperblock decodes the block of 4 KiB that lies 4 KiB behind the start of a member. It fails with
// ErrNoSuperblock when it is not one, and with ErrUnusable when anything in it is not as this package makes it: another
// level, place of the data or feature may mean what is not known here.
func ParseSuperblock(block []byte) (Superblock, error) {
	if len(block) != blockBytes {
		return Superblock{}, fmt.Errorf("%w: %d bytes, not %d", ErrNoSuperblock, len(block), blockBytes)
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(block[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(block[at:]) }
	if u32(0) != magic {
		return Superblock{}, ErrNoSuperblock
	}
	if u32(offMajor) != 1 {
		return Superblock{}, unusable("format %d, not 1", u32(offMajor))
	}
	roles := u32(offMaxRoles)
	if roles > maxRoles {
		return Superblock{}, unusable("%d roles do not fit", roles)
	}
	if sum := checksum(block, int(roles)); sum != u32(offSum) {
		return Superblock{}, unusable("checksum %08x instead of %08x", u32(offSum), sum)
	}
	features := u32(offFeatures)
	switch {
	case features&^knownFeatures != 0:
		return Superblock{}, unusable("features %#x are not known", features&^knownFeatures)
	case u32(offLevel) != levelRAID1:
		return Superblock{}, unusable("level %d, not 1", int32(u32(offLevel)))
	case u64(offSuperOffset) != superAt/sectorBytes:
		return Superblock{}, unusable("it was written for sector %d, not %d", u64(offSuperOffset), superAt/sectorBytes)
	case u64(offDataOffset) != dataAt/sectorBytes:
		return Superblock{}, unusable("data begin at sector %d, not %d", u64(offDataOffset), dataAt/sectorBytes)
	case block[offFlags] != 0:
		return Superblock{}, unusable("device flags %#x (write-mostly or failfast) are set", block[offFlags])
	case u32(offLog) != 0:
		return Superblock{}, unusable("it has a log of bad blocks, with which a member that fails writes would stay in sync")
	case features&featureBitmap != 0 && int32(u32(offBitmap)) != (bitmapAt-superAt)/sectorBytes:
		return Superblock{}, unusable("its bitmap lies %d sectors behind it, not %d", int32(u32(offBitmap)), (bitmapAt-superAt)/sectorBytes)
	}
	s := Superblock{
		Array: uuidAt(block, offArray), Device: uuidAt(block, offDevice), Disks: int(u32(offDisks)), SizeBytes: int64(u64(offSize)) * sectorBytes,
		Role: Spare, Events: u64(offEvents), Dirty: u64(offResync) != noSector, Bitmap: features&featureBitmap != 0,
		Filling: features&featureRecoveryOffset != 0 && u64(offRecovery) != noSector, FillingByBitmap: features&featureRecoveryBitmap != 0,
	}
	for n := range int(roles) {
		r := role(binary.LittleEndian.Uint16(block[offRoles+2*n:]))
		if u32(offNumber) == uint32(n) {
			s.Role = r
		}
		if r >= 0 {
			s.Roles = append(s.Roles, r)
		}
	}
	slices.Sort(s.Roles)
	return s, nil
}

// freeNumbers are those by which no member in its place is known. One of a member that has none may be among them.
func freeNumbers(block []byte) []int {
	var free []int
	for n := range int(binary.LittleEndian.Uint32(block[offMaxRoles:])) {
		if role(binary.LittleEndian.Uint16(block[offRoles+2*n:])) < 0 {
			free = append(free, n)
		}
	}
	return free
}

// spareLike makes, of a member's superblock, that of a new member of the same array, which has nothing. When mdadm adds
// a member, it gives it a log of bad blocks, and has no option not to.
func spareLike(block []byte, number int, device uuid.UUID, sliceBytes int64) []byte {
	spare := slices.Clone(block)
	binary.LittleEndian.PutUint32(spare[offFeatures:], featureBitmap)
	binary.LittleEndian.PutUint64(spare[offDataSize:], uint64((sliceBytes-dataAt)/sectorBytes))
	binary.LittleEndian.PutUint64(spare[offRecovery:], 0)
	binary.LittleEndian.PutUint32(spare[offNumber:], uint32(number))
	// For a moment after a member was removed, the others' superblocks still call its number faulty, and the kernel
	// would take the new one for faulty, too.
	binary.LittleEndian.PutUint16(spare[offRoles+2*number:], spareRole)
	copy(spare[offDevice:], device[:])
	spare[offFlags], spare[offLogShift] = 0, 0
	binary.LittleEndian.PutUint16(spare[offLogSize:], 0)
	binary.LittleEndian.PutUint32(spare[offLog:], 0)
	binary.LittleEndian.PutUint32(spare[offSum:], checksum(spare, int(binary.LittleEndian.Uint32(spare[offMaxRoles:]))))
	return spare
}

func uuidAt(block []byte, at int) string {
	id, err := uuid.FromBytes(block[at : at+16])
	if err != nil { // sixteen bytes always are one
		return hex.EncodeToString(block[at : at+16])
	}
	return id.String()
}

// checksum as calc_sb_1_csum in drivers/md/md.c adds it up.
func checksum(block []byte, roles int) uint32 {
	size := offRoles + 2*roles
	var sum uint64
	at := 0
	for ; at+4 <= size; at += 4 {
		if at != offSum {
			sum += uint64(binary.LittleEndian.Uint32(block[at:]))
		}
	}
	if at+2 <= size {
		sum += uint64(binary.LittleEndian.Uint16(block[at:]))
	}
	return uint32(sum) + uint32(sum>>32)
}

// bitmap is the start of a member's bitmap (drivers/md/md-bitmap.h, struct bitmap_super_s).
type bitmap struct {
	array string
	// stale: it does not say what changed, so that the kernel copies everything.
	stale      bool
	chunkBytes int64
}

const (
	bitmapMagic   = 0x6d746962
	bitmapStale   = 1 << 1
	offMapArray   = 8
	offMapState   = 48
	offChunkBytes = 52
)

func parseBitmap(block []byte) (bitmap, error) {
	if m := binary.LittleEndian.Uint32(block); m != bitmapMagic {
		return bitmap{}, unusable("its bitmap begins with %#x", m)
	}
	return bitmap{
		array: uuidAt(block, offMapArray), stale: binary.LittleEndian.Uint32(block[offMapState:])&bitmapStale != 0,
		chunkBytes: int64(binary.LittleEndian.Uint32(block[offChunkBytes:])),
	}, nil
}

const (
	// minChunkBytes is the least that is copied for one write that a leg has missed.
	minChunkBytes = 64 << 10
	// maxChunks keeps the bitmap at 512 KiB: the kernel sets all its bits in one go when a leg is filled, which it does
	// with interrupts off. Up to 256 GiB, a chunk has 64 KiB.
	maxChunks = 4 << 20
)

// chunkBytes of the bitmap of an array.
func chunkBytes(sizeBytes int64) int64 {
	chunk := int64(minChunkBytes)
	for sizeBytes/chunk > maxChunks {
		chunk *= 2
	}
	return chunk
}
