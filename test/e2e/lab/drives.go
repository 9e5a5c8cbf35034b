// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Drive is an emulated NVMe drive that is in no machine.
type Drive struct {
	// Image is the file with what is on it.
	Image string
	// Serial is its number, by which it is known in any machine.
	Serial string
}

// TakeDrive takes drive d, counted from 0, out of a node that is off, and puts it into dir, which has to be on the
// filesystem of the lab. The node does not start any more without it. Options.Carried puts it into a node of another
// lab.
func (l *Lab) TakeDrive(node string, d int, dir string) (Drive, error) {
	on, err := l.Powered(node)
	if err == nil && on {
		err = fmt.Errorf("drive %d is not taken out of %s: the node is on", d, node)
	}
	if err != nil {
		return Drive{}, err
	}
	drive := Drive{Image: filepath.Join(dir, DriveSerial(node, d)+".img"), Serial: DriveSerial(node, d)}
	return drive, errors.Join(os.MkdirAll(dir, 0o755), os.Rename(l.drive(node, d), drive.Image))
}

func (l *Lab) carriedDrive(node string, d int) string {
	return l.nodeDir(node, fmt.Sprintf("carried%d.img", d))
}

// plugIn puts drives of another lab into nodes that never ran.
func (l *Lab) plugIn(carried map[string][]Drive) error {
	l.state.Carried = map[string][]string{}
	for node, drives := range carried {
		if _, err := l.nodeIndex(node); err != nil {
			return err
		}
		for d, drive := range drives {
			if err := os.Rename(drive.Image, l.carriedDrive(node, d)); err != nil {
				return fmt.Errorf("put drive %s into %s: %w", drive.Serial, node, err)
			}
			l.state.Carried[node] = append(l.state.Carried[node], drive.Serial)
		}
	}
	return writeJSON(l.statePath(), l.state)
}
