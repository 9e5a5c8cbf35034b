// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"path/filepath"
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
	for _, im := range []image{
		{name: "velero", refs: []string{"docker.io/velero/velero:" + version}, files: []file{{name: "velero", from: path(velero)}}},
		{
			name: "velero-plugin-for-aws", refs: []string{"docker.io/" + out.Plugin},
			files: []file{{name: "plugins/velero-plugin-for-aws", from: path(plugin)}, {name: "usr/bin/cp-plugin", from: path(copier)}},
			// As its maker's image does: an init container of Velero's server copies the plugin to a volume.
			entrypoint: []string{"/usr/bin/cp-plugin", "/plugins/velero-plugin-for-aws", "/target/velero-plugin-for-aws"},
		},
		{name: "s3", refs: []string{S3Image}, files: []file{{name: "usr/bin/versitygw", from: path(s3)}}},
	} {
		im.onTools = true
		archive, err := b.makeImage(ctx, im)
		if err != nil {
			return Velero{}, err
		}
		out.Archives = append(out.Archives, archive)
	}
	return out, nil
}
