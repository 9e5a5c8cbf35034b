// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
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

// relay RPCs from a socket to the target's, each across the boundary, until ctx ends. It returns when nothing is
// relayed any more.
type relay struct {
	listener *net.UnixListener
	wait     sync.WaitGroup
}

func newRelay(ctx context.Context, from, to string, b Boundary) (*relay, error) {
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
			r.wait.Go(func() { serve(ctx, client, to, b) })
		}
	})
	return r, nil
}

// serve one connection. When one end is lost, so is the other.
func serve(ctx context.Context, client net.Conn, to string, b Boundary) {
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
		if requests.Decode(&request) != nil || b(func() error {
			_, err := target.Write(request)
			return err
		}) != nil {
			break
		}
	}
	_, _ = client.Close(), target.Close()
	<-answered
}
