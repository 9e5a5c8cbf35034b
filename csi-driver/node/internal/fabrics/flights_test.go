// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Who began it waited for its turn, and gave up before that came.
func TestWhoJoinsBeginsAgainWhenTheFirstGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s flights
		key := flightKey{nqn: "nqn", portal: "portal"}
		ctx, giveUp := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			first <- s.do(ctx, key, func() error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		go func() { second <- s.do(t.Context(), key, func() error { return nil }) }()
		synctest.Wait()
		giveUp()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: got %v", err)
		}
		if err := <-second; err != nil {
			t.Errorf("the second: got %v", err)
		}
	})
}
