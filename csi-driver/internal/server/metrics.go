// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/weft-storage/weft/internal/serving"
)

// Calls measures the calls of a CSI service.
type Calls struct {
	seconds  *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

// NewCalls that are not registered anywhere yet.
func NewCalls() *Calls {
	return &Calls{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_csi_call_seconds", Help: "Duration of CSI calls, by method and the gRPC code of the answer.",
			// 1 ms to 65 s: the sidecars give a call 60 s, the kubelet 120 s.
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}, []string{"method", "code"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_csi_calls_in_flight", Help: "Number of CSI calls that are not answered, by method.",
		}, []string{"method"}),
	}
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(descs chan<- *prometheus.Desc) {
	c.seconds.Describe(descs)
	c.inFlight.Describe(descs)
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	c.seconds.Collect(out)
	c.inFlight.Collect(out)
}

// Intercept is a grpc.UnaryServerInterceptor.
func (c *Calls) Intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := methodOf(info.FullMethod)
	inFlight := c.inFlight.WithLabelValues(method)
	inFlight.Inc()
	defer inFlight.Dec()
	began := time.Now()
	resp, err := handler(ctx, req)
	c.seconds.WithLabelValues(method, status.Code(err).String()).Observe(time.Since(began).Seconds())
	return resp, err
}

// Registered collectors are added to what this process serves as metrics, until the returned function takes them away
// again.
func Registered(collectors ...prometheus.Collector) (remove func(), err error) {
	var done []prometheus.Collector
	remove = func() {
		for _, c := range done {
			metrics.Registry.Unregister(c)
		}
	}
	for _, c := range collectors {
		if err := metrics.Registry.Register(c); err != nil {
			remove()
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		done = append(done, c)
	}
	return remove, nil
}

// MetricsHandler serves this process's metrics to anybody. Use it on a loopback address alone.
func MetricsHandler() http.Handler {
	return promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// metricsRetry is how long after a failure metrics are served again.
const metricsRetry = time.Minute

// ServeMetrics serves this process's metrics at /metrics over HTTPS, to whom the API server authenticates and allows to
// get /metrics, until the context ends. The certificate is tls.crt and tls.key of certDir, and created at start if that
// is empty. An empty address or "0" serves nothing. While the address is taken, as it can be in the host's network, it
// is tried again every minute: volumes do not depend on metrics.
func ServeMetrics(ctx context.Context, config *rest.Config, address, certDir string) error {
	if address == "" || address == "0" {
		return nil
	}
	if _, err := net.ResolveTCPAddr("tcp", address); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	options, err := serving.Metrics(address, certDir)
	if err != nil {
		return err
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		s, err := metricsserver.NewServer(options, config, client)
		if err == nil {
			err = s.Start(ctx)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot serve metrics; trying again", "address", address, "after", metricsRetry)
		}
	}, metricsRetry)
	return nil
}
