// SPDX-License-Identifier: Apache-2.0

// Command kubectl-weft is kubectl's plugin for weft: what a target would come to on its nodes, and how weft does.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"context"

	"github.com/weft-storage/weft/operator/internal/cli"
)

// version is set by the linker.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cli.Command(version).ExecuteContext(ctx)
	stop()
	var exit *cli.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		os.Exit(exit.Code) // what was printed says it
	default:
		fmt.Fprintln(os.Stderr, "kubectl weft:", err)
		os.Exit(cli.CodeError)
	}
}
