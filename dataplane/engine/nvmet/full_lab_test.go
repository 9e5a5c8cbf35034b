// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

const (
	mib = 1 << 20
	// fullPoolBytes is little more than a pool must have, and much less than its volumes could take.
	fullPoolBytes = 320 * mib
	// chunk that is written at a time.
	chunk = 4 * mib
	// block is the least that a pool gives.
	block = 4096
)

// served is a volume with the block device that a host has of it.
type served struct {
	id     engine.ID
	export engine.Export
	device string
}

// fullHost uses volumes of one pool.
type fullHost struct {
	*testing.T
	engine engine.Engine
	pool   engine.Device
	portal engine.Portal
}

func newFullHost(t *testing.T, e engine.Engine, h harness, pool engine.Device) fullHost {
	t.Helper()
	host := fullHost{t, e, pool, h.Portals(t)[0]}
	done(t, e.OpenPortals(t.Context(), []engine.Portal{host.portal}))
	return host
}

// serve makes a volume and connects to it.
func (h fullHost) serve(sizeBytes int64) served {
	h.Helper()
	id := engine.ID(uuid.NewString())
	x := engine.Export{
		NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 2,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}}, Hosts: []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
	}
	done(h.T, h.engine.CreateVolumes(h.Context(), []engine.VolumeSpec{{ID: id, Pool: h.pool.ID, SizeBytes: sizeBytes}}))
	done(h.T, h.engine.Export(h.Context(), []engine.Export{x}))
	c, err := enginetest.ConnectKernel(h.portal.Portal, x.NQN, x.Hosts[0])
	check(h.T, err)
	ns, err := c.Namespace(h.Context(), id)
	check(h.T, err)
	return served{id, x, enginetest.BlockDevice(ns)}
}

// free bytes of the pool, by the engine.
func (h fullHost) free() int64 {
	h.Helper()
	state, err := h.engine.Gather(h.Context())
	check(h.T, err)
	if len(state.Pools) != 1 || state.Pools[0].Err != nil {
		h.Fatalf("pools %+v", state.Pools)
	}
	return state.Pools[0].FreeBytes
}

// TestFullPool: more is promised than there is, and hosts write until there is no room. Each write that finds none
// fails with ENOSPC, and nothing else is lost: what was acknowledged before is there, the target's own filesystem is
// whole, and writes go on as soon as there is room. docs/troubleshooting/pool-full.md tells it.
func TestFullPool(t *testing.T) {
	e, h := fresh(t)
	pool := h.File(t, fullPoolBytes)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	host := newFullHost(t, e, h, pool)
	raw, spare := host.serve(128*mib), host.serve(64*mib)
	disk := host.mount(host.serve(200 * mib))
	disk.awaitTables()
	const held = 8
	for n := range int64(held) {
		check(t, writeAt(raw.device, n*chunk, byte('0'+n)))
	}
	before := sum(t, raw.device, held*chunk)
	program(t, "fallocate", "--length", strconv.Itoa(64*mib), glob(t, stateDir+"/pools/*/volumes/"+string(spare.id))[0])

	files := disk.fill()
	next := int64(held) * chunk
	noSpace(t, "a block that needs room", writeUntil(func() error { next += chunk; return writeAt(raw.device, next-chunk, 'x') }))
	t.Logf("full with %d KiB free; %d files of %d MiB were acknowledged", host.free()>>10, files, chunk/mib)
	if free := host.free(); free >= chunk {
		t.Errorf("%d KiB are free", free>>10)
	}
	check(t, writeAt(raw.device, 0, '0')) // it has its room
	snapshot := engine.ID(uuid.NewString())
	switch err := one(t, e.CreateSnapshots(t.Context(), []engine.SnapshotSpec{{ID: snapshot, Volume: raw.id}})); {
	case err == nil:
		noSpace(t, "a block that a snapshot shares", writeAt(raw.device, 0, '0'))
	case !errors.Is(err, engine.ErrNoSpace):
		t.Errorf("snapshot: %v", err)
	}
	// Until a single block fails, the small writes of a journal may still find room.
	last := next
	noSpace(t, "the last block", writeUntil(func() error { last += block; return write(raw.device, last-block, block, 'x') }))
	disk.goesOn()
	if sum(t, raw.device, held*chunk) != before {
		t.Error("the block volume has other data")
	}

	// Room again, in each of three ways. What a snapshot shares gives none.
	done(t, e.DeleteSnapshots(t.Context(), []engine.ID{snapshot}))
	program(t, "blkdiscard", "--offset", strconv.Itoa(chunk), "--length", strconv.Itoa(chunk), raw.device)
	waitFor(t, func() bool { return host.free() > chunk/2 })
	done(t, e.Unexport(t.Context(), []string{spare.export.NQN}))
	done(t, e.DeleteVolumes(t.Context(), []engine.ID{spare.id}))
	waitFor(t, func() bool { return host.free() > 60*mib })
	check(t, writeAt(raw.device, next-chunk, 'x'))
	disk.comesBack(files)
	pool.FileBytes *= 2
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	if free := host.free(); free < fullPoolBytes {
		t.Errorf("%d MiB are free after the pool has grown by %d", free/mib, fullPoolBytes/mib)
	}
	program(t, "umount", disk.dir)
	enginetest.DisconnectKernel()
	h.Restart(t)
	program(t, "xfs_repair", "-n", pool.Path)
}

// noSpace wants the error of a device, or of a file on it, for which there was no room.
func noSpace(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%s: %v, want ENOSPC", what, err)
	}
}

// writeUntil it fails.
func writeUntil(write func() error) error {
	for {
		if err := write(); err != nil {
			return err
		}
	}
}

// disk is an ext4 that a host has mounted.
type disk struct {
	fullHost
	served
	dir string
}

// mount makes a filesystem and mounts it, as the node plugin does.
func (h fullHost) mount(v served) disk {
	h.Helper()
	d := disk{h, v, h.TempDir()}
	program(h.T, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", d.device)
	d.remount()
	h.Cleanup(func() { _ = exec.CommandContext(context.WithoutCancel(h.Context()), "umount", d.dir).Run() })
	return d
}

func (d disk) remount() {
	d.Helper()
	program(d.T, "mount", "-o", "errors=remount-ro", d.device, d.dir)
}

// awaitTables until the kernel has written the inode tables, which mkfs leaves to the first seconds after the first
// mount. One that was not written when the pool is full has no room: then what the journal has for it is not written
// back, and needs fsck.
func (d disk) awaitTables() {
	d.Helper()
	waitFor(d.T, func() bool {
		groups := program(d.T, "dumpe2fs", d.device)
		return strings.Count(groups, "ITABLE_ZEROED") == strings.Count(groups, ": (Blocks ")
	})
}

func (d disk) file(n int) string { return filepath.Join(d.dir, strconv.Itoa(n)) }

// fill it with files until one fails, and give how many were acknowledged. What is not on the device yet fails when it
// is synced.
func (d disk) fill() (files int) {
	d.Helper()
	err := writeUntil(func() error {
		err := writeFile(d.file(files), byte(files))
		if err == nil {
			files++
		}
		return err
	})
	noSpace(d.T, "a file", err)
	if d.errors() != "0" {
		d.Error("a file that has no room makes the filesystem fail")
	}
	return files
}

// errors that the kernel counts: this is what the node plugin's FilesystemReadOnly rests on.
func (d disk) errors() string {
	d.Helper()
	count, err := os.ReadFile("/sys/fs/ext4/" + filepath.Base(d.device) + "/errors_count")
	check(d.T, err)
	return strings.TrimSpace(string(count))
}

// goesOn: its journal was written when it was made, and has its room; what fails is data.
func (d disk) goesOn() {
	d.Helper()
	err := errors.Join(os.WriteFile(filepath.Join(d.dir, "small"), []byte("hello"), 0o600), syncFilesystem(d.dir))
	if errors.Is(err, unix.EROFS) || d.errors() != "0" {
		d.Errorf("the filesystem fails, with %s errors: %v", d.errors(), err)
	}
}

// comesBack after it was checked, with the files that were acknowledged.
func (d disk) comesBack(files int) {
	d.Helper()
	program(d.T, "umount", d.dir)
	// As the node plugin does: 1 says that errors were corrected.
	out, err := exec.CommandContext(d.Context(), "fsck.ext4", "-p", d.device).CombinedOutput()
	d.Logf("fsck.ext4 -p: %v: %s", err, out)
	program(d.T, "fsck.ext4", "-n", "-f", d.device)
	d.remount()
	for n := range files {
		data, err := os.ReadFile(d.file(n))
		check(d.T, err)
		if !bytes.Equal(data, bytes.Repeat([]byte{byte(n)}, chunk)) {
			d.Errorf("file %d of %d has other data", n, files)
		}
	}
	check(d.T, writeFile(filepath.Join(d.dir, "after"), 'a'))
}

// TestPromisedPoolCanBeFilled: volumes that are promised all of a pool, and no more, can be written to their last
// block.
func TestPromisedPoolCanBeFilled(t *testing.T) {
	e, h := fresh(t)
	pool := h.File(t, fullPoolBytes)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	state, err := e.Gather(t.Context())
	check(t, err)
	size := state.Pools[0].TotalBytes / 2 / chunk * chunk
	host := newFullHost(t, e, h, pool)
	a, b := host.serve(size), host.serve(size)
	for at := int64(0); at < size; at += chunk {
		for _, v := range []served{a, b} {
			if err := writeAt(v.device, at, 'x'); err != nil {
				t.Fatalf("%d of %d MiB of each volume are written: %v", at/mib, size/mib, err)
			}
		}
	}
	t.Logf("two volumes of %d MiB; free in the pool: %d KiB", size/mib, host.free()>>10)
}

// syncFilesystem that a folder lies in.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// writeFile of one chunk, and wait until it is on the device.
func writeFile(path string, fill byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Repeat([]byte{fill}, chunk))
	return errors.Join(err, f.Sync(), f.Close())
}

// directly opens a device past the page cache, with memory for a chunk.
func directly(device string, flags int, do func(f *os.File, memory []byte) error) error {
	f, err := os.OpenFile(device, flags|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		err = errors.Join(do(f, memory), unix.Munmap(memory))
	}
	return errors.Join(err, f.Close())
}

// writeAt a device one chunk.
func writeAt(device string, offset int64, fill byte) error { return write(device, offset, chunk, fill) }

// write at most a chunk to a device.
func write(device string, offset, size int64, fill byte) error {
	return directly(device, os.O_WRONLY, func(f *os.File, memory []byte) error {
		copy(memory, bytes.Repeat([]byte{fill}, int(size)))
		_, err := f.WriteAt(memory[:size], offset)
		return err
	})
}

// sum of what a device begins with.
func sum(t *testing.T, device string, size int64) string {
	t.Helper()
	hash := sha256.New()
	check(t, directly(device, os.O_RDONLY, func(f *os.File, memory []byte) error {
		for at := int64(0); at < size; at += chunk {
			if _, err := io.ReadFull(io.NewSectionReader(f, at, chunk), memory); err != nil {
				return err
			}
			hash.Write(memory)
		}
		return nil
	}))
	return hex.EncodeToString(hash.Sum(nil))
}
