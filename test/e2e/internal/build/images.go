// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"github.com/weft-storage/weft/hack/release/base"
	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	// PauseImage is the sandbox image that the nodes' containerd is told to use.
	PauseImage = "registry.k8s.io/pause:3.10.1"
	// ToolsImage has a shell, coreutils and filesystem tools, for pods of tests.
	// It is also the base of the project's image.
	ToolsImage = "weft.storage/lab-tools:latest"
	// SampleImage is the image of the pods in config/samples. Nodes have ToolsImage under this name too, so that the
	// samples run there as they are.
	SampleImage = "docker.io/library/busybox:1.37"

	sidecarRepository = "registry.k8s.io/sig-storage/"
)

// baseArchive returns a tar archive with the root filesystem of ToolsImage: the base that a release has.
func (b *Builder) baseArchive(ctx context.Context) (string, error) {
	key, err := Key(base.Recipe(), runtime.GOARCH)
	if err != nil {
		return "", err
	}
	return b.ensureStep(ctx, "base-"+key+".tar", "base of the images (mmdebstrap)", func(ctx context.Context, tmp string) error {
		return base.Make(ctx, runtime.GOARCH, tmp)
	})
}

// toolsImage returns the archive of ToolsImage, which is SampleImage too.
func (b *Builder) toolsImage(ctx context.Context) (string, error) {
	return b.makeImage(ctx, image{name: "tools", refs: []string{ToolsImage, SampleImage}, onTools: true})
}

// pauseImage returns the archive of PauseImage.
func (b *Builder) pauseImage(ctx context.Context) (string, error) {
	program, err := b.nodeInit(ctx)
	if err != nil {
		return "", err
	}
	return b.programImage(ctx, program, filepath.Base(nodeconfig.PausePath), PauseImage)
}

// programImage returns the archive of an image with one static program.
func (b *Builder) programImage(ctx context.Context, program, name, ref string) (string, error) {
	return b.makeImage(ctx, image{
		name: name, refs: []string{ref}, files: []file{{name: name, from: program}}, entrypoint: []string{"/" + name},
	})
}

// goImages returns the archives of the images made from Go programs: sandbox
// and sidecars.
func (b *Builder) goImages(ctx context.Context) ([]string, error) {
	pause, err := b.pauseImage(ctx)
	if err != nil {
		return nil, err
	}
	out := []string{pause}
	rel, err := b.sidecarDir()
	if err != nil {
		return nil, err
	}
	for _, s := range sidecars() {
		if err := b.buildPrograms(ctx, rel, []program{s.program()}); err != nil {
			return nil, err
		}
		version, err := b.moduleVersion("sidecars", s.module)
		if err != nil {
			return nil, err
		}
		archive, err := b.programImage(ctx, b.Cache.Path(filepath.Join(rel, s.name)), s.name, sidecarRepository+s.name+":"+version)
		if err != nil {
			return nil, err
		}
		out = append(out, archive)
	}
	return out, nil
}

// importScript runs inside a root filesystem, in namespaces of its own: mounts
// and processes end with it. It imports what lies in /images.
const importScript = `set -eu
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
containerd --log-level warn &
while [ ! -S /run/containerd/containerd.sock ]; do kill -0 $!; sleep 0.1; done
for image in /images/*; do ctr -n k8s.io images import "$image" >/dev/null; done
kill $!; wait $! || true
`

// preload imports the images into the containerd of a root filesystem, with
// its own containerd but at the host's speed.
func preload(archives []string) (addition, error) {
	parts := []string{recipe}
	for _, a := range archives {
		parts = append(parts, filepath.Base(a))
	}
	key, err := Key(parts...)
	if err != nil {
		return addition{}, err
	}
	add := func(ctx context.Context, root string) (err error) {
		dir := filepath.Join(root, "images")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		for _, a := range archives {
			if err := copyFile(a, filepath.Join(dir, filepath.Base(a)), 0o644); err != nil {
				return err
			}
		}
		return Run(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", root, "sh", "-c", importScript)
	}
	return addition{key: key, add: add}, nil
}

// AddImage copies the disk image from to the file to and imports an image
// archive into the copy's containerd. It also writes content to the file marker
// inside. On the host this takes seconds; on a running node, a minute.
func (b *Builder) AddImage(ctx context.Context, from, to, archive, marker, content string) error {
	const script = `set -eu
mount -o loop "$1" "$2"
mkdir -p "$2/images" "$2$(dirname "$4")"
cp "$3" "$2/images/"
echo "$5" >"$2$4"
chroot "$2" sh -c "$6"
umount "$2/run" "$2/proc"
rm -r "$2/images"
umount "$2"
`
	return b.Progress.Step("put the image on the nodes' disk", func() error {
		tmp, dir := to+".tmp", to+".mnt"
		if err := errors.Join(RemoveTree(tmp), RemoveTree(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return err
		}
		if err := Run(ctx, "cp", "--sparse=always", from, tmp); err != nil {
			return err
		}
		err := Run(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child",
			"sh", "-c", script, "sh", tmp, dir, archive, marker, content, importScript)
		if err != nil {
			return errors.Join(err, os.RemoveAll(tmp))
		}
		return errors.Join(os.Rename(tmp, to), os.Remove(dir))
	})
}
