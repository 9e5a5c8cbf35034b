// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-storage/weft/hack/imagefile"
)

const (
	// packedTarget is the script in a packed target's folder that runs it.
	packedTarget = "nvmf_tgt"
	// softRDMA is the plug-in for the only RDMA device that machines of the lab have.
	softRDMA = "librxe-"
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
		return fmt.Errorf("make a directory for the target: %w", err)
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
	libraries, loader, err := imagefile.Libraries(ctx, program)
	if err != nil {
		return nil, "", err
	}
	if loader == "" {
		return nil, "", fmt.Errorf("%s is not dynamically linked", program)
	}
	plugins, err := imagefile.VerbsPlugins(libraries)
	if err != nil {
		return nil, "", err
	}
	files = map[string]string{}
	for _, l := range libraries {
		files[filepath.Base(l)] = l
	}
	for _, p := range plugins {
		if strings.HasPrefix(filepath.Base(p), softRDMA) {
			files[filepath.Base(p)] = p
		}
	}
	return files, filepath.Base(loader), nil
}
