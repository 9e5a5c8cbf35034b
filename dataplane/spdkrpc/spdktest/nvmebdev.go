// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

// An nvmeController is a local drive attached by its PCI address.
type nvmeController struct {
	name  string
	drive Drive
	bdev  *bdev
	// cacheOn: its volatile write cache is in use.
	cacheOn bool
	// mute: it is dead, and SPDK waits for its answers.
	mute bool
	// owes an answer to an I/O command.
	owes bool
}

var nvmeIOTypes = []string{
	"read", "write", "unmap", "flush", "reset", "nvme_admin", "nvme_io", "write_zeroes", "compare", "abort",
}

// nvmeParameters are the ones of bdev_nvme_attach_controller that say nothing about a local drive.
func nvmeParameters() []field {
	var s string
	var b bool
	var n uint64
	var i int32
	fields := []field{}
	for _, name := range []string{
		"adrfam", "trsvcid", "priority", "subnqn", "hostnqn", "hostaddr", "hostsvcid", "psk", "dhchap_key",
		"dhchap_ctrlr_key",
	} {
		fields = append(fields, optional(name, asString(&s)))
	}
	for _, name := range []string{"prchk_reftag", "prchk_guard", "hdgst", "ddgst", "allow_unrecognized_csi"} {
		fields = append(fields, optional(name, asBool(&b)))
	}
	for _, name := range []string{
		"fabrics_connect_timeout_us", "num_io_queues", "reconnect_delay_sec", "fast_io_fail_timeout_sec", "max_bdevs",
	} {
		fields = append(fields, optional(name, asUint(&n)))
	}
	return append(fields, optional("ctrlr_loss_timeout_sec", asInt32(&i)),
		optional("multipath_opts", asObject(false)))
}

func (a *app) bdevNvmeAttach(r *request) {
	var name, trtype, traddr string
	multipath := "multipath"
	if !r.decode(append(nvmeParameters(), required("name", asString(&name)), required("trtype", asString(&trtype)),
		required("traddr", asString(&traddr)),
		optional("multipath", asOneOf(&multipath, "disable", "failover", "multipath")))...) {
		r.fail(codeInternal, msgDecode)
		return
	}
	for _, c := range a.controllers {
		if c.name != name {
			continue
		}
		if multipath == "disable" {
			r.failf(-int(syscall.EALREADY), "A controller named %s already exists and multipath is disabled", name)
			return
		}
		r.failf(-int(syscall.EALREADY), "A controller named %s already exists with the specified network path", name)
		return
	}
	i := slices.IndexFunc(a.opts.Drives, func(d Drive) bool { return strings.EqualFold(d.Address, traddr) })
	if i < 0 || !strings.EqualFold(trtype, "PCIe") || a.attached(traddr) {
		a.post(func() { r.errno(syscall.ENODEV) }) // probing finds nothing there
		return
	}
	b, err := openDrive(name, a.opts.Drives[i])
	if err != nil {
		r.errno(errnoOf(err))
		return
	}
	if e := a.register(b); e != 0 {
		b.disk.close()
		r.errno(e)
		return
	}
	c := &nvmeController{name: name, drive: a.opts.Drives[i], bdev: b}
	c.reset()
	b.disk.volatile = func() bool { return c.cacheOn }
	a.controllers = append(a.controllers, c)
	b.mute = c.drive.Mute
	a.appeared(b)
	a.examined(func() { r.answer([]string{b.name}) })
}

func (a *app) attached(address string) bool {
	return slices.ContainsFunc(a.controllers, func(c *nvmeController) bool {
		return strings.EqualFold(c.drive.Address, address)
	})
}

// openDrive makes the bdev of a drive's first namespace; its UUID follows from the drive, so it is the same each time.
func openDrive(name string, d Drive) (*bdev, error) {
	disk, err := openDisk(d.Path, false)
	if err != nil {
		return nil, err
	}
	if _, err := disk.hasStore(); err != nil {
		disk.close()
		return nil, err
	}
	block := d.BlockSize
	if block == 0 {
		block = 512
	}
	id := d.NGUID.String()
	if d.NGUID == uuid.Nil {
		id = uuid.NewSHA1(uuid.NameSpaceOID, []byte(d.Serial+"\x001")).String()
	}
	b := &bdev{
		name: name + "n1", aliases: []string{id}, product: "NVMe disk", uuid: id, blockSize: block,
		numBlocks: uint64(disk.size) / uint64(block), disk: disk, ioTypes: nvmeIOTypes, io: examined,
	}
	b.specific = func() map[string]any {
		return map[string]any{
			"nvme": []any{map[string]any{
				"pci_address": d.Address, "trid": map[string]string{"trtype": "PCIe", "traddr": d.Address},
				"ctrlr_data": map[string]any{
					"cntlid": 0, "model_number": d.Model, "serial_number": d.Serial, "firmware_revision": "1.0",
				},
				"vs": map[string]any{"nvme_version": "1.4"}, "ns_data": map[string]any{"id": 1, "can_share": false},
			}},
			"mp_policy": "active_passive",
		}
	}
	return b, nil
}

func (a *app) bdevNvmeDetach(r *request) {
	var name, s string
	if !r.decode(required("name", asString(&name)), optional("trtype", asString(&s)), optional("traddr", asString(&s)),
		optional("adrfam", asString(&s)), optional("trsvcid", asString(&s)), optional("subnqn", asString(&s)),
		optional("hostaddr", asString(&s)), optional("hostsvcid", asString(&s))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	i := slices.IndexFunc(a.controllers, func(c *nvmeController) bool { return c.name == name })
	if i < 0 {
		r.errno(syscall.ENODEV)
		return
	}
	c := a.controllers[i]
	if c.owes {
		// Its bdev goes, and the controller stays as long as the command has its queue: SPDK waits for ten seconds.
		a.removeBase(c.bdev, func() { r.errno(syscall.ETIMEDOUT) })
		return
	}
	a.controllers = slices.Delete(a.controllers, i, i+1)
	a.removeBase(c.bdev, func() { r.answer(true) })
}
