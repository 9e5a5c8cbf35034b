// SPDX-License-Identifier: Apache-2.0

// Docs writes those parts of docs/ that follow from code. Run it from the repository's root:
//
//	go run ./hack/docs reference   (make generate: docs/reference/nvmftarget*.md, the fields of an NvmfTarget)
//	go run ./hack/docs figures     (make docs-figures: the pictures, and the tables of docs/tuning.md)
//	go run ./hack/docs language PATH...   (make lint: words and phrases that texts for users do not use)
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func write(args []string) error {
	var files map[string]string
	var err error
	switch {
	case len(args) > 1 && args[0] == "language":
		hits, err := language(args[1:])
		if len(hits) > 0 {
			err = fmt.Errorf("%s\n%d phrases that texts for users do not use", strings.Join(hits, "\n"), len(hits))
		}
		return err
	case slices.Equal(args, []string{"figures"}):
		files, err = figures(".")
	case slices.Equal(args, []string{"reference"}):
		files, err = reference(".")
	default:
		err = errors.New("usage: docs figures, docs reference, or docs language PATH")
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
