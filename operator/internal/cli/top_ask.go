// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// askedAtOnce are the pods that are asked at the same time.
	askedAtOnce = 16
	// askTimeout of one pod. A scrape of its own waits up to 5 s for a target or for the kernel.
	askTimeout = 10 * time.Second
	// maxMetricsBytes of one pod. 128 volumes of two paths on its node are about 2 MB.
	maxMetricsBytes = 64 << 20
	// readerAccount is the service account of the chart that may get /metrics and nothing else, and tokenLifetime of a
	// token for it, the least that the API server gives.
	readerAccount = "weft-top"
	tokenLifetime = 10 * time.Minute
)

// Components that serve metrics, by their label. The first two serve figures of I/O.
const (
	componentAgent      = "agent"
	componentNodePlugin = "csi-node"
	componentOperator   = "operator"
	componentController = "csi-controller"
)

// exporter of metrics: a component on a node.
type exporter struct{ component, node string }

func (s exporter) String() string {
	return map[string]string{componentAgent: "agent", componentNodePlugin: "node plugin"}[s.component] + " of node " + s.node
}

// endpoint of a pod's metrics.
type endpoint struct {
	pod  client.ObjectKey
	port int
	// secure: it serves HTTPS to whom the API server allows to get /metrics. Otherwise it serves HTTP on the loopback
	// address of its node.
	secure bool
}

// endpointOf a pod, by the arguments that it runs with.
func endpointOf(pod *corev1.Pod) (endpoint, error) {
	if pod.Status.Phase != corev1.PodRunning {
		return endpoint{}, fmt.Errorf("pod %s is %s", pod.Name, cmp.Or(pod.Status.Phase, corev1.PodPending))
	}
	var args []string
	for _, c := range pod.Spec.Containers {
		if strings.HasPrefix(c.Name, "weft-") {
			args = append(args, c.Args...)
		}
	}
	e := endpoint{pod: client.ObjectKeyFromObject(pod), secure: true}
	address := lastFlag(args, "metrics-bind-address")
	if address == "" || address == "0" {
		address, e.secure = lastFlag(args, "health-probe-bind-address"), false
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return endpoint{}, fmt.Errorf("pod %s serves no metrics: its arguments set no address for them", pod.Name)
	}
	if e.port, err = strconv.Atoi(port); err != nil {
		return endpoint{}, fmt.Errorf("pod %s serves metrics at %s, which has no number of a port", pod.Name, address)
	}
	return e, nil
}

// lastFlag of a name in arguments: the one that counts.
func lastFlag(args []string, name string) string {
	value := ""
	for i, arg := range args {
		arg, is := strings.CutPrefix(arg, "--"+name)
		switch {
		case is && strings.HasPrefix(arg, "="):
			value = arg[1:]
		case is && arg == "" && i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// reading is what a pod served at one moment.
type reading struct {
	at       time.Time
	families map[string]*dto.MetricFamily
}

// asker asks pods for their metrics.
type asker struct {
	api client.Client
	// namespace of weft's pods.
	namespace string
	dial      podDialer
	now       func() time.Time

	// token of readerAccount, and until when it is used. mu is held while it is renewed.
	mu    sync.Mutex
	token string
	until time.Time
}

// asker of the pods of this cluster.
func (c *cluster) asker(api client.Client, namespace string) (*asker, error) {
	config, err := c.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	dial, err := forwarder(config)
	return &asker{api: api, namespace: namespace, dial: dial, now: time.Now}, err
}

// answers of pods, or why there is none.
type answers struct {
	readings map[exporter]*reading
	failures map[exporter]error
}

// ask some components. It fails when it is not known which pods there are.
func (a *asker) ask(ctx context.Context, of []exporter) (answers, error) {
	all := answers{map[exporter]*reading{}, map[exporter]error{}}
	if len(of) == 0 {
		return all, nil
	}
	pods, err := a.pods(ctx)
	if err != nil {
		return all, err
	}
	endpoints, secure := map[exporter]endpoint{}, false
	for _, s := range of {
		pod := pods[s]
		if pod == nil {
			all.failures[s] = fmt.Errorf("no pod of it in namespace %s", a.namespace)
			continue
		}
		e, err := endpointOf(pod)
		if err != nil {
			all.failures[s] = err
			continue
		}
		endpoints[s], secure = e, secure || e.secure
	}
	var tokenErr error
	if secure {
		tokenErr = a.renewToken(ctx)
	}
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for s, e := range endpoints {
		asking.Go(func() error {
			var r *reading
			err := tokenErr
			if err == nil || !e.secure {
				r, err = a.read(ctx, e)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all.failures[s] = fmt.Errorf("pod %s: %w", e.pod.Name, err)
			} else {
				all.readings[s] = r
			}
			return nil
		})
	}
	_ = asking.Wait() // every failure is kept beside its exporter
	return all, ctx.Err()
}

// pods of the components that are asked, the newest on each node that is not being deleted.
func (a *asker) pods(ctx context.Context) (map[exporter]*corev1.Pod, error) {
	var all corev1.PodList
	if err := a.api.List(ctx, &all, client.InNamespace(a.namespace), client.MatchingLabels{"app.kubernetes.io/name": "weft"}); err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w", a.namespace, err)
	}
	found := map[exporter]*corev1.Pod{}
	for i := range all.Items {
		pod := &all.Items[i]
		s := exporter{pod.Labels[v1alpha1.ComponentLabel], pod.Spec.NodeName}
		if s.component != componentAgent && s.component != componentNodePlugin {
			continue
		}
		if is := found[s]; is == nil || newer(pod, is) {
			found[s] = pod
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no agents and node plugins of weft in namespace %s; set the namespace with --weft-namespace", a.namespace)
	}
	return found, nil
}

// newer: one that is not being deleted, before one that is; else the younger.
func newer(pod, than *corev1.Pod) bool {
	if ends, other := pod.DeletionTimestamp != nil, than.DeletionTimestamp != nil; ends != other {
		return other
	}
	return than.CreationTimestamp.Before(&pod.CreationTimestamp)
}

// renewToken of readerAccount, if it does not last until everything was asked.
//
// It is never the person's own token, or one that may do more: a port of a node's network is answered by whoever
// listens there, and the certificate that agents make at their start cannot be checked.
func (a *asker) renewToken(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now().Before(a.until) {
		return nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: readerAccount}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLifetime / time.Second))}}
	if err := a.api.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("request a token of service account %s/%s, which may read metrics: %w", a.namespace, readerAccount, err)
	}
	a.token, a.until = request.Status.Token, a.now().Add(tokenLifetime/2)
	return nil
}

// read the metrics of an endpoint.
func (a *asker) read(ctx context.Context, e endpoint) (*reading, error) {
	r := &reading{}
	at, err := a.get(ctx, e, func(body io.Reader) (err error) {
		r.families, err = parsed(body, maxMetricsBytes)
		return err
	})
	r.at = at
	return r, err
}

// get the metrics of an endpoint, have them read, and return the time of the pod's answer.
func (a *asker) get(ctx context.Context, e endpoint, read func(body io.Reader) error) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	transport := &http.Transport{
		// A transport's context is that of dialing; the connection ends with this one.
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return a.dial(ctx, e.pod, e.port) },
		DisableKeepAlives: true,
		// The server makes its certificate at its start and publishes it nowhere. What is known of the other side is
		// what the API server and the kubelet guarantee: it is a process in the network of that pod's node. So it gets
		// no secret but a token that reads metrics.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
	}
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	scheme := "http"
	if e.secure {
		scheme = "https"
	}
	// The counters are read after the connection is made, which can take long.
	began := a.now()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { began = a.now() }})
	request, err := http.NewRequestWithContext(traced, http.MethodGet, scheme+"://"+net.JoinHostPort("localhost", strconv.Itoa(e.port))+"/metrics", http.NoBody)
	if err != nil {
		return at, err
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	if e.secure {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := web.Do(request)
	if err != nil {
		return at, plainly(ctx, err)
	}
	defer func() { _ = response.Body.Close() }() // it is only read
	at = began.Add(a.now().Sub(began) / 2)
	if response.StatusCode != http.StatusOK {
		return at, refused(response)
	}
	if err := read(response.Body); err != nil {
		return at, plainly(ctx, err)
	}
	return at, nil
}

// plainly says what failed, without the URL, which means nothing outside of the pod.
func plainly(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", askTimeout)
	}
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// refused is an answer that has no metrics.
func refused(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200)) // the status says enough
	return errors.New(strings.TrimSpace(response.Status + ": " + strings.Join(strings.Fields(string(text)), " ")))
}

// parsed metrics in Prometheus' text format, of at most so many bytes.
func parsed(in io.Reader, most int64) (map[string]*dto.MetricFamily, error) {
	bounded := &io.LimitedReader{R: in, N: most}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bounded)
	switch {
	case bounded.N <= 0:
		return nil, fmt.Errorf("its metrics are larger than %d bytes", most)
	case err != nil:
		return nil, fmt.Errorf("read its metrics: %w", err)
	case len(families) == 0:
		return nil, errors.New("it has no metrics")
	}
	return families, nil
}

// sortedExporters are the keys, by node.
func sortedExporters[T any](of map[exporter]T) []exporter {
	all := make([]exporter, 0, len(of))
	for s := range of {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b exporter) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.component, b.component))
	})
	return all
}
