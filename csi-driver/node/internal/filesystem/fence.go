// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Fence says whether a device may be formatted. The rule, for a device in which nothing was found:
//
//   - it held a filesystem earlier in this attachment: refuse. What was said when the attachment began has been made
//     use of.
//   - the target said that the volume was never written, and both its ends read as zeros: format it. The
//     ends are looked at because the target spoke when this host was admitted, and it may have written since.
//   - an administrator gave up what the volume holds: format it.
//   - else refuse. A filesystem that a probe does not find may be one that is damaged.
//
// A device in which anything else was found is never formatted, but for an XFS that is not finished: mkfs.xfs was cut
// off, and nothing was ever mounted. An administrator may let it be formatted again. The first of the 65 writes with
// which mkfs.xfs 6.1 makes one that are not zeros have its superblock, which blkid takes for an XFS. Nothing is found
// of an ext4 that is not finished: of the 292 writes with which mkfs.ext4 1.47 makes one, the superblock's is the last,
// after a flush. On a blank volume, one that was cut off before it wrote to either end is begun anew.
type Fence struct {
	// Blank: the target said that the volume was never written.
	Blank bool
	// AllowFormat: an administrator annotated the NvmfVolume.
	AllowFormat bool
	// UsedUp: in this attachment the device held a filesystem before. Neither Blank nor AllowFormat counts any more.
	UsedUp bool
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
	return fmt.Sprintf("%s needs a volume of at least %d bytes, and this one has %d: ask for more, or for ext4", e.Type, e.MinBytes, e.SizeBytes)
}

// RefusedError says why a device was neither formatted nor mounted, and what would help.
type RefusedError struct {
	Device, Reason, Advice string
}

// Error names device, reason and advice.
func (e *RefusedError) Error() string { return e.Device + " " + e.Reason + ": " + e.Advice }

// CommandError is a program that failed.
type CommandError struct {
	Command, Output string
	Err             error
}

// Error names the program and gives what it wrote.
func (e *CommandError) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("%s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Command, e.Err, e.Output)
}

// Unwrap gives how the program ended.
func (e *CommandError) Unwrap() error { return e.Err }

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
	allow := fmt.Sprintf("to give up what it holds, set the annotation %s of NvmfVolume %s to the volume's spec.uuid, and attach the volume again",
		v1alpha1.AllowFormatAnnotation, r.Fence.Volume)
	refuse := func(reason, advice string) (bool, error) {
		return false, &RefusedError{Device: r.Device, Reason: reason, Advice: advice}
	}
	written := "has been written, and no filesystem was found on it"
	if r.Fence.UsedUp {
		r.Fence.Blank, r.Fence.AllowFormat = false, false
		written += ", though it held one earlier in this attachment"
	}
	switch {
	case found.Unfinished && r.ReadOnly:
		return refuse("holds a filesystem that is not finished, and is to be mounted read-only", "mount it for writing once")
	case found.Unfinished && r.Fence.AllowFormat:
		return true, r.fits()
	case found.Unfinished:
		return refuse("holds a filesystem that is not finished; its formatting was cut off", allow)
	case found.Type == r.Type:
		return false, nil
	case !found.empty():
		return refuse("holds "+found.String()+", and "+r.Type+" was asked for",
			"use a StorageClass whose csi.storage.k8s.io/fstype is what the volume holds, or another volume")
	case r.ReadOnly:
		return refuse("holds no filesystem and is to be mounted read-only", "mount it for writing once")
	case r.Fence.AllowFormat:
		return true, r.fits()
	case !r.Fence.Blank:
		return refuse(written, allow)
	case !edgesZero:
		return refuse("holds data, and no filesystem was found on it; formatting may have been cut off", allow)
	default:
		return true, r.fits()
	}
}

func (r Request) fits() error {
	if r.Type == XFS && r.SizeBytes < minXFSBytes {
		return &TooSmallError{Type: r.Type, SizeBytes: r.SizeBytes, MinBytes: minXFSBytes}
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
	out, err := h.brief(ctx).run("blkid", "--probe", "--output", "export", device)
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		switch exit.ExitStatus() {
		case blkidNothing:
			return signature{}, nil
		case blkidAmbiguous:
			return signature{}, &RefusedError{
				Device: device, Reason: "carries the signatures of several formats",
				Advice: "look at it with wipefs on the node and erase those that are wrong",
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
		if found.Unfinished, err = h.unfinishedXFS(device); err != nil {
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
func (h *Host) unfinishedXFS(device string) (bool, error) {
	f, err := h.Open(device)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var inProgress [1]byte
	_, err = f.ReadAt(inProgress[:], 126)
	return inProgress[0] != 0, err
}

// format makes the filesystem. On a device that reads as zeros they need not be written, nor anything discarded: that
// would take room in the pool, or time. Only what is unfinished is overwritten by force.
func (h *Host) format(ctx context.Context, r Request, zeroed, unfinished bool) error {
	var args []string
	switch r.Type {
	case Ext4:
		args = []string{"-F", "-m", "0"} // -F: the whole device, not a partition of it. No blocks kept for root.
		if zeroed {
			args = append(args, "-E", "nodiscard,assume_storage_prezeroed=1")
		}
	case XFS:
		if zeroed {
			args = []string{"-K"} // no discard
		}
		if unfinished {
			args = append(args, "-f")
		}
	}
	_, err := h.lasting(ctx).run("mkfs."+r.Type, append(args, r.Device)...)
	return err
}

// fsckRepaired is the largest exit code of e2fsck that leaves a good filesystem: 1 and 2 are errors that were
// corrected.
const fsckRepaired = 2

// check replays the journal of an ext4 filesystem and repairs what needs no decision.
func (h *Host) check(ctx context.Context, device string) error {
	_, err := h.lasting(ctx).run("fsck.ext4", "-p", device)
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && exit.ExitStatus() <= fsckRepaired {
		return nil
	}
	return err
}
