// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/csi-driver/internal/server"
)

var errNotSynced = errors.New("the cache is not synced yet")

type controllerOptions struct{ endpoint, healthAddress, metricsAddress, metricsCertDir, agentToken string }

func controllerCommand() *cobra.Command {
	var o controllerOptions
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the CSI controller service",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return traced(cmd.Context(), "weft-csi-controller", o.run) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.endpoint, "endpoint", "unix:///csi/csi.sock", "endpoint of the CSI controller service")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", ":9811", "address for /healthz and /readyz; 0 disables it")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "0", "address for /metrics over HTTPS, with authentication and authorization by the API server; 0 disables it")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key of /metrics over HTTPS, read again when they change; empty: a certificate created at start")
	flags.StringVar(&o.agentToken, "snapshot-metadata-token-file", "", "file with a token of this service account for the audience weft-agent: serve SnapshotMetadata, asking the agents with the token; empty disables it")
	return cmd
}

func (o controllerOptions) run(ctx context.Context) error {
	if _, err := server.SocketPath(o.endpoint); err != nil {
		return err
	}
	config, err := apiServer(ctx)
	if err != nil {
		return err
	}
	cluster, err := controller.NewCluster(config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	service, err := controller.New(ctx, cluster)
	if err != nil {
		return err
	}
	calls := server.NewCalls()
	remove, err := server.Registered(calls, controller.NewMetrics(ctx, service))
	if err != nil {
		return err
	}
	defer remove()
	listener, err := server.Listen(ctx, o.endpoint)
	if err != nil {
		return err
	}
	group.Go(func() error { return cluster.Start(ctx) })
	group.Go(func() error { return server.ServeMetrics(ctx, config, o.metricsAddress, o.metricsCertDir) })
	group.Go(func() error {
		if cluster.GetCache().WaitForCacheSync(ctx) {
			service.Settle(ctx)
		}
		return nil
	})
	group.Go(func() error {
		if cluster.GetCache().WaitForCacheSync(ctx) {
			service.TellEvents(ctx)
		}
		return nil
	})
	group.Go(func() error {
		return server.ServeHealth(ctx, o.healthAddress, func() error {
			if !service.Synced() {
				return errNotSynced
			}
			return nil
		}, nil)
	})
	group.Go(func() error {
		return server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(r, &server.Identity{Version: version, SnapshotMetadata: o.agentToken != "", Ready: service.Synced})
			csi.RegisterControllerServer(r, service)
			if o.agentToken != "" {
				csi.RegisterSnapshotMetadataServer(r, &controller.SnapshotMetadata{Service: service, TokenFile: o.agentToken})
			}
		}, calls.Intercept)
	})
	return group.Wait()
}
