// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

func superblock(label string, inProgress byte) []byte {
	head := make([]byte, 4096)
	copy(head, "XFSB")
	copy(head[108:120], label)
	head[126] = inProgress
	return head
}

func headWith(at int, bytes string) []byte {
	head := make([]byte, 128<<10)
	copy(head[at:], bytes)
	return head
}

// TestProbe: what blkid said is as util-linux 2.41 writes it with -o export.
func TestProbe(t *testing.T) {
	tests := []struct {
		name      string
		head      []byte
		blkid     string
		exit      int
		is        content
		signature string
		fails     bool
	}{
		{name: "blank", head: make([]byte, 128<<10), exit: 2, is: blank},
		{name: "data that no signature points to", head: headWith(9000, "raw"), exit: 2, signature: "data without a signature"},
		{name: "a pool that lost its beginning", head: headWith(100<<10, "XAGF"), exit: 2, signature: "data without a signature"},
		{name: "ours", head: superblock(PoolLabel, 0), blkid: "DEVNAME=/dev/sdx\nLABEL=weft-pool\nUUID=1\nBLOCK_SIZE=512\nTYPE=xfs\nUSAGE=filesystem\n", is: ours},
		{name: "ours, on a partition", head: superblock(PoolLabel, 0), blkid: "LABEL=weft-pool\nTYPE=xfs\nUSAGE=filesystem\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_NUMBER=1\n", is: ours},
		{name: "our mkfs, interrupted", head: superblock(PoolLabel, 1), blkid: "LABEL=weft-pool\nTYPE=xfs\nUSAGE=filesystem\n", is: unfinished},
		{name: "our mkfs, interrupted, checksum not written", head: superblock(PoolLabel, 1), exit: 2, is: unfinished},
		{name: "ours, damaged", head: superblock(PoolLabel, 0), exit: 2, signature: "damaged xfs filesystem"},
		{name: "another's mkfs, interrupted", head: superblock("data", 1), exit: 2, signature: "damaged xfs filesystem"},
		{name: "another xfs", head: superblock("data", 0), blkid: "LABEL=data\nTYPE=xfs\nUSAGE=filesystem\n", signature: "xfs filesystem"},
		{name: "ext4", blkid: "UUID=2\nVERSION=1.0\nTYPE=ext4\nUSAGE=filesystem\n", signature: "ext4 filesystem"},
		{name: "ext4 with our label", blkid: "LABEL=weft-pool\nTYPE=ext4\nUSAGE=filesystem\n", signature: "ext4 filesystem"},
		{name: "ext4, damaged", head: headWith(0x438, "\x53\xef"), exit: 2, signature: "damaged ext filesystem"},
		{name: "partition table", blkid: "PTUUID=3\nPTTYPE=gpt\n", signature: "gpt partition table"},
		{name: "partition table and our label", blkid: "LABEL=weft-pool\nTYPE=xfs\nUSAGE=filesystem\nPTTYPE=dos\n", signature: "dos partition table"},
		{name: "LVM", blkid: "TYPE=LVM2_member\nUSAGE=raid\n", signature: "LVM2_member signature"},
		{name: "swap", blkid: "TYPE=swap\nUSAGE=other\n", signature: "swap signature"},
		{name: "SPDK", head: headWith(0, "SPDKBLOB"), exit: 2, signature: "SPDK blobstore"},
		{name: "several", exit: 8, signature: "mix of several signatures"},
		{name: "something without a name", blkid: "UUID=4\n", signature: "signature that blkid cannot name"},
		{name: "blkid fails", exit: 4, fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "device")
			if err := errors.Join(os.WriteFile(path, tt.head, 0o600), os.Truncate(path, 4<<20)); err != nil {
				t.Fatal(err)
			}
			h := &host{root: "/", exec: fakeExec(t, slices.Concat([]string{"blkid"}, device.BlkidArgs(tt.head), []string{path}), tt.blkid, tt.exit)}
			is, err := h.probe(t.Context(), path)
			var foreign *device.ForeignSignatureError
			switch {
			case errors.As(err, &foreign):
				if tt.signature == "" || !strings.Contains(foreign.Signature, tt.signature) || foreign.Device != path {
					t.Errorf("refused as %q on %s, want %q", foreign.Signature, foreign.Device, tt.signature)
				}
			case tt.signature != "" || (err != nil) != tt.fails:
				t.Errorf("%v, %v; want signature %q, failure %v", is, err, tt.signature, tt.fails)
			case err == nil && is != tt.is:
				t.Errorf("content %v, want %v", is, tt.is)
			}
		})
	}
	t.Run("a device that cannot be read is not blank", func(t *testing.T) {
		h := &host{root: "/", exec: &testingexec.FakeExec{}}
		if is, err := h.probe(t.Context(), filepath.Join(t.TempDir(), "missing")); err == nil {
			t.Errorf("content %v", is)
		}
	})
}

// TestFormatDoesNotDiscard, which would take as long as the drive is large.
func TestFormatDoesNotDiscard(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "drive")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, v1alpha1.MinXFSBytes)); err != nil {
		t.Fatal(err)
	}
	fake := &testingexec.FakeExec{CommandScript: []testingexec.FakeCommandAction{
		fakeCommand(t, []string{"blkid", "-p", "-o", "export", path}, "", 2),
		fakeCommand(t, []string{"mkfs.xfs", "-q", "-K", "-L", PoolLabel, "-m", "reflink=1", path}, "", 0),
	}}
	h := &host{root: root, exec: fake}
	if err := h.format(t.Context(), engine.Device{ID: "/drive", Path: "/drive", FileBytes: v1alpha1.MinXFSBytes}, "/drive", filepath.Join(root, "pool")); err != nil {
		t.Error(err)
	}
	if fake.CommandCalls != 2 {
		t.Errorf("ran %d commands", fake.CommandCalls)
	}
}

// fakeExec expects one command.
func fakeExec(t *testing.T, want []string, stdout string, exit int) exec.Interface {
	return &testingexec.FakeExec{CommandScript: []testingexec.FakeCommandAction{fakeCommand(t, want, stdout, exit)}}
}

// fakeCommand that is expected.
func fakeCommand(t *testing.T, want []string, stdout string, exit int) testingexec.FakeCommandAction {
	return func(name string, args ...string) exec.Cmd {
		if got := append([]string{name}, args...); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("ran %v, want %v", got, want)
		}
		cmd := &testingexec.FakeCmd{}
		cmd.RunScript = []testingexec.FakeAction{func() ([]byte, []byte, error) {
			if !strings.Contains(strings.Join(cmd.Env, "\n"), "LC_ALL=C") {
				t.Error("the language of messages is not fixed")
			}
			if exit != 0 {
				return nil, nil, &testingexec.FakeExitError{Status: exit}
			}
			return []byte(stdout), nil, nil
		}}
		return cmd
	}
}
