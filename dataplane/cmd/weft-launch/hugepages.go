// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A pageSize as its three users name it.
type pageSize struct {
	name  string // in the plan, and in a pod's resources: hugepages-2Mi
	bytes int64
	sysfs string // its folder in /sys/kernel/mm/hugepages
	group string // its controller's files: hugetlb.2MB.max
	mount string // the option of mount(8)
}

var pageSizes = map[v1alpha1.Hugepages]pageSize{
	v1alpha1.Hugepages2Mi: {name: "2Mi", bytes: 2 << 20, sysfs: "hugepages-2048kB", group: "hugetlb.2MB", mount: "2M"},
	v1alpha1.Hugepages1Gi: {name: "1Gi", bytes: 1 << 30, sysfs: "hugepages-1048576kB", group: "hugetlb.1GB", mount: "1G"},
}

const poolsDir = "sys/kernel/mm/hugepages"

// checkHugepages makes sure that DPDK will get the memory: where pages are free but the cgroup does not
// allow them, the kernel kills it with SIGBUS at the first touch. It
// answers with the mount point of a hugetlbfs of that page size.
func checkHugepages(m Machine, size pageSize, need int64) (string, error) {
	mountPoint, err := hugetlbfs(m, size, need)
	if err != nil {
		return "", err
	}
	if err := removeLeftovers(m, mountPoint); err != nil {
		return "", err
	}
	total, free, err := pages(m, size)
	if err != nil {
		return "", err
	}
	pagesNeeded := need / size.bytes
	if free < pagesNeeded {
		mend := fmt.Sprintf("echo %d > /%s/%s/nr_hugepages, then restart the kubelet so that it counts them", total+pagesNeeded-free, poolsDir, size.sysfs)
		if size.bytes >= 1<<30 {
			mend = fmt.Sprintf("boot the node with hugepagesz=1G hugepages=%d, because memory is usually too fragmented later", total+pagesNeeded-free)
		}
		return "", refuse(v1alpha1.ReasonHugepagesMissing, "%d pages of %s are needed, but %d of the node's %d are free; on the node: %s", pagesNeeded, size.name, free, total, mend)
	}
	// The second one limits what may be reserved; newer container runtimes set both.
	allowed, err := limits(m, size.group, size.group+".rsvd")
	if err != nil {
		return "", err
	}
	for _, l := range allowed {
		if l.left < need {
			return "", refuse(v1alpha1.ReasonHugepagesMissing,
				"%d pages of %s are needed, but the pod's limit allows %d (/%s is %d); set the container's resources.limits hugepages-%s to at least %d",
				pagesNeeded, size.name, max(0, l.left)/size.bytes, l.file, l.max, size.name, need)
		}
	}
	return mountPoint, nil
}

// pages of a size that the node has, and those of them that nobody uses or has reserved.
func pages(m Machine, size pageSize) (total, free int64, err error) {
	var reserved int64
	for name, number := range map[string]*int64{"nr_hugepages": &total, "free_hugepages": &free, "resv_hugepages": &reserved} {
		text, err := m.read(poolsDir, size.sysfs, name)
		if errors.Is(err, fs.ErrNotExist) {
			return 0, 0, refuse(v1alpha1.ReasonHugepagesMissing, "the node's kernel has no pages of %s; boot it with hugepagesz=%s, or use another page size", size.name, size.mount)
		}
		if err != nil {
			return 0, 0, err
		}
		if *number, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", m.path(poolsDir, size.sysfs, name), err)
		}
	}
	return total, free - reserved, nil
}

// hugetlbfs finds a mount with pages of this size that may be written and is large enough.
func hugetlbfs(m Machine, size pageSize, need int64) (string, error) {
	mounts, err := mount.ParseMountInfo(m.path("proc/self/mountinfo"))
	if err != nil {
		return "", fmt.Errorf("read the mounts: %w", err)
	}
	var found []string
	for i, at := range mounts {
		// Another mount on the same point hides it: the pod's /dev/hugepages that of the node's /dev.
		if slices.ContainsFunc(mounts[i+1:], func(later mount.MountInfo) bool { return later.MountPoint == at.MountPoint }) {
			continue
		}
		if at.FsType != "hugetlbfs" || slices.Contains(at.MountOptions, "ro") {
			continue
		}
		fits, right := true, false
		for _, option := range at.SuperOptions {
			key, value, _ := strings.Cut(option, "=")
			n, ok := bytesOf(value)
			switch key {
			case "pagesize":
				right = ok && n == size.bytes
			case "size":
				fits = !ok || n >= need
			}
		}
		if fits && right {
			found = append(found, at.MountPoint)
		}
	}
	if len(found) == 0 {
		return "", refuse(v1alpha1.ReasonHugepagesMissing,
			"no hugetlbfs with pages of %s is mounted in this container; add an emptyDir with medium HugePages-%s to the pod, or on the node run: mount -t hugetlbfs -o pagesize=%s none /dev/hugepages",
			size.name, size.name, size.mount)
	}
	// The innermost mount is the pod's own, where there is one.
	return found[len(found)-1], nil
}

// bytesOf reads a size such as 2M or 1024M, as the kernel writes it.
func bytesOf(text string) (int64, bool) {
	digits := strings.TrimRight(text, "KMG")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || len(text)-len(digits) > 1 {
		return 0, false
	}
	return n << map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[text[len(digits):]], true
}

// removeLeftovers frees the pages of SPDK processes that died before they had unlinked their
// files. Files in use are locked, as DPDK does; DPDK would remove the others too, but only after the pages have been
// counted here.
func removeLeftovers(m Machine, mountPoint string) error {
	files, err := filepath.Glob(m.path(mountPoint, "spdk*map_*"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return nil
	}
	// DPDK holds this lock from here until it has mapped its pages.
	dir, err := os.Open(m.path(mountPoint))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // another process is mapping its pages, and cleans up by itself
	}
	for _, file := range files {
		err = errors.Join(err, removeUnlocked(file))
	}
	return err
}

func removeUnlocked(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // in use
	}
	return os.Remove(file)
}

// checkOrdinaryMemory makes sure that the container may have the memory: else the
// kernel kills nvmf_tgt when it fills it.
func checkOrdinaryMemory(m Machine, need int64) error {
	allowed, err := limits(m, "memory")
	if err != nil {
		return err
	}
	for _, l := range allowed {
		// What the limit leaves is not looked at: pages of files count as used, and give way.
		if l.max <= need {
			return refuse(v1alpha1.ReasonMemoryExceeded,
				"without hugepages nvmf_tgt needs %d bytes of regular memory, but the pod's limit is %d (/%s); set the container's resources.limits memory above it",
				need, l.max, l.file)
		}
	}
	return nil
}
