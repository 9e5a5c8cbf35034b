// SPDX-License-Identifier: Apache-2.0

package spdktest

// ioStats are the counters of one bdev. The fake moves no data: they are what examining a device reads, and what
// Target.Write tells.
type ioStats struct {
	bytesRead, readOps, bytesWritten, writeOps uint64
}

// examined is what looking for partition tables and other metadata reads of a new bdev of 4 KiB blocks.
var examined = ioStats{bytesRead: 40960, readOps: 3}
