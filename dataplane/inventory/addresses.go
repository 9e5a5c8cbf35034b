// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Netlink asks the kernel for addresses, in the network namespace of the process.
type Netlink struct{}

// unusable marks addresses that may not be listened on, or that change by themselves.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY

// Addresses of all interfaces.
func (Netlink) Addresses(context.Context) (map[string][]netip.Prefix, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	found := map[string][]netip.Prefix{}
	for _, link := range links {
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("listing the addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, a := range addresses {
			// IFA_F_TEMPORARY is IFA_F_SECONDARY of IPv4, which is an address like any other.
			mask := unusable
			if a.IP.To4() != nil {
				mask &^= unix.IFA_F_TEMPORARY
			}
			addr, ok := netip.AddrFromSlice(a.IP)
			if !ok || a.Flags&mask != 0 {
				continue
			}
			ones, _ := a.Mask.Size()
			found[link.Attrs().Name] = append(found[link.Attrs().Name], netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	return found, nil
}
