// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	debianSuite = "trixie"
	keyring     = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// recipe changes when the steps below do, so that old results are not used.
	recipe = "1"
)

// nodePackages is what a node has beyond Debian's minimal system. LVM and MD are there because they are on many nodes,
// and take up what they find.
func nodePackages() []string {
	return []string{
		"ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "crun",
		"cryptsetup-bin", "dmsetup", "e2fsprogs", "ethtool", "iproute2", "iputils-ping", "kmod", "lvm2", "mdadm", "nftables", "nvme-cli",
		"openssh-server", "procps", "socat", "udev", "util-linux", "xfsprogs",
	}
}

// unusedNodeFiles are removed from the nodes' root filesystem, as patterns below the root.
func unusedNodeFiles() []string {
	return []string{
		"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*.log", "var/cache/debconf/*-old",
		"usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*",
	}
}

// unusedModules are driver folders that no emulated machine needs.
func unusedModules() []string {
	return []string{
		"sound", "drivers/accel", "drivers/bluetooth", "drivers/comedi", "drivers/gpu", "drivers/hid", "drivers/hwmon",
		"drivers/iio", "drivers/input", "drivers/isdn", "drivers/media", "drivers/mmc", "drivers/mtd",
		"drivers/net/can", "drivers/net/ethernet", "drivers/net/usb", "drivers/net/wireless", "drivers/net/wwan",
		"drivers/platform", "drivers/staging", "drivers/usb", "drivers/video", "drivers/infiniband/hw",
		"net/bluetooth", "net/mac80211", "net/wireless", "net/can", "net/nfc",
	}
}

// debootstrap makes a minimal Debian system with packages in dir, from the
// mirror that WEFT_DEBIAN_MIRROR names or else debootstrap's own.
func debootstrap(ctx context.Context, dir string, packages []string) error {
	args := []string{"debootstrap", "--variant=minbase", "--keyring=" + keyring,
		"--include=" + strings.Join(packages, ","), debianSuite, dir}
	if mirror := os.Getenv("WEFT_DEBIAN_MIRROR"); mirror != "" {
		args = append(args, mirror)
	}
	return Run(ctx, args...)
}

// inRoot runs a program inside the root filesystem dir.
func inRoot(ctx context.Context, dir string, args ...string) error {
	return Cmd{
		Env:  []string{"DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Args: append([]string{"chroot", dir}, args...),
	}.Run(ctx)
}

func removeGlobs(dir string, patterns []string) error {
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("pattern %s: %w", pattern, err)
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeRootfs returns a folder with the nodes' root filesystem, kernel and
// modules included.
func (b *Builder) nodeRootfs(ctx context.Context) (string, error) {
	key, err := Key(append(nodePackages(), append(unusedModules(), debianSuite, recipe)...)...)
	if err != nil {
		return "", err
	}
	return b.ensureStep(ctx, "rootfs-"+key, "node root filesystem (debootstrap)", func(ctx context.Context, tmp string) error {
		if err := debootstrap(ctx, tmp, nodePackages()); err != nil {
			return err
		}
		if err := installKernel(ctx, tmp); err != nil {
			return fmt.Errorf("install the kernel: %w", err)
		}
		return removeGlobs(tmp, unusedNodeFiles())
	})
}

// installKernel unpacks Debian's kernel image without configuring the package:
// that would make an initial RAM disk with every driver, and take a minute.
func installKernel(ctx context.Context, root string) error {
	for _, args := range [][]string{
		{"apt-get", "update", "-q"},
		{"apt-get", "install", "-q", "-y", "--no-install-recommends", "--download-only", "linux-image-amd64"},
		{"sh", "-c", "dpkg-deb -x /var/cache/apt/archives/linux-image-[0-9]*.deb /"},
	} {
		if err := inRoot(ctx, root, args...); err != nil {
			return err
		}
	}
	release, err := kernelRelease(root)
	if err != nil {
		return err
	}
	modules := filepath.Join(root, "usr/lib/modules", release, "kernel")
	if err := removeGlobs(modules, unusedModules()); err != nil {
		return err
	}
	// Unpacking modules costs an emulated CPU more than reading them.
	unpack := "find /usr/lib/modules -name '*.ko.xz' -print0 | xargs -0 -r xz -d"
	if err := Run(ctx, "sh", "-c", strings.Replace(unpack, "/usr", root+"/usr", 1)); err != nil {
		return err
	}
	return inRoot(ctx, root, "depmod", release)
}

// kernelRelease returns the release of the one kernel in root.
func kernelRelease(root string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "usr/lib/modules"))
	if err != nil {
		return "", err
	}
	if len(entries) != 1 {
		return "", fmt.Errorf("%s has %d kernels instead of one", root, len(entries))
	}
	return entries[0].Name(), nil
}

// ensureStep is Cache.Ensure with progress shown when there is work to do.
func (b *Builder) ensureStep(ctx context.Context, rel, what string, fn func(ctx context.Context, tmp string) error) (string, error) {
	if b.Cache.Has(rel) {
		return b.Cache.Path(rel), nil
	}
	var path string
	err := b.Progress.Step(what, func() (err error) {
		path, err = b.Cache.Ensure(ctx, rel, fn)
		return err
	})
	return path, err
}
