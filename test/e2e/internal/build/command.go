// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds how much of a failed program's output an error quotes.
const maxOutput = 4 << 10

// waitDelay is how long a cancelled program may take to end before it is
// killed, when Cmd does not say.
const waitDelay = 5 * time.Second

// Cmd is one call of a program on the host, with a fixed locale, whose error carries what the program said.
type Cmd struct {
	// Dir is the working directory; empty means the caller's.
	Dir string
	// Env is added to the caller's environment.
	Env []string
	// Stdin is the program's input; nil means empty.
	Stdin io.Reader
	// Log receives stdout and stderr as they come, in addition to the error.
	Log io.Writer
	// Args is the program and its arguments.
	Args []string
	// Group gives the program a process group of its own. When ctx ends, all of the group are interrupted, and have
	// until Cleanup is over to end.
	Group   bool
	Cleanup time.Duration
}

// Run runs the program and waits for it. The error names the program and ends
// with the tail of what it wrote.
func (c Cmd) Run(ctx context.Context) error {
	_, err := c.run(ctx, false)
	return err
}

// Output runs the program and returns its standard output.
func (c Cmd) Output(ctx context.Context) (string, error) {
	return c.run(ctx, true)
}

func (c Cmd) run(ctx context.Context, split bool) (string, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = cmp.Or(c.Cleanup, waitDelay)
	if c.Group {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	}
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Env = append(cmd.Env, c.Env...)
	cmd.Stdin = c.Stdin
	var out, said bytes.Buffer
	var sink io.Writer = &said
	if c.Log != nil {
		sink = io.MultiWriter(&said, c.Log)
	}
	cmd.Stderr = sink
	cmd.Stdout = sink
	if split {
		cmd.Stdout = &out
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s: %w", c.Args[0], context.Cause(ctx))
		}
		return "", fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, tail(said.String()))
	}
	return out.String(), nil
}

// Run runs a program with no special setting.
func Run(ctx context.Context, args ...string) error { return Cmd{Args: args}.Run(ctx) }

// Output runs a program with no special setting and returns its output.
func Output(ctx context.Context, args ...string) (string, error) {
	return Cmd{Args: args}.Output(ctx)
}

func tail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxOutput {
		s = "..." + s[len(s)-maxOutput:]
	}
	return s
}
