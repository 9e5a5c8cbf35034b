// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
)

const (
	snapshotterModule = "github.com/kubernetes-csi/external-snapshotter/v8"
	snapshotAPIModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"
	metadataAPIModule = "github.com/kubernetes-csi/external-snapshot-metadata/client"
)

// SnapshotAPI is what makes a cluster able to take snapshots, and to say where their blocks are listed, as its makers
// publish it.
type SnapshotAPI struct {
	// Manifests are the paths of its CRDs, and of the snapshot controller's rights.
	Manifests []string
	// Controller is the image of the snapshot controller; every node of the lab has it.
	Controller string
}

// SnapshotAPI finds it in the Go modules that the sidecars are built from.
func (b *Builder) SnapshotAPI(ctx context.Context) (SnapshotAPI, error) {
	api, err := b.moduleFolder(ctx, "sidecars", snapshotAPIModule)
	if err != nil {
		return SnapshotAPI{}, err
	}
	snapshotter, err := b.moduleFolder(ctx, "sidecars", snapshotterModule)
	if err != nil {
		return SnapshotAPI{}, err
	}
	version, err := b.moduleVersion("sidecars", snapshotterModule)
	if err != nil {
		return SnapshotAPI{}, err
	}
	crds, err := filepath.Glob(filepath.Join(api, "config", "crd", "snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(crds) == 0 {
		return SnapshotAPI{}, fmt.Errorf("%s has no CRDs (%w)", api, err)
	}
	metadata, err := b.moduleFolder(ctx, "sidecars", metadataAPIModule)
	if err != nil {
		return SnapshotAPI{}, err
	}
	crds = append(crds, filepath.Join(metadata, "config", "crd", "cbt.storage.k8s.io_snapshotmetadataservices.yaml"))
	return SnapshotAPI{
		Manifests:  append(crds, filepath.Join(snapshotter, "deploy", "kubernetes", "snapshot-controller", "rbac-snapshot-controller.yaml")),
		Controller: sidecarRepository + "snapshot-controller:" + version,
	}, nil
}

// moduleFolder returns where the files of a module lie that tools/<folder> requires.
func (b *Builder) moduleFolder(ctx context.Context, folder, path string) (string, error) {
	out, err := Cmd{
		Dir: filepath.Join(b.toolsDir(), folder), Env: []string{"GOFLAGS=-mod=readonly", "GOWORK=off"},
		Args: []string{"go", "mod", "download", "-json", path},
	}.Output(ctx)
	if err != nil {
		return "", err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return "", fmt.Errorf("go mod download %s: %w", path, err)
	}
	return module.Dir, nil
}
