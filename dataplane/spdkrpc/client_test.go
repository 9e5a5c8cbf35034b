// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestNew(t *testing.T) {
	for _, c := range []struct {
		path    string
		options Options
		want    string
	}{
		{"", Options{}, "set the path of SPDK's RPC socket"},
		{"/" + strings.Repeat("a", 107), Options{}, "the maximum is 107"},
		{"/s", Options{Window: -1}, "must be 1 or greater"},
		{"/s", Options{RetryEvery: -1}, "must be greater than 0"},
	} {
		if _, err := New(c.path, c.options); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%q, %+v): %v", c.path, c.options, err)
		}
	}
}

// A call finds the connection lost and makes another; calls share one.
func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(t)
		client := d.client(Options{})
		for range 3 {
			for range 2 {
				p := Start(t.Context(), client, named("a"))
				if len(d.accepted) > 0 {
					go (<-d.accepted).serve()
				}
				wantName(t, p, "a")
			}
			conn := client.conn
			conn.close(ErrUnavailable)
			<-conn.Lost()
			_, err := Call(t.Context(), conn, named("a"))
			wantUnanswered(t, err, ErrUnavailable, false)
		}
		if n := d.dials.Load(); n != 3 {
			t.Errorf("%d connections, want 3", n)
		}
	})
}

// While nothing listens calls fail at once, without waiting for it.
func TestNothingListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(t)
		d.refuse.Store(true)
		client := d.client(Options{})
		begin := time.Now()
		_, err := Call(t.Context(), client, named("a"))
		wantUnanswered(t, err, ErrUnavailable, false)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it took %v", waited)
		}
	})
}

// Connect and Lost, in turn, follow a target through its lives.
func TestConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(t)
		d.refuse.Store(true)
		client := d.client(Options{RetryEvery: 10 * time.Millisecond})
		var last *Conn
		for range 3 {
			time.AfterFunc(995*time.Millisecond, func() { d.refuse.Store(false) })
			begin := time.Now()
			conn, err := client.Connect(t.Context())
			if err != nil || conn == last {
				t.Fatalf("got %p after %p, %v", conn, last, err)
			}
			if waited := time.Since(begin); waited != time.Second {
				t.Errorf("connected after %v, want within 10ms of 995ms", waited)
			}
			if again, err := client.Connect(t.Context()); again != conn || err != nil {
				t.Errorf("got another connection, %v", err)
			}
			d.refuse.Store(true)
			(<-d.accepted).close()
			<-conn.Lost()
			last = conn
		}
		ctx, cancel := context.WithTimeout(t.Context(), 42*time.Millisecond)
		defer cancel()
		if _, err := client.Connect(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.AfterFunc(time.Second, client.Close)
		if _, err := client.Connect(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(t)
		client := d.client(Options{})
		sent := Start(t.Context(), client, named("sent"))
		(<-d.accepted).next()
		client.Close()
		client.Close()
		wantUnanswered(t, sent.Err(), ErrClosed, true)
		_, err := Call(t.Context(), client, named("later"))
		wantUnanswered(t, err, ErrClosed, false)
	})
}

// A dial that does not come to an end holds up nobody whose context ends.
func TestDialHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(Options{Window: 1, RetryEvery: time.Second}, func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		long, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		first := make(chan error)
		go func() { _, err := Call(long, client, named("first")); first <- err }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := Call(short, client, named("second"))
		wantUnanswered(t, err, context.DeadlineExceeded, false)
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it took %v", waited)
		}
		wantUnanswered(t, <-first, context.DeadlineExceeded, false)
	})
}

// The same on a real socket, with many callers and a target that comes, goes and comes again.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spdk.sock")
	client, err := New(path, Options{Window: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := Call(t.Context(), client, named("a")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	for life := range 3 {
		var config net.ListenConfig
		listener, err := config.Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan net.Conn, 1)
		go func() {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			served <- socket
			newTarget(t, socket).serve()
		}()
		conn, err := client.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for caller := range 20 {
			callers.Go(func() {
				for i := range 50 {
					name := strconv.Itoa(life*10000 + caller*100 + i)
					wantName(t, Start(t.Context(), client, named(name)), name)
				}
			})
		}
		callers.Wait()
		// What a killed process leaves: the socket's file, that nobody listens on.
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		if err := errors.Join(listener.Close(), (<-served).Close()); err != nil {
			t.Fatal(err)
		}
		<-conn.Lost()
		if _, err := Call(t.Context(), client, named("a")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("nobody listens: %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
