// SPDX-License-Identifier: Apache-2.0

// Package pack makes the image of target pods from an nvmf_tgt that a machine has: with the libraries that it has
// there, and labels that say what it can do.
package pack

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-storage/weft/hack/imagefile"
	"github.com/weft-storage/weft/internal/capability"
)

const (
	// targetPath and launcherPath are those of the two programs in an image.
	targetPath   = "/usr/local/bin/nvmf_tgt"
	launcherPath = "/usr/local/bin/weft-launch"
	// rounds of asking, each with the libraries that the last one showed to be missing.
	rounds = 4
)

// Options of an image.
type Options struct {
	// Program is nvmf_tgt, for this machine, and Launcher weft-launch for the same architecture.
	Program, Launcher string
	// Version and Revision of weft-launch; empty: not told.
	Version, Revision string
	// Note takes what the user should know.
	Note func(format string, args ...any)
}

// Build the image, and ask the nvmf_tgt in it what it can do.
func Build(ctx context.Context, o Options) (image imagefile.Image, can *capability.Capabilities, err error) {
	architecture, err := architectureOf(o.Program, o.Launcher)
	if err != nil {
		return image, nil, err
	}
	dir, err := os.MkdirTemp("", "weft-target-")
	if err != nil {
		return image, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &root{dir: dir, folders: map[string]bool{}}
	libraries, loader, err := Libraries(ctx, o.Program)
	if err != nil {
		return image, nil, err
	}
	if err := errors.Join(r.program(ctx, o.Program, targetPath), r.verbs(ctx, libraries)); err != nil {
		return image, nil, err
	}
	programs, err := r.blkid(ctx, o.Note)
	if err != nil {
		return image, nil, err
	}
	if can, err = r.ask(ctx, loader); err != nil {
		return image, nil, err
	}
	can.Programs = programs
	return r.image(o, architecture, can)
}

// ask the target in the folder what it can do, with the folder's libraries. What it loads from elsewhere is added, until
// there is nothing.
func (r *root) ask(ctx context.Context, loader string) (*capability.Capabilities, error) {
	for range rounds {
		argv := []string{filepath.Join(r.dir, targetPath)}
		if loader != "" {
			var folders []string
			for _, f := range r.libraryPath() {
				folders = append(folders, filepath.Join(r.dir, f))
			}
			argv = []string{filepath.Join(r.dir, loader), "--library-path", strings.Join(folders, ":"), argv[0]}
		}
		can, loaded, err := ask(ctx, argv, r.env())
		if err != nil {
			return nil, err
		}
		loaded = slices.DeleteFunc(loaded, func(l string) bool { return strings.HasPrefix(l, r.dir+"/") || r.has(l) })
		if len(loaded) == 0 {
			return can, nil
		}
		for _, l := range loaded {
			if err := r.program(ctx, l, l); err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("after %d rounds the target still loads libraries that the image does not have", rounds)
}

// env of the image: where its libraries are, and that there is no configuration of OpenSSL, whose library ends a program
// that finds none where the machine that built it has one.
func (r *root) env() []string { return []string{"OPENSSL_CONF=/dev/null"} }

// blkid of util-linux, which weft-launch runs before it takes a drive from the kernel.
func (r *root) blkid(ctx context.Context, note func(string, ...any)) ([]string, error) {
	path, err := exec.LookPath(capability.Blkid)
	if err == nil {
		var said []byte
		if said, err = exec.CommandContext(ctx, path, "--version").CombinedOutput(); err == nil && !bytes.Contains(said, []byte("util-linux")) {
			err = fmt.Errorf("%s is not util-linux's", path)
		}
	}
	if err != nil {
		note("without blkid of util-linux, devices.driver VFIO and UIO will not work with this image: %v", err)
		return []string{}, nil
	}
	return []string{capability.Blkid}, r.program(ctx, path, path)
}

func (r *root) image(o Options, architecture string, can *capability.Capabilities) (imagefile.Image, *capability.Capabilities, error) {
	spdk, err := r.layer()
	if err != nil {
		return imagefile.Image{}, nil, err
	}
	// Each release of weft changes this one alone.
	var launch imagefile.Layer
	launch.File(strings.TrimPrefix(launcherPath, "/"), o.Launcher, 0o755)
	launcher, err := launch.Bytes()
	if err != nil {
		return imagefile.Image{}, nil, err
	}
	labels := can.Labels()
	for label, value := range map[string]string{
		"title": "weft-target", "description": "SPDK's NVMe-oF target, started by weft", "source": "https://github.com/weft-storage/weft",
		"version": o.Version, "revision": o.Revision,
	} {
		if value != "" {
			labels["org.opencontainers.image."+label] = value
		}
	}
	env := r.env()
	if folders := r.libraryPath(); len(folders) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(folders, ":"))
	}
	return imagefile.Image{
		Layers: [][]byte{spdk, launcher}, Architecture: architecture, Entrypoint: []string{launcherPath}, Cmd: []string{"--help"},
		User: "0:0", Env: env, Labels: labels,
	}, can, nil
}

// architectureOf two programs, which must be the same.
func architectureOf(program, launcher string) (string, error) {
	var machines [2]elf.Machine
	for i, path := range []string{program, launcher} {
		if _, err := interpreter(path); err != nil {
			return "", err
		}
		f, err := elf.Open(path)
		if err != nil {
			return "", err
		}
		machines[i] = f.Machine
		if err := f.Close(); err != nil {
			return "", err
		}
	}
	if machines[0] != machines[1] {
		return "", fmt.Errorf("%s is for %v, and %s for %v: make binaries with ARCH of the first", program, machines[0], launcher, machines[1])
	}
	architecture, ok := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[machines[0]]
	if !ok {
		return "", fmt.Errorf("%s is for %v; weft runs on amd64 and arm64", program, machines[0])
	}
	return architecture, nil
}
