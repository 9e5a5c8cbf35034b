// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// eachTarget runs a test against the fake, and against a real target where WEFT_SPDK_TARGET names one.
func eachTarget(t *testing.T, test func(t *testing.T, socket, dir string)) {
	t.Helper()
	for _, kind := range []string{"fake", "real"} {
		t.Run(kind, func(t *testing.T) {
			dir := shortTempDir(t)
			socket := filepath.Join(dir, "spdk.sock")
			if kind == "real" {
				StartReal(t, RealTarget(t), socket, "-m", "0x1")
			} else {
				Start(t, Options{Socket: socket, PollInterval: DefaultPollInterval})
			}
			makeRecordedFiles(t, dir)
			test(t, socket, dir)
		})
	}
}

// raw sends bytes on a connection of its own and returns the next value that comes, or what ended the connection.
func raw(t *testing.T, socket string, in []byte) (string, error) {
	t.Helper()
	c := dial(t, socket)
	if _, err := c.conn.Write(in); err != nil {
		return "", err
	}
	var out json.RawMessage
	err := c.dec.Decode(&out)
	return string(out), err
}

func TestRequestsThatAreNone(t *testing.T) {
	const invalid = `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid request"}}`
	cases := map[string]string{
		`[]`:                              invalid,
		`"x"`:                             invalid,
		"12\n":                            invalid,
		`{"id":{},"method":"nope"}`:       invalid,
		`{"id":7,"method":5}`:             invalid,
		`{"id":7}`:                        invalid,
		`{"id":7,"method":"x","extra":1}`: invalid,
		`{"id":9,"jsonrpc":"1.0","method":"keyring_get_keys"}`: invalid,
		`{"id":9,"method":"keyring_get_keys","params":5}`:      strings.Replace(invalid, "null", "9", 1),
		`{"method":"nope"}`: `{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}`,
		`{"id":"s","method":"keyring_get_keys","params":null}`:  `{"jsonrpc":"2.0","id":"s","result":[]}`,
		`{"id":5,"method":"bdev_wait_for_examine","params":{}}`: `{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"message":"bdev_wait_for_examine requires no parameters"}}`,
		`{"id":6,"method":"nvmf_get_subsystems","params":[]}`:   `{"jsonrpc":"2.0","id":6,"error":{"code":-32602,"message":"Invalid parameters"}}`,
		`[{"id":1,"method":"keyring_get_keys"},{"method":"x"}]`: `[{"jsonrpc":"2.0","id":1,"result":[]},{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}]`,
		// Without an id a good call is carried out and not answered: the next one's answer comes.
		`{"method":"keyring_get_keys"}{"id":2,"method":"keyring_get_keys"}`: `{"jsonrpc":"2.0","id":2,"result":[]}`,
	}
	eachTarget(t, func(t *testing.T, socket, _ string) {
		for in, want := range cases {
			if got, err := raw(t, socket, []byte(in)); err != nil || got != want {
				t.Errorf("%s:\nwant %s\n got %s, %v", in, want, got, err)
			}
		}
	})
}

func TestRequestsThatEndTheConnection(t *testing.T) {
	call := func(params string) []byte {
		return []byte(`{"id":1,"method":"rpc_get_methods","params":` + params + `}`)
	}
	eachTarget(t, func(t *testing.T, socket, _ string) {
		for what, in := range map[string][]byte{
			"garbage":            []byte(`{"id":1,"method"}`),
			"garbage after good": append(call(`{}`), `{"id":2,"method"}`...),
			"too many values":    call("[" + strings.Repeat("1,", maxRequestValues) + "1]"),
			"too large":          call(`{"x":"` + strings.Repeat("y", maxRequestBytes) + `"}`),
		} {
			got, err := raw(t, socket, in)
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("%s: want the connection closed without an answer, got %.100s, %v", what, got, err)
			}
		}
	})
}

// TestExamineByName is for targets that do not examine everything by themselves.
func TestExamineByName(t *testing.T) {
	const invalid = `{"jsonrpc":"2.0","id":1,"error":{"code":-22,"message":"Invalid argument"}}`
	for in, want := range map[string]string{
		`{"id":1,"method":"bdev_examine"}`:                             `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"spdk_json_decode_object failed"}}`,
		`{"id":1,"method":"bdev_examine","params":{"name":"missing"}}`: invalid,
	} {
		eachTarget(t, func(t *testing.T, socket, _ string) {
			if got, err := raw(t, socket, []byte(in)); err != nil || got != want {
				t.Errorf("%s:\nwant %s\n got %s, %v", in, want, got, err)
			}
		})
	}
}

func TestRequestInPieces(t *testing.T) {
	eachTarget(t, func(t *testing.T, socket, _ string) {
		c := dial(t, socket)
		for _, b := range encodeCall(t, 1, "keyring_get_keys", nil) {
			if _, err := c.conn.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if a, err := c.receive(); err != nil || string(a.Result) != `[]` {
			t.Errorf("got %s, %v", a.Result, err)
		}
	})
}

func TestConnectionLimit(t *testing.T) {
	eachTarget(t, func(t *testing.T, socket, _ string) {
		var all []*client
		for range maxConnections {
			c := dial(t, socket)
			c.must("keyring_get_keys", nil, nil)
			all = append(all, c)
		}
		extra := dial(t, socket)
		extra.send("keyring_get_keys", nil)
		if err := extra.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := extra.conn.Read(make([]byte, 1)); err == nil {
			t.Fatalf("connection %d was served", maxConnections+1)
		}
		if err := errors.Join(all[0].conn.Close(), extra.conn.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
			t.Fatal(err)
		}
		if _, err := extra.receive(); err != nil {
			t.Errorf("not served after another connection had ended: %v", err)
		}
	})
}

// TestPace: a call alone waits for two looks at the socket, many together share them.
func TestPace(t *testing.T) {
	const calls = 25
	eachTarget(t, func(t *testing.T, socket, _ string) {
		c := dial(t, socket)
		began := time.Now()
		for range calls {
			c.must("keyring_get_keys", nil, nil)
		}
		alone := time.Since(began)
		// The first one may come just before a look.
		if least := (calls - 1) * DefaultPollInterval; alone < least {
			t.Errorf("%d calls, one at a time, took %v, less than %v", calls, alone, least)
		}
		steps := make([]step, 1000)
		for i := range steps {
			steps[i] = step{Method: "keyring_get_keys"}
		}
		began = time.Now()
		c.together(newComparison(""), steps)
		if together := time.Since(began); together/1000 > alone/calls/10 {
			t.Errorf("%d calls together took %v, %d alone %v: not a tenth each", len(steps), together, calls, alone)
		}
	})
}

// TestLaterAnswers: a volume's creation is answered after a call that came later and needs no disk.
func TestLaterAnswers(t *testing.T) {
	eachTarget(t, func(t *testing.T, socket, dir string) {
		c := dial(t, socket)
		makeStore(c, dir)
		var both bytes.Buffer
		both.Write(encodeCall(t, 101, "bdev_lvol_create", lvolParams("v")))
		both.Write(encodeCall(t, 102, "keyring_get_keys", nil))
		if _, err := c.conn.Write(both.Bytes()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"102", "101"} {
			if a, err := c.receive(); err != nil || string(a.ID) != want {
				t.Errorf("want the answer of %s, got %+v, %v", want, a, err)
			}
		}
	})
}

// TestOperationLimit: of 1,000 creations at once an lvstore takes 512.
func TestOperationLimit(t *testing.T) {
	eachTarget(t, func(t *testing.T, socket, dir string) {
		c := dial(t, socket)
		makeStore(c, dir)
		steps := make([]step, 1000)
		for i := range steps {
			params, err := json.Marshal(lvolParams("v" + string(rune('0'+i/100)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))))
			if err != nil {
				t.Fatal(err)
			}
			steps[i] = step{Method: "bdev_lvol_create", Params: params}
		}
		made := 0
		for i, a := range c.together(newComparison(""), steps) {
			switch {
			case a.Error == nil:
				made++
			case *a.Error != rpcError{codeInvalidParams, "Cannot allocate memory"}:
				t.Fatalf("creation %d: %v", i, *a.Error)
			}
		}
		if made != maxStoreOps {
			t.Errorf("%d volumes were made, want %d", made, maxStoreOps)
		}
		var listed []any
		c.must("bdev_lvol_get_lvols", nil, &listed)
		if len(listed) != made {
			t.Errorf("%d volumes are listed, want %d", len(listed), made)
		}
	})
}

// makeStore makes the lvstore pool0 on disk0.
func makeStore(c *client, dir string) {
	c.t.Helper()
	attachDisk(c, dir)
	c.must("bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk0", "lvs_name": "pool0", "cluster_sz": 1 << 20}, nil)
}

func attachDisk(c *client, dir string) {
	c.t.Helper()
	c.must("bdev_aio_create", map[string]any{
		"name": "disk0", "filename": filepath.Join(dir, "disk0.bin"), "block_size": 4096,
	}, nil)
}

func lvolParams(name string) map[string]any {
	return map[string]any{"lvs_name": "pool0", "lvol_name": name, "size_in_mib": 8, "thin_provision": true}
}
