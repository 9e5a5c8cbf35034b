// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOneTargetASocket(t *testing.T) {
	o := Options{Socket: filepath.Join(shortTempDir(t), "spdk.sock")}
	first := Start(t, o)
	if _, err := Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second target on the socket: %v", err)
	}
	dial(t, o.Socket).must("keyring_get_keys", nil, nil)
	first.Kill()
	if _, err := os.Lstat(o.Socket); err != nil {
		t.Errorf("kill took the socket away: %v", err)
	}
	second := Start(t, o)
	dial(t, o.Socket).must("keyring_get_keys", nil, nil)
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(o.Socket + "*"); err != nil || len(left) != 0 {
		t.Errorf("a clean end left %v, %v", left, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	third, err := Listen(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-third.Done()
}

func TestWrongOptions(t *testing.T) {
	for _, o := range []Options{
		{}, {Socket: strings.Repeat("x", 108)}, {Socket: "s", CoreMask: "0x0"}, {Socket: "s", CoreMask: "[1"},
		{Socket: "s", PollInterval: -1}, {Socket: "s", Drives: []Drive{{Address: "0000:01:00.0"}}},
	} {
		if _, err := Listen(t.Context(), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestSecondLife: volumes outlive the target, exports do not.
func TestSecondLife(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	c.must("bdev_lvol_create", lvolParams("b"), nil)
	export(t, c, "pool0/a")
	if err := errors.Join(target.Write("pool0/a", 0, 3), target.Write("pool0/a", 2, 2)); err != nil {
		t.Fatal(err)
	}
	c.must("bdev_lvol_snapshot", map[string]any{"lvol_name": "pool0/a", "snapshot_name": "s"}, nil)
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/b"}, nil)
	before := storeState(c)
	target.Kill()

	again := Start(t, Options{Socket: target.Socket()})
	c = dial(t, again.Socket())
	if got := storeState(c); got != "[] []" {
		t.Errorf("before the device is there: %s", got)
	}
	attachDisk(c, dir)
	if got := storeState(c); got != before {
		t.Errorf("after a restart:\nwant %s\n got %s", before, got)
	}
	var subsystems []struct{ NQN string }
	c.must("nvmf_get_subsystems", nil, &subsystems)
	if len(subsystems) != 1 || subsystems[0].NQN != discoveryNQN {
		t.Errorf("subsystems outlived the target: %v", subsystems)
	}
}

func storeState(c *client) string {
	stores, lvols := c.call("bdev_lvol_get_lvstores", nil), c.call("bdev_lvol_get_lvols", nil)
	return fmt.Sprintf("%s %s", stores.Result, lvols.Result)
}

// TestMetadataIsOnTheDevice: a device that was moved has the volumes, a wiped one has not, and what a real target has
// written is left alone.
func TestMetadataIsOnTheDevice(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	target.Kill()
	disk := filepath.Join(dir, "disk0.bin")
	wipe := func(at int64, with string) {
		t.Helper()
		f, err := os.OpenFile(disk, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(with), at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "elsewhere")
	if err := os.Rename(disk, filepath.Join(dir, "disk0.bin")); err != nil {
		t.Fatal(err)
	}
	disk = filepath.Join(dir, "disk0.bin")
	again := Start(t, Options{Socket: target.Socket()})
	c = dial(t, again.Socket())
	attachDisk(c, dir)
	if got := volumes(c); len(got) != 1 {
		t.Errorf("volumes %v", got)
	}
	again.Kill()

	wipe(journalStart, strings.Repeat("\xff", 64))
	third := Start(t, Options{Socket: target.Socket()})
	c = dial(t, third.Socket())
	c.fails("bdev_aio_create", map[string]any{"name": "d", "filename": disk, "block_size": 4096}, -5, "Input/output error")
	third.Kill()

	wipe(0, strings.Repeat("\x00", 512))
	fourth := Start(t, Options{Socket: target.Socket()})
	c = dial(t, fourth.Socket())
	attachDisk(c, dir)
	if got := storeState(c); got != "[] []" {
		t.Errorf("a wiped device still has %s", got)
	}
}

// TestJournalIsRewritten: many changes do not outgrow the space that metadata has.
func TestJournalIsRewritten(t *testing.T) {
	dir := shortTempDir(t)
	disk := makeDisk(t, filepath.Join(dir, "small.bin"), 1<<20)
	o := Options{Socket: filepath.Join(dir, "spdk.sock")}
	target := Start(t, o)
	c := dial(t, o.Socket)
	c.must("bdev_aio_create", map[string]any{"name": "d", "filename": disk, "block_size": 4096}, nil)
	c.must("bdev_lvol_create_lvstore", map[string]any{"bdev_name": "d", "lvs_name": "pool0", "cluster_sz": 64 << 10}, nil)
	c.must("bdev_lvol_create", lvolParams("kept"), nil)
	if err := target.Write("pool0/kept", 1, 2); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		c.must("bdev_lvol_create", lvolParams("v"), nil)
		c.must("bdev_lvol_delete", map[string]any{"name": "pool0/v"}, nil)
	}
	before := storeState(c)
	target.Kill()
	Start(t, o)
	c = dial(t, o.Socket)
	c.must("bdev_aio_create", map[string]any{"name": "d", "filename": disk, "block_size": 4096}, nil)
	if got := storeState(c); got != before {
		t.Errorf("after a restart:\nwant %s\n got %s", before, got)
	}
}
