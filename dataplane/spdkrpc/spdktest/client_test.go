// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

func makeDisk(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// shortTempDir keeps Unix sockets within 107 bytes, which the paths of t.TempDir may not.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A client is as little as it takes to call a target.
type client struct {
	t    *testing.T
	conn net.Conn
	dec  *json.Decoder
	id   int
}

type answer struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *rpcError       `json:"error"`
}

func dial(t *testing.T, socket string) *client {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, conn: conn, dec: json.NewDecoder(conn)}
}

func (c *client) send(method string, params any) int {
	c.t.Helper()
	c.id++
	body := encodeCall(c.t, c.id, method, params)
	if _, err := c.conn.Write(body); err != nil {
		c.t.Fatalf("send %s: %v", method, err)
	}
	return c.id
}

// together sends calls in one write, and returns their answers in the order of the calls.
func (c *client) together(paths *comparison, steps []step) []answer {
	c.t.Helper()
	var all bytes.Buffer
	first := c.id + 1
	for _, s := range steps {
		c.id++
		all.Write(encodeCall(c.t, c.id, s.Method, json.RawMessage(paths.paths(s.Params))))
	}
	if _, err := c.conn.Write(all.Bytes()); err != nil {
		c.t.Fatal(err)
	}
	answers := make([]answer, len(steps))
	for range steps {
		a, err := c.receive()
		if err != nil {
			c.t.Fatalf("answer of %v: %v", steps, err)
		}
		var id int
		if err := json.Unmarshal(a.ID, &id); err != nil {
			c.t.Fatal(err)
		}
		answers[id-first] = a
	}
	return answers
}

func encodeCall(t *testing.T, id int, method string, params any) []byte {
	t.Helper()
	call := map[string]any{"jsonrpc": "2.0", "id": id, "method": method}
	if raw, ok := params.(json.RawMessage); params != nil && (!ok || len(raw) > 0 && string(raw) != "null") {
		call["params"] = params
	}
	body, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func (c *client) receive() (answer, error) {
	var a answer
	err := c.dec.Decode(&a)
	return a, err
}

func (c *client) call(method string, params any) answer {
	c.t.Helper()
	c.send(method, params)
	a, err := c.receive()
	if err != nil {
		c.t.Fatalf("answer of %s: %v", method, err)
	}
	return a
}

// must calls and wants no error; into, if given, takes the result.
func (c *client) must(method string, params, into any) {
	c.t.Helper()
	a := c.call(method, params)
	if a.Error != nil {
		c.t.Fatalf("%s %v: %v", method, params, *a.Error)
	}
	if into != nil {
		if err := json.Unmarshal(a.Result, into); err != nil {
			c.t.Fatalf("%s %v: %s: %v", method, params, a.Result, err)
		}
	}
}

// fails calls and wants this error.
func (c *client) fails(method string, params any, code int, message string) {
	c.t.Helper()
	a := c.call(method, params)
	if a.Error == nil || a.Error.Code != code || a.Error.Message != message {
		c.t.Errorf("%s %v: want %d %q, got %+v %s", method, params, code, message, a.Error, a.Result)
	}
}
