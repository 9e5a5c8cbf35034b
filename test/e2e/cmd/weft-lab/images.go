// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/lab"
)

func newImagesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "Build and load container images"}
	cmd.AddCommand(newImagesBuildCommand(), newImagesLoadCommand(), newImagesWeftCommand(), newImagesFioCommand())
	return cmd
}

func newImagesBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build ARCHIVE",
		Short: "Build the project's image from bin/<arch>, as a release does, into an archive",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			if err := b.WeftImage(cmd.Context(), args[0]); err != nil {
				return err
			}
			ref, err := b.WeftImageRef()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), ref)
			return err
		},
	}
}

func newImagesLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "load ARCHIVE...",
		Short: "Load image archives into all nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			return l.LoadImages(cmd.Context(), args...)
		}),
	}
}

func newImagesWeftCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "weft",
		Short: "Build the project's image and load it into all nodes",
		Args:  cobra.NoArgs,
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			return l.LoadWeft(cmd.Context(), b)
		}),
	}
}

func newImagesFioCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "fio",
		Short: "Build " + build.FioImage + ", for pods that make load, and load it into all nodes",
		Args:  cobra.NoArgs,
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			archive, err := b.FioImage(cmd.Context())
			if err != nil {
				return err
			}
			return l.LoadImages(cmd.Context(), archive)
		}),
	}
}

func newPackTargetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pack-target PROGRAM DIRECTORY",
		Short: "Make DIRECTORY with SPDK's nvmf_tgt and this machine's libraries for it; DIRECTORY/nvmf_tgt runs anywhere",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return build.PackTarget(cmd.Context(), args[0], args[1])
		},
	}
}
