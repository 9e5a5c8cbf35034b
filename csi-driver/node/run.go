// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/internal/dhchap"
)

// finishTimeout is how long work on this machine that outlived its calls (a mkfs, an umount) may take when the
// process is told to stop; with the server's own limit it fits into a pod's usual 30 s.
const finishTimeout = 15 * time.Second

// Options of the node plugin.
type Options struct {
	// Version of weft, which CSI's identity service gives.
	Version string
	// Endpoint to serve CSI on, such as unix:///csi/csi.sock; the kubelet must see it at the same path.
	Endpoint string
	// NodeName of this machine's Kubernetes Node.
	NodeName string
	// KubeletDir is the kubelet's folder, usually /var/lib/kubelet.
	KubeletDir string
	// HealthAddress for /healthz and /readyz, and for /metrics unless MetricsAddress is set; 0 for none.
	HealthAddress string
	// MetricsAddress for /metrics over HTTPS, for whom the API server allows it. Empty: HealthAddress, for anybody.
	MetricsAddress string
	// MetricsCertDir has tls.crt and tls.key for MetricsAddress. Empty: a certificate is created at start.
	MetricsCertDir string
	// MetricsOfPaths: the metrics of each path are served too.
	MetricsOfPaths bool
	// MaxVolumes that may be attached to this node at a time; 0 for no limit.
	MaxVolumes int64
	// MirrorGrace is how long a replica of a mirrored volume may not answer before it is given up, and
	// MirrorCopyBytesPerSecond how fast this node copies to one at most; 0 is the default.
	MirrorGrace              time.Duration
	MirrorCopyBytesPerSecond int64
}

// Run the node plugin of this machine until the context ends: CSI's node service, its registration with the kubelet,
// and the reports of what the kernel does not finish or lacks. It fails when something cannot be served, or when work
// on this machine does not end with it.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	socket, err := server.SocketPath(o.Endpoint)
	if err != nil {
		return err
	}
	if err := withoutCoreDumps(); err != nil {
		return err
	}
	nodes, err := nodeClient(config)
	if err != nil {
		return err
	}
	kubelet := newRegistrar(socket)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.serveHTTP(ctx, config, kubelet.registered) })
	group.Go(func() error {
		uid, err := UID(ctx, nodes, o.NodeName)
		if err != nil {
			return err
		}
		service, initiator, needs := newService(nodes)
		service.MirrorRecords, err = mirrorClient(config)
		if err != nil {
			return err
		}
		service.NodeName, service.NodeUID = o.NodeName, func(ctx context.Context) (string, error) { return readUID(ctx, nodes, o.NodeName) }
		service.MirrorGrace, service.MirrorCopyBytesPerSecond = o.MirrorGrace, o.MirrorCopyBytesPerSecond
		service.MaxVolumes, service.Records = o.MaxVolumes, filepath.Join(filepath.Dir(socket), "staged")
		var identityErr error
		if service.Identity, identityErr = dhchap.LoadIdentity(filepath.Join(filepath.Dir(socket), "identity")); identityErr != nil {
			// Volumes without keys are attached all the same.
			logr.FromContextOrDiscard(ctx).Error(identityErr, "This node has no public key; its hosts cannot be authenticated")
		}
		if err := service.Clean(); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot remove leftovers of the previous process; they do no harm")
		}
		if err := keeper.Prepare(); err != nil {
			return err
		}
		if err := service.TakeUpMirrors(ctx); err != nil {
			return err
		}
		calls, remove, err := o.measure(ctx, service)
		if err != nil {
			return err
		}
		defer remove()
		group.Go(func() error {
			if err := initiator.CountReconnects(ctx); err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "Cannot count the reconnects of paths; their metric is missing")
			}
			return nil
		})
		group.Go(func() error { service.Keep(ctx); return nil })
		group.Go(func() error { return service.KeepMirrors(ctx) })
		group.Go(func() error { service.KeepProgress(ctx); return nil })
		group.Go(func() error { return WatchMirrors(ctx, config, o.NodeName, service.MirrorChanged) })
		group.Go(func() error {
			reporter := Reporter{Client: nodes, Node: o.NodeName, UID: types.UID(uid), Clock: clock.RealClock{}}
			return reporter.Run(ctx, initiator, service.Overdue, service.MissingReplicas)
		})
		writer := ConditionWriter{Client: nodes, Node: o.NodeName, UID: types.UID(uid), Clock: clock.RealClock{}}
		authentication := AuthenticationReporter{Initiator: initiator, Identity: service.Identity, IdentityErr: identityErr}
		for _, r := range conditions(writer, o.Version, needs, authentication, service.RetiredIdentities) {
			group.Go(func() error { return r.Run(ctx) })
		}
		listener, err := server.Listen(ctx, o.Endpoint)
		if err != nil {
			return err
		}
		// Only now: the kubelet calls the node service as soon as it is registered.
		group.Go(func() error { return kubelet.run(ctx, registrationPath(o.KubeletDir)) })
		err = server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(r, &server.Identity{Version: o.Version, Ready: func() bool { return true }})
			csi.RegisterNodeServer(r, service)
		}, calls.Intercept)
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		return errors.Join(err, service.Wait(finish))
	})
	return group.Wait()
}

// serveHTTP serves health and metrics.
func (o Options) serveHTTP(ctx context.Context, config *rest.Config, ready func() error) error {
	group, ctx := errgroup.WithContext(ctx)
	metrics := server.MetricsHandler()
	if o.MetricsAddress != "" {
		metrics = nil
	}
	group.Go(func() error { return server.ServeHealth(ctx, o.HealthAddress, ready, metrics) })
	group.Go(func() error { return server.ServeMetrics(ctx, config, o.MetricsAddress, o.MetricsCertDir) })
	return group.Wait()
}

// measure the service and the calls of it, until the returned function is called.
func (o Options) measure(ctx context.Context, service *Service) (*server.Calls, func(), error) {
	calls, volumes := server.NewCalls(), NewMetrics(service, logr.FromContextOrDiscard(ctx))
	volumes.WithoutPaths = !o.MetricsOfPaths
	remove, err := server.Registered(calls, volumes)
	return calls, remove, err
}

// withoutCoreDumps keeps this process, and the programs that it runs, from leaving their memory, with keys in it, on
// the node. The limit is 1, and not 0: a pipe in kernel.core_pattern is given a core of any size, except with 1
// (core(5)).
func withoutCoreDumps() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	return nil
}

// nodeClient reads this machine's Node, volumes and the CSIDriver, and writes the Node's status and Events; without a
// cache, since it reads little.
func nodeClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// mirrorClient reads and writes NvmfMirrors. A keeper's write is not held up by other calls of this process.
func mirrorClient(config *rest.Config) (client.Client, error) {
	unlimited := rest.CopyConfig(config)
	unlimited.QPS = -1
	return nodeClient(unlimited)
}

// conditions of the Node, each with what reports it until its context ends. writer is what all write with.
func conditions(
	writer ConditionWriter, version string, needs needs, authentication AuthenticationReporter, retired func() ([]string, error),
) []interface{ Run(context.Context) error } {
	now := clock.RealClock{}
	write := func(kind corev1.NodeConditionType, manager string) *ConditionWriter {
		w := writer
		w.Type, w.FieldManager = kind, manager
		return &w
	}
	authentication.Clock, authentication.Writer = now, write(v1alpha1.ConditionAuthenticationUnavailable, v1alpha1.AuthenticationFieldManager)
	identities := write(v1alpha1.ConditionIdentitiesRetired, IdentitiesFieldManager)
	identities.Quiet = true
	return []interface{ Run(context.Context) error }{
		&SkewReporter{Client: writer.Client, Version: version, Clock: now, Writer: write(v1alpha1.ConditionNodeVersionSkew, SkewFieldManager)},
		&NeedsReporter{
			Needs: needs.mirrors, Available: MirrorsAvailable, Clock: now,
			Writer: write(v1alpha1.ConditionMirrorsUnavailable, MirrorsFieldManager),
		},
		&NeedsReporter{
			Needs: needs.encryption, Available: EncryptionAvailable, Clock: now,
			Writer: write(v1alpha1.ConditionEncryptionUnavailable, EncryptionFieldManager),
		},
		&authentication,
		&IdentitiesReporter{Retired: retired, Clock: now, Writer: identities},
	}
}

// needs of volumes that not every machine can use.
type needs struct{ mirrors, encryption []Loader }

// newService makes the node service of this machine, its initiator, and what some volumes need.
func newService(volumes client.Reader) (*Service, *fabrics.Host, needs) {
	kernel := fabrics.LinuxKernel{}
	filesystems := &filesystem.Host{
		Mounter: filesystem.NewLinuxMounter(), Exec: exec.New(), Open: kernel.Open, MountInfo: "/proc/self/mountinfo", Sys: "/sys",
	}
	initiator := fabrics.New(fabrics.Config{
		Root: "/", Kernel: kernel, LoadModule: filesystems.LoadModule, Reachable: fabrics.Reachable, MountsOf: filesystems.MountsOf,
		Events: fabrics.LinuxEvents,
	})
	devices := &mapper.Host{Root: "/", Control: mapper.Linux{}, LoadModule: filesystems.LoadModule, OpenDevice: kernel.Open}
	arrays := &md.Host{Root: "/", Exec: exec.New(), LoadModule: filesystems.LoadModule, OpenDirect: kernel.OpenDirect}
	return &Service{
		Initiator: initiator, Mapper: devices, Mirrors: arrays, Processes: &filesystem.Processes{Proc: "/proc", Self: os.Getpid()},
		Filesystems: filesystems, Volumes: volumes,
	}, initiator, needs{mirrors: []Loader{arrays, devices}, encryption: []Loader{EncryptionNeeds{filesystems, devices}}}
}
