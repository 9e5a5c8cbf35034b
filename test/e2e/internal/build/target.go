// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
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
	root, err := b.baseArchive(ctx)
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
	key, err := Key(filepath.Base(root), string(spdk))
	if err != nil {
		return err
	}
	base, err := b.Cache.Ensure(ctx, "image-target-base-"+key+".tar", func(_ context.Context, tmp string) error {
		// The first layer is that of ToolsImage, which nodes have.
		layer, err := os.ReadFile(root)
		if err != nil {
			return err
		}
		return image{ref: "weft.storage/lab-target-base:latest", layers: [][]byte{layer, spdk}}.write(tmp)
	})
	if err != nil {
		return err
	}
	version, err := b.targetVersion()
	if err != nil {
		return err
	}
	return b.projectImage(ctx, archive, projectImage{target: "weft-target", version: version, baseArg: "TARGET_BASE", base: base})
}

func (b *Builder) fakeTargetLayer(ctx context.Context) ([]byte, error) {
	program := filepath.Join(b.Repo, "bin", "fake-nvmf-tgt")
	if err := b.goBuild(ctx, b.moduleDir(), "-s -w", program, fakeTarget); err != nil {
		return nil, err
	}
	return programLayer(program, targetProgram)
}

// realTargetLayer has what PackTarget makes, and nvmf_tgt in PATH.
func realTargetLayer(ctx context.Context, program string) (layer []byte, err error) {
	root, err := os.MkdirTemp("", "weft-target-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	link := filepath.Join(root, targetProgram)
	err = errors.Join(
		os.Chmod(root, 0o755), // it becomes the image's root folder
		os.MkdirAll(filepath.Dir(link), 0o755),
		os.MkdirAll(filepath.Join(root, filepath.Dir(spdkDir)), 0o755),
		os.Symlink(path.Join("/", spdkDir, packedTarget), link),
	)
	if err != nil {
		return nil, err
	}
	if err := PackTarget(ctx, program, filepath.Join(root, spdkDir)); err != nil {
		return nil, err
	}
	return folderLayer(ctx, root)
}
