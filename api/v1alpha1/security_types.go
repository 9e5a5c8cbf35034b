// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// DefaultKeyLifetimeHours of hosts' keys: 90 days.
const DefaultKeyLifetimeHours = 2160

// AuthenticationMode says what happens to hosts that cannot prove who they are.
// +kubebuilder:validation:Enum=Required;Preferred;Disabled
type AuthenticationMode string

// Modes of authentication.
const (
	// AuthenticationRequired: a volume is attached only where host and target can prove themselves to each other.
	AuthenticationRequired AuthenticationMode = "Required"
	// AuthenticationPreferred: they prove themselves where both can. Elsewhere a host is admitted by its NQN alone.
	AuthenticationPreferred AuthenticationMode = "Preferred"
	// AuthenticationDisabled: hosts are admitted by their NQNs alone.
	AuthenticationDisabled AuthenticationMode = "Disabled"
	// DefaultAuthentication of a target that does not say how.
	DefaultAuthentication = AuthenticationPreferred
)

// DHGroup of the Diffie-Hellman exchange in DH-HMAC-CHAP (NVMe Base Specification, "DH-HMAC-CHAP"). None is its NULL
// group: keys are proved without an exchange.
// +kubebuilder:validation:Enum=None;FFDHE2048;FFDHE3072;FFDHE4096
type DHGroup string

// Groups, each with what it costs more.
const (
	DHGroupNone      DHGroup = "None"
	DHGroupFFDHE2048 DHGroup = "FFDHE2048"
	DHGroupFFDHE3072 DHGroup = "FFDHE3072"
	DHGroupFFDHE4096 DHGroup = "FFDHE4096"
)

// WireEncryption of the connections between hosts and targets.
// +kubebuilder:validation:Enum=None;TLS
type WireEncryption string

// Encryptions of connections.
const (
	// WireEncryptionNone: what hosts and targets send can be read and changed on the way.
	WireEncryptionNone WireEncryption = "None"
	// WireEncryptionTLS would be TLS 1.3 with a pre-shared key for each attachment. No target accepts it.
	WireEncryptionTLS WireEncryption = "TLS"
)

// Security of the connections between hosts and targets.
type Security struct {
	// Authentication of hosts and targets with DH-HMAC-CHAP. For each attachment and replica, weft creates keys, and
	// encrypts them so that only the two nodes can read them: you configure no keys. Required: a volume is attached
	// only if both nodes can authenticate. Preferred: nodes that cannot authenticate attach volumes without it.
	// Disabled: a host needs only the name of its attachment to connect. A change applies to attachments that are made
	// from then on. Default Preferred.
	// +kubebuilder:default=Preferred
	// +optional
	Authentication AuthenticationMode `json:"authentication,omitempty"`
	// DHGroup of the exchange: None, FFDHE2048, FFDHE3072 or FFDHE4096. weft's keys are random, so None is secure. Use
	// a group if your rules require one: the larger it is, the longer a connection takes. With engine SPDK, a change
	// takes effect when the target restarts. Default None.
	// +kubebuilder:default=None
	// +optional
	DHGroup DHGroup `json:"dhGroup,omitempty"`
	// Encryption of the connections: None. TLS is the name of NVMe/TCP with TLS 1.3, and is always rejected. Over TLS,
	// SPDK and the kernel's target since Linux 6.15 do not check which host connects. A node that uses one volume of a
	// target could use all of them. docs/design/encryption-on-the-wire.md has what was tried, and what to use instead.
	// Default None.
	// +kubebuilder:default=None
	// +kubebuilder:validation:XValidation:rule="self != 'TLS'",message="TLS is not supported: over TLS, neither SPDK nor the kernel's target checks which host connects; remove encryption, and use volumes with encrypted: \"true\", or a network that encrypts"
	// +optional
	Encryption WireEncryption `json:"encryption,omitempty"`
	// KeyLifetimeHours is the age in hours at which the keys of an attached host are replaced, without an interruption
	// of its I/O. Default 2160 (90 days). From 1 to 87600 (10 years).
	// +kubebuilder:default=2160
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=87600
	// +optional
	KeyLifetimeHours int32 `json:"keyLifetimeHours,omitempty"`
}

// Authentication that the target asks for: DefaultAuthentication unless it says otherwise.
func (s *NvmfTargetSpec) Authentication() AuthenticationMode {
	if s.Security == nil || s.Security.Authentication == "" {
		return DefaultAuthentication
	}
	return s.Security.Authentication
}

// KeyLifetime is the age at which keys of hosts that are attached are replaced.
func (t *NvmfTarget) KeyLifetime() time.Duration {
	hours := int32(DefaultKeyLifetimeHours)
	if t.Spec.Security != nil && t.Spec.Security.KeyLifetimeHours > 0 {
		hours = t.Spec.Security.KeyLifetimeHours
	}
	return time.Duration(hours) * time.Hour
}

// PlannedAuthentication is how the hosts of a node's target prove themselves.
type PlannedAuthentication struct {
	// Mode: Required or Preferred.
	// +required
	Mode AuthenticationMode `json:"mode"`
	// DHGroup of the exchange.
	// +required
	DHGroup DHGroup `json:"dhGroup"`
}

// CannotAuthenticate says why the node's target cannot authenticate hosts; empty when it can.
func (n *NvmfNode) CannotAuthenticate() string {
	switch running := n.Status.Engine; {
	case n.Status.PublicKey == "":
		return "its agent reports no public key; check that a weft-agent pod of this version runs there"
	case running != nil && !running.Authentication:
		return fmt.Sprintf("its engine %s %s does not support it; Linux needs CONFIG_NVME_TARGET_AUTH", running.Type, running.Version)
	}
	return ""
}

// HostPublicKey is the public key of a Node's plugin, to which the keys of its hosts are sealed. Without one, the
// reason says why its hosts cannot prove themselves.
func HostPublicKey(node *corev1.Node) (publicKey, reason string) {
	switch c := NodeCondition(node, ConditionAuthenticationUnavailable); {
	case c == nil:
		return "", "its node plugin does not report whether it can; check that a weft-csi-node pod of this version runs there"
	case c.Status != corev1.ConditionFalse:
		return "", c.Message
	default:
		return c.Message, ""
	}
}

// RetiredIdentities are the identities, by their UUIDs, under which a Node's plugin has connected to replicas and never
// does again: their successors are connected. Each is listed until no NvmfReplica lists it.
func RetiredIdentities(node *corev1.Node) []string {
	c := NodeCondition(node, ConditionIdentitiesRetired)
	if c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	return strings.Fields(c.Message)
}
