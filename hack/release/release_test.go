// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/hack/release/image"
)

// quiet keeps the registry's requests out of the test's output.
var quiet = log.New(io.Discard, "", 0)

// released is the release that WEFT_RELEASE names (make test-release), or else one of small programs.
func released(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WEFT_RELEASE"); dir != "" {
		return dir
	}
	b := small(t)
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b.out
}

// artifacts are those of the layout, by what they are called without the version, and the version of weft.
func artifacts(t *testing.T, dir string) (v1.ImageIndex, map[string]v1.Descriptor, string) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, layoutDir))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	out, version := map[string]v1.Descriptor{}, ""
	for _, m := range manifest.Manifests {
		repository, tag, _ := strings.Cut(m.Annotations[refAnnotation], ":")
		if repository == "weft" {
			version = tag
		}
		if repository != "" {
			out[repository] = m
		}
	}
	return index, out, version
}

func TestReleaseHasImagesForBothArchitectures(t *testing.T) {
	index, found, version := artifacts(t, released(t))
	if _, ok := found["weft"]; !ok {
		t.Fatalf("no image weft in the layout: %v", found)
	}
	for _, spec := range []image.Spec{image.Weft(), image.Target()} {
		descriptor, ok := found[spec.Name]
		if !ok {
			t.Logf("this release has no %s", spec.Name)
			continue
		}
		inner, err := index.ImageIndex(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(inner); err != nil {
			t.Errorf("%s: %v", spec.Name, err)
		}
		platforms, err := inner.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var arches []string
		for _, m := range platforms.Manifests {
			arches = append(arches, m.Platform.Architecture)
			img, err := inner.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			labels := config.Config.Labels
			if config.Architecture != m.Platform.Architecture || config.Config.User != spec.User || config.Created.IsZero() ||
				labels["org.opencontainers.image.title"] != spec.Name || len(labels["org.opencontainers.image.revision"]) != 40 {
				t.Errorf("%s for %s: %+v", spec.Name, m.Platform, config)
			}
			if spec.Name == "weft" && labels["org.opencontainers.image.version"] != version {
				t.Errorf("version label %q, tag %q", labels["org.opencontainers.image.version"], version)
			}
		}
		if strings.Join(arches, " ") != "amd64 arm64" {
			t.Errorf("%s is there for %v", spec.Name, arches)
		}
	}
}

// The packed chart is what Helm finds in a registry. This one has no API for referrers, as GitHub's has none.
func TestReleaseInstallsFromARegistry(t *testing.T) {
	dir := released(t)
	_, found, version := artifacts(t, dir)
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	defer server.Close()
	prefix := strings.TrimPrefix(server.URL, "http://") + "/weft-storage"
	var out bytes.Buffer
	if _, err := push(t.Context(), filepath.Join(dir, layoutDir), prefix, &out); err != nil {
		t.Fatal(err)
	}
	for repository, descriptor := range found {
		ref, err := name.NewDigest(prefix + "/" + repository + "@" + descriptor.Digest.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(ref, remote.WithContext(t.Context())); err != nil {
			t.Errorf("%s was not pushed: %v\n%s", ref, err, &out)
		}
	}
	billsInRegistry(t, prefix, found["weft"])
	helm := func(args ...string) (string, error) {
		args = append(args, "oci://"+prefix+"/charts/weft", "--version", version, "--plain-http")
		words, err := exec.CommandContext(t.Context(), helmProgram(t), args...).CombinedOutput()
		return string(words), err
	}
	rendered, err := helm("template", "--kube-version", "1.32.0", "weft")
	if err != nil || !strings.Contains(rendered, "image: \"ghcr.io/weft-storage/weft:"+version+"\"\n") || !strings.Contains(rendered, "kind: CustomResourceDefinition") {
		t.Errorf("the chart does not render its own version's image and the CRDs: %v\n%.500s", err, rendered)
	}
	words, err := helm("template", "--kube-version", "1.32.0", "--set", "operator.replicas=eleven", "weft")
	if err == nil || !strings.Contains(words, "replicas") {
		t.Errorf("a number that is a word is not refused with its name: %v, %s", err, words)
	}
	words, err = helm("template", "--kube-version", "1.32.0", "--set", "operator.replica=1", "weft")
	if err == nil || !strings.Contains(words, "replica") {
		t.Errorf("a value that does not exist is not refused with its name: %v, %s", err, words)
	}
}

// billsInRegistry are found from the image, as scanners do, and list what is in it.
func billsInRegistry(t *testing.T, prefix string, weft v1.Descriptor) {
	t.Helper()
	ref, err := name.NewDigest(prefix + "/weft@" + weft.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, platform := range manifest.Manifests {
		referrers, err := remote.Referrers(ref.Digest(platform.Digest.String()), remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		list, err := referrers.IndexManifest()
		if err != nil || len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != spdxType {
			t.Fatalf("referrers of %v: %+v, %v", platform.Platform, list, err)
		}
		bill, err := remote.Image(ref.Digest(list.Manifests[0].Digest.String()), remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		layers, err := bill.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		content, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		checkBill(t, text, platform.Digest.Hex, "pkg:golang/stdlib@", "pkg:deb/debian/xfsprogs@")
	}
}

// checkBill reads a bill of materials of what has the SHA-256 digest, with parts whose package URLs begin so.
func checkBill(t *testing.T, text []byte, digest string, parts ...string) {
	t.Helper()
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	described, err := spdxlib.GetDescribedPackageIDs(doc)
	if err != nil || len(described) != 1 {
		t.Fatalf("describes %v, %v", described, err)
	}
	for _, p := range doc.Packages {
		if p.PackageSPDXIdentifier == described[0] && (len(p.PackageChecksums) != 1 || p.PackageChecksums[0] != common.Checksum{Algorithm: common.SHA256, Value: digest}) {
			t.Errorf("the bill is of %+v; want %s", p.PackageChecksums, digest)
		}
		for i, part := range parts {
			if len(p.PackageExternalReferences) == 1 && strings.HasPrefix(p.PackageExternalReferences[0].Locator, part) {
				parts = append(parts[:i:i], parts[i+1:]...)
				break
			}
		}
	}
	if len(parts) != 0 {
		t.Errorf("the bill lacks %v", parts)
	}
}

func TestReleaseReplacesNothing(t *testing.T) {
	first, second := small(t), small(t)
	second.revision = strings.Repeat("f", 40)
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	defer server.Close()
	prefix := strings.TrimPrefix(server.URL, "http://") + "/weft-storage"
	for _, b := range []*builder{first, second} {
		if err := b.build(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := push(t.Context(), filepath.Join(first.out, layoutDir), prefix, io.Discard); err != nil {
			t.Fatalf("the same release can be pushed again: %v", err)
		}
	}
	// A version is refused as a whole, also where a part of it is gone from the registry.
	gone, err := name.NewTag(prefix + "/weft:" + first.version)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(gone); err != nil {
		t.Fatal(err)
	}
	_, err = push(t.Context(), filepath.Join(second.out, layoutDir), prefix, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "release another version") {
		t.Errorf("a version was replaced: %v", err)
	}
	if _, err := remote.Head(gone); err == nil {
		t.Error("the image of the version that was refused is in the registry")
	}
	// A later release with the same version of the target's image leaves that image alone.
	second.version = "1.2.30"
	if err := second.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	pushed, err := push(t.Context(), filepath.Join(second.out, layoutDir), prefix, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, artifact := range pushed {
		repository, digest, _ := strings.Cut(artifact, "@")
		repository, _, _ = strings.Cut(repository, ":")
		ref, err := name.NewDigest(prefix + "/" + repository + "@" + digest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(ref); err != nil {
			t.Errorf("%s is not in the registry: %v", artifact, err)
		}
	}
	if len(pushed) < 3 {
		t.Errorf("pushed: %v", pushed)
	}
	if !strings.Contains(out.String(), "/weft-target:1.1.0 stays as it is: sha256:") || !strings.Contains(out.String(), "/weft:1.2.30@sha256:") {
		t.Errorf("pushed: %s", &out)
	}
}

func TestReleaseChecksumsFit(t *testing.T) {
	dir := released(t)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	listed := string(mustRead(t, filepath.Join(dir, sumsFile)))
	for _, entry := range entries {
		if entry.IsDir() || entry.Name() == sumsFile {
			continue
		}
		sum := sha256.Sum256(mustRead(t, filepath.Join(dir, entry.Name())))
		if line := hex.EncodeToString(sum[:]) + "  " + entry.Name() + "\n"; !strings.Contains(listed, line) {
			t.Errorf("SHA256SUMS lacks %s", line)
		}
	}
}

// The samples are those of the checkout, where the documentation says.
func TestReleaseHasTheSamples(t *testing.T) {
	dir := released(t)
	_, _, version := artifacts(t, dir)
	files := unpack(t, mustRead(t, filepath.Join(dir, "weft-samples-"+version+".tar.gz")))
	for _, name := range []string{"config/samples/target-file.yaml", "config/samples/pvc-pod.yaml", "config/samples/spdk/target-drives.yaml"} {
		if !bytes.Equal(files[name], mustRead(t, filepath.Join(root, name))) {
			t.Errorf("%s is not that of the checkout", name)
		}
	}
}

func TestReleaseHasThePluginThatKrewFinds(t *testing.T) {
	dir := released(t)
	_, _, version := artifacts(t, dir)
	var manifest struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description string
			Platforms                                        []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict(mustRead(t, filepath.Join(dir, krewFile)), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Metadata.Name != "weft" || manifest.Spec.Version != "v"+version || len(manifest.Spec.ShortDescription) > 50 || len(manifest.Spec.Platforms) != 4 {
		t.Errorf("manifest %+v", manifest)
	}
	for _, p := range manifest.Spec.Platforms {
		goos, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		file := filepath.Base(p.URI)
		archive := mustRead(t, filepath.Join(dir, file))
		if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != p.SHA256 || file != "kubectl-weft-"+goos+"-"+arch+".tar.gz" {
			t.Errorf("%s for %s/%s does not have the manifest's checksum", file, goos, arch)
		}
		files := unpack(t, archive)
		if files[p.Bin] == nil || files["LICENSE"] == nil || files[completionScript] == nil {
			t.Errorf("%s has not all of %s, %s and LICENSE", file, p.Bin, completionScript)
		}
		checkBill(t, mustRead(t, filepath.Join(dir, strings.TrimSuffix(file, ".tar.gz")+".spdx.json")), p.SHA256, "pkg:golang/stdlib@")
		if goos == runtime.GOOS && arch == runtime.GOARCH {
			program := filepath.Join(t.TempDir(), p.Bin)
			if err := os.WriteFile(program, files[p.Bin], 0o755); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
			if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), " "+version) {
				t.Errorf("%s --version: %s, %v; want %s", p.Bin, out, err, version)
			}
		}
	}
}

// unpack reads a .tar.gz.
func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for files := tar.NewReader(zipped); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[head.Name], err = io.ReadAll(files); err != nil {
			t.Fatal(err)
		}
	}
}
