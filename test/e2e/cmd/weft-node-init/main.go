// SPDX-License-Identifier: Apache-2.0

// Command weft-node-init is the first process of a lab node, in its initial
// RAM disk as well as on its root filesystem.
package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
	"github.com/weft-storage/weft/test/e2e/internal/nodeinit"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "boot":
		err = nodeinit.Boot(context.Background(), log)
	case filepath.Clean(os.Args[0]) == nodeconfig.InitPath:
		err = nodeinit.Reap()
	default:
		err = nodeinit.Initrd()
	}
	log.Error("node init ended", "error", err)
	// The kernel panics when process 1 ends, and then restarts the machine; the
	// message above is in the console's log.
	os.Exit(1)
}
