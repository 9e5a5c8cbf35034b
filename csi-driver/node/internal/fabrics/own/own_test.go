// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
)

const (
	volume = v1alpha1.NQNPrefix + "pvc-1"
	host   = v1alpha1.HostNQNPrefix + "11111111-2222-4333-8444-555555555555"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// controller as sysfs has it; empty files are left out.
func controller(t *testing.T, dir, subsystem, host string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	for name, text := range map[string]string{"subsysnqn": subsystem, "hostnqn": host, "delete_controller": "untouched"} {
		if text != "" {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600))
		}
	}
}

// deleted tells whether anything asked to delete what is at a directory.
func deleted(t *testing.T, dir string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "delete_controller"))
	must(t, err)
	return string(text) != "untouched\n"
}

func TestOnlyOursCanBeHad(t *testing.T) {
	const foreign, admin = "nqn.2026-11.example:disk", "nqn.2026-11.example:admin"
	for name, c := range map[string]struct {
		// of the controller, as it is and as it was.
		subsystem, host, wasSubsystem, wasHost string
		want                                   error
	}{
		"ours":                               {volume, host, volume, host, nil},
		"another's subsystem":                {foreign, host, foreign, host, own.ErrForeign},
		"connected by hand":                  {volume, admin, volume, admin, own.ErrForeign},
		"another's subsystem has the name":   {foreign, host, volume, host, fs.ErrNotExist},
		"another volume has the name":        {volume + "2", host, volume, host, fs.ErrNotExist},
		"another host has the name":          {volume, host[:len(host)-1] + "0", volume, host, fs.ErrNotExist},
		"one connected by hand has the name": {volume, admin, volume, host, fs.ErrNotExist},
		"a local drive has the name":         {volume, "", volume, host, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "nvme0")
			controller(t, dir, c.subsystem, c.host)
			got, err := own.Open(dir, c.wasSubsystem, c.wasHost)
			if !errors.Is(err, c.want) || (got != nil) != (c.want == nil) {
				t.Fatalf("got %v, %v", got, err)
			}
			if got != nil {
				must(t, got.Delete())
				must(t, got.Close())
			}
			if deleted(t, dir) != (c.want == nil) {
				t.Error("deleted is the wrong one")
			}
		})
	}
	if _, err := own.Open(filepath.Join(t.TempDir(), "nvme0"), volume, host); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is gone: %v", err)
	}
}

// A controller's name goes to the next one that is made: that must not be deleted in its place.
func TestAnotherWithTheSameNameIsNotDeleted(t *testing.T) {
	root := t.TempDir()
	link, before, after := filepath.Join(root, "nvme0"), filepath.Join(root, "before"), filepath.Join(root, "after")
	controller(t, before, volume, host)
	controller(t, after, "nqn.2026-11.example:disk", host)
	must(t, os.Symlink(before, link))
	c, err := own.Open(link, volume, host)
	must(t, err)
	must(t, os.Remove(link))
	must(t, os.Symlink(after, link))
	must(t, os.RemoveAll(before))
	if err := c.Delete(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	must(t, c.Close())
	if deleted(t, after) {
		t.Error("another controller was deleted, which has the name now")
	}
}
