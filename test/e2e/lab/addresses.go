// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
)

const (
	// firstSlot and slots bound the second byte of a lab's addresses: lab n
	// uses 10.(firstSlot+n).0.0/16.
	firstSlot = 128
	slots     = 64
	// maxNodes is bounded by the pod networks that fit into podRange.
	maxNodes = 16
	// serviceRange is the range of Service addresses. It is seen only inside
	// the lab's own network namespace, so all labs may use the same.
	serviceRange = "10.96.0.0/16"
	apiServiceIP = "10.96.0.1"
	// mtu leaves room for an RDMA payload of 4096 bytes, as networks for
	// storage do.
	mtu = 9000
)

// addresses is the plan of one lab's networks.
type addresses struct{ slot int }

func (a addresses) addr(third, fourth int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(firstSlot + a.slot), byte(third), byte(fourth)})
}

// all covers every network of the lab except the Services.
func (a addresses) all() netip.Prefix { return netip.PrefixFrom(a.addr(0, 0), 16) }

// controlPlane is the bridge's address, where the API server listens.
func (a addresses) controlPlane() netip.Prefix { return netip.PrefixFrom(a.addr(0, 1), 24) }

// management is the address of the second bridge, from which the host reaches
// the nodes' shells also while their network is cut.
func (a addresses) management() netip.Prefix { return netip.PrefixFrom(a.addr(1, 1), 24) }

// host and uplink are the two ends of the link between the host and the lab.
func (a addresses) host() netip.Prefix   { return netip.PrefixFrom(a.addr(2, 1), 30) }
func (a addresses) uplink() netip.Prefix { return netip.PrefixFrom(a.addr(2, 2), 30) }

// podRange covers the pods of all nodes.
func (a addresses) podRange() netip.Prefix { return netip.PrefixFrom(a.addr(16, 0), 20) }

// The addresses of node i, counted from 0.
func (a addresses) node(i int) netip.Prefix           { return netip.PrefixFrom(a.addr(0, 10+i), 24) }
func (a addresses) nodeManagement(i int) netip.Prefix { return netip.PrefixFrom(a.addr(1, 10+i), 24) }
func (a addresses) pods(i int) netip.Prefix           { return netip.PrefixFrom(a.addr(16+i, 0), 24) }

// mac returns the address of interface nic of node i, locally administered.
func (a addresses) mac(i, nic int) string {
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", firstSlot+a.slot, nic, 10+i)
}

// labID is a short name for the lab in dir, so that labs in different folders
// get namespaces and interfaces of their own.
func labID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:3])
}

// chooseSlot returns the first slot, beginning at one derived from id, whose
// addresses are not among used.
func chooseSlot(id string, used []netip.Prefix) (int, error) {
	sum := sha256.Sum256([]byte(id))
	first := int(sum[0]) % slots
	for i := range slots {
		slot := (first + i) % slots
		if !overlapsAny(addresses{slot}.all(), used) {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("no free network among 10.%d.0.0/16 to 10.%d.0.0/16: the host has routes to all of them", firstSlot, firstSlot+slots-1)
}

func overlapsAny(p netip.Prefix, others []netip.Prefix) bool {
	for _, o := range others {
		// A default route overlaps with everything and forbids nothing.
		if o.Bits() > 0 && p.Overlaps(o) {
			return true
		}
	}
	return false
}
