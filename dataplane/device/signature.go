// SPDX-License-Identifier: Apache-2.0

// Package device finds out what is on a device before weft writes to it.
// Engines share it: what one of them must not erase, none may.
package device

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
	"k8s.io/utils/exec"
)

// headBytes of a device: where the signatures are that blkid does not know.
const headBytes = 128 << 10

// SPDKBlobstore begins a device that holds an SPDK blobstore, such as an lvstore.
const SPDKBlobstore = "SPDKBLOB"

// PoolLabel is the label of a pool's XFS, of engine Nvmet.
const PoolLabel = "weft-pool"

// HasPoolXFS says whether a device begins with the XFS of a pool: the label is at 108 (XFS Algorithms & Data
// Structures, "Superblocks").
func HasPoolXFS(head []byte) bool {
	return len(head) >= 120 && bytes.HasPrefix(head, []byte("XFSB")) && string(bytes.TrimRight(head[108:120], "\x00")) == PoolLabel
}

// BlkidArgs look at a device itself, not at a cache, by its beginning. Where that is a pool's, RAID signatures are left
// out: most lie at a device's end, and what lies there in a pool a host may have written.
func BlkidArgs(head []byte) []string {
	args := []string{"-p", "-o", "export"}
	if HasPoolXFS(head) || bytes.HasPrefix(head, []byte(SPDKBlobstore)) {
		args = append(args, "-u", "noraid")
	}
	return args
}

// Content of a device.
type Content struct {
	// Values that blkid told, by its names; nil when it found nothing.
	Values map[string]string
	// Head is the device's beginning.
	Head []byte
	// NotZero: its first or last MiB is not zeros.
	NotZero bool
}

// Look at a device or file. Several signatures that contradict each other are
// an *ForeignSignatureError; a block device that something claims is
// ErrInUse. An error never means that the device is blank.
func Look(ctx context.Context, run exec.Interface, path string) (Content, error) {
	f, err := openAlone(path)
	if err != nil {
		return Content{}, fmt.Errorf("probe %s: %w", path, mapBusy(err))
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return LookOpen(ctx, run, f)
}

// LookOpen is Look for who has opened the device already, for reading at least. With O_EXCL nobody else claims it
// meanwhile, and Look itself would find it claimed.
func LookOpen(ctx context.Context, run exec.Interface, f *os.File) (Content, error) {
	path := f.Name()
	head, zero, err := readEnds(f)
	if err != nil {
		return Content{}, fmt.Errorf("probe %s: %w", path, err)
	}
	cmd := run.CommandContext(ctx, "blkid", append(BlkidArgs(head), path)...) // it knows filesystems, RAID members, and partition tables
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C"))
	var out, errs strings.Builder
	cmd.SetStdout(&out)
	cmd.SetStderr(&errs)
	switch err := cmd.Run(); exitStatus(err) {
	case 0:
		return Content{Values: parseExport(out.String()), Head: head, NotZero: !zero}, nil
	case 2: // nothing found, and readEnds has seen that it can be read
		return Content{Head: head, NotZero: !zero}, nil
	case 8:
		return Content{}, &ForeignSignatureError{Device: path, Signature: "mix of several signatures"}
	default:
		return Content{}, fmt.Errorf("probe %s: blkid: %w: %s", path, err, strings.TrimSpace(errs.String()))
	}
}

// Name of what is on the device; empty when it is blank: no signature was found, and both its ends are zeros.
func (c Content) Name() string {
	if c.Values == nil {
		return c.hidden()
	}
	kind, table := c.Values["TYPE"], c.Values["PTTYPE"]
	switch {
	case table != "":
		return table + " partition table"
	case kind != "" && c.Values["USAGE"] == "filesystem":
		return kind + " filesystem"
	case kind != "":
		return kind + " signature"
	}
	return "signature that blkid cannot name"
}

// HasPrefix says whether the device begins with these bytes.
func (c Content) HasPrefix(text string) bool { return bytes.HasPrefix(c.Head, []byte(text)) }

// magic bytes that say that a device is not blank, also where blkid says nothing: because it
// does not know them, or because a checksum is wrong and it takes no notice then. A damaged
// filesystem must not be formatted.
var magics = []struct {
	at    int
	bytes string
	name  string
}{
	{0, SPDKBlobstore, "SPDK blobstore"},
	{0, "bluestore block device", "Ceph BlueStore"},
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

// Unnamed is the name of what software leaves that uses drives raw, and of a pool that lost its beginning.
const Unnamed = "data without a signature"

func (c Content) hidden() string {
	for _, m := range magics {
		if len(c.Head) > m.at && bytes.HasPrefix(c.Head[m.at:], []byte(m.bytes)) {
			return m.name
		}
	}
	if c.NotZero {
		return Unnamed
	}
	return ""
}

// openAlone fails with EBUSY on a block device that something else has claimed.
func openAlone(path string) (*os.File, error) {
	flags := os.O_RDONLY
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Mode()&os.ModeDevice != 0 {
		flags |= unix.O_EXCL // without O_CREAT
	}
	return os.OpenFile(path, flags, 0)
}

// readEnds gives a device's beginning, and whether its first and last MiB are zeros.
func readEnds(f *os.File) (head []byte, zero bool, err error) {
	head = make([]byte, headBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	zero, err = ZeroEdges(f)
	return head[:n], zero, err
}

func mapBusy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: something else on this node has claimed it: %w", ErrInUse, err)
	}
	return err
}

// exitStatus of a program that has run; 0 when it succeeded, -1 when it did not run.
func exitStatus(err error) int {
	var exit exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitStatus()
	}
	return -1
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

// CheckUnused refuses a block device that something on this node builds on: ErrInUse when it is mounted,
// an *ForeignSignatureError when it has holders or partitions. root is the host's filesystem.
func CheckUnused(root, path string, rdev uint64, mounts []mount.MountInfo) error {
	major, minor := unix.Major(rdev), unix.Minor(rdev)
	for _, m := range mounts {
		if uint32(m.Major) == major && uint32(m.Minor) == minor {
			return fmt.Errorf("%s is mounted on %s: %w", path, m.MountPoint, ErrInUse)
		}
	}
	dir := filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", major, minor))
	entries, err := os.ReadDir(filepath.Join(dir, "holders"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("holders of %s: %w", path, err)
	}
	if len(entries) > 0 {
		var holders []string
		for _, e := range entries {
			holders = append(holders, e.Name())
		}
		return &ForeignSignatureError{Device: path, Signature: "device that " + strings.Join(holders, ", ") + " is built on"}
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
		return &ForeignSignatureError{Device: path, Signature: "partition " + strings.Join(partitions, ", ")}
	}
	return nil
}
