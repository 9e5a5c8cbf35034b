// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestEnsureBuildsOnceForAll(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := c.Ensure(t.Context(), "thing/x", func(_ context.Context, tmp string) error {
				builds.Add(1)
				return os.WriteFile(tmp, []byte("whole"), 0o644)
			})
			if data, readErr := os.ReadFile(path); err != nil || readErr != nil || string(data) != "whole" {
				t.Errorf("%q, %v, %v", data, err, readErr)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestPruneRemovesWhatNobodyAskedFor(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	folder := func(_ context.Context, tmp string) error { return os.MkdirAll(filepath.Join(tmp, "inside"), 0o755) }
	yesterday := time.Now().Add(-24 * time.Hour)
	for _, rel := range []string{"old", "versions/old", "asked-again", "making"} {
		if _, err := c.Ensure(t.Context(), rel, folder); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(c.Path(rel)+".lock", yesterday, yesterday); err != nil {
			t.Fatal(err)
		}
	}
	// An artifact's own files are no locks of the cache.
	if err := os.WriteFile(c.Path("asked-again/inside/x.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ensure(t.Context(), "asked-again", folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.Path("making"), c.Path("making.tmp")); err != nil {
		t.Fatal(err)
	}
	removed, err := c.Prune(time.Now().Add(-time.Hour))
	if err != nil || !slices.Equal(removed, []string{"old", "old"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if c.Has("old") || c.Has("versions/old") || !c.Has("asked-again/inside") || !c.Has("making.tmp") {
		t.Errorf("old is there: %v, %v; asked-again is there: %v; what is being made is there: %v",
			c.Has("old"), c.Has("versions/old"), c.Has("asked-again/inside"), c.Has("making.tmp"))
	}
}

func TestEnsureLeavesNoHalfResult(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	broken := errors.New("broken")
	_, err := c.Ensure(t.Context(), "x", func(_ context.Context, tmp string) error {
		if err := os.MkdirAll(filepath.Join(tmp, "half"), 0o755); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) || c.Has("x") || c.Has("x.tmp") {
		t.Errorf("error %v, result there: %v, half there: %v", err, c.Has("x"), c.Has("x.tmp"))
	}
	// What a killed build leaves is not built upon.
	if err := os.MkdirAll(c.Path("x.tmp/stale"), 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := c.Ensure(t.Context(), "x", func(_ context.Context, tmp string) error { return os.Mkdir(tmp, 0o755) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, "stale")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale part survived: %v", err)
	}
}

func TestKeyFollowsContent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	key := func(content string, more ...string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := Key(append([]string{file}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if first, second := key("a"), key("a"); first != second {
		t.Error("the same content has two keys")
	}
	keys := []string{key("a"), key("b"), key("a", "x"), key("a", "x", "y"), key("a", "xy")}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 5 {
		t.Errorf("different content has the same key: %v", keys)
	}
	if _, err := Key("/does/not/exist"); err == nil {
		t.Error("a missing file has a key")
	}
}

func TestVersionsComeFromTheModules(t *testing.T) {
	repo, err := FindRepo(".")
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{Repo: repo, Cache: Cache{Dir: t.TempDir()}}
	version, err := b.KubernetesVersion()
	if err != nil {
		t.Fatal(err)
	}
	flags, err := b.ldflags(kubernetesProgram("kubelet"))
	if err != nil || !strings.Contains(flags, "gitVersion="+version) {
		t.Errorf("flags %q, %v", flags, err)
	}
	dir, err := b.AssetsDir()
	if err != nil || !strings.Contains(dir, version) {
		t.Errorf("folder %q, %v", dir, err)
	}
	if suite, err := b.moduleVersion("storage", kubernetesModule); err != nil || suite != version {
		t.Errorf("the storage suite is that of Kubernetes %q (%v), and the lab runs %s", suite, err, version)
	}
	for _, s := range sidecars() {
		version, err := b.moduleVersion("sidecars", s.module)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		flags, err := b.ldflags(s.program())
		if err != nil || !strings.HasSuffix(flags, "main.version="+version) {
			t.Errorf("%s: flags %q, %v", s.name, flags, err)
		}
	}
	velero, _, _, _ := veleroPrograms()
	if version, err = b.moduleVersion("velero", veleroModule); err != nil {
		t.Error(err)
	}
	if flags, err := b.ldflags(velero); err != nil || !strings.HasSuffix(flags, "buildinfo.Version="+version) {
		t.Errorf("Velero: flags %q, %v", flags, err)
	}
	if _, err := b.moduleVersion("sidecars", "example.com/none"); err == nil {
		t.Error("a module that is not required has a version")
	}
	if _, _, err := majorMinor("1.36"); err == nil {
		t.Error("1.36 is taken for a version")
	}
}

func TestFindRepoOutside(t *testing.T) {
	if _, err := FindRepo(t.TempDir()); err == nil {
		t.Error("a repository was found in an empty folder")
	}
}

// A program in a checkout serves it wherever it is started, and that around the working directory comes first.
func TestFirstRepo(t *testing.T) {
	checkout := func() string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+rootModule+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	one, other, none := checkout(), checkout(), t.TempDir()
	for name, c := range map[string]struct{ dir, other, want string }{
		"both": {one, other, one}, "around the program only": {none, other, other}, "around the working directory only": {one, none, one}, "neither": {none, none, ""},
	} {
		if got, err := firstRepo(c.dir, c.other); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Nodes have the image of the samples' pods.
func TestSamplesRunInTheLab(t *testing.T) {
	repo, err := FindRepo(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"config/samples/pvc-pod*.yaml", "config/samples/spdk/pvc-pod.yaml"} {
		paths, err := filepath.Glob(filepath.Join(repo, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, image, _ := strings.Cut(string(text), " image: ")
			if image, _, _ = strings.Cut(image, "\n"); "docker.io/library/"+image != SampleImage {
				t.Errorf("the pod of %s runs %q, and nodes have %s", path, image, SampleImage)
			}
		}
	}
}

func TestModuleClosureIsInOrder(t *testing.T) {
	const dep = "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2/jbd2.ko kernel/fs/mbcache.ko\n" +
		"kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko\nkernel/lib/crc16.ko:\nkernel/fs/mbcache.ko:\nkernel/crypto/crc32c-x.ko:\n"
	files, err := moduleClosure(dep, "kernel/drivers/virtio/virtio_pci.ko\n", []string{"virtio_pci", "crc32c_x", "ext4"})
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) int {
		return slices.IndexFunc(files, func(f string) bool { return strings.HasSuffix(f, name) })
	}
	if len(files) != 5 || at("crc16.ko") > at("jbd2.ko") || at("jbd2.ko") > at("ext4.ko") || at("mbcache.ko") > at("ext4.ko") {
		t.Errorf("order %v", files)
	}
	if _, err := moduleClosure(dep, "", []string{"virtio_pci"}); err == nil {
		t.Error("a module that does not exist was found")
	}
}

func TestCpioIsAligned(t *testing.T) {
	var out bytes.Buffer
	w := cpioWriter{w: &out}
	w.add("init", 0o100755, []byte("hello"))
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	const header = 110
	data := out.Bytes()
	if len(data)%4 != 0 || string(data[:6]) != "070701" {
		t.Fatalf("%d bytes, beginning with %q", len(data), data[:6])
	}
	// The header and the name with its zero, padded, come before the content.
	body := header + len("init") + 1
	body += padding(body)
	if got := string(data[body : body+5]); got != "hello" {
		t.Errorf("content %q", got)
	}
	next := body + 5
	next += padding(next)
	if got := string(data[next : next+6]); got != "070701" {
		t.Errorf("the trailer begins with %q", got)
	}
}

func TestMissingTools(t *testing.T) {
	programs, packages := missingTools(func(name string) (string, error) {
		if strings.HasPrefix(name, "qemu") {
			return "", os.ErrNotExist
		}
		return "/usr/bin/" + name, nil
	})
	if !slices.Equal(programs, []string{"qemu-img", "qemu-system-x86_64"}) || !slices.Equal(packages, []string{"qemu-system-x86", "qemu-utils"}) {
		t.Errorf("%v, %v", programs, packages)
	}
}

// A first start of the lab is told from a later one by all of Kubernetes: make envtest builds a part of it.
func TestBuilt(t *testing.T) {
	repo, err := FindRepo(".")
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{Repo: repo, Cache: Cache{Dir: t.TempDir()}}
	dir, err := b.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(envtestPrograms(), clusterPrograms()...) {
		if built, err := b.Built(); built || err != nil {
			t.Fatalf("without %s: %v, %v", p.name, built, err)
		}
		if err := os.WriteFile(filepath.Join(dir, p.name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if built, err := b.Built(); !built || err != nil {
		t.Errorf("with all programs: %v, %v", built, err)
	}
}

func TestProgramImage(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &Builder{Cache: Cache{Dir: dir}}
	archive, err := b.programImage(t.Context(), program, "tool", PauseImage)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{PauseImage}) {
		t.Fatalf("manifest %+v, %v", manifest, err)
	}
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil || !slices.Equal(config.Config.Entrypoint, []string{"/tool"}) || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("configuration %+v, %v", config, err)
	}
}

// TestEachImageHasItsOwnArchive: nodes keep what they have under its name.
func TestEachImageHasItsOwnArchive(t *testing.T) {
	dir := t.TempDir()
	b := &Builder{Cache: Cache{Dir: dir}}
	program := filepath.Join(dir, "program")
	base := image{name: "tool", refs: []string{"a:1"}, files: []file{{name: "tool", from: program}, {name: "sh", link: "bash"}}, cmd: []string{"pause"}}
	seen := map[string]string{}
	for _, other := range []struct {
		what, content string
		change        func(*image)
	}{
		{"the first", "binary", func(*image) {}},
		{"another program", "later", func(*image) {}},
		{"another reference", "binary", func(im *image) { im.refs = []string{"a:2"} }},
		{"another link", "binary", func(im *image) { im.files = []file{im.files[0], {name: "sh", link: "dash"}} }},
		{"another name of the program", "binary", func(im *image) { im.files = []file{{name: "other", from: program}, im.files[1]} }},
		{"another entry point", "binary", func(im *image) { im.entrypoint = []string{"/tool"} }},
		{"other arguments", "binary", func(im *image) { im.cmd = nil }},
	} {
		if err := os.WriteFile(program, []byte(other.content), 0o755); err != nil {
			t.Fatal(err)
		}
		im := base
		other.change(&im)
		archive, err := b.makeImage(t.Context(), im)
		if err != nil {
			t.Fatal(err)
		}
		if first := seen[archive]; first != "" {
			t.Errorf("%s: the same archive as %s", other.what, first)
		}
		seen[archive] = other.what
		img, err := tarball.ImageFromPath(archive, nil)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || !slices.Equal(config.Config.Cmd, im.cmd) || len(config.RootFS.DiffIDs) != 1 {
			t.Errorf("%s: configuration %+v, %v", other.what, config, err)
		}
	}
}

func TestRemoveTreeKeepsNeighbours(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "ab"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTree(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ab")); err != nil {
		t.Error(err)
	}
}
