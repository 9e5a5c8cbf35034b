// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Whatever differs between two machines that release the same commit must not differ in what they release.
func TestReleaseTwiceIsTheSame(t *testing.T) {
	first, second := small(t), small(t)
	later := time.Now().Add(time.Hour)
	err := filepath.WalkDir(filepath.Join(second.repo, "charts"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, later, later)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []*builder{first, second} {
		if err := b.build(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	one, other := tree(t, first.out), tree(t, second.out)
	for name, data := range one {
		if !bytes.Equal(data, other[name]) {
			t.Errorf("%s differs", name)
		}
		delete(other, name)
	}
	for name := range other {
		t.Errorf("%s is in the second release alone", name)
	}
	// And what is not the same is not taken for it.
	if err := os.WriteFile(filepath.Join(second.programs, "arm64", "weft-csi"), mustRead(t, helmProgram(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := second.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(tree(t, second.out)[digestsFile], one[digestsFile]) {
		t.Error("another program gives the same digests")
	}
}

func tree(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out[name] = mustRead(t, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWithoutTargetBase(t *testing.T) {
	b := small(t)
	var log bytes.Buffer
	b.targetBase, b.log = "", &log
	if err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "no image weft-target: ") || !strings.Contains(log.String(), "TARGET_BASE") {
		t.Errorf("what is left out is not said: %s", &log)
	}
	if digests := string(mustRead(t, filepath.Join(b.out, digestsFile))); strings.Contains(digests, "weft-target") {
		t.Errorf("digests %s", digests)
	}
}

func TestMissingThingsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*builder)
		want  string
	}{
		"no program":   {func(b *builder) { b.programs = filepath.Join(b.programs, "none") }, "run make binaries ARCH=amd64"},
		"no base":      {func(b *builder) { b.base = b.repo }, "has neither amd64.tar nor index.json"},
		"no registry":  {func(b *builder) { b.base = "not a reference" }, "base: "},
		"no changelog": {func(b *builder) { b.version = "9.9.9" }, `says nothing under "## [9.9.9]"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := small(t)
			c.spoil(b)
			if err := b.build(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want one with %q", err, c.want)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3":               "### Fixed\n\n- Released.\n",
		"1.2.4-dev.g01234567": "### Added\n\n- Not released yet.\n",
		"1.2.30":              "- Another one.\n",
	} {
		if got, err := notes(changelog, version); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", version, got, err, want)
		}
	}
	if text, err := notes(changelog, "1.2"); err == nil {
		t.Errorf("a version that is not there has notes: %q", text)
	}
}

func TestVersionComesFromTheTag(t *testing.T) {
	for name, c := range map[string]struct {
		tags         []string
		want, reason string
	}{
		"tagged":         {tags: []string{"v1.2.3"}, want: "1.2.3"},
		"other tags":     {tags: []string{"nightly", "v1.2.3"}, want: "1.2.3"},
		"not tagged":     {want: "1.2.3-dev.g01234567"},
		"another tag":    {tags: []string{"v1.2.4"}, reason: "the commit's tags are v1.2.4, and charts/weft/Chart.yaml has version 1.2.3"},
		"two tags":       {tags: []string{"v1.2.3", "v1.2.4"}, reason: "a release has one tag, v1.2.3"},
		"not a version":  {tags: []string{"1.2.3"}, want: "1.2.3-dev.g01234567"},
		"a prerelease's": {tags: []string{"v1.2.3-rc.1"}, reason: "a release has one tag, v1.2.3"},
	} {
		head := commit{id: "0123456789abcdef", tags: c.tags}
		got, err := head.version("1.2.3")
		if got != c.want || (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, c.want, c.reason)
		}
	}
}

// The checkout itself can be read, and says when it was committed.
func TestHeadOfTheCheckout(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	head, err := headOf(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := head.releaseTime(); err != nil || !at.Equal(head.time) || at.IsZero() || len(head.id) != 40 {
		t.Errorf("commit %+v, time %v, %v", head, at, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if at, err := head.releaseTime(); err != nil || at.Unix() != 1_700_000_000 {
		t.Errorf("time %v, %v", at, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := head.releaseTime(); err == nil {
		t.Error("a word is taken for a time")
	}
	if versions, err := versionsOf(root); err != nil || versions.weft == "" || versions.target == "" {
		t.Errorf("versions %+v, %v", versions, err)
	}
}
