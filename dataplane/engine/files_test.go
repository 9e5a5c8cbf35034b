// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TestPoolsInFilesHaveTheRoomOfTheirFilesystem, and no other pool is bounded.
func TestPoolsInFilesHaveTheRoomOfTheirFilesystem(t *testing.T) {
	const small, huge = int64(1 << 20), int64(1 << 60)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "pool.img"), make([]byte, 4*small), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(total, free int64) engine.Pool {
		return engine.Pool{Device: "/pool.img", Path: "/pool.img", TotalBytes: total, FreeBytes: free}
	}
	unreadable, missing, drive := file(huge, huge), file(huge, huge), file(huge, huge)
	unreadable.Err = errors.New("unreadable")
	missing.Device, missing.Path = "/missing.img", "/missing.img"
	drive.Device = "eui.1"
	for name, tc := range map[string]struct {
		pool    engine.Pool
		bounded bool
	}{
		"a file that fits":          {file(4*small, small), false},
		"a file that does not":      {file(huge, huge-small), true},
		"a pool that is unreadable": {unreadable, false},
		"a file that is missing":    {missing, false},
		"a drive":                   {drive, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := engine.State{Pools: []engine.Pool{tc.pool}}
			state.LimitFiles(func(path string) string { return filepath.Join(root, path) })
			is, was := state.Pools[0], tc.pool
			if bounded := is.MissingBytes > 0; bounded != tc.bounded || is.TotalBytes+is.MissingBytes != was.TotalBytes {
				t.Errorf("total %d, missing %d of %d", is.TotalBytes, is.MissingBytes, was.TotalBytes)
			}
			if used := is.TotalBytes - is.FreeBytes; used != was.TotalBytes-was.FreeBytes {
				t.Errorf("%d of it used, not %d", used, was.TotalBytes-was.FreeBytes)
			}
		})
	}
}
