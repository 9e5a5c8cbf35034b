// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	launch "github.com/weft-storage/weft/dataplane/cmd/weft-launch"
	"github.com/weft-storage/weft/dataplane/inventory"
)

// A start of the launcher on a node of its own.
type start struct {
	*WithT
	node    *node
	machine launch.Machine
	options launch.Options
	log     *bytes.Buffer
	// argv of the program that it became; nil when it did not.
	argv []string
}

func newStart(t *testing.T) *start {
	t.Helper()
	s := &start{WithT: NewWithT(t), node: newNode(t), log: &bytes.Buffer{}}
	s.machine = launch.Machine{
		Root:        s.node.Root,
		Affinity:    func() ([]int, error) { return []int{0, 1, 2, 3, 4, 5, 6, 7}, nil },
		BindTimeout: 10 * time.Second,
		Exec:        func(_ string, argv, _ []string) error { s.argv = argv; return nil },
		Command: func(context.Context, string, ...string) (inventory.Output, error) {
			return inventory.Output{ExitCode: 1, Stderr: "module not found"}, nil
		},
		Now: func() time.Time { return time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC) },
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	// Not below the root: a socket's path may have no more than 107 bytes.
	dir, err := os.MkdirTemp("", "weft")
	s.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.options = launch.Options{
		Socket: filepath.Join(dir, "run", "spdk.sock"), CoreMask: "0x3c", MemoryBytes: 1 << 30,
		Hugepages: v1alpha1.Hugepages2Mi, Driver: v1alpha1.DriverKernel, Target: "true",
	}
	return s
}

func (s *start) run(t *testing.T) error {
	t.Helper()
	return launch.Run(t.Context(), s.machine, s.options)
}

// refused runs, and wants a refusal in one line.
func (s *start) refused(t *testing.T, reason string, words ...string) {
	t.Helper()
	err := s.run(t)
	var refusal *launch.RefusalError
	s.Expect(errors.As(err, &refusal)).To(BeTrue(), "%v", err)
	s.Expect(refusal.Reason).To(Equal(reason), refusal.Message)
	for _, w := range words {
		s.Expect(refusal.Message).To(ContainSubstring(w))
	}
	s.Expect(err.Error()).NotTo(ContainSubstring("\n"))
	s.Expect(s.argv).To(BeNil())
}

func TestKernelDriver(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*start)
		want   string
	}{
		"hugepages":   {func(*start) {}, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/hugepages --no-pci"},
		"interrupt":   {func(s *start) { s.options.Interrupt = true }, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/hugepages --interrupt-mode --no-pci"},
		"ordinary":    {func(s *start) { s.options.Hugepages = v1alpha1.HugepagesDisabled }, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --no-huge --no-pci"},
		"large pages": {largePages, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/huge1G --no-pci"},
		"the pod's own": {func(s *start) {
			s.node.Mounts(Hugetlbfs("/dev/hugepages", "2M"), Hugetlbfs("/hugepages", "2M"))
		}, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /hugepages --no-pci"},
		"the pod's own over the node's": {func(s *start) {
			s.options.Hugepages = v1alpha1.Hugepages1Gi
			s.node.Pages("hugepages-1048576kB", 4, 1)
			s.node.Mounts(Hugetlbfs("/dev/hugepages", "2M"), Hugetlbfs("/dev/hugepages", "1024M"))
		}, "-m 0x3c -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/hugepages --no-pci"},
		"many CPUs": {func(s *start) {
			s.options.CoreMask = "0x30000000000000000000"
			s.machine.Affinity = func() ([]int, error) { return []int{76, 77}, nil }
		}, "-m 0x30000000000000000000 -s 1024 -r SOCKET --wait-for-rpc --num-trace-entries 0 --huge-dir /dev/hugepages --no-pci"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStart(t)
			test.change(s)
			s.Expect(s.run(t)).To(Succeed())
			s.Expect(s.argv).NotTo(BeEmpty())
			s.Expect(filepath.IsAbs(s.argv[0])).To(BeTrue(), s.argv[0])
			s.Expect(strings.Join(s.argv[1:], " ")).To(Equal(strings.ReplaceAll(test.want, "SOCKET", s.options.Socket)))
		})
	}
}

func largePages(s *start) {
	s.options.Hugepages = v1alpha1.Hugepages1Gi
	s.node.Mounts(Hugetlbfs("/dev/huge1G", "1024M"), Hugetlbfs("/dev/hugepages", "2M"))
	s.node.Pages("hugepages-1048576kB", 4, 1)
}

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*launch.Options)
		want   string
	}{
		"a relative socket":      {func(o *launch.Options) { o.Socket = "spdk.sock" }, "must be an absolute path"},
		"no mask":                {func(o *launch.Options) { o.CoreMask = "" }, "such as 0x3c"},
		"an empty mask":          {func(o *launch.Options) { o.CoreMask = "0x0" }, "such as 0x3c"},
		"a list":                 {func(o *launch.Options) { o.CoreMask = "2-5" }, "such as 0x3c"},
		"no memory":              {func(o *launch.Options) { o.MemoryBytes = 0 }, "must be a multiple of 1048576"},
		"odd memory":             {func(o *launch.Options) { o.MemoryBytes = 1<<30 + 1 }, "must be a multiple of 1048576"},
		"half a page":            {func(o *launch.Options) { o.Hugepages = v1alpha1.Hugepages1Gi; o.MemoryBytes = 3 << 29 }, "must be a multiple of the page size, 1073741824"},
		"other pages":            {func(o *launch.Options) { o.Hugepages = "4Ki" }, "must be 2Mi, 1Gi or Disabled"},
		"another driver":         {func(o *launch.Options) { o.Driver = "nvme" }, "must be Kernel, VFIO or UIO"},
		"a drive for the kernel": {func(o *launch.Options) { o.Drives = planned("0000:5e:00.0") }, "remove --pci"},
		"VFIO without drives":    {func(o *launch.Options) { o.Driver = v1alpha1.DriverVFIO }, "set --pci for each"},
		"a drive that is no place": {func(o *launch.Options) {
			o.Driver = v1alpha1.DriverVFIO
			o.Drives = []launch.PlannedDrive{{Address: "../nvme0", ID: "a"}}
		}, "must be the address and the ID of a drive, such as 0000:5e:00.0="},
		"a drive twice": {func(o *launch.Options) {
			o.Driver, o.Drives = v1alpha1.DriverVFIO, []launch.PlannedDrive{{Address: first, ID: "a"}, {Address: second, ID: "a"}}
		}, "--pci contains drive a twice"},
		"a drive without its id": {func(o *launch.Options) {
			o.Driver, o.Drives = v1alpha1.DriverVFIO, []launch.PlannedDrive{{Address: first}}
		}, "must be the address and the ID of a drive"},
		"UIO without hugepages": {func(o *launch.Options) {
			o.Driver, o.Hugepages, o.Drives = v1alpha1.DriverUIO, v1alpha1.HugepagesDisabled, planned(first)
		}, "--driver VFIO"},
		"UIO with interrupts": {func(o *launch.Options) {
			o.Driver, o.Interrupt, o.Drives = v1alpha1.DriverUIO, true, planned(first)
		}, "--interrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStart(t)
			test.change(&s.options)
			s.refused(t, v1alpha1.ReasonInvalidSetting, test.want)
		})
	}
}

func TestTarget(t *testing.T) {
	s := newStart(t)
	s.options.Target = "no-such-nvmf-tgt"
	s.refused(t, v1alpha1.ReasonTargetNotFound, "no-such-nvmf-tgt", "in PATH")
	s.options.Target = "true"
	s.machine.Exec = func(string, []string, []string) error { return unix.ENOEXEC }
	s.refused(t, v1alpha1.ReasonTargetNotFound, "exec format error")
}

func TestCPUs(t *testing.T) {
	t.Run("none of the planned ones", func(t *testing.T) {
		s := newStart(t)
		s.machine.Affinity = func() ([]int, error) { return []int{0, 1, 6, 7}, nil }
		s.refused(t, v1alpha1.ReasonCPUsNotGranted, "CPUs are 2-5", "CPUs 0-1,6-7")
	})
	t.Run("some of them", func(t *testing.T) {
		s := newStart(t)
		s.machine.Affinity = func() ([]int, error) { return []int{4, 5, 6}, nil }
		s.Expect(s.run(t)).To(Succeed())
		s.Expect(s.argv).To(ContainElements("-m", "0x30"))
		s.Expect(s.log.String()).To(ContainSubstring("planned=2-5 granted=4-6 used=4-5"))
	})
	t.Run("some of them by the cgroup", func(t *testing.T) {
		s := newStart(t)
		s.node.Write("proc/self/cgroup", "0::/kubepods/pod1/c1")
		s.node.Write("sys/fs/cgroup/kubepods/pod1/c1/cpuset.cpus.effective", "1-3")
		s.Expect(s.run(t)).To(Succeed())
		s.Expect(s.argv).To(ContainElements("-m", "0xc"))
	})
	t.Run("the nearest cgroup that says so", func(t *testing.T) {
		s := newStart(t)
		s.node.Write("proc/self/cgroup", "0::/kubepods/pod1/c1")
		s.node.Write("sys/fs/cgroup/kubepods/pod1/c1/cgroup.procs", "")
		s.node.Write("sys/fs/cgroup/kubepods/cpuset.cpus.effective", "0-1")
		s.refused(t, v1alpha1.ReasonCPUsNotGranted, "this container has CPUs 0-1")
	})
	t.Run("a cgroup of the container's own view", func(t *testing.T) {
		s := newStart(t)
		s.node.Write("proc/self/cgroup", "0::/kubepods/pod1/c1")
		s.node.Write("sys/fs/cgroup/cpuset.cpus.effective", "5")
		s.Expect(s.run(t)).To(Succeed())
		s.Expect(s.argv).To(ContainElements("-m", "0x20"))
	})
	t.Run("a cgroup that cannot be read", func(t *testing.T) {
		s := newStart(t)
		s.node.Write("sys/fs/cgroup/cpuset.cpus.effective", "all of them")
		s.Expect(s.run(t)).To(MatchError(ContainSubstring("cpuset.cpus.effective")))
		s.Expect(s.argv).To(BeNil())
	})
}

func TestHugepages(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*start)
		want   []string
	}{
		"too few free": {func(s *start) { s.node.Pages("hugepages-2048kB", 600, 500) },
			[]string{"512 pages of 2Mi are needed, but 500 of the node's 600 are free", "echo 612 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "restart the kubelet"}},
		"reserved by others": {func(s *start) { s.node.Write("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "2047") },
			[]string{"1 of the node's 2048 are free"}},
		"too few large ones": {func(s *start) { largePages(s); s.options.MemoryBytes = 2 << 30 },
			[]string{"2 pages of 1Gi are needed, but 1 of the node's 4 are free", "hugepagesz=1G hugepages=5"}},
		"none of that size": {func(s *start) { s.node.Remove("sys/kernel/mm/hugepages/hugepages-2048kB") },
			[]string{"no pages of 2Mi", "hugepagesz=2M"}},
		"not mounted": {func(s *start) { s.node.Mounts() }, []string{"no hugetlbfs with pages of 2Mi", "medium HugePages-2Mi", "mount -t hugetlbfs -o pagesize=2M"}},
		"mounted with another size": {func(s *start) { s.node.Mounts(Hugetlbfs("/dev/hugepages", "1024M")) },
			[]string{"no hugetlbfs with pages of 2Mi"}},
		"hidden by a mount with another size": {func(s *start) {
			s.node.Mounts(Hugetlbfs("/dev/hugepages", "2M"), Hugetlbfs("/dev/hugepages", "1024M"))
		}, []string{"no hugetlbfs with pages of 2Mi"}},
		"mounted read-only": {func(s *start) {
			s.node.Mounts(strings.Replace(Hugetlbfs("/dev/hugepages", "2M"), " rw,", " ro,", 1))
		}, []string{"no hugetlbfs with pages of 2Mi"}},
		"a mount too small": {func(s *start) { s.node.Mounts(Hugetlbfs("/dev/hugepages", "2M") + ",size=536870912") },
			[]string{"no hugetlbfs with pages of 2Mi"}},
		"not allowed": {func(s *start) {
			s.node.Write("sys/fs/cgroup/hugetlb.2MB.max", "536870912")
			s.node.Write("sys/fs/cgroup/hugetlb.2MB.current", "0")
		}, []string{"512 pages of 2Mi are needed, but the pod's limit allows 256", "hugetlb.2MB.max is 536870912", "hugepages-2Mi to at least 1073741824"}},
		"not allowed by the pod": {func(s *start) {
			s.node.Write("proc/self/cgroup", "0::/kubepods/pod1/c1")
			s.node.Write("sys/fs/cgroup/kubepods/pod1/c1/hugetlb.2MB.max", "max")
			s.node.Write("sys/fs/cgroup/kubepods/pod1/hugetlb.2MB.max", "1073741824")
			s.node.Write("sys/fs/cgroup/kubepods/pod1/hugetlb.2MB.current", "2097152")
		}, []string{"allows 511", "kubepods/pod1/hugetlb.2MB.max"}},
		"reservations not allowed": {func(s *start) { s.node.Write("sys/fs/cgroup/hugetlb.2MB.rsvd.max", "0") }, []string{"allows 0", "hugetlb.2MB.rsvd.max"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStart(t)
			test.change(s)
			s.refused(t, v1alpha1.ReasonHugepagesMissing, test.want...)
		})
	}
	t.Run("as many as are allowed", func(t *testing.T) {
		s := newStart(t)
		s.node.Pages("hugepages-2048kB", 512, 512)
		s.node.Write("sys/fs/cgroup/hugetlb.2MB.max", "1073741824")
		s.Expect(s.run(t)).To(Succeed())
	})
}

// TestLeftovers: what a dead target left mapped is free again; what a live one maps stays.
func TestLeftovers(t *testing.T) {
	s := newStart(t)
	s.node.Write("dev/hugepages/spdk_pid1map_0", "dead")
	s.node.Write("dev/hugepages/spdk_pid7map_0", "alive")
	s.node.Write("dev/hugepages/qemu", "none of ours")
	alive, err := os.Open(filepath.Join(s.node.Root, "dev/hugepages/spdk_pid7map_0"))
	s.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = alive.Close() }()
	s.Expect(unix.Flock(int(alive.Fd()), unix.LOCK_SH)).To(Succeed())
	s.Expect(s.run(t)).To(Succeed())
	left, err := filepath.Glob(filepath.Join(s.node.Root, "dev/hugepages/*"))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(left).To(HaveExactElements(HaveSuffix("/qemu"), HaveSuffix("/spdk_pid7map_0")))
}

func TestOrdinaryMemory(t *testing.T) {
	s := newStart(t)
	s.options.Hugepages = v1alpha1.HugepagesDisabled
	s.node.Mounts()
	s.node.Write("sys/fs/cgroup/memory.max", "1073741824")
	s.refused(t, v1alpha1.ReasonMemoryExceeded, "needs 1073741824 bytes", "limit is 1073741824 (/sys/fs/cgroup/memory.max)", "resources.limits memory")
	s.node.Write("sys/fs/cgroup/memory.max", "1610612736")
	s.node.Write("sys/fs/cgroup/memory.current", "1610612736") // the page cache, for the most part
	s.node.Write("proc/self/cgroup", "0::/pod1/c1")
	s.node.Write("sys/fs/cgroup/pod1/c1/memory.max", "1073741824")
	s.refused(t, v1alpha1.ReasonMemoryExceeded, "/sys/fs/cgroup/pod1/c1/memory.max")
	s.node.Write("sys/fs/cgroup/pod1/c1/memory.max", "max")
	s.Expect(s.run(t)).To(Succeed())
}

func TestSocket(t *testing.T) {
	listen := func(s *start) net.Listener {
		s.Expect(os.MkdirAll(filepath.Dir(s.options.Socket), 0o755)).To(Succeed())
		var config net.ListenConfig
		l, err := config.Listen(t.Context(), "unix", s.options.Socket)
		s.Expect(err).NotTo(HaveOccurred())
		return l
	}
	t.Run("someone listens", func(t *testing.T) {
		s := newStart(t)
		l := listen(s)
		defer l.Close() //nolint:errcheck // the test is over
		s.refused(t, v1alpha1.ReasonTargetRunning, s.options.Socket)
		s.Expect(s.options.Socket).To(BeAnExistingFile())
	})
	t.Run("nobody listens, and the target has not ended", func(t *testing.T) {
		s, after := newStart(t), newStart(t)
		after.options.Socket = s.options.Socket
		s.machine.Exec = func(_ string, _, _ []string) error {
			// A program that it became has the lock from here.
			held := false
			open, err := os.ReadDir("/proc/self/fd")
			s.Expect(err).NotTo(HaveOccurred())
			for _, fd := range open {
				n, err := strconv.Atoi(fd.Name())
				s.Expect(err).NotTo(HaveOccurred())
				path, _ := os.Readlink("/proc/self/fd/" + fd.Name())
				flags, _ := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
				held = held || path == filepath.Join(filepath.Dir(s.options.Socket), "target.lock") && flags&unix.FD_CLOEXEC == 0
			}
			s.Expect(held).To(BeTrue())
			after.refused(t, v1alpha1.ReasonTargetRunning, "another target is still running", "target.lock")
			return nil
		}
		s.Expect(s.run(t)).To(Succeed())
		s.Expect(after.run(t)).To(Succeed())
	})
	t.Run("nobody listens any more", func(t *testing.T) {
		s := newStart(t)
		l := listen(s)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		s.Expect(l.Close()).To(Succeed())
		s.Expect(s.options.Socket).To(BeAnExistingFile())
		s.Expect(s.run(t)).To(Succeed())
		s.Expect(s.options.Socket).NotTo(BeAnExistingFile())
	})
	t.Run("no socket", func(t *testing.T) {
		s := newStart(t)
		s.Expect(os.MkdirAll(filepath.Dir(s.options.Socket), 0o755)).To(Succeed())
		s.Expect(os.WriteFile(s.options.Socket, []byte("precious"), 0o600)).To(Succeed())
		s.refused(t, v1alpha1.ReasonInvalidSetting, "is not a socket")
		s.Expect(os.ReadFile(s.options.Socket)).To(Equal([]byte("precious")))
	})
	t.Run("its folder is root's alone", func(t *testing.T) {
		s := newStart(t)
		s.Expect(os.MkdirAll(filepath.Dir(s.options.Socket), 0o755)).To(Succeed())
		s.Expect(s.run(t)).To(Succeed())
		info, err := os.Stat(filepath.Dir(s.options.Socket))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o700)))
	})
}

func TestWriteReason(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "termination-log")
	read := func() (said launch.RefusalError) {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(text)).To(BeNumerically("<", 4096), "the kubelet keeps no more")
		g.Expect(json.Unmarshal(text, &said)).To(Succeed(), string(text))
		return said
	}
	g.Expect(launch.WriteReason(file, &launch.RefusalError{Reason: "HugepagesMissing", Message: strings.Repeat("ä", 4000)})).To(Succeed())
	g.Expect(read().Message).To(HaveSuffix("ä..."))
	g.Expect(launch.WriteReason(file, errors.Join(errors.New("first"), &launch.RefusalError{Reason: "CPUsNotGranted", Message: "none"}))).To(Succeed())
	g.Expect(read()).To(Equal(launch.RefusalError{Reason: "CPUsNotGranted", Message: "none"}))
	g.Expect(launch.WriteReason(file, errors.New("disk on fire"))).To(Succeed())
	g.Expect(read()).To(Equal(launch.RefusalError{Reason: v1alpha1.ReasonPodFailed, Message: "disk on fire"}))
}
