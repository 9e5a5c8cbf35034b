// SPDX-License-Identifier: Apache-2.0

// Package inventory finds out what a node has that matters for serving
// volumes: kernel modules, CPUs and memory by NUMA node, network interfaces, RDMA devices,
// and the node's own drives with what is on them.
//
// It reads sysfs and procfs under a root that is given, and asks two things
// of it that files do not tell: network addresses, and the signatures on a drive.
//
// What the machine does not say is absent from the answer. What it says but
// cannot be read is an error, or for the content of a drive, Unknown. Nothing is guessed.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Host is the machine to look at.
type Host struct {
	// Root of its filesystem; "/" when empty.
	Root string
	// Architecture in Go's words; the running program's when empty.
	Architecture string
	// Addresses of its network interfaces. Required.
	Addresses AddressSource
	// Prober of its drives. Required.
	Prober Prober
	// Verbs of its RDMA devices; Verbs{} when nil.
	Verbs VerbsSource
}

// AddressSource tells the addresses of network interfaces.
type AddressSource interface {
	// Addresses by interface name, each interface's in the kernel's order: the
	// primary one first. It is safe for concurrent use.
	Addresses(ctx context.Context) (map[string][]netip.Prefix, error)
}

// Prober looks for signatures of filesystems, partition tables and the like.
type Prober interface {
	// Probe reads the block device at the path; it never writes. An error means that what
	// is on the device is not known. It is safe for concurrent use.
	Probe(ctx context.Context, path string) (Signature, error)
}

// Signature is what a Prober found; the zero value is nothing: the device is blank.
type Signature struct {
	// Type of the content, such as ext4, LVM2_member or crypto_LUKS.
	Type string
	// Usage of the content: filesystem, raid, crypto or other.
	Usage string
	// Label of a filesystem.
	Label string
	// PartitionTable, such as gpt or dos.
	PartitionTable string
	// Ambivalent when there are several signatures that contradict each other.
	Ambivalent bool
	// Unnamed when there is no signature, and yet the device's first or last MiB is not zeros.
	Unnamed bool
}

// Discover takes the inventory. Lists are sorted, so that the same machine
// gives the same answer. It fails as a whole when something that it needs is there and
// cannot be read.
//
// MaxSRQ, MaxSRQWR and MaxQP of RDMA devices are 0, which means unknown, where the device's driver does not tell them:
// neither sysfs nor RDMA netlink has them, only a verbs context, for which some drivers want more than weft tells them.
func Discover(ctx context.Context, host Host) (*v1alpha1.Inventory, error) {
	if host.Addresses == nil || host.Prober == nil {
		return nil, errors.New("inventory: Host needs Addresses and Prober")
	}
	if host.Root == "" {
		host.Root = "/"
	}
	if host.Architecture == "" {
		host.Architecture = runtime.GOARCH
	}
	if host.Verbs == nil {
		host.Verbs = Verbs{}
	}
	t := tree{root: host.Root}
	inv := &v1alpha1.Inventory{Architecture: host.Architecture}
	for _, step := range []struct {
		of  string
		run func() error
	}{
		{"the kernel's version", func() (err error) { inv.KernelVersion, err = t.read("proc/sys/kernel/osrelease"); return err }},
		{"kernel modules", func() (err error) { inv.Modules, err = modules(t, inv.KernelVersion); return err }},
		{"NUMA nodes", func() (err error) { inv.NUMANodes, err = numaNodes(t); return err }},
		{"network interfaces", func() (err error) { inv.NICs, err = nics(ctx, t, host.Addresses); return err }},
		{"RDMA devices", func() (err error) { inv.RDMADevices, err = rdmaDevices(t, host.Verbs); return err }},
		{"drives", func() (err error) { inv.Drives, err = drives(ctx, t, host.Prober); return err }},
	} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := step.run(); err != nil {
			return nil, fmt.Errorf("taking the inventory of %s: %w", step.of, err)
		}
	}
	return inv, nil
}
