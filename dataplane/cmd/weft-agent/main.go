// SPDX-License-Identifier: Apache-2.0

// Command weft-agent serves the volumes of one node: it makes the node's engine do what the
// node's objects say, and reports what is true. It may be stopped and replaced at any time; what it
// set up goes on serving without it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/dataplane/agent"
	"github.com/weft-storage/weft/dataplane/inventory"
	"github.com/weft-storage/weft/internal/tracing"
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
	options := agent.Options{Version: version}
	var spdkSocket string
	// An error needs its words, not the stack of the place that logs it.
	logging := zap.Options{TimeEncoder: zapcore.RFC3339TimeEncoder, StacktraceLevel: zapcore.DPanicLevel}
	cmd := &cobra.Command{
		Use:               "weft-agent",
		Short:             "Serve the NvmfReplicas of this node over NVMe-oF",
		Version:           version,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !filepath.IsAbs(spdkSocket) {
				return fmt.Errorf("--spdk-socket is %q; must be an absolute path, such as /run/weft/spdk.sock", spdkSocket)
			}
			var err error
			if options.Engines, err = engines(options.StateDir, spdkSocket); err != nil {
				return err
			}
			options.Inventory = machine{}
			if options.Tuning, err = tuned(); err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return err
			}
			config, err := apiServer()
			if err != nil {
				return err
			}
			logger := zap.New(zap.UseFlagOptions(&logging)).WithValues("node", options.NodeName)
			ctrl.SetLogger(logger)
			klog.SetLogger(logger) // the lease is renewed by client-go, which logs through klog
			ctx, stop, err := tracing.Setup(logr.NewContext(cmd.Context(), logger), "weft-agent", version)
			if err != nil {
				return err
			}
			defer stop()
			return agent.Run(ctx, config, options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this Kubernetes Node (default $NODE_NAME)")
	flags.StringVar(&options.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the agent's Lease (default $POD_NAMESPACE)")
	flags.StringVar(&options.StateDir, "state-dir", "/var/lib/weft", "directory on the node for the mounts of pools and for the agent's records")
	flags.StringVar(&spdkSocket, "spdk-socket", "/run/weft/spdk.sock", "RPC socket of the node's SPDK target; used only with engine SPDK")
	flags.StringVar(&options.HealthAddress, "health-probe-bind-address", "127.0.0.1:9810", "address for /healthz and /readyz, and for /metrics unless --metrics-bind-address is set")
	flags.StringVar(&options.MetricsAddress, "metrics-bind-address", "", "address for /metrics over HTTPS, with authentication and authorization by the API server")
	flags.StringVar(&options.MetricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key of /metrics over HTTPS, read again when they change; empty: a certificate created at start")
	flags.StringVar(&options.SnapshotMetadataAddress, "snapshot-metadata-bind-address", "", "IP address of this node, and port, on which the CSI controller asks for the blocks of snapshots, over HTTPS with authentication and authorization by the API server; empty disables it")
	ofLogging := flag.NewFlagSet("logging", flag.ContinueOnError)
	logging.BindFlags(ofLogging)
	flags.AddGoFlagSet(ofLogging)
	// controller-runtime registers --kubeconfig with the standard library's flags.
	flags.AddGoFlag(flag.Lookup(ctrlconfig.KubeconfigFlagName))
	cmd.AddCommand(inventoryCommand(inventory.Host{Addresses: inventory.Netlink{}, Prober: unprobed{}}))
	return cmd
}

// apiServer finds the API server. Libraries log only after it: controller-runtime would log a failure that is returned
// too.
func apiServer() (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if clientcmd.IsEmptyConfig(err) {
		_, err = rest.InClusterConfig()
		return nil, fmt.Errorf("cannot find the API server: outside a cluster, set --kubeconfig or KUBECONFIG (in the cluster: %w)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return config, nil
}
