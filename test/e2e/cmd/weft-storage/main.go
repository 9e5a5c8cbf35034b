// SPDX-License-Identifier: Apache-2.0

// Command weft-storage runs others' tests of a storage driver against weft in the lab: csi-sanity, and Kubernetes' own
// end-to-end suite for external storage drivers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/test/e2e/harness"
	"github.com/weft-storage/weft/test/e2e/internal/hostcmd"
)

const (
	// alwaysSkipped asks for a filesystem that two nodes write to, which weft refuses. The suite knows ReadWriteMany for
	// all volumes or for none, and weft has it for block volumes.
	alwaysSkipped = `\((filesystem volmode|ext4|xfs)\)\] .*multiVolume .*should concurrently access the single volume from pods on different node`
	defaultSkip   = `\[Slow\]|\[Serial\]|\[Disruptive\]|\[Flaky\]|stress|performance`
)

type options struct {
	focus, skip string
	procs       int
	timeout     time.Duration
	sanity      bool
	out         string
}

func main() {
	var o options
	flag.StringVar(&o.focus, "focus", "", "regular expression: the specs to run, of those for external drivers; none for all")
	flag.StringVar(&o.skip, "skip", defaultSkip, "regular expression: the specs to leave out")
	flag.IntVar(&o.procs, "procs", 2, "specs that run at once")
	flag.DurationVar(&o.timeout, "timeout", 3*time.Hour, "how long the suite may take")
	flag.BoolVar(&o.sanity, "sanity", true, "run csi-sanity before")
	flag.StringVar(&o.out, "out", "", "folder of the reports; dist/storage in the repository if empty")
	flag.Parse()
	logf.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\nstorage:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	run, err := harness.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer run.Lab.Close()
	nodes := run.Lab.Nodes()
	if len(nodes) < 2 {
		return fmt.Errorf("the specs need two nodes and the lab has %d; run make lab-down first", len(nodes))
	}
	storageNode, clientNode := nodes[0], nodes[1]
	// One replica of each, away from the drive: what a second one needs to start and to wait is time that an emulated node
	// does not have for specs.
	replicas := []string{"operator.replicas=1", "csi.controller.replicas=1", `csi.controller.nodeSelector.kubernetes\.io/hostname=` + clientNode}
	steps := append([]harness.Step{{Name: "install the snapshot API", Do: run.SnapshotAPI}}, run.Steps(storageNode, replicas...)...)
	for _, s := range steps {
		if err := step(ctx, s); err != nil {
			return run.Explain(ctx, err)
		}
	}
	// One suite's failure does not hide the other's.
	var failed error
	if o.sanity {
		failed = step(ctx, harness.Step{Name: "csi-sanity", Do: func(ctx context.Context) error {
			return run.Sanity(ctx, os.Stdout, clientNode)
		}})
	}
	failed = errors.Join(failed, step(ctx, harness.Step{Name: "Kubernetes' storage suite", Do: func(ctx context.Context) error {
		return o.specs(ctx, run)
	}}))
	if failed != nil {
		return run.Explain(ctx, failed)
	}
	return nil
}

// step runs one step and tells that it does, and how long it took.
func step(ctx context.Context, s harness.Step) error {
	fmt.Printf("==> %s\n", s.Name)
	start := time.Now()
	if err := s.Do(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	fmt.Printf("    done in %.1fs\n", time.Since(start).Seconds())
	return nil
}

// specs runs the suite and tells what became of each of its specs.
func (o options) specs(ctx context.Context, run *harness.Run) error {
	suite, err := run.StorageSuite(ctx)
	if err != nil {
		return err
	}
	repo := run.Cluster.Repo
	out := o.out
	if out == "" {
		out = filepath.Join(repo, "dist", "storage")
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	const report = "report.json"
	args := []string{
		suite.Ginkgo, "--procs", strconv.Itoa(o.procs), "--timeout", o.timeout.String(), "--no-color",
		"--output-dir", out, "--json-report", report, "--junit-report", "junit.xml", "--skip", alwaysSkipped,
	}
	if o.focus != "" {
		args = append(args, "--focus", o.focus)
	}
	if o.skip != "" {
		args = append(args, "--skip", o.skip)
	}
	args = append(args, suite.Tests, "--",
		"-kubeconfig", run.Cluster.Kubeconfig, "-kubectl-path", filepath.Join(run.Lab.AssetsDir(), "kubectl"), "-repo-root", repo,
		"-storage.testdriver", filepath.Join(repo, "test", "e2e", "storage", "driver.yaml"), "-dump-logs-on-failure=false")
	failed := hostcmd.Cmd{Log: os.Stdout, Args: args}.Run(ctx)
	results, err := readReport(filepath.Join(out, report))
	if err != nil {
		return errors.Join(failed, err)
	}
	if err := results.tell(os.Stdout, filepath.Join(out, "specs.txt")); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("the suite failed; its report is in %s", out)
	}
	return nil
}
