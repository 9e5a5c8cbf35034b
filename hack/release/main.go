// SPDX-License-Identifier: Apache-2.0

// Release makes a release of weft from a checkout: images, chart, kubectl's plugin, and what goes with them. make
// release calls it; docs/design/release.md says how a maintainer releases.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/hack/release/base"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // this is main
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func command() *cobra.Command {
	cmd := &cobra.Command{Use: "release", Short: "Make a release of weft", SilenceUsage: true, SilenceErrors: true}
	var repo string
	cmd.PersistentFlags().StringVar(&repo, "repo", "../..", "root of the checkout")
	cmd.AddCommand(versionCommand(&repo), notesCommand(&repo), baseCommand(), buildCommand(&repo), pushCommand())
	return cmd
}

func versionCommand(repo *string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of a release from this checkout", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, err := versionOf(cmd.Context(), *repo)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), version)
			}
			return err
		},
	}
}

// versionOf the checkout, by its tag and its chart.
func versionOf(ctx context.Context, repo string) (string, error) {
	head, err := headOf(ctx, repo)
	if err != nil {
		return "", err
	}
	chart, err := versionsOf(repo)
	if err != nil {
		return "", err
	}
	return head.version(chart.weft)
}

func notesCommand(repo *string) *cobra.Command {
	return &cobra.Command{
		Use: "notes VERSION", Short: "Print what CHANGELOG.md says of a version", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			changelog, err := os.ReadFile(filepath.Join(*repo, "CHANGELOG.md"))
			if err != nil {
				return err
			}
			text, err := notes(string(changelog), args[0])
			if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
}

func baseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "base ARCH FILE.tar", Short: "Make the base of weft's image for an architecture from Debian's packages", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(architectures, args[0]) {
				return fmt.Errorf("architecture %q; must be one of %s", args[0], strings.Join(architectures, ", "))
			}
			return base.Make(cmd.Context(), args[0], args[1])
		},
	}
}

func buildCommand(repo *string) *cobra.Command {
	b := &builder{}
	cmd := &cobra.Command{
		Use: "build", Short: "Build the release from programs that are built", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			head, err := headOf(cmd.Context(), *repo)
			if err != nil {
				return err
			}
			versions, err := versionsOf(*repo)
			if err != nil {
				return err
			}
			if b.version == "" {
				b.version, err = head.version(versions.weft)
			}
			if err != nil {
				return err
			}
			if b.at, err = head.releaseTime(); err != nil {
				return err
			}
			b.repo, b.revision, b.targetVersion, b.log = *repo, head.id, versions.target, cmd.OutOrStdout()
			return b.build(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.version, "version", "", "version (default: that of the tag, or of a development build)")
	flags.StringVar(&b.programs, "programs", "../../bin", "folder of the programs")
	flags.StringVar(&b.out, "out", "../../dist/release", "folder of the release; what is in it is deleted")
	flags.StringVar(&b.helm, "helm", "../../bin/helm", "Helm's program")
	flags.StringVar(&b.base, "base", "", "base of the image weft: a folder with amd64.tar and arm64.tar, an OCI image layout, or an image in a registry")
	flags.StringVar(&b.targetBase, "target-base", "", "base of the image weft-target, with SPDK's nvmf_tgt: an OCI image layout, or an image in a registry; without it there is no such image")
	if err := cmd.MarkFlagRequired("base"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func pushCommand() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use: "push", Short: "Push images, bills of materials and chart to a registry; log in with docker login before", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return errors.New("--to is empty; name a registry's prefix, such as ghcr.io/weft-storage")
			}
			pushed, err := push(cmd.Context(), filepath.Join(from, layoutDir), to, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(from, pushedFile), []byte(strings.Join(pushed, "\n")+"\n"), 0o644)
		},
	}
	cmd.Flags().StringVar(&from, "from", "../../dist/release", "folder of the release")
	cmd.Flags().StringVar(&to, "to", "", "prefix of the repositories")
	return cmd
}
