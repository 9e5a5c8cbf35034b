// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NewSuffix ends the name of a file that ReplaceFile is writing, or was when its process ended.
const NewSuffix = ".new"

// ReplaceFile as a whole, and durably: after a loss of power it has the one content or the other. Its folder has to be
// there.
func ReplaceFile(file string, content []byte) error {
	f, err := os.OpenFile(file+NewSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(file+NewSuffix, file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
