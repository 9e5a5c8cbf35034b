// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// lockNode for the target that is about to start, which holds the lock until its process is gone, and with it what it
// had asked the kernel to write. A target that was told to stop answers no more, and goes on writing to its drives
// until all is in order: the kubelet starts another beside it when its pod was deleted by force.
func lockNode(socket string) (*os.File, error) {
	path := filepath.Join(filepath.Dir(socket), "target.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the node for the target: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = refuse(v1alpha1.ReasonTargetRunning, "another target is still running on this node: it holds %s; two targets on a node would conflict over drives and ports: wait until it ends, or stop its process", path)
	}
	return nil, errors.Join(err, f.Close())
}

// keepAcrossExec leaves a file open in the program that this process becomes.
func keepAcrossExec(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0)
	return err
}
