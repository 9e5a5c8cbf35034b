// SPDX-License-Identifier: Apache-2.0

// Docs writes those parts of docs/ that follow from code. Run it from the repository's root:
//
//	go run ./hack/docs reference   (make generate: docs/reference/nvmftarget*.md, the fields of an NvmfTarget)
//	go run ./hack/docs values      (make generate: the table of values in charts/weft/README.md)
//	go run ./hack/docs figures     (make docs-figures: the pictures, and the tables of docs/tuning.md)
//	go run ./hack/docs queries     (tests: all queries of alerts and dashboards, as a rules file of Prometheus)
//	go run ./hack/docs language PATH...   (make lint: phrases that texts for users do not use, and long sentences)
//	go run ./hack/docs record FILE.cast COMMAND ARGUMENT...   (make demo-recording: what the demo prints, and when)
//	go run ./hack/docs draw FILE.cast FILE.svg   (the same: its picture, for README.md)
//
// A recording is an asciicast of version 2, which asciinema plays as well.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // this is main
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string) error {
	var files map[string]string
	var err error
	switch {
	case len(args) > 1 && args[0] == "language":
		hits, err := language(args[1:])
		if len(hits) > 0 {
			err = fmt.Errorf("%s\n%d phrases that texts for users do not use, or sentences that are too long", strings.Join(hits, "\n"), len(hits))
		}
		return err
	case len(args) >= 3 && args[0] == "record":
		return recordFile(ctx, args[1], args[2:])
	case len(args) == 3 && args[0] == "draw":
		files, err = drawFile(args[1], args[2])
	case slices.Equal(args, []string{"queries"}):
		rules, err := queryRules(".")
		if err == nil {
			_, err = os.Stdout.Write(rules)
		}
		return err
	case slices.Equal(args, []string{"figures"}):
		files, err = figures(".")
	case slices.Equal(args, []string{"reference"}):
		files, err = reference(".")
	case slices.Equal(args, []string{"values"}):
		files, err = values(".")
	default:
		err = errors.New("usage: docs figures, docs reference, docs values, docs queries, docs language PATH..., docs record FILE.cast COMMAND..., or docs draw FILE.cast FILE.svg")
	}
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(path, []byte(files[path]), 0o644); err != nil {
			return err
		}
	}
	return nil
}
