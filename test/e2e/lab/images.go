// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

// loadedDir is where a node remembers which image was loaded under which name.
const loadedDir = "/var/lib/weft-lab/images"

// WeftArchive is where LoadWeft puts the project's image.
func (l *Lab) WeftArchive() string { return l.path("images", "weft.tar") }

// LoadWeft builds the project's image from the repository's Dockerfile and the
// programs in bin/, and loads it into every node.
func (l *Lab) LoadWeft(ctx context.Context, b *build.Builder) error {
	archive := l.WeftArchive()
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return err
	}
	if err := b.WeftImage(ctx, archive); err != nil {
		return err
	}
	return b.Progress.Step("load the image into the nodes", func() error { return l.LoadImages(ctx, archive) })
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
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	if len(manifest) != 1 || len(manifest[0].RepoTags) == 0 {
		return errors.New("the archive has to hold exactly one image with a name")
	}
	// The configuration's name is a hash of all that the image is.
	id := manifest[0].Config
	sum := sha256.Sum256([]byte(strings.Join(manifest[0].RepoTags, " ")))
	marker := path.Join(loadedDir, hex.EncodeToString(sum[:8]))
	shared := filepath.Join(l.ShareDir(), "image-"+hex.EncodeToString(sum[:8])+".tar")
	if err := shareFile(archive, shared); err != nil {
		return err
	}
	// The nodes read it from the host's folder: that is faster than any network
	// between emulated machines.
	script := fmt.Sprintf(`[ "$(cat %[1]s 2>/dev/null)" = '%[2]s' ] && exit 0
ctr -n k8s.io images import %[3]s >/dev/null && mkdir -p %[4]s && echo '%[2]s' >%[1]s`,
		marker, id, path.Join(nodeconfig.ShareDir, filepath.Base(shared)), loadedDir)
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range l.state.Nodes {
		group.Go(func() error { return l.Exec(ctx, node, Streams{}, "sh", "-c", script) })
	}
	return group.Wait()
}

// shareFile makes the file visible at another path of the same filesystem, or
// copies it.
func shareFile(from, to string) error {
	tmp := to + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Link(from, tmp); err != nil {
		if err := copyInto(from, tmp); err != nil {
			return err
		}
	}
	return os.Rename(tmp, to)
}

func copyInto(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
