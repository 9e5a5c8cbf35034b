// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
)

// Boundary between a process and what outlives it: do carries a request out, and is called at most once. With an error
// the process never sees an answer, whether or not do was called.
type Boundary func(do func() error) error

// Cross has every request of an HTTP client cross the boundary, but for watches.
func (b Boundary) Cross(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (response *http.Response, err error) {
		if r.URL.Query().Get("watch") != "" {
			return next.RoundTrip(r)
		}
		err = b(func() error {
			var err error
			response, err = next.RoundTrip(r) //nolint:bodyclose // whoever made the request closes it
			return err
		})
		if err != nil && response != nil {
			_ = response.Body.Close() // nobody sees it
			response = nil
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// pass a request on to the target: write does that. With an error the connection ends.
type pass func(request json.RawMessage, write func(json.RawMessage) error) error

// pass every request across the boundary.
func (b Boundary) pass(request json.RawMessage, write func(json.RawMessage) error) error {
	return b(func() error { return write(request) })
}

// onlyWatch has the target refuse to turn write caches off, which an engine that looks at its state asks for: in these
// tests that is the agent's to do, and nobody else's.
func onlyWatch(request json.RawMessage, write func(json.RawMessage) error) error {
	return write(bytes.Replace(request, []byte(`"bdev_nvme_send_cmd"`), []byte(`"refused_to_watchers"`), 1))
}

// relay RPCs from a socket to the target's, until ctx ends. wait returns when nothing is relayed any more.
type relay struct {
	listener *net.UnixListener
	wait     sync.WaitGroup
}

func newRelay(ctx context.Context, from, to string, p pass) (*relay, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: from, Net: "unix"})
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	r.wait.Go(func() {
		defer stop()
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			r.wait.Go(func() { serve(ctx, client, to, p) })
		}
	})
	return r, nil
}

// serve one connection. When one end is lost, so is the other.
func serve(ctx context.Context, client net.Conn, to string, p pass) {
	defer func() { _ = client.Close() }()
	target, err := new(net.Dialer).DialContext(ctx, "unix", to)
	if err != nil {
		return
	}
	defer func() { _ = target.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), target.Close() })()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(client, target)
		_ = client.Close()
	}()
	requests := json.NewDecoder(client)
	for {
		var request json.RawMessage
		if requests.Decode(&request) != nil || p(request, func(r json.RawMessage) error {
			_, err := target.Write(r)
			return err
		}) != nil {
			break
		}
	}
	_, _ = client.Close(), target.Close()
	<-answered
}
