// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

// loadedDir is where a node remembers which image was loaded under which name.
const loadedDir = "/var/lib/weft-lab/images"

// WeftArchive is where LoadWeft puts the project's image.
func (l *Lab) WeftArchive() string { return l.path("images", "weft.tar") }

// buildWeft builds the project's image from the programs in bin/.
func (l *Lab) buildWeft(ctx context.Context, b *build.Builder) error {
	if err := os.MkdirAll(filepath.Dir(l.WeftArchive()), 0o755); err != nil {
		return err
	}
	return b.WeftImage(ctx, l.WeftArchive())
}

// LoadWeft builds the project's image from the programs in bin/, and loads it into every node that does not have it.
func (l *Lab) LoadWeft(ctx context.Context, b *build.Builder) error {
	if err := l.buildWeft(ctx, b); err != nil {
		return err
	}
	return b.Progress.Step("load the image into the nodes", func() error { return l.LoadImages(ctx, l.WeftArchive()) })
}

// LoadTarget builds the image of target pods and loads it into every node that does not have it. The SPDK in it is
// program, a real nvmf_tgt, or, when program is empty, the fake that answers SPDK's RPCs and serves no I/O.
func (l *Lab) LoadTarget(ctx context.Context, b *build.Builder, program string) error {
	archive := l.path("images", "weft-target.tar")
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return err
	}
	if err := b.TargetImage(ctx, archive, program); err != nil {
		return err
	}
	return b.Progress.Step("load the target's image into the nodes", func() error { return l.LoadImages(ctx, archive) })
}

// diskWithWeft puts the project's image on a copy of the disk that the nodes
// start from, so that it need not be loaded into each of them.
func (l *Lab) diskWithWeft(ctx context.Context, b *build.Builder, disk string) (string, error) {
	if err := l.buildWeft(ctx, b); err != nil {
		return "", err
	}
	image, err := openArchive(l.WeftArchive())
	if err != nil {
		return "", fmt.Errorf("open the image just built: %w", err)
	}
	defer image.close()
	out := l.path("disk.img")
	marker := path.Join(loadedDir, markerName(image.ref))
	return out, b.AddImage(ctx, disk, out, l.WeftArchive(), marker, image.id.String())
}

// LoadImages loads image archives, as `docker save` writes them, into every
// node's containerd. A node that has exactly this image under this name already
// is left alone.
func (l *Lab) LoadImages(ctx context.Context, archives ...string) error {
	for _, archive := range archives {
		if err := l.loadImage(ctx, archive); err != nil {
			return fmt.Errorf("load %s: %w", archive, err)
		}
	}
	return nil
}

func (l *Lab) loadImage(ctx context.Context, archive string) error {
	image, err := openArchive(archive)
	if err != nil {
		return err
	}
	defer image.close()
	// containerd pulls by itself what it lacks. Given the archive it would take
	// all of it, through a socket and with one more hash: twice the work.
	pullRef, stop, err := l.serve(ctx, image)
	if err != nil {
		return err
	}
	defer stop()
	marker := path.Join(loadedDir, markerName(image.ref))
	script := fmt.Sprintf(`[ "$(cat %[1]s 2>/dev/null)" = '%[2]s' ] && exit 0
set -e
ctr -n k8s.io images pull --plain-http %[3]s >/dev/null
ctr -n k8s.io images tag --force %[3]s %[4]s >/dev/null
ctr -n k8s.io images rm %[3]s >/dev/null
mkdir -p %[5]s
echo '%[2]s' >%[1]s`, marker, image.id, pullRef, image.ref, loadedDir)
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range l.state.Nodes {
		group.Go(func() error { return l.Exec(ctx, node, Streams{}, "sh", "-c", script) })
	}
	return group.Wait()
}

// TagImage gives an image that every node has more names.
func (l *Lab) TagImage(ctx context.Context, have string, names ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range l.state.Nodes {
		group.Go(func() error {
			args := append([]string{"ctr", "-n", "k8s.io", "images", "tag", "--force", have}, names...)
			return l.Exec(ctx, node, Streams{}, args...)
		})
	}
	return group.Wait()
}

// markerName is the file in which a node remembers what it has as ref.
func markerName(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:8])
}
