// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
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

// TestLogsToTheContextsLogger: controller-runtime gives its own one up, for good, where a process needs 30 s to begin.
func TestLogsToTheContextsLogger(t *testing.T) {
	said := ""
	logger := funcr.New(func(_, line string) { said += line }, funcr.Options{})
	m, err := newManager(logr.NewContext(t.Context(), logger), apiServer(t).agentConfig, Options{NodeName: "node"})
	if err != nil {
		t.Fatal(err)
	}
	if m.GetLogger().Info("gathered"); !strings.Contains(said, "gathered") {
		t.Errorf("the context's logger got %q", said)
	}
}
