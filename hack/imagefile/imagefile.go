// SPDX-License-Identifier: Apache-2.0

// Package imagefile makes container images from files, without a container engine or a registry: archives as `docker
// save` writes them. The same content gives the same image, whoever makes it and when.
//
// Target makes the image of target pods from an nvmf_tgt that a machine has: with the libraries that it has there, and
// labels that say what it can do.
package imagefile

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// path of programs in an image.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Image of one architecture.
type Image struct {
	// Layers from the lowest up, as tar archives. They are not compressed: unpacking costs an emulated CPU more than
	// reading.
	Layers [][]byte
	// Architecture as Go names it; empty means this machine's.
	Architecture string
	// Entrypoint is what its containers run, Cmd what that is given when a container gives it nothing.
	Entrypoint, Cmd []string
	// User that they run as; empty means root.
	User string
	// Env is set besides PATH.
	Env    []string
	Labels map[string]string
}

// Build the image.
func (i Image) Build() (v1.Image, error) {
	var layers []v1.Layer
	for _, layer := range i.Layers {
		layers = append(layers, static.NewLayer(layer, types.DockerUncompressedLayer))
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	have, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := have.DeepCopy()
	config.OS, config.Architecture = "linux", i.Architecture
	if config.Architecture == "" {
		config.Architecture = runtime.GOARCH
	}
	config.Config = v1.Config{Env: append([]string{path}, i.Env...), Entrypoint: i.Entrypoint, Cmd: i.Cmd, User: i.User, Labels: i.Labels}
	return mutate.ConfigFile(img, config)
}

// Write the image as an archive that docker, ctr, podman and buildah read, under each of the names refs.
func (i Image) Write(file string, refs ...string) error {
	img, err := i.Build()
	if err != nil {
		return fmt.Errorf("image %s: %w", refs, err)
	}
	named := map[name.Tag]v1.Image{}
	for _, ref := range refs {
		tag, err := name.NewTag(ref)
		if err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
		named[tag] = img
	}
	if err := tarball.MultiWriteToFile(file, named); err != nil {
		return fmt.Errorf("write image %s: %w", refs, err)
	}
	return nil
}

// Layer is written entry by entry, all of root's and of the same time.
type Layer struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

// File at name, without a leading slash, with the content of the file at from.
func (l *Layer) File(name, from string, mode int64) {
	data, err := os.ReadFile(from)
	if err != nil {
		l.fail(err)
		return
	}
	l.add(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg}, data)
}

// Link at name, a symbolic one.
func (l *Layer) Link(name, target string) {
	l.add(&tar.Header{Name: name, Linkname: target, Mode: 0o777, Typeflag: tar.TypeSymlink}, nil)
}

// Folder at name.
func (l *Layer) Folder(name string, mode int64) {
	l.add(&tar.Header{Name: name + "/", Mode: mode, Typeflag: tar.TypeDir}, nil)
}

func (l *Layer) add(head *tar.Header, data []byte) {
	if l.err != nil {
		return
	}
	if l.tar == nil {
		l.tar = tar.NewWriter(&l.buf)
	}
	head.ModTime = time.Unix(0, 0)
	if err := l.tar.WriteHeader(head); err != nil {
		l.fail(fmt.Errorf("pack %s: %w", head.Name, err))
	} else if _, err := l.tar.Write(data); err != nil {
		l.fail(fmt.Errorf("pack %s: %w", head.Name, err))
	}
}

func (l *Layer) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Bytes of the layer, which takes no more entries, or the first error.
func (l *Layer) Bytes() ([]byte, error) {
	if l.err != nil {
		return nil, l.err
	}
	if l.tar != nil {
		if err := l.tar.Close(); err != nil {
			return nil, err
		}
	}
	return l.buf.Bytes(), nil
}
