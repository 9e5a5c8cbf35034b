// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-storage/weft/dataplane/inventory"
)

// run runs a program that the test needs.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("this test needs %s: install util-linux and e2fsprogs", name)
	}
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// disk makes a sparse file of 64 MiB, with something at an offset.
func disk(t *testing.T, offset int64, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<20), func() error { _, err := f.WriteAt([]byte(content), offset); return err }(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// unnamed is what is there of software that uses drives raw.
var unnamed = inventory.Signature{Unnamed: true}

// TestBlkid asks the real program about real content.
func TestBlkid(t *testing.T) {
	run(t, "blkid", "--version")
	blank := func(t *testing.T) string { return disk(t, 0, "") }
	for name, test := range map[string]struct {
		path func(t *testing.T) string
		want inventory.Signature
	}{
		"nothing":                                   {blank, inventory.Signature{}},
		"data that has no signature":                {func(t *testing.T) string { return disk(t, 0, strings.Repeat("weft", 4096)) }, unnamed},
		"its first byte":                            {func(t *testing.T) string { return disk(t, 0, "w") }, unnamed},
		"data in the first MiB":                     {func(t *testing.T) string { return disk(t, 1<<20-1, "w") }, unnamed},
		"data in the last MiB":                      {func(t *testing.T) string { return disk(t, 63<<20, "w") }, unnamed},
		"its last byte":                             {func(t *testing.T) string { return disk(t, 64<<20-1, "w") }, unnamed},
		"data between, as weft itself may leave it": {func(t *testing.T) string { return disk(t, 1<<20, strings.Repeat("w", 62<<20)) }, inventory.Signature{}},
		"ext4": {func(t *testing.T) string {
			d := blank(t)
			run(t, "mkfs.ext4", "-q", "-L", "my weft", d)
			return d
		}, inventory.Signature{Type: "ext4", Usage: "filesystem", Label: "my weft"}},
		"swap": {func(t *testing.T) string {
			d := blank(t)
			run(t, "mkswap", d)
			return d
		}, inventory.Signature{Type: "swap", Usage: "other"}},
		"a partition table": {func(t *testing.T) string {
			// One Linux partition from sector 2048 on.
			entry := "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00"
			return disk(t, 446, entry+strings.Repeat("\x00", 48)+"\x55\xaa")
		}, inventory.Signature{PartitionTable: "dos"}},
		"an encrypted volume": {func(t *testing.T) string {
			return disk(t, 0, luksHeader)
		}, inventory.Signature{Type: "crypto_LUKS", Usage: "crypto"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := inventory.Blkid{}.Probe(t.Context(), test.path(t))
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// luksHeader is the beginning of a LUKS volume of version 1.
const luksHeader = "LUKS\xba\xbe\x00\x01"

// What blkid answers for content that no tool here can make, and when it fails.
func TestBlkidAnswers(t *testing.T) {
	const xfs = "DEVNAME=/dev/nvme1n1\nLABEL=weft-pool\nUUID=2c1c7f0b-0000-4000-8000-000000000000\nBLOCK_SIZE=512\nTYPE=xfs\nUSAGE=filesystem\n"
	for name, test := range map[string]struct {
		out  inventory.Output
		err  error
		want inventory.Signature
		fail string
	}{
		"a pool":                     {out: inventory.Output{Stdout: xfs}, want: weftPool},
		"ambivalent":                 {out: inventory.Output{ExitCode: 8, Stderr: "blkid: /dev/nvme1n1: ambivalent result"}, want: inventory.Signature{Ambivalent: true}},
		"nothing":                    {out: inventory.Output{ExitCode: 2}, want: inventory.Signature{}},
		"nothing, but a word of why": {out: inventory.Output{ExitCode: 2, Stderr: "blkid: error: /dev/nvme1n1: Input/output error"}, fail: "Input/output error"},
		"found, but not what":        {out: inventory.Output{Stdout: "DEVNAME=/dev/nvme1n1\n"}, fail: "did not say what"},
		"another failure":            {out: inventory.Output{ExitCode: 4, Stderr: "usage"}, fail: "exit code 4: usage"},
		"no such program":            {err: exec.ErrNotFound, fail: "executable file not found"},
	} {
		t.Run(name, func(t *testing.T) {
			path := disk(t, 0, "")
			b := inventory.Blkid{Run: func(_ context.Context, name string, args ...string) (inventory.Output, error) {
				if want := []string{"blkid", "-p", "-o", "export", path}; !slices.Equal(append([]string{name}, args...), want) {
					t.Errorf("ran %s %v, want %v", name, args, want)
				}
				return test.out, test.err
			}}
			got, err := b.Probe(t.Context(), path)
			if test.fail != "" {
				if err == nil || !strings.Contains(err.Error(), test.fail) {
					t.Errorf("got %+v, %v; want an error about %q", got, err, test.fail)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

// blkid itself says "nothing found" of a device that it could not open.
func TestBlkidNeverTakesADeviceItCannotReadForBlank(t *testing.T) {
	for name, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "none"), "a folder": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			if sig, err := (inventory.Blkid{}).Probe(t.Context(), path); err == nil {
				t.Errorf("got %+v, want an error", sig)
			}
		})
	}
}

func TestRunCommand(t *testing.T) {
	out, err := inventory.RunCommand(t.Context(), "sh", "-c", "echo out $LC_ALL; echo err >&2; exit 3")
	if err != nil || out != (inventory.Output{Stdout: "out C\n", Stderr: "err\n", ExitCode: 3}) {
		t.Errorf("got %+v, %v", out, err)
	}
	if _, err := inventory.RunCommand(t.Context(), "sh", "-c", "kill -9 $$"); err == nil {
		t.Error("a command that was killed has no exit code, and is an error")
	}
	if _, err := inventory.RunCommand(t.Context(), "/no/such/program"); err == nil {
		t.Error("a program that does not exist is an error")
	}
}

// The kernel's own addresses: every machine has a loopback interface.
func TestNetlink(t *testing.T) {
	got, err := inventory.Netlink{}.Addresses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := netip.MustParsePrefix("127.0.0.1/8"); !slices.Contains(got["lo"], want) {
		t.Errorf("lo has %v, want %v among them", got["lo"], want)
	}
}
