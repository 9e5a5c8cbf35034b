// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/device"
)

// turnOff the write cache of controller d, or on.
func turnOff(c *client) { setCache(c, 0) }
func turnOn(c *client)  { setCache(c, 1) }

func setCache(c *client, on byte) {
	c.t.Helper()
	entry := make([]byte, nvmeCommandBytes)
	entry[0], entry[40], entry[44] = 0x09, 0x06, on
	c.must("bdev_nvme_send_cmd", map[string]any{"name": "d", "cmd_type": "admin", "data_direction": "c2h", "cmdbuf": base64.URLEncoding.EncodeToString(entry)}, nil)
}

// TestPowerLoss: what was acknowledged from a volatile cache is gone with the power, and nothing else is.
func TestPowerLoss(t *testing.T) {
	const address = "0000:01:00.0"
	reset := func(t *testing.T, target *Target) {
		t.Helper()
		if err := target.ResetDrive(address); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		cache WriteCache
		// before the last write, and after it.
		before, after func(t *testing.T, target *Target, c *client)
		end           func(*Target) error
		lost          bool
	}{
		"from a cache that is on":      {before: func(_ *testing.T, _ *Target, c *client) { turnOn(c) }, lost: true},
		"from one that was turned off": {},
		"after a reset":                {before: func(t *testing.T, target *Target, _ *client) { reset(t, target) }, lost: true},
		"turned off after the write":   {before: func(_ *testing.T, _ *Target, c *client) { turnOn(c) }, after: func(_ *testing.T, _ *Target, c *client) { turnOff(c) }},
		"turned on after the write":    {after: func(_ *testing.T, _ *Target, c *client) { turnOn(c) }},
		"no cache":                     {cache: NoWriteCache, before: func(t *testing.T, target *Target, _ *client) { reset(t, target) }},
		"with the power left on": {
			before: func(_ *testing.T, _ *Target, c *client) { turnOn(c) },
			end:    func(target *Target) error { target.Kill(); return target.LosePower() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortTempDir(t)
			o := Options{Socket: filepath.Join(dir, "spdk.sock"), Drives: []Drive{{
				Address: address, Path: makeDisk(t, filepath.Join(dir, "nvme0"), 1<<30), WriteCache: tt.cache,
			}}}
			attach := map[string]any{"name": "d", "trtype": "PCIe", "traddr": address}
			target := Start(t, o)
			c := dial(t, o.Socket)
			c.must("bdev_nvme_attach_controller", attach, nil)
			if tt.cache != NoWriteCache {
				turnOff(c)
			}
			c.must("bdev_lvol_create_lvstore", map[string]any{"bdev_name": "dn1", "lvs_name": "pool0"}, nil)
			c.must("bdev_lvol_create", lvolParams("a"), nil)
			first := target.WriteWord("a", 0, 1)
			if tt.before != nil {
				tt.before(t, target, c)
			}
			last := errors.Join(target.WriteWord("a", 0, 2), target.WriteWord("a", 1, 3))
			if tt.after != nil {
				tt.after(t, target, c)
			}
			end := (*Target).LosePower
			if tt.end != nil {
				end = tt.end
			}
			if err := errors.Join(first, last, end(target)); err != nil {
				t.Fatal(err)
			}
			if err := target.WriteWord("a", 0, 4); !errors.Is(err, ErrEnded) {
				t.Errorf("a target that has ended acknowledges a write: %v", err)
			}
			target = Start(t, o)
			c = dial(t, o.Socket)
			c.must("bdev_nvme_attach_controller", attach, nil)
			want := [2]uint64{2, 3}
			if tt.lost {
				want = [2]uint64{1, 0}
			}
			check(t, target, want)
		})
	}
}

// check the first words of volume a.
func check(t *testing.T, target *Target, want [2]uint64) {
	t.Helper()
	for at, word := range want {
		if got, err := target.ReadWord("a", uint64(at)); err != nil || got != word {
			t.Errorf("cluster %d reads %d, %v; want %d", at, got, err, word)
		}
	}
}

// TestPowerLossOfAFile: the kernel acknowledges what is written to a file, unless the file is synchronous.
func TestPowerLossOfAFile(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	path := filepath.Join(dir, "disk0.bin")
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	if err := errors.Join(device.MakeSynchronous(path), target.WriteWord("a", 0, 1), target.LosePower()); err != nil {
		t.Fatal(err)
	}
	target = Start(t, Options{Socket: target.Socket()})
	c = dial(t, target.Socket())
	attachDisk(c, dir)
	check(t, target, [2]uint64{1, 0})

	asynchronous(t, path)
	if err := errors.Join(target.WriteWord("a", 0, 2), target.WriteWord("a", 1, 3), target.LosePower()); err != nil {
		t.Fatal(err)
	}
	target = Start(t, Options{Socket: target.Socket()})
	attachDisk(dial(t, target.Socket()), dir)
	check(t, target, [2]uint64{1, 0})
}

// TestCacheIsSmall: a cache holds the last writes only.
func TestCacheIsSmall(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	for word := range uint64(2 * cacheWrites) {
		if err := target.WriteWord("a", 0, 1+word); err != nil {
			t.Fatal(err)
		}
	}
	if err := target.LosePower(); err != nil {
		t.Fatal(err)
	}
	target = Start(t, Options{Socket: target.Socket()})
	attachDisk(dial(t, target.Socket()), dir)
	check(t, target, [2]uint64{cacheWrites, 0})
}

// asynchronous makes a file what it was before device.MakeSynchronous.
func asynchronous(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags&^syncFlag)), f.Close())
	if err != nil {
		t.Fatal(err)
	}
}
