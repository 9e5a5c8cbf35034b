// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// hostTools maps the programs that the lab and unit tests run on the host to the Debian packages that have them.
func hostTools() map[string]string {
	return map[string]string{
		"qemu-system-x86_64": "qemu-system-x86",
		"qemu-img":           "qemu-utils",
		"debootstrap":        "debootstrap",
		"mmdebstrap":         "mmdebstrap",
		"buildah":            "buildah",
		"mke2fs":             "e2fsprogs",
		"blkid":              "util-linux",
		"cryptsetup":         "cryptsetup-bin",
		"xz":                 "xz-utils",
		"unshare":            "util-linux",
		"chroot":             "coreutils",
		"tar":                "tar",
	}
}

// missingTools returns the programs that look does not find and the packages
// to install for them, both sorted.
func missingTools(look func(string) (string, error)) (programs, packages []string) {
	for program, pkg := range hostTools() {
		if _, err := look(program); err != nil {
			programs = append(programs, program)
			packages = append(packages, pkg)
		}
	}
	slices.Sort(programs)
	slices.Sort(packages)
	return programs, slices.Compact(packages)
}

// EnsureHostTools installs the programs that are missing on the host, or names them all in one error when it may not.
func (b *Builder) EnsureHostTools(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the lab makes network namespaces, root filesystems and virtual machines: run it as root")
	}
	programs, packages := missingTools(exec.LookPath)
	if len(programs) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing on this host: %s; install them (Debian's packages: %s)",
			strings.Join(programs, ", "), strings.Join(packages, ", "))
	}
	return b.Progress.Step("apt-get install "+strings.Join(packages, " "), func() error {
		apt := func(args ...string) error {
			return Cmd{Env: []string{"DEBIAN_FRONTEND=noninteractive"}, Args: append([]string{"apt-get", "-q"}, args...)}.Run(ctx)
		}
		if err := apt("update"); err != nil {
			return err
		}
		return apt(append([]string{"install", "-y", "--no-install-recommends"}, packages...)...)
	})
}
