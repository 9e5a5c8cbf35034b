// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/internal/dhchap"
)

// keyring has the keys of hosts that are sealed to this node. They are in memory only.
type keyring struct {
	// identity of the node; nil when it has none.
	identity *dhchap.Identity
	// opened keys, by what they are sealed as; none where they could not be opened.
	opened map[string]dhchap.Pair
}

// publicKey to which keys are sealed; empty without an identity.
func (k *keyring) publicKey() string {
	if k.identity == nil {
		return ""
	}
	return k.identity.PublicKey()
}

// open the keys of all hosts of these objects and records. What is opened once is not again, and what is in none of
// them is forgotten.
func (k *keyring) open(s *decide.Observed) map[string]dhchap.Pair {
	all := map[string]dhchap.Pair{}
	for _, v := range s.Volumes {
		for _, h := range v.Spec.Hosts {
			all[h.SealedKeys] = dhchap.Pair{}
		}
	}
	for _, r := range s.Records.Items {
		for _, sealed := range r.Sealed {
			all[sealed] = dhchap.Pair{}
		}
	}
	delete(all, "")
	keys := map[string]dhchap.Pair{}
	for sealed := range all {
		pair, known := k.opened[sealed]
		if !known && k.identity != nil {
			pair, _ = k.identity.Open(sealed) // what cannot be opened has none, and the replica's condition says so
		}
		if all[sealed] = pair; !pair.IsZero() {
			keys[sealed] = pair
		}
	}
	k.opened = all
	return keys
}
