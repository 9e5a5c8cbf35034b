// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/dhchap"
)

// Authentication by which a host and the target prove to each other who they are (DH-HMAC-CHAP).
type Authentication struct {
	// Keys that the host and the target must have. Gather never answers them.
	Keys dhchap.Pair
	// Group of the exchange, as planned; empty for the target's own. A target that has one for all its hosts (SPDK)
	// takes it from its plan. It holds for keys that are set from then on. Not answered by Gather.
	Group v1alpha1.DHGroup
	// Fingerprint of the keys that are in force. Answered by Gather, and not read by Export. Of keys that weft did not
	// set it is UnknownKeys.
	Fingerprint string
}

// UnknownKeys is the fingerprint of keys that are not weft's.
const UnknownKeys = "unknown"

// SameAuthentication says whether what Gather answered of an export's hosts is as wanted: the same hosts have keys, and
// the same ones.
func SameAuthentication(is, want map[string]Authentication) bool {
	if len(is) != len(want) {
		return false
	}
	for host, w := range want {
		if i, there := is[host]; !there || i.Fingerprint != w.Keys.Fingerprint() {
			return false
		}
	}
	return true
}

// validateAuthentication of an export's hosts.
func (e Export) validateAuthentication() error {
	for host, a := range e.Authentication {
		if !slices.Contains(e.Hosts, host) {
			return fmt.Errorf("%w: export %s has keys of host %s, which it does not list", ErrInvalid, e.NQN, host)
		}
		if err := a.Keys.Validate(); err != nil {
			return fmt.Errorf("%w: export %s, host %s: %w", ErrInvalid, e.NQN, host, err)
		}
	}
	return nil
}
