// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"
)

// host with the machine's own programs, and a device that is a sparse file.
func host(t *testing.T, sizeBytes int64) (*Host, string) {
	t.Helper()
	for _, name := range []string{"blkid", "mkfs.ext4", "fsck.ext4", "resize2fs"} {
		if _, err := osexec.LookPath(name); err != nil {
			t.Fatalf("%v: install util-linux and e2fsprogs 1.47 or later, and have /usr/sbin in PATH", err)
		}
	}
	dir := t.TempDir()
	device := filepath.Join(dir, "device")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(device, sizeBytes); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(dir, "mountinfo")
	if err := os.WriteFile(table, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(device string) (Device, error) { return os.Open(device) }
	return &Host{Mounter: fakeMounter{mount.NewFakeMounter(nil)}, Exec: exec.New(), Open: open, MountInfo: table}, device
}

// fakeMounter keeps no mount table: its binds look like other mounts.
type fakeMounter struct{ *mount.FakeMounter }

func (m fakeMounter) BindReadOnly(source, target string) error {
	return m.Mount(source, target, "", []string{"bind", "ro"})
}

func TestPrepareFormatsABlankDeviceOnceAndStaysThin(t *testing.T) {
	const size = 64 << 20
	h, device := host(t, size)
	begun := 0
	r := Request{Device: device, SizeBytes: size, Type: Ext4, Fence: Fence{Blank: true}, Begin: func(context.Context) error { begun++; return nil }}
	if err := h.Prepare(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := h.probe(t.Context(), device); err != nil || found.Type != Ext4 {
		t.Errorf("found %+v, %v", found, err)
	}
	out, err := osexec.CommandContext(t.Context(), "du", "--block-size=1", device).Output()
	if err != nil {
		t.Fatal(err)
	}
	// A journal of 4 MiB, and little beside it.
	if used, err := strconv.Atoi(strings.Fields(string(out))[0]); err != nil || used > 5<<20 {
		t.Errorf("the empty filesystem takes %d bytes, %v", used, err)
	}
	r.Fence.Header = HeaderFormatted
	if err := h.Prepare(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if begun != 1 {
		t.Errorf("formatting was begun %d times", begun)
	}
	after, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	// fsck -p writes nothing to a clean filesystem but its superblock's times.
	if !slices.Equal(before[1<<20:], after[1<<20:]) {
		t.Error("the filesystem was made again")
	}
}

func TestPrepareRefusesDataWithoutAFilesystem(t *testing.T) {
	const size = 16 << 20
	for name, offset := range map[string]int64{"at the beginning": 4096, "at the end": size - 1} {
		t.Run(name, func(t *testing.T) {
			h, device := host(t, size)
			writeAt(t, device, offset, "x")
			err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: size, Type: Ext4, Fence: Fence{Blank: true}})
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Errorf("got %v", err)
			}
			if found, err := h.probe(t.Context(), device); err != nil || !found.empty() {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
}

// blkid answers "nothing found" for a device that it cannot open, too.
func TestPrepareDoesNotTakeUnreadableForBlank(t *testing.T) {
	h, device := host(t, 16<<20)
	for name, r := range map[string]Request{
		"absent":                    {Device: device + "-absent", SizeBytes: 16 << 20},
		"shorter than it should be": {Device: device, SizeBytes: 17 << 20},
	} {
		r.Type, r.Fence, r.Begin = Ext4, Fence{AllowFormat: true, Blank: true}, begin
		if err := h.Prepare(t.Context(), r); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if found, err := h.probe(t.Context(), device); err != nil || !found.empty() {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestPrepareRefusesAmbiguousSignatures(t *testing.T) {
	h, device := host(t, 16<<20)
	h.Exec = script(t, []string{"blkid"}, answer{exit: 8})
	err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: 16 << 20, Type: Ext4, Fence: Fence{AllowFormat: true}})
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "several formats") {
		t.Errorf("got %v", err)
	}
}

func TestPrepareRepairsOrFails(t *testing.T) {
	for name, c := range map[string]struct {
		exit int
		ok   bool
	}{
		"clean": {0, true}, "repaired": {1, true}, "repaired, reboot": {2, true}, "not repaired": {4, false}, "cannot run": {8, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, device := host(t, 16<<20)
			h.Exec = script(t, []string{"blkid", "fsck.ext4"}, answer{out: "TYPE=ext4\n"}, answer{exit: c.exit})
			err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: 16 << 20, Type: Ext4, Fence: Fence{Header: HeaderFormatted}})
			if (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What an administrator lets go of is not zeros, though the volume may have been blank when the node was admitted.
func TestPrepareTakesOnlyZerosForZeros(t *testing.T) {
	const size = 320 << 20
	unfinished := make([]byte, 127)
	copy(unfinished, "XFSB")
	unfinished[126] = 1
	for name, c := range map[string]struct {
		fsType, holds string
		fence         Fence
		blkid         answer
		want          []string
	}{
		"ext4, blank":                     {Ext4, "", Fence{Blank: true}, answer{exit: 2}, []string{"-F", "-m", "0", "-E", "nodiscard"}},
		"ext4, no longer blank":           {Ext4, "data", Fence{Blank: true, AllowFormat: true}, answer{exit: 2}, []string{"-F", "-m", "0"}},
		"ext4, never said to be blank":    {Ext4, "", Fence{AllowFormat: true}, answer{exit: 2}, []string{"-F", "-m", "0"}},
		"xfs, blank":                      {XFS, "", Fence{Blank: true}, answer{exit: 2}, []string{"-K"}},
		"xfs, no longer blank":            {XFS, "data", Fence{Blank: true, AllowFormat: true}, answer{exit: 2}, nil},
		"xfs, over one that was cut off":  {XFS, string(unfinished), Fence{Blank: true, AllowFormat: true}, answer{out: "TYPE=xfs\n"}, []string{"-f"}},
		"xfs, again":                      {XFS, string(unfinished), Fence{Blank: true, Header: HeaderFormatting}, answer{out: "TYPE=xfs\n"}, []string{"-f"}},
		"xfs, again, over another":        {XFS, "", Fence{Blank: true, Header: HeaderFormatting}, answer{out: "TYPE=ext4\n"}, []string{"-f"}},
		"ext4, again":                     {Ext4, "", Fence{Blank: true, Header: HeaderFormatting}, answer{exit: 2}, []string{"-F", "-m", "0"}},
		"ext4, over one that was cut off": {Ext4, string(unfinished), Fence{AllowFormat: true}, answer{out: "TYPE=xfs\n"}, []string{"-F", "-m", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, device := host(t, size)
			writeAt(t, device, 0, c.holds)
			ran := &lastArgs{Interface: script(t, []string{"blkid", "mkfs." + c.fsType}, c.blkid, answer{})}
			h.Exec = ran
			if err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: size, Type: c.fsType, Fence: c.fence, Begin: begin}); err != nil {
				t.Fatal(err)
			}
			if want := slices.Concat(c.want, []string{device}); !slices.Equal(ran.args, want) {
				t.Errorf("mkfs was given %q, want %q", ran.args, want)
			}
		})
	}
}

// lastArgs of a program.
type lastArgs struct {
	exec.Interface
	args []string
}

func (l *lastArgs) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	l.args = args
	return l.Interface.CommandContext(ctx, name, args...)
}

// Nothing is formatted whose header cannot be written.
func TestPrepareThatCannotBegin(t *testing.T) {
	h, device := host(t, 16<<20)
	failed := errors.New("no header was written")
	err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: 16 << 20, Type: Ext4, Fence: Fence{Blank: true}, Begin: func(context.Context) error { return failed }})
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if found, err := h.probe(t.Context(), device); err != nil || !found.empty() {
		t.Errorf("found %v, %v", found, err)
	}
}

// begin a formatting of which nobody keeps a record.
func begin(context.Context) error { return nil }

// An XFS whose mkfs was cut off is recognised as such, and given up only by an administrator.
func TestPrepareRefusesAnXFSThatIsNotFinished(t *testing.T) {
	const size = 320 << 20
	h, device := host(t, size)
	writeAt(t, device, 0, "XFSB")
	writeAt(t, device, 126, "\x01")
	for _, asked := range []string{XFS, Ext4} {
		h.Exec = script(t, []string{"blkid"}, answer{out: "TYPE=xfs\n"})
		err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: size, Type: asked, Fence: Fence{Blank: true}})
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "weft.storage/allow-format") {
			t.Errorf("%s: got %v", asked, err)
		}
	}
}

func TestPrepareXFS(t *testing.T) {
	const size = 300 << 20
	h, device := host(t, size)
	h.Exec = script(t, []string{"blkid", "mkfs.xfs"}, answer{exit: 2}, answer{})
	if err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: size, Type: XFS, Fence: Fence{Blank: true}, Begin: begin}); err != nil {
		t.Error(err)
	}
	if err := h.Prepare(t.Context(), Request{Device: device, SizeBytes: size, Type: "btrfs"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// A deadline must not leave half a filesystem, which would be refused from then on.
func TestFormatOutlivesItsContext(t *testing.T) {
	const size = 16 << 20
	h, device := host(t, size)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.format(ctx, Request{Device: device, SizeBytes: size, Type: Ext4, Fence: Fence{Blank: true}}, true, false); err != nil {
		t.Error(err)
	}
	if found, err := h.probe(t.Context(), device); err != nil || found.Type != Ext4 {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestAt(t *testing.T) {
	h, _ := host(t, 0)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	table := "100 1 259:3 / " + dir + "/fs\\040x rw,relatime shared:1 - ext4 /dev/nvme2n1 rw\n" +
		"101 1 259:4 / " + dir + "/fs\\040x ro,relatime shared:1 - xfs /dev/nvme3n1 rw\n" +
		"102 1 0:6 /nvme2n1 " + dir + "/block rw,nosuid shared:1 - devtmpfs devtmpfs rw\n" +
		"103 1 0:6 /nvme2n1//deleted " + dir + "/lost rw shared:1 - devtmpfs devtmpfs rw\n" +
		"104 1 0:6 / /dev rw shared:1 - devtmpfs devtmpfs rw\n"
	if err := os.WriteFile(h.MountInfo, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Mount{
		"fs x":  {Path: dir + "/fs x", Device: "259:4", Type: "xfs", ReadOnly: true},
		"block": {Path: dir + "/block", Device: "0:6", Node: "nvme2n1", Type: "devtmpfs"},
		"lost":  {Path: dir + "/lost", Device: "0:6", Node: "nvme2n1", NodeGone: true, Type: "devtmpfs"},
	} {
		got, mounted, err := h.At(filepath.Join(link, path))
		if err != nil || !mounted || got != want {
			t.Errorf("%s: %+v, %t, %v", path, got, mounted, err)
		}
	}
	for _, path := range []string{dir + "/other", dir + "/absent/x"} {
		if got, mounted, err := h.At(path); err != nil || mounted {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	paths, err := h.MountsOf("259:3", "nvme2n1")
	if err != nil || !slices.Equal(paths, []string{dir + "/fs x", dir + "/block"}) {
		t.Errorf("mounts %q, %v", paths, err)
	}
}

func TestMountOptions(t *testing.T) {
	for fsType, want := range map[string][]string{
		XFS:  {"nouuid", "noatime"}, // beside its clone
		Ext4: {"errors=remount-ro", "noatime"},
	} {
		h, device := host(t, 0)
		if err := h.Mount(t.Context(), device, filepath.Join(t.TempDir(), "x"), fsType, []string{"noatime"}); err != nil {
			t.Fatal(err)
		}
		points, err := h.Mounter.(fakeMounter).List()
		if err != nil || len(points) != 1 || !slices.Equal(points[0].Opts, want) {
			t.Errorf("mounted %+v, %v", points, err)
		}
	}
}

func writeAt(t *testing.T, path string, offset int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte(text), offset)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

type answer struct {
	out  string
	exit int
}

// script answers programs in order, and fails the test when others are run.
func script(t *testing.T, names []string, answers ...answer) exec.Interface {
	t.Helper()
	fake := &testingexec.FakeExec{}
	var mu sync.Mutex
	for i, a := range answers {
		fake.CommandScript = append(fake.CommandScript, func(name string, args ...string) exec.Cmd {
			mu.Lock()
			defer mu.Unlock()
			if name != names[i] {
				t.Errorf("ran %s %q, and %s was expected", name, args, names[i])
			}
			var err error
			if a.exit != 0 {
				err = &testingexec.FakeExitError{Status: a.exit}
			}
			return &testingexec.FakeCmd{OutputScript: []testingexec.FakeAction{
				func() ([]byte, []byte, error) { return []byte(a.out), nil, err },
			}}
		})
	}
	return fake
}
