// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"slices"
	"time"
)

// When says whether a fault strikes before a request is carried out, or after it was and before it is answered.
type When int

// The two moments of a fault.
const (
	Before When = iota
	After
)

// An Action is what a fault does beside delaying a request or answering it with an error.
type Action int

// The actions.
const (
	// Continue goes on with the request.
	Continue Action = iota
	// DropConnection closes the request's connection without an answer; the target goes on.
	DropConnection
	// Die ends the target as kill -9 does: every connection cut, the socket's file left behind.
	Die
	// DieClean ends it with the socket's file gone.
	DieClean
)

// An AnswerError is the error that a fault answers.
type AnswerError struct {
	// Code and Message go into the answer as they are.
	Code    int
	Message string
}

// A Fault is a failure to order from the target. The zero value strikes the next call, whatever it is, and does
// nothing to it: give it at least one of Delay, Error and Do.
type Fault struct {
	// Method it strikes; empty for any.
	Method string
	// Match, if given, says whether a call with these parameters (nil when there are none) is struck.
	Match func(params json.RawMessage) bool
	// Skip lets this many matching calls pass first.
	Skip int
	// Times it strikes; 0 means once, a negative number always.
	Times int
	// When it strikes: Before, the default, means that the request is not carried out when an Error or an action ends
	// it; After means that it was.
	When When
	// Delay holds the request (Before) or its answer (After) for this long; other requests go on.
	Delay time.Duration
	// Error is answered, if given.
	Error *AnswerError
	// Do is done, if given; it wins over Error.
	Do Action
}

// Inject orders a fault, and returns what withdraws it. Faults strike in the order of their injection, one a call.
func (t *Target) Inject(f Fault) (withdraw func()) {
	if f.Times == 0 {
		f.Times = 1
	}
	order := &f
	t.do(func() { t.app.faults = append(t.app.faults, order) })
	return func() {
		t.do(func() {
			t.app.faults = slices.DeleteFunc(t.app.faults, func(o *Fault) bool { return o == order })
		})
	}
}

// strikes finds the fault for a request, and counts it.
func (a *app) strikes(r *request) *Fault {
	for i, f := range a.faults {
		if f.Method != "" && f.Method != r.method {
			continue
		}
		if f.Match != nil && !f.Match(r.params) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		struck := *f
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				a.faults = slices.Delete(a.faults, i, i+1)
			}
		}
		return &struck
	}
	return nil
}

// dispatch carries out a request, or has it struck by a fault.
func (a *app) dispatch(r *request) {
	a.calls[r.method]++
	f := a.strikes(r)
	if f == nil {
		a.carryOut(r)
		return
	}
	r.fault = f
	if f.When == After {
		a.carryOut(r)
		return
	}
	strike := func() {
		switch {
		case f.Do == DropConnection:
			r.conn.cut()
		case f.Do == Die || f.Do == DieClean:
			a.die(f.Do == DieClean)
		case f.Error != nil:
			r.fail(f.Error.Code, f.Error.Message)
		default:
			a.carryOut(r)
		}
	}
	if f.Delay > 0 {
		a.after(f.Delay, strike)
		return
	}
	strike()
}
