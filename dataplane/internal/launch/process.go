// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"syscall"
)

// replaceProcess becomes another program.
func replaceProcess(path string, argv, env []string) error {
	return syscall.Exec(path, argv, env)
}

// ExitError is how nvmf_tgt ended, when it did not end well.
type ExitError struct {
	// Code that the launcher exits with: nvmf_tgt's own, or 128 and the signal's number, as a shell has it.
	Code int
	// Signal that ended it; 0 when none did.
	Signal syscall.Signal
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("nvmf_tgt was ended by a signal: %s", e.Signal)
	}
	return fmt.Sprintf("nvmf_tgt ended with exit code %d", e.Code)
}
