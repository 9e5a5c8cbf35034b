// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// packedTarget is the script in a packed target's folder that runs it.
	packedTarget = "nvmf_tgt"
	// verbsLibrary loads a plug-in for each kind of RDMA device, which ldd does not see.
	verbsLibrary = "libibverbs.so"
	// softRDMA is the plug-in for the only RDMA device that machines of the lab have.
	softRDMA = "libibverbs/librxe-rdmav34.so"
)

// packedScript runs the program with the loader and the libraries beside it, wherever the folder lies. OpenSSL's
// library ends a program that finds no configuration where the machine that built it has one.
const packedScript = `#!/bin/sh
dir=$(dirname "$(readlink -f "$0")")
export OPENSSL_CONF=/dev/null IBV_DRIVERS="$dir/lib/librxe"
exec "$dir/lib/%[1]s" --library-path "$dir/lib" "$dir/%[2]s" "$@"
`

// PackTarget makes the folder dir, which must not be there, with program, a real nvmf_tgt, the shared libraries and the
// loader that it has on this machine, and a script nvmf_tgt that runs it with them: on a machine or in an image whose
// own need not fit.
func PackTarget(ctx context.Context, program, dir string) error {
	files, loader, err := librariesOf(ctx, program)
	if err != nil {
		return err
	}
	lib := filepath.Join(dir, "lib")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder for the target: %w", err)
	}
	if err := os.Mkdir(lib, 0o755); err != nil {
		return err
	}
	for name, file := range files {
		if err := copyFile(file, filepath.Join(lib, name), 0o755); err != nil {
			return err
		}
	}
	const binary = "spdk-nvmf_tgt"
	if err := copyFile(program, filepath.Join(dir, binary), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, packedTarget), fmt.Appendf(nil, packedScript, loader, binary), 0o755)
}

// librariesOf maps the names of the libraries that a program is linked with, its loader and the plug-in for soft RDMA
// to the files they are here.
func librariesOf(ctx context.Context, program string) (files map[string]string, loader string, err error) {
	listed, err := Output(ctx, "ldd", program)
	if err != nil {
		return nil, "", fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	files = map[string]string{}
	for line := range strings.Lines(listed) {
		// "libm.so.6 => /lib/x/libm.so.6 (0x7f)", "/lib64/ld-linux-x86-64.so.2 (0x7f)", or "linux-vdso.so.1 (0x7f)".
		if strings.Contains(line, "not found") {
			return nil, "", fmt.Errorf("%s lacks a library on this machine: %s", program, strings.TrimSpace(line))
		}
		for _, file := range strings.Fields(line) {
			if !filepath.IsAbs(file) {
				continue
			}
			name := filepath.Base(file)
			files[name] = file
			if strings.HasPrefix(name, "ld-linux") {
				loader = name
			}
			if strings.HasPrefix(name, verbsLibrary) {
				plugin := filepath.Join(filepath.Dir(file), softRDMA)
				files[filepath.Base(plugin)] = plugin
			}
		}
	}
	if loader == "" {
		return nil, "", fmt.Errorf("%s is not dynamically linked for this machine", program)
	}
	for name, file := range files {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(file, softRDMA) {
			return nil, "", fmt.Errorf("%s has no plug-in for soft RDMA: %w; install ibverbs-providers", verbsLibrary, err)
		} else if err != nil {
			return nil, "", fmt.Errorf("library %s of %s: %w", name, program, err)
		}
	}
	return files, loader, nil
}
