// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// batch sends the calls of many items at once. The calls of one item reach SPDK in
// the order they were put; the first that fails is the item's error.
type batch struct {
	s     *session
	errs  []error
	waits []func()
}

func (s *session) batch(errs []error) *batch { return &batch{s: s, errs: errs} }

// put a call of an item into the batch.
func put[R any](b *batch, item int, req spdkrpc.Request[R]) {
	pending := spdkrpc.Start(b.s.ctx, b.s.conn, req)
	b.waits = append(b.waits, func() {
		if _, err := pending.Wait(); err != nil && b.errs[item] == nil {
			b.errs[item] = mapError(err)
		}
	})
}

// wait for all answers.
func (b *batch) wait() {
	for _, wait := range b.waits {
		wait()
	}
	b.waits = nil
}

// call one request for each item that has no error yet. What SPDK cannot do at the moment, because too much is
// in flight or a lvol is busy with another of these calls, is sent again as long as that gets anywhere.
func call[R any](s *session, items []int, errs []error, request func(item int) spdkrpc.Request[R]) {
	for len(items) > 0 {
		pending := make([]*spdkrpc.Pending[R], len(items))
		for i, item := range items {
			if errs[item] == nil {
				pending[i] = spdkrpc.Start(s.ctx, s.conn, request(item))
			}
		}
		var again []int
		refused := map[int]error{}
		for i, item := range items {
			if pending[i] == nil {
				continue
			}
			_, err := pending[i].Wait()
			if errors.Is(err, spdkrpc.ErrNoMemory) || errors.Is(err, spdkrpc.ErrBusy) {
				again = append(again, item)
				refused[item] = mapError(err)
				continue
			}
			errs[item] = mapError(err)
		}
		if len(again) == len(items) {
			for item, err := range refused {
				errs[item] = err
			}
			return
		}
		items = again
	}
}

// failAll with one error, when a call fails as a whole.
func failAll(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
