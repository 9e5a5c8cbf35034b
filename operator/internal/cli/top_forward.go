// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A podDialer connects to a port of a pod, as the pod itself would connect to localhost. The connection ends with ctx
// at the latest. It is safe for concurrent use.
type podDialer func(ctx context.Context, pod client.ObjectKey, port int) (net.Conn, error)

// forwarder connects through the API server's port-forward, over a WebSocket, or over SPDY where something on the way
// passes no WebSockets. Unlike kubectl port-forward it opens no port on this machine, which other users of it could
// connect to as well.
func forwarder(config *rest.Config) (podDialer, error) {
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pod client.ObjectKey, port int) (net.Conn, error) {
		url := typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
		dialer, err := upgrading(config, url)
		if err != nil {
			return nil, err
		}
		conn, err := dialed(ctx, dialer)
		if err != nil {
			return nil, fmt.Errorf("forward a port: %w", err)
		}
		forwarded, err := forward(ctx, conn, port)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("forward port %d: %w", port, err), conn.Close())
		}
		return forwarded, nil
	}, nil
}

// upgrading dials a URL of the API server and upgrades the connection. What it makes can be used once. Errors of an
// upgrade have the types of k8s.io/streaming; apimachinery's functions for them know only their own.
func upgrading(config *rest.Config, url *url.URL) (httpstream.Dialer, error) {
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	return portforward.NewFallbackDialerForStreaming(overWebSocket, overSPDY, cannotUpgrade), nil
}

// cannotUpgrade says that a connection can be tried in another way.
func cannotUpgrade(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// dialed is a connection, unless ctx ends first: a dialer does not know of it.
func dialed(ctx context.Context, dialer httpstream.Dialer) (httpstream.Connection, error) {
	type answer struct {
		conn     httpstream.Connection
		protocol string
		err      error
	}
	done := make(chan answer, 1)
	go func() {
		conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		done <- answer{conn, protocol, err}
	}()
	select {
	case a := <-done:
		if a.err == nil && a.protocol != portforward.PortForwardProtocolV1Name {
			return nil, errors.Join(fmt.Errorf("the API server speaks %q, and not %q", a.protocol, portforward.PortForwardProtocolV1Name), a.conn.Close())
		}
		return a.conn, a.err
	case <-ctx.Done():
		go func() {
			if late := <-done; late.err == nil {
				_ = late.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// forward a port: a stream of its data, and one on which the kubelet says why there is none.
func forward(ctx context.Context, conn httpstream.Connection, port int) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	complaints, err := conn.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	if err := complaints.Close(); err != nil { // nothing is written to it
		return nil, err
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	f := &forwardedConn{Stream: data, port: port, conn: conn, complaint: make(chan string, 1)}
	f.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	go func() {
		text, _ := io.ReadAll(io.LimitReader(complaints, 4096)) // it ends with the connection
		f.complaint <- strings.TrimSpace(string(text))
		close(f.complaint)
	}()
	return f, nil
}

// forwardedConn is a forwarded port as a connection. It has no deadlines: it ends with the context that it was made
// with.
type forwardedConn struct {
	httpstream.Stream
	port int
	conn httpstream.Connection
	// complaint of the kubelet; empty: it had none.
	complaint chan string
	stop      func() bool
	closing   sync.Once
}

// Read implements net.Conn. A stream that ends says why, if that is known.
func (f *forwardedConn) Read(p []byte) (int, error) {
	n, err := f.Stream.Read(p)
	if err != nil && n == 0 {
		if why := <-f.complaint; why != "" { // both streams end together
			return 0, errors.New(why)
		}
	}
	return n, err
}

// Close implements net.Conn.
func (f *forwardedConn) Close() (err error) {
	f.closing.Do(func() {
		f.stop()
		err = f.conn.Close()
	})
	return err
}

// LocalAddr implements net.Conn.
func (f *forwardedConn) LocalAddr() net.Addr { return f.RemoteAddr() }

// RemoteAddr implements net.Conn.
func (f *forwardedConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: f.port}
}

// SetDeadline implements net.Conn, and does nothing.
func (f *forwardedConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn, and does nothing.
func (f *forwardedConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn, and does nothing.
func (f *forwardedConn) SetWriteDeadline(time.Time) error { return nil }
