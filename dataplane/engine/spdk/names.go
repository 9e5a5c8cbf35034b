// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	bdevPrefix    = "weft:"
	lvstorePrefix = "weft-"

	snapshotPrefix = "s-"
	clonePrefix    = "c-"
	markPrefix     = "d-"
	newPrefix      = "t-"
	holdPrefix     = "h-"
	deletedPrefix  = "x-"
	freePrefix     = "f-"
	cleanName      = "clean"
	soiledName     = "soiled"

	uuidLen = 36
)

// bdevName of a pool's device; of a drive that SPDK drives itself, its controller's.
func bdevName(device string) string { return bdevPrefix + device }

// firstNamespace is what SPDK appends to the controller's name for the bdev of a drive's namespace 1.
const firstNamespace = "n1"

// lvstoreName of a pool. SPDK allows 63 characters, an ID has up to 255.
func lvstoreName(device string) string {
	sum := sha256.Sum256([]byte(device))
	return lvstorePrefix + hex.EncodeToString(sum[:16])
}

// kind of an lvol.
type kind int

const (
	foreignLvol kind = iota
	volumeLvol
	snapshotLvol
	// cloneLvol is the snapshot between a volume and its clone.
	cloneLvol
	// markLvol says that a snapshot was deleted by its user.
	markLvol
	// newLvol becomes a clone: it is blank until it has its parent, so it has no volume's name until then.
	newLvol
	// holdLvol makes SPDK see a snapshot in what nothing depends on.
	holdLvol
	// deletedLvol was a volume, and is being cleared.
	deletedLvol
	// freeLvol holds clusters that are free and may hold old data, and is being cleared.
	freeLvol
	// cleanLvol says that all free clusters are zeroes, and soiledLvol that they may not be now.
	cleanLvol
	soiledLvol
)

func snapshotName(id engine.ID, at time.Time) string {
	return snapshotPrefix + string(id) + "-" + strconv.FormatInt(at.Unix(), 36)
}

func cloneName(id engine.ID) string { return clonePrefix + string(id) }

func markName(id engine.ID) string { return markPrefix + string(id) }

func newName(id engine.ID) string { return newPrefix + string(id) }

func holdName(id engine.ID) string { return holdPrefix + string(id) }

func deletedName(id engine.ID) string { return deletedPrefix + string(id) }

func freeName(id engine.ID) string { return freePrefix + string(id) }

// parseName of an lvol.
func parseName(name string) (kind, engine.ID, time.Time) {
	if id := engine.ID(name); id.Validate() == nil {
		return volumeLvol, id, time.Time{}
	}
	switch name {
	case cleanName:
		return cleanLvol, "", time.Time{}
	case soiledName:
		return soiledLvol, "", time.Time{}
	}
	if len(name) < 2+uuidLen {
		return foreignLvol, "", time.Time{}
	}
	prefix, id, rest := name[:2], engine.ID(name[2:2+uuidLen]), name[2+uuidLen:]
	if id.Validate() != nil {
		return foreignLvol, "", time.Time{}
	}
	switch {
	case prefix == snapshotPrefix:
		seconds, err := strconv.ParseInt(strings.TrimPrefix(rest, "-"), 36, 64)
		if err == nil && rest[0] == '-' {
			return snapshotLvol, id, time.Unix(seconds, 0)
		}
	case prefix == clonePrefix && rest == "":
		return cloneLvol, id, time.Time{}
	case prefix == markPrefix && rest == "":
		return markLvol, id, time.Time{}
	case prefix == newPrefix && rest == "":
		return newLvol, id, time.Time{}
	case prefix == holdPrefix && rest == "":
		return holdLvol, id, time.Time{}
	case prefix == deletedPrefix && rest == "":
		return deletedLvol, id, time.Time{}
	case prefix == freePrefix && rest == "":
		return freeLvol, id, time.Time{}
	}
	return foreignLvol, "", time.Time{}
}
