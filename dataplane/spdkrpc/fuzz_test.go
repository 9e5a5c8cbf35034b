// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// Whatever a target sends, in whatever pieces, every call ends, and the connection with the target.
func FuzzStream(f *testing.F) {
	for _, seed := range []string{
		"",
		"null", "{}", "[]", "1", `"text"`, "\x00\xff\xfe", "}{", "HTTP/1.1 400 Bad Request\r\n\r\n",
		`{"jsonrpc":"2.0","id":1,"result":"a"}` + "\n" + `{"jsonrpc":"2.0","id":2,"result":"b"}`,
		`{"id":4,"result":"d"}{"id":3,"result":"c"}{"id":2,"result":"b"}{"id":1,"result":"a"}`,
		`{"id":1,"result":null}{"id":2,"error":null}{"id":3}{"id":4,"error":{}}`,
		`{"id":1,"error":{"code":-19,"message":"No such device"}}{"id":1,"result":"again"}`,
		`{"id":99,"result":"a"}{"id":18446744073709551615,"result":"b"}{"id":18446744073709551616,"result":"c"}`,
		`[{"id":1,"result":"a"},{"id":2,"result":"b"}]`,
		`{"id":null,"error":{"code":-32700,"message":"Parse error"}}`,
		`{"id":1e0,"result":"a"}{"id":-0,"result":"a"}{"id":01}`,
		`{"id":1,"id":2,"result":"a","Result":"b"}`,
		`{"id":1,"result":"\ud800"}{"id":2,"result":"` + strings.Repeat("x", 1<<16) + `"}`,
		strings.Repeat("[", 1000), strings.Repeat(`{"id":`, 1000), `{"id":1,"result":`, `{"id":1,"result":"a`,
	} {
		f.Add([]byte(seed), uint16(1))
		f.Add([]byte(seed), uint16(4096))
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece uint16) {
		synctest.Test(t, func(t *testing.T) {
			conn, target := pair(t, 4)
			var pending []*Pending[string]
			for i := range 4 {
				pending = append(pending, Start(t.Context(), conn, named(strconv.Itoa(i))))
				target.next()
			}
			go func() {
				for part := range slices.Chunk(stream, int(piece)+1) {
					if !target.write(string(part)) {
						break
					}
				}
				target.close()
			}()
			for i, p := range pending {
				got, err := p.Wait()
				var refused *Error
				var unanswered *UnansweredError
				switch {
				case err == nil && !strings.Contains(string(stream), strconv.Itoa(i+1)):
					t.Errorf("call %d has the answer %q, and nobody sent one", i, got)
				case err != nil && !errors.As(err, &refused) && (!errors.As(err, &unanswered) || !unanswered.MaybeDone):
					t.Errorf("call %d: %v", i, err)
				}
			}
			<-conn.Lost()
			if len(conn.window) != 0 || len(conn.flying) != 0 {
				t.Errorf("%d places in the window are taken, %d calls left", len(conn.window), len(conn.flying))
			}
		})
	})
}

// Answers come in any order, twice, too late, to nobody, wrong, in pieces, and calls are given up in
// between: each call has its own answer or the right error.
func FuzzAnswers(f *testing.F) {
	for _, seed := range [][]byte{
		{opStart, opStart, opStart, opAnswerNewest, opAnswerOldest, opAnswerNewest},
		{opStart, opStart, opRefuseOldest, opTwice, opAnswerOldest, opStart, opStranger, opAnswerNewest},
		{opStart, opGiveUp, opStart, opAnswerOldest, opAnswerNewest, opStart, opAnswerOldest},
		{opStart, opStart, opGiveUp, opGiveUp, opStart, opHangUp},
		{opStart, opNothing, opStart, opSplit, opAnswerOldest, opStart, opSplit, opRefuseOldest},
		{opStart, opStart, opBatch, opStart, opAnswerOldest},
		{opStart, opGiveUp, opTwice, opAnswerOldest, opTwice, opTwice},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		synctest.Test(t, func(t *testing.T) {
			conn, target := pair(t, 16)
			s := &script{t: t, conn: conn, target: target, requests: make(chan received, 16)}
			go s.receive()
			for _, op := range program[:min(len(program), 500)] {
				s.run(op % opCount)
				synctest.Wait()
			}
			target.close()
			for _, c := range s.calls {
				c.check(t)
			}
			<-conn.Lost()
			if len(conn.window) != 0 || len(conn.flying) != 0 {
				t.Errorf("%d places in the window are taken, %d calls left", len(conn.window), len(conn.flying))
			}
		})
	})
}

// What a script can do.
const (
	opStart byte = iota
	opAnswerOldest
	opAnswerNewest
	opRefuseOldest
	opNothing
	opTwice
	opStranger
	opGiveUp
	opSplit
	opBatch
	opHangUp
	opCount
)

// script is a target that does as told.
type script struct {
	t        *testing.T
	conn     *Conn
	target   *target
	requests chan received
	calls    []*scriptedCall
	// open are the calls that the target has not answered.
	open []*scriptedCall
	// split the next answer into single bytes.
	split bool
	ended bool
}

// scriptedCall and what must become of it.
type scriptedCall struct {
	name    string
	id      uint64
	pending *Pending[string]
	cancel  context.CancelFunc
	// settled: want is what the caller gets, whatever comes later.
	settled bool
	want    error
}

func (s *script) receive() {
	for {
		var r received
		if s.target.in.Decode(&r) != nil {
			return
		}
		s.requests <- r
	}
}

func (s *script) run(op byte) {
	switch op {
	case opStart:
		s.start()
	case opAnswerOldest:
		s.reply(0, nil, `"result":%q`)
	case opAnswerNewest:
		s.reply(len(s.open)-1, nil, `"result":%q`)
	case opRefuseOldest:
		s.reply(0, ErrNotFound, `"error":{"code":-19,"message":%q}`)
	case opNothing:
		s.reply(0, errNull, `"nothing":%q`)
	case opTwice:
		for _, c := range s.calls {
			if !slices.Contains(s.open, c) {
				s.write(fmt.Sprintf(`{"id":%d,"result":"twice"}`, c.id))
				return
			}
		}
	case opStranger:
		s.write(`{"id":123456789,"result":"stranger"}`)
	case opGiveUp:
		for _, c := range s.calls {
			if !c.settled {
				c.cancel()
				wantUnanswered(s.t, c.pending.Err(), context.Canceled, true)
				c.settle(context.Canceled)
				return
			}
		}
	case opSplit:
		s.split = true
	case opBatch:
		s.write(`[{"id":1,"result":"batch"}]`)
		s.end()
	case opHangUp:
		s.target.close()
		s.end()
	}
}

func (s *script) start() {
	if len(s.open) == cap(s.conn.window) {
		return
	}
	c := &scriptedCall{name: "call " + strconv.Itoa(len(s.calls))}
	ctx, cancel := context.WithCancel(s.t.Context())
	c.cancel, c.pending = cancel, Start(ctx, s.conn, named(c.name))
	s.t.Cleanup(cancel)
	s.calls = append(s.calls, c)
	if s.ended {
		c.settle(ErrUnavailable)
		return
	}
	r := <-s.requests
	if c.id = r.ID; r.name() != c.name {
		s.t.Fatalf("%s was sent for %s", r.name(), c.name)
	}
	s.open = append(s.open, c)
}

func (s *script) reply(i int, outcome error, members string) {
	if s.ended || i < 0 || i >= len(s.open) {
		return
	}
	c := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	c.settle(outcome)
	s.write(fmt.Sprintf(`{"id":%d,`+members+`}`, c.id, c.name))
}

func (s *script) write(text string) {
	size := len(text)
	if s.split {
		size, s.split = 1, false
	}
	for part := range slices.Chunk([]byte(text), size) {
		if !s.target.write(string(part)) && !s.ended {
			s.t.Fatal("the connection ended")
		}
	}
}

// end of the connection: what is not settled is lost.
func (s *script) end() {
	s.ended = true
	for _, c := range s.calls {
		c.settle(ErrUnavailable)
	}
	s.open = nil
	synctest.Wait()
}

func (c *scriptedCall) settle(want error) {
	if !c.settled {
		c.settled, c.want = true, want
	}
}

func (c *scriptedCall) check(t *testing.T) {
	c.settle(ErrUnavailable) // the script ended without an answer
	got, err := c.pending.Wait()
	switch {
	case c.want == nil && (err != nil || got != c.name):
		t.Errorf("%s: got %q, %v", c.name, got, err)
	case !errors.Is(err, c.want):
		t.Errorf("%s: got %q, %v; want %v", c.name, got, err, c.want)
	case errors.Is(err, ErrNotFound) && !strings.Contains(err.Error(), c.name+" "):
		t.Errorf("%s has another's error: %v", c.name, err)
	}
}
