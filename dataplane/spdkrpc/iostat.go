// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// BdevGetIostat asks what was done on bdevs since they were made. Only after init.
type BdevGetIostat struct {
	answers[Iostat]
	// Names, aliases or UUIDs; none for all bdevs. One that is missing fails the call with ErrNotFound. While it runs,
	// SPDK has all of them open.
	Names []string `json:"names,omitzero"`
	// Name of one bdev, in releases before 26.01, which know no Names. 26.05 knows no Name.
	Name string `json:"name,omitzero" gone:"26.05"`
}

func (BdevGetIostat) method() string { return "bdev_get_iostat" }

// Iostat of some bdevs.
type Iostat struct {
	// TickRate is ticks per second.
	TickRate uint64       `json:"tick_rate"`
	Bdevs    []BdevIostat `json:"bdevs"`
}

// BdevIostat counts what was done on one bdev.
type BdevIostat struct {
	// Name of the bdev, not the one that was asked for.
	Name          string `json:"name"`
	BytesRead     uint64 `json:"bytes_read"`
	ReadOps       uint64 `json:"num_read_ops"`
	BytesWritten  uint64 `json:"bytes_written"`
	WriteOps      uint64 `json:"num_write_ops"`
	BytesUnmapped uint64 `json:"bytes_unmapped"`
	UnmapOps      uint64 `json:"num_unmap_ops"`
	// ReadTicks, WriteTicks and UnmapTicks that these took, all added.
	ReadTicks  uint64 `json:"read_latency_ticks"`
	WriteTicks uint64 `json:"write_latency_ticks"`
	UnmapTicks uint64 `json:"unmap_latency_ticks"`
	// Errors by SPDK's name of the status; a status that never was is left out. They are counted in 32 bits.
	Errors map[string]uint32 `json:"io_error"`
}

// StatusAborted of an I/O that its host, or the end of its connection, has ended.
const StatusAborted = "aborted"
