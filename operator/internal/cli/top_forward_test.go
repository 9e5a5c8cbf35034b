// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	tunneling "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// forwarding is an API server and a kubelet that forward ports of the pod weft-agent-a to this machine. Without
// tunnels, it speaks SPDY alone, as API servers before 1.30 and some proxies do.
type forwarding struct {
	t       *testing.T
	tunnels bool
	// over is what the last connection was made over.
	over atomic.Value
	open sync.WaitGroup
}

func (f *forwarding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/api/v1/namespaces/weft-system/pods/weft-agent-a/portforward" {
		http.NotFound(w, r)
		return
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		if f.tunnels {
			f.over.Store("WebSocket")
			f.forward(r.Context(), func(accept httpstream.NewStreamHandler) (httpstream.Connection, error) {
				upgrader := websocket.Upgrader{Subprotocols: []string{tunneling.WebsocketsSPDYTunnelingPrefix + portforward.PortForwardProtocolV1Name}}
				conn, err := upgrader.Upgrade(w, r, nil)
				if err != nil {
					return nil, err
				}
				return spdy.NewServerConnection(portforward.NewTunnelingConnection("server", conn), accept)
			})
			return
		}
		http.Error(w, "no WebSockets", http.StatusBadRequest)
		return
	}
	f.over.Store("SPDY")
	f.forward(r.Context(), func(accept httpstream.NewStreamHandler) (httpstream.Connection, error) {
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return nil, err
		}
		if conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, accept); conn != nil {
			return conn, nil
		}
		return nil, errors.New("no upgrade")
	})
}

// forward streams in pairs, as the kubelet does: of the data, and of the error that there was.
func (f *forwarding) forward(ctx context.Context, upgrade func(httpstream.NewStreamHandler) (httpstream.Connection, error)) {
	streams := make(chan httpstream.Stream, 2)
	conn, err := upgrade(func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if err != nil {
		f.t.Error(err)
		return
	}
	f.open.Add(1)
	defer f.open.Done()
	defer func() { _ = conn.Close() }()
	of := map[string]httpstream.Stream{}
	for len(of) < 2 {
		select {
		case s := <-streams:
			of[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	complaint, data := of[corev1.StreamTypeError], of[corev1.StreamTypeData]
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		_, _ = io.WriteString(complaint, "cannot connect to the pod: "+err.Error())
	} else {
		go func() { _, _ = io.Copy(to, data) }()
		go func() { <-conn.CloseChan(); _ = to.Close() }()
		_, _ = io.Copy(data, to)
	}
	_ = errors.Join(data.Close(), complaint.Close())
	<-conn.CloseChan()
}

// closed waits until the other side has no connection any more.
func (f *forwarding) closed() {
	f.t.Helper()
	none := make(chan struct{})
	go func() { f.open.Wait(); close(none) }()
	select {
	case <-none:
	case <-time.After(10 * time.Second):
		f.t.Fatal("a connection stays open")
	}
}

// portOf a server of this machine.
func portOf(server *httptest.Server) int { return server.Listener.Addr().(*net.TCPAddr).Port }

func TestPortsAreForwarded(t *testing.T) {
	for over, tunnels := range map[string]bool{"WebSocket": true, "SPDY": false} {
		t.Run(over, func(t *testing.T) {
			f := &forwarding{t: t, tunnels: tunnels}
			api := httptest.NewTLSServer(f)
			defer api.Close()
			config := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
			dial, err := forwarder(config)
			if err != nil {
				t.Fatal(err)
			}
			hanging := make(chan struct{})
			loopback := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" || r.Host == "" {
					t.Errorf("it got %v", r.Header)
				}
				_, _ = io.WriteString(w, strings.Repeat("weft_a 1\n", 100_000))
			}))
			secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("it got %v", r.Header)
				}
				_, _ = io.WriteString(w, "weft_a 2\n")
			}))
			stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(hanging); <-r.Context().Done() }))
			defer loopback.Close()
			defer secure.Close()
			defer stuck.Close()
			a := &asker{dial: dial, now: time.Now, token: "secret"}
			pod := client.ObjectKey{Namespace: "weft-system", Name: "weft-agent-a"}
			for want, e := range map[float64]endpoint{100_000: {pod: pod, port: portOf(loopback)}, 2: {pod: pod, port: portOf(secure), secure: true}} {
				r, err := a.read(t.Context(), e)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.sums("weft_a", together)[""]; got != want {
					t.Errorf("got %g, want %g", got, want)
				}
			}
			if f.over.Load() != over {
				t.Errorf("connected over %v", f.over.Load())
			}

			free := httptest.NewServer(http.NotFoundHandler())
			nobody := portOf(free)
			free.Close()
			if _, err := a.read(t.Context(), endpoint{pod: pod, port: nobody}); err == nil || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("the kubelet's reason is lost: %v", err)
			}
			if _, err := a.read(t.Context(), endpoint{pod: client.ObjectKey{Namespace: "weft-system", Name: "none"}, port: nobody}); err == nil {
				t.Error("there is no such pod")
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-hanging; cancel() }()
			if _, err := a.read(ctx, endpoint{pod: pod, port: portOf(stuck)}); err == nil {
				t.Error("the person interrupted it")
			}
			f.closed()
		})
	}
}
