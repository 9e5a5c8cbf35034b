// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newBuildCommand() *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build what the lab runs into the cache; what is there is not built again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			switch only {
			case "":
				_, _, err := b.Cluster(cmd.Context())
				return err
			case "vm":
				_, err := b.VM(cmd.Context())
				return err
			case "storage":
				_, err := b.StorageSuite(cmd.Context())
				return err
			case "envtest":
				dir, err := b.Envtest(cmd.Context())
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
				return err
			default:
				return fmt.Errorf("--only %q is not known; use envtest, vm or storage", only)
			}
		},
	}
	cmd.Flags().StringVar(&only, "only", "", "build only a part: envtest (etcd, kube-apiserver, kube-controller-manager, kubectl), vm (kernel and root disk without Kubernetes) or storage (Kubernetes' storage suite)")
	return cmd
}

func newToolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tools",
		Short: "Install the programs that tests and the lab run on this machine, where apt-get can, as root",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			return b.EnsureHostTools(cmd.Context())
		},
	}
}

func newAssetsDirCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "assets-dir",
		Short: "Print the directory for KUBEBUILDER_ASSETS; `build --only envtest` fills it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			dir, err := b.AssetsDir()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
			return err
		},
	}
}
