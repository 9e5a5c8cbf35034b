// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// usedPermission is the attachment of a volume in which its permission to format was used up: the volume held a
// filesystem. It lies beside the records and outlasts them, unstaging and reboots, for so does an attachment. Else a
// volume that was used for months, and whose superblock is damaged, would be formatted again when the next pod comes.
type usedPermission struct {
	NGUID      string `json:"nguid"`
	Attachment int64  `json:"attachment"`
}

// permissionKept is how long a usedPermission outlasts the volume's record. Kubernetes ends an attachment within
// minutes of unstaging, or after a reboot; a control plane that is down may take days.
const permissionKept = 7 * 24 * time.Hour

// forgettable tells whether a volume has had no record since a time, so that the attachment of its usedPermission has
// ended.
func (r records) forgettable(volume string, since time.Time) (bool, error) {
	used, err := os.Stat(r.path(volume, usedSuffix))
	if err != nil || used.ModTime().After(since) {
		return false, ignoreMissing(err)
	}
	_, err = os.Stat(r.path(volume, recordSuffix))
	return errors.Is(err, fs.ErrNotExist), ignoreMissing(err)
}

// usedUp tells whether the volume held a filesystem in this attachment before.
func (r records) usedUp(volume string, at publishcontext.Context) (bool, error) {
	path := r.path(volume, usedSuffix)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var last usedPermission
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err != nil {
		return false, fmt.Errorf("find out from %s whether volume %s was formatted before (remove the file if it was not): %w", path, volume, err)
	}
	return last == usedPermission{at.NGUID, at.Attachment}, nil
}

// useUp the permission of an attachment, if it has one, and forget that of an earlier attachment. Call it when the
// volume holds a filesystem, and before anybody can write to that: it survives a crash of the machine.
func (r records) useUp(volume string, at publishcontext.Context) error {
	path := r.path(volume, usedSuffix)
	if !at.MayFormat() {
		return removeFile(path)
	}
	used, err := r.usedUp(volume, at)
	if err == nil && !used {
		err = r.write(path, usedPermission{at.NGUID, at.Attachment}, true)
	}
	if err == nil {
		// A process that was killed after it wrote the file has not flushed the folder, which may be new.
		err = errors.Join(flushFolder(r.dir), flushFolder(filepath.Dir(r.dir)))
	}
	if err != nil {
		return fmt.Errorf("write down that the volume holds a filesystem: %w", err)
	}
	return nil
}
