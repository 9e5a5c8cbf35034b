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

// image of files of this machine.
type image struct {
	// name of its archive in the cache, which begins with image-.
	name string
	refs []string
	// onTools: on top of ToolsImage's layer, which nodes have.
	onTools         bool
	files           []file
	entrypoint, cmd []string
}

// file of an image, with the program of this machine that it is made from, or the target of a symbolic link.
type file struct{ name, from, link string }

// makeImage returns the archive of an image.
func (b *Builder) makeImage(ctx context.Context, im image) (string, error) {
	tools := ""
	if im.onTools {
		var err error
		if tools, err = b.baseArchive(ctx); err != nil {
			return "", err
		}
	}
	key, err := im.key(tools)
	if err != nil {
		return "", err
	}
	return b.Cache.Ensure(ctx, "image-"+im.name+"-"+key+".tar", func(_ context.Context, tmp string) error {
		layers, err := im.layers(tools)
		if err != nil {
			return err
		}
		return imagefile.Image{Layers: layers, Entrypoint: im.entrypoint, Cmd: im.cmd}.Write(tmp, im.refs...)
	})
}

// key of all that an image is made from. tools is the archive below it, empty for none.
func (im image) key(tools string) (string, error) {
	// What begins with a slash would stand for a file of this machine.
	said := func(what string, words []string) string { return what + " " + strings.Join(words, " ") }
	parts := []string{said("on", []string{filepath.Base(tools), runtime.GOARCH}), said("refs", im.refs), said("entrypoint", im.entrypoint), said("cmd", im.cmd)}
	for _, f := range im.files {
		parts = append(parts, said("file", []string{f.name, f.link}))
		if f.link == "" {
			parts = append(parts, f.from)
		}
	}
	return Key(parts...)
}

func (im image) layers(tools string) ([][]byte, error) {
	var layers [][]byte
	if tools != "" {
		layer, err := os.ReadFile(tools)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	if len(im.files) == 0 {
		return layers, nil
	}
	var own imagefile.Layer
	for _, f := range im.files {
		if f.link != "" {
			own.Link(f.name, f.link)
		} else {
			own.File(f.name, f.from, 0o755)
		}
	}
	layer, err := own.Bytes()
	return append(layers, layer), err
}
