// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"
)

// What can go wrong; engines wrap these, so compare with errors.Is.
var (
	// ErrUnavailable: the target did not answer; nothing is known of what it holds.
	ErrUnavailable = errors.New("target does not answer")
	// ErrNotFound: a thing that the call builds on was looked for and is not there.
	ErrNotFound = errors.New("not found")
	// ErrExists: it is there already, but otherwise than asked.
	ErrExists = errors.New("exists with other properties")
	// ErrNoSpace: the pool has no room.
	ErrNoSpace = errors.New("no space in the pool")
	// ErrInUse: it is exported.
	ErrInUse = errors.New("in use")
	// ErrBusy: not now; try again.
	ErrBusy = errors.New("busy")
	// ErrInvalid: the request itself is wrong.
	ErrInvalid = errors.New("invalid request")
	// ErrShrink: volumes and pools never shrink.
	ErrShrink = errors.New("cannot shrink: data would be lost")
	// ErrUnsupported: this target can never do it; another build, kernel or plan could.
	ErrUnsupported = errors.New("not supported by this target")
	// ErrRestartNeeded: only a restart of the target, or of the portal, can change this.
	ErrRestartNeeded = errors.New("cannot change while serving")
)

// RestartNeededError names the settings of a target that differ from the plan's and that only
// a restart of it can change. It is an ErrRestartNeeded.
type RestartNeededError struct {
	// Differences, such as "core mask is 0x3 and should be 0xf".
	Differences []string
}

func (e *RestartNeededError) Error() string {
	return fmt.Sprintf("%v: %s", ErrRestartNeeded, strings.Join(e.Differences, "; "))
}

// Is says that it is an ErrRestartNeeded.
func (e *RestartNeededError) Is(target error) bool { return target == ErrRestartNeeded }
