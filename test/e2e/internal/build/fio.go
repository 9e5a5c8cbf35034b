// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
	rootfs, err := b.baseRootfs(ctx)
	if err != nil {
		return "", err
	}
	return b.ensureStep(ctx, "image-fio-"+filepath.Base(rootfs)+".tar", "image with fio (debootstrap)", func(ctx context.Context, tmp string) (err error) {
		full := tmp + ".root"
		defer func() { err = errors.Join(err, RemoveTree(full)) }()
		if err := errors.Join(RemoveTree(full), debootstrap(ctx, full, append(basePackages(), "fio"))); err != nil {
			return err
		}
		fio, err := fioLayer(ctx, full, rootfs)
		if err != nil {
			return err
		}
		base, err := folderLayer(ctx, rootfs)
		if err != nil {
			return err
		}
		return imagefile.Image{Layers: [][]byte{base, fio}}.Write(tmp, FioImage)
	})
}

// fioLayer has the fio of one root filesystem, and those of its libraries that another lacks.
func fioLayer(ctx context.Context, full, base string) ([]byte, error) {
	listed, err := Output(ctx, "chroot", full, "ldd", "/"+fioProgram)
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
		path := strings.Fields(found)[0]
		if _, err := os.Stat(filepath.Join(base, path)); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		// In Debian /lib is a link, and a layer must not put a folder in its place.
		layer.File("usr/"+strings.TrimPrefix(path, "usr/"), filepath.Join(full, path), 0o755)
	}
	return layer.Bytes()
}
