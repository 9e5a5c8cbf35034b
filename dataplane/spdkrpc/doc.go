// SPDX-License-Identifier: Apache-2.0

// Package spdkrpc calls a running SPDK target over its Unix socket: JSON-RPC
// 2.0, typed, and only the calls that weft makes.
//
// A call is a struct named after SPDK's method, made with Call, or with Start
// for many at once:
//
//	client, err := spdkrpc.New("/var/run/weft/spdk.sock", spdkrpc.Options{})
//	version, err := spdkrpc.Call(ctx, client, spdkrpc.SpdkGetVersion{})
//
// In requests, an optional parameter that is left zero is not sent, and SPDK's
// default holds; where zero means something else than the default, the field is a
// pointer: new(uint64(0)).
//
// What is guaranteed:
//
//   - Order. Calls that one goroutine starts on one connection are written in
//     that order, and SPDK starts them in the order it reads them. It does not wait for one to finish before
//     it starts the next: a call whose work is asynchronous (init, all of lvol, pauses
//     of a subsystem) may be answered after later ones. SPDK queues the changes of one subsystem,
//     so create, add_ns, add_host and add_listener of it may be sent together; a
//     call that needs init, or a bdev made by another call, has to wait for that call's answer.
//   - A bounded window. At most Options.Window calls of a connection are in
//     flight, and of those about lvols LvolWindow, because SPDK fails them beyond 512 with "Cannot allocate memory".
//     A call that nobody waits for any more counts until SPDK has answered it.
//   - Nothing hangs. Every call ends with its context; an answer that comes later is dropped.
//   - A call without an answer fails with an *UnansweredError, which says whether it may have been executed.
//   - A refusal by SPDK is an *Error with SPDK's code and message, and wraps the class it belongs to: ErrNotFound and
//     so on.
//   - Secrets stay out. SPDK takes keys by name and file, so no request carries
//     one, and errors name the method but never its parameters. The package logs nothing.
//
// All of it is safe for concurrent use.
package spdkrpc
