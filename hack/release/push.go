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

// push copies what is in the layout to a registry, below prefix, and returns what the registry then has, as
// name:tag@digest. What is there already is never replaced: a version means one thing. So everything is looked for
// before anything is written. The image of target pods keeps its version over several releases; the one that is there
// stays.
func push(ctx context.Context, dir, prefix string, log io.Writer) (pushed []string, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make release writes it", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	p := pusher{prefix: prefix, log: log, subjects: map[v1.Hash]string{}, options: []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
	}}
	there := map[v1.Hash]*v1.Hash{}
	for _, m := range manifest.Manifests {
		if m.Annotations[refAnnotation] == "" {
			continue
		}
		if there[m.Digest], err = p.find(m); err != nil {
			return nil, err
		}
	}
	// The referrers come last: a registry wants to know what they refer to.
	for _, m := range manifest.Manifests {
		ref := m.Annotations[refAnnotation]
		if ref == "" {
			continue
		}
		is := m.Digest
		if have := there[m.Digest]; have != nil && *have != is {
			is = *have
			_, err = fmt.Fprintf(log, "%s/%s stays as it is: %s\n", prefix, ref, is)
		} else {
			err = p.tagged(index, m)
		}
		if err != nil {
			return nil, err
		}
		pushed = append(pushed, ref+"@"+is.String())
	}
	for _, m := range manifest.Manifests {
		if m.Annotations[refAnnotation] == "" {
			if err := p.referrer(index, m.Digest); err != nil {
				return nil, err
			}
		}
	}
	return pushed, nil
}

type pusher struct {
	prefix  string
	log     io.Writer
	options []remote.Option
	// subjects says in which repository an image was pushed.
	subjects map[v1.Hash]string
}

// find what the registry has under the name of an artifact; nil for nothing. Something else is an error, unless it may
// stay.
func (p pusher) find(m v1.Descriptor) (*v1.Hash, error) {
	ref, err := name.NewTag(p.prefix + "/" + m.Annotations[refAnnotation])
	if err != nil {
		return nil, err
	}
	have, err := remote.Head(ref, p.options...)
	var answer *transport.Error
	switch {
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", ref, err)
	case have.Digest != m.Digest && path.Base(ref.RepositoryStr()) != image.Target().Name:
		return nil, fmt.Errorf("%s is in the registry with digest %s, and this release has %s; release another version", ref, have.Digest, m.Digest)
	}
	return &have.Digest, nil
}

func (p pusher) tagged(index v1.ImageIndex, m v1.Descriptor) error {
	ref, err := name.NewTag(p.prefix + "/" + m.Annotations[refAnnotation])
	if err != nil {
		return err
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
