// SPDX-License-Identifier: Apache-2.0

// Command weft-csi is the CSI driver: `weft-csi controller` runs once for the cluster, beside the CSI sidecars, and
// `weft-csi node` on each node.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/internal/tracing"
)

// version is set by the linker.
var version = "development"

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "weft-csi:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	// A failed call needs its words, not the stack of the place that logs it.
	logging := zap.Options{TimeEncoder: zapcore.RFC3339TimeEncoder, StacktraceLevel: zapcore.DPanicLevel}
	cmd := &cobra.Command{
		Use:           "weft-csi",
		Short:         "CSI driver for volumes on NVMe-oF targets",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			logger := zap.New(zap.UseFlagOptions(&logging))
			klog.SetLogger(logger) // mount-utils and client-go log through klog
			cmd.SetContext(logr.NewContext(cmd.Context(), logger))
			// Programs that are run by libraries must answer in the C locale too.
			return os.Setenv("LC_ALL", "C")
		},
	}
	// controller-runtime registers --kubeconfig with the standard library's flags.
	logging.BindFlags(flag.CommandLine)
	cmd.PersistentFlags().AddGoFlagSet(flag.CommandLine)
	cmd.AddCommand(controllerCommand(), nodeCommand())
	return cmd
}

// traced runs a service in a context in which it is traced as the environment says, until it ends.
func traced(ctx context.Context, service string, run func(context.Context) error) error {
	ctx, stop, err := tracing.Setup(ctx, service, version)
	if err != nil {
		return err
	}
	defer stop()
	return run(ctx)
}

// apiServer finds the API server. controller-runtime logs only after it: it would log a failure that is returned too.
func apiServer(ctx context.Context) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	ctrl.SetLogger(logr.FromContextOrDiscard(ctx))
	if clientcmd.IsEmptyConfig(err) {
		_, err = rest.InClusterConfig()
		return nil, fmt.Errorf("cannot find the API server: outside a cluster, set --kubeconfig or KUBECONFIG (in the cluster: %w)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return config, nil
}
