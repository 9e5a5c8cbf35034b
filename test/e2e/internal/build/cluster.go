// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// Cluster builds a machine with Kubernetes on it and the control plane for it.
// assets is the folder with the control plane's programs. What comes from
// Debian is mostly waited for, what comes from Go is mostly computed, so the
// two are made side by side.
func (b *Builder) Cluster(ctx context.Context) (machine Machine, assets string, err error) {
	if err := b.EnsureHostTools(ctx); err != nil {
		return Machine{}, "", err
	}
	rel, err := b.kubernetesDir()
	if err != nil {
		return Machine{}, "", err
	}
	assets = b.Cache.Path(rel)
	var rootfs, tools string
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if rootfs, err = b.nodeRootfs(groupCtx); err != nil {
			return err
		}
		tools, err = b.toolsImage(groupCtx)
		return err
	})
	group.Go(func() error {
		return b.buildPrograms(groupCtx, rel, append(envtestPrograms(), clusterPrograms()...))
	})
	// Beside the former: while one waits for modules or links, the other compiles.
	var images []string
	group.Go(func() (err error) {
		images, err = b.goImages(groupCtx)
		return err
	})
	if err := group.Wait(); err != nil {
		return Machine{}, "", err
	}
	init, err := b.nodeInit(ctx)
	if err != nil {
		return Machine{}, "", err
	}
	preloaded, err := preload(append(images, tools))
	if err != nil {
		return Machine{}, "", err
	}
	machine, err = b.machine(ctx, "node", rootfs, init, []addition{kubernetesAddition(assets, rel), preloaded})
	return machine, assets, err
}

// kubernetesAddition puts the node's part of Kubernetes into its root disk.
func kubernetesAddition(assets, key string) addition {
	return addition{key: key, add: func(_ context.Context, root string) error {
		for _, name := range []string{"kubelet", "kube-proxy"} {
			if err := copyFile(filepath.Join(assets, name), filepath.Join(root, "usr/local/bin", name), 0o755); err != nil {
				return err
			}
		}
		return nil
	}}
}
