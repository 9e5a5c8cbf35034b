// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// SizeUnit is what every volume's size is a multiple of, in bytes; a pool with larger clusters asks for a multiple
	// of those.
	SizeUnit = v1alpha1.VolumeSizeStep
	// MaxNQNBytes is the longest NQN (NVMe Base Specification, "NVMe Qualified Names").
	MaxNQNBytes = 223
)

var pciAddressPattern = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// Validate fails with ErrInvalid unless the ID is a UUID in lower case with hyphens.
func (id ID) Validate() error {
	if !uuidPattern.MatchString(string(id)) {
		return fmt.Errorf("%w: %q is not a UUID in lower case with hyphens", ErrInvalid, string(id))
	}
	return nil
}

// NGUID of the namespace that serves the volume: the UUID without its hyphens.
func (id ID) NGUID() string { return strings.ReplaceAll(string(id), "-", "") }

// Validate fails with ErrInvalid unless the device can be asked for.
func (d Device) Validate() error {
	switch {
	case d.ClusterBytes != 0 && (d.ClusterBytes < v1alpha1.MinClusterSize || d.ClusterBytes > v1alpha1.MaxClusterSize || d.ClusterBytes&(d.ClusterBytes-1) != 0):
		return fmt.Errorf("%w: device %s: clusters of %d bytes; give a power of two from 1 MiB to 16 MiB", ErrInvalid, d.ID, d.ClusterBytes)
	case d.ID == "":
		return fmt.Errorf("%w: device %q has no ID; set its world-wide ID or the file's path", ErrInvalid, d.Path)
	case d.PCIAddress != "" && (d.Path != "" || d.FileBytes != 0):
		return fmt.Errorf("%w: device %s has PCI address %s and path %q; set only one of them", ErrInvalid, d.ID, d.PCIAddress, d.Path)
	case d.PCIAddress != "" && !pciAddressPattern.MatchString(d.PCIAddress):
		return fmt.Errorf("%w: device %s: %q is not a PCI address such as 0000:5e:00.0", ErrInvalid, d.ID, d.PCIAddress)
	case d.PCIAddress != "":
		return nil
	case !filepath.IsAbs(d.Path):
		return fmt.Errorf("%w: device %s: path %q is not absolute", ErrInvalid, d.ID, d.Path)
	case d.FileBytes < 0:
		return fmt.Errorf("%w: device %s: a file of %d bytes; the size must be greater than zero", ErrInvalid, d.ID, d.FileBytes)
	case d.FileBytes > 0 && d.ID != d.Path:
		return fmt.Errorf("%w: device %s: the ID of a file is its path, %s", ErrInvalid, d.ID, d.Path)
	}
	return nil
}

// Validate fails with ErrInvalid unless the volume can be asked for.
func (v VolumeSpec) Validate() error {
	if err := (VolumeSize{ID: v.ID, SizeBytes: v.SizeBytes}).Validate(); err != nil {
		return err
	}
	if v.Source.Snapshot != "" && v.Source.Volume != "" {
		return fmt.Errorf("%w: volume %s has two sources; set a snapshot or a volume", ErrInvalid, v.ID)
	}
	for _, source := range []ID{v.Source.Snapshot, v.Source.Volume} {
		if source == "" {
			continue
		}
		if err := source.Validate(); err != nil {
			return fmt.Errorf("source of volume %s: %w", v.ID, err)
		}
	}
	if v.Source == (Source{}) && v.Pool == "" {
		return fmt.Errorf("%w: volume %s has no pool; set the ID of an open device", ErrInvalid, v.ID)
	}
	return nil
}

// Validate fails with ErrInvalid unless the size can be asked for.
func (v VolumeSize) Validate() error {
	if err := v.ID.Validate(); err != nil {
		return err
	}
	if v.SizeBytes <= 0 || v.SizeBytes%SizeUnit != 0 {
		return fmt.Errorf("%w: volume %s of %d bytes; the size must be a multiple of 4 MiB greater than zero", ErrInvalid, v.ID, v.SizeBytes)
	}
	return nil
}

// CheckSize fails with ErrInvalid unless a volume in the pool can have the size.
func (p Pool) CheckSize(sizeBytes int64) error {
	if rounded := v1alpha1.InClusters(sizeBytes, p.ClusterBytes); rounded != sizeBytes {
		return fmt.Errorf("%w: %d bytes in pool %s with clusters of %d; give %d", ErrInvalid, sizeBytes, p.Device, p.ClusterBytes, rounded)
	}
	return nil
}

// Validate fails with ErrInvalid unless the limits can be kept as they are.
func (v VolumeQoS) Validate() error {
	if err := v.ID.Validate(); err != nil {
		return err
	}
	const step = v1alpha1.QoSIOPSStep
	if n := v.QoS.IOPS; n < 0 || n > v1alpha1.QoSMaxIOPS || n%step != 0 {
		below := min(max(n, 0), v1alpha1.QoSMaxIOPS) / step * step
		return fmt.Errorf("%w: volume %s: %d IOPS; the nearest limits are %d and %d (0 means no limit)", ErrInvalid, v.ID, n, below, min(below+step, v1alpha1.QoSMaxIOPS))
	}
	for _, n := range []int64{v.QoS.MiBps, v.QoS.ReadMiBps, v.QoS.WriteMiBps} {
		if n < 0 || n > v1alpha1.QoSMaxBandwidthMiBps {
			return fmt.Errorf("%w: volume %s: %d MiB per second; must be from 1 to %d, or 0 for no limit", ErrInvalid, v.ID, n, v1alpha1.QoSMaxBandwidthMiBps)
		}
	}
	return nil
}

// Validate fails with ErrInvalid unless the snapshot can be asked for.
func (s SnapshotSpec) Validate() error {
	if err := s.ID.Validate(); err != nil {
		return err
	}
	return s.Volume.Validate()
}

// Validate fails with ErrInvalid unless the blocks can be asked for.
func (b Blocks) Validate() error {
	err := b.Snapshot.Validate()
	if err == nil && b.Base != "" {
		err = b.Base.Validate()
	}
	if err == nil && (b.Within.Offset < 0 || b.Within.Bytes < 0) {
		err = fmt.Errorf("%w: %d bytes from %d on", ErrInvalid, b.Within.Bytes, b.Within.Offset)
	}
	return err
}

// ValidateSubsystemNQN fails with ErrInvalid unless the NQN is one that weft serves.
func ValidateSubsystemNQN(nqn string) error {
	if !strings.HasPrefix(nqn, v1alpha1.NQNPrefix) || len(nqn) == len(v1alpha1.NQNPrefix) {
		return fmt.Errorf("%w: subsystem %q does not belong to weft; its NQN must start with %s", ErrInvalid, nqn, v1alpha1.NQNPrefix)
	}
	return validateNQN(nqn)
}

// validateNQN also refuses a slash: NQNs are names of folders in configfs.
func validateNQN(nqn string) error {
	if len(nqn) > MaxNQNBytes || !strings.HasPrefix(nqn, "nqn.") || strings.ContainsFunc(nqn, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ',' }) {
		return fmt.Errorf("%w: %q is not an NQN: it starts with \"nqn.\" and has at most %d printable ASCII characters without space, slash and comma", ErrInvalid, nqn, MaxNQNBytes)
	}
	return nil
}

// Validate fails with ErrInvalid unless the export can be asked for.
func (e Export) Validate() error {
	if err := ValidateSubsystemNQN(e.NQN); err != nil {
		return err
	}
	if err := validateASCII("serial", e.Serial, 20); err != nil {
		return fmt.Errorf("export %s: %w", e.NQN, err)
	}
	if err := validateASCII("model", e.Model, 40); err != nil {
		return fmt.Errorf("export %s: %w", e.NQN, err)
	}
	if e.MaxIOQueues < v1alpha1.MinIOQueues || e.MaxIOQueues > v1alpha1.MaxIOQueues {
		return fmt.Errorf("%w: export %s: %d I/O queues; must be from %d to %d", ErrInvalid, e.NQN, e.MaxIOQueues, v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues)
	}
	seen := map[uint32]bool{}
	for _, ns := range e.Namespaces {
		if ns.NSID == 0 || seen[ns.NSID] {
			return fmt.Errorf("%w: export %s: NSID %d; each namespace has its own, from 1", ErrInvalid, e.NQN, ns.NSID)
		}
		seen[ns.NSID] = true
		if err := ns.Volume.Validate(); err != nil {
			return fmt.Errorf("export %s, namespace %d: %w", e.NQN, ns.NSID, err)
		}
	}
	hosts := map[string]bool{}
	for _, host := range e.Hosts {
		if err := validateNQN(host); err != nil {
			return fmt.Errorf("export %s: host: %w", e.NQN, err)
		}
		if hosts[host] {
			return fmt.Errorf("%w: export %s lists host %s twice", ErrInvalid, e.NQN, host)
		}
		hosts[host] = true
	}
	for _, host := range e.Retired {
		if err := validateNQN(host); err != nil {
			return fmt.Errorf("export %s: retired host: %w", e.NQN, err)
		}
		if hosts[host] {
			return fmt.Errorf("%w: export %s lists host %s, and as retired", ErrInvalid, e.NQN, host)
		}
	}
	return e.validateAuthentication()
}

func validateASCII(name, value string, maxBytes int) error {
	if value == "" || len(value) > maxBytes || strings.TrimSpace(value) != value || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("%w: %s %q; must have 1 to %d printable ASCII characters", ErrInvalid, name, value, maxBytes)
	}
	return nil
}

// ValidatePortal fails with ErrInvalid unless the portal can be listened on.
func ValidatePortal(p v1alpha1.Portal) error {
	if p.Transport != v1alpha1.TransportTCP && p.Transport != v1alpha1.TransportRDMA {
		return fmt.Errorf("%w: transport %q; must be TCP or RDMA", ErrInvalid, p.Transport)
	}
	addr, err := netip.ParseAddr(p.Address)
	if err != nil {
		return fmt.Errorf("%w: portal address %q is not an IPv4 or IPv6 address", ErrInvalid, p.Address)
	}
	if addr.IsUnspecified() {
		return fmt.Errorf("%w: portal address %s means all addresses; use one address of the node", ErrInvalid, p.Address)
	}
	if p.Port < v1alpha1.MinPort || p.Port > v1alpha1.MaxPort {
		return fmt.Errorf("%w: port %d; must be from %d to %d", ErrInvalid, p.Port, v1alpha1.MinPort, v1alpha1.MaxPort)
	}
	return nil
}

// Validate fails with ErrInvalid unless the portal can be opened so.
func (p Portal) Validate() error {
	if err := ValidatePortal(p.Portal); err != nil {
		return err
	}
	if p.QueueDepth < v1alpha1.MinQueueDepth || p.QueueDepth > v1alpha1.MaxQueueDepth {
		return fmt.Errorf("%w: queue depth %d; must be from %d to %d", ErrInvalid, p.QueueDepth, v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth)
	}
	if p.InCapsuleDataBytes < 0 || p.InCapsuleDataBytes > v1alpha1.MaxInCapsuleDataSize {
		return fmt.Errorf("%w: in-capsule data of %d bytes; must be from 0 to %d", ErrInvalid, p.InCapsuleDataBytes, v1alpha1.MaxInCapsuleDataSize)
	}
	return nil
}

// ComparePortals orders portals by transport, address and port, as slices.SortFunc wants it.
func ComparePortals(a, b v1alpha1.Portal) int {
	return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
}
