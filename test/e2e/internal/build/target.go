// SPDX-License-Identifier: Apache-2.0

package build

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/test/e2e/internal/hostcmd"
)

const (
	// targetProgram is where weft-launch finds SPDK's target in the image.
	targetProgram = "usr/local/bin/nvmf_tgt"
	// spdkDir has a real target with the libraries it was linked with.
	spdkDir = "opt/spdk"
	// fakeTarget is the package of the target that stands in for SPDK's.
	fakeTarget = "./cmd/fake-nvmf-tgt"
)

// TargetImage builds the image of target pods from the project's Dockerfile and
// writes it to archive. The SPDK in it is program, a real nvmf_tgt with the libraries of this machine, or,
// when program is empty, the stateful fake, which answers SPDK's RPCs and serves no I/O.
func (b *Builder) TargetImage(ctx context.Context, archive, program string) error {
	if err := b.ensureHostTools(ctx); err != nil {
		return err
	}
	rootfs, err := b.baseRootfs(ctx)
	if err != nil {
		return err
	}
	var spdk []byte
	if program == "" {
		spdk, err = b.fakeTargetLayer(ctx)
	} else {
		spdk, err = realTargetLayer(ctx, program)
	}
	if err != nil {
		return err
	}
	key, err := Key(filepath.Base(rootfs), string(spdk))
	if err != nil {
		return err
	}
	base, err := b.Cache.Ensure(ctx, "image-target-base-"+key+".tar", func(ctx context.Context, tmp string) error {
		// The first layer is that of ToolsImage, which nodes have.
		layer, err := folderLayer(ctx, rootfs)
		if err != nil {
			return err
		}
		return image{ref: "weft.storage/lab-target-base:latest", layers: [][]byte{layer, spdk}}.write(tmp)
	})
	if err != nil {
		return err
	}
	return b.projectImage(ctx, archive, projectImage{target: "weft-target", baseArg: "TARGET_BASE", base: base})
}

func (b *Builder) fakeTargetLayer(ctx context.Context) ([]byte, error) {
	program := filepath.Join(b.Repo, "bin", "fake-nvmf-tgt")
	if err := b.goBuild(ctx, b.moduleDir(), "-s -w", program, fakeTarget); err != nil {
		return nil, err
	}
	return programLayer(program, targetProgram)
}

// realTargetLayer packs a program with the shared libraries and the loader that it has on this machine, which
// need not be those of the base, and a script in the program's place that runs it with them.
func realTargetLayer(ctx context.Context, program string) ([]byte, error) {
	libraries, err := hostcmd.Output(ctx, "ldd", program)
	if err != nil {
		return nil, fmt.Errorf("list the libraries of WEFT_SPDK_TARGET: %w", err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(name string, mode int64, data []byte) error {
		head := &tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(head); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		_, err := w.Write(data)
		return err
	}
	loader, files := "", map[string]string{path.Join(spdkDir, "nvmf_tgt"): program}
	for line := range strings.Lines(libraries) {
		// "libm.so.6 => /lib/x/libm.so.6 (0x7f)", "/lib64/ld-linux-x86-64.so.2 (0x7f)", or "linux-vdso.so.1 (0x7f)".
		for _, field := range strings.Fields(line) {
			if !filepath.IsAbs(field) {
				continue
			}
			name := path.Join(spdkDir, "lib", filepath.Base(field))
			files[name] = field
			if strings.HasPrefix(filepath.Base(field), "ld-linux") {
				loader = name
			}
		}
		if strings.Contains(line, "not found") {
			return nil, fmt.Errorf("%s lacks a library on this machine: %s", program, strings.TrimSpace(line))
		}
	}
	if loader == "" {
		return nil, fmt.Errorf("%s is not dynamically linked for this machine", program)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		if err := add(name, 0o755, data); err != nil {
			return nil, err
		}
	}
	// OpenSSL's library ends a program that finds no configuration where this machine has it.
	script := fmt.Sprintf("#!/bin/sh\nOPENSSL_CONF=/dev/null exec /%s --library-path /%s/lib /%s/nvmf_tgt \"$@\"\n", loader, spdkDir, spdkDir)
	if err := add(targetProgram, 0o755, []byte(script)); err != nil {
		return nil, err
	}
	return buf.Bytes(), w.Close()
}
