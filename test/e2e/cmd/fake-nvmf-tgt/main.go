// SPDX-License-Identifier: Apache-2.0

// Command fake-nvmf-tgt takes the place of SPDK's nvmf_tgt in the lab's target pods where no real one can be
// had. It takes the flags that weft-launch gives, answers SPDK's RPCs, keeps volumes on the devices it is
// given, and serves no I/O.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake-nvmf-tgt:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	options := spdktest.Options{PollInterval: spdktest.DefaultPollInterval}
	cmd := &cobra.Command{
		Use:           "nvmf_tgt",
		Short:         "Answer SPDK's RPCs in place of a real nvmf_tgt",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := spdktest.Listen(cmd.Context(), options)
			if err != nil {
				return err
			}
			<-target.Done()
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&options.CoreMask, "cpumask", "m", "0x1", "cores")
	flags.StringVarP(&options.Socket, "rpc-socket", "r", "/var/tmp/spdk.sock", "path of the RPC socket")
	flags.BoolVar(&options.WaitForRPC, "wait-for-rpc", false, "wait for framework_start_init")
	// What follows changes nothing that a client of the RPCs could see.
	flags.IntP("mem-size", "s", 0, "memory in MiB")
	flags.Bool("no-huge", false, "no hugepages")
	flags.Bool("no-pci", false, "no PCI devices")
	flags.StringSlice("pci-allowed", nil, "PCI devices")
	flags.Bool("interrupt-mode", false, "interrupt mode")
	flags.String("num-trace-entries", "", "trace entries")
	return cmd
}
