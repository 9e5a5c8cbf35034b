// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"path"
	"slices"
	"strings"
)

// relevantModules are those that a target or a host may need.
var relevantModules = []string{
	"configfs", "dm_crypt", "dm_mod", "ib_core", "ib_uverbs", "loop", "md_mod", "nvme", "nvme_fabrics", "nvme_rdma", "nvme_tcp",
	"nvmet", "nvmet_rdma", "nvmet_tcp", "raid1", "rdma_cm", "rdma_rxe", "uio_pci_generic", "vfio_pci", "xfs",
}

// signs are paths that only exist with the module, for modules without
// parameters: when built in, these have no folder in /sys/module.
var signs = map[string]string{
	"nvmet":    "sys/kernel/config/nvmet",
	"configfs": "sys/kernel/config",
}

// modules lists the relevant ones that are loaded, built in, or installed for this kernel.
func modules(t tree, release string) ([]string, error) {
	installed, err := installedModules(t, release)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range relevantModules {
		loaded, err := t.exists("sys/module", m)
		if err != nil {
			return nil, err
		}
		shown := false
		if sign, ok := signs[m]; ok {
			if shown, err = t.exists(sign); err != nil {
				return nil, err
			}
		}
		if loaded || shown || installed[m] {
			found = append(found, m)
		}
	}
	slices.Sort(found)
	return found, nil
}

// installedModules reads depmod's lists. A machine may have none: a kernel without
// modules is whole by itself.
func installedModules(t tree, release string) (map[string]bool, error) {
	installed := map[string]bool{}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		text, err := t.readIfSaid("lib/modules", release, list)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			// "kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz"; modules.builtin has no colon.
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			name, _, _ := strings.Cut(path.Base(file), ".")
			installed[strings.ReplaceAll(name, "-", "_")] = true
		}
	}
	return installed, nil
}
