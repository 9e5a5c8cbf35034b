// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Of Identify: the controller's optional NVM commands, and the namespace's deallocate features.
const (
	identifyONCS          = 520
	oncsDatasetManagement = 1 << 2
	identifyDLFEAT        = 33
	dlfeatReads           = 0b111
	dlfeatZeroes          = 0b001
)

// ReadDeallocated asks an NVMe namespace what reads of blocks return once they were deallocated (NVM Command Set
// Specification, "Deallocate Logical Block Features"). DeallocatedZeroes is the drive's word for what it has
// deallocated, also after a loss of power: a controller with a volatile write cache does not give it, even where the
// cache can be turned off, for that is about what is written. A drive may leave a request to deallocate undone, which
// drives do with parts of their own unit. After an error it is not known.
func ReadDeallocated(do Admin, nsid uint32) (v1alpha1.Deallocated, error) {
	controller, err := identify(do, identifyController, 0)
	if err != nil {
		return "", err
	}
	namespace, err := identify(do, identifyNamespace, nsid)
	if err != nil {
		return "", err
	}
	can := binary.LittleEndian.Uint16(controller[identifyONCS:])&oncsDatasetManagement != 0
	volatile := controller[identifyVWC]&1 != 0
	if can && !volatile && namespace[identifyDLFEAT]&dlfeatReads == dlfeatZeroes {
		return v1alpha1.DeallocatedZeroes, nil
	}
	return v1alpha1.DeallocatedUndefined, nil
}
