// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/test/apiserver"
)

// A proxy before the API server that passes no WebSockets is no obstacle, what the kubelet says is told, and no
// connection outlives a call, not even one that was interrupted. With a real API server, see
// operator/cmd/weft-operator/cli_top_test.go.
func TestPortsAreForwarded(t *testing.T) {
	kubelet := &apiserver.PortForward{}
	const path = "/api/v1/namespaces/weft-system/pods/weft-agent-a/portforward"
	mux := http.NewServeMux()
	mux.Handle("POST "+path, kubelet)
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no WebSockets", http.StatusBadRequest)
	})
	api := httptest.NewTLSServer(mux)
	defer api.Close()
	dial, err := forwarder(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	hanging := make(chan struct{})
	many := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("weft_a 1\n", 100_000))
	}))
	stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(hanging); <-r.Context().Done() }))
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	defer many.Close()
	defer stuck.Close()
	a := &asker{dial: dial, now: time.Now}
	read := func(ctx context.Context, pod string, server *httptest.Server) (*reading, error) {
		return a.read(ctx, endpoint{pod: client.ObjectKey{Namespace: "weft-system", Name: pod}, port: server.Listener.Addr().(*net.TCPAddr).Port})
	}
	r, err := read(t.Context(), "weft-agent-a", many)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.sums("weft_a", together)[""]; got != 100_000 {
		t.Errorf("got %g", got)
	}
	if _, err := read(t.Context(), "weft-agent-a", closed); err == nil || !strings.Contains(err.Error(), "cannot connect to the pod: ") {
		t.Errorf("the kubelet's reason is lost: %v", err)
	}
	if _, err := read(t.Context(), "none", many); err == nil {
		t.Error("there is no such pod")
	}
	ctx, interrupt := context.WithCancel(t.Context())
	go func() { <-hanging; interrupt() }()
	if _, err := read(ctx, "weft-agent-a", stuck); err == nil {
		t.Error("the person interrupted it")
	}
	none := make(chan struct{})
	go func() { kubelet.Wait(); close(none) }()
	select {
	case <-none:
	case <-time.After(10 * time.Second):
		t.Error("a connection stays open")
	}
}
