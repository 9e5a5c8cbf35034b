// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
)

// ErrInUse is wrapped where something else on the node uses a device: a mount, or whoever opened it for itself alone.
var ErrInUse = errors.New("in use")

// ErrVolatile is wrapped where writes are acknowledged from a volatile cache.
var ErrVolatile = errors.New("acknowledged writes that were not flushed are lost in a power failure of the node")

// ForeignSignatureError says that a device holds something weft did not write.
// weft never erases such a device; its owner may.
type ForeignSignatureError struct {
	// Device is its path.
	Device string
	// Signature is what was found, such as "ext4 filesystem", "gpt partition table" or "data without a signature".
	Signature string
}

func (e *ForeignSignatureError) Error() string {
	return fmt.Sprintf("%s contains data that weft did not write or does not recognize: %s; to let weft use it, erase it (blkdiscard -f %s, or remove it if it is a file)", e.Device, e.Signature, e.Device)
}
