// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

const (
	// NQNPrefix starts every NQN of a subsystem that weft serves. The replica's name follows it, then
	// attachmentSeparator and the UUID of an attachment.
	NQNPrefix = "nqn.2026-11.storage.weft:"
	// HostNQNPrefix starts every host NQN (NVMe Base Specification: NQN with a UUID); the attachment's UUID follows it.
	HostNQNPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
	// attachmentSeparator cannot stand in a replica's name, which is the name of a Kubernetes object.
	attachmentSeparator = ":"
)

// SubsystemNQN of a replica, by the replica's name and the UUID of the session that the subsystem was made for. Each
// replica has a subsystem of its own, and a new one when its volume is attached after nobody was: Linux merges
// controllers by their subsystem's NQN, whatever their hosts, so that writes queued for a former attachment would go
// out with those of the next.
func SubsystemNQN(replica, session string) string {
	return NQNPrefix + replica + attachmentSeparator + session
}

// ReplicaOfSubsystem is the name of the replica that a subsystem serves; ok is false when the subsystem is not weft's.
func ReplicaOfSubsystem(nqn string) (replica string, ok bool) {
	rest, ok := strings.CutPrefix(nqn, NQNPrefix)
	replica, _, _ = strings.Cut(rest, attachmentSeparator)
	return replica, ok
}

// SessionOfSubsystem is the UUID of the session in a subsystem's NQN; empty when the subsystem is not weft's. Of a leg
// of a mirror, it is the identity by which the mirror knows that leg: whatever was sent to the subsystem, as whichever
// host, is off once the replica has another one.
func SessionOfSubsystem(nqn string) string {
	rest, ok := strings.CutPrefix(nqn, NQNPrefix)
	if !ok {
		return ""
	}
	_, session, _ := strings.Cut(rest, attachmentSeparator)
	return session
}

// CurrentSubsystem is the NQN of the subsystem that serves the replica now. Until its volume is attached for the first
// time it carries the replica's own UUID.
func (v *NvmfReplica) CurrentSubsystem() string {
	if v.Spec.SubsystemNQN != "" {
		return v.Spec.SubsystemNQN
	}
	return SubsystemNQN(v.Name, v.Spec.UUID)
}

// HostNQN of an attachment, by its UUID.
func HostNQN(attachment string) string { return HostNQNPrefix + attachment }

// AttachmentOfHost is the UUID in a host NQN; ok is false when the NQN is not one that weft gives to an attachment.
func AttachmentOfHost(nqn string) (attachment string, ok bool) {
	return strings.CutPrefix(nqn, HostNQNPrefix)
}
