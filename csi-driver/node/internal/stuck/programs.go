// SPDX-License-Identifier: Apache-2.0

package stuck

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/utils/exec"
)

// Programs runs programs as exec.New does, with their processes seen by the watch.
func (w *Watch) Programs() exec.Interface { return programs{exec.New(), w} }

type programs struct {
	exec.Interface
	watch *Watch
}

// Command implements exec.Interface.
func (p programs) Command(name string, args ...string) exec.Cmd {
	return &program{Cmd: osexec.Command(name, args...), watch: p.watch} //nolint:noctx // the interface gives none
}

// CommandContext implements exec.Interface.
func (p programs) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	return &program{Cmd: osexec.CommandContext(ctx, name, args...), watch: p.watch}
}

// program is named by its words.
type program struct {
	*osexec.Cmd
	watch *Watch
	end   func()
}

// Start implements exec.Cmd.
func (p *program) Start() error {
	if err := p.Cmd.Start(); err != nil {
		return err
	}
	p.end = p.watch.begin(&call{what: "running " + strings.Join(p.Args, " "), process: p.Process.Pid})
	return nil
}

// Wait implements exec.Cmd.
func (p *program) Wait() error {
	defer p.end()
	err := p.Cmd.Wait()
	if exit := (*osexec.ExitError)(nil); errors.As(err, &exit) {
		return exec.ExitErrorWrapper{ExitError: exit}
	}
	return err
}

// Run implements exec.Cmd.
func (p *program) Run() error {
	if err := p.Start(); err != nil {
		return err
	}
	return p.Wait()
}

// Output implements exec.Cmd.
func (p *program) Output() ([]byte, error) {
	var out bytes.Buffer
	p.Stdout = &out
	err := p.Run()
	return out.Bytes(), err
}

// CombinedOutput implements exec.Cmd.
func (p *program) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	p.Stdout, p.Stderr = &out, &out
	err := p.Run()
	return out.Bytes(), err
}

// Stop implements exec.Cmd.
func (p *program) Stop() {
	if p.Process != nil {
		_ = p.Process.Signal(syscall.SIGTERM) // it may have ended
	}
}

// SetDir implements exec.Cmd.
func (p *program) SetDir(dir string) { p.Dir = dir }

// SetStdin implements exec.Cmd.
func (p *program) SetStdin(in io.Reader) { p.Stdin = in }

// SetStdout implements exec.Cmd.
func (p *program) SetStdout(out io.Writer) { p.Stdout = out }

// SetStderr implements exec.Cmd.
func (p *program) SetStderr(out io.Writer) { p.Stderr = out }

// SetEnv implements exec.Cmd.
func (p *program) SetEnv(env []string) { p.Env = env }

// sleep of a process that no signal ends, by what its end would change: the counts of how often it has stopped running.
// That is how the kernel itself tells a hung task from one that waits often (kernel/hung_task.c): a mkfs that writes
// much is in state D whenever one looks. Empty for a process that does not sleep so, or is gone. Reading this file
// waits for no lock that a task in state D may hold.
func (w *Watch) sleep(process int) string {
	status, err := os.ReadFile(filepath.Join(w.proc, strconv.Itoa(process), "status"))
	if err != nil || !strings.Contains(string(status), "\nState:\tD") {
		return ""
	}
	_, counts, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
	return counts
}
