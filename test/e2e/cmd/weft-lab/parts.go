// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

// slowest is how many tests the summary names.
const slowest = 10

// interruptDelay is how long a target may take to end once it is interrupted; the end-to-end tests clean up.
const interruptDelay = 5 * time.Minute

func newPartsCommand() *cobra.Command {
	var keepGoing bool
	cmd := &cobra.Command{
		Use:   "parts TARGET[+TARGET...]...",
		Short: "Run targets of the Makefile, then print how long each took, and the slowest tests",
		Long: "Run targets of the Makefile one after the other, and at the same time those that a + joins.\n" +
			"Then print how long each took, and the slowest tests.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, steps []string) error {
			repo, err := build.Repo()
			if err != nil {
				return err
			}
			out, start := &sharedWriter{to: cmd.OutOrStdout()}, time.Now()
			var parts []*part
			var failed error
			for _, step := range steps {
				var beside []*part
				for target := range strings.SplitSeq(step, "+") {
					beside = append(beside, newPart(target, out))
				}
				parts = append(parts, beside...)
				err := runBeside(cmd.Context(), beside, repo)
				failed = errors.Join(failed, err)
				if err != nil && !keepGoing || cmd.Context().Err() != nil {
					break
				}
			}
			return errors.Join(failed, summarize(out, parts, time.Since(start)))
		},
	}
	cmd.Flags().BoolVar(&keepGoing, "keep-going", false, "run the other targets too after one has failed")
	return cmd
}

// runBeside runs parts at the same time, each to its end, whatever becomes of the others.
func runBeside(ctx context.Context, parts []*part, repo string) error {
	errs := make([]error, len(parts))
	var group sync.WaitGroup
	for i, p := range parts {
		group.Go(func() { errs[i] = p.run(ctx, repo) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// sharedWriter lets several parts write, each a whole line or what a whole test has said.
type sharedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *sharedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// result is what became of one test: PASS, FAIL or SKIP.
type result struct {
	outcome string
	took    time.Duration
}

// part is one run of a make target, with the tests that ran in it.
type part struct {
	target string
	took   time.Duration
	failed bool
	tests  map[string]result

	out io.Writer
	// said is what each test has printed, by package and name, until it is known whether it failed.
	said map[string][]byte
}

func newPart(target string, out io.Writer) *part {
	return &part{target: target, out: out, tests: map[string]result{}, said: map[string][]byte{}}
}

// run runs the target, passes on what it prints, and keeps count.
func (p *part) run(ctx context.Context, repo string) error {
	defer func(start time.Time) { p.took = time.Since(start) }(time.Now())
	// Where the target runs go test on this machine, it does so with TESTFLAGS.
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", p.target, "TESTFLAGS=-json")
	cmd.Dir, cmd.Stderr = repo, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptDelay
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := p.read(stdout)
	if err := cmd.Wait(); err != nil {
		p.failed = true
		return fmt.Errorf("make %s: %w", p.target, err)
	}
	return readErr
}

func (p *part) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if err := p.line(line); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ended is how `go test -v` tells that a test ended; subtests are indented.
var ended = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (.+) \(([0-9.]+)s\)\s*$`)

func (p *part) line(line []byte) error {
	var e event
	if bytes.HasPrefix(line, []byte(`{"`)) && json.Unmarshal(line, &e) == nil && e.Action != "" {
		return p.event(e)
	}
	if m := ended.FindSubmatch(line); m != nil {
		seconds, err := strconv.ParseFloat(string(m[3]), 64)
		if err != nil {
			return err
		}
		p.tests[string(m[2])] = result{string(m[1]), time.Duration(seconds * float64(time.Second))}
	}
	_, err := p.out.Write(line)
	return err
}

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	// Elapsed is in seconds.
	Elapsed float64
}

// event shows what `go test` without -v would: what failed tests printed, and one line for each package.
func (p *part) event(e event) error {
	key := e.Package + "." + e.Test
	switch e.Action {
	case "output", "build-output":
		if e.Test != "" {
			p.said[key] = append(p.said[key], e.Output...)
			return nil
		}
		if e.Output == "PASS\n" || strings.Contains(e.Output, "[no test files]") {
			return nil
		}
		_, err := io.WriteString(p.out, e.Output)
		return err
	case "pass", "fail", "skip":
	default:
		return nil
	}
	if e.Test == "" {
		return p.cutOff(e.Package)
	}
	said := p.said[key]
	delete(p.said, key)
	p.tests[key] = result{strings.ToUpper(e.Action), time.Duration(e.Elapsed * float64(time.Second))}
	if e.Action != "fail" {
		return nil
	}
	_, err := p.out.Write(said)
	return err
}

// cutOff shows the tests of a package that had not ended when the package did, such as the one with the goroutines that
// a timeout prints, and counts them as failed.
func (p *part) cutOff(pkg string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(p.said)) {
		if !strings.HasPrefix(key, pkg+".") {
			continue
		}
		p.tests[key] = result{outcome: "FAIL"}
		_, err := p.out.Write(p.said[key])
		delete(p.said, key)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// timed is a test of a part.
type timed struct {
	target, name string
	result
}

// leaves are the part's tests without those that only hold others.
func (p *part) leaves() []timed {
	var names []string
	for name := range p.tests {
		names = append(names, name)
	}
	slices.Sort(names)
	holds := map[string]bool{}
	for _, name := range names {
		for i, r := range name {
			if r == '/' {
				holds[name[:i]] = true
			}
		}
	}
	var all []timed
	for _, name := range names {
		if !holds[name] {
			all = append(all, timed{p.target, name, p.tests[name]})
		}
	}
	return all
}

// summarize tells what became of the parts, which took elapsed together.
func summarize(out io.Writer, parts []*part, elapsed time.Duration) error {
	var all []timed
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprint(table, "\npart\tminutes\tpassed\tfailed\tskipped\t\n")
	row := func(name string, took time.Duration, tests []timed, note string) {
		count := map[string]int{}
		for _, t := range tests {
			count[t.outcome]++
		}
		_, _ = fmt.Fprintf(table, "%s\t%.1f\t%d\t%d\t%d\t%s\n", name, took.Minutes(), count["PASS"], count["FAIL"], count["SKIP"], note)
	}
	for _, p := range parts {
		note := ""
		if p.failed {
			note = "  FAILED"
		}
		tests := p.leaves()
		row(p.target, p.took, tests, note)
		all = append(all, tests...)
	}
	row("together", elapsed, all, "")
	if err := table.Flush(); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	var said strings.Builder
	fmt.Fprintf(&said, "\nthe %d slowest tests\n", min(slowest, len(all)))
	for _, t := range all[:min(slowest, len(all))] {
		fmt.Fprintf(&said, "%7.1fs  %s  %s\n", t.took.Seconds(), t.target, t.name)
	}
	for _, t := range all {
		if t.outcome == "FAIL" {
			fmt.Fprintf(&said, "FAILED  %s  %s\n", t.target, t.name)
		}
	}
	_, err := io.WriteString(out, said.String())
	return err
}
