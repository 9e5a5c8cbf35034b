// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

// longestRetry is how long an agent waits here before it tries again what failed; on a node it may be half a minute.
const longestRetry = 50 * time.Millisecond

// resync is how often an agent looks at the node when nothing happens.
const resync = time.Second

// inventory of the node: its drives. What it has else is in its plan.
type inventory []v1alpha1.Drive

// Current implements agent.Inventory.
func (i inventory) Current() *v1alpha1.Inventory {
	return &v1alpha1.Inventory{Architecture: "amd64", Drives: i}
}

// identityFile has the private key of a node's agent, among its records.
const identityFile = "identity"

// silent takes Events.
type silent struct{}

// Eventf implements events.EventRecorder.
func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// RunAgent is one life of the node's agent, until ctx ends. Of earlier ones it knows what they recorded. It fails when
// it cannot start.
func (n *Node) RunAgent(ctx context.Context, config *rest.Config, b Boundary) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket := n.nextSocket()
	relayed, err := newRelay(ctx, socket, n.socket(), b.pass)
	if err != nil {
		return err
	}
	defer relayed.wait.Wait()
	defer cancel()
	e, err := n.engine(socket)
	if err != nil {
		return err
	}
	defer e.Close()
	config = rest.CopyConfig(config)
	config.Wrap(b.Cross)
	return reconcileNode(ctx, config, n.Name, filepath.Join(n.dir, "agent"), nil, e, func(c client.Client) client.Client { return c })
}

// reconcileNode with an engine, until ctx ends. The agent keeps its records in a folder, and reads and writes objects
// through what wrap makes of its client.
func reconcileNode(ctx context.Context, config *rest.Config, name, dir string, drives inventory, e engine.Engine, wrap func(client.Client) client.Client) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, err := agent.OpenRecords(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	objects, reader, err := objectsOf(config, name)
	if err != nil {
		return err
	}
	wake, err := watch(ctx, reader)
	if err != nil {
		return err
	}
	metrics, err := agent.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return err
	}
	identity, err := dhchap.LoadIdentity(filepath.Join(dir, identityFile))
	if err != nil {
		return err
	}
	targets, clearing, notes := agent.NewTargetWatch(clock.RealClock{}), agent.NewClearing(), agent.NewNotes(records, metrics)
	r := agent.NewReconciler(agent.Config{
		NodeName: name, Client: wrap(objects), Recorder: silent{}, Inventory: drives, Records: records, Identity: identity, Targets: targets, Clearing: clearing, Notes: notes, Metrics: metrics, Clock: clock.RealClock{},
		Engines: func(v1alpha1.Engine) (engine.Engine, error) { return e, nil }, Resync: resync,
	})
	ended := make(chan error, 4)
	go func() { ended <- reader.Start(ctx) }()
	go func() { ended <- targets.Start(ctx) }()
	go func() { ended <- clearing.Start(ctx) }()
	go func() { ended <- notes.Start(ctx) }()
	if reader.WaitForCacheSync(ctx) {
		work(ctx, r, wake)
	}
	cancel()
	return errors.Join(<-ended, <-ended, <-ended, <-ended)
}

// objectsOf a node, as its agent reads and writes them.
func objectsOf(config *rest.Config, node string) (client.Client, cache.Cache, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	options := agent.CacheOptions(node)
	options.Scheme, options.HTTPClient = scheme, transport
	reader, err := cache.New(config, options)
	if err != nil {
		return nil, nil, fmt.Errorf("make the agent's cache: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: transport, Cache: &client.CacheOptions{Reader: reader}})
	return c, reader, err
}

// watch the node's objects; the channel holds a word while one has changed.
func watch(ctx context.Context, c cache.Cache) (<-chan struct{}, error) {
	wake := make(chan struct{}, 1)
	note := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for _, obj := range []client.Object{&v1alpha1.NvmfNode{}, &v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{}} {
		informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
		}); err != nil {
			return nil, err
		}
	}
	return wake, nil
}

// work until ctx ends: a reconciliation at a time, when an object or the target has changed or the last one asked for
// another.
func work(ctx context.Context, r *agent.Reconciler, wake <-chan struct{}) {
	tick := time.NewTicker(longestRetry)
	defer tick.Stop()
	for ctx.Err() == nil {
		before, _ := r.Targets.Changes()
		result, err := r.Reconcile(ctx, reconcile.Request{})
		quiet := err == nil && result.RequeueAfter >= resync
		for again := time.Now().Add(resync); ; {
			select {
			case <-wake:
			case <-ctx.Done():
			case <-tick.C:
				changes, _ := r.Targets.Changes()
				if quiet && changes == before && time.Now().Before(again) {
					continue
				}
			}
			break
		}
	}
}
