// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// FromRootfs is an image with one layer, the root filesystem in the archive.
func FromRootfs(archive, arch string, compress bool) (v1.Image, error) {
	content, err := os.ReadFile(archive)
	if err != nil {
		return nil, err
	}
	layer, err := Layer(content, compress)
	if err != nil {
		return nil, fmt.Errorf("layer of %s: %w", archive, err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: arch, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "Debian's packages, extracted"}})
}

// Base finds the image for an architecture behind a reference: a folder with an OCI image layout, a root filesystem as
// FILE.tar for each architecture in a folder (FOLDER/amd64.tar), or an image in a registry.
func Base(ctx context.Context, ref, arch string) (v1.Image, error) {
	rootfs := filepath.Join(ref, arch+".tar")
	if _, err := os.Stat(rootfs); err == nil {
		return FromRootfs(rootfs, arch, true)
	}
	if _, err := os.Stat(filepath.Join(ref, "index.json")); err == nil {
		return fromLayout(ref, arch)
	}
	if _, err := os.Stat(ref); err == nil || filepath.IsAbs(ref) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("base %s has neither %s.tar nor index.json; give a folder with a root filesystem for each "+
			"architecture, an OCI image layout, or an image in a registry", ref, arch)
	}
	image, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	platform := v1.Platform{OS: "linux", Architecture: arch}
	img, err := remote.Image(image, remote.WithPlatform(platform), remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("base for %s: %w", arch, err)
	}
	return img, nil
}

func fromLayout(dir, arch string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", dir, err)
	}
	img, err := find(index, arch)
	if err == nil && img == nil {
		err = fmt.Errorf("it has no image for linux/%s", arch)
	}
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", dir, err)
	}
	return img, nil
}

// find looks for the image of an architecture in an index, and in the indexes in it; nil when there is none.
func find(index v1.ImageIndex, arch string) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		switch {
		case m.MediaType.IsIndex():
			inner, err := index.ImageIndex(m.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := find(inner, arch); img != nil || err != nil {
				return img, err
			}
		case m.MediaType.IsImage():
			img, err := index.Image(m.Digest)
			if err != nil {
				return nil, err
			}
			config, err := img.ConfigFile()
			if err != nil {
				return nil, err
			}
			if config.OS == "linux" && config.Architecture == arch {
				return img, nil
			}
		}
	}
	return nil, nil
}
