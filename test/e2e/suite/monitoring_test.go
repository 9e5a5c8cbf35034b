// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// metricsPorts of weft's components: of operator and CSI controller in their pods, of the others on their nodes.
var metricsPorts = map[string]int{"operator": 8443, "csi-controller": 8443, "agent": 9809, "csi-node": 9808}

// What a healthy volume of the kernel's target in a file does not have.
var (
	ofSPDK   = regexp.MustCompile(`\bweft_agent_(replica|buffer|core)_\w+`)
	ofDrives = regexp.MustCompile(`\bweft_agent_drive_\w+`)
	ofCopies = regexp.MustCompile(`\bweft_mirror_cop(ied|y_size)_bytes\b`)
)

// prometheus that scrapes every component of weft, until the test ends: the address of its API. The chart has these
// values besides, as what onAllNodes takes back.
func prometheus(ctx context.Context, values ...string) string {
	GinkgoHelper()
	Expect(run.Install(ctx, append(values,
		fmt.Sprintf("metrics.agents.port=%d", metricsPorts["agent"]), fmt.Sprintf("metrics.nodePlugins.port=%d", metricsPorts["csi-node"]),
		"metrics.readers[0].namespace="+Namespace, "metrics.readers[0].name=prometheus")...)).To(Succeed())
	program := cmp.Or(os.Getenv("PROMETHEUS"), filepath.Join(run.repo, "bin", "prometheus"))
	Expect(program).To(BeAnExistingFile(), "this spec needs Prometheus: run `make $PWD/bin/prometheus`, or set PROMETHEUS to its path")
	dir := GinkgoT().TempDir()
	token := filepath.Join(dir, "token")
	Expect(os.WriteFile(token, []byte(tokenOf(ctx, "prometheus")), 0o600)).To(Succeed())
	config := "global: {scrape_interval: 5s, scrape_timeout: 5s}\nscrape_configs:\n"
	for component, port := range metricsPorts {
		config += fmt.Sprintf(`
- job_name: weft-%s
  scheme: https
  honor_labels: true
  tls_config: {insecure_skip_verify: true}
  authorization: {credentials_file: %s}
  static_configs:
`, component, token)
		for _, pod := range componentPods(ctx, component) {
			if pod.DeletionTimestamp == nil {
				config += fmt.Sprintf("  - {targets: ['%s:%d'], labels: {node: %s}}\n", pod.Status.PodIP, port, pod.Spec.NodeName)
			}
		}
	}
	file := filepath.Join(dir, "prometheus.yml")
	Expect(os.WriteFile(file, []byte(config), 0o600)).To(Succeed())

	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	address := l.Addr().String()
	Expect(l.Close()).To(Succeed())
	// It is ended below, also when the context of the test is not.
	session, err := gexec.Start(exec.CommandContext(context.WithoutCancel(ctx), program,
		"--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address), GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { session.Terminate().Wait(time.Minute) })
	api := "http://" + address
	By("waiting until all are scraped")
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		for job := range metricsPorts {
			g.Expect(answer(ctx, api, fmt.Sprintf(`up{job="weft-%s"} == 1`, job))).To(BeNumerically(">", 0), job)
		}
		g.Expect(answer(ctx, api, `up == 0`)).To(Equal(0))
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return api
}

// tokenOf a new service account in weft's namespace, which is gone when the test ends.
func tokenOf(ctx context.Context, name string) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	Expect(cluster.Create(ctx, account)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { remove(ctx, account) })
	request := &authenticationv1.TokenRequest{}
	Expect(cluster.SubResource("token").Create(ctx, account, request)).To(Succeed())
	return request.Status.Token
}

// answer of a Prometheus to a query: how many series it has.
func answer(ctx context.Context, api, query string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	var body struct {
		Error string `json:"error"`
		Data  struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return 0, fmt.Errorf("%s: %w", query, err)
	}
	if body.Error != "" {
		return 0, fmt.Errorf("%s: %s", query, body.Error)
	}
	return len(body.Data.Result), nil
}

// asked are queries that must have an answer, by where they are written: those of the dashboards, and the metrics of
// the alerts, which are quiet themselves.
func asked(ctx context.Context) map[string]string {
	GinkgoHelper()
	list := exec.CommandContext(ctx, "go", "run", "./hack/docs", "queries")
	list.Dir, list.Stderr = run.repo, GinkgoWriter
	out, err := list.Output()
	Expect(err).NotTo(HaveOccurred())
	var file struct {
		Groups []struct {
			Rules []struct {
				Expr   string            `json:"expr"`
				Labels map[string]string `json:"labels"`
			} `json:"rules"`
		} `json:"groups"`
	}
	Expect(yaml.Unmarshal(out, &file)).To(Succeed())
	queries := map[string]string{}
	for _, r := range file.Groups[0].Rules {
		from := r.Labels["from"]
		if !strings.HasPrefix(from, "alert ") {
			queries[from] = r.Expr
			continue
		}
		for _, metric := range regexp.MustCompile(`\bweft_\w+`).FindAllString(r.Expr, -1) {
			queries[from+", metric "+metric] = metric
		}
	}
	Expect(queries).NotTo(BeEmpty())
	return queries
}

// taken are the queries about these metrics. They are no longer among the others.
func taken(queries map[string]string, metrics *regexp.Regexp) map[string]string {
	GinkgoHelper()
	found := map[string]string{}
	for from, query := range queries {
		if metrics.MatchString(query) {
			found[from] = query
			delete(queries, from)
		}
	}
	Expect(found).NotTo(BeEmpty(), metrics.String())
	return found
}

// answered waits until each of the queries has had series.
func answered(ctx context.Context, api string, queries map[string]string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		for from, query := range queries {
			n, err := answer(ctx, api, query)
			g.Expect(err).NotTo(HaveOccurred())
			if n > 0 {
				delete(queries, from)
			}
		}
		g.Expect(queries).To(BeEmpty())
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// load is what kubectl weft top shows of a volume, a node or a target.
type load struct {
	Claim, Node, Problem           string
	Traffic                        *struct{ WritesPerSecond, WriteBytesPerSecond, WriteLatencySeconds float64 }
	Paths, PathsLive               int
	Replicas, Nodes, NodesKnown    int
	PromisedBytes, PromisableBytes int64
}

// topShows what a pod writes to a volume of two replicas: as its node, its storage nodes and their target see it.
func topShows(ctx context.Context, r *replicated) {
	GinkgoHelper()
	weft := kubectlWeft(ctx)
	top := func(g Gomega, what string, args ...string) []load {
		GinkgoHelper()
		out, err := weft(ctx, append([]string{"top", what, "-o", "json"}, args...)...)
		g.Expect(err).NotTo(HaveOccurred(), out)
		var got map[string][]load
		g.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed(), out)
		return got[what]
	}
	writes := func(g Gomega, l load) {
		GinkgoHelper()
		g.Expect(l.Problem).To(BeEmpty())
		g.Expect(l.Traffic).NotTo(BeNil())
		g.Expect(l.Traffic.WritesPerSecond).To(BeNumerically(">", 0))
		g.Expect(l.Traffic.WriteBytesPerSecond).To(BeNumerically(">", 0))
		g.Expect(l.Traffic.WriteLatencySeconds).To(And(BeNumerically(">", 0), BeNumerically("<", 60)))
	}
	// Agents and node plugins may have just been restarted.
	Eventually(ctx, func(g Gomega) {
		volumes := top(g, "volumes", r.claim.Name, "-n", r.claim.Namespace)
		g.Expect(volumes).To(HaveLen(1))
		g.Expect(volumes[0].Claim).To(Equal(r.claim.Namespace + "/" + r.claim.Name))
		g.Expect(volumes[0].Node).To(Equal(clientNode))
		g.Expect(volumes[0].Paths).To(And(BeNumerically(">=", 2), Equal(volumes[0].PathsLive)))
		writes(g, volumes[0])
		nodes := top(g, "nodes", storageNode, clientNode)
		g.Expect(nodes).To(HaveLen(2))
		for _, n := range nodes {
			writes(g, n)
			g.Expect(n.Replicas).To(BeNumerically(">", 0))
			g.Expect(n.PromisedBytes).To(And(BeNumerically(">", 0), BeNumerically("<=", n.PromisableBytes)))
		}
		targets := top(g, "targets", r.volume.Spec.Target)
		g.Expect(targets).To(HaveLen(1))
		g.Expect(targets[0].NodesKnown).To(And(BeNumerically(">=", 2), Equal(targets[0].Nodes)))
		writes(g, targets[0])
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("Prometheus", func() {
	It("scrapes every component, and has series for the queries of dashboards and alerts, while kubectl weft top shows the I/O without it", full, func(ctx SpecContext) {
		queries := asked(ctx)
		taken(queries, ofSPDK)
		taken(queries, ofDrives)
		copying := taken(queries, ofCopies)
		r := writtenOnTwo(ctx, "metered")
		By("reading metrics on the nodes' loopback addresses, through the API server")
		topShows(ctx, r)
		// A copy that takes as long as some scrapes.
		api := prometheus(ctx, "csi.node.mirrors.copyKiBPerSecond=1024")

		By("reading metrics on ports of the nodes, with a token")
		topShows(ctx, r)

		By("asking")
		r.acks.goOnNow(ctx)
		answered(ctx, api, queries)

		By("asking while a replica gets what it lacks")
		cut(storageNode)
		r.loses(ctx, storageNode)
		fill(ctx, r.pod)
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		answered(ctx, api, copying)
		r.acks.nothingLost(ctx, r.pod)
	}, SpecTimeout(25*time.Minute))

	It("has series for the queries about drives, and about a target of SPDK", full, func(ctx SpecContext) {
		all := asked(ctx)
		queries := taken(all, ofDrives) // the target of the samples has a drive of storageNode
		DeferCleanup(func(ctx context.Context) { Expect(run.Install(ctx)).To(Succeed()) })
		if realTarget == "" {
			GinkgoWriter.Println("WEFT_SPDK_TARGET is not set: nothing is asked about a target of SPDK, whose fake does no I/O")
		} else {
			Expect(run.LoadTarget(ctx, realTarget)).To(Succeed())
			target := spdkTarget("metered-spdk")
			target.Spec.Cores.Mode = v1alpha1.CoresStatic // the only one that counts the time of cores
			target.Spec.LatencyHistograms = new(v1alpha1.SwitchEnabled)
			onClientNode(ctx, target)
			newClass(ctx, target.Name, map[string]string{"target": target.Name})
			pod := runPod(ctx, newClaim(ctx, newNamespace(ctx), "claim", target.Name), "writer", storageNode)
			startWriter(ctx, pod).goOn(ctx, 10, time.Minute)
			maps.Copy(queries, taken(all, ofSPDK))
		}
		answered(ctx, prometheus(ctx), queries)
	}, SpecTimeout(25*time.Minute))
})
