// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"github.com/weft-storage/weft/hack/imagefile"
)

const (
	// targetProgram is where weft-launch finds SPDK's target in the image.
	targetProgram = "usr/local/bin/nvmf_tgt"
	// fakeTarget is the package of the target that stands in for SPDK's.
	fakeTarget = "./cmd/fake-nvmf-tgt"
)

// TargetImage makes the image of target pods and writes it to archive. The SPDK in it is program, a real nvmf_tgt, in
// the image that a site makes of it, or, when program is empty, the stateful fake, which answers SPDK's RPCs and serves
// no I/O: that one is built from the project's Dockerfile.
func (b *Builder) TargetImage(ctx context.Context, archive, program string) error {
	if program != "" {
		return b.packedTargetImage(ctx, archive, program)
	}
	if err := b.EnsureHostTools(ctx); err != nil {
		return err
	}
	fake := filepath.Join(b.Repo, "bin", "fake-nvmf-tgt")
	if err := b.goBuild(ctx, b.moduleDir(), "-s -w", fake, fakeTarget); err != nil {
		return err
	}
	base, err := b.makeImage(ctx, image{
		name: "target-base", refs: []string{"weft.storage/lab-target-base:latest"}, onTools: true, files: []file{{name: targetProgram, from: fake}},
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

// packedTargetImage is what `make image-target NVMF_TGT=program` makes.
func (b *Builder) packedTargetImage(ctx context.Context, archive, program string) error {
	version, err := b.targetVersion()
	if err != nil {
		return err
	}
	return b.Progress.Step("image of "+program, func() error {
		image, _, err := imagefile.Target(ctx, imagefile.TargetOptions{
			Program: program, Launcher: filepath.Join(b.Repo, "bin", runtime.GOARCH, "weft-launch"), Version: version, Note: b.Progress.Note,
		})
		if err != nil {
			return err
		}
		// It is not what the key of an image built before says.
		return errors.Join(os.RemoveAll(archive+".key"), image.Write(archive, repositoryPrefix+"weft-target:"+version))
	})
}
