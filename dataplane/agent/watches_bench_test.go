// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

// BenchmarkWatches measures what the agents of a cluster cost the API server by watching, with the caches that they
// have: while nobody watches, and while all do, what one change of a replica costs it, and how long the change takes to
// its agent; and what it costs when all agents come back at once, as after a restart of the API server.
//
//	make bench-watches
func BenchmarkWatches(b *testing.B) {
	server, err := apiserver.Start(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Environment.Stop(); err != nil {
			b.Error(err)
		}
	})
	config, err := server.User(b.Context(), "weft-agent")
	if err != nil {
		b.Fatal(err)
	}
	server.BenchmarkSizes(b, "watched", func(b *testing.B, fleet *apiserver.Fleet) {
		w := &watching{B: b, server: server, fleet: fleet, config: config, seen: make(chan seen, changesMeasured)}
		w.change("alone", false)
		w.comeBack()
		w.change("watched", true)
		w.end()
		b.ReportMetric(0, "ns/op") // nothing is repeated b.N times
	})
}

const (
	// changesMeasured of replicas at most, one of each, by changersAtOnce.
	changesMeasured = 1000
	changersAtOnce  = 8
	// comesBack is how long all agents may take.
	comesBack = 20 * time.Minute
)

// watching agents of a fleet, by their caches alone.
type watching struct {
	*testing.B
	server *apiserver.Server
	fleet  *apiserver.Fleet
	config *rest.Config
	seen   chan seen
	mu     sync.Mutex
	ends   []func() error // of the agents
}

// seen is a change of a replica that its agent has received.
type seen struct {
	name string
	at   time.Time
}

// comeBack all at once.
func (w *watching) comeBack() {
	w.Helper()
	http, err := rest.HTTPClientFor(w.config)
	if err != nil {
		w.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"NvmfNode", "NvmfReplica", "NvmfSnapshot"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	before, begun := w.used(), time.Now()
	var synced errgroup.Group
	for i := range w.fleet.Nodes {
		options := CacheOptions(w.fleet.Node(i))
		options.Scheme, options.Mapper, options.HTTPClient = w.server.Admin.Scheme(), mapper, http
		own, err := cache.New(w.config, options)
		if err != nil {
			w.Fatal(err)
		}
		synced.Go(func() error { return w.watch(own) })
	}
	if err := synced.Wait(); err != nil {
		w.Fatal(err)
	}
	after := w.used()
	w.ReportMetric(time.Since(begun).Seconds(), "back-s")
	w.ReportMetric(after.cpu-before.cpu, "back-apiserver-cpu-s")
	w.ReportMetric((after.memory-before.memory)/(1<<20), "back-apiserver-MiB")
	w.ReportMetric(after.shed-before.shed, "back-shed")
}

// watch with an agent's cache, and return when it has everything.
func (w *watching) watch(own cache.Cache) error {
	for _, kind := range []client.Object{&v1alpha1.NvmfNode{}, &v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{}} {
		informer, err := own.GetInformer(w.Context(), kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, replicas := kind.(*v1alpha1.NvmfReplica); !replicas {
			continue
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
			w.seen <- seen{now.(*v1alpha1.NvmfReplica).Name, time.Now()}
		}}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- own.Start(ctx) }()
	w.atEnd(func() error { cancel(); return <-ended })
	limited, stop := context.WithTimeout(ctx, comesBack)
	defer stop()
	if !own.WaitForCacheSync(limited) {
		return errors.New("the cache of an agent does not fill")
	}
	return nil
}

func (w *watching) atEnd(end func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, end)
}

func (w *watching) end() {
	w.Helper()
	for _, end := range w.ends {
		if err := end(); err != nil {
			w.Error(err)
		}
	}
}

// change replicas like agents that report what hosts have written. If their agents watch, wait until these have
// received all changes, for which seen has room.
func (w *watching) change(what string, watched bool) {
	w.Helper()
	before, begun := w.used(), time.Now()
	changes, changed := min(changesMeasured, w.fleet.Volumes), sync.Map{}
	var changers errgroup.Group
	changers.SetLimit(changersAtOnce)
	for i := range changes {
		changers.Go(func() error {
			replica := &v1alpha1.NvmfReplica{}
			replica.Name = w.fleet.Volume(i) + "-0"
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"allocated":"%d"}}`, time.Now().UnixNano()%(1<<33)))
			changed.Store(replica.Name, time.Now())
			return w.server.Admin.Status().Patch(w.Context(), replica, patch)
		})
	}
	if err := changers.Wait(); err != nil {
		w.Fatal(err)
	}
	var took []time.Duration
	for watched && len(took) < changes {
		is := <-w.seen
		if at, ok := changed.Load(is.name); ok {
			took = append(took, is.at.Sub(at.(time.Time)))
		}
	}
	after := w.used()
	w.ReportMetric(time.Since(begun).Seconds(), what+"-s")
	w.ReportMetric((after.cpu-before.cpu)*1000/float64(changes), what+"-apiserver-cpu-ms/change")
	if slices.Sort(took); len(took) > 0 {
		w.ReportMetric(took[len(took)/2].Seconds()*1000, what+"-median-ms")
		w.ReportMetric(took[len(took)*99/100].Seconds()*1000, what+"-p99-ms")
	}
}

// usage of the API server: its processor time in seconds, its memory in bytes, and how many requests it has shed.
type usage struct{ cpu, memory, shed float64 }

var metric = regexp.MustCompile(`(?m)^(process_cpu_seconds_total|process_resident_memory_bytes|apiserver_flowcontrol_rejected_requests_total\S*) (\S+)$`)

func (w *watching) used() usage {
	w.Helper()
	clients, err := kubernetes.NewForConfig(w.server.Config)
	if err != nil {
		w.Fatal(err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	var u usage
	for _, found := range metric.FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(found[2]), 64)
		if err != nil {
			w.Fatal(err)
		}
		switch string(found[1]) {
		case "process_cpu_seconds_total":
			u.cpu = value
		case "process_resident_memory_bytes":
			u.memory = value
		default:
			u.shed += value
		}
	}
	return u
}
