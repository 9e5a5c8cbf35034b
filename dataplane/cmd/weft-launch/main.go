// SPDX-License-Identifier: Apache-2.0

// Command weft-launch is what a target pod runs: it checks that the node gives what the plan counts on,
// then starts SPDK's nvmf_tgt. As the pod's probe it asks whether nvmf_tgt answers.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-storage/weft/dataplane/launch"
)

// version is set by the linker.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := launch.Command(version).ExecuteContext(ctx)
	stop()
	os.Exit(launch.ExitCode(err, os.Stderr))
}
