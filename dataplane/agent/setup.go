// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/tuning"
	"github.com/weft-storage/weft/internal/dhchap"
	"github.com/weft-storage/weft/internal/serving"
)

const (
	// defaultSettle is how long portals wait, after the agent's start, for what may yet appear: longer than
	// kernels take to find a drive.
	defaultSettle = time.Minute
	// defaultResync is how often allocated bytes are brought up to date.
	defaultResync = 30 * time.Second
	// clientQPS and clientBurst allow a node full of volumes to be reported at once; the API server has its own limits.
	clientQPS, clientBurst = 200, 400
)

// Options of an agent.
type Options struct {
	// Version of weft, which the node's status reports.
	Version string
	// NodeName of the node the agent runs on. Required.
	NodeName string
	// Namespace of the agent's Lease. Required.
	Namespace string
	// StateDir is the folder where the agent keeps what its successors must know. Required.
	StateDir string
	// HealthAddress serves /healthz and /readyz, and /metrics unless MetricsAddress is set. Required.
	HealthAddress string
	// MetricsAddress serves metrics over TLS, to whom the API server allows it. Default: none.
	MetricsAddress string
	// MetricsCertDir has tls.crt and tls.key for MetricsAddress. Default: a certificate is created at start.
	MetricsCertDir string
	// SnapshotMetadataAddress, an address of the node and a port, serves lists of snapshots' blocks to the CSI
	// controller. Default: none.
	SnapshotMetadataAddress string
	// DeviceFolder is where device files are. Default /dev.
	DeviceFolder string

	Inventory InventorySource
	Engines   Engines
	// Tuning is the node whose kernel and NICs are tuned. Required.
	Tuning tuning.Host
	// Settle and Resync as in Config. Defaults: 1 minute, 30 seconds.
	Settle, Resync time.Duration
}

// Validate says which option is missing.
func (o *Options) Validate() error {
	switch {
	case !filepath.IsAbs(o.StateDir):
		return fmt.Errorf("--state-dir is %q; must be an absolute path, such as /var/lib/weft", o.StateDir)
	case o.NodeName == "":
		return errors.New("the node's name is required: set --node-name or NODE_NAME")
	case o.Namespace == "":
		return errors.New("the agent's namespace is required: set --namespace or POD_NAMESPACE")
	case o.HealthAddress == "":
		return errors.New("--health-probe-bind-address is required, such as 127.0.0.1:9810")
	case o.SnapshotMetadataAddress != "" && !isOwn(o.SnapshotMetadataAddress):
		return fmt.Errorf("--snapshot-metadata-bind-address is %q; must be one IP address of the node and a port, such as 192.0.2.1:9817", o.SnapshotMetadataAddress)
	case o.Inventory == nil || o.Engines == nil || o.Tuning == nil:
		return errors.New("an agent needs an inventory source, engines and a host to tune")
	}
	return nil
}

func (o *Options) complete() error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.DeviceFolder == "" {
		o.DeviceFolder = "/dev"
	}
	if o.Settle == 0 {
		o.Settle = defaultSettle
	}
	if o.Resync == 0 {
		o.Resync = defaultResync
	}
	return nil
}

// Run the agent until ctx ends. It leaves everything serving. It fails when an option is missing, the API server
// cannot be reached at the start, or an address cannot be listened on.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	m, err := newManager(ctx, config, o)
	if err != nil {
		return err
	}
	agentMetrics, err := NewMetrics(metrics.Registry)
	if err != nil {
		return err
	}
	defer agentMetrics.Unregister(metrics.Registry)
	records, err := OpenRecords(filepath.Join(o.StateDir, "agent"))
	if err != nil {
		return err
	}
	if err := setUp(m, records, agentMetrics, o); err != nil {
		return errors.Join(err, records.Close())
	}
	return errors.Join(m.Start(ctx), records.Close())
}

func newManager(ctx context.Context, config *rest.Config, o Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("build the scheme: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = clientQPS, clientBurst
	metricsOptions, err := serving.Metrics(cmp.Or(o.MetricsAddress, "0"), o.MetricsCertDir)
	if err != nil {
		return nil, err
	}
	m, err := ctrl.NewManager(config, ctrl.Options{
		// Where a process needs 30 s to begin, controller-runtime has given its own logger up by then.
		Logger:  log.FromContext(ctx),
		Scheme:  scheme,
		Metrics: metricsOptions,
		Cache:   CacheOptions(o.NodeName),
	})
	if err != nil {
		return nil, fmt.Errorf("build the manager: %w", err)
	}
	return m, nil
}

// CacheOptions keep other nodes' objects out of the cache, and start it from what the API server's store holds.
func CacheOptions(nodeName string) cache.Options {
	own := cache.ByObject{Field: fields.OneTermEqualSelector("spec.node", nodeName)}
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NvmfNode{}:     {Field: fields.OneTermEqualSelector("metadata.name", nodeName)},
			&v1alpha1.NvmfReplica{}:  own,
			&v1alpha1.NvmfSnapshot{}: own,
		},
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      newConsistentInformer,
	}
}

// newConsistentInformer starts from what the API server's store holds now. An informer may otherwise start from any API
// server's cache, as old as it may be; then an agent that was restarted could see hosts from before its predecessor's
// last act, shut out one that is in use, or admit one again that was unpublished. (A watch that streams the initial
// list is consistent by itself; this is for the list that stands in for it.)
func newConsistentInformer(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	if l, ok := lw.(*toolscache.ListWatch); ok && l.ListWithContextFunc != nil {
		list := l.ListWithContextFunc
		l.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion = ""
			}
			return list(ctx, options)
		}
	}
	return toolscache.NewSharedIndexInformer(lw, obj, resync, indexers)
}

// setUp the reconciler, the inventory, the watch over the target, the lease and the health server.
func setUp(m manager.Manager, records *Records, agentMetrics *Metrics, o Options) error {
	clients, err := kubernetes.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("build the client: %w", err)
	}
	inventory := NewInventoryWatch(o.Inventory, o.DeviceFolder)
	targets := NewTargetWatch(clock.RealClock{})
	clearing, notes := NewClearing(), NewNotes(records, agentMetrics)
	identity, err := dhchap.LoadIdentity(filepath.Join(o.StateDir, "agent", "identity"))
	if err != nil {
		// Volumes without keys are served all the same.
		m.GetLogger().Error(err, "This node has no public key; hosts cannot be authenticated")
	}
	blocks, published, err := newBlockServer(m, o)
	if err != nil {
		return err
	}
	r := NewReconciler(Config{
		Version: o.Version, SnapshotMetadata: published, NodeName: o.NodeName, Client: m.GetClient(), Recorder: m.GetEventRecorder("weft-agent"),
		Engines: o.Engines, Inventory: inventory, Records: records, Identity: identity, Targets: targets, Clearing: clearing, Notes: notes, Metrics: agentMetrics, Clock: clock.RealClock{},
		Settle: o.Settle, Resync: o.Resync,
	})
	if err := watch(m, r, inventory.changed, targets.changed, clearing.changed, notes.changed); err != nil {
		return err
	}
	if err := watchTuning(m, &TuningReconciler{TuningConfig{
		NodeName: o.NodeName, Client: m.GetClient(), Live: m.GetAPIReader(), Recorder: m.GetEventRecorder("weft-agent"),
		Host: o.Tuning, Clock: clock.RealClock{},
	}}); err != nil {
		return err
	}
	runnables := []manager.Runnable{
		inventory,
		targets,
		clearing,
		notes,
		agentMetrics.statistics,
		agentMetrics.health,
		heartbeat(clients, clock.RealClock{}, o.NodeName, o.Namespace),
		healthServer(m, r, o),
	}
	if blocks != nil {
		runnables = append(runnables, blocks)
	}
	for _, runnable := range runnables {
		if err := m.Add(runnable); err != nil {
			return fmt.Errorf("add to the manager: %w", err)
		}
	}
	return nil
}

// watch this node's objects, its devices, its target, what comes back of deleted volumes, and what is read about
// orphans. Whatever happens, the work is one and the same item: the node. So a thousand events that arrive during one
// reconciliation are one more of them.
func watch(m manager.Manager, r *Reconciler, inventory, target, cleared, noted <-chan event.GenericEvent) error {
	node := reconcile.Request{NamespacedName: client.ObjectKey{Name: r.NodeName}}
	toNode := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{node}
	})
	fromNode := handler.Funcs{
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			q.Add(node)
		},
	}
	// A target that came back waits for nothing that failed before, be it the API server's failure.
	fromTarget := handler.Funcs{
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			q.Forget(node)
			q.Add(node)
		},
	}
	// A node whose NvmfNode does not exist yet has no event that would start the first reconciliation.
	atStart := source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(node)
		return nil
	})
	err := ctrl.NewControllerManagedBy(m).
		Named("weft-agent").
		Watches(&v1alpha1.NvmfNode{}, toNode).
		Watches(&v1alpha1.NvmfReplica{}, toNode).
		Watches(&v1alpha1.NvmfSnapshot{}, toNode).
		WatchesRawSource(atStart).
		WatchesRawSource(source.Channel(inventory, fromNode)).
		WatchesRawSource(source.Channel(cleared, fromNode)).
		WatchesRawSource(source.Channel(noted, fromNode)).
		WatchesRawSource(source.Channel(target, fromTarget)).
		WithOptions(controllerOptions()).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build the controller: %w", err)
	}
	return nil
}

func controllerOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 1,
		SkipNameValidation:      ptr.To(true), // tests start several agents in one process
		RateLimiter:             spread{workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst/4, retryMost)},
	}
}

// spread makes each wait longer by up to half of it, at random: agents that failed at the same moment, since the API
// server went away, do not all return at the same moments.
type spread struct {
	workqueue.TypedRateLimiter[reconcile.Request]
}

// When implements workqueue.TypedRateLimiter.
func (s spread) When(req reconcile.Request) time.Duration {
	return wait.Jitter(s.TypedRateLimiter.When(req), 0.5)
}

// watchTuning looks at the node's tuning when what is wanted, on record or there to be tuned changes, and by the clock.
func watchTuning(m manager.Manager, r *TuningReconciler) error {
	matters := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.NvmfNode), e.ObjectNew.(*v1alpha1.NvmfNode)
		return before.UID != after.UID || before.Generation != after.Generation ||
			!before.DeletionTimestamp.Equal(after.DeletionTimestamp) || !equality.Semantic.DeepEqual(before.Status.Tuning, after.Status.Tuning) ||
			!equality.Semantic.DeepEqual(nicsOf(before), nicsOf(after))
	}}
	err := ctrl.NewControllerManagedBy(m).
		Named("weft-agent-tuning").
		For(&v1alpha1.NvmfNode{}, builder.WithPredicates(matters)).
		WithOptions(controllerOptions()).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build the tuning's controller: %w", err)
	}
	return nil
}

func nicsOf(node *v1alpha1.NvmfNode) []v1alpha1.NIC {
	if node.Status.Inventory == nil {
		return nil
	}
	return node.Status.Inventory.NICs
}

// healthServer answers /healthz while the process lives, and /readyz when its cache is
// synced and it can do its work; see readiness.
func healthServer(m manager.Manager, r *Reconciler, o Options) manager.Runnable {
	atWork := func(*http.Request) error { return r.Ready() }
	mux := http.NewServeMux()
	mux.Handle("/healthz", http.StripPrefix("/healthz", &healthz.Handler{Checks: map[string]healthz.Checker{"ping": healthz.Ping}}))
	mux.Handle("/readyz", http.StripPrefix("/readyz", &healthz.Handler{Checks: map[string]healthz.Checker{
		"cache":  cacheSynced(m.GetCache()),
		"engine": atWork,
	}}))
	if o.MetricsAddress == "" {
		mux.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	}
	patience := 5 * time.Second
	return &manager.Server{
		Name:            "health",
		Server:          &http.Server{Addr: o.HealthAddress, Handler: mux, ReadHeaderTimeout: patience},
		ShutdownTimeout: &patience,
	}
}

func cacheSynced(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the cache is not synced yet")
		}
		return nil
	}
}
