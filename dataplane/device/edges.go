// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"fmt"
	"io"
)

// edgeBytes at each end of a device that nothing may have written, if it is to be blank. Almost all that uses a drive
// raw writes there: a header, a log, the first of its records, a copy of its metadata.
const edgeBytes = 1 << 20

// ZeroEdges tells whether a device's first and last MiB are zeros. A device without a size is an error: nothing was
// read of it.
func ZeroEdges(device io.ReadSeeker) (bool, error) {
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	if size == 0 {
		return false, io.ErrUnexpectedEOF
	}
	edge := make([]byte, min(size, edgeBytes))
	zeros, zero := make([]byte, len(edge)), true
	for _, at := range []int64{0, size - int64(len(edge))} {
		if _, err := device.Seek(at, io.SeekStart); err != nil {
			return false, err
		}
		// Both are read, whatever the first holds: a device of which a part cannot be read is not known.
		if _, err := io.ReadFull(device, edge); err != nil {
			return false, fmt.Errorf("at %d: %w", at, err)
		}
		zero = zero && bytes.Equal(edge, zeros)
	}
	return zero, nil
}
