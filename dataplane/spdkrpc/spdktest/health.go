// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/binary"
	"errors"
)

// DriveHealth is what a drive logs of itself (NVMe Base Specification, "SMART / Health Information").
type DriveHealth struct {
	// Warnings are the bits of its critical warning.
	Warnings uint8
	// TemperatureKelvin is its composite temperature.
	TemperatureKelvin uint16
	// SparePercent that is left, the threshold below which it warns, and UsedPercent of its expected life.
	SparePercent, SpareThresholdPercent, UsedPercent uint8
	DataUnitsRead, DataUnitsWritten                  uint64
	PowerOnHours, UnsafeShutdowns, MediaErrors       uint64
}

const (
	healthLog      = 0x02
	healthLogBytes = 512
)

// healthPage answers Get Log Page. The controller has one log, for all namespaces, and keeps no log for each of them.
func (c *nvmeController) healthPage(nsid, cdw10 uint32) (page []byte, status uint16) {
	switch {
	case cdw10&0xff != healthLog:
		return nil, nvmeInvalidLogPage
	case nsid != 0 && nsid != broadcastNSID:
		return nil, nvmeInvalidField
	}
	h := c.drive.Health
	page = make([]byte, healthLogBytes)
	copy(page, []byte{h.Warnings, byte(h.TemperatureKelvin), byte(h.TemperatureKelvin >> 8), h.SparePercent, h.SpareThresholdPercent, h.UsedPercent})
	for at, n := range map[int]uint64{32: h.DataUnitsRead, 48: h.DataUnitsWritten, 128: h.PowerOnHours, 144: h.UnsafeShutdowns, 160: h.MediaErrors} {
		binary.LittleEndian.PutUint64(page[at:], n)
	}
	return page[:min(healthLogBytes, 4*(int(cdw10>>16)+1))], nvmeSuccess
}

// SetHealth changes what an attached drive logs of itself. It fails when nobody has attached it.
func (t *Target) SetHealth(address string, to DriveHealth) error {
	err := errors.New("no controller is attached to " + address)
	t.eachController(address, func(c *nvmeController) {
		c.drive.Health = to
		err = nil
	})
	return err
}
