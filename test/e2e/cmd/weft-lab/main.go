// SPDX-License-Identifier: Apache-2.0

// Command weft-lab runs a real Kubernetes cluster with NVMe-oF on one machine:
// control plane on the host, nodes as virtual machines.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx)
	stop()
	os.Exit(code)
}

// exitError is an error that only carries the exit status of a program that ran
// on a node; the program itself has said what was wrong.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func run(ctx context.Context) int {
	err := newCommand().ExecuteContext(ctx) //nolint:contextcheck // cobra hands the context on
	switch e := err.(type) {                //nolint:errorlint // our own RunE returns it bare
	case nil:
		return 0
	case exitError:
		return int(e)
	default:
		_, _ = fmt.Fprintln(os.Stderr, "weft-lab:", err)
		return 1
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "weft-lab",
		Short:         "A real Kubernetes cluster with NVMe-oF on one machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newBuildCommand(), newAssetsDirCommand(), newToolsCommand(), newUpCommand(), newDownCommand(), newStatusCommand(), newExecCommand(),
		newPowerCommand(), newNetCommand(), newAPICommand(), newEtcdCommand(), newDmesgCommand(), newLogsCommand(), newKubeconfigCommand(),
		newImagesCommand(), newPackTargetCommand(), newDemoCommand(), newStorageCommand(), newBenchCommand(), newPartsCommand(),
	)
	return root
}

// newBuilder returns a builder for the repository that build.Repo finds.
func newBuilder() (*build.Builder, error) {
	repo, err := build.Repo()
	if err != nil {
		return nil, err
	}
	dir, err := build.DefaultCacheDir()
	if err != nil {
		return nil, err
	}
	return &build.Builder{Repo: repo, Cache: build.Cache{Dir: dir}, Progress: build.NewProgress(os.Stderr)}, nil
}
