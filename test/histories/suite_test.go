// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/test/agenttest"
	"github.com/weft-storage/weft/test/apiserver"
)

// What is run unless WEFT_SEED and WEFT_SEQUENCES say otherwise; and how many at a time, which mostly wait.
const (
	defaultSeed      = 1
	defaultSequences = 20
	atATime          = 4
)

// One API server for all sequences; each uses names of its own.
var (
	restConfig *rest.Config
	api        client.Client
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(atATime)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(apiserver.Run(context.Background(), m, func(ctx context.Context, s *apiserver.Server) error {
		restConfig, api = s.Config, s.Admin
		return agenttest.GuardDeletions(ctx, api, filepath.Join("..", "..", "config", "default", "weft.yaml"), unguarded)
	}))
}

// number that a variable of the environment gives.
func number(t *testing.T, variable string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		t.Fatalf("%s is %q; give a number, such as %s=7", variable, text, variable)
	}
	return n
}

// TestSequences runs random sequences. Each has a seed of its own, from which it comes whole: which calls, and where
// they are cut.
func TestSequences(t *testing.T) {
	seed, count := number(t, "WEFT_SEED", defaultSeed), number(t, "WEFT_SEQUENCES", defaultSequences)
	t.Logf("%d sequences, seeds %d to %d; one alone: make test-chaos SEED=%d SEQUENCES=1", count, seed, seed+count-1, seed)
	var all tally
	t.Run("seed", func(t *testing.T) {
		for i := range count {
			t.Run(strconv.FormatInt(seed+i, 10), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, seed+i)
				defer w.close()
				w.run()
				all.add(w.tally)
			})
		}
	})
	t.Logf("%d calls in %d operations: %d processes killed, %d targets killed, %d storage nodes without power, %d hosts rebooted, %d calls cancelled, %d made twice at once, %d given up; %d objects deleted by mistake, %d taken back",
		all.calls.Load(), all.operations.Load(), all.kills.Load(), all.targets.Load(), all.powers.Load(), all.reboots.Load(), all.cancels.Load(), all.twice.Load(), all.givenUp.Load(),
		all.deletions.Load(), all.takenBack.Load())
}
