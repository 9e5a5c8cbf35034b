// SPDX-License-Identifier: Apache-2.0

package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/weft-storage/weft/hack/imagefile"
)

// Images of ToolsImage and programs of Debian.
const (
	// FioImage has fio.
	FioImage = "weft.storage/lab-fio:latest"
	// ResticImage has restic, and rclone, which can serve a repository.
	ResticImage = "weft.storage/lab-restic:latest"
)

// FioImage returns the archive of FioImage.
func (b *Builder) FioImage(ctx context.Context) (string, error) {
	return b.imageWith(ctx, FioImage, "fio")
}

// ResticImage returns the archive of ResticImage.
func (b *Builder) ResticImage(ctx context.Context) (string, error) {
	return b.imageWith(ctx, ResticImage, "restic", "rclone")
}

// imageWith returns the archive of an image: ToolsImage's layer, which nodes have, and the programs in /usr/bin with
// the names of these packages of Debian, with those of their libraries that the layer lacks.
func (b *Builder) imageWith(ctx context.Context, ref string, packages ...string) (string, error) {
	if err := b.EnsureHostTools(ctx); err != nil {
		return "", err
	}
	archive, err := b.baseArchive(ctx)
	if err != nil {
		return "", err
	}
	name := strings.Join(packages, "-")
	return b.ensureStep(ctx, "image-"+name+"-"+filepath.Base(archive), "image with "+name+" (debootstrap)", func(ctx context.Context, tmp string) (err error) {
		full := tmp + ".root"
		defer func() { err = errors.Join(err, RemoveTree(full)) }()
		if err := errors.Join(RemoveTree(full), debootstrap(ctx, full, packages)); err != nil {
			return err
		}
		base, err := os.ReadFile(archive)
		if err != nil {
			return err
		}
		programs, err := layerOfPrograms(ctx, full, base, packages)
		if err != nil {
			return err
		}
		return imagefile.Image{Layers: [][]byte{base, programs}}.Write(tmp, ref)
	})
}

// layerOfPrograms has programs of a root filesystem, and those of their libraries that base, a tar archive, lacks.
func layerOfPrograms(ctx context.Context, full string, base []byte, programs []string) ([]byte, error) {
	have, err := entries(base)
	if err != nil {
		return nil, err
	}
	var layer imagefile.Layer
	for _, program := range programs {
		program = "usr/bin/" + program
		layer.File(program, filepath.Join(full, program), 0o755)
		listed, err := Output(ctx, "chroot", full, "ldd", "/"+program)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(listed) {
			// "libaio.so.1t64 => /lib/x/libaio.so.1t64 (0x7f)"; the loader is in every base.
			_, found, ok := strings.Cut(line, "=> /")
			if !ok {
				continue
			}
			file := strings.Fields(found)[0]
			// In Debian /lib is a link, and a layer must not put a folder in its place.
			if name := "usr/" + strings.TrimPrefix(file, "usr/"); !have.Has(name) {
				layer.File(name, filepath.Join(full, file), 0o755)
				have.Insert(name)
			}
		}
	}
	return layer.Bytes()
}

// entries of a tar archive, by their names from its root.
func entries(archive []byte) (sets.Set[string], error) {
	names := sets.New[string]()
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		} else if err != nil {
			return nil, err
		}
		names.Insert(strings.TrimPrefix(path.Clean(head.Name), "/"))
	}
}
