// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

// rootDiskSize is the size of a node's root disk; the file is sparse.
const rootDiskSize = "16G"

// Machine is all that a virtual machine needs.
type Machine struct {
	Boot
	// Disk is a raw image of the root disk. It is shared: nodes write to
	// overlays of their own.
	Disk string
}

// VM builds a machine without Kubernetes, for running test programs on its
// kernel.
func (b *Builder) VM(ctx context.Context) (Machine, error) {
	if err := b.EnsureHostTools(ctx); err != nil {
		return Machine{}, err
	}
	rootfs, err := b.nodeRootfs(ctx)
	if err != nil {
		return Machine{}, err
	}
	init, err := b.nodeInit(ctx)
	if err != nil {
		return Machine{}, err
	}
	return b.machine(ctx, "vm", rootfs, init, nil)
}

// addition puts something more into a copy of the root filesystem. Its key
// names what it adds.
type addition struct {
	key string
	add func(ctx context.Context, root string) error
}

// machine makes a disk image from the root filesystem, the init program and
// the additions.
func (b *Builder) machine(ctx context.Context, kind, rootfs, init string, additions []addition) (Machine, error) {
	// The init program counts with its content: its name changes with every
	// change of this module's dependencies, most of which it does not use.
	parts := []string{filepath.Base(rootfs), init, rootDiskSize, recipe}
	for _, a := range additions {
		parts = append(parts, a.key)
	}
	key, err := Key(parts...)
	if err != nil {
		return Machine{}, err
	}
	boot, err := b.boot(ctx, rootfs, init)
	if err != nil {
		return Machine{}, err
	}
	disk, err := b.ensureStep(ctx, "disk-"+kind+"-"+key+".img", kind+" root disk", func(ctx context.Context, tmp string) (err error) {
		root := tmp + ".root"
		if err := RemoveTree(root); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, RemoveTree(root)) }()
		if err := Run(ctx, "cp", "-a", "--reflink=auto", rootfs, root); err != nil {
			return err
		}
		if err := fillRoot(root, init); err != nil {
			return err
		}
		for _, a := range additions {
			if err := a.add(ctx, root); err != nil {
				return err
			}
		}
		return Run(ctx, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-m", "0",
			"-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0", "-d", root, tmp, rootDiskSize)
	})
	return Machine{Boot: boot, Disk: disk}, err
}

// fillRoot adds to a root filesystem what every machine has.
func fillRoot(root, init string) error {
	for _, dir := range []string{nodeconfig.Dir, nodeconfig.ShareDir, nodeconfig.LogDir} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	// The kernel is started by the machine monitor and needs no copy here.
	if err := removeGlobs(root, []string{"boot/*"}); err != nil {
		return err
	}
	if err := copyFile(init, filepath.Join(root, "usr", nodeconfig.InitPath), 0o755); err != nil {
		return err
	}
	return os.Symlink(nodeconfig.InitPath, filepath.Join(root, nodeconfig.SystemctlPath))
}
