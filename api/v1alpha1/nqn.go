// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

const (
	// NQNPrefix starts every NQN of a subsystem that weft serves; the volume's name follows it.
	NQNPrefix = "nqn.2026-11.storage.weft:"
	// HostNQNPrefix starts every host NQN (NVMe Base Specification: NQN with a UUID); the Kubernetes Node's UID
	// follows it. The host NQN is also the node's CSI node_id.
	HostNQNPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
)

// SubsystemNQN of a volume, by the volume's name: each volume has a subsystem of its own.
func SubsystemNQN(volume string) string { return NQNPrefix + volume }

// VolumeOfSubsystem is the name of the volume that a subsystem serves; ok is false when the subsystem is not weft's.
func VolumeOfSubsystem(nqn string) (volume string, ok bool) { return strings.CutPrefix(nqn, NQNPrefix) }

// HostNQN of a host, by its UUID.
func HostNQN(uuid string) string { return HostNQNPrefix + uuid }

// UUIDOfHost is the UUID in a host NQN; ok is false when the NQN is not one that weft gives to hosts.
func UUIDOfHost(nqn string) (uuid string, ok bool) { return strings.CutPrefix(nqn, HostNQNPrefix) }
