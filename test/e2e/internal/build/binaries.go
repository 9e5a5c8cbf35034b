// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// program is one Go program that the lab builds from a module in tools/.
type program struct {
	name   string
	module string // folder below tools/
	pkg    string // import path
	test   bool   // it is the package's test program
}

const kubernetesModule = "k8s.io/kubernetes"

// etcdProgram's main package is the module's root.
var etcdProgram = program{name: "etcd", module: "etcd", pkg: "go.etcd.io/etcd/server/v3"}

func kubernetesProgram(name string) program {
	return program{name: name, module: "kubernetes", pkg: kubernetesModule + "/cmd/" + name}
}

// envtestPrograms are what API-server tests need in KUBEBUILDER_ASSETS.
func envtestPrograms() []program {
	return []program{etcdProgram, kubernetesProgram("kube-apiserver"), kubernetesProgram("kube-controller-manager"), kubernetesProgram("kubectl")}
}

// clusterPrograms are what a cluster needs beyond envtestPrograms.
func clusterPrograms() []program {
	return []program{
		kubernetesProgram("kubelet"),
		kubernetesProgram("kube-proxy"),
		kubernetesProgram("kube-scheduler"),
	}
}

// sidecar is a CSI sidecar and the module that its version comes from.
type sidecar struct {
	name   string
	module string
}

// sidecars lists the sidecars of which the lab makes images. The names are
// those under which registry.k8s.io/sig-storage publishes them.
func sidecars() []sidecar {
	const org = "github.com/kubernetes-csi/"
	return []sidecar{
		{"csi-provisioner", org + "external-provisioner/v6"},
		{"csi-attacher", org + "external-attacher/v4"},
		{"csi-resizer", org + "external-resizer/v2"},
		{"csi-snapshotter", org + "external-snapshotter/v8"},
		{"csi-snapshot-metadata", org + "external-snapshot-metadata"},
		{"snapshot-controller", org + "external-snapshotter/v8"},
	}
}

func (s sidecar) program() program {
	return program{name: s.name, module: "sidecars", pkg: s.module + "/cmd/" + s.name}
}

// moduleVersion returns the version of the module path that the module in
// tools/<folder> requires. It is the only place a version is read from.
func (b *Builder) moduleVersion(folder, path string) (string, error) {
	file := filepath.Join(b.toolsDir(), folder, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	mod, err := modfile.ParseLax(file, data, nil)
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", file, err)
	}
	for _, req := range mod.Require {
		if req.Mod.Path == path {
			return req.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, path)
}

// KubernetesVersion returns the pinned version of Kubernetes, such as v1.36.3.
func (b *Builder) KubernetesVersion() (string, error) {
	return b.moduleVersion("kubernetes", kubernetesModule)
}

// ldflags returns the linker flags of a program; they stamp the version where
// the upstream release scripts would.
func (b *Builder) ldflags(p program) (string, error) {
	const base = "-s -w"
	switch p.module {
	case "kubernetes", "storage":
		version, err := b.KubernetesVersion()
		if err != nil {
			return "", err
		}
		major, minor, err := majorMinor(version)
		if err != nil {
			return "", err
		}
		const pkg = " -X k8s.io/component-base/version."
		return base + pkg + "gitVersion=" + version + pkg + "gitMajor=" + major + pkg + "gitMinor=" + minor, nil
	case "sidecars":
		path := strings.TrimSuffix(p.pkg, "/cmd/"+p.name)
		version, err := b.moduleVersion("sidecars", path)
		if err != nil {
			return "", err
		}
		return base + " -X main.version=" + version, nil
	case "velero":
		version, err := b.moduleVersion("velero", veleroModule)
		if err != nil {
			return "", err
		}
		return base + " -X " + veleroModule + "/pkg/buildinfo.Version=" + version, nil
	default:
		return base, nil
	}
}

// majorMinor splits a version such as v1.36.3 into "1" and "36".
func majorMinor(version string) (major, minor string, err error) {
	if module.CanonicalVersion(version) == "" {
		return "", "", fmt.Errorf("%q is not a version such as v1.36.3", version)
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return parts[0], parts[1], nil
}

// binKey names the folder for binaries built from the modules in folders.
func (b *Builder) binKey(folders ...string) (string, error) {
	parts := []string{runtime.Version(), runtime.GOARCH}
	for _, folder := range folders {
		parts = append(parts, filepath.Join(b.toolsDir(), folder, "go.mod"), filepath.Join(b.toolsDir(), folder, "go.sum"))
	}
	return Key(parts...)
}

// AssetsDir returns the folder with etcd, kube-apiserver and kubectl (and the
// rest of Kubernetes), suited for KUBEBUILDER_ASSETS. It may not exist yet.
func (b *Builder) AssetsDir() (string, error) {
	rel, err := b.kubernetesDir()
	if err != nil {
		return "", err
	}
	return b.Cache.Path(rel), nil
}

// Built reports whether Kubernetes is in the cache. Building it takes most of a first start of the lab.
func (b *Builder) Built() (bool, error) {
	rel, err := b.kubernetesDir()
	if err != nil {
		return false, err
	}
	for _, p := range append(envtestPrograms(), clusterPrograms()...) {
		if !b.Cache.Has(filepath.Join(rel, p.name)) {
			return false, nil
		}
	}
	return true, nil
}

// kubernetesDir is named by version for people and by hash for machines.
func (b *Builder) kubernetesDir() (string, error) {
	version, err := b.KubernetesVersion()
	if err != nil {
		return "", err
	}
	key, err := b.binKey("kubernetes", "etcd")
	if err != nil {
		return "", err
	}
	return "kubernetes-" + version + "-" + key, nil
}

func (b *Builder) sidecarDir() (string, error) {
	key, err := b.binKey("sidecars")
	return "sidecars-" + key, err
}

// buildPrograms builds the programs that are missing below the cache folder
// rel, one after the other: a single Go build uses all cores already.
func (b *Builder) buildPrograms(ctx context.Context, rel string, programs []program) error {
	for _, p := range programs {
		path := filepath.Join(rel, p.name)
		if b.Cache.Has(path) {
			continue
		}
		err := b.Progress.Step("build "+p.name, func() error {
			_, err := b.Cache.Ensure(ctx, path, func(ctx context.Context, tmp string) error {
				flags, err := b.ldflags(p)
				if err != nil {
					return err
				}
				dir := filepath.Join(b.toolsDir(), p.module)
				if p.test {
					return goTool(ctx, dir, "test", "-c", "-trimpath", "-ldflags", flags, "-o", tmp, p.pkg)
				}
				return b.goBuild(ctx, dir, flags, tmp, p.pkg)
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// goBuild builds one static binary without cgo.
func (b *Builder) goBuild(ctx context.Context, dir, ldflags, out, pkg string) error {
	return goTool(ctx, dir, "build", "-trimpath", "-ldflags", ldflags, "-o", out, pkg)
}

// goTool calls go, without cgo and with the versions of the module in dir.
func goTool(ctx context.Context, dir string, args ...string) error {
	return Cmd{
		Dir:  dir,
		Env:  []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off"},
		Args: append([]string{"go"}, args...),
	}.Run(ctx)
}

// Envtest builds what API-server tests need and returns its folder.
func (b *Builder) Envtest(ctx context.Context) (string, error) {
	rel, err := b.kubernetesDir()
	if err != nil {
		return "", err
	}
	if err := b.buildPrograms(ctx, rel, envtestPrograms()); err != nil {
		return "", err
	}
	return b.Cache.Path(rel), nil
}
