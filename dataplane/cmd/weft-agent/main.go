// SPDX-License-Identifier: Apache-2.0

// Command weft-agent serves the volumes of one node: it makes the node's engine do what the
// node's objects say, and reports what is true. It may be stopped and replaced at any time; what it
// set up goes on serving without it.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/dataplane/internal/agent"
)

// version is set by the linker.
var version = "development"

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "weft-agent:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var options agent.Options
	var stateDir string
	logging := zap.Options{TimeEncoder: zapcore.RFC3339TimeEncoder}
	cmd := &cobra.Command{
		Use:           "weft-agent",
		Short:         "Serve this node's NvmfVolumes over NVMe-oF",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := zap.New(zap.UseFlagOptions(&logging)).WithValues("node", options.NodeName)
			ctrl.SetLogger(logger)
			klog.SetLogger(logger) // the lease is renewed by client-go, which logs through klog
			config, err := ctrl.GetConfig()
			if err != nil {
				return fmt.Errorf("find the API server (give --kubeconfig outside of a cluster): %w", err)
			}
			options.Inventory = machine{}
			options.Engines = engines(stateDir)
			return agent.Run(cmd.Context(), config, options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of the Kubernetes Node that the agent runs on; default: the environment's NODE_NAME")
	flags.StringVar(&options.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the agent's lease; default: the environment's POD_NAMESPACE")
	flags.StringVar(&stateDir, "state-dir", "/var/lib/weft", "folder of the node under which pools are mounted")
	flags.StringVar(&options.HealthAddress, "health-probe-bind-address", "127.0.0.1:9810", "address for /healthz and /readyz, and for /metrics unless --metrics-bind-address is given")
	flags.StringVar(&options.MetricsAddress, "metrics-bind-address", "", "address for /metrics over HTTPS, with authentication and authorization by the API server")
	// controller-runtime registers --kubeconfig with the standard library's flags.
	logging.BindFlags(flag.CommandLine)
	flags.AddGoFlagSet(flag.CommandLine)
	return cmd
}
