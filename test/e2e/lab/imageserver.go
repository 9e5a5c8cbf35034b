// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageArchive is an archive with one image, as `docker save` writes it, opened
// so that its parts can be read where they lie.
type imageArchive struct {
	file     *os.File
	ref      string
	manifest []byte
	digest   v1.Hash
	// blobs are the parts that the manifest names.
	blobs map[v1.Hash]*io.SectionReader
	// id is the hash of the configuration: equal for equal images.
	id v1.Hash
}

func (a *imageArchive) close() { _ = a.file.Close() }

// openArchive reads the archive's table of contents. Layers are served as they
// are in the archive, not compressed: to unpack them would cost an emulated CPU
// more than the bytes saved.
func openArchive(file string) (a *imageArchive, err error) {
	list, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	if len(list) != 1 || len(list[0].RepoTags) != 1 {
		return nil, errors.New("the archive has to hold exactly one image with one name")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	entries, err := tarEntries(f)
	if err != nil {
		return nil, err
	}
	a = &imageArchive{file: f, ref: list[0].RepoTags[0], blobs: map[v1.Hash]*io.SectionReader{}}
	return a, a.describe(list[0], entries)
}

// describe makes the manifest for the parts of the archive.
func (a *imageArchive) describe(list tarball.Descriptor, entries map[string]*io.SectionReader) error {
	config, ok := entries[list.Config]
	if !ok {
		return fmt.Errorf("the archive has no %s", list.Config)
	}
	parsed, err := v1.ParseConfigFile(config)
	if err != nil {
		return fmt.Errorf("parse %s: %w", list.Config, err)
	}
	if len(parsed.RootFS.DiffIDs) != len(list.Layers) {
		return fmt.Errorf("the image has %d layers and names %d", len(list.Layers), len(parsed.RootFS.DiffIDs))
	}
	if _, err := config.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if a.id, _, err = v1.SHA256(config); err != nil {
		return fmt.Errorf("hash %s: %w", list.Config, err)
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2}
	manifest.Config = v1.Descriptor{MediaType: types.DockerConfigJSON, Size: config.Size(), Digest: a.id}
	a.blobs[a.id] = config
	for i, name := range list.Layers {
		layer, ok := entries[name]
		if !ok {
			return fmt.Errorf("the archive has no %s", name)
		}
		digest := parsed.RootFS.DiffIDs[i]
		a.blobs[digest] = layer
		manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: types.DockerUncompressedLayer, Size: layer.Size(), Digest: digest})
	}
	if a.manifest, err = json.Marshal(manifest); err != nil {
		return fmt.Errorf("encode the manifest: %w", err)
	}
	a.digest, _, err = v1.SHA256(strings.NewReader(string(a.manifest)))
	return err
}

// tarEntries finds where the files of a tar archive lie.
func tarEntries(f *os.File) (map[string]*io.SectionReader, error) {
	entries := map[string]*io.SectionReader{}
	archive := tar.NewReader(f)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		// The reader does not read ahead: the file's position is where the
		// entry's content begins.
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if head.Typeflag == tar.TypeReg {
			entries[path.Clean(head.Name)] = io.NewSectionReader(f, at, head.Size)
		}
	}
}

// ServeHTTP answers what a container runtime asks of a registry to pull an image
// (OCI distribution specification, "pull").
func (a *imageArchive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	kind, name := path.Base(path.Dir(rest)), path.Base(rest)
	switch {
	case !ok:
		http.NotFound(w, r)
	case rest == "":
		w.WriteHeader(http.StatusOK)
	case kind == "manifests":
		w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
		w.Header().Set("Docker-Content-Digest", a.digest.String())
		w.Header().Set("Content-Length", fmt.Sprint(len(a.manifest)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(a.manifest)
		}
	case kind == "blobs":
		digest, err := v1.NewHash(name)
		blob := a.blobs[digest]
		if err != nil || blob == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", fmt.Sprint(blob.Size()))
		if r.Method == http.MethodGet {
			_, _ = io.Copy(w, io.NewSectionReader(blob, 0, blob.Size()))
		}
	default:
		http.NotFound(w, r)
	}
}

// serve offers the image to the nodes until stop is called, and returns the
// name under which they can pull it.
func (l *Lab) serve(ctx context.Context, a *imageArchive) (ref string, stop func(), err error) {
	var listener net.Listener
	addr := net.JoinHostPort(l.state.addresses().management().Addr().String(), "0")
	err = l.inNamespace(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("listen for the nodes: %w", err)
	}
	server := &http.Server{Handler: a, ReadHeaderTimeout: handshakeTimeout}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String() + "/image:load", func() { _ = server.Close() }, nil
}
