// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/serving"
	"github.com/weft-storage/weft/operator/internal/controller/guard"
	"github.com/weft-storage/weft/operator/internal/controller/nvmfnode"
	"github.com/weft-storage/weft/operator/internal/controller/nvmftarget"
	"github.com/weft-storage/weft/operator/internal/controller/targetpod"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/webhook"
)

const (
	// leaderLease is the name of the Lease that the leader holds, in the operator's namespace.
	leaderLease = "weft-operator"
	// webhookService is the name of the Service by which the API server calls the webhook, in the operator's namespace.
	webhookService = "weft-operator-webhook"
	// off as an address turns an endpoint off.
	off = "0"
	// readyTimeout bounds how long one readiness probe waits for the caches.
	readyTimeout = 500 * time.Millisecond

	// More than the usual times: a busy node, or an API server that is slow for 25 s, must not make the leader restart.
	// Nothing is served by the operator, so a slower hand-over costs little.
	leaseDuration = 35 * time.Second
	renewDeadline = 27 * time.Second
	retryPeriod   = 3 * time.Second
)

// settings of the operator: its flags, and what tests set.
type settings struct {
	// Version of weft, which those of the agents are compared with.
	Version string
	// Namespace that weft runs in: of the leader's Lease and of the agents'. Required.
	Namespace string
	// LeaderElect makes all but one of several replicas wait.
	LeaderElect bool
	// MetricsBindAddress serves /metrics over HTTPS, to those whom the API
	// server authenticates and who may get the non-resource URL /metrics; off for none.
	MetricsBindAddress string
	// MetricsCertDir has tls.crt and tls.key of /metrics. Empty: a certificate is created at start.
	MetricsCertDir string
	// HealthProbeBindAddress serves /healthz and /readyz over HTTP; off for none.
	HealthProbeBindAddress string
	// WebhookBindAddress serves the admission webhook over HTTPS; off for none.
	WebhookBindAddress string
	// WebhookNames that the API server may call the webhook by. Default: those of Service webhookService.
	WebhookNames []string
	// CertificateClock is what the webhook's certificate goes by. Default: the machine's clock.
	CertificateClock clock.PassiveClock
	// TargetImage is the image of target pods: weft-launch with SPDK's target. Required.
	TargetImage string
	// TargetImagePullPolicy for it: Always, IfNotPresent or Never. Default: Kubernetes' own.
	TargetImagePullPolicy string
	// GuardImage is the image of guard pods: weft-operator. Empty: there are none, and drains are not refused.
	GuardImage string
	// GuardSingleReplica says whether volumes with one replica keep their node from being drained: Block or Allow.
	// Default: Block.
	GuardSingleReplica string
	// GuardImagePullPolicy for it: Always, IfNotPresent or Never. Default: Kubernetes' own.
	GuardImagePullPolicy string
	// AllowSeveral allows more than one manager in this process; for tests.
	AllowSeveral bool
}

// newScheme has the types that the operator reads and writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	return scheme, nil
}

// newManager returns the operator, ready to be started. When it is stopped it
// gives the lease back, so the process must end once Start returns. The context bounds newManager alone; its logger is
// the manager's.
func newManager(ctx context.Context, cfg *rest.Config, o settings) (ctrl.Manager, error) {
	if o.Namespace == "" {
		return nil, errors.New("--namespace is required: set it to the namespace of weft")
	}
	if o.TargetImage == "" {
		return nil, errors.New("--target-image is required: set it to the image of target pods, such as ghcr.io/weft-storage/weft-target with a version")
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	if o.CertificateClock == nil {
		o.CertificateClock = clock.RealClock{}
	}
	keeper := &webhook.Keeper{Namespace: o.Namespace, Names: o.webhookNames(), Clock: o.CertificateClock}
	server, err := webhookServer(o.WebhookBindAddress, keeper)
	if err != nil {
		return nil, err
	}
	caches, err := cacheOptions(o.Namespace)
	if err != nil {
		return nil, err
	}
	metrics, err := serving.Metrics(o.MetricsBindAddress, o.MetricsCertDir)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		// Where a process needs 30 s to begin, controller-runtime has given its own logger up by then.
		Logger:                        log.FromContext(ctx),
		Scheme:                        scheme,
		Cache:                         caches,
		Metrics:                       metrics,
		HealthProbeBindAddress:        o.HealthProbeBindAddress,
		WebhookServer:                 server,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              leaderLease,
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(leaseDuration),
		RenewDeadline:                 new(renewDeadline),
		RetryPeriod:                   new(retryPeriod),
		Controller:                    config.Controller{SkipNameValidation: new(o.AllowSeveral)},
	})
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	if err := addControllers(ctx, mgr, o); err != nil {
		return nil, err
	}
	if err := addChecks(mgr); err != nil {
		return nil, err
	}
	if o.WebhookBindAddress != off {
		if err := addWebhook(ctx, mgr, keeper); err != nil {
			return nil, err
		}
	}
	if o.MetricsBindAddress != off {
		metrics := &nvmftarget.Metrics{Reader: mgr.GetClient(), Registry: ctrlmetrics.Registry}
		if o.WebhookBindAddress != off {
			metrics.Others = append(metrics.Others, keeper)
		}
		if err := mgr.Add(metrics); err != nil {
			return nil, fmt.Errorf("add metrics: %w", err)
		}
	}
	return mgr, nil
}

// cacheOptions keep what the operator does not look at out of its memory: other
// Leases (a cluster has one per kubelet, renewed every 10 s), other pods, and managed fields.
func cacheOptions(namespace string) (cache.Options, error) {
	pods, err := manifest.PodSelector()
	if err != nil {
		return cache.Options{}, err
	}
	targetPods := cache.ByObject{
		Namespaces: map[string]cache.Config{namespace: {}},
		Label:      pods,
	}
	byObject := map[client.Object]cache.ByObject{
		&coordinationv1.Lease{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Label:      labels.SelectorFromSet(labels.Set{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}),
		},
		&corev1.Pod{}:                   targetPods,
		&policyv1.PodDisruptionBudget{}: targetPods,
		&corev1.Node{}:                  {Transform: trimNode},
	}
	maps.Copy(byObject, webhook.CacheOptions(namespace))
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject}, nil
}

// trimNode keeps of a Kubernetes Node what the operator looks at. The rest is most of it: a kubelet lists up to 50
// images by all their names, and others annotate.
func trimNode(obj any) (any, error) {
	if n, ok := obj.(*corev1.Node); ok {
		n.ManagedFields, n.Annotations = nil, nil
		n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached, n.Status.Capacity = nil, nil, nil, nil
	}
	return obj, nil
}

func addControllers(ctx context.Context, mgr ctrl.Manager, o settings) error {
	pods := manifest.TargetPods{
		Namespace: o.Namespace, Image: o.TargetImage, ImagePullPolicy: corev1.PullPolicy(o.TargetImagePullPolicy),
	}
	targets := &nvmftarget.Reconciler{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("weft-operator"),
		Clock:    clock.RealClock{},
		Pods:     pods,
		Guarded:  o.GuardImage != "",
	}
	if err := targets.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of NvmfTargets: %w", err)
	}
	nodes := &nvmfnode.Reconciler{
		Client:    mgr.GetClient(),
		Live:      mgr.GetAPIReader(),
		Recorder:  mgr.GetEventRecorder("weft-operator"),
		Clock:     clock.RealClock{},
		Namespace: o.Namespace,
		Version:   o.Version,
	}
	if err := nodes.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of NvmfNodes: %w", err)
	}
	targetPods := &targetpod.Reconciler{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("weft-operator"),
		Clock:    clock.RealClock{},
		Pods:     pods,
	}
	if err := targetPods.SetupWithManager(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller of target pods: %w", err)
	}
	single := guard.SingleReplica(cmp.Or(o.GuardSingleReplica, string(guard.SingleReplicaBlock)))
	if single != guard.SingleReplicaBlock && single != guard.SingleReplicaAllow {
		return fmt.Errorf("--guard-single-replica is %q; must be %s or %s", single, guard.SingleReplicaBlock, guard.SingleReplicaAllow)
	}
	guards := &guard.Reconciler{
		Single:   single,
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("weft-operator"),
		Clock:    clock.RealClock{},
		Guards:   manifest.Guards{Namespace: o.Namespace, Image: o.GuardImage, ImagePullPolicy: corev1.PullPolicy(o.GuardImagePullPolicy)},
	}
	if err := guards.SetupWithManager(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller of guards: %w", err)
	}
	return nil
}

// addChecks: alive while the process answers; ready once what it watches was read. A
// replica that is not the leader is ready too: it is ready to take over.
func addChecks(mgr ctrl.Manager) error {
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), readyTimeout)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced yet")
		}
		return nil
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", synced)); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	return nil
}
