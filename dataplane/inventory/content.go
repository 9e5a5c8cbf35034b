// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/internal/text"
)

// PoolLabel is the label of the XFS filesystem that is a pool of the nvmet engine. A drive
// with it is weft's own.
const PoolLabel = device.PoolLabel

// content says what is on a disk. Only the context's end is an error; what cannot
// be found out is Unknown.
func content(ctx context.Context, t tree, in inUse, prober Prober, name string) (v1alpha1.DriveContent, string, error) {
	found, detail, err := examine(ctx, t, in, prober, name)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return "", "", ctxErr
	}
	if err != nil {
		return v1alpha1.ContentUnknown, err.Error(), nil //nolint:nilerr // Unknown is the answer, and the detail says why
	}
	return found, detail, nil
}

// examine looks at what uses a disk, then probes it. What uses it (partitions,
// device mapper, a mount) makes it foreign whatever a probe would find, unless
// it is a pool of ours that is mounted.
func examine(ctx context.Context, t tree, in inUse, prober Prober, name string) (v1alpha1.DriveContent, string, error) {
	used, err := usesOf(t, in, name)
	if err != nil {
		return "", "", err
	}
	if used.exclusive != "" {
		return v1alpha1.ContentForeign, used.exclusive, nil
	}
	sig, err := prober.Probe(ctx, t.path("dev", name))
	if err != nil {
		return "", "", err
	}
	switch {
	case sig == (Signature{Type: "xfs", Usage: sig.Usage, Label: PoolLabel}):
		return v1alpha1.ContentWeft, v1alpha1.DetailNvmetPool, nil
	case sig.isLvolstore() && used.mounted == "":
		return v1alpha1.ContentWeft, v1alpha1.DetailSPDKPool, nil
	}
	if sig.Unnamed && used.mounted == "" {
		return v1alpha1.ContentUnknown, fmt.Sprintf("no signature, but its first or last MiB is not zero, as on a drive that software uses directly; "+
			"if its data can be lost, erase it: blkdiscard -f /dev/%[1]s, or blkdiscard -zf /dev/%[1]s if it does not read as zeros after that", name), nil
	}
	detail := sig.describe()
	switch {
	case detail != "" && used.mounted != "":
		return v1alpha1.ContentForeign, detail + ", " + used.mounted, nil
	case detail != "" || used.mounted != "":
		return v1alpha1.ContentForeign, detail + used.mounted, nil
	}
	readOnly, _, err := t.number(blockDir, name, "ro")
	if err != nil {
		return "", "", err
	}
	if readOnly != 0 {
		// Nothing can be written on it, so it is no use, blank or not.
		return v1alpha1.ContentUnknown, "the disk is read-only", nil
	}
	return v1alpha1.ContentBlank, "", nil
}

// describe says in words what was found; "" is nothing.
func (s Signature) describe() string {
	switch {
	case s.Ambivalent:
		return "several signatures that contradict each other"
	case s.PartitionTable != "":
		return s.PartitionTable + " partition table"
	case s.Type != "" && s.Usage == "filesystem":
		return s.Type + " filesystem"
	case s.Type != "":
		return s.Type + " signature"
	case s.Unnamed:
		return "data without a signature"
	case s != Signature{}:
		return "unknown signature"
	}
	return ""
}

// used says how a disk is used now. exclusive uses rule a pool of ours out.
type used struct{ exclusive, mounted string }

// inUse tells where block devices, by major:minor, are mounted or swapped to.
type inUse map[string][]string

// usesShown of a device: in a container it can be mounted in dozens of places.
const usesShown = 2

// uses reads the mounts that this process sees, and swap. A filesystem that is
// mounted elsewhere is still found by its signature.
func uses(t tree) (inUse, error) {
	found := inUse{}
	mounts, err := t.read("proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(mounts) {
		// "36 35 98:0 /root /mount/point rw - ext4 /dev/sda1 rw"
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("%s: line %q", t.path("proc/self/mountinfo"), line)
		}
		where := "mounted on " + unescape(fields[4])
		if !slices.Contains(found[fields[2]], where) {
			found[fields[2]] = append(found[fields[2]], where)
		}
	}
	swaps, err := t.readIfSaid("proc/swaps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(swaps) {
		if device, ok := strings.CutPrefix(line, "/dev/"); ok {
			name, _, _ := strings.Cut(device, " ")
			name, _, _ = strings.Cut(name, "\t")
			number, err := t.readIfSaid("sys/class/block", name, "dev")
			if err != nil {
				return nil, err
			}
			if number != "" {
				found[number] = append(found[number], "used for swap")
			}
		}
	}
	return found, nil
}

// unescape undoes the octal escapes of mountinfo (\040 for a space).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func usesOf(t tree, in inUse, name string) (used, error) {
	dir := path.Join(blockDir, name)
	held, err := t.listIfThere(dir, "holders")
	if err != nil {
		return used{}, err
	}
	if len(held) > 0 {
		return used{exclusive: "used by " + strings.Join(held, ", ")}, nil
	}
	entries, err := t.listIfThere(dir)
	if err != nil {
		return used{}, err
	}
	var partitions []string
	for _, e := range entries {
		if is, err := t.exists(dir, e, "partition"); err != nil {
			return used{}, err
		} else if !is {
			continue
		}
		of, err := partitionUse(t, in, dir, e)
		if err != nil {
			return used{}, err
		}
		partitions = append(partitions, of)
	}
	if len(partitions) > 0 {
		return used{exclusive: "partitions " + strings.Join(partitions, ", ")}, nil
	}
	number, err := t.read(dir, "dev")
	if err != nil {
		return used{}, err
	}
	return used{mounted: text.Few(in[number], usesShown, ", ")}, nil
}

// partitionUse names a partition, with what uses it: "vda1 (mounted on /)".
func partitionUse(t tree, in inUse, dir, name string) (string, error) {
	number, err := t.read(dir, name, "dev")
	if err != nil {
		return "", err
	}
	held, err := t.listIfThere(dir, name, "holders")
	if err != nil {
		return "", err
	}
	of := text.Few(in[number], usesShown, ", ")
	if len(held) > 0 {
		of = "used by " + strings.Join(held, ", ")
	}
	if of == "" {
		return name, nil
	}
	return fmt.Sprintf("%s (%s)", name, of), nil
}
