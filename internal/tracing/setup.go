// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

const (
	// stopTimeout bounds how long the last spans may take to be sent when a process ends.
	stopTimeout = 5 * time.Second
	// complainEvery is how often it is logged at most that spans cannot be sent.
	complainEvery = time.Minute
)

// samplers of the OpenTelemetry specification, and whether OTEL_TRACES_SAMPLER_ARG says the ratio of each.
var samplers = map[string]bool{
	"always_on": false, "always_off": false, "traceidratio": true,
	"parentbased_always_on": false, "parentbased_always_off": false, "parentbased_traceidratio": true,
}

// Setup starts to send spans by OTLP over gRPC, as the standard environment variables say (OTEL_EXPORTER_OTLP_ENDPOINT,
// OTEL_TRACES_SAMPLER and so on), for a service such as weft-agent, and gives a context with the Provider. Without an
// endpoint, with OTEL_TRACES_EXPORTER=none or with OTEL_SDK_DISABLED=true it does nothing, and the context is as it
// was. It fails when a variable has a value that cannot be used. It does not wait for the collector: spans that cannot
// be sent are dropped, which is logged at most once a minute. Call stop before the process ends; it takes 5 s at most.
func Setup(ctx context.Context, service, version string) (traced context.Context, stop func(), err error) {
	on, err := configured()
	if err != nil || !on {
		return ctx, func() {}, err
	}
	log := logr.FromContextOrDiscard(ctx)
	otel.SetLogger(log)
	otel.SetErrorHandler(&complaints{log: log})
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return ctx, func() {}, fmt.Errorf("export traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)),
		resource.WithFromEnv(), // the last one wins
	)
	if err != nil {
		return ctx, func() {}, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return NewContext(ctx, sdk), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := sdk.Shutdown(ctx); err != nil {
			log.Info("Cannot export the last traces", "reason", err.Error())
		}
	}, nil
}

// setting of exports of traces: the variable for traces alone goes before the one for everything. It gives the name of
// the variable that it was found in.
func setting(of string) (name, value string) {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"} {
		if value = strings.TrimSpace(os.Getenv(prefix + of)); value != "" {
			return prefix + of, value
		}
	}
	return "OTEL_EXPORTER_OTLP_" + of, ""
}

// configured tells whether traces are to be exported. The SDK itself only logs a value that it cannot use, and goes on
// without it; who turns tracing on is told at once.
func configured() (bool, error) {
	if strings.EqualFold(strings.TrimSpace(os.Getenv("OTEL_SDK_DISABLED")), "true") {
		return false, nil
	}
	switch exporter := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); exporter {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; must be otlp or none", exporter)
	}
	name, endpoint := setting("ENDPOINT")
	if endpoint == "" {
		return false, nil
	}
	// The value is not repeated: it may have a password in it.
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return false, fmt.Errorf("%s must be the URL of a collector's OTLP receiver for gRPC, such as http://collector.example:4317, or https:// with TLS", name)
	}
	if name, protocol := setting("PROTOCOL"); protocol != "" && protocol != "grpc" {
		return false, fmt.Errorf("%s is %q; must be grpc", name, protocol)
	}
	return true, errors.Join(checkSampler(), checkCertificates())
}

// checkSampler fails unless the SDK takes OTEL_TRACES_SAMPLER as it is.
func checkSampler() error {
	sampler := strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER")))
	if sampler == "" {
		return nil
	}
	takesRatio, known := samplers[sampler]
	if !known {
		names := make([]string, 0, len(samplers))
		for name := range samplers {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Errorf("OTEL_TRACES_SAMPLER is %q; must be one of %s", sampler, strings.Join(names, ", "))
	}
	arg := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if !takesRatio || arg == "" {
		return nil
	}
	if ratio, err := strconv.ParseFloat(arg, 64); err != nil || math.IsNaN(ratio) || ratio < 0 || ratio > 1 {
		return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; must be a number from 0 to 1", arg)
	}
	return nil
}

// checkCertificates fails unless the files that TLS is to use can be used.
func checkCertificates() error {
	if name, file := setting("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: %s has no certificate in PEM format", name, file)
		}
	}
	name, certificate := setting("CLIENT_CERTIFICATE")
	keyName, key := setting("CLIENT_KEY")
	switch {
	case certificate == "" && key == "":
		return nil
	case certificate == "" || key == "":
		return fmt.Errorf("%s and %s must be set together", name, keyName)
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// complaints of the SDK go to the log, but not each time that a collector does not answer.
type complaints struct {
	log  logr.Logger
	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= complainEvery {
		c.last = now
		c.log.Info("Cannot export traces; those that find no place in the queue are lost", "reason", err.Error())
	}
}
