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

type nodeOptions node.Options

func nodeCommand() *cobra.Command {
	o := nodeOptions{Version: version}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Connect and mount volumes on this node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Endpoint, "endpoint", "unix:///var/lib/kubelet/plugins/csi.weft.storage/csi.sock", "socket to serve CSI's node service on; the kubelet must see it at the same path")
	flags.StringVar(&o.NodeName, "node-name", "", "name of this Kubernetes Node")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's folder")
	flags.StringVar(&o.HealthAddress, "health-probe-bind-address", "127.0.0.1:9812", "address for /healthz and /readyz; 0 for none")
	flags.Int64Var(&o.MaxVolumes, "max-volumes", node.DefaultMaxVolumes, "volumes that may be attached to this node at a time; 0 for no limit")
	return cmd
}

func (o nodeOptions) run(ctx context.Context) error {
	if o.NodeName == "" {
		return errors.New("--node-name is missing: give the name of this Kubernetes Node")
	}
	if o.MaxVolumes < 0 {
		return fmt.Errorf("--max-volumes is %d; give 0 for no limit, or a positive number", o.MaxVolumes)
	}
	if !filepath.IsAbs(o.KubeletDir) {
		return fmt.Errorf("--kubelet-dir is %q; give an absolute path, such as /var/lib/kubelet", o.KubeletDir)
	}
	if _, err := server.SocketPath(o.Endpoint); err != nil {
		return err
	}
	config, err := apiServer(ctx)
	if err != nil {
		return err
	}
	return node.Run(ctx, config, node.Options(o))
}
