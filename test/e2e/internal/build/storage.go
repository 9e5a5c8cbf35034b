// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"
)

// StorageSuite is Kubernetes' own end-to-end suite for external storage drivers.
type StorageSuite struct {
	// Ginkgo is the program that runs Tests, in several processes at once.
	Ginkgo, Tests string
	// Archive is that of the image Agnhost: the suite's own helper program, and a shell and the tools that its specs
	// call.
	Archive, Agnhost string
	// Shells are the names of the other images that the specs ask for. They want a shell and tools alone, which Agnhost
	// has.
	Shells []string
}

// storagePrograms lists what tools/storage makes.
func storagePrograms() (tests, ginkgo, agnhost program) {
	return program{name: "storage.test", module: "storage", pkg: ".", test: true},
		program{name: "ginkgo", module: "storage", pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
		program{name: "agnhost", module: "storage", pkg: kubernetesModule + "/test/images/agnhost"}
}

// StorageSuite builds the suite at the version of Kubernetes that the lab runs, and its images.
func (b *Builder) StorageSuite(ctx context.Context) (StorageSuite, error) {
	key, err := Key(filepath.Join(b.toolsDir(), "storage"), runtime.Version(), runtime.GOARCH)
	if err != nil {
		return StorageSuite{}, err
	}
	rel := "storage-" + key
	tests, ginkgo, agnhost := storagePrograms()
	if err := b.buildPrograms(ctx, rel, []program{tests, ginkgo, agnhost}); err != nil {
		return StorageSuite{}, err
	}
	path := func(p program) string { return b.Cache.Path(filepath.Join(rel, p.name)) }
	out, err := Output(ctx, path(tests), "-images")
	if err != nil {
		return StorageSuite{}, err
	}
	suite := StorageSuite{Ginkgo: path(ginkgo), Tests: path(tests)}
	for _, ref := range strings.Fields(out) {
		if !strings.Contains(ref, "/agnhost:") {
			suite.Shells = append(suite.Shells, ref)
			continue
		}
		suite.Agnhost = ref
		if suite.Archive, err = b.agnhostImage(ctx, path(agnhost), ref); err != nil {
			return StorageSuite{}, err
		}
	}
	return suite, nil
}

// agnhostImage has the program on top of ToolsImage's layer. Like its maker's image it does nothing when it is given
// nothing to do. Its shell is bash: the specs are written for busybox's, which has more words than Debian's (let:
// without it their loops have no end) and other exit codes.
func (b *Builder) agnhostImage(ctx context.Context, agnhost, ref string) (string, error) {
	return b.makeImage(ctx, image{
		name: "agnhost", refs: []string{ref}, onTools: true,
		files:      []file{{name: "agnhost", from: agnhost}, {name: "usr/bin/sh", link: "bash"}},
		entrypoint: []string{"/agnhost"}, cmd: []string{"pause"},
	})
}
