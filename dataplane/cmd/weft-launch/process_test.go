// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"encoding/json"
	"os"
	"os/signal"
	"syscall"
)

// TargetMode is the environment variable that makes a test binary a target: RunTarget's mode.
const TargetMode = "WEFT_TEST_TARGET"

// Modes of RunTarget.
const (
	// TargetServes until SIGTERM, then ends well.
	TargetServes = "serves"
	// TargetFails at once, with exit code 3.
	TargetFails = "fails"
)

// Event is a line that the target writes to its standard output.
type Event struct {
	// Started is the first, with what it was started with; nil in later ones.
	Started *Started `json:"started,omitempty"`
	// Signal that it got.
	Signal string `json:"signal,omitempty"`
}

// Started is what a target was started with.
type Started struct {
	Args           []string
	Umask          int
	PID, ParentPID int
}

// RunTarget is a target, as far as its parent can tell: it says what it was started with and which
// signals it gets. It returns its exit code.
func RunTarget() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	umask := syscall.Umask(0)
	syscall.Umask(umask)
	say := json.NewEncoder(os.Stdout)
	started := &Started{Args: os.Args[1:], Umask: umask, PID: os.Getpid(), ParentPID: os.Getppid()}
	if say.Encode(Event{Started: started}) != nil || os.Getenv(TargetMode) == TargetFails {
		return 3
	}
	for s := range signals {
		if say.Encode(Event{Signal: s.String()}) != nil {
			return 3
		}
		if s == syscall.SIGTERM {
			return 0
		}
	}
	return 3
}
