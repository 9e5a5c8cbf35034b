// SPDX-License-Identifier: Apache-2.0

package base

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// Check reports what a base lacks: a command that weft runs, or a shared library that one of its programs is linked
// with. It reads the archive alone, so a base for any architecture can be checked anywhere.
func Check(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	have := map[string]bool{}
	needed := map[string][]string{} // library: who needs it
	files := tar.NewReader(f)
	for {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		if head.Typeflag == tar.TypeDir {
			continue
		}
		name := path.Clean(head.Name)
		have[path.Base(name)] = true
		if head.Typeflag != tar.TypeReg || !strings.HasPrefix(name, "usr/") {
			continue
		}
		libraries, err := linkedWith(files)
		if err != nil {
			return fmt.Errorf("read %s in %s: %w", name, archive, err)
		}
		for _, library := range libraries {
			needed[library] = append(needed[library], name)
		}
	}
	return missing(have, needed)
}

func missing(have map[string]bool, needed map[string][]string) error {
	var lacks []string
	for _, command := range commands {
		if !have[command] {
			lacks = append(lacks, "the command "+command)
		}
	}
	for library, by := range needed {
		if !have[library] {
			lacks = append(lacks, library+", which "+strings.Join(by, ", ")+" need")
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	slices.Sort(lacks)
	return fmt.Errorf("the base lacks %s", strings.Join(lacks, "; "))
}

// linkedWith names the shared libraries of a program or library; none for any other file.
func linkedWith(file io.Reader) ([]string, error) {
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(file, magic); err != nil || string(magic) != elf.ELFMAG {
		return nil, nil //nolint:nilerr // a file too short for the magic is no program
	}
	rest, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	program, err := elf.NewFile(bytes.NewReader(append(magic, rest...)))
	if err != nil {
		return nil, err
	}
	return program.ImportedLibraries()
}
