// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	kexec "k8s.io/utils/exec"
)

func TestCheckUnused(t *testing.T) {
	tests := []struct {
		name      string
		tree      []string
		mounts    []mount.MountInfo
		inUse     bool
		signature string
	}{
		{name: "unused", tree: []string{"sys/dev/block/259:1/holders/", "sys/dev/block/259:1/queue/"}},
		{name: "without sysfs' holders"},
		{name: "mounted", mounts: []mount.MountInfo{{Major: 259, Minor: 1, MountPoint: "/data"}}, inUse: true},
		{name: "another is mounted", mounts: []mount.MountInfo{{Major: 259, Minor: 2, MountPoint: "/data"}}},
		{name: "held", tree: []string{"sys/dev/block/259:1/holders/dm-0/"}, signature: "dm-0"},
		{name: "partitioned", tree: []string{"sys/dev/block/259:1/nvme0n1p1/partition"}, signature: "partition nvme0n1p1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for _, path := range tt.tree {
				full := filepath.Join(root, path)
				if strings.HasSuffix(path, "/") {
					mustMkdir(t, full)
					continue
				}
				mustMkdir(t, filepath.Dir(full))
				if err := os.WriteFile(full, []byte("1\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := CheckUnused(root, "/dev/nvme0n1", unix.Mkdev(259, 1), tt.mounts)
			var foreign *ForeignSignatureError
			switch {
			case tt.signature != "":
				if !errors.As(err, &foreign) || !strings.Contains(foreign.Signature, tt.signature) {
					t.Errorf("error %v, want signature %q", err, tt.signature)
				}
			case errors.Is(err, ErrInUse) != tt.inUse || (err != nil) != tt.inUse:
				t.Errorf("error %v, want in use: %v", err, tt.inUse)
			}
		})
	}
}

func mustMkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A host may write to its volume, and so to the end of the pool's drive, what looks like a RAID member.
func TestPoolIsOneWhateverLiesAtItsEnd(t *testing.T) {
	const size, sectors = 64 << 20, 63 // from the end, where blkid looks
	write := func(head string) string {
		path := filepath.Join(t.TempDir(), "drive")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		_, atStart := f.WriteAt([]byte(head), 0)
		_, atEnd := f.WriteAt([]byte("Promise Technology, Inc."), size-512*sectors)
		if err := errors.Join(atStart, atEnd, f.Truncate(size), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	look := func(head string) Content {
		found, err := Look(t.Context(), kexec.New(), write(head))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := look(SPDKBlobstore); found.Values != nil || !found.HasPrefix(SPDKBlobstore) {
		t.Errorf("an lvstore: %v", found.Values)
	}
	if found := look(""); found.Values["USAGE"] != "raid" {
		t.Errorf("no pool: %v", found.Values)
	}
	if args := BlkidArgs([]byte("XFSB" + strings.Repeat("\x00", 104) + PoolLabel + "\x00\x00\x00")); !slices.Contains(args, "noraid") {
		t.Errorf("an XFS of weft's: %v", args)
	}
	if args := BlkidArgs([]byte("XFSB" + strings.Repeat("\x00", 104) + "another one\x00")); slices.Contains(args, "noraid") {
		t.Errorf("another XFS: %v", args)
	}
}
