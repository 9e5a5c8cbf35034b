// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A mirror starts, loses a member and takes it back, driven by nothing but events and the times that the steps ask for.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, faults{})
		w.calm = true
		for w.api.mirror.Holder == "" {
			w.now = w.now.Add(time.Second)
			w.controller()
			for _, name := range sorted(w.targets) {
				w.targets[name].agent()
			}
		}
		n := w.nodes["n1"]
		n.attachment = w.api.wish
		n.keep()
		n.plugin.Now = time.Now
		n.plugin.Spawn = func(f func()) { f() }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events, statuses := make(chan struct{}), make(chan Status)
		go n.plugin.Run(ctx, events, func(s Status) {
			select {
			case statuses <- s:
			case <-ctx.Done():
			}
		})
		until := func(what string, done func(Status) bool) {
			t.Helper()
			for range 1000 {
				s := <-statuses
				for range 100 {
					w.traffic()
				}
				if done(s) {
					return
				}
			}
			t.Fatalf("never %s", what)
		}
		until("running", func(s Status) bool { return s.Phase == Running })
		n.top.exists, n.plugin.Mode = true, Keep
		w.targets["b"].crash()
		w.refresh()
		before := time.Now()
		for told := false; !told; {
			select {
			case events <- struct{}{}:
				told = true
			case <-statuses:
			}
		}
		until("without b", func(s Status) bool { return len(s.Record.Members) == 2 && n.array.members["b"] == MemberAbsent })
		if took := time.Since(before); took < DefaultGrace || took > DefaultGrace+5*time.Second {
			t.Errorf("b was given up after %v", took)
		}
	})
}
