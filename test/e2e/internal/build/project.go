// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/hack/release/chart"
	release "github.com/weft-storage/weft/hack/release/image"
)

// projectImage is an image of the project's Dockerfile.
type projectImage struct {
	// target of the Dockerfile; the image's repository ends in it.
	target string
	// version is the image's tag.
	version string
	// baseArg is the build argument that names the image's base, and base the archive it is made on.
	baseArg, base string
}

const repositoryPrefix = "ghcr.io/weft-storage/"

// version of the project: the chart's.
func (b *Builder) version() (string, error) {
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	file, err := b.readChart("Chart.yaml", &chart)
	if err == nil && chart.AppVersion == "" {
		err = fmt.Errorf("%s has no appVersion", file)
	}
	return chart.AppVersion, err
}

// targetVersion is that of the image of target pods: the chart's default, which is not the chart's version.
func (b *Builder) targetVersion() (string, error) {
	var values struct {
		Target struct {
			Image struct {
				Tag string `json:"tag"`
			} `json:"image"`
		} `json:"target"`
	}
	file, err := b.readChart("values.yaml", &values)
	if err == nil && values.Target.Image.Tag == "" {
		err = fmt.Errorf("%s has no target.image.tag", file)
	}
	return values.Target.Image.Tag, err
}

// readChart reads one of the chart's files, and answers which that is.
func (b *Builder) readChart(name string, into any) (file string, err error) {
	file = filepath.Join(b.Repo, "charts", "weft", name)
	data, err := os.ReadFile(file)
	if err != nil {
		return file, err
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		return file, fmt.Errorf("parse %s: %w", file, err)
	}
	return file, nil
}

// WeftImageRef is the project's own image: the chart's default.
func (b *Builder) WeftImageRef() (string, error) {
	version, err := b.version()
	return repositoryPrefix + "weft:" + version, err
}

// WeftImage puts the programs in bin/<arch> (make binaries) on the local base, as a release does, and writes the image
// to archive.
func (b *Builder) WeftImage(ctx context.Context, archive string) error {
	if err := b.EnsureHostTools(ctx); err != nil {
		return err
	}
	root, err := b.baseArchive(ctx)
	if err != nil {
		return err
	}
	version, err := b.version()
	if err != nil {
		return err
	}
	ref, err := b.WeftImageRef()
	if err != nil {
		return err
	}
	return b.Progress.Step("image "+ref, func() error {
		// Its first layer is that of ToolsImage, which nodes have.
		on, err := release.FromRootfs(root, runtime.GOARCH, false)
		if err != nil {
			return fmt.Errorf("read the image's base: %w", err)
		}
		// The fixed time makes the same content the same image, which nodes then do not load again.
		weft, err := release.Weft().Build(on, release.Options{
			Arch: runtime.GOARCH, Programs: filepath.Join(b.Repo, "bin", runtime.GOARCH), Version: version, Revision: "unknown", Created: time.Unix(0, 0).UTC(),
		})
		if err != nil {
			return err
		}
		tag, err := name.NewTag(ref)
		if err != nil {
			return err
		}
		return tarball.WriteToFile(archive, tag, weft)
	})
}

// PackedChart packs the project's chart, as a release does, into dir, and returns the archive's path.
func (b *Builder) PackedChart(ctx context.Context, helm, dir string) (string, error) {
	version, err := b.version()
	if err != nil {
		return "", err
	}
	return chart.Pack(ctx, helm, b.Repo, version, dir, time.Unix(0, 0).UTC())
}

// projectImage builds an image of the Dockerfile and writes it to archive, unless the one there was made from the same.
func (b *Builder) projectImage(ctx context.Context, archive string, p projectImage) error {
	ref := repositoryPrefix + p.target + ":" + p.version
	key, err := b.projectImageKey(p, ref)
	if err != nil {
		return err
	}
	keyFile := archive + ".key"
	if have, err := os.ReadFile(keyFile); err == nil && string(have) == key {
		if _, err := os.Stat(archive); err == nil {
			return nil
		}
	}
	err = b.Progress.Step("image "+ref, func() (err error) {
		// A store of its own, thrown away after use: images of earlier builds
		// would fill the disk, and the base is read in a second.
		store := archive + ".store"
		if err := RemoveTree(store); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, RemoveTree(store)) }()
		buildah := func(command string, args ...string) error {
			fixed := []string{"buildah", "--root", store + "/root", "--runroot", store + "/run", "--storage-driver", "vfs", command}
			return Run(ctx, append(fixed, args...)...)
		}
		// The fixed time makes the same content the same image, which nodes
		// then do not load again.
		err = buildah("bud", "--isolation", "chroot", "--pull-never", "--timestamp", "0", "--target", p.target,
			"--build-arg", p.baseArg+"=docker-archive:"+p.base, "--build-arg", "TARGETARCH="+runtime.GOARCH,
			"--build-arg", "VERSION="+p.version,
			"--tag", ref, "--file", filepath.Join(b.Repo, "Dockerfile"), b.Repo)
		if err != nil {
			return err
		}
		if err := errors.Join(os.RemoveAll(keyFile), os.RemoveAll(archive)); err != nil {
			return err
		}
		return buildah("push", ref, "docker-archive:"+archive+":"+ref)
	})
	if err != nil {
		return err
	}
	return os.WriteFile(keyFile, []byte(key), 0o644)
}

// projectImageKey changes with all that the image is made from.
func (b *Builder) projectImageKey(p projectImage, ref string) (string, error) {
	dockerfile := filepath.Join(b.Repo, "Dockerfile")
	programs := filepath.Join(b.Repo, "bin", runtime.GOARCH)
	if _, err := os.Stat(programs); err != nil {
		return "", fmt.Errorf("the programs of the image are not built (%w); run `make binaries`", err)
	}
	return Key(p.target, filepath.Base(p.base), ref, dockerfile, programs)
}

// LabTest builds the tests of a package with build tag lab as one static program, out.
func (b *Builder) LabTest(ctx context.Context, pkg, out string) error {
	return goTool(ctx, b.Repo, "test", "-c", "-trimpath", "-tags", "lab", "-o", out, pkg)
}
