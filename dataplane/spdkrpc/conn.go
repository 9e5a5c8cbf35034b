// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxParamsBytes leaves room for the rest in the 256 KiB that SPDK takes as one request.
	maxParamsBytes = 255 << 10
	// maxAnswerBytes is above the 32 MiB that SPDK sends at most in one answer.
	maxAnswerBytes = 33 << 20
	// writeBytes are written at once, so that a call behind them can still be taken back.
	writeBytes = 64 << 10
	// drainTime is how long answers are still read once nothing can be written any more.
	drainTime = time.Second
)

// Conn is one connection. When it is lost its calls fail, and so do all later ones: what
// must not be spread over two lives of a target is called on a Conn.
type Conn struct {
	socket net.Conn
	// window holds a token for each call in flight, and lvolWindow another one for each that an lvstore carries out.
	window, lvolWindow chan struct{}
	// wake the writer; holds one token at most.
	wake chan struct{}
	lost chan struct{}

	mu sync.Mutex
	// flying are the calls without an answer, by id.
	flying map[uint64]*call
	// queue of the calls that are not yet written, in order.
	queue  []*call
	lastID uint64
	// touched by calls since Touched was called.
	touched Touched
	// err is why no more calls are taken.
	err error
}

// call is one request on its way.
type call struct {
	id     uint64
	method string
	params []byte
	// onLvstore: it has a place in Conn.lvolWindow too.
	onLvstore bool
	touches   Touched
	// written: the writer has taken it; from then on it may be carried out. Guarded by Conn.mu.
	written bool
	// done is closed once answer is set, and ended with it.
	done   chan struct{}
	answer answer
	ended  time.Time
}

// answer of a call: one of the three.
type answer struct {
	result  json.RawMessage
	refusal *refusal
	// err is why there is no answer, and maybeDone whether the call may have been carried out.
	err       error
	maybeDone bool
}

type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func newConn(socket net.Conn, window int) *Conn {
	c := &Conn{
		socket:     socket,
		window:     make(chan struct{}, window),
		lvolWindow: make(chan struct{}, LvolWindow),
		wake:       make(chan struct{}, 1),
		lost:       make(chan struct{}),
		flying:     map[uint64]*call{},
		touched:    Touched{Everything: true},
	}
	go c.write()
	go c.read()
	return c
}

// Lost is closed when the connection is lost: at once when the target dies, and before calls fail for it.
func (c *Conn) Lost() <-chan struct{} { return c.lost }

// connection makes a Conn a Caller.
func (c *Conn) connection(context.Context) (*Conn, error) { return c, nil }

// usable says whether the connection still takes calls.
func (c *Conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// start queues a call once the window has room for it.
func (c *Conn) start(ctx context.Context, req request, params []byte) (*call, error) {
	call := &call{
		method: req.method(), params: params, onLvstore: strings.HasPrefix(req.method(), "bdev_lvol_"), touches: touchedBy(req), done: make(chan struct{}),
	}
	if call.onLvstore {
		if err := c.enter(ctx, c.lvolWindow); err != nil {
			return nil, err
		}
	}
	if err := c.enter(ctx, c.window); err != nil {
		if call.onLvstore {
			<-c.lvolWindow
		}
		return nil, err
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		c.leave(call)
		return nil, c.err
	}
	c.lastID++
	call.id = c.lastID
	c.flying[call.id] = call
	c.touched.add(call.touches)
	c.queue = append(c.queue, call)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return call, nil
}

// enter a window once it has room.
func (c *Conn) enter(ctx context.Context, window chan struct{}) error {
	select {
	case window <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.lost:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err
	}
}

// leave the windows that a call was in.
func (c *Conn) leave(call *call) {
	<-c.window
	if call.onLvstore {
		<-c.lvolWindow
	}
}

// abandon a call that nobody waits for any more. Unless it was answered
// already it fails with err. One that was written keeps its place in the
// window until SPDK answers, because SPDK is busy with it until then.
func (c *Conn) abandon(call *call, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-call.done:
		return
	default:
	}
	call.finish(answer{err: err, maybeDone: call.written})
	if !call.written {
		c.forget(call)
	}
}

// finish a call. The caller holds Conn.mu.
func (call *call) finish(a answer) {
	select {
	case <-call.done:
		// Abandoned: the late answer is dropped.
	default:
		call.answer, call.ended = a, time.Now()
		close(call.done)
	}
}

// forget a call and give its place in the window to another. The caller holds mu.
func (c *Conn) forget(call *call) {
	delete(c.flying, call.id)
	c.leave(call)
}

// take the next calls to be written, as one run of bytes, with the end of each.
func (c *Conn) take() (calls []*call, ends []int, out []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.queue {
		if len(out) >= writeBytes {
			break
		}
		n++
		if c.flying[call.id] == nil {
			continue // abandoned in the queue
		}
		out = appendRequest(out, call)
		call.written, call.params = true, nil
		calls, ends = append(calls, call), append(ends, len(out))
	}
	clear(c.queue[:n])
	c.queue = c.queue[n:]
	return calls, ends, out
}

// appendRequest as SPDK reads it. Parameters that hold nothing are left out: SPDK refuses even empty ones where it
// expects none.
func appendRequest(out []byte, call *call) []byte {
	out = append(out, `{"jsonrpc":"2.0","method":"`...)
	out = append(out, call.method...)
	out = append(out, `","id":`...)
	out = strconv.AppendUint(out, call.id, 10)
	if !bytes.Equal(call.params, []byte("{}")) {
		out = append(out, `,"params":`...)
		out = append(out, call.params...)
	}
	return append(out, "}\n"...)
}

// write what is queued, until the connection is lost.
func (c *Conn) write() {
	for {
		calls, ends, out := c.take()
		if len(calls) == 0 {
			select {
			case <-c.wake:
				continue
			case <-c.lost:
				return
			}
		}
		n, err := c.socket.Write(out)
		if err != nil {
			c.stopWriting(calls, ends, n, err)
			return
		}
	}
}

// stopWriting after an error: calls of which nothing was written, and those in the
// queue, fail as not sent. What SPDK answered before it went is still read.
func (c *Conn) stopWriting(calls []*call, ends []int, n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	start := 0
	for i, call := range calls {
		if start >= n && c.flying[call.id] != nil {
			call.finish(answer{err: c.err})
			c.forget(call)
		}
		start = ends[i]
	}
	for _, call := range c.queue {
		if c.flying[call.id] != nil {
			call.finish(answer{err: c.err})
			c.forget(call)
		}
	}
	c.queue = nil
	if err := c.socket.SetReadDeadline(time.Now().Add(drainTime)); err != nil {
		_ = c.socket.Close() // then reading ends now
	}
}

// read answers until the connection is lost.
func (c *Conn) read() {
	in := &limitedReader{r: c.socket, left: maxAnswerBytes}
	decoder := json.NewDecoder(in)
	for {
		var m message
		if err := decoder.Decode(&m); err != nil {
			c.close(fmt.Errorf("%w: %w", ErrUnavailable, describe(err)))
			return
		}
		in.left = maxAnswerBytes
		id, err := m.id()
		if err != nil {
			c.close(fmt.Errorf("%w: %w", ErrUnavailable, err))
			return
		}
		c.deliver(id, m)
	}
}

// deliver an answer to its call. One to an unknown id is dropped: ids are never used twice.
func (c *Conn) deliver(id uint64, m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.flying[id]
	if call == nil || !call.written {
		return
	}
	call.finish(answer{result: m.Result, refusal: m.Error})
	c.forget(call)
}

// close the connection for a reason. The first reason holds.
func (c *Conn) close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.lost:
		return
	default:
	}
	if c.err == nil {
		c.err = reason
	}
	close(c.lost)
	for _, call := range c.flying {
		call.finish(answer{err: c.err, maybeDone: call.written})
		c.forget(call)
	}
	c.queue = nil
	_ = c.socket.Close() // nothing is left to be done with it
}

// message is anything that SPDK sends.
type message struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *refusal        `json:"error"`
}

// id of the call that a message answers. Without one it answers none of ours,
// and what follows cannot be trusted: SPDK sends such an error when it could not parse a request, and hangs up.
func (m message) id() (uint64, error) {
	id, err := strconv.ParseUint(string(m.ID), 10, 64)
	switch {
	case err == nil:
		return id, nil
	case m.Error != nil:
		return 0, fmt.Errorf("it could not read a request: %s (code %d)", m.Error.Message, m.Error.Code)
	}
	return 0, errors.New("it sent something that is not an answer")
}

// describe why reading ended.
func describe(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it closed the connection")
	case errors.Is(err, errTooLong):
		return err
	}
	var netErr net.Error
	if errors.As(err, &netErr) {
		return err
	}
	// Not err itself: it may quote what was received.
	return errors.New("it sent something that is not an answer")
}

var errTooLong = fmt.Errorf("an answer of more than %d MiB", maxAnswerBytes>>20)

// limitedReader fails once left bytes were read, so that an answer without end does not fill the memory.
type limitedReader struct {
	r    io.Reader
	left int
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLong
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}
