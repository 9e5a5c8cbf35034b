// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/weft-storage/weft/dataplane/device"
)

// Exit codes of blkid(8).
const (
	blkidFound      = 0
	blkidNothing    = 2
	blkidAmbivalent = 8
)

// errNoAnswer says that blkid ended without saying what is there.
var errNoAnswer = errors.New("probing gave no answer")

// Blkid probes with util-linux's blkid, reading the device itself and no cache.
type Blkid struct {
	// Run runs a command; RunCommand when nil.
	Run Runner
}

// Runner runs a command to its end. A command that ran and failed is not an error: its exit code says so.
type Runner func(ctx context.Context, name string, args ...string) (Output, error)

// Output of a command.
type Output struct {
	Stdout, Stderr string
	ExitCode       int
}

// RunCommand runs a command on this machine, with messages in English.
func RunCommand(ctx context.Context, name string, args ...string) (Output, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	return Output{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: cmd.ProcessState.ExitCode()}, err
}

// Probe looks for SPDK's blobstore, and runs blkid on the device. It first reads the device's beginning and end: blkid
// says "nothing found" also when it could not read, and of what software wrote that uses drives raw.
func (b Blkid) Probe(ctx context.Context, path string) (Signature, error) {
	zero, err := zeroEdges(path)
	if err != nil {
		return Signature{}, err
	}
	head, err := headOf(path)
	if err != nil {
		return Signature{}, err
	}
	blob := blobstore(head)
	sig, err := b.probe(ctx, path, head)
	none := Signature{}
	switch {
	case err != nil:
		return none, err
	case sig == none && blob == none:
		return Signature{Unnamed: !zero}, nil
	case blob == none:
		return sig, nil
	case sig != none:
		return Signature{Ambivalent: true}, nil
	}
	return blob, nil
}

func (b Blkid) probe(ctx context.Context, path string, head []byte) (Signature, error) {
	run := b.Run
	if run == nil {
		run = RunCommand
	}
	out, err := run(ctx, "blkid", append(device.BlkidArgs(head), path)...)
	if err != nil {
		return Signature{}, fmt.Errorf("blkid: %w", err)
	}
	said := strings.TrimSpace(out.Stderr)
	switch {
	case out.ExitCode == blkidAmbivalent:
		return Signature{Ambivalent: true}, nil
	case out.ExitCode == blkidNothing && said == "" && strings.TrimSpace(out.Stdout) == "":
		return Signature{}, nil
	case out.ExitCode == blkidFound:
		sig := parseBlkid(out.Stdout)
		if sig == (Signature{}) {
			return sig, fmt.Errorf("%w: blkid found something on %s but did not say what: %q", errNoAnswer, path, out.Stdout)
		}
		return sig, nil
	default:
		return Signature{}, fmt.Errorf("%w: blkid on %s: exit code %d: %s", errNoAnswer, path, out.ExitCode, said)
	}
}

// parseBlkid reads lines of KEY=value; blkid escapes what a shell would not take with backslashes.
func parseBlkid(text string) Signature {
	var sig Signature
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		value = strings.ReplaceAll(value, `\`, "")
		switch key {
		case "TYPE":
			sig.Type = value
		case "USAGE":
			sig.Usage = value
		case "LABEL":
			sig.Label = value
		case "PTTYPE":
			sig.PartitionTable = value
		}
	}
	return sig
}

func zeroEdges(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	zero, err := device.ZeroEdges(f)
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}
	return zero, nil
}
