// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"net"
	"sync"
)

// A conn is one client's connection. The loop owns outstanding; mu guards what it shares with the two goroutines
// that read and write the socket, so that a slow client holds up nobody else.
type conn struct {
	net         net.Conn
	wake        func()
	outstanding int      // calls received and not answered
	ready       [][]byte // answers waiting for the next poll's send

	mu      sync.Mutex
	room    sync.Cond // in has room
	data    sync.Cond // out has data, or closing
	in      []byte    // received; with what is taken at most maxRequestBytes
	taken   int       // bytes that the loop is at
	ended   bool      // the client has closed its end
	out     [][]byte
	closing bool
}

func newConn(nc net.Conn, wake func()) *conn {
	c := &conn{net: nc, wake: wake}
	c.room.L, c.data.L = &c.mu, &c.mu
	return c
}

// read fills in, and stops while it is full: what the server does not take stays in the socket.
func (c *conn) read() {
	buf := make([]byte, maxRequestBytes)
	for {
		c.mu.Lock()
		for len(c.in)+c.taken >= maxRequestBytes && !c.closing {
			c.room.Wait()
		}
		space := maxRequestBytes - len(c.in) - c.taken
		closing := c.closing
		c.mu.Unlock()
		if closing {
			return
		}
		n, err := c.net.Read(buf[:space])
		c.mu.Lock()
		c.in = append(c.in, buf[:n]...)
		c.ended = c.ended || err != nil
		ended := c.ended
		c.mu.Unlock()
		c.wake()
		if ended {
			return
		}
	}
}

// write sends what the loop released.
func (c *conn) write() {
	for {
		c.mu.Lock()
		for len(c.out) == 0 && !c.closing {
			c.data.Wait()
		}
		out, closing := net.Buffers(c.out), c.closing
		c.out = nil
		c.mu.Unlock()
		if _, err := out.WriteTo(c.net); err != nil || closing {
			_ = c.net.Close() // the client is gone, or everything was sent
			return
		}
	}
}

// take hands over the bytes received; the caller gives back, with keep, the incomplete rest.
func (c *conn) take() (in []byte, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in, c.in = c.in, nil
	c.taken = len(in)
	return in, c.ended
}

func (c *conn) keep(rest []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = append(rest[:len(rest):len(rest)], c.in...)
	c.taken = 0
	c.room.Signal()
}

// queue makes an answer ready for the next send. One that SPDK could not hold is cut off where its buffer ends.
func (c *conn) queue(answer []byte) {
	if len(answer) > maxResponseBytes {
		answer = append(answer[:maxResponseBytes:maxResponseBytes], '\n')
	}
	c.ready = append(c.ready, answer)
}

// flush sends the answers that are ready.
func (c *conn) flush() {
	if len(c.ready) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, c.ready...)
	c.ready = nil
	c.data.Signal()
}

// cut closes the connection at once; answers that were not sent are lost.
func (c *conn) cut() {
	c.mu.Lock()
	c.closing, c.ended, c.out, c.in = true, true, nil, nil
	c.room.Broadcast()
	c.data.Broadcast()
	c.mu.Unlock()
	_ = c.net.Close()
	c.wake()
}

// finish closes the connection after what was flushed is sent.
func (c *conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	c.room.Broadcast()
	c.data.Broadcast()
}

func (c *conn) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}
