// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/dataplane/engine"
)

// PoolLabel is the label of a pool's XFS: the mark that weft wrote it.
const PoolLabel = "weft-pool"

// content of a device.
type content int

const (
	blank content = iota
	ours
	// unfinished: weft's own mkfs was interrupted, so there cannot be a volume in it.
	unfinished
)

// probe says what is on a device or file. What is neither blank nor weft's is a
// *engine.ForeignSignatureError. An error is never "blank".
func (h *host) probe(ctx context.Context, path string) (content, error) {
	head, err := readHead(path)
	if err != nil {
		return 0, fmt.Errorf("probe %s: %w", path, mapBusy(err))
	}
	// -p looks at the device itself, not at a cache; it knows filesystems, RAID members, and partition tables.
	out, err := h.run(ctx, "blkid", "-p", "-o", "export", path)
	var found map[string]string
	switch status := exitStatus(err); {
	case err == nil:
		found = parseExport(out)
	case status == 2: // nothing found, and readHead has seen that it can be read
	case status == 8:
		return 0, &engine.ForeignSignatureError{Device: path, Signature: "mix of several signatures"}
	default:
		return 0, fmt.Errorf("probe %s: %w", path, err)
	}
	is, signature := judge(found, head)
	if signature != "" {
		return 0, &engine.ForeignSignatureError{Device: path, Signature: signature}
	}
	return is, nil
}

// judge what blkid found, nil for nothing, and a device's first bytes. A
// signature is named unless the device is weft's or blank.
func judge(found map[string]string, head []byte) (is content, signature string) {
	if found != nil {
		if signature = foreignSignature(found); signature != "" {
			return 0, signature
		}
		if interrupted(head) {
			return unfinished, ""
		}
		return ours, ""
	}
	switch {
	case interrupted(head):
		return unfinished, ""
	default:
		return blank, hiddenSignature(head)
	}
}

// headBytes of a device: where the signatures are that blkid does not know.
const headBytes = 128 << 10

func readHead(path string) ([]byte, error) {
	// O_EXCL without O_CREAT fails with EBUSY on a block device that something else has claimed.
	flags := os.O_RDONLY
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Mode()&os.ModeDevice != 0 {
		flags |= unix.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return head[:n], nil
}

func mapBusy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: something else on this node has claimed it: %w", engine.ErrInUse, err)
	}
	return err
}

// magic bytes that say that a device is not blank, also where blkid says nothing: because it
// does not know them, or because a checksum is wrong and it takes no notice then. A damaged
// filesystem must not be formatted.
var magics = []struct {
	at    int
	bytes string
	name  string
}{
	{0, "SPDKBLOB", "SPDK blobstore (wipefs does not know it; use blkdiscard)"},
	{0, "bluestore block device", "Ceph BlueStore (wipefs does not know it; use blkdiscard)"},
	{0, "XFSB", "damaged xfs filesystem"},
	{0, "LUKS\xba\xbe", "damaged LUKS header"},
	{0x438, "\x53\xef", "damaged ext filesystem"},
	{0x10040, "_BHRfS_M", "damaged btrfs filesystem"},
	{512, "EFI PART", "damaged gpt partition table"},
	{4096, "EFI PART", "damaged gpt partition table"},
	{512, "LABELONE", "damaged LVM physical volume"},
	{4096, "\xfc\x4e\x2b\xa9", "damaged RAID member"},
	{4086, "SWAPSPACE2", "damaged swap area"},
}

func hiddenSignature(head []byte) string {
	for _, m := range magics {
		if len(head) > m.at && bytes.HasPrefix(head[m.at:], []byte(m.bytes)) {
			return m.name
		}
	}
	return ""
}

// parseExport reads KEY=value lines of blkid -o export.
func parseExport(out string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			values[key] = value
		}
	}
	return values
}

// foreignSignature that blkid found; empty when it is a pool of ours.
func foreignSignature(found map[string]string) string {
	kind, table := found["TYPE"], found["PTTYPE"]
	switch {
	case table != "":
		return table + " partition table"
	case kind == "xfs" && found["LABEL"] == PoolLabel:
		return ""
	case kind != "" && found["USAGE"] == "filesystem":
		return kind + " filesystem"
	case kind != "":
		return kind + " signature"
	}
	return "signature that blkid cannot name"
}

// interrupted says whether weft's own mkfs.xfs did not come to its end: byte 126 of the superblock is
// sb_inprogress, and the label is at 108 (XFS Algorithms & Data Structures, "Superblocks").
func interrupted(head []byte) bool {
	return len(head) > 126 && bytes.HasPrefix(head, []byte("XFSB")) && head[126] != 0 &&
		string(bytes.TrimRight(head[108:120], "\x00")) == PoolLabel
}

// checkUnused refuses a block device that something on this node builds on.
func (h *host) checkUnused(path string, rdev uint64, mounts []mount.MountInfo) error {
	major, minor := unix.Major(rdev), unix.Minor(rdev)
	for _, m := range mounts {
		if uint32(m.Major) == major && uint32(m.Minor) == minor {
			return fmt.Errorf("%s is mounted on %s: %w", path, m.MountPoint, engine.ErrInUse)
		}
	}
	dir := h.path("sys/dev/block", fmt.Sprintf("%d:%d", major, minor))
	holders, err := names(filepath.Join(dir, "holders"))
	if err != nil && !isMissing(err) {
		return fmt.Errorf("holders of %s: %w", path, err)
	}
	if len(holders) > 0 {
		return &engine.ForeignSignatureError{Device: path, Signature: "device that " + strings.Join(holders, ", ") + " is built on"}
	}
	partitions, err := filepath.Glob(filepath.Join(dir, "*", "partition"))
	if err != nil {
		return fmt.Errorf("partitions of %s: %w", path, err)
	}
	if len(partitions) > 0 {
		for i := range partitions {
			partitions[i] = filepath.Base(filepath.Dir(partitions[i]))
		}
		slices.Sort(partitions)
		return &engine.ForeignSignatureError{Device: path, Signature: "partition " + strings.Join(partitions, ", ")}
	}
	return nil
}
