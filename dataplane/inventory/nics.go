// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const netDir = "sys/class/net"

// nics lists physical interfaces, bonds and VLANs. What else there is (bridges,
// veth pairs, tunnels) belongs to containers.
func nics(ctx context.Context, t tree, source AddressSource) ([]v1alpha1.NIC, error) {
	names, err := t.list(netDir)
	if err != nil {
		return nil, err
	}
	addresses, err := source.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	var found []v1alpha1.NIC
	for _, name := range names {
		relevant, err := isNIC(t, name)
		if err != nil {
			return nil, err
		}
		if !relevant {
			continue
		}
		n, err := nic(t, name)
		if err != nil {
			return nil, err
		}
		for _, a := range addresses[name] {
			if global(a.Addr()) {
				n.Addresses = append(n.Addresses, a.String())
			}
		}
		found = append(found, n)
	}
	return found, nil
}

// isNIC: a physical interface has a device behind it; bonds and VLANs say so in their uevent.
func isNIC(t tree, name string) (bool, error) {
	if physical, err := t.exists(netDir, name, "device"); err != nil || physical {
		return physical, err
	}
	event, err := t.readIfSaid(netDir, name, "uevent")
	if err != nil {
		return false, err
	}
	kind := ""
	for line := range strings.Lines(event) {
		if value, ok := strings.CutPrefix(line, "DEVTYPE="); ok {
			kind = strings.TrimSpace(value)
		}
	}
	return kind == "bond" || kind == "vlan", nil
}

func nic(t tree, name string) (v1alpha1.NIC, error) {
	dir := path.Join(netDir, name)
	n := v1alpha1.NIC{Name: name}
	mtu, _, err := t.number(dir, "mtu")
	if err != nil {
		return n, err
	}
	n.MTU = int32(mtu)
	// A link that is down has the speed -1, or refuses to tell one.
	if speed, ok, err := t.number(dir, "speed"); err != nil {
		return n, err
	} else if ok && speed > 0 {
		n.SpeedMbps = speed
	}
	if n.Up, err = up(t, dir); err != nil {
		return n, err
	}

	device, err := t.real(dir, "device")
	if err != nil {
		return n, err
	}
	if device != "" {
		p, err := t.placeOf(device)
		if err != nil {
			return n, err
		}
		n.PCIAddress, n.NUMANode = p.pci, p.numa
		if n.Driver, err = t.base(device, "driver"); err != nil {
			return n, err
		}
		if n.PCIe, err = t.pcieTransfers(n.PCIAddress); err != nil {
			return n, err
		}
	}

	queues, err := t.listIfThere(dir, "queues")
	if err != nil {
		return n, err
	}
	for _, q := range queues {
		switch {
		case strings.HasPrefix(q, "rx-"):
			n.RxQueues++
		case strings.HasPrefix(q, "tx-"):
			n.TxQueues++
		}
	}
	entries, err := t.listIfThere(dir)
	if err != nil {
		return n, err
	}
	for _, e := range entries {
		if lower, ok := strings.CutPrefix(e, "lower_"); ok {
			n.Lower = append(n.Lower, lower)
		}
	}
	slices.Sort(n.Lower)
	return n, nil
}

// up reads the link's state. A driver that does not keep one says "unknown"; then the carrier decides.
func up(t tree, dir string) (bool, error) {
	state, err := t.readIfSaid(dir, "operstate")
	if err != nil || state != "unknown" {
		return state == "up", err
	}
	carrier, _, err := t.number(dir, "carrier")
	return carrier == 1, err
}

// global leaves out addresses that are no use to other machines.
func global(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsLinkLocalUnicast() && !a.IsLoopback()
}
