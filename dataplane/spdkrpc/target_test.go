// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// target is the other end of a connection; each test writes what it does.
type target struct {
	t      *testing.T
	socket net.Conn
	in     *json.Decoder
}

// received is a request as it came over the wire.
type received struct {
	Version string          `json:"jsonrpc"`
	Method  string          `json:"method"`
	ID      uint64          `json:"id"`
	Params  json.RawMessage `json:"params"`
}

// name parameter that the tests' requests are told apart by.
func (r received) name() string {
	var p struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(r.Params, &p) != nil {
		return ""
	}
	return p.Name
}

func newTarget(t *testing.T, socket net.Conn) *target {
	return &target{t: t, socket: socket, in: json.NewDecoder(socket)}
}

// pair of a connection and its target. Both ends are closed at the end of the test.
func pair(t *testing.T, window int) (*Conn, *target) {
	t.Helper()
	ours, theirs := net.Pipe()
	c, s := newConn(ours, window), newTarget(t, theirs)
	t.Cleanup(func() {
		c.close(ErrClosed)
		s.close()
	})
	return c, s
}

// next request.
func (s *target) next() received {
	s.t.Helper()
	var r received
	if err := s.in.Decode(&r); err != nil {
		s.t.Fatalf("no request: %v", err)
	}
	return r
}

// write, and say whether the other end took it.
func (s *target) write(text string) bool {
	_, err := io.WriteString(s.socket, text)
	return err == nil
}

// discard what comes, until the connection ends.
func (s *target) discard() {
	var buf [1024]byte
	for {
		if _, err := s.socket.Read(buf[:]); err != nil {
			return
		}
	}
}

// close hangs up.
func (s *target) close() {
	if err := s.socket.Close(); err != nil {
		s.t.Errorf("close: %v", err)
	}
}

func (s *target) send(format string, args ...any) {
	s.t.Helper()
	if !s.write(fmt.Sprintf(format, args...)) {
		s.t.Fatal("the connection ended")
	}
}

// answer with a result.
func (s *target) answer(id uint64, result string) {
	s.t.Helper()
	s.send(`{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", id, result)
}

// serve answers every request with its name, until the connection ends.
func (s *target) serve() {
	for {
		var r received
		if err := s.in.Decode(&r); err != nil {
			return
		}
		if !s.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%q}`+"\n", r.ID, r.name())) {
			return
		}
	}
}

// named is a request that is answered with a text: its name, from serve.
func named(name string) BdevAioCreate { return BdevAioCreate{Name: name, Path: "/dev/" + name} }

func wantName(t *testing.T, p *Pending[string], want string) {
	t.Helper()
	if got, err := p.Wait(); got != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// wantUnanswered checks that a call failed without an answer, and for what reason.
func wantUnanswered(t *testing.T, err error, reason error, maybeDone bool) {
	t.Helper()
	var unanswered *UnansweredError
	if !errors.As(err, &unanswered) || !errors.Is(err, reason) {
		t.Fatalf("got %v, want no answer for %v", err, reason)
	}
	if unanswered.MaybeDone != maybeDone || MaybeDone(err) != maybeDone {
		t.Errorf("%v: maybe done %v, want %v", err, unanswered.MaybeDone, maybeDone)
	}
}

// dialer connects a client with targets of a test.
type dialer struct {
	t *testing.T
	// refuse: no target listens.
	refuse atomic.Bool
	dials  atomic.Int32
	// accepted are the targets' ends.
	accepted chan *target
}

func newDialer(t *testing.T) *dialer { return &dialer{t: t, accepted: make(chan *target, 16)} }

func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	d.dials.Add(1)
	if d.refuse.Load() {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	d.accepted <- newTarget(d.t, theirs)
	return ours, ctx.Err()
}

func (d *dialer) client(options Options) *Client {
	if options.Window == 0 {
		options.Window = DefaultWindow
	}
	if options.RetryEvery == 0 {
		options.RetryEvery = defaultRetryEvery
	}
	c := newClient(options, d.dial)
	d.t.Cleanup(c.Close)
	return c
}
