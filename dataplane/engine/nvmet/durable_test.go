// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TestPoolsAreSyncedBeforeTheyAreListed: what an earlier process made is listed once it outlasts a loss of power, and a
// filesystem that does not answer is only asked once.
func TestPoolsAreSyncedBeforeTheyAreListed(t *testing.T) { synctest.Test(t, testPoolsAreSynced) }

func testPoolsAreSynced(t *testing.T) {
	root := t.TempDir()
	h := newHost(Options{Root: root, StateDir: "state"})
	dir := filepath.Join(h.poolsDir(), "eui.1")
	for _, d := range []string{"proc/self", "sys/dev/block/7:1", filepath.Join("state/pools/eui.1", volumesFolder), filepath.Join("state/pools/eui.1", snapshotsFolder)} {
		mustMkdir(t, filepath.Join(root, d))
	}
	mountAs := func(id int) {
		line := fmt.Sprintf("%d 1 7:1 / %s rw shared:1 - xfs /dev/loop1 rw\n", id, dir)
		if err := os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked, answer := make(chan string, 10), make(chan error, 1)
	h.sync = func(dir string) error {
		asked <- dir
		return <-answer
	}
	scan := func() error {
		t.Helper()
		synctest.Wait() // until syncs have ended that were answered
		s, err := h.scan()
		if err != nil || len(s.pools) != 1 {
			t.Fatalf("pools %+v, %v", s, err)
		}
		return s.pools[0].Err
	}
	mountAs(21)
	for range 2 {
		if err := scan(); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "being synced") {
			t.Errorf("while it is synced: %v", err)
		}
	}
	if len(asked) != 1 || <-asked != dir {
		t.Errorf("asked %d times more", len(asked))
	}
	broken := errors.New("input/output error")
	answer <- broken
	if err := scan(); !errors.Is(err, broken) {
		t.Errorf("a sync that failed: %v", err)
	}
	answer <- nil
	for range 2 {
		if err := scan(); err != nil {
			t.Errorf("once it is synced: %v", err)
		}
	}
	if len(asked) != 1 {
		t.Errorf("asked %d times after a failure", len(asked))
	}
	mountAs(22)
	answer <- nil
	if err := scan(); err != nil || len(asked) != 2 {
		t.Errorf("mounted again: %v, asked %d times", err, len(asked))
	}
}
