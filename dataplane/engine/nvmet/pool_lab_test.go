// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	kexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
)

// fresh engine on an empty target.
func fresh(t *testing.T) (*nvmet.Engine, harness) {
	t.Helper()
	h := harness{}
	h.Reset(t)
	t.Cleanup(func() { h.Reset(t) })
	return nvmet.New(nvmet.Options{StateDir: stateDir}), h
}

func one(t *testing.T, errs []error) error {
	t.Helper()
	if len(errs) != 1 {
		t.Fatalf("%d errors for one item", len(errs))
	}
	return errs[0]
}

// patch bytes of a device.
func patch(t *testing.T, path string, at int64, bytes ...byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0)
	check(t, err)
	_, err = f.WriteAt(bytes, at)
	check(t, err)
	check(t, f.Close())
}

// TestInterruptedFormat is begun again, and only that.
func TestInterruptedFormat(t *testing.T) {
	e, h := fresh(t)
	d := h.BlankDevice(t)
	program(t, "mkfs.xfs", "-q", "-L", nvmet.PoolLabel, d.Path)
	patch(t, d.Path, 126, 1)
	check(t, one(t, e.OpenPools(t.Context(), []engine.Device{d})))

	for _, tt := range []struct {
		name   string
		damage func(path string)
	}{
		{"a pool whose checksum is wrong", func(path string) {
			program(t, "mkfs.xfs", "-q", "-L", nvmet.PoolLabel, path)
			patch(t, path, 200, 0xff, 0xff)
		}},
		{"an ext4 whose checksum is wrong", func(path string) {
			program(t, "mke2fs", "-q", "-t", "ext4", path)
			patch(t, path, 1024+0x200, 0xff, 0xff)
		}},
		{"data that has no signature", func(path string) { patch(t, path, 1<<20-1, 1) }},
		{"data that has no signature, at the end", func(path string) { patch(t, path, enginetest.PoolBytes-1<<20, 1) }},
		{"a partition table", func(path string) { patch(t, path, 512, []byte("EFI PART")...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := h.BlankDevice(t)
			tt.damage(d.Path)
			var foreign *device.ForeignSignatureError
			if err := one(t, e.OpenPools(t.Context(), []engine.Device{d})); !errors.As(err, &foreign) {
				t.Fatalf("error %v", err)
			} else {
				t.Log(err)
			}
		})
	}
}

// TestPoolWhoseEndsWereCleared reads as blank, and is not made anew while its folder is there.
func TestPoolWhoseEndsWereCleared(t *testing.T) {
	e, h := fresh(t)
	d := h.BlankDevice(t)
	check(t, one(t, e.OpenPools(t.Context(), []engine.Device{d})))
	dir := glob(t, stateDir+"/pools/*")[0]
	program(t, "umount", dir)
	for _, at := range []int64{0, enginetest.PoolBytes - 1<<20} {
		patch(t, d.Path, at, make([]byte, 1<<20)...)
	}
	for range 2 {
		if err := one(t, e.OpenPools(t.Context(), []engine.Device{d})); err == nil || !strings.Contains(err.Error(), "remove the directory "+dir) {
			t.Fatalf("error %v", err)
		}
	}
	check(t, os.Remove(dir))
	check(t, one(t, e.OpenPools(t.Context(), []engine.Device{d})))
}

// TestForeignConfiguration in configfs is left alone, and what it serves is not deleted.
func TestForeignConfiguration(t *testing.T) {
	e, h := fresh(t)
	d := h.BlankDevice(t)
	check(t, one(t, e.OpenPools(t.Context(), []engine.Device{d})))
	id := engine.ID(uuid.NewString())
	check(t, one(t, e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: d.ID, SizeBytes: 4 << 20}})))
	other := configfs + "/subsystems/nqn.2014-08.org.nvmexpress:another"
	check(t, os.MkdirAll(other+"/namespaces/1", 0o755))
	check(t, os.Mkdir(configfs+"/ports/1", 0o755))
	volume := glob(t, stateDir+"/pools/*/volumes/*")[0]
	check(t, os.WriteFile(other+"/namespaces/1/device_path", []byte(volume), 0o200))

	state, err := e.Gather(t.Context())
	check(t, err)
	if len(state.Exports) > 0 || len(state.Portals) > 0 {
		t.Errorf("exports %v, portals %v", state.Exports, state.Portals)
	}
	if err := one(t, e.DeleteVolumes(t.Context(), []engine.ID{id})); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("deleting what another subsystem serves: %v", err)
	}
	for _, dir := range []string{other, configfs + "/ports/1"} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// TestPortalThatCannotListen says why, and keeps no export from the other portals.
func TestPortalThatCannotListen(t *testing.T) {
	e, h := fresh(t)
	exports := manyVolumes(t, e, h)[:1]
	portals := h.Portals(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(portals[0].Address, "4430"))
	check(t, err)
	defer func() { _ = listener.Close() }()
	elsewhere := portals[1]
	elsewhere.Address = "192.0.2.77"
	errs := e.OpenPortals(t.Context(), append(portals, elsewhere))
	for i, want := range []error{engine.ErrInUse, nil, engine.ErrNotFound} {
		if !errors.Is(errs[i], want) {
			t.Errorf("portal %d: error %v, want %v", i, errs[i], want)
		}
	}
	if err := one(t, e.Export(t.Context(), exports)); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("export: %v", err)
	}
	c, err := enginetest.ConnectKernel(portals[1].Portal, exports[0].NQN, exports[0].Hosts[0])
	check(t, err)
	c.Disconnect()
}

// TestSwappedDrive: the path leads to another drive than the plan means. It is neither formatted nor mounted, blank or
// with a pool; the right one in the same call is.
func TestSwappedDrive(t *testing.T) {
	e, h := fresh(t)
	const drive = "/dev/nvme1n1"
	swapped, right := engine.Device{ID: "eui.of-the-drive-before", Path: drive}, engine.Device{ID: wwid(t, drive), Path: drive}
	loop := h.BlankDevice(t)
	refused := func() {
		t.Helper()
		errs := e.OpenPools(t.Context(), []engine.Device{swapped, loop})
		var other *device.SwappedError
		if !errors.As(errs[0], &other) || other.Found != right.ID || errs[1] != nil {
			t.Fatalf("%v; want that %s is there instead; this test needs a blank %s", errs, right.ID, drive)
		}
		if dirs := glob(t, stateDir+"/pools/*"); len(dirs) != 1 {
			t.Errorf("folders of pools %v, want that of %s only", dirs, loop.ID)
		}
	}
	refused()
	found, err := device.Look(t.Context(), kexec.New(), drive)
	check(t, err)
	if name := found.Name(); name != "" {
		t.Fatalf("a %s was made on the swapped drive", name)
	}
	check(t, one(t, e.OpenPools(t.Context(), []engine.Device{right})))
	t.Cleanup(func() {
		h.Restart(t)
		program(t, "blkdiscard", "-f", drive)
	})
	h.Restart(t)
	check(t, os.Remove(stateDir+"/pools/"+url.PathEscape(right.ID)))
	refused()
}

// TestDrive makes a pool of the node's second NVMe drive, by a link as under /dev/disk/by-id, and gives it back.
func TestDrive(t *testing.T) {
	e, h := fresh(t)
	const drive = "/dev/nvme1n1"
	link := filepath.Join(scratch, "by-id")
	check(t, os.Symlink(drive, link))
	d := engine.Device{ID: wwid(t, drive), Path: link}
	if err := one(t, e.OpenPools(t.Context(), []engine.Device{d})); err != nil {
		t.Fatalf("%v; this test needs a blank %s", err, drive)
	}
	t.Cleanup(func() {
		h.Restart(t)
		program(t, "blkdiscard", "-f", drive)
	})
	id := engine.ID(uuid.NewString())
	check(t, one(t, e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: d.ID, SizeBytes: 1 << 30}})))
	h.Restart(t)
	for range 2 {
		check(t, one(t, e.OpenPools(t.Context(), []engine.Device{d})))
	}
	state, err := e.Gather(t.Context())
	check(t, err)
	if len(state.Volumes) != 1 || state.Volumes[0].ID != id || state.Pools[0].Path != drive {
		t.Errorf("state %+v", state)
	}
	if err := one(t, e.OpenPools(t.Context(), []engine.Device{{ID: wwid(t, drive) + "again", Path: drive}})); !errors.Is(err, device.ErrInUse) {
		t.Errorf("the same drive by another name: %v", err)
	}
	info, err := e.Info(t.Context())
	check(t, err)
	t.Logf("info: %+v", info)
	if info.Type != v1alpha1.EngineNvmet || len(info.Transports) != 2 || !strings.HasPrefix(info.Version, "6.") {
		t.Errorf("info %+v", info)
	}
}
