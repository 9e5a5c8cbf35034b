// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// programError is a program that failed.
type programError struct {
	Command, Output string
	Err             error
}

// Error names the program and gives what it wrote.
func (e *programError) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("%s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Command, e.Err, e.Output)
}

// Unwrap gives how the program ended.
func (e *programError) Unwrap() error { return e.Err }

// runner runs programs with a context, in the C locale.
type runner struct {
	exec.Interface
	ctx context.Context
}

// brief is for programs that only read: they end with the context.
func (h *Host) brief(ctx context.Context) runner { return runner{h.Exec, ctx} }

// lasting is for programs that change something: killed halfway they would leave it half done, so they run to their
// end.
func (h *Host) lasting(ctx context.Context) runner { return runner{h.Exec, context.WithoutCancel(ctx)} }

// Command gives a command that ends with the context.
func (r runner) Command(name string, args ...string) exec.Cmd {
	cmd := r.CommandContext(r.ctx, name, args...)
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C"))
	return cmd
}

// Run gives what a program wrote to its standard output; its error, a *programError, holds the rest.
func (r runner) Run(name string, args ...string) (string, error) {
	defer doing.Begin(r.ctx, "running "+name+" "+strings.Join(args, " "))()
	cmd := r.Command(name, args...)
	var stderr strings.Builder
	cmd.SetStderr(&stderr)
	out, err := cmd.Output()
	if err != nil {
		return string(out), &programError{Command: name, Output: strings.TrimSpace(stderr.String() + string(out)), Err: err}
	}
	return string(out), nil
}
