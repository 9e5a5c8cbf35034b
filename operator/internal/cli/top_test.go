// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Ports of metrics: the loopback ports that the chart sets, and one of the nodes.
const (
	agentPort  = 9810
	pluginPort = 9812
	nodePort   = 9809
)

// topRig is a cluster with pods that serve metrics.
type topRig struct {
	*rig
	at     *cluster
	served map[string]*servedPod
	stderr bytes.Buffer
	// between the samples, one after the other.
	between []func()
	// away: the API server lists no pods.
	away bool
}

// apiOf a rig, which fails when it is away.
type apiOf struct {
	client.Client
	*topRig
}

func (a apiOf) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods && a.away {
		return apierrors.NewServiceUnavailable("away")
	}
	return a.Client.List(ctx, list, options...)
}

// servedPod serves on a port, and asks for a token if it is one of the nodes.
type servedPod struct {
	http.Handler
	address string
	port    int
	// tokens that came.
	mu     sync.Mutex
	tokens []string
}

func (s *servedPod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := r.Header.Get("Authorization")
	s.mu.Lock()
	s.tokens = append(s.tokens, token)
	s.mu.Unlock()
	switch {
	case r.URL.Path != "/metrics" || r.Host == "":
		http.NotFound(w, r)
	case s.port == nodePort && token != "Bearer fake-token": // the one of the client's fake
		http.Error(w, "Authentication failed", http.StatusUnauthorized)
	default:
		s.Handler.ServeHTTP(w, r)
	}
}

func newTopRig(t *testing.T, objects ...client.Object) *topRig {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	r := &topRig{rig: newRig(t, objects...), at: &cluster{kubeconfig: kubeconfig}, served: map[string]*servedPod{}}
	r.do(clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "here", Contexts: map[string]*clientcmdapi.Context{"here": {Cluster: "here", Namespace: "databases"}}, Clusters: map[string]*clientcmdapi.Cluster{"here": {Server: "https://127.0.0.1"}},
	}, kubeconfig))
	r.target("fast", v1alpha1.EngineSPDK)
	return r
}

// target with an engine.
func (r *topRig) target(name string, engine v1alpha1.Engine) {
	r.t.Helper()
	nt := &v1alpha1.NvmfTarget{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, nt))
	nt.Spec.Engine = engine
	r.do(r.api.Update(r.ctx, nt))
}

// pod of a component on a node, with the arguments that the chart gives it.
func (r *topRig) pod(component, node string, args ...string) *corev1.Pod {
	r.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: "weft-" + component + "-" + node,
			Labels: map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": component}},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "weft-x", Args: args}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	r.do(r.api.Create(r.ctx, pod))
	return pod
}

// serve metrics in a new pod on the loopback address of its node.
func (r *topRig) serve(component, node string, metrics http.Handler) *servedPod {
	port := map[string]int{componentAgent: agentPort, componentNodePlugin: pluginPort}[component]
	return r.serveAt(r.pod(component, node, fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", port)), metrics, port)
}

// serveOnNodes serves metrics in a new pod over HTTPS on a port of its node.
func (r *topRig) serveOnNodes(component, node string, metrics http.Handler) *servedPod {
	return r.serveAt(r.pod(component, node, "--health-probe-bind-address=127.0.0.1:9810", fmt.Sprintf("--metrics-bind-address=:%d", nodePort)), metrics, nodePort)
}

func (r *topRig) serveAt(pod *corev1.Pod, metrics http.Handler, port int) *servedPod {
	s := &servedPod{Handler: metrics, port: port}
	server := httptest.NewUnstartedServer(s)
	if port == nodePort {
		server.StartTLS()
	} else {
		server.Start()
	}
	r.t.Cleanup(server.Close)
	s.address, r.served[pod.Name] = server.Listener.Addr().String(), s
	return s
}

// dial a pod.
func (r *topRig) dial(ctx context.Context, pod client.ObjectKey, port int) (net.Conn, error) {
	s := r.served[pod.Name]
	if s == nil || s.port != port || pod.Namespace != "weft-system" {
		return nil, fmt.Errorf("port %d of %s: connection refused", port, pod.Name)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.address)
}

// top runs one of the commands, with an interval of 10 s. What happens between the samples is in between; then a watch
// is interrupted.
func (r *topRig) top(args ...string) (out string, err error) {
	r.t.Helper()
	r.stderr.Reset()
	var stdout bytes.Buffer
	ctx, interrupt := context.WithCancel(r.ctx)
	defer interrupt()
	cmd := topCommand(r.at, func(cmd *cobra.Command, o *topOptions, v view) error {
		if err := o.check(); err != nil {
			return err
		}
		run := newTop(o, v, &asker{api: apiOf{r.api, r}, namespace: o.weftNamespace, dial: r.dial}, newScreen(&stdout, &r.stderr))
		run.now = func() time.Time { return r.now }
		run.pause = func(ctx context.Context, d time.Duration) error {
			r.now = r.now.Add(d)
			if len(r.between) > 0 {
				next := r.between[0]
				r.between = r.between[1:]
				next()
			} else if o.watch {
				interrupt()
			}
			return ctx.Err()
		}
		return run.run(cmd.Context())
	})
	cmd.SetArgs(append(args, "--interval=10s"))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(ctx)
	return stdout.String(), err
}

// shown is a table or document of a command that knows everything.
func (r *topRig) shown(args ...string) string {
	r.t.Helper()
	out, err := r.top(args...)
	if err != nil || r.stderr.Len() > 0 {
		r.t.Errorf("%v: %v, %s", args, err, &r.stderr)
	}
	return out
}

// scrapes are files that agents and node plugins are tested to serve. Each request gets the next.
type scrapes []string

func (s *scrapes) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := os.ReadFile("testdata/top/" + (*s)[0])
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	*s = append((*s)[1:], (*s)[0])
	_, _ = w.Write(text) // the client says what it lacks
}

// shop has the volume that the scrapes are of.
func shop(t *testing.T) *topRig {
	v, objects := volume("orders", "a")
	v.Name, v.Spec.Members[0].Name, v.Spec.Attachments[0].Node = "pvc-1", "pvc-1-r1", "n1"
	claimed := objects[2].(*corev1.PersistentVolume)
	claimed.Spec.ClaimRef.Namespace, claimed.Spec.CSI.VolumeHandle = "shop", "pvc-1"
	r := newTopRig(t, objects...)
	r.change("a", func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Device = "a" })
	for _, name := range []string{"b", "c", "d"} {
		r.change(name, func(n *v1alpha1.NvmfNode) { n.Spec.Target = "" })
	}
	r.serve(componentAgent, "a", &scrapes{"agent-1.prom", "agent-2.prom"})
	r.serve(componentNodePlugin, "n1", &scrapes{"node-plugin-1.prom", "node-plugin-2.prom"})
	return r
}

// What agents and node plugins serve becomes rates, latencies and shares.
func TestTopOfWhatIsServed(t *testing.T) {
	r := shop(t)
	for _, what := range []string{"volumes", "nodes", "targets"} {
		args := []string{what}
		if what == "volumes" {
			args = append(args, "-A")
		}
		golden(t, "top/"+what+"-table.txt", r.shown(args...))
		golden(t, "top/"+what+"-wide.txt", r.shown(append(args, "-o", "wide")...))
		golden(t, "top/"+what+".json", r.shown(append(args, "-o", "json")...))
	}
}

// exported I/O of a process. Counters are as many as it has had I/O since it started.
type exported struct {
	registry                  *prometheus.Registry
	operations, bytes, passed *prometheus.CounterVec
	label                     string
	names                     ioMetrics
}

func newExported(label string, names ioMetrics) *exported {
	e := &exported{label: label, names: names}
	e.restart()
	return e
}

// restart the process.
func (e *exported) restart() {
	counters := func(name string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, []string{e.label, "op"})
	}
	e.registry, e.operations, e.bytes, e.passed = prometheus.NewRegistry(), counters(e.names.operations), counters(e.names.bytes), counters(e.names.seconds)
	e.registry.MustRegister(e.operations, e.bytes, e.passed)
}

// did so many I/Os of a kind, of 4 KiB and 1 ms each.
func (e *exported) did(of, op string, n int) {
	e.operations.WithLabelValues(of, op).Add(float64(n))
	e.bytes.WithLabelValues(of, op).Add(float64(n) * 4096)
	e.passed.WithLabelValues(of, op).Add(float64(n) / 1000)
}

// gauge beside the counters.
func (e *exported) gauge(name string, value float64, labels prometheus.Labels) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, ConstLabels: labels})
	g.Set(value)
	e.registry.MustRegister(g)
}

func (e *exported) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// agentOf a kernel target with a pool.
func agentOf(device string) *exported {
	e := newExported("device", ioOfPools)
	for _, op := range []string{"read", "write", "discard"} {
		e.did(device, op, 100)
	}
	e.gauge("weft_agent_target_up", 1, prometheus.Labels{"engine": "Nvmet"})
	return e
}

// Unknown is not zero: whoever does not answer, or whose counters do not say, is shown as unknown, with the reason.
func TestTopOfWhatIsUnknown(t *testing.T) {
	r := newTopRig(t)
	r.target("fast", v1alpha1.EngineNvmet)
	r.change("d", func(n *v1alpha1.NvmfNode) { n.Spec.Target = "fast" })
	well, restarts, gone, lacks := agentOf("eui.a"), agentOf("eui.b"), agentOf("eui.c"), agentOf("another")
	r.serve(componentAgent, "a", well)
	r.serve(componentAgent, "b", restarts)
	agent := r.serve(componentAgent, "c", gone)
	r.serve(componentAgent, "d", lacks)
	restarts.did("eui.b", "read", 900)
	r.between = []func(){
		func() {
			well.did("eui.a", "read", 50)
			restarts.restart()
			for _, op := range []string{"read", "write", "discard"} {
				restarts.did("eui.b", op, 100)
			}
			agent.port = 1
		},
		func() { restarts.did("eui.b", "write", 20); agent.port = agentPort },
		func() {
			restarts.restart()
			restarts.gauge("weft_agent_target_up", 0, prometheus.Labels{"engine": "Nvmet"})
		},
	}
	out, err := r.top("nodes", "--watch", "--sort-by=name")
	if err != nil {
		t.Error(err)
	}
	golden(t, "top/unknown.txt", out+"standard error:\n"+r.stderr.String())

	out, err = r.top("targets", "-o", "json")
	var got struct{ Targets []TopTarget }
	if code := exitCode(err); code != CodeUnknown || json.Unmarshal([]byte(out), &got) != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if is := got.Targets[0]; is.Nodes != 4 || is.NodesKnown != 2 || is.Traffic == nil || is.Problem != "not counted: node b, d" {
		t.Errorf("a sum lacks those that are unknown, and says so; got %+v", is)
	}
}

// Pods that are not there, are not ready to be asked, or refuse.
func TestTopOfPodsThatCannotBeAsked(t *testing.T) {
	r := newTopRig(t)
	pending := r.pod(componentAgent, "a", "--health-probe-bind-address=127.0.0.1:9810")
	pending.Status.Phase = corev1.PodPending
	r.do(r.api.Status().Update(r.ctx, pending))
	r.pod(componentAgent, "b", "--health-probe-bind-address=0")
	r.serveOnNodes(componentAgent, "c", http.NotFoundHandler())
	out, err := r.top("nodes")
	if exitCode(err) != CodeUnknown || strings.Count(out, "unknown") < 3*6 || !strings.Contains(out, "the agent did not answer") {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, want := range []string{
		"cannot read the metrics of the agent of node a: pod weft-agent-a is Pending",
		"agent of node b: pod weft-agent-b serves no metrics",
		"agent of node c: pod weft-agent-c: request a token of service account weft-system/weft-top, which may read metrics",
		"agent of node d: no pod of it in namespace weft-system",
	} {
		if !strings.Contains(r.stderr.String(), want) {
			t.Errorf("want %q in:\n%s", want, &r.stderr)
		}
	}
	r.do(r.api.Create(r.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: readerAccount}}))
	if _, err := r.top("nodes", "c"); exitCode(err) != CodeUnknown || !strings.Contains(r.stderr.String(), "pod weft-agent-c: 404 Not Found") {
		t.Errorf("%v: %s", err, &r.stderr)
	}
	if _, err := r.top("nodes", "--weft-namespace=elsewhere"); err == nil || !strings.Contains(err.Error(), "set the namespace with --weft-namespace") {
		t.Errorf("got %v", err)
	}
}

// On a port of the nodes, metrics are read over HTTPS with a token of an account that may do nothing else. What listens
// on a loopback address gets none.
func TestTopGivesTokensToThoseWhoAskForThem(t *testing.T) {
	r := newTopRig(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: readerAccount}})
	for _, name := range []string{"c", "d"} {
		r.change(name, func(n *v1alpha1.NvmfNode) { n.Spec.Target = "" })
	}
	secure, loopback := r.serveOnNodes(componentAgent, "a", agentOf("eui.a")), r.serve(componentAgent, "b", agentOf("eui.b"))
	out := r.shown("nodes")
	if strings.Contains(out, "did not answer") || !slices.Equal(secure.tokens, []string{"Bearer fake-token", "Bearer fake-token"}) || !slices.Equal(loopback.tokens, []string{"", ""}) {
		t.Errorf("tokens %q and %q:\n%s", secure.tokens, loopback.tokens, out)
	}
}

// manyVolumes: data is shared by two nodes, logs is used by one and without a claim, web by a mover.
func manyVolumes(t *testing.T) (r *topRig, plugins map[string]*exported) {
	data, objects := volume("data", "a", "b")
	data.Spec.Attachments = append(data.Spec.Attachments, v1alpha1.VolumeHost{NQN: "nqn-2", Node: "other"}, v1alpha1.VolumeHost{NQN: "nqn-3", Node: "worker"})
	_, more := volume("logs", "d")
	objects = append(objects, more[0], more[3])
	more[0].(*v1alpha1.NvmfVolume).Spec.Target = "slow"
	web, more := volume("web", "a")
	web.Spec.Attachments[0].Mover = true
	objects = append(objects, more...)
	objects = append(objects, &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: v1alpha1.NvmfTargetSpec{Engine: v1alpha1.EngineNvmet}})
	r, plugins = newTopRig(t, objects...), map[string]*exported{}
	for _, node := range []string{"worker", "other"} {
		plugins[node] = newExported("volume", ioOfVolumes)
		r.serve(componentNodePlugin, node, plugins[node])
	}
	for _, node := range []string{"a", "b"} {
		agent := newExported("replica", ioOfReplicas)
		agent.gauge("weft_agent_exports", 0, nil)
		r.serve(componentAgent, node, agent)
	}
	plugins["worker"].did("v-data", "read", 5)
	plugins["worker"].did("v-logs", "write", 5)
	plugins["other"].did("v-data", "read", 5)
	plugins["worker"].gauge("weft_volume_operations_in_flight", 3, prometheus.Labels{"volume": "v-logs"})
	r.between = []func(){func() {
		plugins["worker"].did("v-data", "read", 100)
		plugins["other"].did("v-data", "read", 1000)
	}}
	return r, plugins
}

// Only pods that know of the chosen volumes are asked.
func TestTopAsksWhoKnows(t *testing.T) {
	for args, want := range map[string]struct {
		rows, asked []string
		problem     string
	}{
		"-A":                          {rows: []string{"databases/data on other", "databases/data on worker", "nv/v-logs on worker"}, asked: []string{"agent-a", "agent-b", "csi-node-other", "csi-node-worker"}},
		"-n databases":                {rows: []string{"databases/data on other", "databases/data on worker"}, asked: []string{"agent-a", "agent-b", "csi-node-other", "csi-node-worker"}},
		"-A --node worker":            {rows: []string{"databases/data on worker", "nv/v-logs on worker"}, asked: []string{"agent-a", "agent-b", "csi-node-worker"}},
		"nv/v-logs":                   {rows: []string{"nv/v-logs on worker"}, asked: []string{"csi-node-worker"}, problem: "3 I/Os in flight, and none completed"},
		"data":                        {rows: []string{"databases/data on other", "databases/data on worker"}, asked: []string{"agent-a", "agent-b", "csi-node-other", "csi-node-worker"}},
		"databases/web databases/web": {rows: []string{"databases/web on "}, problem: "not attached to a node"},
		"-n shop":                     {},
	} {
		t.Run(args, func(t *testing.T) {
			r, _ := manyVolumes(t)
			out := r.shown(append(append([]string{"volumes"}, strings.Fields(args)...), "-o", "json")...)
			var got struct{ Volumes []TopVolume }
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			var rows, asked []string
			for _, v := range got.Volumes {
				rows = append(rows, v.Claim+" on "+v.Node)
				if !strings.Contains(v.Problem, want.problem) {
					t.Errorf("got %+v", v)
				}
			}
			for name, s := range r.served {
				if len(s.tokens) > 0 {
					asked = append(asked, strings.TrimPrefix(name, "weft-"))
				}
			}
			slices.Sort(asked)
			if !slices.Equal(rows, want.rows) || !slices.Equal(asked, want.asked) {
				t.Errorf("rows %q, asked %q", rows, asked)
			}
		})
	}
}

// What only the target counts is unknown while an agent does not answer, and the mirror's count is no substitute.
func TestTopOfVolumesWithoutAnAgent(t *testing.T) {
	r, plugins := manyVolumes(t)
	plugins["worker"].gauge("weft_mirror_read_errors_total", 7, prometheus.Labels{"volume": "v-data"})
	r.served["weft-agent-b"].port = 1
	out, err := r.top("volumes", "data", "--node=worker", "-o", "wide")
	if code := exitCode(err); code != CodeUnknown {
		t.Errorf("exit code %d", code)
	}
	row := strings.Join(strings.Fields(strings.Split(out, "\n")[1]), " ")
	if want := "databases/data worker 10.0 0 0.04 0 1.00 ms - unknown unknown unknown the agent of node b did not answer unknown unknown 0 fast v-data"; row != want {
		t.Errorf("got  %s\nwant %s", row, want)
	}
}

// A namespace without attached volumes says so.
func TestTopOfNoVolumes(t *testing.T) {
	r, _ := manyVolumes(t)
	if got := r.shown("volumes", "-n", "shop"); got != "No volumes of namespace shop are attached; -A shows those of all namespaces.\n" {
		t.Errorf("got %q", got)
	}
	if got := r.shown("volumes", "-A", "--node", "a"); got != "No volumes are attached to node a.\n" {
		t.Errorf("got %q", got)
	}
	if got := strings.Join(strings.Fields(r.shown("volumes", "-A", "--node", "a", "-o", "json")), ""); got != `{"volumes":[]}` {
		t.Errorf("got %q", got)
	}
}

// The busiest is the first, and what is unknown the last.
func TestTopIsSorted(t *testing.T) {
	for order, want := range map[string][]string{
		"name":       {"databases/data on other", "databases/data on worker", "nv/v-logs on worker"},
		"operations": {"databases/data on worker", "nv/v-logs on worker", "databases/data on other"},
		"queue":      {"nv/v-logs on worker", "databases/data on worker", "databases/data on other"},
	} {
		r, _ := manyVolumes(t)
		r.served["weft-csi-node-other"].port = 1
		out, err := r.top("volumes", "-A", "--sort-by", order, "-o", "yaml")
		var rows []string
		for line := range strings.Lines(out) {
			if claim, is := strings.CutPrefix(strings.TrimSpace(line), "claim: "); is {
				rows = append(rows, claim)
			} else if claim, is := strings.CutPrefix(strings.TrimSpace(line), "- claim: "); is {
				rows = append(rows, claim)
			} else if node, is := strings.CutPrefix(line, "  node: "); is {
				rows[len(rows)-1] += " on " + strings.TrimSpace(node)
			}
		}
		if exitCode(err) != CodeUnknown || !slices.Equal(rows, want) {
			t.Errorf("%s: %v, got %q", order, err, rows)
		}
	}
}

// A watch prints a table after each interval, goes on when the API server fails, and sees volumes that are attached
// meanwhile.
func TestTopIsWatched(t *testing.T) {
	r, plugins := manyVolumes(t)
	r.between = append(r.between,
		func() {
			r.do(r.api.Delete(r.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: "weft-csi-node-other"}}))
		},
		func() {
			r.pod(componentNodePlugin, "other", "--health-probe-bind-address=127.0.0.1:9812")
			v := r.volume("v-web")
			v.Spec.Attachments[0].Mover = false
			r.do(r.api.Update(r.ctx, v))
			plugins["worker"].did("v-web", "write", 1)
		},
		func() { plugins["worker"].did("v-web", "write", 2000) },
		func() { r.away = true },
		func() { r.away = false; plugins["worker"].did("v-web", "write", 4000) },
	)
	out, err := r.top("volumes", "-A", "--watch")
	if err != nil {
		t.Error(err)
	}
	golden(t, "top/watched.txt", out+"standard error:\n"+r.stderr.String())
}

func TestTopRefusesArguments(t *testing.T) {
	r := shop(t)
	for args, want := range map[string]string{
		"nodes z":                          "NvmfNode z not found; existing nodes: a, b, c, d",
		"targets z":                        "NvmfTarget z not found; existing targets: fast",
		"volumes z":                        "z is not the claim of a volume of weft in namespace databases; kubectl weft volumes lists all",
		"volumes shop/z":                   "shop/z is not the claim of a volume of weft;",
		"volumes -A -n shop":               "none of the others can be",
		"nodes --sort-by=age":              `--sort-by is "age"; must be one of name, operations, bytes, latency, queue, errors, used`,
		"volumes --sort-by=used":           `--sort-by is "used"; must be one of name, operations`,
		"nodes a -l zone=a":                "use either names or --selector",
		"nodes -l =":                       "--selector: ",
		"nodes -o csv":                     `--output is "csv"`,
		"nodes --weft-namespace=elsewhere": "no agents and node plugins of weft in namespace elsewhere",
	} {
		if _, err := r.top(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", args, err)
		}
	}
	o := &topOptions{order: sortByName, orders: []string{sortByName}, interval: 4 * time.Second}
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "--interval is 4s; must be at least 5s") {
		t.Errorf("got %v", err)
	}
}

// Nodes are chosen by the labels of their Kubernetes Nodes.
func TestTopNodesBySelector(t *testing.T) {
	r := newTopRig(t, inZone("a", "zone", "1"), inZone("b", "zone", "2"))
	r.serve(componentAgent, "a", agentOf("eui.a"))
	if out := r.shown("nodes", "-l", "zone in (1,3)"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "\na ") {
		t.Errorf("got:\n%s", out)
	}
}

// The chart's arguments say where the metrics are.
func TestEndpoints(t *testing.T) {
	for component, want := range map[string]int{"weft-agent": agentPort, "weft-csi-node": pluginPort} {
		manifest, err := os.ReadFile("../../../config/default/weft.yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, text, found := strings.Cut(string(manifest), "kind: DaemonSet\nmetadata:\n  name: "+component)
		if !found {
			t.Fatalf("the manifest has no DaemonSet %s", component)
		}
		_, text, _ = strings.Cut(text, "        args:\n")
		text, _, _ = strings.Cut(text, "        env:\n")
		var args []string
		for line := range strings.Lines(text) {
			args = append(args, strings.TrimPrefix(strings.TrimSpace(line), "- "))
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "weft-x", Args: args}, {Name: "sidecar", Args: []string{"--metrics-bind-address=:1"}}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if e, err := endpointOf(pod); err != nil || e.port != want || e.secure {
			t.Errorf("%s: %+v, %v", component, e, err)
		}
		pod.Spec.Containers[0].Args = slices.Concat(args, []string{"--metrics-bind-address=:9809"})
		if e, err := endpointOf(pod); err != nil || e.port != nodePort || !e.secure {
			t.Errorf("%s: %+v, %v", component, e, err)
		}
		pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--metrics-bind-address", "[::]:7")
		if e, err := endpointOf(pod); err != nil || e.port != 7 {
			t.Errorf("the last one counts; got %+v, %v", e, err)
		}
	}
}

// A pod that never ends its answer, or answers with something else, is one that cannot be asked.
func TestMetricsAreBounded(t *testing.T) {
	for text, want := range map[string]string{
		"weft_a 1\nweft_b 2\n":                   "",
		"<html>":                                 "read its metrics: ",
		"":                                       "it has no metrics",
		"# " + strings.Repeat("x", 1<<10) + "\n": "its metrics are larger than 1024 bytes",
	} {
		if _, err := parsed(strings.NewReader(text), 1<<10); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.10q: got %v", text, err)
		}
	}
}
