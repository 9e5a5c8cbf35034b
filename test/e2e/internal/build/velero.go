// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/weft-storage/weft/hack/imagefile"
)

const (
	veleroModule       = "github.com/vmware-tanzu/velero"
	veleroPluginModule = "github.com/vmware-tanzu/velero-plugin-for-aws"
	// S3Image has versitygw, which serves the S3 protocol from a folder.
	S3Image = "weft.storage/lab-s3:latest"
)

// Velero backs namespaces up, with their volumes.
type Velero struct {
	// Program is its command line, and Plugin the image of its plugin for S3, which "velero install" is told.
	Program, Plugin string
	// Archives are those of its images and of S3Image. They have the names that its makers give them.
	Archives []string
}

// veleroPrograms lists what tools/velero and tools/s3 make.
func veleroPrograms() (velero, plugin, copier, s3 program) {
	return program{name: "velero", module: "velero", pkg: veleroModule + "/cmd/velero"},
		program{name: "velero-plugin-for-aws", module: "velero", pkg: veleroPluginModule + "/velero-plugin-for-aws"},
		program{name: "cp-plugin", module: "velero", pkg: veleroPluginModule + "/hack/cp-plugin"},
		program{name: "versitygw", module: "s3", pkg: "github.com/versity/versitygw/cmd/versitygw"}
}

// Velero builds it, its plugin for S3, and a server of S3, and their images.
func (b *Builder) Velero(ctx context.Context) (Velero, error) {
	key, err := b.binKey("velero", "s3")
	if err != nil {
		return Velero{}, err
	}
	rel := "velero-" + key
	velero, plugin, copier, s3 := veleroPrograms()
	if err := b.buildPrograms(ctx, rel, []program{velero, plugin, copier, s3}); err != nil {
		return Velero{}, err
	}
	version, err := b.moduleVersion("velero", veleroModule)
	if err != nil {
		return Velero{}, err
	}
	pluginVersion, err := b.moduleVersion("velero", veleroPluginModule)
	if err != nil {
		return Velero{}, err
	}
	path := func(p program) string { return b.Cache.Path(filepath.Join(rel, p.name)) }
	out := Velero{Program: path(velero), Plugin: "velero/velero-plugin-for-aws:" + pluginVersion}
	for _, image := range []onTools{
		{ref: "docker.io/velero/velero:" + version, name: "velero", files: []file{{"velero", path(velero)}}},
		{
			ref: "docker.io/" + out.Plugin, name: "velero-plugin-for-aws",
			files: []file{{"plugins/velero-plugin-for-aws", path(plugin)}, {"usr/bin/cp-plugin", path(copier)}},
			// As its maker's image does: an init container of Velero's server copies the plugin to a volume.
			entrypoint: []string{"/usr/bin/cp-plugin", "/plugins/velero-plugin-for-aws", "/target/velero-plugin-for-aws"},
		},
		{ref: S3Image, name: "s3", files: []file{{"usr/bin/versitygw", path(s3)}}},
	} {
		archive, err := b.onToolsImage(ctx, image)
		if err != nil {
			return Velero{}, err
		}
		out.Archives = append(out.Archives, archive)
	}
	return out, nil
}

// onTools is an image of programs on top of ToolsImage's layer, which nodes have.
type onTools struct {
	// name is that of the archive in the cache.
	ref, name  string
	files      []file
	entrypoint []string
}

// file of an image, and the file of this machine that it is made from.
type file struct{ name, from string }

// onToolsImage returns the archive of the image.
func (b *Builder) onToolsImage(ctx context.Context, image onTools) (string, error) {
	root, err := b.baseArchive(ctx)
	if err != nil {
		return "", err
	}
	// What begins with a slash would stand for a file of this machine.
	parts := []string{filepath.Base(root), image.ref, runtime.GOARCH, "entrypoint " + strings.Join(image.entrypoint, " ")}
	for _, f := range image.files {
		parts = append(parts, f.name, f.from)
	}
	key, err := Key(parts...)
	if err != nil {
		return "", err
	}
	return b.Cache.Ensure(ctx, "image-"+image.name+"-"+key+".tar", func(_ context.Context, tmp string) error {
		base, err := os.ReadFile(root)
		if err != nil {
			return err
		}
		var layer imagefile.Layer
		for _, f := range image.files {
			layer.File(f.name, f.from, 0o755)
		}
		programs, err := layer.Bytes()
		if err != nil {
			return err
		}
		return imagefile.Image{Layers: [][]byte{base, programs}, Entrypoint: image.entrypoint}.Write(tmp, image.ref)
	})
}
