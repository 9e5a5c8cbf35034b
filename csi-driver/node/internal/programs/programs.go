// SPDX-License-Identifier: Apache-2.0

// Package programs runs this machine's programs for the node plugin.
package programs

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// Error is a program that failed.
type Error struct {
	Command, Output string
	Err             error
}

// Error names the program and gives what it wrote.
func (e *Error) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("%s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Command, e.Err, e.Output)
}

// Unwrap gives how the program ended.
func (e *Error) Unwrap() error { return e.Err }

// Runner runs programs with a context, in the C locale.
type Runner struct {
	exec.Interface
	ctx context.Context
}

// Brief is for programs that only read: they end with the context.
func Brief(ctx context.Context, e exec.Interface) Runner { return Runner{e, ctx} }

// Lasting is for programs that change something: killed halfway they would leave it half done, so they run to their
// end.
func Lasting(ctx context.Context, e exec.Interface) Runner {
	return Runner{e, context.WithoutCancel(ctx)}
}

// Command gives a command that ends with the context.
func (r Runner) Command(name string, args ...string) exec.Cmd {
	cmd := r.CommandContext(r.ctx, name, args...)
	cmd.SetEnv(append(os.Environ(), "LC_ALL=C"))
	return cmd
}

// Run gives what a program wrote to its standard output; its error, an *Error, holds the rest.
func (r Runner) Run(name string, args ...string) (string, error) {
	defer doing.Begin(r.ctx, "running "+name+" "+strings.Join(args, " "))()
	cmd := r.Command(name, args...)
	var stderr strings.Builder
	cmd.SetStderr(&stderr)
	out, err := cmd.Output()
	if err != nil {
		return string(out), &Error{Command: name, Output: strings.TrimSpace(stderr.String() + string(out)), Err: err}
	}
	return string(out), nil
}
