// SPDX-License-Identifier: Apache-2.0

// Docs writes those parts of docs/ that follow from code. Run it from the repository's root:
//
//	go run ./hack/docs reference   (make generate: docs/reference/nvmftarget*.md, the fields of an NvmfTarget)
//	go run ./hack/docs figures     (make docs-figures: the pictures, and the tables of docs/tuning.md)
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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
	case slices.Equal(args, []string{"figures"}):
		files, err = figures(".")
	case slices.Equal(args, []string{"reference"}):
		files, err = reference(".")
	default:
		err = errors.New("usage: docs figures, or docs reference")
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
