// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// verbsLibrary loads a plug-in for each kind of RDMA device, which ldd does not see.
	verbsLibrary = "libibverbs.so"
	// verbsPlugins is the folder of the plug-ins, beside the library.
	verbsPlugins = "libibverbs"
	// verbsDrivers is where the library looks for the names of plug-ins.
	verbsDrivers = "/etc/libibverbs.d"
)

// Libraries are the shared libraries that a program, or a library, has on this machine, by the absolute paths at which
// the loader finds them, the loader itself among them. loader is the one that a program asks for; a library asks for
// none. A static program has neither.
func Libraries(ctx context.Context, program string) (libraries []string, loader string, err error) {
	loader, linked, err := linking(program)
	if err != nil || !linked {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, "ldd", program)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	listed, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("list the libraries of %s: %w: %s", program, err, strings.TrimSpace(stderr.String()+string(listed)))
	}
	if loader != "" {
		libraries = []string{loader}
	}
	for line := range strings.Lines(string(listed)) {
		// "libm.so.6 => /lib/x/libm.so.6 (0x7f)", "/lib64/ld-linux-x86-64.so.2 (0x7f)", or "linux-vdso.so.1 (0x7f)".
		if strings.Contains(line, "not found") {
			library, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			return nil, "", lacks(program, library)
		}
		for _, word := range strings.Fields(line) {
			if filepath.IsAbs(word) {
				libraries = append(libraries, filepath.Clean(word))
			}
		}
	}
	slices.Sort(libraries)
	return slices.Compact(libraries), loader, nil
}

// lacks tells that a program, or a library, does not find a library.
func lacks(program, library string) error {
	return fmt.Errorf("%s lacks %s on this machine; install it, or set LD_LIBRARY_PATH", program, library)
}

// linking says whether a program or library is linked with others, and which loader a program asks for.
func linking(program string) (loader string, linked bool, err error) {
	f, err := elf.Open(program)
	if unread := (*fs.PathError)(nil); errors.As(err, &unread) {
		return "", false, err
	}
	if err != nil {
		return "", false, fmt.Errorf("%s is not a program (%w): a script that starts nvmf_tgt cannot be packed; name nvmf_tgt itself", program, err)
	}
	defer f.Close() //nolint:errcheck // only read
	needed, err := f.ImportedLibraries()
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", program, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			path := make([]byte, p.Filesz)
			if _, err := p.ReadAt(path, 0); err != nil {
				return "", false, fmt.Errorf("%s: %w", program, err)
			}
			loader = string(bytes.TrimRight(path, "\x00"))
		}
	}
	return loader, loader != "" || len(needed) > 0, nil
}

// VerbsPlugins are the plug-ins for RDMA devices that a program with these libraries loads; none of a program without
// RDMA. Without plug-ins such a program finds no device.
func VerbsPlugins(libraries []string) ([]string, error) {
	i := slices.IndexFunc(libraries, func(l string) bool { return strings.HasPrefix(filepath.Base(l), verbsLibrary) })
	if i < 0 {
		return nil, nil
	}
	// The folder's name is compiled in, and never that of a link to it, such as /lib.
	dir, err := filepath.EvalSymlinks(filepath.Dir(libraries[i]))
	if err != nil {
		return nil, err
	}
	plugins, err := filepath.Glob(filepath.Join(dir, verbsPlugins, "*.so"))
	if err == nil && len(plugins) == 0 {
		err = fmt.Errorf("%s has no plug-ins in %s; install ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL, Fedora)",
			libraries[i], filepath.Join(dir, verbsPlugins))
	}
	return plugins, err
}
