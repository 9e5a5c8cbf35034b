// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Artifact is a file in a registry that is no image.
type Artifact struct {
	// Type is the artifact's media type.
	Type string
	// Config and its type; empty for OCI's empty configuration.
	Config     []byte
	ConfigType types.MediaType
	// Content and its type.
	Content     []byte
	ContentType types.MediaType
	Annotations map[string]string
	// Subject is what the artifact is about, if anything.
	Subject *v1.Descriptor
}

// Image makes an OCI manifest of the artifact.
func (a Artifact) Image() (v1.Image, error) {
	const emptyType = "application/vnd.oci.empty.v1+json"
	if len(a.Config) == 0 {
		a.Config, a.ConfigType = []byte("{}"), emptyType
	}
	config, err := describe(a.Config, a.ConfigType)
	if err != nil {
		return nil, err
	}
	content, err := describe(a.Content, a.ContentType)
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: a.Type,
		Config: config, Layers: []v1.Descriptor{content}, Annotations: a.Annotations, Subject: a.Subject,
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(artifactCore{manifest: manifest, config: a.Config, content: static.NewLayer(a.Content, a.ContentType)})
}

func describe(data []byte, mediaType types.MediaType) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

// artifactCore is what partial.CompressedToImage makes an image of.
type artifactCore struct {
	manifest, config []byte
	content          v1.Layer
}

// MediaType of the manifest.
func (a artifactCore) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest is the manifest.
func (a artifactCore) RawManifest() ([]byte, error) { return a.manifest, nil }

// RawConfigFile is the configuration.
func (a artifactCore) RawConfigFile() ([]byte, error) { return a.config, nil }

// LayerByDigest is the content.
func (a artifactCore) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if have, err := a.content.Digest(); err != nil || have != digest {
		return nil, fmt.Errorf("the artifact has no blob %s", digest)
	}
	return a.content, nil
}
