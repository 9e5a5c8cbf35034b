// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/weft-storage/weft/hack/release/image"
)

// push copies what is in the layout to a registry, below prefix. What is there already is never replaced: a version
// means one thing. The image of target pods keeps its version over several releases; the one that is there stays.
func push(ctx context.Context, dir, prefix string, log io.Writer) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("%s: %w; make release writes it", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	p := pusher{prefix: prefix, log: log, subjects: map[v1.Hash]string{}, options: []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
	}}
	// The referrers come last: a registry wants to know what they refer to.
	for _, m := range manifest.Manifests {
		if m.Annotations[refAnnotation] != "" {
			if err := p.tagged(index, m); err != nil {
				return err
			}
		}
	}
	for _, m := range manifest.Manifests {
		if m.Annotations[refAnnotation] == "" {
			if err := p.referrer(index, m.Digest); err != nil {
				return err
			}
		}
	}
	return nil
}

type pusher struct {
	prefix  string
	log     io.Writer
	options []remote.Option
	// subjects says in which repository an image was pushed.
	subjects map[v1.Hash]string
}

func (p pusher) tagged(index v1.ImageIndex, m v1.Descriptor) error {
	ref, err := name.NewTag(p.prefix + "/" + m.Annotations[refAnnotation])
	if err != nil {
		return err
	}
	have, err := remote.Head(ref, p.options...)
	var answer *transport.Error
	switch {
	case err == nil && have.Digest != m.Digest && path.Base(ref.RepositoryStr()) == image.Target().Name:
		_, err := fmt.Fprintf(p.log, "%s stays as it is: %s\n", ref, have.Digest)
		return err
	case err == nil && have.Digest != m.Digest:
		return fmt.Errorf("%s is in the registry with digest %s, and this release has %s; release another version", ref, have.Digest, m.Digest)
	case err != nil && (!errors.As(err, &answer) || answer.StatusCode != http.StatusNotFound):
		return fmt.Errorf("look for %s: %w", ref, err)
	}
	if m.MediaType.IsIndex() {
		inner, err := index.ImageIndex(m.Digest)
		if err != nil {
			return err
		}
		platforms, err := inner.IndexManifest()
		if err != nil {
			return err
		}
		for _, platform := range platforms.Manifests {
			p.subjects[platform.Digest] = ref.Context().Name()
		}
		err = remote.WriteIndex(ref, inner, p.options...)
		return p.done(ref, m.Digest, err)
	}
	img, err := index.Image(m.Digest)
	if err != nil {
		return err
	}
	return p.done(ref, m.Digest, remote.Write(ref, img, p.options...))
}

// referrer pushes an artifact to the repository of what it is about, unless that was not pushed.
func (p pusher) referrer(index v1.ImageIndex, digest v1.Hash) error {
	img, err := index.Image(digest)
	if err != nil {
		return err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	if manifest.Subject == nil {
		return fmt.Errorf("%s in the layout has neither a name nor a subject", digest)
	}
	repository, ok := p.subjects[manifest.Subject.Digest]
	if !ok {
		return nil
	}
	ref, err := name.NewDigest(repository + "@" + digest.String())
	if err != nil {
		return err
	}
	return p.done(ref, digest, remote.Write(ref, img, p.options...))
}

func (p pusher) done(ref name.Reference, digest v1.Hash, err error) error {
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	_, err = fmt.Fprintf(p.log, "pushed %s@%s\n", strings.SplitN(ref.Name(), "@", 2)[0], digest)
	return err
}
