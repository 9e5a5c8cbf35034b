// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Limits of SPDK's RPC server (lib/jsonrpc/jsonrpc_internal.h of 26.05).
const (
	maxConnections   = 64
	maxRequestBytes  = 256 << 10
	maxResponseBytes = 32 << 20
	maxRequestValues = 8192
)

// A request is one call, from its arrival to its answer.
type request struct {
	app    *app
	conn   *conn
	batch  *batch
	id     json.RawMessage
	method string
	params json.RawMessage // nil when there are none, or they are null
	misfit error           // why the parameters do not fit
	fault  *Fault
}

// A batch collects the answers to a JSON array of calls, which are sent as one array.
type batch struct {
	conn    *conn
	open    int
	answers [][]byte
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// decode reads the parameters strictly: an unknown one is an error.
func (r *request) decode(fields ...field) bool { return r.decodeAs(true, fields) }

// decodeRelaxed passes over parameters it does not know, as SPDK does for a few methods.
func (r *request) decodeRelaxed(fields ...field) bool { return r.decodeAs(false, fields) }

func (r *request) decodeAs(strict bool, fields []field) bool {
	err := decodeObject(r.params, strict, fields...)
	if err != nil {
		r.misfit = err
	}
	return err == nil
}

// answer ends the request well. Without an id there is nobody to tell.
func (r *request) answer(result any) {
	if f := r.fault; f != nil && f.Error != nil && f.When == After {
		r.fail(f.Error.Code, f.Error.Message)
		return
	}
	if len(r.id) == 0 || string(r.id) == "null" {
		r.send(nil)
		return
	}
	body, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", r.id, result})
	if err != nil {
		panic(fmt.Sprintf("spdktest: answer of %s: %v", r.method, err)) // a bug of this package, in a test
	}
	r.send(body)
}

// failf answers with an error; fail with one whose message is not a format.
func (r *request) failf(code int, format string, args ...any) {
	r.fail(code, fmt.Sprintf(format, args...))
}

func (r *request) fail(code int, message string) {
	id := r.id
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	body, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   rpcError        `json:"error"`
	}{"2.0", id, rpcError{code, message}})
	if err != nil {
		panic(fmt.Sprintf("spdktest: error of %s: %v", r.method, err))
	}
	r.send(body)
}

// errno answers with an errno as the code, as spdk_jsonrpc_send_error_response(request, rc, spdk_strerror(-rc)) does.
func (r *request) errno(e syscall.Errno) { r.fail(-int(e), strerror(e)) }

// errnoAs answers with an errno's text under a code of JSON-RPC, which is how most of SPDK's callbacks do it.
func (r *request) errnoAs(code int, e syscall.Errno) { r.fail(code, strerror(e)) }

func (r *request) invalid() { r.fail(codeInvalidParams, msgInvalidParams) }

func (r *request) send(body []byte) {
	deliver := func() {
		if f := r.fault; f != nil && f.When == After {
			switch f.Do {
			case DropConnection:
				r.conn.cut()
				return
			case Die, DieClean:
				r.app.die(f.Do == DieClean)
				return
			case Continue:
			}
		}
		r.deliver(body)
	}
	if f := r.fault; f != nil && f.When == After && f.Delay > 0 {
		r.app.after(f.Delay, deliver)
		return
	}
	deliver()
}

func (r *request) deliver(body []byte) {
	r.conn.outstanding--
	if b := r.batch; b != nil {
		if body != nil {
			b.answers = append(b.answers, body)
		}
		b.open--
		b.finish()
		return
	}
	if body != nil {
		r.conn.queue(append(body, '\n'))
	}
}

func (b *batch) finish() {
	if b.open > 0 || len(b.answers) == 0 {
		return
	}
	var all bytes.Buffer
	all.WriteByte('[')
	all.Write(bytes.Join(b.answers, []byte(",")))
	all.WriteString("]\n")
	b.conn.queue(all.Bytes())
}

// errGarbage is input after which a stream of JSON cannot be followed any more; the connection is closed.
var errGarbage = errors.New("not JSON")

// nextValue cuts the first whole JSON value off buf; n is 0 while it is incomplete.
func nextValue(buf []byte) (value json.RawMessage, n int, err error) {
	dec := json.NewDecoder(bytes.NewReader(buf))
	switch err := dec.Decode(&value); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("%w: %w", errGarbage, err)
	}
	n = int(dec.InputOffset())
	// A number at the top may go on in what has not come yet.
	if n == len(buf) && value[0] != '{' && value[0] != '[' && value[0] != '"' {
		return nil, 0, nil
	}
	if len(value) > maxRequestValues && countValues(value) > maxRequestValues {
		return nil, 0, fmt.Errorf("%w: more than %d values", errGarbage, maxRequestValues)
	}
	return value, n, nil
}

// countValues counts as SPDK's parser does: names, values, and both ends of objects and lists.
func countValues(value json.RawMessage) int {
	dec := json.NewDecoder(bytes.NewReader(value))
	n := 0
	for {
		if _, err := dec.Token(); err != nil {
			return n
		}
		n++
	}
}

// receive carries out one JSON value that came in on c.
func (a *app) receive(c *conn, value json.RawMessage) {
	if value[0] != '[' {
		a.receiveOne(c, nil, value)
		return
	}
	var calls []json.RawMessage
	if err := json.Unmarshal(value, &calls); err != nil || len(calls) == 0 {
		c.outstanding++
		(&request{app: a, conn: c}).fail(codeInvalidRequest, "Invalid request")
		return
	}
	b := &batch{conn: c, open: len(calls) + 1}
	for _, call := range calls {
		a.receiveOne(c, b, call)
	}
	b.open--
	b.finish()
}

func (a *app) receiveOne(c *conn, b *batch, value json.RawMessage) {
	r := &request{app: a, conn: c, batch: b}
	c.outstanding++
	var version string
	err := decodeObject(value, true,
		optional("jsonrpc", asString(&version)),
		required("method", asString(&r.method)),
		optional("params", func(raw json.RawMessage) error { r.params = raw; return nil }),
		optional("id", func(raw json.RawMessage) error {
			if raw[0] == '{' || raw[0] == '[' || raw[0] == 't' || raw[0] == 'f' {
				return errParams
			}
			r.id = raw
			return nil
		}))
	if string(r.params) == "null" {
		r.params = nil
	}
	if err != nil || version != "" && version != "2.0" {
		r.id = nil // SPDK has not come to it
		r.fail(codeInvalidRequest, "Invalid request")
		return
	}
	if r.params != nil && r.params[0] != '{' && r.params[0] != '[' {
		r.fail(codeInvalidRequest, "Invalid request")
		return
	}
	a.dispatch(r)
}
