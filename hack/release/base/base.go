// SPDX-License-Identifier: Apache-2.0

// Package base makes the root filesystem that weft's image is built on: Debian's packages, extracted and not
// configured. No program of the base runs while it is made, so a base for another architecture needs no emulation, and
// the same packages give the same bytes.
package base

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Suite is Debian's release.
const Suite = "trixie"

// packages are what the base has, with what they depend on. The node plugin formats, checks, grows and mounts
// filesystems, encrypts, and makes mirrors; the agent reads signatures, loops files and loads kernel modules. The first
// two lines are a shell and its tools, for whoever looks into a container: Debian calls them essential, and apt does
// not add those by itself.
var packages = []string{
	"base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils", "findutils", "grep", "gzip",
	"hostname", "libc-bin", "mawk", "ncurses-base", "ncurses-bin", "sed", "tar",
	"cryptsetup-bin", "e2fsprogs", "kmod", "mdadm", "mount", "util-linux", "xfsprogs",
}

// commands are those that weft runs. TestBaseHasWhatTheDockerfileAsksFor compares them with the Dockerfile.
var commands = []string{
	"mount", "umount", "blkid", "blockdev", "lsblk", "losetup", "wipefs", "mkfs.ext4", "fsck.ext4", "resize2fs",
	"mkfs.xfs", "xfs_repair", "xfs_growfs", "modprobe", "mdadm", "cryptsetup", "dmesg",
}

// prune runs in mmdebstrap once the packages are extracted and their archives are still there.
//
//go:embed prune.sh
var prune string

// Recipe changes when a base made before is not what Make makes now.
func Recipe() string {
	return strings.Join(append([]string{Suite, prune}, packages...), "\n")
}

// Make writes the base for an architecture (amd64 or arm64) as an uncompressed tar archive to the file out. It takes
// the packages from the mirror that WEFT_DEBIAN_MIRROR names, or else from mmdebstrap's own, and needs root.
func Make(ctx context.Context, arch, out string) error {
	const program = "mmdebstrap"
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w; install it (apt-get install mmdebstrap debian-archive-keyring)", err)
	}
	out, err := filepath.Abs(out) // mmdebstrap runs the hook in a folder of its own
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	tmp, hook := out+".tmp.tar", out+".prune.sh"
	if err := os.WriteFile(hook, []byte(prune), 0o755); err != nil {
		return err
	}
	defer os.Remove(hook) //nolint:errcheck // a script left behind does no harm
	args := []string{
		"--quiet", "--variant=extract", "--format=tar", "--architectures=" + arch, "--include=" + strings.Join(packages, ","),
		"--keyring=/usr/share/keyrings/debian-archive-keyring.gpg", "--skip=output/dev", "--extract-hook=" + hook, Suite, tmp,
	}
	if mirror := os.Getenv("WEFT_DEBIAN_MIRROR"); mirror != "" {
		args = append(args, mirror)
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the caller chooses architecture, file and mirror
	// One time for all files, in every release: the same packages are then the same layer, which nodes have already.
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0", "LC_ALL=C")
	var words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &words, &words
	err = cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(words.String()))
	} else {
		err = Check(tmp)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make the base for %s: %w", arch, err), os.Remove(tmp))
	}
	return os.Rename(tmp, out)
}
