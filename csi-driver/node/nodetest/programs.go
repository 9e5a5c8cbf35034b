// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"io"

	utilexec "k8s.io/utils/exec"
)

// Programs are this machine's; but what is done to block devices as such is done to a constructed kernel's.
type Programs struct {
	utilexec.Interface
	Kernel *Kernel
}

// Command implements exec.Interface.
func (p Programs) Command(name string, args ...string) utilexec.Cmd {
	if own := p.own(name, args); own != nil {
		return own
	}
	return p.Interface.Command(name, args...)
}

// CommandContext implements exec.Interface.
func (p Programs) CommandContext(ctx context.Context, name string, args ...string) utilexec.Cmd {
	if own := p.own(name, args); own != nil {
		return own
	}
	return p.Interface.CommandContext(ctx, name, args...)
}

func (p Programs) own(name string, args []string) utilexec.Cmd {
	switch {
	case name == "blockdev" && len(args) == 2 && (args[0] == "--setro" || args[0] == "--setrw"):
		return Program(func() ([]byte, error) { return nil, p.Kernel.SetReadOnly(args[1], args[0] == "--setro") })
	default:
		return nil
	}
}

// Program is a command that is a function. It gives what the command writes to its standard output.
func Program(run func() ([]byte, error)) utilexec.Cmd { return &program{run: run} }

type program struct {
	utilexec.Cmd
	run    func() ([]byte, error)
	stderr io.Writer
}

// SetEnv implements exec.Cmd.
func (*program) SetEnv([]string) {}

// SetStderr implements exec.Cmd.
func (p *program) SetStderr(w io.Writer) { p.stderr = w }

// Output implements exec.Cmd.
func (p *program) Output() ([]byte, error) {
	out, err := p.run()
	if err != nil && p.stderr != nil {
		_, writeErr := io.WriteString(p.stderr, err.Error()+"\n")
		err = errors.Join(err, writeErr)
	}
	return out, err
}

// CombinedOutput implements exec.Cmd.
func (p *program) CombinedOutput() ([]byte, error) { return p.run() }
