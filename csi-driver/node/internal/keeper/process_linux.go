// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Prepare the process for keeping mirrors. Memory that the kernel would have to write out to a mirror first, to give
// it to the process that has to make that mirror's writes go on, is never given: the process would wait for itself.
// So its memory stays locked, and its allocations in the kernel do no I/O (PR_SET_IO_FLUSHER; prctl(2) names exactly
// this use).
//
// Pages that the process has are locked now, and later ones when they are first used, because Go's runtime reserves
// more than it needs. It needs CAP_IPC_LOCK and CAP_SYS_RESOURCE. Call it once; threads that begin later inherit it.
func Prepare() error {
	if err := unix.Mlockall(unix.MCL_CURRENT); err != nil {
		return fmt.Errorf("lock the memory of the process: %w", err)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("lock what memory the process will use: %w", err)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("keep the process's own allocations from waiting for I/O: %w", errno)
	}
	return nil
}
