// SPDX-License-Identifier: Apache-2.0

// Command weft-launch is what a target pod runs: it starts SPDK's nvmf_tgt. Before that it looks whether the node gives
// what the plan counts on, and refuses in words where SPDK would die of a signal. As the pod's probe it asks whether
// nvmf_tgt answers.
//
// What it does follows one order: gather and check everything first, then change the node (only drives are ever
// changed), then start. With the kernel's drivers it becomes nvmf_tgt, so that the pod holds SPDK and nothing else.
// With drives taken from the kernel it stays as nvmf_tgt's parent, since they have to be given back when the pod is
// stopped.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := Command(version).ExecuteContext(ctx)
	stop()
	os.Exit(ExitCode(err, os.Stderr))
}
