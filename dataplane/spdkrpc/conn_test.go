// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// All of these run in a bubble of testing/synctest: time passes only when every goroutine
// waits, a call that hangs is a deadlock that fails the test, and so is a goroutine left behind.

func TestWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		for _, c := range []struct {
			start func() interface{ Err() error }
			want  string
		}{
			{func() interface{ Err() error } { return Start(t.Context(), conn, SpdkGetVersion{}) },
				`{"jsonrpc":"2.0","method":"spdk_get_version","id":1}`},
			{func() interface{ Err() error } { return Start(t.Context(), conn, BdevLvolGetLvols{}) },
				`{"jsonrpc":"2.0","method":"bdev_lvol_get_lvols","id":2}`},
			{func() interface{ Err() error } {
				return Start(t.Context(), conn, BdevSetQosLimit{Name: "a\"b", RWIOPS: new(uint64(0))})
			}, `{"jsonrpc":"2.0","method":"bdev_set_qos_limit","id":3,"params":{"name":"a\"b","rw_ios_per_sec":0}}`},
			{func() interface{ Err() error } {
				return Start(t.Context(), conn, NvmfSubsystemAddNs{NQN: "nqn", Namespace: Namespace{NSID: 7, Bdev: "b"}})
			}, `{"jsonrpc":"2.0","method":"nvmf_subsystem_add_ns","id":4,"params":{"nqn":"nqn","namespace":{"nsid":7,"bdev_name":"b"}}}`},
		} {
			c.start()
			line := make([]byte, len(c.want)+1)
			if _, err := io.ReadFull(target.socket, line); err != nil || string(line) != c.want+"\n" {
				t.Errorf("sent %q, %v; want %s", line, err, c.want)
			}
		}
	})
}

func TestResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		version := Start(t.Context(), conn, SpdkGetVersion{})
		target.answer(target.next().ID, `{"version":"SPDK v26.05","fields":{"major":26,"minor":5}}`)
		if got, err := version.Wait(); err != nil || got.Text != "SPDK v26.05" || got.Fields.Minor != 5 {
			t.Errorf("got %+v, %v", got, err)
		}
		nsid := Start(t.Context(), conn, NvmfSubsystemAddNs{})
		target.answer(target.next().ID, "7")
		for range 2 { // Wait may be called again
			if got, err := nsid.Wait(); err != nil || got != 7 {
				t.Errorf("got %d, %v", got, err)
			}
		}
		refused := Start(t.Context(), conn, BdevLvolDelete{Name: "a"})
		target.send(`{"jsonrpc":"2.0","id":%d,"error":{"code":-19,"message":"No such device"}}`, target.next().ID)
		var e *Error
		if err := refused.Err(); !errors.As(err, &e) || *e != (Error{"bdev_lvol_delete", -19, "No such device"}) || !errors.Is(err, ErrNotFound) || MaybeDone(err) {
			t.Errorf("got %v", err)
		}
	})
}

// An answer that is not what its call expects says nothing of whether it was
// carried out, and the connection goes on.
func TestAnswersOfAnotherForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		for _, members := range []string{
			`"result":null`, `"result":false`, `"result":"yes"`, `"result":{}`, `"result":1e400`, `"nothing":0`, `"error":null`,
		} {
			p := Start(t.Context(), conn, BdevLvolDelete{Name: "a"})
			target.send(`{"id":%d,%s}`, target.next().ID, members)
			var unanswered *UnansweredError
			if err := p.Err(); !errors.As(err, &unanswered) || !unanswered.MaybeDone {
				t.Errorf("%s: got %v", members, err)
			}
		}
		lists := Start(t.Context(), conn, BdevLvolGetLvols{})
		target.answer(target.next().ID, "null")
		if got, err := lists.Wait(); err == nil {
			t.Errorf("null passes for the list %v", got)
		}
	})
}

func TestOutOfOrderAndSplitAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		a, b, c := Start(t.Context(), conn, named("a")), Start(t.Context(), conn, named("b")), Start(t.Context(), conn, named("c"))
		ids := []uint64{target.next().ID, target.next().ID, target.next().ID}
		whole := fmt.Sprintf("\n{\"id\":%d,\"result\":\"c\"} \n\n {\n\"result\": \"a\",\n\"id\":%d}{\"id\":999,\"result\":\"lost\"}{\"id\":%d,\"result\":\"b\"}", ids[2], ids[0], ids[1])
		for i := range len(whole) {
			target.send("%s", whole[i:i+1])
		}
		wantName(t, a, "a")
		wantName(t, b, "b")
		wantName(t, c, "c")
	})
}

// Calls reach the wire in the order they were started, and never more than the window holds.
func TestOrderAndWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window, calls = 16, 1000
		conn, target := pair(t, window)
		reqs := make([]BdevAioCreate, calls)
		for i := range reqs {
			reqs[i] = named(strconv.Itoa(i))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			results, errs := Each(t.Context(), conn, reqs)
			for i := range reqs {
				if results[i] != reqs[i].Name || errs[i] != nil {
					t.Errorf("call %d: %q, %v", i, results[i], errs[i])
				}
			}
		}()
		for i := 0; i < calls; {
			var got []received
			for len(got) < window && i < calls {
				got = append(got, target.next())
				if got[len(got)-1].name() != strconv.Itoa(i) {
					t.Fatalf("call %d on the wire is %s", i, got[len(got)-1].name())
				}
				i++
			}
			synctest.Wait()
			if n := len(conn.window); n > window || len(conn.flying) != n {
				t.Fatalf("%d calls in flight", n)
			}
			slices.Reverse(got)
			for _, r := range got {
				target.answer(r.ID, strconv.Quote(r.name()))
			}
		}
		<-done
	})
}

// Calls about lvols fill only their own part of the window: others go on.
func TestLvolWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, LvolWindow+2)
		var ids []uint64
		for range LvolWindow {
			Start(t.Context(), conn, BdevLvolDelete{Name: "pool/a"})
			ids = append(ids, target.next().ID)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := Call(ctx, conn, BdevLvolDelete{Name: "pool/b"})
		wantUnanswered(t, err, context.DeadlineExceeded, false)
		other := Start(t.Context(), conn, named("other"))
		target.answer(target.next().ID, `"other"`)
		wantName(t, other, "other")
		target.answer(ids[0], "true")
		last := Start(t.Context(), conn, BdevLvolDelete{Name: "pool/c"})
		target.answer(target.next().ID, "true")
		if err := last.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A call that waits for the window ends with its context, and was never sent.
func TestWindowFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 1)
		first := Start(t.Context(), conn, named("first"))
		id := target.next().ID
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := Call(ctx, conn, named("second"))
		wantUnanswered(t, err, context.DeadlineExceeded, false)
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it took %v", waited)
		}
		target.answer(id, `"first"`)
		wantName(t, first, "first")
		third := Start(t.Context(), conn, named("third"))
		if r := target.next(); r.name() != "third" {
			t.Errorf("%s was sent", r.name())
		} else {
			target.answer(r.ID, `"third"`)
		}
		wantName(t, third, "third")
	})
}

// A call whose context has ended is not even started.
func TestContextEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, _ := pair(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Call(ctx, conn, named("a"))
		wantUnanswered(t, err, context.Canceled, false)
	})
}

// A call whose context ends in flight returns at once. Its late answer is
// dropped, and only then its place in the window is free: SPDK was busy with it until then.
func TestContextEndsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		late := Start(ctx, conn, named("late"))
		id := target.next().ID
		wantUnanswered(t, late.Err(), context.DeadlineExceeded, true)
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it took %v", waited)
		}
		next := make(chan *Pending[string])
		go func() { next <- Start(t.Context(), conn, named("next")) }()
		synctest.Wait()
		select {
		case <-next:
			t.Error("the window has room while SPDK is busy with the first call")
		default:
		}
		target.answer(id, `"late"`)
		p := <-next
		r := target.next()
		target.answer(r.ID, `"next"`)
		wantName(t, p, "next")
		wantUnanswered(t, late.Err(), context.DeadlineExceeded, true)
	})
}

// A call whose context ends in the queue, before the writer took it, is never sent, and says so.
func TestContextEndsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		first := Start(t.Context(), conn, named("first"))
		synctest.Wait() // the writer holds the first call, and nobody reads it
		ctx, cancel := context.WithCancel(t.Context())
		second, third := Start(ctx, conn, named("second")), Start(t.Context(), conn, named("third"))
		cancel()
		wantUnanswered(t, second.Err(), context.Canceled, false)
		if n := len(conn.window); n != 2 {
			t.Errorf("%d calls in flight", n)
		}
		go target.serve()
		wantName(t, first, "first")
		wantName(t, third, "third")
	})
}

func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 3)
		answered := Start(t.Context(), conn, named("answered"))
		target.answer(target.next().ID, `"answered"`)
		sent := Start(t.Context(), conn, named("sent"))
		target.next()
		written := Start(t.Context(), conn, named("written"))
		synctest.Wait() // the writer holds it, and nobody reads it
		queued := Start(t.Context(), conn, named("queued"))
		waiting := make(chan error)
		go func() { _, err := Call(t.Context(), conn, named("waiting")); waiting <- err }()
		synctest.Wait()
		target.close()
		<-conn.Lost()
		wantName(t, answered, "answered")
		wantUnanswered(t, sent.Err(), ErrUnavailable, true)
		if err := written.Err(); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		wantUnanswered(t, queued.Err(), ErrUnavailable, false)
		wantUnanswered(t, <-waiting, ErrUnavailable, false)
		_, err := Call(t.Context(), conn, named("later"))
		wantUnanswered(t, err, ErrUnavailable, false)
		if n := len(conn.window); n != 0 {
			t.Errorf("%d places in the window are taken", n)
		}
	})
}

// breaking is a connection whose next write fails after some bytes, once there is an error to give.
type breaking struct {
	net.Conn
	err  chan error
	pass int
}

func (b *breaking) Write(p []byte) (int, error) {
	select {
	case err := <-b.err:
		n, _ := b.Conn.Write(p[:b.pass])
		return n, err
	default:
		return b.Conn.Write(p)
	}
}

// When writing fails, calls of which no byte was written were not sent; one
// that was begun may be carried out; what SPDK answers before it goes still counts.
func TestWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		socket := &breaking{Conn: ours, err: make(chan error, 1), pass: 10}
		conn, target := newConn(socket, 8), newTarget(t, theirs)
		before := Start(t.Context(), conn, named("before"))
		synctest.Wait() // the writer holds it; the others wait for one write
		begun, never := Start(t.Context(), conn, named("begun")), Start(t.Context(), conn, named("never"))
		broken := errors.New("broken pipe")
		socket.err <- broken
		r := target.next()
		go target.discard()

		wantUnanswered(t, never.Err(), broken, false)
		_, err := Call(t.Context(), conn, named("later"))
		wantUnanswered(t, err, broken, false)
		target.answer(r.ID, `"before"`)
		wantName(t, before, "before")
		begin := time.Now()
		wantUnanswered(t, begun.Err(), broken, true)
		if waited := time.Since(begin); waited > drainTime {
			t.Errorf("it took %v", waited)
		}
		<-conn.Lost()
	})
}

// What cannot be an answer ends the connection: nothing after it can be trusted.
func TestNotAnAnswer(t *testing.T) {
	for name, text := range map[string]string{
		"garbage":        "HTTP/1.1 400 Bad Request\r\n",
		"batch":          `[{"id":1,"result":"a"}]`,
		"null":           "null",
		"number":         "1",
		"no id":          `{"result":"a"}`,
		"null id":        `{"id":null,"result":"a"}`,
		"text id":        `{"id":"1","result":"a"}`,
		"negative id":    `{"id":-1,"result":"a"}`,
		"error text":     `{"id":1,"error":"no"}`,
		"large code":     `{"id":1,"error":{"code":1e30}}`,
		"half an answer": `{"id":1,"result":`,
		"deep":           strings.Repeat("[", 20000),
		"control":        "{\"id\":1,\"result\":\"\x00\"}",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, target := pair(t, 8)
				p := Start(t.Context(), conn, named("a"))
				target.next()
				go func() {
					target.write(text)
					target.close()
				}()
				wantUnanswered(t, p.Err(), ErrUnavailable, true)
				<-conn.Lost()
			})
		})
	}
}

// SPDK answers what it cannot read with an error to nobody, and hangs up: its words are the reason.
func TestUnreadableRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		p := Start(t.Context(), conn, named("a"))
		target.next()
		target.send(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`)
		err := p.Err()
		wantUnanswered(t, err, ErrUnavailable, true)
		if !strings.Contains(err.Error(), "Parse error") {
			t.Error(err)
		}
	})
}

// SPDK answers with up to 32 MiB. What does not end there does not fill the memory.
func TestHugeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		huge := strings.Repeat("x", 32<<20-100)
		p := Start(t.Context(), conn, named("a"))
		target.answer(target.next().ID, strconv.Quote(huge))
		wantName(t, p, huge)
		p = Start(t.Context(), conn, named("a"))
		id := target.next().ID
		go func() {
			target.write(fmt.Sprintf(`{"id":%d,"result":"`, id))
			for target.write(huge) {
				continue
			}
		}()
		wantUnanswered(t, p.Err(), errTooLong, true)
	})
}

// A request that SPDK would hang up on is not sent, and leaves the connection alone.
func TestHugeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 8)
		_, err := Call(t.Context(), conn, BdevLvolRename{NewName: strings.Repeat("a", 720<<10)})
		wantUnanswered(t, err, ErrInvalid, false)
		p := Start(t.Context(), conn, named(strings.Repeat("a", 120<<10)))
		if r := target.next(); len(r.Params) > maxParamsBytes {
			t.Error("too large")
		} else {
			target.answer(r.ID, `"a"`)
		}
		wantName(t, p, "a")
	})
}

// No error names a parameter, whatever the call and however it failed.
func TestErrorsHideParameters(t *testing.T) {
	const secret = "DHHC-1:00:hush"
	for _, r := range requests {
		synctest.Test(t, func(t *testing.T) {
			filled := reflect.New(reflect.TypeOf(r)).Elem()
			fill(filled, secret)
			req := filled.Interface().(request)
			conn, target := pair(t, 8)
			ctx, cancel := context.WithCancel(t.Context())
			for _, fail := range []func(id uint64){
				func(uint64) { cancel() },
				func(id uint64) { target.send(`{"id":%d,"error":{"code":-22,"message":"Invalid argument"}}`, id) },
				func(id uint64) { target.send(`{"id":%d,"result":["%s"]}`, id, secret) },
				func(id uint64) { target.send(`{"id":%d,"result":%s}`, id, secret) },
			} {
				p := &Pending[Done]{ctx: ctx, method: req.method()}
				p.conn, p.call, p.err = start(t.Context(), conn, req)
				fail(target.next().ID)
				err := p.Err()
				for e := err; e != nil; e = errors.Unwrap(e) {
					if text := fmt.Sprintf("%v %+v %#v", e, e, e); strings.Contains(text, "hush") {
						t.Errorf("%s: %s", req.method(), text)
					}
				}
				if err == nil {
					t.Errorf("%s: no error", req.method())
				}
				p.ctx, ctx = t.Context(), t.Context()
			}
		})
	}
}

// fill every field: texts with a text, numbers with 1.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), text)
			}
		}
	}
}
