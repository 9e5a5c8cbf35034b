// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// HeaderState is what the volume's header says of its data.
type HeaderState int

// What a header says.
const (
	// HeaderNone: there is no header, so nothing was ever done with the volume.
	HeaderNone HeaderState = iota
	// HeaderFormatting: formatting was begun, and is not known to have ended. Nothing was ever mounted.
	HeaderFormatting
	// HeaderFormatted: the data may be of use.
	HeaderFormatted
)

// Fence says whether a device may be formatted. The rule:
//
//   - the header says Formatted: never, unless an administrator gave up what the volume holds, and no filesystem is
//     found. A filesystem that a probe does not find may be one that is damaged.
//   - it says Formatting: again, unless the filesystem that was asked for is found and is finished: nothing was ever
//     mounted.
//   - there is no header: if nothing is found, and either the target says that the volume was never written and both
//     ends of the device read as zeros, or an administrator gave up what it holds. The ends are looked at because the
//     target spoke when this host was admitted, and it may have written since.
//
// An XFS that is not finished counts as nothing: mkfs.xfs was cut off, and nothing was ever mounted. The first of the
// 65 writes with which mkfs.xfs 6.1 makes one that are not zeros have its superblock, which blkid takes for an XFS.
// Nothing is found of an ext4 that is not finished: of the 292 writes with which mkfs.ext4 1.47 makes one, the
// superblock's is the last, after a flush.
type Fence struct {
	// Header of the volume.
	Header HeaderState
	// Blank: the target says that the volume was never written.
	Blank bool
	// AllowFormat: an administrator annotated the NvmfVolume, and that was not made use of yet.
	AllowFormat bool
	// Volume is the NvmfVolume's name, to be named in errors.
	Volume string
}

// ErrUnsupported says that the filesystem is not one that is supported.
var ErrUnsupported = errors.New("unsupported filesystem")

// TooSmallError says that a filesystem does not fit on a device.
type TooSmallError struct {
	Type                string
	SizeBytes, MinBytes int64
}

// Error names both sizes.
func (e *TooSmallError) Error() string {
	return fmt.Sprintf("%s requires a volume of at least %d bytes, but this one has %d: request more, or use ext4", e.Type, e.MinBytes, e.SizeBytes)
}

// RefusedError says why a device was neither formatted nor mounted, and what would help.
type RefusedError struct {
	Device, Reason, Advice string
}

// Error names device, reason and advice.
func (e *RefusedError) Error() string { return e.Device + " " + e.Reason + ": " + e.Advice }

// signature is what a probe found on a device.
type signature struct {
	// Type of filesystem, RAID, encryption or the like.
	Type string
	// PartitionTable's type.
	PartitionTable string
	// Unfinished: the filesystem's mkfs was cut off.
	Unfinished bool
}

func (s signature) empty() bool { return s == signature{} }

func (s signature) String() string {
	if s.Type != "" {
		return s.Type
	}
	return "a partition table (" + s.PartitionTable + ")"
}

// decide tells whether to format. It changes nothing.
func decide(r Request, found signature, edgesZero bool) (format bool, err error) {
	finished := !found.empty() && !found.Unfinished
	switch {
	case found.Type == r.Type && finished && r.Fence.Header == HeaderFormatted:
		return false, nil
	case found.Type == r.Type && finished && r.Fence.Header == HeaderFormatting && !r.ReadOnly:
		return false, nil
	case r.ReadOnly && r.Fence.Header != HeaderFormatted:
		return r.refuse("cannot be mounted read-only, because it is not formatted yet", "mount it once for writing")
	case r.Fence.Header == HeaderFormatting:
		return true, r.fits()
	case finished && r.Fence.Header == HeaderNone:
		return r.refuse("holds "+found.String()+", but its volume has no header", "inspect it on the node: its header was lost, or something else wrote to it")
	case finished && r.Type == LUKS:
		return r.refuse("holds "+found.String()+", which is not encrypted", "inspect it on the node: something else wrote to it")
	case finished:
		return r.refuse("holds "+found.String()+", and "+r.Type+" was asked for",
			"use a StorageClass with the filesystem of the volume in csi.storage.k8s.io/fstype, or another volume")
	case r.ReadOnly && r.Type == LUKS:
		return r.refuse(r.lost(found), "restore the volume from a snapshot, or its LUKS header from a backup")
	case r.ReadOnly:
		return r.refuse("cannot be mounted read-only, because its filesystem is incomplete", "mount it once for writing")
	case r.Fence.AllowFormat:
		return true, r.fits()
	case r.Fence.Header == HeaderFormatted:
		return r.refuse(r.lost(found), r.Fence.allow())
	case found.Unfinished || !edgesZero:
		return r.refuse("contains data, but its volume has no header", r.Fence.allow())
	case !r.Fence.Blank:
		return r.refuse("was written to, but its volume has no header", r.Fence.allow())
	default:
		return true, r.fits()
	}
}

// lost says what is not as it was once made.
func (r Request) lost(found signature) string {
	switch {
	case r.Type == LUKS && found.Unfinished:
		return "contains an incomplete LUKS header, although it was formatted before, and without that its data cannot be decrypted"
	case r.Type == LUKS:
		return "was formatted before, but contains no LUKS header, without which its data cannot be decrypted"
	case found.Unfinished:
		return "contains an incomplete filesystem, although it was formatted before"
	default:
		return "was formatted before, but contains no filesystem"
	}
}

func (r Request) refuse(reason, advice string) (bool, error) {
	return false, &RefusedError{Device: r.Device, Reason: reason, Advice: advice}
}

// allow says how an administrator lets the volume be formatted.
func (f Fence) allow() string {
	return fmt.Sprintf("to discard its data, set the annotation %s of NvmfVolume %s to the volume's spec.uuid, and attach the volume again",
		v1alpha1.AllowFormatAnnotation, f.Volume)
}

// MayBegin fails with a *RefusedError unless the first header of a volume may be written that is used as a raw block
// device: its target says that it was never written, or an administrator gave up what it holds. Nothing is looked for
// on the device, for nothing is destroyed.
func (r Request) MayBegin() error {
	var err error
	switch {
	case r.Fence.Header == HeaderFormatted:
	case r.ReadOnly:
		_, err = r.refuse("cannot be used read-only, because it has not been used yet", "use it once for writing")
	case r.Fence.Header == HeaderNone && !r.Fence.Blank && !r.Fence.AllowFormat:
		_, err = r.refuse("was written to, but its volume has no header", r.Fence.allow())
	}
	return err
}

func (r Request) fits() error {
	if r.Type == XFS && r.SizeBytes < v1alpha1.MinXFSBytes {
		return &TooSmallError{Type: r.Type, SizeBytes: r.SizeBytes, MinBytes: v1alpha1.MinXFSBytes}
	}
	return nil
}

// Exit codes of blkid (man 8 blkid).
const (
	blkidNothing   = 2
	blkidAmbiguous = 8
)

// probe looks for signatures, at the device itself rather than in a cache.
func (h *Host) probe(ctx context.Context, device string) (signature, error) {
	out, err := h.brief(ctx).Run("blkid", "--probe", "--output", "export", device)
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		switch exit.ExitStatus() {
		case blkidNothing:
			return signature{}, nil
		case blkidAmbiguous:
			return signature{}, &RefusedError{
				Device: device, Reason: "has signatures of several formats",
				Advice: "inspect it with wipefs on the node and erase the wrong signatures",
			}
		}
	}
	if err != nil {
		return signature{}, err
	}
	var found signature
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "TYPE":
			found.Type = value
		case "PTTYPE":
			found.PartitionTable = value
		}
	}
	if found.Type == XFS {
		if found.Unfinished, err = h.unfinishedXFS(ctx, device); err != nil {
			return signature{}, err
		}
	}
	if found.empty() {
		return signature{}, fmt.Errorf("blkid names neither a filesystem nor a partition table on %s: %q", device, out)
	}
	return found, nil
}

// unfinishedXFS tells whether mkfs.xfs did not come to its end: byte 126 of the superblock is
// sb_inprogress (XFS Algorithms & Data Structures, "Superblocks").
func (h *Host) unfinishedXFS(ctx context.Context, device string) (bool, error) {
	defer doing.Begin(ctx, "reading "+device)()
	f, err := h.Open(device)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var inProgress [1]byte
	_, err = f.ReadAt(inProgress[:], 126)
	return inProgress[0] != 0, err
}

// format makes the filesystem. On a device that reads as zeros nothing need be discarded. mkfs is not told of the
// zeros: the check reads both ends only, and a journal that mkfs did not write may be replayed, whatever it holds. Only
// what decide let go of is overwritten by force.
func (h *Host) format(ctx context.Context, r Request, zeroed, force bool) error {
	var args []string
	switch r.Type {
	case Ext4:
		args = []string{"-F", "-m", "0"} // -F: the whole device, not a partition of it. No blocks kept for root.
		if zeroed {
			args = append(args, "-E", "nodiscard")
		}
	case XFS:
		if zeroed {
			args = []string{"-K"} // no discard
		}
		if force {
			args = append(args, "-f")
		}
	}
	_, err := h.lasting(ctx).Run("mkfs."+r.Type, append(args, r.Device)...)
	return err
}

// fsckRepaired is the largest exit code of e2fsck that leaves a good filesystem: 1 and 2 are errors that were
// corrected.
const fsckRepaired = 2

// check replays the journal of an ext4 filesystem and repairs what needs no decision.
func (h *Host) check(ctx context.Context, device string) error {
	_, err := h.lasting(ctx).Run("fsck.ext4", "-p", device)
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && exit.ExitStatus() <= fsckRepaired {
		return nil
	}
	return err
}
