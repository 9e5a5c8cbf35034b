// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/weft-storage/weft/hack/release/chart"
	"github.com/weft-storage/weft/hack/release/image"
)

const (
	// refAnnotation of a descriptor in the layout's index is its repository and tag, below the registry's prefix.
	refAnnotation = "org.opencontainers.image.ref.name"
	// spdxType is the media type of a bill of materials.
	spdxType = "application/spdx+json"
	// layoutDir and others are what a release is made of.
	layoutDir, digestsFile, sumsFile, notesFile, krewFile = "oci", "digests.txt", "SHA256SUMS", "release-notes.md", "krew-weft.yaml"
	// pushedFile has what the registry has after a push: the image of target pods may be an earlier release's.
	pushedFile = "pushed.txt"
)

// architectures that weft is released for.
var architectures = []string{"amd64", "arm64"}

// builder makes a release of a checkout.
type builder struct {
	repo string
	// programs is the folder with a folder of programs for each platform.
	programs string
	out      string
	helm     string
	// base and targetBase are what image.Base understands. Without targetBase, weft-target is left out.
	base, targetBase string
	version          string
	targetVersion    string
	revision         string
	at               time.Time
	log              io.Writer
}

// build writes the release to a new folder.
func (b *builder) build(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(b.out), os.MkdirAll(b.out, 0o755)); err != nil {
		return err
	}
	store, err := layout.Write(filepath.Join(b.out, layoutDir), empty.Index)
	if err != nil {
		return err
	}
	if err := b.images(ctx, store); err != nil {
		return err
	}
	if err := b.chart(ctx, store); err != nil {
		return err
	}
	archives, err := packPlugin(b.repo, b.programs, b.out, b.at)
	if err != nil {
		return err
	}
	if err := b.samples(); err != nil {
		return err
	}
	manifest, err := krewManifest(b.version, archives)
	if err != nil {
		return err
	}
	changelog, err := os.ReadFile(filepath.Join(b.repo, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	text, err := notes(string(changelog), b.version)
	if err != nil {
		return err
	}
	if err := errors.Join(b.write(krewFile, manifest), b.write(notesFile, []byte(text)), b.pluginBills(archives)); err != nil {
		return err
	}
	return errors.Join(b.digests(store), sums(b.out))
}

func (b *builder) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(b.out, name), data, 0o644)
}

func (b *builder) images(ctx context.Context, store layout.Path) error {
	if err := b.image(ctx, store, image.Weft(), b.base, b.version); err != nil {
		return err
	}
	if b.targetBase == "" {
		_, err := fmt.Fprintln(b.log, "no image weft-target: name an image with SPDK's nvmf_tgt in PATH for both architectures, TARGET_BASE=...")
		return err
	}
	return b.image(ctx, store, image.Target(), b.targetBase, b.targetVersion)
}

// image appends the image for all architectures to the layout, with a bill of materials for each.
func (b *builder) image(ctx context.Context, store layout.Path, spec image.Spec, base, version string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var bills []v1.Image
	for _, arch := range architectures {
		on, err := image.Base(ctx, base, arch)
		if err != nil {
			return err
		}
		programs := filepath.Join(b.programs, arch)
		img, err := spec.Build(on, image.Options{Arch: arch, Programs: programs, Version: version, Revision: b.revision, Created: b.at, Compress: true})
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
		bill, err := b.imageBill(spec, img, arch, version)
		if err != nil {
			return err
		}
		bills = append(bills, bill)
	}
	annotated, ok := mutate.Annotations(index, spec.Labels(version, b.revision)).(v1.ImageIndex)
	if !ok {
		return fmt.Errorf("the index of %s lost its type", spec.Name)
	}
	if err := store.AppendIndex(annotated, named(spec.Name+":"+version)); err != nil {
		return fmt.Errorf("write image %s: %w", spec.Name, err)
	}
	for _, bill := range bills {
		if err := store.AppendImage(bill); err != nil {
			return fmt.Errorf("write the bill of materials of %s: %w", spec.Name, err)
		}
	}
	return nil
}

func named(ref string) layout.Option {
	return layout.WithAnnotations(map[string]string{refAnnotation: ref})
}

// imageBill is the image's bill of materials as an artifact that refers to it, and a file beside the layout.
func (b *builder) imageBill(spec image.Spec, img v1.Image, arch, version string) (v1.Image, error) {
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	parts, err := packagesOf(img, arch)
	if err != nil {
		return nil, err
	}
	var programs []string
	for _, name := range spec.Programs {
		programs = append(programs, filepath.Join(b.programs, arch, name))
	}
	built, err := modules(programs...)
	if err != nil {
		return nil, err
	}
	text, err := bill{
		subject: component{name: spec.Name, version: version, license: spec.Licenses,
			url: "pkg:oci/" + spec.Name + "@sha256%3A" + subject.Digest.Hex + "?arch=" + arch + "&repository_url=ghcr.io/weft-storage/" + spec.Name},
		digest: subject.Digest.Hex, created: b.at, parts: append(parts, built...),
	}.document()
	if err != nil {
		return nil, err
	}
	if err := b.write(spec.Name+"-image-linux-"+arch+".spdx.json", text); err != nil {
		return nil, err
	}
	return image.Artifact{
		Type: spdxType, Content: text, ContentType: spdxType,
		Subject:     &v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest},
		Annotations: map[string]string{"org.opencontainers.image.created": b.at.UTC().Format(time.RFC3339)},
	}.Image()
}

func (b *builder) pluginBills(archives []pluginArchive) error {
	for _, archive := range archives {
		parts, err := modules(archive.program(b.programs))
		if err != nil {
			return err
		}
		name := "kubectl-weft-" + archive.OS + "-" + archive.Arch
		text, err := bill{
			subject: component{name: name, version: b.version, license: "Apache-2.0",
				url: "pkg:github/weft-storage/weft@v" + b.version + "#" + archive.File},
			digest: archive.SHA256, created: b.at, parts: parts,
		}.document()
		if err != nil {
			return err
		}
		if err := b.write(name+".spdx.json", text); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) chart(ctx context.Context, store layout.Path) error {
	archive, err := chart.Pack(ctx, b.helm, b.repo, b.version, b.out, b.at)
	if err != nil {
		return err
	}
	annotations := image.Spec{Licenses: "Apache-2.0"}.Labels(b.version, b.revision)
	artifact, err := chartArtifact(b.repo, archive, b.version, b.at, annotations)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return store.AppendImage(artifact, named("charts/weft:"+b.version))
}

// samples packs config/samples, which the documentation applies, under the paths that it names.
func (b *builder) samples() error {
	var files []packed
	err := filepath.WalkDir(filepath.Join(b.repo, "config", "samples"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(b.repo, path)
		files = append(files, packed{filepath.ToSlash(name), path, 0o644})
		return err
	})
	if err != nil {
		return fmt.Errorf("samples: %w", err)
	}
	data, err := tarGzip(b.at, files)
	if err != nil {
		return fmt.Errorf("samples: %w", err)
	}
	return b.write("weft-samples-"+b.version+".tar.gz", data)
}

// digests writes what the layout's artifacts are called and what identifies them, and tells it.
func (b *builder) digests(store layout.Path) error {
	index, err := store.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, m := range manifest.Manifests {
		if ref := m.Annotations[refAnnotation]; ref != "" {
			fmt.Fprintf(&out, "%s@%s\n", ref, m.Digest)
		}
	}
	_, err = b.log.Write(out.Bytes())
	return errors.Join(err, b.write(digestsFile, out.Bytes()))
}

// sums writes the checksums of the release's files, in the form that sha256sum --check reads.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, entry := range entries {
		if entry.IsDir() || entry.Name() == sumsFile {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		lines = append(lines, hex.EncodeToString(sum[:])+"  "+entry.Name()+"\n")
	}
	slices.Sort(lines)
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(strings.Join(lines, "")), 0o644)
}
