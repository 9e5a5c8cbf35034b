// SPDX-License-Identifier: Apache-2.0

//go:build lab

package inventory

import (
	"os"
	"os/exec"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// TestErasedDriveIsBlank writes to the node's second NVMe drive, as software does that uses drives raw, and erases it
// as the documents say.
func TestErasedDriveIsBlank(t *testing.T) {
	const name = "nvme1n1"
	look := func(want v1alpha1.DriveContent) {
		t.Helper()
		found, err := drives(t.Context(), tree{root: "/"}, Blkid{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			if d.Name != name {
				continue
			}
			if d.Content != want {
				t.Fatalf("%s is %s (%s), want %s", name, d.Content, d.ContentDetail, want)
			}
			return
		}
		t.Fatalf("no %s: run this on a node of the lab (weft-lab up)", name)
	}
	look(v1alpha1.ContentBlank)
	for _, end := range []struct {
		at     int64
		whence int
	}{{1<<20 - 1, 0}, {-1, 2}} {
		f, err := os.OpenFile("/dev/"+name, os.O_WRONLY|os.O_SYNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(end.at, end.whence); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		look(v1alpha1.ContentUnknown)
		if out, err := exec.CommandContext(t.Context(), "blkdiscard", "-f", "/dev/"+name).CombinedOutput(); err != nil {
			t.Fatalf("blkdiscard: %v: %s", err, out)
		}
		look(v1alpha1.ContentBlank)
	}
}
