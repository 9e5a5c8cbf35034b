// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const infinibandDir = "sys/class/infiniband"

// rdmaDevices lists RDMA devices by their first port.
func rdmaDevices(t tree, verbs VerbsSource) ([]v1alpha1.RDMADevice, error) {
	names, err := t.listIfThere(infinibandDir)
	if err != nil {
		return nil, err
	}
	var found []v1alpha1.RDMADevice
	for _, name := range names {
		d, err := rdmaDevice(t, name)
		if err != nil {
			return nil, err
		}
		limits, err := limitsOf(t, verbs, name)
		if err != nil {
			return nil, err
		}
		d.MaxQP, d.MaxSRQ, d.MaxSRQWR = limits.MaxQP, limits.MaxSRQ, limits.MaxSRQWR
		found = append(found, d)
	}
	return found, nil
}

func rdmaDevice(t tree, name string) (v1alpha1.RDMADevice, error) {
	dir := path.Join(infinibandDir, name)
	d := v1alpha1.RDMADevice{Name: name}
	var err error
	if d.LinkLayer, err = t.readIfSaid(dir, "ports/1/link_layer"); err != nil {
		return d, err
	}
	// The state reads "4: ACTIVE".
	state, err := t.readIfSaid(dir, "ports/1/state")
	if err != nil {
		return d, err
	}
	d.Active = strings.HasPrefix(state, "4:")
	if d.Netdev, err = netdevOf(t, dir); err != nil {
		return d, err
	}
	device, err := t.real(dir, "device")
	if err != nil || device == "" {
		return d, err
	}
	p, err := t.placeOf(device)
	d.PCIAddress, d.NUMANode = p.pci, p.numa
	return d, err
}

// netdevOf finds the interface that shares the first port. On Ethernet the port's GID table
// names it, in the first entry that is filled: later ones may be VLANs. On
// InfiniBand it is the only interface of the same PCI function. A software device that has
// no address yet has an empty table, and names its parent.
func netdevOf(t tree, dir string) (string, error) {
	gids, err := t.listIfThere(dir, "ports/1/gid_attrs/ndevs")
	if err != nil {
		return "", err
	}
	slices.SortFunc(gids, func(a, b string) int {
		// Entries are numbers; ReadDir sorts 10 before 2.
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	})
	for _, gid := range gids {
		// An empty entry answers EINVAL.
		if name, err := t.readIfSaid(dir, "ports/1/gid_attrs/ndevs", gid); err != nil || name != "" {
			return name, err
		}
	}
	names, err := t.listIfThere(dir, "device/net")
	if err != nil {
		return "", err
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return t.readIfSaid(dir, "parent")
}
