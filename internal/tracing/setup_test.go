// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/weft-storage/weft/internal/tracing"
)

// clearEnvironment of all that says how traces are exported.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

// Off is the default, and nothing runs then.
func TestSetupIsOff(t *testing.T) {
	for name, environment := range map[string]map[string]string{
		"by default":               {},
		"with a sampler alone":     {"OTEL_TRACES_SAMPLER": "always_on"},
		"when the SDK is disabled": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_SDK_DISABLED": "True"},
		"without an exporter":      {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnvironment(t)
			for variable, value := range environment {
				t.Setenv(variable, value)
			}
			before := runtime.NumGoroutine()
			ctx, stop, err := tracing.Setup(t.Context(), "weft-test", "1")
			if err != nil || tracing.Provider(ctx) != nil {
				t.Errorf("got %v, %v", tracing.Provider(ctx), err)
			}
			if after := runtime.NumGoroutine(); after != before {
				t.Errorf("%d goroutines run, and %d did before", after, before)
			}
			stop()
		})
	}
}

func TestSetupRefuses(t *testing.T) {
	noCertificate := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(noCertificate, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ variable, value, words string }{
		"an endpoint without a scheme":    {"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "such as http://"},
		"an endpoint without a host":      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be"},
		"a password":                      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@collector:4317", "such as http://"},
		"another exporter":                {"OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"},
		"another protocol":                {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "must be grpc"},
		"an unknown sampler":              {"OTEL_TRACES_SAMPLER", "sometimes", "always_off, always_on, parentbased_always_off"},
		"a ratio above 1":                 {"OTEL_TRACES_SAMPLER_ARG", "1.5", "from 0 to 1"},
		"a ratio that is no number":       {"OTEL_TRACES_SAMPLER_ARG", "NaN", "from 0 to 1"},
		"a certificate that is not there": {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.crt", "no such file"},
		"a file without a certificate":    {"OTEL_EXPORTER_OTLP_CERTIFICATE", noCertificate, "no certificate"},
		"half a client certificate":       {"OTEL_EXPORTER_OTLP_CLIENT_KEY", noCertificate, "must be set together"},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnvironment(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
			t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
			t.Setenv(c.variable, c.value)
			_, _, err := tracing.Setup(t.Context(), "weft-test", "1")
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v", err)
			} else if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("it repeats the password: %v", err)
			}
		})
	}
}

// receiver is a collector that keeps what it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- req
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSetupExportsOverGRPC(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, r := grpc.NewServer(), receiver{got: make(chan *collector.ExportTraceServiceRequest, 1)}
	collector.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(listener) }()
	defer s.Stop()
	clearEnvironment(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1")
	ctx, stop, err := tracing.Setup(t.Context(), "weft-test", "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracing.Provider(ctx).Tracer(tracing.Scope).Start(ctx, "work")
	span.End()
	stop()
	got := (<-r.got).ResourceSpans[0]
	about := map[string]string{}
	for _, a := range got.Resource.Attributes {
		about[a.Key] = a.Value.GetStringValue()
	}
	if about["service.name"] != "weft-test" || about["service.version"] != "1.2.3" || about["k8s.node.name"] != "n1" || got.ScopeSpans[0].Spans[0].Name != "work" {
		t.Errorf("got %v", got)
	}
}

// A collector that is away for a day does not fill the log.
func TestFailuresAreLoggedOnceAMinute(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	var said []string
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{}))
	_, stop, err := tracing.Setup(ctx, "weft-test", "1")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	otel.Handle(errors.New("nobody listens"))
	otel.Handle(errors.New("nobody listens"))
	if len(said) != 1 || !strings.Contains(said[0], "nobody listens") {
		t.Errorf("it says %q", said)
	}
}
