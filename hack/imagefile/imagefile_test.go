// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestOneImageHasSeveralNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image.tar")
	want := []string{"docker.io/library/busybox:1.37", "example.org/tools:latest"}
	if err := (Image{}).Write(file, want...); err != nil {
		t.Fatal(err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil || len(manifest) != 1 {
		t.Fatalf("manifest %+v, %v", manifest, err)
	}
	if have := slices.Sorted(slices.Values(manifest[0].RepoTags)); !slices.Equal(have, want) {
		t.Errorf("its names are %q", have)
	}
	if err := (Image{}).Write(file, "no name"); err == nil {
		t.Error("it took a wrong name")
	}
}
