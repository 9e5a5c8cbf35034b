// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/dataplane/device"
)

// tree is a machine's filesystem. Paths are relative to its root.
type tree struct{ root string }

func (t tree) path(elem ...string) string {
	return filepath.Join(append([]string{t.root}, elem...)...)
}

// read returns a file's text without surrounding space.
func (t tree) read(elem ...string) (string, error) {
	text, err := os.ReadFile(t.path(elem...))
	return strings.ToValidUTF8(strings.TrimSpace(string(text)), "?"), err
}

// readIfSaid is read, with "" for an attribute that the device does not have or
// does not answer for now: sysfs says EINVAL for the speed of a link that is down, say.
func (t tree) readIfSaid(elem ...string) (string, error) {
	text, err := t.read(elem...)
	if unsaid(err) {
		return "", nil
	}
	return text, err
}

// number reads an integer; ok is false when the device does not say.
func (t tree) number(elem ...string) (n int64, ok bool, err error) {
	text, err := t.readIfSaid(elem...)
	if err != nil || text == "" {
		return 0, false, err
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", t.path(elem...), err)
	}
	return n, true, nil
}

// list names a folder's entries, sorted.
func (t tree) list(elem ...string) ([]string, error) {
	entries, err := os.ReadDir(t.path(elem...))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// listIfThere is list, with nothing for a folder that does not exist.
func (t tree) listIfThere(elem ...string) ([]string, error) {
	names, err := t.list(elem...)
	if unsaid(err) {
		return nil, nil
	}
	return names, err
}

// exists reports whether a path is there.
func (t tree) exists(elem ...string) (bool, error) {
	_, err := os.Stat(t.path(elem...))
	if unsaid(err) {
		return false, nil
	}
	return err == nil, err
}

// real resolves links, and returns the path relative to the root; "" when it is not there.
func (t tree) real(elem ...string) (string, error) {
	resolved, err := filepath.EvalSymlinks(t.path(elem...))
	if unsaid(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(t.root)
	if err != nil {
		return "", err
	}
	return filepath.Rel(root, resolved)
}

// base is the last element of what a link resolves to; "" when there is no link.
func (t tree) base(elem ...string) (string, error) {
	resolved, err := t.real(elem...)
	if err != nil || resolved == "" {
		return "", err
	}
	return filepath.Base(resolved), nil
}

// unsaid reports errors by which a device says that it has no such thing, or
// is not there any more.
func unsaid(err error) bool { return device.Unsaid(err) }

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// place is where a device is attached.
type place struct {
	pci string
	// folder of the PCI function.
	folder string
	numa   *int32
}

// placeOf climbs from a device's folder to the nearest PCI function, and to the
// nearest NUMA node that is told: a device on a bus of its own, such as virtio, does not repeat
// what its parent says. The kernel says -1 where it does not know.
func (t tree) placeOf(device string) (place, error) {
	var p place
	for dir := device; dir != "." && dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		if p.pci == "" && pciAddress.MatchString(filepath.Base(dir)) {
			p.pci, p.folder = filepath.Base(dir), dir
		}
		if p.numa == nil {
			n, ok, err := t.number(dir, "numa_node")
			if err != nil {
				return place{}, err
			}
			if ok && n >= 0 {
				p.numa = new(int32(n))
			}
		}
	}
	return p, nil
}

// cpuList parses the kernel's list format, such as 0-15,32-47.
func cpuList(list string) ([]int, error) {
	var cpus []int
	if list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", list, err)
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", list, err)
			}
		}
		// More CPUs than any kernel takes (NR_CPUS is 8192 at most) is no CPU list.
		if first < 0 || last < first || last > 1<<16 {
			return nil, fmt.Errorf("CPU list %q: range %q is not one", list, part)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
