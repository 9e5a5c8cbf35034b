// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// An aioFile is what bdev_aio_create was asked for.
type aioFile struct {
	Name      string `json:"name"`
	BlockSize uint32 `json:"block_size,omitempty"`
	Filename  string `json:"filename"`
	ReadOnly  bool   `json:"readonly"`
	Fallocate bool   `json:"fallocate"`
	UUID      string `json:"uuid"`
	Nowait    bool   `json:"nowait"`

	override bool
}

var aioIOTypes = []string{"read", "write", "flush", "reset", "write_zeroes"}

func (a *app) bdevAioCreate(r *request) {
	f := &aioFile{UUID: uuid.NewString()}
	if !r.decode(required("name", asString(&f.Name)), required("filename", asString(&f.Filename)),
		optional("block_size", asUint(&f.BlockSize)), optional("readonly", asBool(&f.ReadOnly)),
		optional("fallocate", asBool(&f.Fallocate)), optional("uuid", asUUID(&f.UUID)),
		optional("nowait", asBool(&f.Nowait))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b, err := a.openAio(f)
	if err != nil {
		r.errno(errnoOf(err))
		return
	}
	if e := a.register(b); e != 0 {
		b.disk.close()
		r.errno(e)
		return
	}
	a.appeared(b)
	a.examined(func() { r.answer(b.name) })
}

func (a *app) openAio(f *aioFile) (*bdev, error) {
	d, err := openDisk(filepath.Join(a.opts.Root, f.Filename), f.ReadOnly)
	if err != nil {
		return nil, err
	}
	d.volatile = func() bool { return isAsynchronous(d.file) }
	fail := func(err error) (*bdev, error) { return nil, errors.Join(err, d.file.Close()) }
	detected, isBlock := detectBlockSize(d.file)
	switch {
	case f.Nowait && !isBlock:
		return fail(syscall.ENOTSUP)
	case f.BlockSize == 0 && detected == 0:
		return fail(syscall.EINVAL)
	case f.BlockSize == 0:
		f.BlockSize = detected
	default:
		f.override = true
	}
	if f.BlockSize < detected || f.BlockSize < 512 || f.BlockSize&(f.BlockSize-1) != 0 || d.size%int64(f.BlockSize) != 0 {
		return fail(syscall.EINVAL)
	}
	if _, err := d.hasStore(); err != nil {
		return fail(err)
	}
	b := &bdev{
		name: f.Name, aliases: []string{f.UUID}, product: "AIO disk", uuid: f.UUID, ioTypes: aioIOTypes,
		blockSize: f.BlockSize, numBlocks: uint64(d.size) / uint64(f.BlockSize), disk: d, aio: f, io: examined,
	}
	b.specific = func() map[string]any {
		return map[string]any{"aio": map[string]any{
			"filename": f.Filename, "block_size_override": f.override, "readonly": f.ReadOnly,
			"fallocate": f.Fallocate, "nowait": f.Nowait,
		}}
	}
	return b, nil
}

// detectBlockSize asks a block device. A file has none of its own: its block size must be given.
func detectBlockSize(f *os.File) (size uint32, isBlock bool) {
	sector, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return 0, false
	}
	return uint32(sector), true
}

func (a *app) bdevAioRescan(r *request) {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b := a.bdevNames[name]
	if b == nil || b.aio == nil {
		r.errno(syscall.ENODEV)
		return
	}
	if err := b.disk.measure(); err != nil {
		r.errno(errnoOf(err))
		return
	}
	if e := a.resized(b, uint64(b.disk.size)/uint64(b.blockSize)); e != 0 {
		r.errno(e)
		return
	}
	r.answer(true)
}

func (a *app) bdevAioDelete(r *request) {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b := a.bdevNames[name]
	if b == nil || b.aio == nil {
		r.errno(syscall.ENODEV)
		return
	}
	a.removeBase(b, func() { r.answer(true) })
}

// removeBase takes a base device away, and with it the lvstore on it: nothing of that is lost on the device.
func (a *app) removeBase(b *bdev, done func()) {
	remove := func() {
		a.unregister(b, func() {
			b.disk.close()
			done()
		})
	}
	if b.store != nil {
		a.unloadStore(b.store, remove)
		return
	}
	remove()
}

// closeDisks lets go of all devices at the end of the target.
func (a *app) closeDisks() {
	for _, b := range a.bdevs {
		if b.disk != nil {
			b.disk.close()
		}
	}
}
