// SPDX-License-Identifier: Apache-2.0

package imagefile

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"

	"github.com/weft-storage/weft/internal/capability"
)

const (
	// targetPath and launcherPath are those of the two programs in an image.
	targetPath   = "/usr/local/bin/nvmf_tgt"
	launcherPath = "/usr/local/bin/weft-launch"
)

// TargetOptions are what an image of target pods is made from.
type TargetOptions struct {
	// Program is nvmf_tgt, for this machine, and Launcher weft-launch for the same architecture.
	Program, Launcher string
	// Version and Revision of weft-launch; empty: not told.
	Version, Revision string
	// Note takes what the user should know.
	Note func(format string, args ...any)
}

// Target makes the image of target pods. The nvmf_tgt is asked on this machine what it can do, and then, where
// namespaces are allowed, in the image.
func Target(ctx context.Context, o TargetOptions) (image Image, can *capability.Capabilities, err error) {
	architecture, err := architectureOf(o.Program, o.Launcher)
	if err != nil {
		return image, nil, err
	}
	can, loaded, err := ask(ctx, "", o.Program, env())
	if err != nil {
		return image, nil, err
	}
	dir, err := os.MkdirTemp("", "weft-target-")
	if err != nil {
		return image, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := newRoot(dir)
	if err != nil {
		return image, nil, err
	}
	if err := r.target(ctx, o.Program, loaded); err != nil {
		return image, nil, err
	}
	if can.Programs, err = r.blkid(ctx, o.Note); err != nil {
		return image, nil, err
	}
	// Before it runs in the folder, and leaves something there.
	if image, err = r.image(o, architecture, can); err != nil {
		return image, nil, err
	}
	return image, can, r.try(ctx, image.Env, can, o.Note)
}

// target with its libraries, those that it loads by itself, and the plug-ins for RDMA devices.
func (r *root) target(ctx context.Context, program string, loaded []string) error {
	libraries, _, err := Libraries(ctx, program)
	if err != nil {
		return err
	}
	if err := errors.Join(r.libraries(ctx, program), r.copy(program, targetPath, 0o755), r.verbs(ctx, libraries)); err != nil {
		return err
	}
	for _, l := range loaded {
		if err := r.loaded(l); err != nil {
			return err
		}
	}
	return nil
}

// try the target in the folder, with nothing else.
func (r *root) try(ctx context.Context, env []string, can *capability.Capabilities, note func(string, ...any)) error {
	if err := canIsolate(ctx, r.dir); err != nil {
		note("the image was not tried, because namespaces are not allowed here: %v", err)
		return nil
	}
	again, _, err := ask(ctx, r.dir, targetPath, env)
	if err != nil {
		return fmt.Errorf("nvmf_tgt does not run in the image: %w", err)
	}
	again.Programs = can.Programs
	if have, want := again.Labels(), can.Labels(); !maps.Equal(have, want) {
		return fmt.Errorf("in the image, nvmf_tgt can do %v, and on this machine %v", have, want)
	}
	return nil
}

// env of a target: no configuration of OpenSSL, whose library ends a program that finds none where the machine that
// built it has one.
func env() []string { return []string{"OPENSSL_CONF=/dev/null"} }

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
	return []string{capability.Blkid}, r.linked(ctx, path)
}

func (r *root) image(o TargetOptions, architecture string, can *capability.Capabilities) (Image, error) {
	spdk, err := r.layer()
	if err != nil {
		return Image{}, err
	}
	// Each release of weft changes this one alone.
	var launch Layer
	launch.File(strings.TrimPrefix(launcherPath, "/"), o.Launcher, 0o755)
	launcher, err := launch.Bytes()
	if err != nil {
		return Image{}, err
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
	environment := env()
	if folders := r.libraryPath(); len(folders) > 0 {
		environment = append(environment, "LD_LIBRARY_PATH="+strings.Join(folders, ":"))
	}
	return Image{
		Layers: [][]byte{spdk, launcher}, Architecture: architecture, Entrypoint: []string{launcherPath}, Cmd: []string{"--help"},
		User: "0:0", Env: environment, Labels: labels,
	}, nil
}

// architectureOf two programs, which must be the same.
func architectureOf(program, launcher string) (string, error) {
	var machines [2]elf.Machine
	for i, path := range []string{program, launcher} {
		if _, _, err := linking(path); err != nil {
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
