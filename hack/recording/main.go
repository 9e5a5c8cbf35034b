// SPDX-License-Identifier: Apache-2.0

// Recording records what a command prints, and draws it as a picture for README.md:
//
//	go run ./hack/recording record FILE.cast COMMAND ARGUMENT...
//	go run ./hack/recording draw FILE.cast FILE.svg
//
// `make demo-recording` does both with `make demo`. A recording is an asciicast of version 2, which asciinema plays as
// well.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // this is main
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "record":
		return recordFile(ctx, args[1], args[2:])
	case len(args) == 3 && args[0] == "draw":
		return drawFile(args[1], args[2])
	}
	return errors.New("usage: recording record FILE.cast COMMAND ARGUMENT..., or recording draw FILE.cast FILE.svg")
}

func drawFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	c, err := readCast(in)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, []byte(draw(c)), 0o644)
}
