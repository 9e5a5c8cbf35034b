// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"errors"
	"fmt"
)

// Classes of SPDK's refusals. Each *Error wraps exactly one: compare with errors.Is.
var (
	// ErrNotFound: a thing that the call names is not there.
	ErrNotFound = errors.New("not found")
	// ErrExists: it is there already.
	ErrExists = errors.New("exists already")
	// ErrWrongState: not in this state of the target, such as before or after its initialization.
	ErrWrongState = errors.New("wrong state of the target")
	// ErrNoMemory: too much at once; the same call succeeds later.
	ErrNoMemory = errors.New("not enough memory now")
	// ErrNoSpace: the lvstore has no room.
	ErrNoSpace = errors.New("no space")
	// ErrBusy: something else uses it; the same call succeeds when that has ended.
	ErrBusy = errors.New("busy")
	// ErrInvalid: the request itself is wrong for this target, and will always be.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknown: SPDK's answer has several causes. Look at the target to tell which.
	ErrUnknown = errors.New("rejected by SPDK without a reason")
)

// Reasons of an *UnansweredError, which wraps them, besides the context's own.
var (
	// ErrUnavailable: nothing answers on the socket, or the connection was lost.
	ErrUnavailable = errors.New("SPDK does not answer")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("client is closed")
)

// Error is SPDK's refusal of a call. What the call asked for was not done, or not wholly.
type Error struct {
	// Method of the call.
	Method string
	// Code as SPDK sent it: a negative errno, or one of JSON-RPC's (-32602 and its like).
	Code int
	// Message as SPDK sent it.
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("SPDK %s: %s (code %d)", e.Method, e.Message, e.Code)
}

// Unwrap gives the error's class.
func (e *Error) Unwrap() error { return classify(e) }

// UnansweredError is a call that ended without an answer.
type UnansweredError struct {
	// Method of the call.
	Method string
	// MaybeDone: it was sent, wholly or in part, so SPDK may have carried it
	// out, or may yet do so. False means that it never was, and never will be.
	MaybeDone bool
	// Err is why: the context's error, ErrUnavailable or ErrClosed with its cause, or what was wrong with the request
	// or answer.
	Err error
}

func (e *UnansweredError) Error() string {
	fate := "it was not sent"
	if e.MaybeDone {
		fate = "it may have been executed"
	}
	return fmt.Sprintf("SPDK %s: no answer, %s: %v", e.Method, fate, e.Err)
}

// Unwrap gives the cause.
func (e *UnansweredError) Unwrap() error { return e.Err }

// MaybeDone says whether a call that failed with err may have been carried out
// all the same. It is false for nil and for SPDK's own refusals.
func MaybeDone(err error) bool {
	var unanswered *UnansweredError
	return errors.As(err, &unanswered) && unanswered.MaybeDone
}
