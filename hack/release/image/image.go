// SPDX-License-Identifier: Apache-2.0

// Package image puts weft's programs on a base: one layer and a configuration, without running anything. The same
// programs on the same base give the same bytes, on any machine and for any architecture. A release and the lab make
// their images with it.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec is what distinguishes one of weft's images from another. TestSpecsAreTheDockerfiles compares them with the
// Dockerfile, which makes the same images where there is Docker.
type Spec struct {
	// Name is the last part of the image's repository.
	Name, Description, Licenses string
	// User that containers run as: UID:GID.
	User string
	// Programs are in /usr/local/bin.
	Programs        []string
	Entrypoint, Cmd []string
}

// Weft is the image of all processes of weft but target pods.
func Weft() Spec {
	return Spec{
		Name:        "weft",
		Description: "Operator, node agent and CSI driver for NVMe over Fabrics",
		Licenses:    "Apache-2.0",
		User:        "65532:65532",
		Programs:    []string{"weft-operator", "weft-agent", "weft-csi"},
	}
}

// Target is the image of target pods. Its base has SPDK's nvmf_tgt.
func Target() Spec {
	return Spec{
		Name:        "weft-target",
		Description: "SPDK's NVMe-oF target, started by weft",
		Licenses:    "Apache-2.0 AND BSD-3-Clause",
		User:        "0:0",
		Programs:    []string{"weft-launch"},
		Entrypoint:  []string{"/usr/local/bin/weft-launch"},
		Cmd:         []string{"--help"},
	}
}

// Options say which programs go into an image, and what it says of itself.
type Options struct {
	// Arch is amd64 or arm64.
	Arch string
	// Programs is the folder with the programs for Arch.
	Programs string
	// Version is the image's, Revision the commit that it was built from.
	Version, Revision string
	// Created is the time of all files of the layer, and of the image.
	Created time.Time
	// Compress the layer. Without it, unpacking costs an emulated CPU less.
	Compress bool
}

// Build puts the programs on base.
func (s Spec) Build(base v1.Image, o Options) (v1.Image, error) {
	content, err := s.layer(o)
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: %w", s.Name, o.Arch, err)
	}
	layer, err := Layer(content, o.Compress)
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: %w", s.Name, o.Arch, err)
	}
	img, err := mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: o.Created}, CreatedBy: "COPY " + fmt.Sprint(s.Programs) + " /usr/local/bin/"},
	})
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: %w", s.Name, o.Arch, err)
	}
	have, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the base of %s: %w", s.Name, err)
	}
	if have.Architecture != o.Arch {
		return nil, fmt.Errorf("the base of %s is for %q; give one for %s", s.Name, have.Architecture, o.Arch)
	}
	config := have.DeepCopy()
	config.Created = v1.Time{Time: o.Created}
	config.Config.User, config.Config.Entrypoint, config.Config.Cmd = s.User, s.Entrypoint, s.Cmd
	if config.Config.Labels == nil {
		config.Config.Labels = map[string]string{}
	}
	for key, value := range s.Labels(o.Version, o.Revision) {
		config.Config.Labels[key] = value
	}
	return mutate.ConfigFile(img, config)
}

// Labels of the image, which are the annotations of its index as well.
func (s Spec) Labels(version, revision string) map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":       s.Name,
		prefix + "description": s.Description,
		prefix + "source":      "https://github.com/weft-storage/weft",
		prefix + "licenses":    s.Licenses,
		prefix + "version":     version,
		prefix + "revision":    revision,
	}
}

// layer is an archive of the programs in /usr/local/bin.
func (s Spec) layer(o Options) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(slices.Values(s.Programs)) {
		data, err := os.ReadFile(filepath.Join(o.Programs, name))
		if err != nil {
			return nil, fmt.Errorf("program %s is not built (%w); run make binaries ARCH=%s", name, err, o.Arch)
		}
		head := &tar.Header{
			Name: path.Join("usr/local/bin", name), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg,
			ModTime: o.Created.UTC().Truncate(time.Second),
		}
		if err := w.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// Layer of an archive.
func Layer(content []byte, compress bool) (v1.Layer, error) {
	if !compress {
		return static.NewLayer(content, types.DockerUncompressedLayer), nil
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
