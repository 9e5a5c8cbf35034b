// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Options of a Client.
type Options struct {
	// Window is how many calls may be in flight; 0 means DefaultWindow. Of those that lvstores carry out
	// there are LvolWindow at most.
	Window int
	// RetryEvery is how often Connect tries while nothing answers; 0 means 20 ms. A Unix socket
	// has no other sign that a target has begun to listen.
	RetryEvery time.Duration
}

// maxPathBytes of a Unix socket's address on Linux.
const maxPathBytes = 107

// DefaultWindow is enough for SPDK to be busy from one look at its socket to the next, every 4 ms: it carries out
// 40,000 calls for exports a second, and takes and answers them in turns.
const DefaultWindow = 1024

// LvolWindow is how many calls about lvols may be in flight: SPDK fails them beyond 512 on one lvstore, whoever sent
// them, and half of these are kept for those who call it beside us.
const LvolWindow = 256

const defaultRetryEvery = 20 * time.Millisecond

// Client of the target behind a Unix socket. It keeps one connection, and
// makes a new one when a call finds it lost.
type Client struct {
	options Options
	dial    func(context.Context) (net.Conn, error)
	// dialing is held by who connects, and guards conn.
	dialing chan struct{}
	conn    *Conn
	closing chan struct{}
	close   sync.Once
}

// New client for the socket at path. It does not connect: the first call does.
func New(path string, options Options) (*Client, error) {
	switch {
	case path == "":
		return nil, fmt.Errorf("%w: no socket path: set the path of SPDK's RPC socket (nvmf_tgt -r)", ErrInvalid)
	case len(path) > maxPathBytes:
		return nil, fmt.Errorf("%w: the socket path has %d bytes, but the maximum is %d", ErrInvalid, len(path), maxPathBytes)
	case options.Window < 0:
		return nil, fmt.Errorf("%w: window %d: must be 1 or greater, or 0 for %d", ErrInvalid, options.Window, DefaultWindow)
	case options.RetryEvery < 0:
		return nil, fmt.Errorf("%w: retry every %v: must be greater than 0, or 0 for %v", ErrInvalid, options.RetryEvery, defaultRetryEvery)
	}
	if options.Window == 0 {
		options.Window = DefaultWindow
	}
	if options.RetryEvery == 0 {
		options.RetryEvery = defaultRetryEvery
	}
	return newClient(options, func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}), nil
}

func newClient(options Options, dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{options: options, dial: dial, dialing: make(chan struct{}, 1), closing: make(chan struct{})}
}

// Connect waits until the target takes a connection and gives it: at once while there is one, else
// within Options.RetryEvery of the target's start. Its Lost channel tells
// when it is gone, so that Connect, then Lost, in turn, follow a target through its lives:
//
//	for {
//		conn, err := client.Connect(ctx)
//		if err != nil {
//			return err // ctx ended, or the client was closed
//		}
//		fill(ctx, conn)
//		select {
//		case <-conn.Lost():
//		case <-ctx.Done():
//		}
//	}
//
// It fails with the context's error or ErrClosed.
func (c *Client) Connect(ctx context.Context) (*Conn, error) {
	ticker := time.NewTicker(c.options.RetryEvery)
	defer ticker.Stop()
	for {
		conn, err := c.connection(ctx)
		if err == nil || !errors.Is(err, ErrUnavailable) {
			return conn, err
		}
		select {
		case <-ticker.C:
		case <-c.closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close the connection and fail all calls, those in flight and later ones, with ErrClosed.
func (c *Client) Close() {
	c.close.Do(func() {
		close(c.closing)
		c.dialing <- struct{}{}
		defer func() { <-c.dialing }()
		if c.conn != nil {
			c.conn.close(ErrClosed)
		}
	})
}

// connection that takes calls: the present one, or a new one.
func (c *Client) connection(ctx context.Context) (*Conn, error) {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-c.closing:
		return nil, ErrClosed
	default:
	}
	if c.conn != nil && c.conn.usable() {
		return c.conn, nil
	}
	socket, err := c.dial(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	c.conn = newConn(socket, c.options.Window)
	return c.conn, nil
}
