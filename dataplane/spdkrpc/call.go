// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"
)

// Request is a call of SPDK whose answer is an R. The package's request types are all there are.
type Request[R any] interface {
	request
	returns(R)
}

// request of any kind.
type request interface {
	// method is SPDK's name of the call.
	method() string
}

// answers makes the struct that embeds it a Request[R].
type answers[R any] struct {
	_ [0]*R // for tests, which find R by reflection
}

func (answers[R]) returns(R) {}

// Done is the answer of calls that have nothing to say but that they were carried out.
type Done struct{}

// UnmarshalJSON accepts true, and nothing else.
func (*Done) UnmarshalJSON(b []byte) error {
	if string(b) != "true" {
		return errors.New("answer is not true")
	}
	return nil
}

// Caller is what calls are made on: a *Client, which connects again when it
// must, or a *Conn, which is one connection and ends with it.
type Caller interface {
	// connection to make a call on.
	connection(ctx context.Context) (*Conn, error)
}

// Call makes one call and waits for its answer. It fails with an *Error that SPDK answered, or with an
// *UnansweredError.
func Call[R any](ctx context.Context, on Caller, req Request[R]) (R, error) {
	return Start(ctx, on, req).Wait()
}

// Each makes many calls at once, in order, and waits for all. Results and
// errors are in the order of the requests; an error is nil where SPDK carried out the call.
// One call's failure does not stop the others.
func Each[R any, Q Request[R]](ctx context.Context, on Caller, reqs []Q) ([]R, []error) {
	pending := make([]*Pending[R], len(reqs))
	for i, req := range reqs {
		pending[i] = Start[R](ctx, on, req)
	}
	results, errs := make([]R, len(reqs)), make([]error, len(reqs))
	for i, p := range pending {
		results[i], errs[i] = p.Wait()
	}
	return results, errs
}

// Start puts a call in the connection's queue and returns. It waits only while the window
// is full or there is no connection yet, and not after ctx has ended. Calls of one goroutine
// reach SPDK in the order they were started, as long as the connection lasts.
func Start[R any](ctx context.Context, on Caller, req Request[R]) *Pending[R] {
	p := &Pending[R]{ctx: ctx, method: req.method(), span: startSpan(ctx, req.method())}
	p.conn, p.call, p.err = start(ctx, on, req)
	return p
}

func start(ctx context.Context, on Caller, req request) (*Conn, *call, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	params, err := json.Marshal(req)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(params) > maxParamsBytes {
		return nil, nil, fmt.Errorf("%w: %d bytes, but SPDK accepts no more than %d: use smaller requests", ErrInvalid, len(params), maxParamsBytes)
	}
	conn, err := on.connection(ctx)
	if err != nil {
		return nil, nil, err
	}
	call, err := conn.start(ctx, req, params)
	return conn, call, err
}

// Pending is a call that was started.
type Pending[R any] struct {
	ctx    context.Context
	method string
	conn   *Conn
	call   *call
	err    error
	// span of the call; nil when it has none.
	span trace.Span
}

// Wait for the answer. It ends at the latest with the context that the call was
// started with. It may be called again, and gives the same answer.
func (p *Pending[R]) Wait() (R, error) {
	result, err := p.wait()
	endSpan(p.span, p.call, err)
	return result, err
}

func (p *Pending[R]) wait() (R, error) {
	var result R
	if p.call == nil {
		return result, p.fail(false, p.err)
	}
	select {
	case <-p.call.done:
	case <-p.ctx.Done():
		// An answer that is there counts, also when the context ended with it.
		p.conn.abandon(p.call, p.ctx.Err())
		<-p.call.done
	}
	answer := p.call.answer
	switch {
	case answer.err != nil:
		return result, p.fail(answer.maybeDone, answer.err)
	case answer.refusal != nil:
		return result, &Error{Method: p.method, Code: answer.refusal.Code, Message: answer.refusal.Message}
	}
	if err := decode(answer.result, &result); err != nil {
		return result, p.fail(true, fmt.Errorf("unexpected form of the answer: %w", err))
	}
	return result, nil
}

// Err waits as Wait does, for those who need only to know whether it was carried out: calls
// of many kinds can wait in one list of interface{ Err() error }.
func (p *Pending[R]) Err() error {
	_, err := p.Wait()
	return err
}

func (p *Pending[R]) fail(maybeDone bool, err error) error {
	return &UnansweredError{Method: p.method, MaybeDone: maybeDone, Err: err}
}

var errNull = errors.New("neither a result nor an error")

// decode a result. Null is no result: no call of SPDK answers it, and it would pass for an empty list.
func decode(b json.RawMessage, into any) error {
	if len(b) == 0 || string(b) == "null" {
		return errNull
	}
	return json.Unmarshal(b, into)
}
