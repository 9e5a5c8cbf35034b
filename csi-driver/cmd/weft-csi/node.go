// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/csi-driver/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/internal/identity"
	"github.com/weft-storage/weft/csi-driver/internal/node"
	"github.com/weft-storage/weft/csi-driver/internal/registration"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/internal/stuck"
)

// finishTimeout is how long work on this machine that outlived its calls (a mkfs, an umount) may take when the
// process is told to stop; with the server's own limit it fits into a pod's usual 30 s.
const finishTimeout = 15 * time.Second

type nodeOptions struct {
	endpoint, nodeName, kubeletDir, healthAddress string
	maxVolumes                                    int64
}

func nodeCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Connect and mount volumes on this node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.endpoint, "endpoint", "unix:///var/lib/kubelet/plugins/csi.weft.storage/csi.sock", "socket to serve CSI's node service on; the kubelet must see it at the same path")
	flags.StringVar(&o.nodeName, "node-name", "", "name of this Kubernetes Node")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's folder")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", "127.0.0.1:9812", "address for /healthz and /readyz; 0 for none")
	flags.Int64Var(&o.maxVolumes, "max-volumes", node.DefaultMaxVolumes, "volumes that may be attached to this node at a time; 0 for no limit")
	return cmd
}

func (o nodeOptions) run(ctx context.Context) error {
	if o.nodeName == "" {
		return errors.New("--node-name is missing: give the name of this Kubernetes Node")
	}
	if o.maxVolumes < 0 {
		return fmt.Errorf("--max-volumes is %d; give 0 for no limit, or a positive number", o.maxVolumes)
	}
	if !filepath.IsAbs(o.kubeletDir) {
		return fmt.Errorf("--kubelet-dir is %q; give an absolute path, such as /var/lib/kubelet", o.kubeletDir)
	}
	socket, err := server.SocketPath(o.endpoint)
	if err != nil {
		return err
	}
	nodes, err := nodeClient(ctx)
	if err != nil {
		return err
	}
	registrar := registration.New(socket)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.ServeHealth(ctx, o.healthAddress, registrar.Registered) })
	group.Go(func() error {
		uid, err := node.UID(ctx, nodes, o.nodeName)
		if err != nil {
			return err
		}
		watch := stuck.New(clock.RealClock{}, "/proc")
		service, initiator := newNode(uid, o.maxVolumes, watch)
		service.Records = filepath.Join(filepath.Dir(socket), "staged")
		if err := service.Clean(); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "What the last process left cannot be removed; it is in nobody's way")
		}
		group.Go(func() error { service.Keep(ctx); return nil })
		group.Go(func() error {
			return watch.Run(ctx, initiator.Going, &stuck.NodeReport{Client: nodes, Node: o.nodeName, UID: types.UID(uid), Clock: clock.RealClock{}})
		})
		listener, err := server.Listen(ctx, o.endpoint)
		if err != nil {
			return err
		}
		// Only now: the kubelet calls the node service as soon as it is registered.
		group.Go(func() error { return registrar.Run(ctx, registration.Path(o.kubeletDir)) })
		err = server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(r, &identity.Service{Version: version, Ready: func() bool { return true }})
			csi.RegisterNodeServer(r, service)
		})
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		return errors.Join(err, service.Wait(finish))
	})
	return group.Wait()
}

// nodeClient reads and writes this machine's Node; without a cache, since it is read once.
func nodeClient(ctx context.Context) (client.Client, error) {
	config, err := apiServer(ctx)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// newNode makes the node service of this machine, and its initiator.
func newNode(uid string, maxVolumes int64, watch *stuck.Watch) (*node.Service, *fabrics.Host) {
	kernel := watch.Kernel(fabrics.LinuxKernel{})
	filesystems := &filesystem.Host{
		Mounter: watch.Mounter(mount.NewWithoutSystemd("")), Exec: watch.Programs(), Open: kernel.Open, MountInfo: "/proc/self/mountinfo", Sys: "/sys",
	}
	initiator := fabrics.New(fabrics.Config{
		Root: "/", UID: uid, Kernel: kernel, LoadModule: filesystems.LoadModule, Reachable: fabrics.Reachable,
		MountsOf: func(ns fabrics.Namespace) ([]string, error) { return filesystems.MountsOf(ns.Device, ns.Name) },
	})
	service := &node.Service{
		HostNQN: initiator.NQN, MaxVolumes: maxVolumes, Initiator: initiator, Filesystems: filesystems, Obstacle: watch,
	}
	return service, initiator
}
