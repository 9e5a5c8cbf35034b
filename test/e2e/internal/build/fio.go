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

// FioImage is ToolsImage with fio.
const FioImage = "weft.storage/lab-fio:latest"

const fioProgram = "usr/bin/fio"

// FioImage returns the archive of FioImage: ToolsImage's layer, which nodes have, and Debian's fio with those of its
// libraries that the layer lacks.
func (b *Builder) FioImage(ctx context.Context) (string, error) {
	if err := b.ensureHostTools(ctx); err != nil {
		return "", err
	}
	archive, err := b.baseArchive(ctx)
	if err != nil {
		return "", err
	}
	return b.ensureStep(ctx, "image-fio-"+filepath.Base(archive), "image with fio (debootstrap)", func(ctx context.Context, tmp string) (err error) {
		full := tmp + ".root"
		defer func() { err = errors.Join(err, RemoveTree(full)) }()
		if err := errors.Join(RemoveTree(full), debootstrap(ctx, full, []string{"fio"})); err != nil {
			return err
		}
		base, err := os.ReadFile(archive)
		if err != nil {
			return err
		}
		fio, err := fioLayer(ctx, full, base)
		if err != nil {
			return err
		}
		return imagefile.Image{Layers: [][]byte{base, fio}}.Write(tmp, FioImage)
	})
}

// fioLayer has the fio of a root filesystem, and those of its libraries that base, a tar archive, lacks.
func fioLayer(ctx context.Context, full string, base []byte) ([]byte, error) {
	listed, err := Output(ctx, "chroot", full, "ldd", "/"+fioProgram)
	if err != nil {
		return nil, err
	}
	have, err := entries(base)
	if err != nil {
		return nil, err
	}
	var layer imagefile.Layer
	layer.File(fioProgram, filepath.Join(full, fioProgram), 0o755)
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
