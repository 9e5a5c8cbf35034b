// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/test/e2e/suite"
)

// defaultSkip leaves out what takes long.
const defaultSkip = `\[Slow\]|\[Serial\]|\[Flaky\]|stress|performance`

type storageOptions struct {
	specs  suite.Specs
	sanity bool
}

func newStorageCommand() *cobra.Command {
	var o storageOptions
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Start the lab, install weft, and run others' tests of a storage driver: csi-sanity and Kubernetes' own suite",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logf.SetLogger(logr.Discard())
			return o.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.specs.Focus, "focus", "", "regular expression: the specs to run, of those for external drivers; none for all")
	flags.StringVar(&o.specs.Skip, "skip", defaultSkip, "regular expression: the specs to leave out")
	flags.IntVar(&o.specs.Procs, "procs", 6, "specs that run at once; disruptive ones always run one at a time")
	flags.DurationVar(&o.specs.Timeout, "timeout", 3*time.Hour, "how long the suite may take")
	flags.BoolVar(&o.sanity, "sanity", true, "run csi-sanity before")
	flags.StringVar(&o.specs.Out, "out", "", "directory of the reports; dist/storage in the repository if empty")
	return cmd
}

func (o storageOptions) run(ctx context.Context) error {
	run, err := suite.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer run.Lab.Close()
	nodes := run.Lab.Nodes()
	if len(nodes) < 2 {
		return fmt.Errorf("the specs need two nodes and the lab has %d; run make lab-down first", len(nodes))
	}
	storageNode, clientNode := nodes[0], nodes[1]
	// One replica of each, away from the drive: what a second one needs to start and to wait is time that an emulated
	// node does not have for specs.
	replicas := []string{"operator.replicas=1", "csi.controller.replicas=1", `csi.controller.nodeSelector.kubernetes\.io/hostname=` + clientNode}
	steps := append([]suite.Step{{Name: "install the snapshot API", Do: run.SnapshotAPI}}, run.Steps(storageNode, replicas...)...)
	steps = append(steps, suite.Step{Name: "let the target promise more than its drive has", Do: func(ctx context.Context) error {
		return run.Overprovision(ctx, 400)
	}})
	for _, s := range steps {
		if err := step(ctx, s); err != nil {
			return run.Explain(ctx, err)
		}
	}
	// One suite's failure does not hide the other's.
	var failed error
	if o.sanity {
		failed = step(ctx, suite.Step{Name: "csi-sanity", Do: func(ctx context.Context) error {
			return run.Sanity(ctx, os.Stdout)
		}})
	}
	failed = errors.Join(failed, step(ctx, suite.Step{Name: "Kubernetes' storage suite", Do: func(ctx context.Context) error {
		_, err := run.StorageSpecs(ctx, os.Stdout, o.specs)
		return err
	}}))
	if failed != nil {
		return run.Explain(ctx, failed)
	}
	return nil
}

// step runs one step and tells that it does, and how long it took.
func step(ctx context.Context, s suite.Step) error {
	fmt.Printf("==> %s\n", s.Name)
	start := time.Now()
	if err := s.Do(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	fmt.Printf("    done in %.1fs\n", time.Since(start).Seconds())
	return nil
}
