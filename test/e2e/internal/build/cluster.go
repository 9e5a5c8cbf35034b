// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"path/filepath"
)

// Cluster builds a machine with Kubernetes on it and the control plane for it.
// assets is the folder with the control plane's programs.
func (b *Builder) Cluster(ctx context.Context) (machine Machine, assets string, err error) {
	rel, err := b.kubernetesDir()
	if err != nil {
		return Machine{}, "", err
	}
	if err := b.buildPrograms(ctx, rel, append(envtestPrograms(), clusterPrograms()...)); err != nil {
		return Machine{}, "", err
	}
	assets = b.Cache.Path(rel)
	rootfs, init, err := b.nodeParts(ctx)
	if err != nil {
		return Machine{}, "", err
	}
	archives, err := b.labImages(ctx)
	if err != nil {
		return Machine{}, "", err
	}
	images, err := preload(archives)
	if err != nil {
		return Machine{}, "", err
	}
	machine, err = b.machine(ctx, "node", rootfs, init, []addition{b.kubernetesAddition(assets, rel), images})
	return machine, assets, err
}

// kubernetesAddition puts the node's part of Kubernetes into its root disk.
func (b *Builder) kubernetesAddition(assets, key string) addition {
	return addition{key: key, add: func(_ context.Context, root string) error {
		for _, name := range []string{"kubelet", "kube-proxy"} {
			if err := copyFile(filepath.Join(assets, name), filepath.Join(root, "usr/local/bin", name), 0o755); err != nil {
				return err
			}
		}
		return nil
	}}
}
