// SPDX-License-Identifier: Apache-2.0

// Command weft-node-init is the first process of a lab node, in its initial RAM disk as well as on its root filesystem.
// Under the name systemctl it stops and starts the node's services, as systemd's program of that name would; under the
// name pause it is the first process of a pod.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	var err error
	switch {
	case filepath.Base(os.Args[0]) == filepath.Base(nodeconfig.PausePath):
		sandbox()
		return
	case filepath.Base(os.Args[0]) == filepath.Base(nodeconfig.SystemctlPath):
		if err := systemctl(context.Background(), os.Stdout, os.Args[1:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case len(os.Args) > 1 && os.Args[1] == "boot":
		err = boot(context.Background(), log)
	case filepath.Clean(os.Args[0]) == nodeconfig.InitPath:
		err = reap()
	default:
		err = initrd()
	}
	log.Error("node init ended", "error", err)
	// The kernel panics when process 1 ends, and then restarts the machine; the
	// message above is in the console's log.
	os.Exit(1)
}
