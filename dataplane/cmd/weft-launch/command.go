// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// ExitCode of the process after Command ended with err, which it tells: that of nvmf_tgt, where the launcher stayed
// beside it.
func ExitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "weft-launch:", strings.ReplaceAll(err.Error(), "\n", "; "))
	var ended *ExitError
	if errors.As(err, &ended) {
		return ended.Code
	}
	return 1
}

// Command is weft-launch: run starts the target, probe asks whether it answers.
func Command(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "weft-launch",
		Short:         "Start SPDK's NVMe-oF target after checking the node",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(runCommand(), probeCommand())
	return cmd
}

func runCommand() *cobra.Command {
	var options Options
	var machine Machine
	var hugepages, driver, reasonFile string
	var drives []string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Check CPUs, memory and drives, then start nvmf_tgt",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.Hugepages, options.Driver = v1alpha1.Hugepages(hugepages), v1alpha1.DriveDriver(driver)
			for _, text := range drives {
				options.Drives = append(options.Drives, ParsePlannedDrive(text))
			}
			machine.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			err := Run(cmd.Context(), machine, options)
			var ended *ExitError
			if err == nil || errors.As(err, &ended) || cmd.Context().Err() != nil {
				return err
			}
			if writeErr := WriteReason(reasonFile, err); writeErr != nil {
				machine.Log.Error("cannot report the reason", "error", writeErr)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Socket, "socket", "/run/weft/spdk.sock", "path of nvmf_tgt's JSON-RPC socket; its directory becomes accessible only to root")
	flags.StringVar(&options.CoreMask, "core-mask", "", "mask of the CPUs to run on, such as 0x3c; CPUs that are not available to the container are ignored")
	flags.Int64Var(&options.MemoryBytes, "memory-bytes", 0, "memory of nvmf_tgt, in bytes")
	flags.StringVar(&hugepages, "hugepages", string(v1alpha1.Hugepages2Mi), "page size of the memory: 2Mi, 1Gi or Disabled")
	flags.BoolVar(&options.Interrupt, "interrupt", false, "let reactors sleep until there is work, instead of polling")
	flags.StringVar(&driver, "driver", string(v1alpha1.DriverKernel), "driver of the drives: Kernel, VFIO or UIO")
	flags.StringArrayVar(&drives, "pci", nil, "drive to take from the kernel, as ADDRESS=ID, such as 0000:5e:00.0=eui.0025388b710116a1; repeat for each drive")
	flags.StringVar(&options.Target, "target", "nvmf_tgt", "SPDK's target: a path, or a name in PATH")
	flags.StringVar(&reasonFile, "reason-file", "/dev/termination-log", "file for the reason of a failure, as JSON")
	flags.StringVar(&machine.Root, "root", "/", "root of the filesystem with /sys, /proc and /dev")
	_ = flags.MarkHidden("root") // for tests
	return cmd
}

func probeCommand() *cobra.Command {
	var socket string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Check that nvmf_tgt answers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			answer, err := Probe(ctx, socket)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), answer)
			return err
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "/run/weft/spdk.sock", "path of nvmf_tgt's JSON-RPC socket")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "timeout of the check")
	return cmd
}
