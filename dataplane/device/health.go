// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Health of an NVMe drive, from its log "SMART / Health Information". The counters are of the drive's life.
type Health struct {
	// Warnings that the drive gives.
	Warnings Warnings
	// TemperatureCelsius is the composite temperature.
	TemperatureCelsius float64
	// SpareRatio is the spare capacity that is left, and SpareThresholdRatio what the drive warns below, from 0 to 1.
	SpareRatio, SpareThresholdRatio float64
	// UsedRatio of the life that the vendor expects of the drive, from 0 to 2.55. It may be used beyond 1.
	UsedRatio float64
	// ReadBytes and WrittenBytes by hosts, in steps of 512,000.
	ReadBytes, WrittenBytes float64
	PowerOnHours            float64
	// UnsafeShutdowns are losses of power without a shutdown before.
	UnsafeShutdowns float64
	// MediaErrors are data that were not what had been written, or could not be read.
	MediaErrors float64
}

// Warnings of a drive, a bit each.
type Warnings uint8

// What a drive warns of (NVMe Base Specification 2.0, "Critical Warning").
const (
	// WarnSpare: the spare capacity is below its threshold.
	WarnSpare Warnings = 1 << iota
	// WarnTemperature is beyond a threshold.
	WarnTemperature
	// WarnReliability is degraded by errors of the media or of the drive.
	WarnReliability
	// WarnReadOnly: the media takes no more writes.
	WarnReadOnly
	// WarnBackup of the drive's volatile memory has failed: a loss of power may lose data.
	WarnBackup
	// WarnPersistentMemory has become unreliable, or takes no more writes.
	WarnPersistentMemory
)

// Of the NVMe Base Specification: Get Log Page, the log's number, and the size of the log.
const (
	opcodeGetLogPage = 0x02
	logHealth        = 0x02
	logHealthBytes   = 512
	allNamespaces    = 0xffffffff
	// dataUnitBytes in which the log counts what was read and written.
	dataUnitBytes  = 512_000
	zeroCelsius    = 273
	ratioOfPercent = 100
)

// ReadHealth asks a drive's controller for its health log. It fails with an *AdminStatusError when the controller
// refuses. A dead drive may not answer.
func ReadHealth(do Admin) (Health, error) {
	_, log, err := do(AdminCommand{Opcode: opcodeGetLogPage, NSID: allNamespaces, CDW10: (logHealthBytes/4-1)<<16 | logHealth, DataBytes: logHealthBytes})
	if err != nil {
		return Health{}, err
	}
	if len(log) != logHealthBytes {
		return Health{}, fmt.Errorf("the controller answers with a health log of %d bytes, not %d", len(log), logHealthBytes)
	}
	wide := func(at int) float64 {
		return math.Ldexp(float64(binary.LittleEndian.Uint64(log[at+8:])), 64) + float64(binary.LittleEndian.Uint64(log[at:]))
	}
	percent := func(at int) float64 { return float64(log[at]) / ratioOfPercent }
	return Health{
		Warnings:           Warnings(log[0]),
		TemperatureCelsius: float64(binary.LittleEndian.Uint16(log[1:])) - zeroCelsius,
		SpareRatio:         percent(3), SpareThresholdRatio: percent(4), UsedRatio: percent(5),
		ReadBytes: wide(32) * dataUnitBytes, WrittenBytes: wide(48) * dataUnitBytes,
		PowerOnHours: wide(128), UnsafeShutdowns: wide(144), MediaErrors: wide(160),
	}, nil
}
