// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Agents that fail at the same moment try again at different moments, each within the same bounds.
func TestRetriesAreSpread(t *testing.T) {
	const agents, failures = 50, 12
	limiters := make([]interface {
		When(reconcile.Request) time.Duration
	}, agents)
	for i := range limiters {
		limiters[i] = controllerOptions().RateLimiter
	}
	for n := range failures {
		least := min(retryFirst/4<<n, retryMost)
		seen := map[time.Duration]bool{}
		for _, l := range limiters {
			wait := l.When(reconcile.Request{})
			if wait < least || wait > least+least/2 {
				t.Errorf("failure %d: %s, want at least %s and at most half more", n, wait, least)
			}
			seen[wait.Round(least/20)] = true
		}
		if len(seen) < 5 {
			t.Errorf("failure %d: of %d agents, there are %d moments", n, agents, len(seen))
		}
	}
}
