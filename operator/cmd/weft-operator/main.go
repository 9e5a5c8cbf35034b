// SPDX-License-Identifier: Apache-2.0

// Command weft-operator places targets on storage nodes: it turns NvmfTargets into a plan for
// each node, and keeps their status true.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/operator/internal/controller/guard"
)

// version is set by the linker.
var version = "development"

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "weft-operator:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	options := settings{Version: version}
	// An error needs its words, not the stack of the place that logs it.
	logging := zap.Options{TimeEncoder: zapcore.RFC3339TimeEncoder, StacktraceLevel: zapcore.DPanicLevel}
	cmd := &cobra.Command{
		Use:           "weft-operator",
		Short:         "Run the weft operator: assign storage nodes to NvmfTargets and plan their settings",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := apiServer()
			if err != nil {
				return err
			}
			logger := zap.New(zap.UseFlagOptions(&logging))
			ctrl.SetLogger(logger)
			klog.SetLogger(logger) // leader election logs through klog
			// No fixed rate: a label on 5,000 nodes is a write for each, and what else the operator has to say would
			// wait behind them for most of a minute at 100 a second. Few requests are under way at once, since each
			// controller makes one after the other, and the API server has a priority level for them (apiPriority in
			// the chart's values).
			cfg.QPS = -1
			ctx := logr.NewContext(cmd.Context(), logger)
			mgr, err := newManager(ctx, cfg, options)
			if err != nil {
				return err
			}
			return mgr.Start(ctx)
		},
	}
	cmd.AddCommand(guardCommand())
	flags := cmd.Flags()
	flags.StringVar(&options.Namespace, "namespace", "weft-system", "namespace of weft, with the Leases of the leader and of the agents")
	flags.BoolVar(&options.LeaderElect, "leader-elect", true, "elect a leader among several replicas")
	flags.StringVar(&options.MetricsBindAddress, "metrics-bind-address", ":8443", "address for /metrics over HTTPS, with authentication and authorization by the API server; 0 disables it")
	flags.StringVar(&options.MetricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key of /metrics over HTTPS, read again when they change; empty: a certificate created at start")
	flags.StringVar(&options.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "address for /healthz and /readyz; 0 disables it")
	flags.StringVar(&options.WebhookBindAddress, "webhook-bind-address", "0", "address for the admission webhook over HTTPS, such as :9443; 0 disables it")
	flags.StringVar(&options.TargetImage, "target-image", "", "image of target pods, with weft-launch and SPDK's nvmf_tgt; required")
	flags.StringVar(&options.TargetImagePullPolicy, "target-image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never")
	flags.StringVar(&options.GuardImage, "guard-image", "", "image of guard pods, with weft-operator; they keep storage nodes from being drained while a volume's only in-sync replica is there; empty: none, and drains are not refused")
	flags.StringVar(&options.GuardSingleReplica, "guard-single-replica", string(guard.SingleReplicaBlock), "whether volumes with one replica keep their node from being drained: Block or Allow")
	flags.StringVar(&options.GuardImagePullPolicy, "guard-image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never")
	// controller-runtime registers --kubeconfig with the standard library's flags.
	logging.BindFlags(flag.CommandLine)
	flags.AddGoFlagSet(flag.CommandLine)
	return cmd
}

// guardCommand is what guard pods run: it waits until it is stopped.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "guard",
		Short: "Wait until stopped: run by the guard pods, which protect storage nodes from evictions",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() },
	}
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
