// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/test/agenttest"
	"github.com/weft-storage/weft/test/apiserver"
)

const (
	mib        = int64(1) << 20
	driveBytes = 4096 * mib
	// patience with what must come to pass; what does takes a few milliseconds.
	patience = 2 * time.Minute
	// pace at which conditions are looked at, and calls repeated.
	pace = 5 * time.Millisecond
)

// tally of what was done.
type tally struct {
	operations, calls, kills, targets, powers, reboots, cancels, twice, givenUp, deletions, takenBack atomic.Int64
}

func (t *tally) add(o *tally) {
	for _, pair := range [][2]*atomic.Int64{
		{&t.operations, &o.operations}, {&t.calls, &o.calls}, {&t.kills, &o.kills}, {&t.targets, &o.targets},
		{&t.reboots, &o.reboots}, {&t.cancels, &o.cancels}, {&t.twice, &o.twice}, {&t.givenUp, &o.givenUp},
		{&t.powers, &o.powers}, {&t.deletions, &o.deletions}, {&t.takenBack, &o.takenBack},
	} {
		pair[0].Add(pair[1].Load())
	}
}

// world of one sequence: a storage node, whose pool is a drive or, of every fourth seed, a file, two hosts, the
// controller, and what they should agree on.
type world struct {
	*testing.T
	ctx   context.Context
	stop  context.CancelFunc
	seed  int64
	rng   *rand.Rand
	tally *tally
	dir   string

	target     string
	storage    *agenttest.Node
	agent      *supervised
	controller *controllerLife
	hosts      []*host

	volumes   []*volume
	snapshots []*snapshot
	orphans   []*orphan
	made      int
	words     uint64

	mu     sync.Mutex
	served map[string]map[string]bool // subsystems that a host has seen, by host
	story  []string
	// starts are what was ever written to volumes before their data, whole; one host at a time writes.
	starts   [][]byte
	starting sync.Mutex
	// nodeOf each attachment that was ever seen listed, by its NQN.
	nodeOf map[string]string
}

func newWorld(t *testing.T, seed int64) *world {
	dir, err := os.MkdirTemp("", "weft-chaos-") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &world{
		T: t, ctx: ctx, stop: stop, seed: seed, rng: rand.New(rand.NewPCG(uint64(seed), 0)), tally: &tally{}, dir: dir,
		target: fmt.Sprintf("chaos-%d-%s", seed, filepath.Base(dir)[len("weft-chaos-"):]), served: map[string]map[string]bool{}, nodeOf: map[string]string{},
	}
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("WEFT_STORY") != "" {
			t.Logf("seed %d:\n%s", seed, strings.Join(w.story, "\n"))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w.must(w.makeObjects())
	w.agent = w.supervise(func(ctx context.Context, f *fuse) error { return w.storage.RunAgent(ctx, restConfig, f.cross) })
	for i := range 2 {
		w.must(w.addHost(fmt.Sprintf("%s-host%d", w.target, i)))
	}
	w.await("the storage node to be ready", func() bool {
		var n v1alpha1.NvmfNode
		w.must(api.Get(ctx, client.ObjectKey{Name: w.storage.Name}, &n))
		return slices.ContainsFunc(n.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionTrue
		})
	})
	return w
}

func (w *world) makeObjects() (err error) {
	name := w.target + "-storage"
	if w.storage, err = agenttest.New(context.WithoutCancel(w.ctx), name, w.dir, driveBytes, w.seed%4 == 0); err != nil {
		return err
	}
	return errors.Join(
		api.Create(w.ctx, &v1alpha1.NvmfTarget{
			ObjectMeta: metav1.ObjectMeta{Name: w.target},
			Spec: v1alpha1.NvmfTargetSpec{
				Engine: v1alpha1.EngineSPDK, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/target": w.target}},
				Transports: []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: agenttest.TCP.Port}, {Type: v1alpha1.TransportRDMA, Port: agenttest.RDMA.Port}},
				Devices:    v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/pool.img", Size: resource.MustParse("4Gi")}},
			},
		}),
		api.Create(w.ctx, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: w.target, Plan: w.storage.Plan()}}),
	)
}

func (w *world) addHost(name string) error {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := api.Create(w.ctx, object); err != nil {
		return err
	}
	h := &host{world: w, name: name, uid: string(object.UID), dir: filepath.Join(w.dir, fmt.Sprint(len(w.hosts)))}
	w.hosts = append(w.hosts, h)
	return h.boot()
}

// ended waits for the end of a controller that was killed.
func (w *world) ended(l *controllerLife) {
	if err := <-l.ended; err != nil {
		w.Errorf("the controller ended: %v", err)
	}
}

// close everything, and take the objects away.
func (w *world) close() {
	defer w.stop()
	if w.controller != nil {
		w.controller.kill()
		w.ended(w.controller)
	}
	for _, h := range w.hosts {
		if h.life != nil {
			h.life.kill()
			if err := h.life.service.Wait(context.WithoutCancel(w.ctx)); err != nil {
				w.Error(err)
			}
		}
	}
	w.agent.stop()
	w.storage.Close()
	ctx := context.WithoutCancel(w.ctx)
	gone := []client.Object{
		&v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: w.target}},
		&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: w.storage.Name}},
	}
	for _, h := range w.hosts {
		gone = append(gone, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}})
	}
	for _, o := range gone {
		if err := api.Delete(ctx, o); err != nil {
			w.Error(err)
		}
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// tell what happens, for whoever reads of a failure.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%s ", time.Now().Format("05.000"))+fmt.Sprintf(format, args...))
}

// Errorf implements testing.TB. The story says when it was.
func (w *world) Errorf(format string, args ...any) {
	w.Helper()
	w.tell("WRONG: "+format, args...)
	w.T.Errorf(format, args...)
}

// Error implements testing.TB.
func (w *world) Error(args ...any) {
	w.Helper()
	w.Errorf("%s", fmt.Sprint(args...))
}

// Fatalf implements testing.TB.
func (w *world) Fatalf(format string, args ...any) {
	w.Helper()
	w.Errorf(format, args...)
	w.FailNow()
}

// Fatal implements testing.TB.
func (w *world) Fatal(args ...any) {
	w.Helper()
	w.Fatalf("%s", fmt.Sprint(args...))
}

// until done says so; it fails with done's error, or when patience ends.
func (w *world) until(what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, context.Cause(ctx))
		}
	}
}

func (w *world) await(what string, done func() bool) {
	w.Helper()
	w.must(w.until(what, func() (bool, error) { return done(), nil }))
}

// supervised is a process that is started again at once when it was killed, as a DaemonSet's.
type supervised struct {
	mu    sync.Mutex
	life  *fuse
	stop  func()
	world *world
}

func (w *world) supervise(run func(ctx context.Context, f *fuse) error) *supervised {
	ctx, cancel := context.WithCancel(w.ctx)
	s := &supervised{world: w}
	ended := make(chan struct{})
	next := func() (context.Context, *fuse) {
		life, end := context.WithCancel(ctx)
		f := &fuse{end: end}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.life = f
		return life, f
	}
	life, f := next()
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := run(life, f); err != nil && !f.isDead() && ctx.Err() == nil {
				w.Errorf("the agent ended: %v", err)
				return
			}
			life, f = next()
		}
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	return s
}

func (s *supervised) now() *fuse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// controllerLife is one process of the CSI controller.
type controllerLife struct {
	fuse
	ctx     context.Context
	service *controller.Service
	ended   chan error
	// split: the process is killed at its next request after it has written an NvmfVolume.
	split atomic.Bool
	// stall of the process, if it is to have one.
	stall *stall
}

// stall of a process before it writes an NvmfReplica: reached is closed then, and the process goes on when resume is.
type stall struct {
	replica         string
	reached, resume chan struct{}
}

func (l *controllerLife) killable() *fuse       { return &l.fuse }
func (l *controllerLife) over() context.Context { return l.ctx }

// controllerProcess that is alive.
func (w *world) controllerProcess() *controllerLife {
	if w.controller != nil && !w.controller.isDead() {
		return w.controller
	}
	w.controller = w.newController()
	return w.controller
}

// csiController is who the CSI controller is in a cluster, with every right.
var csiController = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + apiserver.Namespace + ":weft-csi-controller", Groups: []string{user.SystemPrivilegedGroup}}

// newController is another process of the CSI controller, beside the one that there may be.
func (w *world) newController() *controllerLife {
	l := &controllerLife{ended: make(chan error, 1)}
	l.ctx, l.end = context.WithCancel(w.ctx)
	config := rest.CopyConfig(restConfig)
	config.Impersonate = csiController
	config.Wrap(l.watchWrites)
	config.Wrap(agenttest.Boundary(l.cross).Cross)
	c, err := controller.NewCluster(config)
	w.must(err)
	l.service, err = controller.New(l.ctx, c)
	w.must(err)
	go func() { l.ended <- c.Start(l.ctx) }()
	go l.service.Settle(l.ctx)
	if !c.GetCache().WaitForCacheSync(l.ctx) {
		w.Fatal("the controller's cache does not fill")
	}
	w.await("the controller's cache to show the storage node ready", func() bool {
		resp, err := l.capacity(w.target)
		return err == nil && resp > 0
	})
	return l
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// watchWrites of the process, to kill it between those of a volume and of its replica, or to stall it there.
func (l *controllerLife) watchWrites(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if s := l.takeStall(r); s != nil {
			close(s.reached)
			select {
			case <-s.resume:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		response, err := next.RoundTrip(r)
		if err == nil && response.StatusCode < http.StatusMultipleChoices && r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/nvmfvolumes") && l.split.CompareAndSwap(true, false) {
			l.light(1, false, nil)
		}
		return response, err
	})
}

// takeStall of the process, if the request is what it was to be stalled at; once.
func (l *controllerLife) takeStall(r *http.Request) *stall {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stall
	if s == nil || r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/nvmfreplicas/"+s.replica) {
		return nil
	}
	l.stall = nil
	return s
}
