// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

// A WriteCache is what a drive has of one.
type WriteCache int

const (
	// VolatileWriteCache is on after each reset of the controller, and can be turned off.
	VolatileWriteCache WriteCache = iota
	// FixedWriteCache is volatile and cannot be turned off.
	FixedWriteCache
	// NoWriteCache that loses anything.
	NoWriteCache
)

// Status codes of the NVMe Base Specification, with their types above them.
const (
	nvmeSuccess              = 0
	nvmeInvalidOpcode        = 0x001
	nvmeInvalidField         = 0x002
	nvmeDataTransferError    = 0x004
	nvmeInvalidNamespace     = 0x00b
	nvmeOutOfRange           = 0x080
	nvmeInvalidLogPage       = 0x109
	nvmeFeatureNotSaveable   = 0x10d
	nvmeFeatureNotChangeable = 0x10e
	nvmeFeatureNotNamespaces = 0x10f
	nvmeUnrecoveredRead      = 0x281
)

// nvmeCommandBytes and nvmeCompletionBytes are queue entries, nvmeIdentifyBytes the data of Identify Controller.
const (
	nvmeCommandBytes    = 64
	nvmeCompletionBytes = 16
	nvmeIdentifyBytes   = 4096
)

// broadcastNSID stands for all namespaces of a controller.
const broadcastNSID = 0xffffffff

// nvmeVendor is the PCI vendor of all drives.
const nvmeVendor = 0x1b36

// asBase64URL takes what spdk_base64_urlsafe_decode takes: padded. size 0 is any.
func asBase64URL(size int, dst *[]byte) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var text string
		if err := asString(&text)(raw); err != nil {
			return err
		}
		b, err := base64.URLEncoding.DecodeString(text)
		if err != nil || size > 0 && len(b) != size {
			return fmt.Errorf("%q is not %d bytes in base64 for URLs", text, size)
		}
		*dst = b
		return nil
	}
}

// bdevNvmeSendCmd answers as module/bdev/nvme/nvme_rpc.c does. No recording has it: a real target needs a drive.
func (a *app) bdevNvmeSendCmd(r *request) {
	var name, kind, direction string
	var command, data, metadata []byte
	var dataLen, metadataLen, timeout uint64
	fits := r.decode(required("name", asString(&name)), required("cmd_type", asOneOf(&kind, "admin", "io")),
		required("data_direction", asOneOf(&direction, "h2c", "c2h")),
		required("cmdbuf", asBase64URL(nvmeCommandBytes, &command)),
		optional("data", asBase64URL(0, &data)), optional("metadata", asBase64URL(0, &metadata)),
		optional("data_len", asUint(&dataLen)), optional("metadata_len", asUint(&metadataLen)),
		optional("timeout_ms", asUint(&timeout)))
	i := slices.IndexFunc(a.controllers, func(c *nvmeController) bool { return c.name == name })
	if !fits || i < 0 {
		r.errnoAs(codeInvalidParams, syscall.EINVAL)
		return
	}
	c := a.controllers[i]
	if c.mute || c.drive.Mute && kind == "io" {
		c.owes = c.owes || kind == "io"
		return
	}
	a.post(func() {
		var result uint32
		var status uint16
		reply := make([]byte, dataLen)
		if kind == "admin" {
			result, status = c.admin(command, reply)
		} else {
			status = c.read(command, reply)
		}
		completion := make([]byte, nvmeCompletionBytes)
		binary.LittleEndian.PutUint32(completion, result)
		binary.LittleEndian.PutUint16(completion[nvmeCompletionBytes-2:], status<<1|1) // the phase tag
		answer := map[string]string{"cpl": base64.URLEncoding.EncodeToString(completion)}
		if direction == "c2h" && dataLen > 0 {
			answer["data"] = base64.URLEncoding.EncodeToString(reply)
		}
		r.answer(answer)
	})
}

// read carries out an I/O command: there are no others here, and what hosts write is told with Target.Write.
func (c *nvmeController) read(command, data []byte) (status uint16) {
	nsid, first := binary.LittleEndian.Uint32(command[4:]), binary.LittleEndian.Uint64(command[40:])
	blocks := uint64(binary.LittleEndian.Uint16(command[48:])) + 1
	size := uint64(c.bdev.blockSize)
	switch {
	case command[0] != 0x02:
		return nvmeInvalidOpcode
	case nsid != 1:
		return nvmeInvalidNamespace
	case first+blocks > c.bdev.numBlocks:
		return nvmeOutOfRange
	case uint64(len(data)) < blocks*size:
		return nvmeDataTransferError
	}
	if _, err := c.bdev.disk.file.ReadAt(data[:blocks*size], int64(first*size)); err != nil {
		return nvmeUnrecoveredRead
	}
	return nvmeSuccess
}

// admin carries out an admin command, filling in what the controller sends.
func (c *nvmeController) admin(command, data []byte) (result uint32, status uint16) {
	nsid := binary.LittleEndian.Uint32(command[4:])
	cdw10, cdw11 := binary.LittleEndian.Uint32(command[40:]), binary.LittleEndian.Uint32(command[44:])
	switch command[0] {
	case 0x02:
		page, status := c.healthPage(nsid, cdw10)
		copy(data, page)
		return 0, status
	case 0x06:
		whole, status := c.identify(cdw10&0xff, nsid)
		copy(data, whole)
		return 0, status
	case 0x09, 0x0a:
		return c.writeCache(command[0] == 0x09, nsid, cdw10, cdw11)
	}
	return 0, nvmeInvalidOpcode
}

// identify answers with the controller, its namespace 1, or the namespace's identification descriptors.
func (c *nvmeController) identify(what, nsid uint32) (whole []byte, status uint16) {
	whole = make([]byte, nvmeIdentifyBytes)
	if what != 1 && nsid != 1 {
		return nil, nvmeInvalidNamespace
	}
	nguid := c.drive.NGUID
	switch what {
	case 0:
		copy(whole[104:], nguid[:])
	case 1:
		binary.LittleEndian.PutUint16(whole, nvmeVendor)
		copy(whole[4:24], fmt.Sprintf("%-20s", c.drive.Serial))
		copy(whole[24:64], fmt.Sprintf("%-40s", c.drive.Model))
		if c.drive.WriteCache != NoWriteCache {
			whole[525] = 0b111
		}
	case 3:
		if nguid != uuid.Nil {
			copy(whole, []byte{2, byte(len(nguid)), 0, 0})
			copy(whole[4:], nguid[:])
		}
	default:
		return nil, nvmeInvalidField
	}
	return whole, nvmeSuccess
}

// writeCache is the feature Volatile Write Cache, the only one there is.
func (c *nvmeController) writeCache(set bool, nsid, cdw10, cdw11 uint32) (result uint32, status uint16) {
	const save, selected = 1 << 31, 7 << 8
	switch {
	case cdw10&0xff != 0x06, c.drive.WriteCache == NoWriteCache, !set && cdw10&selected != 0:
		return 0, nvmeInvalidField
	case nsid != 0 && nsid != broadcastNSID:
		return 0, nvmeFeatureNotNamespaces
	case set && cdw10&save != 0:
		return 0, nvmeFeatureNotSaveable
	case set && c.drive.WriteCache == FixedWriteCache:
		return 0, nvmeFeatureNotChangeable
	case set:
		c.cacheOn = cdw11&1 != 0
		if !c.cacheOn {
			c.bdev.disk.writeOut() // a Flush does nothing from now on, so nothing may be left to it
		}
	case c.cacheOn:
		return 1, nvmeSuccess
	}
	return 0, nvmeSuccess
}

// ResetDrive resets the controller of an attached drive, as SPDK does when one hangs: its features are as at first. It
// fails when nobody has attached it.
func (t *Target) ResetDrive(address string) error {
	err := errors.New("no controller is attached to " + address)
	t.eachController(address, func(c *nvmeController) {
		c.reset()
		err = nil
	})
	return err
}

// CacheOn says whether an attached drive acknowledges what it would lose with its power.
func (t *Target) CacheOn(address string) (on bool) {
	t.eachController(address, func(c *nvmeController) { on = c.cacheOn })
	return on
}

func (t *Target) eachController(address string, do func(*nvmeController)) {
	t.do(func() {
		for _, c := range t.app.controllers {
			if strings.EqualFold(c.drive.Address, address) {
				do(c)
			}
		}
	})
}

func (c *nvmeController) reset() { c.cacheOn = c.drive.WriteCache != NoWriteCache }
