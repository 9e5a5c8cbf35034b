// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node"
)

type nodeOptions struct {
	node.Options
	copyKiBPerSecond int64
}

func nodeCommand() *cobra.Command {
	o := nodeOptions{Options: node.Options{Version: version}}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the CSI node service: connect and mount volumes on this node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return traced(cmd.Context(), "weft-csi-node", o.run) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Endpoint, "endpoint", "unix:///var/lib/kubelet/plugins/csi.weft.storage/csi.sock", "endpoint of the CSI node service; the kubelet must be able to access it at the same path")
	flags.StringVar(&o.NodeName, "node-name", "", "name of this Kubernetes Node")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "root directory of the kubelet")
	flags.StringVar(&o.HealthAddress, "health-probe-bind-address", "127.0.0.1:9812", "address for /healthz and /readyz, and for /metrics unless --metrics-bind-address is set; 0 disables it")
	flags.StringVar(&o.MetricsAddress, "metrics-bind-address", "", "address for /metrics over HTTPS, with authentication and authorization by the API server")
	flags.StringVar(&o.MetricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key of /metrics over HTTPS, read again when they change; empty: a certificate created at start")
	flags.BoolVar(&o.MetricsOfPaths, "metrics-of-paths", true, "also serve the metrics of each path, which are most of the series")
	flags.Int64Var(&o.MaxVolumes, "max-volumes", node.DefaultMaxVolumes, "maximum number of volumes attached to this node; 0 means no limit")
	flags.DurationVar(&o.MirrorGrace, "mirror-grace", node.DefaultMirrorGrace, "how long a replica of a volume with two may not answer before it is given up; writes wait that long")
	flags.Int64Var(&o.copyKiBPerSecond, "mirror-copy-kib-per-second", node.DefaultMirrorCopyBytesPerSecond>>10, "how fast this node copies to a replica that lacks data, at most")
	return cmd
}

func (o nodeOptions) run(ctx context.Context) error {
	if o.NodeName == "" {
		return errors.New("--node-name is required: set it to the name of this Kubernetes Node")
	}
	if o.MaxVolumes < 0 {
		return fmt.Errorf("--max-volumes is %d; must be 0 (no limit) or greater", o.MaxVolumes)
	}
	if o.MirrorGrace < node.DefaultMirrorGrace || o.MirrorGrace > node.MaxMirrorGrace {
		return fmt.Errorf("--mirror-grace is %s; must be from %s, in which the kernel tries to connect again twice, to %s", o.MirrorGrace, node.DefaultMirrorGrace, node.MaxMirrorGrace)
	}
	const least, most = node.MinMirrorCopyBytesPerSecond >> 10, node.MaxMirrorCopyBytesPerSecond >> 10
	if o.copyKiBPerSecond < least || o.copyKiBPerSecond > most {
		return fmt.Errorf("--mirror-copy-kib-per-second is %d; must be from %d to %d", o.copyKiBPerSecond, least, most)
	}
	o.MirrorCopyBytesPerSecond = o.copyKiBPerSecond << 10
	if !filepath.IsAbs(o.KubeletDir) {
		return fmt.Errorf("--kubelet-dir is %q; must be an absolute path, such as /var/lib/kubelet", o.KubeletDir)
	}
	if _, err := server.SocketPath(o.Endpoint); err != nil {
		return err
	}
	config, err := apiServer(ctx)
	if err != nil {
		return err
	}
	return node.Run(ctx, config, o.Options)
}
